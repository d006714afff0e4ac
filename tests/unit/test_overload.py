"""More load than can be served, and callers who give up: everyone ends once, in order, and nothing leaks.

Poisson arrivals at 1.3 times what the policy serves at best, on the simulator; 20,000 requests under vllm.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest

from minirt import Engine, ModelClock, Request
from minirt.backends.simulated import SimulatedBackend
from minirt.metrics import RunMetrics
from minirt.workloads import choice, make_requests, poisson, uniform

SIZES: dict[str, Any] = {"max_batch_size": 48, "num_blocks": 100, "block_size": 8, "max_model_len": 128}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "vllm": ("vllm", 20_000, {}),
    "vllm-swap": ("vllm", 3000, {"preemption": "swap", "host_blocks": 30}),
    "vllm-prefix": ("vllm", 3000, {"prefix_caching": True}),
    "mini-runtime": ("mini-runtime", 3000, {}),
    "tgi": ("tgi", 3000, {}),
    "orca": ("orca", 3000, {"variant": "oracle"}),
    "static": ("static", 3000, {"max_wait": 0.2}),
}


def engine(policy: str, options: dict[str, Any]) -> Engine:
    return Engine(SimulatedBackend("OPT-13B", "A100-40GB"), policy, clock=ModelClock(), **{**SIZES, **options})


def requests(n: int, rate: float | None) -> list[Request]:
    """Short ones (so that 20,000 are quick), some alike, some of lower priority."""
    arrivals = poisson(rate) if rate else None
    made = make_requests(n, uniform(1, 30), choice([2, 6, 20], [3, 2, 1]), arrivals, seed=9, shared_prefix=8)
    rng = Random(2)
    return [Request(prompt_ids=r.prompt_ids, max_new_tokens=r.max_new_tokens, arrival=r.arrival, ignore_eos=True,
                    priority=int(rng.random() < 0.2)) for r in made]  # fmt: skip


@cache
def capacity(case: str) -> float:
    """Requests a second when there is always somebody waiting."""
    policy, _, options = CASES[case]
    return engine(policy, options).run(requests(1000, None)).metrics.request_throughput


@pytest.mark.parametrize("case", CASES)
def test_overload(case: str) -> None:
    policy, n, options = CASES[case]
    eng = engine(policy, options)
    asked = requests(n, 1.3 * capacity(case))
    for r in asked:
        eng.add(r)
    rng, given_up = Random(4), 0
    while eng.has_work:
        record = eng.step()
        if rng.random() < 0.2:
            # Half of them anywhere, at any time of their life; half among those that are being served.
            ids = [*eng.running, *eng.prefilling, *eng.swapped, *eng.ended] if rng.random() < 0.5 else None
            i = rng.choice(ids) if ids else rng.randrange(n)
            given_up += i not in eng.outputs
            eng.abort(i)
        if record.step % 500 == 0:
            holders = [*eng.running.values(), *eng.prefilling.values(), *eng.ended.values()]
            eng.pool.check(s.table for s in holders if s.table is not None)

    # Every request ends once, with a reason, and an answer of the length asked for unless somebody gave up.
    ends = Counter(e.id for s in eng.trace for e in s.events if e.kind in ("finished", "rejected", "aborted"))
    assert set(ends) == set(range(n)) == set(eng.outputs) and set(ends.values()) == {1}
    reasons = Counter(o.finish_reason for o in eng.outputs.values())
    failed = sum(o.finish_reason == "aborted" and "no free KV block" in str(o.error) for o in eng.outputs.values())
    assert reasons["length"] + reasons["aborted"] == n and reasons["aborted"] == given_up + failed and given_up > 20
    assert (failed > 0) == (policy == "mini-runtime")  # which fails fast by design
    for out in eng.outputs.values():
        assert len(out.token_ids) == out.request.max_new_tokens or out.finish_reason == "aborted"

    # Nothing leaks.
    eng.pool.check([])
    assert eng.pool.num_used == 0 and eng._host_used == 0 and eng._valid == 0
    assert sorted(eng._free_slots) == list(range(SIZES["max_batch_size"]))

    # First come, first served within a priority: first admissions come in order of arrival.
    line: dict[int, list[tuple[float, int]]] = {0: [], 1: []}
    admitted: set[int] = set()
    for s in eng.trace:
        for e in s.events:
            if e.kind == "admitted" and e.id not in admitted:
                admitted.add(e.id)
                line[asked[e.id].priority].append((asked[e.id].arrival, e.id))
    assert all(order == sorted(order) for order in line.values()) and min(map(len, line.values())) > n // 10

    # It was an overload: the queue went on growing.
    m = RunMetrics.from_trace(eng.trace)
    assert max(s.waiting for s in eng.trace) > n // 12 and m.littles_law.error < 1e-9
    waits: dict[int, list[float]] = {0: [], 1: []}
    for r in m.requests:
        if r.queue_wait is not None:
            waits[asked[r.id].priority].append(r.queue_wait)
    assert sum(waits[0]) / len(waits[0]) < sum(waits[1]) / len(waits[1])  # priority was worth something
    if policy == "vllm":
        assert sum(m.preemptions.values()) > 0
