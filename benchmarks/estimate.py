"""How far estimates are from what steps really need, on models that were tuned on and on models kept aside.

The truth of a case is the peak of steps 2 to 6 in three processes of its own. Beside the estimate stands what
people use: the formula (outputs of layers twice, parameters with gradient and slots) and two small probes,
drawn out in a line. What was measured before is not measured again: `--again` estimates anew, and names of
models choose some of them. The truth stays; it has nothing to do with what estimates say.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from _estimate_models import ASIDE, LOOPS, TUNED, build
from _processes import in_process
from _results import read_figures, write_results

PROCESSES = 3
STEPS = 6
LIMIT_BYTES = 14 << 30
PROBES = (2, 4)
SIZES = {
    "MLP": (256, 2048), "autoencoder": (16, 48), "U-Net": (8, 24), "transformer": (8, 32), "LSTM": (32, 96),
    "3-D": (4, 16), "two towers": (1024, 8192), "ResNet50": (8, 32), "MobileNetV2": (16, 48),
    "VGG16": (8, 32), "InceptionV3": (8, 24), "ConvNeXtTiny": (8, 24), "mixer, subclassed": (16, 64),
    "sounds": (16, 64), "separable": (16, 48), "vision transformer": (8, 32), "transformer, masked": (16, 64),
    "GRU": (32, 96), "wide U-Net": (8, 24), "DenseNet121": (8, 32), "EfficientNetB0": (8, 32),
    "Xception": (8, 24), "ResNet50V2": (16, 48), "MobileNetV3Small": (16, 48),
    "conformer": (8, 32), "dilated": (8, 24),
}  # fmt: skip

COMPILED = (
    "MLP", "autoencoder", "U-Net", "transformer", "vision transformer", "sounds", "wide U-Net", "conformer",
    "dilated", "separable", "transformer, masked",
)  # fmt: skip

Way = Literal["plain", "xla", "rematerialised", "micro-batches"]


@dataclass(frozen=True)
class Case:
    """A model, a batch, and how it is trained."""

    name: str
    batch_size: int
    optimizer: str = "adam"
    policy: str = "float32"
    way: Way = "plain"

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.name}, {self.batch_size}, {self.optimizer}, {self.policy}, {self.way}"

    @property
    def is_probed(self) -> bool:
        """Whether two small probes stand beside it."""
        return self.way == "plain" and self.policy == "float32" and self.optimizer == "adam"

    @property
    def kind(self) -> str:
        """Which cases it is counted with."""
        half = "aside" if self.name in ASIDE else "tuned"
        return f"{half}, {'loops' if self.name in LOOPS else 'xla' if self.way == 'xla' else 'graph'}"


def cases() -> list[Case]:
    """All of them: each model at two sizes, Adam at one and SGD at the other, and some in other ways."""
    found = []
    for name in (*TUNED, *ASIDE):
        small, large = SIZES[name]
        found += [Case(name, small), Case(name, large, "sgd")]
    for name in ("U-Net", "autoencoder", "wide U-Net", "vision transformer", "conformer"):
        found += [Case(name, SIZES[name][0], policy=policy) for policy in ("mixed_float16", "mixed_bfloat16")]
    for name in ("U-Net", "transformer", "wide U-Net", "vision transformer"):
        found += [Case(name, 4 * SIZES[name][1], "sgd")]
    compiled = ("MLP", "autoencoder", "U-Net", "transformer", "vision transformer")
    for name in (
        *compiled,
        "sounds",
        "wide U-Net",
        "conformer",
        "dilated",
        "separable",
        "transformer, masked",
    ):
        found += [Case(name, SIZES[name][0], way="xla")]
    for name in ("U-Net", "transformer", "wide U-Net", "vision transformer", "conformer"):
        found += [Case(name, SIZES[name][1], way=way) for way in ("rematerialised", "micro-batches")]
    return found


def model_of(case: Case) -> tuple[Any, Any]:
    """The model of a case, compiled, and a function that makes a batch of a size."""
    import keras

    import memfit

    if case.policy != "float32":
        keras.mixed_precision.set_global_policy(case.policy)
    model, loss, batch = build(case.name)
    model.compile(case.optimizer, loss, jit_compile=case.way == "xla")
    if case.way == "rematerialised":
        memfit.remat(model)
    return model, batch


def true_peaks(case: Case, batch_size: int, steps: int) -> list[int]:
    """The peaks of warm steps in this process."""
    import memfit

    model, batch = model_of(case)
    x, y = batch(batch_size)
    micro_batches = case.way == "micro-batches"
    with memfit.protect(model, micro_batch_size=-(-batch_size // 4)) if micro_batches else nullcontext():
        peaks = []
        for _ in range(steps):
            with memfit.devices.measure_peak() as measured:
                model.train_on_batch(x, y)
            peaks.append(measured.peak_bytes)
    return peaks[1:]


def truth(case: Case) -> dict[str, Any]:
    """What a case really needs, and what two small probes make of it."""
    runs = [
        in_process(true_peaks, case, case.batch_size, STEPS, limit_bytes=LIMIT_BYTES)
        for _ in range(PROCESSES)
    ]
    peaks = [peak for run in runs for peak in run]
    found = {
        "median_bytes": int(statistics.median(peaks)),
        "min_bytes": min(peaks),
        "max_bytes": [max(run) for run in runs],
    }
    if case.is_probed:
        small, large = (
            statistics.median(in_process(true_peaks, case, size, 3, limit_bytes=LIMIT_BYTES))
            for size in PROBES
        )
        bytes_per_sample = (large - small) / (PROBES[1] - PROBES[0])
        found["probes_bytes"] = int(small + bytes_per_sample * (case.batch_size - PROBES[0]))
    return found


def estimates(case: Case) -> dict[str, Any]:
    """What memfit says, how long that took, and what the formula says."""
    import memfit

    model, batch = model_of(case)
    began = time.perf_counter()
    micro = -(-case.batch_size // 4) if case.way == "micro-batches" else None
    found = memfit.estimate(model, case.batch_size, data=batch(2), micro_batch_size=micro)
    return {
        "peak_bytes": found.peak_bytes,
        "low_bytes": found.low_bytes,
        "safe_bytes": found.safe_bytes,
        "seconds": round(time.perf_counter() - began, 1),
        "left_out": len(found.left_out),
        "formula_bytes": _formula(model, case),
    }


def _formula(model: Any, case: Case) -> int:
    import keras

    outputs = 0
    for layer in model.layers:
        try:
            shapes = [tensor.shape[1:] for tensor in keras.tree.flatten(layer.output)]
        except (AttributeError, ValueError):
            continue
        outputs += sum(math.prod(shape) for shape in shapes)
    slots = {"adam": 4, "sgd": 2}[case.optimizer]
    return 4 * (2 * case.batch_size * outputs + slots * model.count_params())


def judged(said: dict[str, Any], true: dict[str, Any]) -> dict[str, Any]:
    """How far what was said of a case is from the truth."""
    low, median, high = true["min_bytes"], true["median_bytes"], max(true["max_bytes"])
    nearest = min(max(said["peak_bytes"], low), high)
    return {
        "error": round(said["peak_bytes"] / median - 1, 4),
        "error_beyond_range": round(said["peak_bytes"] / nearest - 1, 4),
        "range_in_interval": said["low_bytes"] <= low and high <= said["safe_bytes"],
        "safe_to_max": round(said["safe_bytes"] / high, 3),
        "runs_over_safe": sum(most > said["safe_bytes"] for most in true["max_bytes"]),
        "formula_error": round(said["formula_bytes"] / median - 1, 3),
        "probes_error": round(true["probes_bytes"] / median - 1, 3) if "probes_bytes" in true else None,
    }


def summary(chosen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one kind of cases."""
    fields = {
        "ours": "error",
        "ours_beyond_range": "error_beyond_range",
        "formula": "formula_error",
        "probes": "probes_error",
    }
    return {
        "cases": len(chosen),
        **{name: _spread([case[field] for case in chosen]) for name, field in fields.items()},
        "range_in_interval": sum(case["range_in_interval"] for case in chosen),
        "runs_over_safe": sum(case["runs_over_safe"] for case in chosen),
        "runs": PROCESSES * len(chosen),
        "safe_to_measured_maximum": statistics.median(case["safe_to_max"] for case in chosen),
    }


def _spread(errors: Sequence[float | None]) -> dict[str, float]:
    ordered = sorted(abs(error) for error in errors if error is not None)
    if not ordered:
        return {}
    return {
        "median": round(statistics.median(ordered), 4),
        "p90": ordered[math.ceil(0.9 * len(ordered)) - 1],
        "max": ordered[-1],
    }


def write(measured: dict[str, dict[str, Any]]) -> None:
    """Write the figures of what was measured so far."""
    every = [case for case in cases() if {"truth", "said"} <= measured.get(case.key, {}).keys()]
    for case in every:
        one = measured[case.key]
        one["judged"] = judged(one["said"], one["truth"])
    kinds = dict.fromkeys(case.kind for case in every)
    summaries = {
        kind: summary([measured[case.key]["judged"] for case in every if case.kind == kind]) for kind in kinds
    }
    write_results("estimate", {"summary": summaries, "cases": measured}, quiet=True)


def main(arguments: list[str]) -> None:
    """Measure what is missing, and write after each case."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    measured: dict[str, dict[str, Any]] = read_figures("estimate").get("cases", {})
    chosen = [case for case in cases() if not names or case.name in names]
    for place, case in enumerate(chosen, 1):
        one = measured.setdefault(case.key, {})
        print(f"{place} of {len(chosen)}: {case.key}", file=sys.stderr, flush=True)
        if "truth" not in one and "--estimates" not in arguments:
            one["truth"] = truth(case)
        if ("said" not in one or "--again" in arguments) and "--truths" not in arguments:
            one["said"] = in_process(estimates, case)
        write(measured)


if __name__ == "__main__":
    main(sys.argv[1:])
