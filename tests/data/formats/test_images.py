"""Folders of images of all kinds, whole and damaged."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from limited import run_limited

pytestmark = pytest.mark.real

SIDE = 32


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _picture(height: int = 48, width: int = 64) -> Image.Image:
    """Four quarters of different colours, so that every turn shows."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (250, 10, 10)
    pixels[: height // 2, width // 2 :] = (10, 250, 10)
    pixels[height // 2 :, : width // 2] = (10, 10, 250)
    pixels[height // 2 :, width // 2 :] = (200, 200, 200)
    return Image.fromarray(pixels)


def _kinds() -> dict[str, bytes]:
    """One picture, as cameras, scanners and programs write it."""
    picture = _picture()
    deep = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    return {
        "plain.jpg": _encoded(picture, "JPEG", quality=98, subsampling=0),
        "progressive.jpg": _encoded(picture, "JPEG", quality=98, subsampling=0, progressive=True),
        "grey.jpg": _encoded(picture.convert("L"), "JPEG", quality=98),
        "print.jpg": _encoded(picture.convert("CMYK"), "JPEG", quality=98),
        "plain.png": _encoded(picture, "PNG"),
        "grey.png": _encoded(picture.convert("L"), "PNG"),
        "palette.png": _encoded(picture.convert("P"), "PNG"),
        "clear.png": _encoded(picture.convert("RGBA"), "PNG"),
        "grey_clear.png": _encoded(picture.convert("LA"), "PNG"),
        "deep.png": _encoded(Image.fromarray(deep), "PNG"),
        "plain.bmp": _encoded(picture, "BMP"),
        "plain.gif": _encoded(picture, "GIF"),
        "large.jpg": _encoded(picture.resize((64 * 9, 48 * 9)), "JPEG", quality=98, subsampling=0),
    }


def _read_kinds(folder: str, channels: int) -> dict[str, Any]:
    import memfit

    dataset = memfit.data.from_images(
        folder, size=(SIDE, SIDE), channels=channels, shuffle=False, ram="96MiB"
    )
    images = np.concatenate([batch.numpy() for batch in dataset])
    names = sorted(path.name for path in Path(folder).iterdir())
    quarters = images.reshape(len(names), 2, SIDE // 2, 2, SIDE // 2, channels)[:, :, 4:-4, :, 4:-4]
    return dict(zip(names, quarters.mean(axis=(2, 4)).round().tolist(), strict=True))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_kind_of_file_gives_the_same_picture(tmp_path: Path, channels: int) -> None:
    for name, contents in _kinds().items():
        (tmp_path / name).write_bytes(contents)
    seen = run_limited(_read_kinds, None, folder=str(tmp_path), channels=channels)
    grey = np.asarray(_picture().convert("L").resize((2, 2), Image.Resampling.NEAREST), float)[..., None]
    colour = np.asarray(_picture().resize((2, 2), Image.Resampling.NEAREST), float)
    assert set(seen) == set(_kinds())
    for name, found in seen.items():
        is_grey = channels == 1 or name.startswith(("grey", "deep"))
        wanted = np.broadcast_to(grey if is_grey else colour, (2, 2, min(channels, 3)))
        if channels == 4:
            wanted = np.concatenate([wanted, np.full((2, 2, 1), 255.0)], axis=2)
        # CMYK has no one way back to colours, and palettes have few of them.
        most = 70 if name in ("print.jpg", "palette.png") else 4
        assert np.abs(np.array(found) - wanted).max() <= most, name


def _read_turned(folder: str) -> list[Any]:
    import memfit

    sizes = {"size": (24, 16), "ram": "96MiB", "shuffle": False}
    return [batch.numpy().tolist() for batch in memfit.data.from_images(folder, dtype="uint8", **sizes)]


def test_photos_stand_upright_as_their_camera_was_held(tmp_path: Path) -> None:
    wanted = []
    for orientation in range(1, 9):
        picture = _picture(24, 16) if orientation < 5 else _picture(16, 24)
        for order, little in (("II", True), ("MM", False)):
            exif = Image.Exif()
            exif[0x010F] = "a camera"
            exif[0x0112] = orientation
            exif.endian = "<" if little else ">"
            contents = _encoded(picture, "JPEG", quality=100, subsampling=0, exif=exif.tobytes())
            (tmp_path / f"{orientation}{order}.jpg").write_bytes(contents)
            wanted.append(np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(contents)))))
    [found] = run_limited(_read_turned, None, folder=str(tmp_path))
    difference = np.abs(np.array(found, int) - np.array(wanted, int))
    assert difference.max() <= 24  # the quarters differ by 190


def _read_labelled(folder: str) -> dict[str, Any]:
    import tensorflow as tf

    import memfit

    def labels(given: Any, **options: Any) -> tuple[list[Any], Any]:
        dataset = memfit.data.from_images(
            folder, size=(4, 4), labels=given, ram="96MiB", shuffle=False, **options
        )
        return [y.numpy().tolist() for _, y in dataset], getattr(dataset, "class_names", None)

    own = memfit.data.from_images(folder, size=(4, 4), labels="input", ram="96MiB", batch_size=None)
    flipped = memfit.data.from_images(folder, size=(4, 4), ram="96MiB", augment=lambda image: 255.0 - image)
    plain = memfit.data.from_images(folder, size=(4, 4), ram="96MiB")
    paths = sorted(str(path) for path in Path(folder).rglob("*.png"))
    return {
        "folders": labels("folders"),
        "table": labels(str(Path(folder) / "labels.csv")),
        "function": labels(lambda path: float(len(Path(path).name))),
        "list": labels([3, 2, 1, 0]),
        "full": labels("folders", batch_size=3, drop_remainder=True),
        "own": all(bool(tf.reduce_all(x == y)) for x, y in own) and len(own),
        "augmented": all(
            bool(tf.reduce_all(255.0 - x == y)) for x, y in tf.data.Dataset.zip((plain, flipped))
        ),
        "paths": sum(len(batch) for batch in memfit.data.from_images(paths[:3], size=(4, 4), ram="96MiB")),
    }


def test_labels_come_from_folders_tables_functions_and_lists(tmp_path: Path) -> None:
    for number, name in enumerate(("dogs/a.png", "cats/b.png", "cats/c.png", "eels/dd.png")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (number, 10, 20)).save(path)
    # A link that leads back up must not be followed for ever, and any bytes may be a name.
    (tmp_path / "cats" / "round").symlink_to(tmp_path)
    (tmp_path / "labels.csv").write_text("file,label\ncats/b.png,fur\nc.png,fur\na.png,bark\ndd.png,slime\n")
    seen = run_limited(_read_labelled, None, folder=str(tmp_path))
    assert seen == {
        "folders": [[[0, 0, 1, 2]], ["cats", "dogs", "eels"]],
        "table": [[[1, 1, 0, 2]], ["bark", "fur", "slime"]],
        "function": [[[5.0, 5.0, 5.0, 6.0]], None],
        "list": [[[3, 2, 1, 0]], None],
        "full": [[[0, 0, 1]], ["cats", "dogs", "eels"]],
        "own": 4,
        "augmented": True,
        "paths": 3,
    }


def _damages() -> dict[str, Callable[[bytes, bytes], bytes]]:
    """Ways in which an image can be none; each takes a JPEG and a PNG."""
    return {
        "empty": lambda jpeg, png: b"",
        "text": lambda jpeg, png: b"this is no picture\n",
        "page": lambda jpeg, png: b"<!DOCTYPE html><html>404</html>",
        "cut": lambda jpeg, png: jpeg[: len(jpeg) // 2],
        "beginning": lambda jpeg, png: jpeg[:3],
        "header": lambda jpeg, png: jpeg[:20],
        "zeros": lambda jpeg, png: bytes(len(jpeg)),
        "png cut": lambda jpeg, png: png[: len(png) // 2],
        "png beginning": lambda jpeg, png: png[:10],
        "png flipped": lambda jpeg, png: png[:40] + bytes(b ^ 255 for b in png[40:60]) + png[60:],
        "random": lambda jpeg, png: random.Random(3).randbytes(300),
        "gif header": lambda jpeg, png: b"GIF89a",
    }


def _read_damaged(folder: str, bad: list[str]) -> dict[str, Any]:
    import logging

    import tensorflow as tf

    import memfit

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)
    options: Any = {"size": (8, 8), "ram": "128MiB"}
    dataset = memfit.data.from_images(folder, on_error="skip", **options)
    counts = [sum(int(batch.shape[0]) for batch in dataset) for _ in range(2)]
    sizes = {int(batch.shape[0]) for batch in dataset.take(20)}
    skipped = {found.where: found.reason for found in dataset.memfit_losses.skipped.values()}
    try:
        for _ in memfit.data.from_images(folder, **options):
            pass
        raised = ""
    except tf.errors.OpError as error:
        raised = error.message
    return {
        "counts": counts,
        "sizes": list(sizes),
        "skipped": sorted(Path(path).name for path in skipped) == sorted(bad),
        "reasons": all(skipped.values()),
        "told": [text.partition(":")[0] for text in told],
        "raised": "DamagedData: " in raised and any(name in raised for name in bad),
        "try": 'on_error="skip"' in raised,
    }


def test_a_thousand_damaged_files_among_five_thousand(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 10, 3), np.uint8)
    jpeg = _encoded(Image.fromarray(pixels), "JPEG")
    png = _encoded(Image.fromarray(pixels), "PNG")
    kinds = list(_damages().values())
    bad = []
    for number in range(5000):
        name, contents = f"{number:04d}.jpg", jpeg
        if number % 5 == 3:
            contents = kinds[len(bad) % len(kinds)](jpeg, png)
            bad.append(name)
        (tmp_path / name).write_bytes(contents)
    seen = run_limited(_read_damaged, None, folder=str(tmp_path), bad=bad)
    told = "1,000 of 5,000 elements could not be read and were left out of this epoch"
    assert seen == {
        "counts": [4000, 4000],
        "sizes": [32],
        "skipped": True,
        "reasons": True,
        "told": [told, told],
        "raised": True,
        "try": True,
    }


def _wrong(folder: str) -> dict[str, Any]:
    import memfit

    def error(source: Any = folder, size: Any = (8, 8), **options: Any) -> str:
        try:
            memfit.data.from_images(source, size=size, **options)
        except memfit.MemfitError as error:
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return "no error"

    return {
        "missing": error("no such folder"),
        "file": error(f"{folder}/a.png"),
        "none": error(f"{folder}/empty"),
        "list": error([]),
        "size": error(size=8),
        "labels": error(labels=[1, 2, 3]),
        "folders": error(labels="folders"),
        "table": error(labels="none.csv"),
        "ram": error(ram="1MiB"),
        "size of ram": error(ram="much"),
        "start": error(start=-1),
        "batch": error(batch_size=0),
        "on_error": error(on_error="ignore"),
        "unknown": error(buffer=3),
    }


def test_wrong_arguments_say_what_is_wrong(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    seen = run_limited(_wrong, None, folder=str(tmp_path))
    kinds = {name: text.partition(":")[0] for name, text in seen.items()}
    assert kinds == {
        "missing": "NoData",
        "file": "NoData",
        "none": "NoData",
        "list": "NoData",
        "size": "InvalidStream",
        "labels": "InvalidStream",
        "folders": "InvalidStream",
        "table": "InvalidStream",
        "ram": "RamTooSmall",
        "size of ram": "InvalidSize",
        "start": "InvalidStream",
        "batch": "InvalidBatchSize",
        "on_error": "InvalidStream",
        "unknown": "InvalidStream",
    }, seen


def _read_odd_names(folder: str) -> list[int]:
    import memfit

    return sorted(
        int(batch[0, 0, 0])
        for batch in memfit.data.from_images(folder, size=(4, 4), ram="96MiB", batch_size=None)
    )


def test_any_bytes_may_be_a_name(tmp_path: Path) -> None:
    for number, name in enumerate((b"\xff\xfe.png", "größe.PNG".encode(), b"two words.png", b"-x.png")):
        contents = _encoded(Image.new("RGB", (4, 4), (number * 10, 0, 0)), "PNG")
        (tmp_path / os.fsdecode(name)).write_bytes(contents)
    assert run_limited(_read_odd_names, None, folder=str(tmp_path)) == [0, 10, 20, 30]
