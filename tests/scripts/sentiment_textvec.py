from __future__ import annotations

import random

import tensorflow as tf
from tensorflow.keras import Sequential
from tensorflow.keras.layers import (
    Bidirectional,
    Dense,
    Embedding,
    Input,
    LSTM,
    TextVectorization,
)
from tensorflow.keras.losses import BinaryCrossentropy

VOCAB_SIZE = 2000
SEQ_LEN = 80
BATCH_SIZE = 128

random.seed(0)
tf.keras.utils.set_random_seed(0)

GOOD = "great wonderful superb loved brilliant charming funny".split()
BAD = "awful boring terrible hated dull stupid slow".split()
FILL = [f"word{i}" for i in range(1500)]


def review(positive: bool) -> str:
    words = random.choices(FILL, k=70) + random.choices(GOOD if positive else BAD, k=10)
    random.shuffle(words)
    return " ".join(words)


labels = [random.random() < 0.5 for _ in range(384)]
texts = [review(l) for l in labels]

ds = tf.data.Dataset.from_tensor_slices((texts, tf.cast(labels, tf.float32)))
train = ds.take(256).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
test = ds.skip(256).batch(BATCH_SIZE)

encoder = TextVectorization(max_tokens=VOCAB_SIZE, output_sequence_length=SEQ_LEN)
encoder.adapt(train.map(lambda text, label: text))

model = Sequential([
    Input(shape=(1,), dtype=tf.string),
    encoder,
    Embedding(len(encoder.get_vocabulary()), 64, mask_zero=True),
    Bidirectional(LSTM(64, return_sequences=True)),
    Bidirectional(LSTM(32)),
    Dense(64, activation="relu"),
    Dense(1),
])
model.compile(loss=BinaryCrossentropy(from_logits=True), optimizer="adam", metrics=["accuracy"])
history = model.fit(train, epochs=2, validation_data=test)
test_loss, test_acc = model.evaluate(test)
print("Test Loss:", test_loss)
print("sample:", model.predict(tf.constant([["great wonderful funny"]]), verbose=0)[0])
print("final train loss %.6f" % history.history["loss"][-1])
