"""A step tried on a few samples, whole and in two parts: which of its values add up, and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np

from memfit.guarding.step.batches import Batch, as_tensor, nudged_by_a_bit
from memfit.guarding.step.computation import Computation
from memfit.guarding.step.loss_weights import Kind, Vector, Weighing, share_vectors
from memfit.guarding.step.staged_step import Computed, StagedStep, flatten
from memfit.private.keras.layers import all_layers

NOTHING_TO_TELL = (
    "the gradients of the first samples are zero or not finite, which does not tell how they add up"
)
_NEXT_TO_NOTHING = 1e-6  # of a gradient of rounding errors alone, as those of a model that fits its data
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
_COARSE = 3e-2  # half precision
_EXACT = 1e-12
_TIMES_ROUNDING = 8.0  # one nudge is a sample of what rounding does
_MOST_ROUNDING = 3e-3  # of a gradient: what moves further by a last bit was not moved by rounding
_NOISE = 1e-2  # of the largest gradient: some are zero but for rounding, such as that of attention's key bias

_IN_WORDS: dict[Kind, str] = {
    "mean": "a mean",
    "sum": "a sum",
    "rows": "a row for each sample",
    "last": "a running result",
}


class SplitTrial:
    """A step on a few samples of a batch: whole, and in two parts."""

    def __init__(self, computation: Computation, batch: Batch, *, rows: int) -> None:
        cut = max(1, rows * 3 // 8)  # parts of different sizes
        self._computation = computation
        self._neutral = np.ones(1 + computation.output_count)
        self._parts = [batch.part(0, rows), batch.part(0, cut), batch.part(cut, rows)]
        self._shares = (cut / rows, (rows - cut) / rows)
        self._coarse = _computes_in_half_precision(computation.model)
        self._is_next_to_nothing = False
        self.notes: list[str] = []
        self.once: set[int] = set()

    def weigh(self) -> tuple[Weighing, str | None]:
        """The weighing by which values add up over parts, and the reason if they do not."""
        found, reason = self._weigh(Weighing())
        if reason is not None and self._computation.output_count:
            # A step may add something of its own to what Keras computes: then both are weighed together.
            together, reason_together = self._weigh(Weighing(weighs_losses=False))
            if reason_together is None:
                found, reason = together, None
        return found, reason

    def _weigh(self, weighing: Weighing) -> tuple[Weighing, str | None]:
        self.notes = []
        step, results = self._run(weighing)
        kinds = self._kinds(results)
        if weighing.weighs_losses and any(kinds.get(place) == "sum" for place in _added(step)):
            # What a layer adds was taken for a mean: weigh it as the sum that it is, and look again.
            weighing = Weighing(observed={place: kinds[place] for place in _added(step) if place in kinds})
            step, results = self._run(weighing)
            kinds = self._kinds(results)
        added = {place: kinds[place] for place in _added(step) if place in kinds}
        gradients = self._kind_of_gradients(results)
        if gradients == "neither":  # or so ill-conditioned that rounding alone moves them as far
            gradients = self._kind_of_gradients(results, rounding=self._rounding(step, results[0]))
        found = replace(
            weighing,
            observed={place: kind for place, kind in kinds.items() if kind != "neither"},
            gradients=gradients or "sum",
            outputs=self._kinds_of_outputs(results),
        )
        for place, kind in kinds.items():
            if kind == "neither" and place not in added:
                self.notes.append(f"{step.observed_names[place]} is averaged over micro-batches.")
        return found, self._why_not(found, added)

    def _run(self, weighing: Weighing) -> tuple[StagedStep, list[Computed]]:
        """The whole, the first part, the second part after the first."""
        step = StagedStep(self._computation, weighing)
        step.quiet = True
        step.jit_compile = False
        vectors = [self._neutral] * len(self._parts)
        results: list[Computed] = []
        for _ in range(2):  # first to measure the parts, then with their shares
            results = self._run_all(step, vectors)
            measured = [np.asarray(result.denominators) for result in results[1:]]
            vectors = [self._neutral, *share_vectors(measured)]
        self.once |= step.once
        return step, results

    def _run_all(self, step: StagedStep, vectors: list[Vector]) -> list[Computed]:
        start = step.start_values(self._parts[0])
        results = []
        values = start
        for number, (part, vector) in enumerate(zip(self._parts, vectors, strict=True)):
            if number < 2:
                values = start
            structure, leaves = flatten(part)
            computed = step.run_alone(structure, leaves, as_tensor(vector), values)
            # Metrics go on from part to part; seeds do not, so that all parts draw the same.
            moved = {int(place): value for place, value in computed.moved.items() if value.dtype.is_floating}
            moved = {place: value for place, value in moved.items() if place not in step.once}
            values = [moved.get(place, value) for place, value in enumerate(values)]
            results.append(_on_host(computed))
        return results

    def _rounding(self, step: StagedStep, whole: Computed) -> dict[str, float]:
        """The distance that each gradient of the whole moves when its inputs move by their last bit."""
        structure, leaves = flatten(nudged_by_a_bit(self._parts[0]))
        start = step.start_values(self._parts[0])
        nudged = step.run_alone(structure, leaves, as_tensor(self._neutral), start)
        before, after = _dense_gradients(whole), _dense_gradients(nudged)
        pairs = {name: _same_rows(before[name], after[name]) for name in before}
        return {name: float(np.max(np.abs(a - b), initial=0.0)) for name, (a, b) in pairs.items()}

    def _kinds(self, results: list[Computed]) -> dict[int, Kind]:
        """The kind of each observed number, mean or sum or neither; left out where both ways would do."""
        columns = zip(*(result.observed for result in results), strict=True)
        kinds = {place: self._kind_of(*map(np.asarray, column)) for place, column in enumerate(columns)}
        return {place: kind for place, kind in kinds.items() if kind is not None}

    def _kind_of(self, whole: Any, first: Any, second: Any, **errors: float) -> Kind | None:
        mean = self._close(whole, self._shares[0] * first + self._shares[1] * second, **errors)
        total = self._close(whole, first + second, **errors)
        if mean and total:
            return None
        return "mean" if mean else "sum" if total else "neither"

    def _kind_of_gradients(
        self, results: list[Computed], rounding: dict[str, float] | None = None
    ) -> Kind | None:
        """The kind of the gradients, mean or sum or neither; None where there are none."""
        whole, first, second = (_dense_gradients(result) for result in results)
        if not whole:
            return None
        largest = max(float(np.max(np.abs(gradient), initial=0.0)) for gradient in whole.values())
        self._is_next_to_nothing = not _NEXT_TO_NOTHING < largest < np.inf
        kinds = {
            self._kind_of(
                *_same_rows(whole[name], first[name], second[name]),
                noise=_NOISE * largest,
                rounding=(rounding or {}).get(name, 0.0),
            )
            for name in sorted(whole)
        }
        kinds -= {None}  # zero in all parts
        return kinds.pop() if len(kinds) == 1 else "neither"  # no telling where all are zero

    def _kinds_of_outputs(self, results: list[Computed]) -> list[Kind]:
        leaves = [keras.tree.flatten(result.outputs) for result in results]
        return [self._kind_of_output(*values) for values in zip(*leaves, strict=True)]

    def _kind_of_output(self, whole: Any, first: Any, second: Any) -> Kind:
        try:
            whole, first, second = (np.asarray(value) for value in (whole, first, second))
        except (TypeError, ValueError):
            return "last"
        if whole.dtype.kind not in "fiub" and whole.dtype.name != "bfloat16":
            return "last"
        if whole.ndim and len(whole) == len(first) + len(second):
            return "rows" if self._close(whole, np.concatenate([first, second])) else "neither"
        if whole.shape != second.shape:
            return "neither"
        return "last" if self._close(whole, second) else self._kind_of(whole, first, second) or "mean"

    def _close(self, whole: Any, together: Any, *, noise: float = 0.0, rounding: float = 0.0) -> bool:
        """Whether two arrays are the same but for rounding, in numbers of at least the size of `noise`.

        `rounding` is the distance that rounding was seen to make.
        """
        if whole.shape != together.shape or not np.all(np.isfinite(together.astype(np.float64))):
            return False
        finest = _EXACT if whole.dtype.kind in "iub" else _TOLERANCES.get(str(whole.dtype), _COARSE)
        tolerance = max(finest, _COARSE) if self._coarse else finest
        scale = max(noise, float(np.max(np.abs(whole.astype(np.float64)), initial=0.0)))
        distance = np.abs(whole.astype(np.float64) - together.astype(np.float64))
        seen = min(_TIMES_ROUNDING * rounding, _MOST_ROUNDING * scale)
        return bool(np.max(distance, initial=0.0) <= max(tolerance * scale, seen))

    def _why_not(self, found: Weighing, added: dict[int, Kind]) -> str | None:
        if found.weighs_losses and "neither" in added.values():
            return "a loss that a layer adds is neither a mean nor a sum over samples"
        if found.gradients == "neither" and self._is_next_to_nothing:
            return NOTHING_TO_TELL
        if found.gradients == "neither":
            return "the gradients of a batch are neither the mean nor the sum of those of its samples"
        wanted = self._computation.outputs_must_be
        if wanted and any(kind not in wanted for kind in found.outputs or ()):
            return "not every output is " + " or ".join(_IN_WORDS[kind] for kind in wanted)
        return None


def _added(step: StagedStep) -> list[int]:
    """The places of losses that layers add among what was observed."""
    return [place for place, name in enumerate(step.observed_names) if name is None]


def _computes_in_half_precision(model: Any) -> bool:
    layers = [] if model is None else all_layers(model)
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in layers)


def _on_host(computed: Computed) -> Computed:
    """The same with its gradients in host memory, so that those of one part at a time take the device's."""
    copies = keras.tree.map_structure(np.array, (computed.gradients, computed.slices))
    return computed._replace(gradients=copies[0], slices=copies[1])


def _dense_gradients(computed: Computed) -> dict[str, Any]:
    """Gradients as arrays; sparse ones by the rows up to the last that they touch."""
    gradients = {name: np.asarray(gradient) for name, gradient in computed.gradients.items()}
    for name, (indices, values) in computed.slices.items():
        rows = np.asarray(values)
        dense = np.zeros((int(np.max(indices, initial=0)) + 1, *rows.shape[1:]), rows.dtype)
        np.add.at(dense, np.asarray(indices), rows)
        gradients[name] = dense
    return gradients


def _same_rows(*arrays: Any) -> list[Any]:
    """Arrays filled up with rows of zeros to the same length."""
    most = max(len(array) if array.ndim else 0 for array in arrays)
    return [
        np.concatenate([array, np.zeros((most - len(array), *array.shape[1:]), array.dtype)])
        if array.ndim and len(array) < most
        else array
        for array in arrays
    ]
