"""Static batching: a batch is formed, goes in together and comes out together.

The scheduling of FasterTransformer and of `generate()` on a padded batch. Prompts are padded to the longest,
memory is set aside for the longest possible answer, and rows that have ended are computed until the last one
has. It pays all of that for real, so that what continuous batching saves is measured and not asserted.
"""

from __future__ import annotations

from ..errors import ConfigError
from ..request import Sequence
from .base import State, StepPlan
from .planner import Planner


class StaticPolicy:
    """A batch starts when it is full, when no more requests are to come, or when its first has waited `max_wait`.

    max_wait: in the clock's unit; None waits for a full batch as long as more requests are known to come.
    """

    name = "static"
    returns_together = True

    def __init__(self, max_wait: float | None = None) -> None:
        if max_wait is not None and not max_wait >= 0:
            raise ConfigError(f"max_wait={max_wait} must be 0 or more, or None.")
        self.max_wait = max_wait

    def plan(self, state: State) -> StepPlan:
        p = Planner(state, mixed=False)
        if state.running:
            for seq in state.running:
                p.decode(seq)
            p.waste(state.ended)
            return p.plan
        for seq in state.ended:  # the last one has ended: the whole batch leaves
            p.release(seq)
        self._form(p, state)
        return p.plan

    def _form(self, p: Planner, state: State) -> None:
        batch: list[Sequence] = []
        for seq in state.waiting:
            if len(batch) == state.limits.max_batch_size:
                break
            if not p.can_hold(_reservation([seq], state)):
                p.refuse(seq, self._too_big(seq, state))
            elif _blocks(batch + [seq], state) > state.limits.num_blocks:
                break  # the batch is as large as memory allows
            else:
                batch.append(seq)
        if not batch:
            return
        full = len(batch) == state.limits.max_batch_size or len(batch) < len(state.waiting) - len(p.plan.refuse)
        due = None if self.max_wait is None else min(s.arrival for s in batch) + self.max_wait
        if not full and state.expecting_more and (due is None or state.now < due):
            p.plan.wait_until = due
            return
        longest = max(len(s.tokens) for s in batch)
        reserve = _reservation(batch, state)
        for seq in batch:
            p.admit(seq, reserve=reserve, padding=longest - len(seq.tokens))

    def _too_big(self, seq: Sequence, state: State) -> str:
        limits = state.limits
        return (
            f"a static batch reserves {_reservation([seq], state)} tokens for this request at once; the pool has "
            f"{limits.num_blocks} blocks of {limits.block_size}. Raise num_blocks or lower max_new_tokens."
        )


def _reservation(batch: list[Sequence], state: State) -> int:
    """Tokens set aside for each row: the longest prompt and the longest answer, though no row outgrows the model."""
    whole = max(len(s.tokens) for s in batch) + max(s.max_new_tokens for s in batch)
    return min(whole, state.limits.max_model_len)


def _blocks(batch: list[Sequence], state: State) -> int:
    return len(batch) * -(-_reservation(batch, state) // state.limits.block_size)
