"""When oneDNN is used: as TensorFlow has it, unless the user chooses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.machine.onednn import SWITCH, would_be_used


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ("fpu avx512f avx512_vnni", {}, True),
        ("fpu amx_tile", {SWITCH: "1"}, False),
        ("fpu avx2", {}, False),
        (None, {}, False),
    ],
)
def test_it_is_for_cpus_made_for_it_unless_the_user_has_chosen(
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
value = {"on": True, "off": False, "-": None}[sys.argv[1]]
try:
    memfit.limit("64MiB", onednn=value)
except memfit.errors.TensorFlowImported as error:
    print("too late", error.onednn)
from memfit.private.tensorflow.runtime import uses_onednn
print(uses_onednn())
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("environment", "arguments", "printed"),
    [
        ("1", ("-",), ["True"]),
        ("0", ("-",), ["False"]),
        ("1", ("off",), ["False"]),
        ("0", ("on",), ["True"]),
        ("1", ("on", "late"), ["True"]),
        ("1", ("off", "late"), ["too late False", "True"]),
    ],
)
def test_a_limit_leaves_it_as_it_is_unless_the_user_chooses(
    environment: str, arguments: tuple[str, ...], printed: list[str]
) -> None:
    assert _run(LIMITS, *arguments, chosen=environment).stdout.splitlines() == printed


@pytest.mark.real
def test_without_a_choice_it_is_as_in_plain_tensorflow() -> None:
    plain = (
        "from memfit.private.tensorflow.runtime import uses_onednn\nimport tensorflow\nprint(uses_onednn())"
    )
    assert _run(LIMITS, "-", chosen=None).stdout == _run(plain, chosen=None).stdout


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
