"""Paged decode attention for a GPU, as a Triton kernel.

What it is: one new token a row against its whole context, read block by block where the block table says, with
nothing gathered and the softmax taken on the way (Dao et al., 2022, "FlashAttention"; Kwon et al., 2023,
"PagedAttention"). One program serves one row and one key head, so that a key is loaded once for all query heads that
share it. What it is not: split over the context, so a few very long rows leave a large GPU half idle
(Flash-Decoding would split them).

Needs the package triton (it comes with torch's CUDA builds on Linux). With TRITON_INTERPRET=1 in the environment the
same kernel runs on a CPU, slowly, which is how the tests compare its numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import AttentionMeta, PagedKV, attend_prompts


@triton.jit
def _decode_kernel(  # type: ignore[no-untyped-def]
    query, keys, values, tables, lens, out, scale,
    width, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr, BLOCK: tl.constexpr, PADDED_BLOCK: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
):  # fmt: skip
    """query, out: [rows, kv_heads * GROUP, DIM]; keys, values: [blocks, BLOCK, kv_heads, DIM]; tables: [rows, width].

    Triton's arrays have powers of two as sizes, hence the PADDED_ ones and the masks."""
    row, head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    group, dim = tl.arange(0, PADDED_GROUP), tl.arange(0, PADDED_DIM)
    at = (row * kv_heads * GROUP + head * GROUP + group)[:, None] * DIM + dim[None, :]
    inside = (group < GROUP)[:, None] & (dim < DIM)[None, :]
    q = tl.load(query + at, mask=inside, other=0.0).to(tl.float32) * scale

    n = tl.load(lens + row)
    top = tl.full([PADDED_GROUP], -float("inf"), tl.float32)  # of the scores so far, for each query head
    total = tl.zeros([PADDED_GROUP], tl.float32)
    acc = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)
    offset = tl.arange(0, PADDED_BLOCK)
    for b in range(0, tl.cdiv(n, BLOCK)):
        block = tl.load(tables + row * width + b).to(tl.int64)
        seen = (offset < BLOCK) & (b * BLOCK + offset < n)
        place = ((block * BLOCK + offset) * kv_heads + head)[:, None] * DIM + dim[None, :]
        there = seen[:, None] & (dim < DIM)[None, :]
        k = tl.load(keys + place, mask=there, other=0.0).to(tl.float32)
        score = tl.sum(q[:, None, :] * k[None, :, :], 2)  # [PADDED_GROUP, PADDED_BLOCK]
        score = tl.where(seen[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight, shrink = tl.exp(score - higher[:, None]), tl.exp(top - higher)
        v = tl.load(values + place, mask=there, other=0.0).to(tl.float32)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * v[None, :, :], 1)
        total = total * shrink + tl.sum(weight, 1)
        top = higher
    # A row of a padded batch may have no context at all: 0, not 0 / 0.
    tl.store(out + at, (acc / tl.where(total > 0, total, 1.0)[:, None]).to(out.dtype.element_ty), mask=inside)


def decode(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lens: Tensor) -> Tensor:
    """q: [rows, heads, head_dim]; keys, values: [blocks, block_size, kv_heads, head_dim]; tables: [rows, W] int32;
    lens: [rows] int32, 0 for a row that is padding (its result is 0). Returns [rows, heads, head_dim]."""
    rows, heads, dim = q.shape
    _, block, kv_heads, _ = keys.shape
    q, out, group = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format), heads // kv_heads
    sizes: dict[str, Any] = {
        "GROUP": group, "PADDED_GROUP": triton.next_power_of_2(group), "BLOCK": block,
        "PADDED_BLOCK": triton.next_power_of_2(block), "DIM": dim, "PADDED_DIM": triton.next_power_of_2(dim),
    }  # fmt: skip
    if rows:
        _decode_kernel[(rows, kv_heads)](q, keys, values, tables, lens, out, dim**-0.5, tables.stride(0), **sizes)
    return out


def triton_attention(q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, layer: int, meta: AttentionMeta) -> Tensor:
    """paged_attention (see attention.py) with the decode rows done by the kernel and prompts by torch's SDPA."""
    out, n = torch.empty_like(q), meta.num_decode
    if n:
        out[:n] = decode(q[:n], kv.keys[layer], kv.values[layer], meta.tables, meta.decode_lens)
    attend_prompts(q, k, v, kv, layer, meta, out)
    return out
