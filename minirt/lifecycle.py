"""What happens to one request inside the engine: slot and blocks taken, tokens received, the ways it can end.

A part of Engine, in a file of its own so that engine.py shows the loop and nothing else. Every change made
here is written into the step's record.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from .backends.base import Backend, ForwardBatch
from .blocks import BlockPool
from .clock import Clock
from .errors import RequestError
from .policies.base import Limits, Policy
from .prefix import register_full
from .queues import WaitingQueue
from .replay import held
from .request import Output, RequestState, Sequence
from .stopping import StoppingDetokenizer
from .trace import Event, StepRecord, Trace


class Lifecycle:
    """The per-request half of Engine."""

    policy: Policy
    backend: Backend
    pool: BlockPool
    limits: Limits
    clock: Clock
    trace: Trace
    waiting: WaitingQueue
    prefilling: dict[int, Sequence]
    running: dict[int, Sequence]
    ended: dict[int, Sequence]
    swapped: dict[int, Sequence]
    outputs: dict[int, Output]
    streaming: bool
    prefix_caching: bool
    returns_together: bool
    _seqs: dict[int, Sequence]
    _free_slots: list[int]
    _host_used: int
    _valid: int
    _tables: Any
    _record: StepRecord | None
    _batches: list[ForwardBatch]
    _pending_events: list[Event]
    _freed_between: list[tuple[int, list[int]]]

    @property
    def has_work(self) -> bool:
        raise NotImplementedError

    @property
    def step_count(self) -> int:
        """Steps recorded so far."""
        return len(self.trace.steps)

    # -- slots and blocks -----------------------------------------------------------------------
    def _log(self, kind: str, seq: Sequence, data: dict[str, Any] | None = None) -> None:
        events = self._pending_events if self._record is None else self._record.events
        events.append(Event(kind, seq.id, data or {}))

    def _take_slot(self, seq: Sequence) -> None:
        seq.slot = heapq.heappop(self._free_slots)
        seq.last_row = self.step_count

    def _hold(self, seq: Sequence, blocks: list[int]) -> None:
        """Append blocks to the request's table (and to the array the backend reads)."""
        if not blocks:
            return
        assert seq.table is not None and self._record is not None
        first = len(seq.table.blocks)
        seq.table.blocks += blocks
        if len(self._tables):
            self._tables[seq.slot, first : first + len(blocks)] = blocks
        self._record.allocated.append((seq.id, blocks))

    def _share(self, seq: Sequence, blocks: list[int]) -> None:
        """Hold blocks that already contain this request's next tokens: they need not be computed."""
        for block in blocks:
            self.pool.share(block)
        self._hold(seq, blocks)
        found = len(blocks) * self.limits.block_size
        seq.num_computed += found
        self._valid += found
        if seq.table is not None:
            seq.table.num_shared += len(blocks)

    def _grow(self, seq: Sequence, num_tokens: int) -> None:
        assert seq.table is not None
        self._hold(seq, self.pool.allocate(seq.table.blocks_for(num_tokens)))

    def _vacate(self, seq: Sequence) -> None:
        """Leave the slot and give every block back."""
        assert seq.table is not None
        blocks = seq.table.blocks
        self.pool.release(blocks)
        freed = self._freed_between if self._record is None else self._record.freed
        if blocks:
            freed.append((seq.id, blocks))
        self._valid -= seq.num_computed
        self._log("released", seq, {"slot": seq.slot})
        heapq.heappush(self._free_slots, seq.slot)
        seq.slot, seq.table = -1, None

    def _preempt(self, seq: Sequence, how: str) -> None:
        del (self.running if seq.id in self.running else self.prefilling)[seq.id]
        assert seq.table is not None and self._record is not None
        seq.num_preempted += 1
        self._log("preempted", seq, {"how": how, "slot": seq.slot})
        if how == "swap":
            seq.num_swapped = len(seq.table.blocks)
            self.backend.copy_out(seq.id, seq.table.blocks)
            self._host_used += seq.num_swapped
            self._record.swapped_out.append((seq.id, seq.num_swapped))
        self._vacate(seq)
        if how == "swap":
            seq.state = RequestState.SWAPPED
            self.swapped[seq.id] = seq
        else:
            seq.num_computed = 0
            seq.state = RequestState.WAITING
            self.waiting.push_front(seq)

    def _resume(self, seq: Sequence) -> None:
        from .blocks import BlockTable

        assert self._record is not None
        del self.swapped[seq.id]
        self._take_slot(seq)
        seq.table = BlockTable(self.limits.block_size)
        self._hold(seq, self.pool.allocate(seq.num_swapped))
        self.backend.copy_in(seq.id, seq.table.blocks)
        self._record.swapped_in.append((seq.id, seq.num_swapped))
        self._host_used -= seq.num_swapped
        self._valid += seq.num_computed
        seq.num_swapped = 0
        decoding = seq.remaining == 1
        seq.state = RequestState.RUNNING if decoding else RequestState.PREFILLING
        (self.running if decoding else self.prefilling)[seq.id] = seq
        self._log("resumed", seq, {"slot": seq.slot})

    # -- tokens ---------------------------------------------------------------------------------
    def _receive(self, seqs: list[Sequence], tokens: list[int | None]) -> None:
        """Hand each sampled row its token; None means that the backend saw the end of the sequence."""
        record = self._record
        assert record is not None
        bs = self.limits.block_size
        for seq, token in zip(seqs, tokens):
            if seq.state is RequestState.PREFILLING:
                del self.prefilling[seq.id]
                self.running[seq.id] = seq
                seq.state = RequestState.RUNNING
            elif self.prefix_caching and seq.num_computed % bs == 0:
                register_full(self.pool, seq, seq.num_computed - 1, seq.num_computed)
            if token is None:
                self.finish_request(seq, "stop")
                continue
            seq.tokens.append(token)
            record.emitted.append(seq.id)
            record.tokens.append(token)
            n = len(seq.tokens) - seq.num_prompt
            if n == 1:
                self._log("first_token", seq)
            if (self.streaming or seq.request.stop) and self._stream(seq, token):
                self.finish_request(seq, "stop")
            elif n >= seq.max_new_tokens:
                self.finish_request(seq, "length")

    def _stream(self, seq: Sequence, token: int) -> bool:
        """Add the token's text to what has been said so far; True if a stop string is complete."""
        if seq.detokenizer is None:
            seq.detokenizer = self.backend.detokenizer()
            if seq.detokenizer is None:
                return False
            if seq.request.stop:
                seq.detokenizer = StoppingDetokenizer(seq.detokenizer, seq.request.stop)
        self.trace.pieces.setdefault(seq.id, []).append(seq.detokenizer.push(token))
        return bool(seq.request.stop) and seq.detokenizer.found

    def text(self, seq_id: int) -> str:
        """The answer so far (or in full) of a request, without a stop string or what may become one.

        Raises RequestError if there is no such request.
        """
        if seq_id in self.outputs:
            return self.outputs[seq_id].text
        if seq_id not in self._seqs:
            raise RequestError(f"no request {seq_id} here; known are {_few(self.trace.requests)}.")
        return "".join(self.trace.pieces.get(seq_id) or self.backend.pieces(self._seqs[seq_id].output_ids))

    # -- the ways a request ends ----------------------------------------------------------------
    def finish_request(self, seq: Sequence, reason: str) -> None:
        """The answer is complete. Slot and blocks are free for the next step, unless the batch returns together."""
        seq.ended = True
        del self.running[seq.id]
        self._log("finished", seq, {"reason": reason})
        seq.state = RequestState.FINISHED
        self._output(seq, reason)
        if self.returns_together:
            self.ended[seq.id] = seq
        else:
            self._vacate(seq)

    def abort(self, seq_id: int, why: str = "aborted by the caller") -> None:
        """End a request wherever it is; its slot and blocks are free at once. One that has ended stays as it is."""
        seq = self._seqs.get(seq_id)
        if seq is None:
            if seq_id in self.outputs:
                return
            raise RequestError(f"no request {seq_id} here; known are {_few(self.trace.requests)}.")
        self._end_early(seq, why)
        self._settle()

    def _settle(self) -> None:
        """Between steps: where no step is to come, write what has happened into a record that computes nothing."""
        if self._record is None and not self.has_work and (self._pending_events or self._freed_between):
            record = StepRecord(
                self.step_count, self.clock.now(), events=self._pending_events, freed=self._freed_between
            )
            self._pending_events, self._freed_between = [], []
            self._finish_record(record)

    def _end_early(self, seq: Sequence, why: str) -> None:
        if seq.table is not None:
            self.running.pop(seq.id, None)
            self.prefilling.pop(seq.id, None)
            self._vacate(seq)
        self._end_unserved(seq, "aborted", why)

    def _end_unserved(self, seq: Sequence, reason: str, error: str) -> None:
        if seq in self.waiting:
            self.waiting.remove(seq)
        if self.swapped.pop(seq.id, None) is not None:
            self.backend.drop(seq.id)
            self._host_used -= seq.num_swapped
        seq.error = error
        seq.ended = True
        seq.state = RequestState.FINISHED
        self._log(reason, seq, {"error": error})
        self._output(seq, reason)

    def _output(self, seq: Sequence, reason: str) -> None:
        seq.finish_reason = reason
        ids = seq.output_ids
        text = ""
        if ids and (pieces := self._all_pieces(seq, ids)):
            self.trace.pieces[seq.id] = pieces
            text = "".join(pieces)
        out = Output(seq.id, seq.request, seq.tokens[: seq.num_prompt], ids, text, reason, seq.error, seq.arrival)
        self.outputs[seq.id] = out
        self.trace.outputs[seq.id] = {"finish_reason": reason, "error": seq.error, "text": text}
        del self._seqs[seq.id]  # last: an interrupt before this leaves a request that _recover still ends

    def _all_pieces(self, seq: Sequence, ids: list[int]) -> list[str]:
        """The text of each token of a complete answer; the last one also gets what a cut-off character leaves."""
        decoder, pieces = seq.detokenizer, self.trace.pieces.get(seq.id, [])
        if decoder is None:
            decoder = self.backend.detokenizer()
            if decoder is None:
                return self.backend.pieces(ids)
            pieces = [decoder.push(t) for t in ids]
        if pieces:
            pieces[-1] += decoder.finish()
        return pieces

    # -- when a step fails ----------------------------------------------------------------------
    def _unfinished_residents(self) -> Iterator[Sequence]:
        for seq in list(self._seqs.values()):
            if seq.state is not RequestState.ARRIVING and seq not in self.waiting:
                yield seq

    def _recover(self, why: str) -> None:
        """After a failed step nothing the blocks hold can be trusted: abort residents, free everything, keep the queue.

        An interrupt may have struck between a change and its record. Requests are ended by what the engine knows,
        slots and blocks are given back by what the records say, so that the trace can still be replayed.
        """
        record, self._record = self._record, None
        cut_short = StepRecord(-1, 0.0, events=self._pending_events, freed=self._freed_between)
        before = [s for s in self.trace.steps if s is not record]
        slots, tables = held([*before, *([record] if record else []), cut_short])
        self._freed_between += tables.items()
        self._pending_events += [Event("released", i, {"slot": slot}) for i, slot in slots.items()]
        for seq in list(self._unfinished_residents()):
            self.backend.drop(seq.id)
            seq.slot, seq.table = -1, None
            seq.state, seq.ended, seq.error = RequestState.FINISHED, True, why
            self._log("aborted", seq, {"error": why})
            self._output(seq, "aborted")
        for group in (self.running, self.prefilling, self.swapped, self.ended):
            group.clear()
        self.pool = BlockPool(self.limits.num_blocks, self.limits.block_size)
        self._free_slots[:] = range(self.limits.max_batch_size)
        self._host_used = self._valid = 0
        if record is not None:
            record.events += self._pending_events
            record.freed += self._freed_between
            self._pending_events, self._freed_between = [], []
            self._finish_record(record)

    def _finish_record(self, record: StepRecord) -> None:
        """Close a step's record with the clock and the gauges, and add it to the trace."""
        record.duration = self.clock.now() - record.time
        record.blocks_used = self.pool.num_used
        record.blocks_cached = self.pool.num_cached
        record.valid = self._valid - self.pool.extra_refs * self.limits.block_size
        record.waiting = len(self.waiting)
        record.resident = self.limits.max_batch_size - len(self._free_slots)
        if not self.trace.steps or self.trace.steps[-1] is not record:
            self.trace.steps.append(record)
        self._record = None


def _few(ids: Any) -> str:
    ids = list(ids)
    return ", ".join(map(str, ids[:8])) + (f", … ({len(ids)} in all)" if len(ids) > 8 else "") if ids else "none yet"
