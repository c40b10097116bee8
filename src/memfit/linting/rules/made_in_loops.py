"""Rules about objects made anew in each round of a loop: functions, models, optimizers, generators, tapes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import Loop, Module
from memfit.linting.rule import Hit, Rule, about, shown
from memfit.linting.tracing import long_loops, loops_outside
from memfit.linting.values import Values, compiler, definition

_TRAINING = {"compile", "fit", "evaluate", "train_on_batch", "apply_gradients", "minimize"}


def scalar_to_a_function(values: Values) -> Iterator[Hit]:
    """Python numbers that change, given to a tf.function."""
    for call in values.module.calls:
        loops = long_loops(values, call) if _is_compiled_call(values, call) else []
        changing = {name for loop in loops for name in _numbers(values.module, loop)}
        for given in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if changing and _is_number_of(given, changing):
                yield Hit(given, shown(given))


def _is_compiled_call(values: Values, call: ast.Call) -> bool:
    """Whether a tf.function is called that takes numbers as they are: one without a signature."""
    function = definition(values.module, call.func)
    if function is not None:
        makers = [one for one in function.decorator_list if compiler(values.module, one)]
        return bool(makers) and not _has_signature(makers[0])
    if isinstance(call.func, ast.Name) and values.kind(call.func) == "function":
        binding = values.module.binding(call.func)
        return binding is not None and binding.value is not None and not _has_signature(binding.value)
    return False


def _has_signature(maker: ast.AST) -> bool:
    return isinstance(maker, ast.Call) and any(one.arg == "input_signature" for one in maker.keywords)


def _numbers(module: Module, loop: Loop) -> Iterator[str]:
    """Names that hold another Python number in every round of a loop."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name):
        if loop.iter.func.id == "range" and isinstance(loop.target, ast.Name):
            yield loop.target.id
        if loop.iter.func.id == "enumerate" and isinstance(loop.target, ast.Tuple):
            yield from (one.id for one in loop.target.elts[:1] if isinstance(one, ast.Name))
    for change in module.inside(loop, ast.AugAssign):
        if isinstance(change.target, ast.Name) and _starts_as_number(module, change.target):
            yield change.target.id


def _starts_as_number(module: Module, name: ast.Name) -> bool:
    found = module.bindings(name.id, name)
    return bool(found) and all(
        isinstance(one.value, ast.Constant) and isinstance(one.value.value, int | float) for one in found
    )


def _is_number_of(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        plain = all(isinstance(side, ast.Name | ast.Constant) for side in sides)
        return plain and any(_is_number_of(side, names) for side in sides)
    return False


def function_in_a_loop(values: Values) -> Iterator[Hit]:
    """A tf.function that is made in a loop."""
    for call in values.module.calls:
        makes = values.module.called(call) == "tensorflow.function" and not _decorates(values.module, call)
        makes = makes and not _is_another_each_time(values.module, call)
        loops, often = loops_outside(values, call) if makes else ([], False)
        if loops:
            yield Hit(call, shown(call), is_sure=often)
    for function in values.module.functions:
        if any(compiler(values.module, one) for one in function.decorator_list) and long_loops(
            values, function
        ):
            yield Hit(function.decorator_list[0], function.name)


def _is_another_each_time(module: Module, call: ast.Call) -> bool:
    """Whether the loop goes through functions, each of which has to be traced."""
    given = call.args[0] if call.args else None
    binding = module.binding(given) if isinstance(given, ast.Name) else None
    return binding is not None and binding.how == "loop"


def _decorates(module: Module, call: ast.Call) -> bool:
    parent = module.parents[call]
    return isinstance(parent, ast.FunctionDef) and call in parent.decorator_list


def model_in_a_loop(values: Values) -> Iterator[Hit]:
    """A model that is made and trained in a loop."""
    for call in values.module.calls:
        loops, often = loops_outside(values, call) if values.kind(call) == "model" else ([], False)
        if loops and _is_trained(values, call, loops[0]):
            yield Hit(call, shown(call), is_sure=often)


def optimizer_in_a_loop(values: Values) -> Iterator[Hit]:
    """An optimizer that is made in a loop for a model from outside of it."""
    for call in values.module.calls:
        loops, often = loops_outside(values, call) if values.kind(call) == "optimizer" else ([], False)
        if not loops:
            continue
        name = _name_of(values.module, call)
        uses = [one for one in values.module.inside(loops[0], ast.Call) if _is_method(one, name, _TRAINING)]
        makes_models = any(values.kind(one) == "model" for one in values.module.inside(loops[-1], ast.Call))
        if name and uses and not makes_models:
            yield Hit(call, shown(call), is_sure=often)


def _is_trained(values: Values, call: ast.Call, loop: Loop) -> bool:
    """Whether what is made in a loop is trained in it, and not released."""
    name = _name_of(values.module, call)
    calls = list(values.module.inside(loop, ast.Call)) if name else []
    released = any(values.module.called(one) == "memfit.release" for one in calls)
    return not released and any(_is_method(one, name, _TRAINING) for one in calls)


def _name_of(module: Module, call: ast.Call) -> str:
    parent = module.parents[call]
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        return parent.targets[0].id
    return ""


def _is_method(call: ast.Call, name: str, methods: set[str]) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute) and function.attr in methods
        and isinstance(function.value, ast.Name) and function.value.id == name
    )  # fmt: skip


def generator_in_a_loop(values: Values) -> Iterator[Hit]:
    """Python functions that are handed to TensorFlow in a loop."""
    makers = ("tensorflow.data.Dataset.from_generator", "tensorflow.py_function", "tensorflow.numpy_function")
    for call in values.module.calls:
        if values.module.called(call) in makers and long_loops(values, call):
            yield Hit(call, values.module.called(call).rpartition(".")[2])


def tape_in_a_loop(values: Values) -> Iterator[Hit]:
    """A persistent tape in a loop that is never deleted."""
    for call in values.module.calls:
        if values.module.called(call) != "tensorflow.GradientTape" or not (loops := long_loops(values, call)):
            continue
        persistent = any(
            one.arg == "persistent" and isinstance(one.value, ast.Constant) and one.value.value is True
            for one in call.keywords
        )
        if persistent and not any(True for _ in values.module.inside(loops[0], ast.Delete)):
            yield Hit(call, "the persistent tape")


RULES = (
    Rule(
        about(
            "MF009", "scalar-to-a-function", "warning",
            summary="A Python number that changes is given to a tf.function",
            reason="A Python number is part of what a function is traced for: each new value is a new "
            "graph, about 0.1 MiB that is never freed, and the time to trace it.",
            fix="Pass a tensor: tf.constant(value), or give the function an input_signature.",
            before="""
                import tensorflow as tf

                @tf.function
                def train(step, batch):
                    return step * tf.reduce_sum(batch)

                for step in range(1000):
                    train(step, batch)
            """,
            after="""
                import tensorflow as tf

                @tf.function
                def train(step, batch):
                    return step * tf.reduce_sum(batch)

                for step in tf.range(1000):
                    train(step, batch)
            """,
        ),
        "the Python number {subject} makes the tf.function trace a new graph for each value: 0.1 MiB each, "
        "never freed",
        "",
        scalar_to_a_function,
    ),
    Rule(
        about(
            "MF010", "function-in-a-loop", "warning",
            summary="A tf.function is made in a loop",
            reason="Each tf.function has graphs of its own, so each round traces anew: about 0.1 MiB for a "
            "small graph and the time to trace it, for ResNet50's training step 25 to 57 seconds.",
            fix="Make the function once, in front of the loop.",
            before="""
                import tensorflow as tf

                for epoch in range(epochs):
                    step = tf.function(train_step)
                    step(batch)
            """,
            after="""
                import tensorflow as tf

                step = tf.function(train_step)
                for epoch in range(epochs):
                    step(batch)
            """,
        ),
        "{subject} in a loop is traced anew in every round: about 0.1 MiB for a small graph, and its time",
        "{subject} may be traced anew in every round: about 0.1 MiB for a small graph, and its time",
        function_in_a_loop,
    ),
    Rule(
        about(
            "MF011", "model-in-a-loop", "warning",
            summary="Models are made and trained in a loop",
            reason="TensorFlow keeps what a trained model leaves behind: 14 to 17 MiB of RAM in every "
            "round, with clear_session or without it, since a registry of gradients holds the graphs.",
            fix="Release each model with memfit.release(model), or train each in a process of its own.",
            before="""
                import keras

                for width in widths:
                    model = keras.Sequential([keras.layers.Dense(width)])
                    model.compile("adam", "mse")
                    model.fit(dataset)
            """,
            after="""
                import keras
                import memfit

                for width in widths:
                    model = keras.Sequential([keras.layers.Dense(width)])
                    model.compile("adam", "mse")
                    model.fit(dataset)
                    memfit.release(model)
            """,
        ),
        "{subject} is made and trained in a loop: each round leaves 14 to 17 MiB behind, clear_session or "
        "not",
        "{subject} is made and trained in a short loop, which may be harmless: a round leaves 14 to 17 MiB",
        model_in_a_loop,
    ),
    Rule(
        about(
            "MF012", "optimizer-in-a-loop", "warning",
            summary="Optimizers are made in a loop",
            reason="A new optimizer makes new slots for the same weights, for Adam twice their size, and "
            "new graphs for every function that uses it; and it begins without what the last one had "
            "learned.",
            fix="Make the optimizer once, in front of the loop, and set optimizer.learning_rate in it.",
            before="""
                import keras

                for epoch in range(epochs):
                    optimizer = keras.optimizers.Adam(1e-3 / (epoch + 1))
                    optimizer.apply_gradients(pairs)
            """,
            after="""
                import keras

                optimizer = keras.optimizers.Adam(1e-3)
                for epoch in range(epochs):
                    optimizer.learning_rate = 1e-3 / (epoch + 1)
                    optimizer.apply_gradients(pairs)
            """,
        ),
        "{subject} in a loop makes new slots in every round, for Adam twice the size of the weights",
        "{subject} in a short loop may be harmless: it makes new slots, for Adam twice the weights' size",
        optimizer_in_a_loop,
    ),
    Rule(
        about(
            "MF015", "tape-in-a-loop", "warning",
            summary="A persistent tape in a loop is not deleted",
            reason="A persistent tape keeps all activations after the gradients are taken, through updates "
            "and validation, until the next round: 56 MiB for six small convolutions, none once the tape is "
            "deleted.",
            fix="del tape behind the last gradient, or one tape for each loss.",
            before="""
                import tensorflow as tf

                for batch in dataset:
                    with tf.GradientTape(persistent=True) as tape:
                        loss = model(batch)
                    gradients = tape.gradient(loss, model.weights)
            """,
            after="""
                import tensorflow as tf

                for batch in dataset:
                    with tf.GradientTape(persistent=True) as tape:
                        loss = model(batch)
                    gradients = tape.gradient(loss, model.weights)
                    del tape
            """,
        ),
        "{subject} keeps all activations until the next round: 56 MiB for six small convolutions, none "
        "after del tape",
        "",
        tape_in_a_loop,
    ),
    Rule(
        about(
            "MF023", "generator-in-a-loop", "warning",
            summary="Generators or Python functions are handed to TensorFlow in a loop",
            reason="TensorFlow keeps every Python function that it is given by from_generator, py_function "
            "or numpy_function, and with it all that the function holds: arrays, models, files.",
            fix="Make the data set once, in front of the loop.",
            before="""
                import tensorflow as tf

                for epoch in range(epochs):
                    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
                    model.fit(dataset)
            """,
            after="""
                import tensorflow as tf

                dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
                for epoch in range(epochs):
                    model.fit(dataset)
            """,
        ),
        "{subject} in a loop: TensorFlow keeps each function that it is given, with all that the function "
        "holds",
        "",
        generator_in_a_loop,
    ),
)  # fmt: skip
