"""Are two results the same, as far as a learner is concerned?"""

from __future__ import annotations

import math
from typing import Any

REL = 1e-6


def same(got: Any, want: Any) -> bool:
    """Numbers within 1e-6, a list like a tuple or an array, True not like 1; other things by equality."""
    got, want = _plain(got), _plain(want)
    if isinstance(want, bool) or isinstance(got, bool):
        return isinstance(got, bool) and isinstance(want, bool) and got == want
    if isinstance(want, (int, float)):
        if not isinstance(got, (int, float)):
            return False
        try:
            return got == want or math.isclose(got, want, rel_tol=REL, abs_tol=1e-9)
        except OverflowError:  # an int beyond every float
            return False
    if isinstance(want, (list, tuple)):
        return isinstance(got, (list, tuple)) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(same(got[k], want[k]) for k in want)
    try:
        return bool(got == want)
    except Exception:  # a learner's object may refuse to be compared
        return False


def alike(got: Any, want: Any) -> bool:
    """Whether the two are of one kind. A list will do for a tuple, and the other way round; a tuple's length counts."""
    (name, _), (wanted, length) = kind_of(got), kind_of(want)
    if wanted in ("list", "tuple"):
        return name in ("list", "tuple") and (wanted == "list" or len(_plain(got)) == length)
    return name == wanted


def kind_of(value: Any) -> tuple[str, int]:
    """What kind of thing it is: number, truth, list, tuple (with its length), dict, text; "other" for the rest."""
    value = _plain(value)
    if isinstance(value, bool):
        return "truth", 0
    if isinstance(value, (int, float)):
        return "number", 0
    if isinstance(value, tuple):
        return "tuple", len(value)
    names = {list: "list", dict: "dict", str: "text"}
    return next((n for t, n in names.items() if isinstance(value, t)), "other"), 0


def _plain(value: Any) -> Any:
    """numpy and torch values as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value
