"""Rebuild a run's state from its trace alone: who waits, who holds which slot, which blocks belong to whom.

What it is: a StepRecord says what changed; a Replayer applies the changes one by one and complains where they
contradict each other. Tests compare its state with the engine's, pictures draw it. It never sees an engine.

    for state in replay(run.trace):
        print(state.step, state.slots, state.waiting)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .errors import TraceError
from .trace import StepRecord, Trace


@dataclass
class ReplayState:
    """The state after a step.

    step, time: of the record; time is its end. slots: slot -> request id, or None. waiting: ids in serving order.
    resident: ids that hold a slot, in order of admission. swapped: ids whose KV is in host memory. tables: id ->
    block ids. refs: block -> how many tables hold it (held blocks only). computed: id -> tokens of it that are in
    the cache. generated: id -> answer tokens so far. ended: ids whose answer is complete but that still hold their
    slot, under a static batch. finished: id -> "stop", "length", "rejected", "aborted", or "moved" to another engine.
    """

    step: int = -1
    time: float = 0.0
    slots: list[int | None] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    swapped: list[int] = field(default_factory=list)
    tables: dict[int, list[int]] = field(default_factory=dict)
    refs: dict[int, int] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    generated: dict[int, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    finished: dict[int, str] = field(default_factory=dict)

    def owners(self) -> dict[int, list[int]]:
        """Block -> ids of the requests that hold it, in order of admission."""
        out: dict[int, list[int]] = {}
        for i, table in self.tables.items():
            for block in table:
                out.setdefault(block, []).append(i)
        return out

    def snapshot(self) -> ReplayState:
        """A copy that later steps don't change."""
        return ReplayState(
            self.step,
            self.time,
            list(self.slots),
            list(self.waiting),
            list(self.resident),
            list(self.swapped),
            {i: list(t) for i, t in self.tables.items()},
            dict(self.refs),
            dict(self.computed),
            dict(self.generated),
            list(self.ended),
            dict(self.finished),
        )


class Replayer:
    """Applies records to `state`, one at a time; the cost of a step is about the number of its changes.

    Raises TraceError, naming the step, where a record contradicts what came before: a slot given twice, a block
    freed that its request does not hold, a token for a request that is not resident, a gauge that is off.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.state = ReplayState(slots=[None] * int(trace.meta.get("max_batch_size", 0)))

    def apply(self, record: StepRecord) -> ReplayState:
        """Advance by one record; returns the live state (take a snapshot() to keep it)."""
        s = self.state
        s.step, s.time = record.step, record.end
        left: list[int] = []  # who lost a slot; blocks go with it, once all that moved in this step is counted
        queued = False
        for kind, i, data in record.events:
            if kind == "arrived":
                s.waiting.append(i)
                queued = True
            elif kind == "admitted":
                self._remove(s.waiting, i, record, "is admitted but was not waiting")
                self._occupy(int(data["slot"]), i, record)
                s.computed[i] = int(data.get("cached", 0))
            elif kind == "resumed":
                self._remove(s.swapped, i, record, "is resumed but was not swapped out")
                self._occupy(int(data["slot"]), i, record)
            elif kind == "preempted":
                self._vacate(i, record)
                left.append(i)
                if data.get("how") == "swap":
                    s.swapped.append(i)
                else:
                    s.computed[i] = 0
                    s.waiting.insert(0, i)
                    queued = True
            elif kind == "finished":
                s.finished[i] = str(data.get("reason"))
                s.ended.append(i)
            elif kind == "released" and i not in left:  # every preemption and abort is followed by one
                self._vacate(i, record)
                left.append(i)
            elif kind == "moved_in":
                s.swapped.append(i)
                s.computed[i], s.generated[i] = int(data["computed"]), int(data["generated"])
            elif kind in ("rejected", "aborted", "moved_out"):
                self._end_early(kind, i, record)
                left.append(i)
        if queued:  # stable: first come, first served within a priority
            s.waiting.sort(key=self._priority)
        self._compute(record)
        self._move_blocks(record)
        for i in left:
            if i not in s.resident and s.tables.pop(i, []):
                raise TraceError(f"step {record.step}: request {i} left its slot but kept blocks.")
        self._check(record)
        return s

    def _priority(self, i: int) -> int:
        return self.trace.requests[i].priority

    def _remove(self, where: list[int], i: int, record: StepRecord, why: str) -> None:
        if i not in where:
            raise TraceError(f"step {record.step}: request {i} {why}.")
        where.remove(i)

    def _occupy(self, slot: int, i: int, record: StepRecord) -> None:
        s = self.state
        s.slots.extend([None] * (slot + 1 - len(s.slots)))
        if s.slots[slot] is not None:
            raise TraceError(f"step {record.step}: slot {slot} is given to request {i} while {s.slots[slot]} holds it.")
        s.slots[slot] = i
        s.resident.append(i)
        s.tables[i] = []

    def _vacate(self, i: int, record: StepRecord) -> None:
        s = self.state
        self._remove(s.resident, i, record, "leaves a slot but held none")
        s.slots[s.slots.index(i)] = None
        if i in s.ended:
            s.ended.remove(i)

    def _end_early(self, kind: str, i: int, record: StepRecord) -> None:
        s = self.state
        if i in s.resident:
            self._vacate(i, record)
        for where in (s.waiting, s.swapped):
            if i in where:
                where.remove(i)
        s.finished[i] = "moved" if kind == "moved_out" else kind

    def _compute(self, record: StepRecord) -> None:
        s = self.state
        # A row may leave in the step that computed it, so those that just left count as having been there.
        for i, start, n, _ in record.prefill:
            if i not in s.computed:
                raise TraceError(f"step {record.step}: request {i} prefills but was never admitted.")
            s.computed[i] = start + n
        for i in record.decode:
            if i not in s.computed:
                raise TraceError(f"step {record.step}: request {i} decodes but was never admitted.")
            s.computed[i] += 1
        for i, _, right in record.drafted:
            s.computed[i] += right
        for i in record.emitted:
            s.generated[i] = s.generated.get(i, 0) + 1

    def _move_blocks(self, record: StepRecord) -> None:
        # Both lists in one pass each: a table never holds a block twice, so taking blocks before giving them back
        # comes to the same for every request, whichever happened first.
        s = self.state
        for i, blocks in record.allocated:
            s.tables.setdefault(i, []).extend(blocks)
            for b in blocks:
                s.refs[b] = s.refs.get(b, 0) + 1
        for i, blocks in record.freed:
            table = s.tables.get(i, [])
            if set(blocks) - set(table):
                raise TraceError(f"step {record.step}: request {i} frees blocks {blocks} but holds {table}.")
            if len(blocks) == len(table):
                table.clear()
            else:
                for b in blocks:
                    table.remove(b)
            for b in blocks:
                s.refs[b] -= 1
                if not s.refs[b]:
                    del s.refs[b]

    def _check(self, record: StepRecord) -> None:
        s = self.state
        for name, gauge, counted in (
            ("blocks_used", record.blocks_used, len(s.refs)),
            ("resident", record.resident, len(s.resident)),
        ):
            if gauge != counted:
                raise TraceError(f"step {record.step}: {name}={gauge}, but the changes up to here give {counted}.")


def replay(trace: Trace) -> Iterator[ReplayState]:
    """The state after each step, as copies of their own (O(state) a step; use a Replayer for very long runs)."""
    replayer = Replayer(trace)
    for record in trace.steps:
        yield replayer.apply(record).snapshot()


def held(records: Iterable[StepRecord]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Who holds which slot (id -> slot) and which blocks (id -> blocks) after these records.

    Asks for no gauges, so the last record may be one that an interrupt cut short.
    """
    slots: dict[int, int] = {}
    tables: dict[int, list[int]] = {}
    for record in records:
        for kind, i, data in record.events:
            if kind in ("admitted", "resumed"):
                slots[i] = int(data["slot"])
            elif kind in ("preempted", "released", "aborted"):
                slots.pop(i, None)
        for i, blocks in record.allocated:
            tables.setdefault(i, []).extend(blocks)
        for i, blocks in record.freed:
            gone = set(blocks)
            tables[i] = [b for b in tables[i] if b not in gone]
    return slots, {i: blocks for i, blocks in tables.items() if blocks}


def state_at(trace: Trace, step: int) -> ReplayState:
    """The state after the step with index `step` (negative ones count from the end)."""
    index = range(len(trace.steps))[step]
    replayer = Replayer(trace)
    for record in trace.steps[: index + 1]:
        replayer.apply(record)
    return replayer.state
