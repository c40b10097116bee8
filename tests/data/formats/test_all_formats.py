"""What all formats have in common: each element once an epoch, orders, resuming, and the RAM they keep to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from limited import run_limited

pytestmark = pytest.mark.real

COUNT = 331
FORMATS = ("images", "tfrecords", "packed", "hdf5", "gzip", "npy", "parquet", "generator")
LARGE = (900, 320)  # images, and their pixels each way
INDEXED = ("images", "tfrecords", "packed", "hdf5", "gzip", "npy")


class Formats:
    """One data set in every format: element k is labelled k, and bright as k."""

    def __init__(self, folder: Path, count: int, side: int) -> None:
        self.folder, self.count, self.side = folder, count, side

    def pixels(self, number: int) -> Any:
        return np.full((self.side, self.side, 3), number % 256, np.uint8)

    def write(self) -> None:
        import h5py
        import pyarrow as pa
        import pyarrow.parquet as pq
        import tensorflow as tf

        import memfit

        (self.folder / "images").mkdir()
        x = np.lib.format.open_memmap(
            self.folder / "x.npy", "w+", np.uint8, (self.count, self.side, self.side, 3)
        )
        y = np.arange(self.count, dtype=np.int32)
        with tf.io.TFRecordWriter(str(self.folder / "plain.tfrecord")) as writer:
            for number in range(self.count):
                x[number] = self.pixels(number)
                image = tf.io.encode_jpeg(x[number]).numpy()
                (self.folder / "images" / f"{number:05d}.jpg").write_bytes(image)
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        x.flush()
        np.save(self.folder / "y.npy", y)
        with h5py.File(self.folder / "data.h5", "w") as file:
            file["x"], file["y"] = x, y
            file.create_dataset("gzip", data=x, chunks=(8, *x.shape[1:]), compression="gzip")
        (self.folder / "labels.csv").write_text(
            "".join(f"{number:05d}.jpg,{number}\n" for number in range(self.count))
        )
        memfit.data.pack(
            self.folder / "images",
            self.folder / "packed",
            labels=str(self.folder / "labels.csv"),
            shards=3,
        )
        table = pa.table({"x": x[:, 0, :2, 0].astype(np.float32).tolist(), "y": y})
        schema = pa.schema([("x", pa.list_(pa.float32(), 2)), ("y", pa.int32())])
        pq.write_table(table.cast(schema), self.folder / "data.parquet", row_group_size=16)

    def samples(self) -> Any:
        for number in range(self.count):
            yield self.pixels(number), np.int32(number)

    def open(self, name: str, **options: Any) -> Any:
        import memfit

        folder, data = self.folder, memfit.data
        size: Any = {"size": (self.side, self.side)}
        return {
            "images": lambda: data.from_images(
                folder / "images", labels=str(folder / "labels.csv"), **size, **options
            ),
            "tfrecords": lambda: data.from_tfrecords(folder / "plain.tfrecord", **size, **options),
            "packed": lambda: data.from_tfrecords(folder / "packed", **size, **options),
            "hdf5": lambda: data.from_hdf5(folder / "data.h5", x="x", y="y", **options),
            "gzip": lambda: data.from_hdf5(folder / "data.h5", x="gzip", y="y", **options),
            "npy": lambda: data.from_arrays(folder / "x.npy", folder / "y.npy", **options),
            "parquet": lambda: data.from_parquet(folder / "data.parquet", x="x", y="y", **options),
            "generator": lambda: data.from_generator(self.samples, length=self.count, **options),
        }[name]()


def _labels(batches: Any) -> list[int]:
    """The labels of all elements; their pixels must belong to them."""
    found: list[int] = []
    for x, y in batches:
        bright = np.asarray(x).reshape(len(y), -1)[:, 0].astype(float)
        assert np.abs(bright - np.asarray(y) % 256).max() <= 3
        found += np.asarray(y).tolist()
    return found


def _use(folder: str, names: list[str]) -> dict[str, Any]:
    import tensorflow as tf

    formats = Formats(Path(folder), COUNT, 16)
    formats.write()
    common: Any = {"batch_size": 10, "ram": "64MiB"}
    seen: dict[str, Any] = {}
    for number, name in enumerate(names):
        dataset = formats.open(name, seed=5, **common)
        epochs = [_labels(dataset) for _ in range(3)]
        again = formats.open(name, seed=5, **common)
        other = formats.open(name, seed=6, **common)
        start = COUNT + 10 * (3 + 7 * number % 25)
        rest = formats.open(name, seed=5, start=start, **common)
        iterator = iter(formats.open(name, seed=5, **common))
        for _ in range(3 + number):
            next(iterator)
        place = tf.train.Checkpoint(iterator=iterator).write(f"{folder}/place-{name}")
        restored = iter(formats.open(name, seed=5, **common))
        tf.train.Checkpoint(iterator=restored).read(place)
        seen[name] = {
            "length": len(dataset),
            "once": [sorted(epoch) == list(range(COUNT)) for epoch in epochs],
            "differ": len({tuple(epoch) for epoch in epochs}) == 3,
            "same seed": _labels(again) == epochs[0],
            "other seed": _labels(other) != epochs[0],
            "start": [_labels(rest) == epochs[1][start - COUNT :], _labels(rest) == epochs[2]],
            "restored": _labels(restored) == epochs[0][10 * (3 + number) :],
            # An epoch that ends often waits for it, as long as the epoch took.
            "has a tuner": dataset.options().autotune.enabled is not False,
            "in order": _labels(formats.open(name, shuffle=False, **common)) == list(range(COUNT)),
        }
    return seen


def test_every_format_gives_every_element_once_and_goes_on_anywhere(tmp_path: Path) -> None:
    seen = run_limited(_use, None, folder=str(tmp_path), names=list(FORMATS))
    for name in FORMATS:
        assert seen[name] == {
            "length": 34,
            "once": [True, True, True],
            "differ": True,
            "same seed": True,
            "other seed": True,
            "start": [True, True],
            "restored": True,
            "has a tuner": False,
            "in order": True,
        }, name


def _orders(epochs: int, count: int) -> list[list[int]]:
    import tensorflow as tf

    from memfit.data.stream.order import Order

    order, positions = Order(count, True, 7, 0), tf.range(count, dtype=tf.int64)
    markers = order.blocks(1).map(lambda markers, *_: markers[0]).take(1).repeat(epochs)
    return [order.indices(marker, positions).numpy().tolist() for marker in markers]


def test_positions_are_uniform() -> None:
    """Chi-square: each element is as often in each tenth of an epoch, and follows each tenth as often."""
    epochs, count = 400, 200
    orders = np.array(run_limited(_orders, None, epochs=epochs, count=count))
    tenths = (np.argsort(orders, axis=1) * 10 // count).T
    counts = np.array([np.bincount(row, minlength=10) for row in tenths])
    # All elements together; the rows and columns of this table have fixed sums.
    statistic = ((counts - epochs / 10) ** 2 / (epochs / 10)).sum()
    assert chi2.sf(statistic, (count - 1) * 9) > 0.001  # the seed is fixed: chance has been had once
    pairs = orders[:, 1:] * 10 // count * 10 + orders[:, :-1] * 10 // count
    assert chisquare(np.bincount(pairs.ravel(), minlength=100)).pvalue > 0.001


LARGEST_SHARE = 1.1  # of its RAM that a stream takes


def _pull(folder: str, names: list[str], ram_bytes: int) -> dict[str, float]:
    import gc
    import threading

    def anonymous_bytes() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    formats = Formats(Path(folder), *LARGE)
    formats.write()
    most, is_over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.is_set():
            most = max(most, anonymous_bytes())
            is_over.wait(0.005)

    threading.Thread(target=watch, daemon=True).start()
    seen = dict.fromkeys(names, float("inf"))
    for name in names:
        # What TensorFlow's own threads take, some of it for the first time, is not the stream's. It comes by
        # chance; a stream that holds too much does so each time.
        for count in (2, None, None, None):
            gc.collect()
            base = most = anonymous_bytes()
            dataset = formats.open(name, batch_size=2, ram=ram_bytes)
            for _ in range(2):
                for _ in dataset if count is None else dataset.take(count):
                    pass
            if count is None:
                seen[name] = min(seen[name], (most - base) / ram_bytes)
                if seen[name] <= LARGEST_SHARE:
                    break
    is_over.set()
    return seen


def test_streams_keep_to_their_ram(tmp_path: Path) -> None:
    """Two epochs of a data set that is four times as large as its RAM."""
    ram_bytes, (count, side) = 64 << 20, LARGE
    assert 4 * ram_bytes < count * side * side * 3
    seen = run_limited(_pull, None, folder=str(tmp_path), names=list(INDEXED), ram_bytes=ram_bytes)
    assert all(share <= LARGEST_SHARE for share in seen.values()), seen
