"""Machines and models as a few numbers each: all that the roofline equations need to know of them.

What it is: two frozen dataclasses, Hardware and ModelShape, and a table of presets for each, with the
source of every figure. What it is not: a benchmark. Vendors' peaks are never reached; the per-step
overhead is an assumption. `minirt.roofline.calibrate` measures a real machine instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .errors import ConfigError

GB = 1e9
TFLOPS = 1e12


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator.

    peak_flops: FLOP/s in 16-bit with 32-bit sums, without sparsity. bandwidth: bytes/s to its own memory.
    memory: bytes. host_bandwidth: bytes/s to host memory, one way (swapping). step_overhead: seconds a step
    spends outside the forward (scheduling, launching, sampling, detokenising); an assumption, not a data
    sheet's figure: override it, or calibrate.
    Raises ConfigError where a number isn't positive.
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory: float
    host_bandwidth: float = 25 * GB
    step_overhead: float = 1e-3

    def __post_init__(self) -> None:
        for field in ("peak_flops", "bandwidth", "memory", "host_bandwidth"):
            if not getattr(self, field) > 0:
                raise ConfigError(f"Hardware.{field}={getattr(self, field)!r} must be above 0.")
        if not self.step_overhead >= 0:
            raise ConfigError(f"Hardware.step_overhead={self.step_overhead!r} s must be 0 or more.")

    def but(self, **changes: Any) -> Hardware:
        """The same machine with some numbers changed: `hw.but(bandwidth=4e12)`."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes.

    params: all parameters. heads: query heads; kv_heads: heads of K and V (fewer under grouped-query
    attention, Ainslie et al., 2023). bytes_per_element: 2 for fp16 and bf16, 4 for fp32; weights and KV alike.
    max_len: tokens a request may reach. tied: the output head is the embedding matrix itself.
    Raises ConfigError where a number isn't positive.
    """

    name: str
    params: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocab_size: int
    max_len: int
    bytes_per_element: float = 2
    tied: bool = True

    def __post_init__(self) -> None:
        for field in self.__slots__:
            value = getattr(self, field)
            if field not in ("name", "tied") and not value > 0:
                raise ConfigError(f"ModelShape.{field}={value!r} must be above 0.")

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache a token takes: K and V (2), in every layer, for every KV head."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_per_element

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.params * self.bytes_per_element

    @property
    def head_params(self) -> int:
        """Parameters of the output head, [vocab_size, hidden]: used once a sampled row, not once a token."""
        return self.vocab_size * self.hidden

    @property
    def body_params(self) -> int:
        """Parameters multiplied once a token: all but the head and an untied embedding (a look-up)."""
        return self.params - self.head_params * (1 if self.tied else 2)

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs for one query position against one context position: q·k and p·v, over heads and layers."""
        return 4 * self.layers * self.heads * self.head_size

    def kv_bytes(self, tokens: float) -> float:
        """Bytes of KV cache that `tokens` tokens take."""
        return self.kv_bytes_per_token * tokens

    def num_blocks(self, hardware: Hardware, block_size: int = 16, memory_fraction: float = 0.9) -> int:
        """KV blocks that fit beside the weights in `memory_fraction` of the memory (vLLM's default share is 0.9).

        Raises ConfigError where the weights leave no room for a block.
        """
        if type(memory_fraction) not in (int, float) or not 0 < memory_fraction <= 1:
            raise ConfigError(f"memory_fraction={memory_fraction!r} is a share of the memory: above 0 and at most 1.")
        room = hardware.memory * memory_fraction - self.weight_bytes
        blocks = int(room // (block_size * self.kv_bytes_per_token))
        if blocks < 1:
            raise ConfigError(
                f"{self.name}: weights of {self.weight_bytes / GB:.2f} GB leave no room for KV in "
                f"{memory_fraction:.0%} of {hardware.name}'s {hardware.memory / GB:.0f} GB. "
                "Take larger hardware or a smaller model."
            )
        return blocks

    def but(self, **changes: Any) -> ModelShape:
        """The same model with some numbers changed: `shape.but(bytes_per_element=4)`."""
        return replace(self, **changes)

    @classmethod
    def of(cls, lm: Any) -> ModelShape:
        """The shape of a loaded model (what minirt.load_model returns)."""
        return _shape_of(lm)


# Data sheets: NVIDIA A100 (2020; 40 GB PCIe/SXM 1,555 GB/s, 80 GB SXM 2,039 GB/s), H100 SXM (2022),
# H200 SXM (2023): dense BF16 tensor peaks, half of the figures printed "with sparsity". RTX 4090: NVIDIA Ada
# GPU architecture white paper (2022), FP16 tensor with FP32 accumulate. host_bandwidth: what PCIe 4.0 x16
# (32 GB/s nominal) and 5.0 x16 (64 GB/s nominal) sustain in practice, about 25 and 50 GB/s.
HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware("A100-40GB", 312 * TFLOPS, 1555 * GB, 40 * GB),
        Hardware("A100-80GB", 312 * TFLOPS, 2039 * GB, 80 * GB),
        Hardware("H100", 989 * TFLOPS, 3350 * GB, 80 * GB, host_bandwidth=50 * GB),
        Hardware("H200", 989 * TFLOPS, 4800 * GB, 141 * GB, host_bandwidth=50 * GB),
        Hardware("RTX 4090", 165.2 * TFLOPS, 1008 * GB, 24 * GB),
    )
}

# From each model's published config.json; `params` is the sum over its weight matrices (a test adds it up).
# Qwen2.5 (Qwen team, 2024), Llama 3 (Meta, 2024), OPT (Zhang et al., 2022), SmolLM2 (Hugging Face, 2024).
MODELS: dict[str, ModelShape] = {
    m.name: m
    for m in (
        ModelShape("Qwen2.5-0.5B", 494_032_768, 24, 14, 2, 64, 896, 151_936, 32_768),
        ModelShape("Llama-3-8B", 8_030_261_248, 32, 32, 8, 128, 4096, 128_256, 8192, tied=False),
        ModelShape("OPT-13B", 12_853_473_280, 40, 40, 40, 128, 5120, 50_272, 2048),
        ModelShape("SmolLM2-135M", 134_515_008, 30, 9, 3, 64, 576, 49_152, 8192),
    )
}


def get_hardware(hardware: Hardware | str) -> Hardware:
    """A preset by name (case doesn't matter), or the object itself. Raises ConfigError naming the presets."""
    return hardware if isinstance(hardware, Hardware) else _look_up("hardware", hardware, HARDWARE)


def get_model(model: ModelShape | str) -> ModelShape:
    """A preset by name (case doesn't matter), or the object itself. Raises ConfigError naming the presets."""
    return model if isinstance(model, ModelShape) else _look_up("model", model, MODELS)


def _look_up(what: str, name: object, table: dict[str, Any]) -> Any:
    for known, value in table.items():
        if str(name).lower().replace(" ", "").replace("-", "") == known.lower().replace(" ", "").replace("-", ""):
            return value
    raise ConfigError(
        f"unknown {what} {name!r}. Known: {', '.join(table)}. "
        f"Or pass a {'Hardware' if what == 'hardware' else 'ModelShape'} of your own."
    )


def _shape_of(lm: Any) -> ModelShape:
    c = lm.config
    return ModelShape(
        name=lm.name,
        params=c.num_parameters,
        layers=c.num_layers,
        heads=c.num_heads,
        kv_heads=c.num_kv_heads,
        head_size=c.head_dim,
        hidden=c.hidden_size,
        vocab_size=c.vocab_size,
        max_len=c.max_model_len,
        bytes_per_element=lm.dtype.itemsize,
        tied=c.tied,
    )
