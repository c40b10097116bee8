"""Room for a step: what cannot fit is not tried, and kernels that would end the process are checked before.

The least that a step can do with is read off its graph. Whatever the forward pass computes and the backward
pass uses is in memory at once when the one ends and the other begins; and every operation has its inputs in
memory at once. TensorFlow's optimiser finds ways to keep less: of 29 models one did with two thirds of that
sum, so a little less is what counts here. Trying what cannot fit costs TensorFlow's ten seconds, and with a
pool far too small its optimiser may end the process when it computes constants.

Kernels of oneDNN end the process where they find no memory. Right before such an operation, another one takes
as much memory as its output needs and gives it back. It does not touch that memory, so it costs microseconds;
where there is none, it raises as TensorFlow's own kernels do, and the step fails instead of the process. The
size is known when the graph runs, so one trace serves every micro-batch. Checked operations run one after the
other, each on all cores: two that were checked at the same time could both find the same room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from memfit.core.records.programs import pieces_of_room
from memfit.private.tensorflow.graph_defs import (
    add_control_input,
    body_of_loop,
    buffers_of,
    each_operation,
    is_in_loop,
)
from memfit.private.tensorflow.runtime import uses_onednn

_BACKWARD = "gradient_tape/"
_SURELY = 0.65  # of what the graph as it is traced would keep
# Of what loops keep for the way back. A loop that runs out is stuck for minutes: it goes on with all that it
# has begun, and each operation waits for ten seconds. So it is not begun where it might not fit.
_IN_LOOPS = 1.5
_IN_ONE_PIECE = 0.8  # of what is free: XLA asks for one block, and pools grow in pieces
_FAR_BELOW = 6  # times as much is free as the graph would keep: then XLA need not be asked
_ALIASES = frozenset({
    "Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "CheckNumerics",
    "EnsureShape", "Bitcast",
})  # fmt: skip
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})  # which need no values
# What these make is not computed by the step.
_NOT_MADE = frozenset({"Const", "Placeholder", "ReadVariableOp", "VarHandleOp", "Empty"})


@dataclass(frozen=True)
class LeastNeed:
    """The bytes that a step takes at least: for itself, for each row of its batch, and in loops."""

    fixed_bytes: int
    bytes_per_row: int
    in_loops: LeastNeed | None = None

    def at(self, rows: int) -> int:
        """The bytes for a batch of so many rows."""
        return self.fixed_bytes + rows * self.bytes_per_row + (self.in_loops.at(rows) if self.in_loops else 0)

    def with_more(self, other: LeastNeed) -> LeastNeed:
        """Both together."""
        return LeastNeed(self.fixed_bytes + other.fixed_bytes, self.bytes_per_row + other.bytes_per_row)

    def check(self, rows: int, free_bytes: int | None) -> None:
        """Raise where a step on so many rows cannot fit into what is free."""
        needed_bytes = int(_SURELY * self.at(rows))
        if self.in_loops is not None and rows > 1:  # one sample is tried in any case
            needed_bytes = max(needed_bytes, int(_IN_LOOPS * self.in_loops.at(rows)))
        if free_bytes is not None and needed_bytes > free_bytes:
            raise WouldRunOut(needed_bytes, free_bytes)


class WouldRunOut(Exception):
    """A step that cannot fit into what is free; nothing was run, and nothing has changed."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"It needs at least {needed_bytes:,} bytes, and {free_bytes:,} are free.")
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class CompiledNeed:
    """The bytes that XLA lays out for a step, besides what the step is given.

    XLA compiles the step to tell them, so it is asked once for a size, and only where that might not fit.
    """

    def __init__(self, concrete: Any) -> None:
        self._concrete, self._rough = concrete, least_need(concrete.graph)
        self._known: dict[int, int] = {}

    def check(self, rows: int, free_bytes: int | None) -> None:
        """Raise where a step on so many rows cannot fit into what is free."""
        if free_bytes is None or _FAR_BELOW * self._rough.at(rows) <= free_bytes:
            return
        if rows not in self._known:
            self._known[rows] = self._bytes(rows)
        if self._known[rows] > free_bytes:
            raise WouldRunOut(self._known[rows], free_bytes)

    def _bytes(self, rows: int) -> int:
        given = tf.nest.flatten(self._concrete.structured_input_signature)
        specs = [tf.TensorSpec([rows if n is None else n for n in one.shape], one.dtype) for one in given]
        return int(sum(map(sum, buffers_of(self._concrete, specs))) / _IN_ONE_PIECE)


def need_of(concrete: Any, *, jit_compile: bool) -> LeastNeed | CompiledNeed:
    """The need of a traced step, with a check for each size of its batch."""
    return CompiledNeed(concrete) if jit_compile else least_need(concrete.graph)


def least_need(func_graph: Any) -> LeastNeed:
    """The least that a graph can do with."""
    backward: set[str] = set()  # the names of operations
    saved: dict[str, Any] = {}
    most, in_loops, again = LeastNeed(0, 0), LeastNeed(0, 0), LeastNeed(0, 0)
    for operation in func_graph.get_operations():
        before = [tensor.op for tensor in operation.inputs] + operation.control_inputs
        if _BACKWARD in operation.name or any(one.name in backward for one in before):
            backward.add(operation.name)
        if operation.type in _SHAPES:
            continue
        if operation.name in backward:  # computed again, one after the other
            again = max(again, _kept_by_loop(operation), key=_rough)
        else:
            in_loops = in_loops.with_more(_kept_by_loop(operation))
        sources = {source.name: source for source in map(_source, operation.inputs) if _is_made(source)}
        if operation.name in backward:
            saved |= {name: one for name, one in sources.items() if one.op.name not in backward}
        if operation.type not in _NOT_MADE | _ALIASES:
            most = max(most, _sum(sources.values()), key=_rough)
    return replace(max(most, _sum(saved.values()), key=_rough), in_loops=in_loops.with_more(again))


def _kept_by_loop(operation: Any) -> LeastNeed:
    """The bytes that a loop keeps for the way back, as far as it is known how often it runs."""
    body = body_of_loop(operation)
    if body is None:
        return LeastNeed(0, 0)
    given = [tensor.op for tensor in operation.inputs if tensor.op.type == "TensorListFromTensor"]
    times = max((one.inputs[0].shape[0] or 0 for one in given if one.inputs[0].shape.rank), default=0)
    pushed = (one.inputs[1] for one in body.get_operations() if one.type == "TensorListPushBack")
    made = {tensor.name: tensor for tensor in map(_source, pushed) if _is_made(tensor)}
    each = _sum(made.values())
    return LeastNeed(times * each.fixed_bytes, times * each.bytes_per_row)


def _rough(need: LeastNeed) -> int:
    """For comparing: graphs are traced for some tens of rows, or for a known number, which is in the sum."""
    return need.at(32)


def _source(tensor: Any) -> Any:
    """The tensor whose memory another one shares."""
    while tensor.op.type in _ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor


def _is_made(tensor: Any) -> bool:
    return tensor.op.type not in _NOT_MADE and tensor.dtype not in (tf.resource, tf.variant, tf.string)


def _sum(tensors: Iterable[Any]) -> LeastNeed:
    fixed_bytes = bytes_per_row = 0
    for tensor in tensors:
        shape = tensor.shape
        if shape.rank and shape[0] is None and shape[1:].is_fully_defined():
            bytes_per_row += shape[1:].num_elements() * tensor.dtype.size
        elif shape.rank is not None and shape.is_fully_defined():
            fixed_bytes += shape.num_elements() * tensor.dtype.size
    return LeastNeed(fixed_bytes, bytes_per_row)


ROOM = "room"  # the last part of the name of a check, below that of its operation

_HALF_BYTES = 2
_LARGEST = tf.int32.max  # that an operation can ask for at once
_WITH_WORKSPACE = ("MaxPool", "MaxPool3D")  # which is as large as the output
_FUSED = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul")  # with a bias and an activation behind them
_LIKE_FIRST_INPUT = (
    "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "FusedBatchNormGrad", "FusedBatchNormGradV2",
    "FusedBatchNormGradV3", "MaxPoolGrad", "MaxPool3DGrad", "Dequantize",
)  # fmt: skip
_SHAPE_IN_FIRST_INPUT = (
    "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput",
)  # fmt: skip
_OTHERS = (
    "Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter", "MaxPool",
    "MaxPool3D",
)  # fmt: skip
# Found by running forty kinds alone in pools that are too small for them; others raise by themselves. So does
# a product in a backward pass: it ends the process only where TensorFlow fuses it with a bias.
_CHECKED = frozenset({*_FUSED, *_LIKE_FIRST_INPUT, *_SHAPE_IN_FIRST_INPUT, *_OTHERS})


def outputs_checked(kind: str, *, is_backward: bool) -> int:
    """The number of outputs that have to find room before an operation of this kind; 0 without a check."""
    if kind not in _CHECKED or (kind == "MatMul" and is_backward):
        return 0
    return 2 if kind in _WITH_WORKSPACE else 1


def may_rearrange_filter(kind: str) -> bool:
    """Whether operations of this kind may copy their second input, a filter, into another order."""
    return kind in (*_FUSED, *_SHAPE_IN_FIRST_INPUT)


def room_checked() -> Any:
    """A context in which functions are traced with checks, where oneDNN makes them necessary."""
    return _checked() if uses_onednn() else nullcontext()


@contextmanager
def _checked() -> Iterator[None]:
    checks = _Checks()
    with each_operation(checks.take):
        yield


class _Checks:
    """Puts checks before the operations of the graphs that are being traced."""

    def __init__(self) -> None:
        self._last: dict[int, Any] = {}  # the operation that was checked last, by its graph
        self._filtered: dict[int, Any] = {}  # what convolutions take, by their weights

    def take(self, operation: Any) -> None:
        """Put a check before an operation, if it needs one."""
        kind = operation.type
        outputs = outputs_checked(kind, is_backward=_BACKWARD in operation.name)
        # In a loop, a product makes little each time round, and a check would cost as much as the product.
        if not outputs or (kind == "MatMul" and is_in_loop(operation)):
            return
        if kind in _FUSED:
            self._filtered[id(operation.inputs[1])] = operation.inputs[0]
        if kind in _SHAPE_IN_FIRST_INPUT and self._is_of_data(operation):
            return  # TensorFlow drops it, unless something else has to wait for it
        if _check(operation, outputs, after=self._last.get(id(operation.graph))):
            self._last[id(operation.graph)] = operation

    def _is_of_data(self, gradient: Any) -> bool:
        """Whether an operation makes the gradient of what the step is given, which is not used."""
        taken = self._filtered.get(id(gradient.inputs[1]))
        while taken is not None and (taken.op.type == "Cast" or taken.op.type in _ALIASES):
            taken = taken.op.inputs[0]
        return taken is not None and taken.op.type == "Placeholder"


def _check(operation: Any, outputs: int, *, after: Any) -> bool:
    """Put a check before an operation of a graph that is being traced; whether there is one."""
    before = _computed_inputs(operation) + ([] if after is None else [after])
    # Not even the sizes are computed before: in a pool that is full, each small number would wait in vain for
    # ten seconds, one after the other.
    with operation.graph.as_default(), tf.name_scope(f"{operation.name}/"), _only_after(before):
        pieces = _pieces(operation, outputs)
        if pieces is None:
            return False
        add_control_input(_waiting(operation), _taken_at_once(pieces, operation.outputs[0].dtype))
    return True


def _pieces(operation: Any, outputs: int) -> list[Any] | None:
    """The sizes of the pieces to make sure of, in numbers; None where the output cannot be told."""
    output = operation.outputs[0]
    filters = operation.inputs[1].shape.num_elements() if may_rearrange_filter(operation.type) else 0
    is_half = output.dtype.size == _HALF_BYTES
    if output.shape.is_fully_defined():
        return pieces_of_room(output.shape.num_elements(), filters or 0, outputs=outputs, is_half=is_half)
    shape = _shape_of_output(operation)
    if shape is None:
        return None
    count = tf.reduce_prod(tf.cast(shape, tf.int64))
    sizes = pieces_of_room(
        count, filters or 0, outputs=outputs, is_half=is_half, smaller=tf.minimum, larger=tf.maximum
    )
    return [
        size if isinstance(size, int) else tf.cast(tf.minimum(size, _LARGEST), tf.int32) for size in sizes
    ]


def _taken_at_once(pieces: list[Any], dtype: Any) -> Any:
    """The operation after which all pieces have been taken, each by itself, and given back.

    Nothing looks at them. The small ones come first: what is held when the next finds no room stays until
    the step has ended.
    """
    rooms: list[Any] = []
    for size in pieces:
        with tf.control_dependencies(rooms):
            taken = [min(size, _LARGEST)] if isinstance(size, int) else tf.reshape(size, (1,))
            rooms.append(tf.raw_ops.Empty(shape=taken, dtype=dtype, init=False, name=ROOM))
    return rooms[0].op if len(rooms) == 1 else tf.raw_ops.Assert(condition=True, data=rooms)


@contextmanager
def _only_after(operations: list[Any]) -> Iterator[None]:
    """Have what is traced here wait for these operations, and for no others."""
    with tf.control_dependencies(None), tf.control_dependencies(operations):
        yield


def _shape_of_output(operation: Any) -> Any:
    """The shape of the first output when the graph runs; None where it cannot be told."""
    output, inputs = operation.outputs[0], operation.inputs
    if operation.type in _SHAPE_IN_FIRST_INPUT:
        return tf.cast(inputs[0], tf.int32)
    if operation.type in _LIKE_FIRST_INPUT:
        return tf.shape(inputs[0])
    if output.shape.rank is None:
        return None
    # All else takes the batch as it comes, and at most as much of the other dimensions.
    given = tf.shape(inputs[0])
    if operation.type == "MatMul":
        rows = given[1] if operation.get_attr("transpose_a") else given[0]
        return None if output.shape[1] is None else tf.stack([rows, output.shape[1]])
    if output.shape[-1] is None:
        return None
    return tf.stack([given[place] if size is None else size for place, size in enumerate(output.shape)])


def _computed_inputs(operation: Any) -> list[Any]:
    """The operations that have to be done before: a check that comes too early sees too much room."""
    ready = ("Const", "Placeholder", "ReadVariableOp", "Shape", "ShapeN")
    return [tensor.op for tensor in operation.inputs if tensor.op.type not in ready]


def _waiting(operation: Any) -> Any:
    """The operation that waits for a check: the one that it is for, or the read of its weights.

    TensorFlow fuses a product with its bias and activation only where nothing makes the product wait.
    """
    if operation.type in _FUSED:
        weights = operation.inputs[1]
        if weights.op.type == "ReadVariableOp" and len(weights.consumers()) == 1:
            return weights.op
    return operation
