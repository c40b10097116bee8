"""Output files: refused before the work begins, written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memfit.core.errors import CannotWrite

_EFFECTIVE = os.access in os.supports_effective_ids


@contextmanager
def output_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes the file; what is at `path` is replaced at once, at the very end.

    A link is followed, the permissions of a file stay, and what is no file (a pipe, a device) is written to.

    >>> with output_file(Path("demo.json")) as write:
    ...     write(long_work().to_json())
    """
    _check_writable(path)
    if path.exists() and not path.is_file():
        yield lambda text: _write(path, text, named=path)
        return
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    _write(temporary, "", named=path)

    def write(text: str) -> None:
        _write(temporary, text, named=path)
        try:
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        except OSError as error:
            raise CannotWrite(str(path), error.strerror or str(error)) from error

    try:
        yield write
    finally:
        temporary.unlink(missing_ok=True)


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise CannotWrite(str(path), "it is a folder")
    if path.exists() and not os.access(path, os.W_OK, effective_ids=_EFFECTIVE):
        raise CannotWrite(str(path), "it is read-only")


def _write(path: Path, text: str, *, named: Path) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if path.is_file():
                os.fsync(file.fileno())
    except OSError as error:
        raise CannotWrite(str(named), error.strerror or str(error)) from error
