"""Free answers: written first, then held against a model answer and a checklist by the learner."""

from __future__ import annotations

import re
from typing import Any

from .task import Task, store
from .texts import say
from .verdict import Unanswered, Verdict, Wrong
from .view import Card, display

LEAST = 24  # characters


class Free(Task):
    """check("…") notes the answer; reveal() shows the model answer and the checklist; grade(True, …) ends it.

    No machine judges the words. What is refused is what is no answer: too short, or the question over again.
    """

    kind = "free"
    _good = "noted"

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        words = re.sub(r"\s+", "", answer) if isinstance(answer, str) else ""
        if len(words) < LEAST:
            raise Wrong("too_short")
        question = re.sub(r"[\s*`$]+", "", self.text.question)
        pieces = [p for p in re.split(r"[，。？！；：,.?!;:]", words) if len(p) > 3]
        if pieces and all(p in question for p in pieces):
            raise Wrong("copied")
        return None

    def _praise(self, values: dict[str, Any]) -> str:
        return say("noted")

    def _remember(self, verdict: Verdict, answer: Any) -> None:
        if verdict.status == "noted":  # what was refused opens no model answer
            super()._remember(verdict, answer)

    def reveal(self) -> None:
        """Model answer and checklist, once there is an answer."""
        if "answer" not in store().get(self.id):
            display(Card(self.id, self.text.title, say("reveal.first"), "unanswered"))
            return
        items = "\n".join(f"{i}. {item}" for i, (item, _) in enumerate(self.text.checklist, 1))
        body = f"{self.text.model}\n\n**{say('reveal.list')}**\n\n{items}"
        display(Card(self.id, say("reveal"), body, "noted"))

    def grade(self, *ticks: Any) -> None:
        """One True or False for each item of the checklist; solved when all are True."""
        verdict = self.judge_ticks(*ticks)
        if verdict.status != "unanswered":
            store().update(self.id, state="solved" if verdict.solved else "noted")
        display(self._card(verdict))

    def judge_ticks(self, *ticks: Any) -> Verdict:
        """The verdict on a self-grading."""
        try:
            self._judge_ticks([bool(t) if isinstance(t, (bool, int)) else t for t in ticks])
        except Unanswered as e:
            return Verdict(self.id, "unanswered", "unanswered", say(str(e)))
        except Wrong as w:
            return Verdict(self.id, "wrong", w.code, say(w.code, **w.values))
        after = "\n\n" + self.text.after if self.text.after else ""
        return Verdict(self.id, "solved", "solved", say("solved.free") + after)

    def _judge_ticks(self, ticks: list[Any]) -> None:
        items = self.text.checklist
        if not ticks or any(t is None or t is ... for t in ticks):
            raise Unanswered("unanswered.grade")
        if "answer" not in store().get(self.id):
            raise Unanswered("grade.first")
        if len(ticks) != len(items):
            raise Wrong("grade.count", n=len(items), got=len(ticks))
        for (item, advice), tick in zip(items, ticks):
            if not tick:
                raise Wrong("grade.missing", item=item, advice=advice)
