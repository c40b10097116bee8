"""Tensors that outlive their step: in lists, and as losses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import Loop, last_name
from memfit.linting.rule import Hit, Rule, about, shown
from memfit.linting.tracing import long_loops
from memfit.linting.values import Values, definition


def tensors_in_a_list(values: Values) -> Iterator[Hit]:
    """Outputs of steps that are appended to a list in a loop."""
    for call, loop in _appends(values):
        given = call.args[0]
        if _builds_a_model(values, loop):
            continue
        if not _is_loss(given) and _is_tensor(values, given, loop):
            yield Hit(call, shown(given))
        elif _is_models_output(values, given, loop):
            yield Hit(call, shown(given), is_sure=False)


def _builds_a_model(values: Values, loop: Loop) -> bool:
    """Whether layers are made and called at once, as where a Functional model is put together."""
    called = (one.func for one in values.module.inside(loop, ast.Call) if isinstance(one.func, ast.Call))
    return any(values.module.called(one).startswith("keras.layers.") for one in called)


def loss_kept(values: Values) -> Iterator[Hit]:
    """Losses that are appended to a list or summed up as tensors."""
    for call, loop in _appends(values):
        given = call.args[0]
        if _is_loss(given) and _is_tensor(values, given, loop):
            yield Hit(call, shown(given))
    for change in values.module.all(ast.AugAssign):
        if not isinstance(change.op, ast.Add) or not _is_loss(change.value) or _in_tape(values, change):
            continue
        loops = long_loops(values, change)
        if loops and _is_tensor(values, change.value, loops[0]):
            yield Hit(change, shown(change.value), is_sure=False)


def _is_models_output(values: Values, node: ast.AST, loop: Loop) -> bool:
    """Whether something that is called like a model is called with what the loop goes through."""
    if isinstance(node, ast.Name):
        binding = values.module.binding(node)
        node = binding.value if binding is not None and binding.how == "whole" and binding.value else node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or isinstance(loop, ast.While):
        return False
    targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    used = {one.id for given in node.args for one in ast.walk(given) if isinstance(one, ast.Name)}
    is_model = node.func.id == "model" or node.func.id.endswith("_model")
    return is_model and bool(targets & used) and values.module.imports.uses_tensorflow


def _appends(values: Values) -> Iterator[tuple[ast.Call, Loop]]:
    """All `….append(value)` in loops that run outside of graphs, of lists that live longer than a round."""
    for call in values.module.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "append" or len(call.args) != 1:
            continue
        loops = long_loops(values, call)
        if loops and not _is_emptied(values, call.func.value, loops[-1]):
            yield call, loops[0]


def _is_emptied(values: Values, target: ast.AST, loop: Loop) -> bool:
    if not isinstance(target, ast.Name):
        return False
    made = values.module.bindings(target.id, target)
    return any(loop in values.module.ancestors(one.node) for one in made if one.value is not None)


def _is_loss(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Call) and "loss" in last_name(node).lower()


def _is_tensor(values: Values, node: ast.AST, loop: Loop) -> bool:
    """Whether it comes out of a step: a tf.function, a function with a tape, or a tape in this loop."""
    if isinstance(node, ast.Name):
        binding = values.module.binding(node)
        if binding is None or binding.how not in ("whole", "part") or binding.value is None:
            return False
        return _is_step(values, binding.value) or _is_taped(values, binding.node, loop)
    return _is_step(values, node)


def _is_step(values: Values, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if values.kind(node) == "outputs":
        return not _returns_numbers(values, node)
    function = definition(values.module, node.func)
    return function is not None and _has_tape(values, function) and not _returns_numbers(values, node)


def _returns_numbers(values: Values, call: ast.Call) -> bool:
    function = definition(values.module, call.func)
    returns = [] if function is None else [one.value for one in values.module.inside(function, ast.Return)]
    values_of = [one for value in returns if value is not None for one in ast.walk(value)]
    names = [last_name(one) for one in values_of if isinstance(one, ast.Call)]
    return any(name in ("float", "numpy", "item", "result") for name in names)


def _has_tape(values: Values, node: ast.AST) -> bool:
    calls = values.module.inside(node, ast.Call)
    return any(values.module.called(one) == "tensorflow.GradientTape" for one in calls)


def _is_taped(values: Values, node: ast.AST, loop: Loop) -> bool:
    """Whether a value is computed under a tape that is opened in the loop."""
    withs = [one for one in values.module.ancestors(node) if isinstance(one, ast.With)]
    return any(loop in values.module.ancestors(one) and _opens_tape(values, one) for one in withs)


def _in_tape(values: Values, node: ast.AST) -> bool:
    """Whether a tape is open: what is added there is a part of the loss."""
    withs = [one for one in values.module.ancestors(node) if isinstance(one, ast.With)]
    return any(_opens_tape(values, one) for one in withs)


def _opens_tape(values: Values, node: ast.With) -> bool:
    return any(values.module.called(item.context_expr) == "tensorflow.GradientTape" for item in node.items)


RULES = (
    Rule(
        about(
            "MF013", "tensors-in-a-list", "warning",
            summary="Tensors are appended to a list in a loop",
            reason="Each tensor in the list stays on the device until the list goes, so that memory grows "
            "with every step: 1,000 batches of 32 × 1,000 outputs in float32 are 122 MiB.",
            fix="Append tensor.numpy(), or update a metric.",
            before="""
                import tensorflow as tf

                @tf.function
                def predict(batch):
                    return model(batch)

                outputs = []
                for batch in dataset:
                    outputs.append(predict(batch))
            """,
            after="""
                import tensorflow as tf

                @tf.function
                def predict(batch):
                    return model(batch)

                outputs = []
                for batch in dataset:
                    outputs.append(predict(batch).numpy())
            """,
        ),
        "{subject} is a tensor, and the list keeps it on the device: memory grows with every step",
        "{subject} may be a tensor, and the list keeps it on the device: memory grows with every step",
        tensors_in_a_list,
    ),
    Rule(
        about(
            "MF014", "loss-kept", "warning",
            summary="Losses are kept as tensors",
            reason="Each loss in a list is a live tensor on the device, which rounds its 4 bytes up to 256: "
            "small, but a steady growth that looks like a leak. A sum is one tensor only; under an open "
            "tape it keeps the activations of every step.",
            fix="Keep float(loss), or update a keras.metrics.Mean.",
            before="""
                import tensorflow as tf

                @tf.function
                def train_step(batch):
                    return model(batch)

                losses = []
                for batch in dataset:
                    loss = train_step(batch)
                    losses.append(loss)
            """,
            after="""
                import tensorflow as tf

                @tf.function
                def train_step(batch):
                    return model(batch)

                losses = []
                for batch in dataset:
                    loss = train_step(batch)
                    losses.append(float(loss))
            """,
        ),
        "{subject} is kept as a tensor: one more on the device with every step, small but steady",
        "{subject} is summed up as a tensor, which may keep more than its number: everything, where a tape "
        "is open",
        loss_kept,
    ),
)  # fmt: skip
