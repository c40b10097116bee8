"""Whole data sets in arrays: in lists, in graphs, in steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memfit.linting.parsed_module import Loop, Module, last_name
from memfit.linting.rule import Hit, Rule, about, shown
from memfit.linting.tracing import is_short, long_loops
from memfit.linting.values import Values, definition, is_compiled, shape_made


def images_in_a_list(values: Values) -> Iterator[Hit]:
    """Images that are appended to a list in a loop, or made into one by a comprehension."""
    module = values.module
    if not {"numpy", "tensorflow", "keras"} & module.imports.modules:
        return  # pictures for something else than training
    for name, calls in module.appends.items():
        for call in calls:
            kind, stacked = values.kind(call.args[0]), _is_stacked(values, name, call)
            # A list of arrays that stay apart may be anything, such as the weights of a file.
            if (kind == "image" or (kind == "array" and stacked)) and _gathers_all(module, name, call):
                yield Hit(call, name, is_sure=stacked)
    for comprehension in module.all(ast.ListComp):
        over = comprehension.generators[0].iter
        if (
            values.kind(comprehension) == "images"
            and not _is_part(over)
            and not _is_in_loop(module, comprehension)
        ):
            parent = module.parents[comprehension]
            name = last_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
            stacked = isinstance(parent, ast.Call) or bool(name and _is_stacked(values, name, comprehension))
            yield Hit(comprehension, name or "the list", is_sure=stacked and not _is_given(module, over))


def _is_given(module: Module, node: ast.AST) -> bool:
    """Whether it is an argument of a function, which may be a part of the data only."""
    binding = module.binding(node) if isinstance(node, ast.Name) else None
    return binding is not None and binding.how == "unknown"


def _gathers_all(module: Module, name: str, call: ast.Call) -> bool:
    """Whether a list grows over a whole loop: it is not emptied in it, and the loop is not over a batch."""
    loops = module.loops(call)
    if not loops or all(is_short(module, loop) for loop in loops) or _is_item(module, call):
        return False
    made = [one.node for one in module.bindings(name, call) if one.value is not None]
    emptied = any(loops[-1] in module.ancestors(node) for node in made)
    return bool(made) and not emptied and not any(_is_part(_iterable(loop)) for loop in loops)


def _iterable(loop: Loop) -> ast.AST:
    return loop.test if isinstance(loop, ast.While) else loop.iter


def _is_part(node: ast.AST) -> bool:
    """Whether it looks like a batch: by its name, or a slice with two ends."""
    words = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    words += [one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)]
    slices = [one for one in ast.walk(node) if isinstance(one, ast.Slice)]
    cut = any(one.upper is not None for one in slices)
    return cut or any("batch" in word.lower() or "sample" in word.lower() for word in words)


def _is_item(module: Module, node: ast.AST) -> bool:
    function = module.function_around(node)
    names = ("__getitem__", "__data_generation", "__next__", "next")
    if function is None:
        return False
    is_generator = any(module.function_around(one) is function for one in module.inside(function, ast.Yield))
    return is_generator or function.name in names or "batch" in function.name


def _is_in_loop(module: Module, node: ast.AST) -> bool:
    return bool(module.loops(node)) or _is_item(module, node)


def _is_stacked(values: Values, name: str, call: ast.AST) -> bool:
    scope = values.module.scope(call)
    stacks = (
        "numpy.array",
        "numpy.asarray",
        "numpy.stack",
        "numpy.vstack",
        "numpy.concatenate",
        "tensorflow.stack",
    )
    return any(
        values.module.called(one) in stacks and one.args and isinstance(one.args[0], ast.Name)
        and one.args[0].id == name and values.module.scope(one) is scope
        for one in values.module.calls
    )  # fmt: skip


def slices_of_an_array(values: Values) -> Iterator[Hit]:
    """`from_tensor_slices` of what was loaded."""
    makers = ("tensorflow.data.Dataset.from_tensor_slices", "tensorflow.data.Dataset.from_tensors")
    yield from _given_arrays(values, makers)


def constant_of_an_array(values: Values) -> Iterator[Hit]:
    """`tf.constant`, `tf.convert_to_tensor` or `tf.Variable` of what was loaded."""
    makers = (
        "tensorflow.constant", "tensorflow.convert_to_tensor", "tensorflow.Variable",
        "keras.ops.convert_to_tensor",
    )  # fmt: skip
    yield from _given_arrays(values, makers)


def _given_arrays(values: Values, makers: tuple[str, ...]) -> Iterator[Hit]:
    for call in values.module.calls:
        if values.module.called(call) in makers and call.args:
            given = [one for one in _parts(call.args[0]) if values.is_array(one)]
            if given:
                sure = any(values.kind(one) == "array" for one in given)
                yield Hit(call, shown(given[0]), is_sure=sure)


def _parts(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Tuple | ast.List):
        return [part for element in node.elts for part in _parts(element)]
    if isinstance(node, ast.Dict):
        return [part for element in node.values for part in _parts(element)]
    return [node] if isinstance(node, ast.expr) else []


def array_in_a_function(values: Values) -> Iterator[Hit]:
    """Loaded arrays that a tf.function uses from outside."""
    module = values.module
    for function in module.functions:
        if not is_compiled(module, function):
            continue
        seen: set[str] = set()
        for name in module.inside(function, ast.Name):
            if name.id in seen or not isinstance(name.ctx, ast.Load) or _is_shape(module, name):
                continue
            bound = module.bindings(name.id, name)
            outside = bound and function not in module.ancestors(bound[-1].node)
            if outside and values.is_array(name):
                seen.add(name.id)
                yield Hit(name, name.id, is_sure=values.kind(name) == "array")


def _is_shape(module: Module, name: ast.Name) -> bool:
    parent = module.parents[name]
    is_attribute = isinstance(parent, ast.Attribute) and parent.attr in ("shape", "dtype", "ndim", "size")
    return is_attribute or (isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len")


def whole_data_in_a_step(values: Values) -> Iterator[Hit]:
    """A step or a model that is called with a whole data set at once."""
    for call in values.module.calls:
        if not call.args or not _is_step(values, call):
            continue
        given = [one for one in call.args if values.is_array(one) or values.kind(one) == "tiny array"]
        if given:
            yield Hit(call, shown(given[0]))
        elif _is_the_same_each_round(values, call):
            yield Hit(call, shown(call.args[0]), is_sure=False)


def _is_the_same_each_round(values: Values, call: ast.Call) -> bool:
    """Whether a loop hands the same data over in every round, more of it than a batch has.

    A power of two, as people choose for batches, is taken for one.
    """
    loops = long_loops(values, call)
    if not loops or not all(isinstance(one, ast.Name) for one in call.args):
        return False
    bound = [values.module.binding(one) for one in call.args if isinstance(one, ast.Name)]
    made = [one for one in bound if one is not None and one.how == "whole"]
    if len(made) < len(call.args) or any(loops[-1] in values.module.ancestors(one.node) for one in made):
        return False
    value = made[0].value
    if not isinstance(value, ast.Call):
        return False
    rows = (shape_made(values.module, values.module.called(value), value) or [0])[0]
    return rows.bit_count() > 1


def _is_step(values: Values, call: ast.Call) -> bool:
    if values.module.called(call):
        return False
    if isinstance(call.func, ast.Attribute):
        steps = ("train_on_batch", "test_on_batch", "predict_on_batch", "train_step")
        return call.func.attr in steps
    function = definition(values.module, call.func)
    if function is None and "train_step" in last_name(call):
        return True
    trains = function is not None and any(
        values.module.called(one) == "tensorflow.GradientTape"
        for one in values.module.inside(function, ast.Call)
    )
    loops = function is not None and any(isinstance(one, ast.For | ast.While) for one in ast.walk(function))
    return values.kind(call.func) == "model" or (trains and not loops)


def arrays_in_fit(values: Values) -> Iterator[Hit]:
    """`model.fit` of loaded arrays, which go to the device whole."""
    for call in values.module.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("fit", "evaluate"):
            continue
        given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "x")]
        if given and values.kind(given[0]) == "array" and values.module.imports.uses_tensorflow:
            yield Hit(call, shown(given[0]), is_sure=False)


RULES = (
    Rule(
        about(
            "MF001", "images-in-a-list", "warning",
            summary="All images are gathered in a Python list",
            reason="A list of decoded images is the whole data set in RAM, and np.array or np.stack of it "
            "is a second copy of it. 4,000 JPEGs of 160 pixels (307 MB decoded) took 4,693 MB as one "
            "float32 array, and 122 MB as a parallel tf.data pipeline that was three times as fast.",
            fix="Stream the files: memfit.data.from_images, keras.utils.image_dataset_from_directory, or "
            "tf.data.",
            before="""
                import cv2, numpy as np

                images = []
                for path in paths:
                    images.append(cv2.imread(path))
                x = np.array(images)
            """,
            after="""
                import memfit

                x = memfit.data.from_images("photos", size=(160, 160), batch_size=32, ram="512MiB")
            """,
        ),
        "all images go into {subject} and are then stacked: the whole data set is in RAM twice (4,693 MB "
        "where a pipeline took 122 MB)",
        "all images may go into {subject}, so that the whole data set is in RAM (4,693 MB where a pipeline "
        "took 122 MB)",
        images_in_a_list,
    ),
    Rule(
        about(
            "MF002", "slices-of-an-array", "warning",
            summary="from_tensor_slices of a loaded array",
            reason="The array becomes a constant of the pipeline's graph, beside the one that NumPy holds. "
            "TensorFlow copies it: 2 to 4 times its size in RAM, measured on TensorFlow 2.21; of a memory "
            "map it reads everything (1,174 MB of RAM for 307 MB of images).",
            fix="Stream the file: memfit.data.from_arrays or from_hdf5, or a generator with an "
            "output_signature.",
            before="""
                import numpy as np
                import tensorflow as tf

                x = np.load("x.npy")
                dataset = tf.data.Dataset.from_tensor_slices(x).batch(32).prefetch(2)
            """,
            after="""
                import memfit

                dataset = memfit.data.from_arrays("x.npy", batch_size=32, ram="512MiB")
            """,
        ),
        "from_tensor_slices of the loaded array {subject} puts a copy into the graph: 2 to 4 times its size "
        "in RAM",
        "from_tensor_slices of {subject} may be too much: it takes 2 to 4 times the size of the array in "
        "RAM",
        slices_of_an_array,
    ),
    Rule(
        about(
            "MF003", "constant-of-an-array", "warning",
            summary="tf.constant or convert_to_tensor of a loaded array",
            reason="The tensor is a second copy of the whole data set, on the device, and stays there "
            "beside weights and activations. TensorFlow copies it: 2 to 4 times its size in RAM, measured "
            "on TensorFlow 2.21.",
            fix="Leave the array on the host and move one batch at a time.",
            before="""
                import numpy as np
                import tensorflow as tf

                x = tf.constant(np.load("x.npy"))
            """,
            after="""
                import numpy as np
                import tensorflow as tf

                x = np.load("x.npy", mmap_mode="r")
                first = tf.constant(x[0:32])
            """,
        ),
        "the loaded array {subject} becomes a tensor: a second copy of the whole data set on the device, 2 "
        "to 4 times its size in all",
        "{subject} becomes a tensor, which may be too much: a second copy of the whole data set on the "
        "device",
        constant_of_an_array,
    ),
    Rule(
        about(
            "MF004", "array-in-a-function", "warning",
            summary="A tf.function uses a loaded array from outside",
            reason="An array that is not an argument becomes a constant of every graph that is traced, and "
            "each new trace holds another. TensorFlow copies it: 2 to 4 times its size in RAM, measured on "
            "TensorFlow 2.21, in one step at trace time.",
            fix="Pass what is needed as an argument, a batch at a time.",
            before="""
                import numpy as np
                import tensorflow as tf

                table = np.load("table.npy")

                @tf.function
                def look_up(index):
                    return tf.gather(table, index)
            """,
            after="""
                import tensorflow as tf

                @tf.function
                def look_up(table, index):
                    return tf.gather(table, index)
            """,
        ),
        "the array {subject} becomes a constant of each graph that is traced: 2 to 4 times its size, for "
        "each trace",
        "the array {subject} becomes a constant of each graph that is traced, which may be much",
        array_in_a_function,
    ),
    Rule(
        about(
            "MF018", "whole-data-in-a-step", "warning",
            summary="A step is called with the whole data set",
            reason="The activations of a step grow with its batch: a model needed 568 to 604 MiB for "
            "64 samples and 148 to 157 MiB for 16. A whole data set is one batch of all samples.",
            fix="Loop over batches.",
            before="""
                import numpy as np

                x = np.load("x.npy")
                loss = model.train_on_batch(x, x)
            """,
            after="""
                for batch in dataset:
                    loss = model.train_on_batch(batch, batch)
            """,
        ),
        "the step gets all of {subject} as one batch, and activations grow with the batch (16 samples 157 "
        "MiB, 64 samples 604 MiB)",
        "the step gets all of {subject} as one batch, which may be too much: activations grow with the "
        "batch",
        whole_data_in_a_step,
    ),
    Rule(
        about(
            "MF024", "arrays-in-fit", "note",
            summary="model.fit of loaded arrays",
            reason="fit copies arrays whole to the device before the first step: a 120 MiB array as x and y "
            "had 267 MiB in use and a peak of 335 MiB, against 71 MiB with a generator of the same batches.",
            fix="Give fit a data set that streams: memfit.data.from_arrays, or a keras.utils.PyDataset.",
            before="""
                import keras
                import numpy as np

                x = np.load("x.npy")
                model.fit(x, x, batch_size=32)
            """,
            after="""
                import memfit

                model.fit(memfit.data.from_arrays("x.npy", y="input", batch_size=32, ram="512MiB"))
            """,
        ),
        "fit copies {subject} whole to the device, which may be too much (peak 335 MiB where batches took "
        "71 MiB)",
        "",
        arrays_in_fit,
    ),
)  # fmt: skip
