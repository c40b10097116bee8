"""The kind of an expression's value, as far as a reader can tell: loaded array, image, model or data set."""

from __future__ import annotations

import ast
import math
import re
from typing import Literal

from memfit.linting.parsed_module import Function, Module, last_name

Kind = Literal[
    "array",  # a whole data set, loaded
    "small array",  # which may be large: one that comes with Keras, or a table
    "tiny array",  # too small to speak of, but for a single step
    "table",
    "file",  # of arrays: HDF5
    "stored",  # an array in such a file
    "image",
    "images",  # in a list
    "dataset",
    "function",  # a tf.function
    "model",
    "optimizer",
    "outputs",  # of a step or a model: tensors
]
_LABELS = re.compile(r"y$|y_|.*(label|target)s?(_|$)")
_ARRAYS = ("array", "small array", "tiny array")
_DEPTH = 12  # of expressions and names that lead to names

_LOADERS = {
    "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap",
}  # fmt: skip
_IMAGES = {
    "cv2.imread", "cv2.imdecode", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread",
    "skimage.io.imread", "matplotlib.pyplot.imread", "matplotlib.image.imread", "PIL.Image.open",
    "keras.utils.load_img", "keras.preprocessing.image.load_img", "tensorflow.io.decode_jpeg",
    "tensorflow.io.decode_png",
    "tensorflow.io.decode_image", "tensorflow.image.decode_jpeg", "tensorflow.image.decode_png",
    "tensorflow.image.decode_image", "nibabel.load", "pydicom.dcmread", "tifffile.imread", "rasterio.open",
}  # fmt: skip
_OF_IMAGES = {
    "keras.utils.img_to_array", "keras.utils.array_to_img", "keras.preprocessing.image.img_to_array",
    "keras.preprocessing.image.array_to_img", "cv2.resize", "cv2.cvtColor", "tensorflow.image.resize",
    "skimage.transform.resize", "tensorflow.cast",
}  # fmt: skip
_REDUCES = {
    "all", "any", "argmax", "argmin", "average", "count_nonzero", "histogram", "max", "mean", "median", "min",
    "percentile", "prod", "quantile", "shape", "size", "std", "sum", "unique", "var", "where",
}  # fmt: skip
_OF_ARRAYS = {
    "numpy.array", "numpy.asarray", "numpy.ascontiguousarray", "numpy.expand_dims", "numpy.transpose",
    "numpy.reshape", "numpy.squeeze", "numpy.float32", "numpy.concatenate", "numpy.vstack", "numpy.stack",
    "numpy.nan_to_num", "numpy.clip", "keras.utils.normalize",
}  # fmt: skip
_STACKS = {
    "numpy.array",
    "numpy.asarray",
    "numpy.stack",
    "numpy.vstack",
    "numpy.concatenate",
    "numpy.float32",
}
_ARRAY_METHODS = {
    "astype",
    "reshape",
    "copy",
    "transpose",
    "clip",
    "squeeze",
    "swapaxes",
    "to_numpy",
    "numpy",
}
_SAME_DATA = {"T", "values", "data"}
_DATASET_MAKERS = (
    "tensorflow.data.",
    "keras.utils.image_dataset_from_directory",
    "keras.utils.text_dataset_from_directory",
    "keras.utils.audio_dataset_from_directory",
    "keras.utils.timeseries_dataset_from_array",
    "tensorflow_datasets.load",
)
_NOT_DATASETS = (
    "tensorflow.data.AUTOTUNE",
    "tensorflow.data.experimental.AUTOTUNE",
    "tensorflow.data.Options",
)
DATASET_METHODS = {
    "apply", "batch", "bucket_by_sequence_length", "cache", "concatenate", "enumerate", "filter", "flat_map",
    "group_by_window", "ignore_errors", "interleave", "map", "padded_batch", "prefetch", "ragged_batch",
    "rebatch", "repeat", "scan", "shard", "shuffle", "skip", "snapshot", "take", "take_while", "unbatch",
    "unique", "window", "with_options",
}  # fmt: skip
_MODELS = {
    "keras.Sequential", "keras.Model", "keras.models.load_model", "keras.models.clone_model",
    "keras.saving.load_model", "keras.models.model_from_json", "keras.Functional",
}  # fmt: skip
# In float32 they take 600 MB; the others that come with Keras are too small to speak of.
_SMALL_DATA = {"keras.datasets.cifar10.load_data", "keras.datasets.cifar100.load_data"}
_NOT_OPTIMIZERS = {"get", "deserialize", "serialize", "schedules"}


class Values:
    """The kinds of value that the expressions of a module hold."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._known: dict[ast.AST, Kind | None] = {}
        self._depth = 0

    def kind(self, node: ast.AST | None) -> Kind | None:
        """The kind of value that an expression holds; None where it is unknown."""
        if node is None or self._depth > _DEPTH:
            return None
        if node not in self._known:
            self._known[node] = None  # names that lead back to themselves end here
            self._depth += 1
            try:
                self._known[node] = self._kind(node)
            finally:
                self._depth -= 1
        return self._known[node]

    def is_array(self, node: ast.AST | None) -> bool:
        """Whether it is a data set that was loaded as an array; labels are small beside it."""
        return self.kind(node) in ("array", "small array") and not _LABELS.match(last_name(node).lower())

    def _kind(self, node: ast.AST) -> Kind | None:
        if isinstance(node, ast.Name):
            return self._kind_of_name(node)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node)
        if isinstance(node, ast.Subscript):
            return self._kind_of_part(node)
        if isinstance(node, ast.BinOp):
            kinds = [self.kind(side) for side in (node.left, node.right)]
            return next((kind for kind in kinds if kind in (*_ARRAYS, "image")), None)
        if isinstance(node, ast.Attribute):
            return self._kind_of_attribute(node)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return "images" if self.kind(node.elt) == "image" else None
        return None

    def _kind_of_name(self, node: ast.Name) -> Kind | None:
        binding = self.module.binding(node)
        if binding is None or binding.how == "loop":
            return None
        if binding.how == "definition" and isinstance(binding.value, ast.FunctionDef):
            return "function" if is_compiled(self.module, binding.value) else None
        kind = self.kind(binding.value)
        return "images" if kind is None and self._is_filled_with_images(node) else kind

    def _is_filled_with_images(self, name: ast.Name) -> bool:
        return any(
            self.kind(call.args[0]) == "image"
            for call in appends(self.module, name.id, self.module.scope(name))
        )

    def _kind_of_attribute(self, node: ast.Attribute) -> Kind | None:
        if self.module.qualified(node):
            return None
        below = self.kind(node.value)
        if below == "table" and node.attr == "values":
            return "small array"
        return below if node.attr in _SAME_DATA and below in _ARRAYS else None

    def _kind_of_part(self, node: ast.Subscript) -> Kind | None:
        below, index = self.kind(node.value), node.slice
        is_named = isinstance(index, ast.Constant) and isinstance(index.value, str)
        if below == "file":
            return "stored" if is_named else None
        if below == "stored":
            return "array" if _is_everything(index) else None
        if below in _ARRAYS and (is_named or _is_most(index)):
            return below
        return None

    def _kind_of_call(self, call: ast.Call) -> Kind | None:
        name = self.module.called(call)
        if name:
            return self._kind_of_imported(call, name)
        if isinstance(call.func, ast.Attribute):
            return self._kind_of_method(call.func)
        if self.kind(call.func) in ("function", "model"):
            return "outputs"
        return self._kind_returned(call.func)

    def _kind_of_imported(self, call: ast.Call, name: str) -> Kind | None:
        first = self.kind(call.args[0]) if call.args else None
        if name in _LOADERS or (name.startswith("numpy.") and is_large(self.module, name, call)):
            return "array"
        if name in _IMAGES or (first == "image" and _keeps_images(name)):
            return "image"
        if name in _STACKS and first == "images":
            return "array"
        if name in _OF_ARRAYS and first in _ARRAYS:
            return first
        return _kind_by_name(name) or self._kind_of_split(call, name)

    def _kind_of_split(self, call: ast.Call, name: str) -> Kind | None:
        if name.endswith("train_test_split"):
            return next((kind for one in call.args if (kind := self.kind(one))), None)
        return None

    def _kind_of_method(self, function: ast.Attribute) -> Kind | None:
        below = self.kind(function.value)
        if below in (*_ARRAYS, "table") and function.attr in _ARRAY_METHODS:
            return "small array" if below == "table" else below
        if below == "image":
            return "image"
        if below == "dataset" and function.attr in DATASET_METHODS:
            return "dataset"
        if below == "model" and function.attr == "call":
            return "outputs"
        return self._kind_returned(function)

    def _kind_returned(self, called: ast.AST) -> Kind | None:
        function = definition(self.module, called)
        if function is None:
            return None
        if is_compiled(self.module, function):
            return "outputs"
        returns = [found for found in self.module.inside(function, ast.Return) if found.value is not None]
        kinds = {
            self.kind(found.value) for found in returns if self.module.function_around(found) is function
        }
        return kinds.pop() if len(kinds) == 1 else None


def _keeps_images(name: str) -> bool:
    """Whether a function makes an image of an image: most of NumPy's do."""
    return name in _OF_IMAGES or (name.startswith("numpy.") and name.rpartition(".")[2] not in _REDUCES)


def _kind_by_name(name: str) -> Kind | None:
    if name in _SMALL_DATA:
        return "small array"
    if name.startswith("keras.datasets.") and name.endswith(".load_data"):
        return "tiny array"
    if name.startswith("pandas.read_"):
        return "table"
    if name == "h5py.File":
        return "file"
    if name.startswith(_DATASET_MAKERS) and not name.startswith(_NOT_DATASETS):
        return "dataset"
    if name == "tensorflow.function":
        return "function"
    if name in _MODELS or (name.startswith("keras.applications.") and name.split(".")[-1][:1].isupper()):
        return "model"
    if name.startswith("keras.optimizers.") and not set(name.split(".")) & _NOT_OPTIMIZERS:
        return "optimizer"
    return None


def _is_everything(index: ast.AST) -> bool:
    if isinstance(index, ast.Slice):
        return index.lower is None and index.upper is None
    is_empty = isinstance(index, ast.Tuple) and not index.elts
    return is_empty or (isinstance(index, ast.Constant) and index.value is Ellipsis)


def _is_most(index: ast.AST) -> bool:
    """Whether a slice leaves most of the samples in: `[:split]`, `[..., None]`, but not `[:100]`."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if isinstance(first, ast.Constant):
        return first.value is Ellipsis or first.value is None
    if not isinstance(first, ast.Slice) or (first.lower is not None and first.upper is not None):
        return False
    return first.upper is None or not isinstance(first.upper, ast.Constant)


def is_compiled(module: Module, function: Function) -> bool:
    """Whether it is decorated with `tf.function`."""
    return any(compiler(module, decorator) for decorator in function.decorator_list)


def compiler(module: Module, decorator: ast.expr) -> str:
    """`tensorflow.function` where a decorator is that, with or without arguments."""
    name = module.qualified(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name if name == "tensorflow.function" else ""


def definition(module: Module, called: ast.AST) -> Function | None:
    """The function of this file that is called: by its name, or as a method of the same class."""
    if isinstance(called, ast.Name):
        binding = module.binding(called)
        found = binding.value if binding is not None and binding.how == "definition" else None
        return found if isinstance(found, ast.FunctionDef) else None
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
        around = module.class_around(called)
        methods = around.body if around is not None else []
        return next(
            (one for one in methods if isinstance(one, ast.FunctionDef) and one.name == called.attr), None
        )
    return None


def appends(module: Module, name: str, scope: ast.AST) -> list[ast.Call]:
    """All calls `name.append(value)` in a scope."""
    return [call for call in module.appends.get(name, []) if module.scope(call) is scope]


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


def is_large(module: Module, name: str, call: ast.Call) -> bool:
    """Whether a function of NumPy makes many samples with more than a million elements."""
    sides = shape_made(module, name, call)
    return bool(sides) and sides[0] >= _MANY and math.prod(sides) > _LARGE


def shape_made(module: Module, name: str, call: ast.Call) -> list[int]:
    """The shape of what a function of NumPy or TensorFlow makes; empty where it is not written out."""
    name = name.removeprefix("numpy.").removeprefix("tensorflow.")
    shape: ast.AST | None = None
    if name in _BY_SIZES:
        shape = ast.Tuple(call.args)
    elif (name in _BY_SHAPE or name in _BY_KEYWORD) and call.args:
        shape = call.args[0]
    if name in _BY_SHAPE | _BY_KEYWORD:
        shape = next((one.value for one in call.keywords if one.arg in ("size", "shape")), shape)
    if shape is None:
        return []
    sides = shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape]
    known = [_whole_number(module, one) for one in sides]
    return [] if None in known else [side for side in known if side is not None]


def _whole_number(module: Module, node: ast.AST) -> int | None:
    """The value of a number that is written out, there or where its name gets it; of a product of such."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = _whole_number(module, node.left), _whole_number(module, node.right)
        return None if sides[0] is None or sides[1] is None else sides[0] * sides[1]
    if isinstance(node, ast.Name):
        binding = module.binding(node)
        written = binding is not None and binding.how in ("whole", "part")
        return _whole_number(module, binding.value) if written and binding and binding.value else None
    return None
