"""Speed in budgets that are too small for the batch: memfit, the ways that people know, and an oracle.

Six models, named before anything was measured, each in 0.45, 0.7 and 0.85 of the peak of plain Keras. Each
way is a process that stays, with the same weights and samples, under a hard limit that is the budget; it
trains epochs in turns with the others, with oneDNN and without it.

unlimited: plain Keras without a limit, on TensorFlow's own allocator.
memfit: `memfit.limit` and `memfit.fit`, which plans by itself, with an empty cache.
oracle: the fastest of micro-batches of powers of two x no, some and all activations computed again, all of
them really run in ample memory; those whose peak fits the budget are tried in it, the fastest first, until
one runs there. Where memfit changes no mathematics, the oracle may not either: splitting a batch of a model
with BatchNormalization does.
accumulation: Keras' own `gradient_accumulation_steps`, of the two largest parts that run the faster one.
halving: the batch size halved until it runs. tenths: times 0.9 until it runs, as accelerate does. These two
change the batch size, and with it what is learned.

A user finds the last three by trying: `lost_seconds` are those of all tries that ran out and of the start of
the one that ran, processes that died included; for tenths the tries are counted, and each taken as long as
the longest of them that was made. Those of memfit are its first epoch, with planning, less a later one.
Samples of five minutes count what was lost. `break_even_seconds` is how long a training has to be for memfit
to be ahead; none where it never is, 0 where it always is.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from _contestants import WORLDS, Contestant, Row, Way
from _processes import ProcessEnded, in_process
from _results import read_figures, write_results
from _speed_models import MODELS, compiled

SHARES = (0.45, 0.7, 0.85)  # of the peak of plain Keras
NAMES = ("convolutions", "3-D convolutions", "MobileNetV2", "transformer", "LSTM", "U-Net")
PEERS = ("accumulation", "halving", "tenths")
STEPS = 6  # of an epoch
ROUNDS = 3
SMALLEST = 16  # of a batch, the part that the oracle goes down to
MIDDLE = 0.6  # of the activations are kept where some are computed again
AMPLE_BYTES = 12 << 30
TRAINING_SECONDS = 300.0


@dataclass(frozen=True)
class Case:
    """A model in a budget, in one world."""

    name: str
    share: float
    budget_bytes: int
    batch_size: int
    onednn: str

    def way(self, **details: Any) -> Way:
        """A way to train it in the budget."""
        return Way(self.name, STEPS, limit_bytes=self.budget_bytes, **details)


@dataclass(frozen=True)
class Found:
    """A way that runs: its process, and what was lost until it did."""

    way: Way
    process: Contestant
    lost_seconds: float
    tries: int = 1


def _start(case: Case, way: Way, *, home: str = "") -> tuple[Contestant | None, float, Row]:
    """A process that has trained its first epoch; none if it could not; how long that took."""
    began = time.perf_counter()
    process = Contestant(way, onednn=case.onednn, home=home)
    try:
        row = process.train()
    except ProcessEnded as error:
        process.end()
        return None, time.perf_counter() - began, {"error": str(error)}
    return process, time.perf_counter() - began, row


def _by_trying(case: Case, ways: Iterator[Way]) -> Found | None:
    """The first way that runs, as a user finds it."""
    lost = 0.0
    for tries, way in enumerate(ways, 1):
        process, seconds, _ = _start(case, way)
        lost += seconds
        if process is not None:
            return Found(way, process, lost, tries)
    return None


def _halves(size: int) -> Iterator[int]:
    while size:
        yield size
        size //= 2


def halving(case: Case) -> Found | None:
    """Half the batch until it runs."""
    return _by_trying(case, (case.way(batch_size=size) for size in _halves(case.batch_size)))


def tenths(case: Case, halved: Found | None) -> Found | None:
    """The batch times 0.9 until it runs, looked for between the batch that runs and the one that does not."""
    if halved is None or halved.way.batch_size is None:
        return None
    sizes = [case.batch_size]
    while sizes[-1] > halved.way.batch_size:
        sizes.append(max(1, int(sizes[-1] * 0.9)))
    below = [place for place, size in enumerate(sizes) if size < 2 * halved.way.batch_size]
    least, most = below[0], len(sizes) - 1
    longest, found = halved.lost_seconds / halved.tries, None
    while least <= most:
        middle = (least + most) // 2
        process, seconds, _ = _start(case, case.way(batch_size=sizes[middle]))
        longest = max(longest, seconds)
        if process is None:
            least = middle + 1
            continue
        if found is not None:
            found.process.end()
        way = case.way(batch_size=sizes[middle])
        found = Found(way, process, (middle + 1) * longest, middle + 1)
        most = middle - 1
    return found


def accumulation(case: Case, halved: Found | None) -> Found | None:
    """Parts of the batch: the largest that runs, and the next one; a user keeps the faster."""
    if halved is None or halved.way.batch_size is None:
        return None
    largest = min(halved.way.batch_size, case.batch_size // 2)
    before = halved.lost_seconds * (halved.tries - 1) / halved.tries  # of whole parts that ran out
    ways = (case.way(accumulation_steps=case.batch_size // size) for size in _halves(largest) if size)
    first = _by_trying(case, ways)
    if first is None:
        return None
    first = replace(first, lost_seconds=first.lost_seconds + before)
    steps = 2 * first.way.accumulation_steps
    if steps > case.batch_size:
        return first
    process, seconds, _ = _start(case, case.way(accumulation_steps=steps))
    if process is None:
        return first
    second = Found(case.way(accumulation_steps=steps), process, first.lost_seconds + seconds)
    slower, faster = sorted((first, second), key=_seconds_of_an_epoch, reverse=True)
    slower.process.end()
    return replace(faster, lost_seconds=second.lost_seconds)


def _seconds_of_an_epoch(found: Found) -> float:
    return float(min(found.process.train()["seconds"] for _ in range(2)))


def levels(name: str) -> dict[str, Any]:
    """Cuts that compute nothing again, some of it, and as much as makes the smallest peak."""
    import keras
    import tensorflow as tf

    from memfit.graph.layer_costs import layer_graph
    from memfit.rematerialising.cut_search import CutSearch
    from memfit.rematerialising.rematerialise import cuts_of

    model, _, _, batch_size = compiled(name)
    inputs = keras.tree.flatten(model.inputs)
    specs = [tf.TensorSpec((batch_size, *one.shape[1:]), one.dtype) for one in inputs]
    graph = layer_graph(model, specs)
    search = CutSearch(graph)
    full = search.smallest_peak()
    middle = search.least_time(MIDDLE * full.plain_bytes)
    found = {"none": (), **({"some": middle.spans} if middle else {}), "all": full.spans}
    return {level: cuts_of(graph, spans) for level, spans in found.items()}


def configurations(name: str, onednn: str) -> list[Row]:
    """All that the oracle knows, each really run in ample memory: seconds of an epoch, and the peak."""
    rows, batch_size = [], in_process(_batch_size, name)
    for level, cuts in in_process(levels, name).items():
        way = Way(name, STEPS, how="chosen", limit_bytes=AMPLE_BYTES, cuts=cuts)
        process = Contestant(way, onednn=onednn)
        for size in _halves(batch_size):
            if size * SMALLEST < batch_size:
                break
            trained = [process.train(size) for _ in range(3)]
            seconds = min(row["seconds"] for row in trained[1:])
            row = {"level": level, "micro_batch_size": size, "seconds": round(seconds, 4)}
            rows.append({**row, "peak_bytes": trained[-1]["peak_bytes"]})
        process.end()
    return rows


def _batch_size(name: str) -> int:
    return compiled(name)[3]


def _normalises(name: str) -> bool:
    import keras

    model = compiled(name)[0]
    return any(isinstance(one, keras.layers.BatchNormalization) for one in model._flatten_layers())


def oracle(case: Case, rows: list[Row], *, whole: bool) -> Found | None:
    """The fastest configuration that runs in the budget; on whole batches only, if it has to."""
    cuts = in_process(levels, case.name)
    fitting = [row for row in rows if row["peak_bytes"] <= 1.1 * case.budget_bytes]
    for row in sorted(fitting, key=lambda one: one["seconds"]):
        size = row["micro_batch_size"]
        if whole and size < case.batch_size:
            continue
        way = case.way(how="chosen", micro_batch_size=size, cuts=cuts[row["level"]])
        process, seconds, trained = _start(case, way)
        if process is not None and not trained["ooms"]:
            return Found(way, process, seconds)
        if process is not None:
            process.end()
    return None


def measure(case: Case, rows: list[Row], *, normalises: bool) -> Row:
    """All ways in one case, in turns."""
    with tempfile.TemporaryDirectory() as home:
        process, lost, first = _start(case, case.way(how="memfit"), home=home)
        halved = halving(case)
        found = {
            "halving": halved,
            "tenths": tenths(case, halved),
            "accumulation": accumulation(case, halved),
        }
        if process is None:
            _end(found)
            return {"budget_mib": case.budget_bytes >> 20, "memfit": first, "trained": False}
        whole = normalises and first["micro_batch_size"] == case.batch_size
        found = {"memfit": Found(case.way(how="memfit"), process, lost), **found}
        found["oracle"] = oracle(case, rows, whole=whole)
        unlimited, seconds, _ = _start(case, Way(case.name, STEPS))
        assert unlimited is not None
        found["unlimited"] = Found(Way(case.name, STEPS), unlimited, seconds)
        rounds, last = _in_turns(found)
        _end(found)
    told = _told(case, found, rounds)
    ooms = first["ooms"] + last["memfit"]["ooms"]
    kept = {key: last["memfit"][key] for key in ("micro_batch_size", "peak_bytes")}
    return {
        "budget_mib": case.budget_bytes >> 20,
        "trained": True,
        "ooms": ooms,
        "cuts": first["cuts"],
        **kept,
        "peak_to_budget": round(kept["peak_bytes"] / case.budget_bytes, 3),
        "notes": first["notes"],
        **told,
    }


def _end(found: dict[str, Found | None]) -> None:
    for one in found.values():
        if one is not None:
            one.process.end()


def _in_turns(found: dict[str, Found | None]) -> tuple[dict[str, list[Row]], dict[str, Row]]:
    """Epochs of each way in turns, the order turned round each time; one that ends later is out."""
    rounds: dict[str, list[Row]] = {name: [] for name, one in found.items() if one is not None}
    for number in range(ROUNDS):
        for name in list(rounds)[:: -1 if number % 2 else 1]:
            one = found[name]
            assert one is not None
            try:
                rounds[name].append(one.process.train())
            except ProcessEnded as error:
                print(f"{name} ended: {error}", file=sys.stderr, flush=True)
                del rounds[name]
    return rounds, {name: rows[-1] for name, rows in rounds.items()}


def _told(case: Case, found: dict[str, Found | None], rounds: dict[str, list[Row]]) -> Row:
    """Speeds as ratios of medians, and who is ahead after five minutes."""
    samples = STEPS * case.batch_size

    def speed(name: str, what: str = "seconds") -> float:
        return samples / statistics.median(row[what] for row in rounds[name])

    told: Row = {"samples_per_second": {name: round(speed(name), 2) for name in rounds}}
    others = [name for name in rounds if name != "memfit"]
    told["memfit_to"] = {name: round(speed("memfit") / speed(name), 3) for name in others}
    processor = partial(speed, what="processor_seconds")
    told["memfit_to_by_processor_time"] = {
        name: round(processor("memfit") / processor(name), 3) for name in others
    }
    lost = {name: max(0.0, _lost(found[name]) - samples / speed(name)) for name in rounds}
    told["lost_seconds"] = {name: round(lost[name], 1) for name in rounds}
    told["samples_in_five_minutes"] = {
        name: round((TRAINING_SECONDS - lost[name]) * speed(name)) for name in rounds
    }
    told["break_even_seconds"] = {
        name: _break_even((lost["memfit"], speed("memfit")), (lost[name], speed(name)))
        for name in PEERS
        if name in rounds
    }
    told["ways"] = {name: _in_words(one) for name, one in found.items() if one is not None}
    return told


def _lost(found: Found | None) -> float:
    return 0.0 if found is None else found.lost_seconds


def _break_even(ours: tuple[float, float], theirs: tuple[float, float]) -> float | None:
    """The length of a training from which on memfit is ahead, by what was lost and the speed of each."""
    (our_lost, our_speed), (their_lost, their_speed) = ours, theirs
    if our_speed <= their_speed:
        return 0.0 if our_lost <= their_lost and our_speed == their_speed else None
    return round(max(0.0, (our_lost * our_speed - their_lost * their_speed) / (our_speed - their_speed)), 1)


def _in_words(found: Found) -> str:
    way = found.way
    return ", ".join(
        f"{key} {value}"
        for key, value in (
            ("batch", way.batch_size),
            ("parts", way.accumulation_steps if way.accumulation_steps > 1 else None),
            ("micro-batch", way.micro_batch_size),
            ("cuts", len(way.cuts) or None),
            ("tries", found.tries),
        )
        if value is not None
    )


def summary(cases: dict[str, Row]) -> Row:
    """What the targets ask for."""
    trained = [case for case in cases.values() if case["trained"]]
    to_oracle = [case["memfit_to"]["oracle"] for case in trained if "oracle" in case["memfit_to"]]
    after = {peer: [_ahead(case, peer) for case in trained] for peer in PEERS}
    return {
        "cases": len(cases),
        "trained": len(trained),
        "without_ooms": sum(not case["ooms"] for case in trained),
        "to_oracle_median": round(statistics.median(to_oracle), 3) if to_oracle else None,
        "to_oracle_least": min(to_oracle, default=None),
        "ahead_after_five_minutes": {peer: sum(ahead) for peer, ahead in after.items()},
    }


def _ahead(case: Row, peer: str) -> bool:
    samples = case["samples_in_five_minutes"]
    return bool(samples["memfit"] >= samples.get(peer, 0))


def main() -> None:
    """Measure what is missing; written after each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(NAMES), choices=list(MODELS))
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--again", action="store_true", help="measure again what was measured before")
    options = parser.parse_args()
    figures = read_figures("budgets")
    for world, name in itertools.product(options.worlds, options.models):
        onednn, here = WORLDS[world], figures.setdefault(world, {"models": {}, "cases": {}})
        if name not in here["models"] or options.again:
            counted = Contestant(Way(name, STEPS, limit_bytes=AMPLE_BYTES), onednn=onednn)
            peak = max(counted.train()["peak_bytes"] for _ in range(2))
            counted.end()
            rows = configurations(name, onednn)
            here["models"][name] = {"peak_bytes": peak, "configurations": rows}
        known, normalises = here["models"][name], in_process(_normalises, name)
        for share in options.shares:
            key = f"{name}, {share}"
            if key in here["cases"] and not options.again:
                continue
            budget_bytes = int(share * known["peak_bytes"]) >> 20 << 20
            case = Case(name, share, budget_bytes, in_process(_batch_size, name), onednn)
            row = measure(case, known["configurations"], normalises=normalises)
            here["cases"][key] = row
            print(time.strftime("%H:%M:%S"), world, key, row, file=sys.stderr, flush=True)
            here["summary"] = summary(here["cases"])
            write_results("budgets", figures, quiet=True)
    print({world: one["summary"] for world, one in figures.items()})


if __name__ == "__main__":
    main()
