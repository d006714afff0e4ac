"""Small still pictures for show(): curves, and who holds which block. Made as the widgets' stills are, so that they
take the page's colours: words in HTML above a transparent SVG, whose own words are in a grey that reads on both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from widgets import _still as still

LINE = 'stroke="#808080" stroke-opacity=".35"'


class Picture:
    """An SVG under its title, with words that say the same."""

    def __init__(self, title: str, width: float, height: float, parts: Sequence[str], words: str) -> None:
        self.title, self.words, self.svg = title, words, still.svg(width, height, parts)

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        html = still.heading(self.title) + still.img(self.svg, self.words)
        return {"text/plain": self.words, "text/html": html}


def curves(
    title: str, xs: Sequence[float], lines: Mapping[str, Sequence[float]], x_label: str, y_label: str, log: bool = False
) -> Picture:
    """Lines over an axis that starts at 0; log: an axis of decades.

    The first is thin and dashed; each lies upon those after it and is thinner, so that lines in one place are all seen.
    """
    width, height, left, right, top, bottom = 620, 270, 52, 18, 30, 42
    high = max((y for ys in lines.values() for y in ys), default=1.0) or 1.0
    ticks = [high * i / 4 for i in range(5)]
    if log:
        ticks = [10.0**i for i in range(math.ceil(math.log10(max(high, 2.0))) + 1)]
    parts = [still.text(0, 14, y_label, 12)]

    def px(x: float) -> float:
        return left + (x - xs[0]) / ((xs[-1] - xs[0]) or 1) * (width - left - right)

    def py(y: float) -> float:
        share = math.log10(max(1.0, y)) / math.log10(ticks[-1]) if log else max(0.0, y) / high
        return height - bottom - share * (height - top - bottom)

    for y in ticks:
        parts.append(f'<path d="M{left} {py(y):.1f}H{width - right}" {LINE}/>')
        words = f"{y:,.0f}" if ticks[-1] >= 1000 else f"{y:.3g}"
        parts.append(still.text(left - 8, py(y) + 4, words, 11, anchor="end"))
    for x in xs if len(xs) <= 12 else xs[:: -(-len(xs) // 10)]:
        parts.append(still.text(px(x), height - bottom + 16, f"{x:g}", 11, anchor="middle"))
    parts.append(still.text((left + width - right) / 2, height - 6, x_label, 12, anchor="middle"))
    at = float(width - right)
    for i, (name, ys) in reversed(list(enumerate(lines.items()))):
        look = f'fill="none" stroke="{still.hue(i)}" stroke-width="{2 + 2.5 * i:g}" stroke-linejoin="round"'
        look += ' stroke-dasharray="6 5"' if i == 0 and len(lines) > 1 else ""
        points = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(xs, ys))
        parts.append(f'<polyline points="{points}" {look}/>')
        at -= _wide(name)
        parts.append(still.text(at, 14, name, 12))
        parts.append(f'<path d="M{at - 30:.1f} 10h24" {look}/>')
        at -= 46
    said = title + "".join(f"; {n}: " + ", ".join(f"{y:.4g}" for y in ys) for n, ys in lines.items())
    return Picture(title, width, height, parts, said)


def blocks(title: str, count: int, rows: Mapping[str, Mapping[str, Sequence[int]]], numbered: bool = False) -> Picture:
    """One strip of `count` blocks a row; rows: name -> owner -> its block ids. Blocks with two owners are dashed.

    numbered: each block also says which of its owner's blocks it is, from 0.
    """
    size, left = min(34.0, 560 / max(1, count)), 14 + max(map(_wide, rows), default=0)
    parts: list[str] = []
    words, top = [title], 6.0
    names = list(dict.fromkeys(o for owners in rows.values() for o in owners))
    for row, owners in rows.items():
        parts.append(still.text(0, top + size / 2 + 4, row, 12))
        held: dict[int, list[str]] = {}
        for owner, ids in owners.items():
            for b in ids:
                held.setdefault(b, []).append(owner)
        for b in range(count):
            who, x = held.get(b, []), left + b * size
            i = names.index(who[0]) if who else 0
            fill = f'fill="{still.hue(i)}"' if who else still.SOFT
            edge = f"{size - 2:.1f}"
            parts.append(f'<rect x="{x + 1:.1f}" y="{top:.1f}" width="{edge}" height="{edge}" {fill}/>')
            if len(who) > 1:
                parts.append(f'<rect x="{x + 3:.1f}" y="{top + 2:.1f}" width="{size - 6:.1f}" height="{size - 6:.1f}" '
                             f'fill="none" stroke="{still.ink(i)}" stroke-width="2" stroke-dasharray="3 3"/>')  # fmt: skip
            at = f".{list(owners[who[0]]).index(b)}" if numbered and who else ""
            label = "+".join(who) + at if who else str(b)
            ink = still.ink(i) if who else still.GREY
            parts.append(still.text(x + size / 2, top + size / 2 + 3, label, 11, ink, anchor="middle"))
        words.append(f"{row}: " + ", ".join(f"{o} {list(ids)}" for o, ids in owners.items()))
        top += size + 10
    return Picture(title, left + size * count, top - 4, parts, "; ".join(words))


def _wide(words: str) -> int:
    """About how many pixels a text of size 12 takes."""
    return sum(12 if ord(c) > 255 else 7 for c in words)
