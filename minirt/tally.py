"""One pass over a trace, counting everything the metrics need. See minirt.metrics for what is made of it.

The pass costs about a quarter of a microsecond a token. Memory is followed by its changes: who holds how many
blocks changes rarely, so the split of unused memory is summed over intervals and not over rows x steps.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from .errors import TraceError
from .trace import Event, StepRecord, Trace

NAN = float("nan")


@dataclass(slots=True)
class Life:
    """What the trace tells of one request. Times in the clock's unit; None where it never came to that.

    joined: when it entered the queue (the start of the first step after its arrival). returned: when the caller had
    the whole answer, which under a static batch is when the batch came back.
    """

    arrival: float
    joined: float | None = None
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    returned: float | None = None
    left: float | None = None
    tokens: int = 0
    cached: int = 0
    preempted: int = 0
    reason: str | None = None
    computed: int = 0  # tokens of it in the KV cache, as the pass goes along


@dataclass(slots=True)
class Tally:
    """Sums over a trace. Memory shares are averages over time; `gaps` are the times between a request's tokens."""

    lives: dict[int, Life] = field(default_factory=dict)
    gaps: array[float] = field(default_factory=lambda: array("d"))
    start: float = 0.0
    end: float = 0.0  # of the last step that computed something
    decode_steps: int = 0
    useful_rows: int = 0  # over those steps
    tokens: int = 0
    wasted_rows: int = 0
    padding_tokens: int = 0
    guesses: int = 0
    guesses_right: int = 0
    computed_tokens: int = 0
    preemptions: dict[str, int] = field(default_factory=dict)
    fragmentation: float = 0.0
    valid: float = 0.0
    internal: float = 0.0
    external: float = 0.0
    in_system: float = 0.0  # integral over time of the number of requests in the system, from the gauges
    span: float = 0.0  # of that integral


class _Holdings:
    """How many blocks each resident request has held since when, to split unused memory once its end is known.

    A token position that is allotted but empty is "reserved" if its owner fills it later and "internal" if it never
    does. Which of the two is known when the owner leaves: it then had `filled` tokens. `clock` is not time but the
    sum over steps of weight / memory, so that an interval's length is already a share.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.clock = 0.0
        self.internal = 0.0
        self._held: dict[int, list[tuple[float, int]]] = {}

    def change(self, i: int, blocks: int) -> None:
        """Request i holds so many blocks more (or fewer) from now on."""
        history = self._held.setdefault(i, [])
        history.append((self.clock, (history[-1][1] if history else 0) + blocks))

    def close(self, i: int, filled: int) -> None:
        """Request i leaves, having filled so many tokens."""
        history = self._held.pop(i, [])
        ends = [since for since, _ in history[1:]] + [self.clock]
        for (since, blocks), until in zip(history, ends):
            never = blocks * self.block_size - filled
            if never > 0:
                self.internal += never * (until - since)

    def open(self) -> list[int]:
        """Requests that hold blocks now."""
        return list(self._held)


def tally(trace: Trace) -> Tally:
    """Count a trace. Raises TraceError where it names a request it does not list."""
    t = Tally(lives={i: Life(r.arrival) for i, r in trace.requests.items()})
    if not trace.steps:
        return t
    t.start = t.end = trace.steps[0].time
    timed = any(r.duration > 0 for r in trace.steps)
    block_size = int(trace.meta.get("block_size", 1))
    holdings = _Holdings(block_size)
    swapped: set[int] = set()
    weights = pool_weights = 0.0
    before: StepRecord | None = None
    inside = 0  # requests in the system after the record before
    for record in trace.steps:
        try:
            leaving = _events_before(t, record, swapped)
            _rows(t, record)
        except KeyError as e:
            raise TraceError(f"step {record.step} names request {e}, which the trace does not list.") from None
        gone = {i for _, i, _ in leaving}
        for i, blocks in record.allocated:
            holdings.change(i, len(blocks))
        for i, blocks in record.freed:
            if i not in gone:
                holdings.change(i, -len(blocks))
        at_end = _events_after(t, record, leaving, holdings)
        # Gauges hold after the step, so the step's weight is added once its changes are in.
        w = record.duration if timed else 1.0
        memory = (record.blocks_used + record.external) * block_size
        if record.blocks_used:
            weights += w
            t.fragmentation += w * (1 - record.valid / (record.blocks_used * block_size))
        if memory:
            pool_weights += w
            holdings.clock += w / memory
            t.valid += w * record.valid / memory
            t.external += w * record.external * block_size / memory
        if before is not None:
            t.in_system += inside * (record.time - before.end)
        inside = record.waiting + record.resident + len(swapped)
        t.in_system += (inside + at_end) * record.duration
        before = record
    for i in holdings.open():  # a run still going on: what its requests may yet fill counts as reserved
        info = trace.requests[i]
        holdings.close(i, max(t.lives[i].computed, info.num_prompt + info.max_new_tokens - 1))
    t.span = trace.steps[-1].end - t.start
    t.fragmentation = t.fragmentation / weights if weights else 0.0
    if pool_weights:
        t.valid, t.external = t.valid / pool_weights, t.external / pool_weights
        t.internal = holdings.internal / pool_weights
    return t


def _events_before(t: Tally, record: StepRecord, swapped: set[int]) -> list[Event]:
    """Apply what happens before the forward; return the events by which requests leave their slot."""
    leaving = []
    for event in record.events:
        kind, i, data = event
        life = t.lives[i]
        if kind == "arrived":
            life.joined = record.time
        elif kind == "admitted":
            if life.admitted is None:
                life.admitted = record.time
            life.computed = int(data.get("cached", 0))
            life.cached += life.computed
        elif kind == "resumed":
            swapped.discard(i)
            if life.admitted is None:  # it came from another engine
                life.admitted = record.time
        elif kind == "moved_in":
            swapped.add(i)
            life.joined, life.computed = record.time, int(data["computed"])
        elif kind == "preempted":
            how = str(data.get("how"))
            t.preemptions[how] = t.preemptions.get(how, 0) + 1
            life.preempted += 1
            if how == "swap":
                swapped.add(i)
            leaving.append(event)
        elif kind in ("released", "rejected", "aborted", "moved_out"):
            swapped -= {i} if kind == "aborted" else set()
            leaving.append(event)
        elif kind == "finished":
            life.reason = str(data.get("reason"))
    return leaving


def _rows(t: Tally, record: StepRecord) -> None:
    """Count the rows and tokens of a step."""
    lives = t.lives
    for i, start, n, padding in record.prefill:
        life = lives[i]
        life.cached += max(0, start - life.computed)  # found since its admission, as in blocks this very step fills
        life.computed = start + n
        t.padding_tokens += padding
    for i in record.decode:
        lives[i].computed += 1
    for i, guesses, right in record.drafted:
        lives[i].computed += right
        t.guesses += guesses
        t.guesses_right += right
    t.wasted_rows += len(record.wasted)
    end = record.end
    if record.forwards:
        t.end = end
        t.computed_tokens += record.num_tokens
    if not record.emitted:
        return
    t.decode_steps += 1
    t.useful_rows += record.batch_size
    t.tokens += len(record.emitted)
    gap = t.gaps.append
    for i in record.emitted:
        life = lives[i]
        if life.last is None:
            life.first = end
        else:
            gap(end - life.last)
        life.last = end
        life.tokens += 1


def _events_after(t: Tally, record: StepRecord, leaving: list[Event], holdings: _Holdings) -> int:
    """Close the stays that ended in this step; return how many requests left the system at the step's end."""
    finished_now = {i for kind, i, _ in record.events if kind == "finished"}
    preempted = {i for kind, i, _ in leaving if kind == "preempted"}
    at_end = 0
    for kind, i, data in leaving:
        life = t.lives[i]
        holdings.close(i, life.computed)
        if kind == "preempted":
            if data.get("how") != "swap":
                life.computed = 0
        elif kind == "released" and life.reason and i not in preempted:
            # A row that ended in this very step left at its end; one of a returning batch left at its start.
            life.returned = life.left = record.end if i in finished_now else record.time
            at_end += i in finished_now
        elif kind in ("rejected", "aborted", "moved_out"):
            life.reason, life.left = "moved" if kind == "moved_out" else kind, record.time
    return at_end


def token_times(trace: Trace) -> dict[int, list[float]]:
    """When each token of each request came out, in the clock's unit; requests without a token are left out."""
    times: dict[int, list[float]] = {}
    for record in trace.steps:
        for i in record.emitted:
            times.setdefault(i, []).append(record.end)
    return times
