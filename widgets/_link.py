"""What goes between a live run and the page that draws it: steps as they come out, and what is asked for.

A page may come late, be loaded again, or be gone; so a page that says hello gets everything so far, and after
that each message says which step it begins with. A page that finds a gap simply says hello again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from html import escape
from typing import Any

import anywidget
import traitlets as t

from minirt import Request, StepRecord, Trace
from minirt.trace import step_to_dict

from . import _still as still
from ._assets import bundle, styles, translate
from ._payload import pack, plain, slim

OVER = ("stopped", "failed")
GRACE_S = 3.0  # a view that moves (a cell is dragged, a tab split) is gone only for a moment


class Link(anywidget.AnyWidget):
    """The half of LiveRun that talks to the browser. It only reads the trace and calls the other half's methods."""

    _esm = bundle("live.js")
    _css = styles()
    _trace = t.Bytes(b"").tag(sync=True)  # filled at the end, for a notebook that is saved
    _options = t.Dict().tag(sync=True)
    status = t.Unicode("running").tag(sync=True)  # running, paused, done, stopped, failed
    error = t.Unicode("").tag(sync=True)
    notice = t.Unicode("").tag(sync=True)

    engine: Any
    requests: list[Request]
    lang: str
    pace: float
    _loop: asyncio.AbstractEventLoop | None
    _todo: deque[Callable[[], None]]

    def __init__(self, **kwargs: Any) -> None:
        self._known = self._sent = 0
        self._told: dict[int, int] = {}  # id -> pieces already sent; -1 once all are
        self._closing: StepRecord | None = None  # ends that the engine has no step of its own for
        self._views: set[str] = set()
        super().__init__(**kwargs)
        self.on_msg(lambda _, content, __: self._receive(content))

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        return self.engine.trace

    def _flush(self) -> None:
        """Send what the trace has grown by."""
        trace = self.trace
        steps = trace.steps[self._sent :]
        known = list(trace.requests)
        fresh = known[self._known :]
        pieces: dict[str, Any] = {}
        for i, texts in trace.pieces.items():
            sent = self._told.get(i, 0)
            if len(texts) > sent or (i in trace.outputs and sent >= 0):
                start = max(0, sent - 1)  # the last piece may have been completed since
                pieces[str(i)] = [start, texts[start:]]
                self._told[i] = -1 if i in trace.outputs else len(texts)
        records = [slim(step_to_dict(s)) for s in steps]
        if self._closing is not None:
            records.append(slim(step_to_dict(self._closing)))
        if not (records or fresh or pieces):
            return
        requests = [asdict(trace.requests[i]) for i in fresh]
        self.send({"type": "grow", "first": self._sent, "steps": records, "requests": requests, "pieces": pieces})
        self._sent, self._known = len(trace.steps), len(known)

    def _receive(self, content: dict[str, Any]) -> None:
        """A message from the browser; may be another thread than the loop's."""
        kind = content.get("type")
        if kind == "hello":
            self._views.add(content["view"])
            self._in_loop(lambda: self._send_all(content["view"]))
        elif kind == "gone":
            self._views.discard(content["view"])
            self._in_loop(self._maybe_closed)
        elif kind == "add":
            self.add(str(content["prompt"]), int(content["max_new_tokens"]))
        elif kind == "abort":
            self.abort(int(content["id"]))
        elif kind == "pace":
            self.pace = max(0.0, float(content["value"]))
            self._do(lambda: None)
        elif kind in ("pause", "resume", "step", "stop"):
            getattr(self, kind)()

    def _in_loop(self, what: Callable[[], Any]) -> None:
        if self._loop is None or self._loop.is_closed():
            what()
        else:
            self._loop.call_soon_threadsafe(what)

    def _send_all(self, view: str) -> None:
        data = plain(self.trace)
        data["steps"] = data["steps"][: self._sent]
        if self._closing is not None:
            data["steps"].append(slim(step_to_dict(self._closing)))
        self.send({"type": "all", "view": view}, [pack(data)])

    def _maybe_closed(self) -> None:
        if self._loop is not None and not self._views:
            self._loop.call_later(GRACE_S, self._close_if_unseen)

    def _close_if_unseen(self) -> None:
        if not self._views and self.status not in OVER:
            self.stop(translate(self.lang, "live.closed"))

    # -- how it looks where no kernel runs --------------------------------------------------------
    def __repr__(self) -> str:
        return f"LiveRun(policy={self.trace.meta.get('policy')}, requests={len(self.requests)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        title = self._options["title"] or translate(self.lang, "live.title", policy=self.trace.meta.get("policy", ""))
        return still.bundle(repr(self), requests_picture(title, self.requests, self.lang), self.model_id)


def requests_picture(title: str, requests: list[Request], lang: str) -> str:
    """What is about to be served, as a still picture; more than 16 requests are only counted."""
    lines = []
    for n, r in enumerate(requests[:16]):
        words = (r.prompt or translate(lang, "start.tokens", n=len(r.prompt_ids or ()))).replace("\n", " ")
        words = escape(words if len(words) < 92 else words[:90] + "…")
        look = f"background-color:{still.hue(n)};color:{still.ink(n)};padding:0 6px"
        lines.append(f'<span style="{look}">R{n}</span> {words} <small>≤ {r.max_new_tokens} token</small>')
    if len(requests) > 16:
        lines.append(translate(lang, "start.more", n=len(requests) - 16))
    return still.heading(title, translate(lang, "live.still")) + f"<div>{'<br>'.join(lines)}</div>"
