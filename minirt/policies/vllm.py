"""vLLM's scheduler: one token budget a step; decodes first, then unfinished prefills, then waiting requests.

Kwon et al., SOSP 2023, for paging and preemption; the order and the single budget are those of the current
engine (vllm/v1/core/sched/scheduler.py), chunked prefill mixed with decodes is Sarathi-Serve's (Agrawal et al.,
OSDI 2024). When blocks run out the request with the lowest priority, and among those the last admitted, is
preempted. The first engine could swap its KV to host memory; the current one only recomputes.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from ..errors import ConfigError
from ..request import RequestState, Sequence
from .base import State, StepPlan
from .checks import whole
from .planner import Planner


class VllmPolicy:
    """max_num_batched_tokens: token positions a step may compute. preemption: "recompute" or "swap" (which falls
    back to recompute when host memory is full). watermark: share of blocks that an admission must leave free,
    so that it does not cause a preemption at once. enable_chunked_prefill: a prompt may be cut to fit the budget.
    """

    name = "vllm"
    resumes = True

    def __init__(
        self,
        max_num_batched_tokens: int = 2048,
        preemption: Literal["recompute", "swap"] = "recompute",
        watermark: float = 0.01,
        enable_chunked_prefill: bool = True,
        prefix_caching: bool = False,
    ) -> None:
        if preemption not in ("recompute", "swap"):
            raise ConfigError(f'preemption={preemption!r} must be "recompute" or "swap".')
        if not isinstance(watermark, (int, float)) or not 0 <= watermark < 1:
            raise ConfigError(f"watermark={watermark!r} is a share of the blocks: at least 0 and below 1.")
        self.max_num_batched_tokens = whole("max_num_batched_tokens", max_num_batched_tokens, 1)
        self.preemption: Literal["recompute", "swap"] = preemption
        self.watermark = watermark
        self.enable_chunked_prefill = enable_chunked_prefill
        self.prefix_caching = prefix_caching

    def plan(self, state: State) -> StepPlan:
        p = Planner(state, budget=self.max_num_batched_tokens)
        line = deque(sorted([*state.running, *state.prefilling], key=_rank))
        prefills: deque[Sequence] = deque()
        while line:
            seq = line.popleft()
            if seq.state is RequestState.PREFILLING:
                prefills.append(seq)
                continue
            while p.budget > 0 and not p.decode(seq):
                victim = line.pop() if line else seq
                self._preempt(p, victim)
                if victim is seq:
                    break
        while prefills and p.budget > 0:
            if p.prefill(prefills[0]):
                prefills.popleft()
            elif len(prefills) > 1:
                self._preempt(p, prefills.pop())
            else:
                break  # it keeps what it has: decodes took the last blocks, and will be preempted before it
        keep = math.ceil(self.watermark * state.limits.num_blocks) if p.plan.decode or p.plan.prefill else 0
        if not p.plan.preempt and not prefills:
            self._let_in(p, state, keep)
        return p.plan

    def _preempt(self, p: Planner, seq: Sequence) -> None:
        if self.preemption == "recompute" or not p.preempt(seq, "swap"):
            p.preempt(seq, "recompute")

    def _let_in(self, p: Planner, state: State, keep: int) -> None:
        for seq in sorted(state.swapped, key=_rank):  # they were here before
            grows = seq.num_computed == seq.num_swapped * state.limits.block_size
            if p.budget < 1 or not p.resume(seq, keep + grows):
                return
            p.decode(seq) if seq.remaining == 1 else p.prefill(seq)
        for seq in state.waiting:
            whole = seq.remaining
            if not self.enable_chunked_prefill and whole > p.budget:
                if seq.num_prompt > self.max_num_batched_tokens:
                    p.refuse(seq, f"its prompt has {whole} tokens, a step computes {self.max_num_batched_tokens} and "
                             "chunked prefill is off. Raise max_num_batched_tokens or enable_chunked_prefill.")
                    continue
                if p.plan.decode or p.plan.prefill:
                    return
                p.budget = whole  # preempted, and grown past the budget since: it has a step to itself
            if not p.admit(seq, keep=keep):
                return


def _rank(seq: Sequence) -> tuple[int, int]:
    """Who is served first is preempted last: priority, then order of admission."""
    return seq.priority, seq.admitted_order
