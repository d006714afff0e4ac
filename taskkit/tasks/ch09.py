"""Chapter 09, evolution: a prefill that stops everyone (思考题 3), guesses that are checked, two machines instead of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import minirt
from minirt import roofline, workloads
from minirt.policies import MiniRuntimePolicy
from minirt.tally import token_times

from ..drawing import curves
from ..free import Free
from ..guess import Predict
from ..kinds import Choice, Code, Derive, Judged
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Wrong
from ..view import Card, Plain
from .toysched import guarded, is_missing

A100, LLAMA = roofline.get_hardware("A100-80GB"), roofline.get_model("Llama-3-8B").but(max_len=16384)
BUDGET = 8192  # tokens, MAX_TOKENS_PER_PREFILL_STEP of the source chapter
PEAK, BW, N, KV = A100.peak_flops, A100.bandwidth, LLAMA.params, LLAMA.kv_bytes_per_token


# -- 09.1 and 09.4: a prompt that fills the whole budget ---------------------------------------------------------


def scene(policy: Any, riders: int = 8, longs: Sequence[float] = (0.5,), size: int = BUDGET) -> Any:
    """The run: people who are reading along, and at these times a prompt of `size` tokens among them."""
    requests = workloads.make_requests(
        prompt=[64] * riders + [size] * len(longs), output=[200] * riders + [16] * len(longs),
        arrivals=[0.0] * riders + list(longs), seed=3,
    )  # fmt: skip
    return minirt.simulate(policy, requests, hardware=A100, model=LLAMA, max_batch_size=32)


SCENES: tuple[tuple[int, tuple[float, ...], int], ...] = ((8, (0.5,), BUDGET), (16, (0.4, 0.6), BUDGET), (12, (0.3,), 6000))


@cache
def unmended(at: int) -> Any:
    """The run that the learner's policy is measured against: chunk and budget 8192."""
    return scene(MiniRuntimePolicy(BUDGET, BUDGET), *SCENES[at])


def _times_as_long() -> str:
    m = unmended(0).metrics
    ratio = m.itl.max / m.itl.p50
    return "A" if ratio < 1.5 else "B" if ratio < 15 else "C" if ratio < 200 else "D"


def _named(riders: int, longs: Sequence[float], size: int) -> Plain:
    return Plain(f"riders={riders}, longs={longs}, size={size}")


def _long_ttft(m: Any) -> float:
    return max(r.ttft for r in m.requests if r.num_prompt > 1000)


def _mend(answer: Any, attempt: Attempt) -> dict[str, Any]:
    worst = slowest = 0.0
    apart = False  # whether prefill and decode ever were two forwards of one step
    for at, given in enumerate(SCENES):
        shown = _named(*given)
        run = guarded(answer, attempt, lambda p, g=given: scene(p, *g), shown)  # type: ignore[misc]
        m, apart = run.metrics, apart or any(len(step.forwards) > 1 for step in run.trace)
        if any(r.finish_reason != "length" for r in m.requests):
            raise Wrong("gives_up", [("input", shown)])
        worst = max(worst, 1e3 * m.itl.max)
        slowest = max(slowest, _long_ttft(m) / _long_ttft(unmended(at).metrics))
    values = {"worst": f"{worst:.1f}", "ratio": f"{slowest:.2f}"}
    if worst > 20:
        raise Wrong("unchanged" if worst > 300 else "two_forwards" if worst < 26 and apart else "still_long", [], **values)
    if slowest > 1.25:
        raise Wrong("too_fine" if slowest < 4 else "long_never_comes", [], **values)
    return values


def _draw_mend(answer: Any, attempt: Attempt) -> Any:
    """Every gap of the first rider. Without a policy there is nothing: the unmended run is the answer to 09.1."""
    if is_missing(answer):
        return Card("09.4", say("status.unanswered"), say("show.after"), "unanswered")
    runs = {say("show.whole"): unmended(0), say("show.you"): guarded(answer, attempt, scene, _named(*SCENES[0]))}
    gaps = {name: _gaps(run) for name, run in runs.items()}
    count = min(map(len, gaps.values()))
    lines = {say("show.limit", n="20 ms"): [20.0] * count, **{name: g[:count] for name, g in gaps.items()}}
    return curves("time between two tokens of the first rider", range(2, count + 2), lines, "token", "ms", log=True)


def _gaps(run: Any) -> list[float]:
    times = token_times(run.trace)[0]
    return [1e3 * (b - a) for a, b in zip(times, times[1:])]


# -- 09.3: the largest piece that keeps the promise --------------------------------------------------------------


def largest_chunk(
    target: float, rows: int, context: int, params: float, kv_per_token: float, peak: float, bandwidth: float
) -> int:
    """Prompt tokens that fit beside `rows` decodes into a step of `target` seconds (fp16)."""
    if (2 * params + rows * context * kv_per_token) / bandwidth > target:
        return 0
    return max(0, int(target * peak / (2 * params) - rows))


def _chunk(change: str) -> Any:
    def wrong(t: float, rows: int, c: int, n: float, kv: float, peak: float, bw: float) -> float:
        memory, compute = (2 * n + rows * c * kv) / bw, 2 * n / peak
        if change == "no_memory":
            return max(0, int(t / compute - rows))
        if memory > t:
            return 0
        if change == "no_rows":
            return int(t / compute)
        if change == "adds_up":
            return max(0, int((t - memory) / compute - rows))
        if change == "one_flop":
            return max(0, int(2 * t / compute - rows))
        return max(0, t / compute - rows)

    return wrong


def _targets(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        (0.020, 16, 1024, N, KV, PEAK, BW), (0.015, 64, 512, N, KV, PEAK, BW), (0.007, 16, 1024, N, KV, PEAK, BW),
        (0.009, 4, 1024, N, KV, PEAK, BW),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(30):
        out.append((rng.uniform(0.006, 0.04), rng.randint(1, 120), rng.choice([256, 1024, 2048]), N, KV,
                    rng.uniform(2e14, 9e14), rng.uniform(1.5e12, 3.3e12)))  # fmt: skip
    return fixed + out


def _draw_chunk(fn: Any) -> Any:
    xs = [5, 8, 10, 12, 15, 20, 25, 30, 40]
    lines = {say("show.want"): [float(largest_chunk(t / 1e3, 16, 1024, N, KV, PEAK, BW)) for t in xs]}
    if fn is not None:
        lines[say("show.you")] = yours = [float(fn(t / 1e3, 16, 1024, N, KV, PEAK, BW)) for t in xs]
        off = [f"{t} ms → {y:g}" for t, y in zip(xs, yours) if not (math.isfinite(y) and y >= 0)]
        if off:  # no place on the axes for these
            words = say("show.off_axis", values="、".join(off))
            return [Card("09.3", say("status.wrong"), words, "wrong"), picture(lines, xs)]
    return picture(lines, xs)


def picture(lines: dict[str, list[float]], xs: list[int]) -> Any:
    """09.3: tokens over the length of a step; what lies off the axes is left at their edge."""
    lines = {name: [y if math.isfinite(y) else 0.0 for y in ys] for name, ys in lines.items()}
    return curves("largest chunk, 16 rows at 1024, Llama-3-8B, A100-80GB", xs, lines, "step [ms]", "tokens")


# -- 09.6 and 09.7: guess, and check ------------------------------------------------------------------------------


def propose(tokens: list[int], n: int, k: int) -> list[int]:
    """Up to k tokens that followed the latest earlier place where the last n tokens stood."""
    tail = tokens[-n:]
    for end in range(len(tokens) - 1, n - 1, -1):
        if tokens[end - n : end] == tail:
            return tokens[end : end + k]
    return []


def _first_place(tokens: list[int], n: int, k: int) -> list[int]:
    tail = tokens[-n:]
    return next((tokens[e : e + k] for e in range(n, len(tokens)) if tokens[e - n : e] == tail), [])


def _with_tail(tokens: list[int], n: int, k: int) -> list[int]:
    found = propose(tokens, n, k)
    return (tokens[-n:] + found)[:k] if found else []


def _one_late(tokens: list[int], n: int, k: int) -> list[int]:
    tail = tokens[-n:]
    for end in range(len(tokens) - 1, n - 1, -1):
        if tokens[end - n : end] == tail:
            return tokens[end + 1 : end + 1 + k]
    return []


def _texts(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([1, 2, 3, 9, 1, 2, 4, 7, 1, 2], 2, 3), ([1, 2, 3], 2, 3), ([5, 6, 5, 6, 5, 6], 2, 4), ([7], 2, 3),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(40):
        text = [rng.randint(0, 4) for _ in range(rng.randint(6, 30))]
        out.append((text, rng.randint(1, 3), rng.randint(1, 5)))
    return fixed + out


def accept(guess: list[int], model: list[int]) -> list[int]:
    """What a checked guess gives. model[i]: what the model says after guess[:i], so one more than there are guesses."""
    right = 0
    while right < len(guess) and guess[right] == model[right]:
        right += 1
    return model[: right + 1]


def _checks(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([4, 7, 1, 2], [4, 7, 3, 2, 5]), ([1, 2], [1, 2, 3]), ([9], [4, 5]), ([], [6])]
    out: list[tuple[Any, ...]] = []
    for _ in range(40):
        model = [rng.randint(0, 9) for _ in range(rng.randint(2, 7))]
        out.append(([t if rng.random() < 0.75 else 9 - t for t in model[:-1]], model))
    return fixed + out


TASKS: list[Task] = [
    Predict("09.1", 1, truth=_times_as_long),
    Derive(
        "09.2", 1, value=lambda: 1e3 * 2 * N * BUDGET / PEAK, unit="ms", rel=0.03,
        slips={"one_flop": lambda: 1e3 * N * BUDGET / PEAK, "weights": lambda: 1e3 * 2 * N / BW,
               "weights_each": lambda: 1e3 * 2 * N / BW * BUDGET, "one_token": lambda: 1e3 * 2 * N / PEAK},
    ),
    Code(
        "09.3", 2, kind="derive", reference=largest_chunk, cases=_targets, draw=_draw_chunk,
        slips={c: _chunk(c) for c in ("no_memory", "no_rows", "adds_up", "one_flop", "fraction")},
    ),
    Judged("09.4", 2, kind="code", judge=_mend, draw=_draw_mend, limit=20.0),
    Free("09.5", 2, closes=("02.7", "04.10")),
    Code(
        "09.6", 2, reference=propose, cases=_texts,
        slips={
            "first_place": _first_place,
            "finds_itself": lambda t, n, k: [],
            "with_tail": _with_tail,
            "one_late": _one_late,
            "only_one": lambda t, n, k: propose(t, n, 1),
            "everything": lambda t, n, k: propose(t, n, len(t)),
        },
    ),
    Code(
        "09.7", 2, reference=accept, cases=_checks,
        slips={
            "no_bonus": lambda g, m: accept(g, m)[:-1],
            "goes_on": lambda g, m: [b for a, b in zip(g, m) if a == b] + m[-1:],
            "everything": lambda g, m: list(m),
            "all_or_nothing": lambda g, m: list(m) if g == m[:-1] else m[:1],
            "guess": lambda g, m: list(g),
        },
    ),
    Derive(
        "09.8", 2, value=lambda: (1 - 0.8**5) / (1 - 0.8), unit="tokens",
        slips={"independent": lambda: 1 + 4 * 0.8, "no_bonus": lambda: sum(0.8**i for i in range(1, 5)), "all": lambda: 5.0,
               "all_right": lambda: 0.8**4},
    ),
    Choice("09.9", 1, right="C"),
]  # fmt: skip
