"""`explain`: what memfit has chosen for one of its own streams, and why."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from memfit.data.inspect.check import check
from memfit.data.inspect.pipeline_findings import Check, Explanation, Part
from memfit.data.inspect.pipeline_graph import is_stream
from memfit.data.stream.budget import MOST_PREFETCHED, Allotment, cores
from memfit.private.tensorflow.datasets import input_datasets, unwrapped

_LISTED = 10


def explain(dataset: Any) -> Explanation | Check:
    """The explanation of a `memfit.data` stream: the parts of its RAM, its order, the elements it skipped.

    It is found below what was put on top of it: `map`, `repeat`, `with_options` and others. Of any other
    dataset it says what `memfit.data.check` does.

        print(memfit.data.explain(dataset))
    """
    found = _stream_below(dataset)
    if found is None:
        return check(dataset)
    stream, allotment = found.memfit_stream, found.memfit_stream.allotment()
    options, losses = stream.options, getattr(found, "memfit_losses", None)
    skipped = {} if losses is None else dict(losses.skipped)
    return Explanation(
        source=_name(stream.source),
        elements=stream.source.length,
        element_bytes=stream.sizes.element_bytes,
        batch_size=options.batch_size,
        ram_bytes=options.ram_bytes,
        parts=tuple(Part(name, size) for name, size in allotment.parts if size),
        parallel=allotment.parallel,
        prefetch=allotment.prefetch,
        window=allotment.window,
        reasons=(_threads(allotment), _waiting(allotment)),
        order=_order(stream, allotment.window),
        start=options.start,
        on_error=options.on_error,
        skipped=len(skipped),
        listed=tuple(str(one) for one in list(skipped.values())[:_LISTED]),
        above=tuple(finding for finding in check(dataset).findings if finding.kind != "stream"),
    )


def _stream_below(dataset: Any) -> Any:
    """The stream of memfit's that a dataset is made from; None if there is none, or more than one input."""
    current = unwrapped(dataset) if isinstance(dataset, tf.data.Dataset) else None
    while current is not None and not is_stream(current):
        try:
            inputs = input_datasets(current)
        except (AttributeError, NotImplementedError):
            return None
        current = inputs[0] if len(inputs) == 1 else None
    return current


def _name(source: Any) -> str:
    """The name of a source if it has one, else the words of its class name."""
    name = getattr(source, "name", None)
    return (
        name if isinstance(name, str) else re.sub("(?<=[a-z])(?=[A-Z])", " ", type(source).__name__).lower()
    )


def _threads(allotment: Allotment) -> str:
    count = allotment.parallel
    if allotment.window:
        return "1 thread reads: elements come one after the other."
    words = "1 thread reads and decodes" if count == 1 else f"{count} threads read and decode"
    why = "more would bring nothing" if count >= cores() else "more would not stay within ram"
    return f"{words}: {why}."


def _waiting(allotment: Allotment) -> str:
    count = allotment.prefetch
    if count >= MOST_PREFETCHED:
        why = "more would bring nothing"
    elif allotment.window:
        why = "a window to shuffle in is worth more"
    else:
        why = "more would not stay within ram"
    return f"Up to {count} batch{'es wait' if count > 1 else ' waits'} for the training: {why}."


def _order(stream: Any, window: int) -> str:
    options = stream.options
    if not options.shuffle:
        return "as the elements are stored, the same each epoch"
    if window:
        return f"shuffled within a window of {window:,} elements, another one each epoch, seed {options.seed}"
    if options.shuffle == "groups":
        return f"groups of elements shuffled, another order each epoch, seed {options.seed}"
    return f"shuffled over the whole data set without a buffer, another order each epoch, seed {options.seed}"
