"""The two phases of a step as graphs to look at: nothing of them is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from memfit.errors import CannotEstimate
from memfit.runs.batches import Structure
from memfit.runs.computations import Computation
from memfit.runs.steps import Computed, StagedStep


@dataclass(frozen=True)
class Phases:
    """The graphs of a step in micro-batches: the first one, every other one, and what commits them."""

    first: Any
    other: Any
    commits: list[Any]
    slices: list[Any]  # outputs of the first two that are kept until the commit, in the order it takes them
    step: StagedStep  # which holds the variables


def phases_of(computation: Computation, structure: Structure, specs: list[Any]) -> Phases:
    """Trace a step on micro-batches with these specs, their batch dimension open."""
    reason = computation.why_not_split()
    step = StagedStep(computation)
    traced = None if reason else step.traced(structure, specs)
    reasons = [reason] if reason else [*step.unstaged, *step.hindrances]
    if traced is None or reasons:
        raise CannotEstimate(
            f"its batches cannot be split: {reasons[0]}", suggestion="leave micro_batch_size out"
        )
    first, other = traced.graphs()
    slices = Computed(*first.graph.structured_outputs).slices
    step.accumulators.keep(traced.reached, slices)
    step.stage.written.update(traced.written)
    return Phases(first, other, step.commit_graphs(slices), keras.tree.flatten(slices), step)
