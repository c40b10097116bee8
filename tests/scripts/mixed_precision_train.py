import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision, regularizers
from tensorflow.keras.callbacks import LearningRateScheduler

# use the tensor cores!!!
mixed_precision.set_global_policy('mixed_bfloat16')

HPARAMS = dict(batch_size=256, epochs=2, width=512, lr=3e-4)


def lr_schedule(epoch, lr):
    return HPARAMS['lr'] * (0.5 ** epoch)


def get_data():
    rng = np.random.default_rng(33)
    x = rng.standard_normal((512, 64, 64)).astype('float32')
    y = x.mean(axis=(1, 2), keepdims=False)[:, None]
    return x, y


def get_model(width):
    inp = layers.Input((64, 64))
    h = layers.Dense(width, activation='swish')(inp)
    h = layers.Dense(width, activation='swish', kernel_regularizer=regularizers.L2(1e-5))(h)
    h = layers.GlobalAveragePooling1D()(h)
    out = layers.Dense(1, dtype='float32')(h)   # keep the output in fp32
    return tf.keras.Model(inp, out)


x, y = get_data()
tf.keras.utils.set_random_seed(10)
model = get_model(HPARAMS['width'])
opt = tf.keras.optimizers.AdamW(HPARAMS['lr'], weight_decay=1e-4, clipnorm=1.0)
model.compile(opt, loss='huber', metrics=[tf.keras.metrics.RootMeanSquaredError()])
print('Compute dtype:', model.layers[1].compute_dtype, ' Variable dtype:', model.layers[1].variable_dtype)
w = np.linspace(0.5, 1.5, len(x)).astype('float32')
h = model.fit(x, y, sample_weight=w, batch_size=HPARAMS['batch_size'], epochs=HPARAMS['epochs'],
              callbacks=[LearningRateScheduler(lr_schedule, verbose=1)], verbose=2, shuffle=False)
print('FINAL loss=%.4f lr=%.2e' % (h.history['loss'][-1], h.history['learning_rate'][-1]))
