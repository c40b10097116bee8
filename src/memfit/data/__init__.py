"""memfit.data: files and arrays as tf.data.Datasets that stay within a RAM budget.

    dataset = memfit.data.from_images("photos", size=(160, 160), labels="folders", ram="512MiB")
    model.fit(dataset)

Importing it does not import TensorFlow: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.data.formats.arrays import from_arrays
    from memfit.data.formats.generators import from_generator
    from memfit.data.formats.hdf5 import from_hdf5
    from memfit.data.formats.images import from_images
    from memfit.data.formats.parquet import from_parquet
    from memfit.data.formats.tfrecords import from_tfrecords
    from memfit.data.inspect.check import check
    from memfit.data.inspect.explain import explain
    from memfit.data.packs.packing import pack
    from memfit.data.packs.verifying import verify_pack

__all__ = [
    "check",
    "explain",
    "from_arrays",
    "from_generator",
    "from_hdf5",
    "from_images",
    "from_parquet",
    "from_tfrecords",
    "pack",
    "verify_pack",
]

_HOMES = {
    "check": "inspect.check",
    "explain": "inspect.explain",
    "from_arrays": "formats.arrays",
    "from_generator": "formats.generators",
    "from_hdf5": "formats.hdf5",
    "from_images": "formats.images",
    "from_parquet": "formats.parquet",
    "from_tfrecords": "formats.tfrecords",
    "pack": "packs.packing",
    "verify_pack": "packs.verifying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memfit.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"memfit.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
