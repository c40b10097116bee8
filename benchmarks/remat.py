"""What rematerialisation saves and costs: activation peak and step time against the plain model.

Both models run in one process on the same batch and take turns; the time is a median. The activation peak is
the peak of a warm step less what is there before it and one copy of the gradients: a median too, of a model
alone in its process, because the gaps that another leaves in the pool are none of its doing. Under XLA it
is the temporary memory of XLA's own buffer assignment. The drift is the largest difference of any weight
after 20 steps: between rematerialised and plain, and between plain and plain on one thread.

Name models or parts (graph, xla, largest_batch) to measure only those; the other figures stay as they were.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

from _children import in_child
from _remat_models import NAMES, batch_size_of, build, data_for
from _results import read_figures, write_results

STEPS = 20  # the first one compiles, the others are timed
_HALFWAY_STEPS = 9
_PEAK_STEPS = 5
LIMIT_BYTES = 12 << 30
LARGEST_IN = {"DenseNet121": 400 << 20, "transformer": 400 << 20}


class Side:
    """A model that trains step by step, and what its steps took."""

    def __init__(self, name: str, *, remat: bool = False, **options: Any) -> None:
        import keras
        import tensorflow as tf

        import memfit

        self.model, loss = build(name)
        count = batch_size_of(name)
        self.handle = memfit.remat(self.model, batch_size=count, **options) if remat else None
        self.model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
        x, y = data_for(name, self.model, count)
        batch = (tf.constant(x), tf.constant(y))
        self._batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
        self.model.make_train_function()
        self.gradient_bytes = sum(4 * v.shape.num_elements() for v in self.model.trainable_variables)
        self.seconds: list[float] = []
        self.peaks: list[int] = []

    def step(self) -> None:
        """One step."""
        import memfit

        with memfit.devices.measure_peak() as measured:
            began = time.perf_counter()
            self.model.train_function(self._batches)
            self.seconds.append(time.perf_counter() - began)
        self.peaks.append(measured.over_base_bytes)

    @property
    def activation_bytes(self) -> int:
        """The activation peak of warm steps."""
        return int(statistics.median(self.peaks[1:])) - self.gradient_bytes

    def values(self) -> list[Any]:
        """All variables of the model."""
        return [variable.numpy() for variable in self.model.variables]


def measure(name: str, folder: str) -> dict[str, Any]:
    """All figures of one model in graph mode; the plain model's weights after the last step go to a file."""
    import logging

    import numpy as np

    logging.getLogger("memfit").setLevel(logging.ERROR)
    plain, ours = Side(name), Side(name, remat=True)
    start = plain.values()
    figures: dict[str, Any] = {}
    for number in range(STEPS):
        for side in (plain, ours):
            side.step()
        if number == 0:
            difference = _largest_difference(plain.values(), ours.values())
            move = _largest_difference(start, plain.values())
            figures["difference_to_largest_move_after_one_step"] = difference / move
        if number == 2:
            figures["moved_besides_weights_identical_after_three_steps"] = _same_state(plain, ours)
    assert ours.handle is not None
    figures |= {
        "segments": ours.handle.segments,
        "expected_bytes": {"plain": ours.handle.plain_bytes, "ours": ours.handle.peak_bytes},
        "time": _ratio(ours, plain),
    }
    figures["drift"] = _largest_difference(plain.values(), ours.values())
    np.savez(f"{folder}/plain.npz", *plain.values())
    figures["with_a_budget_halfway"] = _halfway(name, plain, ours)
    return figures


def activation_peak(name: str, remat: bool) -> int:
    """The activation peak of a model that is alone in its process."""
    side = Side(name, remat=remat)
    for _ in range(1 + _PEAK_STEPS):
        side.step()
    return side.activation_bytes


def drift_on_one_thread(name: str, folder: str) -> float:
    """How far the plain model comes from itself when this process has one thread for its operations."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    plain = Side(name)
    for _ in range(STEPS):
        plain.step()
    with np.load(f"{folder}/plain.npz") as others:
        return _largest_difference(list(others.values()), plain.values())


def _largest_difference(some: list[Any], others: list[Any]) -> float:
    import numpy as np

    pairs = zip(some, others, strict=True)
    return max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs if a.dtype.kind == "f")


def _same_state(plain: Side, ours: Side) -> bool:
    """Whether seeds and BatchNorm statistics are the same, bit for bit."""
    pairs = zip(plain.model.non_trainable_variables, ours.model.non_trainable_variables, strict=True)
    return all((a.numpy() == b.numpy()).all() for a, b in pairs)


def _halfway(name: str, plain: Side, ours: Side) -> dict[str, Any]:
    """The same with a budget between the plain peak and the smallest: how much of the extra time is left."""
    from memfit.rematerialising.rematerialise import base_bytes

    assert ours.handle is not None
    base = base_bytes(ours.model, batch_size_of(name))
    budget = base + (ours.handle.plain_bytes + ours.handle.peak_bytes) // 2
    between = Side(name, remat=True, budget=budget)
    for _ in range(1 + _HALFWAY_STEPS):
        for side in (plain, between):
            side.step()
    return {"activation_bytes": between.activation_bytes, "time": _ratio(between, plain)}


def _ratio(ours: Side, plain: Side) -> float:
    """The median of our time against the plain model's, over the steps that both took in turns."""
    timed = len(ours.seconds) - 1
    pairs = zip(ours.seconds[-timed:], plain.seconds[-timed:], strict=True)
    return round(statistics.median(a / b for a, b in pairs), 3)


def measure_xla(name: str) -> dict[str, Any]:
    """Temporary bytes of the compiled step, plain and rematerialised."""
    plain, ours = (_temporary_bytes(name, remat=remat) for remat in (False, True))
    return {"plain_temporary_bytes": plain, "temporary_bytes": ours, "times_smaller": round(plain / ours, 2)}


def _temporary_bytes(name: str, *, remat: bool) -> int:
    import keras
    import tensorflow as tf

    import memfit
    from memfit.private.tensorflow.graph_defs import buffers_of

    model, loss = build(name)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=True)
    if remat:
        memfit.remat(model, batch_size=batch_size_of(name))
    x, y = data_for(name, model, batch_size_of(name))
    model.train_on_batch(x[:1], y[:1])
    step = tf.function(lambda x, y: model.train_step((x, y)), jit_compile=True, autograph=False)
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in (x, y)]
    temporary, _ = buffers_of(step, specs)
    return sum(temporary)


def largest_batch(name: str, remat: bool) -> int:
    """The largest batch of which two steps really run in this process's limit, in steps of an eighth."""
    import keras
    import tensorflow as tf

    import memfit

    model, loss = build(name)
    if remat:
        memfit.remat(model, batch_size=batch_size_of(name))
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    size, largest = 4, 0
    while True:
        x, y = data_for(name, model, 2 * size)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
        try:
            model.fit(batches, verbose=0)
        except tf.errors.ResourceExhaustedError:
            return largest
        largest, size = size, size + max(1, size // 8)


def measure_graph(name: str) -> dict[str, Any]:
    """The figures of one model in graph mode."""
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = in_child(measure, LIMIT_BYTES, name=name, folder=folder)
        figures["drift_on_one_thread"] = in_child(drift_on_one_thread, LIMIT_BYTES, name=name, folder=folder)
    plain, ours = (in_child(activation_peak, LIMIT_BYTES, name=name, remat=remat) for remat in (False, True))
    return figures | {
        "plain_activation_bytes": plain, "activation_bytes": ours, "times_smaller": round(plain / ours, 2)
    }  # fmt: skip


def measure_largest_batch(name: str) -> dict[str, Any] | None:
    """The largest batch of one model, for those that it is asked of."""
    limit_bytes = LARGEST_IN.get(name)
    if limit_bytes is None:
        return None
    plain, ours = (in_child(largest_batch, limit_bytes, name=name, remat=remat) for remat in (False, True))
    return {
        "limit_bytes": limit_bytes, "plain": plain, "ours": ours, "times_larger": round(ours / plain, 2)
    }  # fmt: skip


PARTS = {
    "graph": measure_graph,
    "xla": lambda name: in_child(measure_xla, LIMIT_BYTES, name=name),
    "largest_batch": measure_largest_batch,
}


def main(chosen: list[str]) -> None:
    """Measure models one after the other, and write after each."""
    names = [name for name in NAMES if name in chosen] or NAMES
    parts = [part for part in PARTS if part in chosen] or PARTS
    figures = read_figures("remat") if chosen else {}
    for name in names:
        for part in parts:
            print(f"measuring {name}: {part} ...", file=sys.stderr)
            found = PARTS[part](name)
            if found is not None:
                figures.setdefault(name, {})[part] = found
                write_results("remat", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
