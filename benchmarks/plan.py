"""Whether training with a budget fits, and how fast: against the ways people know, and against an oracle.

A case is a model and a hard limit, a share of the peak that plain `model.fit` has without one. Each way has
a process of its own and the same weights and samples; arrays that plain Keras is given lie on the device.

plain: the batch as it is.
halving: the batch size halved until it runs; the only way here that changes the batch size.
accumulation: Keras' own `gradient_accumulation_steps`, from where halving ran on, since it needs more than
that; the first number that runs, the next one, and the faster of both.
memfit: `memfit.fit(..., budget=...)` with an empty cache; and what a second start takes to plan.
oracle: micro-batches that are halved x no, some and all activations computed again, each of them really run
by `memfit.fit(..., micro_batch_size=...)`; one that survives an OOM does not fit. Each level goes down from
the whole batch until two sizes have run: smaller ones are only slower. What ran in a smaller budget is not
run again in a larger one, and the whole batch with nothing computed again is the plain way.

duel: memfit, the oracle's fastest that is as exact, and accumulation once more, in turns, as often each, and
the fastest run of each: what else a machine does only ever slows a run down, at times by half. Ratios come
from here.

Time is the median of all steps but the first two; `cores_used` tells whether others were at work, too. With
BatchNormalization a split batch is not the same mathematics (`exact`): memfit is held against the fastest
that is as exact as itself, and in single runs (`to_any_oracle`) against the fastest of all.

Names of models and ways choose some of them. What was measured before is not measured again but with
`--again`; the budgets stay as they are in any case.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from _plan_models import ASIDE, SIZES, compiled
from _processes import ProcessEnded, in_process
from _results import read_figures, write_results

SHARES = (0.45, 0.7)  # of the peak without a limit, the smallest first
SHARES_OF = {"ResNet50": (0.7, 0.85)}  # its weights, Adam's slots and gradients alone are 0.44 of its peak
BATCHES = 4
EPOCHS = 2
NOT_TIMED = 2
UNLIMITED_BYTES = 14 << 30
MIDDLE = 0.6  # of the activations
ROUNDS = 3
HOW = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}

Row = dict[str, Any]
Configuration = tuple[str, int]  # how much is computed again, and the micro-batch size


@dataclass(frozen=True)
class Case:
    """A model and a budget."""

    name: str
    share: float
    budget_bytes: int

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.name}, {self.share}"

    @property
    def batch_size(self) -> int:
        """The batch size that the user wants."""
        return SIZES[self.name]

    def run(self, function: Callable[..., Row], *arguments: Any) -> Row:
        """Call a function in a process of its own, in the budget of this case."""
        return attempt(function, self.name, *arguments, limit_bytes=self.budget_bytes)


@dataclass
class Watch:
    """Times and losses of a model's steps, each of so many batches of Keras."""

    model: Any
    parts: int = 1
    ends: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)  # seconds of all cores at those ends
    losses: list[float] = field(default_factory=list)

    def callback(self) -> Any:
        """What Keras tells."""
        import keras

        return keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: self._look(),
            on_train_batch_begin=self._before,
            on_train_batch_end=self._after,
        )

    def _before(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names it
        if batch % self.parts == 0:
            self.model.reset_metrics()

    def _after(self, batch: int, logs: Any) -> None:
        if (batch + 1) % self.parts == 0:
            self._look()
            self.losses.append(float(logs["loss"]))

    def _look(self) -> None:
        self.ends.append(time.perf_counter())
        self.computed.append(time.process_time())

    def figures(self, step_size: int) -> Row:
        """What was seen, of steps of so many samples."""
        steps = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        seconds = statistics.median(steps[NOT_TIMED:])
        return {
            "step_seconds": round(seconds, 4),
            "samples_per_second": round(step_size / seconds, 2),
            "cores_used": round(_gone(self.computed) / _gone(self.ends), 2),
            "losses": self.losses,
        }


def _gone(readings: Sequence[float]) -> float:
    return readings[-1] - readings[NOT_TIMED]


def attempt(function: Callable[..., Row], *arguments: Any, limit_bytes: int) -> Row:
    """Call a function in a process of its own, under a limit; that it runs out is an answer too."""
    try:
        found: Row = in_process(_attempt, function, arguments, limit_bytes=limit_bytes)
    except ProcessEnded as error:
        return {"trained": False, "error": str(error)}
    return found


def _attempt(function: Callable[..., Row], arguments: tuple[Any, ...]) -> Row:
    import memfit
    from memfit.machine import is_oom

    logging.getLogger("memfit").setLevel(logging.ERROR)
    try:
        return {"trained": True, **function(*arguments)}
    except Exception as error:
        if is_oom(error):
            return {"trained": False, "error": "out of memory"}
        if isinstance(error, memfit.MemfitError):
            return {"trained": False, "error": str(error)}
        raise


def train(name: str, step_size: int, accumulation_steps: int = 1) -> Row:
    """Train with plain Keras, on steps of so many samples."""
    import memfit

    model, samples = compiled(name, accumulation_steps)
    x, y = samples(BATCHES * SIZES[name])
    watch = Watch(model, accumulation_steps)
    with memfit.devices.measure_peak() as measured:
        model.fit(x, y, batch_size=step_size // accumulation_steps, callbacks=[watch.callback()], **HOW)
    return {
        "batch_size": step_size,
        "same_batch_size": step_size == SIZES[name],
        **watch.figures(step_size),
        "peak_bytes": measured.peak_bytes,
    }


def train_by_plan(name: str, budget_bytes: int, home: str) -> Row:
    """Train as a user of memfit does."""
    import memfit

    os.environ["MEMFIT_HOME"] = home
    model, samples = compiled(name)
    x, y = samples(BATCHES * SIZES[name])
    watch = Watch(model)
    history = memfit.fit(
        model, x, y, batch_size=SIZES[name], budget=budget_bytes, callbacks=[watch.callback()], **HOW
    )
    return {
        "batch_size": SIZES[name],
        "same_batch_size": True,
        **watch.figures(SIZES[name]),
        **_happened(name, model, history.run),
        "notes": list(history.run.notes),
        "plan": _planned(history.run.plan),
    }


def _happened(name: str, model: Any, run: Any) -> Row:
    import keras

    smallest = min(change.micro_batch_size for change in run.micro_batches)
    normalises = any(isinstance(layer, keras.layers.BatchNormalization) for layer in model._flatten_layers())
    return {
        "peak_bytes": run.peak_bytes,
        "ooms": len(run.ooms),
        "micro_batch_size": run.micro_batch_size,
        "exact": not normalises or smallest == SIZES[name],
    }


def _planned(plan: Any) -> Row | None:
    if plan is None:
        return None
    chosen = plan.chosen
    return {
        "seconds": round(plan.seconds, 2),
        "micro_batch_size": chosen.micro_batch_size,
        "cuts": len(chosen.remat or ()),
        "relative_time": chosen.relative_time,
        "peak_bytes": chosen.peak_bytes,
        "safe_bytes": chosen.safe_bytes,
        "exact": chosen.exact,
    }


def planning_seconds(name: str, budget_bytes: int, home: str) -> float:
    """How long a start takes to plan, with whatever the cache holds."""
    from memfit.core.records.plans import AllowedLevers
    from memfit.planning.planned_fit import KnownBatches, plan_for_fit

    os.environ["MEMFIT_HOME"] = home
    model, samples = compiled(name)
    x, y = samples(BATCHES * SIZES[name])
    began = time.perf_counter()
    known = KnownBatches.of_arguments({"x": x, "y": y, "batch_size": SIZES[name]})
    plan_for_fit(model, known, budget_bytes, AllowedLevers())
    return round(time.perf_counter() - began, 3)


@cache
def levels(name: str) -> dict[str, Any]:
    """Cuts by how much is computed again, of a process of their own."""
    found: dict[str, Any] = in_process(_levels, name)
    return found


def _levels(name: str) -> dict[str, Any]:
    """Cuts that compute nothing again, some of it, and as much as makes the smallest peak."""
    import keras
    import tensorflow as tf

    from memfit.graph.layer_costs import layer_graph
    from memfit.rematerialising.cut_search import CutSearch
    from memfit.rematerialising.rematerialise import cuts_of

    model, _ = compiled(name)
    inputs = keras.tree.flatten(model.input)
    graph = layer_graph(model, [tf.TensorSpec((SIZES[name], *one.shape[1:]), one.dtype) for one in inputs])
    search = CutSearch(graph)
    full = search.smallest_peak()
    middle = search.least_time(MIDDLE * full.plain_bytes)
    found = {"none": (), **({"middle": middle.spans} if middle else {}), "full": full.spans}
    return {level: cuts_of(graph, spans) for level, spans in found.items()}


def train_configuration(name: str, cuts: Any, micro_batch_size: int) -> Row:
    """Train in one way that the oracle knows; after an OOM in the first step, no further."""
    import memfit
    from memfit.rematerialising.rematerialise import apply_cuts

    model, samples = compiled(name)
    size = SIZES[name]
    watch = Watch(model)
    how = {**HOW, "batch_size": size, "micro_batch_size": micro_batch_size}
    with apply_cuts(model, cuts) if cuts else nullcontext():
        first = memfit.fit(model, *samples(size), **{**how, "epochs": 1}).run
        if first.ooms:
            return {"ooms": len(first.ooms)}
        callbacks = [watch.callback()]
        run = memfit.fit(model, *samples(BATCHES * size), callbacks=callbacks, **how).run
    return {**watch.figures(size), **_happened(name, model, run)}


def shares_of(name: str) -> tuple[float, ...]:
    """The budgets of a model, as shares of its peak."""
    return SHARES_OF.get(name, SHARES)


def unlimited(name: str) -> Row:
    """Plain training where memory is no matter."""
    return {"aside": name in ASIDE, **attempt(train, name, SIZES[name], limit_bytes=UNLIMITED_BYTES)}


def plain(case: Case) -> Row:
    """The batch as it is."""
    return case.run(train, case.batch_size)


def halving(case: Case) -> Row:
    """Smaller and smaller batches until one runs."""
    for size in _halves(case.batch_size // 2):
        found = case.run(train, size)
        if found["trained"]:
            break
    return found


def accumulation(case: Case, largest: int) -> Row:
    """Keras' own accumulation of parts, the largest of so many samples: the faster of two that run."""
    rows: list[Row] = []
    for size in _halves(largest):
        steps = case.batch_size // size
        rows.append({**case.run(train, case.batch_size, steps), "accumulation_steps": steps})
        if len(rows) > 1 and rows[-2]["trained"]:
            break
    return max(rows, key=_speed)


def by_plan(case: Case) -> Row:
    """What memfit does with an empty cache, and what a second start takes."""
    with tempfile.TemporaryDirectory() as home:
        found = case.run(train_by_plan, case.budget_bytes, home)
        arguments = (case.name, case.budget_bytes, home)
        again = in_process(planning_seconds, *arguments, limit_bytes=case.budget_bytes)
    return {**found, "cached_planning_seconds": again}


def oracle(case: Case, known: dict[Configuration, Row]) -> list[Row]:
    """Every configuration that was run, or is known to run: whether it fits, and how fast it is."""
    rows = []
    for level, cuts in levels(case.name).items():
        ran = 0
        for size in _halves(case.batch_size if cuts else case.batch_size // 2):
            rows.append(known.get((level, size)) or configuration(case, level, cuts, size))
            ran += rows[-1]["fits"]
            if ran == 2:
                break
    return rows


def configuration(case: Case, level: str, cuts: Any, size: int) -> Row:
    """One that is really run."""
    found = case.run(train_configuration, cuts, size)
    row = {"level": level, "cuts": len(cuts), "micro_batch_size": size}
    row["fits"] = found["trained"] and not found["ooms"]
    figures = ("exact", "samples_per_second", "cores_used", "peak_bytes", "error")
    return row | {name: found[name] for name in figures if name in found}


def duel(case: Case, one: Row) -> Row:
    """Memfit and the best of the others in turns: the speed of each in its fastest run."""
    contestants = _contestants(case, one)
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as home:
        contestants["memfit"] = (train_by_plan, case.budget_bytes, home)
        for _ in range(ROUNDS):
            for name, (function, *arguments) in contestants.items():
                speeds[name].append(_speed(case.run(function, *arguments)))
    return {name: {"samples_per_second": max(found), "rounds": found} for name, found in speeds.items()}


def _contestants(case: Case, one: Row) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {"memfit": ()}
    if best := _fastest(one, as_exact=True):
        cuts = in_process(levels, case.name)[best["level"]]
        found["oracle"] = (train_configuration, cuts, best["micro_batch_size"])
    if one["accumulation"]["trained"]:
        found["accumulation"] = (train, case.batch_size, one["accumulation"]["accumulation_steps"])
    return found


def _fastest(one: Row, *, as_exact: bool) -> Row | None:
    """The oracle's fastest configuration, of those as exact as memfit's or of all."""
    exact = as_exact and one["memfit"].get("exact")
    rows = [row for row in one["oracle"] if row["fits"] and (row["exact"] or not exact)]
    return max(rows, key=_speed, default=None)


def _halves(size: int) -> Iterator[int]:
    while size:
        yield size
        size //= 2


def _speed(row: Row) -> float:
    return float(row.get("samples_per_second", 0.0))


def known_to_run(case: Case, cases: dict[str, Row]) -> dict[Configuration, Row]:
    """What the oracle has run in smaller budgets."""
    smaller = [cases.get(f"{case.name}, {share}", {}) for share in shares_of(case.name) if share < case.share]
    rows = (row for one in smaller for row in one.get("oracle", ()))
    return {(row["level"], row["micro_batch_size"]): row for row in rows if row["fits"]}


WAYS: dict[str, Callable[[Case, dict[str, Row]], Any]] = {
    "plain": lambda case, cases: plain(case),
    "halving": lambda case, cases: halving(case),
    "accumulation": lambda case, cases: accumulation(case, cases[case.key]["halving"].get("batch_size", 1)),
    "memfit": lambda case, cases: by_plan(case),
    "oracle": lambda case, cases: oracle(case, known_to_run(case, cases)),
    "duel": lambda case, cases: duel(case, cases[case.key]),
}


def with_difference(row: Row, losses: Sequence[float]) -> Row:
    """A row with the largest relative difference of its losses in place of them, where steps are the same."""
    found = row.get("losses")
    if found is None:
        return row
    pairs = zip(found, losses, strict=True) if len(found) == len(losses) else None
    difference = None if pairs is None else max(abs(one - other) / abs(other) for one, other in pairs)
    return {name: value for name, value in row.items() if name != "losses"} | {"loss_difference": difference}


def judged(one: Row) -> Row:
    """What the ways of a case come to."""
    found, turns = one["memfit"], one["duel"]
    plan, speed = found.get("plan") or {}, _speed(turns["memfit"])
    return {
        "trained": found["trained"],
        "ooms": found.get("ooms"),
        "samples_per_second": speed,
        "to_oracle": _ratio(speed, turns.get("oracle")),
        "to_any_oracle": _ratio(_speed(found), _fastest(one, as_exact=False)),
        "to_accumulation": _ratio(speed, turns.get("accumulation")),
        "ahead_of_peers": speed > max(_speed(one["plain"]), _speed(turns.get("accumulation", {}))),
        "peak_to_budget": round(found["peak_bytes"] / one["budget_bytes"], 3) if found["trained"] else None,
        "loss_difference": found.get("loss_difference"),
        "planning_seconds": plan.get("seconds"),
        "cached_planning_seconds": found["cached_planning_seconds"],
    }


def _ratio(speed: float, other: Row | None) -> float | None:
    return round(speed / _speed(other), 3) if other and _speed(other) else None


def summary(chosen: Sequence[Row]) -> Row:
    """The figures of some cases."""
    return {
        "cases": len(chosen),
        "trained": sum(case["trained"] for case in chosen),
        "without_oom": sum(case["ooms"] == 0 for case in chosen),
        "to_oracle": _spread(chosen, "to_oracle"),
        "to_any_oracle": _spread(chosen, "to_any_oracle"),
        "to_accumulation": _spread(chosen, "to_accumulation"),
        "ahead_of_peers": sum(case["ahead_of_peers"] for case in chosen),
        "peak_to_budget": _spread(chosen, "peak_to_budget"),
        "planning_seconds": _spread(chosen, "planning_seconds"),
        "cached_planning_seconds": _spread(chosen, "cached_planning_seconds"),
    }


def _spread(chosen: Sequence[Row], name: str) -> Row:
    values = [case[name] for case in chosen if case[name] is not None]
    if not values:
        return {}
    return {"median": round(statistics.median(values), 3), "min": min(values), "max": max(values)}


def write(models: dict[str, Row], cases: dict[str, Row]) -> None:
    """Write the figures of what was measured so far."""
    complete = [one for one in cases.values() if one.keys() >= WAYS.keys()]
    for one in complete:
        one["judged"] = judged(one)
    halves = {
        "tuned": [one["judged"] for one in complete if one["name"] not in ASIDE],
        "aside": [one["judged"] for one in complete if one["name"] in ASIDE],
    }
    summaries = {half: summary(chosen) for half, chosen in halves.items()}
    summaries["all"] = summary([case for chosen in halves.values() for case in chosen])
    write_results("plan", {"summary": summaries, "models": models, "cases": cases}, quiet=True)


def show(cases: dict[str, Row]) -> None:
    """All complete cases as a table, in samples per second where nothing else is said."""
    print(
        f"{'case':24} {'budget':>7} {'memfit':>7} {'oracle':>7} {'any':>8} {'accum.':>7} {'halving':>7}"
        f" {'micro x cuts':>12} {'peak':>5} {'OOMs':>4} {'planned':>8} {'again':>6}"
    )
    for key, one in cases.items():
        if not one.keys() >= WAYS.keys():
            continue
        case, plan = one["judged"], one["memfit"].get("plan") or {}
        how = f"{one['memfit'].get('micro_batch_size')} x {plan.get('cuts', 0)}"
        print(
            f"{key:24} {one['budget_bytes'] >> 20:>4}MiB {case['samples_per_second']:7.1f}"
            f" {case['to_oracle'] or 0:7.0%} {case['to_any_oracle'] or 0:8.0%}"
            f" {_speed(one['duel'].get('accumulation', {})):7.1f} {_speed(one['halving']):7.1f} {how:>12}"
            f" {case['peak_to_budget'] or 0:5.0%} {case['ooms'] if case['trained'] else 'n/a':>4}"
            f" {case['planning_seconds'] or 0:7.1f}s {case['cached_planning_seconds']:5.2f}s"
        )


def main(arguments: list[str]) -> None:
    """Measure what is missing, and write after each way."""
    figures = read_figures("plan")
    models, cases = figures.get("models", {}), figures.get("cases", {})
    names = [name for name in SIZES if name in arguments] or list(SIZES)
    ways = [way for way in WAYS if way in arguments] or list(WAYS)
    for name in names:
        if name not in models:
            models[name] = unlimited(name)
            tell(name, "unlimited", models[name])
        for share in shares_of(name):
            case = Case(name, share, int(share * models[name]["peak_bytes"]) >> 20 << 20)
            one = cases.setdefault(case.key, {"name": name, "budget_bytes": case.budget_bytes})
            for way in ways:
                if way not in one or "--again" in arguments:
                    found = WAYS[way](case, cases)
                    tell(case.key, way, found)
                    losses = models[name]["losses"]
                    one[way] = with_difference(found, losses) if isinstance(found, dict) else found
                    write(models, cases)
    show(cases)


def tell(key: str, way: str, found: Any) -> None:
    """A line of progress."""
    rows = found if isinstance(found, list) else list(found.values()) if way == "duel" else [found]
    fastest = max(rows, key=_speed)
    said = f"{_speed(fastest):.1f} samples/s" if _speed(fastest) else fastest.get("error", "does not fit")
    print(f"{time.strftime('%H:%M:%S')} {key}: {way}: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
