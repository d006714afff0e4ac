"""A backend for tests whose "KV cache" holds token ids, and whose next token is a hash of what it reads there.

It reads each row's context through the block table, as attention would. A block that is shared, moved, freed
or overwritten wrongly therefore changes the tokens, and `expected` says what they should be, without torch.
"""

from __future__ import annotations

import random
from typing import Any

from minirt.backends.base import ForwardBatch, build_arrays

VOCAB = 50


def next_token(context: list[int], ignore_eos: bool) -> int | None:
    """What follows a context: a small hash of it; None (end of sequence) now and then."""
    h = 17
    for t in context:
        h = (h * 31 + t + 1) % 1_000_003
    if h % 23 == 0 and not ignore_eos:
        return None
    return h % VOCAB


def expected(prompt: list[int], max_new_tokens: int, ignore_eos: bool) -> list[int]:
    """The answer of a request served alone."""
    context = list(prompt)
    for _ in range(max_new_tokens):
        token = next_token(context, ignore_eos)
        if token is None:
            break
        context.append(token)
    return context[len(prompt) :]


class FakeBackend:
    """Backend protocol over a list of token ids. fail_at: raise `error` at that execute() call."""

    name = "fake"
    needs_arrays = True

    def __init__(self, max_model_len: int = 512, fail_at: int | None = None, error: type[BaseException] = RuntimeError):
        self.vocab_size, self.max_model_len = VOCAB, max_model_len
        self.fail_at, self.error, self.calls = fail_at, error, 0
        self.host: dict[int, list[list[int]]] = {}

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        self.bs, self.num_blocks = block_size, num_blocks
        self.kv = [[-1] * block_size for _ in range(num_blocks)]

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        self.calls += 1
        if self.calls == self.fail_at:
            raise self.error("as the test asked")
        a = build_arrays(batch)
        for token, where in zip(a.input_ids, a.slot_mapping):
            if where >= 0:
                self.kv[where // self.bs][where % self.bs] = int(token)
        out = []
        for row in batch.sampled:
            n = batch.starts[row] + batch.counts[row]
            assert n == a.context_lens[row]
            context = [self.kv[a.block_tables[row][p // self.bs]][p % self.bs] for p in range(n)]
            for end in range(n - len(batch.drafts.get(row, ())), n + 1):
                out.append(next_token(context[:end], batch.seqs[row].request.ignore_eos))
        return out

    def step_cost(self, batches: list[ForwardBatch], swapped_blocks: int = 0) -> float:
        return 0.01 * len(batches) + 0.001 * sum(b.num_tokens for b in batches)

    def copy_out(self, seq_id: int, blocks: Any) -> None:
        assert seq_id not in self.host
        self.host[seq_id] = [list(self.kv[b]) for b in blocks]

    def copy_in(self, seq_id: int, blocks: Any) -> None:
        for b, content in zip(blocks, self.host.pop(seq_id), strict=True):
            self.kv[b] = content

    def drop(self, seq_id: int) -> None:
        self.host.pop(seq_id, None)

    def take(self, seq_id: int) -> Any:
        return self.host.pop(seq_id)

    def put(self, seq_id: int, kv: Any) -> None:
        assert seq_id not in self.host
        self.host[seq_id] = kv

    def encode(self, prompt: str) -> list[int]:
        return [ord(c) % VOCAB for c in prompt]

    def detokenizer(self) -> Any:
        return None

    def pieces(self, token_ids: Any) -> list[str]:
        return [chr(97 + t % 26) for t in token_ids]

    def describe(self) -> dict[str, Any]:
        return {"model": "fake", "device": "cpu", "dtype": "none"}


class Oracle:
    """Guesses for this backend: each of up to k tokens is right with probability `right`."""

    def __init__(self, k: int, right: float, seed: int = 0) -> None:
        self.k, self.right, self.seed = k, right, seed

    def propose(self, tokens: list[int], most: int) -> list[int]:
        context, out = list(tokens), []
        rng = random.Random(hash((self.seed, *tokens)))  # the same guess whenever the same is asked
        for _ in range(min(self.k, most)):
            token = next_token(context, ignore_eos=True)
            assert token is not None
            if rng.random() > self.right:
                token = (token + 1) % VOCAB
            context.append(token)
            out.append(token)
        return out
