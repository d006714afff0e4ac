"""Small still pictures for show(): curves, and who holds which block. SVG in an <img>, as the widgets' stills are.

Each sits on a light card of its own, so that it reads on a dark page too.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

FG, DIM, LINE = "#1b1f24", "#5b6470", "#d9dee5"
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a68b3")
FONT = "Noto Sans CJK SC,PingFang SC,Microsoft YaHei,WenQuanYi Micro Hei,system-ui,sans-serif"


class Picture:
    """An SVG with words that say the same."""

    def __init__(self, width: float, height: float, parts: Sequence[str], words: str) -> None:
        self.words = words
        self.svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="{FONT}"><rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" '
            f'rx="8" fill="#fff" stroke="{LINE}"/>{"".join(parts)}</svg>'
        )

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        data = base64.b64encode(self.svg.encode()).decode("ascii")
        img = f'<img alt="{escape(self.words)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
        return {"text/plain": self.words, "text/html": img}


def curves(
    title: str, xs: Sequence[float], lines: Mapping[str, Sequence[float]], x_label: str, y_label: str, log: bool = False
) -> Picture:
    """Lines over an axis that starts at 0; the first is drawn thin and dashed over the others. log: an axis of decades."""
    width, height, left, right, top, bottom = 620, 300, 70, 18, 58, 44
    high = max((y for ys in lines.values() for y in ys), default=1.0) or 1.0
    ticks = [high * i / 4 for i in range(5)]
    if log:
        ticks = [10.0**i for i in range(math.ceil(math.log10(max(high, 2.0))) + 1)]
    parts = [_text(18, 26, title, 14, FG, weight=650)]

    def px(x: float) -> float:
        return left + (x - xs[0]) / ((xs[-1] - xs[0]) or 1) * (width - left - right)

    def py(y: float) -> float:
        share = math.log10(max(1.0, y)) / math.log10(ticks[-1]) if log else max(0.0, y) / high
        return height - bottom - share * (height - top - bottom)

    for y in ticks:
        parts.append(f'<path d="M{left} {py(y):.1f}H{width - right}" stroke="{LINE}"/>')
        parts.append(_text(left - 8, py(y) + 4, f"{y:,.0f}" if ticks[-1] >= 1000 else f"{y:.3g}", 11, DIM, "end"))
    for x in xs if len(xs) <= 12 else xs[:: -(-len(xs) // 10)]:
        parts.append(_text(px(x), height - bottom + 16, f"{x:g}", 11, DIM, "middle"))
    parts.append(_text((left + width - right) / 2, height - 8, x_label, 12, DIM, "middle"))
    parts.append(_text(18, 46, y_label, 12, DIM))
    at = float(width - right)
    for i, (name, ys) in reversed(list(enumerate(lines.items()))):
        dash = ' stroke-dasharray="5 4"' if i == 0 and len(lines) > 1 else ""
        points = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(xs, ys))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{HUES[i]}" stroke-width="{2 if i == 0 else 3.5}"{dash}/>'
        )
        at -= 13 * len(name) + 10
        parts.append(_text(at, 46, name, 12, HUES[i], weight=650))
    words = title + "".join(f"; {n}: " + ", ".join(f"{y:.4g}" for y in ys) for n, ys in lines.items())
    return Picture(width, height, parts, words)


def blocks(
    title: str, count: int, rows: Mapping[str, Mapping[str, Sequence[int]]], numbered: bool = False
) -> Picture:
    """One strip of `count` blocks a row; rows: name -> owner -> its block ids. Blocks with two owners are dashed.

    numbered: each block also says which of its owner's blocks it is, from 0.
    """
    size, left = min(34.0, 560 / max(1, count)), 110
    width, parts = left + size * count + 18, [_text(18, 26, title, 14, FG, weight=650)]
    words, top = [title], 42.0
    names = list(dict.fromkeys(o for owners in rows.values() for o in owners))
    for row, owners in rows.items():
        parts.append(_text(18, top + size / 2 + 4, row, 12, DIM))
        held: dict[int, list[str]] = {}
        for owner, ids in owners.items():
            for b in ids:
                held.setdefault(b, []).append(owner)
        for b in range(count):
            who, x = held.get(b, []), left + b * size
            fill = "#f3f4f6" if not who else HUES[names.index(who[0]) % len(HUES)]
            edge = f"{size - 2:.1f}"
            parts.append(f'<rect x="{x + 1:.1f}" y="{top:.1f}" width="{edge}" height="{edge}" fill="{fill}"/>')
            if len(who) > 1:
                parts.append(f'<rect x="{x + 3:.1f}" y="{top + 2:.1f}" width="{size - 6:.1f}" height="{size - 6:.1f}" '
                             f'fill="none" stroke="#000" stroke-width="2" stroke-dasharray="3 3"/>')  # fmt: skip
            at = f".{list(owners[who[0]]).index(b)}" if numbered and who else ""
            label = "+".join(who) + at if who else str(b)
            parts.append(_text(x + size / 2, top + size / 2 + 3, label, 11, "#fff" if who else DIM, "middle"))
        words.append(f"{row}: " + ", ".join(f"{o} {list(ids)}" for o, ids in owners.items()))
        top += size + 10
    return Picture(max(width, 320, 36 + 8 * len(title)), top + 8, parts, "; ".join(words))


def _text(x: float, y: float, words: str, size: int, fill: str, anchor: str = "start", weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
