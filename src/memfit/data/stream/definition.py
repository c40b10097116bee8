"""A stream as a record: its source, its options, its sizes, and the functions for its elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memfit.data.stream.budget import Allotment, SampleSizes, allot, cores, decoders
from memfit.data.stream.options import Options
from memfit.data.stream.order import Groups, Order
from memfit.data.stream.source import Source, Spec

Decode = Callable[..., tuple[Any, ...]]  # the parts of one element as they are read -> as they are handed out
Finish = Callable[..., Any]  # the parts of a batch -> what the user gets


@dataclass(frozen=True)
class Stream:
    """All that a dataset is made of."""

    source: Source
    options: Options
    sizes: SampleSizes
    decode: Decode | None
    augment: Callable[[Any], Any] | None
    decoded: tuple[Spec, ...]  # the parts of one element as they are handed out
    finish: Finish
    groups: Groups | None = None  # where elements lie together, and `shuffle="groups"` has a meaning
    registered: tuple[int, ...] = ()  # what else goes when the dataset goes

    @property
    def order(self) -> Order:
        """In which order elements come."""
        options = self.options
        groups = self.groups if options.shuffle == "groups" else None
        return Order(self.source.length, bool(options.shuffle), options.seed, options.start, groups)

    def allotment(self) -> Allotment:
        """The widest allotment that stays within its RAM."""
        return allot(
            self.sizes,
            batch_size=self.options.block_size,
            ram_bytes=self.options.ram_bytes,
            width=cores() if self.decode is None else decoders(),
            reads_ahead=self.decode is not None,
        )
