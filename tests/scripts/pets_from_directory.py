"""Cats vs dogs, images on disk.

Usage:
    python pets_from_directory.py --data-dir data/pets --epochs 2 --batch-size 64
"""
import argparse
import logging
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
from PIL import Image
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("pets")


def make_fake_dataset(root: Path, n_per_class: int = 64) -> None:
    rng = np.random.default_rng(1234)
    for label, tint in (("cat", 40), ("dog", 160)):
        folder = root / label
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(n_per_class):
            pixels = rng.integers(tint, tint + 90, size=(80, 72, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / f"{label}.{i:04d}.jpg", quality=90)


def build_model(size: int) -> keras.Model:
    inputs = keras.Input(shape=(size, size, 3))
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.RandomRotation(0.1)(x)
    x = layers.Rescaling(1.0 / 255)(x)
    for filters in (32, 32, 64):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.25)(x)
    outputs = layers.Dense(1, activation="sigmoid")(x)
    return keras.Model(inputs, outputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path("pets"))
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    make_fake_dataset(args.data_dir)
    common = dict(validation_split=0.25, seed=1337, image_size=(args.image_size, args.image_size),
                  batch_size=args.batch_size, label_mode="binary")
    train_ds = keras.utils.image_dataset_from_directory(args.data_dir, subset="training", **common)
    val_ds = keras.utils.image_dataset_from_directory(args.data_dir, subset="validation", **common)
    log.info("classes: %s", train_ds.class_names)
    train_ds = train_ds.prefetch(tf.data.AUTOTUNE)
    val_ds = val_ds.prefetch(tf.data.AUTOTUNE)

    model = build_model(args.image_size)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy", metrics=["accuracy"])
    callbacks = [
        keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
    ]
    history = model.fit(train_ds, validation_data=val_ds, epochs=args.epochs, callbacks=callbacks, verbose=2)
    log.info("best val_loss %.4f", min(history.history["val_loss"]))

    best = keras.models.load_model("best.keras")
    img = keras.utils.load_img(next((args.data_dir / "dog").glob("*.jpg")),
                               target_size=(args.image_size, args.image_size))
    batch = tf.expand_dims(keras.utils.img_to_array(img), 0)
    score = float(best.predict(batch, verbose=0)[0][0])
    print(f"This image is {100 * (1 - score):.2f}% cat and {100 * score:.2f}% dog.")


if __name__ == "__main__":
    main()
