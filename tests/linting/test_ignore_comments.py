"""Comments that tell memfit to look away, and rules that are chosen."""

from __future__ import annotations

import pytest

from linting.linted import rules_in
from memfit.core.errors import UnknownRule
from memfit.linting.lint_files import lint, lint_source, selected_rules
from memfit.linting.source_files import source_of

LINE = "x = tf.data.Dataset.from_generator(rows, tf.int64)"


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("", True),
        ("  # memfit: ignore[MF022]", False),
        ("  # memfit: ignore[MF001, mf022]  since batches are even", False),
        ("  # memfit: ignore", False),
        ("  #memfit:ignore", False),
        ("  # type: ignore  # memfit: ignore", False),
        ("  # memfit: ignore-file", False),
        ("  # memfit: ignore[MF001]", True),
        ("  # memfit: ignore[]", True),
        ("  # memfit: ignored", True),
        ("; y = '# memfit: ignore'", True),
    ],
)
def test_comments(comment: str, found: bool) -> None:
    assert bool(rules_in(f"{LINE}{comment}\n")) == found


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_a_statement_of_several_lines(line: int) -> None:
    lines = ["x = (", "    1,", "    tf.data.Dataset.from_generator(rows, tf.int64),", ")"]
    lines[line] += "  # memfit: ignore[MF022]"
    assert bool(rules_in("\n".join(lines))) == (line == 1)


def test_a_comment_on_a_loop_does_not_cover_what_is_in_it() -> None:
    assert rules_in(f"for i in many:  # memfit: ignore\n    {LINE}\n") == ["MF022", "MF023"]


def test_a_whole_file_by_any_line() -> None:
    assert rules_in(f"{LINE}\n# memfit: ignore-file\n") == []


def test_rules_are_chosen() -> None:
    code = f"model.compile(keras.optimizers.Adam(gradient_accumulation_steps=4))\n{LINE}\n"

    def found(**options: object) -> list[str]:
        source, _ = source_of("a.py", code.encode())
        assert source is not None
        return [finding.rule for finding in lint_source(source, selected_rules(**options))]  # type: ignore[arg-type]

    assert found() == ["MF027", "MF022"]
    assert found(select=["mf022"]) == ["MF022"]
    assert found(ignore=["MF022"]) == ["MF027"]
    assert found(select=["MF022"], ignore=["MF022"]) == []
    assert found(severity="warning") == ["MF022"]
    assert found(severity="error") == []


def test_rules_that_nobody_knows() -> None:
    with pytest.raises(UnknownRule, match="Expected: MF001 to MF028"):
        selected_rules(ignore=["MF999"])


def test_the_rules_of_the_findings_are_told() -> None:
    found = lint(["-"], standard_input=f"{LINE}\n{LINE}\n".encode)
    assert [rule.id for rule in found.rules] == ["MF022"]
    assert [finding.line for finding in found.findings] == [1, 2]
