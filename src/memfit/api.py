"""The verbs; the only place where the stages meet."""

from __future__ import annotations

import functools
import logging
import operator
from typing import Any, SupportsIndex

from memfit import devices
from memfit.devices import find_budget, limit, load_keras
from memfit.errors import InvalidMicroBatchSize, MemfitError
from memfit.records import Budget, Doctor
from memfit.units import format_size
from memfit.version import __version__

logger = logging.getLogger("memfit")

__all__ = ["examine", "fit", "limit"]


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    budget: str | SupportsIndex | None = None,
    micro_batch_size: SupportsIndex | None = None,
    **arguments: Any,
) -> Any:
    """Train like `model.fit`, but go on through out-of-memory errors with the same update.

    Takes `model.fit`'s keyword arguments and returns its History, with what happened as `history.run`. A
    batch that does not fit is split into micro-batches (`micro_batch_size` says where to start, else where
    the last `fit` of this model ended), whose gradients add up to those of the whole batch. `budget` is
    recorded; what is enforced is the limit. The peak of the device is counted from here on.

    >>> history = memfit.fit(model, x, y, batch_size=64, epochs=3)
    >>> history.run.micro_batch_size
    16
    """
    load_keras()
    from memfit.runs.fits import fit_guarded

    in_effect = find_budget(budget)
    size = _checked_micro_batch_size(micro_batch_size)
    _say_what_stands_behind(in_effect)
    return fit_guarded(model, x, y, budget=in_effect, micro_batch_size=size, arguments=arguments)


def _checked_micro_batch_size(size: SupportsIndex | None) -> int | None:
    if size is None:
        return None
    try:
        number = operator.index(size)
    except TypeError:
        number = 0
    if isinstance(size, bool) or number < 1:
        raise InvalidMicroBatchSize(size)
    return number


def _say_what_stands_behind(budget: Budget) -> None:
    """Say that nothing enforces the budget, where nothing does."""
    advice = f'Try: memfit.limit("{budget.budget_bytes >> 20}MiB") before the first op or model.'
    if budget.limit_bytes is None and devices.first_device() == "CPU:0":
        _warn_once(f"No limit is in force: when memory runs out, the system kills the process. {advice}")
    elif budget.limit_bytes is not None and budget.budget_bytes < budget.limit_bytes:
        limit_text = format_size(budget.limit_bytes)
        _warn_once(f"The budget is below the limit of {limit_text}, and only the limit is enforced. {advice}")


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def examine() -> Doctor:
    """What `memfit doctor` shows: versions, devices, allocator, memory, and the budget that follows.

    Starts TensorFlow where it is installed and supported.
    """
    packages = devices.find_packages()
    problems = [f"{package.name}: {package.warning}" for package in packages if package.warning]
    names: tuple[str, ...] = ()
    allocator = "unknown without TensorFlow"
    try:
        tensorflow = devices.load_tensorflow()
    except MemfitError as error:
        problems.append(str(error).replace("\n ", ""))
    else:
        names = tuple(device.name for device in tensorflow.config.list_logical_devices())
        allocator = devices.describe_allocator()
    return Doctor(
        memfit_version=__version__,
        packages=packages,
        devices=names,
        allocator=allocator,
        host=devices.host_memory(),
        process_bytes=devices.process_bytes(),
        budget=find_budget(),
        warnings=tuple(problems),
    )
