"""The model of the allocator beside the real one: the same requests, the same bytes in use, the same peak."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from memfit.estimating.simulator.allocator import Allocator, PoolExhausted

MIB = 1 << 20


def test_a_chunk_is_cut_only_where_as_much_again_is_left() -> None:
    allocator = Allocator()
    allocator.allocate(2 * MIB - 256)
    assert allocator.used_bytes == 2 * MIB
    first = allocator.allocate(MIB)
    assert allocator.used_bytes == 3 * MIB
    allocator.free(first)
    assert (allocator.used_bytes, allocator.peak_bytes) == (2 * MIB, 3 * MIB)


def test_free_neighbours_join_and_can_be_used_as_one() -> None:
    allocator = Allocator(limit_bytes=2 * MIB)
    chunks = [allocator.allocate(MIB // 2) for _ in range(4)]
    with pytest.raises(PoolExhausted, match="no room for 256 bytes"):
        allocator.allocate(1)
    for chunk in (chunks[1], chunks[3], chunks[2]):
        allocator.free(chunk)
    allocator.allocate(3 * MIB // 2)
    assert allocator.used_bytes == 2 * MIB


class Both:
    """The model and the real allocator, asked for the same."""

    sizes = (
        *(1, 256, 257, 700, 4096, 5000, 60_000, 65_536, 300_000, MIB, 3 * MIB - 1, 5 * MIB, 17 * MIB),
        *(round(1.7**power) for power in range(8, 30)),
        40 * MIB,
    )

    def __init__(self, limit_bytes: int) -> None:
        import tensorflow as tf

        self._tf = tf
        self.model = Allocator(limit_bytes)
        self._shapes = []
        self._held: list[tuple[Any, int]] = []
        for size in self.sizes:
            self._shapes.append(tf.constant([size]))
            self.model.allocate(4)

    def start_over(self) -> None:
        while self._held:
            self.free(-1)
        self._tf.config.experimental.reset_memory_stats("CPU:0")
        self.model.forget_peak()

    def real(self, number: int) -> Any:
        return self._tf.raw_ops.Empty(shape=self._shapes[number], dtype=self._tf.uint8)

    def allocate(self, number: int) -> None:
        import numpy as np

        tensor = self.real(number)
        address = int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])
        self._held.append((tensor, self.model.allocate(self.sizes[number], region=address)))
        self._compare()

    def free(self, number: int) -> None:
        if self._held:
            _, address = self._held.pop(number % len(self._held))
            del _
            self.model.free(address)
            self._compare()

    def _compare(self) -> None:
        from memfit.machine import device_memory

        memory = device_memory()
        real = (memory.current_bytes, memory.peak_bytes)
        assert (self.model.used_bytes, self.model.peak_bytes) == real


def _beside_the_real_one(examples: int) -> dict[str, int]:
    """Random requests of both, and then until there is no room: how many there were."""
    import tensorflow as tf
    from hypothesis import given, settings
    from hypothesis import strategies as st

    both = Both(1024 * MIB)
    largest = len(both.sizes) - 1
    seen = {"sequences": 0, "requests": 0, "fitted": 0}

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.one_of(st.integers(0, largest), st.integers(-30, -1)), min_size=5, max_size=60))
    def alike(actions: list[int]) -> None:
        both.start_over()
        for action in actions:
            if action < 0:
                both.free(action)
            elif both.model.used_bytes + both.sizes[action] < 500 * MIB:
                both.allocate(action)
        seen["sequences"] += 1
        seen["requests"] += len(actions)

    alike()
    both.start_over()
    try:
        while True:
            both.model.free(both.model.allocate(both.sizes[largest]))
            both.allocate(largest)
            seen["fitted"] += 1
    except PoolExhausted:
        with pytest.raises(tf.errors.ResourceExhaustedError):
            both.real(largest)
    return seen


@pytest.mark.real
def test_a_thousand_random_sequences_come_to_the_same_bytes() -> None:
    seen = run_limited(_beside_the_real_one, "1GiB", examples=1000)
    assert seen["sequences"] >= 1000
    assert seen["fitted"] > 10
