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
        if max_wait is not None and not (isinstance(max_wait, (int, float)) and max_wait >= 0):
            raise ConfigError(f"max_wait={max_wait!r} must be 0 or more, or None.")
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
        limits = state.limits
        batch: list[Sequence] = []
        prompt = answer = 0  # the longest of the batch
        for seq in state.waiting:
            if len(batch) == limits.max_batch_size:
                break
            longer, more = max(prompt, len(seq.tokens)), max(answer, seq.max_new_tokens)
            blocks = -(-_reservation(longer, more, state) // limits.block_size)
            if (len(batch) + 1) * blocks > limits.num_blocks:
                break  # the batch is as large as memory allows
            batch.append(seq)
            prompt, answer = longer, more
        if not batch:
            return
        full = len(batch) == limits.max_batch_size or len(batch) < len(state.waiting)
        due = None if self.max_wait is None else min(s.arrival for s in batch) + self.max_wait
        if not full and state.expecting_more and (due is None or state.now < due):
            p.plan.wait_until = due
            return
        for seq in batch:
            p.admit(seq, reserve=_reservation(prompt, answer, state), padding=prompt - len(seq.tokens))


def _reservation(prompt: int, answer: int, state: State) -> int:
    """Tokens set aside for each row: the longest prompt and the longest answer (its last token is never fed back),
    though no row outgrows the model."""
    return min(prompt + answer - 1, state.limits.max_model_len)
