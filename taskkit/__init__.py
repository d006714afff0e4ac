"""taskkit: exercises that answer back. What a learner calls in a notebook:

    t = taskkit.task("01.3")      the question is shown where t is a cell's last line
    t.check(answer)               a number, a string, a letter, a function, a policy: the verdict
    t.hint()                      the next hint; t.hint(1) the first again
    t.show(fn)                    the learner's function on a small case, beside what it should do
    t.predict(); t.run(fn); t.check()      a guess to lock; fn, which shows the answer, runs once it is; guess and truth
    t.check("…"); t.reveal(); t.grade(True, False, True)      a free answer, its model answer, the checklist
    t.race(policy)                against the built-in policies, ranked by goodput
    taskkit.progress("01")        what is solved; taskkit.reset("01.3") or reset("01") or reset("all") forgets it

Nothing of this raises because an answer is wrong, missing (None, ..., an empty function), endless or crashing.

How to add tasks for a chapter NN
---------------------------------
1. Code, in taskkit/tasks/chNN.py: a list TASKS of declared tasks (taskkit.kinds, taskkit.free), ids "NN.1", "NN.2", …

    TASKS = [
        Derive("06.1", 1, value=lambda: 6 * 1024, unit="tokens", slips={"forgot_decode": lambda: 8 * 1024}),
        Predict("06.2", 1, truth=lambda: simulate(…).metrics.decode_steps, unit="steps", slips={"sum": lambda: 510}),
        Choice("06.3", 1, right="B"),                       # "AC" where several are right
        Code("06.4", 2, reference=cut_chunks, cases=chunk_cases, slips={"loses_tail": cut_without_tail}),
        Free("06.5", 2),
        Judged("06.6", 3, judge=stalls_then_mended),        # break it, or anything else: raise Wrong("code", rows, …)
    ]

   Arguments in common: id, stars (1 to 3), limit= (seconds for all that the learner's code does in a check), draw= (for
   show(): takes the learner's function, or None while it is empty; a judge's also takes the attempt; returns what to
   display; taskkit.pictures helps to play schedules and policies; a Code task shows a table of three cases without it).
   A Code task's cases(rng) returns tuples of arguments: a few small fixed ones, then seeded ones from rng, so that no
   constant passes. Its slips are functions that make a typical mistake: a learner whose results agree with one gets that
   message. A judge gets (answer, attempt) and runs what the learner wrote only through attempt.call(fn, …) or
   attempt.outcome(fn, …), which stop endless loops; attempt.call(f) with a zero-argument lambda of ours works too.
2. Words, in taskkit/zh/chNN.py: TEXTS = {"06.1": Text(title, question, hints=[…], messages={code: words}, after=…), …}
   with a message for every slip and every code a judge raises, {values} filled in; `options` for Choice and for a
   Predict with choices (key -> (words, why it is wrong)); `model` and `checklist` for Free; `why` after generic messages.
3. Wrong answers, in tests/exercises/wrong_chNN.py: for every task a right answer and at least three wrong ones, each with
   the code it should get. tests/exercises/test_tasks.py runs them all, and checks that messages are there and differ.
4. exercises/NN_….ipynb (unsolved: `...` everywhere) and solutions/NN_….ipynb (the same cells, solved). The task's
   variable is t and its number: t3 is NN.3. A cell that shows the answer to a prediction does so inside t3.run(fn); a
   cell uses the function of one task only.

Task objects stay the same within a process, so that a locked prediction is found again. task.judge(answer) returns the
Verdict without showing or remembering it.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Any

from . import racing as _racing
from . import tasks as _tasks
from .task import Task, store, use
from .texts import say
from .verdict import TaskError, Verdict, Wrong
from .view import Card, Plain, short

__all__ = ["Task", "TaskError", "Verdict", "Wrong", "chapters", "progress", "race", "reset", "task", "tasks_of", "use"]


def chapters() -> list[str]:
    """The chapters that have tasks: ["01", "02", …]."""
    names = sorted(m.name for m in pkgutil.iter_modules(_tasks.__path__))
    return [n[2:] for n in names if n.startswith("ch") and n[2:].isdecimal()]


def tasks_of(chapter: str) -> list[Task]:
    """A chapter's tasks in order ("1" and 1 are "01"). Raises TaskError where there are none."""
    if (chapter := _chapter(chapter)) not in chapters():
        raise TaskError(say("unknown.chapter", id=short(Plain(chapter), 40), ids="、".join(chapters())))
    return list(importlib.import_module(f".tasks.ch{chapter}", __package__).TASKS)


def task(id: str) -> Any:
    """The task with this id, as "01.3". Raises TaskError naming a near one of the same chapter."""
    chapter, _, number = str(id).partition(".")
    known = {t.id: t for t in tasks_of(chapter)}
    if id not in known:
        chapter = _chapter(chapter)
        words = say("unknown.task", id=short(Plain(id), 40), chapter=chapter, ids="、".join(known))
        near = difflib.get_close_matches(f"{chapter}.{number}", known, 1)
        raise TaskError(words + (say("unknown.near", near=near[0]) if near else ""))
    return known[id]


def _chapter(what: Any) -> str:
    """The way chapters are written: 1 and "1" are "01"."""
    words = str(what).strip()
    return words.zfill(2) if words.isdecimal() else words


def progress(chapter: str | int | None = None) -> Card:
    """What is solved, in one chapter or in all: the last line of a cell shows it."""
    chapter = None if chapter is None else _chapter(chapter)
    rows, done, seen, total = [], 0, 0, 0
    for ch in chapters() if chapter is None else [chapter]:
        for t in tasks_of(ch):
            state = store().get(t.id).get("state", "unanswered")
            total, done, seen = total + 1, done + (state in ("solved", "seen")), seen + (state == "seen")
            stars = "★" * t.stars
            rows.append(f"| {t.id} | {t.text.title} | {say('kind.' + t.kind)} {stars} | {say('status.' + state)} |")
    head = f"| {say('progress.task')} |  | {say('progress.kind')} | {say('progress.state')} |\n|---|---|---|---|\n"
    line = say("progress.line", done=done, total=total) + (say("progress.seen", seen=seen) if seen else "")
    name = say("progress") + (f" {chapter}" if chapter else "")
    body = head + "\n".join(rows)
    if store().problem:
        body += "\n\n" + say("progress.bad", problem=store().problem)
    return Card(name, line, body, "solved" if done == total else "")


def reset(what: Any = None) -> Card:
    """Forget what is known of a task ("01.3"), of a chapter ("01"), or of everything ("all"). Raises TaskError for none."""
    words = "" if what is None else str(what).strip()
    if not words:
        raise TaskError(say("reset.what"))
    if words == "all":
        mine = [t for ch in chapters() for t in tasks_of(ch)]
    else:
        mine = [task(words)] if "." in words else tasks_of(words)
    for t in mine:
        t.forget()
    ids = store().clear([t.id for t in mine])
    said = say("reset", n=len(ids), ids="、".join(ids)) if ids else say("reset.none", what=words)
    return Card(say("progress"), "", said)


def race(policy: Any, **options: Any) -> Any:
    """Race a policy against the built-in ones: see taskkit.racing.race. The result can be shown and looked into."""
    return _racing.race(policy, **options)
