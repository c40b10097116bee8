"""TensorFlow's allocator, best fit with coalescing (BFC), as a model: same requests, same bytes in use.

Memory comes in regions, each at least twice as large as the one before. A region is cut into chunks; a
request takes the smallest free chunk that holds it, and cuts it only where that leaves as much again or
128 MiB. What is not cut off counts as in use, so what is in use depends on all requests before.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_SMALLEST = 256
_FIRST_REGION = 2 << 20
_MOST_UNUSED = 128 << 20
_GAP = 1 << 12  # regions are apart: their chunks never join


class PoolExhausted(Exception):
    """A request that the limit has no room for."""

    def __init__(self, requested_bytes: int) -> None:
        super().__init__(f"no room for {requested_bytes:,} bytes")
        self.requested_bytes = requested_bytes


class Allocator:
    """Chunks by address: what is in use, and the peak."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.used_bytes = 0
        self.peak_bytes = 0
        self.region_bytes = 0
        self._limit = limit_bytes
        self._next_region = min(_FIRST_REGION, limit_bytes or _FIRST_REGION)
        self._lowest = 0  # addresses of new regions go down, as those of the system's do
        self._free: list[tuple[int, int]] = []  # size and address
        self._size: dict[int, int] = {}
        self._used: set[int] = set()
        self._before: dict[int, int | None] = {}  # neighbours in the same region
        self._after: dict[int, int | None] = {}

    def allocate(self, size: int, *, region: int | None = None) -> int:
        """The address of a chunk; a new region lies at a given address, or below all others."""
        rounded = max(_SMALLEST, -(-size // _SMALLEST) * _SMALLEST)
        place = bisect_left(self._free, (rounded, -(1 << 62)))
        if place == len(self._free):
            self._add_region(rounded, region)
            place = bisect_left(self._free, (rounded, -(1 << 62)))
        found, address = self._free.pop(place)
        if found >= 2 * rounded or found - rounded >= _MOST_UNUSED:
            self._cut(address, rounded)
            found = rounded
        self._used.add(address)
        self.used_bytes += found
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return address

    def free(self, address: int) -> None:
        """Give a chunk back; it joins free neighbours."""
        self._used.remove(address)
        self.used_bytes -= self._size[address]
        after = self._after[address]
        if after is not None and after not in self._used:
            self._take_out(after)
            self._join(address, after)
        before = self._before[address]
        if before is not None and before not in self._used:
            self._take_out(before)
            self._join(before, address)
            address = before
        insort(self._free, (self._size[address], address))

    def forget_peak(self) -> None:
        """Let the peak begin at what is in use."""
        self.peak_bytes = self.used_bytes

    def _add_region(self, rounded: int, address: int | None) -> None:
        room = None if self._limit is None else (self._limit - self.region_bytes) // _SMALLEST * _SMALLEST
        if room is not None and rounded > room:
            raise PoolExhausted(rounded)
        grown = False
        while rounded > self._next_region:
            self._next_region *= 2
            grown = True
        size = self._next_region if room is None else min(self._next_region, room)
        if not grown:
            self._next_region *= 2
        if address is None:
            address = self._lowest - size - _GAP
        self._lowest = min(self._lowest, address)
        self.region_bytes += size
        self._size[address] = size
        self._before[address] = self._after[address] = None
        insort(self._free, (size, address))

    def _cut(self, address: int, size: int) -> None:
        rest, after = address + size, self._after[address]
        self._size[rest] = self._size[address] - size
        self._size[address] = size
        self._before[rest], self._after[rest] = address, after
        self._after[address] = rest
        if after is not None:
            self._before[after] = rest
        insort(self._free, (self._size[rest], rest))

    def _join(self, address: int, neighbour: int) -> None:
        after = self._after.pop(neighbour)
        self._size[address] += self._size.pop(neighbour)
        self._after[address] = after
        del self._before[neighbour]
        if after is not None:
            self._before[after] = address

    def _take_out(self, address: int) -> None:
        del self._free[bisect_left(self._free, (self._size[address], address))]
