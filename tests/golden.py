"""Output compared with what it was when somebody last looked at it."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console, RenderableType


def render(renderable: RenderableType) -> str:
    """What a plain terminal of 80 columns shows."""
    console = Console(width=80, color_system=None, highlight=False, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file, console.capture() as capture:
        console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def check_golden(path: Path, text: str) -> None:
    """Compare with the file; MEMFIT_GOLDEN=write writes it anew, to be looked at and committed."""
    if os.environ.get("MEMFIT_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert all(len(line) <= 80 for line in text.splitlines())
