"""Stop strings in a text that arrives token by token: found where they span tokens, never shown even in part.

A stop string such as "\\nUser:" comes over several tokens. Shown as it comes, its beginning would be on the screen
before anyone knows what it is. So whatever may still become a stop string is held back until that is decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class StoppingDetokenizer:
    """A detokenizer (push(token_id) and finish() -> str) whose text ends before the first of some stop strings.

    found: whether a stop string has come; what follows it is dropped. The joined results of push() and finish() are
    the answer without it. A push costs about the length of its piece, however long the text already is.
    """

    def __init__(self, detokenizer: Any, stop: Iterable[str]) -> None:
        self._inner = detokenizer
        self._stop = tuple(stop)
        self._held = ""  # the beginning of a stop string, so shorter than the longest of them
        self.found = False

    def push(self, token_id: int) -> str:
        """The text that is now certain to be part of the answer; "" once a stop string was found."""
        return self._take(self._inner.push(token_id))

    def finish(self) -> str:
        """The answer has ended: what was held back is text after all."""
        rest = self._take(self._inner.finish()) + self._held
        self._held = ""
        return rest

    def _take(self, piece: str) -> str:
        if self.found:
            return ""
        text = self._held + piece
        at = min((i for s in self._stop if (i := text.find(s)) >= 0), default=-1)
        if at >= 0:
            self.found, self._held = True, ""
            return text[:at]
        keep = self._could_begin(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _could_begin(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stop)), 0)
