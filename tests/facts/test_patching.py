"""Facts behind `memfit.private.patching`: what breaks if objects of Keras cannot be patched any more."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from limited import run_limited
from memfit.private.patching import AfterImport, overridden, replaced


class _Plain:
    def method(self) -> str:
        return "plain"


def test_a_method_is_replaced_on_one_instance_and_put_back() -> None:
    one, other = _Plain(), _Plain()
    with overridden(one, "method", lambda: "ours"):
        with overridden(one, "method", lambda: "inner"):
            assert one.method() == "inner"
        assert (one.method(), other.method()) == ("ours", "plain")
    assert vars(one) == {}


def test_an_attribute_of_a_class_is_replaced_and_put_back() -> None:
    before = vars(_Plain)["method"]
    with replaced(_Plain, "method", lambda self: "ours"):
        assert _Plain().method() == "ours"
    assert vars(_Plain)["method"] is before


def _assigned_by_optimizer() -> int:
    import keras
    import tensorflow as tf

    kernel = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD()
    optimizer.build([kernel])
    assigned: list[Any] = []
    with overridden(optimizer, "assign_sub", lambda *update: assigned.append(update)):
        optimizer.apply([tf.ones_like(kernel)], [kernel])
    return len(assigned)


@pytest.mark.real
def test_optimizers_assign_through_a_method_of_their_own() -> None:
    """`Optimizer.assign_sub`: without it each old value is copied."""
    assert run_limited(_assigned_by_optimizer, None) == 1


LOOKS_FIRST = """
import importlib.util
import sys
from memfit.private.patching import AfterImport
AfterImport("colorsys", lambda: print("first", hasattr(sys.modules["colorsys"], "rgb_to_hsv"))).install()
AfterImport("colorsys", lambda: print("second")).install()
print(importlib.util.find_spec("colorsys").name)
import colorsys
import colorsys
print(len([one for one in sys.meta_path if isinstance(one, AfterImport)]))
"""


def test_a_module_that_is_looked_for_long_before_it_is_imported_is_noticed_once_and_when_it_is_there() -> (
    None
):
    done = subprocess.run([sys.executable, "-c", LOOKS_FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["colorsys", "first True", "second", "0"]


def test_a_module_that_is_there_already_is_noticed_at_once() -> None:
    noticed: list[str] = []
    AfterImport("sys", lambda: noticed.append("sys")).install()
    assert noticed == ["sys"]
