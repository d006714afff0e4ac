"""The kinds of tasks. Each is declared with data; what learners read is in the texts (taskkit/zh)."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from .compare import alike, kind_of
from .compare import same as same_value
from .guard import Outcome
from .task import Attempt, Task
from .texts import say
from .units import option_of, parse
from .verdict import Stopped, Unanswered, Wrong
from .view import Card, Plain, facts, short

Cases = Callable[[Random], Sequence[tuple[Any, ...]]]


class Code(Task):
    """Fill in a function; checked against `reference` on the cases.

    cases: a function of a Random that returns argument tuples: some small fixed ones first (show() draws the first
    three), then seeded ones that no constant passes. slips: code -> a function that makes a typical mistake; where a
    learner's results agree with it, its message is given. same: got, want -> bool, where equality won't do (numbers
    already compare with a tolerance, lists equal tuples). validate: got, *args -> a code (or a (code, values) pair) for
    what is wrong with it, or None; instead of comparing, where many results are right. keeps_arguments: changing an
    argument is an error. kind: "derive" for a formula. table: whether show() also writes down what the function gives on
    the first three cases; it does where there is no picture.
    """

    kind = "code"

    def __init__(
        self, id: str, stars: int, *, reference: Callable[..., Any], cases: Cases,
        slips: dict[str, Callable[..., Any]] | None = None, same: Callable[[Any, Any], bool] = same_value,
        validate: Callable[..., Any] | None = None, keeps_arguments: bool = True, table: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(id, stars, **options)
        self.reference, self.cases, self.slips, self.same = reference, cases, slips or {}, same
        self.validate, self.keeps_arguments, self.table = validate, keeps_arguments, table or self.draw is None

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        if not callable(answer):
            raise Wrong("not_callable", type=type(answer).__name__)
        cases = list(self.cases(self.rng()))
        for at, args in enumerate(cases):
            given = copy.deepcopy(args)
            out = self.attempt.outcome(answer, *given)
            rows = [("case", Plain(f"{at + 1}/{len(cases)}")), ("input", _Call(self.reference, args))]
            if out.kind == "unwritten":
                raise Unanswered
            if out.kind != "ok":
                out.rows = rows  # type: ignore[attr-defined]
                raise Stopped(out)
            self._compare(answer, cases, at, out, rows)
            if self.keeps_arguments and not same_value(list(given), list(args)):
                raise Wrong("changed_input", rows)
        return {"n": len(cases)}

    def _compare(self, answer: Any, cases: list[tuple[Any, ...]], at: int, out: Outcome, rows: list[Any]) -> None:
        args, got = cases[at], out.value
        if self.validate is not None:
            found = None if got is None else self.validate(got, *copy.deepcopy(args))
            if got is not None and not found:
                return
            code, values = (found, {}) if isinstance(found, str) else found or ("no_return", {})
            raise Wrong(code, [*rows, ("got", got)], **values)
        want = self.reference(*copy.deepcopy(args))
        if self.same(got, want):
            return
        code = self._diagnose(answer, cases, at, got)
        code = "no_return" if got is None and code == "differs" else code
        values = {"got": got, "want": want}
        if code == "differs" and want is not None and not alike(got, want):
            name, length = kind_of(want)
            code, values = "wrong_type", {**values, "kind": say(f"kind_of.{name}", n=length), "type": type(got).__name__}
        raise Wrong(code, [*rows, ("got", got), ("want", want)], **values)

    def _diagnose(self, answer: Any, cases: list[tuple[Any, ...]], at: int, got: Any) -> str:
        """The typical mistake that explains this result and nearly all results on the cases that follow."""
        votes = {c: 1 for c, slip in self.slips.items() if self._agrees(slip, cases[at], got)}
        tried = 1
        for args in cases[at + 1 :] if votes else []:
            out = self.attempt.quietly(answer, *copy.deepcopy(args))
            if out.kind != "ok":
                break
            tried += 1
            for code in votes:
                votes[code] += self._agrees(self.slips[code], args, out.value)
        best = max(votes, key=lambda c: votes[c], default="differs")
        # One shared result may be chance, above all between True and False.
        return best if votes.get(best, 0) >= 0.9 * tried else "differs"

    def _agrees(self, slip: Callable[..., Any], args: tuple[Any, ...], got: Any) -> bool:
        try:
            return self.same(got, slip(*copy.deepcopy(args)))
        except Exception:  # a typical mistake may well crash on this case: then it is not what happened here
            return False

    def _praise(self, values: dict[str, Any]) -> str:
        return say("solved.code", n=values["n"]) + ("\n\n" + self.text.after if self.text.after else "")

    def verbs(self) -> list[str]:
        return ["check", "hint", "show"]

    def _draw(self, answer: Any) -> Any:
        if answer is not None and not callable(answer):
            raise Wrong("not_callable", type=type(answer).__name__)
        drawn = super()._draw(answer) if self.draw is not None else []
        things = drawn if isinstance(drawn, list) else [drawn]
        return [*things, self._table(answer)] if self.table else things

    def _table(self, fn: Callable[..., Any] | None) -> Card:
        """The first three cases: what should come out, and what does."""
        rows = []
        for args in list(self.cases(self.rng()))[:3]:
            rows.append((say("row.input"), short(_Call(self.reference, args))))
            if self.validate is None:
                rows.append((say("show.want"), short(self.reference(*copy.deepcopy(args)))))
            if fn is not None:
                rows.append((say("show.you"), short(self.attempt.call(fn, *copy.deepcopy(args)))))
        card = Card(self.id, self.text.title, say("show.unwritten" if fn is None else "show"))
        card.raw, card.tail = facts(rows), "".join(f"\n{k}: {v}" for k, v in rows)
        return card


class Derive(Task):
    """A number, with a tolerance and a unit. value: works it out. rel: relative tolerance. slips: code -> the number
    that a typical mistake gives. Answers: a number (in `unit`), or "12.6 MB" in any unit of the same kind."""

    kind = "derive"

    def __init__(
        self, id: str, stars: int, *, value: Callable[[], float], unit: str = "", rel: float = 0.01,
        slips: dict[str, Callable[[], float]] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(id, stars, **options)
        self.value, self.unit, self.rel, self.slips = value, unit, rel, slips or {}

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        got = parse(answer if not more else f"{_text(answer)} {more[0]}", self.unit)
        truth = float(self.value())
        if self._near(got, truth):
            return {"value": truth}
        rows: list[tuple[str, Any]] = [("got", Plain(f"{got:.6g} {self.unit}".strip()))]
        for code, slip in self.slips.items():
            if self._near(got, float(slip())):
                raise Wrong(code, rows)
        for factor in (1e3, 1e6, 1e9, 1024.0, 1024.0**2, 1024.0**3, 8.0):
            if self.unit and self.unit != "%" and (self._near(got * factor, truth) or self._near(got / factor, truth)):
                raise Wrong("unit_slip", rows, wanted=self.unit)
        if self.unit == "%" and self._near(got * 100, truth):
            raise Wrong("unit_slip", rows, wanted=self.unit)
        raise Wrong("too_small" if got < truth else "too_large", rows, tolerance=f"{self.rel:.0%}")

    def _near(self, a: float, b: float) -> bool:
        return abs(a - b) <= self.rel * abs(b) + 1e-12


class Choice(Task):
    """One letter (or several: "AC"). The options, and why each wrong one is wrong, are in the text."""

    kind = "choice"

    def __init__(self, id: str, stars: int, *, right: str, **options: Any) -> None:
        super().__init__(id, stars, **options)
        self.right = right

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        options = self.text.options
        picked = option_of(answer, options) or "".join(sorted({c for c in _text(answer).upper() if c.isalnum()}))
        if not picked or set(picked) - set(options):
            raise Wrong("not_an_option", [("picked", answer)], options="、".join(options))
        for c in picked:
            if c not in self.right:
                raise Wrong("chosen_wrong", [("picked", Plain(picked))], reason=options[c][1])
        if picked != "".join(sorted(self.right)):
            raise Wrong("incomplete", [("picked", Plain(picked))])
        return None

    def _question(self) -> str:
        return self.text.question + "\n\n" + "\n".join(f"- **{k}** {v[0]}" for k, v in self.text.options.items())


class Judged(Task):
    """A task with a judge of its own. judge: (answer, attempt) -> values or None; raises Wrong. draw: (answer, attempt)
    -> what show() displays, where answer may be None. Run what the learner wrote through the attempt only. For "break it"
    above all: find an input, then mend the policy."""

    kind = "break"

    def __init__(self, id: str, stars: int, *, judge: Callable[[Any, Attempt], Any], **options: Any) -> None:
        super().__init__(id, stars, **options)
        self.with_attempt = judge

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        return self.with_attempt(answer, self.attempt)

    def _draw(self, answer: Any) -> Any:
        assert self.draw is not None
        return self.draw(answer, self.attempt)


class _Call(Plain):
    """A call's arguments by name, as text."""

    def __new__(cls, fn: Callable[..., Any], args: tuple[Any, ...]) -> _Call:
        names = list(inspect.signature(fn).parameters)
        return super().__new__(cls, ", ".join(f"{n}={short(a, 120)}" for n, a in zip(names, args)))


def _text(answer: Any) -> str:
    """str(answer), or nothing where it has none."""
    try:
        return str(answer)
    except Exception:
        return ""
