"""The browser side as single files: anywidget wants one module a widget, and so does a saved page.

The JavaScript in static/ is ordinary ES modules that import one another as "./name.js". bundle()
puts a module behind everything it imports, each once, and takes the import and export words away;
top-level names must therefore be unique among the modules (a test checks it).
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import\s+\{([^}]*)\}\s+from\s+"\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default \{.*?^\};\n", re.MULTILINE | re.DOTALL)


@cache
def read(name: str) -> str:
    """The text of a file in static/."""
    return (STATIC / name).read_text(encoding="utf-8")


@cache
def styles() -> str:
    """The style sheet."""
    return read("style.css") + read("more.css")


@cache
def words() -> dict[str, dict[str, str]]:
    """The table of words: key -> {"zh": ..., "en": ...}."""
    return json.loads(read("i18n.json"))


@cache
def palette() -> dict[str, Any]:
    """Colours and hatching, as the browser and the still pictures share them."""
    return json.loads(read("palette.json"))


def translate(lang: str, key: str, **values: object) -> str:
    """A key's words in a language, with {names} filled in."""
    text = words()[key][lang]
    return re.sub(r"\{(\w+)\}", lambda m: str(values.get(m[1], "")), text)


def check_lang(lang: str) -> str:
    """The language, if the table has it."""
    if lang not in ("zh", "en"):
        raise ValueError(f'lang={lang!r}: the labels exist in "zh" (Chinese) and "en" (English).')
    return lang


def modules(entry: str) -> list[str]:
    """The modules an entry needs, itself last, each after those it imports."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        for _, other in _IMPORT.findall(read(name)):
            visit(other)
        order.append(name)

    visit(entry)
    return order


@cache
def bundle(entry: str) -> str:
    """One module with all that static/<entry> imports in it."""
    tables = {"I18N": words(), "PALETTE": palette()}
    parts = [f"const {k} = {json.dumps(v, ensure_ascii=False, separators=(',', ':'))};" for k, v in tables.items()]
    for name in modules(entry):
        text = _EXPORT.sub("", _IMPORT.sub("", read(name)))
        if name != entry:  # what another widget shows to anywidget is none of this one's business
            text = _DEFAULT.sub("", text)
        parts.append(f"// ---- {name}\n{text.strip()}")
    return "\n\n".join(parts) + "\n"
