from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

from memfit.core.errors import InvalidRecord, RecordTooNew
from memfit.core.records import Budget, OutOfMemory, Run, SurvivedOOM
from memfit.core.serialization import Record

OOM = OutOfMemory("OOM when allocating", 4096, (32, 32), "float", "CPU:0", "cpu", "Conv2D")
BUDGET = Budget(2**30, "limit", 2**30)


def test_the_json_says_schema_and_kind_first() -> None:
    assert list(json.loads(BUDGET.to_json()))[:2] == ["schema", "kind"]
    assert BUDGET.to_dict()["kind"] == "budget"


def test_a_newer_schema_is_refused_clearly() -> None:
    data = {**BUDGET.to_dict(), "schema": 2, "colour": "blue"}
    with pytest.raises(RecordTooNew, match="Expected: schema 1 or older\n  Received: schema 2"):
        Budget.from_dict(data)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "run"}, "received a record of kind 'run'"),
        ({"schema": None}, "expected a schema number, received None"),
        ({"schema": 0}, "expected a schema number, received 0"),
        ({"colour": "blue"}, "unknown fields colour"),
        ({"budget_bytes": "1"}, "budget.budget_bytes.: expected int, received '1'"),
        ({"budget_bytes": 1.0}, "expected int, received 1.0"),
        ({"budget_bytes": True}, "expected int, received True"),
        ({"source": "moon"}, "received 'moon'"),
    ],
)
def test_damage_is_named(change: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRecord, match=problem):
        Budget.from_dict({**BUDGET.to_dict(), **change})


def test_missing_fields_take_their_defaults_or_are_named() -> None:
    assert Budget.from_dict({"schema": 1, "kind": "budget", "budget_bytes": 5, "source": "given"}) == Budget(
        5, "given"
    )
    with pytest.raises(InvalidRecord, match="missing fields source"):
        Budget.from_dict({"schema": 1, "kind": "budget", "budget_bytes": 5})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"budget"'])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord):
        Budget.from_json(text)


def test_damage_deep_inside_is_located() -> None:
    data = Run(BUDGET, ooms=(SurvivedOOM(3, "commit", 64, 32, 1.0, OOM),)).to_dict()
    data["ooms"][0]["error"]["shape"] = [1, "2"]
    with pytest.raises(InvalidRecord, match=r"run.ooms\[0\].error.shape\[1\].: expected int, received '2'"):
        Run.from_dict(data)


@dataclass(frozen=True)
class Measured(Record):
    values: tuple[float, ...]
    by_name: dict[str, int]


def test_numbers_that_json_does_not_know_survive() -> None:
    record = Measured((math.inf, -math.inf, 0.1, 1e308), {"a": 1})
    assert Measured.from_json(record.to_json()) == record
    assert math.isnan(Measured.from_json(Measured((math.nan,), {}).to_json()).values[0])
    assert "NaN" not in json.dumps(json.loads(record.to_json()), allow_nan=False)


def test_whole_numbers_are_floats_where_floats_belong() -> None:
    assert Measured.from_dict({"schema": 1, "kind": "measured", "values": [1], "by_name": {}}).values == (
        1.0,
    )
