"""Custom loops and what surrounds them: loss scales, retries, devices, generators."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import Module, last_name, place
from memfit.linting.pipelines_in_code import argument, number
from memfit.linting.rule import Hit, Rule, about, shown
from memfit.linting.values import Values

_POLICIES = ("set_global_policy", "set_dtype_policy", "experimental_set_policy", "set_policy")
_STARTERS = (
    "tensorflow.constant", "tensorflow.zeros", "tensorflow.ones", "tensorflow.random.", "tensorflow.Variable",
    "tensorflow.convert_to_tensor", "tensorflow.config.list_logical_devices", "tensorflow.data.Dataset.",
    "tensorflow.config.experimental.list_logical_devices", "keras.applications.", "keras.models.load_model",
    "tensorflow.test.is_gpu_available", "tensorflow.test.gpu_device_name", "tensorflow.matmul",
    "tensorflow.range", "tensorflow.distribute.MirroredStrategy",
)  # fmt: skip
_TOO_LATE = (
    "tensorflow.config.experimental.set_memory_growth",
    "tensorflow.config.set_logical_device_configuration",
    "tensorflow.config.experimental.set_virtual_device_configuration",
    "tensorflow.config.set_visible_devices",
    "tensorflow.config.experimental.set_visible_devices",
    "memfit.limit",
)


def loss_not_scaled(values: Values) -> Iterator[Hit]:
    """A tape's gradients that are applied without a loss scale, under mixed_float16."""
    module = values.module
    setters = [call for call in module.calls if _sets_half(module, call)]
    for call in module.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method in ("get_scaled_loss", "get_unscaled_gradients") and not _is_legacy(module, call):
            yield Hit(call, f"{method}() is gone in Keras 3")
            continue
        is_half = any(_is_set_for(module, setter, call) for setter in setters)
        if is_half and method in ("apply_gradients", "apply") and _is_unscaled(module, call):
            yield Hit(call, "gradients are applied without scale_loss()")


def _is_set_for(module: Module, setter: ast.Call, call: ast.Call) -> bool:
    """Whether a policy is in force where something is called; what a test sets, it takes back."""
    around = module.function_around(setter)
    return around is None or not around.name.startswith("test") or around in module.ancestors(call)


def _is_legacy(module: Module, call: ast.Call) -> bool:
    """Whether it is part of the Keras that still has it."""
    imports = module.imports
    return imports.uses_insides or imports.uses_old_keras or shown(call.func).startswith("self.")


def _sets_half(module: Module, call: ast.Call) -> bool:
    name = module.called(call) or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    policy = argument(call, 0, "policy")
    if isinstance(policy, ast.Name) and (binding := module.binding(policy)) is not None:
        policy = binding.value if isinstance(binding.value, ast.expr) else None
    if isinstance(policy, ast.Call) and policy.args:
        policy = policy.args[0]
    return name.endswith(_POLICIES) and isinstance(policy, ast.Constant) and policy.value == "mixed_float16"


def _is_unscaled(module: Module, call: ast.Call) -> bool:
    around = module.function_around(call) or module.tree
    methods = {
        one.func.attr for one in module.inside(around, ast.Call) if isinstance(one.func, ast.Attribute)
    }
    return "gradient" in methods and not methods & {"scale_loss", "get_scaled_loss", "scale"}


def retry_after_oom(values: Values) -> Iterator[Hit]:
    """Handlers of OOMs that call the same thing again, or go round once more."""
    for attempt in values.module.all(ast.Try):
        for handler in attempt.handlers:
            if _catches_oom(handler) and _goes_again(values.module, attempt, handler):
                kind = shown(handler.type) if handler.type is not None else "an OOM"
                yield Hit(handler, kind)


def _catches_oom(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [last_name(kind) for kind in kinds]
    return "ResourceExhaustedError" in names or any(_asks_for_oom(one) for one in ast.walk(handler))


def _asks_for_oom(node: ast.AST) -> bool:
    words = ("OOM", "out of memory", "ResourceExhausted", "RESOURCE_EXHAUSTED")
    if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Constant):
        return False
    return isinstance(node.left.value, str) and any(word in node.left.value for word in words)


def _goes_again(module: Module, attempt: ast.Try, handler: ast.ExceptHandler) -> bool:
    if any(isinstance(one, ast.Raise) for one in handler.body) or not _trains(attempt.body):
        return False
    if _called(attempt.body) & _called(handler.body):
        return True
    leaves = any(isinstance(one, ast.Return | ast.Break | ast.Raise) for one in handler.body)
    changes = any("batch" in name for name in _assigned(handler.body))
    return (
        bool(module.loops(attempt))
        and not leaves
        and (changes or isinstance(module.loops(attempt)[0], ast.While))
    )


def _trains(body: list[ast.stmt]) -> bool:
    return any("fit" in name or "train" in name or "step" in name for name in _called(body))


def _called(body: list[ast.stmt]) -> set[str]:
    calls = [one for statement in body for one in ast.walk(statement) if isinstance(one, ast.Call)]
    names = {last_name(one) for one in calls}
    return names - {
        "",
        "print",
        "str",
        "len",
        "int",
        "format",
        "max",
        "min",
        "info",
        "warning",
        "append",
        "time",
    }


def _assigned(body: list[ast.stmt]) -> set[str]:
    return {
        one.id
        for statement in body
        for one in ast.walk(statement)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


def growth_too_late(values: Values) -> Iterator[Hit]:
    """Memory growth, a limit or visible devices that are set when the runtime has started."""
    module = values.module
    for call in module.calls:
        if module.called(call) not in _TOO_LATE or _resets(module, call) or _is_expected(module, call):
            continue
        first = min((one for one in module.calls if _starts(values, one, call)), key=place, default=None)
        if first is not None and not _is_again(module, call, first):
            yield Hit(call, f"{shown(call.func)}() comes after {shown(first.func)}() in line {first.lineno}")


def _is_expected(module: Module, call: ast.Call) -> bool:
    """Whether a test waits for the error that it raises."""
    around = [one for one in module.ancestors(call) if isinstance(one, ast.With | ast.Try)]
    withs = [item.context_expr for one in around if isinstance(one, ast.With) for item in one.items]
    handlers = [one for found in around if isinstance(found, ast.Try) for one in found.handlers]
    names = [last_name(one.type) for one in handlers]
    return "RuntimeStarted" in names or any("raises" in shown(one).lower() for one in withs)


def _is_again(module: Module, call: ast.Call, first: ast.Call) -> bool:
    """Whether the same was set before the runtime started, too."""
    name = module.called(call)
    return any(module.called(one) == name and place(one) < place(first) for one in module.calls)


def _resets(module: Module, call: ast.Call) -> bool:
    """Whether the runtime is started anew in between, as tests of TensorFlow itself do."""
    around = module.function_around(call) or module.tree
    return any("_reset_context" in shown(one.func) for one in module.inside(around, ast.Call))


def _starts(values: Values, other: ast.Call, call: ast.Call) -> bool:
    """Whether a call starts TensorFlow's runtime, for sure, before another one in the same function."""
    module = values.module
    if place(other) >= place(call) or module.scope(other) is not module.scope(call):
        return False
    around = list(module.ancestors(call))
    sure = all(
        one in around
        for one in module.ancestors(other)
        if isinstance(one, ast.If | ast.Try | ast.ExceptHandler)
    )
    return sure and (module.called(other).startswith(_STARTERS) or _is_built(values, other))


def _is_built(values: Values, call: ast.Call) -> bool:
    """Whether a model has weights at once: a functional one, or one that is fitted."""
    name = values.module.called(call)
    if name == "keras.Model":
        return bool(call.args or call.keywords)
    if name == "keras.Sequential":
        words = {one.arg for one in ast.walk(call) if isinstance(one, ast.keyword)}
        inputs = {last_name(one) for one in ast.walk(call) if isinstance(one, ast.Call)}
        return bool(words & {"input_shape", "input_dim"} or inputs & {"Input", "InputLayer"})
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "fit"
        and values.kind(call.func.value) == "model"
    )


def generator_without_signature(values: Values) -> Iterator[Hit]:
    """`from_generator` that does not say shapes."""
    for call in values.module.calls:
        if values.module.called(call) != "tensorflow.data.Dataset.from_generator":
            continue
        names = {one.arg for one in call.keywords}
        if None in names or "output_signature" in names or len(call.args) > 2 or "output_shapes" in names:
            continue
        yield Hit(call, shown(call.args[0]) if call.args else "the generator")


def _is_compiled_with(values: Values, optimizer: ast.Call) -> bool:
    """Whether an optimizer is given to `compile`, at once or by its name."""
    module = values.module
    if any(last_name(one) == "compile" for one in module.ancestors(optimizer) if isinstance(one, ast.Call)):
        return True
    parent = module.parents[optimizer]
    name = last_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    near = (module.scope(optimizer), module.tree)
    compiles = [one for one in module.calls if last_name(one) == "compile" and module.scope(one) in near]
    given = [one for call in compiles for one in [*call.args, *(keyword.value for keyword in call.keywords)]]
    return any(isinstance(one, ast.Name) and one.id == name for one in given)


def accumulation_steps(values: Values) -> Iterator[Hit]:
    """Keras' own gradient accumulation, where a model is compiled with it."""
    for call in values.module.calls:
        if not values.module.called(call).startswith("keras.optimizers.") or not _is_compiled_with(
            values, call
        ):
            continue
        for keyword in call.keywords:
            size = number(keyword.value)
            if keyword.arg == "gradient_accumulation_steps" and size is not None and size > 1:
                yield Hit(keyword, f"gradient_accumulation_steps={size:g}", is_sure=False)


RULES = (
    Rule(
        about(
            "MF019", "loss-not-scaled", "warning",
            summary="mixed_float16 in a custom loop without a loss scale",
            reason="Small gradients are zero in float16, so the loss has to be scaled before they are "
            "taken. fit does it by itself; a loop of one's own calls optimizer.scale_loss, and apply scales "
            "back. get_scaled_loss is from before Keras 3 and is gone.",
            fix="Take the gradients of optimizer.scale_loss(loss), with a "
            "keras.optimizers.LossScaleOptimizer.",
            before="""
                import keras
                import tensorflow as tf

                keras.mixed_precision.set_global_policy("mixed_float16")

                def train_step(x, y):
                    with tf.GradientTape() as tape:
                        loss = loss_function(y, model(x))
                    gradients = tape.gradient(loss, model.trainable_variables)
                    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            """,
            after="""
                import keras
                import tensorflow as tf

                keras.mixed_precision.set_global_policy("mixed_float16")
                optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())

                def train_step(x, y):
                    with tf.GradientTape() as tape:
                        loss = optimizer.scale_loss(loss_function(y, model(x)))
                    gradients = tape.gradient(loss, model.trainable_variables)
                    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            """,
        ),
        "{subject}: under mixed_float16 small gradients are zero unless optimizer.scale_loss() scales the "
        "loss",
        "",
        loss_not_scaled,
    ),
    Rule(
        about(
            "MF020", "retry-after-oom", "warning",
            summary="An out-of-memory error is caught and training goes on",
            reason="A failed step is not undone: the optimizer's count and the seeds have advanced, and so "
            "had 4 to 7 of 10 BatchNorm statistics and 3 of 4 metrics; the batch of a failed fit is lost. "
            "Each try waits about 10 seconds inside TensorFlow first, and under XLA the second one can "
            "abort the process.",
            fix="memfit.fit or memfit.protect: the same samples go again, split, with the same update.",
            before="""
                import tensorflow as tf

                while True:
                    try:
                        model.fit(dataset.batch(batch_size))
                        break
                    except tf.errors.ResourceExhaustedError:
                        batch_size //= 2
            """,
            after="""
                import memfit

                memfit.fit(model, dataset.batch(batch_size))
            """,
        ),
        "{subject} is caught and training goes on: the failed step has moved 4 to 7 of 10 BatchNorm "
        "statistics and the optimizer's count, silently",
        "",
        retry_after_oom,
    ),
    Rule(
        about(
            "MF021", "growth-too-late", "error",
            summary="Memory growth or a limit is set after the first op",
            reason="The first op or the first model with weights starts TensorFlow's runtime, and from then "
            "on devices cannot be changed: it raises a RuntimeError, or does nothing.",
            fix="Set it right behind the imports.",
            before="""
                import tensorflow as tf

                x = tf.zeros((8, 8))
                for gpu in tf.config.list_physical_devices("GPU"):
                    tf.config.experimental.set_memory_growth(gpu, True)
            """,
            after="""
                import tensorflow as tf

                for gpu in tf.config.list_physical_devices("GPU"):
                    tf.config.experimental.set_memory_growth(gpu, True)
                x = tf.zeros((8, 8))
            """,
        ),
        "{subject}, which has started the runtime: devices cannot be changed any more",
        "",
        growth_too_late,
    ),
    Rule(
        about(
            "MF022", "generator-without-signature", "warning",
            summary="from_generator without an output_signature",
            reason="Without shapes nothing behind it knows how large an element is: a tf.function is traced "
            "for each new shape (0.1 MiB and its time each), and neither TensorFlow nor memfit can plan for "
            "a batch.",
            fix="output_signature=tf.TensorSpec(shape, dtype), a spec for each part of an element.",
            before="""
                import tensorflow as tf

                dataset = tf.data.Dataset.from_generator(rows, output_types=tf.float32)
            """,
            after="""
                import tensorflow as tf

                signature = tf.TensorSpec((None, 8), tf.float32)
                dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
            """,
        ),
        "from_generator of {subject} does not say shapes: each new one is a new trace (0.1 MiB), and no "
        "batch can be planned for",
        "",
        generator_without_signature,
    ),
    Rule(
        about(
            "MF027", "accumulation-steps", "note",
            summary="Keras' gradient_accumulation_steps",
            reason="It averages micro-batches equally, whatever their size: with a ragged last one of 53 "
            "samples the update was wrong by 4.6e-2 of 6.9e-2, and a half-filled accumulator is left at the "
            "epoch's end.",
            fix="memfit.fit with micro_batch_size, which weighs each micro-batch by its samples.",
            before="""
                import keras

                optimizer = keras.optimizers.Adam(gradient_accumulation_steps=4)
                model.compile(optimizer, "mse")
            """,
            after="""
                import memfit

                memfit.fit(model, x, y, batch_size=64, micro_batch_size=16)
            """,
        ),
        "",
        "{subject} may be wrong where a batch is ragged: by 4.6e-2 of an update of 6.9e-2 with 53 samples",
        accumulation_steps,
    ),
)  # fmt: skip
