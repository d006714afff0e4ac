"""A line plot as SVG, drawn in Python: enough for the explorers, and the same file serves as their still picture.

Colours are CSS variables with fallbacks, so that it follows JupyterLab's theme inside a page and is light outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

FG, DIM, LINE = "var(--mrt-fg,#1b1f24)", "var(--mrt-dim,#5b6470)", "var(--mrt-line,#d9dee5)"
LEFT, RIGHT, TOP, BOTTOM = 54, 16, 34, 34


@dataclass
class Plot:
    """A log-log plot. curves: (name, colour, width, dash, ys). marks: (name, x, colour, row of its label)."""

    title: str
    xs: Sequence[float]
    x_label: str
    width: int = 460
    height: int = 290
    curves: list[tuple[str, str, float, str, Sequence[float]]] = field(default_factory=list)
    marks: list[tuple[str, float, str, int]] = field(default_factory=list)
    point: tuple[float, float] | None = None
    floor: float | None = None

    def _range(self) -> tuple[float, float]:
        values = [y for *_, ys in self.curves for y in ys if y > 0]
        low = self.floor if self.floor is not None else min(values)
        return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(max(values)) - 1e-9)

    def svg(self) -> str:
        """The plot as an SVG element."""
        lo, hi = self._range()
        x0, x1 = math.log10(self.xs[0]), math.log10(self.xs[-1])
        right, bottom = self.width - RIGHT, self.height - BOTTOM

        def px(x: float) -> float:
            return LEFT + (math.log10(x) - x0) / (x1 - x0) * (right - LEFT)

        def py(y: float) -> float:
            share = (math.log10(max(y, lo)) - math.log10(lo)) / (math.log10(hi) - math.log10(lo))
            return bottom - share * (bottom - TOP)

        out = [_text(LEFT - 44, 16, self.title, 13, FG, "start", 650)]
        exponent = round(math.log10(lo))
        while 10**exponent <= hi * 1.001:
            y = py(10**exponent)
            out.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="{LINE}"/>')
            out.append(_text(LEFT - 7, y + 4, _tick(10.0**exponent), 11, DIM, "end"))
            exponent += 1
        x = 2 ** math.ceil(math.log2(self.xs[0]))
        while x <= self.xs[-1]:
            out.append(_text(px(x), bottom + 15, _tick(x), 11, DIM, "middle"))
            x *= 4
        out.append(_text((LEFT + right) / 2, self.height - 4, self.x_label, 11, DIM, "middle"))
        for name, at, colour, row in self.marks:
            if not self.xs[0] <= at <= self.xs[-1]:
                continue
            anchor, shift = ("end", -4) if px(at) > right - 110 else ("start", 4)
            out.append(f'<path d="M{px(at):.1f} {TOP - 6}V{bottom}" stroke="{colour}" stroke-dasharray="3 3"/>')
            out.append(_text(px(at) + shift, TOP + 4 + 14 * row, name, 11, colour, anchor, 600))
        for _, colour, wide, dash, ys in self.curves:
            points = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(self.xs, ys) if y >= lo)
            line = f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}" stroke-linejoin="round"'
            out.append(line + (f' stroke-dasharray="{dash}"/>' if dash else "/>"))
        if self.point:
            x, y = self.point
            halo = 'stroke="var(--mrt-bg,#fff)" stroke-width="2"'
            out.append(f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="5.5" fill="{FG}" {halo}/>')
        out.append(self._legend(right))
        return f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}">{"".join(out)}</svg>'

    def _legend(self, right: float) -> str:
        out, x = [], right
        for name, colour, wide, dash, _ in reversed(self.curves):
            if not name:
                continue
            x -= sum(11 if ord(c) > 255 else 6.2 for c in name)
            out.append(_text(x, 16, name, 11, DIM, "start"))
            x -= 24
            stroke = f'stroke="{colour}" stroke-width="{wide}"' + (f' stroke-dasharray="{dash}"' if dash else "")
            out.append(f'<path d="M{x:.1f} 12h18" {stroke}/>')
            x -= 12
        return "".join(out)


def _text(x: float, y: float, words: str, size: int, fill: str, anchor: str, weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def _tick(v: float) -> str:
    if v >= 1e6:
        return f"{v / 1e6:g}M"
    return f"{v / 1e3:g}k" if v >= 1e4 else f"{v:g}"


def tile(name: str, value: str, note: str = "") -> str:
    """A figure with its name over it."""
    return f'<div class="mrt-kpi"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'


def quantity(v: float) -> str:
    """A positive number in three digits, as 1,234 or 0.123; infinity as ∞."""
    if math.isinf(v):
        return "∞"
    return f"{v:,.0f}" if v >= 100 else f"{v:.3g}"


def size(n: float) -> str:
    """Bytes, decimal as on data sheets."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= unit:
            return f"{n / unit:.3g} {name}"
    return f"{n:.0f} B"
