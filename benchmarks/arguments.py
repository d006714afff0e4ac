"""What the benchmarks share: arguments that end in a sentence instead of a traceback."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An argparse type: a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def positives(text: str) -> list[int]:
    """An argparse type: whole numbers above 0 with commas between them."""
    return [positive(part.strip()) for part in text.split(",")]
