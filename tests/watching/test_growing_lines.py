from __future__ import annotations

from pathlib import Path

import pytest

from memfit.watching.user_lines import growing_lines, passing_lines

SOURCE = """
losses = []
losses.append(0)

def train(self):
    for step in range(3):
        losses.append(step)
        self.seen["loss"].extend([step])
        table[step] = step
    total += [1]
    all_of_them = all_of_them + [1]
    pair = [*pair, 1]
    other.append(losses)
    losses = []
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("losses", [7, 3]),
        ("seen", [8]),
        ("table", [9]),
        ("total", [10]),
        ("all_of_them", [11]),
        ("pair", [12]),
        ("other", [13]),
        ("nobody", []),
    ],
)
def test_the_line_that_lets_a_name_grow(tmp_path: Path, name: str, lines: list[int]) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    assert growing_lines(str(tmp_path / "train.py"), name) == lines


def test_within_a_function(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    assert growing_lines(str(tmp_path / "train.py"), "losses", first=1, last=4) == [3]


@pytest.mark.parametrize("text", ["def f(:\n", "\0", ""])
def test_what_is_no_program_has_no_lines(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    assert growing_lines(str(tmp_path / "broken.py"), "losses") == []
    assert growing_lines(str(tmp_path / "missing.py"), "losses") == []


def test_the_line_that_passes_a_name_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "losses = []\nprint(1)\nfor step in steps:\n    keep(1, into=losses)\n"
    )
    assert passing_lines(str(tmp_path / "train.py"), "losses") == [4]
