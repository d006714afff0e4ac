"""Numbers with units, as learners write them: 12.6, "12.6 MB", "0.485 ms", "26%"."""

from __future__ import annotations

import math
import re
import unicodedata
from numbers import Real
from typing import Any

from .verdict import Wrong

# unit -> (what it measures, how many of the base unit)
UNITS: dict[str, tuple[str, float]] = {
    "B": ("bytes", 1), "kB": ("bytes", 1e3), "KB": ("bytes", 1e3), "MB": ("bytes", 1e6), "GB": ("bytes", 1e9),
    "TB": ("bytes", 1e12), "KiB": ("bytes", 2**10), "MiB": ("bytes", 2**20), "GiB": ("bytes", 2**30),
    "s": ("time", 1), "ms": ("time", 1e-3), "us": ("time", 1e-6), "µs": ("time", 1e-6), "μs": ("time", 1e-6),
    "ns": ("time", 1e-9), "": ("number", 1), "x": ("number", 1), "×": ("number", 1), "倍": ("number", 1),
    "%": ("number", 0.01), "FLOP": ("flops", 1), "GFLOP": ("flops", 1e9), "TFLOP": ("flops", 1e12),
    "token": ("tokens", 1), "tokens": ("tokens", 1), "step": ("steps", 1), "steps": ("steps", 1), "步": ("steps", 1),
    "block": ("blocks", 1), "blocks": ("blocks", 1), "行": ("rows", 1), "rows": ("rows", 1), "row": ("rows", 1),
    "tokens/s": ("rate", 1), "tokens/step": ("pace", 1), "requests/s": ("visits", 1), "req/s": ("visits", 1),
    "请求/秒": ("visits", 1), "个/秒": ("visits", 1), "/s": ("visits", 1), "美元": ("money", 1), "USD": ("money", 1),
    "$": ("money", 1), "个请求": ("rows", 1), "请求": ("rows", 1), "requests": ("rows", 1), "request": ("rows", 1),
}  # fmt: skip
COUNTS = ("number", "tokens", "steps", "blocks", "rows")
COUNTERS = ("个", "人", "台", "块")  # go with whatever is counted


def parse(answer: Any, unit: str) -> float:
    """The number in `unit`. A bare number is taken to be in it. Raises Wrong on what can't be read."""
    if hasattr(answer, "item") and not isinstance(answer, (str, Real)):
        answer = answer.item() if getattr(answer, "size", 1) in (1,) or callable(getattr(answer, "size", 1)) else answer
    if isinstance(answer, Real) and not isinstance(answer, bool):
        return _finite(answer)
    if not isinstance(answer, str):
        raise Wrong("not_a_number", type=type(answer).__name__)
    words = _half_width(answer)
    if unit in ("美元", "USD"):
        words = words.strip().removeprefix("$")
    found = re.fullmatch(r"\s*([-+]?[\d,_]*\.?\d+(?:[eE][-+]?\d+)?)\s*(.*?)\s*", words)
    if not found:
        raise Wrong("not_a_number", [("got", answer)], type=repr(answer))
    whole = re.split(r"[.eE]", found[1])[0]
    if "," in whole and not re.fullmatch(r"[-+]?\d+(,\d{3})+", whole):
        raise Wrong("comma", [("got", answer)], number=found[1])
    value, given = _finite(found[1].replace(",", "").replace("_", "")), found[2]
    if not given:
        return value
    wanted_what, wanted_size = UNITS[unit]
    if given in COUNTERS and wanted_what in COUNTS:
        return value
    if given not in UNITS:
        raise Wrong("unit_unknown" if unit else "unit_none", unit=given, wanted=unit)
    what, size = UNITS[given]
    if what != wanted_what:
        raise Wrong("unit_dimension" if unit else "unit_none", unit=given, wanted=unit)
    return value * size / wanted_size


def option_of(answer: Any, options: dict[str, tuple[str, str]]) -> str | None:
    """The key of the one option that is meant: its letter in either case, its words, or both; else None."""
    words = _half_width(answer).strip() if isinstance(answer, str) else ""
    for key, (text, _) in options.items():
        text = _half_width(text)
        if words.upper() == key or words in (text, f"{key} {text}"):
            return key
    return None


def _finite(number: Any) -> float:
    """As a float. Raises Wrong for NaN, and for what is beyond every float."""
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if math.isnan(value):
        raise Wrong("not_a_number", type="NaN")
    if math.isinf(value):
        raise Wrong("not_finite")
    return value


def _half_width(text: str) -> str:
    """Full-width digits, signs and letters, as a Chinese input method types them, as ASCII. 10² is not read as 102."""

    def one(c: str) -> str:
        kind = unicodedata.decomposition(c).split(" ")[0]
        return unicodedata.normalize("NFKC", c) if kind in ("<wide>", "<narrow>", "<noBreak>", "<compat>") else c

    return "".join(map(one, text)).replace("\u2212", "-")
