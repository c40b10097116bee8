from __future__ import annotations

import numpy as np

from memfit.guarding.step.loss_weights import known_denominators, share_vectors


def test_means_count_by_samples_and_sums_fully() -> None:
    parts = [known_denominators(size, ["samples", "nothing"]) for size in (5, 5, 6)]
    shares = share_vectors(parts)
    assert [list(share) for share in shares] == [
        [5 / 16, 5 / 16, 1],
        [5 / 16, 5 / 16, 1],
        [6 / 16, 6 / 16, 1],
    ]


def test_masks_count_by_valid_elements_and_a_part_without_any_counts_nothing() -> None:
    shares = share_vectors([np.array([4.0, 3.0]), np.array([4.0, 0.0]), np.array([2.0, 9.0])])
    assert [share[1] for share in shares] == [0.25, 0.0, 0.75]


def test_where_nothing_is_valid_at_all_nothing_is_divided_by_zero() -> None:
    shares = share_vectors([np.array([4.0, 0.0]), np.array([4.0, 0.0])])
    assert [share[1] for share in shares] == [1.0, 1.0]


def test_one_part_is_the_whole_to_the_bit() -> None:
    (share,) = share_vectors([np.array([7.0, 0.1 + 0.2])])
    assert list(share) == [1.0, 1.0]
