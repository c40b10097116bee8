"""memfit's own errors in logs of scripts that it ran."""

from __future__ import annotations

import re

from memfit.diagnosing.logs.facts import Facts, Failure
from memfit.diagnosing.logs.log_lines import Landmark

_OURS = re.compile(r"\b(?:memfit\.errors\.)?(DoesNotFit|NothingFits|TornUpdate): (.+)")

LANDMARKS = (b"DoesNotFit: ", b"NothingFits: ", b"TornUpdate: ")


def recognise(hit: Landmark, facts: Facts) -> None:
    """An error that says that nothing memfit may do was enough."""
    if _OURS.search(hit.text):
        facts.fail(Failure("memfit", hit.evidence(), hit.worker))
