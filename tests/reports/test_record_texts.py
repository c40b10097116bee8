"""Reports at 80 columns, against golden files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from golden import check_golden, render
from memfit.core.records import (
    Budget,
    Choice,
    Cut,
    Demo,
    DemoRow,
    Diagnosis,
    Doctor,
    Estimate,
    Estimates,
    Evidence,
    Fit,
    HostMemory,
    LayerBytes,
    Measured,
    OptimizerState,
    OutOfMemory,
    Package,
    Parts,
    Plan,
    Remedy,
)
from memfit.reports.bars import bar
from memfit.reports.demo_text import show_demo
from memfit.reports.diagnosis_text import show_diagnosis
from memfit.reports.doctor_text import show_doctor
from memfit.reports.estimate_text import show_estimates
from memfit.reports.plan_text import show_plan

GOLDEN = Path(__file__).parent / "golden"
MIB, GIB = 2**20, 2**30

OOM = OutOfMemory(
    "OOM when allocating tensor", 64 * MIB, (64, 128, 128, 16), "float", "CPU:0", "bfc", "Conv2D"
)
PLAIN = DemoRow("plain", True, 128 * MIB, 64, (), 13.5, error=OOM)
OURS = DemoRow("memfit", False, 191 * MIB, 32, (0.055718, 0.0443971, 0.0215), 27.5, 1, 10.6)
UNLIMITED = DemoRow("unlimited", False, 320 * MIB, 64, (0.055718, 0.044397, 0.0215), 18.4)
DEMO = Demo(192 * MIB, 64, (PLAIN, OURS, UNLIMITED), 3, 256, "CPU:0", 61.0)

PACKAGES = tuple(
    Package(name, version, supported)
    for name, version, supported in (
        ("python", "3.12.1", ">=3.11,<3.14"),
        ("tensorflow", "2.21.0", ">=2.18,<2.22"),
        ("keras", "3.15.1", ">=3.12"),
    )
)
DOCTOR = Doctor(
    memfit_version="0.1.0",
    packages=PACKAGES,
    devices=("/device:CPU:0",),
    allocator="TensorFlow's plain CPU allocator: no limit and no statistics",
    host=HostMemory(24 * GIB, 20 * GIB),
    process_bytes=525 * MIB,
    budget=Budget(18 * GIB, "machine", None, 2 * GIB),
)

ESTIMATE = Estimate(
    batch_size=64,
    method="graph",
    peak_bytes=812_202_752,
    low_bytes=768_300_000,
    safe_bytes=879_110_902,
    parts=Parts(
        weights_bytes=102_334_888,
        gradients_bytes=38_277_400,
        optimizer_bytes=204_668_740,
        activations_bytes=422_631_188,
        scratch_bytes=294_912,
        allocator_bytes=43_995_624,
    ),
    layers=(
        LayerBytes("a_layer_with_a_very_long_name_that_somebody_gave_it", 40 * MIB),
        LayerBytes("conv[bold]2d", 20 * MIB),
        *(LayerBytes(f"dense_{number}", (13 - number) * MIB) for number in range(9)),
    ),
    timeline=tuple(round(812_202_752 * (0.4 + 0.6 * (1 - abs(n - 50) / 50) ** 2)) for n in range(76)),
    left_out=(
        "the model is not compiled: taken as Adam and mean squared error",
        "nobody knows how much scratch memory the kernel FusedSomethingThatIsNotModelled takes while it runs",
    ),
    seconds=12.55,
)
SMALLER = dataclasses.replace(ESTIMATE, batch_size=8, peak_bytes=411_614_976, safe_bytes=435_917_414)


CHOICE = Choice(16, 4, None, "float32", False, 320 * MIB, 371 * MIB, 1.02, True, ("Dropout draws anew.",))
OTHERS = (
    dataclasses.replace(CHOICE, micro_batch_size=32, accumulation_steps=2, remat=(Cut((), 0, 4),) * 5,
                        relative_time=1.12, peak_bytes=300 * MIB, safe_bytes=340 * MIB),
    dataclasses.replace(CHOICE, micro_batch_size=64, accumulation_steps=1, remat=(Cut((), 0, 9),) * 11,
                        relative_time=1.29, peak_bytes=190 * MIB, safe_bytes=220 * MIB, exact=False),
)  # fmt: skip
PLAN = Plan(400 * MIB, 64, False, CHOICE, OTHERS, OTHERS, ("rematerialisation of one layer",), "1f", 12.3)


def test_plan() -> None:
    check_golden(GOLDEN / "plan.txt", render(show_plan(PLAN)))


def test_plan_that_changes_nothing() -> None:
    as_is = dataclasses.replace(
        CHOICE, micro_batch_size=64, accumulation_steps=1, relative_time=1.0, notes=()
    )
    plan = dataclasses.replace(PLAN, fits_as_is=True, chosen=as_is, alternatives=(), ladder=(), left_out=())
    check_golden(GOLDEN / "plan_as_is.txt", render(show_plan(plan)))


def test_plan_in_another_precision_for_the_best_batch() -> None:
    low = dataclasses.replace(
        CHOICE,
        micro_batch_size=48,
        accumulation_steps=1,
        precision="mixed_bfloat16",
        exact=False,
        float32_layers=("head",),
        notes=("Layers compute in bfloat16, but for 3 layers that stay in float32.",),
    )
    plan = dataclasses.replace(
        PLAN,
        batch_size=48,
        chosen=low,
        largest_batch=OTHERS[1],
        optimizer=OptimizerState("Adam", 90 * MIB, 8.0),
        measured=(Measured(low, 400 * MIB, 380 * MIB, 0.5, 0),),
        allow=("remat", "precision"),
        left_out=(),
    )
    check_golden(GOLDEN / "plan_auto.txt", render(show_plan(plan)))


def test_estimate() -> None:
    check_golden(GOLDEN / "estimate.txt", render(show_estimates(ESTIMATE)))


def test_estimate_with_lines_of_code() -> None:
    layers = (
        LayerBytes("a_block_with_a_long_name/dense", 400 * MIB, "models/vision/transformers.py:112"),
        LayerBytes("", 20 * MIB, "train.py:42"),
        LayerBytes("dense", 10 * MIB),
    )
    one = dataclasses.replace(ESTIMATE, layers=layers, timeline=(), left_out=())
    check_golden(GOLDEN / "estimate_lines.txt", render(show_estimates(one)))
    alone = render(show_estimates(dataclasses.replace(one, layers=layers[1:])))
    assert alone.endswith(f"train.py:42  20.0 MiB  3 %  {'█' * 30}\ndense        10.0 MiB  1 %  {'█' * 15}\n")


@pytest.mark.parametrize(
    ("budget_bytes", "fits", "name", "verdict"),
    [
        (2 * GIB, "for sure", "fits", "It fits, with 1.2 GiB to spare."),
        (840_000_000, "for sure", "", "It fits, as operations wait for each other where memory is short."),
        (840_000_000, "maybe", "may_fit", "It may fit: a run could need 37.3 MiB more than the budget."),
        (900_000_000, "maybe", "", "It may fit: 19.9 MiB to spare are little for the gaps in the pool."),
        (512 * MIB, "no", "does_not_fit", "It does not fit: the peak is 262.6 MiB above the budget."),
        (840_000_000, "no", "", "It does not fit: the gaps in the pool take what is left."),
    ],
)
def test_estimate_against_a_budget(budget_bytes: int, fits: Fit, name: str, verdict: str) -> None:
    plain = dataclasses.replace(ESTIMATE, layers=(), left_out=(), timeline=(), method="xla")
    text = render(show_estimates(dataclasses.replace(plain, budget_bytes=budget_bytes, fits=fits)))
    assert verdict in text
    if name:
        check_golden(GOLDEN / f"estimate_{name}.txt", text)


def test_where_little_is_sure_both_ends_are_named() -> None:
    wide = dataclasses.replace(ESTIMATE, low_bytes=400_000_000)
    assert "needs between 381.5 MiB and 838.4 MiB." in render(show_estimates(wide))


def test_a_probe_is_said() -> None:
    text = render(show_estimates(dataclasses.replace(ESTIMATE, probed=True)))
    assert "Estimated for graph mode, with kernels probed, in 12.6 seconds." in text


def test_estimates() -> None:
    estimates = Estimates((dataclasses.replace(SMALLER, left_out=()), ESTIMATE))
    check_golden(GOLDEN / "estimates.txt", render(show_estimates(estimates)))


def test_estimates_against_a_budget() -> None:
    most = dataclasses.replace(ESTIMATE, batch_size=1024, peak_bytes=7_833_803_776, safe_bytes=8_326_230_282)

    def against(budget_bytes: int, *fits: Fit) -> str:
        every = zip((SMALLER, ESTIMATE, most), fits, strict=True)
        judged = (dataclasses.replace(one, budget_bytes=budget_bytes, fits=fit) for one, fit in every)
        return render(show_estimates(Estimates(tuple(judged))))

    text = against(840_000_000, "for sure", "maybe", "no")
    check_golden(GOLDEN / "estimates_budget.txt", text)
    assert text.count("FusedSomething") == 1  # what they have in common is said once
    assert "None fits the budget of 1.0 MiB." in against(MIB, "no", "no", "no")


def test_diagnosis() -> None:
    found = Diagnosis(
        "data_on_device",
        ("fragmentation",),
        "Data fills the device: a few chunks hold 30.0 GiB of the 37.1 GiB in use (2 × 15.0 GiB).",
        (
            Evidence(
                16, "2031-02-03 04:05:06.1: W tensorflow/a/bfc_allocator.cc:4] Allocator (GPU_0_bfc) ran out"
            ),
            Evidence(
                394, "W0000 00:00:19.1 42 bfc_allocator.cc:1103] 2 Chunks of size [bold]16106127360 totalling"
            ),
        ),
        OOM,
        "train.py:17",
        (
            Remedy(
                "Stream the data: a smaller batch would not help.", 30 * GIB, "memfit.data.from_arrays(x, y)"
            ),
            Remedy("Keep the data set on the host, where TensorFlow would put it on the device by itself."),
        ),
        ("the log has no dump of the allocator, so what filled the memory is inferred from the op alone",),
    )
    check_golden(GOLDEN / "diagnosis.txt", render(show_diagnosis(found)))


def test_diagnosis_of_nothing() -> None:
    found = Diagnosis("not_an_oom", (), "Nothing in these 12 lines says that memory ran out.")
    check_golden(GOLDEN / "diagnosis_nothing.txt", render(show_diagnosis(found)))


def test_demo() -> None:
    check_golden(GOLDEN / "demo.txt", render(show_demo(DEMO)))


def test_demo_in_a_budget_that_is_large_enough() -> None:
    plain = dataclasses.replace(UNLIMITED, name="plain")
    ours = dataclasses.replace(UNLIMITED, name="memfit")
    demo = dataclasses.replace(DEMO, budget_bytes=GIB, rows=(plain, ours, UNLIMITED))
    check_golden(GOLDEN / "demo_fits.txt", render(show_demo(demo)))


def test_doctor() -> None:
    check_golden(GOLDEN / "doctor.txt", render(show_doctor(DOCTOR)))


def test_doctor_with_everything_unusual() -> None:
    doctor = dataclasses.replace(
        DOCTOR,
        packages=(PACKAGES[0], Package("tensorflow", None, ">=2.18,<2.22", "not installed")),
        devices=(),
        allocator="unknown without TensorFlow",
        host=HostMemory(24 * GIB, 20 * GIB, 4 * GIB, 3 * GIB),
        budget=Budget(2 * GIB, "cgroup", None, GIB),
        warnings=("tensorflow: not installed",),
    )
    check_golden(GOLDEN / "doctor_unusual.txt", render(show_doctor(doctor)))


@pytest.mark.parametrize(
    ("value", "full", "expected"),
    [(4, 4, "████"), (2, 4, "██"), (1, 32, "▏"), (9, 4, "████"), (0, 4, ""), (-1, 4, ""), (3, 0, ""),
     (float("nan"), 4, ""), (float("inf"), 4, "████")],
)  # fmt: skip
def test_bars(value: float, full: float, expected: str) -> None:
    assert bar(value, full, 4) == expected
