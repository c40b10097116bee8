"""Parquet files: columns become rows, row group by row group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

_ROWS = 90


def _columns(folder: str) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import memfit

    random = np.random.default_rng(0)
    a, b = random.random(_ROWS).astype(np.float32), random.integers(0, 9, _ROWS).astype(np.int16)
    lists = random.random((_ROWS, 2, 3)).astype(np.float32)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(lists.reshape(-1)), 3)
    index = np.arange(_ROWS)
    table = pa.table(
        {
            "a": a,
            "b": b,
            "flag": index % 2 == 0,
            "list": pa.FixedSizeListArray.from_arrays(inner, 2),
            "holes": pa.array([None if i in (7, 50) else i for i in index.tolist()]),
            "y": index,
        }
    )
    pq.write_table(table.slice(0, 40), f"{folder}/1.parquet", row_group_size=15)
    pq.write_table(table.slice(40), f"{folder}/2.parquet", row_group_size=20)
    paths = [f"{folder}/1.parquet", f"{folder}/2.parquet"]

    def epochs(
        x: Any, expected: Any, source: Any = folder, count: int = 1, **options: Any
    ) -> list[list[int]]:
        dataset = memfit.data.from_parquet(source, x=x, y="y", batch_size=8, **options)
        orders = []
        for _ in range(count):
            inputs, targets = (
                np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator(), strict=True)
            )
            assert np.array_equal(inputs, expected[targets]), x
            assert inputs.dtype == expected.dtype
            orders.append(targets.tolist())
        return orders

    skipping = memfit.data.from_parquet(folder, x=["a", "holes"], on_error="skip")
    try:
        list(memfit.data.from_parquet(folder, x="holes", shuffle=False))
    except Exception as error:  # noqa: BLE001  # TensorFlow's, of a kind that is its own affair
        raised = str(error)
    return {
        "epochs": epochs("a", a, count=2),
        "same": [
            epochs(["a", "b"], np.stack([a, b.astype(np.float32)], axis=1))[0],
            epochs(["b"], b[:, None], source=paths)[0],
            epochs("flag", index % 2 == 0)[0],
            epochs("list", lists)[0],
        ],
        "resumed": epochs("a", a, start=_ROWS + 25)[0],
        "in order": epochs("a", a, shuffle=False)[0],
        "one file": len(epochs("a", a, source=Path(paths[0]), shuffle=True)[0]),
        "skipped": [
            sum(len(batch) for batch in skipping),
            [str(e) for e in skipping.memfit_losses.skipped.values()],
        ],
        "raised": raised,
    }


def test_each_row_comes_once_an_epoch_and_missing_values_are_named(tmp_path: Path) -> None:
    seen = run_limited(_columns, None, folder=str(tmp_path))
    first, second = seen["epochs"]
    assert sorted(first) == sorted(second) == list(range(_ROWS))
    assert first != second
    assert all(order == first for order in seen["same"])
    assert seen["resumed"] == second[25:]
    assert seen["in order"] == list(range(_ROWS))
    assert seen["one file"] == 40
    holes = {
        f"row {row} of {tmp_path}/{name}.parquet: a value is missing (null)"
        for row, name in ((7, 1), (10, 2))
    }
    count, skipped = seen["skipped"]
    assert (count, set(skipped)) == (_ROWS - 2, holes)
    assert f"DamagedData: row 7 of {tmp_path}/1.parquet cannot be read: a value is missing" in seen["raised"]


def _errors(folder: str) -> dict[str, list[str]]:
    import sys

    import pyarrow as pa
    import pyarrow.parquet as pq

    import memfit

    Path(folder, "empty").mkdir()
    Path(folder, "mixed").mkdir()
    table = pa.table({"a": [1, 2], "text": ["p", "q"], "open": [[1.0], []]})
    pq.write_table(table, f"{folder}/a.parquet")
    pq.write_table(table, f"{folder}/mixed/1.parquet")
    pq.write_table(pa.table({"a": [1.5]}), f"{folder}/mixed/2.parquet")
    pq.write_table(table.slice(0, 0), f"{folder}/none.parquet")
    large = pa.table({"a": list(range(1 << 18))})
    pq.write_table(large, f"{folder}/damaged.parquet", compression="snappy", use_dictionary=False)
    damaged = bytearray(Path(folder, "damaged.parquet").read_bytes())
    damaged[1000:2000] = b"\xff" * 1000
    Path(folder, "damaged.parquet").write_bytes(damaged)
    Path(folder, "text.parquet").write_text("no Parquet at all")
    cases: dict[str, tuple[Any, Any]] = {
        "nowhere": (f"{folder}/nowhere.parquet", "a"),
        "empty": (f"{folder}/empty", "a"),
        "not parquet": (f"{folder}/text.parquet", "a"),
        "missing": (f"{folder}/a.parquet", "z"),
        "texts": (f"{folder}/a.parquet", "text"),
        "open lists": (f"{folder}/a.parquet", "open"),
        "mixed": (f"{folder}/mixed", "a"),
        "no rows": (f"{folder}/none.parquet", "a"),
        "no name": (f"{folder}/a.parquet", []),
        "damaged": (f"{folder}/damaged.parquet", "a"),
    }
    found = {}
    for name, (source, x) in cases.items():
        try:
            list(memfit.data.from_parquet(source, x=x).take(1))
        except Exception as error:  # noqa: BLE001  # memfit's, or TensorFlow's around it
            found[name] = [type(error).__name__, str(error)]
    sys.modules["pyarrow.parquet"] = None  # type: ignore[assignment]
    try:
        memfit.data.from_parquet(f"{folder}/a.parquet", x="a")
    except memfit.errors.PackageMissing as error:
        found["package"] = [type(error).__name__, str(error)]
    return found


def test_errors_say_what_is_wrong_with_a_table(tmp_path: Path) -> None:
    seen = run_limited(_errors, None, folder=str(tmp_path))
    said = {
        "nowhere": ("NoData", "nowhere.parquet", "no such file"),
        "empty": ("NoData", "empty", "none"),
        "not parquet": ("InvalidStream", "text.parquet cannot be opened as a Parquet file"),
        "missing": ("InvalidStream", "has no column 'z'", "one of 'a', 'text', 'open'"),
        "texts": ("InvalidStream", "column 'text' (string)", "does not hold numbers"),
        "open lists": ("InvalidStream", "column 'open' (list<", "does not hold numbers"),
        "mixed": ("InvalidStream", "2.parquet is of another type", "int64", "double"),
        "no rows": ("NoData", "at least one row"),
        "no name": ("InvalidStream", "columns are chosen by their names", "[]"),
        "damaged": ("UnknownError", "DamagedData: row", "damaged.parquet cannot be read"),
        "package": ("PackageMissing", "pyarrow", "memfit[parquet]"),
    }
    assert set(seen) == set(said)
    for name, (kind, *parts) in said.items():
        assert seen[name][0] == kind
        assert [part for part in parts if part not in seen[name][1]] == [], seen[name][1]
