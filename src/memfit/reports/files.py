"""Output files: refused before the work begins, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memfit.errors import CannotWrite


@contextmanager
def output_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes the file; what is at `path` is replaced at once, at the very end.

    >>> with output_file(Path("demo.json")) as write:
    ...     write(long_work().to_json())
    """
    if path.is_dir():
        raise CannotWrite(str(path), "it is a folder")
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise CannotWrite(str(path), error.strerror or str(error)) from error
    temporary = Path(name)

    def write(text: str) -> None:
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except OSError as error:
            raise CannotWrite(str(path), error.strerror or str(error)) from error

    try:
        yield write
    finally:
        with suppress(OSError):
            os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
