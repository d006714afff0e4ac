"""What the widgets made of ordinary ipywidgets share: styled HTML, a stable repr, a still picture."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as w

from minirt.errors import ConfigError

from . import _still as still
from ._assets import styles


class Styled(w.HTML):
    """An HTML widget inside the common style sheet. (A <style> in a widget holds for the whole page.)"""

    def show(self, body: str, cls: str = "") -> None:
        """Replace what it shows."""
        self.value = f'<div class="mrt {cls}" style="border:0;padding:0;background:none">{body}</div>'


def within(name: str, value: float, low: float, high: float, *, whole: bool = True) -> None:
    """Raise ConfigError where a control could not begin with this value."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name}={value!r} must be {kind} from {low:,} to {high:,}.")


def style_sheet() -> w.HTML:
    """The style sheet, as an invisible child."""
    sheet = w.HTML(f"<style>{styles()}</style>")
    sheet.layout.display = "none"
    return sheet


class Card(w.VBox):
    """A column of widgets with a stable text form and a picture for where no kernel runs."""

    def __init__(self, children: list[w.Widget], **kwargs: Any) -> None:
        super().__init__([style_sheet(), *children], **kwargs)
        self.add_class("mrt-form")

    def plain(self) -> str:
        """The text form; it must be the same in every run."""
        return f"{type(self).__name__}()"

    def picture(self) -> str | None:
        """What stands for it without a kernel, in HTML, or nothing."""
        return None

    def __repr__(self) -> str:
        return self.plain()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return still.bundle(self.plain(), self.picture(), self.model_id)


def lines_picture(head: str, lines: list[str]) -> str:
    """A still picture that is only words: a head, and lines under it. Where styles are stripped, the words stay."""
    body = "<br>".join(map(escape, lines))
    return f'<div style="border-left:4px solid #1f6feb;padding-left:14px"><b>{escape(head)}</b><br>{body}</div>'


def wrap(words: str) -> list[str]:
    """The lines of a text; the page breaks them further where it must."""
    return [line for line in words.split("\n") if line]


def paragraph(words: str) -> str:
    """Plain text as HTML, line breaks kept."""
    return escape(words).replace("\n", "<br>")
