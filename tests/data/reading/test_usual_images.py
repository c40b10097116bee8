"""The kind that is tried first, and that all others come out the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from limited import run_limited

SIDE = 16
# Height and width around the sizes at which another ratio begins, and shapes that are no squares.
SIZES = [(16, 16), (1, 1), (31, 31), (32, 32), (31, 90), (90, 31), (63, 64), (64, 64), (127, 130), (140, 128)]
SIZES += [(15, 17), (17, 15), (200, 16), (16, 200), (150, 190), (40, 40)]


def _encoded(height: int, width: int, kind: str, **options: Any) -> bytes:
    random = np.random.default_rng(height * 1000 + width)
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(file, kind, **options)
    return file.getvalue()


def _compared(folder: str) -> dict[str, list[float]]:
    """The largest difference to TensorFlow's own decoding and resizing, for each first kind and type."""
    import tensorflow as tf

    import memfit

    def wanted(path: Path) -> Any:
        encoded = tf.io.read_file(str(path))
        if path.suffix == ".png":
            return tf.image.resize(tf.io.decode_png(encoded, channels=3), (SIDE, SIDE)).numpy()
        height, width, _ = tf.io.extract_jpeg_shape(encoded).numpy()
        ratio = max(ratio for ratio in (1, 2, 4, 8) if ratio <= max(1, min(height, width) // SIDE))
        image = tf.io.decode_jpeg(encoded, channels=3, ratio=ratio)
        return tf.image.resize(image, (SIDE, SIDE)).numpy()

    everything = sorted(Path(folder).iterdir())
    found = {}
    for usual in everything:  # most images are like this one, so that it is what the graph tries first
        paths = [*everything, *[usual] * 40]
        seen = {}
        for dtype in ("float32", "uint8"):
            dataset = memfit.data.from_images(
                paths, size=(SIDE, SIDE), dtype=dtype, shuffle=False, ram="96MiB"
            )
            seen[dtype] = np.concatenate(list(dataset.as_numpy_iterator())).astype(np.float32)
        right = np.stack([wanted(path) for path in paths])
        found[usual.name] = [
            float(np.abs(seen["float32"] - right).max()),
            float(np.abs(seen["uint8"] - np.round(right)).max()),
        ]
    return found


@pytest.mark.real
def test_images_of_all_sizes_are_what_tensorflow_makes_of_them(tmp_path: Path) -> None:
    for number, (height, width) in enumerate(SIZES):
        kind, options = ("PNG", {}) if number % 4 == 3 else ("JPEG", {"quality": 90})
        name = f"{height}x{width}.{'png' if kind == 'PNG' else 'jpg'}"
        (tmp_path / name).write_bytes(_encoded(height, width, kind, **options))
    found = run_limited(_compared, None, folder=str(tmp_path))
    assert len(found) == len(SIZES)
    assert set(map(tuple, found.values())) == {(0.0, 0.0)}


@pytest.mark.real
@pytest.mark.parametrize("height", [16, 24])
def test_all_sides_within_the_bounds_are_of_the_kind_and_take_no_more_than_their_share(height: int) -> None:
    assert run_limited(_outside, None, height=height) == []


def _outside(height: int) -> list[Any]:
    """Sides within the bounds of a kind that are of another kind, or larger than they may be."""
    from memfit.data.reading.decoding import RATIOS, make_decoder
    from memfit.data.reading.usual_images import Usual

    decoder, most_pixels, wrong = make_decoder((height, 16), 3, "uint8"), 1500, []
    for ratio in RATIOS:
        for is_tall in (False, True):
            low, high = Usual(False, ratio, is_tall=is_tall).bounds(decoder, most_pixels)
            sides = [(h, w) for h in _from(low[0], high[0]) for w in _from(low[1], high[1])]
            wrong += [
                [ratio, h, w]
                for h, w in sides
                if decoder.ratio(h, w) != ratio or h * w // ratio**2 > most_pixels
            ]
            if not sides:
                wrong.append([ratio, "none"])
    return wrong


def _from(low: int, high: int) -> list[int]:
    return sorted({low, low + 1, (low + high) // 2, high - 1, high}) if low < high else []


def _kinds_of_graphs(folder: str) -> dict[str, bool]:
    """Whether a stream has a graph for all kinds, for images that are alike and for others."""
    from memfit.data.reading.decoding import make_decoder
    from memfit.data.reading.usual_images import look_at

    decoder = make_decoder((SIDE, SIDE), 3, "float32")
    found = {}
    for name, sizes in {
        "exact": [(16, 16)] * 3,
        "mixed": [(16, 16), (20, 14)],
        "near a bound": [(16, 18), (31, 31)],
        "two ratios": [(16, 18), (16, 18), (40, 40)],
        "two formats": [(16, 16), (16, 16), "PNG"],
    }.items():
        images = [
            _encoded(16, 16, "PNG") if isinstance(size, str) else _encoded(*size, "JPEG") for size in sizes
        ]
        looked_at = look_at(images, decoder)
        assert looked_at.usual is not None
        found[name] = looked_at.are_alike(*looked_at.usual.bounds(decoder, 1 << 20))
    return found


@pytest.mark.real
def test_a_graph_has_one_kind_only_where_all_are_alike(tmp_path: Path) -> None:
    assert run_limited(_kinds_of_graphs, None, folder=str(tmp_path)) == {
        "exact": True,
        "mixed": False,
        "near a bound": False,
        "two ratios": False,
        "two formats": False,
    }
