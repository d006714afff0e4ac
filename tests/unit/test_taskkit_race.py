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
    assert found.goodput["chat"]["yours"] is None and "卡住了" in found.errors["yours"]
    assert found.ranking("chat")[-1] == "yours" and found.errors["yours"] in repr(found)
    html = found._repr_mimebundle_()["text/html"]
    assert html.index("卡住了") < html.index("<details") < html.index("the policy stalls")


def test_what_is_no_policy() -> None:
    class NeedsMore:
        def __init__(self, budget: int) -> None: ...

    for thing, said in ((5, "int：5"), (lambda: 5, "int"), (NeedsMore, "budget"), ([], "list")):
        with pytest.raises(TaskError, match=said):
            race(thing)
        told: list[str] = []
        with pytest.raises(TaskError):
            race(thing, tell=told.append)
        assert not told


class Empty:
    name = "empty"

    def plan(self, state: Any) -> Any: ...


@pytest.mark.parametrize("thing, said", [(None, "○ 未作答"), (..., "○ 未作答"), (Empty, "○ 未作答"), (Empty(), "○ 未作答"),
                                         (5, "✗ 还不对"), ("vllm", "'vllm'"), (lambda: 5, "✗ 还不对")])  # fmt: skip
def test_nothing_runs_for_no_policy(thing: Any, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("taskkit.racing.serve", lambda *args: pytest.fail("it ran"))
    taskkit.task("07.7").race(thing)
    assert said in capsys.readouterr().out


def test_a_task_shows_the_race(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    t = taskkit.task("07.7")
    t.race(ShortestFirst, courses=COURSES[:1])
    said = capsys.readouterr().out
    assert "**你的策略**" in said and "正在跑" not in said  # a machine's run shows no progress
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
    monkeypatch.delenv("TASKKIT_FRESH", raising=False)
    t.race(ShortestFirst, courses=COURSES[:2])
    said = capsys.readouterr().out
    assert "第 1/2 份负载 chat" in said and "正在跑：你的策略" in said and "第 2/2 份负载 long prompts" in said
    assert said.index("正在跑：vllm") < said.index("goodput（请求/秒）")


def test_other_tasks_have_no_race(capsys: pytest.CaptureFixture[str]) -> None:
    taskkit.task("03.5").race(ShortestFirst)
    assert "没有 `t5.race()`" in capsys.readouterr().out


class Crashes(ShortestFirst):
    def plan(self, state: Any) -> Any:
        if state.now > 1:
            raise KeyError("nobody")
        return super().plan(state)


class BreaksARule(ShortestFirst):
    def plan(self, state: Any) -> Any:
        return None


class Endless(ShortestFirst):
    def plan(self, state: Any) -> Any:
        while True:
            pass


@pytest.mark.parametrize(
    "policy, reason",
    [(Crashes, "KeyError: 'nobody'"), (Stalls, "卡住了"), (BreaksARule, "引擎不接受"), (Endless, "跑了 0.2 秒")],
)
def test_why_a_policy_has_no_goodput(policy: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskkit.racing.LIMIT_S", 0.2 if policy is Endless else 10.0)
    card = repr(race(policy, COURSES[:1]))
    assert "没跑完 |" in card and reason in card and "chat（短问答）" in card
    assert "yours" not in card and "#" not in card


def test_the_table_is_in_order_of_rank_under_one_title() -> None:
    goodput: dict[str, dict[str, float | None]] = {
        "chat": {"yours": 2.0, "a": 1.0, "b": 3.0}, "burst": {"yours": 5.0, "a": 1.0, "b": None},
    }  # fmt: skip
    card = Result(goodput, {})._card()
    rows = [line.split("|")[1].strip() for line in card.body.splitlines()[2:]]
    assert rows == ["**你的策略**", "b", "a"]  # 2 + 1, 1 + 3, 3 + 2
    assert "tk-tag" not in card._repr_mimebundle_()["text/html"].split("</style>")[1]


def test_racing_twice_in_one_kernel() -> None:
    # A submodule of the function's name would replace the function in the package when it is imported.
    for _ in range(2):
        assert "yours" in taskkit.race(ShortestFirst, courses=COURSES[:1]).goodput["chat"]

    assert callable(taskkit.race)
