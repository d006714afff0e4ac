"""Chapter 06, industry: what Orca, TGI and vLLM decide, and what happens when blocks run out."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import minirt
from minirt import roofline, workloads

from ..drawing import blocks
from ..free import Free
from ..guess import Predict
from ..kinds import Choice, Code, Derive, Judged
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Unanswered, Wrong
from ..view import Card
from .toysched import EvictsOldest, check_jobs, draw_mended, is_missing, serve, serve_guarded, two_parts

A100, LLAMA = roofline.get_hardware("A100-80GB"), roofline.get_model("Llama-3-8B")


# -- 06.2: Orca's admission: consecutive blocks -----------------------------------------------------------------


def first_run(free: list[bool], tokens: int, block_size: int) -> int | None:
    """Where the first run of free blocks begins that holds so many tokens; None where there is none."""
    need, length = -(-tokens // block_size), 0
    for i, is_free in enumerate(free):
        length = length + 1 if is_free else 0
        if length == need:
            return i - need + 1
    return None


def _counts_only(free: list[bool], tokens: int, block_size: int) -> int | None:
    return free.index(True) if sum(free) >= -(-tokens // block_size) else None


def _last_run(free: list[bool], tokens: int, block_size: int) -> int | None:
    found = first_run(free[::-1], tokens, block_size)
    return None if found is None else len(free) - found - -(-tokens // block_size)


def _floor_run(free: list[bool], tokens: int, block_size: int) -> int | None:
    return first_run(free, tokens // block_size * block_size, block_size) if tokens >= block_size else 0


def _end_of_run(free: list[bool], tokens: int, block_size: int) -> int | None:
    found = first_run(free, tokens, block_size)
    return None if found is None else found + -(-tokens // block_size) - 1


def _maps(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([True, True, False, True, True, True, True, False], 48, 16), ([True, False] * 4, 20, 16),
        ([False, True, True, False, True, True], 17, 16), ([False] * 5, 1, 16),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(40):
        size = rng.choice([4, 16])
        out.append(([rng.random() < 0.75 for _ in range(rng.randint(8, 24))], rng.randint(1, 5 * size), size))
    return fixed + out


def _draw_maps(fn: Any) -> Any:
    free, tokens, size = [True, True, False, True, True, True, True, False], 48, 16
    need = -(-tokens // size)

    def row(start: Any) -> dict[str, list[int]]:
        held = {"X": [i for i, f in enumerate(free) if not f]}
        inside = type(start) is int and start >= 0 and start + need <= len(free)
        return {**held, "R": list(range(start, start + need))} if inside else held

    start, off = None, False
    rows = {say("show.want"): row(first_run(free, tokens, size))}
    if fn is not None:
        start = fn(list(free), tokens, size)
        rows[say("show.you")] = row(start)
        off = start is not None and "R" not in rows[say("show.you")]
    picture = blocks(f"R: {tokens} tokens, block_size {size}; X: in use", len(free), rows)
    if not off:
        return picture
    words = say("show.off_map", got=start, need=need, last=len(free) - 1)
    return [Card("06.2", say("status.wrong"), words, "wrong"), picture]


# -- 06.3: TGI's next_batch -------------------------------------------------------------------------------------


def next_batch(
    waiting: list[tuple[int, int]], running: list[tuple[int, int]], waited: int,
    ratio: float, max_waiting: int, prefill_budget: int, total_budget: int,
) -> int:  # fmt: skip
    """How many of the queue prefill now: (prompt, max_new) each, the oldest first."""
    return _next_batch(waiting, running, waited, ratio, max_waiting, prefill_budget, total_budget)


def _next_batch(
    waiting: list[tuple[int, int]], running: list[tuple[int, int]], waited: int,
    ratio: float, max_waiting: int, prefill_budget: int, total_budget: int, change: str = "",
) -> int:  # fmt: skip
    least = int(len(running) * ratio) if waited < max_waiting or change == "never_patient" else 0
    if change == "no_minimum":
        least = 0
    total = 0 if change == "forgets_running" else sum(p + n for p, n in running)
    prefill = count = 0
    for prompt, new in waiting:
        own = prompt if change == "prompt_only" else prompt + new
        if total + own > total_budget or (prefill + prompt > prefill_budget and change != "no_prefill_budget"):
            if change == "overtakes":
                continue
            break
        total, prefill, count = total + own, prefill + prompt, count + 1
    if change == "checks_queue":
        return count if len(waiting) >= least else 0
    return count if count >= least else 0


def _tgi_slip(change: str) -> Any:
    def wrong(w: Any, r: Any, t: int, ratio: float, m: int, p: int, b: int) -> int:
        return _next_batch(w, r, t, ratio, m, p, b, change)

    return wrong


def _queues(rng: Random) -> list[tuple[Any, ...]]:
    ten = [(40, 60)] * 10
    fixed: list[tuple[Any, ...]] = [
        ([(50, 50)], ten, 5, 0.3, 20, 4096, 8000), ([(50, 50)] * 3, ten, 5, 0.3, 20, 4096, 8000),
        ([(50, 50)], ten, 20, 0.3, 20, 4096, 8000), ([(3000, 50), (2000, 50)], [], 3, 0.3, 20, 4096, 8000),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(80):
        running = [(rng.randint(10, 300), rng.randint(10, 300)) for _ in range(rng.randint(0, 12))]
        waiting = [(rng.randint(10, 900), rng.randint(10, 300)) for _ in range(rng.randint(0, 8))]
        held = sum(p + n for p, n in running)
        out.append((waiting, running, rng.randint(1, 24), rng.choice([0.2, 0.3, 0.5]), 20, rng.randint(700, 3000),
                    held + rng.randint(200, 4000)))  # fmt: skip
    return fixed + out


# -- 06.4: whose longest stall is the shortest ------------------------------------------------------------------


@cache
def stalls() -> dict[str, float]:
    """Longest gap between two tokens of a request, in milliseconds, under each policy."""
    requests = workloads.make_requests(
        100, workloads.lognormal(300, 0.9, cap=3000), workloads.lognormal(150, 0.9, cap=600),
        workloads.poisson(8.0), seed=7,
    )  # fmt: skip
    out = {}
    fleet: dict[str, dict[str, Any]] = {
        "static": {"max_wait": 0.5}, "tgi": {}, "mini-runtime": {}, "vllm": {"max_num_batched_tokens": 512},
    }  # fmt: skip
    for name, options in fleet.items():
        run = minirt.simulate(name, requests, model="Llama-3-8B", max_batch_size=64, **options)
        out[name] = 1e3 * run.metrics.itl.max
    return out


def _least_stall() -> str:
    found = stalls()
    return {"static": "A", "tgi": "B", "mini-runtime": "C", "vllm": "D"}[min(found, key=lambda k: found[k])]


# -- 06.7: a policy that computes everything twice --------------------------------------------------------------

BLOCKS, SLOTS = 16, 8


def _needed(jobs: Any) -> int:
    return sum(p + o - 1 for p, o in jobs)


def hidden_jobs() -> list[list[tuple[int, int]]]:
    """The loads on which a mended policy is measured."""
    rng = Random("taskkit 06.7")
    return [[(rng.randint(6, 20), rng.randint(8, 24)) for _ in range(rng.randint(6, 10))] for _ in range(16)]


def _thrash_then_calm(answer: Any, attempt: Attempt) -> dict[str, Any]:
    jobs, policy = two_parts(answer)
    check_jobs(jobs, 8, BLOCKS)
    ratio = serve(EvictsOldest(), jobs, BLOCKS, SLOTS).metrics.computed_tokens / _needed(jobs)
    if ratio < 1.9:
        code = "fits" if ratio == 1 else "not_enough"
        raise Wrong(code, [("got", jobs)], ratio=f"{ratio:.2f}")
    attempt.half = True
    if is_missing(policy):
        raise Unanswered
    computed = needed = steps = alone = 0
    for given in [list(jobs), *hidden_jobs()]:
        run = serve_guarded(policy, attempt, given, BLOCKS, SLOTS)
        if any(o.finish_reason != "length" for o in run.outputs):
            raise Wrong("gives_up", [("input", given)])
        computed, needed = computed + run.metrics.computed_tokens, needed + _needed(given)
        steps, alone = steps + len(run.trace), alone + sum(o for _, o in given)
    values = {"ratio": f"{ratio:.2f}", "mended": f"{computed / needed:.2f}", "steps": f"{steps / alone:.0%}"}
    if computed > 1.3 * needed:
        raise Wrong("still_thrashes", [], **values)
    if steps > 0.55 * alone:
        raise Wrong("too_careful", [], **values)
    return values


def _draw_thrash(answer: Any, attempt: Attempt) -> Any:
    jobs, policy = ([(12, 20)] * 4, None) if answer is None else two_parts(answer)
    check_jobs(jobs, 8, BLOCKS)
    before = serve(EvictsOldest(), jobs, BLOCKS, SLOTS)
    return draw_mended(before, "evicts-oldest", policy, attempt, jobs, BLOCKS, SLOTS)


def _swap() -> float:
    return 2 * LLAMA.kv_bytes_per_token / A100.host_bandwidth


def _recompute() -> float:
    return 2 * LLAMA.params / A100.peak_flops


TASKS: list[Task] = [
    Derive(
        "06.1", 1, value=lambda: 9600 // 512, unit="个请求",
        slips={"fraction": lambda: 18.75, "paged": lambda: 153600 / 450, "pow2": lambda: 153600 // 556,
               "blocks": lambda: 9600 / 8192, "prompt": lambda: 153600 / 300},
    ),
    Code(
        "06.2", 2, reference=first_run, cases=_maps, draw=_draw_maps,
        slips={
            "counts_only": _counts_only,
            "last_run": _last_run,
            "floor": _floor_run,
            "tokens": lambda f, t, b: first_run(f, t * b, b),
            "end": _end_of_run,
            "yes_no": lambda f, t, b: first_run(f, t, b) is not None,
        },
    ),
    Code(
        "06.3", 2, reference=next_batch, cases=_queues,
        slips={c: _tgi_slip(c) for c in (
            "no_minimum", "never_patient", "forgets_running", "prompt_only", "no_prefill_budget", "overtakes",
            "checks_queue")},
    ),
    Predict("06.4", 2, truth=_least_stall),
    Choice("06.5", 1, right="C"),
    Derive(
        "06.6", 2, value=lambda: _recompute() / _swap(), unit="x", rel=0.02,
        slips={"one_way": lambda: 2 * _recompute() / _swap(), "one_flop": lambda: _recompute() / _swap() / 2,
               "upside_down": lambda: _swap() / _recompute(), "no_layers": lambda: 32 * _recompute() / _swap(),
               "all_heads": lambda: _recompute() / _swap() / 4,
               "device_memory": lambda: _recompute() * A100.bandwidth / (2 * LLAMA.kv_bytes_per_token)},
    ),
    Judged("06.7", 3, judge=_thrash_then_calm, draw=_draw_thrash, limit=20.0),
    Free("06.8", 2),
]  # fmt: skip
