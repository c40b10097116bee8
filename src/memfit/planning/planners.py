"""What the search finds, traced for real and checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memfit.estimates.limits import fits_for_sure
from memfit.estimates.peaks import estimate
from memfit.foresight import foresee
from memfit.planning.bases import Steps
from memfit.planning.fingerprints import fingerprint_of
from memfit.planning.levers import pulled
from memfit.planning.wishes import Wish
from memfit.plans.micro_batches import as_guarded
from memfit.plans.search import Candidate, Search, Weighed
from memfit.records import Choice, Estimate, OptimizerState, Plan, Program
from memfit.rematerialise import cuts_of
from memfit.rooms import room_for_old_values

Tell = Callable[[str], None]

_TRIES = 6
_NEAR = 1.2  # what is weighed at no more than so much of the aim may yet fit
_TIMID = 0.95  # a winner that needs less than so much of what was weighed has room for larger micro-batches


def silent(what: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Checked:
    """A choice as it really is, with the program and the estimate behind it."""

    choice: Choice
    program: Program
    found: Estimate

    def has_room_in(self, budget_bytes: int) -> bool:
        """Whether a pool of this size has room for its gaps, too."""
        return fits_for_sure(self.program, self.found, budget_bytes)


class Planner:
    """Looks for plans for one model and one batch size."""

    def __init__(self, model: Any, wish: Wish, steps: Steps, tell: Tell = silent) -> None:
        self.model, self.wish, self.steps, self.tell = model, wish, steps, tell
        tell("Weighing ways to train")
        self.room_bytes = room_for_old_values(wish.budget_bytes)
        self.search = Search(steps.bases, wish.batch_size, weigh, self.room_bytes)

    def within(self, aim: int, *notes: str) -> Plan | None:
        """The fastest plan that needs no more than so many bytes, with notes; None where none fits."""
        best, tight = self._found(aim)
        if best is None and self.search.forget_guesses():
            best, other = self._found(aim)
            tight = tight or other
        if best is None and tight is not None:
            notes = (*notes, "Gaps in the pool leave little room: a step may run out and be split further.")
        return _noted(best or tight, notes)

    def _found(self, aim: int) -> tuple[Plan | None, Plan | None]:
        """The fastest plan that fits, and one that fits but for the gaps in a pool.

        What the search weighs is corrected by what the winner needs when it is traced: more, less, or more
        room for the gaps in a pool. The one trace is enough for all sizes of micro-batches.
        """
        best, tight = None, None
        for turn in range(_TRIES):
            found = self.search.within(aim)
            candidates = found.fitting
            if turn == 0 and not candidates and found.smallest.weighed.safe_bytes < _NEAR * aim:
                candidates = (found.smallest,)  # it may need less when it is traced
            if not candidates or (best is not None and not _is_faster(candidates[0], best.chosen)):
                break
            choices = list(map(self.choice, candidates))
            checked = self.checked(choices[0])
            needed = checked.choice.safe_bytes
            if needed <= aim and checked.has_room_in(aim):
                best = self.plan(checked.choice, choices[1:])
                if needed > _TIMID * choices[0].safe_bytes:
                    break
            elif needed <= aim:
                tight = self.plan(checked.choice, choices[1:])
                needed = aim + 1
            self.search.correct(candidates[0], needed)
        return best, tight

    def choice(self, candidate: Candidate) -> Choice:
        """What a candidate does to a model, as plain data."""
        base = candidate.base
        cuts = () if base.layers is None else cuts_of(base.layers, candidate.spans)
        return Choice(
            micro_batch_size=candidate.micro_batch_size,
            accumulation_steps=candidate.accumulation_steps,
            remat=cuts or None,
            precision=base.precision,
            jit_compile=base.jit_compile,
            peak_bytes=candidate.weighed.peak_bytes,
            safe_bytes=candidate.weighed.safe_bytes,
            relative_time=round(candidate.relative_time, 3),
            exact=candidate.exact,
            notes=candidate.notes,
            float32_layers=() if base.exact else self.wish.float32_layers,
            one_phase=candidate.one_phase,
        )

    def checked(self, choice: Choice) -> Checked:
        """A choice as it really is: the levers pulled, the model traced anew."""
        self.tell("Tracing the plan for real")
        program = self._traced(choice)
        if not choice.one_phase:
            program = as_guarded(program, self.wish.batch_size, self.room_bytes)
        found = estimate(program)
        real = dataclasses.replace(choice, peak_bytes=found.peak_bytes, safe_bytes=found.safe_bytes)
        return Checked(real, program, found)

    def _traced(self, choice: Choice) -> Program:
        """What a choice does with a micro-batch; one trace is enough for all their sizes."""
        if choice.remat is None and self._is_plain(choice):
            return self.steps.plain.at(choice.micro_batch_size)
        key, traces = (choice.remat, choice.precision, choice.jit_compile), self.steps.traces
        with pulled(self.model, choice):
            if key not in traces:
                traces[key] = foresee(self.model, self.wish.data)
            return traces[key].at(choice.micro_batch_size)

    def _is_plain(self, choice: Choice) -> bool:
        plain = self.steps.bases[0]
        return (choice.precision, choice.jit_compile) == (plain.precision, plain.jit_compile)

    def plan(self, chosen: Choice, others: Sequence[Choice] = ()) -> Plan:
        """The plan that a choice is, with others beside it."""
        whole = chosen.accumulation_steps == 1 and chosen.remat is None and not chosen.one_phase
        return Plan(
            budget_bytes=self.wish.budget_bytes,
            batch_size=self.wish.batch_size,
            fits_as_is=whole and self._is_plain(chosen),
            chosen=chosen,
            alternatives=tuple(others),
            ladder=_ladder(chosen, others),
            left_out=self.steps.left_out,
            fingerprint=fingerprint_of(self.model),
            optimizer=optimizer_state(self.model, self.steps.whole),
            allow=self.wish.allow,
        )


def _ladder(chosen: Choice, others: Sequence[Choice]) -> tuple[Choice, ...]:
    """What to fall back on: the best first, each smaller than the one before."""
    ladder = list[Choice]()
    for one in others:
        if one.safe_bytes < (ladder[-1] if ladder else chosen).safe_bytes:
            ladder.append(one)
    return tuple(ladder)


def optimizer_state(model: Any, program: Program) -> OptimizerState:
    """What the optimizer of a step keeps."""
    kept = sum(variable.bytes for variable in program.variables if variable.role == "optimizer")
    weights = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    name = type(model.optimizer).__name__ if model.compiled else "Adam"
    return OptimizerState(name, kept, round(kept / max(1, weights), 2))


def _is_faster(candidate: Candidate, than: Choice) -> bool:
    return (not candidate.exact, round(candidate.relative_time, 3)) < (not than.exact, than.relative_time)


def _noted(plan: Plan | None, notes: tuple[str, ...]) -> Plan | None:
    if plan is None:
        return None
    chosen = dataclasses.replace(plan.chosen, notes=(*plan.chosen.notes, *notes))
    return dataclasses.replace(plan, chosen=chosen)


def weigh(program: Program) -> Weighed:
    """What a candidate needs: a rough figure is enough, since the winner is checked."""
    found = estimate(program, processes=1, warm_steps=1)
    return Weighed(found.peak_bytes, found.safe_bytes)
