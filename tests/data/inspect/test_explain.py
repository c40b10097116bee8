"""What memfit says about its own streams, below whatever was put on top of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _explain(folder: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit import data
    from memfit.data.inspect.pipeline_findings import Explanation

    for place in range(9):
        image = tf.cast(np.full((8, 8, 3), place), tf.uint8)
        tf.io.write_file(f"{folder}/{place}.png", tf.io.encode_png(image))
    Path(f"{folder}/damaged.png").write_bytes(b"nothing")
    settings = {"batch_size": 2, "seed": 7, "start": 4, "on_error": "skip", "ram": "64MiB"}
    stream = data.from_images(folder, size=(8, 8), **settings)
    on_top = stream.map(lambda x: x / 255).shuffle(50).repeat(2).with_options(tf.data.Options())
    before = data.explain(on_top)
    assert isinstance(before, Explanation)
    for _ in on_top:
        pass
    after = data.explain(on_top)
    assert type(after).from_json(after.to_json()) == after
    numbers = data.from_generator(lambda: iter(np.arange(10.0)), batch_size=2, ram="64MiB")
    other = tf.data.Dataset.range(9).shuffle(3)
    return {
        "before": before.to_dict(),
        "after": after.to_dict(),
        "words": str(after),
        "total": stream.memfit_stream.allotment().total_bytes == after.total_bytes,
        "passes": str(data.explain(numbers)),
        "other": data.explain(other) == data.check(other),
        "two": type(data.explain(tf.data.Dataset.zip(stream, stream))).__name__,
        "stream": [one.kind for one in data.check(on_top).findings],
    }


def test_a_stream_is_explained_with_what_it_has_skipped_so_far(tmp_path: Path) -> None:
    seen = run_limited(_explain, None, folder=str(tmp_path))
    before, after = seen["before"], seen["after"]
    assert (before["skipped"], after["skipped"]) == (0, 1)
    (listed,) = after["listed"]
    assert listed.startswith(f"{tmp_path}/damaged.png: ")
    facts = ("source", "elements", "element_bytes", "batch_size", "ram_bytes", "start", "on_error")
    assert [after[name] for name in facts] == ["image files", 10, 8 * 8 * 3 * 4, 2, 64 << 20, 4, "skip"]
    assert seen["total"]
    assert "another order each epoch, seed 7" in seen["words"]
    # What the user has put on top is not the stream's, and costs more.
    (shuffle,) = after["above"]
    assert (shuffle["kind"], shuffle["held_bytes"]) == ("shuffle", 50 * (2 * 8 * 8 * 3 * 4 + 176))
    assert seen["stream"] == ["stream", "shuffle"]
    assert "within a window of" in seen["passes"]
    # Of datasets that are not memfit's it says what a check does.
    assert (seen["other"], seen["two"]) == (True, "Check")
