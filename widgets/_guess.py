"""What may be guessed and answered in predict(): each value is checked once, where it comes in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any


def shown(value: object) -> str:
    """A value for a message: its repr, cut where it is long, and large numbers in short."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1e15 <= abs(value) < math.inf:
        return short(value)
    words = repr(value)
    return words if len(words) <= 60 else words[:57] + "…"


def short(value: float) -> str:
    """A number as words give it: 1,234 or 0.1235; from 1e15 on as 1e+99; what is not finite as a dash."""
    try:
        value = float(value) if abs(value) >= 2**53 else value
    except OverflowError:
        return f"about 1e+{len(str(abs(int(value)))) - 1}"
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.4g}"


def plain(value: Any) -> Any:
    """numpy scalars and arrays as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def number(name: str, value: Any) -> float:
    """A finite number, int or float as it came; ValueError names what it is instead."""
    value = plain(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        good = abs(value) < 1e300
    elif isinstance(value, Real) and not isinstance(value, bool):
        value, good = float(value), True
    else:
        good = False
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name}={shown(value)} must be a finite number, as {name}=12.5.")
    return value  # type: ignore[no-any-return]


def words(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={shown(value)} must be a text.")
    return value


def slider(low: Any, high: Any) -> tuple[float | None, float | None]:
    """The ends of a slider, or two Nones where there is none."""
    if low is None and high is None:
        return None, None
    if low is None or high is None:
        raise ValueError(f"low={shown(low)}, high={shown(high)}: a slider needs both; a plain field needs neither.")
    low, high = number("low", low), number("high", high)
    if low >= high:
        raise ValueError(f"low={shown(low)}, high={shown(high)}: low must be less than high.")
    return low, high


def several(name: str, value: Any) -> list[Any]:
    """A list of at least two."""
    value = plain(value)
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Sequence):
        raise ValueError(f"{name}={shown(value)} must be a list, as {name}=[…, …].")
    if len(value) < 2:
        raise ValueError(f"{name}={shown(value)}: there must be at least two.")
    return list(value)


def check(kind: str, name: str, value: Any, options: dict[str, Any]) -> Any:
    """A guess or an answer, fit for its kind of question; ValueError says what is expected.

    kind: "number", "choice" or "curve". name: "guess" or "answer". A guess must lie on the slider, an answer need not.
    """
    value = plain(value)
    if kind == "choice":
        if value not in options["choices"]:
            raise ValueError(
                f"{name}={shown(value)} is none of the choices: {', '.join(map(repr, options['choices']))}."
            )
        return value
    if kind == "curve":
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
            raise ValueError(f"{name}={shown(value)} must be a list of {len(options['x'])} numbers, one an x position.")
        if len(value) != len(options["x"]):
            raise ValueError(f"the curve has {len(options['x'])} x positions, but the {name} {len(value)} values.")
        return [float(number(f"{name}[{i}]", v)) for i, v in enumerate(value)]
    value = number(name, value)
    low, high = options["low"], options["high"]
    if name == "guess" and low is not None and not low <= value <= high:
        raise ValueError(f"guess={shown(value)} is off the slider, which goes from {shown(low)} to {shown(high)}.")
    return value
