"""Still pictures: what a saved notebook shows where no kernel runs, and what nbval compares.

An SVG drawn here in Python, put into text/html as an <img>: web viewers and an untrusted JupyterLab strip
inline SVG and scripts, but keep an image. It depends on nothing but the trace, so it is the same in every run.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

from minirt import Trace

from ._assets import translate

FONT = "Noto Sans CJK SC,PingFang SC,Microsoft YaHei,WenQuanYi Micro Hei,system-ui,sans-serif"
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#c9b400", "#7a68b3")
FG, DIM, LINE, SOFT = "#1b1f24", "#5b6470", "#d9dee5", "#f3f4f6"
WIDTH, PAD, GUTTER, MAX_SEGMENTS = 900, 18, 30, 1500

Row = list[tuple[int, str]]  # what sat in a slot at each step: (request id or -1, kind)


def hue(request_id: int) -> str:
    """A request's colour, the same as in the browser."""
    return HUES[request_id % len(HUES)]


def img(svg: str, alt: str) -> str:
    """An SVG as an HTML image."""
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return (
        f'<img alt="{escape(alt, {chr(34): "&quot;"})}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
    )


def text(
    x: float, y: float, words: str, size: int = 13, fill: str = FG, weight: int = 400, anchor: str = "start"
) -> str:
    """An SVG text element."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """A picture on a light card of its own, readable on a dark page too."""
    # The namespace is what makes a browser read the file as SVG; nothing is fetched from it.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="{FONT}"><defs><pattern id="h" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="#fff" fill-opacity="0"/>'
        f'<rect width="2" height="5" fill="#fff" fill-opacity=".62"/></pattern></defs>'
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="10" fill="#fff" stroke="{LINE}"/>'
        + "".join(parts)
        + "</svg>"
    )


def seats(trace: Trace) -> list[Row]:
    """Who sat in each slot while each step ran, and what was computed of it there."""
    slots = int(trace.meta.get("max_batch_size", 1))
    now = [-1] * slots
    rows: list[Row] = [[] for _ in range(slots)]
    for step in trace.steps:
        kinds = dict.fromkeys(step.wasted, "wasted") | dict.fromkeys(step.decode, "decode")
        kinds |= {r.id: "prefill" for r in step.prefill}
        shown = list(now)
        for kind, i, data in step.events:
            if kind in ("admitted", "resumed"):
                now[data["slot"]] = shown[data["slot"]] = i
            elif kind == "released" and i in now:
                slot = now.index(i)
                now[slot] = -1
                if i not in kinds:
                    shown[slot] = -1
        for slot, i in enumerate(shown):
            rows[slot].append((i, "empty" if i < 0 else kinds.get(i, "held")))
    return rows


def work(trace: Trace) -> int:
    """How many steps a reader counts: a last record that only gives back slots, as static's, is none."""
    busy = (n for n, s in enumerate(trace.steps, 1) if s.prefill or s.decode or s.wasted or s.emitted or s.forwards)
    return max(busy, default=0)


def gantt(trace: Trace, x: float, y: float, width: float, lang: str, span: int = 0) -> tuple[list[str], float]:
    """The timeline as SVG parts, and how high it is. span: steps that the width stands for, if more than its own."""
    steps = max(1, work(trace))
    rows = [row[:steps] for row in seats(trace)]
    shown = rows[:32]
    height = 18 if len(shown) <= 8 else 13 if len(shown) <= 16 else 8
    col = min(26.0, (width - GUTTER) / max(steps, span, 12))
    parts: list[str] = []
    for slot in range(len(shown)):
        top = y + slot * height
        parts.append(
            f'<rect x="{x + GUTTER:g}" y="{top + 1:g}" width="{steps * col:.1f}" height="{height - 2}" fill="{SOFT}"/>'
        )
        if height >= 13 or slot % 4 == 0:
            parts.append(text(x + GUTTER - 8, top + height / 2 + 4, str(slot), 10, DIM, anchor="end"))
    for slot, a, b, i, kind in _segments(shown):
        parts += _bar(x + GUTTER + a * col, y + slot * height + 1, (b - a) * col, height - 2, i, kind)
        if len(parts) > MAX_SEGMENTS:  # enough to see what it is like; a picture is not the trace
            break
    bottom = y + len(shown) * height
    tick = _tick(max(steps, span), width / 64)
    for s in range(0, steps + 1, tick):
        parts.append(text(x + GUTTER + s * col, bottom + 13, str(s), 10, DIM, anchor="middle"))
    if len(rows) > len(shown):
        parts.append(text(x + GUTTER, bottom + 28, translate(lang, "still.more", n=len(rows) - len(shown)), 11, DIM))
    return parts, len(shown) * height + (34 if len(rows) > len(shown) else 18)


def _segments(rows: list[Row]) -> Iterable[tuple[int, int, int, int, str]]:
    for slot, row in enumerate(rows):
        a = 0
        for b in range(1, len(row) + 1):
            if b == len(row) or row[b] != row[a]:
                if row[a][0] >= 0:
                    yield (slot, a, b, *row[a])
                a = b


def _bar(x: float, y: float, w: float, h: float, i: int, kind: str) -> list[str]:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{max(w - 0.6, 0.8):.1f}" height="{h:g}"'
    if kind == "held":
        return [f'<rect x="{x:.1f}" y="{y + h / 2 - 1:.1f}" width="{w:.1f}" height="2" fill="{hue(i)}"/>']
    if kind == "wasted":
        return [f'<rect {box} fill="{hue(i)}" fill-opacity=".2"/>', f'<rect {box} fill="#8a929c" fill-opacity=".35"/>']
    out = [f'<rect {box} fill="{hue(i)}"/>']
    if kind == "prefill":
        out.append(f'<rect {box} fill="url(#h)"/>')
    elif w > 30 and h >= 11:
        out.append(text(x + 4, y + h / 2 + 4, f"R{i}", 10, "#1b1400" if i % 8 in (1, 3, 4, 6) else "#fff", 600))
    return out


def legend(x: float, y: float, lang: str) -> list[str]:
    """The key to the timeline's patterns, ending at x."""
    parts: list[str] = []
    for kind in ("wasted", "decode", "prefill"):
        words = translate(lang, f"kind.{kind}")
        wide = sum(12 if ord(c) > 255 else 7 for c in words)
        x -= wide
        parts.append(text(x, y, words, 12, DIM))
        x -= 21
        parts += _bar(x, y - 9, 16, 10, 0, kind)
        x -= 16
    return parts


def _tick(span: int, count: float) -> int:
    raw, base = span / max(1, count), 1
    while base * 10 < raw:
        base *= 10
    return next((m * base for m in (1, 2, 5, 10) if m * base >= raw), 10 * base)


def run_picture(trace: Trace, title: str, note: str, lang: str, span: int = 0) -> tuple[list[str], float]:
    """Title, a line of figures and the timeline, as SVG parts from the top of a card; and the height. span: as gantt's."""
    parts = [text(PAD, 30, title, 16, FG, 650), text(PAD, 52, note, 12, DIM)]
    parts += legend(WIDTH - PAD, 30, lang)
    body, height = gantt(trace, PAD, 66, WIDTH - 2 * PAD, lang, span)
    return parts + body, 66 + height + 8


def bundle(plain: str, html: str | None, model_id: str | None) -> dict[str, Any]:
    """What a widget displays: the live view, a picture for where there is none, and words that never change."""
    data: dict[str, Any] = {"text/plain": plain}
    if html:
        data["text/html"] = html
    if model_id:
        data["application/vnd.jupyter.widget-view+json"] = {
            "version_major": 2,
            "version_minor": 0,
            "model_id": model_id,
        }
    return data
