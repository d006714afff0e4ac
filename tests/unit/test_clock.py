"""Arrivals are honoured under every clock, waiting takes the time it takes, and nothing else distorts it."""

from __future__ import annotations

import time

import pytest

from minirt import Engine, ModelClock, Request, StepClock, WallClock
from minirt.run import Run
from tests.fake_backend import FakeBackend


def ask(arrival: float, n: int = 2) -> Request:
    return Request(prompt_ids=[1, 2, 3], max_new_tokens=n, arrival=arrival, ignore_eos=True)


def joined(run: Run) -> dict[int, float]:
    """When each request joined the queue."""
    return {e.id: s.time for s in run.trace for e in s.events if e.kind == "arrived"}


def test_step_clock_lets_nobody_in_early_and_nobody_wait_longer_than_a_step() -> None:
    arrivals = [0, 0.5, 3, 3.0, 40, 40.2, 90.9]
    run = Engine(FakeBackend(), "vllm").run([ask(a) for a in arrivals])
    times = joined(run)
    for i, arrival in enumerate(arrivals):
        assert arrival <= times[i] < arrival + 1
    # All steps do something: the gap until 40 is jumped, not stepped through.
    assert all(s.batch_size for s in run.trace) and len(run.trace) < 20
    assert [s.time for s in run.trace] == sorted({s.time for s in run.trace})
    assert run.metrics.requests[4].ttft == 1.0


def test_the_order_of_the_list_is_not_the_order_of_arrival() -> None:
    run = Engine(FakeBackend(), "vllm", max_batch_size=1).run([ask(5), ask(0), ask(2.5)])
    admitted = [e.id for s in run.trace for e in s.events if e.kind == "admitted"]
    assert admitted == [1, 2, 0]
    assert [o.arrival for o in run.outputs] == [5, 0, 2.5]


@pytest.mark.parametrize("max_wait", [None, 3.0])
def test_waiting_for_a_full_batch_costs_the_wait_and_no_step_more(max_wait: float | None) -> None:
    """One waits for the other, which comes at 7; a static batch starts then, or after max_wait."""
    run = Engine(FakeBackend(), "static", max_batch_size=2, max_wait=max_wait).run([ask(0), ask(7)])
    first = run.metrics.requests[0]
    assert first.queue_wait == (7 if max_wait is None else 3)
    assert first.ttft == first.queue_wait + 1
    assert joined(run)[1] == 7


def test_a_request_aborted_before_its_time_delays_nobody() -> None:
    engine = Engine(FakeBackend(), "static", max_batch_size=2)
    engine.add(ask(0))
    late = engine.add(ask(1000))
    engine.step()  # the policy waits for the second one, up to its arrival
    assert engine.clock.now() == 1000
    again = Engine(FakeBackend(), "static", max_batch_size=2)
    again.add(ask(0))
    again.abort(again.add(ask(1000)))
    while again.has_work:
        again.step()
    assert again.clock.now() < 5
    assert late == 1


def test_model_clock_takes_what_the_backend_says() -> None:
    run = Engine(FakeBackend(), "vllm", clock=ModelClock()).run([ask(0, 3), ask(50.0, 1)])
    first = run.trace[0]
    assert first.duration == pytest.approx(0.01 + 0.001 * 3)
    assert joined(run)[1] == 50.0  # the gap is jumped
    assert run.trace[-1].end == pytest.approx(50.0 + 0.013)


class Slow(FakeBackend):
    """A tokenizer that takes its time, and forwards that do."""

    def encode(self, prompt: str) -> list[int]:
        time.sleep(0.1)
        return super().encode(prompt)


def test_wall_clock_honours_arrivals_in_real_time() -> None:
    started = time.perf_counter()
    run = Engine(FakeBackend(), "vllm", clock=WallClock()).run([ask(0), ask(0.3), ask(0.15)])
    took = time.perf_counter() - started
    times = joined(run)
    assert took >= 0.3
    assert times[0] < times[2] < times[1] and times[1] >= 0.3 and times[2] >= 0.15
    assert run.trace.meta["unit"] == "s" and run.metrics.duration >= 0.3


def test_reading_prompts_is_no_part_of_the_run() -> None:
    """Neither does it move the arrivals of those read last: all of these come at 0."""
    run = Engine(Slow(), "vllm", clock=WallClock()).run([Request("abc", max_new_tokens=1) for _ in range(4)])
    assert [o.arrival for o in run.outputs] == [0.0] * 4
    assert {s.time for s in run.trace for e in s.events if e.kind == "arrived"} == {run.trace[0].time}
    assert run.trace[0].time < 0.1


def test_by_hand_a_request_comes_when_it_is_added() -> None:
    engine = Engine(FakeBackend(), "vllm")
    engine.add(ask(0, 6))
    for _ in range(3):
        engine.step()
    late = engine.add(ask(0))
    assert engine.trace.requests[late].arrival == 3.0
    engine.step()
    assert late in engine.running


def test_clocks_by_themselves() -> None:
    step, model, wall = StepClock(), ModelClock(), WallClock()
    step.advance(None, [], 0)
    step.idle_until(4.2)
    assert step.now() == 5.0
    step.idle_until(1)  # never back
    assert step.now() == 5.0
    model.idle_until(1.25)
    model.idle_until(0.5)
    assert model.now() == 1.25
    for clock in (step, model):
        clock.reset()
        assert clock.now() == 0.0
    before = wall.now()
    wall.idle_until(before + 0.05)
    assert wall.now() >= before + 0.05
    wall.idle_until(0.0)
    wall.reset()
    assert wall.now() < before + 0.05
