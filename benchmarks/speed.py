"""The cost of memfit where the whole batch fits, against plain Keras as it comes.

Each model is trained by two processes that stay, one plain and one with memfit, an epoch in turns: time by
the clock and of the processor, as the ratio of medians over pairs. Peaks come from memfit's own process and
from a third one, plain with TensorFlow's counting allocator. With oneDNN and without it, as two tables.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from _contestants import WORLDS, Contestant, Way
from _results import write_results
from _speed_models import MODELS

PAIRS = 9
LIMIT_BYTES = 12 << 30
STEPS = 6  # of an epoch


def _compare(name: str, *, onednn: str, pairs: int) -> dict[str, Any]:
    counted = Contestant(Way(name, STEPS, limit_bytes=LIMIT_BYTES), onednn=onednn)
    plain_peak = max(counted.train()["peak_bytes"] for _ in range(2))
    counted.end()
    ways = {
        "plain": Way(name, STEPS),
        "memfit": Way(name, STEPS, how="memfit", limit_bytes=LIMIT_BYTES),
    }
    both = {how: Contestant(way, onednn=onednn) for how, way in ways.items()}
    for contestant in both.values():
        contestant.train()  # traces
    rounds = []
    for number in range(pairs):
        order = list(both.items()) if number % 2 == 0 else list(reversed(both.items()))
        rounds.append({how: contestant.train() for how, contestant in order})
    for contestant in both.values():
        contestant.end()

    def ratio(what: str) -> float:
        return statistics.median(one["memfit"][what] for one in rounds) / statistics.median(
            one["plain"][what] for one in rounds
        )

    spread = sorted(one["memfit"]["seconds"] / one["plain"]["seconds"] for one in rounds)
    peak = max(one["memfit"]["peak_bytes"] for one in rounds)
    return {
        "time": round(ratio("seconds"), 3),
        "processor_time": round(ratio("processor_seconds"), 3),
        "spread": [round(spread[0], 3), round(spread[-1], 3)],
        "seconds_per_step": round(statistics.median(one["plain"]["seconds"] for one in rounds) / STEPS, 4),
        "peak_mib": peak >> 20,
        "plain_peak_mib": plain_peak >> 20,
        "ooms": rounds[-1]["memfit"]["ooms"],
    }


def main() -> None:
    """Both tables; one model or fewer pairs on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for world in options.worlds:
        rows, onednn = {}, WORLDS[world]
        for name in options.models:
            rows[name] = _compare(name, onednn=onednn, pairs=options.pairs)
            print(world, name, rows[name], file=sys.stderr, flush=True)
        times = [row["time"] for row in rows.values()]
        figures[world] = {"median": round(statistics.median(times), 3), "most": max(times), "models": rows}
    write_results("speed", figures)


if __name__ == "__main__":
    main()
