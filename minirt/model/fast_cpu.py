"""The CPU's fast path: linears in oneDNN's own layout, and what lies between them in C.

What it is: the same model as decoder.py, tested against it. `pack` turns each Linear's weight into the blocked layout
that oneDNN would otherwise make anew at every call. `CpuForward` is Decoder.forward with the kernels of fast_cpu.c,
which are compiled for the model's head size when first needed (about a second; kept in minirt's cache folder).
What it is not: needed. Where oneDNN, a C compiler or Linux is missing, or with MINIRT_PLAIN=1 in the environment,
the plain path runs. Neither is exact to the last bit of the other: sums are taken in another order.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttentionMeta, PagedKV, attend_prompts, paged_attention
from .decoder import Decoder, Linear
from .weights import cache_dir

KERNEL_DTYPES = {torch.bfloat16: ["-DBF16"], torch.float32: []}
# Sums may be taken in any order (that is what makes them fast); NaN and infinity keep their meaning.
FLAGS = ["-O3", "-march=native", "-shared", "-fPIC", "-fno-math-errno"]
FLAGS += ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
FEW = 1 << 14  # numbers that one thread is through with before a second one has started


def wanted() -> bool:
    """False where MINIRT_PLAIN=1 asks for the plain path."""
    return os.environ.get("MINIRT_PLAIN", "") in ("", "0")


# -- linears ------------------------------------------------------------------------------------
class PackedLinear:
    """A Linear whose weight lies in oneDNN's layout. The plain weight is not kept."""

    def __init__(self, plain: Linear) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight)
        self.bias = plain.bias

    def __call__(self, x: Tensor) -> Tensor:
        if not len(x):  # oneDNN refuses an empty product
            return x.new_empty(0, self.packed.shape[0])
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")


def pack(decoder: Decoder) -> bool:
    """Replace the decoder's Linears by packed ones, one at a time; False where this torch can't do it.

    Weights stay in memory once, except that of a tied head: the embedding needs its rows as they are.
    """
    if not (wanted() and decoder.device.type == "cpu" and can_pack(decoder.dtype)):
        return False
    decoder.replace_linears(PackedLinear)
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


# -- kernels ------------------------------------------------------------------------------------
P, N = ctypes.c_void_p, ctypes.c_long
SIGNATURES: dict[str, list[Any]] = {
    "add_rms_norm": [P, P, P, P, N, N, ctypes.c_float, ctypes.c_int],
    "silu_mul": [P, P, N, N, ctypes.c_int],
    "rope_store": [P, P, P, P, P, P, N, N, N, ctypes.c_int],
    "paged_decode": [P, P, P, P, P, P, P, N, N, N, N, N, ctypes.c_float, ctypes.c_int],
}


@functools.cache
def kernels(dtype: torch.dtype, head_dim: int, group: int) -> ctypes.CDLL | None:
    """fast_cpu.c compiled for a dtype, a head size and a number of query heads a key head; None where it can't be."""
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if sys.platform != "linux" or compiler is None or dtype not in KERNEL_DTYPES:
        return None
    source = Path(__file__).with_suffix(".c")
    flags = [*FLAGS, *KERNEL_DTYPES[dtype], f"-DHEAD_DIM={head_dim}", f"-DGROUP={group}", *_openmp()]
    # A home folder may be shared by machines: what -march=native made for one must not run on another.
    key = [source.read_text(), compiler, *flags, _cpu()]
    name = f"fast_cpu-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.so"
    try:
        built = cache_dir() / "kernels" / name
        if not built.exists():
            built.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=built.parent) as folder:
                command = [compiler, *flags, str(source), "-o", f"{folder}/{name}", "-lm"]
                subprocess.run(command, check=True, capture_output=True, timeout=60)
                os.replace(f"{folder}/{name}", built)  # whole or not there, also with two processes at it
        library = ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError):  # no room, no right to write, a compiler too old: the plain path runs
        return None
    for function, types in SIGNATURES.items():
        getattr(library, function).argtypes, getattr(library, function).restype = types, None
    return library


def _openmp() -> list[str]:
    """Threads only if they are torch's: a second OpenMP would keep its own threads, and the two would spin for cores."""
    try:
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return []
    return ["-fopenmp"]


def _cpu() -> str:
    """What tells one kind of processor from another: its flags, as Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


# -- the forward --------------------------------------------------------------------------------
def fast_forward(decoder: Decoder) -> CpuForward | None:
    """A CpuForward where it can run this decoder, else None."""
    c = decoder.config
    if not wanted() or decoder.device.type != "cpu" or c.head_dim % 2:
        return None
    library = kernels(decoder.dtype, c.head_dim, c.num_heads // c.num_kv_heads)
    return CpuForward(decoder, library) if library is not None else None


class CpuForward:
    """Decoder.forward for a CPU: same arguments, same result.

    Where somebody has put an attention of their own into decoder.attend, the plain forward runs, so that it is used.
    """

    def __init__(self, decoder: Decoder, library: ctypes.CDLL) -> None:
        self.decoder = decoder
        self.lib = library
        self._scores = torch.empty(0)

    def __call__(self, input_ids: Tensor, positions: Tensor, kv: PagedKV, meta: AttentionMeta) -> Tensor:
        """input_ids, positions: [T] int64 -> hidden states [T, hidden]. Writes K and V of every position to kv."""
        d, c = self.decoder, self.decoder.config
        if d.attend is not paged_attention:
            return d.forward(input_ids, positions, kv, meta)
        x = d.embed[input_ids]  # the residual stream, changed in place
        angle = positions[:, None].float() * d.rope.inv_freq
        cos, sin = angle.cos() * d.rope.scale, angle.sin() * d.rope.scale
        normed = torch.empty_like(x)
        attended = x.new_empty(len(x), c.q_size)
        active = x.new_empty(len(x), c.intermediate_size)
        delta: Tensor | None = None  # what the last linear made; added to x by the norm that follows
        for layer in d.layers:
            self._add_norm(x, delta, layer.attn_norm.weight, normed)
            qkv = layer.qkv(normed)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = qkv[:, : c.q_size], qkv[:, c.q_size : c.q_size + c.kv_size]
                q.copy_(layer.q_norm(q.unflatten(1, (-1, c.head_dim))).flatten(1))
                k.copy_(layer.k_norm(k.unflatten(1, (-1, c.head_dim))).flatten(1))
            self._attend(qkv, cos, sin, kv, layer.index, meta, attended)
            self._add_norm(x, layer.o(attended), layer.mlp_norm.weight, normed)
            gate_up = layer.gate_up(normed)
            threads = self._threads(active.numel())
            self.lib.silu_mul(gate_up.data_ptr(), active.data_ptr(), len(x), c.intermediate_size, threads)
            delta = layer.down(active)
        return x if delta is None else x.add_(delta)

    def _threads(self, numbers: int) -> int:
        return 1 if numbers < FEW else torch.get_num_threads()

    def _add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor) -> None:
        rows, width = x.shape
        added = None if delta is None else delta.data_ptr()
        threads, eps = self._threads(x.numel()), self.decoder.config.norm_eps
        self.lib.add_rms_norm(x.data_ptr(), added, weight.data_ptr(), out.data_ptr(), rows, width, eps, threads)

    def _attend(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, kv: PagedKV, layer: int, meta: AttentionMeta, out: Tensor
    ) -> None:
        """RoPE, K and V into the cache, attention: decode rows by the kernel, prompts by torch."""
        c, n = self.decoder.config, meta.num_decode
        keys, values = kv.keys[layer], kv.values[layer]
        self.lib.rope_store(
            qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), meta.places.data_ptr(), keys.data_ptr(), values.data_ptr(),
            len(qkv), c.num_heads, c.num_kv_heads, self._threads(qkv.numel()),
        )  # fmt: skip
        if n:
            width, longest = meta.tables.shape[1], meta.longest
            if self._scores.numel() < n * c.num_heads * longest:
                self._scores = torch.empty(n * c.num_heads * longest)
            self.lib.paged_decode(
                qkv.data_ptr(), keys.data_ptr(), values.data_ptr(), meta.tables.data_ptr(), meta.decode_lens.data_ptr(),
                self._scores.data_ptr(), out.data_ptr(), n, c.num_kv_heads, kv.block_size, width, longest,
                c.head_dim**-0.5, self._threads(n * longest * c.kv_size),
            )  # fmt: skip
        if meta.prefill:
            q, k, v = qkv.unflatten(1, (-1, c.head_dim)).split((c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
            attend_prompts(q, k, v, kv, layer, meta, out.view(-1, c.num_heads, c.head_dim))
