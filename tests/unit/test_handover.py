"""Requests that go from one engine to another: same tokens, blocks free at both ends, traces that replay."""

from __future__ import annotations

import random
from typing import Any

import pytest

from minirt import ConfigError, ContinuousEngine, Engine, Request, RequestError, Trace
from minirt.backends.simulated import SimulatedBackend
from minirt.clock import ModelClock
from minirt.handover import receive, room, send, serve
from minirt.metrics import RunMetrics
from minirt.model.loading import random_model
from minirt.replay import replay
from minirt.workloads import make_requests, poisson
from tests.fake_backend import VOCAB, FakeBackend, expected


def engine(**options: Any) -> Engine:
    return Engine(FakeBackend(), **{"max_batch_size": 3, "num_blocks": 24, "block_size": 4, **options})


def requests(seed: int, n: int = 12) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            prompt_ids=[rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))], max_new_tokens=rng.randint(1, 16),
            ignore_eos=rng.random() < 0.7, arrival=float(rng.randint(0, 12)), priority=rng.choice([0, 0, 1]),
        )
        for _ in range(n)
    ]  # fmt: skip


def check_trace(trace: Trace, tmp_path: Any) -> RunMetrics:
    """A trace that was saved and loaded replays, and its counts agree with each other."""
    trace.save(tmp_path / "t.jsonl")
    again = Trace.load(tmp_path / "t.jsonl")
    for state in replay(again):
        assert all(len(t) * 4 >= state.computed[i] for i, t in state.tables.items() if i in state.resident)
    assert not state.tables and not state.swapped and not state.resident
    metrics = RunMetrics.from_trace(again)
    assert metrics.to_dict() == RunMetrics.from_trace(trace).to_dict()
    assert metrics.littles_law.error < 1e-6
    return metrics


@pytest.mark.parametrize("after", [1, 2, 7])
def test_a_request_goes_on_where_it_stopped(after: int, tmp_path: Any) -> None:
    a, b = engine(), engine()
    want = expected([3, 1, 4, 1, 5], 12, True)
    first = a.add(Request(prompt_ids=[3, 1, 4, 1, 5], max_new_tokens=12, ignore_eos=True))
    for _ in range(after):
        a.step()
    handover = send(a, first)
    assert handover.tokens[5:] == want[:after] and handover.num_computed == 5 + after - 1
    assert a.pool.num_used == 0 and not a.has_work and not a.outputs and not a.backend.host
    second = receive(b, handover)
    while b.has_work:
        b.step()
    assert b.outputs[second].token_ids == want and b.outputs[second].finish_reason == "length"
    assert b.pool.num_used == 0 and room(b) == 24
    sent, got = check_trace(a.trace, tmp_path), check_trace(b.trace, tmp_path)
    assert (sent.tokens, got.tokens) == (after, 12 - after)
    assert sent.requests[0].finish_reason == "moved" and sent.completed == 0 and got.completed == 1


def test_half_a_prompt_can_be_handed_over() -> None:
    a, b = engine(max_num_batched_tokens=6), engine()
    prompt = list(range(17))
    i = a.add(Request(prompt_ids=prompt, max_new_tokens=5, ignore_eos=True))
    a.step()
    assert a.prefilling
    j = receive(b, send(a, i))
    while b.has_work:
        b.step()
    assert b.outputs[j].token_ids == expected(prompt, 5, True)
    assert sum(r.n for s in b.trace for r in s.prefill) == 17 - 6


@pytest.mark.parametrize("options", [{}, {"prefix_caching": True}, {"host_blocks": 5}, {"num_blocks": 10}])
@pytest.mark.parametrize("policy", ["vllm", "mini-runtime", "orca", "tgi"])
def test_serve_is_token_exact(policy: str, options: dict[str, Any], tmp_path: Any) -> None:
    for seed in range(5):
        asked = requests(seed)
        a = engine(policy=policy, num_blocks=30, **({"max_model_len": 40} if policy == "orca" else {}))
        b = engine(**options)
        out = serve(a, b, asked)
        times = out.token_times()
        for request, o, at in zip(asked, out.outputs, times):
            assert o.token_ids == expected(list(request.prompt_ids or ()), request.max_new_tokens, request.ignore_eos)
            assert o.finish_reason in ("stop", "length") and len(at) == len(o.token_ids)
            assert at == sorted(at) and len(set(at)) == len(at) and all(t > request.arrival for t in at)
        for e in (a, b):
            assert e.pool.num_used == 0 and not e.has_work and room(e) == e.limits.host_blocks
            assert not e.backend.host
        check_trace(out.prefill, tmp_path)
        if out.moved_blocks:
            check_trace(out.decode, tmp_path)
        assert out.moved_blocks > 0


def test_the_real_model_hands_over_its_kv() -> None:
    lm = random_model(vocab=60, seed=5)
    lengths = {"prompt": [5, 30, 17, 2, 44, 9, 21, 33], "output": [20, 7, 14, 25, 3, 18, 1, 11]}
    asked = make_requests(8, **lengths, seed=4, vocab_size=60)
    alone = ContinuousEngine(lm, num_blocks=64, block_size=8).run(asked)
    a, b = (ContinuousEngine(lm, max_batch_size=4, num_blocks=24, block_size=8) for _ in range(2))
    out = serve(a, b, asked)
    assert [o.token_ids for o in out.outputs] == [o.token_ids for o in alone.outputs]
    per_token = lm.config.kv_elements_per_token * 4
    assert out.moved_bytes == out.moved_blocks * 8 * per_token
    # One went nowhere: its only token came with its prompt.
    assert [i for i, (_, there) in enumerate(out.ids) if there is None] == [6]
    assert all(not s.decode for s in out.prefill) and all(not s.prefill for s in out.decode)


def test_two_engines_share_one_time_axis() -> None:
    asked = make_requests(20, prompt=300, output=40, arrivals=poisson(60.0), seed=2)
    a, b = (
        Engine(SimulatedBackend(), max_batch_size=32, num_blocks=4000, clock=ModelClock()) for _ in range(2)
    )
    out = serve(a, b, asked)
    moved = {i: s.time for s in out.decode for kind, i, _ in s.events if kind == "moved_in"}
    for (_, there), at in zip(out.ids, out.token_times()):
        assert there is not None and at == sorted(at) and len(at) == 40
        assert moved[there] >= at[0], "it arrived before it was sent"


def test_what_does_not_fit_is_refused() -> None:
    a = engine()
    i = a.add(Request(prompt_ids=[1] * 9, max_new_tokens=20, ignore_eos=True))
    with pytest.raises(RequestError, match="no KV in the cache"):
        send(a, i)
    a.step()
    handover = send(a, i)
    with pytest.raises(RequestError, match="no request 0"):
        send(a, i)
    for b, words in (
        (engine(block_size=8), "block_size 4.*block_size 8"),
        (engine(policy="orca"), "'orca' never resumes"),
        (engine(policy="tgi"), "'tgi' never resumes"),
        (engine(policy="static"), "'static' never resumes"),
        (engine(host_blocks=2), "brings 3 blocks of KV; 2 of 2"),
        (engine(num_blocks=6, host_blocks=9), "need 7 KV blocks"),
    ):
        with pytest.raises(ConfigError, match=words):
            receive(b, handover)
        assert not b.has_work and not b.backend.host and not b.trace.requests
    with pytest.raises(ConfigError, match="two engines"):
        serve(a, a, [])
    with pytest.raises(ConfigError, match="never resumes"):
        serve(a, engine(policy="mini-runtime"), [])


def test_another_model_is_refused() -> None:
    a, b = ContinuousEngine(random_model(), num_blocks=8), ContinuousEngine(random_model(layers=3), num_blocks=8)
    i = a.add(Request(prompt_ids=[1, 2, 3], max_new_tokens=9))
    a.step()
    handover = send(a, i)
    with pytest.raises(ConfigError, match=r"model|shape"):
        receive(b, handover)
    assert not b.has_work


def test_an_interrupt_frees_both() -> None:
    a, b = engine(), engine()
    b.backend.fail_at, b.backend.error = 3, KeyboardInterrupt  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        serve(a, b, requests(1))
    for e in (a, b):
        assert not e.has_work and e.pool.num_used == 0 and room(e) == e.limits.host_blocks
        assert not e.backend.host
    assert serve(a, b, requests(2)).moved_blocks > 0
