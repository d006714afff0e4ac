"""How tasks and verdicts look: a little markup turned into HTML, in cards that follow JupyterLab's theme.

The markup: paragraphs, "- " and "1. " lists, | tables |, ```fences```, **bold**, `code`, and $math$, which is left to
the page's MathJax. Without its style sheet (an untrusted notebook) a card is still plain, readable HTML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from html import escape
from typing import Any

CSS = """
.tk{border:1px solid var(--jp-border-color2,#d9dee5);border-left:4px solid var(--tk,#1f6feb);border-radius:8px;
padding:10px 16px 12px;margin:4px 0;max-width:860px;color:var(--jp-content-font-color1,var(--jp-ui-font-color1,#1b1f24));
background:var(--jp-layout-color1,#fff);font:14px/1.65 "Noto Sans CJK SC","PingFang SC","Microsoft YaHei",
"WenQuanYi Micro Hei",system-ui,sans-serif;text-align:left}
.tk p{margin:6px 0}.tk ul,.tk ol{margin:6px 0;padding-left:22px}.tk li{margin:2px 0}
.tk .tk-head{display:flex;gap:10px;align-items:baseline;flex-wrap:wrap;margin:0 0 4px}
.tk .tk-head b{font-size:15px}.tk .tk-tag{font-size:12px;padding:0 8px;border-radius:9px;border:1px solid var(--tk,#1f6feb);
color:color-mix(in srgb,var(--tk,#1f6feb) 55%,var(--jp-content-font-color1,#1b1f24))}
.tk .tk-dim{font-size:12px;color:var(--jp-ui-font-color2,#5b6470)}
.tk code{background:color-mix(in srgb,var(--jp-ui-font-color1,#1b1f24) 8%,transparent);padding:1px 4px;border-radius:4px;
font-size:13px}.tk.tk pre{background:color-mix(in srgb,var(--jp-ui-font-color1,#1b1f24) 6%,transparent);
padding:8px 12px;border-radius:6px;margin:6px 0;overflow:auto;line-height:1.45}.tk.tk pre code{background:none;padding:0}
.tk table{border-collapse:collapse;margin:8px 0;font-size:13px}.tk tr{background:none!important}
.tk td,.tk th{border:1px solid var(--jp-border-color2,#d9dee5);
padding:3px 10px;text-align:left!important;vertical-align:top;background:none}
.tk td.tk-key{white-space:nowrap;color:var(--jp-ui-font-color2,#5b6470)}
.tk-solved{--tk:#009e73}.tk-wrong{--tk:#d55e00}.tk-crash{--tk:#d55e00}.tk-timeout{--tk:#d55e00}
.tk-unanswered,.tk-refused{--tk:#8a929c}.tk-noted{--tk:#0072b2}.tk-hint,.tk-seen{--tk:#e69f00}
"""


class Card:
    """Something to display: HTML for a notebook, the same words for a terminal (and for nbval)."""

    def __init__(self, head: str, tag: str, body: str, status: str = "", dim: str = "", raw: str = "") -> None:
        self.head, self.tag, self.body, self.status, self.dim, self.raw = head, tag, body, status, dim, raw
        self.tail = ""  # what `raw` says, for a terminal

    def add(self, label: str, text: str) -> None:
        """A text under the rest, as it is, under a label."""
        self.raw += f'<p class="tk-dim">{escape(label)}</p><pre><code>{escape(text)}</code></pre>'
        self.tail += f"\n{label}\n{text}"

    def fold(self, label: str, text: str) -> None:
        """A text in small under the rest that opens with a click; a terminal shows it."""
        style = 'style="margin:6px 0 0;overflow-wrap:anywhere"'
        summary = f'<summary style="cursor:pointer">{escape(label)}</summary>'
        self.raw += f'<details class="tk-dim" {style}>{summary}{escape(text)}</details>'
        self.tail += f"\n{label}: {text}"

    def __repr__(self) -> str:
        first = " · ".join(x for x in (self.head, self.tag, self.dim) if x)
        return encodable(f"{first}\n{self.body}{self.tail}".rstrip())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        dim = f'<span class="tk-dim">{escape(self.dim)}</span>' if self.dim else ""
        tag = f'<span class="tk-tag">{escape(self.tag)}</span>' if self.tag else ""
        head = f"<b>{inline(self.head)}</b> {tag} {dim}"
        html = f'<style>{CSS}</style><div class="tk tk-{self.status}"><div class="tk-head">{head}</div>'
        return {"text/plain": repr(self), "text/html": encodable(f"{html}{markup(self.body)}{self.raw}</div>")}


def display(thing: Any) -> None:
    """Show it in the notebook; print it where there is none."""
    from IPython import get_ipython

    if get_ipython() is None:
        print(repr(thing))
        return
    from IPython.display import display as show

    show(thing)


class Ticker:
    """What goes on during something that takes seconds, in one place that the result takes in the end.

    A run by a machine (taskkit.store.is_fresh) sees the result only: what is compared must not depend on the pace.
    """

    def __init__(self, head: str) -> None:
        from IPython import get_ipython

        from .store import is_fresh

        self.head, self.silent, self.page, self.handle = head, is_fresh(), get_ipython() is not None, None

    def tell(self, words: str) -> None:
        """Say what comes next."""
        if self.silent:
            return
        if not self.page:
            print(f"{self.head}: {words}")
        else:
            self._put(Card(self.head, "…", words))

    def end(self, thing: Any) -> None:
        """Show the result where the words stood."""
        if self.silent or not self.page:
            display(thing)
        else:
            self._put(thing)

    def _put(self, thing: Any) -> None:
        from IPython.display import display as show

        if self.handle is None:
            self.handle = show(thing, display_id=True)
        else:
            self.handle.update(thing)


def inline(words: str) -> str:
    """`code`, **bold**; math between $ and code are left as they are, also inside bold."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        part = found[0]
        kept.append(f"<code>{escape(part[1:-1])}</code>" if part.startswith("`") else escape(part))
        return f"\0{len(kept) - 1}\0"

    text = escape(re.sub(r"`[^`]+`|\$[^$]+\$", keep, words))
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], text)


def markup(words: str) -> str:
    """The little markup as HTML."""
    out: list[str] = []
    for i, piece in enumerate(re.split(r"^```\w*\n(.*?)^```\s*$", words, flags=re.M | re.S)):
        if i % 2:
            out.append(f"<pre><code>{escape(piece.rstrip())}</code></pre>")
            continue
        for block in re.split(r"\n\s*\n", piece.strip()):
            if block.strip():
                out.append(_block(block.strip("\n")))
    return "".join(out)


def _block(block: str) -> str:
    """A paragraph, with any lists or tables that stand in it."""
    out: list[str] = []
    lines: list[str] = []
    kinds: list[tuple[str, str, Callable[[list[str]], str]]] = [
        ("ul", r"- ", lambda x: "<ul>" + "".join(f"<li>{inline(li[2:])}</li>" for li in x) + "</ul>"),
        ("ol", r"\d+\. ", lambda x: "<ol>" + "".join(f"<li>{inline(li.split('. ', 1)[1])}</li>" for li in x) + "</ol>"),
        ("table", r"\|", _table),
        ("p", r"", lambda x: f"<p>{inline(' '.join(x))}</p>"),
    ]
    now = ""
    draw = kinds[-1][2]
    for line in block.splitlines():
        kind, _, how = next(k for k in kinds if re.match(k[1], line))
        if kind != now and lines:
            out.append(draw(lines))
            lines = []
        now, draw = kind, how
        lines.append(line)
    return "".join([*out, draw(lines)])


def _table(lines: list[str]) -> str:
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in lines]
    head, *body = [r for r in rows if not all(re.fullmatch(r":?-+:?", c) for c in r)]
    out = "<table><tr>" + "".join(f"<th>{inline(c)}</th>" for c in head) + "</tr>"
    return out + "".join("<tr>" + "".join(f"<td>{inline(c)}</td>" for c in r) + "</tr>" for r in body) + "</table>"


def facts(rows: list[tuple[str, str]]) -> str:
    """Rows of (label, value) as an HTML table."""
    if not rows:
        return ""
    cells = "".join(
        f'<tr><td class="tk-key">{escape(k)}</td><td><code>{escape(v)}</code></td></tr>' for k, v in rows
    )
    return f"<table>{cells}</table>"


class Plain(str):
    """Text that is shown as it is, not as a Python string."""

    def __repr__(self) -> str:
        return str(self)


def short(value: Any, limit: int = 240) -> str:
    """A value in a line: floats rounded, long things cut in the middle."""
    text = encodable(_words(value))
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]} … {text[-limit // 4 :]}"


def encodable(text: str) -> str:
    """Half of a surrogate pair can be neither printed nor sent to a page: it becomes \\ud83d."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _words(value: Any) -> str:
    try:
        return _repr(value)
    except Exception as e:  # a learner's own __repr__, or an int of more digits than Python writes out
        if isinstance(value, int):
            return f"{'-' * (value < 0)}10^{int(value.bit_length() * math.log10(2))}"
        return f"<{type(value).__name__}, repr: {type(e).__name__}>"


def _repr(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        return _words(value.tolist()) if math.prod(value.shape) <= 16 else f"array{tuple(value.shape)}"
    if type(value) in (list, tuple):
        inside = ", ".join(_words(v) for v in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if type(value) is dict:
        return "{" + ", ".join(f"{_words(k)}: {_words(v)}" for k, v in value.items()) + "}"
    return repr(value)
