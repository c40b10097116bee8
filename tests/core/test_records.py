from __future__ import annotations

import dataclasses

import pytest

from memfit.core.records import (
    Advice,
    Attempt,
    Budget,
    Choice,
    Cut,
    Demo,
    DemoRow,
    DeviceMemory,
    Diagnosis,
    Doctor,
    Estimate,
    Estimates,
    Evidence,
    HostMemory,
    Kernel,
    KernelInput,
    KernelScratch,
    LayerBytes,
    LayerCall,
    LayerGraph,
    LayerTensor,
    Leak,
    Lint,
    LintFinding,
    LintRule,
    Measured,
    MeasuredRuns,
    MicroBatchChange,
    Op,
    OpGraph,
    OptimizerState,
    OutOfMemory,
    Package,
    Parts,
    Plan,
    Probe,
    Program,
    ProgramVariable,
    Reading,
    Remedy,
    Run,
    Shortfall,
    Slowdown,
    SupervisedRun,
    SupervisedTraining,
    SurvivedOOM,
    UnreadSource,
)
from memfit.core.serialization import Record

OOM = OutOfMemory("OOM when allocating", 4096, (32, 32), "float", "CPU:0", "cpu", "Conv2D")
BUDGET = Budget(2**30, "limit", 2**30)
ROW = DemoRow("memfit", False, 1000, 8, (0.5, 0.25), 1.5)
ESTIMATE = Estimate(
    16,
    "graph",
    900,
    850,
    950,
    Parts(weights_bytes=600),
    (LayerBytes("dense", 700, "train.py:7"), LayerBytes("", 70, "train.py:8")),
    (5, 9),
    ("a note",),
    0.5,
)
CHOICE = Choice(16, 4, (Cut((), 0, 3), Cut((2,), 1, 4)), "float32", False, 900, 950, 1.31, True, ("a note",))
PLAIN_CHOICE = dataclasses.replace(CHOICE, remat=None)
MEASURED = Measured(CHOICE, 1024, None, 0.5, 0)
LEAK = Leak("models", "train.py:7", 4, 2**24, ("4 models are gone",), "Let go.", "memfit.release(model)")
RULE = LintRule("MF001", "a-name", "warning", "A summary", "A reason.", "A fix.", "before()", "after()")
FINDING = LintFinding("train.py", 3, 5, 3, 9, "MF001", "note", "it may be", "A fix.", "    call()", 2)
EXAMPLES: list[Record] = [
    RULE,
    Lint((FINDING, dataclasses.replace(FINDING, cell=None)), (RULE,), 2, (UnreadSource("a.py", "no text"),)),
    DeviceMemory("CPU:0", 1, 2),
    HostMemory(100, 50, 80, 30),
    HostMemory(100, 50),
    BUDGET,
    OOM,
    OutOfMemory("MemoryError"),
    SurvivedOOM(3, "gradients", 64, 32, 10.5, OOM),
    MicroBatchChange(0, 64),
    Run(
        BUDGET, 12, (MicroBatchChange(0, 64),), (SurvivedOOM(3, "commit", 64, 32, 10.5, OOM),), 99, ("note",)
    ),
    Package("keras", None, ">=3.12", "not installed"),
    Doctor(
        "0.1.0", (Package("keras", "3.15.1", ">=3.12"),), ("CPU:0",), "BFC", HostMemory(100, 50), 7, BUDGET
    ),
    LayerGraph(
        32,
        (
            LayerCall("dense", (0,), (), (0,), 128, 64, 1e-5),
            LayerCall("raw", (1, 0), (0,), (1,), 0, 8, 0.0, "draws"),
        ),
        (LayerTensor(128, saved=True), LayerTensor(64, saved=False)),
        (1,),
    ),
    Program(
        16,
        "graph",
        (ProgramVariable("dense/kernel", 512, "weight", "dense"),),
        OpGraph((Op("ReadVariableOp", outputs=(0,), role="read", variable=0),), (512,), outputs=(0,)),
        left_out=("an unknown kernel",),
    ),
    Kernel("bm9kZQ==", (KernelInput((2, 3), "float32"), KernelInput((1,), "int32", (0.0,)))),
    Probe((KernelScratch("dense/MatMul", 64.0, 0.5),), ("a kernel that did not run",)),
    ESTIMATE,
    Estimates((ESTIMATE, dataclasses.replace(ESTIMATE, batch_size=32))),
    CHOICE,
    Plan(
        1024, 64, False, CHOICE, (dataclasses.replace(CHOICE, remat=None),), (CHOICE,), ("a note",), "1f", 2.5
    ),
    Plan(
        1024,
        64,
        False,
        CHOICE,
        optimizer=OptimizerState("Adam", 800, 8.0),
        measured=(MEASURED,),
        largest_batch=CHOICE,
    ),
    MeasuredRuns((MEASURED,)),
    Shortfall(1024, 64, 4096, CHOICE, (Advice("a budget of 2 KiB", 2048, enough=True),), ("a note",)),
    Slowdown(1.5, 2.0, 0.5),
    Diagnosis(
        "leak",
        ("fragmentation",),
        "Something keeps memory.",
        (Evidence(7, "Killed"),),
        OOM,
        "train.py:12",
        (Remedy("Keep numbers.", 1024, "losses.append(float(loss))"), Remedy("More.")),
        ("a note",),
    ),
    ROW,
    Demo(192, 64, (ROW, dataclasses.replace(ROW, name="plain", oom=True, error=OOM)), 4, 256, "CPU:0", 60.0),
    Reading(1.5, 3, 2**30, 2**20, 12, 4096, 58, 2, 3, 600),
    LEAK,
    SupervisedRun(
        "20261117-77",
        "train.py",
        ("--epochs", "3"),
        1024,
        attempts=(Attempt(137, "memory", "The kernel killed it.", ("a line",)), Attempt()),
        trainings=(SupervisedTraining(1, 12, 1, loss=0.5, plan=Plan(1024, 64, False, CHOICE)),),
    ),
]


def test_every_record_has_an_example_here() -> None:
    assert {type(record) for record in EXAMPLES} == {
        kind for kind in Record.__subclasses__() if kind.__module__.startswith("memfit.core.records.")
    }


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_round_trip(record: Record) -> None:
    assert type(record).from_json(record.to_json()) == record


def test_a_plan_goes_down_its_ladder() -> None:
    rungs = tuple(dataclasses.replace(CHOICE, micro_batch_size=size) for size in (8, 4))
    plan = Plan(1024, 64, True, CHOICE, ladder=rungs)
    assert plan.stepped_down(0) is plan
    down = [plan.stepped_down(number) for number in (1, 2, 3)]
    assert [(one.chosen.micro_batch_size, len(one.ladder)) for one in down] == [(8, 1), (4, 0), (4, 0)]
    assert not down[0].fits_as_is


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_frozen(record: Record) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, None)


def test_the_tighter_of_machine_and_cgroup_counts() -> None:
    inside = HostMemory(100, 50, 80, 30)
    assert (inside.usable_total_bytes, inside.usable_available_bytes) == (80, 30)
    busy = HostMemory(100, 20, 80, 30)
    assert busy.usable_available_bytes == 20
    assert HostMemory(100, 50).usable_total_bytes == 100


def test_a_run_that_ends_at_once_has_no_micro_batch() -> None:
    assert Run(BUDGET).micro_batch_size is None
    assert (
        Run(BUDGET, micro_batches=(MicroBatchChange(0, 64), MicroBatchChange(2, 32))).micro_batch_size == 32
    )
