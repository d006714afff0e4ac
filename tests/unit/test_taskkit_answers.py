"""taskkit: what is said of odd answers, of results of the wrong kind, of stalls, and of what show() cannot draw."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import minirt
import taskkit
from taskkit.store import FILE, Store

pytestmark = pytest.mark.usefixtures("store")


def test_what_show_cannot_draw_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for task_id in ("06.2", "09.3", "01.3"):
        taskkit.task(task_id).show(3)
        assert "这一题要交一个函数（写函数名，不带括号），收到的是 int" in capsys.readouterr().out
    for task_id, fn, words in (("06.2", lambda *a: 99, "返回的是 99"), ("06.2", lambda *a: -1, "返回的是 -1"),
                               ("09.3", lambda *a: -5, "5 ms → -5"), ("09.3", lambda *a: math.nan, "→ nan")):  # fmt: skip
        taskkit.task(task_id).show(fn)
        assert words in capsys.readouterr().out
    for task_id, fine in (("06.2", lambda *a: 3), ("06.2", lambda *a: None), ("09.3", lambda *a: 0)):
        taskkit.task(task_id).show(fine)
        assert "✗" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "task_id, value, words",
    [("01.3", 5, "要返回两个数的元组 `(useful, wasted)`，收到的是 int"), ("01.3", (1, 2, 3), "要返回两个数的元组"),
     ("01.2", [9], "要返回一个数，收到的是 list"), ("07.2", 900, "要返回一个列表，收到的是 int"),
     ("03.2", "yes", "要返回 `True` 或 `False`，收到的是 str")],
)  # fmt: skip
def test_a_result_of_the_wrong_kind(task_id: str, value: Any, words: str) -> None:
    verdict = taskkit.task(task_id).judge(lambda *args: value)
    assert verdict.code == "wrong_type" and words in verdict.message
    assert taskkit.task("01.3").judge(lambda *args: [1, 2]).code == "differs"


def test_a_stall_is_said_in_chinese_with_the_engines_words_folded(capsys: pytest.CaptureFixture[str]) -> None:
    class Idle:
        def plan(self, state: Any) -> Any:
            return minirt.StepPlan()

    for task_id, answer, given in (("09.4", Idle, "riders=8, longs=(0.5,), size=8192"), ("07.7", Idle, "course=chat"),
                                   ("07.5", ([(16, 4)] * 3, Idle), "jobs=[(16, 4)")):  # fmt: skip
        task = taskkit.task(task_id)
        verdict = task.judge(answer)
        assert verdict.code == "stalls" and "它的计划什么也没有算" in verdict.message and "plan is" not in verdict.message
        assert "the policy stalls" in verdict.detail and any(given in value for _, value in verdict.rows)
        html = task._card(verdict)._repr_mimebundle_()["text/html"]
        assert html.index("什么也没有算") < html.index(">引擎的原文") < html.index("the policy stalls")


def test_a_number_is_shown_in_the_questions_unit() -> None:
    assert ("你的结果", "40 个请求") in taskkit.task("06.1").judge(40).rows
    assert taskkit.task("06.1").judge("18 个请求").solved and taskkit.task("06.1").judge("18 rows").solved


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "task_id, fn",
    [("01.5", lambda n, b: []), ("01.5", lambda n, b: [0] * 8), ("01.5", lambda n, b: ["x"]),
     ("03.5", lambda *a: -1), ("02.4", lambda *a: "x"), ("04.4", lambda *a: []), ("04.4", lambda *a: Mute())],
)  # fmt: skip
def test_show_never_raises(task_id: str, fn: Any, capsys: pytest.CaptureFixture[str]) -> None:
    taskkit.task(task_id).show(fn)
    assert capsys.readouterr().out.strip()


ODD = {
    "surrogate": "\ud83d", "huge": 10**5000, "-huge": -(10**5000), "mute": Mute(), "returns mute": lambda *a: Mute(),
    "returns huge": lambda *a: 10**5000,
}  # fmt: skip


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
@pytest.mark.parametrize("task_id", ["01.1", "01.4", "01.5", "04.4", "04.10"])
def test_odd_answers_are_wrong_and_end_in_a_card(
    task_id: str, answer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taskkit.use(Store(tmp_path / FILE))
    taskkit.task(task_id).check(answer)
    capsys.readouterr().out.encode("utf-8")
    assert taskkit.task(task_id).judge(answer).status == ("refused" if task_id in ("01.4", "04.10") else "wrong")
    assert not Store(tmp_path / FILE).problem


def test_entries_of_another_shape_count_as_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"state": "solved", "tries": 2}
    entries = {"01.1": {"tries": "x", "hints": "y", "state": 5}, "01.2": {"state": []}, "01.4": good}
    (tmp_path / FILE).write_text(json.dumps({"tasks": entries}), encoding="utf-8")
    kept = Store(tmp_path / FILE)
    assert kept.get("01.1") == {} and kept.get("01.2") == {} and kept.get("01.4") == good
    taskkit.use(kept)
    taskkit.progress("01")
    taskkit.task("01.1").hint()
    taskkit.task("01.1").check("x")
    assert kept.get("01.1") == {"hints": 1, "state": "wrong", "tries": 1, "answer": "x"}
