#imports
import os, shutil
import numpy as np
from tensorflow.keras.preprocessing.image import ImageDataGenerator, array_to_img
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import Conv2D, MaxPooling2D, Activation, Dropout, Flatten, Dense
from tensorflow.keras import backend as K
import tensorflow as tf

# dimensions of our images.
img_width, img_height = 72, 72
train_data_dir = 'data/train'
validation_data_dir = 'data/validation'
nb_train_samples = 192
nb_validation_samples = 96
epochs = 2
batch_size = 96

tf.keras.utils.set_random_seed(2016)

# write some pngs (noise, replace me with the kaggle data)
for d, n in ((train_data_dir, nb_train_samples), (validation_data_dir, nb_validation_samples)):
    for c in ('cats', 'dogs'):
        os.makedirs(os.path.join(d, c), exist_ok=True)
        for i in range(n // 2):
            a = np.random.rand(img_width, img_height, 3) * (1.0 if c == 'cats' else 0.5)
            array_to_img(a * 255, scale=False).save('%s/%s/%s_%d.png' % (d, c, c, i))

if K.image_data_format() == 'channels_first':
    input_shape = (3, img_width, img_height)
else:
    input_shape = (img_width, img_height, 3)

model = Sequential()
model.add(Conv2D(32, (3, 3), input_shape=input_shape))
model.add(Activation('relu'))
model.add(MaxPooling2D(pool_size=(2, 2)))

model.add(Conv2D(32, (3, 3)))
model.add(Activation('relu'))
model.add(MaxPooling2D(pool_size=(2, 2)))

model.add(Conv2D(64, (3, 3)))
model.add(Activation('relu'))
model.add(MaxPooling2D(pool_size=(2, 2)))

model.add(Flatten())
model.add(Dense(64))
model.add(Activation('relu'))
model.add(Dense(1))
model.add(Activation('sigmoid'))

model.compile(loss='binary_crossentropy', optimizer='rmsprop', metrics=['accuracy'])

# this is the augmentation configuration we will use for training
train_datagen = ImageDataGenerator(rescale=1. / 255, shear_range=0.2, zoom_range=0.2, horizontal_flip=True)
# only rescaling for testing
test_datagen = ImageDataGenerator(rescale=1. / 255)

train_generator = train_datagen.flow_from_directory(
    train_data_dir, target_size=(img_width, img_height), batch_size=batch_size, class_mode='binary', seed=1)
validation_generator = test_datagen.flow_from_directory(
    validation_data_dir, target_size=(img_width, img_height), batch_size=batch_size, class_mode='binary',
    shuffle=False)

hist = model.fit(
    train_generator,
    steps_per_epoch=nb_train_samples // batch_size,
    epochs=epochs,
    validation_data=validation_generator,
    validation_steps=nb_validation_samples // batch_size)

model.save_weights('first_try.weights.h5')
shutil.rmtree('data')
print('val_loss:', hist.history['val_loss'])
