"""What TensorFlow's allocator writes is kept in a file; everything else passes, byte for byte and at once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.running.parent.allocator_log import AllocatorLog

HEAD = "W0000 00:00:1795033055.519951   21973 bfc_allocator.cc:502] Allocator (cpu) ran out of memory"
FAILED = (
    "W0000 00:00:1795033055.522029   21973 op_kernel.cc:1858] OP_REQUIRES failed: RESOURCE_EXHAUSTED: OOM"
)
OLDER = "2025-09-14 14:36:16.344682: W external/local_xla/xla/tsl/framework/bfc_allocator.cc:439] ****"
HINT = "Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor"
STATISTICS = [
    "Limit:                       125.00MiB", "NumAllocs:                        4895",
    "Reserved:                           0B",
]  # fmt: skip
NODE = "\t [[{{function_node __inference_function_1917}}{{node sequential_1/dense_1/MatMul}}]]"
TAKEN = [
    HEAD, "If the cause is memory fragmentation maybe", FAILED, NODE, HINT, "", OLDER, *STATISTICS, "",
]  # fmt: skip
OTHERS = [
    "I0000 00:00:1795033036.903348   21904 port.cc:153] oneDNN custom operations are on.",
    "W0000 00:00:1795033055.522029   21973 op_kernel.cc:1858] OP_REQUIRES failed: INVALID_ARGUMENT: no",
    "NumAllocs: of my own", "Limit: 5 MiB",
    "I am a line", "2 of 3", "", "Epoch 1/2", "2026-11-18 mine", "Hint: none",
]  # fmt: skip


def _passed(log: AllocatorLog, *pieces: bytes) -> bytes:
    return b"".join(map(log.passing, pieces)) + log.rest()


def test_its_lines_are_in_the_file_and_all_others_pass(tmp_path: Path) -> None:
    log = AllocatorLog(tmp_path / "log")
    text = "\n".join(["before", *TAKEN, *OTHERS[:4], *TAKEN, *OTHERS[4:]]) + "\n"
    # A blank line right behind the allocator's is the allocator's.
    assert _passed(log, text.encode()).decode().splitlines() == ["before", *OTHERS]
    assert log.lines == 2 * len(TAKEN)
    assert (tmp_path / "log").read_text().splitlines() == [*TAKEN, *TAKEN]


@given(st.lists(st.sampled_from([*OTHERS, "\r 3/4 [==>]", "æ"])), st.lists(st.integers(0, 200)))
def test_what_is_not_the_allocators_passes_in_any_pieces(lines: list[str], cuts: list[int]) -> None:
    text = "\n".join(lines).encode()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    log = AllocatorLog(Path("nowhere") / "log")
    assert _passed(log, *pieces) == text
    assert log.lines == 0


@pytest.mark.parametrize("cut", [1, 5, 20, len(HEAD) - 1, len(HEAD)])
def test_a_line_that_comes_in_pieces_is_held_until_it_is_known(tmp_path: Path, cut: int) -> None:
    log, text = AllocatorLog(tmp_path / "log"), f"{HEAD}\nmine".encode()
    assert log.passing(text[:cut]) == b""
    assert log.passing(text[cut:]) == b"mine"


@pytest.mark.parametrize("piece", [b"a prompt: ", b"\r10/10 ", b"12 of "])
def test_what_has_no_end_yet_passes_at_once(tmp_path: Path, piece: bytes) -> None:
    assert AllocatorLog(tmp_path / "log").passing(piece) == piece


def test_without_a_file_everything_passes() -> None:
    assert _passed(AllocatorLog(None), f"{HEAD}\n".encode()) == f"{HEAD}\n".encode()


def test_a_disk_that_is_full_loses_the_lines_and_nothing_else() -> None:
    log = AllocatorLog(Path("/dev/full"))
    assert _passed(log, f"{HEAD}\nmine\n".encode()) == b"mine\n"
