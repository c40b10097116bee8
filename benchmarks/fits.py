"""Whether a step fits under a limit: what was said beforehand, and what happened.

Each case is a model, a batch and a limit around the peak that `make bench NAME=estimate` has measured, which
has to run first. Its truth is a process of its own under that limit: it takes some steps, or runs out. A
model's boundary is halfway between the largest limit that it ran out under and the next one. What was
measured before is not measured again; `--again` says anew what fits.
"""

from __future__ import annotations

import sys
from typing import Any

from _estimate_models import ASIDE
from _processes import ProcessEnded, in_process
from _results import read_figures, write_results
from estimate import SIZES, Case, model_of

STEPS = 5
SHARES = (0.86, 0.93, 0.98, 1.02, 1.06, 1.12, 1.2, 1.35)  # of the largest peak that was measured
LOWER = 0.92  # each further limit, where a model runs under all of them
FAR = 0.1
MODELS = (
    "MLP", "autoencoder", "U-Net", "transformer", "LSTM", "3-D", "two towers", "mixer, subclassed", "sounds",
    "separable", "vision transformer", "transformer, masked", "GRU", "wide U-Net", "conformer", "dilated",
)  # fmt: skip


def said(case: Case, limits: list[int]) -> list[str]:
    """What memfit says beforehand, of one trace."""
    from memfit.estimating.simulator.peaks import estimate, fits
    from memfit.estimating.step_program import step_program

    model, batch = model_of(case)
    program = step_program(model, batch(2)).at(case.batch_size)
    found = estimate(program)
    return [fits(program, found, limit) for limit in limits]


def train(case: Case) -> bool:
    """Whether some steps go through; whatever limit there is was set before."""
    from memfit.machine import is_oom

    try:
        model, batch = model_of(case)
        x, y = batch(case.batch_size)
        for _ in range(STEPS):
            model.train_on_batch(x, y)
    except Exception as error:
        if is_oom(error):
            return False
        raise
    return True


def runs(case: Case, limit_bytes: int) -> bool:
    """The same in a process of its own; an exhausted pool may end it."""
    try:
        return bool(in_process(train, case, limit_bytes=limit_bytes))
    except ProcessEnded:
        return False


def run_lower(case: Case, rows: list[dict[str, Any]]) -> None:
    """Add smaller and smaller limits until one of them is too small, so that the boundary is known."""
    while all(row["ran"] for row in rows):
        limit = round(LOWER * rows[0]["limit_bytes"]) >> 20 << 20
        rows.insert(0, {"limit_bytes": limit, "ran": runs(case, limit)})


def summary(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of all models that were measured."""
    rows = [
        {**row, "aside": name in ASIDE, "far": abs(row["limit_bytes"] / _boundary(one["limits"]) - 1) > FAR}
        for name, one in measured.items()
        if not all(row["ran"] for row in one["limits"]) and all("said" in row for row in one["limits"])
        for row in one["limits"]
    ]
    return {
        half: _figures([row for row in rows if row["aside"] == (half == "aside")])
        for half in ("tuned", "aside")
    }


def _boundary(rows: list[dict[str, Any]]) -> float:
    """Halfway between the last limit that was too small and the next."""
    too_small = [place for place, row in enumerate(rows) if not row["ran"]]
    limits = [row["limit_bytes"] for row in rows]
    if too_small[-1] + 1 == len(rows):
        return float(limits[-1])
    return sum(limits[too_small[-1] : too_small[-1] + 2]) / 2


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    far = [row for row in rows if row["far"]]
    return {
        "cases": len(rows),
        "for_sure_and_ran_out": sum(row["said"] == "for sure" and not row["ran"] for row in rows),
        "no_and_ran": sum(row["said"] == "no" and row["ran"] for row in rows),
        "maybe": sum(row["said"] == "maybe" for row in rows),
        "cases_far_from_the_boundary": len(far),
        "maybe_far_from_the_boundary": sum(row["said"] == "maybe" for row in far),
    }


def main(arguments: list[str]) -> None:
    """Measure what is missing, and write after each model."""
    peaks = read_figures("estimate").get("cases", {})
    measured: dict[str, dict[str, Any]] = read_figures("fits").get("models", {})
    names = [argument for argument in arguments if not argument.startswith("-")] or list(MODELS)
    for name in names:
        case = Case(name, SIZES[name][0])
        print(case.key, file=sys.stderr, flush=True)
        highest = max(peaks[case.key]["truth"]["max_bytes"])
        limits = [round(share * highest) >> 20 << 20 for share in SHARES]
        one = measured.setdefault(name, {"batch_size": case.batch_size, "limits": []})
        if not one["limits"]:
            one["limits"] = [{"limit_bytes": limit, "ran": runs(case, limit)} for limit in limits]
        run_lower(case, one["limits"])
        if "said" not in one["limits"][0] or "--again" in arguments:
            limits = [row["limit_bytes"] for row in one["limits"]]
            for row, word in zip(one["limits"], in_process(said, case, limits), strict=True):
                row["said"] = word
        write_results("fits", {"summary": summary(measured), "models": measured}, quiet=True)


if __name__ == "__main__":
    main(sys.argv[1:])
