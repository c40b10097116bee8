"""Words that say that memory ran out, whoever says them."""

from __future__ import annotations

import re

RAN_OUT = re.compile(
    r"ran out of memory|out of memory|RESOURCE_EXHAUSTED|ResourceExhausted|bad_alloc|OOM when allocating"
    r"|failed to allocate|Cannot allocate memory",
    re.IGNORECASE,
)
