"""The engine: one loop that asks a policy for a plan, runs it as one or two forwards, and records what happened.

    waiting/running --policy.plan()--> StepPlan --> ForwardBatch --backend.execute()--> a token or None a row

Static and continuous batching are the same loop under different policies. The engine owns the queues, the
slots and the block bookkeeping; a policy only decides, a backend only computes.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends.base import Backend, BatchDecodeInput, ForwardBatch
from .blocks import BlockPool, BlockTable, check_sizes
from .clock import Clock, checked_clock
from .errors import ConfigError, PolicyError
from .policies import make_policy
from .policies.base import Admission, Chunk, Limits, Policy, State, StepPlan
from .policies.checks import flag, whole
from .policies.planner import UNLIMITED, validate
from .prefix import find_prefix, register_full
from .queues import QueueView, WaitingQueue
from .request import Output, RequestState, Sequence
from .run import Run, RunLoop
from .speculative import Proposer, Speculation
from .trace import Event, PrefillRow, StepRecord, Trace
from .watchdog import Watchdog


class Engine(RunLoop, Speculation):
    """Serves requests on one model, under one policy.

    lm: from load_model(), or a Backend. max_batch_size: slots. num_blocks x block_size: tokens of KV. host_blocks:
    room for KV that is swapped out (default: as many as num_blocks). max_model_len: longest prompt plus answer,
    in tokens (default and limit: the model's). prefix_caching: overrides the policy's own. streaming: keep the
    text of running requests up to date at every token. speculation: who guesses tokens for greedy rows to check,
    such as NgramLookup() (see minirt.speculative); None: one token a row. starvation_limit: steps after which a
    request that never gets its turn is an error of the policy (None = never). Other options go to the policy.
    One thread at a time may run an engine. Start processes with "spawn": after a fork torch's threads are gone.
    Raises ConfigError on settings that make no sense.
    """

    def __init__(
        self,
        lm: Any,
        policy: str | Policy | type = "vllm",
        *,
        max_batch_size: int = 16,
        num_blocks: int = 512,
        block_size: int = 16,
        host_blocks: int | None = None,
        max_model_len: int | None = None,
        prefix_caching: bool | None = None,
        clock: Clock | None = None,
        streaming: bool = False,
        speculation: Proposer | None = None,
        starvation_limit: int | None = 2000,
        **policy_options: Any,
    ) -> None:
        check_sizes(max_batch_size=max_batch_size, num_blocks=num_blocks, block_size=block_size)
        self.policy = make_policy(policy, **policy_options)
        self.backend: Backend = _backend_of(lm)
        longest = self.backend.max_model_len
        if max_model_len is not None and not 1 < whole("max_model_len", max_model_len, 2) <= longest:
            raise ConfigError(f"max_model_len={max_model_len} must be from 2 to the model's own {longest}.")
        host = num_blocks if host_blocks is None else whole("host_blocks", host_blocks, 0)
        self.limits = Limits(max_batch_size, num_blocks, block_size, max_model_len or longest, host)
        wanted = getattr(self.policy, "prefix_caching", False) if prefix_caching is None else prefix_caching
        self.prefix_caching = flag("prefix_caching", wanted)
        self.returns_together = bool(getattr(self.policy, "returns_together", False))
        self.clock: Clock = checked_clock(clock)
        self.streaming = streaming
        if speculation is not None and not callable(getattr(speculation, "propose", None)):
            raise ConfigError(f"speculation={speculation!r} needs a method propose(tokens, most) that returns token ids.")
        self.speculation = speculation
        self.watchdog = Watchdog(starvation_limit)
        self.backend.start(num_blocks, block_size, host)
        per_row = -(-self.limits.max_model_len // block_size)
        rows = max_batch_size if self.backend.needs_arrays else 0
        self._tables: NDArray[np.int32] = np.zeros((rows, min(per_row, num_blocks)), np.int32)
        self.outputs: dict[int, Output] = {}
        self.trace = Trace()
        self.last_run: Run | None = None
        self._seqs: dict[int, Sequence] = {}  # all that have not ended
        self.ended: dict[int, Sequence] = {}  # complete, but the batch has not returned yet
        self.reset()

    def reset(self, keep_cache: bool = False) -> None:
        """Forget the last run: an empty trace, no outputs, ids and clock from 0. run() begins with it.

        keep_cache: prefixes stay in the pool. Raises ConfigError while there are requests to serve.
        """
        if self.has_work:
            raise ConfigError(
                f"the engine still has {len(self._seqs) + len(self.ended)} requests that were add()ed: finish them with "
                "step() or abort() them first."
            )
        if not keep_cache:
            self.pool = BlockPool(self.limits.num_blocks, self.limits.block_size)
        self._seqs = {}
        self._arriving = []
        self.waiting = WaitingQueue()
        self.prefilling: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.ended = {}
        self.swapped: dict[int, Sequence] = {}
        self._free_slots = list(range(self.limits.max_batch_size))
        self._host_used = 0
        self._valid = 0  # tokens in the cache, each holder's counted
        self._order = itertools.count()
        self._ids = itertools.count()
        self._pending_events: list[Event] = []
        self._freed_between: list[tuple[int, list[int]]] = []
        self._batches: list[ForwardBatch] = []
        self._record: StepRecord | None = None
        self.outputs = {}
        self.trace = Trace(meta=self._describe())
        self.watchdog.reset()
        self.clock.reset()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: requests waiting, arriving, or resident."""
        return bool(self._seqs) or bool(self.ended)

    # -- one step -------------------------------------------------------------------------------
    def step(self) -> StepRecord:
        """Plan, run and record one step.

        If it is interrupted or the backend fails, resident requests are aborted, every block is free again, what
        waits keeps waiting, and the error is raised; the engine can go on.
        """
        if not self.has_work:
            raise ConfigError("step() was called but there is no work: add() a request first (see has_work).")
        now = self._wake_up()
        state = self._state(now)
        plan = self.policy.plan(state)
        validate(plan, state)
        waited = self.watchdog.idle(plan, state)
        if waited:
            self._wait(plan)
        record = StepRecord(self.step_count, now, events=self._pending_events, freed=self._freed_between)
        self._pending_events, self._freed_between = [], []
        self._record, self._batches = record, []
        self._budget_left = plan.made_by.budget if plan.made_by is not None else UNLIMITED
        try:
            self._carry_out(plan, record)
            swapped = sum(n for _, n in record.swapped_in) + sum(n for _, n in record.swapped_out)
            if not waited or self.clock.now() <= now:  # waiting has taken its time already
                self.clock.advance(self.backend, self._batches, swapped)
        except BaseException as e:
            self._recover(f"the step was interrupted ({type(e).__name__}: {e})".replace(": )", ")"))
            raise
        self._close(record, plan)
        self.watchdog.look(plan, self)
        return record

    def _state(self, now: float) -> State:
        return State(
            now, self.step_count, QueueView(self.waiting), self.prefilling.values(), self.running.values(),
            self.ended.values(), self.swapped.values(), len(self._free_slots), self.pool.num_free, self.limits,
            self._next_arrival() is not None, self.pool, self.limits.host_blocks - self._host_used, self.prefix_caching,
        )  # fmt: skip

    def _carry_out(self, plan: StepPlan, record: StepRecord) -> None:
        for seq, why in plan.refuse:
            self.waiting.remove(seq)
            self._end_unserved(seq, "rejected", why)
        for seq, why in plan.fail:
            self._end_early(seq, why)
        for seq in plan.release:
            self._vacate(seq)
            del self.ended[seq.id]
        for seq, how in plan.preempt:
            self._preempt(seq, how)
        for seq in plan.resume:
            self._resume(seq)
        self.admit_requests(plan.admit)
        for seq in plan.decode:
            if seq.table is not None and seq.num_computed >= seq.table.capacity:
                self._grow(seq, seq.num_computed + 1)
        chunks = [self._make_room(c) for c in plan.prefill]
        if plan.mixed:
            self._forward(plan.decode, plan.wasted, chunks)
        else:
            self.prefill_step(chunks)
            self.decode_one_step(plan.decode, plan.wasted)

    def admit_requests(self, admissions: list[Admission]) -> None:
        """Give each a slot and a block table: reserved whole, or begun with what the prefix cache holds of it."""
        for seq, reserve in admissions:
            self.waiting.remove(seq)
            self._take_slot(seq)
            table = seq.table = BlockTable(self.limits.block_size)
            seq.admitted_order = next(self._order)
            seq.state = RequestState.PREFILLING
            self.prefilling[seq.id] = seq
            if reserve is not None:
                self._hold(seq, self.pool.allocate_run(table.blocks_for(reserve)))
            elif self.prefix_caching:
                self._share(seq, find_prefix(self.pool, seq))
            data = {"slot": seq.slot, "cached": seq.num_computed, "reserved": len(table.blocks) if reserve else 0}
            self._log("admitted", seq, data)

    def _make_room(self, chunk: Chunk) -> Chunk:
        """Blocks for a chunk. Blocks that an earlier chunk of this very step fills can be shared: within a layer
        every row's K and V are written before any row attends."""
        seq, n, padding = chunk
        if self.prefix_caching and seq.table and seq.num_computed == seq.table.capacity:
            self._share(seq, find_prefix(self.pool, seq, skip=len(seq.table.blocks)))
            n = min(n, seq.remaining)
        self._grow(seq, seq.num_computed + n)
        if self.prefix_caching:
            register_full(self.pool, seq, seq.num_computed, seq.num_computed + n)
        return Chunk(seq, n, padding)

    # -- forwards -------------------------------------------------------------------------------
    def prefill_step(self, chunks: list[Chunk]) -> None:
        """One forward over prompt chunks alone."""
        if chunks:
            self._forward([], [], chunks)

    def decode_one_step(self, running: list[Sequence], wasted: list[Sequence]) -> None:
        """One forward in which every running request decodes one token (and ended ones are computed for nothing)."""
        if running or wasted:
            self._forward(running, wasted, [])

    def _forward(self, decode: list[Sequence], wasted: list[Sequence], chunks: list[Chunk]) -> None:
        record = self._record
        assert record is not None
        if not (decode or wasted or chunks):
            return
        record.prefill += [PrefillRow(c.seq.id, c.seq.num_computed, c.n, c.padding) for c in chunks]
        record.decode += [s.id for s in decode]
        record.wasted += [s.id for s in wasted]
        guesses = self._draft(decode) if self.speculation and decode else {}
        if guesses:
            decode = [s for s in decode if s not in guesses]
        rows = decode + wasted + [*guesses] + [c.seq for c in chunks]
        starts = [s.num_computed for s in decode] + [self._idle_position(s) for s in wasted]
        starts += [s.num_computed for s in guesses] + [c.seq.num_computed for c in chunks]
        ones = len(decode) + len(wasted)
        counts = [1] * ones + [1 + len(g) for g in guesses.values()] + [c.n for c in chunks]
        pads = [0] * (ones + len(guesses)) + [c.padding for c in chunks]
        drafts = dict(enumerate(guesses.values(), ones))
        sampled = list(range(len(decode))) + [*drafts]
        sampled += [ones + len(guesses) + i for i, c in enumerate(chunks) if c.n == c.seq.remaining]
        kind = BatchDecodeInput if not (chunks or guesses) else ForwardBatch
        batch = kind(rows, starts, counts, pads, ones, sampled, self._tables, self.limits.block_size, drafts)
        self._batches.append(batch)
        tokens = self.backend.execute(batch)
        record.forwards.append((batch.num_tokens, batch.num_rows))
        for seq in decode:
            seq.num_computed += 1
        for seq, n, _ in chunks:
            seq.num_computed += n
        self._valid += len(decode) + sum(c.n for c in chunks)
        if guesses:
            first = len(decode)
            last = first + sum(1 + len(g) for g in guesses.values())
            self._receive_drafted(guesses, tokens[first:last])
            del tokens[first:last]
        self._receive([rows[i] for i in sampled if i not in drafts], tokens)

    def _idle_position(self, seq: Sequence) -> int:
        """Where an ended row goes on writing: its context grows like everyone's, up to what it has reserved."""
        seq.num_wasted += 1
        assert seq.table is not None
        return min(seq.num_computed + seq.num_wasted - 1, seq.table.capacity - 1)


class ContinuousEngine(Engine):
    """Continuous batching: the batch is put together anew at every step (Yu et al., Orca, OSDI 2022)."""


class StaticEngine(Engine):
    """Static batching: same in, same out. The same engine under the `static` policy."""

    def __init__(self, lm: Any, *, max_batch_size: int = 16, num_blocks: int = 512, block_size: int = 16, **options: Any):
        if options.pop("policy", "static") != "static":
            raise ConfigError("StaticEngine always runs the 'static' policy; use ContinuousEngine(policy=…) for another.")
        super().__init__(
            lm, "static", max_batch_size=max_batch_size, num_blocks=num_blocks, block_size=block_size, **options
        )


def _backend_of(lm: Any) -> Backend:
    if hasattr(lm, "execute") and hasattr(lm, "start"):
        return lm  # type: ignore[no-any-return]
    if not hasattr(lm, "decoder"):
        raise ConfigError(f"an engine needs a model from minirt.load_model(), or a backend; got {type(lm).__name__}.")
    from .backends.native import NativeBackend  # torch is only loaded when weights are

    return NativeBackend(lm)


__all__ = ["ContinuousEngine", "Engine", "PolicyError", "StaticEngine"]
