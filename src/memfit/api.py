"""The verbs; the only place where the stages meet."""

from __future__ import annotations

import logging
from typing import Any, SupportsIndex

from memfit import devices
from memfit.devices import find_budget, limit, load_keras
from memfit.errors import MemfitError
from memfit.records import Budget, Doctor
from memfit.version import __version__

logger = logging.getLogger("memfit")

__all__ = ["examine", "fit", "limit"]


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    budget: str | SupportsIndex | None = None,
    micro_batch_size: int | None = None,
    **arguments: Any,
) -> Any:
    """Train like `model.fit`, but go on through out-of-memory errors with the same update.

    Takes `model.fit`'s arguments and returns its History, with what happened as `history.run`. A batch
    that does not fit is split into micro-batches (`micro_batch_size` says where to start), whose
    gradients add up to those of the whole batch. The peak of the device is counted from here on.

    >>> history = memfit.fit(model, x, y, batch_size=64, epochs=3)
    >>> history.run.micro_batch_size
    16
    """
    load_keras()
    from memfit.runs.fits import fit_guarded

    in_effect = find_budget(budget)
    _check_micro_batch_size(micro_batch_size)
    _say_what_stands_behind(in_effect)
    return fit_guarded(model, x, y, budget=in_effect, micro_batch_size=micro_batch_size, arguments=arguments)


def _check_micro_batch_size(size: int | None) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise InvalidMicroBatchSize(size)


class InvalidMicroBatchSize(MemfitError, ValueError):
    """Not a number of samples."""

    exit_code = 2

    def __init__(self, received: object) -> None:
        self.received = received
        super().__init__(
            "expected micro_batch_size to be a number of samples, 1 or more.",
            f"Received: micro_batch_size={received!r} ({type(received).__name__})",
            suggestion="micro_batch_size=8",
        )


def _say_what_stands_behind(budget: Budget) -> None:
    """Say once that nothing enforces the budget, where nothing does."""
    if budget.limit_bytes is not None or budget.source == "gpu":
        return
    logger.warning(
        "No limit is in force: past the memory there is, the kernel kills the process. "
        'Try: memfit.limit("%dMiB") before the first op or model.',
        budget.budget_bytes >> 20,
    )


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
