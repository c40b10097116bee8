"""A model in 16 bits is the same model: its weights, its optimizer, and back again."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _trained() -> tuple[Any, Any]:
    """A model with a bit of everything, after a few steps, and its data."""
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(2)
    inputs = keras.Input((2,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    x = layers.MultiHeadAttention(2, 4, dropout=0.1, name="attention")(x, x)
    x = layers.TimeDistributed(layers.Dense(4, "softmax", name="mixture"), name="each")(x)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Dense(8, "relu", name="hidden")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    random = np.random.default_rng(0)
    data = random.integers(0, 20, (16, 2)), random.normal(size=(16, 1)).astype("float32")
    model.fit(*data, batch_size=8, verbose=0)
    return model, data


def _face(model: Any) -> list[Any]:
    """Everything of a model that an undone change must not have changed, but for values."""
    from memfit.private.keras.layers import layers_and_self
    from memfit.private.keras.trainer import compiled_parts, with_inner

    layers = layers_and_self(model)
    parts = [*compiled_parts(model), *with_inner(model.optimizer)]
    return [
        str(model.get_config()),
        str(model.get_compile_config()),
        [id(part) for part in (*layers, *parts, *model.variables, *model.optimizer.variables)],
        [id(layer.dtype_policy) for layer in layers],
        getattr(model.optimizer, "loss_scale_factor", None),
        sorted(vars(model)),
    ]


def _there_and_back(policy: str) -> dict[str, Any]:
    from guarding.small_models import every_digest
    from memfit.levers.precision import apply_precision, precision_of
    from memfit.private.keras.layers import layers_and_self
    from memfit.private.keras.trainer import with_inner

    model, data = _trained()
    model.optimizer.loss_scale_factor = 4.0
    face, values, inner = _face(model), every_digest(model), model.optimizer
    variables = [id(variable) for variable in model.variables]
    old_step = model.train_function
    seen: dict[str, Any] = {}

    precision = apply_precision(model, policy)
    seen["kept"] = dict(precision.kept)
    layers = layers_and_self(model)
    seen["types"] = {layer.name: layer.compute_dtype for layer in layers}
    seen["same weights"] = variables == [id(variable) for variable in model.variables]
    seen["all in float32"] = {variable.dtype for variable in model.trainable_variables} == {"float32"}
    seen["known"] = precision_of(model) is precision
    seen["optimizer"] = type(model.optimizer).__name__
    seen["inner"] = with_inner(model.optimizer)[-1] is inner
    seen["iterations"] = int(model.optimizer.iterations)
    seen["forgotten"] = model.train_function is None
    precision.undo()
    seen["as before"] = face == _face(model)
    seen["bit by bit"] = values == every_digest(model)
    if policy == "mixed_bfloat16":  # in which others train
        return seen

    inner.loss_scale_factor = None
    with apply_precision(model, policy):
        history = model.fit(*data, batch_size=8, epochs=15, verbose=0)
        losses = history.history["loss"]
        seen["learns"] = losses[-1] < 0.7 * losses[0]
        seen["new step"] = model.train_function not in (None, old_step)
        seen["float32 out"] = model(data[0]).dtype.name == "float32"
        slots = [variable.numpy() for variable in inner.variables]
    seen["forgotten"] &= model.train_function is None
    seen["its own optimizer"] = model.optimizer is inner
    seen["with its slots"] = all(
        (slot == variable.numpy()).all() for slot, variable in zip(slots, inner.variables, strict=True)
    )
    seen["still as before"] = face[0] == _face(model)[0] and face[3] == _face(model)[3]
    return seen


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_there_and_back(policy: str) -> None:
    seen = run_limited(_there_and_back, "2GiB", policy=policy)
    low = policy.removeprefix("mixed_")
    types = seen.pop("types")
    softmax = next(name for name in types if name.startswith("softmax"))
    assert seen.pop("kept") == {
        f"attention/{softmax}": "softmax",
        "each": "softmax",
        "each/mixture": "softmax",
        "norm": "BatchNormalization",
        "head": "makes an output of the model",
    }
    full = {name for name, dtype in types.items() if dtype == "float32"}
    assert full == {"input_layer", softmax, "each", "mixture", "norm", "head"}
    assert {dtype for name, dtype in types.items() if name not in full} == {low}
    assert seen.pop("optimizer") == ("LossScaleOptimizer" if low == "float16" else "Adam")
    assert seen.pop("iterations") == 2
    assert {name for name, holds in seen.items() if not holds} == set()
    assert ("learns" in seen) == (low == "float16")


def _own_classes() -> Any:
    """Layers and a model with code of their own."""
    from types import SimpleNamespace

    import keras
    import tensorflow as tf
    from keras import layers

    class Block(layers.Layer):  # type: ignore[misc]
        """Adds in its own code, which takes only one type."""

        def __init__(self, norm: Any) -> None:
            super().__init__(name="block")
            self.dense, self.norm = layers.Dense(4, name="dense"), norm

        def call(self, x: Any, training: Any = None) -> Any:
            return self.norm(self.dense(x), training=training) + x

    class Holds(layers.Layer):  # type: ignore[misc]
        """Holds on to float32."""

        def call(self, x: Any) -> Any:
            return x * tf.constant(2.0)

    class Adds(layers.Layer):  # type: ignore[misc]
        """Adds a loss, which Keras adds up with others of its type only."""

        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.mean(x))
            return x

    class Counts(layers.Layer):  # type: ignore[misc]
        """Counts in a variable, where one more than 2048 is 2048 in float16."""

        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(shape=(), initializer="ones", trainable=False)
            self.calls.assign(2050.0)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            return x

    class Own(keras.Model):  # type: ignore[misc]
        """Layers of several kinds, called by its own code."""

        def __init__(self) -> None:
            super().__init__(name="own")
            self.block = Block(layers.BatchNormalization(name="norm"))
            self.norm = layers.BatchNormalization(name="outer")
            self.holds = Holds(name="holds")
            self.head = layers.Dense(1, name="head")

        def call(self, x: Any) -> Any:
            return self.head(self.holds(self.norm(self.block(x))))

    return SimpleNamespace(Adds=Adds, Counts=Counts, Own=Own)


def _models() -> dict[str, Any]:
    """One model of each kind."""
    import keras
    import numpy as np
    from keras import layers

    def graph_of(shape: Any, *steps: Any, **options: Any) -> Any:
        x = inputs = keras.Input(shape, **options)
        for step in steps:
            x = step(x)
        return keras.Model(inputs, x)

    shared = layers.Dense(4, "relu", name="shared")
    last = layers.Dense(4, name="last")
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="first"), last], name="inner")
    own_classes = _own_classes()
    own = own_classes.Own()
    own(np.ones((2, 4)))
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    normalise = layers.Normalization(mean=[0.0] * 4, variance=[1.0] * 4, name="raw")
    whole = layers.SpectralNormalization(layers.Dense(4, name="power"), name="spectral")
    chosen = [layers.Dense(4, dtype=dtype, name=dtype) for dtype in ("float64", "mixed_bfloat16")]
    both = layers.Bidirectional(layers.LSTM(2, name="lstm"), name="both")
    stacked = layers.RNN([layers.GRUCell(2), layers.SimpleRNNCell(2)], return_sequences=True)
    return {
        "sequential": keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1, name="head")]),
        "nested": graph_of((4,), shared, inner, shared, inner),
        "own": own,
        "loops": graph_of((3, 4), stacked, both),
        "codes": graph_of((2,), layers.Embedding(5000, 4), layers.Flatten(), layers.Dense(1, name="head")),
        "words": graph_of((2,), lookup, layers.Embedding(5, 4), layers.Flatten(), dtype="string"),
        "data": graph_of((4,), normalise, layers.UnitNormalization(name="unit"), whole, layers.Dense(1)),
        "chosen": graph_of((4,), *chosen, layers.Dense(4, name="free"), layers.Dense(1, name="head")),
        "regular": graph_of((4,), layers.Dense(4, activity_regularizer="l2", name="active"), layers.Dense(1)),
        "adding": graph_of((4,), shared, own_classes.Adds(name="adds"), layers.Dense(1)),
        "counting": graph_of((4,), shared, own_classes.Counts(name="counts"), layers.Dense(1)),
        "operations": graph_of((4,), shared, lambda x: keras.ops.exp(x) * 2.0 + np.ones((4,), "float32")),
        "pooled": graph_of((2, 2, 2, 4), layers.MaxPooling3D(name="pool"), layers.Flatten(), layers.Dense(1)),
    }


def _kinds() -> dict[str, list[Any]]:
    """Of each kind of model: what stays in float32, whether it trains, and whether it comes back."""
    import numpy as np
    import tensorflow as tf

    from guarding.small_models import Remembered
    from memfit.levers.precision import apply_precision
    from memfit.private.keras.layers import layers_and_self

    found = {}
    for name, model in _models().items():
        model.compile("sgd", "mse", run_eagerly=name != "loops", jit_compile=False)
        shape = tuple(model.input_shape[1:]) if name != "own" else (4,)
        x = np.ones((4, *shape), "float32") * (4097 if name == "codes" else 0.5)
        x = np.full((4, 2), "b") if name == "words" else x
        x = tf.constant(x)
        y = tf.zeros(model(x).shape)
        model.train_on_batch(x, y)
        outputs = model(x)
        weights, face = Remembered(model), _face(model)
        precision = apply_precision(model, "mixed_float16")
        unchanged = weights.is_unchanged()
        near = float(tf.reduce_max(tf.abs(tf.cast(model(x) - tf.cast(outputs, model(x).dtype), "float32"))))
        loss = float(model.train_on_batch(x, y))
        low = {layer.name for layer in layers_and_self(model) if layer.compute_dtype == "float16"}
        kept, model_output = precision.kept, model(x).dtype.name
        precision.undo()
        same = _face(model) == face and unchanged
        found[name] = [dict(kept), sorted(low), near < 0.01 and bool(np.isfinite(loss)), model_output, same]
    return found


def test_every_kind_of_model_runs_and_comes_back() -> None:
    found = run_limited(_kinds, "2GiB")
    output = "makes an output of the model"
    for name, (_, low, runs, dtype, same) in found.items():
        assert (name, runs, dtype, same) == (name, True, "float32", True)
        assert low, name
    kept = {name: answer[0] for name, answer in found.items()}
    low = {name: answer[1] for name, answer in found.items()}
    assert kept["sequential"] == {"head": output}
    assert kept["nested"] == {"inner/last": output}
    assert {"shared", "first"} <= set(low["nested"])
    assert kept["own"] == {
        "outer": "BatchNormalization",
        "holds": "does not run in 16 bits",
        "head": output,
    }  # not the norm in the block, whose own code adds up what it returns
    assert set(low["own"]) == {"own", "block", "dense", "norm"}
    of_both = ["forward_lstm", "forward_lstm/lstm_cell", "backward_lstm", "backward_lstm/lstm_cell"]
    assert kept["loops"] == dict.fromkeys(["both", *(f"both/{name}" for name in of_both)], output)
    assert {"rnn", "gru_cell", "simple_rnn_cell"} <= set(low["loops"])
    assert kept["codes"] == {"head": output}  # numbers of rows are not cast: 4097 is not one in float16
    assert "embedding" in low["codes"]
    assert "prepares data" in kept["words"].values()
    assert {"raw": "prepares data", "unit": "UnitNormalization"}.items() <= kept["data"].items()
    assert kept["data"]["spectral"] == kept["data"]["spectral/power"] == "SpectralNormalization"
    assert kept["chosen"] == {"head": output}
    assert "float64" not in low["chosen"]
    assert kept["regular"]["active"] == "adds a loss"
    assert kept["adding"]["adds"] == "does not run in 16 bits"
    assert kept["counting"]["counts"] == "writes its variables"
    assert kept["operations"] == {"shared": output}
    assert kept["pooled"]["pool"] == "does not run in 16 bits"


def _overflows() -> dict[str, Any]:
    """What overflows, what is kept for it, and how training goes without and with that."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    from guarding.small_models import Remembered
    from memfit.core.errors import NotFinite
    from memfit.levers.precision import apply_precision
    from memfit.private.keras.layers import layers_and_self

    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 4)).astype("float32"), random.normal(size=(8, 1)).astype("float32")

    def constant(value: float) -> Any:
        return keras.initializers.Constant(value)

    def dense(name: str, value: float = 0.3, units: int = 4) -> Any:
        return layers.Dense(units, kernel_initializer=constant(value), name=name)

    class Square(layers.Layer):  # type: ignore[misc]
        """Holds a layer, overflows in its own code, and counts outside Keras."""

        def __init__(self) -> None:
            super().__init__(name="square")
            self.dense = dense("inside", 200.0)
            self.calls = tf.Variable(0)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1)
            return keras.ops.square(self.dense(x)) / 1e6

    def compiled(*steps: Any) -> Any:
        keras.utils.set_random_seed(1)
        outputs = inputs = keras.Input((4,))
        for step in (dense("first"), layers.Dropout(0.2), *steps, dense("after", 0.1), dense("head", 0.1, 1)):
            outputs = step(outputs)
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(1e-9), "mse", metrics=["mae"], run_eagerly=True)
        model.train_on_batch(x, y)
        return model

    models = {
        "nothing": compiled(dense("small")),
        "result": compiled(dense("large", 6e4), dense("down", 1e-5)),
        "weight": compiled(layers.Rescaling(0.0), dense("huge", 7e4)),
        "operation": compiled(dense("before", 300.0), lambda t: (t * t) * 1e-6),
        "own code": compiled(Square()),
        "gradient": compiled(layers.Rescaling(1e-5), dense("steep", 6e4), dense("slope", 2.0)),
        "gradient of weights": compiled(layers.Rescaling(5e3), dense("flat", 1e-4)),
    }
    factors = {"gradient": 3e4, "gradient of weights": 1e4}  # of losses
    seen: dict[str, Any] = {}
    for name, model in models.items():
        precision = apply_precision(model, "mixed_float16")
        kept = precision.kept
        values = Remembered(model)
        found = precision.keep_overflowing((x[:4] * 3, y[:4] * factors.get(name, 1.0)))
        told = sorted(precision.kept) == sorted((*kept, *found))
        again = precision.keep_overflowing((x[:4] * 3, y[:4]))
        seen[name] = [dict(found), values.is_unchanged(), told, again == ()]
        losses = [float(model.train_on_batch(x, y)[0]) for _ in range(3)]
        seen[name] += [bool(np.isfinite(losses).all()), int(model.optimizer.step_counter) > 0]

    model = compiled(dense("large", 6e4), dense("down", 1e-5))
    with apply_precision(model, "mixed_float16"):
        losses = [float(model.train_on_batch(x, y)[0]) for _ in range(3)]
        seen["without"] = [bool(np.isfinite(losses).any()), int(model.optimizer.step_counter)]

    precision = apply_precision(model, "mixed_float16")
    values, kept = Remembered(model), precision.kept
    types = [layer.dtype_policy for layer in layers_and_self(model)]
    try:
        precision.keep_overflowing((np.full((2, 4), 3e38), y[:2]))
    except NotFinite as error:
        seen["itself"] = [error.layer, values.is_unchanged(), precision.kept == kept]
        seen["itself"].append(types == [layer.dtype_policy for layer in layers_and_self(model)])
    try:
        precision.keep_overflowing((tf.ones((2, 7)), y[:2]))
    except ValueError as error:
        seen["other shape"] = ["incompatible" in str(error), precision.kept == kept]
    precision.undo()
    seen["undone"] = precision.keep_overflowing((x, y))
    seen["calls"] = int(models["own code"].get_layer("square").calls)
    seen["plain again"] = {layer.compute_dtype for layer in layers_and_self(model)} == {"float32"}
    return seen


def test_layers_that_overflow_stay_in_float32() -> None:
    seen = run_limited(_overflows, "2GiB")
    because = "overflows"
    expected = {
        "nothing": {},
        "result": {"large": because, "down": because},  # it is given what float16 cannot hold
        "weight": {"huge": because},
        "operation": {"before": because},
        "own code": {"square": because, "square/inside": because},
        "gradient": {"steep": because},
        "gradient of weights": {"flat": because},
    }
    for name, kept in expected.items():
        assert seen[name] == [kept, True, True, True, True, True], name
    assert seen["without"] == [False, 0]
    assert seen["itself"] == ["first", True, True, True]
    assert seen["other shape"] == [True, True]
    assert seen["undone"] == []
    assert seen["calls"] == 4  # of training, and none of the passes in between
    assert seen["plain again"]


def _refused() -> dict[str, list[Any]]:
    """What bad input is answered with, and that nothing has changed."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    from guarding.small_models import Remembered
    from memfit.core.errors import MemfitError
    from memfit.levers.precision import apply_precision

    class Own(keras.Model):  # type: ignore[misc]
        """Its own code takes nothing but float32."""

        def __init__(self) -> None:
            super().__init__()
            self.dense, self.head = layers.Dense(4, name="dense"), layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.head(self.dense(x) + tf.ones((4,)))

    class Stubborn(layers.Dense):  # type: ignore[misc]
        """Its type cannot be changed."""

        @property
        def dtype_policy(self) -> Any:
            return self._dtype_policy

        @dtype_policy.setter
        def dtype_policy(self, value: Any) -> None:
            if value.name != "float32":
                raise RuntimeError("no")

    def compiled(model: Any) -> Any:
        model.compile("adam", "mse", run_eagerly=True)
        model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))
        return model

    stack = [layers.Dense(4, name="dense_one"), Stubborn(1, name="stubborn")]
    plain = compiled(keras.Sequential([layers.Dense(4, name="dense_one"), layers.Dense(1, name="head")]))
    cases = {
        "policy": (plain, "float16", ()),
        "name": (plain, "mixed_float16", ("dense_on", "head")),
        "strange name": (plain, "mixed_float16", ("qqqqqq",)),
        "own code": (compiled(Own()), "mixed_float16", ()),
        "stubborn": (compiled(keras.Sequential([*stack, layers.Dense(1)])), "mixed_float16", ()),
        "unbuilt": (keras.Sequential([layers.Dense(4)]), "mixed_float16", ()),
        "no model": (layers.Dense(4), "mixed_float16", ()),
    }
    answers: dict[str, list[Any]] = {}
    for name, (model, policy, keep) in cases.items():
        is_trained = getattr(model, "optimizer", None) is not None
        values = Remembered(model) if is_trained else None
        face = _face(model) if is_trained else sorted(vars(model))
        try:
            apply_precision(model, policy, keep=keep)
            answers[name] = ["accepted", "", False]
        except (MemfitError, RuntimeError) as error:
            now = _face(model) if is_trained else sorted(vars(model))
            unchanged = face == now and (values is None or values.is_unchanged())
            answers[name] = [type(error).__name__, str(error), unchanged]

    before = apply_precision(plain, "mixed_bfloat16", keep="head")
    try:
        apply_precision(plain, "mixed_float16", keep=("nowhere",))
    except MemfitError:
        answers["still"] = [before.kept, plain.layers[0].compute_dtype]
    full = apply_precision(plain, "float32")
    answers["full"] = [full.kept, plain.layers[0].compute_dtype, plain.optimizer.name]
    return answers


def test_bad_input_changes_nothing() -> None:
    answers = run_limited(_refused, "2GiB")
    assert answers.pop("still") == [[["head", "asked for"]], "bfloat16"]
    assert answers.pop("full") == [[], "float32", "adam"]
    assert {name: answer[0] for name, answer in answers.items()} == {
        "policy": "InvalidPrecision",
        "name": "LayerNotFound",
        "strange name": "LayerNotFound",
        "own code": "CannotLowerPrecision",
        "stubborn": "RuntimeError",
        "unbuilt": "CannotLowerPrecision",
        "no model": "CannotLowerPrecision",
    }
    assert all(answer[2] for answer in answers.values())
    assert 'Try: float32_layers=("dense_one",)' in answers["name"][1]
    assert "Half" in answers["own code"][1] or "half" in answers["own code"][1]


def _compiled_meanwhile() -> dict[str, Any]:
    """Optimizers that come while a model computes in 16 bits, and what a file remembers of it."""
    import tempfile
    from pathlib import Path

    import keras
    import numpy as np

    from memfit.levers.precision import apply_precision

    def model_of(optimizer: Any = None) -> Any:
        keras.utils.set_random_seed(1)  # gradients that need no smaller scale
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        if optimizer is not None:
            model.compile(optimizer, "mse", run_eagerly=True)
        return model

    x, y = np.ones((4, 4), "float32"), np.ones((4, 1), "float32")
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    theirs = {
        "plain": keras.optimizers.SGD(),
        "scaling": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    }
    seen: dict[str, Any] = {}
    for name, optimizer in theirs.items():
        model = model_of("adam")
        precision = apply_precision(model, "mixed_float16")
        model.train_on_batch(x, y)
        model.compile(optimizer, "mse", run_eagerly=True)
        model.train_on_batch(x, y)
        seen[name] = [type(model.optimizer).__name__]
        precision.undo()
        model.train_on_batch(x, y)
        seen[name] += [model.optimizer is optimizer, int(optimizer.iterations)]
    model = model_of(scaling)
    with apply_precision(model, "mixed_float16"):
        seen["scaled already"] = [model.optimizer is scaling]
    seen["scaled already"].append(model.optimizer is scaling)
    model = model_of()
    with apply_precision(model, "mixed_float16"):
        model.compile("sgd", "mse")
        seen["compiled late"] = [type(model.optimizer).__name__]
    seen["compiled late"].append(type(model.optimizer).__name__)

    model = model_of("adam")
    model.train_on_batch(x, y)
    precision = apply_precision(model, "mixed_float16")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        loaded = keras.saving.load_model(Path(folder) / "model.keras")
    seen["loaded"] = [type(loaded.optimizer).__name__, [layer.compute_dtype for layer in loaded.layers]]
    precision.undo()
    return seen


def test_compile_and_save_meanwhile() -> None:
    assert run_limited(_compiled_meanwhile, "2GiB") == {
        "plain": ["LossScaleOptimizer", True, 2],
        "scaling": ["LossScaleOptimizer", True, 2],
        "scaled already": [True, True],
        "compiled late": ["LossScaleOptimizer", "SGD"],
        "loaded": ["LossScaleOptimizer", ["float16", "float32"]],
    }


def _guarded() -> dict[str, Any]:
    """Plain and guarded training of the same model in 16 bits, and guarded steps from before."""
    import keras
    import numpy as np
    from keras import layers

    import memfit
    from memfit.levers.precision import apply_precision

    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 8)).astype("float32"), random.normal(size=(12, 1)).astype("float32")
    options: dict[str, Any] = {"batch_size": 6, "epochs": 2, "verbose": 0, "shuffle": False}

    def build() -> Any:
        keras.utils.set_random_seed(3)
        stack = [layers.Dense(8, "tanh"), layers.LayerNormalization(), layers.Dense(8, "relu")]
        model = keras.Sequential([keras.Input((8,)), *stack, layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    def values(model: Any) -> Any:
        return np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])

    plain, ours = build(), build()
    start = values(plain)
    for model in (plain, ours):
        apply_precision(model, "mixed_float16")
    plain.fit(x, y, **options)
    history = memfit.fit(ours, x, y, micro_batch_size=2, **options)
    moved = np.abs(values(plain) - start).max()
    seen: dict[str, Any] = {"micro-batches": history.run.micro_batch_size}
    seen["steps"] = int(ours.optimizer.iterations)
    seen["near"] = bool(np.abs(values(ours) - values(plain)).max() < 0.02 * moved)

    model = build()
    model.optimizer.learning_rate = 0.0
    options["epochs"] = 1
    losses = [memfit.fit(model, x, y, **options).history["loss"][0]]
    with apply_precision(model, "mixed_bfloat16"):  # with the same optimizer, losses and metrics
        losses += [memfit.fit(model, x, y, **options).history["loss"][0]]
    losses += [memfit.fit(model, x, y, **options).history["loss"][0]]
    seen["traced anew"] = [losses[0] != losses[1], losses[0] == losses[2], abs(losses[0] - losses[1]) < 0.05]
    return seen


def test_guarded_training_is_plain_training_in_16_bits() -> None:
    assert run_limited(_guarded, "2GiB") == {
        "micro-batches": 2,
        "steps": 4,
        "near": True,
        "traced anew": [True, True, True],
    }
