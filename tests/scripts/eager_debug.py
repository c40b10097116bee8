# minimal repro for my StackOverflow question, sorry for the mess
import tensorflow as tf, numpy as np
from tensorflow.keras.layers import *
tf.keras.utils.set_random_seed(123)

X = np.random.random((256, 40, 40, 1)).astype('float32')
Y = np.random.random((256, 40, 40, 1)).astype('float32')

class MyLoss(tf.keras.losses.Loss):
    def call(self, y_true, y_pred):
        # print(y_pred.numpy().mean())   # only works with run_eagerly
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)

def my_metric(y_true, y_pred):
    return tf.reduce_max(tf.abs(y_true - y_pred), axis=[1, 2, 3])

class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.convs = [Conv2D(32, 3, padding='same', activation='relu') for _ in range(3)]
        self.out = Conv2D(1, 1)
    def call(self, x):
        for c in self.convs:
            y = c(x)
            x = x + y if x.shape[-1] == y.shape[-1] else y
        return self.out(x)

m = Net()
m.compile(optimizer=tf.keras.optimizers.Nadam(0.002), loss=MyLoss(), metrics=[my_metric], run_eagerly=True)
m.fit(X, Y, batch_size=128, epochs=2, shuffle=False)
m.summary()
print(m.evaluate(X, Y, batch_size=128, verbose=0))
