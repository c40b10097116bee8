"""HDF5 files: every layout gives the same rows, damaged chunks are named, kept chunks are few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

_ROWS = 70

_LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "single": {"chunks": [1, 5, 4], "compression": "gzip"},
    "plain": {"chunks": [16, 5, 4]},
    "gzip": {"chunks": [16, 5, 4], "compression": "gzip"},
    "shuffled": {"chunks": [16, 5, 4], "compression": "gzip", "shuffle": True},
    "cut": {"chunks": [16, 2, 3], "compression": "gzip"},
    "cut plain": {"chunks": [16, 2, 3]},
    "lzf": {"chunks": [16, 5, 4], "compression": "lzf"},
    "checked": {"chunks": [16, 5, 4], "compression": "gzip", "fletcher32": True},
}


def _layouts(path: str, layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    import h5py
    import numpy as np

    import memfit

    x = np.random.default_rng(0).random((_ROWS, 5, 4)).astype(">f4")
    half = np.where(np.arange(_ROWS)[:, None] < 20, 1, 7).astype(np.int16)
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, options in layouts.items():
            given = {**options, "chunks": tuple(options["chunks"])} if "chunks" in options else options
            file.create_dataset(f"all/{name}", data=x, **given)
        file.create_dataset("y", data=np.arange(_ROWS), chunks=(64,), compression="gzip")
        for name, options in (("half", {"compression": "gzip"}), ("half plain", {})):
            file.create_dataset(name, half.shape, half.dtype, chunks=(20, 1), fillvalue=7, **options)[:20] = 1
        file.create_dataset("never", half.shape, half.dtype, fillvalue=7)

    def epoch(name: str, expected: Any = x, **options: Any) -> list[int]:
        dataset = memfit.data.from_hdf5(path, x=name, y="y", batch_size=8, **options)
        inputs, targets = (np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator(), strict=True))
        assert np.array_equal(inputs, expected[targets]), name
        order: list[int] = targets.tolist()
        return order

    return {
        "uniform": {name: epoch(f"all/{name}") for name in layouts},
        "groups": {name: epoch(f"all/{name}", shuffle="groups") for name in ("plain", "gzip", "cut", "lzf")},
        "in order": [epoch(f"all/{name}", shuffle=False) for name in ("plain", "cut")],
        "resumed": epoch("all/gzip", shuffle="groups", start=30),
        "never written": [
            epoch("half", half), epoch("half plain", half), epoch("never", np.full_like(half, 7))
        ],
        "own": [
            bool((a == b).all())
            for a, b in memfit.data.from_hdf5(path, x="all/gzip", y="input").as_numpy_iterator()
        ],
    }  # fmt: skip


def test_each_row_comes_once_an_epoch_from_every_layout(tmp_path: Path) -> None:
    seen = run_limited(_layouts, None, path=str(tmp_path / "layouts.h5"), layouts=_LAYOUTS)
    uniform = seen["uniform"]["contiguous"]
    assert sorted(uniform) == list(range(_ROWS))
    assert all(order == uniform for order in seen["uniform"].values())
    by_chunks = seen["groups"]["gzip"]
    assert sorted(by_chunks) == list(range(_ROWS))
    # Rows that can be reached by themselves are shuffled as ever.
    assert seen["groups"] == {"plain": uniform, "gzip": by_chunks, "cut": by_chunks, "lzf": by_chunks}
    assert seen["in order"] == [list(range(_ROWS))] * 2
    assert seen["resumed"] == by_chunks[30:]
    assert all(sorted(order) == list(range(_ROWS)) for order in seen["never written"])
    assert seen["own"] == [True] * 3


def _damaged(path: str) -> dict[str, Any]:
    import h5py
    import numpy as np

    import memfit

    x = np.random.default_rng(0).integers(0, 99, (64, 30), np.int32)
    with h5py.File(path, "w") as file:
        for name, options in (("x", {"compression": "gzip"}), ("lzf", {"compression": "lzf"})):
            dataset = file.create_dataset(name, data=x, chunks=(16, 30), **options)
            place = dataset.id.get_chunk_info_by_coord((16, 0))
            with Path(path).open("r+b") as raw:
                file.flush()
                raw.seek(place.byte_offset)
                raw.write(bytes(200))

    def skipping(name: str, **options: Any) -> tuple[list[int], list[int], list[int]]:
        dataset = memfit.data.from_hdf5(path, x=name, on_error="skip", batch_size=16, **options)
        batches = list(dataset.as_numpy_iterator())
        rows = [int(np.flatnonzero((x == row).all(axis=1))[0]) for batch in batches for row in batch]
        return [len(batch) for batch in batches], rows, sorted(dataset.memfit_losses.skipped)

    found: dict[str, Any] = {name: skipping(name, shuffle=False) for name in ("x", "lzf")}
    found["shuffled"] = skipping("x", drop_remainder=True)
    for name in ("x", "lzf"):
        try:
            list(memfit.data.from_hdf5(path, x=name, shuffle=False, batch_size=20))
        except Exception as error:  # noqa: BLE001  # TensorFlow's, of a kind that is its own affair
            found[f"raised {name}"] = str(error)
    return found


def test_rows_of_damaged_chunks_are_skipped_or_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    seen = run_limited(_damaged, None, path=str(path))
    lost = list(range(16, 32))
    whole = [row for row in range(64) if row not in lost]
    for name in ("x", "lzf"):
        assert seen[name] == [[16, 16, 16], whole, lost]
        assert f"DamagedData: row 16 of dataset '{name}' of {path} cannot be read" in seen[f"raised {name}"]
    assert "its chunk is damaged" in seen["raised x"]
    sizes, rows, skipped = seen["shuffled"]
    assert (sizes, sorted(rows), skipped) == ([16, 16, 16], whole, lost)


def _kept(path: str) -> dict[str, Any]:
    import logging
    import threading

    import h5py
    import numpy as np

    import memfit
    from memfit.data.reading.hdf5_chunks import ChunkedColumn
    from memfit.data.stream.budget import _SLACK

    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)
    with h5py.File(path, "w") as file:  # chunks of 1 MiB
        file.create_dataset("x", (320, 1 << 16), np.uint8, chunks=(16, 1 << 16), compression="gzip")[:] = 1
    loads: list[int] = []
    lock, original = threading.Lock(), ChunkedColumn.load

    def counted(column: Any, number: int) -> Any:
        with lock:
            loads.append(number)
        return original(column, number)

    ChunkedColumn.load = counted  # type: ignore[method-assign]
    found: dict[str, Any] = {}
    for shuffle in (False, "groups", True):
        dataset = memfit.data.from_hdf5(path, shuffle=shuffle, batch_size=8, ram="64MiB")
        loads.clear()
        rows = sum(len(batch) for batch in dataset)
        found[str(shuffle)] = [rows, len(set(loads)), len(loads)]
        parts = dict(dataset.memfit_stream.allotment().parts)
        found[f"kept by {shuffle}"] = round(parts["groups that are kept"] / _SLACK) >> 20
    try:
        memfit.data.from_hdf5(path, shuffle="groups", batch_size=1, ram="26MiB")
    except memfit.errors.RamTooSmall as error:
        found["too small"] = str(error)
    return {**found, "messages": messages}


def test_chunks_are_read_once_and_kept_within_the_ram(tmp_path: Path) -> None:
    seen = run_limited(_kept, None, path=str(tmp_path / "kept.h5"))
    assert seen["False"] == [320, 20, 20]
    rows, chunks, loads = seen["groups"]
    assert (rows, chunks) == (320, 20)
    assert loads <= 24  # a machine with many cores may read further ahead than chunks are kept
    assert seen["True"][2] > 100
    assert [seen[f"kept by {shuffle}"] for shuffle in (False, "groups", True)] == [10, 10, 10]
    assert "groups that are kept" in seen["too small"]
    assert len(seen["messages"]) == 1
    assert "groups of 16, which are read whole, and ram has room for 10 of 20 groups" in seen["messages"][0]


def _errors(folder: str) -> dict[str, list[str]]:
    import h5py
    import numpy as np

    import memfit

    path = f"{folder}/data.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["short"], file["number"], file["group/y"] = (
            np.zeros((3, 2)),
            np.zeros(2),
            1.0,
            np.zeros(3),
        )
        file.create_dataset("texts", data=["a", "b"])
        file.create_dataset("lists", (3,), h5py.vlen_dtype(np.int32))
        file.create_dataset("nothing", (0, 2))
    Path(folder, "text.h5").write_text("no HDF5 at all")
    cases: dict[str, dict[str, Any]] = {
        "nowhere": {"path": f"{folder}/nowhere.h5"},
        "not hdf5": {"path": f"{folder}/text.h5"},
        "missing": {"x": "images"},
        "group": {"x": "group"},
        "lengths": {"y": "short"},
        "number": {"x": "number"},
        "texts": {"x": "texts"},
        "lists": {"x": "lists"},
        "nothing": {"x": "nothing"},
    }
    found = {}
    for name, case in cases.items():
        try:
            memfit.data.from_hdf5(**{"path": path, **case})
        except memfit.MemfitError as error:
            found[name] = [type(error).__name__, str(error)]
    return found


def test_errors_say_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    seen = run_limited(_errors, None, folder=str(tmp_path))
    said = {
        "nowhere": ("NoData", "nowhere.h5", "nothing of that name"),
        "not hdf5": ("InvalidStream", "text.h5 cannot be opened as an HDF5 file"),
        "missing": ("InvalidStream", "has no dataset 'images'", "'group/y', 'lists', 'nothing', 'number'"),
        "group": ("InvalidStream", "'group', which is a group"),
        "lengths": ("InvalidStream", "3 rows of y", "2 rows of y"),
        "number": ("InvalidStream", "dataset 'number'", "is a single number"),
        "texts": ("InvalidStream", "values of different lengths"),
        "lists": ("InvalidStream", "values of different lengths"),
        "nothing": ("NoData", "shape (0, 2)"),
    }
    assert set(seen) == set(said)
    for name, (kind, *parts) in said.items():
        assert seen[name][0] == kind
        assert [part for part in parts if part not in seen[name][1]] == [], seen[name][1]
