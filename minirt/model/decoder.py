"""A decoder-only transformer of the Llama family, over a paged KV cache.

What it is: the whole model, plain enough to be read in one sitting. Llama, SmolLM2, Mistral, Qwen2 and
Qwen3 are this code with a few switches (see ModelConfig). What it is not: a torch.nn.Module; there is
nothing to train, and plain objects cost less per call. It knows nothing of requests: its batch is one
flat list of T token positions, and only attention asks which row a position belongs to.

Sources: Touvron et al., 2023 (Llama); Zhang & Sennrich, 2019 (RMSNorm); Su et al., 2021 (RoPE);
Shazeer, 2020 (SwiGLU); Ainslie et al., 2023 (grouped-query attention).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttentionMeta, PagedKV, paged_attention
from .config import ModelConfig

LinearFn = Callable[[Tensor], Tensor]
AttentionFn = Callable[[Tensor, Tensor, Tensor, PagedKV, int, AttentionMeta], Tensor]


class Linear:
    """y = x W^T + b. weight: [out, in]; bias: [out] or None.

    Every matrix multiplication of the model goes through one of these, so that Decoder.replace_linears can
    put something faster in its place.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RMSNorm:
    """y = x / rms(x) * weight over the last dimension, computed in float32 whatever x is stored in."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        y = x.float() if x.dtype != torch.float64 else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class RoPE:
    """Rotary position embedding: turns each pair of numbers of a head by an angle that grows with position."""

    def __init__(self, inv_freq: Tensor, scale: float, dtype: torch.dtype) -> None:
        self.inv_freq = inv_freq  # [head_dim / 2] float32
        self.scale = scale
        self.dtype = dtype

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for positions [T], each [T, 1, head_dim]. Made once a forward, used by every layer."""
        angle = positions[:, None].float() * self.inv_freq  # float32: bf16 can't tell position 257 from 256
        angle = torch.cat((angle, angle), dim=-1)[:, None, :]
        return (angle.cos() * self.scale).to(self.dtype), (angle.sin() * self.scale).to(self.dtype)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [T, heads, head_dim]. Number i is paired with number i + head_dim / 2."""
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin


class Layer:
    """One transformer block: attention, then a gated MLP, each added to what came in."""

    def __init__(self, config: ModelConfig, index: int, get: Callable[[str], Tensor]) -> None:
        p = f"model.layers.{index}."
        self.config = config
        self.index = index
        self.attn_norm = RMSNorm(get(p + "input_layernorm.weight"), config.norm_eps)
        self.qkv: LinearFn = _fused(get, p + "self_attn.", ("q_proj", "k_proj", "v_proj"), config.qkv_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(get(p + "self_attn.q_norm.weight"), config.norm_eps)
            self.k_norm = RMSNorm(get(p + "self_attn.k_norm.weight"), config.norm_eps)
        self.o: LinearFn = _fused(get, p + "self_attn.", ("o_proj",), config.o_bias)
        self.mlp_norm = RMSNorm(get(p + "post_attention_layernorm.weight"), config.norm_eps)
        self.gate_up: LinearFn = _fused(get, p + "mlp.", ("gate_proj", "up_proj"), config.mlp_bias)
        self.down: LinearFn = _fused(get, p + "mlp.", ("down_proj",), config.mlp_bias)

    def attention(
        self, x: Tensor, cos: Tensor, sin: Tensor, kv: PagedKV, meta: AttentionMeta, attend: AttentionFn
    ) -> Tensor:
        """x: [T, hidden] -> [T, hidden]. Each position looks at the earlier ones of its own row."""
        c = self.config
        qkv = self.qkv(x).view(-1, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = qkv[:, : c.num_heads + c.num_kv_heads], qkv[:, c.num_heads + c.num_kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, : c.num_heads]), self.k_norm(qk[:, c.num_heads :])), dim=1)
        qk = RoPE.rotate(qk, cos, sin)
        q, k = qk[:, : c.num_heads], qk[:, c.num_heads :]
        kv.write(self.index, k, v, meta)
        return self.o(attend(q, k, v, kv, self.index, meta).flatten(1))

    def mlp(self, x: Tensor) -> Tensor:
        """SwiGLU: silu(gate(x)) * up(x), back to the hidden size."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Decoder:
    """The model. get(name): a tensor of the checkpoint by its Hugging Face name, in the wanted device and dtype."""

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor]) -> None:
        self.config = config
        self.embed = get("model.embed_tokens.weight")  # [vocab, hidden]
        self.device, self.dtype = self.embed.device, self.embed.dtype
        self.rope = RoPE(config.inv_freq.to(self.device), config.rope_scale, self.dtype)
        self.layers = [Layer(config, i, get) for i in range(config.num_layers)]
        self.norm = RMSNorm(get("model.norm.weight"), config.norm_eps)
        self.head: LinearFn = Linear(self.embed if config.tied else get("lm_head.weight"))
        self.attend: AttentionFn = paged_attention

    def forward(self, input_ids: Tensor, positions: Tensor, kv: PagedKV, meta: AttentionMeta) -> Tensor:
        """input_ids, positions: [T] int64 -> hidden states [T, hidden]. Writes K and V of every position to kv."""
        x = self.embed[input_ids]
        cos, sin = self.rope.angles(positions)
        for layer in self.layers:
            x = x + layer.attention(layer.attn_norm(x), cos, sin, kv, meta, self.attend)
            x = x + layer.mlp(layer.mlp_norm(x))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [S, hidden], rows of forward's result -> [S, vocab]. Only rows that need a token pay for this."""
        return self.head(self.norm(hidden))

    def replace_linears(self, make: Callable[[Linear], LinearFn]) -> None:
        """Put make(linear) in the place of every plain Linear, one at a time, so that its weight can be freed.

        A tied head shares its weight with the embedding, which stays."""
        for layer in self.layers:
            for name in ("qkv", "o", "gate_up", "down"):
                plain = getattr(layer, name)
                if isinstance(plain, Linear):
                    setattr(layer, name, make(plain))
        if isinstance(self.head, Linear):
            self.head = make(self.head)


def _fused(get: Callable[[str], Tensor], prefix: str, names: tuple[str, ...], bias: bool) -> Linear:
    """One Linear for several that read the same input: one large multiplication is faster than three small."""
    weights = [get(f"{prefix}{n}.weight") for n in names]
    biases = [get(f"{prefix}{n}.bias") for n in names] if bias else []
    join = torch.cat if len(names) > 1 else (lambda parts: parts[0])
    return Linear(join(weights), join(biases) if bias else None)
