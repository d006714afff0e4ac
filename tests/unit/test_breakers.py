"""What testers broke: each case ends in the error that says so, or in no error at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minirt import (
    ConfigError,
    Engine,
    Planner,
    PolicyError,
    Request,
    RequestError,
    StepPlan,
    Trace,
    TraceError,
    simulate,
)
from minirt.clock import StepClock
from minirt.model.sampling import sample
from minirt.policies import make_policy
from minirt.policies.base import State
from minirt.request import SamplingParams
from tests.fake_backend import FakeBackend, expected

SIZES: dict[str, Any] = {"max_batch_size": 2, "num_blocks": 16, "block_size": 4}


def asked(count: int = 3, new: int = 4) -> list[Request]:
    return [Request(prompt_ids=[i + 1, 2, 3], max_new_tokens=new, ignore_eos=True) for i in range(count)]


# -- sampling ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-39, 9e-6])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_temperature_that_underflows_is_greedy(temperature: float, top_p: float) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature, top_p=top_p), SamplingParams(1.0, seed=3), SamplingParams()]
    tokens = sample(logits, params, [5, 5, 5])
    assert tokens[0] == logits[0].argmax() and tokens[2] == logits[2].argmax() and 0 <= tokens[1] < 40


def test_a_row_of_nan_harms_no_other_row() -> None:
    logits = torch.zeros(2, 40)
    logits[0] = torch.nan
    both = sample(logits, [SamplingParams(1.0, seed=1)] * 2, [3, 3])
    assert 0 <= both[0] < 40 and both[1] == sample(logits[1:], [SamplingParams(1.0, seed=1)], [3])[0]


# -- speculation ------------------------------------------------------------------------------------
class Eraser:
    def propose(self, tokens: list[int], most: int) -> list[int]:
        tokens.clear()
        return []


def test_a_proposer_can_not_change_a_request() -> None:
    run = Engine(FakeBackend(), speculation=Eraser(), **SIZES).run(asked())
    assert [o.token_ids for o in run.outputs] == [expected(list(r.prompt_ids or ()), 4, True) for r in asked()]


# -- a policy that helps itself ---------------------------------------------------------------------
class Greedy:
    """Plans like `vllm`, after (or before) it has spoilt something."""

    name = "greedy"

    def __init__(self, spoil: Callable[[State, Planner], Any]) -> None:
        self.spoil = spoil

    def plan(self, state: State) -> StepPlan:
        p = Planner(state)
        self.spoil(state, p)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            p.admit(seq)
        return p.plan


def _set(*names: str, to: Any) -> Callable[[State, Planner], Any]:
    def spoil(state: State, p: Planner) -> None:
        owner: Any = {"state": state, "p": p, "plan": p.plan}[names[0]]
        setattr(owner, names[1], to)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_set("p", "free_slots", to=99), "free_slots can't be set"),
        (_set("p", "free_blocks", to=99), "free_blocks can't be set"),
        (_set("p", "budget", to=2.5), "budget=2.5 must be a whole number"),
        (_set("state", "free_slots", to=10**6), "state.free_slots can't be set"),
        (_set("state", "free_blocks", to=10**6), "state.free_blocks can't be set"),
        (_set("plan", "made_by", to="x"), "made_by='x'"),
        (_set("plan", "blocked_need", to="x"), "blocked_need='x'"),
        (lambda state, p: p.admit(next(iter(state.waiting)), chunk=2.5), "chunk=2.5"),
        (lambda state, p: p.admit(next(iter(state.waiting)), padding=1.5), "padding=1.5"),
        (lambda state, p: p.admit(next(iter(state.waiting)), keep=math.nan), "keep=nan"),
        (lambda state, p: p.refuse(next(iter(state.waiting)), object()), "must be a string"),
        (lambda state, p: setattr(next(iter(state.waiting)), "priority", 3), "change nothing in them"),
    ],
)
def test_counters_are_the_engines(spoil: Callable[[State, Planner], Any], said: str) -> None:
    engine = Engine(FakeBackend(), Greedy(spoil), **SIZES)
    with pytest.raises(PolicyError, match=said):
        engine.run(asked())
    assert engine.pool.num_free == SIZES["num_blocks"]


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("vllm", {"max_num_batched_tokens": 2.5}),
        ("vllm", {"max_num_batched_tokens": True}),
        ("vllm", {"watermark": "x"}),
        ("mini-runtime", {"chunk": 4.5}),
        ("mini-runtime", {"chunk": math.nan}),
        ("mini-runtime", {"step_budget": "8"}),
        ("tgi", {"waiting_served_ratio": math.inf}),
        ("tgi", {"max_waiting_tokens": 1.5}),
        ("tgi", {"max_batch_prefill_tokens": 1.5}),
        ("tgi", {"max_batch_total_tokens": math.nan}),
        ("static", {"max_wait": "soon"}),
    ],
)
def test_options_of_policies_are_whole_numbers(policy: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make_policy(policy, **options)


# -- settings and requests --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 2.5}, {"max_model_len": "9"}, {"host_blocks": "x"}, {"host_blocks": -5}, {"clock": 5},
        {"clock": StepClock}, {"max_batch_size": 10**11}, {"prefix_caching": "no"},
    ],
)  # fmt: skip
def test_settings_of_the_engine(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Engine(FakeBackend(), **options)


@pytest.mark.parametrize("options", [{"block_size": 0}, {"memory_fraction": math.nan}, {"memory_fraction": 5}])
def test_settings_of_a_simulation(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        simulate("vllm", asked(), **options)


@pytest.mark.parametrize(
    "values",
    [
        {"stop": 5}, {"arrival": 10**400}, {"temperature": 10**400}, {"ignore_eos": "no"}, {"name": "half \ud83d"},
        {"prompt_ids": {1, 2}}, {"prompt_ids": {1: 2}}, {"prompt_ids": b"12"},
    ],
)  # fmt: skip
def test_values_of_a_request(values: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(values))):
        Request(**{"prompt_ids": [1], **values})


def test_an_error_of_the_policy_carries_the_run_so_far() -> None:
    def late(state: State, p: Planner) -> None:
        if state.step == 6:
            p.free_slots = 99  # type: ignore[misc]

    with pytest.raises(PolicyError) as caught:
        simulate(Greedy(late), asked(4), max_batch_size=2)
    run = caught.value.run
    assert run is not None and [o.finish_reason for o in run.outputs] == ["length"] * 2 + ["aborted"] * 2


# -- trace files ------------------------------------------------------------------------------------
def saved(path: Path) -> list[Any]:
    Engine(FakeBackend(), **SIZES).run(asked()).trace.save(path)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "spoil"),
    [
        (1, lambda d: d["meta"].update(max_batch_size=0)),
        (1, lambda d: d["meta"].update(block_size="4")),
        (1, lambda d: d["requests"][0].update(num_prompt="3")),
        (1, lambda d: d["requests"][0].update(arrival=math.nan)),
        (2, lambda d: d.update(time=math.nan)),
        (2, lambda d: d.update(duration=-1)),
        (2, lambda d: d.update(waiting=1.5)),
        (2, lambda d: d.update(forwards=[[1]])),
        (2, lambda d: d.update(decode={"0": 0})),
        (2, lambda d: d.update(allocated=[[0, "12"]])),
        (2, lambda d: d["events"].append(["vanished", 0, {}])),
    ],
)
def test_a_damaged_trace_names_the_line(tmp_path: Path, line: int, spoil: Callable[[Any], Any]) -> None:
    path = tmp_path / "t.jsonl"
    lines = saved(path)
    spoil(lines[line - 1])
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TraceError, match=f"line {line}: damaged"):
        Trace.load(path)


def test_deep_nesting_and_a_folder_are_trace_errors(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("[" * 200_000)
    with pytest.raises(TraceError, match="line 1"):
        Trace.load(path)
    with pytest.raises(TraceError, match="it is a folder"):
        Trace.load(tmp_path)


def test_save_leaves_nothing_half_written(tmp_path: Path) -> None:
    trace = Engine(FakeBackend(), **SIZES).run(asked()).trace
    trace.meta["note"] = object()
    with pytest.raises(TypeError):
        trace.save(tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_policy_setting_of_half_characters_can_be_saved(tmp_path: Path) -> None:
    policy = Greedy(lambda state, p: None)
    policy.label = "half \ud83d"  # type: ignore[attr-defined]
    path = tmp_path / "t.jsonl"
    Engine(FakeBackend(), policy, **SIZES).run(asked()).trace.save(path)
    assert Trace.load(path).meta["policy_settings"]["label"] == "half ?"
