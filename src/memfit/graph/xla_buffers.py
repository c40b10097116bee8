"""The temporary memory of functions that XLA compiles, read off its own buffer assignment; nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memfit.model.traced_functions import traced
from memfit.private.tensorflow.graph_defs import body_graph_def, buffers_of


@dataclass(frozen=True)
class Argument:
    """An argument of a function: a tensor of this shape, perhaps with a known value, or a variable."""

    shape: Any
    dtype: Any
    value: Any = None
    is_variable: bool = False

    @classmethod
    def of(cls, tensor: Any, variable: Any) -> Argument:
        """A tensor of a graph, or the variable whose handle it is."""
        if variable is not None:
            return cls(variable.shape, variable.dtype, is_variable=True)
        value = tf.get_static_value(tensor) if _may_be_a_size(tensor) else None
        return cls(tensor.shape, tensor.dtype, value)

    @property
    def is_known(self) -> bool:
        """Whether XLA can be asked: without the value of a size it would end the process."""
        if self.dtype in (tf.resource, tf.variant) or not self.shape.is_fully_defined():
            return False
        return self.value is not None or not _may_be_a_size(self)

    @property
    def spec(self) -> Any:
        """Its shape and type."""
        return tf.TensorSpec(self.shape, self.dtype)


class CompiledFunctions:
    """Functions of a graph that XLA compiles, each kind of which is looked at once."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def temporary_bytes(self, function: Any, arguments: list[Argument], library: Any) -> int | None:
        """The temporary memory of a function in a library; None where it is unknown."""
        if not all(argument.is_known for argument in arguments):
            return None
        key = (_nameless(function), *map(str, arguments))
        if key not in self._known:
            graph_def, returned = body_graph_def(function, [a.shape for a in arguments], library)
            names = [argument.name for argument in function.signature.input_arg]
            handles = {n: a for n, a in zip(names, arguments, strict=True) if a.is_variable}
            if not _reads_only(graph_def, handles):
                return None
            self._known[key] = _look(graph_def, names, arguments, returned)
        return self._known[key]


def _look(graph_def: Any, names: list[str], arguments: list[Argument], returned: list[str]) -> int:
    given = [argument for argument in arguments if argument.value is None]
    inner = [node for node in graph_def.node if node.name not in names]
    del graph_def.node[:]
    graph_def.node.extend(inner)

    def body(*tensors: Any) -> Any:
        remaining = iter(tensors)
        values = [next(remaining) if a.value is None else tf.constant(a.value) for a in arguments]
        mapped = {f"{name}:0": value for name, value in zip(names, values, strict=True)}
        return tf.graph_util.import_graph_def(graph_def, mapped, returned, name="")

    specs = [argument.spec for argument in given]
    temporary, _ = buffers_of(traced(body, *specs, jit_compile=True), specs)
    return sum(temporary)


def _reads_only(graph_def: Any, handles: dict[str, Argument]) -> bool:
    """Let variables be inputs, which they can be where a function only reads them; else False."""
    for node in graph_def.node:
        sources = [name.partition(":")[0] for name in node.input]
        if not any(source in handles for source in sources):
            continue
        if node.op != "ReadVariableOp":
            return False
        node.op = "Identity"
        node.attr.clear()
        node.attr["T"].type = handles[sources[0]].dtype.as_datatype_enum
    return True


def is_compiled(operation: Any, function: Any) -> bool:
    """Whether XLA compiles the function that an operation calls."""
    return bool(operation.node_def.attr["_XlaMustCompile"].b or function.attr["_XlaMustCompile"].b)


def _may_be_a_size(tensor: Any) -> bool:
    return bool(tensor.dtype.is_integer) and (tensor.shape.rank or 0) <= 1


def _nameless(function: Any) -> bytes:
    copy = type(function)()
    copy.CopyFrom(function)
    copy.signature.name = ""
    copy.attr.clear()
    return bytes(copy.SerializeToString(deterministic=True))
