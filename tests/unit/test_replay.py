"""The state rebuilt from a trace equals the engine's own, and a trace that contradicts itself is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from minirt.backends.simulated import SimulatedBackend
from minirt.clock import ModelClock
from minirt.engine import Engine
from minirt.errors import TraceError
from minirt.replay import Replayer, replay, state_at
from minirt.request import Request
from minirt.simulation import simulate
from minirt.trace import Event, Trace
from minirt.workloads import article, lognormal, make_requests, poisson, uniform


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("static", {}),
        ("mini-runtime", {}),
        ("vllm", {}),
        ("vllm", {"prefix_caching": True}),
    ],
)
def test_replay_follows_the_engine(policy: str, options: dict[str, bool]) -> None:
    engine = Engine(
        SimulatedBackend(), policy, max_batch_size=6, num_blocks=30, block_size=8, clock=ModelClock(), **options
    )
    requests = make_requests(50, uniform(1, 60), lognormal(12, 1.0, cap=80), poisson(400.0), seed=5, vocab_size=2)
    ids = [engine.add(r) for r in requests]
    replayer = Replayer(engine.trace)
    steps = 0
    while engine.has_work:
        if steps == 40:  # an abort between two steps lands in the next record
            engine.abort(ids[-1])
            running = next(iter(engine.running), None)
            if running is not None:
                engine.abort(running)
        state = replayer.apply(engine.step())
        steps += 1
        live = {**engine.prefilling, **engine.running, **engine.ended}
        assert sorted(state.resident) == sorted(live)
        assert {i: state.slots[s.slot] for i, s in live.items()} == {i: i for i in live}
        assert sum(s is not None for s in state.slots) == len(live)
        assert {i: state.tables[i] for i in live} == {i: s.table.blocks for i, s in live.items() if s.table}
        assert state.refs == {b: r for b, r in enumerate(engine.pool.refs) if r}
        assert {i: state.computed[i] for i in live} == {i: s.num_computed for i, s in live.items()}
        assert state.waiting == [s.id for s in engine.waiting]
        assert state.swapped == list(engine.swapped)
        assert set(state.ended) == set(engine.ended)
        assert all(state.generated.get(i, 0) == s.num_generated for i, s in live.items())
    assert not state.tables and not state.refs and not state.waiting
    assert state.finished == {i: o.finish_reason for i, o in engine.outputs.items()}
    assert "aborted" in state.finished.values()


def test_snapshots_don_t_change_and_files_replay_alike(tmp_path: Path) -> None:
    run = simulate("vllm", article(), clock="step", max_batch_size=8, num_blocks=64)
    states = list(replay(run.trace))
    assert [s.step for s in states] == list(range(len(run.trace)))
    assert len(states[0].waiting) == 52 and states[0].slots == list(range(8))
    assert states[-1].resident == [] and len(states[-1].finished) == 60
    assert state_at(run.trace, 10) == states[10] and state_at(run.trace, -1) == states[-1]
    run.trace.save(tmp_path / "t.jsonl")
    assert list(replay(Trace.load(tmp_path / "t.jsonl"))) == states


def test_a_shared_block_has_two_owners() -> None:
    requests = [Request(prompt_ids=[1] * 40, max_new_tokens=6, ignore_eos=True) for _ in range(2)]
    run = simulate("vllm", requests, max_batch_size=2, num_blocks=32, block_size=8, prefix_caching=True)
    owners = [sorted(o) for s in replay(run.trace) for o in s.owners().values()]
    assert [0, 1] in owners


def damaged(change: str) -> Trace:
    run = simulate("vllm", article(), clock="step", max_batch_size=8, num_blocks=64)
    trace = copy.deepcopy(run.trace)
    steps = trace.steps
    if change == "slot":
        at = next(i for i, e in enumerate(steps[0].events) if e.kind == "admitted" and e.data["slot"] == 1)
        steps[0].events[at] = Event("admitted", steps[0].events[at].id, {"slot": 0})
    elif change == "block":
        freeing = next(s for s in steps if s.freed)
        freeing.freed[0] = (freeing.freed[0][0], [63])
    elif change == "kept":
        next(s for s in steps if s.freed).freed.clear()
    elif change == "token":
        steps[0].decode.append(55)
    elif change == "gauge":
        steps[3].blocks_used += 1
    elif change == "admitted twice":
        steps[1].events.append(Event("admitted", 0, {"slot": 7}))
    return trace


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("slot", "step 0: slot 0 is given to request 1"),
        ("block", r"frees blocks \[63\]"),
        ("kept", "left its slot but kept blocks"),
        ("token", "step 0: request 55 decodes but was never admitted"),
        ("gauge", "step 3: blocks_used="),
        ("admitted twice", "step 1: request 0 is admitted but was not waiting"),
    ],
)
def test_contradictions_are_named(change: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        list(replay(damaged(change)))
