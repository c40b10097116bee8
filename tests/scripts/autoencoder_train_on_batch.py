import numpy as np
import tensorflow as tf
import time

tf.keras.utils.set_random_seed(1)

# hyper params
bs = 256
n_iter = 4

data = np.random.rand(640, 32, 32, 3).astype(np.float32)


def make_ae():
    m = tf.keras.Sequential()
    m.add(tf.keras.Input((32, 32, 3)))
    m.add(tf.keras.layers.Conv2D(32, 3, padding='same', activation='relu'))
    m.add(tf.keras.layers.Conv2D(32, 3, padding='same', activation='relu'))
    m.add(tf.keras.layers.MaxPooling2D())
    m.add(tf.keras.layers.Conv2D(16, 3, padding='same', activation='relu'))
    m.add(tf.keras.layers.UpSampling2D())
    m.add(tf.keras.layers.Conv2D(32, 3, padding='same', activation='relu'))
    m.add(tf.keras.layers.Conv2D(3, 3, padding='same'))
    m.compile('adam', 'mse', metrics=['mae'])
    return m


ae = make_ae()
t0 = time.time()
for it in range(n_iter):
    idx = np.random.randint(0, len(data), bs)
    noisy = data[idx] + 0.1 * np.random.randn(bs, 32, 32, 3)
    loss, mae = ae.train_on_batch(noisy, data[idx])
    if it % 2 == 0:
        print("iter {:4d}  loss {:.5f}  mae {:.5f}".format(it, loss, mae))

# quick look at the reconstruction error per image
err = []
for i in range(0, 512, bs):
    rec = ae.predict_on_batch(data[i:i+bs])
    err.extend(((rec - data[i:i+bs]) ** 2).mean(axis=(1, 2, 3)))
res = ae.test_on_batch(data[:bs], data[:bs], return_dict=True)
print("took %.1fs" % (time.time() - t0), flush=True)
print("done.  mse=%.5f worst=%.5f test=%s" % (np.mean(err), np.max(err), res['loss']))
