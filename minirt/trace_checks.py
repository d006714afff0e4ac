"""What is checked of a trace file's lines, so that a damaged file is refused and not drawn.

Each function raises ValueError saying what is wrong; Trace.load adds the file and the line.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

NUMBERS = ("time", "duration")
COUNTS = ("step", "blocks_used", "blocks_cached", "valid", "external", "waiting", "resident")
# Entries of a step's lists: how many whole numbers each is made of (0: a number by itself).
SHAPES = {
    "prefill": 4, "decode": 0, "wasted": 0, "drafted": 3, "emitted": 0, "tokens": 0, "forwards": 2, "swapped_out": 2,
    "swapped_in": 2,
}  # fmt: skip


def check_header(meta: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    """The first line: sizes of the engine that a replay needs, and what is known of each request."""
    for name in ("max_batch_size", "block_size"):
        if not _count(meta.get(name), 1):
            raise ValueError(f"meta.{name}={meta.get(name)!r} is no whole number of at least 1")
    for r in requests:
        for name, least in (("id", 0), ("num_prompt", 0), ("max_new_tokens", 1), ("arrival", None), ("priority", None)):
            value = r.get(name, 0)
            if not (_number(value) if name == "arrival" else _count(value, least)):
                raise ValueError(f"{name}={value!r} of a request")
        if not isinstance(r.get("name"), str) or not isinstance(r.get("prompt"), (str, type(None))):
            raise ValueError(f"name and prompt of request {r['id']} are no text")


def check_step(d: dict[str, Any], kinds: Container[str]) -> None:
    """A step's line: its gauges, the shapes of its lists, and the kinds of its events."""
    for name in NUMBERS:
        if not _number(d[name]):
            raise ValueError(f"{name}={d[name]!r} is no number of at least 0")
    for name in COUNTS:
        if not _count(d[name], 0):
            raise ValueError(f"{name}={d[name]!r} is no whole number of at least 0")
    for name, width in SHAPES.items():
        for entry in _list(d.get(name, []), name):
            if not all(_count(x, 0) for x in ([entry] if width == 0 else _list(entry, name, width))):
                raise ValueError(f"{name} holds {entry!r}")
    for name in ("allocated", "freed"):
        for entry in _list(d.get(name, []), name):
            seq_id, blocks = _list(entry, name, 2)
            if not _count(seq_id, 0) or not all(_count(b, 0) for b in _list(blocks, name)):
                raise ValueError(f"{name} holds {entry!r}")
    for entry in _list(d.get("events", []), "events"):
        kind, seq_id, data = _list(entry, "events", 3)
        if not isinstance(kind, str) or kind not in kinds:
            raise ValueError(f"unknown kind of event {kind!r}")
        if not _count(seq_id, 0) or not isinstance(data, dict):
            raise ValueError(f"events holds {entry!r}")


def _list(x: Any, name: str, width: int | None = None) -> list[Any]:
    if not isinstance(x, list) or (width is not None and len(x) != width):
        raise ValueError(f"{name} holds {x!r}, which is no list" + (f" of {width}" if width is not None else ""))
    return x


def _count(x: Any, least: int | None) -> bool:
    return type(x) is int and (least is None or x >= least)


def _number(x: Any) -> bool:
    return type(x) in (int, float) and 0 <= x < math.inf
