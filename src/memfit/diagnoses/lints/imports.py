"""Names that stand for modules and what is in them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator

# What everybody calls them; notebooks and excerpts often leave the imports out.
_CUSTOMARY = {
    "tf": "tensorflow",
    "np": "numpy",
    "pd": "pandas",
    "keras": "keras",
    "cv2": "cv2",
    "h5py": "h5py",
    "tfds": "tensorflow_datasets",
}
# The same thing under several names; the longest first.
_SAME = (
    ("keras.utils.module_utils.tensorflow", "tensorflow"),
    ("tensorflow.compat.v2", "tensorflow"),
    ("tensorflow.keras", "keras"),
    ("keras.models.Sequential", "keras.Sequential"),
    ("keras.models.Model", "keras.Model"),
    ("keras.preprocessing.image_dataset_from_directory", "keras.utils.image_dataset_from_directory"),
    ("keras.api", "keras"),
    ("keras.src", "keras"),
    ("tf_keras", "keras"),
    ("cv2.cv2", "cv2"),
)


class Imports:
    """What imported names stand for."""

    def __init__(
        self, statements: Iterable[ast.Import | ast.ImportFrom], bound: set[str], used: set[str]
    ) -> None:
        self.aliases = {name: full for name, full in _CUSTOMARY.items() if name not in bound}
        # all that are imported, or used without, by their first name
        self.modules = {full for name, full in self.aliases.items() if name in used}
        self.uses_insides = False  # of TensorFlow, as its own code does
        self.uses_old_keras = False  # the one before Keras 3, which lives on under another name
        for statement in statements:
            self.uses_old_keras |= _is_of_old_keras(statement)
            for name, full in _imported(statement):
                self.aliases[name] = full
                self.modules.add(full.partition(".")[0])
                self.uses_insides |= full.startswith("tensorflow.python")

    def add(self, name: str, value: ast.AST) -> None:
        """Take a name for what it was set to, as in `mnist = tf.keras.datasets.mnist`."""
        if full := self.qualified(value):
            self.aliases.setdefault(name, full)

    def qualified(self, node: ast.AST) -> str:
        """The full dotted name of an expression, empty where it does not begin with an import."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.aliases:
            return ""
        return _canonical(".".join([self.aliases[node.id], *reversed(attributes)]))

    @property
    def is_of_another_framework(self) -> bool:
        """Whether the file trains with something else, where other rules hold."""
        return bool({"torch", "jax", "flax", "mxnet", "paddle"} & self.modules) and not self.uses_tensorflow

    @property
    def uses_tensorflow(self) -> bool:
        """Whether TensorFlow or Keras is imported, under any name."""
        return bool({"tensorflow", "keras", "tf_keras", "tensorflow_datasets"} & self.modules)


def _is_of_old_keras(statement: ast.Import | ast.ImportFrom) -> bool:
    named = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    return any(
        one.partition(".")[0] == "tf_keras" for one in [*named, *(one.name for one in statement.names)]
    )


def _imported(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            if statement.module and not statement.level:
                yield alias.asname or alias.name, _canonical(f"{statement.module}.{alias.name}")
        elif alias.asname:
            yield alias.asname, _canonical(alias.name)
        else:
            first = alias.name.partition(".")[0]
            yield first, _canonical(first)


@functools.lru_cache(maxsize=4096)
def _canonical(name: str) -> str:
    for _ in range(3):  # one alias can lead to another
        for other, usual in _SAME:
            if name == other or name.startswith(f"{other}."):
                name = usual + name[len(other) :]
    return name
