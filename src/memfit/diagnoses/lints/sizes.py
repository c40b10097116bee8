"""Arrays that are made with a shape that is written out, and hold too many samples for a batch."""

from __future__ import annotations

import ast
import math

_LARGE = 1 << 20  # elements: 8 MiB of float64
_BY_SHAPE = {
    "zeros",
    "ones",
    "empty",
    "full",
    "random.random",
    "random.random_sample",
    "random.standard_normal",
}
_MANY = 1000  # samples; fewer may be a batch
_BY_SIZES = {"random.rand", "random.randn"}
_BY_KEYWORD = {"random.normal", "random.uniform", "random.randint", "random.choice", "random.random"}


def is_large(name: str, call: ast.Call) -> bool:
    """Whether a function of NumPy makes many samples with more than a million elements."""
    name = name.removeprefix("numpy.")
    shape: ast.AST | None = None
    if name in _BY_SIZES:
        shape = ast.Tuple(call.args)
    elif name in _BY_SHAPE and call.args:
        shape = call.args[0]
    if name in _BY_SHAPE | _BY_KEYWORD:
        shape = next((one.value for one in call.keywords if one.arg in ("size", "shape")), shape)
    return shape is not None and _elements(shape) > _LARGE


def _elements(shape: ast.AST) -> int:
    sides = shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape]
    known = [one.value for one in sides if isinstance(one, ast.Constant) and isinstance(one.value, int)]
    is_data = len(known) == len(sides) and known and known[0] >= _MANY
    return math.prod(known) if is_data else 0
