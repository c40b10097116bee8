"""The contents of a training checkpoint: variables, data, callbacks, random numbers; taken, and put back."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memfit.core.errors import CannotResume
from memfit.private.keras.global_state import global_seed_state, global_seed_states
from memfit.private.keras.trainer import optimizers_of
from memfit.private.tensorflow.runtime import has_global_seed, operation_seeds
from memfit.private.tensorflow.variables import backing_variable
from memfit.running.checkpoints.format import Array, NotPlain, decode, encode

_SEED = "global seed"


@dataclass(frozen=True)
class Progress:
    """The fields of a checkpoint besides its arrays: how far a training is, and how it goes on from there."""

    fingerprint: str  # of the model
    position: Sequence[int]  # epochs that are over, batches of the next one
    steps: int
    variables: Sequence[Sequence[Any]]  # name, shape and type of each
    first_batch: int | None  # digests of batches
    last_batch: int | None
    random_at_start: Any
    random: Any
    callbacks: Sequence[Any]
    ladder: dict[str, Any] | None
    plan: dict[str, Any] | None
    stop_training: bool


class Variables:
    """The variables of a model, its optimizers and metrics, and Keras' own seed, in one order."""

    def __init__(self, model: Any, *, with_seed: bool = False) -> None:
        """With the seed: it is made where there is none yet."""
        if with_seed:
            global_seed_state()
        found = [
            *model.variables,
            *model.metrics_variables,
            *(one for optimizer in optimizers_of(model) for one in optimizer.variables),
        ]
        distinct = {id(variable): variable for variable in found}
        for seed in global_seed_states():
            distinct.pop(id(seed), None)
        self._rows = [(variable.path, variable) for variable in distinct.values()]
        self._rows += [(_SEED, seed) for seed in global_seed_states()]

    @property
    def shapes(self) -> list[list[Any]]:
        """The name, shape and type of each variable."""
        return [[name, list(one.shape), str(one.dtype)] for name, one in self._rows]

    @property
    def size_bytes(self) -> int:
        """The bytes of all variables."""
        return sum(int(np.prod(one.shape)) * _bytes_of(one) for _, one in self._rows)

    def values(self) -> Iterator[tuple[str, Array]]:
        """One array for each, copied when it is asked for: training changes variables where they are."""
        for number, (_, variable) in enumerate(self._rows):
            yield f"variable/{number}", np.array(variable.numpy())

    def assign(self, shapes: Sequence[Sequence[Any]], arrays: dict[str, Array]) -> None:
        """Take the values of before; raises, and changes nothing, unless they are for these variables."""
        mine = [[shape, dtype] for _, shape, dtype in self.shapes]
        if mine != [[list(shape), dtype] for _, shape, dtype in shapes]:
            raise CannotResume(
                "the model is another one than before",
                expected=f"{len(shapes)} variables as they were",
                received=f"{len(mine)} variables{_first_difference(self.shapes, shapes)}",
            )
        for number, (_, variable) in enumerate(self._rows):
            variable.assign(arrays[f"variable/{number}"])


def has_seed(shapes: Sequence[Sequence[Any]]) -> bool:
    """Whether Keras' own seed was among variables."""
    return any(name == _SEED for name, _, _ in shapes)


def _bytes_of(variable: Any) -> int:
    return int(backing_variable(variable).dtype.size)


def _first_difference(mine: Sequence[Sequence[Any]], before: Sequence[Sequence[Any]]) -> str:
    for (name, shape, dtype), (_, old_shape, old_dtype) in zip(mine, before, strict=False):
        if [list(shape), dtype] != [list(old_shape), old_dtype]:
            return f"; {name} is {tuple(shape)} {dtype}, was {tuple(old_shape)} {old_dtype}"
    return ""


_NAME = "pipeline/"
_MOST_BYTES = 64 << 20
_MOST_SECONDS = 0.5


class PipelineStates:
    """Takes the states of one training's pipelines, for as long as that works and costs little."""

    def __init__(self) -> None:
        self._works = True

    def take(self, iterator: Any) -> dict[str, Array]:
        """The state of an iterator as arrays; none if that is much, in Python code, or random numbers."""
        if not self._works:
            return {}
        began = time.monotonic()
        try:
            found = _written(iterator)
        except (tf.errors.OpError, ValueError, TypeError):
            self._works = False
            return {}
        size = sum(array.nbytes for array in found.values())
        self._works = size <= _MOST_BYTES and time.monotonic() - began <= _MOST_SECONDS
        return found if self._works else {}


def has_state(arrays: dict[str, Array]) -> bool:
    """Whether the state of a pipeline is among arrays."""
    return any(name.startswith(_NAME) for name in arrays)


def put_back_pipeline(iterator: Any, arrays: dict[str, Array]) -> None:
    """Have an iterator go on where another one was."""
    with tempfile.TemporaryDirectory() as folder:
        for name, array in arrays.items():
            if name.startswith(_NAME):
                (Path(folder) / name.removeprefix(_NAME)).write_bytes(array.tobytes())
        tf.train.Checkpoint(iterator=iterator).read(f"{folder}/state").assert_consumed()


def _written(iterator: Any) -> dict[str, Array]:
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(iterator=iterator).write(f"{folder}/state")
        return {
            f"{_NAME}{path.name}": np.frombuffer(path.read_bytes(), np.uint8)
            for path in sorted(Path(folder).iterdir())
        }


_NOT_THEIRS = {"model", "_model", "params"}  # Keras gives them these anew


def listed(callbacks: Any) -> tuple[Any, list[Any]]:
    """The callbacks to give to `fit`, with a History among them; and all of them as a list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks, list(callbacks.callbacks)
    if callbacks is None:
        found = []
    else:
        found = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    if not any(isinstance(callback, keras.callbacks.History) for callback in found):
        found.append(keras.callbacks.History())
    return found, list(found)


def remembered(callbacks: Sequence[Any], arrays: dict[str, Array]) -> list[Any]:
    """The state of each callback, as far as it is plain data; arrays go into `arrays`."""
    found = []
    for number, callback in enumerate(callbacks):
        attributes = {}
        for name, value in _attributes(callback).items():
            kept: dict[str, Array] = {}
            try:
                attributes[name] = encode(value, kept, f"callback/{number}/{name}")
            except NotPlain:
                continue
            arrays.update(kept)
        found.append([type(callback).__name__, attributes, _written_bytes(callback)])
    return found


def _attributes(callback: Any) -> dict[str, Any]:
    if isinstance(callback, keras.callbacks.CSVLogger):
        return {}  # what it knows, it finds in its file
    return {name: value for name, value in vars(callback).items() if name not in _NOT_THEIRS}


def remind(callbacks: Sequence[Any], saved: Sequence[Any], arrays: dict[str, Array]) -> None:
    """Let callbacks remember what was saved, wherever they are of the same kind."""
    for callback, (kind, attributes, _) in zip(callbacks, saved, strict=False):
        if type(callback).__name__ == kind:
            vars(callback).update({name: decode(value, arrays) for name, value in attributes.items()})


def go_on_writing(callbacks: Sequence[Any], saved: Sequence[Any]) -> None:
    """Have files of callbacks end where they did, and go on from there."""
    for callback, (kind, _, written_bytes) in zip(callbacks, saved, strict=False):
        if isinstance(callback, keras.callbacks.CSVLogger) and kind == "CSVLogger":
            path = Path(callback.filename)
            callback.append = True
            if written_bytes is not None and path.exists() and path.stat().st_size > written_bytes:
                with path.open("r+b") as file:
                    file.truncate(written_bytes)


def _written_bytes(callback: Any) -> int | None:
    """The bytes of the file that a callback adds lines to."""
    if not isinstance(callback, keras.callbacks.CSVLogger):
        return None
    path = Path(callback.filename)
    return path.stat().st_size if path.exists() else 0


def history_of(callbacks: Sequence[Any]) -> Any:
    """The one among them that `fit` returns."""
    found = (callback for callback in callbacks if isinstance(callback, keras.callbacks.History))
    return next(found, None) or keras.callbacks.History()


_GENERATORS = ("python", "numpy", "tensorflow")


def random_state() -> dict[str, Any]:
    """The states of the random number generators of Python, NumPy and TensorFlow."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "tensorflow": operation_seeds().getstate() if has_global_seed() else None,
    }


def put_back_random_state(
    state: dict[str, Any], *, only: tuple[str, ...] = ("python", "numpy", "tensorflow")
) -> None:
    """Have those generators go on from where they were."""
    if "python" in only:
        random.setstate(state["python"])
    if "numpy" in only:
        np.random.set_state(state["numpy"])
    if "tensorflow" in only and state["tensorflow"] is not None and has_global_seed():
        operation_seeds().setstate(state["tensorflow"])


def unmoved_generators(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """The generators that have not been drawn from in between."""
    return tuple(name for name, state in before.items() if _comparable(state) == _comparable(now[name]))


def _comparable(state: Any) -> Any:
    """A state that can be compared, arrays and all."""
    if isinstance(state, tuple | list):
        return tuple(map(_comparable, state))
    return tuple(state.tolist()) if hasattr(state, "tolist") else state
