"""What graphs call, and the memory that rows are read into."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _keep_and_let_go() -> dict[str, Any]:
    import gc
    import weakref

    import numpy as np
    import tensorflow as tf

    from memfit.data import from_arrays
    from memfit.data.stream import source as source_module

    rooms = source_module.Rooms()
    first = rooms.rows(4, (3,), np.dtype(np.int32))
    first[:] = 1
    view, place = first[1:2], first.ctypes.data
    del first
    second = rooms.rows(4, (3,), np.dtype(np.int32))
    second[:] = 2
    kept = view.tolist()
    del view
    third = rooms.rows(4, (3,), np.dtype(np.int32))
    again = third.ctypes.data
    larger = rooms.rows(40, (3,), np.dtype(np.int32))

    rows = np.arange(640, dtype=np.float32).reshape(64, 10)
    dataset = from_arrays(rows, shuffle=False, batch_size=4, ram="64MiB")
    batches = [batch for _ in range(20) for batch in dataset]  # all are kept, and none may change
    right = all(bool(tf.reduce_all(batch == rows[4 * (i % 16) :][:4])) for i, batch in enumerate(batches))
    source = weakref.ref(dataset.memfit_stream.source)
    called = len(source_module._CALLED)
    derived = dataset.map(lambda batch: batch * 2.0)
    del dataset
    gc.collect()
    doubled = next(iter(derived)).numpy().tolist() == (rows[:4] * 2).tolist()
    del derived
    gc.collect()
    return {
        "aligned": place % 64 == 0 and larger.shape == (40, 3),
        "a view keeps its rows": kept == [[1, 1, 1]] and again != second.ctypes.data,
        "used again": again == place,
        "right": right,
        "what is built on it keeps it": doubled,
        "gone": source() is None and len(source_module._CALLED) < called,
    }


def test_memory_is_used_again_only_when_nobody_has_it() -> None:
    seen = run_limited(_keep_and_let_go, None)
    assert all(seen.values()), seen
