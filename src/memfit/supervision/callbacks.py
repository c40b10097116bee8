"""What Keras' callbacks remember, as plain data, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from memfit.supervision.files import Array
from memfit.supervision.plain import NotPlain, decode, encode

_NOT_THEIRS = {"model", "_model", "params"}  # Keras gives them these anew


def listed(callbacks: Any) -> tuple[Any, list[Any]]:
    """What to give to `fit` for callbacks, with a History among them; and all of them as a list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks, list(callbacks.callbacks)
    if callbacks is None:
        found = []
    else:
        found = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    if not any(isinstance(callback, keras.callbacks.History) for callback in found):
        found.append(keras.callbacks.History())
    return found, list(found)


def remembered(callbacks: Sequence[Any], arrays: dict[str, Array]) -> list[Any]:
    """What each of them remembers, as far as it is plain data; arrays go into `arrays`."""
    found = []
    for number, callback in enumerate(callbacks):
        attributes = {}
        for name, value in _attributes(callback).items():
            kept: dict[str, Array] = {}
            try:
                attributes[name] = encode(value, kept, f"callback/{number}/{name}")
            except NotPlain:
                continue
            arrays.update(kept)
        found.append([type(callback).__name__, attributes, _written_bytes(callback)])
    return found


def _attributes(callback: Any) -> dict[str, Any]:
    if isinstance(callback, keras.callbacks.CSVLogger):
        return {}  # what it knows, it finds in its file
    return {name: value for name, value in vars(callback).items() if name not in _NOT_THEIRS}


def remind(callbacks: Sequence[Any], saved: Sequence[Any], arrays: dict[str, Array]) -> None:
    """Let callbacks remember what was saved, wherever they are of the same kind."""
    for callback, (kind, attributes, _) in zip(callbacks, saved, strict=False):
        if type(callback).__name__ == kind:
            vars(callback).update({name: decode(value, arrays) for name, value in attributes.items()})


def go_on_writing(callbacks: Sequence[Any], saved: Sequence[Any]) -> None:
    """Have files of callbacks end where they did, and go on from there."""
    for callback, (kind, _, written_bytes) in zip(callbacks, saved, strict=False):
        if isinstance(callback, keras.callbacks.CSVLogger) and kind == "CSVLogger":
            path = Path(callback.filename)
            callback.append = True
            if written_bytes is not None and path.exists() and path.stat().st_size > written_bytes:
                with path.open("r+b") as file:
                    file.truncate(written_bytes)


def _written_bytes(callback: Any) -> int | None:
    """How long the file is that a callback adds lines to."""
    if not isinstance(callback, keras.callbacks.CSVLogger):
        return None
    path = Path(callback.filename)
    return path.stat().st_size if path.exists() else 0


def history_of(callbacks: Sequence[Any]) -> Any:
    """The one among them that `fit` returns."""
    found = (callback for callback in callbacks if isinstance(callback, keras.callbacks.History))
    return next(found, None) or keras.callbacks.History()
