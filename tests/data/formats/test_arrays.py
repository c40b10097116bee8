"""Arrays in memory and in .npy and .npz files: rows come by index, and files are never loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

_ROWS = 50


class _Sliced:
    """What can be sliced and no more."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, rows: Any) -> Any:
        return self._array[rows.start : rows.stop]


class _Indexed(_Sliced):
    """What takes indices that are sorted, each once."""

    def __getitem__(self, rows: Any) -> Any:
        assert list(rows) == sorted(set(rows))
        return self._array[rows]


def _streams(folder: str) -> dict[str, Any]:
    import numpy as np

    import memfit

    x = np.random.default_rng(0).integers(0, 255, (_ROWS, 4, 3), np.uint8)
    y = np.arange(_ROWS, dtype=np.int32)
    np.save(f"{folder}/x.npy", x)
    np.save(f"{folder}/y.npy", y)
    np.save(f"{folder}/swapped.npy", x.astype(">f4"))
    np.save(f"{folder}/fortran.npy", np.asfortranarray(x))
    np.savez(f"{folder}/stored.npz", images=x, labels=y)
    sources: dict[str, Any] = {
        "memory": (x, y),
        "npy": (f"{folder}/x.npy", f"{folder}/y.npy"),
        "memmap": (np.load(f"{folder}/x.npy", mmap_mode="r"), y),
        "swapped": (f"{folder}/swapped.npy", y),
        "fortran": (f"{folder}/fortran.npy", y),
        "npz": (f"{folder}/stored.npz", "labels"),
        "sliced": (_Sliced(x), y),
        "indexed": (_Indexed(x), y),
    }

    def epoch(dataset: Any) -> list[int]:
        inputs, targets = (np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator(), strict=True))
        assert np.array_equal(inputs, x[targets])
        order: list[int] = targets.tolist()
        return order

    datasets = {name: memfit.data.from_arrays(*pair, batch_size=8) for name, pair in sources.items()}
    in_order = memfit.data.from_arrays(f"{folder}/stored.npz", x="images", y="labels", shuffle=False)
    own = memfit.data.from_arrays(x, "input", shuffle=False, batch_size=None)
    return {
        "epochs": {name: [epoch(dataset) for _ in range(2)] for name, dataset in datasets.items()},
        "in order": epoch(in_order),
        "resumed": epoch(memfit.data.from_arrays(x, y, start=_ROWS + 20)),
        "own": [
            bool((a == b).all() and (a == x[i]).all()) for i, (a, b) in enumerate(own.as_numpy_iterator())
        ],
        "dtypes": [datasets[name].element_spec[0].dtype.name for name in ("npy", "swapped")],
    }


def test_each_row_comes_once_an_epoch_from_every_kind_of_array(tmp_path: Path) -> None:
    seen = run_limited(_streams, None, folder=str(tmp_path))
    orders = seen["epochs"]["memory"]
    assert all(sorted(order) == list(range(_ROWS)) for order in orders)
    assert orders[0] != orders[1]
    assert all(found == orders for found in seen["epochs"].values())
    assert seen["in order"] == list(range(_ROWS))
    assert seen["resumed"] == orders[1][20:]
    assert seen["own"] == [True] * _ROWS
    assert seen["dtypes"] == ["uint8", "float32"]


def _unpacked(folder: str) -> dict[str, Any]:
    import gc
    import logging
    import os
    from contextlib import suppress

    import numpy as np

    import memfit

    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("memfit").addHandler(handler)
    logging.getLogger("memfit").setLevel(logging.INFO)
    os.environ["TMPDIR"] = folder
    x = np.arange(200.0).reshape(100, 2)
    path = Path(folder, "packed.npz")
    np.savez_compressed(path, x=x, y=np.arange(100), others=x)
    dataset = memfit.data.from_arrays(path, "y", shuffle=False, batch_size=100)

    def mapped() -> int:
        return sum(
            folder in line and "deleted" in line for line in Path("/proc/self/maps").read_text().splitlines()
        )

    inputs, targets = next(dataset.as_numpy_iterator())
    found = {
        "rows": bool((inputs == x).all() and (targets == np.arange(100)).all()),
        "files": [name.name for name in Path(folder).iterdir()],
        "mapped": mapped(),
        "messages": list(messages),
    }
    del dataset
    gc.collect()
    damaged = bytearray(path.read_bytes())
    damaged[200:210] = bytes(10)
    path.write_bytes(damaged)
    with suppress(memfit.MemfitError):
        memfit.data.from_arrays(path, "y")
        found["damaged"] = "nothing was said"
    return {**found, "mapped after": mapped()}


def test_compressed_arrays_are_unpacked_to_a_file_that_goes_with_the_dataset(tmp_path: Path) -> None:
    seen = run_limited(_unpacked, None, folder=str(tmp_path))
    messages = seen.pop("messages")
    assert seen == {"rows": True, "files": ["packed.npz"], "mapped": 2, "mapped after": 0}
    assert len(messages) == 2
    assert "packed.npz, array 'x' is compressed" in messages[0]
    assert str(tmp_path) in messages[0]


def _anonymous_growth(folder: str) -> dict[str, int]:
    import h5py
    import numpy as np

    import memfit

    def anonymous_bytes() -> int:
        return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) << 10

    def growth(dataset: Any) -> int:
        next(iter(dataset))  # what TensorFlow takes in any case
        before = anonymous_bytes()
        return max(anonymous_bytes() for _ in dataset.take(200)) - before

    shape = (4000, 160, 100, 3)
    np.lib.format.open_memmap(f"{folder}/large.npy", "w+", np.uint8, shape)[-1] = 1
    with h5py.File(f"{folder}/large.h5", "w") as file:
        file.create_dataset("x", shape, np.uint8)[-1] = 1
    small = {"ram": "64MiB"}
    return {
        "npy": growth(memfit.data.from_arrays(f"{folder}/large.npy", **small)),
        "hdf5": growth(memfit.data.from_hdf5(f"{folder}/large.h5", **small)),
    }


def test_a_mapped_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Of 192 MB, with 64 MiB to use."""
    seen = run_limited(_anonymous_growth, None, folder=str(tmp_path))
    assert seen["npy"] < 90 << 20
    assert seen["hdf5"] < 90 << 20


def _errors(folder: str) -> dict[str, list[str]]:
    import numpy as np

    import memfit

    rows = np.zeros((3, 2))
    np.save(f"{folder}/rows.npy", rows)
    np.save(f"{folder}/objects.npy", np.array([{}, None]), allow_pickle=True)
    np.savez(f"{folder}/two.npz", a=rows, b=rows)
    Path(folder, "text.npy").write_text("no array at all")
    Path(folder, "cut.npy").write_bytes(Path(folder, "rows.npy").read_bytes()[:-8])
    Path(folder, "text.npz").write_text("no archive at all")
    cases: dict[str, Any] = {
        "lengths": ((rows, np.zeros(4)), {}),
        "scalar": ((np.float32(1.0),), {}),
        "no rows": ((rows[:0],), {}),
        "objects": ((f"{folder}/objects.npy",), {}),
        "texts": ((np.array(["a", "b"]),), {}),
        "list": (([1, 2, 3],), {}),
        "nowhere": ((f"{folder}/nowhere.npy",), {}),
        "folder": ((folder,), {}),
        "not npy": ((f"{folder}/text.npy",), {}),
        "cut": ((f"{folder}/cut.npy",), {}),
        "not npz": ((f"{folder}/text.npz",), {}),
        "which": ((f"{folder}/two.npz",), {}),
        "missing": ((f"{folder}/two.npz",), {"x": "a", "y": "c"}),
        "no archive": ((f"{folder}/rows.npy",), {"x": "a"}),
        "shuffle": ((rows,), {"shuffle": "chunks"}),
    }
    found = {}
    for name, (positional, named) in cases.items():
        try:
            memfit.data.from_arrays(*positional, **named)
        except memfit.MemfitError as error:
            found[name] = [type(error).__name__, str(error)]
    return found


def test_errors_say_what_is_wrong_with_an_array(tmp_path: Path) -> None:
    seen = run_limited(_errors, None, folder=str(tmp_path))
    said = {
        "lengths": ("InvalidStream", "3 rows of y, as many as x has", "4 rows of y"),
        "scalar": ("InvalidStream", "is a single number"),
        "no rows": ("NoData", "shape (0, 2)"),
        "objects": ("InvalidStream", "objects.npy", "Python objects"),
        "texts": ("InvalidStream", "does not hold numbers", "<U1"),
        "list": ("InvalidStream", "a list", "numpy.asarray"),
        "nowhere": ("NoData", "nowhere.npy", "nothing of that name"),
        "folder": ("NoData", "a folder"),
        "not npy": ("InvalidStream", "text.npy cannot be read as an array"),
        "cut": ("InvalidStream", "cut.npy cannot be read as an array", "greater than file size"),
        "not npz": ("InvalidStream", "text.npz", "not a zip file"),
        "which": ("InvalidStream", "one of 'a', 'b'", "no x to say which"),
        "missing": ("InvalidStream", "has no array 'c'", "one of 'a', 'b'"),
        "no archive": ("InvalidStream", "x='a'", "rows.npy"),
        "shuffle": ("InvalidStream", 'True, False or "groups"', "shuffle='chunks'"),
    }
    assert set(seen) == set(said)
    for name, (kind, *parts) in said.items():
        assert seen[name][0] == kind
        assert [part for part in parts if part not in seen[name][1]] == [], seen[name][1]
