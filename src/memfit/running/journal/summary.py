"""The summary of a run: its journal as a SupervisedRun, also while it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memfit.core.records import Attempt, Plan, SupervisedRun, SupervisedTraining
from memfit.running.journal import events
from memfit.running.journal.events import Event, host_reading_of
from memfit.running.journal.run_folder import RunFolder, read_entries


def read_summary(folder: RunFolder) -> SupervisedRun:
    """The summary of the run in a folder."""
    job = folder.job()
    summary = SupervisedRun(
        folder.name,
        "" if job is None else job.script,
        () if job is None else job.arguments,
        None if job is None else job.budget_bytes,
    )
    began: float | None = None
    for entry in read_entries(folder.journal):
        began = entry.at if began is None else began
        summary = replace(summary, seconds=round(entry.at - began, 3))
        summary = _add_training_event(_add_run_event(summary, entry.event), entry.event)
        if (host := host_reading_of(entry.event)) is not None:
            summary = replace(summary, process_bytes=max(summary.process_bytes or 0, host.process_bytes))
    return summary


def _add_run_event(summary: SupervisedRun, event: Event) -> SupervisedRun:
    match event:
        case events.StartEvent():
            return replace(summary, attempts=(*summary.attempts, Attempt()), is_over=False)
        case events.KillEvent():
            attempt = Attempt(event.code, event.cause, event.words, event.evidence)
            return replace(summary, attempts=(*summary.attempts[:-1], attempt), is_over=False)
        case events.ExitEvent():
            return replace(summary, attempts=(*summary.attempts[:-1], Attempt(event.code)), is_over=True)
        case events.CheckpointEvent():
            seconds = round(summary.checkpoint_seconds + event.seconds, 4)
            return replace(summary, checkpoints=summary.checkpoints + 1, checkpoint_seconds=seconds)
        case events.CheckpointFailureEvent():
            return _with_note(summary, f"No checkpoint could be written: {event.reason}.")
        case events.KernelsEvent():
            how = "with" if event.onednn else "without"
            return _with_note(summary, f"The script went on {how} oneDNN: equal within float32 rounding.")
        case events.UnguardedEvent():
            return _with_note(summary, f"Not guarded: {event.reason}.")
        case events.ScarceMemoryEvent():
            return _with_note(summary, "The host's memory was nearly full.")
    return summary


def _add_training_event(summary: SupervisedRun, event: Event) -> SupervisedRun:
    match event:
        case events.TrainingStartEvent():
            facts = {"steps": event.steps, "epoch": event.epochs, "is_over": False}
            return _with_training(summary, event.training, **facts)
        case events.StepEvent():
            return _with_step(summary, event)
        case events.PlanEvent(plan=dict()):
            return _with_training(summary, event.training, plan=Plan.from_dict(event.plan))
        case events.OutOfMemoryEvent():
            before = [training.ooms for training in summary.trainings if training.number == event.training]
            return _with_training(summary, event.training, ooms=1 + sum(before))
        case events.TrainingEndEvent() | events.TrainingRestoreEvent():
            return _with_training(summary, event.training, steps=event.steps, is_over=True)
        case events.StepDownEvent():
            how = f"in smaller steps (rung {event.rung} of its ladder)"
            return _with_note(summary, f"Training {event.training} went on {how}.")
        case events.DataEvent():
            for warning in event.warnings:
                what = f"The data of training {event.training} take much memory"
                summary = _with_note(summary, f"{what}: {warning.splitlines()[0]}")
    return summary


def _with_step(summary: SupervisedRun, event: events.StepEvent) -> SupervisedRun:
    return _with_training(
        summary,
        event.training,
        steps=event.step,
        epoch=event.epoch,
        loss=event.loss,
        micro_batch_size=event.micro_batch_size,
        peak_bytes=None if event.device is None else event.device.peak_bytes,
    )


def _with_training(summary: SupervisedRun, number: int, **facts: Any) -> SupervisedRun:
    known = {training.number: training for training in summary.trainings}
    known[number] = replace(known.get(number, SupervisedTraining(number)), **facts)
    return replace(summary, trainings=tuple(known[key] for key in sorted(known)))


def _with_note(summary: SupervisedRun, note: str) -> SupervisedRun:
    return summary if note in summary.notes else replace(summary, notes=(*summary.notes, note))
