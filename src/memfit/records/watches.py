"""What was seen of a training's memory while it ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.roundtrips import Record
from memfit.units import format_size

Leaked = Literal["models", "retracing", "python_functions", "tensors", "tapes", "arrays"]


@dataclass(frozen=True)
class Reading(Record):
    """What there was at one moment of a watch."""

    seconds: float  # since the watch began
    step: int  # steps that were marked so far
    process_bytes: int
    device_bytes: int | None = None  # None where the allocator keeps no statistics
    tensors: int | None = None  # eager ones, at the last look at all objects; None before the first
    tensor_bytes: int | None = None
    graphs: int = 0  # FuncGraphs that are alive
    traces: int = 0  # of tf.functions, since the watch began
    closures: int = 0  # Python functions that TensorFlow holds
    gradients: int = 0  # entries in TensorFlow's registry of gradients


@dataclass(frozen=True)
class Leak(Record):
    """Something that grows, or is kept for good, and the user's line that makes it."""

    leaked: Leaked
    source: str  # file:line, empty where nothing of the user's is known
    count: int
    bytes_each: int | None  # for each iteration; None where it cannot be told
    evidence: tuple[str, ...]
    advice: str
    paste: str  # a line that mends it
    also: tuple[str, ...] = ()  # further lines that take part

    def describe(self) -> str:
        """The leak in a sentence."""
        size = "" if not self.bytes_each else f", {format_size(self.bytes_each)} each"
        what = _NAMES[self.leaked] + "s" * (self.count != 1)
        return f"{self.source or 'an unknown line'} leaks {self.count} {what}{size}"


_NAMES: dict[Leaked, str] = {
    "models": "model",
    "retracing": "trace",
    "python_functions": "Python function",
    "tensors": "tensor",
    "tapes": "tape",
    "arrays": "array",
}
