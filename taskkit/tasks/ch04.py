"""Chapter 04, throughput model: what a decode step reads, what it computes, and where each rules."""

from __future__ import annotations

from random import Random
from typing import Any

from minirt import roofline

from ..drawing import curves
from ..free import Free
from ..kinds import Choice, Code, Derive
from ..task import Task
from ..texts import say
from ..units import parse

A100, QWEN = roofline.get_hardware("A100-80GB"), roofline.get_model("Qwen2.5-0.5B")
N, PEAK, BW, KV, L = QWEN.params, A100.peak_flops, A100.bandwidth, QWEN.kv_bytes_per_token, 2048
NO_LAYERS, ALL_HEADS = KV / 24, KV * 7  # bytes a token when layers, or grouped heads, are forgotten


def decode_time(batch: int, context: int, params: float, kv_per_token: float, peak: float, bandwidth: float) -> float:
    """Equation (3), fp16."""
    return max(2 * params * batch / peak, (2 * params + batch * context * kv_per_token) / bandwidth)


def _seconds(batch: float, kv_per_token: float = KV) -> float:
    return (2 * N + batch * L * kv_per_token) / BW


def _steps(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [(1, 2048, N, KV, PEAK, BW), (100, 2048, N, KV, PEAK, BW), (400, 16, N, KV, PEAK, BW)]
    out = []
    for _ in range(30):
        out.append((rng.randint(1, 500), rng.choice([16, 128, 1024, 8192]), rng.uniform(1e8, 2e10),
                    rng.choice([12288, 131072, 819200]), rng.uniform(1e14, 1e15), rng.uniform(5e11, 5e12)))  # fmt: skip
    return fixed + out


def saturation(context: int, params: float, kv_per_token: float, bandwidth: float, share: float) -> int:
    """The smallest batch whose throughput reaches `share` of the ceiling that reading KV sets."""
    # B / (W + B k) >= share / k  <=>  B k (1 - share) >= share W
    batch = 1
    k, weights = context * kv_per_token, 2 * params
    while batch * k < share * (weights + batch * k) - 1e-6:
        batch += 1
    return batch


def _ceilings(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [(2048, N, KV, BW, 0.5), (1024, N, KV, BW, 0.5), (2048, N, KV, BW, 0.8)]
    out = []
    for _ in range(20):
        out.append((rng.choice([512, 1000, 2048, 5000]), rng.uniform(1e8, 2e9), rng.choice([12288, 36000]),
                    rng.uniform(1e12, 4e12), rng.choice([0.3, 0.5, 0.7, 0.9])))  # fmt: skip
    return fixed + out


def _share_of(rule: Any) -> Any:
    """The smallest batch by a wrong rule, which is a function of (batch, weights, k, share)."""

    def smallest(context: int, params: float, kv_per_token: float, bandwidth: float, share: float) -> int:
        batch, weights, k = 1, 2 * params, context * kv_per_token
        while not rule(batch, weights, k, share) and batch < 100_000:
            batch += 1
        return batch

    return smallest


def _draw_time(fn: Any) -> Any:
    xs = [1, *range(10, 101, 10)]
    lines = {say("show.want"): [1e3 * decode_time(b, L, N, KV, PEAK, BW) for b in xs]}
    if fn is not None:
        lines[say("show.you")] = [1e3 * float(fn(b, L, N, KV, PEAK, BW)) for b in xs]
    return curves("T(B), Qwen2.5-0.5B, L=2048, A100-80GB", xs, lines, "batch B", "ms")


def _draw_ceiling(answer: Any) -> Any:
    """The learner's ceiling over the throughput; the ceiling itself is the answer."""
    xs = [1, *range(20, 401, 20)]
    yours = {} if answer is None else {say("show.you"): [parse(answer, "tokens/s")] * len(xs)}
    lines = {**yours, "tokens/s": [b / _seconds(b) for b in xs]}
    return curves("throughput B / T(B), Qwen2.5-0.5B, L=2048, A100-80GB", xs, lines, "batch B", "tokens/s")


TASKS: list[Task] = [
    Derive(
        "04.1", 1, value=lambda: 1e3 * 2 * N / BW, unit="ms",
        slips={
            "one_byte": lambda: 1e3 * N / BW,
            "flops": lambda: 1e3 * 2 * N / PEAK,
            "fp32": lambda: 1e3 * 4 * N / BW,
            "inverse": lambda: BW / (2 * N),
        },
    ),
    Choice("04.2", 1, right="C"),
    Derive(
        "04.3", 1, value=lambda: PEAK / BW, unit="rows",
        slips={
            "fp32": lambda: 2 * PEAK / BW, "half": lambda: PEAK / BW / 2, "inverse": lambda: BW / PEAK,
            "kv": lambda: 2 * N / (L * KV),
        },
    ),
    Code(
        "04.4", 2, reference=decode_time, cases=_steps, draw=_draw_time,
        slips={
            "sum": lambda b, c, n, k, p, w: 2 * n * b / p + (2 * n + b * c * k) / w,
            "kv_once": lambda b, c, n, k, p, w: max(2 * n * b / p, (2 * n + c * k) / w),
            "no_context": lambda b, c, n, k, p, w: max(2 * n * b / p, (2 * n + b * k) / w),
            "weights_per_row": lambda b, c, n, k, p, w: max(2 * n * b / p, (2 * n * b + b * c * k) / w),
            "one_flop": lambda b, c, n, k, p, w: max(n * b / p, (2 * n + b * c * k) / w),
            "one_byte": lambda b, c, n, k, p, w: max(2 * n * b / p, (n + b * c * k) / w),
            "faster": lambda b, c, n, k, p, w: min(2 * n * b / p, (2 * n + b * c * k) / w),
            "memory_only": lambda b, c, n, k, p, w: (2 * n + b * c * k) / w,
        },
    ),
    Derive(
        "04.5", 2, value=lambda: _seconds(100) / _seconds(1), unit="x",
        slips={
            "linear": lambda: 100.0, "constant": lambda: 1.0,
            "no_layers": lambda: _seconds(100, NO_LAYERS) / _seconds(1, NO_LAYERS),
            "all_heads": lambda: _seconds(100, ALL_HEADS) / _seconds(1, ALL_HEADS),
            "upside_down": lambda: _seconds(1) / _seconds(100),
            "short": lambda: (2 * N + 100 * 1024 * KV) / (2 * N + 1024 * KV),
        },
    ),
    Derive(
        "04.6", 2, value=lambda: 2 * N / (L * KV), unit="rows",
        slips={
            "no_layers": lambda: 2 * N / (L * NO_LAYERS), "all_heads": lambda: 2 * N / (L * ALL_HEADS),
            "short": lambda: 2 * N / (1024 * KV), "ridge": lambda: PEAK / BW, "one_byte": lambda: N / (L * KV),
            "only_k": lambda: 4 * N / (L * KV),
        },
    ),
    Derive(
        "04.7", 2, value=lambda: BW / (L * KV), unit="tokens/s", draw=_draw_ceiling,
        slips={
            "compute": lambda: PEAK / (2 * N), "at_100": lambda: 100 / _seconds(100), "weights": lambda: BW / (2 * N),
            "no_layers": lambda: BW / (L * NO_LAYERS), "linear": lambda: 100 / _seconds(1),
        },
    ),
    Code(
        "04.8", 2, reference=saturation, cases=_ceilings,
        slips={
            "kv_is_share_of_weights": _share_of(lambda b, w, k, s: b * k >= s * w),
            "always_crossing": _share_of(lambda b, w, k, s: b * k >= w),
            "one_short": lambda c, n, k, w, s: saturation(c, n, k, w, s) - 1,
            "rounds_down": lambda c, n, k, w, s: int(s / (1 - s) * 2 * n / (c * k)),
            "fraction": lambda c, n, k, w, s: s / (1 - s) * 2 * n / (c * k),
            "time_share": _share_of(lambda b, w, k, s: w <= s * (w + b * k)),
        },
    ),
    Derive(
        "04.9", 3, value=lambda: 2 * N / PEAK * BW / KV, unit="tokens",
        slips={
            "ridge": lambda: PEAK / BW, "no_layers": lambda: 2 * N / PEAK * BW / NO_LAYERS,
            "all_heads": lambda: 2 * N / PEAK * BW / ALL_HEADS, "weights": lambda: 2 * N / KV,
            "one_flop": lambda: N / PEAK * BW / KV,
        },
    ),
    Free("04.10", 2),
]  # fmt: skip
