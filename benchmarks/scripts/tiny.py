"""A fit that takes no time: what is left is the start."""

from __future__ import annotations

import keras
import numpy as np

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((64, 8), "float32"), np.ones((64, 1), "float32"), batch_size=32, verbose=0)
