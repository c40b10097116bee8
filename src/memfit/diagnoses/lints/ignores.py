"""Comments that tell memfit to look away: `# memfit: ignore[MF001]`, `# memfit: ignore-file`."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable

_COMMENT = re.compile(r"#\s*memfit:\s*ignore(?P<file>-file)?(?:\[(?P<rules>[^\]]*)\])?(?=\s|#|$|[.,;:])")
_MARK = "memfit:"


class Ignores:
    """Which rules are not wanted on which lines."""

    def __init__(self, text: str) -> None:
        self.is_everything = False
        self._lines: dict[int, set[str] | None] = {}  # None stands for all rules
        for line, comment in _comments(text) if _MARK in text else ():
            for found in _COMMENT.finditer(comment):
                self._add(line, found)

    def _add(self, line: int, found: re.Match[str]) -> None:
        rules = {rule.strip().upper() for rule in (found["rules"] or "").split(",") if rule.strip()}
        if found["file"]:
            self.is_everything = True
        elif found["rules"] is None:
            self._lines[line] = None
        elif (others := self._lines.get(line, set())) is not None:
            self._lines[line] = others | rules

    def covers(self, rule: str, lines: Iterable[int]) -> bool:
        """Whether a rule is not wanted on one of these lines."""
        marked = (self._lines[line] for line in lines if line in self._lines)
        return self.is_everything or any(rules is None or rule in rules for rules in marked)


def _comments(text: str) -> list[tuple[int, str]]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, RecursionError, ValueError):
        return [(number, line) for number, line in enumerate(text.split("\n"), 1) if _MARK in line]
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
