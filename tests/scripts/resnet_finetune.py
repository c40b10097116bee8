# transfer learning: first the head, then unfreeze the top of the base.
# weights=None since I have no internet on the cluster :(
import os
import numpy as np
import keras
from keras.applications import MobileNetV2
from keras.layers import Dense, GlobalAveragePooling2D, Dropout
from keras.models import Model
from keras.optimizers import Adam, SGD

BATCH = int(os.environ.get('BATCH', 192))
IMG = 64

keras.utils.set_random_seed(7)
rng = np.random.RandomState(7)
X = rng.rand(192, IMG, IMG, 3).astype('float32') * 2 - 1
y = keras.utils.to_categorical(rng.randint(0, 5, 192), 5)

base = MobileNetV2(weights=None, include_top=False, input_shape=(IMG, IMG, 3), alpha=0.35)
base.trainable = False

x = base.output
x = GlobalAveragePooling2D()(x)
x = Dropout(0.2)(x)
predictions = Dense(5, activation='softmax')(x)
model = Model(inputs=base.input, outputs=predictions)

# ---- phase 1
model.compile(optimizer=Adam(1e-3), loss='categorical_crossentropy', metrics=['acc'])
h1 = model.fit(X, y, batch_size=BATCH, epochs=1, verbose=2)

# ---- phase 2
base.trainable = True
for layer in base.layers[:20]:
    layer.trainable = False
for layer in base.layers:
    if isinstance(layer, keras.layers.BatchNormalization):
        layer.trainable = False    # keep BN frozen when fine-tuning

model.compile(optimizer=SGD(1e-4, momentum=0.9), loss='categorical_crossentropy', metrics=['acc'])
h2 = model.fit(X, y, batch_size=BATCH, epochs=2, initial_epoch=1, verbose=2)

model.save('finetuned.keras')
model.save_weights('finetuned.weights.h5')
again = keras.models.load_model('finetuned.keras')
again.load_weights('finetuned.weights.h5')
p1 = model.predict(X[:8], verbose=0)
p2 = again.predict(X[:8], verbose=0)
assert np.allclose(p1, p2, atol=1e-5)
print('head', h1.history['loss'][-1], 'fine', h2.history['loss'][-1])
