"""Arguments and records that are not what was expected, and output that cannot be written."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.core.errors.base import MemfitError


class InvalidSize(MemfitError, ValueError):
    """Not a number of bytes, nor a size with a unit."""

    exit_code = 2

    def __init__(self, received: object, *, name: str, expected: str | None = None) -> None:
        self.received = received
        super().__init__(
            f"expected {expected or 'a number of bytes or a size with a unit'}.",
            f"Received: {_assignment(name, received)} ({type(received).__name__})",
            suggestion=_assignment(name, "8GiB"),
        )


def _assignment(name: str, value: object) -> str:
    if name.startswith("--"):
        return f"{name} {value}"
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value!r}"


class LargerThanMachine(InvalidSize):
    """More memory than there is."""

    def __init__(self, received_bytes: int, *, name: str, total_bytes: int, where: str) -> None:
        self.received_bytes = received_bytes
        self.total_bytes = total_bytes
        largest = f"{max(1, int(total_bytes * 0.8) >> 20)}MiB"
        MemfitError.__init__(
            self,
            f"{name.lstrip('-')} of {received_bytes / 2**30:.1f} GiB is larger than {where}.",
            f"Expected: at most {total_bytes:,} bytes ({total_bytes / 2**30:.1f} GiB)",
            f"Received: {received_bytes:,} bytes",
            suggestion=_assignment(name, largest),
        )


class InvalidRecord(MemfitError, ValueError):
    """A JSON record that cannot be read."""

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        super().__init__(
            f"cannot read a record of kind {kind!r}: {problem}.",
            suggestion="write the record again with the memfit that is installed here",
        )


class RecordTooNew(InvalidRecord):
    """A JSON record written by a newer memfit."""

    def __init__(self, kind: str, *, schema: int, newest: int) -> None:
        self.kind, self.schema, self.newest = kind, schema, newest
        MemfitError.__init__(
            self,
            f"the record of kind {kind!r} was written by a newer memfit.",
            f"Expected: schema {newest} or older",
            f"Received: schema {schema}",
            suggestion="pip install --upgrade memfit",
        )


class InvalidMicroBatchSize(MemfitError, ValueError):
    """Not a number of samples."""

    exit_code = 2

    def __init__(self, received: object) -> None:
        self.received = received
        super().__init__(
            "expected micro_batch_size to be a number of samples, 1 or more.",
            f"Received: micro_batch_size={received!r} ({type(received).__name__})",
            suggestion="micro_batch_size=8",
        )


class BatchSizesDiffer(MemfitError, ValueError):
    """Arrays of one batch with different numbers of samples."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        super().__init__(
            "the arrays of one batch have different numbers of samples.",
            "Expected: the same first dimension everywhere",
            f"Received: {', '.join(map(str, sizes))}",
            suggestion="print([array.shape for array in keras.tree.flatten(batch)])",
        )


class InvalidBatchSize(MemfitError, ValueError):
    """Not a number of samples."""

    exit_code = 2

    def __init__(self, received: object, *, name: str = "batch_size") -> None:
        self.received = received
        on_command_line = name.startswith("--")
        super().__init__(
            f"{received!r} is not a batch size.",
            f"Expected a whole number of at least 1, received {received!r}.",
            suggestion=f"{name} 32" if on_command_line else "memfit.estimate(model, batch_size=32)",
        )


class InvalidLever(MemfitError, ValueError):
    """Not a lever that a plan can pull."""

    exit_code = 2

    def __init__(self, received: object, *, known: Sequence[str]) -> None:
        self.received = received
        super().__init__(
            f"{received!r} is not a lever.",
            f"Expected some of {', '.join(known)}, received {received!r}.",
            suggestion=f"allow={tuple(known)!r}",
        )


class UnusedArgument(MemfitError, ValueError):
    """Something that the user asks for, and that nothing would come of."""

    exit_code = 2

    def __init__(self, fact: str, expected: str, *, suggestion: str) -> None:
        super().__init__(fact, expected, suggestion=suggestion)


class InvalidPrecision(MemfitError, ValueError):
    """Not a precision that memfit knows; nothing has been changed."""

    exit_code = 2

    def __init__(self, received: object, *, known: Sequence[str]) -> None:
        self.received = received
        super().__init__(
            f"{received!r} is not a precision to compute in.",
            f"Expected one of {', '.join(known)}, received {received!r}.",
            suggestion=f'"{known[0]}"',
        )


class LayerNotFound(MemfitError, ValueError):
    """A name that no layer of a model has; nothing has been changed."""

    exit_code = 2

    def __init__(self, received: str, *, near: Sequence[str], known: int) -> None:
        self.received, self.near = received, tuple(near)
        names = f'float32_layers=("{near[0]}",)' if near else "print([layer.name for layer in model.layers])"
        super().__init__(
            f"the model has no layer {received!r} among its {known}.",
            *([f"Names that are close: {', '.join(near)}"] if near else []),
            suggestion=names,
        )


class CannotWrite(MemfitError, OSError):
    """Output that cannot be written; what was there before is untouched."""

    def __init__(self, path: str, reason: str, *, kept: str = "Nothing was written.") -> None:
        self.path = path
        super().__init__(
            f"cannot write {path}: {reason}.",
            kept,
            suggestion="a place that exists, has room, and that you may write to",
        )


class CannotRead(MemfitError, OSError):
    """A file to look at that cannot be read."""

    exit_code = 2

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"cannot read {path}: {reason}.",
            "Expected: the log of a training, or - for standard input",
            suggestion="python train.py 2>&1 | memfit diagnose -",
        )


class CannotDiagnose(MemfitError, TypeError):
    """Something that is no log, no error and no run."""

    exit_code = 2

    def __init__(self, received: object) -> None:
        self.received = type(received).__name__
        super().__init__(
            "expected an exception, the text of a log, a path or a Run.",
            f"Received: an object of type {self.received}",
            suggestion='memfit.diagnose(pathlib.Path("train.log"))',
        )


class InvalidTarget(MemfitError, ValueError):
    """Not of the form that names a model or data."""

    exit_code = 2

    def __init__(self, received: str, *, title: str, expected: str, suggestion: str) -> None:
        self.received = received
        super().__init__(
            f"expected {title} to be {expected}.", f"Received: {received}", suggestion=suggestion
        )


class TargetNotFound(InvalidTarget):
    """A file, a module or a name in it that does not exist."""

    def __init__(self, received: str, missing: str, *, near: Sequence[str], suggestion: str) -> None:
        self.received, self.near = received, tuple(near)
        MemfitError.__init__(
            self,
            f"{missing} does not exist.",
            f"Received: {received}",
            *([f"Names that are there: {', '.join(near)}"] if near else []),
            suggestion=suggestion,
        )


class WrongTarget(MemfitError, TypeError):
    """Something else than a model or data."""

    exit_code = 2

    def __init__(self, target: str, problem: str, *, expected: str, suggestion: str) -> None:
        self.target, self.problem = target, problem
        super().__init__(f"{target} {problem}.", f"Expected: {expected}", suggestion=suggestion)


class TargetFailed(MemfitError):
    """The user's own code raised while it was loaded or traced."""

    def __init__(self, target: str, doing: str, reason: str, *, where: str | None, suggestion: str) -> None:
        self.target, self.reason, self.where = target, reason, where
        super().__init__(
            f"{target} failed {doing}: {reason}.",
            *([] if where is None else [where]),
            suggestion=suggestion,
        )


class CannotLoadModel(MemfitError):
    """A .keras file that cannot be read, or not without running code from it."""

    def __init__(self, path: str, reason: str, *, suggestion: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot load {path}: {reason}.", suggestion=suggestion)


class SourceNotFound(MemfitError, FileNotFoundError):
    """A file or folder to look at that does not exist."""

    def __init__(self, path: str, *, near: Sequence[str] = ()) -> None:
        self.path, self.near = path, tuple(near)
        MemfitError.__init__(
            self,
            f"{path} does not exist.",
            "Expected: a Python file, a notebook, a folder, or - for standard input",
            suggestion=f"memfit lint {near[0] if near else '.'}",
        )


class UnknownRule(MemfitError, ValueError):
    """Not the id of a rule."""

    exit_code = 2

    def __init__(self, received: str, *, known: Sequence[str]) -> None:
        self.received = received
        super().__init__(
            f"{received!r} is not the id of a rule.",
            f"Expected: {known[0]} to {known[-1]}",
            suggestion=f"memfit lint --explain {known[0]}",
        )
