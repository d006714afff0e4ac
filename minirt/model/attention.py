"""The paged KV cache, and attention over it in plain torch.

What it is: the readable version that every faster one is tested against. What it is not: fast at long
contexts. For decode rows it gathers each row's blocks into one padded array and masks what is too long;
that copy is exactly what a paged attention kernel saves (Kwon et al., 2023, "PagedAttention").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .config import ModelConfig

if TYPE_CHECKING:
    from ..backends.base import BatchArrays

QUERIES = 64  # of a prompt that torch's CPU kernel is given at once


class PagedKV:
    """Keys and values of every layer, in blocks.

    data: [2, layers, num_blocks, block_size, kv_heads, head_dim]; keys[l] and values[l] are views of it with
    the first two dimensions gone. Zeroed at the start, because a masked position still takes part in the
    arithmetic and memory that was never written may hold NaN.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (2, config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.block_size = block_size
        self.data = torch.zeros(shape, device=device, dtype=dtype)
        self.keys: list[Tensor] = list(self.data[0].unbind(0))
        self.values: list[Tensor] = list(self.data[1].unbind(0))

    def write(self, layer: int, k: Tensor, v: Tensor, meta: AttentionMeta) -> None:
        """Store k and v, [T, kv_heads, head_dim], each position in its slot; padding is stored nowhere."""
        if meta.real is not None:
            k, v = k[meta.real], v[meta.real]
        self.keys[layer].flatten(0, 1).index_copy_(0, meta.slots, k)
        self.values[layer].flatten(0, 1).index_copy_(0, meta.slots, v)


@dataclass(eq=False)
class PrefillRow:
    """One row that computes several positions: first:last of the flat batch.

    start tokens were in the cache before, context are once this forward has written; table [W] int32 (on the host) names
    its blocks. A row with nothing in the cache before needs no more. What only torch's attention over an earlier part
    needs, on `device`, is made when asked for.
    """

    first: int
    last: int
    context: int
    start: int
    table: Tensor
    block_size: int
    device: torch.device

    @cached_property
    def blocks(self) -> Tensor:
        """[blocks of the context] int64: their ids."""
        return self.table[: -(-self.context // self.block_size)].to(self.device, torch.int64)

    @cached_property
    def mask(self) -> Tensor:
        """[last - first, context]: which tokens each position sees."""
        at = torch.arange(self.start, self.start + self.last - self.first, device=self.device)
        return torch.arange(self.context, device=self.device) <= at[:, None]


@dataclass(eq=False)
class AttentionMeta:
    """Where this forward's positions live; made once, used by every layer.

    places: [T] int64, block * block_size + offset, or -1 for padding. The first num_decode positions are decode rows:
    tables [num_decode, W] int32 and decode_lens [num_decode] int32 (context lengths, this position included, the
    largest of them `longest`) are theirs; prefill describes the others. What only some paths need is made when asked
    for.
    """

    places: Tensor
    has_padding: bool
    block_size: int
    num_decode: int
    tables: Tensor
    decode_lens: Tensor
    longest: int
    prefill: list[PrefillRow]

    @cached_property
    def real(self) -> Tensor | None:
        """Indices of the positions that are no padding, or None where there is no padding."""
        return (self.places >= 0).nonzero()[:, 0] if self.has_padding else None

    @cached_property
    def slots(self) -> Tensor:
        """[real positions] int64: places without the padding."""
        return self.places if self.real is None else self.places[self.real]

    @cached_property
    def decode_blocks(self) -> Tensor:
        """tables as int64, which torch's indexing wants."""
        return self.tables.to(torch.int64)

    @cached_property
    def decode_mask(self) -> Tensor:
        """[num_decode, 1, 1, W * block_size]: which positions of its blocks a decode row sees."""
        at = torch.arange(self.tables.shape[1] * self.block_size, device=self.tables.device)
        return (at < self.decode_lens[:, None])[:, None, None, :]


def make_meta(a: BatchArrays, block_size: int, device: torch.device) -> AttentionMeta:
    """The AttentionMeta of a batch, on `device`."""
    n = a.num_decode
    longest = a.max_context if n == len(a.context_lens) else int(a.context_lens[:n].max()) if n else 0
    tables = np.ascontiguousarray(a.block_tables[:n, : -(-longest // block_size)])
    rows = []
    for i in range(n, len(a.context_lens)):
        first, last, context = int(a.query_start[i]), int(a.query_start[i + 1]), int(a.context_lens[i])
        start = int(a.positions[first])
        table = torch.from_numpy(a.block_tables[i])
        rows.append(PrefillRow(first, last, context, start, table, block_size, device))
    return AttentionMeta(
        torch.from_numpy(a.slot_mapping).to(device), a.has_padding, block_size, n,
        torch.from_numpy(tables).to(device), torch.from_numpy(a.context_lens[:n]).to(device), longest, rows,
    )  # fmt: skip


def paged_attention(q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, layer: int, meta: AttentionMeta) -> Tensor:
    """Attention of every position over its own row. q: [T, heads, head_dim]; k, v: [T, kv_heads, head_dim],
    this forward's own, already written. Returns [T, heads, head_dim]."""
    out = torch.empty_like(q)
    n = meta.num_decode
    if n:
        out[:n] = _decode(q[:n], kv, layer, meta)
    attend_prompts(q, k, v, kv, layer, meta, out)
    return out


def attend_prompts(q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, layer: int, meta: AttentionMeta, out: Tensor) -> None:
    """paged_attention's part for the rows that compute several positions, written to their places in out."""
    for row in meta.prefill:
        span = slice(row.first, row.last)
        if not row.start:
            out[span] = _row(q[span], k[span], v[span], None)
        else:
            past_k = kv.keys[layer][row.blocks].flatten(0, 1)[: row.context]
            past_v = kv.values[layer][row.blocks].flatten(0, 1)[: row.context]
            out[span] = _row(q[span], past_k, past_v, row.mask, row.start)


def _decode(q: Tensor, kv: PagedKV, layer: int, meta: AttentionMeta) -> Tensor:
    """One query a row, all rows at once. q: [n, heads, head_dim]."""
    n, heads, dim = q.shape
    k = kv.keys[layer][meta.decode_blocks].flatten(1, 2).transpose(1, 2)  # [n, kv_heads, W * block_size, head_dim]
    v = kv.values[layer][meta.decode_blocks].flatten(1, 2).transpose(1, 2)
    # Grouped-query attention: the heads that share a key head stand where queries of one head would stand.
    grouped = q.view(n, k.shape[1], heads // k.shape[1], dim)
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=meta.decode_mask).reshape(n, heads, dim)


def _row(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
    """Many queries of one row, the first at position start; causal where mask is None, which start = 0 allows.
    q: [t, heads, head_dim]; k, v: [c, kv_heads, head_dim]."""
    t, heads, dim = q.shape
    if t > 2 * QUERIES and q.device.type == "cpu":
        # The kernel there also computes what the mask hides: give it some queries at a time, and the keys they see.
        parts = []
        for i in range(0, t, QUERIES):
            j = min(i + QUERIES, t)
            seen = torch.ones(j - i, j, dtype=torch.bool).tril(i) if mask is None else mask[i:j, : start + j]
            parts.append(_row(q[i:j], k[: start + j], v[: start + j], seen))
        return torch.cat(parts)
    kv_heads = k.shape[1]
    group = heads // kv_heads
    q = q.unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3)  # [kv_heads, group, t, head_dim]
    k = k.transpose(0, 1)[:, None].expand(-1, group, -1, -1)  # seen by each head of the group, copied for none
    v = v.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out.permute(2, 0, 1, 3).reshape(t, heads, dim)
