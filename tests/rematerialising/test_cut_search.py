"""Cuts of synthetic networks, against the best possible schedule and against what theory says."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from memfit.rematerialising.cut_search import Cuts, CutSearch
from rematerialising.schedules import Network, smallest_possible_peak


def smallest_peak(network: Network, *, levels: int = 1) -> Cuts:
    return CutSearch(network.layer_graph()).smallest_peak(levels=levels)


def chain(count: int, size: int = 8) -> Network:
    return Network((size,) * count, tuple((number - 1,) for number in range(count)))


def with_skips(count: int, seed: int) -> Network:
    """A chain in which some calls also take what an earlier one made."""
    dice = random.Random(seed)
    inputs = [(-1,)] + [
        tuple({number - 1, dice.randrange(max(1, number))}) if dice.random() < 0.4 else (number - 1,)
        for number in range(1, count)
    ]
    return Network(tuple(dice.choice((4, 8, 16)) for _ in range(count)), tuple(inputs))


NETWORKS = {
    "alike": chain(7),
    "growing": Network((2, 4, 8, 16, 32, 64), tuple((n - 1,) for n in range(6))),
    "shrinking": Network((64, 32, 16, 8, 4, 2), tuple((n - 1,) for n in range(6))),
    "hourglass": Network((32, 16, 4, 4, 16, 32), tuple((n - 1,) for n in range(6))),
    "residual": Network((8,) * 8, ((-1,), (0,), (1, 0), (2,), (3, 2), (4,), (5, 4), (6,))),
    "residual, shrinking": Network(
        (16, 16, 16, 8, 8, 8, 4, 4), ((-1,), (0,), (1, 0), (2,), (3,), (4, 3), (5,), (6,))
    ),
    "u-net": Network((16, 16, 8, 4, 8, 8, 16, 16), ((-1,), (0,), (1,), (2,), (3,), (4, 2), (5, 1), (6,))),
    "densely connected": Network(
        (4, 8, 12, 16, 20, 24), ((-1,), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (4,))
    ),
    "inception": Network((8, 4, 4, 4, 12, 6, 6), ((-1,), (0,), (0,), (0,), (1, 2, 3), (4,), (5,))),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_come_within_five_per_cent_of_the_best_schedule(name: str) -> None:
    best = smallest_possible_peak(NETWORKS[name], levels=1)
    assert best * 0.999 <= smallest_peak(NETWORKS[name]).peak_bytes <= 1.05 * best


def test_with_skips_at_random_most_do_too_and_none_is_far_from_it() -> None:
    networks = [with_skips(6, seed) for seed in range(6)]
    ratios = [
        smallest_peak(network).peak_bytes / smallest_possible_peak(network, levels=1) for network in networks
    ]
    assert min(ratios) > 0.999
    assert sorted(ratios)[len(ratios) // 2] <= 1.05
    assert max(ratios) <= 1.15  # the inputs of a segment stay, where a schedule may compute them again


def test_on_a_chain_the_peak_grows_like_the_root_and_with_levels_like_the_logarithm() -> None:
    def peak(count: int, levels: int) -> float:
        return smallest_peak(chain(count, 1), levels=levels).peak_bytes

    assert peak(100, 1) <= 2 * math.sqrt(100) + 3
    assert peak(40, 3) <= peak(40, 2) <= peak(40, 1)
    assert peak(40, 4) <= 2 * math.log2(40) + 3


def test_a_larger_budget_costs_less_time_until_it_costs_none() -> None:
    search = CutSearch(chain(30).layer_graph())
    smallest = search.smallest_peak()
    costs = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        budget = smallest.peak_bytes + share * (smallest.plain_bytes - smallest.peak_bytes)
        cuts = search.least_time(1.02 * budget)
        assert cuts is not None
        assert cuts.peak_bytes <= 1.02 * budget
        costs.append(cuts.extra_cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0.0
    assert costs[2] <= smallest.extra_cost / 2


def test_no_cuts_fit_below_the_smallest_peak() -> None:
    search = CutSearch(chain(30).layer_graph())
    assert search.least_time(0.9 * search.smallest_peak().peak_bytes) is None


def test_what_cannot_be_computed_twice_is_in_no_segment() -> None:
    graph = chain(20).layer_graph()
    calls = [replace(call, why_not="it draws") if n == 7 else call for n, call in enumerate(graph.calls)]
    cuts = CutSearch(replace(graph, calls=tuple(calls))).smallest_peak()
    assert cuts.spans
    assert not any(start <= 7 < stop for start, stop in cuts.spans)
    assert cuts.peak_bytes < cuts.plain_bytes


def test_a_segment_holds_all_of_a_nested_model_or_lies_inside_it() -> None:
    graph = chain(30).layer_graph()
    paths = [(n,) if n < 5 else (5, n - 5) if n < 25 else (n - 19,) for n in range(30)]
    calls = [replace(call, path=path) for call, path in zip(graph.calls, paths, strict=True)]
    cuts = CutSearch(replace(graph, calls=tuple(calls))).smallest_peak()
    assert cuts.spans
    for start, stop in cuts.spans:
        inside = sum(5 <= n < 25 for n in range(start, stop))
        assert inside in (0, stop - start, 20)
