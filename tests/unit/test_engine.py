"""The step loop: slots, batches, forwards, and the ways a request ends. Policies and invariants have their own tests."""

from __future__ import annotations

from typing import Any

import pytest

from minirt import ConfigError, ContinuousEngine, Engine, Request, RequestError, StaticEngine, StepRecord
from minirt.metrics import RunMetrics
from minirt.model.loading import random_model
from tests.fake_backend import FakeBackend, expected


def ask(n: int, prompt: list[int] | None = None, **more: Any) -> Request:
    return Request(prompt_ids=prompt or [1, 2, 3], max_new_tokens=n, ignore_eos=True, **more)


def make(policy: str = "vllm", slots: int = 2, blocks: int = 64, **options: Any) -> Engine:
    return Engine(FakeBackend(), policy, max_batch_size=slots, num_blocks=blocks, block_size=4, **options)


def slots(records: list[StepRecord]) -> dict[int, tuple[int, int]]:
    """Request -> (slot, step of its admission)."""
    return {e.id: (e.data["slot"], r.step) for r in records for e in r.events if e.kind == "admitted"}


def test_a_slot_that_falls_free_is_taken_in_the_very_next_step() -> None:
    run = make().run([ask(2), ask(9), ask(3), ask(1)])
    where = slots(run.trace.steps)
    ends = {e.id: r.step for r in run.trace for e in r.events if e.kind == "finished"}
    assert where[0] == (0, 0) and where[1] == (1, 0)
    assert where[2] == (0, ends[0] + 1) and where[3] == (0, ends[2] + 1)
    assert run.metrics.decode_steps == 9  # the longest, though twice as many asked as there are slots


def test_a_request_keeps_its_slot() -> None:
    engine = make(slots=3)
    ids = [engine.add(ask(n)) for n in (7, 2, 4, 5)]
    seen: dict[int, set[int]] = {i: set() for i in ids}
    while engine.has_work:
        engine.step()
        for seq in [*engine.running.values(), *engine.prefilling.values()]:
            seen[seq.id].add(seq.slot)
    assert all(len(s) <= 1 for s in seen.values())


def test_static_goes_in_and_comes_out_together_and_pays_for_it() -> None:
    lengths, prompts = [2, 9, 4], [[1], [1] * 6, [1] * 3]
    engine = StaticEngine(FakeBackend(), max_batch_size=3, num_blocks=64, block_size=4)
    run = engine.run([ask(n, p) for n, p in zip(lengths, prompts)])
    assert {step for _, step in slots(run.trace.steps).values()} == {0}
    released = {r.step for r in run.trace for e in r.events if e.kind == "released"}
    assert len(released) == 1
    # Prompts padded to the longest, and rows that have ended computed until the last one has.
    assert sum(p.padding for r in run.trace for p in r.prefill) == 5 + 0 + 3
    assert sum(len(r.wasted) for r in run.trace) == (9 - 2) + (9 - 4)
    assert sum(r.num_tokens for r in run.trace) == 3 * 6 + 3 * 8
    assert run.metrics.decode_steps == 9 and run.metrics.wasted_rows == 12


def test_static_forms_the_next_batch_only_when_the_last_has_returned() -> None:
    run = make("static").run([ask(2), ask(5), ask(3), ask(3)])
    assert {i: step for i, (_, step) in slots(run.trace.steps).items()} == {0: 0, 1: 0, 2: 5, 3: 5}
    assert run.metrics.decode_steps == run.metrics.static_total == 8


def test_prefill_and_decode_share_a_forward_or_do_not() -> None:
    requests = [ask(6), ask(6, arrival=2.0)]
    mixed = make("vllm").run(requests).trace
    apart = make("mini-runtime").run(requests).trace
    assert [len(r.forwards) for r in mixed if r.prefill and r.decode] == [1]
    assert [len(r.forwards) for r in apart if r.prefill and r.decode] == [2]


def test_a_long_prompt_is_cut_into_chunks_while_others_decode() -> None:
    run = make("vllm", max_num_batched_tokens=8).run([ask(12), ask(2, [5] * 30, arrival=1.0)])
    chunks = [(p.start, p.n) for r in run.trace for p in r.prefill if p.id == 1]
    assert chunks[0] == (0, 7) and sum(n for _, n in chunks) == 30 and len(chunks) == 5
    assert all(start == sum(n for _, n in chunks[:i]) for i, (start, _) in enumerate(chunks))
    assert all(r.num_tokens <= 8 for r in run.trace)
    assert all(0 in r.decode for r in run.trace.steps[1:6])  # nobody was stalled by it


def test_fail_fast_ends_one_request_with_the_numbers_and_nothing_else() -> None:
    engine = make("mini-runtime", slots=3, blocks=4)
    run = engine.run([ask(9, [1] * 4), ask(9, [2] * 4), ask(2, [3])])
    reasons = [o.finish_reason for o in run.outputs]
    assert reasons.count("aborted") == 1 and reasons.count("length") == 2
    failed = run.outputs[reasons.index("aborted")]
    assert "no free KV block for token" in str(failed.error) and "all 4 blocks of 4 tokens" in str(failed.error)
    assert failed.token_ids == expected(failed.prompt_ids, 9, True)[: len(failed.token_ids)] != []
    assert engine.pool.num_used == 0


@pytest.mark.parametrize("how", ["recompute", "swap"])
def test_a_preempted_request_comes_back_and_says_the_same(how: str) -> None:
    engine = make("vllm", slots=3, blocks=6, preemption=how, watermark=0.0)
    requests = [ask(12, [i] * 3) for i in range(3)]
    run = engine.run(requests)
    assert run.metrics.preemptions == {how: run.metrics.preemptions[how]} and run.metrics.preemptions[how] > 0
    for i, out in enumerate(run.outputs):
        assert out.token_ids == expected([i] * 3, 12, True)
    first = next(e.id for r in run.trace for e in r.events if e.kind == "preempted")
    assert first == 2  # the last admitted


def test_priority_comes_before_arrival() -> None:
    run = make(slots=1).run([ask(2, priority=5), ask(2, priority=5), ask(2, priority=-1), ask(2)])
    order = sorted(slots(run.trace.steps), key=lambda i: slots(run.trace.steps)[i][1])
    assert order == [2, 3, 0, 1]
    assert [o.id for o in run.outputs] == [0, 1, 2, 3]  # as they were given


def test_prefix_blocks_are_shared_and_kept_where_asked() -> None:
    engine = make("vllm", slots=4, prefix_caching=True)
    head = [7] * 16
    requests = [ask(3, [*head, i]) for i in range(3)]
    first = engine.run(requests)
    assert first.metrics.cached_tokens == 2 * 16  # within one step, too
    assert engine.run(requests).metrics.cached_tokens == 2 * 16  # a run starts with an empty pool
    assert engine.run(requests, keep_cache=True).metrics.cached_tokens == 3 * 16
    assert all(o.token_ids == expected([*head, i], 3, True) for i, o in enumerate(first.outputs))
    assert engine.run([ask(3, [*head, 9])], keep_cache=True).outputs[0].token_ids == expected([*head, 9], 3, True)


# -- by hand ----------------------------------------------------------------------------------------
def test_by_hand_and_by_run_are_the_same() -> None:
    requests = [ask(n, [n, 2]) for n in (3, 8, 5, 1)]
    engine = make()
    ids = [engine.add(r) for r in requests]
    records = []
    while engine.has_work:
        records.append(engine.step())
    run = make().run(requests)
    assert records == run.trace.steps and engine.trace == run.trace
    assert [engine.outputs[i] for i in ids] == run.outputs
    assert RunMetrics.from_trace(engine.trace).to_dict() == run.metrics.to_dict()


def test_abort_wherever_a_request_is() -> None:
    engine = make(slots=2, blocks=8, max_num_batched_tokens=6)
    running, prefilling, waiting = engine.add(ask(9)), engine.add(ask(4, [2] * 20)), engine.add(ask(4))
    arriving = engine.add(ask(4, arrival=99.0))
    engine.step()
    states = {i: engine._seqs[i].state.value for i in (running, prefilling, waiting, arriving)}
    assert list(states.values()) == ["running", "prefilling", "waiting", "arriving"]
    for i in states:
        engine.abort(i, f"enough of {i}")
        assert engine.outputs[i].finish_reason == "aborted" and engine.outputs[i].error == f"enough of {i}"
    assert engine.pool.num_used == 0 and not engine.has_work
    assert engine.outputs[running].token_ids == expected([1, 2, 3], 9, True)[:1]
    engine.abort(running)  # once ended it stays as it is
    assert engine.outputs[running].error == f"enough of {running}"
    with pytest.raises(RequestError, match=r"no request 77 here; known are 0, 1, 2, 3"):
        engine.abort(77)
    # No step was to come after them, and still the trace has the ends.
    assert sorted(e.id for r in engine.trace for e in r.events if e.kind == "aborted") == sorted(states)
    assert {r.finish_reason for r in RunMetrics.from_trace(engine.trace).requests} == {"aborted"}


def test_what_can_not_be_asked_of_an_engine_now() -> None:
    engine = make()
    with pytest.raises(ConfigError, match="there is no work: add"):
        engine.step()
    i = engine.add(ask(3))
    for call in (engine.reset, lambda: engine.run([ask(1)])):
        with pytest.raises(ConfigError, match=r"still has 1 requests that were add\(\)ed"):
            call()
    engine.step()
    assert engine.text(i) == engine.backend.pieces(expected([1, 2, 3], 1, True))[0]
    with pytest.raises(RequestError, match="no request 5 here"):
        engine.text(5)
    engine.abort(i)
    engine.reset()
    assert not engine.outputs and len(engine.trace) == 0 and engine.clock.now() == 0 and engine.add(ask(1)) == 0


def test_a_backend_that_fails_ends_residents_and_keeps_the_queue() -> None:
    engine = Engine(FakeBackend(fail_at=3), "vllm", max_batch_size=1, num_blocks=8, block_size=4)
    engine.add(ask(9))
    engine.add(ask(2))
    with pytest.raises(RuntimeError, match="as the test asked"):
        while engine.has_work:
            engine.step()
    assert engine.outputs[0].finish_reason == "aborted" and "as the test asked" in str(engine.outputs[0].error)
    assert engine.outputs[0].token_ids == expected([1, 2, 3], 9, True)[:2]
    assert engine.pool.num_used == 0 and engine.has_work
    while engine.has_work:
        engine.step()
    assert engine.outputs[1].token_ids == expected([1, 2, 3], 2, True)


# -- runs -------------------------------------------------------------------------------------------
def test_progress_as_a_bar_and_as_a_callback(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    run = make().run([ask(4), ask(2)], progress=lambda r: seen.append(r.step))
    assert seen == [r.step for r in run.trace]
    make().run([ask(4), ask(2)], progress=True)
    assert "vllm" in capfd.readouterr().err
    engine = make()
    with pytest.raises(ZeroDivisionError):
        engine.run([ask(4)], progress=lambda r: 1 / 0)
    assert engine.last_run is not None and engine.last_run.outputs[0].finish_reason == "aborted"
    assert engine.run([ask(4)]).outputs[0].finish_reason == "length"


def test_a_run_can_be_repeated_exactly() -> None:
    engine = make(blocks=12)
    requests = [ask(3 + i % 5, [i, i + 1], arrival=i / 2) for i in range(9)]
    first, second = engine.run(requests), engine.run(requests)
    assert first.trace == second.trace and first.outputs == second.outputs
    assert first.trace is not second.trace  # the first run's record is its own


def test_one_model_serves_two_engines_without_mixing_them_up() -> None:
    lm = random_model()
    a, b = (ContinuousEngine(lm, max_batch_size=2, num_blocks=16, block_size=4) for _ in range(2))
    alone = ContinuousEngine(lm, num_blocks=16).run([ask(9, [5, 6]), ask(9, [7])]).outputs
    ia, ib = a.add(ask(9, [5, 6])), b.add(ask(9, [7]))
    while a.has_work or b.has_work:
        for engine in (a, b):
            if engine.has_work:
                engine.step()
    assert a.outputs[ia].token_ids == alone[0].token_ids and b.outputs[ib].token_ids == alone[1].token_ids


def test_an_empty_run() -> None:
    run = make().run([])
    assert run.outputs == [] and len(run.trace) == 0 and run.metrics.decode_steps == 0
    assert repr(run) == "Run(policy=vllm, requests=0 (), steps=0)"


def test_the_trace_says_what_the_engine_was_given() -> None:
    meta = make("vllm", slots=3, blocks=9, preemption="swap").run([]).trace.meta
    assert meta["policy"] == "vllm" and meta["policy_settings"]["preemption"] == "swap"
    assert (meta["max_batch_size"], meta["num_blocks"], meta["block_size"], meta["clock"]) == (3, 9, 4, "step")
