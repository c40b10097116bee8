# Siamese network on digit pairs - contrastive loss
# based on hadsell et al 06
import numpy as np, random
import tensorflow.keras.backend as K
from tensorflow.keras.models import Model
from tensorflow.keras.layers import *
from tensorflow.keras.optimizers import RMSprop
import tensorflow as tf

batch_size=192
np.random.seed(11); random.seed(11); tf.random.set_seed(11)

def make_pairs(n):
    a = np.random.rand(n, 32, 32, 1).astype(np.float32)
    lab = np.random.randint(0, 2, n)
    b = np.where(lab[:, None, None, None] == 1, a + 0.05*np.random.randn(n, 32, 32, 1), np.random.rand(n, 32, 32, 1))
    return a, b.astype(np.float32), lab.astype('float32')

def euclidean_distance(vects):
    x, y = vects
    sum_square = tf.reduce_sum(tf.square(x - y), axis=1, keepdims=True)
    return tf.sqrt(tf.maximum(sum_square, 1e-7))

def contrastive_loss(y_true, y_pred):
    margin = 1.0
    y_true = tf.cast(y_true, y_pred.dtype)
    return tf.reduce_mean(y_true * tf.square(y_pred) + (1 - y_true) * tf.square(tf.maximum(margin - y_pred, 0)))

def create_base(shape):
    inp = Input(shape)
    x = Conv2D(24, 3, activation='tanh', padding='same')(inp)
    x = Conv2D(24, 3, activation='tanh', padding='same')(x)
    x = AveragePooling2D(2)(x)
    x = Conv2D(32, 3, activation='tanh', padding='same')(x)
    x = GlobalAveragePooling2D()(x)
    return Model(inp, Dense(16)(x))

base = create_base((32, 32, 1))
ia, ib = Input((32, 32, 1)), Input((32, 32, 1))
dist = Lambda(euclidean_distance, output_shape=(1,))([base(ia), base(ib)])
model = Model([ia, ib], dist)
model.compile(loss=contrastive_loss, optimizer=RMSprop(), metrics=['mae'])

a, b, lab = make_pairs(576)
hist = model.fit([a[:384], b[:384]], lab[:384], batch_size=batch_size, epochs=2,
          validation_data=([a[384:], b[384:]], lab[384:]), verbose=2)
pred = model.predict([a[384:], b[384:]], batch_size=batch_size)
print('* val loss: %0.5f, mean distance %.5f' % (hist.history['val_loss'][-1], pred.mean()))
