import tensorflow as tf
import numpy as np
import pathlib

AUTOTUNE = tf.data.AUTOTUNE
BATCH_SIZE = 128
SHUFFLE_BUFFER = 1000

# ~15 MB of uint8 images kept in RAM
images = np.random.RandomState(0).randint(0, 256, (1200, 64, 64, 3), dtype=np.uint8)
labels = np.random.RandomState(1).randint(0, 10, 1200)


@tf.function
def augment(image, label):
    image = tf.image.random_flip_left_right(image, seed=3)
    return image, label


def heavy_numpy_stuff(img):
    # something which has no TF equivalent
    img = img.astype(np.float32) / 255.0
    return (img - img.mean()) / (img.std() + 1e-6)


def process(image, label):
    img = tf.py_function(lambda i: heavy_numpy_stuff(i.numpy()), [image], tf.float32)
    img.set_shape((64, 64, 3))
    return img, label


ds = tf.data.Dataset.from_tensor_slices((images, labels))
train_ds = (
    ds.skip(512)
    .take(512)
    .cache()
    .shuffle(SHUFFLE_BUFFER, seed=0, reshuffle_each_iteration=True)
    .map(process, num_parallel_calls=AUTOTUNE)
    .map(augment, num_parallel_calls=AUTOTUNE)
    .batch(BATCH_SIZE)
    .prefetch(buffer_size=AUTOTUNE)
)
val_ds = ds.take(256).map(process).batch(BATCH_SIZE).cache()

tf.keras.utils.set_random_seed(6)
inputs = tf.keras.layers.Input(shape=(64, 64, 3))
x = tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu")(inputs)
x = tf.keras.layers.SeparableConv2D(64, 3, activation="relu")(x)
x = tf.keras.layers.SeparableConv2D(64, 3, activation="relu")(x)
x = tf.keras.layers.GlobalAvgPool2D()(x)
outputs = tf.keras.layers.Dense(10)(x)
model = tf.keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.CosineDecay(0.1, 100), momentum=0.9, nesterov=True),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy", tf.keras.metrics.SparseTopKCategoricalAccuracy(k=3)],
)
ckpt = pathlib.Path("ckpts")
hist = model.fit(
    train_ds,
    validation_data=val_ds,
    epochs=2,
    callbacks=[
        tf.keras.callbacks.ModelCheckpoint(str(ckpt / "ep{epoch}.keras")),
        tf.keras.callbacks.TerminateOnNaN(),
        tf.keras.callbacks.BackupAndRestore(str(ckpt / "backup")),
    ],
    verbose=2,
)
print(sorted(p.name for p in ckpt.glob("*.keras")), hist.history["val_loss"])
