"""Orca's scheduler: the batch is put together anew at every iteration; memory is set aside for the whole request.

Yu et al., OSDI 2022: iteration-level scheduling and selective batching, first come, first served. Whole prompts
share an iteration with decodes, and a request is only admitted if all the KV it may ever need is reserved, so
nothing is ever preempted. How much that is was the question Kwon et al. (SOSP 2023, section 6.1) asked with the
three variants below: the longest answer is not known beforehand, and what is reserved for nothing is lost.
"""

from __future__ import annotations

from typing import Literal

from ..errors import ConfigError
from ..request import Sequence
from .base import Limits, State, StepPlan
from .planner import Planner


class OrcaPolicy:
    """variant: what a request reserves, in consecutive blocks. "max": the longest the engine serves. "pow2": its
    prompt, and its answer rounded up to a power of two. "oracle": exactly what it asks for, which is its true length
    where answers are as long as asked (ignore_eos, the simulator). Never more than the whole pool.
    """

    name = "orca"

    def __init__(self, variant: Literal["max", "pow2", "oracle"] = "max") -> None:
        if variant not in ("max", "pow2", "oracle"):
            raise ConfigError(f'variant={variant!r} must be "max", "pow2" or "oracle".')
        self.variant = variant

    def plan(self, state: State) -> StepPlan:
        p = Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            if not p.admit(seq, reserve=self.reservation(seq, state.limits)):
                break  # first come, first served: nobody overtakes
        return p.plan

    def reservation(self, seq: Sequence, limits: Limits) -> int:
        """Tokens to set aside for a request."""
        if self.variant == "oracle":
            return seq.max_total
        power = 1 << (seq.max_new_tokens - 1).bit_length()
        wanted = limits.max_model_len if self.variant == "max" else seq.num_prompt + power
        return min(wanted, limits.max_model_len, limits.num_blocks * limits.block_size)
