from __future__ import annotations

import pytest

from memfit.core.errors import InvalidSize, LargerThanMachine
from memfit.core.records import HostMemory
from memfit.machine import budget_of_host, find_budget, reserve_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("available", "loaded", "expected"),
    [
        (64 * GIB, True, 6.4 * GIB),
        (8 * GIB, True, 1 * GIB),
        (8 * GIB, False, 1.5 * GIB),
        (2 * GIB, False, 1 * GIB),
        (1 * GIB, True, 0.5 * GIB),
        (0, False, 0),
    ],
)
def test_the_reserve_is_the_documented_formula(available: int, loaded: bool, expected: float) -> None:
    assert reserve_bytes(available, tensorflow_loaded=loaded) == int(expected)


def test_the_machine_or_its_cgroup_whichever_is_smaller() -> None:
    free = budget_of_host(HostMemory(32 * GIB, 20 * GIB), tensorflow_loaded=True)
    assert (free.source, free.budget_bytes, free.reserve_bytes) == ("machine", 18 * GIB, 2 * GIB)
    caged = budget_of_host(HostMemory(32 * GIB, 20 * GIB, 8 * GIB, 5 * GIB), tensorflow_loaded=True)
    assert (caged.source, caged.budget_bytes, caged.limit_bytes) == ("cgroup", 4 * GIB, None)


def test_given_budgets_are_checked() -> None:
    assert find_budget("1GiB").budget_bytes == GIB
    assert find_budget("1GiB").source == "given"
    for nonsense in ("8gigs", 0, -1):
        with pytest.raises(InvalidSize, match="budget="):
            find_budget(nonsense)
    with pytest.raises(LargerThanMachine):
        find_budget("1000TiB")


def test_the_limit_in_force_is_the_default_and_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "1")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "100")
    assert find_budget().source == "limit"
    assert find_budget().budget_bytes == 100 * 2**20
    assert find_budget("50MiB").budget_bytes == 50 * 2**20
    assert find_budget("200MiB").budget_bytes == 100 * 2**20
    assert find_budget("200MiB").limit_bytes == 100 * 2**20


@pytest.mark.parametrize(("mebibytes", "expected"), [(None, 65536), ("nonsense", 65536), ("7", 7)])
def test_bfc_without_a_readable_limit_has_tensorflows_own(
    monkeypatch: pytest.MonkeyPatch, mebibytes: str | None, expected: int
) -> None:
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    monkeypatch.delenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", raising=False)
    if mebibytes is not None:
        monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", mebibytes)
    assert find_budget().budget_bytes == expected * 2**20
