"""Names that stand for modules and what is in them."""

from __future__ import annotations

import ast
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

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
    """The modules and objects that imported names stand for."""

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


Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True)
class Binding:
    """One place where a name gets a value."""

    node: ast.AST  # where it happens
    value: ast.AST | None  # what it gets; None where it is unknown
    how: Literal["whole", "part", "loop", "with", "definition", "unknown"]


class Module:
    """A parsed file; nothing of it is run."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.handed_over: set[str] | None = None  # see tracing.py
        self._by_type: dict[type[ast.AST], list[ast.AST]] = {}
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._called: dict[ast.AST, str] = {}
        waiting: deque[ast.AST] = deque([tree])
        while waiting:
            node = waiting.popleft()
            self._by_type.setdefault(type(node), []).append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                waiting.append(child)

    def all(self, *kinds: type[N]) -> list[N]:
        """All nodes of these kinds."""
        return [node for kind in kinds for node in self._by_type.get(kind, [])]  # type: ignore[misc]

    @property
    def calls(self) -> list[ast.Call]:
        """All calls."""
        return self.all(ast.Call)

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods."""
        return [*self.all(ast.FunctionDef), *self.all(ast.AsyncFunctionDef)]

    @cached_property
    def appends(self) -> dict[str, list[ast.Call]]:
        """All calls `name.append(value)` and `name[key].append(value)`, by name."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.calls:
            function = call.func
            is_append = isinstance(function, ast.Attribute) and function.attr == "append"
            target = function.value if isinstance(function, ast.Attribute) and is_append else None
            target = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(target, ast.Name) and len(call.args) == 1:
                found.setdefault(target.id, []).append(call)
        return found

    @cached_property
    def imports(self) -> Imports:
        """The modules and objects that imported names stand for."""
        statements: list[ast.Import | ast.ImportFrom] = [*self.all(ast.Import), *self.all(ast.ImportFrom)]
        bound = {name for names in self._bindings.values() for name in names}
        imports = Imports(statements, bound, {name.id for name in self.all(ast.Name)})
        for name, found in self._bindings.get(self.tree, {}).items():
            if len(found) == 1 and found[0].how == "whole" and isinstance(found[0].value, ast.Attribute):
                imports.add(name, found[0].value)
        return imports

    def qualified(self, node: ast.AST) -> str:
        """The full dotted name, as `tensorflow.data.Dataset`; empty where it is not that of a module."""
        return self.imports.qualified(node)

    def called(self, call: ast.AST) -> str:
        """The full dotted name of what is called."""
        if not isinstance(call, ast.Call):
            return ""
        if call not in self._called:
            self._called[call] = self.qualified(call.func)
        return self._called[call]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """The function or module whose names a node sees first."""
        if node not in self._scopes:
            around = (found for found in self.ancestors(node) if isinstance(found, _SCOPES))
            self._scopes[node] = next(around, self.tree)
        return self._scopes[node]

    def function_around(self, node: ast.AST) -> Function | None:
        """The innermost function that a node is in."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((found for found in self.ancestors(node) if isinstance(found, kinds)), None)

    def class_around(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method a node is in."""
        return next((found for found in self.ancestors(node) if isinstance(found, ast.ClassDef)), None)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is in, or is."""
        found = node if isinstance(node, ast.stmt) else None
        return found or next(one for one in self.ancestors(node) if isinstance(one, ast.stmt))

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops whose bodies run a node, within its function, from the inside out."""
        found: list[Loop] = []
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, (*_SCOPES, ast.ClassDef)):
                break
            if isinstance(parent, ast.For | ast.AsyncFor | ast.While) and child in parent.body:
                found.append(parent)
            child = parent
        return found

    def inside(self, node: ast.AST, kind: type[N]) -> Iterator[N]:
        """All nodes of a kind below a node."""
        return (found for found in ast.walk(node) if isinstance(found, kind))

    def bindings(self, name: str, at: ast.AST) -> list[Binding]:
        """All places where a name that is used somewhere may have got its value."""
        scope = self.scope(at)
        while True:
            if found := self._bindings.get(scope, {}).get(name):
                return found
            if scope is self.tree:
                return []
            scope = self.scope(scope)

    def binding(self, name: ast.Name) -> Binding | None:
        """The last place before a use where a name got its value, read from top to bottom."""
        found = self.bindings(name.id, name)
        if not found:
            return None
        if self.scope(found[-1].node) is not self.scope(name):
            return found[-1]  # a function runs after all of the module around it
        mine = self.statement(name)
        before = [one for one in found if place(one.node) < place(name) and one.node is not mine]
        before = [one for one in before if not self.excludes(one.node, name)]
        return before[-1] if before else None

    def excludes(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes are in branches of which only one runs."""
        branches = {found: self._branch(found, child) for found, child in self._steps_up(other)}
        return any(
            found in branches and branches[found] != self._branch(found, child)
            for found, child in self._steps_up(one)
        )

    def _steps_up(self, node: ast.AST) -> Iterator[tuple[ast.If, ast.AST]]:
        for parent in self.ancestors(node):
            if isinstance(parent, ast.If):
                yield parent, node
            node = parent

    def _branch(self, found: ast.If, child: ast.AST) -> str:
        return "else" if child in found.orelse else "then"

    @cached_property
    def _bindings(self) -> dict[ast.AST, dict[str, list[Binding]]]:
        found: dict[ast.AST, dict[str, list[Binding]]] = {}
        for name, binding in self._all_bindings():
            scope = self.scope(binding.node)
            found.setdefault(scope, {}).setdefault(name, []).append(binding)
        for names in found.values():
            for bindings in names.values():
                bindings.sort(key=lambda one: place(one.node))
        return found

    def _all_bindings(self) -> Iterator[tuple[str, Binding]]:
        yield from self._assigned()
        for loop in self.all(ast.For):
            yield from _targets(loop.target, loop, loop.iter, "loop")
        for item in self.all(ast.withitem):
            if item.optional_vars is not None:
                yield from _targets(item.optional_vars, item.optional_vars, item.context_expr, "with")
        for function in self.functions:
            yield function.name, Binding(function, function, "definition")
        for argument in self.all(ast.arg):
            yield argument.arg, Binding(argument, None, "unknown")

    def _assigned(self) -> Iterator[tuple[str, Binding]]:
        for assign in self.all(ast.Assign):
            for target in assign.targets:
                yield from _targets(target, assign, assign.value, "whole")
        for annotated in self.all(ast.AnnAssign):
            if annotated.value is not None:
                yield from _targets(annotated.target, annotated, annotated.value, "whole")
        for named in self.all(ast.NamedExpr):
            yield from _targets(named.target, named, named.value, "whole")


def place(node: ast.AST) -> tuple[int, int]:
    """The line and column at which a node begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def last_name(node: ast.AST | None) -> str:
    """The last word of a name, as `fit` of `model.fit` or of a call of it; empty where there is none."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _targets(
    target: ast.AST, node: ast.AST, value: ast.AST, how: Literal["whole", "part", "loop", "with"]
) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name):
        yield target.id, Binding(node, value, how)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, node, value, "part" if how == "whole" else how)
    elif isinstance(target, ast.Tuple | ast.List):
        pairs = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for number, element in enumerate(target.elts):
            if pairs and how == "whole" and isinstance(value, ast.Tuple | ast.List):
                yield from _targets(element, node, value.elts[number], "whole")
            else:
                yield from _targets(element, node, value, "part" if how == "whole" else how)
