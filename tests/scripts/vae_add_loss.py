from keras import layers, Model, ops, losses, random as krandom
import keras, numpy as np

B = 2048; D = 784; Z = 16; H = 512
keras.utils.set_random_seed(31337)

class KLLayer(layers.Layer):
    "adds the KL term, passes z on"
    def __init__(self, beta=1.0, **kw):
        super().__init__(**kw); self.beta = beta
        self.seed_generator = krandom.SeedGenerator(1)
    def call(self, ins):
        mu, lv = ins
        kl = -0.5 * ops.mean(ops.sum(1 + lv - mu**2 - ops.exp(lv), axis=-1))
        self.add_loss(self.beta * kl)
        return mu + ops.exp(lv / 2) * 1e-3

x_in = layers.Input((D,))
h = x_in
for units in (H, H, H // 2, H // 2):
    h = layers.Dense(units, "elu")(h)
mu, lv = layers.Dense(Z)(h), layers.Dense(Z, kernel_initializer="zeros")(h)
z = KLLayer(beta=0.01)([mu, lv])
h = z
for units in (H // 2, H // 2, H, H):
    h = layers.Dense(units, "elu")(h)
out = layers.Dense(D)(h)
vae = Model(x_in, out)
vae.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")

X = np.random.default_rng(0).normal(size=(4096, D)).astype("float32")   # 12 MB
for lr in [0.01, 0.001]:
    vae.optimizer.learning_rate = lr
    r = vae.fit(X, X, batch_size=B, epochs=1, verbose=0)
    print("lr", lr, "->", r.history)

enc = Model(x_in, mu)
codes = enc.predict(X[:512], batch_size=32, verbose=0)
print("code std %.4f loss %.5f" % (codes.std(), r.history["loss"][0]))
