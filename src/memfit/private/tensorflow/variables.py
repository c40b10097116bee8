"""The tf.Variables behind Keras variables, without memory, and what a tape records of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import tensorflow as tf


def backing_variable(variable: Any) -> Any:
    """The tf.Variable behind a Keras variable, whatever scope is open; a tf.Variable is its own."""
    return variable if isinstance(variable, tf.Variable) else variable._value


def unrecorded() -> Any:
    """A context in which no tape takes note of anything; variables that are read are still noticed."""
    from tensorflow.python.eager import record

    return record.stop_recording()


def is_recorded() -> bool:
    """Whether a tape of this thread may take note of what is computed now."""
    from tensorflow.python.eager import record

    return bool(record.could_possibly_record())


def is_compiled_by_xla() -> bool:
    """Whether what is being traced is for XLA."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


@contextmanager
def variables_without_memory(*, from_bytes: int = 0) -> Iterator[None]:
    """Let variables be created that have a shape and no value: they take no memory and can only be traced.

    Those of fewer bytes than `from_bytes` are created as usual.
    """
    from tensorflow.python.ops import resource_variable_ops

    def create(create_as_usual: Any, **options: Any) -> Any:
        value, shape, dtype = (options.get(name) for name in ("initial_value", "shape", "dtype"))
        if callable(value):
            with scratch.as_default():
                made = tf.convert_to_tensor(value(), dtype)
            shape, dtype = shape or made.shape, dtype or made.dtype
        elif value is not None:
            value = tf.convert_to_tensor(value, dtype)
            shape, dtype = shape or value.shape, dtype or value.dtype
        if shape is not None and tf.TensorShape(shape).num_elements() * tf.as_dtype(dtype).size < from_bytes:
            return create_as_usual(**options)
        return resource_variable_ops.UninitializedVariable(
            shape=shape, dtype=dtype, trainable=options.get("trainable"), name=options.get("name")
        )

    scratch = tf.Graph()
    with tf.variable_creator_scope(create):
        yield


def handles_by_name(graph: Any) -> dict[str, Any]:
    """The variable behind each placeholder of a traced graph that stands for one."""
    variables = {id(variable.handle): variable for variable in graph.variables}
    return {
        inside.op.name: variables[id(outside)]
        for outside, inside in graph.captures
        if id(outside) in variables
    }


def variables_in(graph: Any) -> list[Any] | None:
    """The variables that a graph uses; None where some of them are gone, so that it cannot be called."""
    with suppress(AssertionError):
        return list(graph.variables)
    return None
