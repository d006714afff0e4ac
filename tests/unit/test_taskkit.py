"""taskkit itself: guarding learners' code, units, progress, markup, verdicts, predictions."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import taskkit
from taskkit import guard, view
from taskkit.compare import same
from taskkit.kinds import Code
from taskkit.store import FILE, Store
from taskkit.texts import Text, fill
from taskkit.units import parse
from taskkit.verdict import TaskError, Wrong


@pytest.fixture(autouse=True)
def store() -> Iterator[Store]:
    kept = Store(None)
    taskkit.use(kept)
    taskkit.reset()  # a prediction that another test locked
    yield kept
    taskkit.use(None)


# -- guard ---------------------------------------------------------------------------------------


def endless() -> None:
    while True:
        pass


def sleepy() -> None:
    time.sleep(60)



@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM on this system")
@pytest.mark.parametrize("fn", [endless, sleepy])
def test_a_timer_stops_loops_and_sleeps_and_leaves_no_trace(fn: Any) -> None:
    before = signal.getsignal(signal.SIGALRM)
    out = guard.call(fn, limit=0.1)
    assert out.kind == "timeout" and out.line > 0
    assert signal.getsignal(signal.SIGALRM) is before
    assert guard.call(lambda: 5, limit=0.1).value == 5


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM on this system")
def test_somebody_elses_timer_goes_on() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *args: rung.append(1))
    old = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        assert guard.call(endless, limit=0.05).kind == "timeout"
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 0.3
        until = time.monotonic() + 5
        while not rung and time.monotonic() < until:
            time.sleep(0.01)
        assert rung
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *old)


def test_without_an_alarm_a_trace_stops_the_loop() -> None:
    found: list[guard.Outcome] = []
    thread = threading.Thread(target=lambda: found.append(guard.call(endless, limit=0.1)))
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and found[0].kind == "timeout"


def test_the_tracing_fallback_is_put_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGALRM", raising=False)
    before = sys.gettrace()
    assert guard.call(endless, limit=0.1).kind == "timeout"
    assert guard.call(lambda: 7, limit=0.1).value == 7
    assert sys.gettrace() is before


def test_a_crash_is_told_with_the_learners_line() -> None:
    def deep(n: int) -> float:
        return 1 / n if n == 0 else deep(n - 1)

    out = guard.call(deep, 3)
    assert (out.kind, out.error) == ("crash", "ZeroDivisionError: division by zero")
    assert "1 / n if n == 0" in out.source


def test_what_libraries_raise_is_pinned_on_the_learners_line() -> None:
    def reads() -> Any:
        return json.loads("not json")  # the learner's line

    out = guard.call(reads)
    assert out.kind == "crash" and "the learner's line" in out.source


def test_exit_is_a_crash_and_an_interrupt_is_let_through() -> None:
    assert guard.call(lambda: sys.exit(3)).kind == "crash"

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.call(interrupted)


def test_recursion_without_end_is_a_crash() -> None:
    def again(n: int) -> int:
        return again(n + 1) + 1

    assert guard.call(again, 0).error.startswith("RecursionError")


def test_prints_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.call(lambda: print("hello")).printed == "hello\n"
    assert capsys.readouterr().out == ""


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


def test_prints_without_end_do_not_fill_the_memory() -> None:
    def loud() -> None:
        while True:
            print("x" * 1000)

    out = guard.call(loud, limit=0.3)
    assert out.kind == "timeout" and guard.PRINTED <= len(out.printed) <= 6 * guard.PRINTED


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


def test_what_counts_as_not_written_yet() -> None:
    def dots(a: int) -> int: ...

    def doc(a: int) -> int:
        """Only words."""

    def nothing(a: int) -> None:
        pass

    def gives_back(a: int) -> int:
        return a

    def constant(a: int) -> int:
        return 4

    assert [guard.is_empty(f) for f in (dots, doc, nothing)] == [True] * 3
    assert [guard.is_empty(f) for f in (gives_back, constant, len, Random)] == [False] * 4


# -- units and comparing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer, unit, value",
    [(12.5, "MB", 12.5), ("12.5", "MB", 12.5), ("12.5 GB", "MB", 12500), ("1 MiB", "MB", 1.048576), ("26%", "%", 26),
     ("1,024 B", "kB", 1.024), ("1e3 us", "ms", 1), (".5 s", "ms", 500),
     ("26.2％", "%", 26.2), ("２６．２ ＭＢ", "MB", 26.2), ("1，024.5", "", 1024.5), ("$0.23", "美元", 0.23),
     ("0.23 美元", "美元", 0.23), ("19 个", "rows", 19), ("64 步", "steps", 64), ("13.6 req/s", "requests/s", 13.6),
      ("−3", "", -3), (True + 0.0, "", 1.0)],
)  # fmt: skip
def test_numbers_with_units(answer: Any, unit: str, value: float) -> None:
    assert parse(answer, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    "answer, code",
    [("x", "not_a_number"), ([1], "not_a_number"), (True, "not_a_number"), (float("nan"), "not_a_number"),
     ("5 furlongs", "unit_unknown"), ("26,17", "comma"), ("26,1745 MB", "comma"), ("1,,024", "comma"),
     ("10²", "unit_unknown"), (10**400, "not_finite"), (-float("inf"), "not_finite"), ("1e999", "not_finite"),
     ("5 s", "unit_dimension")],
)  # fmt: skip
def test_what_is_no_number(answer: Any, code: str) -> None:
    with pytest.raises(Wrong) as e:
        parse(answer, "MB")
    assert e.value.code == code


@pytest.mark.parametrize("answer", ["5 MB", "5 furlongs"])
def test_a_number_without_a_unit(answer: str) -> None:
    with pytest.raises(Wrong) as e:
        parse(answer, "")
    assert e.value.code == "unit_none"


def test_same() -> None:
    numpy = pytest.importorskip("numpy")
    assert same(1.0000000001, 1) and same((1, [2.0]), [1, (2,)]) and same(numpy.array([1, 2]), [1, 2])
    assert same({"a": 1.0}, {"a": 1}) and same("a", "a") and same(None, None)
    for got, want in [(True, 1), (1, True), ([1], [1, 2]), ("1", 1), (None, 0), ({"a": 1}, {"b": 1}), (1.001, 1)]:
        assert not same(got, want)


# -- progress --------------------------------------------------------------------------------------


def test_progress_is_kept_and_a_solved_task_stays_solved(tmp_path: Path) -> None:
    path = tmp_path / FILE
    Store(path).update("01.1", state="solved", answer=5)
    again = Store(path)
    again.update("01.1", state="wrong", tries=2)
    assert Store(path).get("01.1") == {"state": "solved", "answer": 5, "tries": 2}
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_two_kernels_do_not_undo_each_other(tmp_path: Path) -> None:
    a, b = Store(tmp_path / FILE), Store(tmp_path / FILE)
    a.update("01.1", state="solved")
    b.update("02.1", state="solved")
    a.update("01.2", state="wrong")
    assert {t: Store(tmp_path / FILE).get(t)["state"] for t in ("01.1", "02.1", "01.2")} == {
        "01.1": "solved", "02.1": "solved", "01.2": "wrong",
    }  # fmt: skip


def _write_many(path: str) -> None:
    store = Store(Path(path))
    for i in range(10_000):
        store.update(f"01.{i % 7}", state="wrong", answer="x" * 2000)


def test_killed_while_writing_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for _ in range(3):
        process = multiprocessing.get_context("spawn").Process(target=_write_many, args=(str(path),))
        process.start()
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(0.05)
        process.kill()
        process.join()
        assert json.loads(path.read_text(encoding="utf-8"))["tasks"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tasks": 3}', '{"tasks": {"01.1": 5}}', "\x00\xff"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE
    path.write_text(text, encoding="utf-8")
    store = Store(path)
    assert store.get("01.1") == {} and store.problem
    store.update("01.1", state="solved")
    assert Store(path).get("01.1")["state"] == "solved"
    assert path.with_name(FILE + ".bad").read_text(encoding="utf-8") == text


def test_a_folder_that_cannot_be_written_keeps_progress_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "missing" / FILE)
    store.update("01.1", state="solved")
    assert store.get("01.1")["state"] == "solved" and store.problem
    taskkit.use(store)
    assert store.problem in repr(taskkit.progress("01"))


def test_machines_start_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Store(tmp_path / FILE).update("01.1", state="solved")
    monkeypatch.setenv("TASKKIT_FRESH", "1")
    assert Store.here().get("01.1") == {}
    monkeypatch.delenv("TASKKIT_FRESH")
    monkeypatch.setenv("PYTEST_VERSION", "8")
    assert Store.here().get("01.1") == {}
    monkeypatch.delenv("PYTEST_VERSION")
    assert Store.here().get("01.1")["state"] == "solved"


def test_progress_and_reset(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    taskkit.task("04.1").check(0.4846)
    taskkit.task("04.10").check("一条直线，截距是权重，斜率是每一行自己的 KV，约 39 行处相交。")
    taskkit.task("01.4").check("B")
    assert "1 / 10" in repr(taskkit.progress("04")) and "1 / 6" in repr(taskkit.progress("01"))
    assert "2 / " in repr(taskkit.progress())
    taskkit.reset("04.1")
    assert store.get("04.1") == {} and store.get("04.10") != {}
    taskkit.reset("01")
    assert store.get("01.4") == {} and store.get("04.10") != {}
    for unknown in ("1", "zz", "01.99"):
        with pytest.raises(TaskError, match=f"'{unknown}'.*chapters"):
            taskkit.reset(unknown)
    taskkit.reset()
    assert store.get("04.10") == {}


# -- tasks -----------------------------------------------------------------------------------------


def test_unknown_tasks_are_named(store: Store) -> None:
    with pytest.raises(TaskError, match=r"01\.9.*01\.1"):
        taskkit.task("01.9")
    with pytest.raises(TaskError, match="chapters with tasks"):
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
    taskkit.task("01.4").check("E")
    assert store.get("02.3") == store.get("01.4") == {}
    said = capsys.readouterr().out
    assert said.count("○ 没有收下") == 9 and "✗" not in said


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


def test_a_refused_free_answer_and_a_grade_with_gaps(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    t = taskkit.task("07.8")
    t.check("太短")
    said = capsys.readouterr().out
    assert "○ 没有收下" in said and "✗" not in said
    assert "○ 未作答" in repr(taskkit.progress("07")) and store.get("07.8") == {}
    t.check("资源要守恒，块要还清；不能卡死，不能饿死；答案不随调度改变。")
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


# -- odd answers -----------------------------------------------------------------------------------


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
