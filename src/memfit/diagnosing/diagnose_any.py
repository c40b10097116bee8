"""Log, error or run -> Diagnosis."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from memfit.core.errors import CannotDiagnose, CannotRead
from memfit.core.records import Diagnosis, Run, SurvivedOOM
from memfit.diagnosing.advice import advise, left_open, summarise
from memfit.diagnosing.causes.case import make_case
from memfit.diagnosing.causes.verdict import evidence_of, judge
from memfit.diagnosing.logs.installed_paths import is_installed_here, looks_installed
from memfit.diagnosing.logs.log_lines import blocks_of
from memfit.diagnosing.logs.read_facts import read_facts

_PATH_ENDS = (".log", ".txt", ".out", ".err", ".e", ".o")


def diagnose_blocks(
    blocks: Iterable[bytes],
    on_bytes: Callable[[int], None] = lambda count: None,
    *,
    is_installed: Callable[[str], bool] = looks_installed,
) -> Diagnosis:
    """Why memory ran out, from a log that comes in blocks.

    `on_bytes` gets the number of bytes that were read so far; `is_installed` judges the files of tracebacks.
    """
    case = make_case(read_facts(blocks, on_bytes, is_installed=is_installed))
    verdict = judge(case)
    is_of_memory = verdict.cause != "not_an_oom"
    return Diagnosis(
        verdict.cause,
        verdict.also,
        summarise(verdict, case),
        evidence_of(verdict, case),
        case.error() if is_of_memory else None,
        case.source if is_of_memory else None,
        advise(verdict, case),
        tuple(left_open(verdict, case)),
    )


def diagnose_any(what: object) -> Diagnosis:
    """Why memory ran out, from an exception, a text, a file or a run."""
    if isinstance(what, BaseException):
        text = "".join(traceback.format_exception(what))
        return diagnose_blocks([text.encode(errors="replace")], is_installed=is_installed_here)
    if isinstance(what, Run):
        return diagnose_text("".join(map(_as_line, what.ooms)) or f"{what.steps} steps, none ran out.\n")
    if isinstance(what, bytes):
        return diagnose_blocks([what])
    if isinstance(what, Path) or (isinstance(what, str) and _is_path(what)):
        return diagnose_file(Path(what))
    if isinstance(what, str):
        return diagnose_text(what)
    raise CannotDiagnose(what)


def diagnose_text(text: str) -> Diagnosis:
    """The same from a text that is in memory."""
    return diagnose_blocks([text.encode(errors="replace")])


def diagnose_file(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> Diagnosis:
    """The same from a file of any size."""
    try:
        with path.open("rb") as file:
            return diagnose_blocks(blocks_of(file), on_bytes)
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror or str(error)
        raise CannotRead(str(path), reason) from error


def _is_path(text: str) -> bool:
    """Whether a text is the name of a file, there or not, and not what a log says."""
    if not text or len(text) > 4096 or "\n" in text or "\0" in text:
        return False
    try:
        return Path(text).exists() or (" " not in text and text.lower().endswith(_PATH_ENDS))
    except OSError:
        return False


def _as_line(oom: SurvivedOOM) -> str:
    op = f" [Op:{oom.error.op}]" if oom.error.op else ""
    return f"step {oom.step}, {oom.phase}, micro-batch {oom.micro_batch_size}: {oom.error.message}{op}\n"
