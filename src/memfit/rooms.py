"""How much room old values may take beside a step that may have to be taken back."""

from __future__ import annotations

NOT_WORTH_RELEASING_BYTES = 4 << 20  # old values of this size may stay until the next step replaces them
_SHARE = 20


def room_for_old_values(total_bytes: int) -> int:
    """A twentieth of the memory there is; a step that would need more runs in two phases instead."""
    return max(NOT_WORTH_RELEASING_BYTES, total_bytes // _SHARE)
