import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import numpy as np

# ----- config -----
CONFIG = {
    "batch_size": 512,
    "latent_dim": 2,
    "epochs": 2,
    "lr": 1e-3,
}

tf.keras.utils.set_random_seed(99)


class Sampling(layers.Layer):
    """Uses (z_mean, z_log_var) to sample z"""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(5)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(shape=tf.shape(z_mean), seed=self.seed_generator)
        return z_mean + tf.exp(0.5 * z_log_var) * epsilon


def build_encoder(d):
    i = keras.Input(shape=(28, 28, 1))
    x = layers.Conv2D(32, 3, activation="relu", strides=2, padding="same")(i)
    x = layers.Conv2D(64, 3, activation="relu", strides=2, padding="same")(x)
    x = layers.Flatten()(x)
    x = layers.Dense(16, activation="relu")(x)
    m = layers.Dense(d, name="z_mean")(x)
    v = layers.Dense(d, name="z_log_var")(x)
    return keras.Model(i, [m, v, Sampling()([m, v])], name="encoder")


def build_decoder(d):
    i = keras.Input(shape=(d,))
    x = layers.Dense(7 * 7 * 64, activation="relu")(i)
    x = layers.Reshape((7, 7, 64))(x)
    x = layers.Conv2DTranspose(64, 3, activation="relu", strides=2, padding="same")(x)
    x = layers.Conv2DTranspose(32, 3, activation="relu", strides=2, padding="same")(x)
    return keras.Model(i, layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x), name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(data)
            reconstruction = self.decoder(z)
            reconstruction_loss = tf.reduce_mean(
                tf.reduce_sum(keras.losses.binary_crossentropy(data, reconstruction), axis=(1, 2))
            )
            kl_loss = -0.5 * (1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var))
            kl_loss = tf.reduce_mean(tf.reduce_sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }


digits = np.random.RandomState(0).rand(1024, 28, 28, 1).astype("float32")
vae = VAE(build_encoder(CONFIG["latent_dim"]), build_decoder(CONFIG["latent_dim"]))
vae.compile(optimizer=keras.optimizers.Adam(learning_rate=CONFIG["lr"]))
history = vae.fit(digits, epochs=CONFIG["epochs"], batch_size=CONFIG["batch_size"])
vae.decoder.save_weights("vae_decoder.weights.h5")
print({k: round(v[-1], 4) for k, v in history.history.items()})
