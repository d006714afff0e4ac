"""For every task: the solution passes; at least three typical wrong answers fail, each with its own message."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import pytest

import taskkit
from taskkit.free import Free
from taskkit.kinds import Choice, Code, Derive, Predict
from taskkit.store import Store
from taskkit.texts import text_of
from taskkit.verdict import Verdict
from tests.exercises.answers import Answers, Ticks

# Messages that say only that something is off. A typical wrong answer deserves better.
GENERIC = {"differs", "too_small", "too_large", "guess_off", "crash", "timeout"}
CHAPTERS = taskkit.chapters()
ANSWERS: dict[str, Answers] = {}
for chapter in CHAPTERS:
    if importlib.util.find_spec(f"tests.exercises.wrong_ch{chapter}"):  # its absence fails tests below, not all of them
        ANSWERS.update(importlib.import_module(f"tests.exercises.wrong_ch{chapter}").ANSWERS)
TASKS = [t for chapter in CHAPTERS for t in taskkit.tasks_of(chapter)]


@pytest.fixture(autouse=True)
def nothing_solved() -> Iterator[None]:
    taskkit.use(Store(None))
    taskkit.reset()  # a prediction that another test locked
    yield
    taskkit.use(None)


def judge(task: Any, answer: Any) -> Verdict:
    if isinstance(answer, Ticks):
        task.check(answer.text)
        return task.judge_ticks(*answer.ticks)
    return task.judge(answer)


def cases(which: str) -> list[Any]:
    out = []
    for task in TASKS:
        for n, item in enumerate(getattr(ANSWERS[task.id], which) if task.id in ANSWERS else []):
            out.append(pytest.param(task, item, id=f"{task.id}-{n}"))
    return out


def test_every_task_has_answers_and_every_answer_a_task() -> None:
    assert len({t.id for t in TASKS}) == len(TASKS)
    for chapter in CHAPTERS:
        ids = [t.id for t in taskkit.tasks_of(chapter)]
        assert ids == [f"{chapter}.{n}" for n in range(1, len(ids) + 1)]
    assert {t.id for t in TASKS} == set(ANSWERS)


@pytest.mark.parametrize("task, answer", cases("right"))
def test_the_solution_passes(task: Any, answer: Any) -> None:
    verdict = judge(task, answer)
    assert verdict.status == "solved", verdict


@pytest.mark.parametrize("task, item", cases("wrong"))
def test_a_wrong_answer_fails_with_the_message_meant_for_it(task: Any, item: tuple[Any, str]) -> None:
    verdict = judge(task, item[0])
    assert verdict.status in ("wrong", "crash", "timeout"), verdict
    assert verdict.code == item[1], verdict
    assert not re.search(r"(?<![\w\\^}])\{[a-z_]+\}", verdict.message), "a field was not filled in"


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.id)
def test_at_least_three_wrong_answers_with_messages_of_their_own(task: Any) -> None:
    found = {judge(task, answer).message for answer, code in ANSWERS[task.id].wrong if code not in GENERIC}
    assert len(found) >= 3
    assert ANSWERS[task.id].right


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.id)
def test_nothing_yet_is_no_error(task: Any) -> None:
    def empty(*args: Any) -> None:
        """Only a docstring."""
        ...

    def later(*args: Any) -> None:
        raise NotImplementedError

    for answer in (None, ..., ""):
        assert task.judge(answer).status == "unanswered"
    if isinstance(task, Code):
        assert task.judge(empty).status == "unanswered"
        assert task.judge(later).status == "unanswered"
    if isinstance(task, Free):
        assert task.judge_ticks().status == "unanswered"
        assert task.judge_ticks(...).status == "unanswered"


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Code)], ids=lambda t: t.id)
def test_a_constant_an_endless_loop_and_a_crash_are_reported(task: Any) -> None:
    def endless(*args: Any) -> None:
        while True:
            pass

    def crash(*args: Any) -> float:
        return 1 / 0

    first = next(iter(task.cases(task.rng())))
    constant = None if task.validate is not None else task.reference(*first)
    assert not task.judge(lambda *args: constant).solved
    limit, task.limit = task.limit, 0.1
    try:
        assert task.judge(endless).status == "timeout"
    finally:
        task.limit = limit
    verdict = task.judge(crash)
    assert verdict.status == "crash"
    assert any("return 1 / 0" in value for _, value in verdict.rows)


JUNK = [
    -77777.25, -1.5, float("inf"), True, "x", b"x", [], (), {}, [[1]], (1, 2), [None] * 8, object(), lambda: None,
    Verdict, {1: 2},
    ([], []), ([("alloc", ["x"], 1)], len), "💥" * 50,
]  # fmt: skip


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.id)
def test_no_answer_raises(task: Any) -> None:
    for answer in JUNK:
        if str(answer).strip() not in ANSWERS[task.id].right:
            assert not task.judge(answer).solved, answer


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.id)
def test_words_are_all_there(task: Any) -> None:
    text = text_of(task.id)
    assert text.title and text.question and 1 <= task.stars <= 3
    assert text.hints or isinstance(task, Free)
    assert len(set(text.hints)) == len(text.hints)
    if isinstance(task, (Code, Derive, Predict)):
        assert set(task.slips) <= set(text.messages)
    if isinstance(task, Choice):
        assert set(task.right) <= set(text.options)
    for key, (words, reason) in text.options.items():
        right = task.right if isinstance(task, Choice) else str(task.truth())
        assert words and bool(reason) == (key not in right), key
    if isinstance(task, Free):
        assert text.model and len(text.checklist) >= 3 and all(a and b for a, b in text.checklist)
    assert len(set(text.messages.values())) == len(text.messages)


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Code)], ids=lambda t: t.id)
def test_show_draws_with_and_without_a_function(task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task.show(None)
    without = capsys.readouterr().out
    task.show(task.reference)
    assert without.strip() and capsys.readouterr().out.strip()
    task.show(lambda *args: 1 / 0)
    capsys.readouterr()
