"""taskkit itself: tasks, predictions, free answers, words and odd answers."""

from __future__ import annotations

import time

import pytest

import taskkit
from taskkit import view
from taskkit.kinds import Code
from taskkit.store import Store
from taskkit.texts import Text, fill
from taskkit.verdict import TaskError

pytestmark = pytest.mark.usefixtures("store")


# -- tasks -----------------------------------------------------------------------------------------


def test_unknown_tasks_are_named(store: Store) -> None:
    with pytest.raises(TaskError, match=r"01\.9.*是 01\.\d 吗"):
        taskkit.task("01.9")
    with pytest.raises(TaskError, match=r"是 01\.2 吗") as e:
        taskkit.task("1.2")
    assert e.value._render_traceback_() == [str(e.value)]  # the words alone, in a notebook
    with pytest.raises(TaskError, match="有题的章"):
        taskkit.task("77.1")


def test_hints_open_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("01.1")
    hints = t.text.hints
    t.hint(3)
    assert hints[2] not in capsys.readouterr().out
    for hint in hints:
        t.hint()
        assert hint in capsys.readouterr().out
    t.hint()
    assert not any(h in capsys.readouterr().out for h in hints)
    t.hint(1)
    assert hints[0] in capsys.readouterr().out
    with pytest.raises(TaskError):
        t.hint(0)


def test_a_prediction_stays_locked_until_reset(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("02.3")
    t.predict()
    t.check()
    assert "未作答" in capsys.readouterr().out and store.get("02.3") == {}
    t.prediction.lock(64)
    t.check()
    said = capsys.readouterr().out
    # One state, here and in the list: not ✗; with the lesson, and how to guess again.
    assert "◐ 已揭晓" in said and "✗" not in said and "下界" in said and "收尾" in said and 'taskkit.reset("02.3")' in said
    assert store.get("02.3")["state"] == "seen" and "◐ 已揭晓" in repr(taskkit.progress("02"))
    assert t.prediction.truth == 69
    t.check(69)  # knowing the answer is no guess
    assert store.get("02.3")["state"] == "seen"
    t.prediction = None  # a new kernel
    again = t.predict(guess=69)
    assert again.guess == 64 and 'taskkit.reset(&quot;02.3&quot;)' in again._said.value
    taskkit.reset("02.3")
    assert t.predict(guess=69).guess == 69
    t.check()
    assert store.get("02.3")["state"] == "solved"


def test_what_is_no_guess_is_not_noted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for answer in ("64 furlongs", "64 MB", "many", float("nan")):
        taskkit.task("02.3").check(answer)
        assert not taskkit.task("02.3").predict(guess=answer).locked
    for answer in ("E", "banana", "AB", ["A"]):
        taskkit.task("01.4").check(answer)
        assert not taskkit.task("01.4").predict(guess=answer).locked
    assert store.get("02.3") == store.get("01.4") == {}
    said = capsys.readouterr().out
    assert said.count("○ 没有收下") == 16 and "✗" not in said


@pytest.mark.parametrize("answer", ["A", "a", " Ａ ", "1 倍：没有变化", "A 1 倍：没有变化"])
def test_a_choice_is_its_letter_or_its_words(answer: str) -> None:
    assert taskkit.task("01.4").judge(answer).solved
    options = taskkit.task("06.5").text.options
    assert taskkit.task("06.5").judge(options["C"][0]).solved


def test_a_grade_waits_for_the_model_answer(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("09.5")
    t.check("那一步所有 decode 都要等整段 prefill 算完，大约五十倍，平均值却看不出来；修法是切块并混批。")
    t.grade(True, True, True, True)
    assert "先运行 `t5.reveal()`" in capsys.readouterr().out and store.get("09.5")["state"] == "noted"
    t.reveal()
    t.grade(True, True, True, True)
    said = capsys.readouterr().out
    assert store.get("09.5")["state"] == "solved" and "思考题 3 完成" in said and "三道思考题" not in said
    store.update("02.7", state="solved")
    assert "三道思考题" not in t.judge_ticks(True, True, True, True).message
    store.update("04.10", state="solved")
    assert "三道思考题都做完了" in t.judge_ticks(True, True, True, True).message


def test_a_guess_with_its_unit(store: Store) -> None:
    t = taskkit.task("02.3")
    assert t.predict(guess="64 步").guess == 64
    t.check()
    assert store.get("02.3") == {"state": "seen", "guess": 64}


def test_who_skips_the_guess_sees_the_answer(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("01.4")
    t.predict().skip()
    ran: list[int] = []
    t.run(lambda: ran.append(1))
    t.check()
    said = capsys.readouterr().out
    assert ran and "没有猜" in said and "◐ 已揭晓" in said and "没有变化" in said
    assert store.get("01.4")["state"] == "seen"
    t.prediction = None  # a new kernel
    assert t.predict(guess="A").guess is None


def test_a_guess_that_was_run_stays(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("01.4")
    t.predict(guess="B")
    t.run(lambda: print("the answer"))
    assert "the answer" in capsys.readouterr().out
    t.prediction = None  # a new kernel
    assert t.predict(guess="A").guess.startswith("B")
    t.run(print("no function"))
    assert "不带括号" in capsys.readouterr().out
    t.check()
    capsys.readouterr()
    t.run(None)
    said = capsys.readouterr().out
    assert "◐ 已揭晓" in said and "未作答" not in said


def test_a_refused_free_answer_and_a_grade_with_gaps(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("07.8")
    t.check("太短")
    said = capsys.readouterr().out
    assert "○ 没有收下" in said and "✗" not in said
    assert "○ 未作答" in repr(taskkit.progress("07")) and store.get("07.8") == {}
    t.check("资源要守恒，块要还清；不能卡死，不能饿死；答案不随调度改变。")
    t.reveal()
    t.grade(True, False, True, False)
    said = capsys.readouterr().out
    assert "✎ 已记下" in said and "✗" not in said and "缺 2 条" in said and "07.5" in said and "第 07 章第 9 节" in said
    assert store.get("07.8")["state"] == "noted"
    t.grade(True)
    assert "○ 没有收下" in capsys.readouterr().out
    t.grade(True, True, True, True)
    assert store.get("07.8")["state"] == "solved"


def test_a_model_answer_opens_only_after_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("02.7")
    for answer in (None, "短"):
        t.check(answer)
        t.reveal()
        assert t.text.model[:20] not in capsys.readouterr().out
    assert t.judge_ticks(True, True, True, True).status == "unanswered"
    t.check("同时到达时一样快，因为同上同下；陆续到达时静态批只能在整批结束时准入。")
    t.reveal()
    assert t.text.model[:20] in capsys.readouterr().out


def test_cases_are_seeded_and_arguments_copied() -> None:
    t = taskkit.task("01.2")
    assert t.cases(t.rng()) == t.cases(t.rng())
    seen: list[int] = []

    def first_only(lengths: list[int], batch_size: int) -> int:
        seen.append(len(lengths))
        return -1

    t.judge(first_only)
    t.judge(first_only)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_a_chance_agreement_names_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Code(
        "01.2", 1, reference=lambda a: a % 5, cases=lambda rng: [(i,) for i in range(40)], slips={"one": lambda a: a % 7}
    )
    monkeypatch.setattr(Code, "text", Text("t", "q", messages={"one": "m"}))
    assert t.judge(lambda a: 5 if a == 5 else 0).code == "differs"
    assert t.judge(lambda a: a % 7).code == "one"


def test_what_is_printed_stands_under_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    def right(lengths: list[int], batch_size: int) -> int:
        print("batch", batch_size)
        return sum(max(lengths[i : i + batch_size]) for i in range(0, len(lengths), batch_size))

    def wrong(lengths: list[int], batch_size: int) -> int:
        if len(lengths) > 6:
            raise AssertionError("the first two cases are enough")
        print(f"<b> {lengths}")
        return right(lengths, batch_size) + (len(lengths) == 6)

    t = taskkit.task("01.2")
    verdict = t.judge(wrong)
    assert verdict.printed == "<b> [3, 1, 1, 4, 2, 2]\nbatch 2"  # of the case that failed, nothing else
    assert "&lt;b&gt; [3, 1" in t._card(verdict)._repr_mimebundle_()["text/html"]
    lines = t.judge(right).printed.splitlines()
    assert len(lines) == 21 and "3" in lines[0] and lines[-1].startswith("batch")
    t.show(right)
    assert "batch 4" in capsys.readouterr().out
    t.judge(lambda ls, b: print("x" * 100_000))
    assert len(t.judge(lambda ls, b: print("x" * 100_000)).printed) < 300
    judged = taskkit.task("01.5")
    assert judged.judge(([32, 1, 1, 1, 26, 1, 1, 1], lambda ls, b: print("here"))).printed == "here"
    capsys.readouterr()


def test_the_limit_holds_for_all_calls_of_a_check() -> None:
    t = taskkit.task("01.2")
    limit, t.limit = t.limit, 0.3
    try:
        started = time.monotonic()
        assert t.judge(lambda ls, b: time.sleep(0.1) or t.reference(ls, b)).status == "timeout"
        assert time.monotonic() - started < 2
    finally:
        t.limit = limit


def test_half_of_a_task_is_said_to_be_right(capsys: pytest.CaptureFixture[str]) -> None:
    def arrange(lengths: list[int], batch_size: int) -> None: ...

    verdict = taskkit.task("01.5").judge(([32, 1, 1, 1, 26, 1, 1, 1], arrange))
    assert verdict.status == "unanswered" and "第一样对了" in verdict.message
    assert "第一样对了" not in taskkit.task("01.5").judge((..., arrange)).message


# -- words -----------------------------------------------------------------------------------------


def test_markup() -> None:
    assert view.inline("**see `a**b` and $x$**") == "<b>see <code>a**b</code> and $x$</b>"
    html = view.markup("a **b** `c<d>` $x_1 < y$\n\n- one\n- two\n\n| h | i |\n|---|---|\n| 1 | `2` |\n\n```\nx < y\n```")
    assert "<b>b</b>" in html and "<code>c&lt;d&gt;</code>" in html and "$x_1 &lt; y$" in html
    assert "<ul><li>one</li><li>two</li></ul>" in html and "<th>h</th>" in html and "<td><code>2</code></td>" in html
    assert "<pre><code>x &lt; y</code></pre>" in html and "---" not in html


def test_a_learners_value_cannot_break_the_page() -> None:
    t = taskkit.task("01.1")
    card = t._card(t.judge("<script>alert(1)</script>"))
    html = card._repr_mimebundle_()["text/html"]
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_fill_leaves_other_braces() -> None:
    assert fill("\\frac{a}{b} {n} {x}", {"n": 3, "x": "y"}) == "\\frac{a}{b} 3 y"


def test_short() -> None:
    assert view.short([1.23456789, (2,), {"k": None}]) == "[1.23457, (2,), {'k': None}]"
    assert len(view.short(list(range(1000)))) < 260
