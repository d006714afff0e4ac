"""Invariants 1 to 5 of the design, under random requests, aborts, failures and tiny pools, for every policy.

The backend is tests/fake_backend.py, whose tokens depend on what is really in the blocks. The number of examples
is MINIRT_EXAMPLES (default 40; 1000 before a release).
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minirt import Engine, ModelClock, Planner, Request, StepClock, StepPlan, Trace
from minirt.metrics import RunMetrics
from minirt.policies.base import State
from minirt.request import RequestState
from tests.fake_backend import VOCAB, FakeBackend, Oracle, expected

EXAMPLES = int(os.environ.get("MINIRT_EXAMPLES", "40"))


class Chaos:
    """Takes any choice that a Planner allows, at random: whatever it accepts, the engine must be able to carry out.

    Half of its plans are handed in as if written by hand, so that validate() counts them again and must agree.
    """

    name = "chaos"
    prefix_caching = True

    def __init__(self) -> None:
        self.rng = Random(0)

    def plan(self, state: State) -> StepPlan:
        rng = self.rng
        p = Planner(state, budget=rng.choice([None, 5, 20]), mixed=rng.random() < 0.5)
        resident, swapped, waiting = [*state.running, *state.prefilling], [*state.swapped], [*state.waiting]
        for queue in (resident, swapped, waiting):
            rng.shuffle(queue)
        runs = rng.random() < 0.5  # a step promises runs of blocks or resumes
        for kind in rng.sample(["resident", "swapped", "waiting"], 3):
            for seq in resident if kind == "resident" else ():
                x = rng.random()
                if x < 0.16:
                    p.preempt(seq, "swap" if x < 0.08 else "recompute")
                elif x < 0.9:
                    self.compute(p, seq)
            for seq in swapped if kind == "swapped" and not runs else ():
                if p.resume(seq) and rng.random() < 0.7:
                    self.compute(p, seq)
            for seq in waiting[:3] if kind == "waiting" else ():
                reserve = len(seq.tokens) + rng.randint(0, 12) if runs and rng.random() < 0.7 else None
                p.admit(seq, rng.choice([None, 0, 2, 5]), reserve, keep=rng.choice([0, 0, 1]))
        plan = p.plan
        if not (plan.admit or plan.resume or plan.preempt or plan.decode or plan.prefill):
            for seq in resident:
                p.preempt(seq, "recompute")  # nobody can go on: start over
            for seq in [] if resident else swapped[:1]:
                p.resume(seq)
            for seq in [] if resident or swapped else waiting:
                p.admit(seq, 1) or p.admit(seq, 0)
        if rng.random() < 0.5:
            plan.made_by = None
        return plan

    def compute(self, p: Planner, seq: Any) -> None:
        if seq.state is RequestState.RUNNING or (seq.state is RequestState.SWAPPED and seq.remaining == 1):
            p.decode(seq)
        else:
            p.prefill(seq, self.rng.choice([None, 1, 3, 7]))


VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "chaos": (Chaos, {"starvation_limit": None}),
    "static": ("static", {}),
    "static-wait": ("static", {"max_wait": 3.0}),
    "orca-max": ("orca", {"max_model_len": 48}),
    "orca-pow2": ("orca", {"variant": "pow2"}),
    "orca-oracle": ("orca", {"variant": "oracle"}),
    "tgi": ("tgi", {}),
    "tgi-tight": ("tgi", {"waiting_served_ratio": 1.2, "max_waiting_tokens": 3, "max_batch_prefill_tokens": 24,
                          "max_batch_total_tokens": 40, "prefix_caching": True}),
    "mini-runtime": ("mini-runtime", {"chunk": 4, "step_budget": 9}),
    "vllm": ("vllm", {"max_num_batched_tokens": 11}),
    "vllm-prefix": ("vllm", {"max_num_batched_tokens": 7, "prefix_caching": True, "watermark": 0.2}),
    "vllm-swap": ("vllm", {"max_num_batched_tokens": 16, "preemption": "swap", "host_blocks": 6}),
    "vllm-swap-prefix": ("vllm", {"preemption": "swap", "prefix_caching": True, "watermark": 0.0}),
    "vllm-unchunked": ("vllm", {"max_num_batched_tokens": 24, "enable_chunked_prefill": False}),
    "vllm-guesses": ("vllm", {"max_num_batched_tokens": 13, "prefix_caching": True, "speculation": Oracle(3, 0.7)}),
    "vllm-swap-guesses": ("vllm", {"preemption": "swap", "host_blocks": 6, "speculation": Oracle(4, 0.8)}),
    "static-guesses": ("static", {"speculation": Oracle(2, 0.6)}),
}  # fmt: skip

# Few distinct prompts beginnings, so that prefixes are really shared.
heads = st.sampled_from([[], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [9] * 12])
prompts = st.builds(lambda h, t: h + t, heads, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))


class Serving(RuleBasedStateMachine):
    """One engine, driven by hand; every invariant is checked after every rule."""

    variant = "vllm"

    @initialize(
        blocks=st.integers(3, 14),
        block_size=st.sampled_from([1, 2, 4, 8]),
        slots=st.integers(1, 5),
        model_clock=st.booleans(),
    )
    def make(self, blocks: int, block_size: int, slots: int, model_clock: bool) -> None:
        name, options = VARIANTS[self.variant]
        clock = ModelClock() if model_clock else StepClock()
        self.backend = FakeBackend(max_model_len=128)
        self.eng = Engine(
            self.backend, name, max_batch_size=slots, num_blocks=blocks, block_size=block_size, clock=clock, **options
        )
        self.asked: dict[int, Request] = {}
        self.ends: dict[int, int] = {}
        self.events_seen = 0

    @rule(
        prompt=prompts,
        n=st.integers(1, 12),
        later=st.sampled_from([0.0, 0.0, 1.5, 6.0]),
        ignore_eos=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 1]),
    )
    def add(self, prompt: list[int], n: int, later: float, ignore_eos: bool, priority: int) -> None:
        request = Request(
            prompt_ids=prompt, max_new_tokens=n, arrival=self.eng.clock.now() + later, ignore_eos=ignore_eos,
            priority=priority,
        )  # fmt: skip
        self.asked[self.eng.add(request)] = request

    @precondition(lambda self: self.eng.has_work)
    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        for _ in range(n):
            if self.eng.has_work:
                record = self.eng.step()
                assert record.step == self.eng.step_count - 1
                if not record.drafted:
                    assert len(set(record.emitted)) == len(record.emitted), "two tokens for one request in one step"

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.eng.abort(data.draw(st.sampled_from(sorted(self.asked))))

    @precondition(lambda self: self.eng.has_work)
    @rule(error=st.sampled_from([RuntimeError, KeyboardInterrupt]))
    def fail(self, error: type[BaseException]) -> None:
        self.backend.fail_at, self.backend.error = self.backend.calls + 1, error
        try:
            self.eng.step()
        except error:
            assert not self.eng.running and not self.eng.prefilling and not self.eng.swapped and not self.eng.ended
        finally:
            self.backend.fail_at = None

    @invariant()
    def tokens_are_those_of_the_request_alone(self) -> None:
        for i, request in getattr(self, "asked", {}).items():
            want = expected(list(request.prompt_ids or ()), request.max_new_tokens, request.ignore_eos)
            out = self.eng.outputs.get(i)
            if out is None:
                got = self.eng._seqs[i].output_ids
                assert got == want[: len(got)]
            elif out.finish_reason in ("stop", "length"):
                assert out.token_ids == want
                assert (out.finish_reason == "length") == (len(want) == request.max_new_tokens)
            else:
                assert out.error and out.token_ids == want[: len(out.token_ids)]

    @invariant()
    def blocks_have_their_owners(self) -> None:
        if not hasattr(self, "eng"):
            return
        holders = [*self.eng.running.values(), *self.eng.prefilling.values(), *self.eng.ended.values()]
        self.eng.pool.check(s.table for s in holders if s.table is not None)
        slots = [s.slot for s in holders]
        assert len(set(slots)) == len(slots) and sorted(slots + self.eng._free_slots) == list(
            range(self.eng.limits.max_batch_size)
        )
        assert self.eng._host_used == sum(s.num_swapped for s in self.eng.swapped.values())
        assert set(self.backend.host) == set(self.eng.swapped)

    @invariant()
    def every_request_ends_at_most_once(self) -> None:
        if not hasattr(self, "eng"):
            return
        ends = [e.id for s in self.eng.trace for e in s.events if e.kind in ("finished", "rejected", "aborted")]
        ends += [e.id for e in self.eng._pending_events if e.kind in ("finished", "rejected", "aborted")]
        assert sorted(ends) == sorted(self.eng.outputs)
        assert set(self.eng.outputs) | set(self.eng._seqs) == set(self.asked)

    def teardown(self) -> None:
        """All that is left is served; then nothing may be held, and the trace alone must give the metrics."""
        if not hasattr(self, "eng"):
            return
        for _ in range(5000):
            if not self.eng.has_work:
                break
            self.eng.step()
        assert not self.eng.has_work, "the run hangs"
        assert set(self.eng.outputs) == set(self.asked)
        self.tokens_are_those_of_the_request_alone()
        self.eng.pool.check([])
        assert self.eng.pool.num_used == 0 and not self.backend.host
        if len(self.eng.trace):
            self.trace_replays()

    def trace_replays(self) -> None:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as d:
            path = Path(d) / "t.jsonl"
            self.eng.trace.save(path)
            again = Trace.load(path)
        assert RunMetrics.from_trace(again).to_dict() == RunMetrics.from_trace(self.eng.trace).to_dict()
        assert len(again) == len(self.eng.trace) and again.outputs == self.eng.trace.outputs


@pytest.mark.parametrize("variant", VARIANTS)
def test_invariants(variant: str) -> None:
    machine = type(f"Serving_{variant}", (Serving,), {"variant": variant})
    machine.TestCase.settings = settings(  # type: ignore[attr-defined]
        max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.TestCase("runTest").runTest()  # type: ignore[attr-defined]
