"""Tracebacks: the frames of the user's own code, and the error at their end."""

from __future__ import annotations

import re

from memfit.diagnosing.logs.facts import Facts, TracebackFrame
from memfit.diagnosing.logs.log_lines import Landmark

_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:,? in (.+))?|^\s*File (\S+\.py):(\d+), in (\w+)')
_CELL = re.compile(r"(?:Cell )?(In\s?\[\d+\]), line (\d+)")
_ARROW = re.compile(r"^\s*-+> ?(\d+)\s?(.*)")
_ABOVE_ARROW = re.compile(
    r"^(?:\x1b\[[\d;]*m)*(\S+\.py|<ipython-input-\d+-\w+>) in ([\w<>]+)\(?", re.MULTILINE
)
_ERROR = re.compile(
    r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Killed|Warning)|KeyboardInterrupt)"
    r"(?::|\s*$)"
)
_CRASH = re.compile(r"(?:Current thread|Thread) 0x\w+.*\(most recent call first\)")  # of faulthandler
_OF_MEMORY = ("ResourceExhaustedError", "MemoryError", "XlaRuntimeError", "OutOfMemoryError", "DoesNotFit")

LANDMARKS = (
    b"File ",
    b"--> ",
    b"Traceback (",
    b"Error",
    b"Exception",
    b"KeyboardInterrupt",
    b"SystemExit",
    b"StopIteration",
    b"Current thread 0x",
    b"Cell In",
)


def recognise(hit: Landmark, facts: Facts) -> None:
    """One line of a traceback."""
    text = hit.text.lstrip("> ") if hit.text.startswith(">") else hit.text
    if "Traceback (" in text:
        facts.new_traceback(hit.worker, hit.line)
    elif _CRASH.search(text):
        facts.new_traceback(hit.worker, hit.line).is_reversed = True
    elif (frame := _frame(hit, facts, text)) is not None:
        traceback = facts.traceback(hit.worker) or facts.new_traceback(hit.worker, hit.line)
        traceback.frames.append(frame)
        if frame.is_users and not (traceback.is_reversed and traceback.users):
            traceback.users = frame
    elif (error := _ERROR.match(text.lstrip())) is not None:
        _end(hit, facts, error[1], is_indented=text[:1].isspace())


def _frame(hit: Landmark, facts: Facts, text: str) -> TracebackFrame | None:
    if (arrow := _ARROW.match(text)) is not None:
        return _frame_of_notebook(hit, facts, arrow)
    if (match := _FRAME.search(text)) is not None:
        code = "" if 'File "' in hit.following else hit.following.strip()
        return _made(hit, facts, match[1] or match[4], match[2] or match[5], match[3] or match[6], code)
    cell = _CELL.search(text)
    return None if cell is None else _made(hit, facts, cell[1].replace(" ", ""), cell[2], None, "")


def _frame_of_notebook(hit: Landmark, facts: Facts, arrow: re.Match[str]) -> TracebackFrame | None:
    """A frame as IPython writes it: the file is some lines above the one that an arrow points to."""
    above = list(_ABOVE_ARROW.finditer(hit.behind(2**11)))
    return _made(hit, facts, above[-1][1], arrow[1], above[-1][2], arrow[2]) if above else None


def _made(
    hit: Landmark, facts: Facts, path: str, line: str, function: str | None, code: str
) -> TracebackFrame:
    is_users = not facts.is_installed(path)
    return TracebackFrame(path, int(line[:9]), function or "", code, hit.evidence(), is_users)


def _end(hit: Landmark, facts: Facts, name: str, *, is_indented: bool) -> None:
    """The error of a traceback; one that stands alone counts as one without frames."""
    if name.endswith("Warning") or is_indented:
        return
    traceback = facts.traceback(hit.worker)
    if traceback is None or traceback.error is not None:
        traceback = facts.new_traceback(hit.worker, hit.line)
    traceback.error, traceback.name = hit.evidence(), name
    traceback.is_of_memory = traceback.is_of_memory or name.endswith(_OF_MEMORY)
