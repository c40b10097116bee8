"""A rematerialised model is the model: the same values, the same face, and back again."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _differences(how: str, kinds: list[str]) -> dict[str, float]:
    """The largest difference of any variable, and of the logs, between a plain and a rematerialised run."""
    import keras
    import numpy as np

    import memfit
    from guarding.small_models import every_variable
    from rematerialising.rematted import KINDS, data_for

    keras.config.set_dtype_policy("mixed_float16" if how == "float16" else "float32")
    levels = 3 if how == "three levels" else 1

    def train(kind: str, *, remat: bool) -> tuple[list[Any], list[float]]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(5)
        model = KINDS[kind]()
        x, y = data_for(kind)
        if remat:
            memfit.remat(model, batch_size=8192, levels=levels)  # where activations matter
        model.compile("adam", "mse", run_eagerly=how == "eager", jit_compile=how == "XLA")
        options = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
        if how == "guarded":
            history = memfit.fit(model, x, y, micro_batch_size=8, **options)
        else:
            history = model.fit(x, y, **options)
        values = [variable.numpy() for variable in every_variable(model)]
        return values, [value for name in sorted(history.history) for value in history.history[name]]

    found = {}
    for kind in kinds:
        plain, logs = train(kind, remat=False)
        ours, our_logs = train(kind, remat=True)
        pairs = [*zip(plain, ours, strict=True), (np.array(logs), np.array(our_logs))]
        found[kind] = max(float(np.max(np.abs(a.astype("float64") - b))) for a, b in pairs if a.size)
    return found


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("graph", ["functional", "sequential", "nested", "several"]),
        ("graph", ["masked", "own_layers", "subclassed", "own_step"]),
        ("eager", ["functional", "masked", "branched"]),
        ("XLA", ["subclassed"]),
        ("float16", ["masked"]),
        ("three levels", ["nested"]),
        ("guarded", ["functional", "own_layers"]),
    ],
)
def test_every_value_is_the_plain_models(how: str, kinds: list[str]) -> None:
    found = run_limited(_differences, "4GiB", how=how, kinds=kinds)
    allowed = 2e-5 if how == "XLA" else 2e-6  # XLA fuses, and so rounds, differently
    assert {kind: difference for kind, difference in found.items() if difference > allowed} == {}
    assert found.get("branched", 0.0) == 0.0  # in eager mode nothing but the order of sums decides


def _own_loop() -> dict[str, float]:
    """Gradients of a loop of one's own: inside and outside a tf.function, of second order, of a mapping."""
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit
    from rematerialising.rematted import data_for, functional

    x, y = data_for("functional")

    def gradients(how: str, *, remat: bool) -> list[Any]:
        keras.utils.set_random_seed(5)
        model = functional()
        if remat:
            memfit.remat(model, batch_size=8192)
        weights = model.trainable_variables
        inputs = tf.constant(x)

        def first() -> list[Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(inputs, training=True) - y) ** 2) + sum(model.losses)
            return tape.gradient(loss, weights)  # type: ignore[no-any-return]

        def penalty() -> list[Any]:
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(inputs)
                    outputs = model(inputs, training=True)
                slope = inner.gradient(outputs, inputs)
                loss = tf.reduce_mean(slope**2) + tf.reduce_mean(outputs)
            return tape.gradient(loss, weights)  # type: ignore[no-any-return]

        def called() -> list[Any]:
            call = tf.function(lambda: model(inputs, training=True))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((call() - y) ** 2)
            return tape.gradient(loss, weights)  # type: ignore[no-any-return]

        def stateless() -> list[Any]:
            values = [tf.convert_to_tensor(weight) for weight in weights]
            others = [tf.convert_to_tensor(v) for v in model.non_trainable_variables]
            with tf.GradientTape() as tape:
                tape.watch(values)
                outputs, _ = model.stateless_call(values, others, inputs, training=True)
                loss = tf.reduce_mean((outputs - y) ** 2)
            return tape.gradient(loss, values)  # type: ignore[no-any-return]

        ways = {
            "eager": first, "graph": tf.function(first), "XLA": tf.function(first, jit_compile=True),
            "penalty": tf.function(penalty), "called": called, "stateless": stateless,
        }  # fmt: skip
        return [np.asarray(gradient) for gradient in ways[how]()]

    found = {}
    for how in ("eager", "graph", "XLA", "penalty", "called", "stateless"):
        pairs = zip(gradients(how, remat=False), gradients(how, remat=True), strict=True)
        found[how] = max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in pairs)
    return found


def test_loops_of_ones_own_get_the_same_gradients() -> None:
    found = run_limited(_own_loop, "4GiB")
    assert {how: difference for how, difference in found.items() if difference > 2e-5} == {}


def _mirrored() -> float:
    """The largest difference of any variable after training on two devices."""
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit
    from rematerialising.rematted import data_for, functional

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    def train(*, remat: bool) -> list[Any]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(5)
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = functional()
            model.compile("sgd", "mse", jit_compile=False)
        if remat:
            memfit.remat(model, batch_size=8192)
        model.fit(*data_for("functional"), batch_size=4, epochs=2, verbose=0, shuffle=False)
        return [variable.numpy() for variable in model.variables]

    pairs = zip(train(remat=False), train(remat=True), strict=True)
    return max(float(np.max(np.abs(a.astype("float64") - b))) for a, b in pairs)


def test_on_two_devices_every_value_is_the_plain_models() -> None:
    assert run_limited(_mirrored, None) <= 2e-6


def _faces() -> dict[str, list[str]]:
    """What can be seen of a model, before, while and after it is rematerialised: what differs."""
    import io
    import json
    import tempfile

    import keras
    import numpy as np

    import memfit
    from rematerialising.rematted import KINDS, data_for

    def face(model: Any, x: Any) -> dict[str, Any]:
        summary = io.StringIO()
        model.summary(print_fn=lambda line, **_: summary.write(line))
        seen = {
            "summary": summary.getvalue(),
            "names": [variable.path for variable in model.variables],
            "weights": [value.tobytes() for value in model.get_weights()],
            "outputs": [np.asarray(o).tobytes() for o in keras.tree.flatten(model.predict(x, verbose=0))],
            "layers": [layer.name for layer in model.layers],
        }
        if getattr(model, "inputs", None):
            seen["config"] = json.dumps(keras.saving.serialize_keras_object(model), default=str)
            clone = keras.models.clone_model(model)
            seen["clone"] = [tuple(variable.shape) for variable in clone.variables]
        return seen

    found: dict[str, list[str]] = {}
    for kind in ("functional", "sequential", "nested", "subclassed"):
        model = KINDS[kind]()
        x, _ = data_for(kind)
        model.compile("sgd", "mse")
        before = face(model, x)
        attributes = set(vars(model))
        handle = memfit.remat(model, batch_size=8192)
        during = face(model, x)
        wrong = [f"during: {name}" for name in before if before[name] != during[name]]
        with tempfile.TemporaryDirectory() as folder:
            model.save_weights(f"{folder}/a.weights.h5")
            values = model.get_weights()
            model.set_weights([np.zeros_like(value) for value in values])
            model.load_weights(f"{folder}/a.weights.h5")
            if not all(np.array_equal(a, b) for a, b in zip(values, model.get_weights(), strict=True)):
                wrong.append("weights file")
            if kind != "subclassed":
                model.save(f"{folder}/a.keras")
                loaded = keras.models.load_model(f"{folder}/a.keras")
                if not all(np.array_equal(a, b) for a, b in zip(values, loaded.get_weights(), strict=True)):
                    wrong.append("saved model")
        handle.undo()
        handle.undo()
        after = face(model, x)
        wrong += [f"after: {name}" for name in before if before[name] != after[name]]
        if kind != "subclassed" and (left := set(vars(model)) - attributes):
            wrong.append(f"left behind: {left}")
        found[kind] = wrong
    return found


def test_nothing_that_can_be_seen_of_a_model_changes() -> None:
    assert run_limited(_faces, "4GiB") == {
        kind: [] for kind in ("functional", "sequential", "nested", "subclassed")
    }


def _bad_inputs() -> dict[str, list[str]]:
    import keras
    import tensorflow as tf
    from keras import layers

    import memfit
    from memfit.rematerialising.rematerialise import base_bytes
    from rematerialising.rematted import functional, subclassed

    answers: dict[str, list[str]] = {}

    def ask(name: str, model: Any, **options: Any) -> None:
        before = set(vars(model))
        try:
            memfit.remat(model, **options)
        except memfit.MemfitError as error:
            new = {"_memfit_remat", "_run_through_graph", "call"} & (set(vars(model)) - before)
            answers[name] = [type(error).__name__, str(error), "changed" if new else "unchanged"]

    ask("no model", layers.Dense(2))
    ask("unbuilt", keras.Sequential([layers.Dense(2)]))
    ask("no gain", keras.Sequential([keras.Input((4,)), layers.Dense(2)]))
    ask("budget without batch", functional(), budget="1GiB")
    ask("tiny budget", functional(), budget="100KB", batch_size=4096)
    ask("levels", functional(), levels=0)
    inputs = keras.Input((None, 4))
    open_model = keras.Model(inputs, layers.Dense(2)(layers.Dense(8, "tanh")(inputs)))
    ask("open", open_model, budget="1GiB", batch_size=8)
    noisy_inputs = keras.Input((6,))
    x = noisy_inputs
    for number in range(6):
        x = layers.Dense(8, "tanh", name=f"dense_{number}")(x)
        if number == 2:
            x = layers.Lambda(lambda t: t + tf.random.normal(tf.shape(t)), name="raw", output_shape=(8,))(x)
    handle = memfit.remat(keras.Model(noisy_inputs, layers.Dense(1)(x)), batch_size=8192)
    answers["left plain"] = [*map(str, handle.left_plain[0]), str(handle.segments > 0)]

    again = functional()
    first = memfit.remat(again, batch_size=8192)
    ask("refused the second time", again, budget="100KB", batch_size=4096)
    answers["refused the second time"].append(str(vars(again)["_memfit_remat"] is first))
    second = memfit.remat(again, batch_size=4096)
    second.undo()
    layered = subclassed()
    whole = memfit.remat(layered, batch_size=8192)
    halfway = base_bytes(layered, 8192) + (whole.plain_bytes + whole.peak_bytes) // 2
    partly = memfit.remat(layered, batch_size=8192, budget=halfway)
    answers["part of the layers"] = [str(0 < partly.segments < whole.segments)]
    answers["again"] = [str("_run_through_graph" in vars(again)), str(second.segments == first.segments)]
    return answers


def test_bad_input_is_answered_with_figures_and_changes_nothing() -> None:
    answers = run_limited(_bad_inputs, "4GiB")
    assert answers.pop("left plain") == ["raw", "it draws random numbers outside Keras", "True"]
    assert answers.pop("part of the layers") == ["True"]
    assert answers.pop("again") == ["False", "True"]
    assert answers["refused the second time"][3:] == ["True"]
    kinds = {name: answer[0] for name, answer in answers.items()}
    assert kinds == {
        "no model": "CannotRematerialise",
        "unbuilt": "CannotRematerialise",
        "no gain": "NothingToGain",
        "budget without batch": "CannotRematerialise",
        "tiny budget": "DoesNotFit",
        "levels": "CannotRematerialise",
        "open": "CannotRematerialise",
        "refused the second time": "DoesNotFit",
    }
    assert all("Try: " in answer[1] for answer in answers.values())
    assert {answer[2] for answer in answers.values()} == {"unchanged"}
    assert "Smallest peak with rematerialisation" in answers["tiny budget"][1]


def _dense_net(*, remat: bool) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    import memfit

    keras.utils.set_random_seed(1)
    model = keras.applications.DenseNet121(weights=None, input_shape=(64, 64, 3), classes=4)
    if remat:
        memfit.remat(model, batch_size=16)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    x, y = random.random((32, 64, 64, 3), "float32"), random.integers(0, 4, 32)
    memfit.devices.reset_peak()
    try:
        history = model.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    except tf.errors.ResourceExhaustedError:
        return {"ran out": True}
    return {"ran out": False, "loss": history.history["loss"][0], "weights": len(model.get_weights())}


def test_dense_net_trains_where_plain_keras_runs_out() -> None:
    limit = "165MiB"  # plain Keras needs about 211 MiB, the rematerialised model about 125
    assert run_limited(_dense_net, limit, remat=False) == {"ran out": True}
    ours = run_limited(_dense_net, limit, remat=True)
    assert not ours["ran out"]
    assert 0 < ours["loss"] < 10
