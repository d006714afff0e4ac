"""Predictions: a guess is locked before anything that gives the answer away is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .task import Task, store
from .texts import fill, say
from .units import option_of, parse
from .verdict import Missed, Refused, Unanswered, Verdict, Wrong
from .view import Card, Plain, display

SKIPPED = ""  # what is noted where somebody wanted to see the answer without a guess


class Predict(Task):
    """A guess that is locked (widgets.predict) before it is run. truth: works it out; with options in the text it is
    one of their keys, else a number. slips: code -> the number of a typical wrong guess. rel: how near is a hit.

    predict() shows the card; run(fn) calls what shows the answer, once a guess is locked; check() compares. A guess that
    was run or checked stays until reset().
    """

    kind = "predict"

    def __init__(
        self, id: str, stars: int, *, truth: Callable[[], Any], unit: str = "", rel: float = 0.0,
        slips: dict[str, Callable[[], float]] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(id, stars, **options)
        self.truth, self.unit, self.rel, self.slips = truth, unit, rel, slips or {}
        self.prediction: Any = None

    def verbs(self) -> list[str]:
        return ["predict", "run", "check", "hint"]

    def predict(self, guess: Any = None) -> Any:
        """The card to guess in. guess: locks this one at once."""
        import widgets

        noted = self._noted()
        if noted is None and guess is not None and guess is not ...:
            try:
                noted = self._taken(guess)
            except Refused as w:
                display(self._card(Verdict(self.id, w.status, w.code, self._explain(w))))
        locked = None if noted == SKIPPED else noted
        words = {k: f"{k} {v[0]}" for k, v in self.text.options.items()}
        again = self._say("predict.again")
        if words:
            locked = words.get(locked) if locked else None
            self.prediction = widgets.predict(self.text.title, choices=list(words.values()), guess=locked, again=again)
        else:
            self.prediction = widgets.predict(self.text.title, unit=self.unit, guess=locked, again=again)
        if noted == SKIPPED:
            self.prediction.skip()
        return self.prediction

    def run(self, experiment: Any = None, *args: Any, **options: Any) -> None:
        """Call the experiment, if a guess is locked; say what to do, if none is."""
        noted = self._noted()
        if noted is None or not callable(experiment):
            words = self._say("run.first" if noted is None else "run.function")
            state = "unanswered" if noted is None else store().get(self.id).get("state", "unanswered")
            display(Card(f"{self.id} {say('status.' + state)}", self.text.title, words, state))
            return
        store().update(self.id, guess=noted)
        experiment()

    def check(self, answer: Any = None, *more: Any) -> None:
        """Judge the guess, and show the answer in the card where it was made."""
        noted = self._noted()
        verdict = self.judge(answer if noted is None else noted, *more) if noted != SKIPPED else self._skipped()
        self._remember(verdict, answer if noted is None else noted)
        display(self._card(verdict))
        p = self.prediction
        if p is not None and p.locked and verdict.status in ("solved", "seen"):
            truth, options = self.truth(), self.text.options
            p.reveal(f"{truth} {options[truth][0]}" if options else truth)

    def _noted(self) -> Any:
        """The guess that counts: the one noted before, else the one locked in the card. None where there is neither."""
        p, kept = self.prediction, store().get(self.id).get("guess")
        if kept is not None or p is None or not p.locked:
            return kept
        return SKIPPED if p.guess is None else self._taken(p.guess)

    def _default(self) -> Any:
        raise Unanswered("unanswered.predict")

    def _taken(self, answer: Any) -> Any:
        """The option's key, or the number. Raises Refused where it is neither: that must not count as a guess."""
        options = self.text.options
        if not options:
            try:
                return parse(answer, self.unit)
            except Wrong as w:
                raise Refused(w.code, w.rows, **w.values) from None
        key = option_of(answer, options)
        if key is None:
            raise Refused("not_an_option", [("guess", answer)], options="、".join(options))
        return key

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        truth, options = self.truth(), self.text.options
        guess = self._taken(answer)
        if options:
            if guess != truth:
                raise Missed("chosen_wrong", [("guess", Plain(guess))], reason=options[guess][1], truth=str(truth))
            return {"truth": f"{truth}（{options[guess][0]}）"}
        words = {"guess": guess, "truth": truth}
        if abs(guess - truth) <= self.rel * abs(truth) + 1e-12:
            return words
        for code, slip in self.slips.items():
            if abs(guess - slip()) <= 1e-9 * max(1.0, abs(guess)):
                raise Missed(code, [], **words)
        raise Missed("guess_off", [], **words)

    def _explain(self, wrong: Wrong) -> str:
        words = super()._explain(wrong)
        if not isinstance(wrong, Missed):
            return words
        return "\n\n".join(x for x in (words, fill(self.text.after, wrong.values), self._say("seen")) if x)

    def _skipped(self) -> Verdict:
        truth, options = self.truth(), self.text.options
        words = self._say("skipped", truth=f"{truth}（{options[truth][0]}）" if options else truth)
        after = fill(self.text.after, {"truth": truth})
        return Verdict(self.id, "seen", "skipped", "\n\n".join(x for x in (words, after, self._say("seen")) if x))

    def _praise(self, values: dict[str, Any]) -> str:
        return say("solved.predict", truth=values["truth"]) + ("\n\n" + self.text.after if self.text.after else "")

    def forget(self) -> None:
        """A new prediction may be made."""
        self.prediction = None

    def _remember(self, verdict: Verdict, answer: Any) -> None:
        if verdict.code == "skipped":
            store().update(self.id, state="seen", guess=SKIPPED)
        elif verdict.status in ("solved", "seen"):
            store().update(self.id, state=verdict.status, guess=self._taken(answer))
