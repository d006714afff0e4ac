"""The small runtime of the course's source chapter: prefill up to a budget, then decode everyone; fail fast.

Prefill and decode are separate forwards of one step, which keeps shapes simple and makes every decode wait for
the step's prefill. There is no preemption: a chunk or a decode that finds no free block ends its request with an
error. Only an admission waits for blocks.
"""

from __future__ import annotations

from .base import State, StepPlan
from .checks import whole
from .planner import Planner

MAX_TOKENS_PER_PREFILL_CHUNK = 1024
MAX_TOKENS_PER_PREFILL_STEP = 8192


class MiniRuntimePolicy:
    """FCFS. chunk: most prompt tokens of one request in a step; step_budget: most prompt tokens of all together."""

    name = "mini-runtime"

    def __init__(
        self, chunk: int = MAX_TOKENS_PER_PREFILL_CHUNK, step_budget: int = MAX_TOKENS_PER_PREFILL_STEP
    ) -> None:
        # Tokens; anything else is a ConfigError.
        self.chunk = whole("chunk", chunk, 1)
        self.step_budget = whole("step_budget", step_budget, 1)

    def plan(self, state: State) -> StepPlan:
        p = Planner(state, mixed=False)
        for seq in state.running:
            if not p.decode(seq):
                p.fail(seq, _no_block(len(seq.tokens), state))
        p.budget = self.step_budget
        for seq in state.prefilling:
            if p.budget > 0 and not p.prefill(seq, self.chunk):
                p.fail(seq, _no_block(seq.num_computed + 1, state))
        for seq in state.waiting:
            if not p.admit(seq, chunk=self.chunk):
                break  # first come, first served: nobody overtakes
        return p.plan


def _no_block(num_tokens: int, state: State) -> str:
    limits = state.limits
    return (
        f"no free KV block for token {num_tokens}: all {limits.num_blocks} blocks of {limits.block_size} tokens are "
        "in use, and this policy does not preempt. Raise num_blocks, lower max_batch_size, or use policy='vllm'."
    )
