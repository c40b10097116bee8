"""Orders that take no memory: each element once an epoch, another order each epoch, from any position on."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest

from limited import run_limited

pytestmark = pytest.mark.real

_CASES: list[tuple[list[int], int]] = [
    ([1], 1),
    ([5, 1, 7, 3, 4, 0, 9], 2),
    ([16] * 20, 100),
]


def _orders(folder: str, cases: list[tuple[list[int], int]]) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from memfit.data.stream.order import Groups, Order

    def blocks(sizes: list[int], window: int, seed: int = 1, start: int = 0, size: int = 4) -> Any:
        groups = Groups(np.array(sizes), window) if window else None
        return Order(sum(sizes), True, seed, start, groups).blocks(size)

    def epochs(count: int, dataset: Any) -> list[list[int]]:
        return [
            [index for _, _, indices in dataset.as_numpy_iterator() for index in indices.tolist()]
            for _ in range(count)
        ]

    def from_starts(sizes: list[int], window: int) -> list[list[list[int]]]:
        length = sum(sizes)
        return [epochs(2, blocks(sizes, window, start=start)) for start in (length // 2, length, length + 1)]

    def from_checkpoint(dataset: Any) -> list[int]:
        iterator = iter(dataset)
        begun = [next(iterator)[2].numpy() for _ in range(3)]
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        path = checkpoint.write(folder + "/order")
        for _ in range(2):
            next(iterator)
        checkpoint.read(path)
        rest = [indices.numpy() for _, _, indices in iterator]
        found: list[int] = np.concatenate([*begun, *rest]).tolist()
        return found

    large = epochs(12, blocks([16] * 100, 10, size=64))
    return {
        "epochs": [epochs(4, blocks(*case)) for case in cases],
        "again": [epochs(4, blocks(*case)) for case in cases],
        "another seed": [epochs(1, blocks(*case, seed=2)) for case in cases],
        "from starts": [from_starts(*case) for case in cases],
        "checkpoint": from_checkpoint(blocks([16] * 20, 3)),
        "without": epochs(1, blocks([16] * 20, 3))[0],
        "large": large,
        "uniform": epochs(12, blocks([1600], 0, size=64)),
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_limited(_orders, None, folder=str(tmp_path_factory.mktemp("orders")), cases=_CASES)


def test_groups_give_each_element_once_an_epoch_in_an_order_of_its_own(seen: Any) -> None:
    for (sizes, _), epochs in zip(_CASES, seen["epochs"], strict=True):
        assert all(sorted(epoch) == list(range(sum(sizes))) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == (4 if sum(sizes) > 1 else 1)
    assert seen["again"] == seen["epochs"]
    assert all(
        other[0] != own[0] for other, own in zip(seen["another seed"][1:], seen["epochs"][1:], strict=True)
    )


def test_any_start_goes_on_in_the_same_order(seen: Any) -> None:
    for (sizes, _), epochs, (middle, second, in_second) in zip(
        _CASES, seen["epochs"], seen["from starts"], strict=True
    ):
        begin, offset = (sum(sizes) // 2, 1) if sum(sizes) > 1 else (0, 0)
        assert middle == [epochs[0][begin:], epochs[1]]
        assert second == epochs[1:3]
        assert in_second == ([epochs[1][offset:], epochs[2]] if offset else epochs[2:])


def test_an_iterator_goes_on_from_a_checkpoint(seen: Any) -> None:
    assert seen["checkpoint"] == seen["without"]


def test_only_a_window_of_groups_is_needed_at_a_time(seen: Any) -> None:
    for epoch in seen["large"]:
        windows = [{index // 16 for index in epoch[begin : begin + 160]} for begin in range(0, 1600, 160)]
        assert [len(window) for window in windows] == [10] * 10
        assert len(set(chain(*windows))) == 100


@pytest.mark.parametrize("name", ["large", "uniform"])
def test_neighbours_do_not_stay_together(seen: Any, name: str) -> None:
    """By chance a pair stays about once a window; 12 epochs of 10 windows have 120, give or take 11."""
    pairs = [(a, b) for epoch in seen[name] for a, b in pairwise(epoch)]
    stayed = sum(b == a + 1 for a, b in pairs)
    expected, margin = (120, 80) if name == "large" else (12, 24)
    assert abs(stayed - expected) < margin
