"""Images per second, memory and time to the first batch: memfit.data against what people write by hand.

Each method has a process of its own, and nothing but pulls batches of 32 shuffled images: float32 of images
and TFRecords, uint8 of HDF5 and arrays. Images have 160 pixels; those of mixed sizes, small, middling and
large, JPEG and PNG, are resized. What is measured: images per second after 30
batches (3 s at most) to warm up; the peak of anonymous memory (RssAnon, looked at every 5 ms) over what the
process held with TensorFlow imported and started; and the time from there to the first batch. Files are in
the page cache, where there is room for them. Methods take turns over five rounds, and figures are medians;
a ratio is the median of the ratios of each round, with the least and the largest of them beside it.

array: all images in one tensor, as `model.fit` keeps an array; measured once, it takes long to begin.
generator: `from_generator`, one image at a time, JPEGs by Pillow; measured once, it is never the fastest.
keras: `image_dataset_from_directory`.
tf.data: shuffled paths or indices, parallel map, batch, prefetch, all with AUTOTUNE; shards interleaved into
a shuffle buffer of 4,096 records; HDF5 in batches, by one thread and by several; `from_tensor_slices`.
grain: by threads, of an ArrayRecord in place of TFRecords; the extra `bench-data` has it.
memfit: with a budget of 256 MiB and of 1 GiB.
skipping: what is damaged is left out, by hand with `ignore_errors`.

Targets: at least 0.95 of the fastest other way that stays within the same budget, and 1.0 in the median of
each format; a peak of at most 1.1 budgets; the first batch within 1 s. Data sets are made one after the other
and removed (6 GB at a time). `python benchmarks/data.py jpeg memfit tf.data` measures some formats and some
methods; results are written where all methods were measured. `--train` has each batch used by a tiny
autoencoder, and its memory counted.
"""

from __future__ import annotations

import argparse
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
from _data_sets import FILES, IMAGE_BYTES, MIXED, make, make_pool
from _environment import python_with
from _processes import ProcessEnded, in_process
from _results import read_figures, write_results

HERE = Path(__file__).parent
GRAIN = "grain"
LEAST_RATIO, MEDIAN_RATIO = 0.95, 1.0
ALLOWED = 1.1  # of a budget
FIRST_BATCH_SECONDS = 1.0
IMAGES = 20_000
QUICK_IMAGES, QUICK_SECONDS, QUICK_ROUNDS = 2000, 2.0, 1
MANY_IMAGES = {"tfrecord": 80_000}  # a second data set, to see what a larger one costs

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

    @property
    def needed_bytes(self) -> int:
        """About the bytes on the disk."""
        side = MIXED[self.kind].sides[1] if self.kind in MIXED else 0
        return self.images * max(IMAGE_BYTES, 3 * side**2)

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


def _python_with_grain() -> Path | None:
    """A Python that has grain; None where it cannot be had."""
    try:
        return python_with("data")
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"grain is not installed: {error}")
        return None


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _measure_all(case: Case, names: list[str], rounds: int) -> Rows:
    """All methods in turn, and back again in every other round."""
    found: dict[str, list[Row]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            if number and (name in MEASURED_ONCE or "error" in found[name][0]):
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
            found.append(_speed_target(f"of {best}, {ram}", ours, rows[best]))
        share = ours["peak_bytes"] / limit
        found.append(_target(f"peak of {ram}", share, share <= ALLOWED))
        first = ours["first_batch_seconds"]
        found.append(_target(f"seconds to the first batch, {ram}", first, first <= FIRST_BATCH_SECONDS))
    skipping = [rows.get(f"{name}, skipping", {"error": ""}) for name in ("memfit", "tf.data")]
    if not any("error" in row for row in skipping):
        found.append(_speed_target("of tf.data, skipping", *skipping))
    return [{"kind": case.kind, "images": case.images, **row} for row in found]


def _speed_target(name: str, ours: Row, other: Row) -> Row:
    """How fast one is against another: the median over rounds, each side by side, and their spread."""
    ratios = _ratios(ours, other)
    ratio = statistics.median(ratios)
    spread = {"least": round(min(ratios), 3), "most": round(max(ratios), 3)}
    return {**_target(name, ratio, ratio >= LEAST_RATIO), **spread}


def _fastest_within(rows: Rows, ram: str) -> str | None:
    """The fastest way by hand that stays within a budget."""
    others = {
        name: row["images_per_second"]
        for name, row in rows.items()
        if not (name.startswith("memfit") or name.endswith("skipping")) and ram in row.get("within", ())
    }
    return max(others, key=lambda name: others[name], default=None)


def _ratios(ours: Row, other: Row) -> list[float]:
    """The speed of one against another in each round."""
    pairs = zip(ours["rounds"], other["rounds"], strict=False)
    return [
        mine["images_per_second"] / its["images_per_second"]
        for mine, its in pairs
        if "error" not in mine and "error" not in its
    ]


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
        spread = f" ({row['least']:.2f} to {row['most']:.2f})" if "least" in row else ""
        print(f"  {'met   ' if row['met'] else 'MISSED'} {row['value']:6.3f} {row['target']}{spread}")
    sys.stdout.flush()


def _show_medians(groups: dict[str, Row]) -> None:
    """The median over all cases of each format."""
    for kind in METHODS:
        ratios = [
            row["value"]
            for group in groups.values()
            if group["kind"] == kind
            for row in group["targets"]
            if "least" in row
        ]
        if ratios:
            median, least = statistics.median(ratios), min(ratios)
            is_met = median >= MEDIAN_RATIO and least >= LEAST_RATIO
            print(
                f"{'met   ' if is_met else 'MISSED'} {kind}: {median:.3f} in the median, {least:.3f} at least"
            )


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
    are_some = is_written and kinds != list(METHODS)
    groups: dict[str, Row] = read_figures("data").get("groups", {}) if are_some else {}
    with tempfile.TemporaryDirectory(prefix="memfit-data-") as temporary:
        folder = Path(temporary)
        in_process(make_pool, folder / "pool")
        grain = _python_with_grain() if _chosen(methods, [GRAIN]) else None
        for kind, images in _data_sets(kinds, options):
            case = Case(kind, images, folder, options.seconds, options.train, grain)
            names = _chosen(methods, [*METHODS[kind], *([] if kind in MIXED else [GRAIN])])
            groups[f"{kind}, {images}"] = _measure_group(case, names, options.rounds)
            if is_written:
                write_results("data", {"groups": groups}, quiet=True)
    _show_medians(groups)
    _show_growth(groups)


def _data_sets(kinds: list[str], options: argparse.Namespace) -> list[tuple[str, int]]:
    """Which data sets are measured, and how many images each has."""
    if options.images is not None:
        asked = dict.fromkeys(kinds, options.images)
    else:
        asked = {kind: [MIXED[kind].images] if kind in MIXED else [IMAGES] for kind in kinds}
        asked |= {kind: [*asked[kind], many] for kind, many in MANY_IMAGES.items() if kind in asked}
    if options.quick:
        asked = {kind: [min(QUICK_IMAGES, *images)] for kind, images in asked.items()}
    return [(kind, count) for kind in kinds for count in asked[kind]]


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Streams of images, measured.")
    parser.add_argument("names", nargs="*", help="formats and methods")
    parser.add_argument("--images", type=int, nargs="+", help="of each data set")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", action="store_true", help="use each batch in a step of training")
    parser.add_argument("--quick", action="store_true", help="a few images, to try it; writes no results")
    options = parser.parse_intermixed_args()
    if options.quick:
        options.seconds, options.rounds = QUICK_SECONDS, QUICK_ROUNDS
    return options


def _measure_group(case: Case, names: list[str], rounds: int) -> Row:
    """Make a data set, measure all methods, show what came of it, and remove it."""
    needed, free = 1.2 * case.needed_bytes, shutil.disk_usage(case.folder).free
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
