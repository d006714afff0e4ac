"""Pictures for show(): a learner's schedule or policy, played by the real engine beside the one that is expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import minirt
from minirt import workloads
from minirt.policies.base import State, StepPlan

from .verdict import Wrong

BLOCK = 4  # tokens


def fitting(lengths: Sequence[int], slots: int) -> dict[str, int]:
    """A KV pool in which any `slots` of these (one-token prompts) find room, and no more: few enough blocks to look at."""
    return {"num_blocks": slots * -(-(1 + max(lengths)) // BLOCK), "block_size": BLOCK}


class Scripted:
    """A policy that does what a script says: step -> ids of the requests that get a token in it.

    A request that is not in the batch yet is admitted. together: rows that have ended stay, and are computed for
    nothing, until all of the batch have (static batching).
    """

    def __init__(self, script: Sequence[Sequence[int]], name: str = "yours", together: bool = False) -> None:
        self.script, self.name, self.returns_together, self.at = [list(s) for s in script], name, together, 0

    def plan(self, state: State) -> StepPlan:
        p = minirt.Planner(state)
        if state.ended and not state.running:
            for s in state.ended:
                p.release(s)
            if not state.waiting:
                return p.plan
        if self.at >= len(self.script):
            left = sorted(s.id for s in [*state.waiting, *state.running])
            raise Wrong("script.short", ids=left, steps=len(self.script))
        ids = self.script[self.at]
        self.at += 1
        running = {s.id: s for s in state.running}
        waiting = {s.id: s for s in state.waiting}
        if running:
            p.waste(state.ended)
        for i in ids:
            if i in running:
                p.decode(running[i])
            elif i not in waiting or not p.admit(waiting[i]):
                code = "script.full" if i in waiting else "script.gone"
                raise Wrong(code, step=self.at - 1, id=i, slots=state.limits.max_batch_size)
        return p.plan


def play(
    script: Sequence[Sequence[int]], lengths: Sequence[int], slots: int, name: str = "yours", together: bool = False,
    arrivals: Sequence[float] | None = None,
) -> Any:  # fmt: skip
    """The run of a schedule: batches[step] = ids of the requests that get a token. One-token prompts, a step is 1.

    Raises Wrong ("script.…", in the common messages) where the schedule can't be carried out.
    """
    requests = workloads.make_requests(prompt=1, output=list(lengths), arrivals=list(arrivals) if arrivals else None)
    try:
        return minirt.simulate(
            Scripted(script, name, together), requests, clock="step", max_batch_size=slots, starvation_limit=None,
            **fitting(lengths, slots),
        )  # fmt: skip
    except minirt.PolicyError as e:
        raise Wrong("script.plan", error=str(e)) from None


def player(run: Any, title: str = "", mode: str = "run") -> Any:
    """A Player of one run, opened in its animation."""
    import widgets

    return widgets.Player(run, title=title, mode=mode)


def beside(yours: Any, expected: Any, names: tuple[str, str], title: str = "") -> Any:
    """Compare: the learner's run above the expected one, under one clock."""
    import widgets

    return widgets.Compare(yours, expected, names=names, title=title)


def schedules(
    fn: Callable[..., Any] | None, reference: Callable[..., Any], args: tuple[Any, ...], lengths: Sequence[int],
    slots: int, names: tuple[str, str], **options: Any,
) -> Any:  # fmt: skip
    """For tasks whose function returns a schedule: play(fn(*args)) beside play(reference(*args))."""
    expected = play(reference(*args), lengths, slots, names[1], **options)
    if fn is None:
        return player(expected, names[1])
    script = fn(*args)
    try:
        batches = [list(map(int, step)) for step in script]
    except TypeError:
        raise Wrong("script.shape", [("got", script)]) from None
    return beside(play(batches, lengths, slots, names[0], **options), expected, names)
