"""Code as guides and tutorials show it: what they warn of is found, what they recommend is clean."""

from __future__ import annotations

import pytest

from linting.linted import rules_in

CLEAN = {
    "a batch that is used again and again": """
        import tensorflow as tf

        x = tf.random.normal((32, 224, 224, 3))
        y = tf.zeros((32,))
        for step in range(100):
            train_step(x, y)
    """,
    "the arrays of a file": """
        import numpy as np

        def read(file):
            found = []
            while True:
                try:
                    found.append(np.load(file))
                except ValueError:
                    return found
    """,
    "a policy of another test": """
        import keras
        import tensorflow as tf

        def test_half():
            keras.config.set_dtype_policy("mixed_float16")

        def test_training():
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.weights), model.weights))
    """,
    "scaling in the old Keras": """
        import tensorflow as tf
        import tf_keras

        def train_step(x):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(model(x))
            grads = optimizer.get_unscaled_gradients(tape.gradient(loss, model.weights))
    """,
    "stages of a Functional model": """
        import keras

        def make(stages):
            x = inputs = keras.Input((32, 32, 3))
            kept = []
            for stage in range(stages):
                x = keras.Sequential([keras.layers.Conv2D(8, 3)])(x)
                kept.append(x)
                x = keras.layers.MaxPooling2D()(x)
            return keras.Model(inputs, kept)
    """,
    "a count in a loss": """
        import keras
        import tensorflow as tf

        class Matches(keras.layers.Layer):
            def call(self, masks):
                total = 0.0
                for level in self.levels:
                    count = tf.reduce_sum(masks[level])
                    total += tf.cast(count, tf.float32)
                return total
    """,
    "images through tf.data": """
        import tensorflow as tf
        AUTOTUNE = tf.data.AUTOTUNE

        def process(path):
            label = tf.strings.split(path, "/")[-2]
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
            return tf.image.resize(image, (180, 180)), label

        files = tf.data.Dataset.list_files("flowers/*/*", shuffle=False)
        files = files.shuffle(3670, reshuffle_each_iteration=False)
        train = files.map(process, num_parallel_calls=AUTOTUNE).batch(32).prefetch(AUTOTUNE)
        model.fit(train, epochs=3)
    """,
    "a training loop from scratch": """
        import keras
        import tensorflow as tf

        optimizer = keras.optimizers.Adam(1e-3)
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = keras.metrics.SparseCategoricalAccuracy()

        @tf.function
        def train_step(x, y):
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss_value = loss_fn(y, logits)
            grads = tape.gradient(loss_value, model.trainable_weights)
            optimizer.apply_gradients(zip(grads, model.trainable_weights))
            metric.update_state(y, logits)
            return loss_value

        for epoch in range(2):
            for step, (x, y) in enumerate(train_dataset):
                loss_value = train_step(x, y)
                if step % 200 == 0:
                    print(f"step {step}: {float(loss_value):.4f}")
            metric.reset_state()
    """,
    "a GAN with two tapes": """
        import tensorflow as tf

        generator_optimizer = tf.keras.optimizers.Adam(1e-4)
        discriminator_optimizer = tf.keras.optimizers.Adam(1e-4)

        @tf.function
        def train_step(images):
            noise = tf.random.normal([256, 100])
            with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
                fake = generator(noise, training=True)
                gen_loss = generator_loss(discriminator(fake, training=True))
                disc_loss = discriminator_loss(discriminator(images, training=True))
            generator_optimizer.apply_gradients(
                zip(gen_tape.gradient(gen_loss, generator.weights), generator.weights))

        def train(dataset, epochs):
            for epoch in range(epochs):
                for batch in dataset:
                    train_step(batch)
    """,
    "residual blocks in a loop": """
        from tensorflow import keras
        from tensorflow.keras import layers

        class Encoder(keras.Model):
            def __init__(self, depth):
                super().__init__()
                self.blocks = []
                for _ in range(depth):
                    self.blocks.append(keras.Sequential([layers.Dense(64), layers.Dropout(0.1)]))

            def call(self, x):
                for block in self.blocks:
                    x = x + block(x)
                return x

        inputs = keras.Input((64,))
        x = inputs
        for units in (64, 32, 16):
            x = layers.Dense(units)(x)
            tower = keras.Sequential([layers.Dense(units)])
            x = tower(x)
        model = keras.Model(inputs, x)
    """,
    "growth right behind the imports": """
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            try:
                for gpu in gpus:
                    tf.config.experimental.set_memory_growth(gpu, True)
                logical_gpus = tf.config.list_logical_devices("GPU")
                print(len(gpus), len(logical_gpus))
            except RuntimeError as error:
                print(error)
        model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    """,
    "a sequence that loads batches": """
        import numpy as np
        from skimage.io import imread
        from keras.utils import PyDataset

        class Photos(PyDataset):
            def __getitem__(self, index):
                paths = self.paths[index * 32 : (index + 1) * 32]
                images = []
                for path in paths:
                    images.append(imread(path))
                return np.array(images), np.array([imread(path) for path in self.masks])
    """,
    "a generator that yields batches": """
        import cv2, numpy as np

        def batches(paths):
            images = []
            for path in paths:
                images.append(cv2.imread(path))
                if len(images) == 32:
                    yield np.array(images)
                    images = []
    """,
    "a few pictures to look at": """
        import matplotlib.pyplot as plt
        import numpy as np
        from PIL import Image

        pictures = [np.array(Image.open(path)) for path in paths[:9]]
        for index in range(9):
            plt.imshow(pictures[index])
    """,
    "an out-of-memory error that ends it": """
        import tensorflow as tf

        try:
            model.fit(dataset)
        except tf.errors.ResourceExhaustedError as error:
            print("too large:", error)
            raise SystemExit(1)
    """,
    "reporting a trial that did not fit": """
        import tensorflow as tf

        def objective(trial):
            for fold in range(folds):
                try:
                    model.fit(data[fold])
                except tf.errors.ResourceExhaustedError:
                    return {"loss": 1e9}
            return {"loss": 0}
    """,
    "mixed precision with fit": """
        import keras

        keras.mixed_precision.set_global_policy("mixed_float16")
        model.compile("adam", "mse")
        model.fit(dataset)
    """,
    "bfloat16 needs no scale": """
        import keras
        import tensorflow as tf

        keras.config.set_dtype_policy("mixed_bfloat16")
        with tf.GradientTape() as tape:
            loss = model(x)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    """,
    "lists of numbers and small things": """
        import numpy as np
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices([1, 2, 3])
        names = tf.data.Dataset.from_tensor_slices(paths)
        table = tf.constant([[1.0, 2.0]])
        x = np.load("x.npy", mmap_mode="r")
        few = tf.constant(x[:16])
        batch = tf.convert_to_tensor(x[start : start + 32])
    """,
    "data that is small": """
        import tensorflow as tf

        mnist = tf.keras.datasets.mnist
        (x_train, y_train), _ = mnist.load_data()
        x_train = x_train[..., tf.newaxis].astype("float32") / 255.0
        train = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(10000).batch(32)
        model.fit(x_train, y_train, epochs=5)
    """,
    "growth that is set again": """
        import memfit
        import tensorflow as tf

        memfit.limit("2GiB")
        x = tf.zeros((8, 8))
        memfit.limit("2GiB")
    """,
    "a plain function computed again": """
        import tensorflow as tf

        def square(x):
            return x * x

        again = tf.recompute_grad(square)
    """,
    "an optimizer by itself": """
        import keras

        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
        optimizer.build([variable])
        optimizer.apply_gradients([(gradient, variable)])
    """,
    "a plain model computed again": """
        import tensorflow as tf

        net = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
        again = tf.recompute_grad(net)
    """,
    "a batch that is made": """
        import numpy as np
        import keras

        model.train_on_batch(np.zeros((32, 224, 224, 3)), np.zeros(32))
    """,
    "one policy or another": """
        import keras
        import tensorflow as tf

        policy = "mixed_float16" if half else "float32"
        keras.config.set_dtype_policy(policy)
        with tf.GradientTape() as tape:
            loss = model(x)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    """,
    "a function for each of several": """
        import tensorflow as tf

        for name, step in steps.items():
            compiled[name] = tf.function(step)
    """,
    "outputs of predict are arrays": """
        import keras

        results = []
        for batch in dataset:
            results.append(model.predict_on_batch(batch))
            scores.append(model.evaluate(batch, verbose=0))
            losses.append(model.train_on_batch(batch, batch))
    """,
    "a few models by name": """
        import keras

        def test_optimizers():
          optimizers = {"sgd": keras.optimizers.SGD(), "adam": keras.optimizers.Adam()}
          for name, optimizer in optimizers.items():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile(optimizer, "mse")
            model.fit(x, y)
    """,
    "a unittest with models": """
        import keras

        class TestCase:
            def test(self):
                for name in ("a", "b"):
                    model = keras.Sequential([keras.layers.Dense(1)])
                    model.compile("sgd", "mse")
                    model.fit(x, y)
    """,
    "a data set of torch": """
        import numpy as np
        import torch
        from PIL import Image

        images = []
        for path in paths:
            images.append(np.array(Image.open(path)))
        x = torch.stack(images)
    """,
    "pictures for a document": """
        from PIL import Image

        pages = []
        for path in paths:
            pages.append(Image.open(path).convert("RGB"))
        pages[0].save("all.pdf", save_all=True, append_images=pages[1:])
    """,
    "either of two data sets": """
        import numpy as np
        import tensorflow as tf

        if small:
            x = np.arange(10)
        elif tiny:
            x = np.arange(5)
        else:
            x = np.load("x.npy", mmap_mode="r")[:64]
        dataset = tf.data.Dataset.from_tensor_slices(x)
    """,
    "other libraries with the same words": """
        import random
        import pandas as pd
        import torch

        random.shuffle(items)
        frame = pd.read_csv("a.csv").map(str).filter(items=["a"])
        for batch in loader:
            loss = criterion(net(batch), batch)
            losses.append(loss)
        model = Model(inputs)
    """,
    "loops over layers and steps in a graph": """
        import tensorflow as tf

        @tf.function
        def train(iterator):
            total_loss = 0.0
            for _ in tf.range(10):
                loss = step(next(iterator))
                total_loss += loss
            outputs = []
            for layer in layers:
                outputs.append(layer(x))
            return total_loss
    """,
}

FOUND = {
    "all data in every step": (["MF018"], """
        import tensorflow as tf

        @tf.function
        def update(x, y):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            return loss

        features = tf.random.normal((1500, 64))
        labels = tf.random.normal((1500, 1))
        for epoch in range(50):
            update(features, labels)
    """),
    "sizes with names": (["MF018"], """
        import numpy as np

        count, side = 20000, 28
        size = side * side
        images = np.zeros((count, size), dtype="float32")
        model.train_on_batch(images, images)
    """),
    "a sum of what each turn computes": (["MF016"], """
        import tensorflow as tf

        class Adding(tf.keras.layers.Layer):
            def call(self, x):
                total = tf.zeros_like(x)
                for turn in range(100):
                    part = tf.matmul(x, self.kernel)
                    total = total + part
                return total
    """),
    "shuffling batches of images": (["MF007", "MF006"], """
        import tensorflow as tf

        train_ds = tf.keras.utils.image_dataset_from_directory("flowers", image_size=(180, 180))
        train_ds = train_ds.cache().shuffle(1000).prefetch(tf.data.AUTOTUNE)
    """),
    "Python arguments to a function": (["MF009"], """
        import tensorflow as tf

        @tf.function
        def train_one_step(count):
            tf.print(count)

        for number in range(20):
            train_one_step(number)
    """),
    "a whole numpy archive": (["MF002"], """
        import numpy as np
        import tensorflow as tf

        with np.load("mnist.npz") as data:
            train_examples = data["x_train"]
            train_labels = data["y_train"]
        train = tf.data.Dataset.from_tensor_slices((train_examples, train_labels)).shuffle(100).batch(64)
    """),
    "CIFAR-10 in a graph": (["MF002"], """
        import tensorflow as tf

        cifar10 = tf.keras.datasets.cifar10
        train, test = cifar10.load_data()
        images, labels = train
        images = images / 255
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    """),
    "k-fold": (["MF011"], """
        from sklearn.model_selection import KFold
        from tensorflow import keras

        def build_model():
            model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)])
            model.compile(optimizer="rmsprop", loss="mse")
            return model

        for train, test in KFold(5).split(x):
            keras.backend.clear_session()
            model = build_model()
            model.fit(x[train], y[train])
    """),
    "an HDF5 file read whole": (["MF024"], """
        import h5py
        from tensorflow import keras

        with h5py.File("train.h5", "r") as file:
            x = file["images"][:]
            y = file["labels"][()]
        model.fit(x, y, epochs=3)
    """),
    "halving the batch": (["MF020"], """
        import tensorflow as tf

        batch_size = 256
        while batch_size > 0:
            try:
                train(model, batch_size)
                break
            except (tf.errors.ResourceExhaustedError, tf.errors.InternalError):
                print("OOM")
                batch_size //= 2
    """),
    "halving the batch as far as it goes": (["MF020"], """
        import tensorflow as tf

        while True:
            try:
                history = model.fit(data(batch_size))
                break
            except tf.errors.ResourceExhaustedError:
                if batch_size == 1:
                    raise
                batch_size //= 2
    """),
    "labels are small": (["MF003"], """
        import numpy as np
        import tensorflow as tf

        x_train, y_train = np.load("x.npy"), np.load("y.npy")
        x_train = tf.convert_to_tensor(x_train)
        y_train = tf.convert_to_tensor(y_train)
    """),
    "a few sizes": (["MF011"], """
        import keras

        for units in [32, 64, 128]:
            model = keras.Sequential([keras.layers.Dense(units)])
            model.compile("adam", "mse")
            model.fit(dataset)
    """),
    "outputs of all batches": (["MF013"], """
        import tensorflow as tf

        outputs = []
        for x, y in dataset:
            outputs.append(model(x, training=False))
    """),
    "MNIST in one step": (["MF018"], """
        import keras

        (x_train, y_train), _ = keras.datasets.mnist.load_data()
        loss = train_step(x_train / 255.0, y_train)
    """),
    "an array that is made large": (["MF004"], """
        import numpy as np
        import tensorflow as tf

        data = np.random.rand(100000, 784)

        @tf.function
        def total():
            return tf.reduce_sum(data)
    """),
    "a policy by name": (["MF019"], """
        import tensorflow as tf

        policy = tf.keras.mixed_precision.Policy("mixed_float16")
        tf.keras.mixed_precision.set_global_policy(policy)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = model(x)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
    """),
    "growth after a model": (["MF021"], """
        import tensorflow as tf

        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    """),
    "decoding by another module's function": (["MF005"], """
        import tensorflow as tf
        from reading import decode_image

        files = tf.data.Dataset.from_tensor_slices(paths)
        dataset = files.map(decode_image).shuffle(1000).batch(8).prefetch(1)
    """),
    "a list of pictures, then stacked": (["MF001"], """
        import numpy as np
        from PIL import Image

        pictures = [np.array(Image.open(path)) for path in paths]
        x = np.stack(pictures)
    """),
    "asking the message": (["MF020"], """
        try:
            model.fit(x, y, batch_size=64)
        except Exception as error:
            if "OOM" in str(error):
                model.fit(x, y, batch_size=32)
    """),
    "two losses with one tape": (["MF015"], """
        import tensorflow as tf

        for x in dataset:
            with tf.GradientTape(persistent=True) as tape:
                first, second = losses_of(model(x))
            a = tape.gradient(first, model.weights)
            b = tape.gradient(second, model.weights)
    """),
    "pictures of two folders": (["MF001", "MF001"], """
        import os
        import numpy as np
        from tensorflow.keras.preprocessing.image import img_to_array, load_img

        data, masks = [], {"train": []}
        for root, _, files in os.walk("photos"):
            for name in files:
                image = img_to_array(load_img(os.path.join(root, name)))
                data.append(image)
                masks["train"].append(image)
        data = np.array(data, dtype="float32") / 255.0
    """),
    "turned pictures": (["MF001"], """
        import numpy as np
        from tensorflow.keras.preprocessing.image import img_to_array, load_img

        arrays, sizes = [], []
        for path in paths:
            image = np.rot90(img_to_array(load_img(path)))
            arrays.append(image)
            sizes.append(np.mean(image))
        arrays = np.asarray(arrays)
    """),
    "a loop with a tape of its own": (["MF014"], """
        import tensorflow as tf

        history = {"loss": []}
        for x, y in dataset:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
            history["loss"].append(loss)
    """),
    "the loss of the epoch": (["MF014"], """
        import tensorflow as tf

        @tf.function
        def train_step(x):
            return model(x)

        for epoch in range(epochs):
            total_loss = 0.0
            for x in dataset:
                total_loss += train_loss(x)
                loss = train_step(x)
                total_loss += loss
    """),
    "scaling as before Keras 3": (["MF019", "MF019"], """
        import tensorflow as tf

        def train_step(x):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(model(x))
            grads = optimizer.get_unscaled_gradients(tape.gradient(loss, model.weights))
    """),
    "heads that are averaged": (["MF017"], """
        import tensorflow as tf

        class Heads(tf.keras.layers.Layer):
            def call(self, x):
                outputs = tf.stack([head(x) for head in self.heads], axis=1)
                return tf.reduce_mean(outputs, axis=1)
    """),
}  # fmt: skip


@pytest.mark.parametrize("code", CLEAN.values(), ids=list(CLEAN))
def test_what_is_recommended_is_clean(code: str) -> None:
    assert rules_in(code) == []


@pytest.mark.parametrize(("rules", "code"), FOUND.values(), ids=list(FOUND))
def test_what_they_warn_of_is_found(rules: list[str], code: str) -> None:
    assert rules_in(code) == rules
