"""The race: a policy against the built-in ones, on three workloads, ranked by goodput.

Virtual seconds on a simulated A100-80GB with Llama-3-8B, in a KV pool small enough to matter. Goodput: requests a second
that were completed within both limits of the workload, TTFT and TPOT (as in DistServe, Zhong et al., 2024). One thing is
kinder than life: max_new_tokens is how long an answer really gets, so a policy may know it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import minirt
from minirt import workloads as w

from .guard import Outcome, call, is_empty
from .texts import say
from .verdict import TaskError
from .view import Card, Ticker, display, short

LIMIT_S = 10.0  # for one course (a built-in takes less than a second); who fails on one does not start on the next
MINE = "yours"


@dataclass(frozen=True)
class Course:
    """One workload of the race. ttft, tpot: its limits, in seconds."""

    name: str
    requests: Callable[[], list[minirt.Request]]
    ttft: float
    tpot: float
    num_blocks: int
    max_batch_size: int
    max_model_len: int


COURSES = (
    # Short questions, answers of any length, about as many of them as the machine can serve.
    Course("chat", lambda: w.make_requests(
        150, w.uniform(16, 256), w.exponential(96, cap=512), w.poisson(45.0), seed=11), 0.5, 0.016, 500, 32, 1024),
    # A few very long prompts among short ones: whoever prefills them in large pieces makes every decode wait.
    Course("long prompts", lambda: w.make_requests(
        120, w.choice([64, 128, 6000], [0.6, 0.3, 0.1]), w.uniform(16, 128), w.poisson(11.0), seed=12),
        0.6, 0.020, 4000, 32, 8192),
    # Bursts beyond what the machine can serve in time: whom to serve first is all that matters.
    Course("burst", lambda: w.make_requests(
        150, w.uniform(16, 512), w.choice([8, 32, 512], [0.5, 0.35, 0.15]), w.bursty(60.0, cv=3.0), seed=13),
        0.5, 0.030, 800, 24, 1088),
)  # fmt: skip


@dataclass
class Result:
    """goodput: course -> policy -> requests a second; a policy that failed has None there, and why in `errors`.

    details: policy -> the engine's own words, where it refused a plan.
    """

    goodput: dict[str, dict[str, float | None]]
    errors: dict[str, str]
    details: dict[str, str] = field(default_factory=dict)

    def ranking(self, course: str) -> list[str]:
        """Policies, the best first; ties by name."""
        scores = self.goodput[course]
        return sorted(scores, key=lambda p: (-(scores[p] if scores[p] is not None else -1.0), p))  # type: ignore[operator]

    def beats(self, mine: str, other: str) -> list[str]:
        """The courses on which one policy has more goodput than another."""
        return [c for c, s in self.goodput.items() if (s[mine] or 0.0) > (s[other] or 0.0)]

    def _card(self, mine: str = MINE) -> Card:
        names = list(next(iter(self.goodput.values())))
        lines = []
        places = {n: sum(self.ranking(c).index(n) for c in self.goodput) for n in names}
        for name in sorted(names, key=lambda n: (places[n], n)):
            cells = []
            for course, scores in self.goodput.items():
                place, score = self.ranking(course).index(name) + 1, scores[name]
                cells.append(say("race.none") if score is None else say("race.cell", goodput=f"{score:.2f}", place=place))
            shown = f"**{say('race.yours')}**" if name == mine else name
            lines.append(f"| {shown} | {' | '.join(cells)} |")
        courses = " | ".join(say(f"course.{c}") for c in self.goodput)
        head = f"| {say('race.head')} | {courses} |\n|---|{'---|' * len(self.goodput)}\n"
        reasons = [say("race.why", error=e) for e in self.errors.values()]
        card = Card(say("race"), "", "\n\n".join([head + "\n".join(lines), *reasons]), dim=say("race.order"))
        for words in self.details.values():
            card.fold(say("detail"), words)
        return card

    def __repr__(self) -> str:
        return repr(self._card())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return self._card()._repr_mimebundle_()


def race(
    policy: Any, courses: tuple[Course, ...] = COURSES, name: str = MINE, tell: Callable[[str], Any] = lambda words: None
) -> Result:
    """Run a policy and all built-in ones over the courses.

    policy: a class without arguments, a function that makes one, or an object with plan(state) that keeps nothing from
    one run to the next. tell: is told, in words, which course and which policy come next. Raises TaskError if it is no
    policy, before anything runs.
    """
    make, problem = maker(policy)
    if make is None:
        raise TaskError(problem)
    goodput: dict[str, dict[str, float | None]] = {}
    errors: dict[str, str] = {}
    details: dict[str, str] = {}
    for at, course in enumerate(courses):
        scores: dict[str, float | None] = {}
        for who in (name, *minirt.POLICIES):
            shown = say("race.yours") if who == name else who
            tell(say("race.now", course=say(f"course.{course.name}"), at=at + 1, of=len(courses), who=shown))
            if who in minirt.POLICIES:
                scores[who] = built_in(who, course)
                continue
            if who in errors:
                scores[who] = None
                continue
            out = call(lambda c=course: serve(make(), c).goodput(ttft=c.ttft, tpot=c.tpot), limit=LIMIT_S)
            scores[who] = out.value
            if out.kind != "ok":
                errors[who] = reason(out, course)
                if isinstance(out.exception, minirt.PolicyError):
                    details[who] = str(out.exception)
        goodput[course.name] = scores
    return Result(goodput, errors, details)


def maker(policy: Any) -> tuple[Callable[[], Any] | None, str]:
    """What makes the policy for each course; or None, and why this is no policy."""
    make = policy if isinstance(policy, type) or not hasattr(policy, "plan") else lambda: policy
    if not callable(make):
        return None, say("race.no_policy", got=f"{type(policy).__name__}：{short(policy, 60)}")
    out = call(make, limit=LIMIT_S)
    if out.kind != "ok":
        return None, say("race.not_made", error=out.error or say(f"status.{out.kind}"))
    if not callable(getattr(out.value, "plan", None)):
        return None, say("race.no_policy", got=type(out.value).__name__)
    return make, ""


def is_unanswered(policy: Any) -> bool:
    """Whether there is no policy yet, or its plan() (or the function that would make it) is still empty."""
    return policy is None or policy is ... or is_empty(policy) or is_empty(getattr(policy, "plan", None))


def reason(out: Outcome, course: Course) -> str:
    """Why a policy has no goodput."""
    at = say("race.line", line=out.line, source=out.source) if out.line else ""
    words = {"course": say(f"course.{course.name}"), "limit": f"{LIMIT_S:g}", "error": out.error, "at": at}
    if isinstance(out.exception, minirt.PolicyError):
        return say("race.stalls" if "stalls" in str(out.exception) else "race.refused", **words)
    return say(f"race.{out.kind}", **words)


def race_shown(policy: Any, **options: Any) -> None:
    """race(), with what it is doing and what came of it on the page. Nothing runs for what is no policy."""
    if is_unanswered(policy):
        return display(Card(say("race"), say("status.unanswered"), say("race.first"), "unanswered"))
    _, problem = maker(policy)
    if problem:
        return display(Card(say("race"), say("status.wrong"), problem, "wrong"))
    ticker = Ticker(say("race"))
    ticker.end(race(policy, tell=ticker.tell, **options))


@cache
def built_in(name: str, course: Course) -> float:
    """Goodput of a built-in policy with its defaults; it is the same every time."""
    return serve(minirt.POLICIES[name](), course).goodput(ttft=course.ttft, tpot=course.tpot)


def serve(policy: Any, course: Course) -> Any:
    """The metrics of one run of a course."""
    run = minirt.simulate(
        policy, course.requests(), model="Llama-3-8B", max_batch_size=course.max_batch_size,
        num_blocks=course.num_blocks, max_model_len=course.max_model_len, starvation_limit=None,
    )  # fmt: skip
    return run.metrics
