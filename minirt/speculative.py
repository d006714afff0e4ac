"""Speculative decoding: somebody guesses the next tokens, and the model checks all guesses in one forward.

A decode row computes one position, and for it a step reads all weights. A row with k guesses computes 1 + k
positions: the logits behind each of them say what really follows there, as long as every guess before it was right.
So the guesses that the model itself would have made are kept, and one token more, its own at the first place where
they part. What was computed behind a wrong guess is written over later. A greedy answer is therefore the one without
guesses, token for token; only the number of steps changes (Leviathan et al., ICML 2023; Chen et al., 2023).

What it is: the guessing, and the comparison. What it is not: a scheduler. A policy plans one row of one token as
ever, and guesses only use what its plan leaves of blocks and of the step's token budget.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence as Seq
from typing import Protocol

from .blocks import BlockPool
from .errors import ConfigError
from .lifecycle import Lifecycle
from .request import GREEDY_BELOW, Sequence


class Proposer(Protocol):
    """Who guesses."""

    def propose(self, tokens: list[int], most: int) -> Seq[int]:
        """Up to `most` ids that may come after `tokens` (a copy of prompt and answer so far); [] for no idea."""


class NgramLookup:
    """Guesses what followed the last time the latest tokens were there, in the request's own prompt and answer.

    k: most guesses a step. n, least: the last n tokens are looked up, then n - 1, down to `least`. Needs no second
    model, and is good where answers copy: summaries, edits of code, questions about a text (prompt lookup decoding,
    Saxena, 2023; LLMA, Yang et al., 2023; vLLM's "ngram" method). A look-up costs the length of the text.
    """

    def __init__(self, k: int = 4, n: int = 3, least: int = 1) -> None:
        if k < 1 or not 1 <= least <= n:
            raise ConfigError(f"NgramLookup(k={k}, n={n}, least={least}): k must be at least 1, and 1 <= least <= n.")
        self.k, self.n, self.least = k, n, least

    def __repr__(self) -> str:
        return f"NgramLookup(k={self.k}, n={self.n}, least={self.least})"

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """What followed the latest earlier place that ends like `tokens`; the longest ending that occurs counts."""
        k = min(self.k, most)
        for n in range(min(self.n, len(tokens) - 1), self.least - 1, -1):
            last, tail = tokens[-1], tokens[-n:]
            for end in range(len(tokens) - 1, n - 1, -1):  # tokens[end - n : end] is a place to compare with
                if tokens[end - 1] == last and tokens[end - n : end] == tail:
                    return tokens[end : end + k]
        return []


class Speculation(Lifecycle):
    """The guessing part of Engine."""

    speculation: Proposer | None
    _budget_left: int  # positions that this step's plan leaves

    def _draft(self, decode: list[Sequence]) -> dict[Sequence, list[int]]:
        """What somebody guesses for these rows, and blocks to compute it in. The plan's own blocks are taken already."""
        assert self.speculation is not None
        guesses = draft(self.speculation, decode, self.pool, self._budget_left, self.backend.vocab_size)
        for seq, guess in guesses.items():
            self._grow(seq, len(seq.tokens) + len(guess))
        return guesses

    def _receive_drafted(self, guesses: dict[Sequence, list[int]], tokens: list[int | None]) -> None:
        """Hand rows that guessed what the model says, token by token as if each had had a step of its own, up to the
        first guess that was wrong. tokens: 1 + len(guess) for each row."""
        assert self._record is not None
        first = 0
        for seq, guess in guesses.items():
            before = seq.num_computed
            for i, guessed in enumerate([*guess, None]):
                token = tokens[first + i]
                seq.num_computed += 1
                self._valid += 1
                self._receive([seq], [token])
                if seq.ended or token != guessed:
                    break
            first += 1 + len(guess)
            self._record.drafted.append((seq.id, len(guess), seq.num_computed - before - 1))


def draft(
    proposer: Proposer, decode: Seq[Sequence], pool: BlockPool, budget: int, vocab_size: int
) -> dict[Sequence, list[int]]:
    """Guesses for rows that decode, in this order, as far as `budget` positions and the pool's free blocks reach.

    Rows that sample (temperature above 0) get none. Raises ConfigError for a guess that is no token id.
    """
    guesses: dict[Sequence, list[int]] = {}
    spare = pool.num_free
    for seq in decode:
        if budget < 1 or seq.request.temperature >= GREEDY_BELOW or seq.table is None:
            continue
        room = seq.table.capacity + spare * pool.block_size - len(seq.tokens)
        # The last token an answer has room for is the model's own.
        most = min(budget, room, seq.max_new_tokens - seq.num_generated - 1)
        if most < 1:
            continue
        guess = _checked(proposer, seq, most, vocab_size)
        if guess:
            guesses[seq] = guess
            budget -= len(guess)
            spare -= seq.table.blocks_for(len(seq.tokens) + len(guess))
    return guesses


def _checked(proposer: Proposer, seq: Sequence, most: int, vocab_size: int) -> list[int]:
    try:
        guess = [operator.index(t) for t in proposer.propose(list(seq.tokens), most)][:most]
    except TypeError as e:
        raise ConfigError(f"{type(proposer).__name__}.propose() must return a list of token ids ({e}).") from None
    if guess and not 0 <= min(guess) <= max(guess) < vocab_size:
        raise ConfigError(
            f"{type(proposer).__name__}.propose() guessed {guess} for request {seq.id}; ids go from 0 to {vocab_size - 1}."
        )
    return guess
