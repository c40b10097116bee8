from __future__ import annotations

import sys
import weakref
from typing import Any

from memfit.watching.user_lines import frames_from, is_users, locals_of, users_frames


class Thing:
    """Something that can be gone."""


def test_what_a_function_has_dropped_is_not_kept() -> None:
    thing: Any = Thing()
    known = weakref.ref(thing)
    assert locals_of(sys._getframe())["thing"] is thing
    thing = None
    assert known() is None


def test_what_locals_has_handed_out_stays() -> None:
    number = 7
    handed_out = locals()
    assert locals_of(sys._getframe())["number"] == number
    assert handed_out["number"] == 7


def test_the_names_of_a_module_stay() -> None:
    code = compile("found = locals_of(frame())", "module.py", "exec")
    names: dict[str, Any] = {"locals_of": locals_of, "frame": sys._getframe, "kept": 7}
    exec(code, names)
    assert names["kept"] == names["found"]["kept"] == 7


def test_only_frames_of_the_user_count() -> None:
    here = sys._getframe()
    assert users_frames(here)[0] is here
    assert len(users_frames(here)) < len(list(frames_from(here)))  # pytest's are a library's
    assert not is_users(next(one for one in frames_from(here) if "pluggy" in one.f_code.co_filename))
