import numpy as np
import tensorflow as tf
import keras

# issue tracker: ticket title + body + tags -> priority and department
keras.utils.set_random_seed(0)
num_tags, num_words, num_departments = 12, 5000, 4
batch_size = 256   # <- lower me if you get OOM
N = 512

title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")

title_features = keras.layers.Embedding(num_words, 32)(title_input)
body_features = keras.layers.Embedding(num_words, 64)(body_input)
title_features = keras.layers.GRU(32)(title_features)
body_features = keras.layers.Conv1D(64, 5, activation="relu", padding="same")(body_features)
body_features = keras.layers.Conv1D(64, 5, activation="relu", padding="same")(body_features)
body_features = keras.layers.GlobalMaxPooling1D()(body_features)

x = keras.layers.concatenate([title_features, body_features, tags_input])
priority_pred = keras.layers.Dense(1, name="priority")(x)
department_pred = keras.layers.Dense(num_departments, name="department")(x)

model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)

rs = np.random.RandomState(5)
title_data = rs.randint(num_words, size=(N, 10))
body_data = rs.randint(num_words, size=(N, 400))
tags_data = rs.randint(2, size=(N, num_tags)).astype("float32")
priority_targets = rs.random_sample(size=(N, 1))
dept_targets = np.eye(num_departments)[rs.randint(num_departments, size=N)]

hist = model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=2,
    batch_size=batch_size,
    shuffle=False,
)
print({k: v[0] for k, v in hist.history.items()})
