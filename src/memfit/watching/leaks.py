"""The leaks that the events and containers of a watch show."""

from __future__ import annotations

import functools
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from memfit.core.records import Leak
from memfit.core.units import format_size
from memfit.core.user_code import is_library, shown_line
from memfit.private.tensorflow.eager_tensors import EagerTensor, bytes_of
from memfit.watching.containers import Containers, Growth, Name
from memfit.watching.events import Array, Closure, Events, TracedGraph
from memfit.watching.retraces import Retraced
from memfit.watching.user_lines import growing_lines, passing_lines

LEAST_MODELS = 3  # that are gone, and their graphs are not
LEAST_CLOSURES = 3


def find_leaks(
    events: Events, containers: Containers, *, now: float, patience_seconds: float, is_collected: bool
) -> list[Leak]:
    """Leaks that last at least so long; graphs and closures are judged only after garbage was collected."""
    held = [*_models(events), *_closures(events)] if is_collected else []
    return [
        *held,
        *_retracing(events, patience_seconds),
        *_containers(containers, patience_seconds),
        *_arrays(events, now, patience_seconds),
    ]


def is_suspicious(events: Events) -> bool:
    """Whether a collection of garbage may show a leak: functions or closures of one place, several times."""
    functions = {(trace.function_id, trace.code) for trace in events.traces if trace.graph() is not None}
    by_code = Counter(code for _, code in functions)
    by_call = Counter((one.lines[:1], one.call) for one in events.closures if one.function() is not None)
    return any(count >= LEAST_MODELS for count in by_code.values()) or any(
        count >= LEAST_CLOSURES for count in by_call.values()
    )


def _models(events: Events) -> list[Leak]:
    """Graphs that are alive although the tf.function that they were traced for is gone."""
    whole = [one for one in events.traces if one.is_whole]
    pinned = [one for one in whole if one.function() is None and one.graph() is not None]
    by_line: dict[tuple[str, ...], list[TracedGraph]] = defaultdict(list)
    for trace in pinned:
        by_line[events.lines_of(trace)].append(trace)
    return [
        _model_leak(lines, traces)
        for lines, traces in by_line.items()
        if len(_owners(traces)) >= LEAST_MODELS
    ]


def _owners(traces: Iterable[TracedGraph]) -> set[int]:
    return {trace.model_number or -trace.function_id for trace in traces}


def _model_leak(lines: tuple[str, ...], traces: Sequence[TracedGraph]) -> Leak:
    first_of_each: dict[int, int] = {}
    for trace in traces:
        first_of_each.setdefault(trace.model_number or -trace.function_id, trace.process_bytes)
    owners = _owners(traces)
    what = "models made" if traces[0].model_is_gone else "functions traced"
    called = tuple(dict.fromkeys(line for trace in traces for line in trace.lines[:1]))
    return Leak(
        leaked="models",
        source=lines[0] if lines else "",
        count=len(owners),
        bytes_each=_mean_growth(list(first_of_each.values())),
        evidence=(
            f"{len(owners)} {what} here are gone, but {len(traces)} of their graphs are not: TensorFlow's "
            "registry of gradients holds them, and clear_session leaves them there.",
        ),
        advice="Let go of each model when it is no longer needed.",
        paste="memfit.release(model)",
        also=tuple(dict.fromkeys((*called, *lines[1:]))),
    )


def _mean_growth(readings: Sequence[int]) -> int | None:
    """The mean growth of the process in bytes from one reading to the next, after a warm-up."""
    warm = readings[len(readings) // 4 :]
    return max(0, (warm[-1] - warm[0]) // (len(warm) - 1)) if len(warm) > 1 else None


def _retracing(events: Events, patience_seconds: float) -> list[Leak]:
    all_of_them = [*events.retraces.known.values(), *events.retraces.gone]
    return [_retracing_leak(known) for known in all_of_them if known.lasts(patience_seconds)]


def _retracing_leak(known: Retraced) -> Leak:
    count, name, argument = len(known.times), known.name, known.argument
    ((source, _),) = known.lines.most_common(1)
    defined = () if known.code is None or is_library(known.code.co_filename) else (_shown(known.code),)
    what = f"another Python value for {argument!r}" if known.by_value else f"another shape of {argument!r}"
    if known.by_value:
        advice = "Pass a tensor, whose value may change."
        paste = f"{name}({argument}=tf.convert_to_tensor({argument}))"
    else:
        advice, paste = "Let one trace serve all shapes.", "@tf.function(reduce_retracing=True)"
    return Leak(
        leaked="retracing",
        source=source,
        count=count,
        bytes_each=_mean_growth(known.process_bytes),
        evidence=(f"{name} was traced {count} times, for {what} each time; every trace is kept.",),
        advice=advice,
        paste=paste,
        also=defined,
    )


def _closures(events: Events) -> list[Leak]:
    """Python functions that are held although the graph that calls them is gone."""
    by_line: dict[tuple[str, ...], list[Closure]] = defaultdict(list)
    for closure in events.closures:
        is_orphan = closure.graph is None or closure.graph() is None
        if is_orphan and closure.function() is not None:
            by_line[closure.lines].append(closure)
    found = (_closure_leak(lines, closures) for lines, closures in by_line.items())
    return [leak for leak in found if leak.count >= LEAST_CLOSURES]


def _closure_leak(lines: tuple[str, ...], closures: Sequence[Closure]) -> Leak:
    by_call: dict[tuple[int, ...], list[Closure]] = defaultdict(list)
    for closure in closures:
        by_call[closure.call].append(closure)
    alike = max(by_call.values(), key=len)
    held = max(held_bytes(group[-1].function()) for group in by_call.values())
    return Leak(
        leaked="python_functions",
        source=lines[0] if lines else "",
        count=len(alike),
        bytes_each=held or _mean_growth([one.process_bytes for one in alike]),
        evidence=(
            f"TensorFlow holds {len(closures)} Python functions from {len(alike)} calls here whose graphs "
            f"are gone, with all that they enclose{f' ({format_size(held)} each)' if held else ''}.",
        ),
        advice="Make the dataset or the function once, before the loop, or clear after each pass.",
        paste="keras.backend.clear_session()",
        also=lines[1:],
    )


def _containers(containers: Containers, patience_seconds: float) -> list[Leak]:
    """One leak for each container, whatever names it has; by that which is seen to grow in the source."""
    found: dict[int, tuple[bool, Leak]] = {}
    for name, growth in containers.known.items():
        if growth.lasts(patience_seconds):
            lines = _lines_of(name)
            known = found.get(growth.container_id)
            if known is None or (lines and not known[0]):
                leak = _container_leak(name, growth, lines or _lines_that_pass(name))
                found[growth.container_id] = (bool(lines), leak)
    return [leak for _, leak in found.values()]


def _container_leak(name: Name, growth: Growth, lines: list[str]) -> Leak:
    what = "tensor" if growth.kind == "tensors" else "tape"
    variable = name.path[-1]
    advice: dict[str, Callable[[], tuple[str, str]]] = {
        "tensors": lambda: ("Keep the number, not the tensor.", f"{variable}.append(float(value))"),
        "tapes": lambda: ("Compute the gradients at once, and drop the tape.", "del tape"),
    }
    text, paste = advice[growth.kind]()
    return Leak(
        leaked="tapes" if growth.kind == "tapes" else "tensors",
        source=lines[0],
        count=growth.gained,
        bytes_each=growth.each_bytes or None,
        evidence=(f"{name} grew by {growth.gained} {what}s to {growth.length}, and does not stop.",),
        advice=text,
        paste=paste,
        also=tuple(lines[1:]),
    )


def _lines_of(name: Name) -> list[str]:
    """The lines of its file that let a container grow."""
    for part in reversed(name.path):  # a list in a dictionary grows by the dictionary's name
        first, last = _span(name) if part == name.path[0] else (1, None)
        if found := growing_lines(name.file, part, first=first, last=last):
            return [shown_line(name.file, line) for line in found]
    return []


def _lines_that_pass(name: Name) -> list[str]:
    """The lines that pass a container on to code that lets it grow, or else where its function begins."""
    first, last = _span(name)
    found = passing_lines(name.file, name.path[0], first=first, last=last)
    return [shown_line(name.file, line) for line in found or [first]]


def _span(name: Name) -> tuple[int, int | None]:
    """The lines of the function whose variable it is, or of the whole file."""
    if name.code is None:
        return 1, None
    lines = [line for _, _, line in name.code.co_lines() if line is not None]
    return name.code.co_firstlineno, max(lines, default=name.code.co_firstlineno)


def _shown(code: Any) -> str:
    return shown_line(code.co_filename, code.co_firstlineno)


def _arrays(events: Events, now: float, age_seconds: float) -> list[Leak]:
    by_line: dict[tuple[str, ...], list[Array]] = defaultdict(list)
    for array in events.arrays:
        by_line[array.lines].append(array)
    found = []
    for lines, arrays in by_line.items():
        made = events.arrays_made[lines]
        old = [one for one in arrays if now - one.seconds >= age_seconds]
        kept = [one for one in old if one.holder() is not None or (made == 1 and one.lasted)]
        if kept and 2 * len(kept) >= made:
            found.append(_array_leak(lines, kept))
    return found


def _array_leak(lines: tuple[str, ...], kept: Sequence[Array]) -> Leak:
    first = kept[0]
    grown = max(array.grown_bytes for array in kept)
    return Leak(
        leaked="arrays",
        source=lines[0] if lines else "",
        count=len(kept),
        bytes_each=max(first.array_bytes, grown),
        evidence=(
            f"An array of {format_size(first.array_bytes)} was copied into {first.where}, which keeps it "
            f"beside the array itself; the process grew by {format_size(max(0, grown))} meanwhile.",
        ),
        advice="Read the array batch by batch instead of copying it whole.",
        paste="dataset = memfit.data.from_arrays(array, batch_size=32)",
        also=lines[1:],
    )


_MOST_OBJECTS = 2000


def held_bytes(function: Any) -> int:
    """The bytes of the arrays and tensors that a function reaches through what it encloses."""
    pending, seen, total = [function], set[int](), 0
    while pending and len(seen) < _MOST_OBJECTS:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, EagerTensor):
            total += bytes_of(thing)
        elif isinstance(getattr(thing, "nbytes", None), int) and hasattr(thing, "dtype"):
            total += thing.nbytes
        else:
            pending.extend(_held(thing))
    return total


def _held(thing: Any) -> Iterator[Any]:
    """The objects that a thing holds itself; modules, classes and the globals of functions are shared."""
    if isinstance(thing, types.FunctionType):
        yield from thing.__defaults__ or ()
        yield from vars(thing).values()
        for cell in thing.__closure__ or ():
            if cell != types.CellType():
                yield cell.cell_contents
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif hasattr(thing, "__dict__") and not isinstance(thing, type | types.ModuleType):
        yield from vars(thing).values()
