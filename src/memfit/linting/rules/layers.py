"""Rules about layers: computations that hold more than they have to, and rematerialisation that fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import Loop, last_name
from memfit.linting.rule import Hit, Rule, about, shown
from memfit.linting.tracing import calls_of_layers, is_short
from memfit.linting.values import Values

_STACKS = ("tensorflow.stack", "keras.ops.stack", "tensorflow.concat", "keras.ops.concatenate")
_REDUCTIONS = (
    "tensorflow.reduce_sum", "tensorflow.reduce_mean", "keras.ops.sum", "keras.ops.mean",
    "tensorflow.math.reduce_sum", "tensorflow.math.reduce_mean",
)  # fmt: skip
_SMALL = {"len", "int", "float", "round", "min", "max", "abs", "str", "sum", "mean", "add_loss", "shape"}
_WITH_STATE = ("dropout", "batchnorm", "batch_norm", "random", "applications")
_UNKNOWN = {"self", "layer", "model", "block", "module"}  # which may hold anything
_ADDS = ("tensorflow.add", "keras.ops.add", "tensorflow.math.add", "keras.layers.add")


def sums_in_call(values: Values) -> Iterator[Hit]:
    """Python loops in `call` that add to a tensor."""
    for function in calls_of_layers(values.module):
        for loop in values.module.inside(function, ast.For):
            if is_short(values.module, loop) or _is_over_tensors(values, loop):
                continue
            for target in _sums(values, loop):
                yield Hit(
                    target, shown(target.targets[0] if isinstance(target, ast.Assign) else target.target)
                )
                break


def _is_over_tensors(values: Values, loop: Loop) -> bool:
    """`for i in tf.range(n)` becomes a loop of the graph."""
    return isinstance(loop, ast.For) and values.module.called(loop.iter).startswith(
        ("tensorflow.", "keras.ops.")
    )


def _sums(values: Values, loop: ast.For) -> Iterator[ast.AugAssign | ast.Assign]:
    """Statements of a loop's own body that add something new to what was there."""
    for statement in loop.body:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            if _computes(values, statement.value) and not _uses(statement.value, last_name(statement.target)):
                yield statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            terms = _terms(values, statement.value)
            name = statement.targets[0].id
            own = [one for one in terms if isinstance(one, ast.Name) and one.id == name]
            if own and any(
                _computes(values, one) and not _uses(one, name) for one in terms if one not in own
            ):
                yield statement


def _terms(values: Values, node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and values.module.called(node) in _ADDS:
        return node.args
    return []


def _uses(node: ast.AST, name: str) -> bool:
    """Whether a term is made of the sum so far, as in residual blocks."""
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _computes(values: Values, node: ast.AST) -> bool:
    """Whether a term is computed there, by a layer or an op of this round, and is more than a number."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    bound = [values.module.binding(one) for one in ast.walk(node) if isinstance(one, ast.Name)]
    given = [one for one in bound if one is not None and isinstance(one.value, ast.Call)]
    loops = values.module.loops(node)
    made = [one.value for one in given if loops and loops[0] in values.module.ancestors(one.node)]
    small = any(isinstance(one, ast.Call) and _is_small(one) for one in (*calls, *(o.value for o in given)))
    return bool(calls or made) and not small


def _is_small(call: ast.Call) -> bool:
    name = last_name(call)
    return name in _SMALL or name.startswith("reduce_")


def stack_then_reduce(values: Values) -> Iterator[Hit]:
    """`reduce_sum(stack([...]))` in a layer's `call`."""
    for function in calls_of_layers(values.module):
        for call in values.module.inside(function, ast.Call):
            given = (
                _stacked(values, call) if values.module.called(call) in _REDUCTIONS and call.args else None
            )
            if given is not None and _is_over_first(call, given):
                yield Hit(call, shown(call))


def _stacked(values: Values, call: ast.Call) -> ast.Call | None:
    given: ast.AST | None = call.args[0]
    if isinstance(given, ast.Name):
        binding = values.module.binding(given)
        given = binding.value if binding is not None and binding.how == "whole" else None
    return given if isinstance(given, ast.Call) and values.module.called(given) in _STACKS[:2] else None


def _is_over_first(call: ast.Call, stack: ast.Call) -> bool:
    return (
        _axis(call) == _axis(stack) or (_axis(call) is None) or (_axis(stack) is None and _axis(call) == "0")
    )


def _axis(call: ast.Call) -> str | None:
    given = call.args[1:2] or [one.value for one in call.keywords if one.arg == "axis"]
    return ast.unparse(given[0]) if given else None


def remat_scope(values: Values) -> Iterator[Hit]:
    """`keras.RematScope`, where the backend is not another one."""
    if _other_backend(values):
        return
    traced = {"fit", "compile", "Sequential", "Model", "function"} & {
        last_name(one) for one in values.module.calls
    }
    for call in values.module.calls:
        if values.module.called(call) in ("keras.RematScope", "keras.remat", "keras.backend.RematScope"):
            yield Hit(call, values.module.called(call), is_sure=bool(traced))


def _other_backend(values: Values) -> bool:
    strings = [one.value for one in values.module.all(ast.Constant) if isinstance(one.value, str)]
    return "KERAS_BACKEND" in strings and ("jax" in strings or "torch" in strings)


def recompute_grad(values: Values) -> Iterator[Hit]:
    """`tf.recompute_grad`, called or as a decorator."""
    names: list[ast.Attribute | ast.Name] = [*values.module.all(ast.Attribute), *values.module.all(ast.Name)]
    for name in names:
        is_used = values.module.qualified(name) == "tensorflow.recompute_grad" and isinstance(
            name.ctx, ast.Load
        )
        if is_used and not _is_harmless(values, name):
            yield Hit(name, "tf.recompute_grad", is_sure=False)


def _is_harmless(values: Values, name: ast.AST) -> bool:
    """Whether what is wrapped can be seen whole, and draws no masks and moves no statistics."""
    call = values.module.parents.get(name)
    given = call.args[0] if isinstance(call, ast.Call) and call.func is name and call.args else None
    binding = values.module.binding(given) if isinstance(given, ast.Name) else None
    if binding is None or binding.value is None or binding.how not in ("whole", "definition"):
        return False
    names = [one for one in ast.walk(binding.value) if isinstance(one, ast.Name | ast.Attribute)]
    words = {last_name(one).lower() for one in names}
    return not words & _UNKNOWN and not any(mark in word for word in words for mark in _WITH_STATE)


RULES = (
    Rule(
        about(
            "MF016", "sums-in-call", "note",
            summary="A Python loop of adds in a layer's call",
            reason="A Python loop is unrolled when the layer is traced: a copy of its ops for each round, "
            "which may all run at the same time. A sum of 16 terms of 4 MiB took 64 MiB forward so, and 16 "
            "MiB as a loop of the graph. In training the activations of every round are kept either way.",
            fix="Compute the terms as one batched op (einsum, a layer over a merged axis), or loop with "
            "tf.range.",
            before="""
                import keras

                class Mixture(keras.layers.Layer):
                    def call(self, x):
                        total = 0
                        for expert in self.experts:
                            total += expert(x)
                        return total
            """,
            after="""
                import keras
                from keras import ops

                class Mixture(keras.layers.Layer):
                    def call(self, x):
                        return ops.einsum("bi,eio->bo", x, self.kernels)
            """,
        ),
        "the Python loop that adds to {subject} is unrolled and may hold all its terms at once (64 MiB "
        "against 16 MiB for 16 terms of 4 MiB)",
        "",
        sums_in_call,
    ),
    Rule(
        about(
            "MF017", "stack-then-reduce", "warning",
            summary="Tensors are stacked and then reduced in a layer's call",
            reason="The stack is a second copy of all terms: the sum of 16 tensors of 4 MiB took 128 MiB "
            "forward as reduce_sum(stack(...)), and 64 MiB as add_n.",
            fix="tf.add_n or keras.layers.add for a sum; for a mean, divide it.",
            before="""
                import keras
                import tensorflow as tf

                class Sum(keras.layers.Layer):
                    def call(self, inputs):
                        return tf.reduce_sum(tf.stack([head(inputs) for head in self.heads]), axis=0)
            """,
            after="""
                import keras
                import tensorflow as tf

                class Sum(keras.layers.Layer):
                    def call(self, inputs):
                        return tf.add_n([head(inputs) for head in self.heads])
            """,
        ),
        "{subject} makes a second copy of all terms: 128 MiB where add_n took 64 MiB, for 16 terms of 4 MiB",
        "",
        stack_then_reduce,
    ),
    Rule(
        about(
            "MF025", "remat-scope", "error",
            summary="keras.RematScope on TensorFlow",
            reason="In graph mode, which fit uses, it fails on the TensorFlow backend: 'The custom_gradient "
            "decorator currently supports keywords arguments only when eager execution is enabled' (Keras "
            "3.15).",
            fix="memfit.remat(model), which is exact and can be undone.",
            before="""
                import keras

                with keras.RematScope(mode="full"):
                    model = keras.Sequential([keras.layers.Dense(8)])
            """,
            after="""
                import keras
                import memfit

                model = keras.Sequential([keras.layers.Dense(8)])
                memfit.remat(model)
            """,
        ),
        "{subject} fails on the TensorFlow backend in graph mode, which fit uses (Keras 3.15)",
        "{subject} may fail: on the TensorFlow backend it works in eager mode only (Keras 3.15)",
        remat_scope,
    ),
    Rule(
        about(
            "MF026", "recompute-grad", "warning",
            summary="tf.recompute_grad around layers with state",
            reason="What is computed again is not the same: dropout draws a second mask and BatchNorm moves "
            "twice. After one step weights were off by 6.7e-3.",
            fix="memfit.remat(model), which repeats masks and moves statistics once.",
            before="""
                import tensorflow as tf

                block = tf.recompute_grad(block)
            """,
            after="""
                import memfit

                memfit.remat(model)
            """,
        ),
        "",
        "{subject} may be wrong: with dropout or BatchNorm inside it computes something else the second "
        "time (weights off by 6.7e-3 after a step)",
        recompute_grad,
    ),
)  # fmt: skip
