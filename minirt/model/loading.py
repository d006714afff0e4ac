"""load_model: from a name to a model that is ready to run.

Reads safetensors straight into our decoder, tensor by tensor, converting on the way. No second model is
built in between, so memory peaks at the weights themselves and the default model is there in under 2 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, ModelLoadError, RequestError
from . import fast_cpu, weights
from .config import ModelConfig, default_inv_freq, read_config, read_json, tensor_shapes
from .decoder import Decoder

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
}
READABLE = ("BF16", "F16", "F32", "F64")


@dataclass(slots=True, eq=False)
class LanguageModel:
    """A loaded model: weights, tokenizer (None where the folder has none) and what a backend asks of them.

    eos_ids: the token ids that end an answer. path: the folder it was read from, None for a random model.
    """

    name: str
    config: ModelConfig
    decoder: Decoder
    device: torch.device
    dtype: torch.dtype
    tokenizer: Any = None
    eos_ids: frozenset[int] = frozenset()
    path: Path | None = None
    notes: list[str] = field(default_factory=list)

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt: as the user's turn of a chat, with the answer's turn opened, where the model has a
        chat template; plain otherwise. Raises RequestError without a tokenizer."""
        if self.tokenizer is None:
            raise RequestError(f"{self.name} has no tokenizer, so prompt= can't be read; pass prompt_ids=[…].")
        if getattr(self.tokenizer, "chat_template", None):
            turn = [{"role": "user", "content": prompt}]
            out = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
            return list(out)
        return list(self.tokenizer(prompt)["input_ids"])

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids, special tokens left out; empty without a tokenizer."""
        if self.tokenizer is None:
            return ""
        ids = list(token_ids)
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def __repr__(self) -> str:
        size = self.config.num_parameters / 1e6
        return f"LanguageModel({self.name!r}, {size:.1f}M parameters, {self.device}, {str(self.dtype)[6:]})"


def load_model(
    name_or_path: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> LanguageModel:
    """Load a model of the Llama family: Llama, SmolLM2, Mistral, Qwen2/2.5, Qwen3.

    name_or_path: nothing (SmolLM2-135M-Instruct), a hub id, a folder with safetensors, or a .gguf file.
    device: "cuda", "mps", "cpu"; the best there is where left out. dtype: "float32", "bfloat16", …; bfloat16
    where the device computes it natively, float32 elsewhere, where left out.
    Raises ModelLoadError (naming file and tensor), ConfigError for a device or dtype that can't be had.
    """
    where = pick_device(device)
    kind = pick_dtype(dtype, where)
    folder = weights.resolve(name_or_path)
    config = read_config(folder)
    decoder = Decoder(config, _Checkpoint(folder, config, where, kind))
    fast_cpu.pack(decoder)
    name = weights.DEFAULT_MODEL if name_or_path is None else os.fspath(name_or_path)
    tokenizer = _tokenizer(folder)
    return LanguageModel(
        name=Path(name).name if Path(name).exists() else name.rsplit("/", 1)[-1],
        config=config,
        decoder=decoder,
        device=where,
        dtype=kind,
        tokenizer=tokenizer,
        eos_ids=_eos_ids(folder, tokenizer),
        path=folder,
        notes=list(config.notes),
    )


def random_model(
    vocab: int = 128,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 64,
    max_model_len: int = 512,
    seed: int = 0,
    arch: str = "llama",
    tied: bool = False,
    eos_ids: Iterable[int] = (),
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
) -> LanguageModel:
    """A small model with random weights and no tokenizer, for tests and for watching schedulers without a download.

    The weights are large enough that logits spread over several units: greedy answers then vary, and don't hang on
    the last bit of a sum.
    """
    where, kind = pick_device(device), pick_dtype(dtype, torch.device(device))
    dim = head_dim or hidden // heads
    config = ModelConfig(
        arch=arch,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        max_model_len=max_model_len,
        inv_freq=default_inv_freq(dim),
        qkv_bias=arch == "qwen2",
        qk_norm=arch == "qwen3",
        tied=tied,
    )
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, shape in tensor_shapes(config).items():
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight"):
            tensor = 1.0 + 0.1 * tensor
        elif name.endswith(".weight") and not name.startswith("model.embed"):
            tensor = tensor * (2.0 / shape[1] ** 0.5)
        made[name] = tensor.to(where, kind)
    decoder = Decoder(config, made.__getitem__)
    name = f"random-{arch}-{layers}x{hidden}"
    return LanguageModel(name, config, decoder, where, kind, eos_ids=frozenset(eos_ids))


def pick_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, checked, or the best there is: cuda, else mps, else cpu."""
    have = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device is None:
        return torch.device(next(d for d, there in have.items() if there))
    try:
        picked = torch.device(device)
    except RuntimeError as e:
        raise ConfigError(f"device={device!r} is not a device ({e}). Use 'cuda', 'mps' or 'cpu'.") from None
    if not have.get(picked.type, False):
        there = ", ".join(d for d, ok in have.items() if ok)
        raise ConfigError(f"device={str(device)!r} is not there on this machine with this torch. There is: {there}.")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={str(device)!r}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    return picked


def pick_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype asked for, checked, or bfloat16 where `device` multiplies it natively and float32 elsewhere."""
    if isinstance(dtype, str):
        if dtype.removeprefix("torch.") not in DTYPES:
            raise ConfigError(f"dtype={dtype!r} is not known. Use one of: {', '.join(DTYPES)}.")
        return DTYPES[dtype.removeprefix("torch.")]
    if dtype is not None:
        if dtype not in DTYPES.values():
            raise ConfigError(f"dtype={dtype} can't hold weights here. Use one of: {', '.join(DTYPES)}.")
        return dtype
    return torch.bfloat16 if has_native_bf16(device) else torch.float32


def has_native_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 products; emulated ones are slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    # These have no public name in torch 2.9 to 2.13; where one is gone, float32 is the safe answer.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks)


class _Checkpoint:
    """Tensors of a folder by name, each checked against the shape the configuration implies."""

    def __init__(self, folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.folder, self.device, self.dtype = folder, device, dtype
        self.shapes = tensor_shapes(config)
        self.where: dict[str, Any] = {}  # tensor name -> the open file that holds it
        self.files: dict[str, str] = {}
        for path in _files(folder):
            handle = _open(path)
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is no dict)
                self.where[name], self.files[name] = handle, str(path)
        # Older exports store RoPE's frequencies, and tied ones sometimes the head: both are made from the rest.
        extra = {n for n in self.where if n not in self.shapes and not n.endswith("rotary_emb.inv_freq")}
        if config.tied:
            extra.discard("lm_head.weight")
        missing = self.shapes.keys() - self.where.keys()
        if missing:
            first = min(missing)
            raise ModelLoadError(
                f"{folder}: tensor {first!r} is missing from its safetensors ({len(missing)} in all). The download is "
                "not complete, or config.json belongs to another model."
            )
        if extra:
            first = min(extra)
            raise ModelLoadError(
                f"{self.files[first]}: unexpected tensor {first!r} ({len(extra)} in all): config.json describes a "
                f"{config.arch} model without it, so the answers would be wrong."
            )

    def __call__(self, name: str) -> Tensor:
        handle, file = self.where[name], self.files[name]
        view = handle.get_slice(name)
        shape, kind = tuple(view.get_shape()), view.get_dtype()
        if shape != self.shapes[name]:
            raise ModelLoadError(
                f"{file}: tensor {name!r} has shape {list(shape)}; config.json asks for {list(self.shapes[name])}."
            )
        if kind not in READABLE:
            raise ModelLoadError(f"{file}: tensor {name!r} is stored as {kind}; minirt reads {', '.join(READABLE)}.")
        tensor = handle.get_tensor(name)
        # A copy even where nothing is converted: a view would keep the file mapped and the weights slow to touch.
        return tensor.to(self.device, self.dtype, copy=True)


def _files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or the shards of its index."""
    index = read_json(folder / "model.safetensors.index.json")
    if index is None:
        return [folder / "model.safetensors"]
    return [folder / name for name in sorted(set(index.get("weight_map", {}).values()))]


def _open(path: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(str(path), framework="pt")
    except Exception as e:  # FileNotFoundError, or SafetensorError for a damaged header or a file that ends early
        raise ModelLoadError(f"{path} can't be read as safetensors ({e}); fetch it again.") from e


def _tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, or None where it holds none."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as e:
        raise ModelLoadError(f"{folder}: the tokenizer can't be read ({type(e).__name__}: {e}).") from e


def _eos_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """End-of-sequence ids of generation_config.json and config.json; the tokenizer's where those name none."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = (read_json(folder / name) or {}).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    if not ids and getattr(tokenizer, "eos_token_id", None) is not None:
        ids.add(tokenizer.eos_token_id)
    return frozenset(ids)
