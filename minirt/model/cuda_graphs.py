"""Decode on a GPU through captured CUDA graphs, in batch-size buckets.

What it is: a decode step launches several hundred small kernels, and for a small model the launches cost more than
the work. A CUDA graph records them once and launches all of them with one call. But a graph has fixed shapes and
fixed addresses, while a continuous batch changes its size all the time: so there is one graph for each size of a short
list of buckets, a batch is padded up to the next bucket, and inputs are copied into buffers that the graph knows.
Padded rows have a context of 0 tokens and write their K and V to a spare block that belongs to nobody.
What it is not: for prompts. Their shapes vary too much and their kernels are large; they run as they are.

As in vLLM and nano-vllm. Capture happens the first time a bucket is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .attention import AttentionMeta, PagedKV, paged_attention
from .decoder import AttentionFn, Decoder
from .fast_cpu import wanted

BUCKETS = (1, 2, 4, *range(8, 257, 8))


class Buffers(NamedTuple):
    """What a graph reads, at addresses that never change, for as many rows as its bucket has."""

    ids: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64
    places: Tensor  # [rows] int64; a padded row's is in the spare block
    tables: Tensor  # [rows, W] int32
    lens: Tensor  # [rows] int32; 0 for a padded row


def graph_forward(decoder: Decoder) -> GraphForward | None:
    """A GraphForward where it can run this decoder: on CUDA, with triton installed, not under MINIRT_PLAIN=1."""
    if decoder.device.type != "cuda" or not wanted():
        return None
    try:
        from .triton_attention import triton_attention
    except ImportError:
        return None
    return GraphForward(decoder, triton_attention)


class GraphForward:
    """Decoder.forward for a GPU: same arguments, same result. spare_blocks: how many more blocks than the engine's the
    cache must have; the last one takes what padded rows write."""

    spare_blocks = 1

    def __init__(self, decoder: Decoder, attend: AttentionFn, buckets: tuple[int, ...] = BUCKETS) -> None:
        self.decoder = decoder
        self.attend = attend
        self.buckets = buckets
        self._kv: PagedKV | None = None
        self._buffers: Buffers | None = None
        self._graphs: dict[int, tuple[Callable[[], object], Tensor]] = {}  # bucket -> (replay, hidden states)
        self._pool: object = None

    def __call__(self, input_ids: Tensor, positions: Tensor, kv: PagedKV, meta: AttentionMeta) -> Tensor:
        """input_ids, positions: [T] int64 -> hidden states [T, hidden]. Writes K and V of every position to kv."""
        n = len(input_ids)
        d = self.decoder
        if d.attend is not paged_attention:  # somebody has put an attention of their own there: use it
            return d.forward(input_ids, positions, kv, meta)
        if meta.prefill or n > self.buckets[-1]:
            return self._eager(input_ids, positions, kv, meta)
        if self._kv is not kv:
            self._start(kv)
        bucket = self.buckets[bisect_left(self.buckets, n)]
        buffers = self._rows(bucket)
        for buffer, value in zip(buffers, (input_ids, positions, meta.places)):
            buffer[:n].copy_(value)
        buffers.tables[:n, : meta.tables.shape[1]].copy_(meta.tables)
        buffers.lens[:n].copy_(meta.decode_lens)
        self._pad(buffers, n)
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket)
        replay, hidden = self._graphs[bucket]
        replay()
        return hidden[:n]

    def _start(self, kv: PagedKV) -> None:
        """Buffers for a new cache; graphs that write to another one are of no use any more."""
        self._kv = kv
        self._graphs.clear()
        self._pool = None
        rows, device = self.buckets[-1], self.decoder.device
        width = -(-self.decoder.config.max_model_len // kv.block_size)
        long, short = {"dtype": torch.int64, "device": device}, {"dtype": torch.int32, "device": device}
        self._buffers = Buffers(
            torch.zeros(rows, **long), torch.zeros(rows, **long), torch.zeros(rows, **long),
            torch.zeros(rows, width, **short), torch.zeros(rows, **short),
        )  # fmt: skip

    def _rows(self, bucket: int) -> Buffers:
        assert self._buffers is not None
        return Buffers(*(b[:bucket] for b in self._buffers))

    def _pad(self, buffers: Buffers, n: int) -> None:
        """Rows from n on do nothing: token 0 at position 0 of an empty context, stored where nobody reads."""
        assert self._kv is not None
        spare = self._kv.keys[0].shape[0] - 1
        buffers.ids[n:], buffers.positions[n:], buffers.lens[n:] = 0, 0, 0
        buffers.places[n:] = spare * self._kv.block_size
        buffers.tables[n:] = spare

    def _run(self, bucket: int) -> Tensor:
        """The forward over the first `bucket` rows of the buffers."""
        assert self._kv is not None
        ids, positions, places, tables, lens = self._rows(bucket)
        longest = tables.shape[1] * self._kv.block_size
        meta = AttentionMeta(places, False, self._kv.block_size, bucket, tables, lens, longest, [])
        return self._eager(ids, positions, self._kv, meta)

    def _eager(self, input_ids: Tensor, positions: Tensor, kv: PagedKV, meta: AttentionMeta) -> Tensor:
        """Decoder.forward with our attention in it for as long as it lasts."""
        plain, self.decoder.attend = self.decoder.attend, self.attend
        try:
            return self.decoder.forward(input_ids, positions, kv, meta)
        finally:
            self.decoder.attend = plain

    def _capture(self, bucket: int) -> tuple[Callable[[], object], Tensor]:
        """Record the forward of a bucket: (what replays it, where its result will lie)."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # a kernel's first run compiles it, which can't be recorded
            self._run(bucket)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            hidden = self._run(bucket)
        self._pool = self._pool or graph.pool()  # one graph runs at a time: they can share their scratch memory
        return graph.replay, hidden
