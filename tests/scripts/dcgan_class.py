import os
import keras
from keras import layers, ops
import numpy as np
import tensorflow as tf

BATCH_SIZE = 384
LATENT = 32

keras.utils.set_random_seed(3)

discriminator = keras.Sequential(
    [
        keras.Input(shape=(32, 32, 1)),
        layers.Conv2D(32, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(64, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Flatten(),
        layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        keras.Input(shape=(LATENT,)),
        layers.Dense(8 * 8 * 32),
        layers.Reshape((8, 8, 32)),
        layers.Conv2DTranspose(32, 4, strides=2, padding="same", activation="relu"),
        layers.Conv2DTranspose(32, 4, strides=2, padding="same", activation="relu"),
        layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real_images):
        batch_size = ops.shape(real_images)[0]
        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        generated = self.generator(noise)
        combined = ops.concatenate([generated, real_images], axis=0)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)

        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))

        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((batch_size, 1)), self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class GANMonitor(keras.callbacks.Callback):
    """Save a few generated images at the end of every epoch."""

    def __init__(self, num_img=3, latent_dim=LATENT):
        self.num_img = num_img
        self.latent_dim = latent_dim

    def on_epoch_end(self, epoch, logs=None):
        noise = keras.random.normal((self.num_img, self.latent_dim), seed=epoch)
        images = np.asarray(self.model.generator(noise)) * 255
        for i in range(self.num_img):
            keras.utils.array_to_img(images[i]).save(f"generated_{epoch:03d}_{i}.png")


real = np.random.default_rng(0).random((4096, 32, 32, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(real).shuffle(512, seed=1).batch(BATCH_SIZE).take(3)  # first few batches only, for testing

gan = GAN(discriminator, generator, LATENT)
gan.compile(
    d_optimizer=keras.optimizers.Adam(3e-4),
    g_optimizer=keras.optimizers.Adam(3e-4),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
h = gan.fit(dataset, epochs=2, callbacks=[GANMonitor()])
print(sorted(f for f in os.listdir(".") if f.startswith("generated")))
print("d_loss", h.history["d_loss"][-1], "g_loss", h.history["g_loss"][-1])
