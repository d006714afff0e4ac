"""What a run was worth: latencies, throughput, occupancy and memory, all from its Trace and from nothing else.

    m = RunMetrics.from_trace(trace)
    m.decode_steps, m.throughput, m.occupancy, m.ttft.p99, m.goodput(ttft=1.0, tpot=0.05)

Times are in the clock's unit (m.unit: "step" or "s"), throughput in tokens a unit. TPOT has two definitions, and
both are here. `tpot` is the time from a request's token to its next. `tpot_charged` also charges the wait until
the whole answer is handed over: the same under continuous batching, but under a static batch a short answer
waits for the longest one beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from .tally import Life, Tally, tally
from .trace import Trace


class Summary(NamedTuple):
    """A distribution in seven numbers; percentiles by linear interpolation. n = 0: all others are NaN."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Summary:
        """Summarise values; None (a request that never came to it) is left out."""
        v = np.asarray([x for x in values if x is not None] if isinstance(values, list) else values, np.float64)
        if not v.size:
            return cls(0, *[math.nan] * 6)
        p50, p90, p95, p99 = np.percentile(v, [50, 90, 95, 99])
        return cls(v.size, float(v.mean()), float(p50), float(p90), float(p95), float(p99), float(v.max()))


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One request. Latencies count from its arrival; None where it never came to that (or has one token: TPOT).

    e2e: to its last token. e2e_returned: to when the caller had the answer (with the batch, under static). cached:
    prompt tokens found in the prefix cache, over all its admissions. finish_reason: None while it is running, "moved"
    where it went on in another engine.
    """

    id: int
    name: str
    arrival: float
    num_prompt: int
    num_tokens: int
    queue_wait: float | None
    ttft: float | None
    tpot: float | None
    tpot_charged: float | None
    e2e: float | None
    e2e_returned: float | None
    preempted: int
    cached: int
    finish_reason: str | None


class KVShares(NamedTuple):
    """What the KV memory in use held, on average over time; the four add up to 1 (Kwon et al., SOSP 2023, figure 2).

    valid: tokens. reserved: empty, and its owner fills it later. internal: empty, and never filled. external: free
    blocks in runs too short for the reservation that waits (none where memory is paged).
    """

    valid: float
    reserved: float
    internal: float
    external: float


class LittlesLaw(NamedTuple):
    """L = rate x wait (Little, 1961): a self-check of the trace, as its two sides are counted independently.

    in_system: requests in the system on average, L, from the gauges of each step. rate: requests that joined the queue
    a unit of time. wait: how long each stayed, on average, from its events. error: relative; above 1e-6 a record lies.
    """

    in_system: float
    rate: float
    wait: float
    error: float


@dataclass(frozen=True)
class RunMetrics:
    """Metrics of a run. All shares are 0 to 1.

    decode_steps: steps in which somebody received a token. static_total: steps that static batches of
    max_batch_size in arrival order would take, the sum of each batch's longest answer. lower_bound: no schedule can
    take fewer, max(longest answer, ceil(tokens / max_batch_size)). occupancy: (1/N) sum(B_t / B_max) over the
    decode steps, B_t useful rows. wasted_rows: rows computed for requests that had ended. padding_tokens: positions
    computed to pad prompts. duration: from the first step to the end of the last that computed. fragmentation:
    1 - valid / capacity of the blocks in use, averaged over time. preemptions: by kind. guesses, guesses_right: of
    speculation (lower_bound and static_total assume one token a row and step, so they don't hold with it).
    """

    unit: str
    policy: str
    max_batch_size: int
    requests: list[RequestMetrics]
    duration: float
    tokens: int
    decode_steps: int
    static_total: int
    lower_bound: int
    occupancy: float
    wasted_rows: int
    padding_tokens: int
    computed_tokens: int
    queue_wait: Summary
    ttft: Summary
    tpot: Summary
    tpot_charged: Summary
    itl: Summary
    e2e: Summary
    e2e_returned: Summary
    fragmentation: float
    kv: KVShares
    cached_tokens: int
    preemptions: dict[str, int]
    guesses: int
    guesses_right: int
    littles_law: LittlesLaw

    @classmethod
    def from_trace(cls, trace: Trace) -> RunMetrics:
        """Compute everything from a trace, of a finished run or of one still going on."""
        t = tally(trace)
        rows = [_request(trace, i, life) for i, life in t.lives.items()]
        slots = int(trace.meta.get("max_batch_size", 1))
        lengths = [r.num_tokens for r in sorted(rows, key=lambda r: (r.arrival, r.id)) if r.num_tokens]
        return cls(
            unit=str(trace.meta.get("unit", "step")),
            policy=str(trace.meta.get("policy", "?")),
            max_batch_size=slots,
            requests=rows,
            duration=t.end - t.start,
            tokens=t.tokens,
            decode_steps=t.decode_steps,
            static_total=static_steps(lengths, slots),
            lower_bound=max(max(lengths, default=0), -(-t.tokens // slots)),
            occupancy=t.useful_rows / (t.decode_steps * slots) if t.decode_steps else 0.0,
            wasted_rows=t.wasted_rows,
            padding_tokens=t.padding_tokens,
            computed_tokens=t.computed_tokens,
            queue_wait=Summary.of([r.queue_wait for r in rows]),
            ttft=Summary.of([r.ttft for r in rows]),
            tpot=Summary.of([r.tpot for r in rows]),
            tpot_charged=Summary.of([r.tpot_charged for r in rows]),
            itl=Summary.of(t.gaps),
            e2e=Summary.of([r.e2e for r in rows]),
            e2e_returned=Summary.of([r.e2e_returned for r in rows]),
            fragmentation=t.fragmentation,
            kv=KVShares(
                t.valid, max(0.0, 1 - t.valid - t.internal - t.external) if t.valid else 0.0, t.internal, t.external
            ),
            cached_tokens=sum(r.cached for r in rows),
            preemptions=t.preemptions,
            guesses=t.guesses,
            guesses_right=t.guesses_right,
            littles_law=_little(t),
        )

    @property
    def throughput(self) -> float:
        """Output tokens a unit of time: sum(output lengths) / duration."""
        return self.tokens / self.duration if self.duration else 0.0

    @property
    def request_throughput(self) -> float:
        """Requests completed a unit of time."""
        return self.completed / self.duration if self.duration else 0.0

    @property
    def completed(self) -> int:
        """Requests whose answer is complete."""
        return sum(r.finish_reason in ("stop", "length") for r in self.requests)

    @property
    def tokens_per_step(self) -> float:
        """Output tokens a decode step: the article's throughput."""
        return self.tokens / self.decode_steps if self.decode_steps else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the guesses that were right; NaN where nothing was guessed."""
        return _ratio(self.guesses_right, self.guesses)

    def slo_attainment(self, ttft: float | None = None, tpot: float | None = None) -> float:
        """Share of all requests that were completed within both limits (None: no limit)."""
        return self._within(ttft, tpot) / len(self.requests) if self.requests else 0.0

    def goodput(self, ttft: float | None = None, tpot: float | None = None) -> float:
        """Requests a unit of time completed within both limits (as in DistServe, Zhong et al., OSDI 2024)."""
        return self._within(ttft, tpot) / self.duration if self.duration else 0.0

    def _within(self, ttft: float | None, tpot: float | None) -> int:
        return sum(
            r.finish_reason in ("stop", "length")
            and (ttft is None or r.ttft is None or r.ttft <= ttft)
            and (tpot is None or r.tpot is None or r.tpot <= tpot)
            for r in self.requests
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, for JSON (NaN becomes None)."""
        out: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "requests":
                value = [asdict(r) for r in value]
            elif isinstance(value, tuple):
                value = {k: None if math.isnan(v) else v for k, v in value._asdict().items()}  # type: ignore[attr-defined]
            out[name] = value
        for name in ("throughput", "request_throughput", "completed", "tokens_per_step"):
            out[name] = getattr(self, name)
        return out

    def __str__(self) -> str:
        u = self.unit
        kinds = ", ".join(f"{n} by {how}" for how, n in self.preemptions.items()) or "none"
        lines = [
            f"{self.policy}: {self.completed} of {len(self.requests)} requests, "
            f"{self.tokens} tokens in {self.duration:.6g} {u}",
            f"decode steps     {self.decode_steps}  (static {self.static_total}, lower bound {self.lower_bound})",
            f"throughput       {self.throughput:.4g} tokens/{u}, {self.request_throughput:.4g} requests/{u}, "
            f"{self.tokens_per_step:.2f} tokens/step",
            f"occupancy        {self.occupancy:.1%} of {self.max_batch_size} slots; "
            f"{self.wasted_rows} wasted rows, {self.padding_tokens} padding tokens",
            f"KV memory        fragmentation {self.fragmentation:.1%}; "
            + ", ".join(f"{k} {v:.1%}" for k, v in self.kv._asdict().items()),
            f"preemptions      {kinds}; {self.cached_tokens} prompt tokens from the prefix cache",
            f"{'[' + u + ']':16} {'mean':>9} {'p50':>9} {'p90':>9} {'p95':>9} {'p99':>9}",
        ]
        for name in ("queue_wait", "ttft", "tpot", "tpot_charged", "itl", "e2e", "e2e_returned"):
            s: Summary = getattr(self, name)
            cells = ["-" if math.isnan(x) else f"{x:.4g}" for x in s[1:6]]
            lines.append(f"{name:16} " + " ".join(f"{c:>9}" for c in cells))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<RunMetrics {str(self).splitlines()[0]}>"


class Comparison(NamedTuple):
    """How `b` does against `a`: ratios b / a. speedup: of throughput, TPT_b / TPT_a. steps: of decode steps."""

    speedup: float
    steps: float
    occupancy: float
    ttft_p99: float
    tpot_p99: float
    e2e_mean: float


def compare(a: RunMetrics, b: RunMetrics) -> Comparison:
    """Ratios b / a of two runs of the same requests: compare(static, continuous).speedup. NaN where a has none."""
    return Comparison(
        _ratio(b.throughput, a.throughput),
        _ratio(b.decode_steps, a.decode_steps),
        _ratio(b.occupancy, a.occupancy),
        _ratio(b.ttft.p99, a.ttft.p99),
        _ratio(b.tpot.p99, a.tpot.p99),
        _ratio(b.e2e_returned.mean, a.e2e_returned.mean),
    )


def static_steps(lengths: list[int], batch_size: int) -> int:
    """Steps that static batches of `batch_size`, in this order, take: the sum of each batch's longest answer."""
    return sum(max(lengths[i : i + batch_size]) for i in range(0, len(lengths), batch_size))


def _ratio(x: float, y: float) -> float:
    return x / y if y else math.nan


def _request(trace: Trace, i: int, life: Life) -> RequestMetrics:
    info = trace.requests[i]

    def since(start: float | None, end: float | None) -> float | None:
        return None if start is None or end is None else end - start

    def each(total: float | None) -> float | None:
        return total / (life.tokens - 1) if total is not None and life.tokens > 1 else None

    return RequestMetrics(
        id=i,
        name=info.name,
        arrival=info.arrival,
        num_prompt=info.num_prompt,
        num_tokens=life.tokens,
        queue_wait=since(info.arrival, life.admitted),
        ttft=since(info.arrival, life.first),
        tpot=each(since(life.first, life.last)),
        tpot_charged=each(since(life.first, life.returned)),
        e2e=since(info.arrival, life.last if life.reason in ("stop", "length") else None),
        e2e_returned=since(info.arrival, life.returned),
        preempted=life.preempted,
        cached=life.cached,
        finish_reason=life.reason,
    )


def _little(t: Tally) -> LittlesLaw:
    end = t.start + t.span
    stays = [(end if v.left is None else v.left) - v.joined for v in t.lives.values() if v.joined is not None]
    if not stays or not t.span:
        return LittlesLaw(0.0, 0.0, 0.0, 0.0)
    inside, rate, wait = t.in_system / t.span, len(stays) / t.span, sum(stays) / len(stays)
    return LittlesLaw(inside, rate, wait, abs(inside - rate * wait) / max(inside, rate * wait, 1e-300))
