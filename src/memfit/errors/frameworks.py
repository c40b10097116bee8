"""TensorFlow and Keras that are missing, too old, or have already begun."""

from __future__ import annotations

from memfit.errors.base import MemfitError


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


class NotMeasurable(MemfitError, RuntimeError):
    """The device's allocator keeps no statistics."""

    def __init__(self, device: str) -> None:
        self.device = device
        super().__init__(
            f"the allocator of {device} keeps no statistics, so current and peak are unknown.",
            "On a CPU they exist only under a limit.",
            suggestion='memfit.limit("8GiB")  # before the first op or model',
        )
