"""Refuses a policy that does not get anywhere: one that stalls, and one that starves a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import PolicyError
from .policies.base import State, StepPlan

if TYPE_CHECKING:
    from .engine import Engine

CHECK_EVERY = 64  # steps between two looks at those who hold a slot


class Watchdog:
    """limit: steps a resident request may go without a row, and later arrivals of the same priority that may be
    admitted before a waiting one. None turns the second kind of error off; a stall is always an error.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """A new run."""
        self._idle_steps = 0

    def idle(self, plan: StepPlan, state: State) -> bool:
        """Whether the plan does nothing. Raises PolicyError if nothing will ever change that."""
        acts = plan.refuse or plan.fail or plan.release or plan.preempt or plan.resume or plan.admit
        if acts or plan.prefill or plan.decode or plan.wasted:
            self._idle_steps = 0
            return False
        self._idle_steps += 1
        coming = state.expecting_more or (plan.wait_until is not None and plan.wait_until > state.now)
        if not coming or self._idle_steps > 10_000:
            held = len(state.running) + len(state.prefilling)
            raise PolicyError(
                f"the policy stalls at step {state.step}: its plan is empty while {len(state.waiting)} requests wait, "
                f"{held} hold a slot and {len(state.swapped)} are swapped out, with {state.free_slots} slots and "
                f"{state.free_blocks} of {state.limits.num_blocks} blocks free, and no further request is to come. "
                "Every plan must admit, compute, preempt, refuse or fail somebody."
            )
        return True

    def look(self, plan: StepPlan, engine: Engine) -> None:
        """After a step: note who had a row, and raise PolicyError if somebody never has one."""
        if self.limit is None:
            return
        step = engine.step_count
        for seq in plan.decode:
            seq.last_row = step
        for chunk in plan.prefill:
            chunk.seq.last_row = step
        if plan.admit and len(engine.waiting):
            self._passed_over(plan, engine)
        if step % CHECK_EVERY:
            return
        for seq in [*engine.running.values(), *engine.prefilling.values()]:
            if step - seq.last_row > self.limit:
                raise PolicyError(
                    f"the policy starves request {seq.id}: it holds slot {seq.slot} but has had no row for "
                    f"{step - seq.last_row} steps (limit {self.limit}). Decode, prefill or preempt it."
                )

    def _passed_over(self, plan: StepPlan, engine: Engine) -> None:
        oldest = engine.waiting.oldest()
        if oldest is None:
            return
        later = sum(a.seq.id > oldest.id and a.seq.priority >= oldest.priority for a in plan.admit)
        oldest.passed_over += later
        if self.limit is not None and oldest.passed_over > self.limit:
            raise PolicyError(
                f"the policy starves request {oldest.id}: {oldest.passed_over} later arrivals were admitted before it "
                f"(limit {self.limit}). Let age count in the order, or raise starvation_limit."
            )
