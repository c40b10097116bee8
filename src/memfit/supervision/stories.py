"""journal -> SupervisedRun: what happened so far, also while it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memfit.records import Attempt, Plan, SupervisedRun, SupervisedTraining
from memfit.supervision.folders import RunFolder
from memfit.supervision.journals import Line, read_lines


def read_story(folder: RunFolder) -> SupervisedRun:
    """What the journal of a run says."""
    job = folder.job()
    story = SupervisedRun(
        folder.name,
        "" if job is None else job.script,
        () if job is None else job.arguments,
        None if job is None else job.budget_bytes,
    )
    began: float | None = None
    for line in read_lines(folder.journal):
        began = line["at"] if began is None else began
        story = replace(story, seconds=round(line["at"] - began, 3))
        take = _EVENTS.get(line["event"])
        story = story if take is None else take(story, line)
        if "process_bytes" in line:
            most = max(story.process_bytes or 0, line["process_bytes"])
            story = replace(story, process_bytes=most)
    return story


def _started(story: SupervisedRun, _: Line) -> SupervisedRun:
    return replace(story, attempts=(*story.attempts, Attempt()), is_over=False)


def _ended(story: SupervisedRun, line: Line) -> SupervisedRun:
    attempt = Attempt(line["code"], line.get("cause"), line.get("words"), tuple(line.get("evidence", ())))
    return replace(story, attempts=(*story.attempts[:-1], attempt), is_over=line["event"] == "over")


def _with_training(story: SupervisedRun, line: Line, **facts: Any) -> SupervisedRun:
    number = line["training"]
    known = {training.number: training for training in story.trainings}
    known[number] = replace(known.get(number, SupervisedTraining(number)), **facts)
    return replace(story, trainings=tuple(known[key] for key in sorted(known)))


def _began_training(story: SupervisedRun, line: Line) -> SupervisedRun:
    return _with_training(story, line, steps=line["steps"], epoch=line["epochs"], is_over=False)


def _stepped(story: SupervisedRun, line: Line) -> SupervisedRun:
    names = ("loss", "micro_batch_size", "peak_bytes")
    facts = {name: line.get(name) for name in names}
    return _with_training(story, line, steps=line["step"], epoch=line["epoch"], **facts)


def _planned(story: SupervisedRun, line: Line) -> SupervisedRun:
    return _with_training(story, line, plan=Plan.from_dict(line["plan"]))


def _ran_out(story: SupervisedRun, line: Line) -> SupervisedRun:
    before = [training.ooms for training in story.trainings if training.number == line["training"]]
    return _with_training(story, line, ooms=1 + sum(before))


def _trained(story: SupervisedRun, line: Line) -> SupervisedRun:
    return _with_training(story, line, steps=line["steps"], is_over=True)


def _kept(story: SupervisedRun, line: Line) -> SupervisedRun:
    seconds = round(story.checkpoint_seconds + line["seconds"], 4)
    return replace(story, checkpoints=story.checkpoints + 1, checkpoint_seconds=seconds)


def _noted(words: str) -> Callable[[SupervisedRun, Line], SupervisedRun]:
    def take(story: SupervisedRun, line: Line) -> SupervisedRun:
        note = words.format(**line)
        return story if note in story.notes else replace(story, notes=(*story.notes, note))

    return take


def _looked_at_data(story: SupervisedRun, line: Line) -> SupervisedRun:
    for warning in line["warnings"]:
        words = f"The data of training {line['training']} take much memory: {warning.splitlines()[0]}"
        story = _noted("{words}")(story, {"words": words})
    return story


_EVENTS: dict[str, Callable[[SupervisedRun, Line], SupervisedRun]] = {
    "start": _started,
    "died": _ended,
    "over": _ended,
    "training": _began_training,
    "data": _looked_at_data,
    "step": _stepped,
    "plan": _planned,
    "oom": _ran_out,
    "trained": _trained,
    "restored": _trained,
    "checkpoint": _kept,
    "no checkpoint": _noted("No checkpoint could be written: {reason}."),
    "scarce": _noted("The host's memory was nearly full."),
    "step down": _noted("Training {training} went on in smaller steps (rung {rung} of its ladder)."),
}
