"""How far estimates are from what steps really need, on models that were tuned on and on models kept aside.

The truth of a case is the peak of steps 2 to 6 in three processes of its own. Beside the estimate stands what
people use: the formula (outputs of layers twice, parameters with gradient and slots) and two small probes,
drawn out in a line. Cases that were measured before are not measured again; `--again` begins anew, and names
of models choose some of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _estimate_models import ASIDE, TUNED, build
from _results import read_figures, write_results

from memfit.devices import run_in_child

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
}  # fmt: skip
LOOPS = ("LSTM", "GRU")
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "PYTHONPATH": str(Path(__file__).parent),
}


@dataclass(frozen=True)
class Case:
    """A model, a batch, and how it is trained."""

    name: str
    batch_size: int
    optimizer: str = "adam"
    policy: str = "float32"
    jit_compile: bool = False

    @property
    def key(self) -> str:
        """Its name in the results."""
        xla = ", XLA" if self.jit_compile else ""
        return f"{self.name}, {self.batch_size}, {self.optimizer}, {self.policy}{xla}"


def cases() -> list[Case]:
    """All of them: each model at two sizes, Adam at one and SGD at the other, and some in other ways."""
    found = []
    for name in (*TUNED, *ASIDE):
        small, large = SIZES[name]
        found += [Case(name, small), Case(name, large, "sgd")]
    for name in ("U-Net", "autoencoder", "wide U-Net", "vision transformer"):
        found += [Case(name, SIZES[name][0], policy=policy) for policy in ("mixed_float16", "mixed_bfloat16")]
    xla = ("MLP", "autoencoder", "U-Net", "transformer", "sounds", "vision transformer", "wide U-Net")
    found += [Case(name, SIZES[name][0], jit_compile=True) for name in xla]
    return found


def _model(case: Case) -> tuple[Any, Any]:
    import keras

    if case.policy != "float32":
        keras.mixed_precision.set_global_policy(case.policy)
    model, loss, batch = build(case.name)
    model.compile(case.optimizer, loss, jit_compile=case.jit_compile)
    return model, batch


def true_peaks(case: dict[str, Any], batch_size: int, steps: int) -> list[int]:
    """The peaks of warm steps in this process."""
    import memfit

    model, batch = _model(Case(**case))
    x, y = batch(batch_size)
    peaks = []
    for _ in range(steps):
        with memfit.devices.measure_peak() as measured:
            model.train_on_batch(x, y)
        peaks.append(measured.peak_bytes)
    return peaks[1:]


def estimates(case: dict[str, Any]) -> dict[str, Any]:
    """What memfit says, how long that took, and what the formula says."""
    import memfit

    one = Case(**case)
    model, batch = _model(one)
    began = time.perf_counter()
    estimate = memfit.estimate(model, one.batch_size, data=batch(2))
    return {
        "peak_bytes": estimate.peak_bytes,
        "safe_bytes": estimate.safe_bytes,
        "seconds": round(time.perf_counter() - began, 1),
        "left_out": len(estimate.left_out),
        "formula_bytes": _formula(model, one),
    }


def _formula(model: Any, case: Case) -> int:
    import keras

    outputs = 0
    for layer in model.layers:
        try:
            shapes = [tensor.shape[1:] for tensor in keras.tree.flatten(layer.output)]
        except (AttributeError, ValueError):
            continue
        outputs += sum(elements_of(shape) for shape in shapes)
    slots = {"adam": 4, "sgd": 2}[case.optimizer]
    return 4 * (2 * case.batch_size * outputs + slots * model.count_params())


def elements_of(shape: Any) -> int:
    """The number of elements of a shape."""
    count = 1
    for size in shape:
        count *= size or 1
    return count


def measure(case: Case) -> dict[str, Any]:
    """The truth of a case and what was said of it beforehand."""
    arguments = {"case": vars(case)}
    found: dict[str, Any] = {"aside": case.name in ASIDE, "loops": case.name in LOOPS}
    found |= _in_child(estimates, arguments, None)
    truth = [
        peak
        for _ in range(PROCESSES)
        for peak in _in_child(true_peaks, {**arguments, "batch_size": case.batch_size, "steps": STEPS})
    ]
    small, large = (
        statistics.median(_in_child(true_peaks, {**arguments, "batch_size": size, "steps": 3}))
        for size in PROBES
    )
    slope = (large - small) / (PROBES[1] - PROBES[0])
    median = statistics.median(truth)
    found |= {
        "true_bytes": {"median": int(median), "min": min(truth), "max": max(truth)},
        "error": round(found["peak_bytes"] / median - 1, 4),
        "safe_to_max": round(found["safe_bytes"] / max(truth), 3),
        "formula_error": round(found["formula_bytes"] / median - 1, 3),
        "probes_error": round((small + slope * (case.batch_size - PROBES[0])) / median - 1, 3),
    }
    return found


def _in_child(function: Any, arguments: dict[str, Any], limit_bytes: int | None = LIMIT_BYTES) -> Any:
    return run_in_child(function, arguments, limit_bytes=limit_bytes, environment=QUIET)


def summary(
    measured: dict[str, Any], *, aside: bool, loops: bool = False, xla: bool = False
) -> dict[str, Any]:
    """The figures of one kind of cases."""
    chosen = [
        case
        for key, case in measured.items()
        if case["aside"] == aside and case["loops"] == loops and key.endswith("XLA") == xla
    ]
    if not chosen:
        return {}
    runs_over = [case for case in chosen if case["true_bytes"]["max"] > case["safe_bytes"]]
    return {
        "cases": len(chosen),
        **{
            name: _spread([abs(case[field]) for case in chosen])
            for name, field in (("ours", "error"), ("formula", "formula_error"), ("probes", "probes_error"))
        },
        "safe_exceeded": len(runs_over),
        "safe_to_measured_maximum": statistics.median(case["safe_to_max"] for case in chosen),
    }


def _spread(errors: list[float]) -> dict[str, float]:
    ordered = sorted(errors)
    return {
        "median": round(statistics.median(ordered), 4),
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "max": ordered[-1],
    }


def main(arguments: list[str]) -> None:
    """Measure what is missing, and write after each case."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    measured: dict[str, Any] = {} if "--again" in arguments else read_figures("estimate").get("cases", {})
    for case in cases():
        if case.key in measured or (names and case.name not in names):
            continue
        print(f"measuring {case.key} ...", file=sys.stderr)
        measured[case.key] = measure(case)
        figures = {
            "tuned": summary(measured, aside=False),
            "aside": summary(measured, aside=True),
            "loops": {
                half: summary(measured, aside=half == "aside", loops=True) for half in ("tuned", "aside")
            },
            "xla": {half: summary(measured, aside=half == "aside", xla=True) for half in ("tuned", "aside")},
        }
        write_results("estimate", {**figures, "cases": measured})


if __name__ == "__main__":
    main(sys.argv[1:])
