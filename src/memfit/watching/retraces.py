"""tf.functions that are traced again and again, and what differs each time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memfit.private.tensorflow.function_graphs import is_python_value, signatures_of

LEAST_TRACES_FOR_VALUES, LEAST_TRACES_FOR_SHAPES = 5, 8
_GOES_ON = 0.3  # the share of its life in which a function must have been traced, or it was just the start


@dataclass
class Retraced:
    """One tf.function and its traces; what there is to say of it is kept when it is gone."""

    function: Callable[[], Any]
    name: str
    code: Any
    lines: Counter[str] = field(default_factory=Counter)  # that called for a trace
    times: list[float] = field(default_factory=list)
    process_bytes: list[int] = field(default_factory=list)
    seen_seconds: float = 0.0  # when it was last seen alive
    argument: str = "an argument"
    by_value: bool = False
    kinds: int = 0  # of that argument, when they were last compared

    def note(self, line: str, seconds: float, process_bytes: int) -> None:
        """It is being traced once more."""
        self.lines[line] += 1
        self.times.append(seconds)
        self.process_bytes.append(process_bytes)
        self.seen_seconds = seconds
        if len(self.times) >= LEAST_TRACES_FOR_VALUES and self._is_time_to_compare():
            self.argument, self.by_value, self.kinds = _differing(signatures_of(self.function()))

    def _is_time_to_compare(self) -> bool:
        """At the numbers that count, and at powers of two."""
        count = len(self.times)
        return count <= LEAST_TRACES_FOR_SHAPES or count & (count - 1) == 0

    def lasts(self, patience_seconds: float) -> bool:
        """Whether it is traced as long as it is used, and not just while everything was new."""
        least = LEAST_TRACES_FOR_VALUES if self.by_value else LEAST_TRACES_FOR_SHAPES
        lasted, life = self.times[-1] - self.times[0], self.seen_seconds - self.times[0]
        if len(self.times) < least or self.kinds < LEAST_TRACES_FOR_VALUES - 1:
            return False  # the last one was not there yet when they were compared
        return lasted >= max(patience_seconds, _GOES_ON * life)


class Retraces:
    """All tf.functions that were traced, by identity."""

    def __init__(self) -> None:
        self.known: dict[int, Retraced] = {}
        self.gone: list[Retraced] = []  # with so many traces that there is something to say of them

    def note(self, function: Any, reference: Callable[[], Any]) -> Retraced:
        """The record of a function's traces, made where there is none yet."""
        known = self.known.get(id(function))
        if known is not None and known.function() is function:
            return known
        if known is not None:
            self._bury(known)
        python_function = function.python_function
        name, code = (getattr(python_function, key, None) for key in ("__name__", "__code__"))
        known = self.known[id(function)] = Retraced(reference, name or "function", code)
        return known

    def look(self, now: float) -> None:
        """See which are alive; forget those that are gone and were never traced often."""
        for key, known in list(self.known.items()):
            if known.function() is not None:
                known.seen_seconds = now
            else:
                self._bury(self.known.pop(key))

    def _bury(self, known: Retraced) -> None:
        if len(known.times) >= LEAST_TRACES_FOR_VALUES:
            self.gone.append(known)


def _differing(signatures: Sequence[dict[str, Any]]) -> tuple[str, bool, int]:
    """The argument that differs most from trace to trace, whether it is a Python value, and how often."""
    kinds: dict[str, set[str]] = defaultdict(set)
    values: set[str] = set()
    for signature in signatures:
        for name, kind in signature.items():
            kinds[name].add(str(kind))
            if is_python_value(kind):
                values.add(name)
    if not kinds:
        return "an argument", False, 0
    name = max(kinds, key=lambda one: len(kinds[one]))
    return name, name in values, len(kinds[name])
