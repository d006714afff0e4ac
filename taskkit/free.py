"""Free answers: written first, then held against a model answer and a checklist by the learner."""

from __future__ import annotations

import re
from typing import Any

from .task import Task, store
from .texts import say
from .verdict import Refused, Verdict
from .view import Card, display

LEAST = 24  # characters


class Free(Task):
    """check("…") notes the answer; reveal() shows the model answer and the checklist; grade(True, …) ends it.

    No machine judges the words. What is refused is what is no answer: too short, or the question over again.
    closes: ids of the other tasks of a series; when they are solved too, the message "series" is added.
    """

    kind = "free"
    _good = "noted"

    def __init__(self, id: str, stars: int, *, closes: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(id, stars, **options)
        self.closes = closes

    def _judge(self, answer: Any, *more: Any) -> dict[str, Any] | None:
        words = re.sub(r"\s+", "", answer) if isinstance(answer, str) else ""
        if len(words) < LEAST:
            raise Refused("too_short")
        question = re.sub(r"[\s*`$]+", "", self.text.question)
        pieces = [p for p in re.split(r"[，。？！；：,.?!;:]", words) if len(p) > 3]
        if pieces and all(p in question for p in pieces):
            raise Refused("copied")
        return None

    def _praise(self, values: dict[str, Any]) -> str:
        return self._say("noted")

    def verbs(self) -> list[str]:
        return ["check", "reveal", "grade", *(["hint"] if self.text.hints else [])]

    def reveal(self, *args: Any, **options: Any) -> None:
        """Model answer and checklist, once there is an answer."""
        if "answer" not in store().get(self.id):
            display(Card(self.id, self.text.title, self._say("reveal.first"), "unanswered"))
            return
        store().update(self.id, revealed=True)
        items = "\n".join(f"{i}. {item}" for i, (item, _) in enumerate(self.text.checklist, 1))
        marks = ", ".join(["…"] * len(self.text.checklist))
        body = f"{self.text.model}\n\n**{self._say('reveal.list', ticks=marks)}**\n\n{items}"
        display(Card(self.id, say("reveal"), body, "noted"))

    def grade(self, *ticks: Any, **options: Any) -> None:
        """One True or False for each item of the checklist; solved when all are True."""
        verdict = self.judge_ticks(*ticks)
        if verdict.status in ("solved", "noted"):
            store().update(self.id, state=verdict.status)
        display(self._card(verdict))

    def judge_ticks(self, *ticks: Any) -> Verdict:
        """The verdict on a self-grading: noted, and what to read again, as long as something is missing."""
        items = self.text.checklist
        if not ticks or any(t is None or t is ... for t in ticks):
            return Verdict(self.id, "unanswered", "unanswered", self._say("unanswered.grade"))
        if "answer" not in store().get(self.id):
            return Verdict(self.id, "unanswered", "unanswered", self._say("grade.first"))
        if store().get(self.id).get("revealed") is not True:
            return Verdict(self.id, "unanswered", "unanswered", self._say("grade.reveal"))
        if len(ticks) != len(items):
            return Verdict(self.id, "refused", "grade.count", self._say("grade.count", n=len(items), got=len(ticks)))
        missing = [f"- **{item}**。{advice}" for (item, advice), tick in zip(items, ticks) if not _is_true(tick)]
        if missing:
            words = self._say("grade.missing", n=len(missing)) + "\n\n" + "\n".join(missing)
            return Verdict(self.id, "noted", "grade.missing", words + "\n\n" + self._say("grade.again"))
        done = self.closes and all(store().get(i).get("state") == "solved" for i in self.closes)
        parts = [say("solved.free"), self.text.after, self.text.messages["series"] if done else ""]
        return Verdict(self.id, "solved", "solved", "\n\n".join(p for p in parts if p))


def _is_true(tick: Any) -> bool:
    """True and 1; anything else ("no", [], an array) has not been ticked."""
    return isinstance(tick, (bool, int)) and bool(tick)
