"""How much memory is in use: by the device's allocator and by this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from memfit.devices.frameworks import load_tensorflow
from memfit.devices.limits import first_device
from memfit.errors import NotMeasurable
from memfit.records import DeviceMemory


def device_memory(device: str | None = None) -> DeviceMemory:
    """Current and peak bytes of a device, to the byte as TensorFlow counts them; starts the runtime.

    >>> import memfit
    >>> memfit.limit("1GiB")
    1073741824
    >>> memfit.devices.device_memory().current_bytes
    0
    """
    device = device or first_device()
    try:
        info = load_tensorflow().config.experimental.get_memory_info(device)
    except ValueError as error:
        raise NotMeasurable(device) from error
    return DeviceMemory(device, current_bytes=info["current"], peak_bytes=info["peak"])


def reset_peak(device: str | None = None) -> None:
    """Make the peak start again from what is in use now."""
    device = device or first_device()
    memory = device_memory(device)
    for measurement in _open:
        measurement.note(memory)
    load_tensorflow().config.experimental.reset_memory_stats(device)


class PeakMeasurement:
    """What a block needed: its base, its peak, and the peak over the base."""

    def __init__(self, base: DeviceMemory) -> None:
        self.device = base.device
        self.base_bytes = base.current_bytes
        self.peak_bytes = base.current_bytes

    @property
    def over_base_bytes(self) -> int:
        """The peak above what was in use when the block began."""
        return self.peak_bytes - self.base_bytes

    def note(self, memory: DeviceMemory) -> None:
        """Take in a reading; used when the device's peak is about to be reset."""
        if memory.device == self.device:
            self.peak_bytes = max(self.peak_bytes, memory.peak_bytes)


# Blocks being measured, outermost first: an inner block resets the device's peak, and the outer ones
# must still see what was before.
_open: list[PeakMeasurement] = []


@contextmanager
def measure_peak(device: str | None = None) -> Iterator[PeakMeasurement]:
    """Measure the peak of a block; blocks may be nested.

    >>> with memfit.devices.measure_peak() as measured:
    ...     model.train_on_batch(x, y)
    >>> measured.over_base_bytes
    """
    reset_peak(device)
    measurement = PeakMeasurement(device_memory(device))
    _open.append(measurement)
    try:
        yield measurement
    finally:
        measurement.note(device_memory(device))
        _open.remove(measurement)


def process_bytes() -> int:
    """The resident memory (RSS) of this process."""
    return int(psutil.Process().memory_info().rss)
