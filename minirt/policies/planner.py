"""A Planner keeps count of slots, blocks and tokens while a policy chooses, and the engine checks plans with it.

Its methods say whether a choice still fits (True/False, or how many tokens fit); they raise PolicyError for
what is never allowed, such as decoding a request that is not running. A plan written by hand, without a
Planner, is played through one by `validate` before anything is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any, Literal

from ..errors import PolicyError
from ..prefix import find_prefix
from ..request import RequestState, Sequence
from .base import Admission, Chunk, Preemption, State, StepPlan
from .checks import Counted, check_fits, check_known, check_shape, count, two_steps

UNLIMITED = 1 << 60
LISTS = ("refuse", "fail", "release", "preempt", "resume", "admit", "prefill", "decode", "wasted")


class Planner:
    """Builds a StepPlan under what is free now. budget: token positions this step may compute (None = any).

    free_blocks, free_slots, budget fall as choices are made. plan: what has been chosen so far.
    """

    def __init__(self, state: State, budget: int | None = None, mixed: bool = True) -> None:
        self.state = state
        self.plan = StepPlan(mixed=mixed, made_by=self)
        self._free_blocks = state.free_blocks
        self._free_slots = state.free_slots
        self._free_host = state.free_host_blocks
        self.budget = budget
        self._bs = state.limits.block_size
        self._busy: set[int] = set()  # ids that already have a row, or lost their place, in this plan
        self._arriving: dict[int, tuple[int, int]] = {}  # admitted or resumed here -> tokens in the cache, blocks held
        self._delta: dict[int, int] = {}  # block -> change of its refcount by this plan
        self._free_map: bytearray | None = None  # copied only when a reservation must be contiguous
        self._made = StepPlan()  # the same choices once more, to notice what is changed by hand

    def untouched(self, plan: StepPlan) -> bool:
        """Whether `plan` still holds just what this planner put there."""
        return plan is self.plan and all(getattr(plan, name) == getattr(self._made, name) for name in LISTS)

    free_blocks, free_slots, free_host = Counted(), Counted(), Counted()  # the plan is trusted for these counts

    @property
    def budget(self) -> int:
        """Token positions left; the policy may set it at any time."""
        return self._budget

    @budget.setter
    def budget(self, tokens: int | None) -> None:
        self._budget = UNLIMITED if tokens is None else count("budget", tokens)

    # -- rows -----------------------------------------------------------------------------------
    def decode(self, seq: Sequence) -> bool:
        """One more token for a running request; False if there is no block or no budget for it."""
        self._not_yet_in(seq)
        if seq.state is RequestState.RUNNING:
            held = len(seq.table.blocks) if seq.table is not None else 0
        elif seq.state is RequestState.SWAPPED and seq.id in self._arriving and seq.remaining == 1:
            held = seq.num_swapped
        else:
            raise PolicyError(
                f"request {seq.id} can't decode: it is {seq.state.value}, not running, and {seq.remaining} of its "
                f"{len(seq.tokens)} tokens are still to be prefilled."
            )
        need = 1 if seq.num_computed >= held * self._bs else 0
        if need > self._free_blocks or self._budget < 1:
            return False
        self._free_blocks -= need
        self._budget -= 1
        self._busy.add(seq.id)
        self.plan.decode.append(seq)
        self._made.decode.append(seq)
        return True

    def prefill(self, seq: Sequence, n: int | None = None, padding: int = 0) -> int:
        """Up to n more prompt tokens of a prefilling request (None = all). How many fit the budget; 0 if no block."""
        self._not_yet_in(seq)
        n, padding = count("n", n), count("padding", padding)
        if seq.state is RequestState.PREFILLING and seq.table is not None:
            start, held = seq.num_computed, len(seq.table.blocks)
        elif seq.id in self._arriving and (seq.state is RequestState.WAITING or seq.remaining > 1):
            start, held = self._arriving[seq.id]
        else:
            raise PolicyError(f"request {seq.id} can't prefill: it is {seq.state.value}, and was not admitted.")
        if padding is None or padding < 0:
            raise PolicyError(f"request {seq.id} is to be padded by {padding} positions; it must be 0 or more.")
        left = len(seq.tokens) - start
        n = min(left if n is None else n, left, self._budget)
        if n < 1:
            return 0
        need = max(0, -(-(start + n) // self._bs) - held)
        if need > self._free_blocks:
            return 0
        self._free_blocks -= need
        self._budget -= n
        self._busy.add(seq.id)
        self._put("prefill", Chunk(seq, n, padding))
        return n

    # -- coming in ------------------------------------------------------------------------------
    def admit(
        self, seq: Sequence, chunk: int | None = None, reserve: int | None = None, keep: int = 0, padding: int = 0
    ) -> bool:
        """Give a waiting request a slot and its first `chunk` prompt tokens (None = all that the budget allows).

        reserve: set that many tokens aside at once, in consecutive blocks. keep: blocks that must stay free
        afterwards (a watermark). chunk=0 admits without computing. False, and nothing is planned, if it won't fit.
        """
        self._not_yet_in(seq, arriving=True)
        if seq.state is not RequestState.WAITING:
            raise PolicyError(f"request {seq.id} can't be admitted: it is {seq.state.value}, not waiting.")
        chunk, keep, padding = count("chunk", chunk), count("keep", keep) or 0, count("padding", padding) or 0
        wants_row = chunk is None or chunk > 0
        if self._free_slots < 1 or (wants_row and self._budget < 1):
            return False
        if reserve is not None:
            return self._admit_reserved(seq, chunk, reserve, keep, padding)
        hits = find_prefix(self.state.pool, seq) if self.state.prefix_caching else []
        if self._free_map is not None:  # what a run was promised can't be hit
            hits = list(takewhile(lambda b: self._refs(b) or self.free_map()[b], hits))
        cached = len(hits) * self._bs
        n = min(UNLIMITED if chunk is None else chunk, len(seq.tokens) - cached, self._budget)
        revived = sum(1 for b in hits if self._refs(b) == 0)
        need = -(-(cached + n) // self._bs) - len(hits)
        if self._free_blocks - need - revived < keep:
            return False
        for b in hits:
            self._delta[b] = self._delta.get(b, 0) + 1
            if self._free_map is not None:
                self._free_map[b] = 0
        self._free_blocks -= revived
        self._enter(seq, cached, len(hits))
        self._put("admit", Admission(seq))
        if wants_row:
            self.prefill(seq, n, padding)
        return True

    def _admit_reserved(self, seq: Sequence, chunk: int | None, reserve: int, keep: int, padding: int) -> bool:
        if not isinstance(reserve, int) or reserve < len(seq.tokens):
            raise PolicyError(
                f"request {seq.id} reserves {reserve} tokens but already has {len(seq.tokens)}; reserve at least that."
            )
        if self.plan.resume:
            raise two_steps(seq, self.plan.resume[0])
        longest = self.state.limits.max_model_len
        if reserve > longest:
            raise PolicyError(f"request {seq.id} reserves {reserve} tokens; none can grow beyond {longest}. Reserve that.")
        need = -(-reserve // self._bs)
        start = self.free_map().find(b"\x01" * need)
        if self._free_blocks - need < keep or start < 0:
            self.plan.blocked_need = self.plan.blocked_need or need
            return False
        self.free_map()[start : start + need] = bytes(need)
        self._free_blocks -= need
        self._enter(seq, 0, need)
        self._put("admit", Admission(seq, reserve))
        if chunk is None or chunk > 0:
            self.prefill(seq, chunk, padding)
        return True

    def _enter(self, seq: Sequence, cached: int, blocks: int) -> None:
        self._free_slots -= 1
        self._arriving[seq.id] = (cached, blocks)

    def resume(self, seq: Sequence, keep: int = 0) -> bool:
        """Bring a swapped request's KV back from host memory into a free slot; it may have a row in this step."""
        self._not_yet_in(seq, arriving=True)
        keep = count("keep", keep) or 0
        if seq.state is not RequestState.SWAPPED:
            raise PolicyError(f"request {seq.id} can't be resumed: it is {seq.state.value}, not swapped out.")
        for admission in self.plan.admit:
            if admission.reserve is not None:
                raise two_steps(admission.seq, seq)
        if self._free_slots < 1 or self._free_blocks - seq.num_swapped < keep:
            return False
        # Its host blocks don't count as free in this plan: the engine carries out swaps to the host before resumes.
        self._free_blocks -= seq.num_swapped
        self._enter(seq, seq.num_computed, seq.num_swapped)
        self._put("resume", seq)
        return True

    # -- going out ------------------------------------------------------------------------------
    def preempt(self, seq: Sequence, how: Literal["recompute", "swap"] = "recompute") -> bool:
        """Take slot and blocks from a resident request. False if "swap" finds no room in host memory."""
        if how not in ("recompute", "swap"):
            raise PolicyError(f'preempt(how={how!r}): it must be "recompute" or "swap".')
        self._must_be_resident(seq, "preempted")
        blocks = 0 if seq.table is None else len(seq.table.blocks)
        if how == "swap":
            if blocks > self._free_host:
                return False
            self._free_host -= blocks
        self._leave(seq)
        self._put("preempt", Preemption(seq, how))
        return True

    def release(self, seq: Sequence) -> None:
        """An ended row of a batch that returns together gives slot and blocks back."""
        self._not_yet_in(seq)
        if not seq.ended:
            raise PolicyError(f"request {seq.id} can't be released: its answer is not complete.")
        self._leave(seq)
        self._put("release", seq)

    def fail(self, seq: Sequence, why: str) -> None:
        """End a resident request that can't go on."""
        self._must_be_resident(seq, "failed")
        self._must_say(why, "failed")
        self._leave(seq)
        self._put("fail", (seq, why))

    def refuse(self, seq: Sequence, why: str) -> None:
        """End a waiting request that can never be served."""
        self._not_yet_in(seq, arriving=True)
        if seq.state is not RequestState.WAITING:
            raise PolicyError(f"request {seq.id} can't be refused: it is {seq.state.value}, not waiting.")
        self._must_say(why, "refused")
        self._busy.add(seq.id)
        self._put("refuse", (seq, why))

    def waste(self, seqs: Iterable[Sequence]) -> None:
        """Compute ended rows all the same, as a static batch does until it returns."""
        for seq in seqs:
            self._not_yet_in(seq)
            if not seq.ended:
                raise PolicyError(f"request {seq.id} can't be a wasted row: it is {seq.state.value} and has not ended.")
            self._busy.add(seq.id)
            self._put("wasted", seq)

    # -- counting -------------------------------------------------------------------------------
    def _put(self, name: str, entry: Any) -> None:
        getattr(self.plan, name).append(entry)
        getattr(self._made, name).append(entry)

    def _not_yet_in(self, seq: Sequence, arriving: bool = False) -> None:
        if not isinstance(seq, Sequence):
            raise PolicyError(f"a plan is made of requests taken from the state; {seq!r} is a {type(seq).__name__}.")
        if seq.id in self._busy or (arriving and seq.id in self._arriving):
            raise PolicyError(
                f"request {seq.id} stands twice in one plan: it has one row a step, and none when it leaves its slot."
            )

    def _must_say(self, why: object, what: str) -> None:
        if not isinstance(why, str):
            raise PolicyError(f"a request is {what} with why={why!r}; it must be a string, for the caller to read.")

    def _must_be_resident(self, seq: Sequence, what: str) -> None:
        self._not_yet_in(seq, arriving=True)
        if seq.state not in (RequestState.RUNNING, RequestState.PREFILLING):
            raise PolicyError(f"request {seq.id} can't be {what}: it is {seq.state.value}, and holds no slot.")

    def _leave(self, seq: Sequence) -> None:
        self._busy.add(seq.id)
        self._free_slots += 1
        for b in seq.table.blocks if seq.table is not None else ():
            self._delta[b] = self._delta.get(b, 0) - 1
            if self._refs(b) == 0:
                self._free_blocks += 1
                if self._free_map is not None:
                    self._free_map[b] = 1

    def free_map(self) -> bytearray:
        """For each block 1 if it is free after what is planned so far (growth on demand, which goes anywhere, left out)."""
        if self._free_map is None:
            self._free_map = bytearray(self.state.pool.free_map)
            for b in self._delta:
                self._free_map[b] = self._refs(b) == 0
        return self._free_map

    def _refs(self, block: int) -> int:
        return self.state.pool.refs[block] + self._delta.get(block, 0)


def validate(plan: StepPlan, state: State) -> None:
    """Raise PolicyError, with the rule and the numbers, if the plan can't be carried out in this state.

    A plan that a Planner built on this very state, and that nobody changed since, has been counted already.
    """
    if not isinstance(plan, StepPlan):
        raise PolicyError(f"plan() must return a StepPlan, not {type(plan).__name__}. Did it forget `return p.plan`?")
    if plan.wait_until is not None and not isinstance(plan.wait_until, (int, float)):
        raise PolicyError(f"plan.wait_until={plan.wait_until!r} must be a time in the clock's unit, or None.")
    if plan.made_by is not None and not isinstance(plan.made_by, Planner):
        raise PolicyError(f"plan.made_by={plan.made_by!r} must be the Planner that built the plan, or None.")
    if type(plan.blocked_need) is not int or plan.blocked_need < 0:
        raise PolicyError(f"plan.blocked_need={plan.blocked_need!r} must be a whole number of blocks, 0 or more.")
    if plan.made_by is not None and plan.made_by.state is state and plan.made_by.untouched(plan):
        return check_known(plan, state)
    check_shape(plan)
    check_known(plan, state)
    p = Planner(state, mixed=plan.mixed)
    for seq, why in plan.refuse:
        p.refuse(seq, why)
    for seq, why in plan.fail:
        p.fail(seq, why)
    for seq in plan.release:
        p.release(seq)
    for seq, how in plan.preempt:
        if not p.preempt(seq, how):
            blocks = 0 if seq.table is None else len(seq.table.blocks)
            raise PolicyError(
                f"no room to swap request {seq.id} out: it holds {blocks} blocks and {p.free_host} of "
                f'{state.limits.host_blocks} host blocks are free. Preempt it by "recompute", or raise host_blocks.'
            )
    for seq in plan.resume:
        check_fits(p.resume(seq), p, f"resume request {seq.id}, which needs a slot and {seq.num_swapped} blocks")
    for seq, reserve in plan.admit:
        run = "" if reserve is None else f" with {-(-reserve // state.limits.block_size)} blocks in a row"
        check_fits(p.admit(seq, chunk=0, reserve=reserve), p, f"admit request {seq.id}{run}", run=bool(run))
    for seq in plan.decode:
        check_fits(p.decode(seq), p, f"decode request {seq.id}, which needs a new block for token {seq.num_computed + 1}")
    for seq, n, padding in plan.prefill:
        if not 1 <= n <= seq.remaining:
            raise PolicyError(
                f"request {seq.id} is to prefill {n} tokens: a chunk has at least 1, and {seq.remaining} of its "
                f"{len(seq.tokens)} tokens are not in the cache yet."
            )
        check_fits(p.prefill(seq, n, padding), p, f"prefill {n} tokens of request {seq.id}")
    p.waste(plan.wasted)
