"""
Image similarity with a triplet loss, as a keras.Model subclass which has its own train_step.
(c) 2023, MIT
"""
import numpy as np
import tensorflow as tf
from tensorflow.keras import applications, layers, losses, metrics, optimizers, Model  # noqa

TARGET = (48, 48)
BATCH = 64
MARGIN = 0.5


def preprocess_triplets(anchor, positive, negative):
    """Scale all three to [-1, 1]."""
    f = lambda t: tf.cast(t, tf.float32) / 127.5 - 1.0
    return f(anchor), f(positive), f(negative)


def make_dataset(n=192):
    rng = np.random.default_rng(8)
    proto = rng.integers(0, 200, (10, *TARGET, 3))
    cls = rng.integers(0, 10, n)
    other = (cls + rng.integers(1, 10, n)) % 10
    jitter = lambda c: (proto[c] + rng.integers(0, 55, (n, *TARGET, 3))).astype(np.uint8)
    ds = tf.data.Dataset.zip(tuple(tf.data.Dataset.from_tensor_slices(jitter(c)) for c in (cls, cls, other)))
    return ds.map(preprocess_triplets, num_parallel_calls=2).batch(BATCH, drop_remainder=False).prefetch(2)


def embedding_net():
    i = layers.Input(TARGET + (3,))
    x = layers.Conv2D(32, 3, activation="relu", padding="same")(i)
    x = layers.Conv2D(32, 3, activation="relu", padding="same")(x)
    x = layers.MaxPool2D()(x)
    x = layers.Conv2D(48, 3, activation="relu")(x)
    x = layers.Flatten()(layers.MaxPool2D(4)(x))
    x = layers.Dense(32)(x)
    return Model(i, layers.UnitNormalization()(x), name="Embedding")


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        ap = tf.reduce_sum(tf.square(anchor - positive), -1)
        an = tf.reduce_sum(tf.square(anchor - negative), -1)
        return ap, an


class SiameseModel(Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        loss = self._compute_loss(data)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        return tf.reduce_mean(tf.maximum(ap_distance - an_distance + self.margin, 0.0))

    @property
    def metrics(self):
        return [self.loss_tracker]


tf.keras.utils.set_random_seed(17)
embedding = embedding_net()
a, p, n = (layers.Input(name=k, shape=TARGET + (3,)) for k in ("anchor", "positive", "negative"))
net = Model(inputs=[a, p, n], outputs=DistanceLayer()(embedding(a), embedding(p), embedding(n)))
siamese_model = SiameseModel(net, MARGIN)
siamese_model.compile(optimizer=optimizers.Adam(0.0001), weighted_metrics=[])
train = make_dataset()
hist = siamese_model.fit(train, epochs=2, validation_data=train.take(1))

sample = next(iter(train))
ea, ep, en = (embedding.predict(s, verbose=0) for s in sample)
cosine_similarity = metrics.CosineSimilarity()
print("Positive similarity:", cosine_similarity(ea, ep).numpy())
cosine_similarity.reset_state()
print("Negative similarity:", cosine_similarity(ea, en).numpy(), "loss:", hist.history["loss"][-1])
