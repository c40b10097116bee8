"""A data set four times as large as the RAM it may use trains an autoencoder, in a memory cgroup.

Two epochs from each format. The group has room for TensorFlow, the model and the stream, but not for the data
set: loaded as one array, the same training is killed by the kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _data_sets import FILES, IMAGE_BYTES, make, make_pool
from _groups import memory_group, within
from _processes import QUIET
from _results import write_results

RAM_BYTES = 96 << 20
GROUP_BYTES = 640 << 20  # TensorFlow and Keras take about 330 MiB of it
IMAGES = 4 * RAM_BYTES // IMAGE_BYTES + 1
GROUP_ROWS = 64
OTHERS = {"jpeg": ("array",), "memmap": ("generator", "parquet")}  # of the same files
SCRIPT = Path(__file__).parent / "scripts" / "autoencoder_in_group.py"


def _train(kind: str, path: Path) -> dict[str, Any]:
    with memory_group(GROUP_BYTES) as group:
        command = [sys.executable, str(SCRIPT), kind, str(path), "--ram", str(RAM_BYTES)]
        environment = {**os.environ, **QUIET}
        ended = subprocess.run(
            within(group, command), env=environment, capture_output=True, text=True, check=False
        )
    if ended.returncode != 0:
        return {"kind": kind, "code": ended.returncode, "said": ended.stderr[-500:]}
    return {"kind": kind, "code": 0, **json.loads(ended.stdout.splitlines()[-1])}


def _parquet_of(rows: Path) -> Path:
    """The rows of an array as a column of lists, in small groups."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    array, path = np.load(rows, mmap_mode="r"), rows.with_suffix(".parquet")
    schema = pa.schema([("x", pa.list_(pa.uint8(), IMAGE_BYTES))])
    with pq.ParquetWriter(path, schema) as writer:
        for begin in range(0, len(array), GROUP_ROWS):
            values = pa.array(array[begin : begin + GROUP_ROWS].reshape(-1))
            lists = pa.FixedSizeListArray.from_arrays(values, IMAGE_BYTES)
            writer.write_table(pa.table([lists], schema))
    return path


def main() -> int:
    """Train from each format; 1 where one did not come through, or the array did."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make_pool(Path(folder) / "pool")
        for kind in FILES:
            path = Path(folder) / FILES[kind]
            make(kind, Path(folder) / "pool", path, IMAGES)
            rows.append(_train(kind, path))
            print(rows[-1], file=sys.stderr, flush=True)
            for other in OTHERS.get(kind, ()):
                rows.append(_train(other, _parquet_of(path) if other == "parquet" else path))
                print(rows[-1], file=sys.stderr, flush=True)
    figures = {"images": IMAGES, "ram_bytes": RAM_BYTES, "group_bytes": GROUP_BYTES, "rows": rows}
    write_results("group", figures, quiet=True)
    return int(any((row["code"] == 0) == (row["kind"] == "array") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
