"""One JSON round trip for all records.

On disk a record is one JSON object with its "schema" and "kind" in front of its fields. A record of a
newer schema is refused, a field that is missing takes its default, an unknown one is an error.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from memfit.core.errors import InvalidRecord, RecordTooNew

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """The round trip: record -> dict -> JSON and back."""

    schema: ClassVar[int] = 1

    @classmethod
    def kind(cls) -> str:
        """The name of this kind of record in JSON."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data, with its schema and kind."""
        return {"schema": self.schema, "kind": self.kind(), **_encode(self)}

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The record from plain data; refuses another kind and a newer schema."""
        if not isinstance(data, dict):
            raise InvalidRecord(cls.kind(), f"expected an object, received {type(data).__name__}")
        schema, kind = data.get("schema"), data.get("kind")
        if kind != cls.kind():
            raise InvalidRecord(cls.kind(), f"received a record of kind {kind!r}")
        if not isinstance(schema, int) or schema < 1:
            raise InvalidRecord(cls.kind(), f"expected a schema number, received {schema!r}")
        if schema > cls.schema:
            raise RecordTooNew(kind, schema=schema, newest=cls.schema)
        fields = {name: value for name, value in data.items() if name not in ("schema", "kind")}
        return typing.cast(Self, _decode(cls, fields, cls.kind()))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record from JSON text."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidRecord(cls.kind(), f"not JSON ({error})") from error
        return cls.from_dict(data)


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, number in _NOT_FINITE.items() if str(number) == str(value))
    return value


def _decode(expected: Any, value: Any, where: str) -> Any:
    """`value` as the type `expected`, or an InvalidRecord that says where it is not."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _decode_fields(typing.cast(type[Any], expected), value, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal and value in arguments:
        return value
    if expected is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        if not isinstance(value, str) or value in _NOT_FINITE:
            return _NOT_FINITE[value] if isinstance(value, str) else float(value)
    elif isinstance(expected, type) and type(value) is expected:
        return value
    expected_name = getattr(expected, "__name__", str(expected)) if origin is None else str(expected)
    raise InvalidRecord(where, f"expected {expected_name}, received {value!r}")


def _decode_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and types.NoneType in options:
        return None
    (option,) = (option for option in options if option is not types.NoneType)
    return _decode(option, value, where)


def _decode_fields(kind: type[Any], value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidRecord(where, f"expected an object, received {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - set(fields)):
        raise InvalidRecord(where, f"unknown fields {', '.join(unknown)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidRecord(where, f"missing fields {', '.join(missing)}")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})
