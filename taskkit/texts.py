"""The words learners read. They are kept apart from the code, a module a chapter: taskkit/zh/ch01.py and so on.

An edition in another language is another folder with the same modules.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from .view import short

LANG = "zh"


@dataclass
class Text:
    """A task's words, in the markup of taskkit.view.

    hints: opened one at a time. messages: what is wrong, by code, as raised by the judge; {fields} are filled in.
    after: shown when it is solved: what to take from it. why: why a wrong answer matters, where no message fits.
    options: of a choice or of a prediction with choices, key -> (words, why it is wrong; empty for the right one).
    model, checklist: of a free answer; a checklist item is (claim, what to read again if it is missing).
    """

    title: str
    question: str
    hints: list[str] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)
    after: str = ""
    why: str = ""
    options: dict[str, tuple[str, str]] = field(default_factory=dict)
    model: str = ""
    checklist: list[tuple[str, str]] = field(default_factory=list)


def text_of(task_id: str) -> Text:
    """The words of a task."""
    chapter = importlib.import_module(f".{LANG}.ch{task_id.split('.')[0]}", __package__)
    return chapter.TEXTS[task_id]


def say(key: str, **values: Any) -> str:
    """One of the sentences that all tasks share."""
    return fill(importlib.import_module(f".{LANG}", __package__).COMMON[key], values)


def fill(words: str, values: dict[str, Any]) -> str:
    """Put values where {their name} stands; other braces (LaTeX, sets) are left alone."""
    for name, value in values.items():
        words = words.replace("{" + name + "}", value if isinstance(value, str) else short(value))
    return words
