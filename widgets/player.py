"""Player: watch a run, step by step, in the browser; and to_html, the same without a kernel."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import anywidget
import traitlets as t

from minirt import Trace

from . import _still as still
from ._assets import bundle, check_lang, read, styles, translate
from ._payload import pack, pack_text, plain, trace_of

MODES = ("start", "run", "monitor", "done")
SPEEDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # as static/transport.js offers them


class Player(anywidget.AnyWidget):
    """One run in four modes: what is about to run, the animation, the figures over time, the summary.

    run: a Run, a Trace or an engine that has run. lang: "zh" or "en". mode: the one to open with ("start", "run",
    "monitor", "done"). title: instead of the policy's name. speed: steps a second (1, 2, 3, 4, … 128); None plays the
    whole run in about 25 s. at_end: begin at the last step.
    Keys, with the player in focus: space, left, right, home, end; up and down point at the slots.
    """

    _esm = bundle("player.js")
    _css = styles()
    _trace = t.Bytes(b"").tag(sync=True)
    _options = t.Dict().tag(sync=True)

    def __init__(
        self, run: Any, *, lang: str = "zh", mode: str = "start", title: str = "",
        speed: int | None = None, at_end: bool = False,
    ) -> None:  # fmt: skip
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: the player opens in one of {', '.join(MODES)}.")
        if speed is not None and speed not in SPEEDS:
            raise ValueError(f"speed={speed!r}: steps a second are one of {', '.join(map(str, SPEEDS))}, or None.")
        self.trace = trace_of(run)
        self.lang = check_lang(lang)
        options = {"lang": lang, "mode": mode, "title": str(title), "speed": speed, "at_end": at_end}
        super().__init__(_trace=pack(plain(self.trace)), _options=options)

    def __repr__(self) -> str:
        return f"Player({describe(self.trace)})"

    def show(self, run: Any) -> None:
        """Play another run in the same place."""
        self.trace = trace_of(run)
        self._trace = pack(plain(self.trace))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return still.bundle(repr(self), self.picture(), self.model_id)

    def picture(self) -> str:
        """The whole run as a still picture, in HTML."""
        title = self._options["title"] or translate(self.lang, "player.title", policy=self.trace.meta.get("policy", ""))
        head = still.heading(title, figures(self.trace, self.lang))
        return head + still.run_picture(self.trace, self.lang, repr(self))

    def to_html(self, path: str | Path) -> Path:
        """Write a page that plays anywhere: no kernel, no network, one file. Returns its path."""
        title = self._options["title"] or f"minirt · {self.trace.meta.get('policy', '')}"
        return write_page(path, title, self.lang, "player.js", "mountPlayer", [plain(self.trace)], self._options)


def describe(trace: Trace) -> str:
    """Policy, requests and decode steps (as metrics counts them), for a repr that is the same in every run."""
    steps = sum(bool(s.emitted) for s in trace.steps)
    return f"policy={trace.meta.get('policy')}, requests={len(trace.requests)}, steps={steps}"


def figures(trace: Trace, lang: str) -> str:
    """A line of figures under a picture's title."""
    slots = int(trace.meta.get("max_batch_size", 1))
    giving = [s for s in trace.steps if s.emitted]
    tokens = sum(len(s.emitted) for s in giving)
    occupancy = sum(s.batch_size for s in giving) / (len(giving) * slots) if giving else 0.0
    wasted = sum(len(s.wasted) for s in trace.steps)
    return translate(
        lang, "still.figures", requests=len(trace.requests), steps=len(giving), tokens=tokens,
        occupancy=f"{occupancy:.1%}", wasted=wasted,
    )  # fmt: skip


def write_page(
    path: str | Path,
    title: str,
    lang: str,
    entry: str,
    mount: str,
    traces: list[dict[str, Any]],
    options: dict[str, Any],
) -> Path:
    """One HTML file with the scripts, the styles and the traces in it."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"to_html({str(path)!r}) is a folder; give the name of a file in it, as run.html.")
    code = bundle(entry).replace("</script", "<\\/script")
    data = ",".join(json.dumps(pack_text(trace)) for trace in traces)
    values = {
        "lang": "zh-CN" if lang == "zh" else "en",
        "title": html.escape(title),
        "css": styles(),
        "code": code,
        "call": f'{mount}(document.getElementById("minirt"), {data}, {_literal(options)});',
    }
    # in one pass: a title may contain what looks like a mark
    page = re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], read("page.html"))
    path.write_text(page, encoding="utf-8")
    return path


def _literal(value: Any) -> str:
    """JSON that may stand in a script: "</script>" inside a text must not end it."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
