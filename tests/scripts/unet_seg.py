"""U-Net for binary segmentation; circles on noise."""
import math
import os

import keras
import numpy as np
from keras import layers

BATCH_SIZE = int(os.getenv("BATCH_SIZE", "48"))
SIZE = 64


class Circles(keras.utils.PyDataset):
    def __init__(self, n, batch_size, seed=0, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[:SIZE, :SIZE]
        c = rng.uniform(16, SIZE - 16, (n, 2, 1, 1))
        r = rng.uniform(5, 14, (n, 1, 1))
        self.masks = ((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2 < r**2).astype("float32")[..., None]
        self.images = (self.masks + rng.normal(0, 0.5, self.masks.shape)).astype("float32")
        self.batch_size = batch_size

    def __len__(self):
        return math.ceil(len(self.images) / self.batch_size)

    def __getitem__(self, idx):
        sl = slice(idx * self.batch_size, (idx + 1) * self.batch_size)
        return self.images[sl], self.masks[sl]


def double_conv(x, f):
    for _ in range(2):
        x = layers.Conv2D(f, 3, padding="same", activation="relu", kernel_initializer="he_normal")(x)
    return x


def unet():
    inp = layers.Input((SIZE, SIZE, 1))
    skips = []
    x = inp
    for f in (16, 32):
        x = double_conv(x, f)
        skips.append(x)
        x = layers.MaxPool2D()(x)
    x = double_conv(x, 64)
    for f, skip in zip((32, 16), reversed(skips)):
        x = layers.Conv2DTranspose(f, 2, strides=2, padding="same")(x)
        x = layers.concatenate([x, skip])
        x = double_conv(x, f)
    return keras.Model(inp, layers.Conv2D(1, 1, activation="sigmoid")(x), name="unet")


def dice_coef(y_true, y_pred, smooth=1.0):
    inter = keras.ops.sum(y_true * y_pred, axis=(1, 2, 3))
    union = keras.ops.sum(y_true, axis=(1, 2, 3)) + keras.ops.sum(y_pred, axis=(1, 2, 3))
    return (2.0 * inter + smooth) / (union + smooth)


def dice_loss(y_true, y_pred):
    return 1.0 - dice_coef(y_true, y_pred)


if __name__ == "__main__":
    keras.utils.set_random_seed(21)
    model = unet()
    model.compile(optimizer="adam", loss=dice_loss, metrics=[dice_coef, keras.metrics.BinaryIoU(target_class_ids=[1])])
    train, valid = Circles(96, BATCH_SIZE), Circles(32, BATCH_SIZE, seed=1)
    model.fit(
        train,
        validation_data=valid,
        epochs=2,
        shuffle=False,
        verbose=2,
        callbacks=[
            keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, verbose=1),
            keras.callbacks.CSVLogger("unet_log.csv"),
            keras.callbacks.ModelCheckpoint("unet_{epoch:02d}.weights.h5", save_weights_only=True),
        ],
    )
    print(open("unet_log.csv").read())
    print("IoU etc:", *("%.5f" % v for v in model.evaluate(valid, verbose=0)))
