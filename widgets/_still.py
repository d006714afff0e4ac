"""Still pictures: what a saved notebook shows where no kernel runs, and what nbval compares.

HTML that every viewer keeps: words are words, so they take the page's own colour, light or dark, and the timeline is
an SVG put in as an <img>: web viewers and an untrusted JupyterLab strip style sheets, inline SVG and scripts, but
keep an image. The image is transparent, and its few words are in a grey that is read on a white and on a black page.
It depends on nothing but the trace, so it is the same in every run. Colours, marks and hatching are those of the
browser: both read static/palette.json.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

from minirt import Trace

from ._assets import palette, translate

FONT = "Noto Sans CJK SC,PingFang SC,Microsoft YaHei,WenQuanYi Micro Hei,system-ui,sans-serif"
GREY: str = palette()["grey"]  # all words inside a picture
SOFT = 'fill="#808080" fill-opacity=".14"'  # what is empty: a little darker than white, a little lighter than black
WIDTH, GUTTER, LEGEND, MAX_SEGMENTS = 900, 30, 22, 4000

Row = list[tuple[int, str]]  # what sat in a slot at each step: (request id or -1, kind)
KINDS = ("prefill", "decode", "wasted", "held")


def hue(request_id: int) -> str:
    """A request's colour, the same as in the browser."""
    return str(palette()["hues"][request_id % 8])


def ink(request_id: int) -> str:
    """What is written and drawn upon that colour."""
    return str(palette()["inks"][request_id % 8])


def img(svg: str, alt: str) -> str:
    """An SVG as an HTML image."""
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    words = escape(alt, {'"': "&quot;"})
    return f'<img alt="{words}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def text(
    x: float, y: float, words: str, size: int = 13, fill: str = GREY, weight: int = 400, anchor: str = "start"
) -> str:
    """An SVG text element."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def heading(title: str, note: str = "") -> str:
    """A picture's title and a line under it, in the page's own colour and font."""
    return f"<div><b>{escape(title)}</b>" + (f"<br><small>{escape(note)}</small>" if note else "") + "</div>"


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """A transparent picture. Plots inside, which know the browser's variables, get what is read on any ground."""
    words = f"--mrt-fg:{GREY};--mrt-dim:{GREY};--mrt-line:rgba(128,128,128,.35);--mrt-bg:{GREY}"
    # The namespace is what makes a browser read the file as SVG; nothing is fetched from it.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="{FONT}" style="{words}">' + "".join(parts) + "</svg>"
    )


class Bars:
    """Bars by what they are filled with, one path each: a long run has thousands of bars, but some thirty fills."""

    def __init__(self) -> None:
        self._defs: dict[str, str] = {}
        self._paths: dict[tuple[int, str], list[str]] = {}
        self._words: list[str] = []

    def add(self, x: float, y: float, w: float, h: float, i: int, kind: str) -> None:
        """What request i did in a slot, as the live timeline draws it."""
        p = palette()
        if kind == "held":
            self._box(0, f'fill="{hue(i)}"', x, y + (h - p["held"]) / 2, w, p["held"])
            return
        w = max(w - 0.6, 0.8)
        if kind == "wasted":
            self._box(0, f'fill="{hue(i)}" fill-opacity="{p["tint"]}"', x, y, w, h)
            self._box(2, self._hatch(GREY, p["hatch"]["wasted"]), x, y, w, h)
            return
        self._box(0, f'fill="{hue(i)}"', x, y, w, h)
        mark = i // 8 % 3
        if mark and w >= 7 and h >= 5:
            self._box(1, self._mark(mark, ink(i), y), x, y, w, h)
        if kind == "prefill":
            self._box(2, self._hatch(ink(i), p["hatch"]["prefill"]), x, y, w, h)
        elif h >= 10 and w > 9 + 7 * len(f"R{i}"):
            if mark:
                self._box(3, f'fill="{hue(i)}"', x + 2, y + 1, 7 * len(f"R{i}") + 3, h - 2)
            self._words.append(text(x + 4, y + h / 2 + 3.5, f"R{i}", 10, ink(i), 600))

    def __len__(self) -> int:
        return sum(map(len, self._paths.values()))

    def parts(self) -> list[str]:
        """As SVG elements: fills, marks, hatching, names."""
        defs = f"<defs>{''.join(self._defs.values())}</defs>" if self._defs else ""
        ordered = sorted(self._paths.items(), key=lambda item: item[0][0])
        return [defs, *(f'<path {look} d="{"".join(d)}"/>' for (_, look), d in ordered), *self._words]

    def _box(self, layer: int, look: str, x: float, y: float, w: float, h: float) -> None:
        path = f"M{_short(x)} {_short(y)}h{_short(w)}v{_short(h)}h-{_short(w)}z"
        self._paths.setdefault((layer, look), []).append(path)

    def _hatch(self, colour: str, alpha: float) -> str:
        gap = round(palette()["hatch"]["gap"] / math.sqrt(2), 2)
        line = f'<rect width="{palette()["hatch"]["width"]}" height="{gap}" fill="{colour}" fill-opacity="{alpha}"/>'
        return self._pattern(f"h{colour[1:]}", gap, 'patternTransform="rotate(45)"', line)

    def _mark(self, mark: int, colour: str, y: float) -> str:
        gap, half = palette()["mark"]["gap"], palette()["mark"]["gap"] / 2
        x, wide, high = (0, gap, 1) if mark == 1 else (half - 1, 2, 2)
        fill = f'fill="{colour}" fill-opacity="{palette()["mark"]["alpha"]}"'
        dot = f'<rect x="{x:g}" y="{half - high / 2:g}" width="{wide}" height="{high}" {fill}/>'
        top = y % gap  # the marks begin at the bar's own edge
        return self._pattern(f"m{mark}{colour[1:]}-{top:g}", gap, f'y="{top:g}"', dot)

    def _pattern(self, name: str, gap: float, how: str, inside: str) -> str:
        head = f'<pattern id="{name}" width="{gap:g}" height="{gap:g}" patternUnits="userSpaceOnUse" {how}>'
        self._defs[name] = f"{head}{inside}</pattern>"
        return f'fill="url(#{name})"'


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


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


def gantt(trace: Trace, bars: Bars, top: float, lang: str, span: int = 0) -> tuple[list[str], float]:
    """Adds the timeline's bars; returns what else belongs to it as SVG parts, and where it ends.

    span: steps that the width stands for, if more than its own.
    """
    steps = max(1, work(trace))
    rows = [row[:steps] for row in seats(trace)]
    shown = rows[:32]
    height = 18 if len(shown) <= 8 else 13 if len(shown) <= 16 else 8
    col = min(26.0, (WIDTH - GUTTER) / max(steps, span, 12))
    parts: list[str] = []
    for slot in range(len(shown)):
        y = top + slot * height
        parts.append(f'<rect x="{GUTTER}" y="{y + 1:g}" width="{steps * col:.1f}" height="{height - 2}" {SOFT}/>')
        if height >= 13 or slot % 4 == 0:
            parts.append(text(GUTTER - 8, y + height / 2 + 4, str(slot), 10, anchor="end"))
    for slot, a, b, i, kind in _segments(shown):
        bars.add(GUTTER + a * col, top + slot * height + 1, (b - a) * col, height - 2, i, kind)
        if len(bars) > MAX_SEGMENTS:  # enough to see what it is like; a picture is not the trace
            break
    bottom = top + len(shown) * height
    tick = _tick(max(steps, span), WIDTH / 64)
    for s in range(0, steps + 1, tick):
        parts.append(text(GUTTER + s * col, bottom + 13, str(s), 10, anchor="middle"))
    if len(rows) > len(shown):
        parts.append(text(GUTTER, bottom + 28, translate(lang, "still.more", n=len(rows) - len(shown)), 11))
    return parts, bottom + (34 if len(rows) > len(shown) else 18)


def _segments(rows: list[Row]) -> Iterable[tuple[int, int, int, int, str]]:
    for slot, row in enumerate(rows):
        a = 0
        for b in range(1, len(row) + 1):
            if b == len(row) or row[b] != row[a]:
                if row[a][0] >= 0:
                    yield (slot, a, b, *row[a])
                a = b


def legend(bars: Bars, lang: str) -> list[str]:
    """Adds the key to the patterns, in the browser's order, up to the picture's right edge; returns its words."""
    words, x = [], float(WIDTH - 2)
    for kind in reversed(KINDS):
        name = translate(lang, f"legend.{kind}")
        x -= sum(12 if ord(c) > 255 else 7 for c in name)
        words.append(text(x, 12, name, 12))
        x -= 21
        bars.add(x, 3, 16, 10, 0, kind)
        x -= 16
    return words


def _tick(span: int, count: float) -> int:
    raw, base = span / max(1, count), 1
    while base * 10 < raw:
        base *= 10
    return next((m * base for m in (1, 2, 5, 10) if m * base >= raw), 10 * base)


def run_picture(trace: Trace, lang: str, alt: str, span: int = 0, key: bool = True) -> str:
    """The timeline as an <img>, with the key to it above. span: as gantt's."""
    bars = Bars()
    words = legend(bars, lang) if key else []
    parts, height = gantt(trace, bars, LEGEND if key else 0, lang, span)
    return img(svg(WIDTH, height, [*words, *parts, *bars.parts()]), alt)


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
