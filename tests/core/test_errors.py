from __future__ import annotations

import inspect
import pickle

import pytest

from memfit.core import errors
from memfit.core.errors import MemfitError
from memfit.core.records import Choice, Shortfall

CHOICE = Choice(1, 8, None, "float32", False, 900, 950, 1.0, True)
SHORTFALL = Shortfall(512, 8, 2048, CHOICE, ())
EXAMPLES: list[MemfitError] = [
    errors.InvalidSize("8gigs", name="budget"),
    errors.LargerThanMachine(2**40, name="--budget", total_bytes=2**34, where="the memory of this machine"),
    errors.InvalidRecord("run", "not JSON"),
    errors.RecordTooNew("run", schema=2, newest=1),
    errors.TensorFlowMissing("TensorFlow"),
    errors.UnsupportedVersion("tensorflow", received="2.10.0", expected=">=2.18,<2.22"),
    errors.UnsupportedBackend("jax"),
    errors.RuntimeStarted(2**30, in_force_bytes=None),
    errors.TensorFlowImported(onednn=True),
    errors.NotMeasurable("CPU:0"),
    errors.InvalidMicroBatchSize(0),
    errors.BatchSizesDiffer([4, 5]),
    errors.CannotGuard("the model is not compiled", suggestion='model.compile("adam", "mse")'),
    errors.CannotRematerialise("it has not been built", suggestion="model.build((None, 8))"),
    errors.NotAModel("model"),
    errors.CannotEstimate("it was never built", suggestion="model.build((None, 8))"),
    errors.InvalidBatchSize(0),
    errors.InvalidLever("magic", known=("micro_batch", "remat")),
    errors.UnusedArgument("nothing uses it.", "Expected a budget.", suggestion="more"),
    errors.WrongPlan("other batches", expected="batch_size=64", received="batch_size=8", batch_size=8),
    errors.InvalidTarget("train.py", title="TARGET", expected="file.py:name", suggestion="train.py:model"),
    errors.TargetNotFound(
        "train.py:modle", "the name modle in train.py", near=["model"], suggestion="train.py:model"
    ),
    errors.WrongTarget("train.py:x", "is of type int", expected="a keras.Model", suggestion="train.py:model"),
    errors.TargetFailed(
        "train.py:model",
        "when it was imported",
        "KeyError: 'x'",
        where="train.py, line 3: a['x']",
        suggestion='python -c "import train"',
    ),
    errors.CannotLoadModel("a.keras", "it is not an archive", suggestion='model.save("a.keras")'),
    errors.InvalidPrecision("float16", known=("mixed_bfloat16", "mixed_float16", "float32")),
    errors.LayerNotFound("dens_3", near=["dense_3"], known=12),
    errors.CannotLowerPrecision("it has not been built", suggestion="model.build((None, 8))"),
    errors.NotFinite("dense_3"),
    errors.NothingToGain(2000, 1990, batch_size=32, left_plain=None),
    errors.DoesNotFit("a step does not fit.", suggestion="memfit doctor", limit_bytes=2**20),
    errors.NothingFits("nothing fits.", "- a larger budget", suggestion="more", shortfall=SHORTFALL),
    errors.TornUpdate(2, 5),
    errors.ChildFailed("train", exit_code=-9, last_lines=["Killed"]),
    errors.ScriptNotFound("train.py", folder="project"),
    errors.DamagedCheckpoint("a.checkpoint", "it has no end after 9 bytes"),
    errors.CannotResume("training 2 is of another model", expected="the model 1a", received="the model 2b"),
    errors.RunNotFound("train.py", folder="runs", suggestion="memfit run train.py"),
    errors.CannotRead("train.log", "No such file or directory"),
    errors.CannotDiagnose(3),
    errors.CannotWrite("out.json", "Permission denied"),
    errors.RamTooSmall(2**20, least_bytes=2**25, parts=[("batches in use", 2**25)], batch_size=32),
    errors.NoData("photos", expected="images", found="3 other files", suggestion="another folder"),
    errors.InvalidStream("labels differ.", expected="3", received="4", suggestion="labels=None"),
    errors.DamagedData("photos/1.jpg", "it is empty"),
    errors.SourceNotFound("trian.py", near=["train.py"]),
    errors.UnknownRule("MF999", known=["MF001", "MF028"]),
    errors.PackageMissing("pyarrow", extra="parquet"),
]


def test_every_error_of_the_hierarchy_has_an_example_here() -> None:
    defined = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MemfitError)
    }
    assert {type(error) for error in EXAMPLES} == defined - {MemfitError}


def test_the_tree_on_top_of_the_file_names_every_error() -> None:
    for error in EXAMPLES:
        assert f"── {type(error).__name__}" in (errors.__doc__ or "")


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_house_style(error: MemfitError) -> None:
    first, *rest = str(error).split("\n")
    assert first.endswith(".")
    assert rest[-1].startswith("  Try: ")
    assert len(rest[-1]) > len("  Try: ")
    assert all(line.startswith("  ") for line in rest)
    assert "please" not in str(error).lower()
    assert "!" not in str(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_a_process_boundary(error: MemfitError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_the_numbers_are_attributes() -> None:
    assert errors.RecordTooNew("run", schema=2, newest=1).schema == 2
    assert errors.RuntimeStarted(2**30, in_force_bytes=None).requested_bytes == 2**30
    assert errors.ChildFailed("train", exit_code=-9, last_lines=[]).child_exit_code == -9


def test_exit_codes() -> None:
    codes = {type(error).__name__: error.exit_code for error in EXAMPLES}
    assert codes["InvalidSize"] == codes["LargerThanMachine"] == codes["InvalidBatchSize"] == 2
    assert codes["InvalidTarget"] == codes["TargetNotFound"] == codes["WrongTarget"] == 2
    assert codes["UnknownRule"] == 2
    assert codes["SourceNotFound"] == 1
    assert codes["DoesNotFit"] == codes["NothingFits"] == 3
    assert codes["TensorFlowMissing"] == codes["ChildFailed"] == codes["TargetFailed"] == 1
