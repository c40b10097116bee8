"""Eager tensors, and the arrays that become tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.framework import constant_op, ops, tensor_util

from memfit.private.patching import replaced

EagerTensor = ops.EagerTensor
_DATASETS_OF_ARRAYS = ("from_tensor_slices_op.py", "from_tensors_op.py")


@contextmanager
def each_array(least_bytes: int, around: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Hand every array of at least so many bytes that becomes a tensor to `around(array, call)`."""
    to_tensor, to_graph = constant_op.convert_to_eager_tensor, tensor_util.make_tensor_proto

    def convert(value: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(value, "nbytes", 0) < least_bytes:
            return to_tensor(value, *arguments, **options)
        return around(value, lambda: to_tensor(value, *arguments, **options))

    def make(value: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(value, "nbytes", 0) < least_bytes:
            return to_graph(value, *arguments, **options)
        return around(value, lambda: to_graph(value, *arguments, **options))

    with (
        replaced(constant_op, "convert_to_eager_tensor", convert),
        replaced(tensor_util, "make_tensor_proto", make),
    ):
        yield


def is_dataset_of_arrays(filename: str, name: str) -> bool:
    """Whether a frame is that of a dataset being made of arrays, which is `self` there."""
    return name == "__init__" and filename.endswith(_DATASETS_OF_ARRAYS)


def bytes_of(tensor: Any) -> int:
    """The size of an eager tensor's values; what is not numbers counts as nothing."""
    size = tensor.dtype.size
    return int(tensor._num_elements()) * size if size and tensor.dtype.is_numpy_compatible else 0
