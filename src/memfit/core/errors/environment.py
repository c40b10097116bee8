"""TensorFlow and Keras that cannot be used, and scripts and processes that failed."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.core.errors.base import MemfitError


class TensorFlowMissing(MemfitError, ImportError):
    """TensorFlow or Keras is not installed, or not so that it can be imported."""

    def __init__(self, package: str, reason: str | None = None) -> None:
        self.package = package
        super().__init__(
            f"{package} cannot be imported: {reason}."
            if reason
            else f"{package} is not installed in this Python.",
            "memfit leaves the choice of the build to you: on a GPU, memfit[gpu] instead.",
            suggestion="pip install 'memfit[cpu]'",
        )


class UnsupportedVersion(MemfitError):
    """TensorFlow or Keras is older than memfit supports."""

    def __init__(self, package: str, *, received: str, expected: str) -> None:
        self.package, self.received, self.expected = package, received, expected
        super().__init__(
            f"this version of {package} is not supported.",
            f"Expected: {package} {expected}",
            f"Received: {package} {received}",
            suggestion="pip install --upgrade 'memfit[cpu]'",
        )


class UnsupportedBackend(MemfitError):
    """Keras runs on a backend other than TensorFlow."""

    def __init__(self, received: str) -> None:
        self.received = received
        super().__init__(
            "memfit works with Keras on TensorFlow.",
            'Expected: keras.backend.backend() == "tensorflow"',
            f'Received: "{received}"',
            suggestion="KERAS_BACKEND=tensorflow python your_script.py",
        )


class RuntimeStarted(MemfitError, RuntimeError):
    """A limit can be set only before TensorFlow's runtime starts."""

    def __init__(self, requested_bytes: int | None, *, in_force_bytes: int | None) -> None:
        self.requested_bytes, self.in_force_bytes = requested_bytes, in_force_bytes
        size = "" if requested_bytes is None else f'"{requested_bytes >> 20}MiB"'
        super().__init__(
            "TensorFlow's runtime has already started, so its memory can no longer be limited.",
            "The first op, tensor, dataset or model with weights starts it; importing TensorFlow does not.",
            f"Limit in force: {_mebibytes(in_force_bytes)}; requested: {_mebibytes(requested_bytes)}",
            suggestion=f"memfit.limit({size or 'growth=True'})  # first of all, in a new process",
        )


def _mebibytes(size_bytes: int | None) -> str:
    return "none" if size_bytes is None else f"{size_bytes >> 20} MiB"


class TensorFlowImported(MemfitError, RuntimeError):
    """oneDNN can be chosen only before TensorFlow is imported."""

    def __init__(self, *, onednn: bool) -> None:
        self.onednn = onednn
        super().__init__(
            f"TensorFlow is imported with oneDNN {'off' if onednn else 'on'}, which cannot be changed.",
            f"Expected onednn={onednn} before `import tensorflow`; received it after.",
            suggestion=f"TF_ENABLE_ONEDNN_OPTS={int(onednn)} python train.py",
        )


class NotMeasurable(MemfitError, RuntimeError):
    """The device's allocator keeps no statistics."""

    def __init__(self, device: str) -> None:
        self.device = device
        super().__init__(
            f"the allocator of {device} keeps no statistics, so current and peak are unknown.",
            "On a CPU they exist only under a limit.",
            suggestion='memfit.limit("8GiB")  # before the first op or model',
        )


class ScriptNotFound(MemfitError):
    """A script that is not there."""

    exit_code = 2

    def __init__(self, script: str, *, folder: object) -> None:
        self.script, self.folder = script, folder
        is_path = "/" in script or script.endswith(".py")
        super().__init__(
            f"there is no script {script!r} in {folder}.",
            suggestion="the path of a script that is there" if is_path else f"memfit run -m {script}",
        )


class DamagedCheckpoint(MemfitError):
    """A checkpoint that was cut off, or that has changed since it was written."""

    def __init__(self, path: object, problem: str) -> None:
        self.path = path
        super().__init__(
            f"the checkpoint {path} is damaged: {problem}.",
            suggestion="the one before it",
        )


class CannotResume(MemfitError):
    """A script that, started again, is not at the point where it was."""

    def __init__(self, what: str, *, expected: str, received: str) -> None:
        self.expected, self.received = expected, received
        super().__init__(
            f"this run cannot be resumed: {what}.",
            f"Expected: {expected}",
            f"Received: {received}",
            suggestion="memfit run without --resume, to begin anew",
        )


class RunNotFound(MemfitError):
    """No such run is known."""

    exit_code = 2

    def __init__(self, what: str, *, folder: object, suggestion: str) -> None:
        self.folder = folder
        super().__init__(f"there is no run of {what} in {folder}.", suggestion=suggestion)


class ChildFailed(MemfitError):
    """A process that memfit started ended without a result."""

    def __init__(self, target: str, *, exit_code: int | None, last_lines: Sequence[str]) -> None:
        self.target, self.child_exit_code = target, exit_code
        super().__init__(
            f"the process that ran {target} {_ending(exit_code)}.",
            *(f"| {line}" for line in last_lines),
            suggestion="memfit doctor",
        )


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "raised an error"
    if exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code} and no result"


class RamTooSmall(MemfitError):
    """Not even the narrowest stream of a data set stays within the RAM it may use."""

    exit_code = 3

    def __init__(
        self, ram_bytes: int, *, least_bytes: int, parts: Sequence[tuple[str, int]], batch_size: int
    ) -> None:
        self.ram_bytes, self.least_bytes, self.batch_size = ram_bytes, least_bytes, batch_size
        listed = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in parts)
        super().__init__(
            f"batches of {batch_size} cannot be streamed within ram={ram_bytes / 2**20:.1f} MiB.",
            f"The least that would do is {least_bytes / 2**20:.1f} MiB: {listed} (MiB).",
            suggestion=f'ram="{-(-least_bytes >> 20) + 1}MiB", or a smaller batch_size',
        )


class NoData(MemfitError, FileNotFoundError):
    """Nothing to stream where something was expected."""

    def __init__(self, where: object, *, expected: str, found: str, suggestion: str) -> None:
        self.where = where
        super().__init__(
            f"there is nothing to stream in {where}.",
            f"Expected: {expected}",
            f"Received: {found}",
            suggestion=suggestion,
        )


class InvalidStream(MemfitError, ValueError):
    """An argument that does not describe the data set, or that nothing can be made of."""

    exit_code = 2

    def __init__(self, fact: str, *, expected: str, received: str, suggestion: str) -> None:
        self.expected, self.received = expected, received
        super().__init__(fact, f"Expected: {expected}", f"Received: {received}", suggestion=suggestion)


class DamagedData(MemfitError):
    """An element that cannot be read or decoded."""

    def __init__(self, where: str, reason: str, *, suggestion: str | None = None) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where} cannot be read: {reason}.",
            suggestion=suggestion or 'mend or remove it, or on_error="skip" to go on without it',
        )


class PackageMissing(MemfitError, ImportError):
    """A package that this kind of data needs is not installed."""

    def __init__(self, package: str, *, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{package} is not installed in this Python.", suggestion=f"pip install 'memfit[{extra}]'"
        )
