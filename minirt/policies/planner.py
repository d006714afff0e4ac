"""A Planner keeps count of slots, blocks and tokens while a policy chooses, and the engine checks plans with it.

Its methods say whether a choice still fits (True/False, or how many tokens fit); they raise PolicyError for
what is never allowed, such as decoding a request that is not running. A plan written by hand, without a
Planner, is played through one by `validate` before anything is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ..errors import PolicyError
from ..prefix import find_prefix
from ..request import RequestState, Sequence
from .base import Admission, Chunk, Preemption, State, StepPlan

UNLIMITED = 1 << 60


class Planner:
    """Builds a StepPlan under what is free now. budget: token positions this step may compute (None = any).

    free_blocks, free_slots, budget fall as choices are made. plan: what has been chosen so far.
    """

    def __init__(self, state: State, budget: int | None = None, mixed: bool = True) -> None:
        self.state = state
        self.plan = StepPlan(mixed=mixed, made_by=self)
        self.free_blocks = state.free_blocks
        self.free_slots = state.free_slots
        self.free_host = state.free_host_blocks
        self.budget = UNLIMITED if budget is None else budget
        self._bs = state.limits.block_size
        self._busy: set[int] = set()  # ids that already have a row, or lost their place, in this plan
        self._arriving: dict[int, int] = {}  # admitted or resumed in this plan -> tokens found in the cache
        self._delta: dict[int, int] = {}  # block -> change of its refcount by this plan
        self._free_map: bytearray | None = None  # copied only when a reservation must be contiguous
        self._reserved: set[int] = set()  # admitted in this plan with a reservation

    def untouched(self, plan: StepPlan) -> bool:
        """Whether `plan` still holds just what this planner put there."""
        rows = len(plan.decode) + len(plan.prefill) + len(plan.preempt) + len(plan.release) + len(plan.wasted)
        rows += len(plan.fail) + len(plan.refuse)
        # chunk=0 admissions and resumed requests without a row are in _arriving alone
        return plan is self.plan and rows == len(self._busy) and len(plan.admit) + len(plan.resume) == len(self._arriving)

    # -- rows -----------------------------------------------------------------------------------
    def decode(self, seq: Sequence) -> bool:
        """One more token for a running request; False if there is no block or no budget for it."""
        if seq.id in self._busy:
            raise PolicyError(f"request {seq.id} stands twice in one plan; a request has one row a step.")
        if seq.state is not RequestState.RUNNING and seq.id not in self._arriving:
            raise PolicyError(f"request {seq.id} can't decode: it is {seq.state.value}, not running.")
        held = seq.num_swapped if seq.table is None else len(seq.table.blocks)
        need = 1 if seq.num_computed >= held * self._bs else 0
        if need > self.free_blocks or self.budget < 1:
            return False
        self.free_blocks -= need
        self.budget -= 1
        self._busy.add(seq.id)
        self.plan.decode.append(seq)
        return True

    def prefill(self, seq: Sequence, n: int | None = None, padding: int = 0) -> int:
        """Up to n more prompt tokens of a prefilling request (None = all). How many fit the budget; 0 if no block."""
        if seq.id in self._busy:
            raise PolicyError(f"request {seq.id} stands twice in one plan; a request has one row a step.")
        cached = self._arriving.get(seq.id)
        if seq.state is not RequestState.PREFILLING and cached is None:
            raise PolicyError(f"request {seq.id} can't prefill: it is {seq.state.value}, not admitted.")
        start = seq.num_computed if cached is None else cached
        n = min(len(seq.tokens) - start if n is None else n, len(seq.tokens) - start, self.budget)
        if n < 1:
            return 0
        held = seq.table.capacity if seq.table is not None else -(-start // self._bs) * self._bs
        need = max(0, -(-(start + n - held) // self._bs)) if seq.id not in self._reserved else 0
        if need > self.free_blocks:
            return 0
        self.free_blocks -= need
        self.budget -= n
        self._busy.add(seq.id)
        self.plan.prefill.append(Chunk(seq, n, padding))
        return n

    # -- coming in ------------------------------------------------------------------------------
    def can_hold(self, num_tokens: int) -> bool:
        """Whether `num_tokens` tokens could ever lie in the pool."""
        return -(-num_tokens // self._bs) <= self.state.limits.num_blocks

    def admit(
        self, seq: Sequence, chunk: int | None = None, reserve: int | None = None, keep: int = 0, padding: int = 0
    ) -> bool:
        """Give a waiting request a slot and its first `chunk` prompt tokens (None = all that the budget allows).

        reserve: set that many tokens aside at once, in consecutive blocks. keep: blocks that must stay free
        afterwards (a watermark). chunk=0 admits without computing. False, and nothing is planned, if it won't fit.
        """
        if seq.id in self._busy or seq.id in self._arriving:
            raise PolicyError(f"request {seq.id} stands twice in one plan.")
        if seq.state is not RequestState.WAITING:
            raise PolicyError(f"request {seq.id} can't be admitted: it is {seq.state.value}, not waiting.")
        wants_row = chunk is None or chunk > 0
        if self.free_slots < 1 or (wants_row and self.budget < 1):
            return False
        if reserve is not None:
            return self._admit_reserved(seq, chunk, reserve, keep, padding)
        hits = find_prefix(self.state.pool, seq) if self.state.prefix_caching else []
        cached = len(hits) * self._bs
        n = min(UNLIMITED if chunk is None else chunk, len(seq.tokens) - cached, self.budget)
        revived = sum(1 for b in hits if self._refs(b) == 0)
        need = -(-(cached + n) // self._bs) - len(hits)
        if self.free_blocks - need - revived < keep:
            return False
        for b in hits:
            self._delta[b] = self._delta.get(b, 0) + 1
        self.free_blocks -= revived
        self._enter(seq, cached)
        self.plan.admit.append(Admission(seq))
        if wants_row:
            self.prefill(seq, n, padding)
        return True

    def _admit_reserved(self, seq: Sequence, chunk: int | None, reserve: int, keep: int, padding: int) -> bool:
        if reserve < len(seq.tokens):
            raise PolicyError(
                f"request {seq.id} reserves {reserve} tokens but already has {len(seq.tokens)}; reserve at least that."
            )
        need = -(-reserve // self._bs)
        if self._free_map is None:
            self._free_map = bytearray(self.state.pool.free_map)
            for b in self._delta:
                self._free_map[b] = self._refs(b) == 0
        start = self._free_map.find(b"\x01" * need)
        if self.free_blocks - need < keep or start < 0:
            self.plan.blocked_need = self.plan.blocked_need or need
            return False
        self._free_map[start : start + need] = bytes(need)
        self.free_blocks -= need
        self._enter(seq, 0)
        self._reserved.add(seq.id)
        self.plan.admit.append(Admission(seq, reserve))
        if chunk is None or chunk > 0:
            self.prefill(seq, chunk, padding)
        return True

    def _enter(self, seq: Sequence, cached: int) -> None:
        self.free_slots -= 1
        self._arriving[seq.id] = cached

    def resume(self, seq: Sequence, keep: int = 0) -> bool:
        """Bring a swapped request's KV back from host memory into a free slot; it may have a row in this step."""
        if seq.state is not RequestState.SWAPPED or seq.id in self._arriving:
            raise PolicyError(f"request {seq.id} can't be resumed: it is {seq.state.value}, not swapped out.")
        if self.free_slots < 1 or self.free_blocks - seq.num_swapped < keep:
            return False
        self.free_blocks -= seq.num_swapped
        self.free_host += seq.num_swapped
        self._enter(seq, seq.num_computed)
        self.plan.resume.append(seq)
        return True

    # -- going out ------------------------------------------------------------------------------
    def preempt(self, seq: Sequence, how: Literal["recompute", "swap"] = "recompute") -> bool:
        """Take slot and blocks from a resident request. False if "swap" finds no room in host memory."""
        if how not in ("recompute", "swap"):
            raise PolicyError(f'preempt(how={how!r}): it must be "recompute" or "swap".')
        if seq.id in self._busy:
            raise PolicyError(f"request {seq.id} can't be preempted: it already stands in this plan.")
        self._must_be_resident(seq, "preempted")
        blocks = 0 if seq.table is None else len(seq.table.blocks)
        if how == "swap":
            if blocks > self.free_host:
                return False
            self.free_host -= blocks
        self._leave(seq)
        self.plan.preempt.append(Preemption(seq, how))
        return True

    def release(self, seq: Sequence) -> None:
        """An ended row of a batch that returns together gives slot and blocks back."""
        if not seq.ended:
            raise PolicyError(f"request {seq.id} can't be released: its answer is not complete.")
        self._leave(seq)
        self.plan.release.append(seq)

    def fail(self, seq: Sequence, why: str) -> None:
        """End a resident request that can't go on."""
        self._must_be_resident(seq, "failed")
        self._leave(seq)
        self.plan.fail.append((seq, why))

    def refuse(self, seq: Sequence, why: str) -> None:
        """End a waiting request that can never be served."""
        if seq.state is not RequestState.WAITING or seq.id in self._arriving:
            raise PolicyError(f"request {seq.id} can't be refused: it is {seq.state.value}, not waiting.")
        self._busy.add(seq.id)
        self.plan.refuse.append((seq, why))

    def waste(self, seqs: Iterable[Sequence]) -> None:
        """Compute ended rows all the same, as a static batch does until it returns."""
        for seq in seqs:
            if not seq.ended or seq.id in self._busy:
                raise PolicyError(f"request {seq.id} can't be a wasted row: it has not ended, or has a row already.")
            self._busy.add(seq.id)
            self.plan.wasted.append(seq)

    def _must_be_resident(self, seq: Sequence, what: str) -> None:
        if seq.state not in (RequestState.RUNNING, RequestState.PREFILLING) or seq.id in self._arriving:
            raise PolicyError(f"request {seq.id} can't be {what}: it is {seq.state.value}, and holds no slot.")

    def _leave(self, seq: Sequence) -> None:
        if seq.id in self._busy:
            raise PolicyError(f"request {seq.id} stands twice in one plan.")
        self._busy.add(seq.id)
        self.free_slots += 1
        for b in seq.table.blocks if seq.table is not None else ():
            self._delta[b] = self._delta.get(b, 0) - 1
            if self._refs(b) == 0:
                self.free_blocks += 1
                if self._free_map is not None:
                    self._free_map[b] = 1

    def _refs(self, block: int) -> int:
        return self.state.pool.refs[block] + self._delta.get(block, 0)


def validate(plan: StepPlan, state: State) -> None:
    """Raise PolicyError, with the rule and the numbers, if the plan can't be carried out in this state.

    A plan that a Planner built on this very state, and that nobody changed since, has been checked already.
    """
    if not isinstance(plan, StepPlan):
        raise PolicyError(f"plan() must return a StepPlan, not {type(plan).__name__}. Did it forget `return p.plan`?")
    if plan.made_by is not None and plan.made_by.state is state and plan.made_by.untouched(plan):
        return
    p = Planner(state, mixed=plan.mixed)
    _known(plan, state)
    for seq, why in plan.refuse:
        p.refuse(seq, why)
    for seq, why in plan.fail:
        p.fail(seq, why)
    for seq in plan.release:
        p.release(seq)
    for seq, how in plan.preempt:
        if not p.preempt(seq, how):
            raise PolicyError(f"no room to swap request {seq.id} out: {p.free_host} host blocks are free.")
    for seq in plan.resume:
        _fits(p.resume(seq), p, f"resume request {seq.id} ({seq.num_swapped} blocks)")
    for seq, reserve in plan.admit:
        _fits(p.admit(seq, chunk=0, reserve=reserve), p, f"admit request {seq.id} (reserve={reserve})")
    for seq in plan.decode:
        _fits(p.decode(seq), p, f"decode request {seq.id}")
    for seq, n, padding in plan.prefill:
        if n < 1:
            raise PolicyError(f"request {seq.id} is to prefill {n} tokens; a chunk has at least 1.")
        got = p.prefill(seq, n, padding)
        _fits(got == n, p, f"prefill {n} tokens of request {seq.id}, which has {seq.remaining} left")
    p.waste(plan.wasted)


def _fits(ok: bool | int, p: Planner, what: str) -> None:
    if not ok:
        limits = p.state.limits
        raise PolicyError(
            f"the plan wants to {what}, but there are {p.free_slots} free slots of {limits.max_batch_size} and "
            f"{p.free_blocks} free blocks of {limits.num_blocks} ({limits.block_size} tokens each) left at that point."
        )


def _known(plan: StepPlan, state: State) -> None:
    """Every request of the plan must be one of the engine's: look each up where its state says it stands."""
    homes = {
        RequestState.WAITING: state.waiting,
        RequestState.PREFILLING: state.prefilling,
        RequestState.RUNNING: state.running,
        RequestState.SWAPPED: state.swapped,
    }
    rows: list[Sequence] = [a.seq for a in plan.admit] + [c.seq for c in plan.prefill] + [v.seq for v in plan.preempt]
    rows += [*plan.decode, *plan.resume, *(s for s, _ in plan.refuse), *(s for s, _ in plan.fail)]
    for seq in rows:
        home = homes.get(seq.state)
        if home is None or seq not in home:
            raise PolicyError(f"the plan names request {seq.id}, which is {seq.state.value} and not this engine's to run.")
    for seq in [*plan.release, *plan.wasted]:
        if seq not in state.ended:
            raise PolicyError(f"the plan names request {seq.id} as ended, but it is {seq.state.value}.")
