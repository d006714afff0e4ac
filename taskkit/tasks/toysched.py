"""The toys of the "break it" tasks of chapters 06 and 07: policies with a fault each, and a small engine to run them in.

Their faults are the exercise: do not copy from here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import minirt
from minirt import workloads
from minirt.policies.base import State, StepPlan

from ..pictures import beside, player
from ..task import Attempt
from ..texts import say
from ..verdict import Stopped, Unanswered, Wrong
from ..view import Plain, short

BLOCK = 4  # tokens


class EvictsOldest:
    """Takes the blocks that are missing from the request that came in first."""

    name = "evicts-oldest"

    def plan(self, state: State) -> StepPlan:
        p = minirt.Planner(state)
        line = deque(sorted(state.running, key=lambda s: s.admitted_order))
        while line:
            seq = line.pop()
            while not p.decode(seq):
                victim = line.popleft() if line else seq
                p.preempt(victim)
                if victim is seq:
                    break
        for seq in state.waiting:
            if not p.admit(seq):
                break
        return p.plan


class TakesEveryone:
    """Lets in whoever finds blocks for the first piece of a prompt, and hopes for the rest."""

    name = "takes-everyone"

    def plan(self, state: State) -> StepPlan:
        p = minirt.Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.prefilling:
            p.prefill(seq, BLOCK)
        for seq in state.waiting:
            if not p.admit(seq, chunk=BLOCK):
                break
        return p.plan


class ShortestFirst:
    """Whoever asks for the fewest tokens comes first."""

    name = "shortest-first"

    def rank(self, seq: Any) -> float:
        return seq.max_new_tokens

    def plan(self, state: State) -> StepPlan:
        p = minirt.Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in sorted(state.waiting, key=self.rank):
            if not p.admit(seq):
                break
        return p.plan


class FirstCome(ShortestFirst):
    """First come, first served: nothing wrong with it. What a mended ShortestFirst is measured against."""

    name = "first-come"

    def rank(self, seq: Any) -> float:
        return seq.arrival


def serve(
    policy: Any, jobs: Any, blocks: int = 8, slots: int = 4, arrivals: Sequence[float] | None = None, **options: Any
) -> Any:
    """A run of (prompt, output) jobs; a step is 1. starvation_limit is off unless options say otherwise."""
    requests = workloads.make_requests(
        prompt=[p for p, _ in jobs], output=[o for _, o in jobs], arrivals=list(arrivals) if arrivals else None
    )
    return minirt.simulate(
        policy, requests, clock="step", max_batch_size=slots, num_blocks=blocks, block_size=BLOCK,
        **{"starvation_limit": None, **options},
    )  # fmt: skip


def serve_or_stall(policy: Any, *args: Any, **options: Any) -> Any:
    """serve(), and of a policy that is refused the run up to there."""
    try:
        return serve(policy, *args, **options)
    except minirt.PolicyError as e:
        return e.run


def guarded(policy: Any, attempt: Attempt, run: Callable[[Any], Any], shown: Any) -> Any:
    """run(policy) for a learner's policy, a class or an object. shown: what it ran on, in words. Raises Wrong where the
    engine refuses a plan: "stalls" or "broken_plan" ({step}, and the engine's words as detail), "not_a_policy" for what
    has no plan(state)."""
    if not callable(getattr(policy, "plan", None)):
        raise Wrong("not_a_policy", [("got", policy)])
    out = attempt.outcome(lambda: run(policy() if isinstance(policy, type) else policy))
    if out.kind == "unwritten":
        raise Unanswered
    if isinstance(out.exception, minirt.PolicyError):
        words = str(out.exception)
        empty = "NoneType" in words
        at = re.search(r"\bstep (\d+)", words)
        step = at[1] if at else "?"
        if empty and is_unwritten(policy):
            raise Unanswered
        raise Wrong("stalls" if "stall" in words else "broken_plan", [("input", shown)], step=step, detail=words)
    if out.kind != "ok":
        raise Stopped(out)
    return out.value


def serve_guarded(policy: Any, attempt: Attempt, jobs: Any, blocks: int, slots: int) -> Any:
    """serve() on the learner's policy, guarded, the jobs named where it fails."""
    return guarded(policy, attempt, lambda p: serve(p, jobs, blocks, slots), Plain(f"jobs={short(jobs)}"))


def draw_mended(before: Any, name: str, policy: Any, attempt: Attempt, jobs: Any, blocks: int, slots: int) -> Any:
    """A "break it" task's show(): the run of the policy that was broken, beside it the learner's once there is one."""
    if is_missing(policy):
        return player(before)
    return beside(before, serve_guarded(policy, attempt, jobs, blocks, slots), (name, say("show.you")))


def is_missing(policy: Any) -> bool:
    """Whether there is no policy yet, or one without a plan."""
    return policy is None or policy is ... or is_unwritten(policy)


def is_unwritten(policy: Any) -> bool:
    """Whether plan() is still only `...`."""
    from ..guard import is_empty

    return is_empty(getattr(policy if isinstance(policy, type) else type(policy), "plan", None))


def two_parts(answer: Any) -> tuple[Any, Any]:
    """(input, policy), or Wrong("two_parts"); Unanswered while the input is empty."""
    try:
        first, second = answer
    except (TypeError, ValueError):
        raise Wrong("two_parts", [("got", answer)]) from None
    if first is None or first is ...:
        raise Unanswered
    return first, second


def check_jobs(jobs: Any, most: int, blocks: int) -> None:
    """Wrong("outside_rules" or "too_big") unless it is 2 to `most` pairs of whole numbers that each fit alone."""
    ok = isinstance(jobs, (list, tuple)) and 2 <= len(jobs) <= most
    ok = ok and all(
        isinstance(x, (list, tuple)) and len(x) == 2 and all(type(n) is int and n > 0 for n in x) for x in jobs
    )
    if not ok:
        raise Wrong("outside_rules", [("got", jobs)])
    for p, o in jobs:
        if p + o - 1 > blocks * BLOCK:
            raise Wrong("too_big", [("got", (p, o))], total=p + o - 1, room=blocks * BLOCK)
