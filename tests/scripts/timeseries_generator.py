#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""
Forecasting with Conv1D on sliding windows. Data come out of a python generator,
since the real CSV does not fit in RAM.
"""
import pandas as pd
import numpy as np
from tensorflow import keras
from tensorflow.keras.layers import Conv1D, Dense, Flatten, Input, MaxPooling1D, LSTM
from tensorflow.keras.callbacks import EarlyStopping, LambdaCallback

lookback = 720
step = 1
delay = 24
batch_size = 128

rng = np.random.RandomState(2)
t = np.arange(6000)
df = pd.DataFrame({
    'T (degC)': 10 + 8*np.sin(t/1440*2*np.pi) + rng.randn(6000),
    'p (mbar)': 990 + 5*np.cos(t/700) + rng.randn(6000),
    'rh (%)': 50 + 20*np.sin(t/300) + rng.randn(6000),
})
float_data = df.values.copy()
mean = float_data[:4000].mean(axis=0); float_data -= mean
std = float_data[:4000].std(axis=0); float_data /= std


def generator(data, lookback, delay, min_index, max_index, shuffle=False, batch_size=128, step=6, seed=0):
    r = np.random.RandomState(seed)
    if max_index is None:
        max_index = len(data) - delay - 1
    i = min_index + lookback
    while 1:
        if shuffle:
            rows = r.randint(min_index + lookback, max_index, size=batch_size)
        else:
            if i + batch_size >= max_index:
                i = min_index + lookback
            rows = np.arange(i, min(i + batch_size, max_index))
            i += len(rows)
        samples = np.zeros((len(rows), lookback // step, data.shape[-1]))
        targets = np.zeros((len(rows),))
        for j, row in enumerate(rows):
            indices = range(rows[j] - lookback, rows[j], step)
            samples[j] = data[indices]
            targets[j] = data[rows[j] + delay][0]
        yield samples, targets


train_gen = generator(float_data, lookback, delay, 0, 4000, shuffle=True, step=step, batch_size=batch_size)
val_gen = generator(float_data, lookback, delay, 4001, 5900, step=step, batch_size=batch_size)

keras.utils.set_random_seed(4)
model = keras.Sequential()
model.add(Input((lookback // step, 3)))
model.add(Conv1D(64, 5, activation='relu'))
model.add(Conv1D(64, 5, activation='relu'))
model.add(MaxPooling1D(3))
model.add(Conv1D(64, 5, activation='relu'))
model.add(LSTM(32))
model.add(Dense(1))
model.compile(optimizer='rmsprop', loss='mae')

losses = []
history = model.fit(
    train_gen, steps_per_epoch=2, epochs=2, validation_data=val_gen, validation_steps=2, verbose=2,
    callbacks=[EarlyStopping('val_loss', patience=3),
               LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs['loss']))])
print('n batches seen', len(losses))
print('val mae', history.history['val_loss'], 'train', history.history['loss'])
