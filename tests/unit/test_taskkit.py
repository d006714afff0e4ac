"""taskkit itself: guarding learners' code, units, comparing, progress."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import taskkit
from taskkit import guard
from taskkit.compare import same
from taskkit.store import FILE, Store
from taskkit.units import parse
from taskkit.verdict import TaskError, Wrong

pytestmark = pytest.mark.usefixtures("store")


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

    out = guard.call(interrupted)  # nobody pressed anything
    assert (out.kind, out.error) == ("crash", "KeyboardInterrupt") and "raise KeyboardInterrupt" in out.source
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        guard.call(lambda: signal.raise_signal(signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before


def test_recursion_without_end_is_a_crash() -> None:
    def again(n: int) -> int:
        return again(n + 1) + 1

    assert guard.call(again, 0).error.startswith("RecursionError")


def test_prints_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.call(lambda: print("hello")).printed == "hello\n"
    assert capsys.readouterr().out == ""


def test_prints_without_end_do_not_fill_the_memory() -> None:
    def loud() -> None:
        while True:
            print("x" * 1000)

    out = guard.call(loud, limit=0.3)
    assert out.kind == "timeout" and guard.PRINTED <= len(out.printed) <= 6 * guard.PRINTED


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
def test_a_damaged_file_is_set_aside(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / FILE
    path.write_text(text, encoding="utf-8")
    store = Store(path)
    assert store.get("01.1") == {} and store.set_aside == FILE + ".bad" and not store.problem
    taskkit.use(store)
    taskkit.progress("01")
    taskkit.progress("01")
    assert capsys.readouterr().out.count("已改名为 .progress.json.bad") == 1
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
    assert "1 / 6" in repr(taskkit.progress(1))
    assert "已清除 1 题的进度：04.1。" in repr(taskkit.reset("04.1"))
    assert "还没有进度" in repr(taskkit.reset("04.1"))
    assert store.get("04.1") == {} and store.get("04.10") != {}
    for unknown, said in (("77", "没有第 77 章.*01"), ("zz", "没有第 zz 章"), ("01.9", r"没有 01\.9 .*是 01\.\d 吗")):
        with pytest.raises(TaskError, match=said):
            taskkit.reset(unknown)
    for nothing in ("", " ", None):
        with pytest.raises(TaskError, match=r'reset\("all"\)'):
            taskkit.reset(nothing)
    with pytest.raises(TaskError):
        taskkit.reset()
    assert store.get("01.4") != {}
    taskkit.reset("1")
    assert store.get("01.4") == {} and store.get("04.10") != {}
    taskkit.reset("all")
    assert store.get("04.10") == {}
