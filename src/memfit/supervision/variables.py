"""Everything that training changes in a model, as arrays, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from memfit.errors import CannotResume
from memfit.runs import keras_internals
from memfit.supervision import internals
from memfit.supervision.files import Array

_SEED = "global seed"


class Variables:
    """The variables of a model, its optimizers and metrics, and Keras' own seed, in one order."""

    def __init__(self, model: Any, *, with_seed: bool = False) -> None:
        """With the seed: it is made where there is none yet."""
        if with_seed:
            internals.global_seed_state()
        found = [
            *model.variables,
            *model.metrics_variables,
            *(one for optimizer in keras_internals.optimizers_of(model) for one in optimizer.variables),
        ]
        distinct = {id(variable): variable for variable in found}
        for seed in keras_internals.global_seed_states():
            distinct.pop(id(seed), None)
        self._rows = [(variable.path, variable) for variable in distinct.values()]
        self._rows += [(_SEED, seed) for seed in keras_internals.global_seed_states()]

    @property
    def shapes(self) -> list[list[Any]]:
        """What they are: name, shape and type of each."""
        return [[name, list(one.shape), str(one.dtype)] for name, one in self._rows]

    @property
    def size_bytes(self) -> int:
        """What all of them take."""
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
    return int(keras_internals.backing_variable(variable).dtype.size)


def _first_difference(mine: Sequence[Sequence[Any]], before: Sequence[Sequence[Any]]) -> str:
    for (name, shape, dtype), (_, old_shape, old_dtype) in zip(mine, before, strict=False):
        if [list(shape), dtype] != [list(old_shape), old_dtype]:
            return f"; {name} is {tuple(shape)} {dtype}, was {tuple(old_shape)} {old_dtype}"
    return ""
