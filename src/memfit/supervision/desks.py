"""What all trainings of a supervised script share: where they write, and what they are told to do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from memfit.supervision.jobs import Job
from memfit.supervision.journals import JournalFile
from memfit.supervision.shelves import Shelf
from memfit.supervision.writers import Writer

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Desk:
    """Journal and checkpoints of a run, and how far down its ladder each training begins."""

    journal: JournalFile
    shelf: Shelf
    writer: Writer
    rungs: dict[int, int]

    @classmethod
    def of(cls, job: Job) -> Desk:
        """The desk of a job."""
        journal, shelf = JournalFile(Path(job.folder) / JOURNAL), Shelf(Path(job.checkpoints))
        return cls(journal, shelf, Writer(shelf, journal, tell), dict(job.rungs))


def tell(text: str) -> None:
    """Say something to whoever watches the script."""
    sys.stderr.write(f"memfit: {text}\n")
    sys.stderr.flush()
