"""Ops that could not have what they needed: the tensor, its type, the device, the op by name."""

from __future__ import annotations

import re

from memfit.diagnosing.logs.facts import Facts, Failure
from memfit.diagnosing.logs.log_lines import SIZE, Landmark, bytes_of_shape, read_shape, read_size
from memfit.diagnosing.logs.progress_lines import look_back
from memfit.machine.out_of_memory import OTHER_RESOURCES

_TENSOR = re.compile(
    r"OOM when allocating tensor (?:with|of) shape ?(?:\[([\d, ]*)\]|dim \{(.*)\}|$)(?: and type (\w+))?"
    r"(?: on (\S+))?(?: by allocator (\S+))?"
)
_REQUEST = re.compile(
    rf"(?:[Oo]ut of memory (?:while trying to allocate|allocating|trying to allocate)"
    rf"|[Ff]ailed to allocate(?: request for| memory)?|Could not allocate|Attempting to allocate) ({SIZE})"
)
_COPY = re.compile(r"Dst tensor is not initialized|Cannot parse tensor from proto")
_COPIED_FOR = re.compile(r"from \S+ to (\S+) in order to run (\w+)")
_NODE = re.compile(
    r"\{\{node ([^}]+)\}\}|\[\[Node: (\S+) = |\[Op:\s*([^\]\s]+)\s*\]|Detected at node '?([^'\s]+)'?"
    r"|Node: '([^']+)'|Caused by op u?'([^']+)'|\{\{function_node [^}]+\}\}\s*\{\{node ([^}]+)\}\}"
)
_OTHER_RESOURCES = re.compile(rf"{OTHER_RESOURCES}|[Qq]uota")
_EXHAUSTED = re.compile(r"Resource exhausted|RESOURCE_EXHAUSTED|ResourceExhaustedError")

LANDMARKS = (
    b"OOM when allocating",
    b"Resource exhausted",
    b"RESOURCE_EXHAUSTED",
    b"ResourceExhaustedError",
    b"Out of memory",
    b"Could not allocate",
    b"Attempting to allocate",
    b"Dst tensor is not initialized",
    b"Cannot parse tensor",
    b"{{node ",
    b"[[Node: ",
    b"[Op:",
    b"Detected at node",
    b"Node: '",
    b"Caused by op",
    b"No space left on device",
    b"Too many open files",
)


def recognise(hit: Landmark, facts: Facts) -> None:
    """One line of an op's error."""
    text = hit.text
    if _OTHER_RESOURCES.search(text):
        facts.other_ends.add(hit.evidence())
    elif (tensor := _TENSOR.search(text)) is not None:
        _tensor(hit, facts, tensor)
    elif _COPY.search(text):
        _copy(hit, facts)
    elif (request := _REQUEST.search(text)) is not None and "CUDA_ERROR" not in text:
        _request(hit, facts, read_size(request[1]))
    elif _EXHAUSTED.search(text) and "MemoryError" not in text:
        _request(hit, facts, None)
    elif (op := op_in(text)) is not None:
        facts.nodes.add(Failure("tensor", hit.evidence(), hit.worker, op=op))


def op_in(text: str) -> str | None:
    """The name of the op that a message is about."""
    match = _NODE.search(text)
    return next((name.strip() for name in match.groups() if name), None) if match else None


def _tensor(hit: Landmark, facts: Facts, tensor: re.Match[str]) -> None:
    shape = read_shape(tensor[1] or ",".join(re.findall(r"size: (\d+)", tensor[2] or "")))
    look_back(hit, facts)
    facts.fail(
        Failure(
            "tensor",
            hit.evidence(),
            hit.worker,
            requested_bytes=bytes_of_shape(shape, tensor[3]),
            shape=shape or None,
            dtype=tensor[3],
            device=_device(tensor[4]),
            allocator=tensor[5],
            op=op_in(hit.text) or op_in(_same_message(hit)),
        )
    )


def _same_message(hit: Landmark) -> str:
    """The lines right below, which name the op."""
    return "\n".join(hit.ahead(2048).splitlines()[:4])


def _device(name: str | None) -> str | None:
    """The device with its job and task where that tells it from others."""
    if name is None:
        return None
    short = name.rpartition("device:")[2]
    return short if "/task:" not in name or "/task:0/" in name else f"task:{_task(name)} {short}"


def _task(name: str) -> str:
    return name.partition("/task:")[2].partition("/")[0]


def _copy(hit: Landmark, facts: Facts) -> None:
    said = _COPIED_FOR.search(hit.text)
    op = said[2] if said else op_in(hit.text) or op_in(_same_message(hit))
    look_back(hit, facts)
    facts.fail(Failure("copy", hit.evidence(), hit.worker, device=_device(said[1]) if said else None, op=op))


def _request(hit: Landmark, facts: Facts, size: int | None) -> None:
    look_back(hit, facts)
    op = op_in(hit.text) or op_in(_same_message(hit))
    facts.fail(Failure("request", hit.evidence(), hit.worker, requested_bytes=size, op=op))
