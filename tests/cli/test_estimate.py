"""`memfit estimate` and `memfit plan` on real models: all commands run one after the other in one process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limited import QUIET, run_limited
from memfit.core.records import Estimate, Estimates, Plan, Shortfall
from memfit.machine import find_packages
from once import computed_once

pytestmark = pytest.mark.real

VERSIONS = {
    package.name: tuple(map(int, (package.version or "0.0").split(".")[:2])) for package in find_packages()
}

TRAINS = """
from pathlib import Path

import numpy as np
import tensorflow as tf

x, y = np.ones((8, 16)), np.ones((8, 1))
first = tf.keras.Sequential([tf.keras.layers.Input((16,)), tf.keras.layers.Dense(1)])
first.compile("adam", "mse")
try:
    first.fit(x, y, verbose=0)
except Exception:
    raise
Path(f"trained-{__name__}").touch()
second = tf.keras.Sequential([tf.keras.layers.Input((16,)), tf.keras.layers.Dense(1)])
second.compile("adam", "mse")
second.fit(x, y, verbose=0)
Path(f"trained-twice-{__name__}").touch()
"""
SMALL = "import keras\nmodel = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])"
FILES = {
    "jobs/trains.py": TRAINS,
    "jobs/trains_too.py": TRAINS,
    "jobs/train.py": """
        import os, sys
        from pathlib import Path

        print("printed while it was imported")
        os.write(1, b"written below Python\\n")

        import keras
        import numpy as np

        from neighbour import WIDTH

        if __name__ == "__main__":
            Path("ran_as_main").touch()

        def build():
            print("printed while it was built")
            hidden = keras.layers.Dense(WIDTH, "relu")
            model = keras.Sequential([keras.Input((16,)), hidden, keras.layers.Dense(1)])
            model.compile("adam", "mse")
            return model

        def huge():
            return keras.Sequential([keras.Input((2_000_000,)), keras.layers.Dense(2_000_000)])

        class Open(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(4)

            def call(self, inputs):
                return self.dense(inputs)

        class Failing(Open):
            def call(self, inputs):
                raise ArithmeticError("the user's own mistake")

        model = build()
        plain = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
        failing = Failing()
        number = 3
        batch = (np.zeros((4, 16), "float32"), np.zeros((4, 4), "float32"))
        mixed = (batch[0], None)
        short = (np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32"))

        def wide(width):
            return build()

        def returns_number():
            return number

        def raises():
            raise KeyError("no such rows")

        def dataset():
            import tensorflow as tf
            return tf.data.Dataset.from_tensor_slices(batch).batch(2)
    """,
    "jobs/neighbour.py": "WIDTH = 4096",
    "jobs/broken.py": "import keras\nmodel = keras.Sequential(7)",
    "package/__init__.py": "",
    "package/network.py": SMALL,
    "package/broken.py": "import no_such",
    "json.py": SMALL,
    "junk.keras": "this is no archive",
}

TRAIN = "jobs/train.py"
# What Keras raises for data that does not suit a model; 3.12 hides that in an error of its own.
WRONG_DATA = (
    ["RuntimeError: Unable to automatically build the model"]
    if VERSIONS["keras"] == (3, 12)
    else ["failed when its step was traced: ValueError: ", "16"]
)
# What TensorFlow 2.18 says of itself on standard error, whatever its log level.
TENSORFLOWS_OWN = (
    ("WARNING: All log messages before absl", "I0000") if VERSIONS["tensorflow"] == (2, 18) else ()
)
COMMANDS = {
    "one": f"{TRAIN}:model --batch 8 --json --output out.json",
    "function": f"{TRAIN}:build --batch 8 --json",
    "module": "package.network:model --batch 8 --json",
    "name taken": "json.py:model --batch 8 --json",
    "saved": "saved.keras --batch 8 --json",
    "not compiled": f"{TRAIN}:plain --batch 8",
    "several": f"{TRAIN}:model --batch 1,8,64 --json",
    "probed": f"{TRAIN}:model --batch 8 --probe",
    "fits": f"{TRAIN}:model --batch 8 --budget 1GiB",
    "larger than any memory": f"{TRAIN}:huge --batch 8 --json",
    "whole": f"{TRAIN}:model --batch 100000 --json",
    "in micro-batches": f"{TRAIN}:model --batch 100000 --micro-batch 1000 --json",
    "predict": f"{TRAIN}:model --batch 100000 --call predict --json",
    "predict in micro-batches": f"{TRAIN}:model --batch 8 --micro-batch 2 --call predict --json",
    "several against a budget": f"{TRAIN}:model --batch 8,100000 --budget 64MiB",
    "does not fit": f"{TRAIN}:model --batch 8 --budget 10KiB --json",
    "not one fits": f"{TRAIN}:model --batch 8,16 --budget 10KiB --quiet",
    "largest": f"{TRAIN}:model --largest --budget 8MiB --json",
    "larger than the machine": f"{TRAIN}:model --batch 8 --budget 999TiB --json",
    "none is the largest": f"{TRAIN}:model --largest --budget 10KiB --json",
    "open": f"{TRAIN}:Open --batch 8 --json",
    "open with a batch": f"{TRAIN}:Open --batch 4096 --json --data {TRAIN}:batch",
    "open with a dataset": f"{TRAIN}:Open --batch 8 --json --data {TRAIN}:dataset",
    "wrong data": f"{TRAIN}:model --batch 8 --json --data {TRAIN}:short",
    "no data": f"{TRAIN}:model --batch 8 --json --data {TRAIN}:number",
    "a mixed batch": f"{TRAIN}:model --batch 8 --json --data {TRAIN}:mixed",
    "a model as data": f"{TRAIN}:model --batch 8 --json --data {TRAIN}:model",
    "no such data": f"{TRAIN}:model --batch 8 --json --data {TRAIN}:bacth",
    "failing": f"{TRAIN}:failing --batch 8 --json --data {TRAIN}:batch",
    "no such name": f"{TRAIN}:modle --batch 8 --json",
    "no such module": "package.nothing:model --batch 8 --json",
    "broken": "jobs/broken.py:model --batch 8 --json",
    "broken module": "package.broken:model --batch 8 --json",
    "number": f"{TRAIN}:number --batch 8 --json",
    "returns a number": f"{TRAIN}:returns_number --batch 8 --json",
    "takes arguments": f"{TRAIN}:wide --batch 8 --json",
    "raises": f"{TRAIN}:raises --batch 8 --json",
    "junk": "junk.keras --batch 8 --json",
    "half": "half.keras --batch 8 --json",
    "unsafe": "unsafe.keras --batch 8 --json",
    "unknown": "unknown.keras --batch 8 --json",
    "empty": "empty.keras --batch 8 --json",
    "trains": "jobs/trains.py:first --batch 8 --json",
    "trains before": "jobs/trains_too.py:second --batch 8 --json",
}  # fmt: skip

PLANS = {
    "plan": f"{TRAIN}:model --batch 10000 --budget 200MiB --json --output plan.json",
    "plan in words": f"{TRAIN}:model --batch 10000 --budget 200MiB",
    "plan that is none": f"{TRAIN}:model --batch 8 --budget 1GiB",
    "no plan": f"{TRAIN}:model --batch 8 --budget 10KiB --json",
    "auto": f"{TRAIN}:model --batch auto --budget 8MiB --json",
    "precise": f"{TRAIN}:model --batch 8 --budget 1GiB --float32 dense",
    "no lever": f"{TRAIN}:model --batch 8 --budget 1GiB --allow magic",
    "no batch": f"{TRAIN}:model --batch 0 --budget 1GiB",
}


def run_commands(folder: str, commands: dict[str, str], plans: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Exit code, output and errors of each command."""
    os.chdir(folder)
    os.environ["COLUMNS"] = "80"
    _save_models()
    found = {name: _run(command.split()) for name, command in commands.items()}
    found |= {name: _run(command.split(), "plan") for name, command in plans.items()}
    if "largest" in found:
        size = json.loads(found["largest"]["output"])["batch_size"]
        around = ["--batch", f"{size},{size + 1}", "--budget", "8MiB", "--json"]
        found["around the largest"] = _run([f"{TRAIN}:model", *around])
    return found


def _run(arguments: list[str], command: str = "estimate") -> dict[str, Any]:
    from memfit.cli.main import run

    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with _redirected(output.fileno(), 1), _redirected(errors.fileno(), 2):
            code = run([command, *arguments])
        output.seek(0)
        errors.seek(0)
        return {"code": code, "output": output.read(), "errors": errors.read()}


@contextlib.contextmanager
def _redirected(to: int, descriptor: int) -> Iterator[None]:
    kept = os.dup(descriptor)
    os.dup2(to, descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


def _save_models() -> None:
    import keras

    class Unknown(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs

    def save(name: str, layer: Any) -> None:
        model = keras.Sequential([keras.Input((16,)), layer])
        model.compile("adam", "mse")
        with warnings.catch_warnings(action="ignore"):
            model.save(name)

    save("saved.keras", keras.layers.Dense(1))
    save("unsafe.keras", keras.layers.Lambda(lambda inputs: inputs * 2))
    save("unknown.keras", Unknown())
    Path("half.keras").write_bytes(Path("saved.keras").read_bytes()[:4000])
    with zipfile.ZipFile("empty.keras", "w") as archive:
        archive.writestr("readme", "nothing")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A folder of the user's, and what the commands came to in it."""

    def make() -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("project")
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text))
        results = run_limited(run_commands, None, folder=str(folder), commands=COMMANDS, plans=PLANS)
        return {"folder": str(folder), "results": results}

    return computed_once("estimate", make)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(project: dict[str, Any]) -> Path:
    return Path(project["folder"])


@pytest.fixture(scope="module")
def results(project: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return project["results"]  # type: ignore[no-any-return]


def _estimate(result: dict[str, Any]) -> Estimate:
    assert result["code"] == 0, result["errors"]
    return Estimate.from_json(result["output"])


def test_one_batch_size_is_an_estimate_record(results: dict[str, Any], folder: Path) -> None:
    found = _estimate(results["one"])
    promised = [
        "schema", "kind", "batch_size", "method", "peak_bytes", "safe_bytes", "parts", "layers", "left_out",
        "seconds",
    ]  # fmt: skip
    assert [name for name in json.loads(results["one"]["output"]) if name in promised] == promised
    assert found.batch_size == 8
    assert found.safe_bytes > found.peak_bytes > 3 * 17 * 4096 * 4  # weights and two of Adam
    assert Estimate.from_json((folder / "out.json").read_text()) == found


def test_a_plan_is_a_record(results: dict[str, Any], folder: Path) -> None:
    assert results["plan"]["code"] == 0, results["plan"]["errors"]
    written = json.loads(results["plan"]["output"])
    promised = ["schema", "kind", "budget_bytes", "batch_size", "fits_as_is", "chosen", "alternatives"]
    assert [name for name in written if name in promised] == promised
    of_choice = [
        "micro_batch_size", "accumulation_steps", "remat", "precision", "jit_compile", "peak_bytes",
        "safe_bytes", "relative_time", "exact", "notes",
    ]  # fmt: skip
    assert [name for name in written["chosen"] if name in of_choice] == of_choice
    plan = Plan.from_json(results["plan"]["output"])
    assert Plan.from_json((folder / "plan.json").read_text()) == plan
    assert not plan.fits_as_is
    assert (
        plan.chosen.micro_batch_size < 10_000 <= plan.chosen.micro_batch_size * plan.chosen.accumulation_steps
    )
    assert plan.chosen.safe_bytes <= plan.budget_bytes


def test_a_plan_in_words(results: dict[str, Any]) -> None:
    text = results["plan in words"]["output"]
    assert text.startswith("To train on batches of 10000 in 200.0 MiB: micro-batches of ")
    assert 'plan = memfit.plan(model, batch_size=10000, budget="200MiB")' in text
    assert results["plan that is none"]["output"].startswith("A batch of 8 fits 1.0 GiB as it is.")


@pytest.mark.parametrize("name", ["no lever", "no batch", "precise"])
def test_plans_that_cannot_be_made(results: dict[str, Any], name: str) -> None:
    assert results[name]["code"] == 2
    assert results[name]["output"] == ""
    assert "  Try: " in results[name]["errors"]


def test_where_nothing_fits_what_would_is_a_record(results: dict[str, Any]) -> None:
    assert results["no plan"]["code"] == 3
    shortfall = Shortfall.from_json(results["no plan"]["output"])
    assert shortfall.budget_bytes == 10 * 1024 < shortfall.smallest.safe_bytes <= shortfall.as_is_bytes
    larger = shortfall.advice[0]
    assert larger.enough
    assert larger.safe_bytes >= shortfall.smallest.safe_bytes
    assert f"- {larger.what}" in results["no plan"]["errors"]
    assert f'budget="{larger.safe_bytes >> 20}MiB"' in results["no plan"]["errors"]


def test_the_best_batch_is_found(results: dict[str, Any]) -> None:
    plan = Plan.from_json(results["auto"]["output"])
    assert plan.largest_batch is not None
    assert plan.chosen.accumulation_steps == 1
    assert plan.batch_size == plan.chosen.micro_batch_size <= plan.largest_batch.micro_batch_size
    assert plan.chosen.safe_bytes <= plan.budget_bytes
    largest = json.loads(results["largest"]["output"])["batch_size"]  # of `memfit estimate`, as it is
    assert 0.9 * largest <= plan.largest_batch.micro_batch_size


def test_a_probe_is_made_when_it_is_asked_for(results: dict[str, Any]) -> None:
    assert not _estimate(results["one"]).probed
    assert "Estimated for graph mode, with kernels probed, in" in results["probed"]["output"]


def test_a_function_is_called(results: dict[str, Any]) -> None:
    assert _estimate(results["function"]).parts == _estimate(results["one"]).parts
    assert "printed while it was built" in results["function"]["errors"]


@pytest.mark.parametrize("name", ["module", "name taken", "saved"])
def test_other_places_that_a_model_can_be_in(results: dict[str, Any], name: str) -> None:
    assert 17 * 4 <= _estimate(results[name]).parts.weights_bytes < 1024


def test_a_file_is_run_no_further_than_to_where_it_trains_and_has_the_name(
    results: dict[str, Any], folder: Path
) -> None:
    for name in ("trains", "trains before"):
        assert 17 * 4 <= _estimate(results[name]).parts.weights_bytes < 1024
    assert sorted(path.name for path in folder.glob("trained*")) == ["trained-trains_too"]


def test_what_a_module_prints_goes_to_standard_error(results: dict[str, Any], folder: Path) -> None:
    """It was printed when it was first imported, by the command that came first."""
    first = results["one"]
    assert "printed while it was imported\n" in first["errors"]
    assert "written below Python\n" in first["errors"]
    assert first["output"].startswith("{")
    assert not (folder / "ran_as_main").exists()


def test_several_batch_sizes_are_one_record(results: dict[str, Any]) -> None:
    found = Estimates.from_json(results["several"]["output"])
    assert list(json.loads(results["several"]["output"])) == ["schema", "kind", "estimates"]
    assert [one.batch_size for one in found.estimates] == [1, 8, 64]
    one, _, many = (one.peak_bytes for one in found.estimates)
    assert many - one > 63 * 4096 * 4  # the activations of the wide layer
    assert found.estimates[1].peak_bytes == _estimate(results["one"]).peak_bytes


def test_the_report_says_whether_it_fits(results: dict[str, Any]) -> None:
    assert results["fits"]["code"] == 0
    assert "A training step on a batch of 8 needs" in results["fits"]["output"]
    assert "It fits, with" in results["fits"]["output"]
    several = results["several against a budget"]
    assert several["code"] == 0
    assert "The largest of these that fits the budget of 64.0 MiB: 8." in several["output"]
    assert "does not fit" in several["output"]


def test_what_was_assumed_is_said(results: dict[str, Any]) -> None:
    assumed = "the model is not compiled: taken as Adam and mean squared error"
    assert assumed in results["not compiled"]["output"]
    assert "assumes" not in results["fits"]["output"]


def test_what_does_not_fit_is_shown_and_ends_with_3(results: dict[str, Any]) -> None:
    result = results["does not fit"]
    found = Estimate.from_json(result["output"])
    assert result["code"] == 3
    assert f"at batch_size={found.batch_size}; the budget is 10.0 KiB." in result["errors"]
    assert f"Try: memfit estimate {TRAIN}:model --budget 10KiB --largest" in result["errors"]
    assert results["not one fits"]["code"] == 3
    assert "None fits the budget of 10.0 KiB." in results["not one fits"]["output"]
    assert "DoesNotFit: training needs up to" in results["not one fits"]["errors"]


def test_a_model_too_large_to_build_is_built_without_memory(results: dict[str, Any]) -> None:
    found = _estimate(results["larger than any memory"])
    weights = 4 * 2_000_000**2
    assert found.parts.weights_bytes > weights
    assert found.peak_bytes > 4 * weights  # two of Adam and the gradient besides


def test_micro_batches_and_other_calls_need_less(results: dict[str, Any]) -> None:
    peaks = {
        name: json.loads(results[name]["output"])["peak_bytes"]
        for name in ("whole", "in micro-batches", "predict")
    }
    assert peaks["in micro-batches"] < peaks["whole"]
    assert peaks["predict"] < peaks["whole"]
    refused = results["predict in micro-batches"]
    assert refused["code"] == 1
    assert "micro-batches are for training, not for predict" in refused["errors"]


def test_the_largest_fits_and_the_next_does_not(results: dict[str, Any]) -> None:
    largest = _estimate(results["largest"])
    inside, outside = Estimates.from_json(results["around the largest"]["output"]).estimates
    assert largest.batch_size > 8
    assert inside.safe_bytes == largest.safe_bytes
    assert [largest.fits, inside.fits] == ["for sure"] * 2
    assert outside.fits != "for sure"


def test_where_not_even_one_sample_fits_there_is_no_largest(results: dict[str, Any]) -> None:
    result = results["none is the largest"]
    assert (result["code"], result["output"]) == (3, "")
    assert "DoesNotFit: training needs up to" in result["errors"]
    assert "at batch_size=1; the budget is 10.0 KiB." in result["errors"]


def test_a_budget_may_be_that_of_another_machine(results: dict[str, Any]) -> None:
    assert results["larger than the machine"]["code"] == 0


def test_layers_have_the_line_that_calls_them(results: dict[str, Any], folder: Path) -> None:
    code = (folder / TRAIN).read_text().splitlines()
    number = 1 + next(place for place, line in enumerate(code) if "return self.dense(inputs)" in line)
    found = _estimate(results["open with a batch"])
    assert [layer.line for layer in found.layers] == [f"{TRAIN}:{number}"]
    assert all(layer.line == "" for layer in _estimate(results["one"]).layers)


def test_data_says_what_the_model_leaves_open(results: dict[str, Any]) -> None:
    assert (results["open"]["code"], results["open"]["output"]) == (1, "")
    assert "CannotEstimate: " in results["open"]["errors"]
    for name in ("open with a batch", "open with a dataset"):
        assert 17 * 4 * 4 <= _estimate(results[name]).parts.weights_bytes < 1024


@pytest.mark.parametrize(
    ("name", "code", "messages"),
    [
        ("wrong data", 1, [f"TargetFailed: {TRAIN}:model failed when its step was traced: ", *WRONG_DATA,
                           "Try: model.train_on_batch(x, y)"]),
        ("no data", 2, [f"WrongTarget: {TRAIN}:number is of type int, not a batch, a dataset or specs.\n",
                        f"Try: --data {TRAIN}:batch, with `batch = (x[:32], y[:32])` in it"]),
        ("a mixed batch", 2, [f"{TRAIN}:mixed is of type tuple with NoneType in it, not a batch, a"]),
        ("a model as data", 2, [f"WrongTarget: {TRAIN}:model is of type keras.", "Sequential, not a batch"]),
        ("no such data", 2, ["TargetNotFound: the name bacth in jobs/train.py does not exist.",
                             f"Try: --data {TRAIN}:batch\n"]),
        ("failing", 1, ["failed when its step was traced: ArithmeticError: ", "the user's own mistake",
                        'raise ArithmeticError("the user\'s own mistake")\n']),
        ("no such name", 2, ["TargetNotFound: the name modle in jobs/train.py does not exist.\n",
                             "Names that are there: model, ", f"Try: {TRAIN}:model\n"]),
        ("no such module", 2, ["TargetNotFound: the module package.nothing does not exist.\n"]),
        ("broken", 1, ["TargetFailed: jobs/broken.py:model failed when it was imported: TypeError: ",
                       "\n  jobs/broken.py, line 2: model = keras.Sequential(7)\n",
                       'Try: cd jobs && python -c "import broken"\n']),
        ("broken module", 1, ["when it was imported: ModuleNotFoundError: No module named 'no_such'.\n",
                              "package/broken.py, line 1: import no_such\n",
                              'Try: python -c "import package.broken"\n']),
        ("number", 2, [f"WrongTarget: {TRAIN}:number is of type int, not a Keras model.\n",
                       f"Try: {TRAIN}:model\n"]),
        ("returns a number", 2, [":returns_number returns something of type int, not a Keras model.\n"]),
        ("takes arguments", 2, [f"WrongTarget: {TRAIN}:wide takes arguments: (width).\n",
                                f"Try: {TRAIN}:build, with `def build(): return wide(...)` in it\n"]),
        ("raises", 1, ["failed when it was called: KeyError: 'no such rows'.\n",
                       'raise KeyError("no such rows")\n',
                       'Try: cd jobs && python -c "from train import raises; raises()"\n']),
        ("junk", 1, ["CannotLoadModel: cannot load junk.keras: it is not a whole archive",
                     'Try: model.save("junk.keras")']),
        ("half", 1, ["CannotLoadModel: cannot load half.keras: it is not a whole archive"]),
        ("unsafe", 1, ["cannot load unsafe.keras: it holds Python code that loading would run"]),
        ("unknown", 1, ["cannot load unknown.keras: it uses Unknown, which Keras does not know."]),
        ("empty", 1, ["CannotLoadModel: cannot load empty.keras: KeyError: ", "config.json"]),
    ],
)  # fmt: skip
def test_bad_targets(results: dict[str, Any], name: str, code: int, messages: list[str]) -> None:
    result = results[name]
    for message in messages:
        assert message in result["errors"]
    assert (result["code"], result["output"]) == (code, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train.py:model --batch 0", "InvalidBatchSize: '0' is not a batch size.\n"),
        ("train.py:model --batch -4", "InvalidBatchSize: '-4'"),
        ("train.py:model --batch 1.5", "InvalidBatchSize: '1.5'"),
        ("train.py:model --batch 8,x", "InvalidBatchSize: 'x'"),
        ("train.py:model --batch 8,", "InvalidBatchSize: ''"),
        ("train.py:model --batch 8 --budget 8gigs", "Received: --budget 8gigs (str)"),
        ("train.py:model", "Give one of --batch and --largest."),
        ("train.py:model --batch 8 --largest --budget 1GiB", "Give one of --batch and --largest."),
        ("train.py:model --largest", "--largest needs a --budget."),
        ("--batch 8", "Missing argument 'TARGET'"),
        ("train.py --batch 8", "InvalidTarget: expected TARGET to be"),
        ("train.py:model --batch 8", "TargetNotFound: the file train.py does not exist.\n"),
        ("train.py:model --batch 8 --data rows.py", "TargetNotFound: the file train.py"),
    ],
)
def test_usage(
    arguments: str,
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from memfit.cli.main import run

    monkeypatch.chdir(tmp_path)
    assert run(["estimate", *arguments.split()]) == 2
    output, errors = capfd.readouterr()
    assert message in errors
    assert output == ""
    assert "Try: --batch 32" in errors or not errors.startswith("InvalidBatchSize")


def test_as_people_call_it(folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "memfit", "estimate", "train.py:model", "--batch", "8", "--json"],
        cwd=folder / "jobs", env={**os.environ, **QUIET}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Estimate.from_json(result.stdout).batch_size == 8
    printed = "printed while it was imported\nwritten below Python\nprinted while it was built\n"
    lines = result.stderr.splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith(TENSORFLOWS_OWN)) == printed
