"""The CPU's fast path: linears in oneDNN's own layout, and what lies between them in C.

What it is: the same model as decoder.py, tested against it. `pack` turns each Linear's weight into the blocked layout
that oneDNN would otherwise make anew at every call. `CpuForward` is Decoder.forward with the kernels of fast_cpu.c
(and of fast_cpu_avx512.c where the processor multiplies bfloat16), compiled for the model's head size when first needed
(one to two seconds; kept in minirt's cache folder).
What it is not: needed. Where oneDNN, a C compiler or Linux is missing, or with MINIRT_PLAIN=1 in the environment,
the plain path runs. Neither is exact to the last bit of the other: sums are taken in another order.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from itertools import chain
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttentionMeta, PagedKV, attend_prompts, paged_attention
from .cpu_kernels import FEW_ROWS, KERNEL_DTYPES, KEYS, TILE, Kernels, Step, kernels
from .decoder import Decoder, Linear, RMSNorm
from .sampling import greedy


def wanted() -> bool:
    """False where MINIRT_PLAIN asks for the plain path: set to anything but nothing, 0, false, no or off."""
    return os.environ.get("MINIRT_PLAIN", "").strip().lower() in ("", "0", "false", "no", "off")


# -- linears ------------------------------------------------------------------------------------
class PackedLinear:
    """A Linear whose weight lies in oneDNN's layout. The plain weight is not kept.

    few_rows: a kernel that reads the same memory, for a few rows at a time (decode); it is used where it is seen to give
    what oneDNN gives. oneDNN's own is made for many rows, and is a third slower where reading the weight takes longest.
    """

    def __init__(self, plain: Linear, few_rows: Callable[..., None] | None = None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight)
        self.bias = plain.bias
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.dtype, (self.outs, self.width) = plain.weight.dtype, plain.weight.shape
        self.few_rows: Callable[..., None] | None = None
        if few_rows is not None and (where := self._readable()):
            self.where, self.bias_at = where, None if self.bias is None else self.bias.data_ptr()
            x = torch.linspace(-1, 1, 2 * self.width).sin().view(2, -1).to(plain.weight.dtype)
            expected = self(x)
            self.few_rows = few_rows
            if not torch.allclose(self(x).float(), expected.float(), rtol=0.02, atol=0.02 * float(expected.abs().max())):
                self.few_rows = None  # another layout than the kernel reads

    def _readable(self) -> int:
        """Where the packed weight lies, if its size is that of the layout which the kernel reads; else 0."""
        try:
            size, where = torch.ops.mkldnn._nbytes(self.packed), torch.ops.mkldnn.data_ptr(self.packed)
        except (AttributeError, RuntimeError):  # not in this torch
            return 0
        return int(where) if size == 2 * self.outs * self.width and not self.outs % 64 and not self.width % 2 else 0

    def __call__(self, x: Tensor) -> Tensor:
        rows = len(x)
        if self.few_rows is not None and rows <= FEW_ROWS and self._fits(x):
            out = x.new_empty(rows, self.outs)
            at, threads = x.data_ptr(), torch.get_num_threads()
            self.few_rows(at, self.where, self.bias_at, out.data_ptr(), rows, self.width, self.outs, threads)
            return out
        return self.by_onednn(x) if rows else x.new_empty(0, self.outs)  # oneDNN refuses an empty product

    def _fits(self, x: Tensor) -> bool:
        """Whether the kernel can read x. Whatever else x is, oneDNN takes it or says what is wrong with it."""
        return x.dtype is self.dtype and x.dim() == 2 and x.shape[1] == self.width and x.is_contiguous()

    def by_onednn(self, x: Tensor) -> Tensor:
        """The same by oneDNN, however few the rows; benchmarks measure against it."""
        return self.product(x, self.packed, self.bias, "none", [], "")


def pack(decoder: Decoder) -> bool:
    """Replace the decoder's Linears by packed ones, one at a time; False where this torch can't do it.

    Weights stay in memory once, except that of a tied head: the embedding needs its rows as they are.
    """
    if not (wanted() and decoder.device.type == "cpu" and can_pack(decoder.dtype)):
        return False
    few_rows = getattr(_kernels_for(decoder).library, "few_rows", None)
    decoder.replace_linears(lambda plain: PackedLinear(plain, few_rows))
    return True


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies packed weights of this dtype here: tried out, because the operators are internal."""
    if dtype not in KERNEL_DTYPES or not torch.backends.mkldnn.is_available():
        return False
    try:
        if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        x, weight, bias = (
            torch.eye(32, dtype=dtype),
            torch.arange(1024.0).view(32, 32).to(dtype),
            torch.ones(32).to(dtype),
        )
        return torch.allclose(PackedLinear(Linear(weight, bias))(x), F.linear(x, weight, bias))
    except (AttributeError, RuntimeError, TypeError):  # not in this build, or its signature has changed
        return False


# -- the forward --------------------------------------------------------------------------------
KNOWN_LINEARS: set[type] = {Linear, PackedLinear}  # whose results the kernels can read as they are
LINEARS = attrgetter("qkv", "o", "gate_up", "down")
NORM_DTYPES = attrgetter("attn_norm.weight.dtype", "mlp_norm.weight.dtype")


def fast_forward(decoder: Decoder) -> CpuForward | None:
    """A CpuForward where it can run this decoder, else None; why_plain() then says why."""
    library = _kernels_for(decoder).library
    return CpuForward(decoder, library) if library is not None else None


def why_plain(decoder: Decoder) -> str:
    """Why fast_forward() gives None for this decoder, or nothing where it doesn't."""
    return _kernels_for(decoder).why_not


def _kernels_for(decoder: Decoder) -> Kernels:
    c = decoder.config
    if decoder.device.type != "cpu":
        return Kernels(None, f"the kernels are for a CPU, not {decoder.device.type}")
    if not wanted():
        return Kernels(None, "MINIRT_PLAIN asks for it")
    if c.head_dim % 2:
        return Kernels(None, f"head_dim={c.head_dim} is odd")
    return kernels(decoder.dtype, c.head_dim, c.num_heads // c.num_kv_heads)


class CpuForward:
    """Decoder.forward for a CPU: same arguments, same result.

    Where somebody has put an attention or a linear of their own into the decoder, the plain forward runs, so that it is
    used: the kernels take addresses, and can't know what they would find there.
    """

    def __init__(self, decoder: Decoder, library: ctypes.CDLL) -> None:
        self.decoder = decoder
        self.lib = library
        self.prefills = hasattr(library, "paged_prefill")
        self._scores = torch.empty(0)
        self._packed = torch.empty(0, dtype=decoder.dtype)

    def _as_made(self) -> bool:
        """Whether the decoder's parts are of the kinds that the kernels know."""
        d = self.decoder
        kinds = set(map(type, chain.from_iterable(map(LINEARS, d.layers))))
        dtypes = set(chain.from_iterable(map(NORM_DTYPES, d.layers)))
        return d.attend is paged_attention and kinds <= KNOWN_LINEARS and dtypes <= {d.dtype}

    def __call__(self, input_ids: Tensor, positions: Tensor, kv: PagedKV, meta: AttentionMeta) -> Tensor:
        """input_ids, positions: [T] int64 -> hidden states [T, hidden]. Writes K and V of every position to kv."""
        d, lib = self.decoder, self.lib
        if not self._as_made():
            return d.forward(input_ids, positions, kv, meta)
        x = d.embed[input_ids]  # the residual stream, changed in place
        angle = positions[:, None].float() * d.rope.inv_freq
        cos, sin = angle.cos() * d.rope.scale, angle.sin() * d.rope.scale
        normed = torch.empty_like(x)
        attended = x.new_empty(len(x), d.config.q_size)
        active = x.new_empty(len(x), d.config.intermediate_size)
        step = self._step(x, normed, attended, active, cos, sin, kv, meta)
        delta = 0  # where the last linear's result lies; added to x by the norm that follows
        for layer in d.layers:
            lib.add_rms_norm(step, delta, layer.attn_norm.weight.data_ptr())
            qkv = layer.qkv(normed)
            if layer.q_norm is not None and layer.k_norm is not None:
                self._norm_heads(qkv, layer.q_norm, layer.k_norm)
            lib.attend(step, qkv.data_ptr(), layer.index)
            if meta.prefill:
                self._attend_prompts(step, qkv, kv, layer.index, meta, attended)
            out = layer.o(attended)
            lib.add_rms_norm(step, out.data_ptr(), layer.mlp_norm.weight.data_ptr())
            gate_up = layer.gate_up(normed)
            lib.silu_mul(step, gate_up.data_ptr())
            out = layer.down(active)
            delta = out.data_ptr()
        return x.add_(out)

    def _step(
        self, x: Tensor, normed: Tensor, attended: Tensor, active: Tensor, cos: Tensor, sin: Tensor, kv: PagedKV,
        meta: AttentionMeta,
    ) -> Step:  # fmt: skip
        c, (keys, values) = self.decoder.config, kv.data.unbind(0)
        stride = -(-meta.longest // TILE) * TILE
        if self._scores.numel() < meta.num_decode * c.num_heads * stride:
            self._scores = torch.empty(meta.num_decode * c.num_heads * stride)
        arrays = (x, normed, attended, active, keys, values, cos, sin, meta.places, meta.tables, meta.decode_lens)
        return Step(
            *(a.data_ptr() for a in arrays), self._scores.data_ptr(),
            len(x), meta.num_decode, c.hidden_size, c.intermediate_size, c.num_kv_heads, kv.block_size,
            meta.tables.shape[1], stride, keys.stride(0), c.norm_eps, c.head_dim**-0.5, torch.get_num_threads(),
        )  # fmt: skip

    def _norm_heads(self, qkv: Tensor, q_norm: RMSNorm, k_norm: RMSNorm) -> None:
        """Qwen3's norms of query and key heads, in place."""
        c = self.decoder.config
        q, k = qkv[:, : c.q_size], qkv[:, c.q_size : c.q_size + c.kv_size]
        q.copy_(q_norm(q.unflatten(1, (-1, c.head_dim))).flatten(1))
        k.copy_(k_norm(k.unflatten(1, (-1, c.head_dim))).flatten(1))

    def _attend_prompts(
        self, step: Step, qkv: Tensor, kv: PagedKV, layer: int, meta: AttentionMeta, out: Tensor
    ) -> None:
        """The rows that compute several positions: by the kernel, where there is one, else by torch."""
        c = self.decoder.config
        if not self.prefills:
            q, k, v = qkv.unflatten(1, (-1, c.head_dim)).split((c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
            return attend_prompts(q, k, v, kv, layer, meta, out.view(-1, c.num_heads, c.head_dim))
        for row in meta.prefill:
            room = 2 * c.kv_size * -(-row.context // KEYS) * KEYS
            if self._packed.numel() < room:
                self._packed = qkv.new_empty(room)
            rows = row.context - row.start
            self.lib.paged_prefill(
                step, qkv.data_ptr(), layer, row.first, rows, row.start, row.table.data_ptr(), self._packed.data_ptr()
            )
            out[row.first + rows : row.last] = 0  # padding attends to nothing

    def greedy(self, logits: Tensor) -> Tensor:
        """sampling.greedy, read by all threads: the logits of 256 rows are 25 MB."""
        if logits.dtype is not torch.bfloat16 or not logits.is_contiguous():
            return greedy(logits)
        best = torch.empty(len(logits), dtype=torch.int64)
        threads = torch.get_num_threads() if len(logits) >= 128 else 1  # a row takes a microsecond
        self.lib.first_largest(logits.data_ptr(), best.data_ptr(), *logits.shape, threads)
        return best
