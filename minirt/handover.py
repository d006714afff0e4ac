"""Prefill on one engine, decode on another: a request is handed over with its KV and goes on there, token for token.

Prefill is bound by computing, decode by memory bandwidth, and in one engine each delays the other. Splitwise (Patel et
al., ISCA 2024) and DistServe (Zhong et al., OSDI 2024) give each phase machines of its own and send the KV across.

Here both engines live in one process. To hand over is a swap with two ends: the KV is copied out of the blocks of the
engine that sends, its host copy changes hands, and in the engine that receives the request stands among the swapped
ones, from where its policy resumes it into blocks of its own. What it is not: a network. The copy is charged where it
is copied in (as any swap), and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .engine import Engine
from .errors import ConfigError, RequestError
from .request import Output, Request, RequestState, Sequence
from .tally import token_times
from .trace import RequestInfo, Trace


@dataclass(slots=True)
class Handover:
    """A request on its way between two engines.

    tokens: prompt and answer so far, of which num_computed lie in kv. kv: the backend's host copy of num_blocks blocks.
    origin: what must be the same at the other end. time: when it left, in the clock's unit. id: at the sender.
    """

    id: int
    request: Request
    tokens: list[int]
    num_prompt: int
    num_computed: int
    num_blocks: int
    kv: Any
    origin: dict[str, Any]
    time: float

    @property
    def num_bytes(self) -> int:
        """Size of the KV copy; 0 from a backend that keeps none (the simulator's)."""
        return int(getattr(self.kv, "nbytes", 0))


def send(engine: Engine, seq_id: int) -> Handover:
    """Take a request that holds a slot out of an engine, between two steps; slot and blocks are free at once.

    For this engine its story ends here: no output, "moved" in the trace. Raises RequestError where there is no such
    request, or where it has nothing in the cache that could be sent.
    """
    seq = engine._seqs.get(seq_id)
    if seq is None:
        raise RequestError(f"no request {seq_id} to hand over: it has ended, was handed over, or never was here.")
    if seq.table is None or seq.num_computed == 0:
        raise RequestError(f"request {seq_id} can't be handed over: it is {seq.state.value}, with no KV in the cache.")
    blocks = seq.table.blocks[: -(-seq.num_computed // engine.limits.block_size)]
    engine.backend.copy_out(seq_id, blocks)
    out = Handover(
        seq_id, seq.request, list(seq.tokens), seq.num_prompt, seq.num_computed, len(blocks),
        engine.backend.take(seq_id), _origin(engine), engine.clock.now(),
    )  # fmt: skip
    (engine.running if seq_id in engine.running else engine.prefilling).pop(seq_id)
    engine._vacate(seq)
    seq.state, seq.ended, seq.finish_reason = RequestState.FINISHED, True, "moved"
    engine._log("moved_out", seq, {"blocks": out.num_blocks})
    del engine._seqs[seq_id]
    engine._settle()
    return out


def receive(engine: Engine, handover: Handover) -> int:
    """Let a request go on in this engine, between two steps; returns its id here.

    It waits among the swapped ones until the policy resumes it. Its arrival in this engine's trace is now, and its
    tokens so far stand in the event, not among those emitted. Raises ConfigError where it can't go on here: another
    model, dtype or block size, a policy that never resumes, no room in host memory or in the pool.
    """
    _check_ends(handover.origin, engine)
    if handover.num_blocks > room(engine):
        raise ConfigError(
            f"request {handover.id} brings {handover.num_blocks} blocks of KV; {room(engine)} of "
            f"{engine.limits.host_blocks} host blocks are free here. Hand over later, or raise host_blocks."
        )
    request = handover.request
    if error := engine._never_fits(request, handover.tokens[: handover.num_prompt]):
        raise ConfigError(f"request {handover.id} can't go on here: {error}")
    now = engine.clock.now()
    seq = Sequence(
        next(engine._ids), request, list(handover.tokens), handover.num_prompt, now, RequestState.SWAPPED,
        handover.num_computed, admitted_order=next(engine._order), num_swapped=handover.num_blocks,
        priority=request.priority, max_new_tokens=request.max_new_tokens,
    )  # fmt: skip
    engine.backend.put(seq.id, handover.kv)  # first: it may refuse
    engine.trace.requests[seq.id] = RequestInfo(
        seq.id, request.name or f"R{handover.id}", seq.num_prompt, seq.max_new_tokens, now, seq.priority, request.prompt
    )
    if engine.streaming or request.stop:
        for token in seq.output_ids:  # the text so far; no stop string is in it, or it would have ended
            engine._stream(seq, token)
    engine._host_used += seq.num_swapped
    engine.swapped[seq.id] = engine._seqs[seq.id] = seq
    data = {"computed": seq.num_computed, "generated": seq.num_generated, "blocks": seq.num_swapped}
    engine._log("moved_in", seq, data)
    return seq.id


def room(engine: Engine) -> int:
    """Blocks of KV that can be handed to this engine now."""
    return engine.limits.host_blocks - engine._host_used


def _origin(engine: Engine) -> dict[str, Any]:
    meta = engine.backend.describe()
    return {"model": meta["model"], "dtype": meta["dtype"], "block_size": engine.limits.block_size}


def _check_ends(theirs: dict[str, Any], engine: Engine) -> None:
    """Raise ConfigError unless KV that was made with `theirs` can be used in this engine, and its policy would."""
    ours = _origin(engine)
    if theirs != ours:
        raise ConfigError(
            f"a request can't be handed over: its KV was made with {_words(theirs)}; this engine has {_words(ours)}. "
            "Both ends must be the same."
        )
    if not getattr(engine.policy, "resumes", False):
        raise ConfigError(
            f"a request can't be handed over: policy {getattr(engine.policy, 'name', '?')!r} never resumes one whose KV "
            "is in host memory. Use policy='vllm', or one of your own with resumes = True."
        )


def _words(origin: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in origin.items())


@dataclass
class Disaggregated:
    """What came of a run on two engines.

    outputs: in the order the requests were given. prefill, decode: the engines' traces, on one time axis. ids: for each
    request its id there (None where it never came there). moved_blocks, moved_bytes: KV handed over.
    """

    outputs: list[Output]
    prefill: Trace
    decode: Trace
    ids: list[tuple[int, int | None]]
    moved_blocks: int = 0
    moved_bytes: int = 0

    def token_times(self) -> list[list[float]]:
        """For each request, when each of its tokens came out, wherever it did."""
        first, then = token_times(self.prefill), token_times(self.decode)
        return [first.get(a, []) + (then.get(b, []) if b is not None else []) for a, b in self.ids]


def serve(prefill: Engine, decode: Engine, requests: Iterable[Request]) -> Disaggregated:
    """Serve requests on two engines: each moves from `prefill` to `decode` as soon as its first token is there.

    Where `decode` has no room in host memory a request goes on where it is, and moves when there is; one that could
    never end there stays for good. The engine whose
    clock is behind has the next step, so that on step and model clocks the two run side by side. An interrupt or an
    error aborts what is running in both, as in Engine.run.
    """
    if prefill is decode:
        raise ConfigError("serve() needs two engines; one can't hand over to itself.")
    _check_ends(_origin(prefill), decode)
    prefill.reset()
    decode.reset()
    on_the_way: deque[Handover] = deque()
    became: dict[int, int] = {}  # id at prefill -> id at decode
    blocks = total_bytes = 0
    try:
        ids = [prefill._join(r, r.arrival) for r in requests]
        for engine in (prefill, decode):
            engine.clock.reset()
        prefill._settle()
        while prefill.has_work or decode.has_work or on_the_way:
            behind = prefill.has_work and (
                not (decode.has_work or on_the_way) or prefill.clock.now() <= _next_time(decode, on_the_way)
            )
            if behind:
                prefill.step()
                for i, seq in list(prefill.running.items()):
                    need = -(-seq.num_computed // prefill.limits.block_size)
                    fits = need <= room(decode) - sum(h.num_blocks for h in on_the_way)
                    if fits and not decode._never_fits(seq.request, seq.tokens[: seq.num_prompt]):
                        on_the_way.append(send(prefill, i))
                continue
            if not decode.has_work:
                decode.clock.idle_until(on_the_way[0].time)
            while on_the_way and on_the_way[0].time <= decode.clock.now():
                handover = on_the_way.popleft()
                became[handover.id] = receive(decode, handover)
                blocks += handover.num_blocks
                total_bytes += handover.num_bytes
            decode.step()
    except BaseException as e:
        for engine in (prefill, decode):
            engine._abandon(f"the run was interrupted ({type(e).__name__})")
        raise
    found = [decode.outputs[became[i]] if i in became else prefill.outputs[i] for i in ids]
    pairs = [(i, became.get(i)) for i in ids]
    return Disaggregated(found, prefill.trace, decode.trace, pairs, blocks, total_bytes)


def _next_time(decode: Engine, on_the_way: deque[Handover]) -> float:
    return decode.clock.now() if decode.has_work else max(decode.clock.now(), on_the_way[0].time)
