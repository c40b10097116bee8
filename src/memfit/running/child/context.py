"""The context that all trainings of a supervised script share: where they write, and where each begins."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from memfit.running.checkpoints.store import CheckpointStore, Writer
from memfit.running.journal.run_folder import JOURNAL, Job, JournalFile


@dataclass(frozen=True)
class ChildContext:
    """Journal and checkpoints of a run, and how far down its ladder each training begins."""

    journal: JournalFile
    store: CheckpointStore
    writer: Writer
    rungs: dict[int, int]

    @classmethod
    def of(cls, job: Job) -> ChildContext:
        """The context of a job."""
        journal, store = JournalFile(Path(job.folder) / JOURNAL), CheckpointStore(Path(job.checkpoints))
        return cls(journal, store, Writer(store, journal, tell), dict(job.rungs))


def tell(text: str) -> None:
    """Say something to whoever watches the script."""
    sys.stderr.write(f"memfit: {text}\n")
    sys.stderr.flush()
