"""Metrics against a trace written by hand, and against slower ways of counting on simulated runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from minirt.errors import TraceError
from minirt.metrics import RunMetrics, Summary, compare, static_steps
from minirt.replay import Replayer
from minirt.simulation import simulate
from minirt.trace import Event, PrefillRow, RequestInfo, StepRecord, Trace
from minirt.workloads import article, lognormal, make_requests, poisson, shared_prefix, uniform


def by_hand() -> Trace:
    """Two slots, blocks of 4 tokens, a static batch of A (2 tokens) and B (3), then C alone; seconds.

    A and B arrive at 0 and start at 1; C arrives at 2 and waits for the batch to return at 7.
    """
    trace = Trace(meta={"max_batch_size": 2, "block_size": 4, "unit": "s", "policy": "by hand"})
    for i, (name, prompt, n, arrival) in enumerate([("A", 3, 2, 0.0), ("B", 2, 3, 0.0), ("C", 4, 1, 2.0)]):
        trace.requests[i] = RequestInfo(i, name, prompt, n, arrival)
    event = Event
    trace.steps = [
        StepRecord(
            0, 1.0, 2.0,
            prefill=[PrefillRow(0, 0, 3), PrefillRow(1, 0, 2, 1)],
            emitted=[0, 1], tokens=[7, 7], forwards=[(6, 2)],
            events=[
                event("arrived", 0), event("arrived", 1),
                event("admitted", 0, {"slot": 0, "cached": 0}), event("admitted", 1, {"slot": 1, "cached": 0}),
                event("first_token", 0), event("first_token", 1),
            ],
            allocated=[(0, [0, 1]), (1, [2, 3])], blocks_used=4, valid=5, waiting=0, resident=2,
        ),
        StepRecord(
            1, 3.0, 1.0,
            decode=[0, 1], emitted=[0, 1], tokens=[7, 7], forwards=[(2, 2)],
            events=[event("arrived", 2), event("finished", 0, {"reason": "length"})],
            blocks_used=4, valid=7, waiting=1, resident=2,
        ),
        StepRecord(
            2, 4.0, 3.0,
            decode=[1], wasted=[0], emitted=[1], tokens=[7], forwards=[(2, 2)],
            events=[event("finished", 1, {"reason": "stop"})],
            blocks_used=4, valid=8, waiting=1, resident=2,
        ),
        StepRecord(
            3, 7.0, 2.0,
            prefill=[PrefillRow(2, 0, 4)], emitted=[2], tokens=[7], forwards=[(4, 1)],
            events=[
                event("released", 0, {"slot": 0}), event("released", 1, {"slot": 1}),
                event("admitted", 2, {"slot": 0, "cached": 0}), event("first_token", 2),
                event("finished", 2, {"reason": "length"}),
            ],
            freed=[(0, [0, 1]), (1, [2, 3])], allocated=[(2, [0, 1])],
            blocks_used=2, valid=4, waiting=0, resident=1, external=1,
        ),
        StepRecord(4, 9.0, 0.0, events=[event("released", 2, {"slot": 0})], freed=[(2, [0, 1])]),
    ]  # fmt: skip
    return trace


def test_latencies_by_hand() -> None:
    m = RunMetrics.from_trace(by_hand())
    a, b, c = m.requests
    assert (a.queue_wait, b.queue_wait, c.queue_wait) == (1.0, 1.0, 5.0)
    assert (a.ttft, b.ttft, c.ttft) == (3.0, 3.0, 7.0)
    assert (a.tpot, b.tpot, c.tpot) == (1.0, 2.0, None)  # B: (7 - 3) / 2
    assert (a.tpot_charged, b.tpot_charged) == (4.0, 2.0)  # A's answer came back with the batch: (7 - 3) / 1
    assert (a.e2e, b.e2e, c.e2e) == (4.0, 7.0, 7.0)
    assert (a.e2e_returned, b.e2e_returned, c.e2e_returned) == (7.0, 7.0, 7.0)
    assert [r.finish_reason for r in m.requests] == ["length", "stop", "length"]
    assert m.itl.n == 3 and m.itl.mean == pytest.approx((1 + 1 + 3) / 3)
    assert m.ttft.p50 == 3.0 and m.ttft.p90 == pytest.approx(3 + 0.8 * 4) and m.ttft.max == 7.0


def test_counts_by_hand() -> None:
    m = RunMetrics.from_trace(by_hand())
    assert (m.tokens, m.decode_steps, m.static_total, m.lower_bound) == (6, 4, 4, 3)
    assert m.duration == 8.0  # from 1 to 9
    assert m.throughput == 6 / 8 and m.request_throughput == 3 / 8 and m.tokens_per_step == 1.5
    assert m.occupancy == (2 + 2 + 1 + 1) / (4 * 2)
    assert (m.wasted_rows, m.padding_tokens, m.computed_tokens) == (1, 1, 14)
    assert m.unit == "s" and m.completed == 3


def test_memory_by_hand() -> None:
    m = RunMetrics.from_trace(by_hand())
    # Weights 2, 1, 3 and 2 s; the last record lasts 0 s.
    assert m.fragmentation == pytest.approx(
        (2 * (1 - 5 / 16) + 1 * (1 - 7 / 16) + 3 * (1 - 8 / 16) + 2 * (1 - 4 / 8)) / 8
    )
    # A ends with 4 tokens in the cache of 8 allotted, B with 4 of 8, C with 4 of 8 and one block of external.
    memory, weights = [16, 16, 16, 12], [2, 1, 3, 2]
    internal, valid, external = [8, 8, 8, 4], [5, 7, 8, 4], [0, 0, 0, 4]

    def share(what: list[int]) -> float:
        return sum(w * x / m for w, x, m in zip(weights, what, memory)) / 8

    assert m.kv.internal == pytest.approx(share(internal))
    assert m.kv.valid == pytest.approx(share(valid))
    assert m.kv.external == pytest.approx(share(external))
    assert m.kv.reserved == pytest.approx(share([3, 1, 0, 0]))
    assert sum(m.kv) == pytest.approx(1)


def test_goodput_by_hand() -> None:
    m = RunMetrics.from_trace(by_hand())
    assert m.goodput() == m.request_throughput
    assert m.goodput(ttft=3.0) == 2 / 8
    assert m.goodput(tpot=1.5) == 2 / 8  # A, and C, which has no second token
    assert m.goodput(ttft=3.0, tpot=1.5) == 1 / 8
    assert m.slo_attainment(ttft=3.0, tpot=1.5) == pytest.approx(1 / 3)


def test_littles_law_by_hand_and_when_a_gauge_lies() -> None:
    trace = by_hand()
    law = RunMetrics.from_trace(trace).littles_law
    # A and B joined at 1 and left at 7, C joined at 3 and left at 9: three stays of 6 s in a run of 8 s.
    assert law.wait == 6 and law.rate == 3 / 8 and law.in_system == pytest.approx(18 / 8) and law.error < 1e-12
    trace.steps[1].waiting = 0
    assert RunMetrics.from_trace(trace).littles_law.error > 0.01


def test_text_and_json() -> None:
    m = RunMetrics.from_trace(by_hand())
    text = str(m)
    assert "decode steps     4  (static 4, lower bound 3)" in text and "occupancy        75.0% of 2 slots" in text
    got = json.loads(json.dumps(m.to_dict(), allow_nan=False))
    assert got["ttft"]["p99"] == m.ttft.p99 and got["requests"][2]["tpot"] is None
    assert got["throughput"] == 0.75


def test_an_empty_trace_and_an_unknown_request() -> None:
    m = RunMetrics.from_trace(Trace(meta={"max_batch_size": 4}))
    assert m.tokens == m.decode_steps == m.lower_bound == 0 and math.isnan(m.ttft.p99) and "ttft" in str(m)
    assert m.throughput == m.occupancy == m.goodput() == 0
    json.dumps(m.to_dict(), allow_nan=False)
    trace = by_hand()
    del trace.requests[1]
    with pytest.raises(TraceError, match="step 0 names request 1"):
        RunMetrics.from_trace(trace)


def test_summary_interpolates() -> None:
    s = Summary.of([1.0, None, 2.0, 3.0, 4.0])
    assert (s.n, s.mean, s.p50, s.max) == (4, 2.5, 2.5, 4.0)
    assert s.p90 == pytest.approx(3.7) and s.p99 == pytest.approx(3.97)


def test_static_steps() -> None:
    assert static_steps([512, 8, 8, 8], 4) == 512
    assert static_steps([512, 8, 8, 8], 2) == 520
    assert static_steps([], 4) == 0


def test_compare() -> None:
    static = simulate("static", article(), clock="step", max_batch_size=8, num_blocks=512).metrics
    continuous = simulate("vllm", article(), clock="step", max_batch_size=8, num_blocks=512).metrics
    c = compare(static, continuous)
    assert c.speedup == pytest.approx(static.duration / continuous.duration)
    assert c.steps == pytest.approx(continuous.decode_steps / static.decode_steps)
    assert c.e2e_mean < 1


RUNS = {
    "static": lambda: simulate("static", make_requests(40, uniform(1, 40), lognormal(12, 1.0, cap=90), seed=1),
                               max_batch_size=4, num_blocks=64),
    "vllm, tight": lambda: simulate("vllm", make_requests(60, uniform(1, 60), lognormal(20, 1.0, cap=90), poisson(300.0),
                                                          seed=2), max_batch_size=8, num_blocks=24, block_size=8),
    "vllm, prefixes": lambda: simulate("vllm", shared_prefix(30, 50, uniform(1, 30), uniform(1, 30), seed=3),
                                       max_batch_size=8, num_blocks=128, block_size=8, prefix_caching=True),
    "mini-runtime": lambda: simulate("mini-runtime", make_requests(60, uniform(1, 60), lognormal(20, 1.0, cap=90), seed=4),
                                     max_batch_size=8, num_blocks=40, block_size=8, clock="step"),
}  # fmt: skip


@pytest.mark.parametrize("which", RUNS)
def test_against_slow_counting(which: str) -> None:
    """The same numbers by walking every row of every step, with the state rebuilt by the replayer."""
    run = RUNS[which]()
    trace, m = run.trace, run.metrics
    bs = trace.meta["block_size"]
    # How far each stay in a slot will be filled: the largest `computed` before the request leaves.
    stays: list[tuple[int, int, int]] = []  # (request, first step, last step) with blocks held
    peaks: dict[tuple[int, int], int] = {}
    replayer = Replayer(trace)
    began: dict[int, int] = {}
    held: list[dict[int, tuple[int, int]]] = []
    for n, record in enumerate(trace.steps):
        computed = dict(replayer.state.computed)
        for i, start, k, _ in record.prefill:
            computed[i] = start + k
        for i in record.decode:
            computed[i] = computed.get(i, 0) + 1
        leaving = {e.id for e in record.events if e.kind == "released"}
        for i in leaving & began.keys():
            peaks[i, began.pop(i)] = computed[i]
        state = replayer.apply(record)
        for i in state.resident:
            began.setdefault(i, n)
        held.append({i: (began[i], len(state.tables[i])) for i in state.resident})
        stays += [(i, began[i], n) for i in state.resident]
        # valid and the blocks in use, from the state alone
        assert record.blocks_used == len(state.refs)
        shared = sum(r - 1 for r in state.refs.values())
        assert record.valid == sum(state.computed[i] for i in state.resident) - shared * bs
    weights = [r.duration for r in trace.steps]
    used = [(w, r, h) for w, r, h in zip(weights, trace.steps, held) if r.blocks_used]
    frag = sum(w * (1 - r.valid / (r.blocks_used * bs)) for w, r, _ in used) / sum(w for w, _, _ in used)
    assert m.fragmentation == pytest.approx(frag)
    memory = [(w, r, h) for w, r, h in zip(weights, trace.steps, held) if r.blocks_used + r.external]
    internal = sum(
        w * sum(max(0, k * bs - peaks[i, since]) for i, (since, k) in h.items()) / ((r.blocks_used + r.external) * bs)
        for w, r, h in memory
    ) / sum(w for w, _, _ in memory)
    assert m.kv.internal == pytest.approx(internal)
    assert sum(m.kv) == pytest.approx(1)
    # tokens and gaps
    times: dict[int, list[float]] = {}
    for record in trace.steps:
        for i in record.emitted:
            times.setdefault(i, []).append(record.end)
    gaps = [b - a for t in times.values() for a, b in zip(t, t[1:])]
    assert m.itl.p99 == pytest.approx(float(np.percentile(gaps, 99))) and m.itl.n == len(gaps)
    for r in m.requests:
        t = times.get(r.id, [])
        assert r.num_tokens == len(t)
        if len(t) > 1:
            assert r.tpot == pytest.approx((t[-1] - t[0]) / (len(t) - 1))
    assert m.littles_law.error < 1e-9
    assert m.decode_steps >= m.lower_bound
    if which == "vllm, tight":
        assert m.preemptions.get("recompute", 0) > 0  # otherwise this case shows nothing
    if which == "vllm, prefixes":
        assert m.cached_tokens > 0
    if which == "static":
        assert m.wasted_rows > 0 and m.tpot_charged.mean > m.tpot.mean
