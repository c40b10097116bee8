"""Why some of Keras' tests must differ on a way through memfit: what they assert is what the way is for."""

from __future__ import annotations

import re

_REFUSED = re.compile(r"memfit cannot guard this training: (?P<why>.*?)\.(\s+Try:|$)")
_COUNTS_TRACES = "counts how often a step of its own is traced: memfit looks at it on a stage before it runs"
_TESTS = {"TestTrainer::test_retracing": _COUNTS_TRACES}


def reason_for(test: str, line: str) -> str | None:
    """The reason for a test that differs; None where nothing says that it may.

    What memfit refuses is in docs/guard.md: micro-batches that were asked for where batches cannot be split,
    and distribution strategies.
    """
    refused = _REFUSED.search(line)
    if refused is not None:
        return f"refused: {refused['why']}"
    return next((reason for name, reason in _TESTS.items() if name in test), None)
