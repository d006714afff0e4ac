"""Chapter 10, summary: misconceptions, a capacity plan, which remedy for which load, and interview questions."""

from __future__ import annotations

import math
from functools import cache
from random import Random
from typing import Any

import minirt
from minirt import workloads

from ..free import Free
from ..guess import Predict
from ..kinds import Choice, Code, Derive
from ..task import Task

# -- 10.4: how many machines --------------------------------------------------------------------------------------


def machines(rate: float, prompt: int, output: int, slots: int, prefill_speed: float, step: float, load: float) -> int:
    """Machines for `rate` requests a second, each loaded to at most `load` of what it can complete."""
    seat = prompt / prefill_speed + (output - 1) * step
    return math.ceil(rate * seat / (slots * load) - 1e-9)


def _machines(change: str) -> Any:
    def wrong(
        rate: float, prompt: int, output: int, slots: int, prefill_speed: float, step: float, load: float
    ) -> float:
        seat = prompt / prefill_speed + (output - 1) * step
        if change == "no_prefill":
            seat = (output - 1) * step
        if change == "no_slots":
            slots = 1
        load = {"no_load": 1.0, "more_load": 1 / load}.get(change, load)
        n = rate * seat / (slots * load)
        return n if change == "fraction" else int(n) if change == "floor" else math.ceil(n - 1e-9)

    return wrong


def _plans(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        (40.0, 512, 128, 16, 18000.0, 0.009, 0.7), (10.0, 2000, 64, 32, 15000.0, 0.010, 0.8),
        (1.0, 100, 10, 16, 18000.0, 0.009, 0.5),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(30):
        out.append((rng.uniform(20, 200), rng.randint(400, 4000), rng.randint(20, 400), rng.choice([8, 16, 32]),
                    rng.choice([12000.0, 18000.0]), rng.choice([0.008, 0.012]), rng.choice([0.5, 0.6, 0.8])))  # fmt: skip
    return fixed + out


# -- 10.5: which remedy -------------------------------------------------------------------------------------------

REMEDIES: dict[str, dict[str, Any]] = {
    "A": {"prefix_caching": True}, "B": {"max_num_batched_tokens": 256},
    "C": {"max_batch_size": 64}, "D": {"preemption": "swap"},
}  # fmt: skip


@cache
def remedies() -> dict[str, float]:
    """Median TTFT in milliseconds of requests that share a long system prompt: as it is, and with each remedy."""
    requests = workloads.shared_prefix(
        60, prefix=3000, prompt=64, output=16, arrivals=workloads.poisson(5.5), seed=5
    )
    out = {}
    for name, options in {"as it is": {}, **REMEDIES}.items():
        given = {"max_batch_size": 32, **options}
        out[name] = 1e3 * minirt.simulate("vllm", requests, model="Llama-3-8B", **given).metrics.ttft.p50
    return out


def _best_remedy() -> str:
    found = {k: v for k, v in remedies().items() if k in REMEDIES}
    return min(found, key=lambda k: found[k])


TASKS: list[Task] = [
    Choice("10.1", 1, right="D"),
    Choice("10.2", 2, right="BE"),
    Derive(
        "10.3", 1, value=lambda: 2.0 / 3600 / 2400 * 1e6, unit="美元",
        slips={"per_second": lambda: 2.0 / 2400 * 1e6, "per_thousand": lambda: 2.0 / 3600 / 2400 * 1e3,
               "minutes": lambda: 2.0 / 60 / 2400 * 1e6, "upside_down": lambda: 3600 * 2400 / 2.0 / 1e6},
    ),
    Code(
        "10.4", 2, reference=machines, cases=_plans,
        slips={c: _machines(c) for c in ("no_prefill", "no_slots", "no_load", "more_load", "floor", "fraction")},
    ),
    Predict("10.5", 2, truth=_best_remedy),
    Free("10.6", 1),
    Free("10.7", 2),
    Free("10.8", 3),
]  # fmt: skip
