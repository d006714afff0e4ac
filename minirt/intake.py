"""How requests come into the engine: checked once, then in line by the time they arrive.

A part of Engine, in a file of its own as lifecycle.py is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from .errors import RequestError
from .lifecycle import Lifecycle
from .policies.base import StepPlan
from .request import Request, RequestState, Sequence
from .trace import Event, RequestInfo


class Intake(Lifecycle):
    """The arriving half of Engine."""

    _ids: Iterator[int]
    _arriving: list[tuple[float, int, Sequence]]  # a heap by arrival

    def add(self, request: Request) -> int:
        """Queue a request; returns its id. One that can never be served ends at once as "rejected", with the numbers."""
        if not isinstance(request, Request):
            raise RequestError(f"add() takes a minirt.Request, not {type(request).__name__}.")
        seq_id = self._join(request, max(request.arrival, self.clock.now()))
        self._settle()
        return seq_id

    def _join(self, request: Request, arrival: float) -> int:
        seq_id, error = next(self._ids), None
        try:
            given = request.prompt_ids
            tokens = list(given) if given is not None else self.backend.encode(request.prompt or "")
            error = self._never_fits(request, tokens)
        except RequestError as e:
            tokens, error = [], str(e)
        seq = Sequence(seq_id, request, tokens, len(tokens), arrival)
        seq.priority, seq.max_new_tokens = request.priority, request.max_new_tokens
        self._seqs[seq_id] = seq
        name = request.name or f"R{seq_id}"
        self.trace.requests[seq_id] = RequestInfo(
            seq_id, name, len(tokens), request.max_new_tokens, arrival, request.priority, request.prompt
        )
        if error:
            self._end_unserved(seq, "rejected", error)
        else:
            heapq.heappush(self._arriving, (arrival, seq_id, seq))
        return seq_id

    def _never_fits(self, request: Request, tokens: list[int]) -> str | None:
        """Why this request can never be served, or None."""
        limits, n = self.limits, len(tokens)
        if request.stop and self.backend.detokenizer() is None:
            return f"stop={list(request.stop)!r} needs the answer's text, but {self.backend.name!r} has no tokenizer."
        if n == 0:
            return "the prompt has no tokens."
        if max(tokens) >= self.backend.vocab_size:
            top = self.backend.vocab_size - 1
            return f"token id {max(tokens)} is outside the model's vocabulary: ids go from 0 to {top}."
        total = n + request.max_new_tokens
        if total > limits.max_model_len:
            return (
                f"{n} prompt tokens and max_new_tokens={request.max_new_tokens} make {total}; the longest this engine "
                f"serves is {limits.max_model_len}. Shorten the prompt or ask for fewer tokens."
            )
        need = -(-(total - 1) // limits.block_size)
        if need > limits.num_blocks:
            return (
                f"{n} prompt tokens and max_new_tokens={request.max_new_tokens} need {need} KV blocks of "
                f"{limits.block_size} tokens; the whole pool has {limits.num_blocks}. Raise num_blocks."
            )
        return None

    # -- time -----------------------------------------------------------------------------------
    def _wake_up(self) -> float:
        """The time now, after requests whose time has come have joined the queue; jumps ahead if all is idle."""
        busy = self.waiting or self.prefilling or self.running or self.swapped or self.ended
        first = self._next_arrival()
        if not busy and first is not None:
            self.clock.idle_until(first)
        now = self.clock.now()
        while (first := self._next_arrival()) is not None and first <= now:
            seq = self._arriving[0][2]
            self.waiting.push(seq)
            self._pending_events.append(Event("arrived", seq.id))
            seq.state = RequestState.WAITING  # and so it is dropped from the heap
        return now

    def _next_arrival(self) -> float | None:
        """When the next request is to come; those aborted before their time are dropped."""
        while self._arriving and self._arriving[0][2].state is not RequestState.ARRIVING:
            heapq.heappop(self._arriving)
        return self._arriving[0][0] if self._arriving else None

    def _wait(self, plan: StepPlan) -> None:
        """The policy wants to wait: let time pass until the next arrival or its own deadline."""
        self.clock.idle_until(min(t for t in (plan.wait_until, self._next_arrival()) if t is not None))
