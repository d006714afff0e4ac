"""Chapter 03, batch limits: memory, compute and latency each have a say in B_max."""

from __future__ import annotations

from random import Random
from typing import Any

import minirt
from minirt import roofline, workloads
from minirt.policies.base import State, StepPlan

from ..guess import Predict
from ..kinds import Code, Derive, Judged
from ..pictures import beside, player
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Stopped, Unanswered, Wrong
from ..view import Plain, short

LLAMA, A100 = roofline.get_model("Llama-3-8B"), roofline.get_hardware("A100-80GB")
ROOM = 0.9 * A100.memory - LLAMA.weight_bytes
CONTEXT = 2048


def can_admit(prompt_tokens: int, free_slots: int, free_blocks: int, block_size: int, keep: int) -> bool:
    """Whether a waiting request can come in now."""
    return free_slots > 0 and -(-prompt_tokens // block_size) <= free_blocks - keep


def _states(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        (33, 2, 4, 16, 1), (33, 2, 3, 16, 1), (33, 0, 9, 16, 0), (32, 1, 2, 16, 0), (48, 1, 3, 16, 1),
    ]  # fmt: skip
    out = []
    for _ in range(60):
        prompt, size, keep = rng.randint(1, 200), rng.choice([1, 4, 16, 32]), rng.randint(0, 4)
        out.append((prompt, rng.choice([0, 1, 1, 1, 5]), max(0, prompt // size + rng.randint(-1, 6)), size, keep))
    return fixed + out


def b_max(
    kv_room: float, kv_per_row: float, prompt: int, output: int, prefill_budget: int, weights: float, bandwidth: float,
    tpot: float,
) -> tuple[int, str]:  # fmt: skip
    """Equation (2), whole rows, and which of the three binds."""
    memory = int(kv_room // kv_per_row)
    compute = int(prefill_budget * output // prompt)
    slo = max(0, int((tpot * bandwidth - weights) // kv_per_row))
    least = min(memory, compute, slo)
    return least, {memory: "memory", compute: "compute", slo: "slo"}[least]


def _b_max(change: str) -> Any:
    """b_max with a typical mistake in it."""

    def wrong(
        kv_room: float, kv_per_row: float, prompt: int, output: int, prefill_budget: int, weights: float,
        bandwidth: float, tpot: float,
    ) -> tuple[float, str]:  # fmt: skip
        rows = {
            "memory": kv_room / kv_per_row,
            "compute": prefill_budget * output / prompt,
            "slo": max(0.0, (tpot * bandwidth - weights) / kv_per_row),
        }
        if change == "no_weights":
            rows["slo"] = tpot * bandwidth / kv_per_row
        if change == "per_prompt":
            rows["compute"] = prefill_budget / prompt
        if change == "negative":
            rows["slo"] = (tpot * bandwidth - weights) / kv_per_row
        pick = (max if change == "largest" else min)(rows, key=lambda k: rows[k])
        return (rows[pick] if change == "fraction" else rows[pick] // 1), pick

    return wrong


def _limits(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        (20e9, 134e6, 512, 256, 8192, 16.06e9, 1555e9, 0.020), (20e9, 134e6, 512, 256, 8192, 16.06e9, 1555e9, 0.015),
        (60e9, 12.6e6, 4096, 32, 2048, 1e9, 2039e9, 0.020), (20e9, 134e6, 512, 256, 8192, 16.06e9, 1555e9, 0.010),
    ]  # fmt: skip
    out = []
    for _ in range(40):
        weights = rng.choice([1e9, 16e9, 26e9])
        fast = weights / 2e12 * rng.uniform(0.8, 3.0)
        out.append((rng.uniform(2e9, 50e9), rng.uniform(1e7, 9e8), rng.randint(64, 4000), rng.randint(16, 400),
                    rng.choice([512, 2048, 8192]), weights, 2e12, fast))  # fmt: skip
    return fixed + [args for args in out if len(set(_three(*args))) == 3]


def _three(
    kv_room: float, kv_per_row: float, prompt: int, output: int, budget: int, weights: float, bw: float, tpot: float
) -> tuple[float, float, float]:
    return kv_room // kv_per_row, budget * output // prompt, max(0.0, (tpot * bw - weights) // kv_per_row)


def _twice_the_memory() -> str:
    """A100-40GB, Llama-3-8B, contexts of 1024, TPOT 15 ms: what does twice the memory bring?"""
    small = roofline.get_hardware("A100-40GB")

    def rows(memory: float) -> float:
        machine = small.but(memory=memory)
        return roofline.batch_limits(768, 512, machine, LLAMA, tpot=0.015, prefill_budget=8192).max

    before, after = rows(40e9), rows(80e9)
    return "C" if after == before else "A" if after < 2.1 * before else "B"


# -- 03.5: a runtime that fails fast, and an admission that never lets it come to that -----------------------------

BLOCKS, BLOCK, SLOTS = 8, 4, 4


def runtime(policy: Any, pairs: Any) -> Any:
    """Requests of (prompt, output) tokens on 8 blocks of 4 tokens and 4 slots."""
    requests = workloads.make_requests(prompt=[p for p, _ in pairs], output=[o for _, o in pairs])
    return minirt.simulate(policy, requests, clock="step", max_batch_size=SLOTS, num_blocks=BLOCKS, block_size=BLOCK)


class Promises:
    """Admits a request only if all that are in could grow to their end beside it."""

    name = "promises"

    def plan(self, state: State) -> StepPlan:
        p = minirt.Planner(state, mixed=False)
        size = state.limits.block_size
        promised = 0
        for seq in [*state.running, *state.prefilling]:
            promised += -(-seq.max_total // size)
        for seq in state.running:
            p.decode(seq)
        for seq in state.prefilling:
            p.prefill(seq)
        for seq in state.waiting:
            need = -(-seq.max_total // size)
            if promised + need > state.limits.num_blocks or not p.admit(seq):
                break
            promised += need
        return p.plan


def _abort_then_mend(answer: Any, attempt: Attempt) -> dict[str, Any]:
    try:
        pairs, policy = answer
    except (TypeError, ValueError):
        raise Wrong("two_parts", [("got", answer)]) from None
    if pairs is None or pairs is ...:
        raise Unanswered
    _check_pairs(pairs)
    aborted = sum(o.finish_reason == "aborted" for o in runtime("mini-runtime", pairs).outputs)
    if not aborted:
        raise Wrong("no_abort", [("got", pairs)])
    attempt.half = True
    if policy is None or policy is ...:
        raise Unanswered
    rng = Random("taskkit 03.5")
    hidden = [[(rng.randint(1, 12), rng.randint(1, 12)) for _ in range(rng.randint(3, 8))] for _ in range(10)]
    steps = alone = 0
    for given in [list(pairs), *hidden]:
        run = _guarded(policy, given, attempt)
        ends = [o.finish_reason for o in run.outputs]
        if "aborted" in ends:
            raise Wrong("still_aborts", [("input", given)])
        if "rejected" in ends:
            raise Wrong("refuses", [("input", given)])
        if run.metrics.preemptions and sum(run.metrics.preemptions.values()):
            raise Wrong("preempts", [("input", given)])
        steps += len(run.trace)
        alone += sum(o for _, o in given)
    if steps > 0.8 * alone:
        raise Wrong("serial", [], steps=steps, alone=alone)
    return {"aborted": aborted, "steps": steps, "alone": alone}


def _guarded(policy: Any, pairs: Any, attempt: Attempt) -> Any:
    out = attempt.outcome(lambda: runtime(policy() if isinstance(policy, type) else policy, pairs))
    if out.kind == "unwritten":
        raise Unanswered
    if out.kind == "crash" and isinstance(out.exception, minirt.PolicyError):
        steps: Any = out.exception.run.trace if out.exception.run is not None else []
        code = "stalls" if "stalls" in str(out.exception) else "broken_plan"
        if code == "stalls" and not any(e.kind == "admitted" for step in steps for e in step.events):
            code = "does_nothing"
        raise Wrong(code, [("input", Plain(f"pairs={short(pairs)}"))], detail=str(out.exception))
    if out.kind != "ok":
        raise Stopped(out)
    return out.value


def _check_pairs(pairs: Any) -> None:
    ok = isinstance(pairs, (list, tuple)) and 2 <= len(pairs) <= 6
    ok = ok and all(isinstance(x, (list, tuple)) and len(x) == 2 and all(type(n) is int and n > 0 for n in x) for x in pairs)
    if not ok:
        raise Wrong("outside_rules", [("got", pairs)])
    for p, o in pairs:
        if p + o - 1 > BLOCKS * BLOCK:
            raise Wrong("too_big", [("got", (p, o))], total=p + o - 1)


def _draw_runtime(answer: Any, attempt: Attempt) -> Any:
    """What happens to the learner's requests; while there are none, two that do no harm."""
    pairs, policy = (None, None) if answer is None else answer
    if pairs is ... or pairs is None:
        pairs, policy = [(3, 2), (3, 2)], None
    _check_pairs(pairs)
    before = runtime("mini-runtime", pairs)
    if policy is None or policy is ...:
        return player(before)
    return beside(before, _guarded(policy, pairs, attempt), ("mini-runtime", say("show.you")))


TASKS: list[Task] = [
    Derive(
        "03.1", 1, value=lambda: ROOM / LLAMA.kv_bytes(CONTEXT), unit="个请求",
        slips={
            "no_weights": lambda: 0.9 * A100.memory / LLAMA.kv_bytes(CONTEXT),
            "all_memory": lambda: (A100.memory - LLAMA.weight_bytes) / LLAMA.kv_bytes(CONTEXT),
            "all_heads": lambda: ROOM / (2 * 32 * 32 * 128 * 2 * CONTEXT),
            "one_layer": lambda: ROOM / (2 * 8 * 128 * 2 * CONTEXT),
            "only_k": lambda: 2 * ROOM / LLAMA.kv_bytes(CONTEXT),
        },
    ),
    Code(
        "03.2", 1, reference=can_admit, cases=_states,
        slips={
            "floor": lambda p, s, f, b, k: s > 0 and p // b <= f - k,
            "no_slot": lambda p, s, f, b, k: -(-p // b) <= f - k,
            "no_keep": lambda p, s, f, b, k: s > 0 and -(-p // b) <= f,
            "strictly": lambda p, s, f, b, k: s > 0 and -(-p // b) < f - k,
            "tokens": lambda p, s, f, b, k: s > 0 and p <= f - k,
            "always": lambda p, s, f, b, k: s > 0,
        },
    ),
    Code(
        "03.3", 2, reference=b_max, cases=_limits,
        slips={c: _b_max(c) for c in ("largest", "no_weights", "per_prompt", "negative", "fraction")},
    ),
    Predict("03.4", 2, truth=_twice_the_memory),
    Judged("03.5", 3, judge=_abort_then_mend, draw=_draw_runtime),
]  # fmt: skip
