"""Which code runs inside a graph, and which loops are short."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import Function, Loop, Module, last_name
from memfit.linting.values import Values, is_compiled

_TRACED_METHODS = {"call", "train_step", "test_step", "predict_step", "compute_loss"}
_BASES = ("Layer", "Model", "Sequential", "Cell", "Loss", "Metric")
_NO_LEAK = 2  # rounds: whatever they leave behind does not grow
_FEW = 4  # TensorFlow itself warns at the fifth trace


def runs_in_graph(values: Values, node: ast.AST) -> bool:
    """Whether it is part of a tf.function, a data set's function, or a layer's call."""
    module = values.module
    functions = [one for one in module.ancestors(node) if isinstance(one, ast.FunctionDef | ast.Lambda)]
    return any(_is_traced(values, function) for function in functions)


def _is_traced(values: Values, function: ast.AST) -> bool:
    if isinstance(function, ast.Lambda) or not isinstance(function, ast.FunctionDef):
        return False
    if is_compiled(values.module, function) or function.name in handed_over(values.module):
        return True
    return function.name in _TRACED_METHODS and is_layer(values.module.class_around(function))


def handed_over(module: Module) -> set[str]:
    """Names of functions that are given to tf.function, map or a strategy, which trace them."""
    if module.handed_over is None:
        module.handed_over = set(_handed_over(module))
    return module.handed_over


def _handed_over(module: Module) -> Iterator[str]:
    for call in module.calls:
        attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if module.called(call) == "tensorflow.function" or attribute in (
            "map",
            "run",
            "interleave",
            "flat_map",
        ):
            for given in call.args[:1]:
                yield last_name(given)


def is_layer(kind: ast.ClassDef | None) -> bool:
    """Whether a class is a layer or a model, by the names of its bases."""
    bases = kind.bases if kind is not None else []
    return any(last_name(base).endswith(_BASES) for base in bases)


def calls_of_layers(module: Module) -> Iterator[Function]:
    """The `call` methods of layers and models."""
    for function in module.functions:
        parent = module.parents.get(function)
        if function.name == "call" and isinstance(parent, ast.ClassDef) and is_layer(parent):
            yield function


def is_short(module: Module, loop: Loop) -> bool:
    """Whether a loop is over a few things that are written out."""
    return _rounds(module, loop) is not None


def _rounds(module: Module, loop: Loop) -> int | None:
    """The number of rounds of a loop, where it is written out and small."""
    if isinstance(loop, ast.While):
        return None
    over = loop.iter
    if isinstance(over, ast.Call) and last_name(over) == "range" and over.args:
        last = over.args[min(1, len(over.args) - 1)]
        few = isinstance(last, ast.Constant) and isinstance(last.value, int) and last.value <= _FEW
        return int(ast.literal_eval(last)) if few else None
    return _length(module, over)


def _length(module: Module, node: ast.AST | None) -> int | None:
    """The length of a list that is written out, of a name for one, or of what `items` makes of one."""
    makers = ("enumerate", "zip", "sorted", "reversed", "list")
    for _ in range(4):
        if isinstance(node, ast.Name):
            binding = module.binding(node)
            node = binding.value if binding is not None and binding.how == "whole" else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            node = node.func.value if node.func.attr in ("items", "keys", "values") else None
        elif isinstance(node, ast.Call) and last_name(node) in makers:
            node = node.args[0] if node.args else None
    if isinstance(node, ast.Dict):
        return len(node.keys) or None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return len(node.elts) or None  # an empty one is filled later
    return None


def loops_outside(values: Values, node: ast.AST) -> tuple[list[Loop], bool]:
    """The loops around a node, outside of graphs and tests, and whether any of them runs often."""
    if runs_in_graph(values, node):
        return [], False
    function = values.module.function_around(node)
    loops = [loop for loop in values.module.loops(node) if (_rounds(values.module, loop) or _FEW) > _NO_LEAK]
    often = any(not is_short(values.module, loop) for loop in loops)
    is_test = function is not None and function.name.startswith("test")
    return (loops, often) if often or not is_test else ([], False)


def long_loops(values: Values, node: ast.AST) -> list[Loop]:
    """The loops around a node that run often, outside of graphs."""
    if runs_in_graph(values, node):
        return []
    return [loop for loop in values.module.loops(node) if not is_short(values.module, loop)]
