"""Tracebacks: the frames of the user's own code, and the error at their end."""

from __future__ import annotations

import re

from memfit.diagnoses.logs.facts import Facts, Frame
from memfit.diagnoses.logs.lines import Hit

_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:,? in (.+))?')
_CELL = re.compile(r"(?:Cell )?(In\s?\[\d+\]), line (\d+)|<ipython-input-(\d+)-\w+> in (\S+)")
_ERROR = re.compile(
    r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Killed|Warning)|KeyboardInterrupt)"
    r"(?::|\s*$)"
)
_FOREIGN = re.compile(
    r"(?:site|dist)-packages|[/\\]lib(?:64)?[/\\]python3?[\d.]*[/\\]|[/\\](?:keras|tensorflow|tf_keras|jax"
    r"|memfit)[/\\]|[/\\]Lib[/\\]\w+\.py$|^<(?:frozen|string|__array_function__)|tensorflow_core"
)
_CRASH = re.compile(r"(?:Current thread|Thread) 0x\w+.*\(most recent call first\)")  # of faulthandler
_OF_MEMORY = ("ResourceExhaustedError", "MemoryError", "XlaRuntimeError", "OutOfMemoryError", "DoesNotFit")

LANDMARKS = (
    b'File "',
    b"Traceback (",
    b"Error",
    b"Exception",
    b"KeyboardInterrupt",
    b"SystemExit",
    b"StopIteration",
    b"Current thread 0x",
    b"Cell In",
    b"<ipython-input",
)


def recognise(hit: Hit, facts: Facts) -> None:
    """One line of a traceback."""
    text = hit.text.lstrip("> ") if hit.text.startswith(">") else hit.text
    if "Traceback (" in text:
        facts.new_traceback(hit.worker, hit.line)
    elif _CRASH.search(text):
        facts.new_traceback(hit.worker, hit.line).is_reversed = True
    elif (frame := _frame(hit, text)) is not None:
        traceback = facts.traceback(hit.worker) or facts.new_traceback(hit.worker, hit.line)
        traceback.frames.append(frame)
        if frame.is_users and not (traceback.is_reversed and traceback.users):
            traceback.users = frame
    elif (error := _ERROR.match(text.lstrip())) is not None:
        _end(hit, facts, error[1], is_indented=text[:1].isspace())


def _frame(hit: Hit, text: str) -> Frame | None:
    match = _FRAME.search(text)
    if match is not None:
        code = "" if 'File "' in hit.following else hit.following.strip()
        is_users = not _FOREIGN.search(match[1])
        return Frame(match[1], int(match[2][:9]), match[3] or "", code, hit.evidence(), is_users)
    cell = _CELL.search(text)
    if cell is None:
        return None
    name = cell[1] or f"In[{cell[3]}]"
    return Frame(name.replace(" ", ""), int(cell[2] or 0), cell[4] or "", "", hit.evidence(), True)


def _end(hit: Hit, facts: Facts, name: str, *, is_indented: bool) -> None:
    """The error of a traceback; one that stands alone counts as one without frames."""
    if name.endswith("Warning") or is_indented:
        return
    traceback = facts.traceback(hit.worker)
    if traceback is None or traceback.error is not None:
        traceback = facts.new_traceback(hit.worker, hit.line)
    traceback.error, traceback.name = hit.evidence(), name
    traceback.is_of_memory = traceback.is_of_memory or name.endswith(_OF_MEMORY)
