"""What each policy is known for, step by step, on the fake backend."""

from __future__ import annotations

from typing import Any

import pytest

from minirt import POLICIES, ConfigError, Engine, Request
from minirt.policies import make_policy
from minirt.trace import StepRecord
from tests.fake_backend import FakeBackend, expected


def ask(prompt: int = 4, n: int = 3, **options: Any) -> Request:
    ids = [(prompt * 7 + i) % 50 for i in range(prompt)]
    return Request(prompt_ids=ids, max_new_tokens=n, ignore_eos=True, **options)


def engine(policy: Any, *requests: Request, **options: Any) -> Engine:
    sizes = {"max_batch_size": 4, "num_blocks": 32, "block_size": 4, **options}
    eng = Engine(FakeBackend(max_model_len=128), policy, **sizes)
    for r in requests:
        eng.add(r)
    return eng


def steps(eng: Engine, n: int = 200) -> list[StepRecord]:
    out = []
    for _ in range(n):
        if not eng.has_work:
            break
        out.append(eng.step())
    return out


def events(record: StepRecord, kind: str) -> list[int]:
    return [e.id for e in record.events if e.kind == kind]


def finish(eng: Engine) -> None:
    steps(eng, 1000)
    assert not eng.has_work and eng.pool.num_used == 0
    for out in eng.outputs.values():
        want = expected(list(out.request.prompt_ids or ()), out.request.max_new_tokens, True)
        assert out.token_ids == want[: len(out.token_ids)] and (out.error or out.token_ids == want)


# ---------------------------------------------------------------- static


def test_static_same_in_same_out() -> None:
    eng = engine("static", ask(2, 2), ask(5, 6), ask(1, 3), max_batch_size=2)
    a, *more = steps(eng, 7)
    assert events(a, "admitted") == [0, 1] and a.forwards == [(10, 2)]  # both padded to 5
    assert [r.padding for r in a.prefill] == [3, 0]
    assert [r.wasted for r in more[:5]] == [[]] + [[0]] * 4  # request 0 is complete after step 1 and computed until 5
    assert [events(r, "released") for r in more] == [[]] * 5 + [[0, 1]] and events(more[5], "admitted") == [2]
    finish(eng)


def test_static_reserves_the_longest_of_the_batch_for_everyone() -> None:
    eng = engine("static", ask(2, 2), ask(5, 6), max_batch_size=2)
    eng.step()
    blocks = [s.table.blocks for s in eng.running.values() if s.table is not None]
    assert blocks == [[0, 1, 2], [3, 4, 5]]  # 5 + 6 - 1 = 10 tokens


@pytest.mark.parametrize("max_wait, start", [(None, 7), (3.0, 3), (0.0, 0), (100.0, 7)])
def test_static_waits_for_a_full_batch_or_for_max_wait(max_wait: float | None, start: int) -> None:
    requests = [ask(arrival=a) for a in (0.0, 0.0, 7.0)]
    run = engine("static", max_batch_size=3, max_wait=max_wait).run(requests)
    first = next(s for s in run.trace if events(s, "admitted"))
    assert first.time == start and len(events(first, "admitted")) == (3 if start == 7 else 2)
    assert run.metrics.queue_wait.max == max(start, 3 if start == 7 else 0) or start < 7


def test_static_starts_with_who_is_there_when_nobody_else_will_come() -> None:
    assert len(events(engine("static", ask(), ask()).step(), "admitted")) == 2


def test_static_takes_as_many_as_memory_allows() -> None:
    eng = engine("static", ask(4, 5), ask(4, 5), ask(4, 5), num_blocks=5)
    assert events(eng.step(), "admitted") == [0, 1]  # 2 blocks each
    finish(eng)


def test_static_serves_a_request_that_just_fits() -> None:
    eng = engine("static", ask(9, 12), ask(1, 1), num_blocks=5)  # 20 tokens are ever cached: the whole pool
    assert events(eng.step(), "admitted") == [0]
    finish(eng)
    assert all(o.finish_reason == "length" for o in eng.outputs.values())


# ---------------------------------------------------------------- orca


@pytest.mark.parametrize("variant, blocks", [("max", 8), ("pow2", 4), ("oracle", 3)])
def test_orca_reserves_consecutive_blocks_for_the_whole_request(variant: str, blocks: int) -> None:
    eng = engine("orca", ask(3, 9), ask(3, 9), variant=variant, max_model_len=32)  # 3 + 9 - 1 = 11; 3 + 16 = 19
    record = eng.step()
    sizes = {"max": 8, "pow2": 5, "oracle": 3}
    for k, (i, got) in enumerate(record.allocated):
        assert i == k and got == list(range(k * sizes[variant], (k + 1) * sizes[variant]))
    grown = [b for r in steps(eng) for b in r.allocated]
    assert not grown, "everything was reserved at admission"
    finish(eng)


@pytest.mark.parametrize("answer, reserved", [(1, 1), (8, 8), (9, 16), (25, 32)])
def test_orca_pow2_rounds_the_answer_up_to_a_power_of_two(answer: int, reserved: int) -> None:
    eng = engine("orca", ask(3, answer), variant="pow2", block_size=1, num_blocks=64)
    assert [len(blocks) for _, blocks in eng.step().allocated] == [3 + reserved]
    finish(eng)


def test_orca_never_reserves_more_than_the_pool_or_the_model_holds() -> None:
    for variant in ("max", "pow2", "oracle"):
        eng = engine("orca", ask(9, 24), num_blocks=8, variant=variant)  # exactly 32 tokens are ever cached
        finish(eng)
        assert eng.outputs[0].finish_reason == "length"


def test_orca_admits_at_every_iteration_and_mixes_prompts_with_decodes() -> None:
    eng = engine("orca", ask(4, 2), ask(4, 6), ask(7, 3), max_batch_size=2, variant="oracle")
    a, b, c = steps(eng, 3)
    assert events(a, "admitted") == [0, 1] and a.forwards == [(8, 2)]
    assert events(b, "finished") == [0]
    assert events(c, "admitted") == [2] and c.decode == [1] and c.forwards == [(8, 2)]  # one forward, 1 + 7 tokens
    finish(eng)


def test_orca_is_first_come_first_served() -> None:
    """The second does not fit beside the first; the third would, and waits all the same."""
    eng = engine("orca", ask(4, 8), ask(4, 20), ask(1, 2), num_blocks=7, variant="oracle")
    assert events(eng.step(), "admitted") == [0]
    order = [i for r in steps(eng) for i in events(r, "admitted")]
    assert order == [1, 2]


# ---------------------------------------------------------------- tgi


def test_tgi_decoding_stands_still_while_a_new_batch_prefills() -> None:
    eng = engine("tgi", ask(4, 9), waiting_served_ratio=0.0)
    eng.step()
    eng.add(ask(5, 3))
    eng.add(ask(6, 3))
    stop, decode = [r for r in steps(eng, 3) if r.step >= 1][-2:]
    assert [r.id for r in stop.prefill] == [1, 2] and stop.decode == [] and stop.forwards == [(11, 2)]
    assert decode.decode == [0, 1, 2] and not decode.prefill  # concatenated
    finish(eng)


def test_tgi_waits_until_enough_wait() -> None:
    """4 are running: with a ratio of 0.5 a new batch must have 2."""
    eng = engine("tgi", *[ask(4, 40) for _ in range(4)], max_batch_size=8, waiting_served_ratio=0.5, num_blocks=100)
    eng.step()
    eng.add(ask(4, 3))
    assert all(not r.prefill for r in steps(eng, 5))
    eng.add(ask(4, 3))
    assert [r.id for r in eng.step().prefill] == [4, 5]
    finish(eng)


def test_tgi_takes_nobody_where_fewer_fit_than_must_come() -> None:
    """Three wait and two must come, but a single slot is free."""
    eng = engine("tgi", *[ask(4, 9 + 9 * i) for i in range(4)], max_batch_size=5, waiting_served_ratio=0.5, num_blocks=100)
    eng.step()
    for _ in range(3):
        eng.add(ask(4, 3))
    first = next(r for r in steps(eng) if r.prefill)
    assert first.step == 9 and [r.id for r in first.prefill] == [4, 5]  # when request 0 has left
    finish(eng)


def test_tgi_lets_a_single_one_in_after_max_waiting_tokens() -> None:
    options = {"waiting_served_ratio": 1.0, "max_waiting_tokens": 6, "max_batch_size": 8, "num_blocks": 100}
    eng = engine("tgi", *[ask(4, 40) for _ in range(4)], **options)
    eng.step()
    eng.add(ask(4, 3))
    records = steps(eng, 6)
    assert [bool(r.prefill) for r in records] == [False] * 5 + [True]
    finish(eng)


def test_tgi_budgets() -> None:
    """max_batch_prefill_tokens bounds a new batch, max_batch_total_tokens all of them to their longest answers."""
    eng = engine("tgi", *[ask(8, 5) for _ in range(4)], max_batch_prefill_tokens=20)
    assert [r.id for r in eng.step().prefill] == [0, 1]
    finish(eng)
    eng = engine("tgi", *[ask(8, 5) for _ in range(4)], max_batch_total_tokens=40)  # 12 tokens each, in whole blocks
    records = steps(eng)
    assert [r.id for r in records[0].prefill] == [0, 1, 2]
    assert max(r.blocks_used for r in records) == 9
    finish(eng)
    eng = engine("tgi", *[ask(8, 5) for _ in range(4)], num_blocks=7)  # the pool is a limit as well: nothing ever fails
    assert len(eng.step().prefill) == 2
    finish(eng)
    assert all(o.finish_reason == "length" for o in eng.outputs.values())


def test_tgi_refuses_what_its_budgets_never_hold() -> None:
    eng = engine("tgi", ask(30, 2), ask(4, 40), ask(4, 4), max_batch_prefill_tokens=20, max_batch_total_tokens=32)
    finish(eng)
    assert [eng.outputs[i].finish_reason for i in range(3)] == ["rejected", "rejected", "length"]
    assert "30 tokens (max_batch_prefill_tokens=20)" in str(eng.outputs[0].error)
    assert "counts 44 in all (max_batch_total_tokens, or the pool: 32)" in str(eng.outputs[1].error)


# ---------------------------------------------------------------- mini-runtime


def test_mini_runtime_budgets_and_separate_forwards() -> None:
    eng = engine("mini-runtime", ask(20, 4), ask(9, 4), ask(3, 4), chunk=8, step_budget=18)
    a, b, c = steps(eng, 3)
    assert [(r.id, r.start, r.n) for r in a.prefill] == [(0, 0, 8), (1, 0, 8), (2, 0, 2)]
    assert [(r.id, r.start, r.n) for r in b.prefill] == [(0, 8, 8), (1, 8, 1), (2, 2, 1)]
    assert [(r.id, r.start, r.n) for r in c.prefill] == [(0, 16, 4)] and c.decode == [1, 2]
    assert c.forwards == [(4, 1), (2, 2)]
    finish(eng)


def test_mini_runtime_fails_fast() -> None:
    eng = engine("mini-runtime", ask(4, 12), ask(4, 12), num_blocks=5)
    finish(eng)
    assert [eng.outputs[i].finish_reason for i in (0, 1)] == ["length", "aborted"]
    error = str(eng.outputs[1].error)
    assert "no free KV block for token 9" in error and "all 5 blocks of 4 tokens are in use" in error


# ---------------------------------------------------------------- vllm


def test_vllm_one_budget_decodes_first_then_prefills_then_the_queue() -> None:
    eng = engine("vllm", ask(4, 9), ask(20, 4), ask(9, 4), max_num_batched_tokens=10)
    a, b, c, d = steps(eng, 4)
    assert [(r.id, r.n) for r in a.prefill] == [(0, 4), (1, 6)]
    assert b.decode == [0] and [(r.id, r.n) for r in b.prefill] == [(1, 9)]
    assert c.decode == [0] and [(r.id, r.n) for r in c.prefill] == [(1, 5), (2, 4)]
    assert d.decode == [0, 1] and [(r.id, r.n) for r in d.prefill] == [(2, 5)]
    assert all(len(r.forwards) == 1 and r.num_tokens <= 10 for r in (a, b, c, d))
    finish(eng)


def preempted(eng: Engine) -> list[tuple[int, str]]:
    return [(e.id, e.data["how"]) for r in eng.trace for e in r.events if e.kind == "preempted"]


@pytest.mark.parametrize("priorities, victim", [((0, 0, 0), 2), ((0, 1, 0), 1), ((1, 0, 0), 0), ((2, 1, 0), 0)])
def test_vllm_preempts_the_lowest_priority_then_the_last_admitted(priorities: tuple[int, ...], victim: int) -> None:
    eng = engine("vllm", *[ask(4, 9, priority=p) for p in priorities], num_blocks=6, watermark=0.0)
    while not preempted(eng):
        eng.step()
    assert preempted(eng) == [(victim, "recompute")]
    assert eng.waiting.oldest() is eng._seqs[victim]
    finish(eng)


def test_vllm_a_preempted_request_comes_back_before_the_queue() -> None:
    eng = engine("vllm", *[ask(4, 9) for _ in range(6)], num_blocks=6, max_batch_size=3, watermark=0.0)
    records = steps(eng)
    victim = preempted(eng)[0][0]
    admitted = [i for r in records for i in events(r, "admitted")]
    assert admitted.count(victim) == 2 and admitted[:4] == [0, 1, 2, victim]
    finish(eng)


def test_vllm_lets_nobody_in_where_blocks_were_just_taken_away_or_are_waited_for() -> None:
    """Neither in a step that preempts, nor while a prompt that has begun waits for blocks."""
    eng = engine("vllm", ask(4, 9), ask(4, 9), ask(1, 2), num_blocks=5, max_batch_size=2, watermark=0.0)
    records = steps(eng)
    assert preempted(eng)
    assert not any(events(r, "preempted") and events(r, "admitted") for r in records)
    # Request 1 has begun its prompt and finds less than the 3 blocks of its last chunk; request 2 needs but one.
    eng = engine("vllm", ask(6, 30, priority=1), num_blocks=12, max_num_batched_tokens=17, watermark=0.0)
    records = steps(eng, 1)
    for r in (ask(44, 4), ask(1, 2)):
        eng.add(r)
    records += steps(eng)
    start, end = (next(r.step for r in records if 1 in events(r, kind)) for kind in ("admitted", "first_token"))
    assert end - start > 3, "it had to wait"
    assert not any(2 in events(r, "admitted") for r in records[start : end - 1])
    finish(eng)


def test_vllm_a_decode_never_preempts_a_prefill_that_ranks_before_it() -> None:
    """Decodes are planned first, so one of low priority meets the shortage before the prompt that ranks above it."""
    eng = engine("vllm", ask(2, 40, priority=1), num_blocks=12, max_num_batched_tokens=6, watermark=0.0)
    eng.step()
    eng.add(ask(44, 4, priority=0))  # 47 tokens in the end: the whole pool
    finish(eng)
    assert {i for i, _ in preempted(eng)} == {0}
    start, first = (next(r.step for r in eng.trace if 1 in events(r, kind)) for kind in ("admitted", "first_token"))
    idle = [s for s in range(start, first) if 1 not in [row.id for row in eng.trace[s].prefill]]
    assert idle, "while the decode uses up the last block, the prompt keeps what it has"


def test_vllm_swaps_until_the_host_is_full_then_recomputes() -> None:
    requests = [ask(8, 12) for _ in range(4)]
    kinds = {}
    for host in (0, 3, 100):
        eng = engine("vllm", *requests, num_blocks=12, preemption="swap", host_blocks=host, watermark=0.0)
        finish(eng)
        kinds[host] = {how for _, how in preempted(eng)}
        assert max((sum(n for _, n in r.swapped_out) for r in eng.trace), default=0) <= host
    assert kinds == {0: {"recompute"}, 3: {"recompute", "swap"}, 100: {"swap"}}


def test_vllm_brings_swapped_requests_back_in_order_and_before_the_queue() -> None:
    eng = engine("vllm", *[ask(4, 14) for _ in range(4)], num_blocks=9, preemption="swap", watermark=0.0)
    eng.add(ask(4, 1))
    finish(eng)
    assert len(preempted(eng)) >= 2 and {how for _, how in preempted(eng)} == {"swap"}
    out: list[int] = []
    for r in eng.trace:
        for i in events(r, "resumed"):
            assert i == min(out), "who was admitted first comes back first"
            out.remove(i)
        out += events(r, "preempted")
        assert not (out and events(r, "admitted")), "the queue waits while somebody is swapped out"


def test_vllm_watermark_keeps_blocks_free_for_who_is_running() -> None:
    for watermark, admitted in ((0.0, [0, 1]), (0.25, [0])):
        eng = engine("vllm", ask(4, 9), num_blocks=8, watermark=watermark)
        eng.step()
        eng.add(ask(21, 2))  # 6 blocks; beside the first's two, none would be left
        eng.step()
        assert list(eng._seqs)[: len(eng.running)] == admitted
        finish(eng)


def test_vllm_without_chunking_a_prompt_goes_whole_or_waits() -> None:
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": 12}
    eng = engine("vllm", ask(4, 4), ask(10, 2), ask(13, 2), **options)
    a, b, *_ = steps(eng, 2)
    assert [(r.id, r.n) for r in a.prefill] == [(0, 4)]
    assert b.decode == [0] and [(r.id, r.n) for r in b.prefill] == [(1, 10)]
    finish(eng)
    assert eng.outputs[2].finish_reason == "rejected" and "13 tokens, a step computes 12" in str(eng.outputs[2].error)


def test_vllm_without_chunking_serves_on_who_outgrew_the_budget_before_a_preemption() -> None:
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": 8, "num_blocks": 6, "watermark": 0.0}
    eng = engine("vllm", ask(4, 14), ask(4, 14), **options)
    records = steps(eng)
    assert preempted(eng) and max(r.n for s in records for r in s.prefill) > 8
    assert all(o.finish_reason == "length" for o in eng.outputs.values())
    finish(eng)


# ---------------------------------------------------------------- all


@pytest.mark.parametrize(
    "policy, options, message",
    [
        ("static", {"max_wait": -1}, "max_wait=-1"),
        ("orca", {"variant": "half"}, "variant='half' must be"),
        ("tgi", {"waiting_served_ratio": -0.1}, "waiting_served_ratio=-0.1"),
        ("tgi", {"max_waiting_tokens": 0}, "max_waiting_tokens=0"),
        ("tgi", {"max_batch_prefill_tokens": 0}, "max_batch_prefill_tokens=0"),
        ("tgi", {"max_batch_total_tokens": 0}, "max_batch_total_tokens=0"),
        ("mini-runtime", {"chunk": 0}, "chunk=0"),
        ("vllm", {"max_num_batched_tokens": 0}, "max_num_batched_tokens=0"),
        ("vllm", {"preemption": "pause"}, "preemption='pause'"),
        ("vllm", {"watermark": 1.0}, "watermark=1.0"),
        ("vllm", {"variant": "max"}, r"policy 'vllm' has no option 'variant'; it takes max_num_batched_tokens"),
        ("vlm", {}, r"unknown policy 'vlm'; known are 'static', 'orca', 'tgi'.*Did you mean 'vllm'"),
        (object(), {}, "object is not a policy: it needs a method plan"),
        (POLICIES["orca"](), {"variant": "max"}, "were given with a policy object"),
    ],
)
def test_options_that_make_no_sense(policy: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_policy(policy, **options)


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_names_itself_and_its_source(name: str) -> None:
    import sys

    policy = make_policy(name)
    assert policy.name == name
    doc = sys.modules[type(policy).__module__].__doc__ or ""
    sources = {"static": "FasterTransformer", "orca": "OSDI 2022", "tgi": "text-generation-inference",
               "mini-runtime": "source chapter", "vllm": "SOSP 2023"}  # fmt: skip
    assert sources[name] in doc


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_object_can_serve_many_runs(name: str) -> None:
    """What a policy remembers must not leak from one run into the next."""
    policy = make_policy(name)
    requests = [ask(3 + i % 5, 2 + i % 7, arrival=float(i // 3)) for i in range(12)]
    runs = [engine(policy).run(requests) for _ in range(2)]
    fresh = engine(name).run(requests)
    for run in runs:
        assert run.trace.to_dict()["steps"] == fresh.trace.to_dict()["steps"]
