"""TGI's router: decode until enough requests wait, then let them prefill while decoding stands still, and concatenate.

Hugging Face text-generation-inference, router/src/infer.rs (`batching_task`) and queue.rs (`next_batch`); there is no
class called ContinuousBatchingScheduler. Memory is budgeted in tokens: a request counts with its prompt and its
longest answer from admission on, so blocks taken on demand never run out. Defaults are the launcher's (the ratio
was 1.2 in its first versions). Later versions page and chunk; this is the scheduler that made it known.
"""

from __future__ import annotations

import math

from ..errors import ConfigError
from ..request import Sequence
from .base import State, StepPlan
from .checks import whole
from .planner import Planner


class TgiPolicy:
    """waiting_served_ratio: a new batch must have at least this share of the running one's size, unless
    max_waiting_tokens steps have passed since the last one. max_batch_prefill_tokens: of one new batch.
    max_batch_total_tokens: prompts and longest answers of all together (None: as many as the pool holds).
    """

    name = "tgi"

    def __init__(
        self,
        waiting_served_ratio: float = 0.3,
        max_waiting_tokens: int = 20,
        max_batch_prefill_tokens: int = 4096,
        max_batch_total_tokens: int | None = None,
    ) -> None:
        if not isinstance(waiting_served_ratio, (int, float)) or not 0 <= waiting_served_ratio < math.inf:
            raise ConfigError(f"{waiting_served_ratio=} must be a number, 0 or more, and finite.")
        total = max_batch_total_tokens
        self.waiting_served_ratio = waiting_served_ratio
        self.max_waiting_tokens = whole("max_waiting_tokens", max_waiting_tokens, 1)
        self.max_batch_prefill_tokens = whole("max_batch_prefill_tokens", max_batch_prefill_tokens, 1)
        self.max_batch_total_tokens = None if total is None else whole("max_batch_total_tokens", total, 1)
        self._last_prefill = 0  # the step of it

    def plan(self, state: State) -> StepPlan:
        p = Planner(state, mixed=False)
        waited = state.step - self._last_prefill
        if not state.running:
            self._let_in(p, state, min_size=0)
        elif waited > 1:  # between two prefills everyone decodes at least once
            patient = waited < self.max_waiting_tokens
            self._let_in(p, state, int(len(state.running) * self.waiting_served_ratio) if patient else 0)
        if p.plan.prefill:
            self._last_prefill = state.step
            return p.plan
        for seq in state.running:
            p.decode(seq)
        return p.plan

    def _let_in(self, p: Planner, state: State, min_size: int) -> None:
        """`next_batch`: as many of the queue as the budgets allow, or none if they are fewer than min_size."""
        most = state.limits.num_blocks * state.limits.block_size
        most = min(most, self.max_batch_total_tokens or most)
        total, prefill, batch = sum(_tokens(s, state) for s in state.running), 0, list[Sequence]()
        for seq in state.waiting if len(state.waiting) >= min_size else ():
            own = _tokens(seq, state)
            if own > most or seq.num_prompt > self.max_batch_prefill_tokens:
                p.refuse(seq, self._too_big(seq, own, most))
                continue
            total, prefill = total + own, prefill + len(seq.tokens)
            if len(batch) == state.free_slots or total > most or prefill > self.max_batch_prefill_tokens:
                break
            batch.append(seq)
        for seq in batch if len(batch) >= min_size else ():
            p.admit(seq)

    def _too_big(self, seq: Sequence, own: int, most: int) -> str:
        return (
            f"its prompt has {seq.num_prompt} tokens (max_batch_prefill_tokens={self.max_batch_prefill_tokens}) and it "
            f"counts {own} in all (max_batch_total_tokens, or the pool: {most}). Raise the limit or shorten it."
        )


def _tokens(seq: Sequence, state: State) -> int:
    """What a request may come to hold, in whole blocks."""
    bs = state.limits.block_size
    return -(-seq.max_total // bs) * bs
