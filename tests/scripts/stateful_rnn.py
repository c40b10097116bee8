'''Stateful LSTM: learn a sine wave, sequence by sequence, reset states by hand.'''
import numpy as np
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import Dense, LSTM, Input
import tensorflow as tf

tf.keras.utils.set_random_seed(0)

tsteps = 32
batch_size = 256
epochs = 2
lahead = 1

print('Generating Data...')
channels = 64
wave = np.sin(np.arange(32 * 1024) / 25.0).astype('float32').reshape(-1, tsteps, 1)
cos = wave * np.linspace(0.1, 1.0, channels, dtype='float32')     # one column per sensor
expected_output = np.roll(cos[:, -1, :1], -1, axis=0)
print('Input shape:', cos.shape, ' MB:', cos.nbytes / 2**20)

print('Creating Model...')
model = Sequential([
    Input(batch_shape=(batch_size, tsteps, channels)),
    LSTM(128, return_sequences=True, stateful=True),
    LSTM(128, return_sequences=False, stateful=True),
    Dense(1),
])
model.compile(loss='mse', optimizer='rmsprop')

print('Training')
for i in range(epochs):
    print('Epoch', i, '/', epochs)
    h = model.fit(cos, expected_output, batch_size=batch_size, epochs=1, verbose=1, shuffle=False)
    for layer in model.layers:
        if hasattr(layer, 'reset_states'):
            layer.reset_states()

predicted_output = model.predict(cos, batch_size=batch_size)
print('Ploting Results', predicted_output.shape, 'loss', h.history['loss'][0])
