"""The features of records that models get as x and y: named by the user, or the most likely ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memfit.core.errors import InvalidStream
from memfit.data.tfrecord.schema import Field

Chosen = str | Sequence[str] | None

_TARGET_NAMES = {"label", "labels", "class", "target", "y"}


class FieldChoice(NamedTuple):
    """Some fields, and how elements are built of them: x, or (x, y), each a place or a dict of places."""

    fields: tuple[Field, ...]
    structure: Any
    has_one_input: bool

    def build(self, *parts: Any) -> Any:
        """An element, or a batch of them, out of its parts."""
        return tf.nest.map_structure(lambda place: parts[place], self.structure)


def choose(fields: Sequence[Field], x: Chosen, y: Chosen) -> FieldChoice:
    """The fields that users want as x and y, or most likely want."""
    targets = [] if y == "input" else _named(fields, y, "y")
    inputs = _named(fields, x, "x")
    if y is None:
        targets = _likely_targets([field for field in fields if field not in inputs])
    if x is None:
        inputs = [_likely_input([field for field in fields if field not in targets], fields)]
    chosen = tuple(dict.fromkeys([*inputs, *targets]))
    for field in chosen:
        if field.kind == "varying":
            raise _varying(field)
    is_one = x is None or isinstance(x, str)
    found = _places(chosen, inputs, is_one=is_one)
    if y == "input":
        return FieldChoice(chosen, (found, found), is_one)
    if not targets:
        return FieldChoice(chosen, found, is_one)
    goal = _places(chosen, targets, is_one=y is None or isinstance(y, str))
    return FieldChoice(chosen, (found, goal), is_one)


def _named(fields: Sequence[Field], names: Chosen, argument: str) -> list[Field]:
    """The fields with these names."""
    by_name = {field.name: field for field in fields}
    wanted = [] if names is None else [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in by_name:
            raise InvalidStream(
                f"records have no feature {name!r}.",
                expected=_listed(fields),
                received=f"{argument}={names!r}",
                suggestion=f"{argument}={fields[0].name!r}",
            )
    return [by_name[name] for name in wanted]


def _likely_targets(fields: Sequence[Field]) -> list[Field]:
    """The one that is called like a target, if there is one; in `image/class/label` the last word counts."""
    found = [
        field
        for field in fields
        if field.kind != "varying" and field.name.rpartition("/")[2].lower() in _TARGET_NAMES
    ]
    if len(found) > 1:
        raise InvalidStream(
            f"{len(found)} features are called like a target.",
            expected="the name of one as y, or y=[] for none",
            received=_listed(found),
            suggestion=f"y={found[0].name!r}",
        )
    return found


def _likely_input(fields: Sequence[Field], among: Sequence[Field]) -> Field:
    """The only image; where there is none, the only array; where there is none, the only one at all."""
    usable = [field for field in fields if field.kind != "varying"]
    images = [field for field in usable if field.kind == "image"]
    arrays = [field for field in usable if field.spec.shape and field.kind in ("array", "number")]
    found = images or arrays or usable
    if len(found) != 1:
        raise InvalidStream(
            f"{len(found)} features could be the input.",
            expected="the name of one as x, or a list of names",
            received=_listed(found or among),
            suggestion=f"x={(found or among)[0].name!r}",
        )
    return found[0]


def _places(chosen: Sequence[Field], fields: Sequence[Field], *, is_one: bool) -> Any:
    places = {field.name: chosen.index(field) for field in fields}
    return next(iter(places.values())) if is_one else places


def _listed(fields: Sequence[Field]) -> str:
    return ", ".join(map(str, fields))


def _varying(field: Field) -> InvalidStream:
    return InvalidStream(
        f"feature {field.name!r} cannot be batched.",
        expected="features that are as long in every record",
        received=str(field),
        suggestion="features=a function of one record that parses it and brings it to one length",
    )
