"""The model of the allocator beside the real one: the same requests, the same bytes in use, the same peak."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from memfit.estimates.allocators import Allocator, OutOfMemory

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
    with pytest.raises(OutOfMemory, match="no room for 256 bytes"):
        allocator.allocate(1)
    for chunk in (chunks[1], chunks[3], chunks[2]):
        allocator.free(chunk)
    allocator.allocate(3 * MIB // 2)
    assert allocator.used_bytes == 2 * MIB


def _beside_the_real_one(examples: int) -> dict[str, Any]:
    """Random requests of both; what differed first."""
    import numpy as np
    import tensorflow as tf
    from hypothesis import given, settings
    from hypothesis import strategies as st

    from memfit.devices import device_memory

    model = Allocator(limit_bytes=1024 * MIB)
    sizes = [1, 256, 257, 700, 4096, 5000, 60_000, 65_536, 300_000, MIB, 3 * MIB - 1, 5 * MIB, 17 * MIB, 40 * MIB]
    sizes += [round(1.7**power) for power in range(8, 30)]
    shapes = []
    for size in sizes:
        shapes.append(tf.constant([size]))
        model.allocate(4)

    def compare() -> None:
        memory = device_memory()
        real = (memory.current_bytes, memory.peak_bytes)
        assert (model.used_bytes, model.peak_bytes) == real

    def ask(number: int) -> tuple[Any, int]:
        tensor = tf.raw_ops.Empty(shape=shapes[number], dtype=tf.uint8)
        address = int(np.from_dlpack(tensor).__array_interface__["data"][0])
        return tensor, model.allocate(sizes[number], region=address)

    requests = st.integers(0, len(sizes) - 1)
    frees = st.integers(-30, -1)

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.one_of(requests, frees), min_size=5, max_size=60))
    def alike(actions: list[int]) -> None:
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.forget_peak()
        held: list[tuple[Any, int]] = []
        for action in actions:
            if action >= 0 and model.used_bytes + sizes[action] < 500 * MIB:
                held.append(ask(action))
            elif action < 0 and held:
                tensor, address = held.pop(action % len(held))
                del tensor
                model.free(address)
            compare()
        while held:
            tensor, address = held.pop()
            del tensor
            model.free(address)
            compare()
        seen.append(len(actions))

    seen: list[int] = []
    compare()
    alike()
    held = []
    while True:
        try:
            address = model.allocate(40 * MIB)
        except OutOfMemory:
            break
        model.free(address)
        held.append(ask(sizes.index(40 * MIB)))
    try:
        tf.raw_ops.Empty(shape=shapes[sizes.index(40 * MIB)], dtype=tf.uint8)
    except tf.errors.ResourceExhaustedError:
        return {"sequences": len(seen), "requests": sum(seen), "full": len(held)}
    raise AssertionError("the model has no room, the real allocator has")


@pytest.mark.real
def test_a_thousand_random_sequences_come_to_the_same_bytes() -> None:
    seen = run_limited(_beside_the_real_one, "1GiB", examples=1000)
    assert seen["sequences"] >= 1000
    assert seen["full"] > 10
