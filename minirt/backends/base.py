"""What an engine needs of a backend, and the one ragged batch it hands over.

A forward is one flat list of token positions. Rows (requests) of different length and kind lie one
after another in it; a row's query sees all of its own context through its block table and nothing
of anyone else's.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..request import Sequence


@dataclass(slots=True)
class ForwardBatch:
    """One forward: row i computes tokens[starts[i] : starts[i] + counts[i]] of seqs[i], then pads[i] for nothing.

    Decode rows (one token each) come first: num_decode of them. sampled: the rows, in order, whose last
    position is turned into a token. drafts: sampled row -> guesses; it computes them as well, behind its token, and
    each of its 1 + len(guesses) positions is turned into a token (counts include them).
    tables: block ids by slot [slots, blocks], kept by the engine.
    """

    seqs: list[Sequence]
    starts: list[int]
    counts: list[int]
    pads: list[int]
    num_decode: int
    sampled: list[int]
    tables: NDArray[np.int32] | None = None
    block_size: int = 16
    drafts: dict[int, list[int]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.seqs)

    @property
    def num_tokens(self) -> int:
        """Positions computed, padding included."""
        return sum(self.counts) + sum(self.pads)

    @property
    def num_sampled(self) -> int:
        """Positions that are turned into a token: one a sampled row, and one a guess."""
        return len(self.sampled) + (sum(map(len, self.drafts.values())) if self.drafts else 0)

    def sampled_positions(self) -> list[tuple[Sequence, int]]:
        """(row's request, place in it that the token is to fill) of each of those positions, in execute()'s order."""
        out = []
        for i in self.sampled:
            end, more = self.starts[i] + self.counts[i], len(self.drafts.get(i, ()))
            out += [(self.seqs[i], at) for at in range(end - more, end + 1)]
        return out

    def arrays(self) -> BatchArrays:
        """The batch as flat arrays, ready to become tensors."""
        return build_arrays(self)


class BatchDecodeInput(ForwardBatch):
    """A batch in which every row decodes one token (the source chapter's name for it)."""

    __slots__ = ()


@dataclass(slots=True)
class BatchArrays:
    """A ForwardBatch as arrays. T positions, R rows, S sampled rows, W blocks in the widest table.

    input_ids, positions, slot_mapping: [T] int64; slot_mapping is block * block_size + offset, where the
    position's K and V are written, or -1 for padding (written nowhere). query_start: [R + 1] int32, row i
    owns positions query_start[i] : query_start[i + 1]. context_lens: [R] int32, tokens of the row in the cache
    once this forward has written (padding left out). block_tables: [R, W] int32. last: [S] int64, flat index
    of each sampled row's last real position, and of those before it that check guesses. max_context: the longest
    context. has_padding: whether any place is -1.
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slot_mapping: NDArray[np.int64]
    query_start: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    last: NDArray[np.int64]
    num_decode: int
    max_context: int
    has_padding: bool


def build_arrays(batch: ForwardBatch) -> BatchArrays:
    """Lay a ForwardBatch out flat."""
    assert batch.tables is not None  # the engine always sets it for backends that compute
    bs = batch.block_size
    rows, n = len(batch.seqs), batch.num_decode
    if n == rows and rows and not any(batch.pads):
        return _decode_arrays(batch, batch.tables)
    starts = np.fromiter(batch.starts, np.int64, rows)
    counts = np.fromiter(batch.counts, np.int64, rows)
    pads = np.fromiter(batch.pads, np.int64, rows)
    context = starts + counts
    slots = np.fromiter((s.slot for s in batch.seqs), np.int64, rows)
    max_context = int(context.max()) if rows else 0
    tables = batch.tables[slots, : -(-max_context // bs)]
    width = counts + pads
    query_start64: NDArray[np.int64] = np.concatenate(([0], np.cumsum(width)))
    total = int(query_start64[-1])
    flat: list[int] = []
    for i, (s, p, c, pad) in enumerate(zip(batch.seqs, batch.starts, batch.counts, batch.pads)):
        tokens = s.tokens[p : p + c]
        if i in batch.drafts:
            tokens += batch.drafts[i]
        flat += tokens
        flat += [0] * (c + pad - len(tokens))
    row_of: NDArray[np.int64] = np.repeat(np.arange(rows), width)
    offset = np.arange(total) - query_start64[:-1][row_of]
    positions = starts[row_of] + offset
    real = offset < counts[row_of]
    safe = np.where(real, positions, 0)
    where = np.where(real, tables[row_of, safe // bs].astype(np.int64) * bs + safe % bs, -1)
    sampled = np.fromiter(batch.sampled, np.int64, len(batch.sampled))
    last = query_start64[:-1][sampled] + counts[sampled] - 1
    if batch.drafts:
        spans = [(int(end), len(batch.drafts.get(i, ()))) for i, end in zip(batch.sampled, last)]
        last = np.concatenate([np.arange(end - more, end + 1) for end, more in spans])
    return BatchArrays(
        np.asarray(flat, np.int64),
        positions,
        where,
        query_start64.astype(np.int32),
        context.astype(np.int32),
        tables,
        last,
        n,
        max_context,
        bool(pads.any()),
    )


def _decode_arrays(batch: ForwardBatch, tables: NDArray[np.int32]) -> BatchArrays:
    """build_arrays where every row decodes. As few calls as can be: after a forward, which has swept the processor's
    caches, each of NumPy's costs ten times what it costs in a loop."""
    bs, rows = batch.block_size, len(batch.seqs)
    # A row that has ended and is computed for nothing is past its tokens: it is fed id 0.
    ids = [s.tokens[p] if p < len(s.tokens) else 0 for s, p in zip(batch.seqs, batch.starts)]
    slots = [s.slot for s in batch.seqs]
    block, offset = [p // bs for p in batch.starts], [p % bs for p in batch.starts]
    flat = np.fromiter(chain(ids, batch.starts, slots, block, offset), np.int64, 5 * rows).reshape(5, rows)
    longest = max(batch.starts) + 1
    where = tables[flat[2], flat[3]] * np.int64(bs) + flat[4]
    context = (flat[1] + 1).astype(np.int32)
    ends: NDArray[np.int32] = np.arange(rows + 1, dtype=np.int32)
    last = np.fromiter(batch.sampled, np.int64, len(batch.sampled))
    return BatchArrays(
        flat[0], flat[1], where, ends, context, tables[flat[2], : -(-longest // bs)], last, rows, longest, False
    )


class Backend(Protocol):
    """What computes. An engine owns one; policies never see it.

    name, device, dtype: for the trace. vocab_size and max_model_len bound requests. needs_arrays: False where
    a backend only counts (the simulator), so that the engine need not keep block tables as arrays.
    """

    name: str
    vocab_size: int
    max_model_len: int
    needs_arrays: bool

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        """Make the KV pool. Raises ConfigError where it can't be had, with the bytes it would take."""

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """Run the forward; a token id for each of batch.sampled, or None where the sequence ends there.

        A row with guesses has one for each of its last 1 + len(guesses) positions, in order.
        """

    def copy_out(self, seq_id: int, blocks: Seq[int]) -> None:
        """Copy the blocks' KV to host memory under seq_id (swap out)."""

    def copy_in(self, seq_id: int, blocks: Seq[int]) -> None:
        """Copy what copy_out kept for seq_id into `blocks`, and forget it (swap in). Blocks may be fewer."""

    def drop(self, seq_id: int) -> None:
        """Forget what copy_out kept for seq_id, if anything."""

    def take(self, seq_id: int) -> Any:
        """Give away what copy_out kept for seq_id: another backend's put() takes it (hand-over)."""

    def put(self, seq_id: int, kv: Any) -> None:
        """Keep what another backend's take() gave as if copy_out had made it here under seq_id."""

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, through the chat template where there is one."""

    def detokenizer(self) -> Any:
        """A new incremental decoder with push(token_id) -> str and finish() -> str, or None without a tokenizer."""

    def pieces(self, token_ids: Seq[int]) -> list[str]:
        """The text each token adds; the last ones are empty while a character is not whole."""

    def describe(self) -> dict[str, Any]:
        """model, device, dtype and what else the trace's header should say of this backend."""
