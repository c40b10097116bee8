"""What lint found, as people, GitHub and code scanners read it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from golden import check_golden, render
from memfit.core.records import Lint, LintFinding, LintRule, UnreadSource
from memfit.reports.lint_text import github, headline, sarif, show_lint, show_rule

GOLDEN = Path(__file__).parent / "golden"
RULE = LintRule(
    "MF002",
    "slices-of-an-array",
    "warning",
    "from_tensor_slices of a loaded array",
    "The array becomes a constant of the graph: 2 to 4 times its size in RAM.",
    "Stream the file.",
    'x = np.load("x.npy")\ndataset = tf.data.Dataset.from_tensor_slices(x)',
    'dataset = memfit.data.from_arrays("x.npy", batch_size=32, ram="512MiB")',
)
OTHER = dataclasses.replace(RULE, id="MF021", name="growth-too-late", severity="error")
FINDING = LintFinding(
    "src/train, 50%.py", 7, 15, 7, 52, "MF002", "warning", "x is copied: 2 to 4 times its size",
    "Stream the file.",
    "    dataset = tf.data.Dataset.from_tensor_slices(x).batch(32)",
)  # fmt: skip
LONG = dataclasses.replace(
    FINDING,
    line=9,
    column=101,
    end_line=11,
    end_column=3,
    source="\tname = [bold]" + "x" * 84 + "= load(a,\x1b[31m b,",
)
IN_CELL = dataclasses.replace(
    FINDING, path="a.ipynb", line=2, end_line=2, rule="MF021", severity="error", cell=3, source=""
)
NOTE = dataclasses.replace(FINDING, line=8, end_line=8, severity="note", message="it may be copied")
LINT = Lint(
    (IN_CELL, FINDING, NOTE, LONG), (RULE, OTHER), 2, (UnreadSource("odd\n.py", "line 3: invalid syntax"),)
)


def test_text() -> None:
    check_golden(GOLDEN / "lint.txt", render(show_lint(LINT)))


def test_a_rule() -> None:
    check_golden(GOLDEN / "lint_rule.txt", render(show_rule(RULE)))


def test_headlines() -> None:
    assert headline(Lint((), (), 3)) == "Nothing found in 3 files."
    assert headline(Lint((), (), 0)) == "No Python files or notebooks there."
    unread = (UnreadSource("a.py", "no text"),)
    assert headline(Lint((), (), 1, unread)) == "Nothing found in 1 file; 1 thing could not be looked at."
    assert headline(Lint((FINDING,), (RULE,), 1)).startswith(
        "1 warning in 1 file. memfit lint --explain MF002"
    )


def test_github() -> None:
    lines = github(LINT).split("\n")
    assert lines[0] == (
        "::error file=a.ipynb,title=memfit MF021::"
        "x is copied: 2 to 4 times its size; in cell 3, line 2. Stream the file."
    )
    assert lines[1] == (
        "::warning file=src/train%2C 50%25.py,line=7,col=15,endLine=7,endColumn=52,title=memfit MF002::"
        "x is copied: 2 to 4 times its size. Stream the file."
    )
    assert lines[2].startswith("::notice file=src/train%2C 50%25.py,line=8,")
    assert ",line=9,col=101,endLine=11,title=" in lines[3]  # columns are for one line only
    assert lines[4] == "::error file=odd%0A.py::not looked at: line 3: invalid syntax"
    assert github(Lint((), (), 1)) == ""


def test_sarif() -> None:
    found: dict[str, Any] = json.loads(sarif(LINT, [RULE, OTHER]))
    assert (found["version"], found["$schema"]) == ("2.1.0", "https://json.schemastore.org/sarif-2.1.0.json")
    (run,) = found["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["MF002", "MF021"]
    assert rules[0]["defaultConfiguration"]["level"] == "warning"
    assert run["invocations"][0]["executionSuccessful"] is False
    for result in run["results"]:
        assert result["level"] in ("error", "warning", "note")
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        (location,) = result["locations"]
        region = location["physicalLocation"]["region"]
        assert region["startLine"] >= 1
    first = run["results"][1]["locations"][0]["physicalLocation"]
    assert first["artifactLocation"] == {"uri": "src/train%2C%2050%25.py"}
    assert {key: first["region"][key] for key in ("startLine", "startColumn", "endLine", "endColumn")} == {
        "startLine": 7, "startColumn": 15, "endLine": 7, "endColumn": 52,
    }  # fmt: skip
    assert run["results"][0]["message"]["text"].startswith("cell 3, line 2: ")


def test_sarif_of_nothing() -> None:
    (run,) = json.loads(sarif(Lint((), (), 0), []))["runs"]
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is True


def test_absolute_paths_are_uris() -> None:
    absolute = dataclasses.replace(FINDING, path="/a b/c.py")
    (run,) = json.loads(sarif(Lint((absolute,), (RULE,), 1), [RULE]))["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "file:///a%20b/c.py"
