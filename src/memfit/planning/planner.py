"""The fastest plan within a budget: what the search finds, traced for real and checked."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memfit.core.records import Choice, Estimate, Measured, OptimizerState, Plan, Program
from memfit.core.records.plans import PlanRequest
from memfit.estimating.simulator.peaks import estimate, fits_for_sure
from memfit.estimating.step_program import check_model, step_program
from memfit.graph.trace import no_collection
from memfit.guarding.step.rollback import room_for_old_values
from memfit.levers.float32_layers import Layers
from memfit.planning.run_history import aim_of, fingerprint_of
from memfit.planning.search.fastest import Candidate, Search, Weighed
from memfit.planning.search.micro_batches import as_guarded
from memfit.planning.variants import StepVariants, pulled, variants_of
from memfit.rematerialising.cut_search import cuts_of

Tell = Callable[[str], None]

_TRIES = 6
_NEAR = 1.2  # what is weighed at no more than so much of the aim may yet fit
_TIMID = 0.95  # a winner that needs less than so much of what was weighed has room for larger micro-batches
_TIGHT = "Runs of before needed more than foreseen, and nothing smaller was found."


def silent(what: str) -> None:
    """Report nothing."""


def find_plan(
    model: Any, request: PlanRequest, tell: Tell = silent, *, past: Sequence[Measured] = ()
) -> tuple[Plan | None, Planner]:
    """The plan, None where nothing fits; and the planner, which can say what would help.

    `past` are runs of before that the plan goes by.
    """
    began = time.perf_counter()
    check_model(model)
    check_layers(model, request.float32_layers)
    with no_collection():
        planner = Planner(model, request, variants_of(model, request, tell), tell)
        aim = aim_of(request.budget_bytes, past)
        plan = planner.within(aim)
        if plan is None and aim < request.budget_bytes:
            plan = planner.within(request.budget_bytes, _TIGHT)
    if plan is not None:
        seconds = time.perf_counter() - began
        plan = dataclasses.replace(plan, seconds=seconds, measured=tuple(past))
    return plan, planner


def check_layers(model: Any, names: Sequence[str]) -> None:
    """Raise unless a model has layers of these names."""
    for name in names:
        Layers(model).named(name)


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

    def __init__(self, model: Any, request: PlanRequest, steps: StepVariants, tell: Tell = silent) -> None:
        self.model, self.request, self.steps, self.tell = model, request, steps, tell
        tell("Weighing ways to train")
        self.room_bytes = room_for_old_values(request.budget_bytes)
        self.search = Search(steps.bases, request.batch_size, weigh, self.room_bytes)

    def within(self, aim: int, *notes: str) -> Plan | None:
        """The fastest plan that needs no more than so many bytes, with notes; None where none fits."""
        best, tight = self._found(aim)
        if best is None and self.search.forget_guesses():
            best, other = self._found(aim)
            tight = tight or other
        if best is None:
            best, tight = self._found_small(aim, tight)
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

    def _found_small(self, aim: int, tight: Plan | None) -> tuple[Plan | None, Plan | None]:
        """The same among small micro-batches, each read at its own size: scratch of kernels may jump."""
        best = None
        for small in self.small_micro_batches():
            checked = self.checked(small)
            if checked.choice.safe_bytes > aim:
                break
            if checked.has_room_in(aim):
                best = self.plan(checked.choice)
            else:
                tight = tight or self.plan(checked.choice)
        return best, tight

    def small_micro_batches(self) -> Iterator[Choice]:
        """Choices of micro-batches of 1, 2, 4 and so on, smaller than the batch, without other levers."""
        base, size = self.steps.bases[0], 1
        while base.may_split and size < self.request.batch_size:
            yield self.choice(self.search.candidate(base, size))
            size *= 2

    def likely_micro_batch(self, budget_bytes: int) -> int | None:
        """The micro-batch size to try where nothing fits for sure; None where batches are not split.

        It is the largest whose expected peak fits; without one, the size with the smallest peak.
        """
        peaks = {
            small.micro_batch_size: self.checked(small).choice.peak_bytes
            for small in self.small_micro_batches()
        }
        fitting = [size for size, peak in peaks.items() if peak <= budget_bytes]
        return max(fitting, default=min(peaks, key=peaks.__getitem__, default=None))

    def choice(self, candidate: Candidate) -> Choice:
        """The choice that a candidate stands for: its levers and figures, as plain data."""
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
            float32_layers=() if base.exact else self.request.float32_layers,
            one_phase=candidate.one_phase,
        )

    def checked(self, choice: Choice) -> Checked:
        """A choice as it really is: the levers pulled, the model traced anew."""
        self.tell("Tracing the plan for real")
        room_bytes = None if choice.one_phase else self.room_bytes
        program = as_guarded(self._traced(choice), self.request.batch_size, room_bytes)
        found = estimate(program)
        real = dataclasses.replace(choice, peak_bytes=found.peak_bytes, safe_bytes=found.safe_bytes)
        return Checked(real, program, found)

    def _traced(self, choice: Choice) -> Program:
        """The Program of a choice at its micro-batch size; one trace is enough for all sizes."""
        if choice.remat is None and self._is_plain(choice):
            return self.steps.plain.at(choice.micro_batch_size)
        key, traces = (choice.remat, choice.precision, choice.jit_compile), self.steps.traces
        with pulled(self.model, choice):
            if key not in traces:
                made = step_program(self.model, self.request.data)
                onednn = self.steps.onednn
                traces[key] = made if onednn is None else made.with_onednn(onednn)
            return traces[key].at(choice.micro_batch_size)

    def _is_plain(self, choice: Choice) -> bool:
        plain = self.steps.bases[0]
        return (choice.precision, choice.jit_compile) == (plain.precision, plain.jit_compile)

    def plan(self, chosen: Choice, others: Sequence[Choice] = ()) -> Plan:
        """The plan that a choice is, with others beside it."""
        whole = chosen.accumulation_steps == 1 and chosen.remat is None and not chosen.one_phase
        return Plan(
            budget_bytes=self.request.budget_bytes,
            batch_size=self.request.batch_size,
            fits_as_is=whole and self._is_plain(chosen),
            chosen=chosen,
            alternatives=tuple(others),
            ladder=_ladder(chosen, others),
            left_out=self.steps.left_out,
            fingerprint=fingerprint_of(self.model),
            optimizer=optimizer_state(self.model, self.steps.whole),
            allow=self.request.allow,
        )


def _ladder(chosen: Choice, others: Sequence[Choice]) -> tuple[Choice, ...]:
    """The fallbacks: the best first, each smaller than the one before."""
    ladder = list[Choice]()
    for one in others:
        if one.safe_bytes < (ladder[-1] if ladder else chosen).safe_bytes:
            ladder.append(one)
    return tuple(ladder)


def optimizer_state(model: Any, program: Program) -> OptimizerState:
    """The state of a step's optimizer: the optimizer's name, the bytes, and the bytes per weight."""
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
    """The estimated bytes of a candidate: a rough figure is enough, since the winner is checked."""
    found = estimate(program, processes=1, warm_steps=1)
    return Weighed(found.peak_bytes, found.safe_bytes)
