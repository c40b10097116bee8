"""What rematerialisation saves and costs: activation peak and step time against the plain model.

Both models run in one process on the same batch and take turns; peak and time are medians. The activation
peak is the peak of a warm step less what is there before it and one copy of the gradients. Under XLA it is
the temporary memory of XLA's own buffer assignment. Name models to measure only those.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _remat_models import NAMES, batch_size_of, build, data_for
from _results import write_results

from memfit.devices import run_in_child

ROUNDS = 7
LIMIT_BYTES = 12 << 30
CHAIN_LEVELS = 3
LARGEST_IN = {"DenseNet121": 400 << 20, "transformer": 400 << 20}
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "PYTHONPATH": str(Path(__file__).parent),
}


class Side:
    """A model that trains step by step, and what its steps took."""

    def __init__(self, name: str, **remat: Any) -> None:
        import keras
        import tensorflow as tf

        import memfit

        self.model, loss = build(name)
        count = batch_size_of(name)
        self.handle = memfit.remat(self.model, batch_size=count, **remat) if remat else None
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


def measure(name: str) -> dict[str, Any]:
    """All figures of one model in graph mode."""
    import logging

    import numpy as np

    logging.getLogger("memfit").setLevel(logging.ERROR)
    levels = CHAIN_LEVELS if name == "dense chain" else 1
    plain, ours = Side(name), Side(name, levels=levels)
    start = plain.values()
    figures: dict[str, Any] = {}
    for number in range(1 + ROUNDS):
        for side in (plain, ours):
            side.step()
        if number == 0:
            pairs = list(zip(start, plain.values(), ours.values(), strict=True))
            move = max(float(np.max(np.abs(b - a))) for a, b, _ in pairs if a.dtype.kind == "f")
            difference = max(float(np.max(np.abs(c - b))) for _, b, c in pairs if b.dtype.kind == "f")
            figures["difference_to_largest_move_after_one_step"] = difference / move
        if number == 2:
            figures["moved_besides_weights_identical_after_three_steps"] = _same_state(plain, ours)
    assert ours.handle is not None
    figures |= {
        "segments": ours.handle.segments,
        "levels": levels,
        "plain_activation_bytes": plain.activation_bytes,
        "activation_bytes": ours.activation_bytes,
        "times_smaller": round(plain.activation_bytes / ours.activation_bytes, 2),
        "expected_bytes": {"plain": ours.handle.plain_bytes, "ours": ours.handle.peak_bytes},
        "time": _ratio(ours, plain),
    }
    figures["with_a_budget_halfway"] = _halfway(name, plain, ours)
    return figures


def _same_state(plain: Side, ours: Side) -> bool:
    """Whether seeds and BatchNorm statistics are the same, bit for bit."""
    pairs = zip(plain.model.non_trainable_variables, ours.model.non_trainable_variables, strict=True)
    return all((a.numpy() == b.numpy()).all() for a, b in pairs)


def _halfway(name: str, plain: Side, ours: Side) -> dict[str, Any]:
    """The same with a budget between the plain peak and the smallest: how much of the extra time is left."""
    from memfit.rematerialise import base_bytes

    assert ours.handle is not None
    base = base_bytes(ours.model, batch_size_of(name))
    budget = base + (ours.handle.plain_bytes + ours.handle.peak_bytes) // 2
    between = Side(name, budget=budget)
    for _ in range(1 + ROUNDS):
        for side in (plain, between):
            side.step()
    return {"activation_bytes": between.activation_bytes, "time": _ratio(between, plain)}


def _ratio(ours: Side, plain: Side) -> float:
    """The median over the last rounds of our time against the plain model's."""
    pairs = zip(ours.seconds[-ROUNDS:], plain.seconds[-ROUNDS:], strict=True)
    return round(statistics.median(a / b for a, b in pairs), 3)


def measure_xla(name: str) -> dict[str, Any]:
    """Temporary bytes of the compiled step, plain and rematerialised."""
    plain, ours = (_temporary_bytes(name, remat=remat) for remat in (False, True))
    return {"plain_temporary_bytes": plain, "temporary_bytes": ours, "times_smaller": round(plain / ours, 2)}


def _temporary_bytes(name: str, *, remat: bool) -> int:
    import keras
    import tensorflow as tf
    from tensorflow.compiler.xla.service import hlo_pb2

    import memfit

    model, loss = build(name)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=True)
    if remat:
        memfit.remat(model, batch_size=batch_size_of(name))
    x, y = data_for(name, model, batch_size_of(name))
    model.train_on_batch(x[:1], y[:1])
    step = tf.function(lambda x, y: model.train_step((x, y)), jit_compile=True, autograph=False)
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in (x, y)]
    proto = hlo_pb2.HloProto()
    proto.ParseFromString(step.experimental_get_compiler_ir(*specs)(stage="optimized_hlo_proto_serialized"))
    return sum(
        allocation.size
        for allocation in proto.buffer_assignment.buffer_allocations
        if not (
            allocation.is_thread_local
            or allocation.is_entry_computation_parameter
            or allocation.maybe_live_out
            or allocation.is_constant
        )
    )


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


def main(names: list[str]) -> None:
    """Measure each model in processes of its own."""
    figures: dict[str, Any] = {"rounds": ROUNDS}
    for name in names or NAMES:
        for what, function in (("graph", measure), ("xla", measure_xla)):
            print(f"measuring {name}, {what} ...", file=sys.stderr)
            found = run_in_child(function, {"name": name}, limit_bytes=LIMIT_BYTES, environment=QUIET)
            figures.setdefault(name, {})[what] = found
            print(found, file=sys.stderr)
    for name, limit_bytes in LARGEST_IN.items():
        if name not in (names or NAMES):
            continue
        print(f"looking for the largest batch of {name} ...", file=sys.stderr)
        plain, ours = (
            run_in_child(
                largest_batch, {"name": name, "remat": remat}, limit_bytes=limit_bytes, environment=QUIET
            )
            for remat in (False, True)
        )
        figures[name]["largest_batch"] = {
            "limit_bytes": limit_bytes, "plain": plain, "ours": ours, "times_larger": round(ours / plain, 2)
        }  # fmt: skip
        print(figures[name]["largest_batch"], file=sys.stderr)
    write_results("remat", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
