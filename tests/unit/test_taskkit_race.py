"""The race: ranking, a policy that wins somewhere, and policies that fail."""

from __future__ import annotations

from typing import Any

import pytest

import minirt
import taskkit
from taskkit.racing import COURSES, Result, race
from taskkit.verdict import TaskError


class ShortestFirst:
    """Shortest answer first, and prompts in pieces of at most 512 tokens."""

    name = "shortest-first"

    def plan(self, state: Any) -> Any:
        p = minirt.Planner(state, budget=512)
        running = sorted(state.running, key=lambda s: s.admitted_order)
        while running:
            seq = running.pop(0)
            while not p.decode(seq):
                victim = running.pop() if running else seq
                p.preempt(victim)
                if victim is seq:
                    break
        for seq in state.prefilling:
            p.prefill(seq)
        if not p.plan.preempt:
            for seq in sorted(state.waiting, key=lambda s: s.max_new_tokens - s.num_generated + len(s.tokens) / 10):
                if not p.admit(seq, keep=4):
                    break
        return p.plan


class Stalls:
    name = "stalls"

    def plan(self, state: Any) -> Any:
        return minirt.StepPlan()


@pytest.fixture(scope="module")
def result() -> Result:
    return race(ShortestFirst)


def test_every_policy_runs_every_course(result: Result) -> None:
    assert list(result.goodput) == [c.name for c in COURSES] and len(COURSES) == 3
    for course, scores in result.goodput.items():
        assert set(scores) == {"yours", *minirt.POLICIES}
        ranked = [scores[p] for p in result.ranking(course)]
        assert ranked == sorted(ranked, reverse=True)
    assert not result.errors


def test_no_policy_is_best_everywhere(result: Result) -> None:
    won = result.beats("yours", "vllm")
    assert won and set(won) != set(result.goodput)
    assert result.beats("vllm", "static") == list(result.goodput)


def test_the_same_race_comes_out_the_same(result: Result) -> None:
    assert race(ShortestFirst(), COURSES[:1]).goodput["chat"] == result.goodput["chat"]


def test_a_policy_that_fails_comes_last_and_says_why() -> None:
    found = race(Stalls, COURSES[:1])
    assert found.goodput["chat"]["yours"] is None and "stalls" in found.errors["yours"]
    assert found.ranking("chat")[-1] == "yours" and found.errors["yours"] in repr(found)


def test_what_is_no_policy() -> None:
    with pytest.raises(TaskError, match="not a int"):
        race(5)


def test_a_task_shows_the_race(capsys: pytest.CaptureFixture[str]) -> None:
    taskkit.task("03.5").race(ShortestFirst, courses=COURSES[:1])
    assert "yours" in capsys.readouterr().out


def test_racing_twice_in_one_kernel() -> None:
    # A submodule of the function's name would replace the function in the package when it is imported.
    for _ in range(2):
        assert "yours" in taskkit.race(ShortestFirst, courses=COURSES[:1]).goodput["chat"]

    assert callable(taskkit.race)
