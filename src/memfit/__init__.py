"""memfit makes TensorFlow/Keras training fit in the memory there is.

model + batch ──programs──▶ Program ──estimates──▶ Estimate
                               │                      │
machine ──devices──▶ Budget ───┴───────plans──────────┴──▶ Plan ──runs──▶ Run ──reports──▶ text · json · page
logs, errors, source code, live process ──diagnoses──▶ Diagnosis ────────────────▲

    import memfit

    memfit.limit("4GiB")                                # before the first op or model
    history = memfit.fit(model, x, y, batch_size=64)    # goes on through any out-of-memory error
    print(history.run)

Importing memfit does not import TensorFlow: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from memfit.core.version import __version__

if TYPE_CHECKING:
    from memfit.api import diagnose, estimate, fit, limit, plan, protect, release, remat, step, watch
    from memfit.core.errors import MemfitError
    from memfit.core.records import Budget, Diagnosis, Estimate, Plan, Run

__all__ = [
    "Budget",
    "Diagnosis",
    "Estimate",
    "MemfitError",
    "Plan",
    "Run",
    "__version__",
    "data",
    "devices",
    "diagnose",
    "errors",
    "estimate",
    "fit",
    "limit",
    "plan",
    "protect",
    "release",
    "remat",
    "step",
    "watch",
]

_HOMES = {
    "Budget": "memfit.records",
    "Diagnosis": "memfit.records",
    "Estimate": "memfit.records",
    "MemfitError": "memfit.errors",
    "Plan": "memfit.records",
    "Run": "memfit.records",
    "diagnose": "memfit.api",
    "estimate": "memfit.api",
    "fit": "memfit.api",
    "limit": "memfit.api",
    "plan": "memfit.api",
    "protect": "memfit.api",
    "release": "memfit.api",
    "remat": "memfit.api",
    "step": "memfit.api",
    "watch": "memfit.api",
}
_MODULES = ("data", "devices", "errors")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"memfit.{name}")
    else:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
