"""A trace on its way to the browser: compact JSON, gzipped, the same bytes for the same run."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from minirt import Trace

# Token ids are the one thing no picture shows, and half of a trace's size.
_LEFT_OUT = ("tokens",)


def trace_of(run: Any) -> Trace:
    """The trace of a run, an engine or a trace itself."""
    trace = run if isinstance(run, Trace) else getattr(run, "trace", None)
    if not isinstance(trace, Trace):
        raise TypeError(
            f"a {type(run).__name__} holds no trace; pass what engine.run() or minirt.simulate() returned, "
            "or minirt.Trace.load(path)."
        )
    return trace


def slim(step: dict[str, Any]) -> dict[str, Any]:
    """A step record as the browser needs it."""
    return {k: v for k, v in step.items() if k not in _LEFT_OUT and (v or k in ("step", "time"))}


def plain(trace: Trace) -> dict[str, Any]:
    """The whole trace as the browser needs it."""
    whole = trace.to_dict()
    whole["steps"] = [slim(s) for s in whole["steps"]]
    # an answer's text is the sum of its pieces; it need not travel twice
    whole["outputs"] = {k: {"finish_reason": v.get("finish_reason")} for k, v in whole["outputs"].items()}
    whole["pieces"] = {k: v for k, v in whole["pieces"].items() if any(v)}
    return whole


def pack(data: dict[str, Any]) -> bytes:
    """gzipped JSON. No time stamp inside, so that equal runs give equal bytes."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)


def pack_text(data: dict[str, Any]) -> str:
    """pack(), as text that can stand in a page."""
    return base64.b64encode(pack(data)).decode("ascii")
