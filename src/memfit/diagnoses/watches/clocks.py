"""The time by which things are judged."""

from __future__ import annotations

import time

# That of the processors: a machine that is busy with something else then changes no judgement.
clock = time.process_time
