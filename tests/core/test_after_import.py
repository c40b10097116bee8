"""What is done when a module has been imported."""

from __future__ import annotations

import subprocess
import sys

LOOKS_FIRST = """
import importlib.util
import sys
from memfit.core.after_import import AfterImport
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
