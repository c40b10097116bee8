"""The protocol of a source of packs: its elements are read by index, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from memfit.core.errors import DamagedData
from memfit.data.manifest import Feature, SourceKind

Element = dict[str, Any]  # bytes or an array for each feature
Indices = npt.NDArray[np.int64]


class PackSource(Protocol):
    """Elements by index.

    `read` gives an element for each index, or what is wrong with it; it is called from several threads at
    once.
    """

    kind: SourceKind
    length: int
    features: dict[str, Feature]
    class_names: list[str] | None

    def stamps(self) -> Iterator[bytes]:
        """All that tells this source from another one, or from itself before it was changed."""

    def close(self) -> None:
        """Let go of files."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """About how many bytes each element takes in a pack."""

    def read(self, indices: Indices) -> Sequence[Element | DamagedData]:
        """The elements with these indices."""
