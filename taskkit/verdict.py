"""What a check comes to: a Verdict; and Wrong, which a judge raises to say what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class TaskError(ValueError):
    """taskkit was used in a way it isn't made for: an unknown task, a hint that does not exist, …

    A notebook shows its words alone: a traceback through our code would help nobody.
    """

    def _render_traceback_(self) -> list[str]:  # what IPython asks an exception for
        return [str(self)]


class Wrong(Exception):
    """Raised by a judge. code: which message of the task (or of the common ones) says what is wrong.

    rows: (label key, value) shown under the message: "input", "got", "want", or any words. values: what the message's
    {fields} stand for; one called detail is the engine's own text, folded under the rest. status: what the verdict is
    called.
    """

    status = "wrong"

    def __init__(self, code: str, rows: list[tuple[str, Any]] | None = None, **values: Any) -> None:
        super().__init__(code)
        self.code, self.rows, self.values = code, rows or [], values


class Missed(Wrong):
    """A prediction that was not right: no fault, the answer is known now."""

    status = "seen"


class Refused(Wrong):
    """What came can't be taken as an answer (too short, no number): nothing is noted, the task stays as it was."""

    status = "refused"


class Unanswered(Exception):
    """Raised where there is nothing to judge yet."""


class Stopped(Exception):
    """The learner's code crashed or ran too long; outcome says how."""

    def __init__(self, outcome: Any) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome


@dataclass
class Verdict:
    """status: solved, wrong, crash, timeout, unanswered, refused (not taken as an answer), seen (a prediction that was not
    right), or noted (a free answer that waits to be graded).

    code: the name of the message. message: the words, in the small markup of taskkit.view. rows: facts under it.
    printed: what the learner's code printed, the last lines of it. detail: the engine's own words, where it refused.
    """

    task_id: str
    status: str
    code: str
    message: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    printed: str = ""
    detail: str = ""

    @property
    def solved(self) -> bool:
        """Whether the task is done."""
        return self.status == "solved"
