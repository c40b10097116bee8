"""Images per second, memory and time to the first batch: memfit.data against what people write by hand.

Each method has a process of its own, and nothing but pulls batches of 32 shuffled images of 160 pixels:
float32 of JPEGs and TFRecords, uint8 of HDF5 and arrays. What is measured: images per second after 30
batches (3 s at most) to warm up; the peak of anonymous memory (RssAnon, looked at every 5 ms) over what the
process held with TensorFlow imported and started; and the time from there to the first batch. Files are in
the page cache, where there is room for them. Methods take turns over several rounds, and figures are medians;
a ratio is the median of the ratios of each round.

array: all images in one tensor, as `model.fit` keeps an array; measured once, it takes long to begin.
generator: `from_generator`, one image at a time, JPEGs by Pillow.
keras: `image_dataset_from_directory`.
tf.data: shuffled paths or indices, parallel map, batch, prefetch, all with AUTOTUNE; shards interleaved into
a shuffle buffer of 4,096 records; HDF5 in batches, by one thread and by several; `from_tensor_slices`.
grain: by threads, of an ArrayRecord in place of TFRecords; it is installed aside for this alone.
memfit: with a budget of 256 MiB and of 1 GiB.

Targets: at least 0.95 of the fastest other way that stays within the same budget; a peak of at most 1.1
budgets; the first batch within 1 s. Data sets are made one after the other and removed (6 GB at a time).
`python benchmarks/data.py jpeg memfit tf.data` measures some formats and some methods; results are written
where all methods were measured. `--train` has each batch used by a tiny autoencoder, and its memory counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _data_methods import BUDGETS, DTYPES, MEASURED_ONCE, METHODS, measure
from _data_sets import FILES, IMAGE_BYTES, make, make_pool
from _processes import ProcessEnded, in_process
from _results import read_figures, write_results

HERE = Path(__file__).parent
GRAIN = "grain"
PACKAGES = ("grain", "array_record", "pillow", "numpy", "h5py")
LEAST_RATIO = 0.95
ALLOWED = 1.1  # of a budget
FIRST_BATCH_SECONDS = 1.0
QUICK_IMAGES, QUICK_SECONDS, QUICK_ROUNDS = 2000, 2.0, 1

Row = dict[str, Any]  # what is known of a method: figures of each round and their medians, or an error
Rows = dict[str, Row]
FIGURES = ("images_per_second", "images_per_processor_second", "peak_bytes", "first_batch_seconds")


@dataclass(frozen=True)
class Case:
    """A data set on the disk, and how it is measured."""

    kind: str
    images: int
    folder: Path
    seconds: float
    is_training: bool
    grain: Path | None  # the Python that has it

    @property
    def path(self) -> Path:
        """Where the images are."""
        return self.folder / FILES[self.kind]

    def write(self) -> None:
        """Make the data set."""
        began = time.perf_counter()
        written = in_process(make, self.kind, self.folder / "pool", self.path, self.images)
        said = f"{written / 1e9:.2f} GB made in {time.perf_counter() - began:.0f} s"
        _say(f"{self.kind}, {self.images:,} images: {said}")

    def remove(self) -> None:
        """Forget it."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def measure(self, name: str) -> Row:
        """One round of one method; what it raises is its result."""
        try:
            if name == GRAIN:
                return self._measure_grain()
            return dict(in_process(measure, self.kind, name, self.path, self.seconds, self.is_training))
        except (RuntimeError, ProcessEnded, subprocess.SubprocessError) as error:
            return {"error": str(error).partition("\n")[0][:300]}

    def _measure_grain(self) -> Row:
        if self.grain is None or self.is_training:
            return {"error": "not installed" if self.grain is None else "not with TensorFlow"}
        path = self.path
        if self.kind == "tfrecord":
            path = self.path / "images.array_record"
            if not path.exists():
                _grain(self.grain, "write", self.folder / "pool", path, self.images)
        found = json.loads(_grain(self.grain, "pull", self.kind, path, self.seconds))
        return {name: found[name] for name in FIGURES}


def _grain(python: Path, *arguments: Any) -> str:
    """What grain's script prints."""
    command = [python, HERE / "scripts" / "grain_pulls.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    try:
        done = subprocess.run(
            list(map(str, command)), env=environment, check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [""])[-1]
        raise RuntimeError(f"exit code {error.returncode}: {last}") from error
    return done.stdout


def _install_grain(folder: Path) -> Path | None:
    """A Python that has grain, in an environment of its own; None where it cannot be had."""
    python = folder / "grain" / "bin" / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "grain"], check=True, capture_output=True)
        subprocess.run([python, "-m", "pip", "install", *PACKAGES], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"grain is not installed: {error}")
        return None
    return python


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _measure_all(case: Case, names: list[str], rounds: int) -> Rows:
    """All methods in turn, and back again in every other round."""
    found: dict[str, list[Row]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            if number and (name == MEASURED_ONCE or "error" in found[name][0]):
                continue
            found[name].append(case.measure(name))
            _say(f"{case.kind}, {case.images:,} images: {name}: {_said(found[name][-1])}")
    return {name: _summary(rows) for name, rows in found.items()}


def _summary(rows: list[Row]) -> Row:
    """Medians of all rounds that came to something."""
    whole = [row for row in rows if "error" not in row]
    if not whole:
        return {"error": rows[0]["error"]}
    medians = {name: statistics.median(row[name] for row in whole) for name in FIGURES}
    budgets = [ram for ram, limit in BUDGETS.items() if medians["peak_bytes"] <= ALLOWED * limit]
    errors = [row["error"] for row in rows if "error" in row]
    return {**medians, "within": budgets, "rounds": rows, **({"error_once": errors[0]} if errors else {})}


def _said(row: Row) -> str:
    if "error" in row:
        return str(row["error"])
    return (
        f"{row['images_per_second']:9,.0f} images/s {row['images_per_processor_second']:9,.0f} /processor s "
        f"{row['peak_bytes'] / 2**20:8,.0f} MiB {row['first_batch_seconds']:8.2f} s"
    )


def _targets(case: Case, rows: Rows) -> list[Row]:
    """What was promised of memfit, and what came of it."""
    found = []
    for ram, limit in BUDGETS.items():
        ours = rows.get(f"memfit {ram}", {"error": ""})
        if "error" in ours:
            continue
        best = _fastest_within(rows, ram)
        if best is not None:
            ratio = _ratio(ours, rows[best])
            found.append(_target(f"of {best}, {ram}", ratio, ratio >= LEAST_RATIO))
        share = ours["peak_bytes"] / limit
        found.append(_target(f"peak of {ram}", share, share <= ALLOWED))
        first = ours["first_batch_seconds"]
        found.append(_target(f"seconds to the first batch, {ram}", first, first <= FIRST_BATCH_SECONDS))
    return [{"kind": case.kind, "images": case.images, **row} for row in found]


def _fastest_within(rows: Rows, ram: str) -> str | None:
    """The fastest way by hand that stays within a budget."""
    others = {
        name: row["images_per_second"]
        for name, row in rows.items()
        if not name.startswith("memfit") and ram in row.get("within", ())
    }
    return max(others, key=lambda name: others[name], default=None)


def _ratio(ours: Row, other: Row) -> float:
    """How fast one is against another: the median over rounds, each side by side."""
    pairs = zip(ours["rounds"], other["rounds"], strict=False)
    return statistics.median(
        mine["images_per_second"] / its["images_per_second"]
        for mine, its in pairs
        if "error" not in mine and "error" not in its
    )


def _target(name: str, value: float, is_met: bool) -> Row:
    return {"target": name, "value": round(value, 3), "met": is_met}


def _show(case: Case, rows: Rows, targets: list[Row]) -> None:
    print(f"\n{case.kind}, {case.images:,} images, {DTYPES[case.kind]}")
    print(f"{'':20} {'images/s':>9} {'peak MiB':>9} {'first s':>8}  within")
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:20} {row['error']}")
            continue
        print(
            f"{name:20} {row['images_per_second']:9,.0f} {row['peak_bytes'] / 2**20:9,.0f} "
            f"{row['first_batch_seconds']:8.2f}  {', '.join(row['within'])}"
        )
    for row in targets:
        print(f"  {'met   ' if row['met'] else 'MISSED'} {row['value']:6.3f} {row['target']}")
    sys.stdout.flush()


def _show_growth(groups: dict[str, Row]) -> None:
    """What a larger data set costs memfit."""
    for kind in METHODS:
        found = sorted((group for group in groups.values() if group["kind"] == kind), key=_images)
        for ram in BUDGETS:
            rows = [group["methods"].get(f"memfit {ram}", {"error": ""}) for group in found]
            if len(rows) < 2 or any("error" in row for row in rows):
                continue
            few, many = rows[0], rows[-1]
            rate = many["images_per_second"] / few["images_per_second"]
            grown = (many["peak_bytes"] - few["peak_bytes"]) / 2**20
            sizes = f"{_images(found[-1]):,} images against {_images(found[0]):,}"
            print(f"{kind}, {ram}, {sizes}: {rate:.2f} of the speed, {grown:+.0f} MiB")


def _images(group: Row) -> int:
    return int(group["images"])


def _chosen(names: list[str], known: list[str]) -> list[str]:
    """Those that begin with one of the names; all of them where nobody named any."""
    return [one for one in known if not names or any(one.startswith(name) for name in names)]


def main() -> None:
    """Measure what is asked for, one data set after the other."""
    options = _read_options()
    kinds = [kind for kind in METHODS if kind in options.names] or list(METHODS)
    methods = [name for name in options.names if name not in METHODS]
    is_written = not (options.quick or methods or options.train)
    groups: dict[str, Row] = read_figures("data").get("groups", {}) if is_written else {}
    with tempfile.TemporaryDirectory(prefix="memfit-data-") as temporary:
        folder = Path(temporary)
        in_process(make_pool, folder / "pool")
        grain = _install_grain(folder) if _chosen(methods, [GRAIN]) else None
        for kind, images in itertools.product(kinds, options.images):
            case = Case(kind, images, folder, options.seconds, options.train, grain)
            names = _chosen(methods, [*METHODS[kind], GRAIN])
            groups[f"{kind}, {images}"] = _measure_group(case, names, options.rounds)
            if is_written:
                write_results("data", {"groups": groups}, quiet=True)
    _show_growth(groups)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Streams of images, measured.")
    parser.add_argument("names", nargs="*", help="formats and methods")
    parser.add_argument("--images", type=int, nargs="+", default=[20_000, 80_000])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", action="store_true", help="use each batch in a step of training")
    parser.add_argument("--quick", action="store_true", help="a few images, to try it; writes no results")
    options = parser.parse_intermixed_args()
    if options.quick:
        options.images, options.seconds, options.rounds = [QUICK_IMAGES], QUICK_SECONDS, QUICK_ROUNDS
    return options


def _measure_group(case: Case, names: list[str], rounds: int) -> Row:
    """Make a data set, measure all methods, show what came of it, and remove it."""
    needed, free = 1.2 * case.images * IMAGE_BYTES, shutil.disk_usage(case.folder).free
    if needed > free:
        sys.exit(f"{needed / 1e9:.1f} GB are needed in {case.folder}, and {free / 1e9:.1f} GB are free.")
    try:
        case.write()
        found = _measure_all(case, names, rounds)
    finally:
        case.remove()
    targets = [] if case.is_training else _targets(case, found)
    _show(case, found, targets)
    how = {"seconds": case.seconds, "rounds": rounds, "dtype": DTYPES[case.kind]}
    return {"kind": case.kind, "images": case.images, **how, "methods": found, "targets": targets}


if __name__ == "__main__":
    main()
