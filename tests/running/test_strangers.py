"""The scripts of strangers under `memfit run`, unmodified: they train in a budget, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from limited import QUIET, run_limited
from memfit.core.units import parse_size
from strangers import FOLDER, STRANGERS, numbers_in
from supervised import run_script

pytestmark = pytest.mark.real

MOST_LINES = 30


def _plainly(folder: str, script: str, arguments: list[str]) -> None:
    """Run a script as plain Python does, its standard output in a file."""
    import os
    import runpy
    import sys

    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    sys.argv = [str(Path(folder) / script), *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()


def test_every_script_is_in_the_table() -> None:
    assert sorted(STRANGERS) == sorted(path.stem for path in FOLDER.glob("*.py"))
    for name, stranger in STRANGERS.items():
        assert (FOLDER / f"{name}.py").read_text().count(stranger.large) == 1, name


@pytest.mark.parametrize("name", STRANGERS)
def test_a_script_of_a_stranger_trains_within_its_budget(tmp_path: Path, name: str) -> None:
    stranger, script = STRANGERS[name], (FOLDER / f"{name}.py").read_text()
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    for folder in (ours, plain):
        folder.mkdir()
    # Where both worlds need very different memory, the one that leaves more room between plain and guarded.
    onednn = "1" if stranger.budget_without_onednn else QUIET["TF_ENABLE_ONEDNN_OPTS"]
    budget = stranger.budget_in(onednn)
    said, report = run_script(ours, script, *stranger.arguments, budget=budget, onednn=onednn)
    assert len(said.splitlines()) <= MOST_LINES, said
    if stranger.kept_whole is None:
        assert "micro-batches of" in said or "computed again" in said
    else:
        assert stranger.kept_whole in said
    assert "Error" not in said, said
    assert len(report["attempts"]) == 1
    assert report["trainings"]
    for training in report["trainings"]:
        assert training["is_over"]
        assert training["steps"] > 0
        assert 0 < training["peak_bytes"] <= parse_size(budget)
    if stranger.not_same is not None:
        return
    (plain / "train.py").write_text(script)
    world = {"TF_ENABLE_ONEDNN_OPTS": onednn}
    arguments = list(stranger.arguments)
    run_limited(_plainly, None, world, folder=str(plain), script="train.py", arguments=arguments)
    found, wanted = (numbers_in((folder / "output").read_text()) for folder in (ours, plain))
    assert len(wanted) > 0
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
