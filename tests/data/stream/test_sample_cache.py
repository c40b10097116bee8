"""Elements that are decoded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from limited import run_limited

pytestmark = pytest.mark.real

COUNT = 60


def _read(folder: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.data import from_arrays, from_images

    def epochs(**options: Any) -> tuple[list[Any], str]:
        dataset = from_images(folder, size=(128, 128), labels=list(range(COUNT)), batch_size=8, **options)
        found = []
        for epoch in range(3):
            if epoch == 2:  # whatever is not kept is gone by now
                for path in Path(folder).iterdir():
                    path.rename(path.with_suffix(".gone"))
            try:
                found.append({int(y): float(x) for x, y in _sums(dataset)})
            except tf.errors.OpError:
                found.append(None)
        for path in Path(folder).iterdir():
            path.rename(path.with_suffix(".jpg"))
        kept = [name for name, _ in dataset.memfit_stream.allotment().parts if "next epochs" in name]
        return found, kept

    plain, _ = epochs(ram="96MiB")
    result: dict[str, Any] = {"plain": [plain[0] == plain[1], plain[2] is None]}
    for name, options in {
        "memory": {"ram": "128MiB"},
        "disk": {"ram": "44MiB"},
        "nowhere": {"ram": "44MiB", "disk": 0},
        "flipped": {"ram": "128MiB", "augment": lambda image: 255.0 - image},
    }.items():
        found, kept = epochs(cache=True, **options)
        wanted = {key: 255.0 * 128 * 128 * 3 - value for key, value in plain[0].items()}
        wanted = wanted if name == "flipped" else plain[0]
        same = [
            epoch is not None and all(abs(epoch[key] - wanted[key]) <= 64 for key in wanted)
            for epoch in found
        ]
        result[name] = [same, kept]
    rows = np.random.default_rng(0).random((50, 4), np.float32)
    kept_rows = from_arrays(rows, shuffle=False, cache=True, ram="64MiB")
    result["rows"] = [
        bool(np.array_equal(np.concatenate([batch.numpy() for batch in kept_rows]), rows)) for _ in range(2)
    ]
    return result


def _sums(dataset: Any) -> Any:
    import tensorflow as tf

    for x, y in dataset:
        yield from zip(tf.reduce_sum(tf.cast(x, tf.float64), axis=(1, 2, 3)), y, strict=True)


def test_elements_are_kept_where_there_is_room(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = random.integers(0, 256, (140, 130, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02d}.jpg")
    memory = ["elements for the next epochs"]
    assert run_limited(_read, None, folder=str(tmp_path)) == {
        "plain": [True, True],
        "memory": [[True, True, True], memory],
        "disk": [[True, True, True], []],
        "nowhere": [[True, True, False], []],
        "flipped": [[True, True, True], memory],
        "rows": [True, True],
    }
