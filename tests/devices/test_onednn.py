"""When oneDNN would be used, and that a limit leaves it out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.devices.onednn import SWITCH, would_be_used


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ("fpu avx512f avx512_vnni", {}, True),
        ("fpu amx_tile", {SWITCH: "1"}, False),
        ("fpu avx2", {}, False),
        (None, {}, False),
    ],
)
def test_it_is_for_cpus_made_for_it_unless_somebody_has_chosen(
    tmp_path: Path, flags: str | None, environment: dict[str, str], expected: bool
) -> None:
    processors = tmp_path / "cpuinfo"
    if flags is not None:
        processors.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert would_be_used(environment, processors) is expected


LIMITS = """
import sys
import memfit
if "late" in sys.argv:
    import tensorflow
memfit.limit("64MiB")
from memfit.devices.onednn import is_used
print(is_used())
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("chosen", "late", "used", "says"),
    [
        (None, (), "False", None),
        ("1", (), "True", None),
        ("1", ("late",), "True", "oneDNN is on: where its kernels run out of memory, the process crashes."),
    ],
)
def test_a_limit_leaves_it_out(
    chosen: str | None, late: tuple[str, ...], used: str, says: str | None
) -> None:
    ended = _run(LIMITS, *late, chosen=chosen)
    assert ended.stdout.strip() == used
    assert says is None or says in ended.stderr


ESTIMATES_16_BITS = """
import keras
import memfit
keras.config.set_dtype_policy("mixed_bfloat16")
layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
model.compile("sgd", "mse")
print(memfit.estimate(model, 8, probe=False).peak_bytes > 8 * 14 * 14 * 8 * 2)
"""


@pytest.mark.real
def test_convolutions_in_16_bits_are_estimated_with_it_too() -> None:
    assert _run(ESTIMATES_16_BITS, chosen="1").stdout.strip() == "True"


def _run(code: str, *arguments: str, chosen: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {} if chosen is None else {SWITCH: chosen}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
