"""A policy that gets nowhere is refused with an explanation: one that stalls, starves somebody or goes in circles."""

from __future__ import annotations

from typing import Any

import pytest

from minirt import Engine, Planner, PolicyError, Request, StepPlan, simulate
from minirt.policies.base import State
from minirt.workloads import choice, make_requests, poisson
from tests.fake_backend import FakeBackend


class ShortestFirst:
    """Shortest answer first. age: steps of waiting that weigh as much as a token of answer (0: never)."""

    name = "sjf"

    def __init__(self, age: float = 0.0) -> None:
        self.age = age

    def plan(self, state: State) -> StepPlan:
        p = Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in sorted(state.waiting, key=lambda s: s.max_new_tokens - self.age * (state.now - s.arrival)):
            if not p.admit(seq):
                break
        return p.plan


def overload() -> list[Request]:
    """More short requests than two slots can serve, and a long one every now and then."""
    return make_requests(1500, 1, choice([4, 60], [60, 1]), poisson(0.55), seed=5)


def test_shortest_first_starves_long_requests_under_load() -> None:
    with pytest.raises(PolicyError, match=r"starves request \d+: 401 later arrivals were admitted before it \(limit 400\)"):
        simulate(ShortestFirst(), overload(), clock="step", max_batch_size=2, num_blocks=64, starvation_limit=400)


def test_with_ageing_nobody_starves() -> None:
    run = simulate(ShortestFirst(age=0.5), overload(), clock="step", max_batch_size=2, num_blocks=64, starvation_limit=400)
    assert all(o.finish_reason == "length" for o in run.outputs)


def test_the_limit_can_be_turned_off() -> None:
    run = simulate(ShortestFirst(), overload(), clock="step", max_batch_size=2, num_blocks=64, starvation_limit=None)
    assert all(o.finish_reason == "length" for o in run.outputs)


def test_the_engine_serves_on_after_a_refused_policy() -> None:
    eng = Engine(FakeBackend(), ShortestFirst(), max_batch_size=1, num_blocks=8, block_size=4, starvation_limit=3)
    requests = [Request(prompt_ids=[1], max_new_tokens=9)]
    requests += [Request(prompt_ids=[i], max_new_tokens=2, ignore_eos=True) for i in range(2, 9)]
    with pytest.raises(PolicyError, match="starves request 0"):
        eng.run(requests)
    assert eng.last_run is not None and len(eng.last_run.outputs) == 8
    assert {o.finish_reason for o in eng.last_run.outputs} == {"length", "aborted"}
    eng.policy = Fifo()
    assert all(o.finish_reason in ("length", "stop") for o in eng.run(requests).outputs)


class Fifo:
    """The smallest policy that serves; subclasses spoil one thing."""

    name = "fifo"

    def plan(self, state: State) -> StepPlan:
        p = Planner(state)
        self.serve(p, state)
        for seq in state.waiting:
            if not p.admit(seq, reserve=None):
                break
        return p.plan

    def serve(self, p: Planner, state: State) -> None:
        for seq in state.running:
            p.decode(seq)


def engine(policy: Any, n: int = 4, **options: Any) -> Engine:
    eng = Engine(FakeBackend(), policy, max_batch_size=2, num_blocks=64, block_size=4, **options)
    for i in range(n):
        eng.add(Request(prompt_ids=[i + 1, 2, 3], max_new_tokens=200, ignore_eos=True) if i == 0
                else Request(prompt_ids=[i + 1, 2, 3], max_new_tokens=3, ignore_eos=True))  # fmt: skip
    return eng


def steps(eng: Engine, n: int) -> None:
    for _ in range(n):
        if eng.has_work:
            eng.step()


def test_forgetting_someone_who_holds_a_slot() -> None:
    class Forgets(Fifo):
        def serve(self, p: Planner, state: State) -> None:
            for seq in state.running:
                if seq.id != 1:
                    p.decode(seq)

    eng = Engine(FakeBackend(max_model_len=4096), Forgets(), max_batch_size=2, num_blocks=600, starvation_limit=100)
    for i in (1, 2):
        eng.add(Request(prompt_ids=[i], max_new_tokens=2000, ignore_eos=True))
    with pytest.raises(PolicyError, match=r"starves request 1: it holds slot 1 but.* no row for 1\d\d steps"):
        steps(eng, 300)


def test_doing_nothing() -> None:
    class Sleeps(Fifo):
        def plan(self, state: State) -> StepPlan:
            return StepPlan()

    eng = engine(Sleeps())
    said = r"stalls in step 1 \(state.step=0\): its plan is empty while 4 requests wait, 0 hold a slot.*2 slots and 64 of 64"
    with pytest.raises(PolicyError, match=said):
        eng.step()
    eng.policy = Fifo()
    steps(eng, 300)
    assert len(eng.outputs) == 4


def test_waiting_for_ever() -> None:
    class Waits(Fifo):
        def plan(self, state: State) -> StepPlan:
            return StepPlan(wait_until=float("inf"))

    with pytest.raises(PolicyError, match="stalls"):
        engine(Waits()).step()


def test_waiting_in_small_steps_for_ever() -> None:
    class Naps(Fifo):
        def plan(self, state: State) -> StepPlan:
            return StepPlan(wait_until=state.now + 1)

    eng = engine(Naps())
    with pytest.raises(PolicyError, match="10001 plans in a row compute nothing"):
        steps(eng, 20_000)


def test_never_bringing_back_who_was_swapped_out() -> None:
    class Forgetful(Fifo):
        def serve(self, p: Planner, state: State) -> None:
            for seq in state.running:
                if state.step == 1 and seq.id == 0:
                    p.preempt(seq, "swap")
                else:
                    p.decode(seq)

    eng = engine(Forgetful())
    with pytest.raises(PolicyError, match="stalls.*1 are swapped out"):
        steps(eng, 300)
    eng = engine(Forgetful(), n=12, starvation_limit=5)
    with pytest.raises(PolicyError, match="starves request 0: 6 later arrivals"):
        steps(eng, 300)


def test_never_letting_an_ended_batch_go() -> None:
    class Keeps(Fifo):
        returns_together = True

    eng = engine(Keeps())
    with pytest.raises(PolicyError, match=r"stalls.*2 hold a slot \(2 of them have ended\)"):
        steps(eng, 300)


def test_computing_ended_rows_for_ever() -> None:
    class Burns(Fifo):
        returns_together = True

        def serve(self, p: Planner, state: State) -> None:
            super().serve(p, state)
            p.waste(state.ended)

    with pytest.raises(PolicyError, match="plans in a row compute nothing"):
        steps(engine(Burns()), 20_000)


def test_in_and_out_for_ever() -> None:
    class Shuffles(Fifo):
        def serve(self, p: Planner, state: State) -> None:
            for seq in state.running:
                p.preempt(seq)

    with pytest.raises(PolicyError, match=r"preempted request \d 31 times \(limit 30\)"):
        steps(engine(Shuffles(), starvation_limit=30), 300)


@pytest.mark.parametrize("policy", ["static", "orca", "tgi", "mini-runtime", "vllm"])
def test_no_false_alarm(policy: str) -> None:
    """Long answers beside short ones, and a queue, under a limit far below their length: nobody is starved."""
    requests = make_requests(60, choice([1, 30]), choice([2, 200]), poisson(0.5), seed=1)
    run = simulate(policy, requests, clock="step", max_batch_size=4, num_blocks=64, max_model_len=256, starvation_limit=50)
    assert sum(o.finish_reason == "length" for o in run.outputs) == 60
