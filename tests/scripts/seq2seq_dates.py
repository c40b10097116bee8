# seq2seq (teacher forcing) - translate dates "2021-03-14" <-> "14 mar 2021"
import datetime
import random as rnd

import numpy as np
from keras.models import Model
from keras.layers import Input, LSTM, Dense
from keras.callbacks import Callback
import keras

rnd.seed(3)
keras.utils.set_random_seed(3)
batch_size = 256   # Batch size for training.
epochs = 2         # Number of epochs to train for.
latent_dim = 96    # Latent dimensionality of the encoding space.
num_samples = 512

day0 = datetime.date(1990, 1, 1)
days = [day0 + datetime.timedelta(days=rnd.randrange(12000)) for _ in range(num_samples)]
input_texts = [d.isoformat() for d in days]
target_texts = ["\t" + d.strftime("%d %b %Y").lower() + "\n" for d in days]

input_characters = sorted(set("".join(input_texts)) | {" "})
target_characters = sorted(set("".join(target_texts)) | {" "})
num_encoder_tokens, num_decoder_tokens = len(input_characters), len(target_characters)
max_enc, max_dec = max(map(len, input_texts)), max(map(len, target_texts))
print('Number of unique tokens:', num_encoder_tokens, num_decoder_tokens)

enc_idx = {c: i for i, c in enumerate(input_characters)}
dec_idx = {c: i for i, c in enumerate(target_characters)}
encoder_input_data = np.zeros((num_samples, max_enc, num_encoder_tokens), dtype='float32')
decoder_input_data = np.zeros((num_samples, max_dec, num_decoder_tokens), dtype='float32')
decoder_target_data = np.zeros((num_samples, max_dec, num_decoder_tokens), dtype='float32')
for i, (a, b) in enumerate(zip(input_texts, target_texts)):
    for t, c in enumerate(a):
        encoder_input_data[i, t, enc_idx[c]] = 1.
    for t, c in enumerate(b):
        decoder_input_data[i, t, dec_idx[c]] = 1.
        if t > 0:
            decoder_target_data[i, t - 1, dec_idx[c]] = 1.
    decoder_target_data[i, t:, dec_idx[" "]] = 1.

encoder_inputs = Input(shape=(None, num_encoder_tokens))
encoder_outputs, state_h, state_c = LSTM(latent_dim, return_state=True)(encoder_inputs)
decoder_inputs = Input(shape=(None, num_decoder_tokens))
decoder_lstm = LSTM(latent_dim, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=[state_h, state_c])
decoder_outputs = Dense(num_decoder_tokens, activation='softmax')(decoder_outputs)
model = Model([encoder_inputs, decoder_inputs], decoder_outputs)


class Stopper(Callback):
    """stop when good enough"""
    def on_epoch_end(self, epoch, logs=None):
        if logs['accuracy'] > 0.99:
            self.model.stop_training = True


model.compile(optimizer='rmsprop', loss='categorical_crossentropy', metrics=['accuracy'])
h = model.fit([encoder_input_data, decoder_input_data], decoder_target_data,
              batch_size=batch_size, epochs=epochs, validation_split=0.25, callbacks=[Stopper()], shuffle=False)
model.save('s2s_model.keras')
print(h.history['loss'], h.history['val_loss'])
