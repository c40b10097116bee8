"""Data sets that cannot be streamed: missing, damaged, not as described, or too large for the RAM given."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors.base import MemfitError


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
