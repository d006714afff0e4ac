"""What the decoder must know of a model, read from a Hugging Face `config.json`.

The Llama family differs in a handful of switches only: which linears have a bias, whether Q and K are
normalised per head, whether the output head shares the embedding, and how RoPE's frequencies are made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ModelLoadError

SUPPORTED = {
    "llama": "Llama, SmolLM2",
    "mistral": "Mistral",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3",
}
ROPE_SUPPORTED = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True, eq=False)
class ModelConfig:
    """The shape of a Llama-family decoder.

    inv_freq: [head_dim / 2] float32, RoPE's angle per position in radians; rope_scale multiplies cos and sin
    (YaRN's attention factor, 1.0 elsewhere). max_model_len: tokens a request may come to, prompt and answer.
    notes: what was decided while reading the file and a user should know.
    """

    arch: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    inv_freq: torch.Tensor
    rope_scale: float = 1.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = True
    notes: tuple[str, ...] = ()

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers the KV cache holds for one token, over all layers (times the item size: bytes)."""
        return 2 * self.num_layers * self.kv_size

    @property
    def num_parameters(self) -> int:
        """Weights of the model, a tied head counted once."""
        return sum(torch.Size(s).numel() for s in tensor_shapes(self).values())


def tensor_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a checkpoint must hold, by its Hugging Face name, with its shape ([out, in] for linears)."""
    h, f = c.hidden_size, c.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, h), "model.norm.weight": (h,)}
    for i in range(c.num_layers):
        p = f"model.layers.{i}."
        shapes[p + "input_layernorm.weight"] = (h,)
        shapes[p + "post_attention_layernorm.weight"] = (h,)
        linears = [
            ("self_attn.q_proj", c.q_size, h, c.qkv_bias),
            ("self_attn.k_proj", c.kv_size, h, c.qkv_bias),
            ("self_attn.v_proj", c.kv_size, h, c.qkv_bias),
            ("self_attn.o_proj", h, c.q_size, c.o_bias),
            ("mlp.gate_proj", f, h, c.mlp_bias),
            ("mlp.up_proj", f, h, c.mlp_bias),
            ("mlp.down_proj", h, f, c.mlp_bias),
        ]
        for name, out, inp, bias in linears:
            shapes[f"{p}{name}.weight"] = (out, inp)
            if bias:
                shapes[f"{p}{name}.bias"] = (out,)
        if c.qk_norm:
            shapes[p + "self_attn.q_norm.weight"] = (c.head_dim,)
            shapes[p + "self_attn.k_norm.weight"] = (c.head_dim,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab_size, h)
    return shapes


def default_inv_freq(head_dim: int, theta: float = 10000.0) -> torch.Tensor:
    """RoPE's frequencies without scaling (Su et al., 2021): theta ** (-2i / head_dim), [head_dim / 2]."""
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))


def read_config(folder: Path) -> ModelConfig:
    """The ModelConfig of a checkpoint folder. Raises ModelLoadError naming the file and what is wrong in it."""
    path = folder / "config.json"
    raw = read_json(path)
    if raw is None:
        raise ModelLoadError(f"{path} is missing: a model folder needs config.json and *.safetensors beside it.")
    arch = raw.get("model_type")
    if arch not in SUPPORTED:
        known = ", ".join(f"{k} ({v})" for k, v in SUPPORTED.items())
        raise ModelLoadError(f"{path}: model_type={arch!r} is not supported. Supported: {known}.")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ModelLoadError(
            f"{path}: the weights are quantised ({method}); minirt loads bf16, fp16 or fp32 safetensors, "
            "or a .gguf. Use the unquantised checkpoint."
        )
    from transformers import AutoConfig  # only here: importing it takes a moment

    try:
        hf = AutoConfig.for_model(**raw)
    except Exception as e:
        raise ModelLoadError(f"{path} is not a valid {arch} configuration: {e}") from e
    return from_transformers(hf, str(path))


def from_transformers(hf: Any, source: str = "config") -> ModelConfig:
    """The ModelConfig of a transformers configuration object. Raises ModelLoadError on what is not supported."""
    act = getattr(hf, "hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise ModelLoadError(f"{source}: hidden_act={act!r} is not supported; the Llama family uses 'silu'.")
    arch = hf.model_type
    heads = hf.num_attention_heads
    kv_heads = getattr(hf, "num_key_value_heads", None) or heads
    if heads % kv_heads:
        raise ModelLoadError(f"{source}: {heads} query heads can't share {kv_heads} key heads evenly.")
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    attention_bias = bool(getattr(hf, "attention_bias", False))
    limit, notes = hf.max_position_embeddings, []
    window = getattr(hf, "sliding_window", None)
    if window is not None and window < limit:
        # Up to the window every token sees all before it, so capping the length there is exact.
        notes.append(f"max_model_len is {window}, not {limit}: the model's sliding window is not implemented.")
        limit = window
    inv_freq, scale, note = _rope(hf, head_dim, source)
    if note:
        notes.append(note)
    return ModelConfig(
        arch=arch,
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        intermediate_size=hf.intermediate_size,
        num_layers=hf.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_model_len=limit,
        inv_freq=inv_freq,
        rope_scale=scale,
        norm_eps=hf.rms_norm_eps,
        qkv_bias=True if arch == "qwen2" else attention_bias,
        o_bias=False if arch == "qwen2" else attention_bias,
        mlp_bias=bool(getattr(hf, "mlp_bias", False)),
        qk_norm=arch == "qwen3",
        tied=bool(hf.tie_word_embeddings),
        notes=tuple(notes),
    )


def _rope(hf: Any, head_dim: int, source: str) -> tuple[torch.Tensor, float, str | None]:
    """inv_freq, attention scaling and a note, from transformers' own rules."""
    params = hf.rope_parameters
    kind = params.get("rope_type", "default")
    if kind not in ROPE_SUPPORTED:
        raise ModelLoadError(f"{source}: rope_type={kind!r} is not supported. Supported: {', '.join(ROPE_SUPPORTED)}.")
    if params.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError(f"{source}: partial_rotary_factor={params['partial_rotary_factor']} is not supported.")
    if kind == "default":
        return default_inv_freq(head_dim, params["rope_theta"]), 1.0, None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](hf, device=torch.device("cpu"))
    except (KeyError, TypeError, ValueError) as e:
        raise ModelLoadError(f"{source}: the RoPE parameters {dict(params)} are not complete ({e!r}).") from e
    note = None
    if kind == "dynamic":
        # Dynamic NTK changes the frequencies only beyond max_position_embeddings. There the keys already in a
        # cache would be stale, so minirt ends a request at that length instead.
        note = f"dynamic RoPE scaling is used up to its original length, {hf.max_position_embeddings} tokens."
    return inv_freq.float(), float(scale), note


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None where there is no such file. Raises ModelLoadError on a damaged one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise ModelLoadError(f"{path} can't be read as JSON ({e}); fetch it again.") from e
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} should hold a JSON object, not a {type(value).__name__}.")
    return value
