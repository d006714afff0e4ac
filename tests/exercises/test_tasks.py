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
from taskkit.guess import Predict
from taskkit.kinds import Choice, Code, Derive, Judged
from taskkit.racing import COURSES, LIMIT_S
from taskkit.store import Store
from taskkit.texts import say, text_of
from taskkit.verdict import Verdict
from tests.exercises.answers import Answers, Ticks

# Messages that say only that something is off. A typical wrong answer deserves better.
GENERIC = {"differs", "too_small", "too_large", "guess_off", "crash", "timeout"}
STATUSES = {Predict: ("seen", "refused"), Free: ("refused", "noted")}
CHAPTERS = taskkit.chapters()
ANSWERS: dict[str, Answers] = {}
for chapter in CHAPTERS:
    if importlib.util.find_spec(f"tests.exercises.wrong_ch{chapter}"):  # its absence fails tests below, not all of them
        ANSWERS.update(importlib.import_module(f"tests.exercises.wrong_ch{chapter}").ANSWERS)
TASKS = [t for chapter in CHAPTERS for t in taskkit.tasks_of(chapter)]


@pytest.fixture(autouse=True)
def nothing_solved() -> Iterator[None]:
    taskkit.use(Store(None))
    taskkit.reset("all")  # a prediction that another test locked
    yield
    taskkit.use(None)


def judge(task: Any, answer: Any) -> Verdict:
    if isinstance(answer, Ticks):
        task.check(answer.text)
        task.reveal()
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
    # A guess that is wrong is no fault, and what can't be taken as an answer changes nothing.
    assert verdict.status in STATUSES.get(type(task), ("wrong", "crash", "timeout")), verdict
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


WRITTEN = [t for t in TASKS if isinstance(t, (Code, Judged))]


def shown(task: Any, answer: Any, capsys: pytest.CaptureFixture[str]) -> str:
    task.show(answer)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("task", WRITTEN, ids=lambda t: t.id)
def test_show_draws_what_the_answer_does(task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(task, None, capsys)
    right = ANSWERS[task.id].right[0]
    drawn = {shown(task, answer, capsys) for answer in (right, *(a for a, _ in ANSWERS[task.id].wrong))}
    assert len(drawn) > 1 and all(drawn)
    assert say("show.failed") not in shown(task, right, capsys)
    if isinstance(task, Code):
        assert "1 / 0" in shown(task, lambda *args: 1 / 0, capsys)


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.id)
def test_what_a_task_has_not_is_said_and_what_it_has(task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, arguments in [(v, (1, 2)) for v in ("predict", "run", "show", "reveal", "grade", "race")] + [("hint", ())]:
        if verb not in task.verbs():
            getattr(task, verb)(*arguments)
            said = capsys.readouterr().out
            assert f"没有 `{task.var}.{verb}()`" in said and f"`{task.var}.check()`" in said
    for _ in range(len(task.text.hints) + 1):
        task.hint()
    assert ("show" in task.verbs()) == (".show(" in capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.id)
def test_words_call_the_task_by_its_variable(task: Any) -> None:
    t = task.text
    words = [t.title, t.question, t.after, t.why, t.model, *t.hints, *t.messages.values()]
    words += [w for pair in [*t.options.values(), *t.checklist] for w in pair]
    for text in words:
        for name, verb in re.findall(r"(?:(\w+)\.)?\b(show|check|hint|race|predict|reveal|grade)\(", text):
            assert re.fullmatch(r"t\d+", name) or name == "BlockPool", (verb, text)
        assert not re.search(r"\bt\.\w+\(", text), text
    for name in re.findall(r"\b(t\d+)\.(?:check|race|hint)\(", t.question):
        assert name == task.var


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Predict)], ids=lambda t: t.id)
def test_an_experiment_waits_for_the_guess(task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[int] = []
    task.predict()
    task.run(lambda: ran.append(1))
    assert not ran and "先不运行" in capsys.readouterr().out
    task.prediction.lock(task.prediction.options["choices"][0] if task.text.options else 1)
    task.run(lambda: ran.append(1))
    assert ran


def test_promised_seconds_are_the_limits() -> None:
    assert {t.limit for t in TASKS} == {5.0, 20.0, 30.0}
    assert f"最多跑 {LIMIT_S:g} 秒" in text_of("07.7").question
    assert taskkit.task("07.7").limit == LIMIT_S * len(COURSES)
