"""Whatever a file holds, lint answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memfit.linting.lint_files import RULES, Ignores, lint, lint_source, selected_rules
from memfit.linting.source_files import source_of

CODE = "\n".join(f"{rule.about.before}\n{rule.about.after}" for rule in RULES.values())
TOKENS = sorted(set(CODE.replace("(", " ( ").replace(")", " ) ").replace(".", " . ").split()))
FUZZED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["cells", "cell_type", "source", "input", "worksheets", "code"]), inner, max_size=4
    ),
    max_leaves=20,
)  # fmt: skip


def _answer(data: bytes) -> None:
    found = lint(["-"], standard_input=lambda: data)
    assert type(found).from_json(found.to_json()) == found
    for finding in found.findings:
        assert finding.line >= 1
        assert finding.column >= 1
        assert (finding.end_line, finding.end_column) >= (finding.line, finding.column)


@FUZZED
@given(st.binary(max_size=300))
def test_bytes(data: bytes) -> None:
    _answer(data)


@FUZZED
@given(st.text(max_size=300))
def test_text(text: str) -> None:
    _answer(text.encode("utf-8", "surrogatepass"))


@FUZZED
@given(st.integers(0, len(CODE)), st.integers(0, len(CODE)), st.text(max_size=8))
def test_cuts_of_code(begin: int, end: int, put: str) -> None:
    _answer((CODE[:begin] + put + CODE[end:]).encode("utf-8", "surrogatepass"))


@FUZZED
@given(
    st.lists(st.sampled_from(TOKENS), max_size=30), st.lists(st.sampled_from(CODE.split("\n")), max_size=15)
)
def test_mixed_tokens_and_lines(tokens: list[str], lines: list[str]) -> None:
    _answer(" ".join(tokens).encode())
    _answer("\n".join(line.strip() for line in lines).encode())


@FUZZED
@given(st.permutations([rule.about.before for rule in RULES.values()]))
def test_all_examples_in_any_order(examples: list[str]) -> None:
    source, _ = source_of("a.py", "\n".join(examples).encode())
    assert source is not None
    assert lint_source(source, selected_rules())


@FUZZED
@given(JSON)
def test_notebooks(content: object) -> None:
    data = json.dumps({"cells": content}).encode()
    source_of("a.ipynb", data, is_notebook=True)
    source_of("a.ipynb", json.dumps(content).encode(), is_notebook=True)


@FUZZED
@given(st.lists(st.text(max_size=60), max_size=5))
def test_cells(cells: list[str]) -> None:
    data = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    source, _ = source_of("a.ipynb", data.encode(), is_notebook=True)
    if source is not None:
        lint_source(source, selected_rules())


@FUZZED
@given(st.text(alphabet="# memfit:ignore[]-file,MF01\n'\"\\"))
def test_comments(text: str) -> None:
    Ignores(text).covers("MF001", [1])


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_prefix_of_every_example(rule: object) -> None:
    code = rule.about.before  # type: ignore[attr-defined]
    for end in range(len(code)):
        _answer(code[:end].encode())
