"""Refuses a policy that does not get anywhere: one that stalls, and one that starves a request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .errors import PolicyError
from .policies.base import State, StepPlan

if TYPE_CHECKING:
    from .engine import Engine

CHECK_EVERY = 64  # steps between two looks at those who hold a slot
MOST_IDLE = 10_000  # plans in a row that compute nothing, however much they wait for


class Watchdog:
    """limit: steps a resident request may go without a row, times it may be preempted, and later arrivals of the same
    priority that may be admitted before it. None turns these errors off; a stall is always an error.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """A new run."""
        self._idle_steps = 0

    def idle(self, plan: StepPlan, state: State) -> bool:
        """Whether the plan does nothing. Raises PolicyError if nothing will ever change that."""
        if plan.prefill or plan.decode or plan.release or plan.refuse or plan.fail:
            self._idle_steps = 0
            return False
        self._idle_steps += 1
        acts = bool(plan.preempt or plan.resume or plan.admit or plan.wasted)  # yet computes nothing of use
        coming = state.expecting_more or (plan.wait_until is not None and state.now < plan.wait_until < math.inf)
        if self._idle_steps > MOST_IDLE or not (acts or coming):
            held = len(state.running) + len(state.prefilling) + len(state.ended)
            what = f"{self._idle_steps} plans in a row compute nothing" if acts or coming else "its plan is empty"
            raise PolicyError(
                f"the policy stalls in step {state.step + 1} (state.step={state.step}): {what} while "
                f"{len(state.waiting)} requests wait, {held} hold a slot ({len(state.ended)} of them have ended) and "
                f"{len(state.swapped)} are swapped out, with {state.free_slots} slots and {state.free_blocks} of "
                f"{state.limits.num_blocks} blocks free, and "
                f"{'more requests are' if state.expecting_more else 'no further request is'} to come. Every plan must "
                "compute, release, refuse or fail somebody, or say until when it waits (wait_until)."
            )
        return not acts

    def look(self, plan: StepPlan, engine: Engine) -> None:
        """After a step: note who had a row, and raise PolicyError if somebody never has one."""
        if self.limit is None:
            return
        step = engine.step_count
        for seq in plan.decode:
            seq.last_row = step
        for chunk in plan.prefill:
            chunk.seq.last_row = step
        if plan.admit:
            self._passed_over(plan, engine)
        for seq, _ in plan.preempt:
            if seq.num_preempted > self.limit:
                raise PolicyError(
                    f"the policy gets nowhere: it has preempted request {seq.id} {seq.num_preempted} times (limit "
                    f"{self.limit}). Let it keep its blocks until it has ended, or admit fewer."
                )
        if step % CHECK_EVERY:
            return
        for seq in [*engine.running.values(), *engine.prefilling.values()]:
            if step - seq.last_row > self.limit:
                raise PolicyError(
                    f"the policy starves request {seq.id}: it holds slot {seq.slot} but has had no row for "
                    f"{step - seq.last_row} steps (limit {self.limit}). Decode, prefill or preempt it."
                )

    def _passed_over(self, plan: StepPlan, engine: Engine) -> None:
        """Count, for the one that has waited longest in the queue and in host memory, who came later and went first."""
        for first in (engine.waiting.oldest(), next(iter(engine.swapped.values()), None)):
            if first is None:
                continue
            since = (first.arrival, first.id)
            first.passed_over += sum(
                (a.seq.arrival, a.seq.id) > since and a.seq.priority >= first.priority for a in plan.admit
            )
            if self.limit is not None and first.passed_over > self.limit:
                raise PolicyError(
                    f"the policy starves request {first.id}: {first.passed_over} later arrivals were admitted before it "
                    f"(limit {self.limit}). Let age count in the order, or raise starvation_limit."
                )
