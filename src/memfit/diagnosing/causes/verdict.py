"""All findings -> one verdict: the strongest is the cause, the others are said too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memfit.core.records import Cause, Evidence
from memfit.diagnosing.causes import ops, outside_the_training, pools
from memfit.diagnosing.causes.case import Case, Clue

Rule = Callable[[Case], Iterator[Clue]]
_RULES: tuple[Rule, ...] = (
    ops.find_replica,
    outside_the_training.find_host,
    outside_the_training.find_taken,
    pools.find_gaps,
    pools.find_large_chunks,
    pools.find_growth,
    pools.find_steps_in_chunks,
    pools.find_long_runs,
    ops.find_data,
    ops.find_weights,
    ops.find_layout,
    ops.find_activations,
    ops.find_own,
    pools.find_full_pool,
)


@dataclass(frozen=True)
class Verdict:
    """The cause, what else plays a part, and why."""

    cause: Cause
    findings: tuple[Clue, ...]  # the strongest of each cause, the cause's own first

    @property
    def also(self) -> tuple[Cause, ...]:
        """The causes that play a part."""
        return tuple(finding.cause for finding in self.findings if finding.cause != self.cause)

    @property
    def main(self) -> Clue | None:
        """The strongest clue for the cause."""
        return next((finding for finding in self.findings if finding.cause == self.cause), None)


def judge(case: Case) -> Verdict:
    """The verdict; that it is unknown or no matter of memory is one too."""
    found: dict[Cause, Clue] = {}
    for rule in _RULES:
        for finding in rule(case):
            if finding.cause not in found or finding.strength > found[finding.cause].strength:
                found[finding.cause] = finding
    ranked = sorted(found.values(), key=lambda finding: -finding.strength)
    if ranked:
        ranked = [one for one in ranked if not _is_explained(one, ranked[0])]
        return Verdict(ranked[0].cause, tuple(ranked))
    return Verdict("unknown" if _has_failed(case) else "not_an_oom", ())


def _is_explained(finding: Clue, main: Clue) -> bool:
    """Whether a finding says no more than who asked in the end, where it is known what filled the memory."""
    return finding.cause == "activations" and main.cause not in ("activations", "one_replica")


def _has_failed(case: Case) -> bool:
    """Whether anything ran out, or the log does not say a word."""
    kinds = set(case.facts.failures) - {"killed"}
    is_silent = case.facts.size_bytes == 0 or case.facts.is_binary
    return bool(kinds) or is_silent or any(not dump.is_empty for dump in case.facts.dumps)


def evidence_of(verdict: Verdict, case: Case) -> tuple[Evidence, ...]:
    """The lines that speak for the verdict, each once, in the order of the log."""
    lines = [quote for finding in verdict.findings for quote in finding.evidence]
    lines += [failure.evidence for failure in case.failed("unclear")[-1:]]
    if case.failure is not None:
        lines.append(case.failure.evidence)
        if case.dump is not None and case.dump.failure is not None:
            lines.append(case.dump.failure.evidence)
    if case.traceback is not None and case.traceback.users is not None and verdict.findings:
        lines.append(case.traceback.users.evidence)
    if verdict.cause == "not_an_oom":
        lines += [*list(case.facts.warnings)[:1], *list(case.facts.other_ends)[-1:], *_last_error(case)]
    unique = {quote.line: quote for quote in lines if quote.text}
    return tuple(unique[line] for line in sorted(unique))


def _last_error(case: Case) -> list[Evidence]:
    ended = [one.error for one in case.facts.tracebacks if one.error is not None]
    return ended[-1:]
