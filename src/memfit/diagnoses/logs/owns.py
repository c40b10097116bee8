"""memfit's own errors in logs of scripts that it ran."""

from __future__ import annotations

import re

from memfit.diagnoses.logs.facts import Facts, Failure
from memfit.diagnoses.logs.lines import Hit

_OURS = re.compile(r"\b(?:memfit\.errors\.)?(DoesNotFit|NothingFits|TornUpdate): (.+)")

LANDMARKS = (b"DoesNotFit: ", b"NothingFits: ", b"TornUpdate: ")


def recognise(hit: Hit, facts: Facts) -> None:
    """An error that says that nothing memfit may do was enough."""
    if _OURS.search(hit.text):
        facts.fail(Failure("memfit", hit.evidence(), hit.worker))
