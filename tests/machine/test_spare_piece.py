"""A pool that is full to the last bytes: small numbers find room again while a step runs."""

from __future__ import annotations

import pytest

from limited import run_limited

pytestmark = pytest.mark.real


def _fill_beside_a_step() -> list[bool]:
    import tensorflow as tf

    from memfit.machine.limits import SPARE_PIECE, free_bytes

    before = free_bytes() or 0
    held = []
    with SPARE_PIECE.beside_step():
        taken = before - (free_bytes() or 0)
        while (free := free_bytes() or 0) > 512:
            held.append(tf.zeros((max(256, free // 2) - 255,), tf.uint8))
        # It waits until there is room, ten seconds at most; then it would raise.
        number = tf.zeros((1024,), tf.uint8)
    SPARE_PIECE.give_back()
    return [0 < taken < 1 << 20, len(number) == 1024, bool(held)]


def test_it_is_given_back_where_the_pool_is_full() -> None:
    assert run_limited(_fill_beside_a_step, "16MiB") == [True, True, True]
