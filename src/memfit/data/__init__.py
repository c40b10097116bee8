"""memfit.data: files and arrays as tf.data.Datasets that stay within a RAM budget.

    dataset = memfit.data.from_images("photos", size=(160, 160), labels="folders", ram="512MiB")
    model.fit(dataset)

Importing it does not import TensorFlow: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.data.generators import from_generator
    from memfit.data.images import from_images

__all__ = [
    "from_generator",
    "from_images",
]

_HOMES = {
    "from_generator": "generators",
    "from_images": "images",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memfit.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"memfit.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
