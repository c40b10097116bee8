"""The verbs; the only place where the stages meet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from memfit import machine
from memfit.core.errors import InvalidBatchSize, MemfitError, UnsupportedBackend
from memfit.core.records import Budget, Call, Diagnosis, Doctor, Estimate, Plan, Run
from memfit.core.units import checked_micro_batch_size, checked_samples, format_size, parse_size
from memfit.core.version import __version__
from memfit.machine import find_budget, load_keras
from memfit.machine.frameworks import keras_backend, uses_keras_2

logger = logging.getLogger("memfit")

__all__ = [
    "diagnose",
    "estimate",
    "examine",
    "fit",
    "limit",
    "plan",
    "protect",
    "release",
    "remat",
    "step",
    "watch",
]


def limit(
    size: str | SupportsIndex | None = None, *, growth: bool = False, onednn: bool | None = None
) -> int | None:
    """Limit the device's memory before TensorFlow's runtime starts; returns the limit in bytes.

    The limit is rounded down to whole MiB. `growth=True` makes a GPU take memory as it is needed (a CPU
    always does); with a size it grows up to that size. A second call before the runtime starts replaces
    the first. TensorFlow uses oneDNN on a CPU as it does by default, unless `onednn` says otherwise, which
    has to be before TensorFlow is imported. On a CPU, large arrays that become tensors stay in host memory.

    >>> import memfit
    >>> memfit.limit("4GiB")
    4294967296
    """
    limit_bytes = machine.limit(size, growth=growth, onednn=onednn)
    from memfit.guarding.arrays_on_host import keep_large_arrays_on_host

    keep_large_arrays_on_host()
    return limit_bytes


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    budget: str | SupportsIndex | None = None,
    plan: Plan | Literal[False] | None = None,
    allow: Iterable[str] = ("micro_batch", "remat"),
    float32_layers: Iterable[str] = (),
    micro_batch_size: SupportsIndex | Run | None = None,
    **arguments: Any,
) -> Any:
    """Train like `model.fit`, but go on through out-of-memory errors with the same update.

    Takes `model.fit`'s keyword arguments and returns its History, with what happened as `history.run`. A
    batch that does not fit is split into micro-batches (`micro_batch_size` says where to start, else where
    the last `fit` of this model ended; a Run: the sizes of that run, step by step), whose gradients add up
    to those of the whole batch. With a `budget`, or under a limit that is not plainly enough, training is
    planned first, with levers and layers as for `memfit.plan`; with a `plan` it begins as that says, and with
    `plan=False` the guard alone sees to it. Cuts and precision are taken back at the end.
    What is enforced is the limit. The peak is counted from here on.

    >>> history = memfit.fit(model, x, y, batch_size=64, epochs=3)
    >>> history.run.micro_batch_size
    16
    """
    load_keras()
    from memfit.core.records.plans import allowed_levers
    from memfit.guarding.fit_request import FitRequest
    from memfit.planning.planned_fit import fit_planned

    in_effect, allowed = _budget_in_effect(budget), allowed_levers(allow, float32_layers)
    request = FitRequest(
        model,
        {"x": x, "y": y, **arguments},
        in_effect,
        plan or None,
        is_planned=micro_batch_size is None,
        **_micro_batches(micro_batch_size),
    )
    return fit_planned(request, allowed, has_budget=budget is not None, may_plan=plan is not False)


@contextlib.contextmanager
def protect(
    model: Any,
    *,
    budget: str | SupportsIndex | None = None,
    micro_batch_size: SupportsIndex | Run | None = None,
) -> Iterator[Any]:
    """Guard every `fit`, `evaluate`, `predict` and `..._on_batch` of a model inside a `with` block.

    The model is the same object, and afterwards it is as it was; it may be compiled again inside. `.run` of
    what the block gets says what has happened so far.

    >>> with memfit.protect(model) as protection:
    ...     model.fit(dataset)
    >>> protection.run.ooms
    ()
    """
    load_keras()
    from memfit.guarding.protection import Protection

    protection = Protection(model, budget=_budget_in_effect(budget), **_micro_batches(micro_batch_size))
    with protection.attached_to_calls():
        yield protection


def step(
    loss_function: Callable[..., Any],
    optimizer: Any,
    variables: Iterable[Any],
    *,
    budget: str | SupportsIndex | None = None,
    micro_batch_size: SupportsIndex | None = None,
) -> Any:
    """A guarded step for a loop of your own: `step(x, y)` returns the loss and updates the variables.

    `loss_function(*batch)` returns the loss of a batch, a mean or a sum over its samples, or a tuple of the
    loss and further outputs: numbers, which add up like the loss, and values with a row for each sample.
    Which of these it is, is found out on the first batch. `.run` says what has happened so far.

    >>> step = memfit.step(lambda x, y: mse(y, model(x)), optimizer, model.trainable_variables)
    >>> for x, y in dataset:
    ...     loss = step(x, y)
    """
    load_keras()
    from memfit.guarding.loop import LoopStep

    size = checked_micro_batch_size(micro_batch_size)
    in_effect = _budget_in_effect(budget)
    return LoopStep(loss_function, optimizer, list(variables), budget=in_effect, micro_batch_size=size)


def remat(
    model: Any,
    *,
    budget: str | SupportsIndex | None = None,
    batch_size: int | None = None,
    data: Any = None,
    levels: int = 1,
) -> Any:
    """Let a model compute activations again in the backward pass instead of keeping them; values stay.

    In place: the model, its weights, names and config stay, and `.undo()` or leaving a `with` block takes it
    back. Without a budget the peak is made as small as it gets; with one, for a batch of `batch_size`, the
    least time within it. `data`, a batch of inputs, says what the model leaves open. With more `levels`
    activations are computed up to so many times again, and the peak is smaller still.

    >>> with memfit.remat(model):
    ...     model.fit(x, y)
    """
    load_keras()
    from memfit.rematerialising.rematerialise import rematerialise

    budget_bytes = None if budget is None else find_budget(budget).budget_bytes
    return rematerialise(model, budget_bytes=budget_bytes, batch_size=batch_size, data=data, levels=levels)


def watch() -> Any:
    """Follow memory in a `with` block or as a Keras callback, and name the lines of yours that leak.

    `.timeline` has what there was over time, `.leaks` what leaks: what it is, the line that makes it, how
    much each time, and what to write instead; each is also logged once. `.step()` marks a step of a loop of
    your own; without, time is what counts.

    >>> with memfit.watch() as watch:
    ...     train()
    >>> [leak.source for leak in watch.leaks]
    ['train.py:31']
    """
    load_keras()
    from memfit.watching.watch import Watch

    return Watch()


def release(model: Any) -> None:
    """Let go of a model: of its traces and optimizer, and of what `clear_session` leaves behind.

    The weights stay with the model, which can predict and be saved, and trains again once it is compiled. No
    other model is touched. Call it at the end of each pass of a loop that makes models.

    >>> for size in sizes:
    ...     model = make_model(size)
    ...     model.fit(x, y)
    ...     memfit.release(model)
    """
    load_keras()
    from memfit.watching.release import release_model

    release_model(model)


def plan(
    model: Any,
    batch_size: SupportsIndex | Literal["auto"],
    budget: str | SupportsIndex | None = None,
    *,
    allow: Iterable[str] = ("micro_batch", "remat"),
    float32_layers: Iterable[str] = (),
    data: Any = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Plan:
    """The fastest way to train on batches of a size within a budget, found without running a step.

    `allow` are the levers that may be pulled: micro-batches, and activations that are computed again. Both
    keep the mathematics but for BatchNormalization, which takes its statistics from micro-batches: there,
    computing again comes first. On request also "precision", where layers compute in 16 bits, but for
    `float32_layers` and those that must not, and "xla", where XLA is switched on or off. `batch_size="auto"`
    looks for the batch with the best throughput that fits as a whole, and for the largest. `data` is as for
    `memfit.estimate`. The model stays as it is; pass the plan to `memfit.fit`. `on_stage` is
    called with what is being done.

    >>> plan = memfit.plan(model, batch_size=64, budget="400MiB")
    >>> plan.chosen.micro_batch_size, plan.chosen.relative_time
    (32, 1.02)
    """
    size = 0 if batch_size == "auto" else checked_samples(batch_size, InvalidBatchSize)
    budget_bytes = parse_size(budget, "budget") if budget is not None else find_budget(None).budget_bytes
    load_keras()
    from memfit.core.records.plans import PlanRequest, allowed_levers
    from memfit.planning.make_plan import make_plan

    allowed = allowed_levers(allow, float32_layers)
    request = PlanRequest(size, budget_bytes, allowed.levers, data, allowed.float32_layers)
    return make_plan(model, request, on_stage)


def estimate(
    model: Any,
    batch_size: SupportsIndex,
    *,
    data: Any = None,
    budget: str | SupportsIndex | None = None,
    micro_batch_size: SupportsIndex | None = None,
    call: Call = "fit",
    probe: bool | None = None,
) -> Estimate:
    """The memory that a step of `model.fit` will need, known before it runs: nothing is computed or changed.

    `data`, a batch, a dataset or specs, says what the model leaves open; else shapes and types come from the
    model and its loss. A model that is not compiled is taken as one with Adam and the mean squared error.
    With a budget, which may be that of another machine, `.fits` says whether it runs there; with a
    micro-batch size, it is `memfit.fit`'s step on batches that are split. `call` is for `model.evaluate` or
    `model.predict` instead. In place of a model, what `memfit.step` returns, with data.

    Where the scratch of a kernel is unknown, the kernel is run on a few samples in another process, which
    takes seconds; `probe=True` does so in any case, `probe=False` never.

    >>> memfit.estimate(model, batch_size=64).peak_bytes
    604110848
    """
    how: dict[str, Any] = {"micro_batch_size": micro_batch_size, "call": call, "probe": probe}
    load_keras()
    from memfit.estimating.estimate_series import estimate_series

    (one,) = estimate_series(model, [batch_size], data=data, budget=budget, **how)
    return one


def diagnose(what: BaseException | str | bytes | Path | Run) -> Diagnosis:
    """Why memory ran out: a cause, what speaks for it, your line that led there, and what to do first.

    Takes an exception, the text of a log, the path of a log of any size, or a Run. TensorFlow is not needed.

    >>> memfit.diagnose(pathlib.Path("train.log")).cause
    'data_on_device'
    """
    from memfit.diagnosing.diagnose_any import diagnose_any

    return diagnose_any(what)


def _budget_in_effect(budget: str | SupportsIndex | None) -> Budget:
    in_effect = find_budget(budget)
    _say_what_stands_behind(in_effect)
    return in_effect


def _micro_batches(size: SupportsIndex | Run | None) -> dict[str, Any]:
    """The micro-batch size to start with, or the micro-batch sizes of a run to repeat."""
    if isinstance(size, Run):
        return {"micro_batch_size": None, "replay": size.micro_batches}
    return {"micro_batch_size": checked_micro_batch_size(size), "replay": ()}


def _say_what_stands_behind(budget: Budget) -> None:
    """Say that nothing enforces the budget, where nothing does."""
    advice = f'Try: memfit.limit("{budget.budget_bytes >> 20}MiB") before the first op or model.'
    if budget.limit_bytes is None and machine.first_device() == "CPU:0":
        _warn_once("No limit is in force: when memory runs out, the system kills the process.", advice)
    elif budget.limit_bytes is not None and budget.budget_bytes < budget.limit_bytes:
        limit_text = format_size(budget.limit_bytes)
        _warn_once(f"The budget is below the limit of {limit_text}, and only the limit is enforced.", advice)


_warned: set[str] = set()


def _warn_once(fact: str, advice: str) -> None:
    """Say a fact once, whatever numbers the advice has."""
    if fact not in _warned:
        _warned.add(fact)
        logger.warning("%s %s", fact, advice)


def examine() -> Doctor:
    """The findings of `memfit doctor`: versions, devices, allocator, memory, and the budget that follows.

    Starts TensorFlow where it is installed and supported.
    """
    packages = machine.find_packages()
    problems = [f"{package.name}: {package.warning}" for package in packages if package.warning]
    names: tuple[str, ...] = ()
    allocator = "unknown without TensorFlow"
    try:
        tensorflow = machine.load_tensorflow()
    except MemfitError as error:
        problems.append(str(error).replace("\n ", ""))
    else:
        names = tuple(device.name for device in tensorflow.config.list_logical_devices())
        allocator = machine.describe_allocator()
    if (backend := keras_backend()) != "tensorflow":
        problems.append(str(UnsupportedBackend(backend)).replace("\n ", ""))
    if uses_keras_2():
        problems.append(
            "TF_USE_LEGACY_KERAS is set, so tf.keras is Keras 2, which memfit does not guard. "
            "Try: unset TF_USE_LEGACY_KERAS"
        )
    return Doctor(
        memfit_version=__version__,
        packages=packages,
        backend=backend,
        devices=names,
        allocator=allocator,
        host=machine.host_memory(),
        process_bytes=machine.process_bytes(),
        budget=find_budget(),
        warnings=tuple(problems),
    )
