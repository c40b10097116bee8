"""The pipelines that `fit` is given: what they will hold is said before, and TensorFlow's buffers are capped.

TensorFlow gives half of the memory that is free to the buffers whose size it may choose. That is more than a
training can spare, so they get less here; a budget that the script has set stays.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memfit.data.checks import check
from memfit.data.findings import Finding
from memfit.devices import first_device, host_memory, limit_in_force
from memfit.supervision.desks import Desk, tell
from memfit.units import format_size

WARNED_OF = 0.25  # of the memory that is available
CAPPED_AT = 0.125  # of it
_PIPELINES = ("x", "validation_data")


class Feeds:
    """The pipelines of one training, as arguments of `fit`, with a cap on their buffers."""

    def __init__(self, desk: Desk, number: int, given: dict[str, Any]) -> None:
        self._desk, self._number = desk, number
        self._is_looked_at = False
        self.pipelines = {
            name: given[name] for name in _PIPELINES if isinstance(given.get(name), tf.data.Dataset)
        }
        if self.pipelines:
            self._available_bytes = _available_bytes()
            self._cap(int(self._available_bytes * CAPPED_AT))

    def _cap(self, budget_bytes: int) -> None:
        for name, dataset in self.pipelines.items():
            try:
                self.pipelines[name] = _with_budget(dataset, budget_bytes)
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                self._say_why_not("capped", error)

    def look(self) -> None:
        """Say once what is large, and write down what there is."""
        if self._is_looked_at:
            return
        self._is_looked_at = True
        for name, dataset in self.pipelines.items():
            try:
                self._look_at(name, dataset)
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                self._say_why_not("checked", error)

    def _look_at(self, name: str, dataset: Any) -> None:
        seen, available_bytes = check(dataset), self._available_bytes
        large = [one for one in seen.findings if _most_bytes(one) > WARNED_OF * available_bytes]
        self._desk.journal.write(
            "data",
            training=self._number,
            argument=name,
            check=seen.to_dict(),
            available_bytes=available_bytes,
            warnings=[str(one) for one in large],
        )
        for one in large:
            words = str(one).replace("\n", "\n  ")
            tell(
                f"The data of training {self._number} ({name}) may hold more than {WARNED_OF:.0%} of the "
                f"{format_size(available_bytes)} that are available.\n  {words}"
            )

    def _say_why_not(self, what: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        self._desk.journal.write("data", training=self._number, reason=reason, warnings=[])
        tell(f"The data of training {self._number} could not be {what}: {reason}")


def _available_bytes() -> int:
    """What pipelines and training share: the memory of the host, less where a limit is on the CPU."""
    available_bytes = host_memory().usable_available_bytes
    limit_bytes = limit_in_force() if first_device() == "CPU:0" else None
    return available_bytes if limit_bytes is None else min(available_bytes, limit_bytes)


def _with_budget(dataset: Any, budget_bytes: int) -> Any:
    if dataset.options().autotune.ram_budget:
        return dataset
    options = tf.data.Options()
    options.autotune.ram_budget = budget_bytes
    return dataset.with_options(options)


def _most_bytes(finding: Finding) -> int:
    """As far as it is known."""
    return max(finding.held_bytes or 0, finding.most_bytes or 0)
