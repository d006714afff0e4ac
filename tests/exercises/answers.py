"""How the lists of answers are written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Answers:
    """right: answers that must pass. wrong: (answer, the code it must get)."""

    right: list[Any]
    wrong: list[tuple[Any, str]]


@dataclass
class Ticks:
    """A self-grading of a free answer, given after `text` was noted."""

    text: str
    ticks: tuple[bool, ...]
