"""Chapter 08, performance: what the figures of a serving report mean, and how they are got."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import minirt
from minirt import workloads

from ..free import Free
from ..guess import Predict
from ..kinds import Choice, Code, Derive
from ..task import Task

# -- 08.1: the two TPOTs ----------------------------------------------------------------------------------------


def tpots(times: list[float], returned: float) -> tuple[float, float] | None:
    """(TPOT between tokens, TPOT charged with the wait for the batch); None for fewer than two tokens."""
    n = len(times)
    return None if n < 2 else ((times[-1] - times[0]) / (n - 1), (returned - times[0]) / (n - 1))


def _tpots(change: str) -> Any:
    def wrong(times: list[float], returned: float) -> Any:
        n = len(times)
        if n < 2:
            return None if change != "one_token" else (0.0, 0.0)
        first = 0.0 if change == "from_arrival" else times[0]
        by = n if change == "by_n" else n - 1
        both = (times[-1] - first) / by, (returned - first) / by
        if change == "largest_gap":
            return max(b - a for a, b in zip(times, times[1:])), both[1]
        if change == "only_the_wait":
            return both[0], (returned - times[-1]) / by
        return both[::-1] if change == "swapped" else both

    return wrong


def _lives(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([0.5, 0.6, 0.7, 0.8], 2.0), ([0.3, 0.35, 0.4], 0.4), ([1.0], 3.0), ([2.0, 5.0], 5.0)]
    out: list[tuple[Any, ...]] = []
    for _ in range(30):
        now, times = rng.uniform(0.1, 3), []
        for _ in range(rng.randint(2, 12)):
            times.append(round(now, 3))
            now += rng.uniform(0.01, 0.2)
        out.append((times, round(times[-1] + rng.choice([0.0, rng.uniform(0.1, 3)]), 3)))
    return fixed + out


# -- 08.2: goodput ----------------------------------------------------------------------------------------------

Life = tuple[float | None, float | None]


def goodput(requests: list[Life], duration: float, ttft: float, tpot: float) -> float:
    """Requests a second within both limits. (TTFT, TPOT): None, None was not completed; TPOT None has one token."""
    good = sum(a is not None and a <= ttft and (b is None or b <= tpot) for a, b in requests)
    return good / duration


def _good(rule: Any, per: str = "time") -> Any:
    def wrong(requests: list[Life], duration: float, ttft: float, tpot: float) -> float:
        n = sum(bool(rule(a, b, ttft, tpot)) for a, b in requests)
        return n / (duration if per == "time" else len(requests))

    return wrong


def _within(a: Any, b: Any, ttft: float, tpot: float) -> bool:
    return a is not None and a <= ttft and (b is None or b <= tpot)


def _reports(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([(0.5, 0.01), (1.5, 0.01), (0.2, 0.05), (0.9, 0.012)], 2.0, 1.0, 0.012),
        ([(0.5, None), (None, None)], 4.0, 1.0, 0.05),
        ([(1.0, 0.05)], 1.0, 1.0, 0.05), ([(2.0, 0.1)], 1.0, 1.0, 0.05),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(30):
        lives: list[Life] = []
        for _ in range(rng.randint(3, 20)):
            a, b = round(rng.uniform(0.1, 2), 2), round(rng.uniform(0.005, 0.05), 3)
            lives.append(rng.choice([(a, b), (a, b), (a, b), (a, None), (None, None)]))
        out.append((lives, float(rng.randint(1, 9)), 1.0, 0.03))
    return fixed + out


# -- 08.5: an overload that is measured for longer --------------------------------------------------------------


@cache
def overload(n: int) -> Any:
    """Metrics of n requests at 6 a second under static batching with 16 slots."""
    requests = workloads.make_requests(
        n, workloads.lognormal(256, 0.7, 2048), workloads.exponential(128, cap=768), workloads.poisson(6.0), seed=1
    )
    return minirt.simulate("static", requests, model="Llama-3-8B", max_batch_size=16, max_wait=0.5).metrics


def _four_times_as_long() -> str:
    ratio = overload(320).ttft.p99 / overload(80).ttft.p99
    return "A" if ratio < 1.3 else "B" if ratio < 2.5 else "C"


# -- 08.7: a percentile ------------------------------------------------------------------------------------------


def percentile(values: list[float], q: float) -> float:
    """By linear interpolation between the ranks 0 and n - 1."""
    v = sorted(values)
    at = q / 100 * (len(v) - 1)
    low = int(at)
    return v[low] if low + 1 == len(v) else v[low] + (at - low) * (v[low + 1] - v[low])


def _samples(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([1.0, 2.0, 3.0, 4.0], 50.0), ([5.0], 99.0), ([3.0, 1.0, 2.0], 100.0)]
    out: list[tuple[Any, ...]] = []
    for _ in range(30):
        values = [round(rng.expovariate(1.0), 3) for _ in range(rng.randint(2, 40))]
        out.append((values, rng.choice([10.0, 50.0, 90.0, 95.0, 99.0])))
    return fixed + out


TASKS: list[Task] = [
    Code(
        "08.1", 1, reference=tpots, cases=_lives,
        slips={c: _tpots(c) for c in (
            "by_n", "from_arrival", "largest_gap", "only_the_wait", "swapped", "one_token")},
    ),
    Code(
        "08.2", 2, reference=goodput, cases=_reports,
        slips={
            "share": _good(_within, "share"),
            "either": _good(lambda a, b, s, t: a is not None and (a <= s or (b is not None and b <= t))),
            "ttft_only": _good(lambda a, b, s, t: a is not None and a <= s),
            "tpot_only": _good(lambda a, b, s, t: a is not None and (b is None or b <= t)),
            "strictly": _good(lambda a, b, s, t: a is not None and a < s and (b is None or b < t)),
            "one_token": _good(lambda a, b, s, t: a is not None and b is not None and a <= s and b <= t),
            "throughput": _good(lambda a, b, s, t: a is not None),
        },
    ),
    Derive(
        "08.3", 1, value=lambda: 8 * (0.4 + 200 * 0.010), unit="个请求", rel=0.02,
        slips={"no_queue": lambda: 8 * 200 * 0.010, "divided": lambda: 8 / 2.4, "stay": lambda: 2.4,
               "tokens": lambda: 8 * 200.0, "milliseconds": lambda: 8 * (0.4 + 200 * 10)},
    ),
    Derive(
        "08.4", 2, value=lambda: 16 / (0.030 + 127 * 0.009), unit="requests/s", rel=0.02,
        slips={"no_prefill": lambda: 16 / (127 * 0.009 * 1.0), "one_row": lambda: 1 / (0.030 + 127 * 0.009),
               "steps": lambda: 1 / 0.009, "tokens": lambda: 16 / 0.009,
               "rows_share": lambda: 16 / (0.030 + 127 * 0.009 * 16)},
    ),
    Predict("08.5", 2, truth=_four_times_as_long),
    Choice("08.6", 1, right="B"),
    Code(
        "08.7", 2, reference=percentile, cases=_samples,
        slips={
            "unsorted": lambda v, q: v[int(q / 100 * (len(v) - 1))],
            "no_interpolation": lambda v, q: sorted(v)[int(q / 100 * (len(v) - 1))],
            "out_by_one": lambda v, q: sorted(v)[min(len(v) - 1, int(q / 100 * len(v)))],
            "upside_down": lambda v, q: percentile(v, 100 - q),
            "of_the_maximum": lambda v, q: q / 100 * max(v),
        },
    ),
    Free("08.8", 2),
]  # fmt: skip
