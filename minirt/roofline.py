"""The throughput model: how long a step takes, from the model's sizes and the machine's two speeds.

A step computes and it moves bytes; the slower of the two sets its time (Williams, Waterman and Patterson,
"Roofline", 2009). Equations (2) to (4) of the course are here, and CostModel, which extends (3) to prompts,
chunks and overheads so that a whole run can be simulated. `calibrate` fits a CostModel to a real machine.

All times are in seconds, all sizes in bytes, all lengths in tokens.

One trap: the number 2N appears twice. 2N FLOPs a token, because each parameter is multiplied once and added
once; 2N bytes a step, because a parameter takes 2 bytes in 16 bits. Equal numbers, different units, and in
fp32 no longer equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .errors import ConfigError
from .presets import HARDWARE, MODELS, Hardware, ModelShape, get_hardware, get_model

if TYPE_CHECKING:
    from .backends.base import ForwardBatch

__all__ = [
    "HARDWARE", "MODELS", "BatchLimits", "CostModel", "DecodeTime", "Hardware", "ModelShape", "Work", "batch_limits",
    "calibrate", "decode_time", "get_hardware", "get_model", "kv_overtakes_weights", "ridge_batch", "throughput",
]  # fmt: skip


class DecodeTime(NamedTuple):
    """The two terms of equation (3), in seconds, and what the memory term is made of."""

    compute: float
    memory: float
    weights: float  # part of memory: reading the weights once, whatever the batch
    kv: float  # part of memory: reading every row's own KV

    @property
    def total(self) -> float:
        """Seconds of the step: the slower term."""
        return max(self.compute, self.memory)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """Which term sets the time."""
        return "compute" if self.compute > self.memory else "memory"


def decode_time(
    batch: float,
    context: float,
    hardware: Hardware | str = "A100-80GB",
    model: ModelShape | str = "Qwen2.5-0.5B",
    attention: bool = False,
) -> DecodeTime:
    """Equation (3): seconds of one decode step of `batch` rows with `context` tokens each.

    compute = 2 N B / peak, in FLOPs; attention=True adds the FLOPs of q·k and p·v, which (3) leaves out.
    memory = (weight bytes + B L kv_bytes_per_token) / bandwidth. No overhead: this is the machine's limit.
    """
    hw, shape = get_hardware(hardware), get_model(model)
    flops = 2.0 * shape.params * batch
    if attention:
        flops += shape.attention_flops_per_pair * batch * context
    weights = shape.weight_bytes / hw.bandwidth
    kv = shape.kv_bytes(batch * context) / hw.bandwidth
    return DecodeTime(flops / hw.peak_flops, weights + kv, weights, kv)


def throughput(
    batch: float,
    context: float,
    hardware: Hardware | str = "A100-80GB",
    model: ModelShape | str = "Qwen2.5-0.5B",
) -> float:
    """Equation (4): tokens/s of decoding `batch` rows, B / T(B). Near proportional to B while weights dominate."""
    return batch / decode_time(batch, context, hardware, model).total


def ridge_batch(hardware: Hardware | str = "A100-80GB", bytes_per_element: float = 2) -> float:
    """B*: rows at which computing takes as long as reading the weights, KV left out.

    2 N B / peak = N bytes / bandwidth, so B* = (peak / bandwidth) (bytes / 2): the model's size cancels.
    """
    hw = get_hardware(hardware)
    return hw.peak_flops / hw.bandwidth * bytes_per_element / 2


def kv_overtakes_weights(context: float, model: ModelShape | str = "Qwen2.5-0.5B") -> float:
    """Rows of `context` tokens at which a step reads as many bytes of KV as of weights; hardware cancels."""
    shape = get_model(model)
    return shape.weight_bytes / shape.kv_bytes(context)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Equation (2): rows that memory, the prefill budget and the latency limit allow; inf where one doesn't bind."""

    memory: float
    compute: float
    slo: float

    @property
    def max(self) -> float:
        """B_max, the least of the three."""
        return min(self.memory, self.compute, self.slo)

    @property
    def binds(self) -> Literal["memory", "compute", "slo"]:
        """Which of the three sets B_max."""
        named: dict[Literal["memory", "compute", "slo"], float] = {
            "memory": self.memory,
            "compute": self.compute,
            "slo": self.slo,
        }
        return min(named, key=lambda k: named[k])


def batch_limits(
    prompt_tokens: float,
    output_tokens: float,
    hardware: Hardware | str = "A100-80GB",
    model: ModelShape | str = "Qwen2.5-0.5B",
    *,
    tpot: float | None = None,
    prefill_budget: float | None = 8192,
    memory_fraction: float = 0.9,
) -> BatchLimits:
    """Equation (2) for requests of these mean lengths, in rows (fractions are not rounded).

    memory: KV of `B` requests, half-way through their answers on average, fits beside the weights.
    compute: in a steady state B / output_tokens requests leave a step and as many prompts must be computed in
    their place, so B prompt_tokens / output_tokens may not exceed prefill_budget tokens a step.
    slo: the largest B whose decode step, by equation (3), stays within `tpot` seconds (0 where even B = 1 does not).
    """
    hw, shape = get_hardware(hardware), get_model(model)
    if prompt_tokens < 1 or output_tokens < 1:
        raise ConfigError(f"prompt_tokens={prompt_tokens} and output_tokens={output_tokens} must be at least 1.")
    context = prompt_tokens + output_tokens / 2
    room = hw.memory * memory_fraction - shape.weight_bytes
    memory = max(room, 0.0) / shape.kv_bytes(context)
    compute = float("inf") if prefill_budget is None else prefill_budget * output_tokens / prompt_tokens
    slo = float("inf")
    if tpot is not None:
        # Both terms of (3) are linear in B, so each gives a bound of its own.
        per_row = shape.kv_bytes(context) / hw.bandwidth
        by_memory = (tpot - shape.weight_bytes / hw.bandwidth) / per_row
        by_compute = tpot * hw.peak_flops / (2.0 * shape.params)
        slo = min(by_memory, by_compute)
        slo = slo if slo >= 1 else 0.0
    return BatchLimits(memory, compute, slo)


class Work(NamedTuple):
    """What one forward does, counted: all that a CostModel needs of it.

    prefill_tokens, prefill_rows: prompt positions, padding included, and the rows they belong to; a row that checks
    guesses is computed like a chunk and counts as one. decode_rows: rows of one
    token. context_tokens: cached tokens the rows read, their own new ones included. pairs: query-context
    pairs attended to (for a decode row its context; for a chunk n start + n (n + 1) / 2). sampled_rows: rows turned
    into a token.
    """

    prefill_tokens: float = 0
    prefill_rows: float = 0
    decode_rows: float = 0
    context_tokens: float = 0
    pairs: float = 0
    sampled_rows: float = 0

    @classmethod
    def of(cls, batch: ForwardBatch) -> Work:
        """Count an engine's batch. Sums run at C speed over decode rows; only prompt rows are looped over."""
        rows, n = len(batch.seqs), batch.num_decode
        starts, counts, pads = batch.starts, batch.counts, batch.pads
        if n == rows:
            context = sum(starts) + n
            return cls(0, 0, n, context, context, len(batch.sampled))
        context = pairs = sum(starts[:n]) + n
        prefill = 0
        for i in range(n, rows):
            start, width = starts[i], counts[i] + pads[i]
            prefill += width
            context += start + width
            pairs += width * start + width * (width + 1) // 2
        return cls(prefill, rows - n, n, context, pairs, batch.num_sampled)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Equation (3) extended to whole steps: prompts, chunks, padding, sampling, overheads. Seconds for each unit.

    With the counts of Work, a forward takes

        forward_s + combine(computing, moving)
        computing = prefill_token_s P + prefill_row_s R + decode_row_s D + pair_s A + sample_s S
        moving    = weights_s + context_s C

    combine is "max" for a roofline (the two overlap) and "sum" for a fit (on a CPU they hardly do). A step takes
    step_s plus its forwards. swap_token_s: seconds to copy one token's KV to host memory or back.
    source: where the numbers come from. Work done for nothing (padding, ended rows) costs like any other.
    """

    step_s: float = 0.0
    forward_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_row_s: float = 0.0
    decode_row_s: float = 0.0
    pair_s: float = 0.0
    sample_s: float = 0.0
    weights_s: float = 0.0
    context_s: float = 0.0
    swap_token_s: float = 0.0
    combine: Literal["max", "sum"] = "max"
    source: str = ""

    @classmethod
    def of(
        cls,
        hardware: Hardware | str = "A100-80GB",
        model: ModelShape | str = "Qwen2.5-0.5B",
        *,
        compute_efficiency: float = 1.0,
        bandwidth_efficiency: float = 1.0,
    ) -> CostModel:
        """The roofline of a preset. The efficiencies scale the data sheet's peaks (1.0: never reached in practice).

        Finer than (3) in two places: the head is computed for sampled rows only, and attention's FLOPs count.
        """
        hw, shape = get_hardware(hardware), get_model(model)
        for name, e in (("compute_efficiency", compute_efficiency), ("bandwidth_efficiency", bandwidth_efficiency)):
            if not 0 < e <= 1:
                raise ConfigError(f"{name}={e} must be above 0 and at most 1 (a share of the data sheet's peak).")
        flops, bandwidth = hw.peak_flops * compute_efficiency, hw.bandwidth * bandwidth_efficiency
        token = 2.0 * shape.body_params / flops
        return cls(
            step_s=hw.step_overhead,
            prefill_token_s=token,
            decode_row_s=token,
            pair_s=shape.attention_flops_per_pair / flops,
            sample_s=2.0 * shape.head_params / flops,
            # An untied embedding is looked up row by row; all the rest is read.
            weights_s=(shape.body_params + shape.head_params) * shape.bytes_per_element / bandwidth,
            context_s=shape.kv_bytes_per_token / bandwidth,
            swap_token_s=shape.kv_bytes_per_token / hw.host_bandwidth,
            source=f"roofline of {shape.name} on {hw.name}",
        )

    def forward_time(self, work: Work) -> float:
        """Seconds of one forward."""
        computing = (
            self.prefill_token_s * work.prefill_tokens
            + self.prefill_row_s * work.prefill_rows
            + self.decode_row_s * work.decode_rows
            + self.pair_s * work.pairs
            + self.sample_s * work.sampled_rows
        )
        moving = self.weights_s + self.context_s * work.context_tokens
        return self.forward_s + (max(computing, moving) if self.combine == "max" else computing + moving)

    def step_time(
        self,
        prefill_tokens: float = 0,
        decode_rows: float = 0,
        context_tokens: float = 0,
        sampled_rows: float | None = None,
        forwards: int = 1,
    ) -> float:
        """Seconds of a step, from its totals.

        context_tokens: the decode rows' contexts, summed. The prompt is taken as one chunk from position 0.
        sampled_rows: None samples every decode row and, where there is a prompt, its last position.
        forwards: 1 mixes prompt and decode rows; 2 gives each a forward of its own (weights are read twice).
        """
        prompt_samples = 1 if prefill_tokens else 0
        sampled = decode_rows + prompt_samples if sampled_rows is None else sampled_rows
        decode = Work(0, 0, decode_rows, context_tokens, context_tokens, min(sampled, decode_rows))
        pairs = prefill_tokens * (prefill_tokens + 1) / 2
        prompt = Work(prefill_tokens, prompt_samples, 0, prefill_tokens, pairs, sampled - decode.sampled_rows)
        if forwards == 2:
            return self.step_s + self.forward_time(prompt) + self.forward_time(decode)
        if forwards != 1:
            raise ConfigError(f"forwards={forwards} must be 1 (mixed) or 2 (prompt and decode apart).")
        return self.step_s + self.forward_time(Work(*(a + b for a, b in zip(prompt, decode))))

    def swap_time(self, tokens: float) -> float:
        """Seconds to copy the KV of `tokens` tokens to host memory, or back."""
        return self.swap_token_s * tokens

    def but(self, **changes: Any) -> CostModel:
        """The same model with some terms changed: `cost.but(step_s=0)`."""
        return replace(self, **changes)


def calibrate(lm: Any, **options: Any) -> CostModel:
    """Measure this machine running `lm` and fit a CostModel to it: see minirt.calibrate."""
    from .calibrate import calibrate as run  # imported late: it needs the engine's backend, equations don't

    return run(lm, **options)
