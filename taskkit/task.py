"""Task: what all kinds of tasks have in common. The kinds themselves are in taskkit.kinds."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from random import Random
from typing import Any

from . import view
from .guard import Outcome, call, is_empty, where
from .store import Store
from .texts import Text, fill, say, text_of
from .verdict import Stopped, TaskError, Unanswered, Verdict, Wrong
from .view import Card, Plain, display, short

ROWS = ("input", "got", "guess", "picked", "want", "line", "error", "case")  # labels that have a word of their own
LINES = 20  # of what a learner's code printed

_store: Store | None = None


def store() -> Store:
    """The progress in use: opened when it is first needed."""
    global _store
    if _store is None:
        _store = Store.here()
    if _store.set_aside:
        words, _store.set_aside = say("progress.aside", name=_store.set_aside), ""
        display(Card(say("progress"), "", words, "wrong"))
    return _store


def use(new: Store | None) -> None:
    """Keep progress elsewhere (tests); None: open the usual one again."""
    global _store
    _store = new


class Attempt:
    """What a judge runs learners' code with. limit: seconds for all calls of this check together.

    said: what each call printed. half: a judge sets it when the first of two parts is right.
    """

    def __init__(self, limit: float) -> None:
        self.limit = self.left = limit
        self.said: list[str] = []
        self.half = False

    def outcome(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        """Call it and look at what happened."""
        started = time.monotonic()
        out = call(fn, *args, limit=max(self.left, 0.01), **options)
        self.left -= time.monotonic() - started
        self.said.append(out.printed)
        return out

    def quietly(self, fn: Callable[..., Any], *args: Any) -> Outcome:
        """outcome(), for a call that the learner did not ask for: what it prints is forgotten."""
        out = self.outcome(fn, *args)
        self.said.pop()
        return out

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
    racing: whether race() is part of it.

    A kind overrides `_judge(answer)`: return values for the text shown when it is right; raise Wrong, Unanswered or
    Stopped. Nothing else may come out of it whatever the learner passes. It runs the learner's code by self.attempt.
    """

    kind = "task"

    def __init__(
        self, id: str, stars: int, *, kind: str | None = None, limit: float = 5.0,
        draw: Callable[..., Any] | None = None, racing: bool = False,
    ) -> None:  # fmt: skip
        self.id, self.stars, self.limit, self.draw, self.racing = id, stars, limit, draw, racing
        self.kind = kind or self.kind
        self.attempt = Attempt(limit)

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
        self.attempt = Attempt(self.limit)
        try:
            if answer is None or answer is ... or (isinstance(answer, str) and not answer.strip()):
                answer = self._default()
            values = self._judge(answer, *more) or {}
        except Unanswered as e:
            code = str(e) or ("unanswered.half" if self.attempt.half else "unanswered")
            return Verdict(self.id, "unanswered", "unanswered", self._say(code))
        except Wrong as w:
            verdict = self._wrong(w)
        except Stopped as s:
            verdict = self._stopped(s.outcome)
        except Exception as e:  # an answer of a shape no judge thought of must not end in a traceback
            verdict = self._stopped(Outcome("crash", error=f"{type(e).__name__}: {e}", exception=e))
        else:
            verdict = Verdict(self.id, self._good, self._good, fill(self._praise(values), values))
        # Of a failure, what the failing call printed: the cases before it would only be in the way.
        said = self.attempt.said if verdict.status == self._good else self.attempt.said[-1:]
        verdict.printed = last_lines("".join(said))
        return verdict

    def _say(self, key: str, **values: Any) -> str:
        """A common sentence; {t} in it is the task's variable in the notebook, {id} its number."""
        return say(key, **{"t": self.var, "id": self.id, **values})

    def _wrong(self, w: Wrong) -> Verdict:
        return Verdict(self.id, w.status, w.code, self._explain(w), _rows(w.rows), detail=str(w.values.get("detail", "")))

    def _explain(self, wrong: Wrong) -> str:
        own = self.text.messages.get(wrong.code)
        if own is not None:
            return fill(own, wrong.values)
        return self._say(wrong.code, **wrong.values) + ("\n\n" + self.text.why if self.text.why else "")

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
        words = self._say(out.kind, limit=f"{self.limit:g}")
        return Verdict(self.id, out.kind, out.kind, words, _rows([*getattr(out, "rows", []), *rows]))

    def _remember(self, verdict: Verdict, answer: Any) -> None:
        if verdict.status in ("unanswered", "refused"):
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
        if verdict.detail:
            card.fold(say("detail"), verdict.detail)
        if verdict.printed:
            card.add(say("printed"), verdict.printed)
        return card

    # -- help -----------------------------------------------------------------------------------
    def hint(self, n: int | None = None) -> None:
        """Show hint n (from 1); without n, the next one. They open in order."""
        hints = self.text.hints
        if not hints:
            return self._unsupported("hint")
        opened = int(store().get(self.id).get("hints", 0))
        n = opened + 1 if n is None else n
        if not isinstance(n, int) or n < 1:
            raise TaskError(self._say("hint.number", n=short(n, 40), total=len(hints)))
        if n > len(hints):
            words = self._say("hint.none", total=len(hints))
            words += self._say("hint.show") if "show" in self.verbs() else self._say("hint.read")
            display(Card(self.id, self.text.title, words, "hint"))
        elif n > opened + 1:
            display(Card(self.id, self.text.title, self._say("hint.order", next=opened + 1), "hint"))
        else:
            store().update(self.id, hints=max(n, opened))
            display(Card(self.id, say("hint", n=n, total=len(hints)), hints[n - 1], "hint"))

    def show(self, answer: Any = None, *more: Any) -> None:
        """Draw what an answer does on a small case, beside what it should do."""
        if "show" not in self.verbs():
            return self._unsupported("show")
        self.attempt = attempt = Attempt(self.limit)
        try:
            things = self._draw(None if answer is None or answer is ... or is_empty(answer) else answer)
        except Unanswered:
            things = self._draw(None)
        except Wrong as w:
            things = self._card(self._wrong(w))
        except Stopped as s:
            things = self._card(self._stopped(s.outcome))
        except Exception as e:  # what came back is of a shape that no picture can be made of
            at, source = where(e)
            rows = [("error", Plain(f"{type(e).__name__}: {e}")), *([("line", Plain(f"{at}: {source}"))] if at else [])]
            things = self._card(Verdict(self.id, "wrong", "show.failed", self._say("show.failed"), _rows(rows)))
        for thing in things if isinstance(things, list) else [things]:
            display(thing)
        if said := last_lines("".join(attempt.said)):
            card = Card(self.id, self.text.title, "")
            card.add(say("printed"), said)
            display(card)

    def _draw(self, answer: Any) -> Any:
        assert self.draw is not None
        return self.draw(_careful(answer, self.attempt))

    def verbs(self) -> list[str]:
        """What can be called on this task, in the order of use."""
        return ["check", "hint", *(["show"] if self.draw else []), *(["race"] if self.racing else [])]

    def _unsupported(self, verb: str) -> None:
        verbs = "、".join(f"`{self.var}.{v}()`" for v in self.verbs())
        words = self._say("unsupported", kind=say(f"kind.{self.kind}"), verb=verb, verbs=verbs)
        display(Card(self.id, self.text.title, words))

    def reveal(self, *args: Any, **options: Any) -> None:
        """A free answer's model answer; other kinds have none."""
        self._unsupported("reveal")

    def grade(self, *args: Any, **options: Any) -> None:
        """Of a free answer only."""
        self._unsupported("grade")

    def predict(self, *args: Any, **options: Any) -> Any:
        """Of a prediction only."""
        self._unsupported("predict")

    def run(self, *args: Any, **options: Any) -> None:
        """Of a prediction only."""
        self._unsupported("run")

    def race(self, policy: Any = None, *more: Any, **options: Any) -> None:
        """Race a policy against the built-in ones: see taskkit.racing."""
        if not self.racing:
            return self._unsupported("race")
        from .racing import race_shown

        race_shown(policy, **options)

    def forget(self) -> None:
        """What reset() clears beside the stored progress; nothing, unless a kind keeps something."""

    @property
    def var(self) -> str:
        """What the task is called in its notebook: t4 is 01.4."""
        return f"t{self.id.split('.')[1]}"

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


def _careful(fn: Any, attempt: Attempt) -> Any:
    """The learner's function (or policy, as it is), stopped when it runs too long."""
    if not callable(fn) or isinstance(fn, type):
        return fn
    return lambda *args, **options: attempt.call(fn, *copy.deepcopy(args), **options)


def _rows(rows: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(say(f"row.{k}") if k in ROWS else k, short(v)) for k, v in rows]


def last_lines(text: str) -> str:
    """The last lines of what was printed, long ones cut; how many there were before them."""
    kept = text.rstrip().splitlines()
    before = [say("printed.before", n=len(kept) - LINES)] if len(kept) > LINES else []
    return "\n".join([*before, *(short(Plain(line)) for line in kept[-LINES:])])
