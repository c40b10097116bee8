"""All rules, by their ids."""

from __future__ import annotations

from memfit.diagnoses.lints.rule import Rule
from memfit.diagnoses.lints.rules import arrays, keeping, layers, loops, streams, training

_FAMILIES = (arrays, streams, loops, keeping, layers, training)
RULES: dict[str, Rule] = {
    rule.about.id: rule
    for rule in sorted(
        (rule for family in _FAMILIES for rule in family.RULES), key=lambda rule: rule.about.id
    )
}
