# Simple CNN  (adapted from my class assignment, HW3)
import numpy as np
import tensorflow as tf

BATCH_SIZE = 256
EPOCHS = 2
NUM_CLASSES = 10

tf.random.set_seed(42)
np.random.seed(42)

# fake MNIST so that it runs without internet
x_train = np.random.randint(0, 255, size=(512, 28, 28)).astype('uint8')
y_train = np.random.randint(0, NUM_CLASSES, size=(512,))
x_test  = np.random.randint(0, 255, size=(256, 28, 28)).astype('uint8')
y_test  = np.random.randint(0, NUM_CLASSES, size=(256,))

x_train, x_test = x_train / 255.0, x_test / 255.0
x_train = x_train[..., tf.newaxis]
x_test = x_test[..., tf.newaxis]

model = tf.keras.models.Sequential([
    tf.keras.layers.Conv2D(32, (3, 3), activation='relu', input_shape=(28, 28, 1)),
    tf.keras.layers.Conv2D(64, (3, 3), activation='relu'),
    tf.keras.layers.MaxPooling2D((2, 2)),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(64, activation='relu'),
    tf.keras.layers.Dense(NUM_CLASSES, activation='softmax')
])
model.summary()

model.compile(optimizer='adam',
              loss='sparse_categorical_crossentropy',
              metrics=['accuracy'])

model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=EPOCHS, validation_split=0.125, shuffle=False)

loss, acc = model.evaluate(x_test, y_test, batch_size=BATCH_SIZE, verbose=2)
print('\nTest loss:', loss, 'Test accuracy:', acc)
