"""`check`: what any tf.data pipeline will hold in memory, and what would hold less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from memfit.core.units import format_size
from memfit.data.inspect.element_sizes import SAME, SOURCES_IN_MEMORY, ElementSizes, measured_bytes
from memfit.data.inspect.pipeline_findings import Check, Finding
from memfit.data.inspect.pipeline_graph import BATCHES, Step, read_steps
from memfit.data.stream.budget import cores
from memfit.machine import host_memory
from memfit.private.tensorflow.datasets import tensors_of, window_size_of

# Measured on TensorFlow 2.21, as anonymous memory of a new process.
_TENSOR_BYTES = 176  # of a tensor that waits in a buffer, beside its values
_COPIES_OF_ARRAYS = 2  # that from_tensor_slices makes beside the array
_COPIES_OF_CONSTANTS = 7  # that stay when an array becomes part of a function
_COPIES_AT_THE_START = 18  # and for a moment, when the first iterator is made
_AUTOTUNED = 2  # elements that TensorFlow keeps ready where it may choose, unless they come in bursts
_AHEAD = 3  # inputs that a parallel interleave has open, for each of its cycle

_SMALL_BYTES = 64 << 20  # what a buffer may take without a thought
_WORTH_A_WORD_BYTES = 1 << 20
_PARALLEL = frozenset(("ParallelBatch", "ParallelInterleave", "ParallelMap"))
_FREE = SAME | frozenset(
    (
        *("Concatenate", "DirectedInterleave", "FixedLengthRecord", "FlatMap", "Interleave", "Load", "Map"),
        *("MatchingFiles", "ParseExample", "Random", "Range", "Rebatch", "Restructured", "Save", "Scan"),
        *("TFRecord", "TextLine", "Unbatch", "Zip"),
    )
)


def check(dataset: Any, *, peek: bool = True) -> Check:
    """Look at a `tf.data` pipeline, and say what it will hold in memory, with figures and a fix for each.

    The pipeline is not run, and no iterator of it is made. Where specs leave sizes open, as for texts and
    images of any size, three elements are made by hand from its source, if that has no side effects;
    `peek=False` does without.

        print(memfit.data.check(dataset))
    """
    samples = ElementSizes() if peek else None
    if not isinstance(dataset, tf.data.Dataset):
        return Check((_not_understood(type(dataset).__name__, 1, type(dataset).__name__),))
    steps = read_steps(dataset, samples)
    budget_bytes = _autotune_budget_bytes(dataset)
    found = [finding for step in steps for finding in _findings(step, budget_bytes)]
    found += _injected(dataset, steps, budget_bytes)
    return Check(tuple(found), 0 if samples is None else samples.looked_at)


def _autotune_budget_bytes(dataset: Any) -> int:
    """The bytes that TensorFlow gives to buffers whose size it may choose."""
    given = dataset.options().autotune.ram_budget
    return int(given) if given else host_memory().usable_available_bytes // 2


def _findings(step: Step, budget_bytes: int) -> Iterator[Finding]:
    rule = _RULES.get(step.kind)
    if rule is not None:
        yield from rule(_Place(step, budget_bytes))
    elif step.kind not in _FREE:
        yield _not_understood(step.kind, step.place, step.name)
    if step.kind != "Stream":
        yield from _in_functions(_Place(step, budget_bytes))
    for inner in step.within:
        rule = _RULES.get(inner.kind)
        if rule is not None:
            yield from rule(_Place(inner, budget_bytes, step))


class _Place:
    """A step, and where it stands: in the pipeline, or in a function of another step that runs many times."""

    def __init__(self, step: Step, budget_bytes: int, outer: Step | None = None) -> None:
        self.step, self.budget_bytes, self._outer = step, budget_bytes, outer
        self.copies = 1 if outer is None else _inputs_open(outer)

    def find(self, kind: str, held_bytes: int | None, sentence: str, fix: str) -> Finding:
        """A finding about the step, with the bytes of all its open copies."""
        step, outer = self.step, self._outer
        if self.copies > 1:
            sentence += f" Up to {self.copies} of them are open at a time."
        held = None if held_bytes is None else held_bytes * self.copies
        name = step.name if outer is None else f"{outer.name} → {step.name}"
        return Finding(kind, step.place, name, held, held, sentence, fix)

    def waiting_bytes(self, count: int | None) -> int | None:
        """The bytes that so many elements take while they wait in a buffer."""
        element_bytes = self.step.element_bytes
        if count is None or element_bytes is None:
            return None
        return count * (element_bytes + _TENSOR_BYTES * self.step.components)


def _inputs_open(step: Step) -> int:
    """The number of pipelines, made by a function of a step, that are open at a time."""
    cycle = _chosen(step.settings.get("cycle", 1))
    if step.kind != "ParallelInterleave":
        return cycle
    ahead = step.settings.get("ahead")
    return _AHEAD * cycle if ahead is None or ahead < 0 else cycle + ahead


def _chosen(number: int | None) -> int:
    """A number that TensorFlow chooses itself where it is not given."""
    return cores() if number is None or number < 0 else number


def _each(step: Step) -> str:
    """The size of an element, in words."""
    if step.element_bytes is None:
        return "of unknown size"
    size = format_size(step.element_bytes)
    return f"of {size} (the largest of a few)" if step.is_measured else f"of {size}"


def _shuffle(place: _Place) -> Iterator[Finding]:
    step, before = place.step, place.step.before
    asked, there = step.settings.get("size"), None if before is None else before.count
    size = there if asked is None or asked < 0 else asked if there is None else min(asked, there)
    if size is None:
        fix = ".shuffle(10_000)"
        yield place.find("shuffle", None, f"A shuffle buffer for all elements, {_each(step)}.", fix)
        return
    what = "batches" if step.batch_size is not None else "elements"
    held = place.waiting_bytes(size)
    fix = _earlier(place, f".shuffle({size})", size)
    if not fix and held is not None and held > _SMALL_BYTES:
        fix = f".shuffle({size * _SMALL_BYTES // held}), or memfit.data, which shuffles without a buffer"
    number = f"{size:,}" if there is not None else f"up to {size:,}"
    yield place.find("shuffle", held, f"A shuffle buffer of {number} {what} {_each(step)}.", fix)


def _earlier(place: _Place, call: str, count: int) -> str:
    """An earlier place where the same call would hold less than half, in words; empty where there is none."""
    step, own_bytes = place.step, place.waiting_bytes(count)
    if own_bytes is None or own_bytes < _WORTH_A_WORD_BYTES:
        return ""
    found = [(one, _Place(one, 0).waiting_bytes(count)) for one in _upstream(step)]
    smaller = [(size, one) for one, size in found if size is not None and 2 * size < own_bytes]
    if not smaller:
        return ""
    size, better = min(reversed(smaller), key=lambda pair: pair[0])
    name = better.name if step.dataset is None else f"{better.place}. {better.name}"
    return f"{call} right after {name}, where it holds {format_size(size)}"


def _upstream(step: Step) -> Iterator[Step]:
    """Earlier steps with the same elements in them; a cache saves nothing where nothing has been read yet."""
    useless = SAME | SOURCES_IN_MEMORY if step.kind == "Cache" else frozenset[str]()
    current: Step | None = step
    while current is not None and current.kind in SAME | BATCHES | {"Map", "ParallelMap"}:
        current = current.before
        if current is not None and current.kind not in useless:
            yield current


def _cache(place: _Place) -> Iterator[Finding]:
    step = place.step
    if step.settings.get("file"):
        return
    if step.count is not None:
        sentence = f"A cache of all {step.count:,} elements {_each(step)}."
    elif step.is_endless:
        sentence = f"A cache of data that never end, {_each(step)}: it grows until memory is full."
    else:
        sentence = f"A cache of all elements, {_each(step)}; how many there are is not known."
    fix = "" if step.count is None else _earlier(place, ".cache()", step.count)
    fix = fix or '.cache("a file on disk"), or memfit.data.pack'
    yield place.find("cache", place.waiting_bytes(step.count), sentence, fix)


def _prefetch(place: _Place) -> Iterator[Finding]:
    size = place.step.settings.get("size")
    if size is not None and size >= 0:
        sentence = f"{size:,} elements {_each(place.step)} wait."
        yield place.find("prefetch", place.waiting_bytes(size), sentence, ".prefetch(2)" if size > 2 else "")
    else:
        yield _autotuned(
            place, f"TensorFlow chooses how many elements {_each(place.step)} wait", ".prefetch(2)"
        )


def _autotuned(place: _Place, words: str, fix: str) -> Finding:
    """A buffer that grows when elements are taken in bursts, as far as TensorFlow's budget goes."""
    budget = format_size(place.budget_bytes)
    sentence = f"{words}: few, but in bursts up to its budget, {budget}."
    found = place.find("prefetch", place.waiting_bytes(_AUTOTUNED), sentence, fix)
    whole_bytes = place.waiting_bytes(place.step.count)
    most = place.budget_bytes if whole_bytes is None else min(whole_bytes, place.budget_bytes)
    return replace(found, most_bytes=max(most, found.held_bytes or 0))


def _injected(dataset: Any, steps: list[Step], budget_bytes: int) -> Iterator[Finding]:
    """The buffer that TensorFlow adds to the end of a pipeline with something parallel in it."""
    options, last = dataset.options(), steps[-1]
    while last.kind == "Options" and last.before is not None:
        last = last.before
    is_fused = last.kind == "Batch" and last.before is not None and last.before.kind == "ParallelMap"
    if is_fused or last.kind in _PARALLEL | {"Prefetch", "Stream"}:
        return
    wanted = (options.experimental_optimization.inject_prefetch, options.autotune.enabled)
    if False not in wanted and any(step.kind in _PARALLEL for step in steps):
        words = f"TensorFlow adds a buffer of elements {_each(last)} to the end"
        yield _autotuned(_Place(last, budget_bytes), words, ".prefetch(2) at the end")


def _parallel(place: _Place) -> Iterator[Finding]:
    step = place.step
    calls = _chosen(step.settings.get("calls"))
    sentence = f"{calls} calls at a time, with a result {_each(step)}."
    fix = f"num_parallel_calls={cores()}" if calls > cores() else ""
    yield place.find("parallel", place.waiting_bytes(calls), sentence, fix)


def _interleave(place: _Place) -> Iterator[Finding]:
    step = place.step
    buffer = step.settings.get("buffer")
    block = step.settings.get("block") or 1
    kept = 2 * block + 1 if buffer is None or buffer < 0 else buffer + 1
    count = _inputs_open(step) * kept
    cycle = _chosen(step.settings.get("cycle"))
    sentence = f"{count:,} elements {_each(step)} wait, of {cycle} inputs in turn and those opened ahead."
    fix = f"cycle_length={min(cycle, 2 * cores())}, block_length=1" if kept > 3 or cycle > 2 * cores() else ""
    yield place.find("interleave", place.waiting_bytes(count), sentence, fix)


def _batch(place: _Place) -> Iterator[Finding]:
    step = place.step
    size, before = step.settings.get("size"), step.before
    there = None if before is None else before.count
    count = size if size is None or there is None else min(size, there)
    held = None
    if count is not None and size and step.element_bytes is not None:
        held = 2 * step.element_bytes * count // size
    words = "padded to the longest" if step.kind == "PaddedBatch" else "and the batch made of them"
    number = "An unknown number of" if count is None else f"{count:,}"
    fix = "a smaller batch_size" if (held or 0) > _SMALL_BYTES else ""
    yield place.find("batch", held, f"{number} elements, {words}.", fix)


def _window(place: _Place) -> Iterator[Finding]:
    step, before = place.step, place.step.before
    size = step.settings.get("size")
    known = before is not None and before.element_bytes is not None and size is not None
    held = _Place(before, 0).waiting_bytes(size) if before is not None and known else None
    number = "all" if size is None else f"{size:,}"
    each = "" if before is None else f" {_each(before)}"
    yield place.find(
        "window", held, f"A window of {number} elements{each} is kept.", ".batch instead of .window"
    )


def _groups(place: _Place) -> Iterator[Finding]:
    before = place.step.before
    if place.step.dataset is None or before is None:
        return
    size = window_size_of(place.step.dataset)
    held = _Place(before, 0).waiting_bytes(size)
    number = "As many elements as its window" if size is None else f"{size:,} elements"
    sentence = f"{number} {_each(before)} for every key; how many keys come is not known, and counted as one."
    found = place.find("window", held, sentence, "fewer keys, or a smaller window_size")
    yield replace(found, most_bytes=None)


def _unique(place: _Place) -> Iterator[Finding]:
    step = place.step
    held = None if step.before is None else place.waiting_bytes(step.before.count)
    yield place.find("cache", held, f"Every element that was seen, {_each(step)}.", "unique data on disk")


def _arrays(place: _Place) -> Iterator[Finding]:
    if place.step.dataset is None:  # a constant of its function
        return
    size = measured_bytes([one for one in tensors_of(place.step.dataset) if one.dtype != tf.variant])
    sentence = (
        f"An array of {format_size(size)} was copied into the pipeline, up to {_COPIES_OF_ARRAYS} times."
    )
    fix = "memfit.data.from_arrays, which reads from where the array is"
    yield place.find("array", size * _COPIES_OF_ARRAYS, sentence, fix if size > _WORTH_A_WORD_BYTES else "")


def _generator(place: _Place) -> Iterator[Finding]:
    sentence = "A generator in Python: what it holds itself cannot be known from outside."
    yield place.find("python", None, sentence, "memfit.data.from_generator, and no lists in the generator")


def _stream(place: _Place) -> Iterator[Finding]:
    stream = place.step.dataset.memfit_stream
    sentence = f"A stream of memfit's, within ram={format_size(stream.options.ram_bytes)}."
    yield place.find("stream", stream.allotment().total_bytes, sentence, "")


def _in_functions(place: _Place) -> Iterator[Finding]:
    """Arrays that a function has swallowed, tensors it uses, what it makes on its way, and Python."""
    step, function = place.step, place.step.function
    if function.constants_bytes > _WORTH_A_WORD_BYTES:
        yield _constants(place, function.constants_bytes)
    if function.captured_bytes > _WORTH_A_WORD_BYTES:
        size = format_size(function.captured_bytes)
        sentence = f"Its function uses tensors of {size}, which stay as long as the dataset."
        yield place.find("constant", function.captured_bytes, sentence, "")
    if function.working_bytes > max(_WORTH_A_WORD_BYTES, step.element_bytes or 0):
        calls = _chosen(step.settings.get("calls", 1))
        size = format_size(function.working_bytes)
        sentence = f"A call may need {size} for a tensor on its way, beside its result."
        fix = "fewer num_parallel_calls" if calls > 1 else ""
        yield place.find("working", calls * function.working_bytes, sentence, fix)
    is_generator = any(inner.kind == "Generator" for inner in step.within)
    if function.calls_python and not is_generator:
        sentence = "Its function calls Python: what that holds cannot be known from outside."
        yield place.find("python", None, sentence, "operations of TensorFlow instead of Python")


def _constants(place: _Place, size_bytes: int) -> Finding:
    sentence = (
        f"Arrays of {format_size(size_bytes)} are constants of its function: {_COPIES_OF_CONSTANTS} copies "
        f"stay, and there are {_COPIES_AT_THE_START} while iteration begins."
    )
    fix = "array = tf.constant(array) outside of the function, or memfit.data.from_arrays"
    found = place.find("constant", size_bytes * _COPIES_OF_CONSTANTS, sentence, fix)
    return replace(found, most_bytes=size_bytes * _COPIES_AT_THE_START)


def _not_understood(name: str, place: int, transformation: str) -> Finding:
    sentence = f"memfit does not know {name}, and not what it holds."
    return Finding("unknown", place, transformation, None, None, sentence, "")


_RULES: dict[str, Callable[[_Place], Iterator[Finding]]] = {
    "Batch": _batch,
    "Cache": _cache,
    "Generator": _generator,
    "GroupByWindow": _groups,
    "List": _arrays,
    "PaddedBatch": _batch,
    "ParallelBatch": _batch,
    "ParallelInterleave": _interleave,
    "ParallelMap": _parallel,
    "Prefetch": _prefetch,
    "Shuffle": _shuffle,
    "ShuffleAndRepeat": _shuffle,
    "Stream": _stream,
    "Tensor": _arrays,
    "TensorSlice": _arrays,
    "Unique": _unique,
    "Window": _window,
}
