"""A weight does not change before the backward pass has read it again, in the graph that TensorFlow runs."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from rematerialising.test_composite_layers import _with_a_spare_layer

pytestmark = pytest.mark.real


def _attention() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16,), dtype="int32")
    x = layers.Embedding(50, 32)(x)
    for _ in range(4):
        normed = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 16)(normed, normed)])
        x = layers.Add()([x, layers.Dense(32)(layers.Dense(128, "gelu")(layers.LayerNormalization()(x)))])
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("adam", "mse", jit_compile=False)
    return model


def _convolutions() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(6):
        x = layers.Conv2D(8, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
    return model


MODELS = {"spare layer": _with_a_spare_layer, "attention": _attention, "convolutions": _convolutions}


def _reads_too_late(kind: str) -> dict[str, Any]:
    """The reads of weights in the optimised graph of a step that nothing keeps before the weights change."""
    import numpy as np
    import tensorflow as tf

    import memfit
    from memfit.private.tensorflow.graph_defs import optimised

    model = MODELS[kind]()
    shapes = {"spare layer": (8, 16, 32), "attention": (8, 16), "convolutions": (8, 16, 16, 3)}
    x = np.ones(shapes[kind], "int32" if kind == "attention" else "float32")
    y = np.ones((8, 16, 1) if kind != "convolutions" else (8, 1), "float32")
    model(x[:1])
    segments = memfit.remat(model, data=x[:1], batch_size=8).segments
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step).get_concrete_function((tf.constant(x), tf.constant(y)))
    kept = [one.name for one in (*step.inputs, *step.outputs)] + [
        op.name for op in step.graph.control_outputs
    ]
    nodes = {node.name: node for node in optimised(step.graph.as_graph_def(), kept).node}

    def before(name: str) -> set[str]:
        found, left = set[str](), [name]
        while left:
            for given in nodes[left.pop()].input:
                source = given.lstrip("^").split(":")[0]
                if source not in found:
                    found.add(source)
                    left.append(source)
        return found

    used = {given.split(":")[0] for node in nodes.values() for given in node.input if given[0] != "^"}
    reads = [node for node in nodes.values() if node.op == "ReadVariableOp" and node.name in used]
    changes = [node for node in nodes.values() if node.op in ("AssignSubVariableOp", "AssignVariableOp")]
    late = [
        f"{read.name} may come after {change.name}"
        for change in changes
        for known in [before(change.name)]
        for read in reads
        if read.input[0] == change.input[0]
        and read.name not in known
        and change.name not in before(read.name)
    ]
    return {"segments": segments, "changes": len(changes), "late": late}


@pytest.mark.parametrize("kind", list(MODELS))
def test_weights_are_read_again_before_they_change(kind: str) -> None:
    seen = run_limited(_reads_too_late, None, kind=kind)
    assert seen["segments"] > 1
    assert seen["changes"] > 10
    assert seen["late"] == []
