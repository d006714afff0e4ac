"""Task: what all kinds of tasks have in common. The kinds themselves are in taskkit.kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from . import view
from .guard import Outcome, call, is_empty, where
from .store import Store
from .texts import Text, fill, say, text_of
from .verdict import Stopped, TaskError, Unanswered, Verdict, Wrong
from .view import Card, Plain, display, short

ROWS = ("input", "got", "want", "line", "error", "printed", "case")  # labels that have a word of their own

_store: Store | None = None


def store() -> Store:
    """The progress in use: opened when it is first needed."""
    global _store
    if _store is None:
        _store = Store.here()
    return _store


def use(new: Store | None) -> None:
    """Keep progress elsewhere (tests); None: open the usual one again."""
    global _store
    _store = new


class Attempt:
    """What a judge runs learners' code with. limit: seconds left for all calls of this check together."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def outcome(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        """Call it and look at what happened."""
        return call(fn, *args, limit=self.limit, **options)

    def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Its value. Raises Stopped where it crashed or ran too long, Unanswered where it is still empty."""
        out = self.outcome(fn, *args, **options)
        if out.kind == "unwritten":
            raise Unanswered
        if out.kind != "ok":
            raise Stopped(out)
        return out.value


class Task:
    """A task. id: "chapter.number". stars: 1 to 3. limit: seconds for a learner's code. draw: a function that takes the
    learner's function (or None, while it is empty) and returns what show() displays, a thing or a list of them.

    A kind overrides `_judge(answer)`: return values for the text shown when it is right; raise Wrong, Unanswered or
    Stopped. Nothing else may come out of it whatever the learner passes.
    """

    kind = "task"

    def __init__(
        self, id: str, stars: int, *, kind: str | None = None, limit: float = 5.0,
        draw: Callable[[Callable[..., Any] | None], Any] | None = None,
    ) -> None:  # fmt: skip
        self.id, self.stars, self.limit, self.draw = id, stars, limit, draw
        self.kind = kind or self.kind

    @property
    def text(self) -> Text:
        """The words of this task."""
        return text_of(self.id)

    def rng(self) -> Random:
        """The seeded source of hidden cases: the same in every run, another in every task."""
        return Random(f"taskkit {self.id}")

    # -- checking -------------------------------------------------------------------------------
    def check(self, answer: Any = None, *more: Any) -> None:
        """Judge an answer, show the verdict, and remember it."""
        verdict = self.judge(answer, *more)
        self._remember(verdict, answer)
        display(self._card(verdict))

    def judge(self, answer: Any = None, *more: Any) -> Verdict:
        """The verdict alone; nothing is shown or remembered."""
        try:
            if answer is None or answer is ... or (isinstance(answer, str) and not answer.strip()):
                answer = self._default()
            values = self._judge(answer, *more) or {}
        except Unanswered as e:
            return Verdict(self.id, "unanswered", "unanswered", say(str(e) or "unanswered"))
        except Wrong as w:
            own = self.text.messages.get(w.code)
            words = fill(own, w.values) if own is not None else say(w.code, **w.values)
            if own is None and self.text.why:
                words += "\n\n" + self.text.why
            return Verdict(self.id, "wrong", w.code, words, _rows(w.rows))
        except Stopped as s:
            return self._stopped(s.outcome)
        except Exception as e:  # an answer of a shape no judge thought of must not end in a traceback
            return self._stopped(Outcome("crash", error=f"{type(e).__name__}: {e}", exception=e))
        return Verdict(self.id, self._good, self._good, fill(self._praise(values), values))

    _good = "solved"

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        raise NotImplementedError

    def _default(self) -> Any:
        """What an empty answer stands for: nothing, unless the kind knows better."""
        raise Unanswered

    def _praise(self, values: dict[str, Any]) -> str:
        return say("solved") + ("\n\n" + self.text.after if self.text.after else "")

    def _stopped(self, out: Outcome) -> Verdict:
        rows: list[tuple[str, Any]] = []
        if out.kind == "crash":
            rows.append(("error", Plain(out.error)))
        if out.line:
            rows.append(("line", Plain(f"{out.line}: {out.source}")))
        if out.printed.strip():
            rows.append(("printed", Plain(short_text(out.printed))))
        words = say(out.kind, limit=f"{self.limit:g}")
        return Verdict(self.id, out.kind, out.kind, words, _rows([*getattr(out, "rows", []), *rows]))

    def _remember(self, verdict: Verdict, answer: Any) -> None:
        if verdict.status == "unanswered":
            return
        state = {"solved": "solved", "noted": "noted"}.get(verdict.status, "wrong")
        tries = int(store().get(self.id).get("tries", 0)) + 1
        kept = {"answer": answer} if isinstance(answer, (str, int, float)) else {}
        store().update(self.id, state=state, tries=tries, **kept)

    def _card(self, verdict: Verdict) -> Card:
        rows = "".join(f"\n{k}: {v}" for k, v in verdict.rows)
        card = Card(f"{self.id} {say('status.' + verdict.status)}", self.text.title, verdict.message, verdict.status)
        card.raw = view.facts(verdict.rows)
        card.tail = rows
        return card

    # -- help -----------------------------------------------------------------------------------
    def hint(self, n: int | None = None) -> None:
        """Show hint n (from 1); without n, the next one. They open in order."""
        hints = self.text.hints
        opened = int(store().get(self.id).get("hints", 0))
        n = opened + 1 if n is None else n
        if not isinstance(n, int) or n < 1:
            raise TaskError(f"hint({n!r}): hints are counted from 1; this task has {len(hints)}.")
        if n > len(hints):
            display(Card(self.id, self.text.title, say("hint.none", total=len(hints)), "hint"))
        elif n > opened + 1:
            display(Card(self.id, self.text.title, say("hint.order", next=opened + 1), "hint"))
        else:
            store().update(self.id, hints=max(n, opened))
            display(Card(self.id, say("hint", n=n, total=len(hints)), hints[n - 1], "hint"))

    def show(self, answer: Any = None) -> None:
        """Draw what an answer does on a small case, beside what it should do."""
        empty = answer is None or answer is ... or is_empty(answer)
        try:
            things = self._draw(None if empty else _careful(answer, self.limit))
        except Unanswered:
            things = self._draw(None)
        except Wrong as w:
            own = self.text.messages.get(w.code)
            words = fill(own, w.values) if own is not None else say(w.code, **w.values)
            things = self._card(Verdict(self.id, "wrong", w.code, words, _rows(w.rows)))
        except Stopped as s:
            things = self._card(self._stopped(s.outcome))
        except Exception as e:  # what came back is of a shape that no picture can be made of
            at, source = where(e)
            rows = [("error", Plain(f"{type(e).__name__}: {e}")), *([("line", Plain(f"{at}: {source}"))] if at else [])]
            things = self._card(Verdict(self.id, "wrong", "show.failed", say("show.failed"), _rows(rows)))
        for thing in things if isinstance(things, list) else [things]:
            display(thing)

    def _draw(self, fn: Callable[..., Any] | None) -> Any:
        if self.draw is None:
            return Card(self.id, self.text.title, say("show.none"))
        return self.draw(fn)

    def reveal(self) -> None:
        """A free answer's model answer; other kinds have none."""
        display(Card(self.id, self.text.title, say("reveal.none")))

    def race(self, policy: Any, **options: Any) -> None:
        """Race a policy against the built-in ones: see taskkit.racing."""
        from .racing import race

        display(race(policy, **options))

    def forget(self) -> None:
        """What reset() clears beside the stored progress; nothing, unless a kind keeps something."""

    # -- the question ---------------------------------------------------------------------------
    def _question(self) -> str:
        return self.text.question

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return self._question_card()._repr_mimebundle_()

    def _question_card(self) -> Card:
        state = store().get(self.id).get("state")
        dim = "★" * self.stars + "☆" * (3 - self.stars) + ("  " + say(f"status.{state}") if state == "solved" else "")
        return Card(f"{self.id} {self.text.title}", say(f"kind.{self.kind}"), self._question(), dim=dim)

    def __repr__(self) -> str:
        return repr(self._question_card())


def _careful(fn: Any, limit: float) -> Any:
    """The learner's function (or policy, as it is), stopped when it runs too long."""
    if not callable(fn) or isinstance(fn, type):
        return fn
    attempt = Attempt(limit)
    return lambda *args, **options: attempt.call(fn, *copy.deepcopy(args), **options)


def _rows(rows: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(say(f"row.{k}") if k in ROWS else k, short(v)) for k, v in rows]


def short_text(text: str, lines: int = 6) -> str:
    """The first lines of what was printed."""
    kept = text.strip().splitlines()
    return " ⏎ ".join(kept[:lines]) + (" …" if len(kept) > lines else "")
