"""The record of a run: one StepRecord a step, and the Trace that holds, saves and loads them.

Everything anyone draws or measures comes from here. A record holds only what changed in its step;
`replay()` rebuilds the state (queue, slots, block tables) from the changes. The file format is JSON
Lines: a header, one line a step, and an end line with the texts, so that a cut-off file is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .errors import TraceError
from .trace_checks import check_header, check_step

SCHEMA = 1

# What can happen to a request, in the order a life usually takes. `data` of each is given beside it.
EVENTS = {
    "arrived": "joined the waiting queue",
    "admitted": "got a slot; data: {slot, cached (prompt tokens found in the prefix cache), reserved (blocks)}",
    "first_token": "its first answer token",
    "finished": "its answer is complete; data: {reason: stop | length}",
    "released": "left its slot and gave its blocks back; data: {slot}",
    "preempted": "lost its slot and blocks; data: {how: recompute | swap, slot}",
    "resumed": "came back from host memory; data: {slot}",
    "moved_out": "went on in another engine, with its KV (a released stands before it); data: {blocks}",
    "moved_in": "came from another engine, its KV in host memory; data: {computed, generated (tokens so far), blocks}",
    "rejected": "can never be served; data: {error}",
    "aborted": "ended early; data: {error}",
}


class Event(NamedTuple):
    """Something that happened to request `id`; kinds and their data are listed in EVENTS."""

    kind: str
    id: int
    data: dict[str, Any] = {}


class PrefillRow(NamedTuple):
    """A prompt chunk computed in a step: positions start .. start + n, then `padding` positions for nothing."""

    id: int
    start: int
    n: int
    padding: int = 0


@dataclass(slots=True)
class StepRecord:
    """One engine step.

    time, duration: start and length, in the clock's unit. prefill, decode: the rows computed for use;
    wasted: ids of ended rows that a static batch computed all the same. drafted: (id, guesses computed behind the
    decode row's token, how many of them were right and kept). emitted / tokens: who received
    a token, and which (same length; a request receives at most one a step, unless speculation grants more,
    then its id stands there once a token). forwards: (tokens, rows) of each forward of the step.
    allocated / freed: (id, block ids) in order; a block given to a second id is shared. swapped_out /
    swapped_in: (id, number of blocks). The gauges hold after the step: blocks_used (with an owner),
    blocks_cached (free, but their prefix can be found again), valid (tokens in the cache, shared ones once),
    external (free blocks in runs too short for the contiguous reservation that had to wait), waiting, resident.
    """

    step: int
    time: float
    duration: float = 0.0
    prefill: list[PrefillRow] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    wasted: list[int] = field(default_factory=list)
    drafted: list[tuple[int, int, int]] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    forwards: list[tuple[int, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    allocated: list[tuple[int, list[int]]] = field(default_factory=list)
    freed: list[tuple[int, list[int]]] = field(default_factory=list)
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    blocks_used: int = 0
    blocks_cached: int = 0
    valid: int = 0
    external: int = 0
    waiting: int = 0
    resident: int = 0

    @property
    def end(self) -> float:
        """When the step's tokens came out, in the clock's unit."""
        return self.time + self.duration

    @property
    def batch_size(self) -> int:
        """Rows that did useful work in this step."""
        return len(self.prefill) + len(self.decode)

    @property
    def num_tokens(self) -> int:
        """Token positions computed, padding and wasted rows included."""
        return sum(t for t, _ in self.forwards)


@dataclass(slots=True)
class RequestInfo:
    """What the trace knows of a request. prompt is its text where it was given as text."""

    id: int
    name: str
    num_prompt: int
    max_new_tokens: int
    arrival: float
    priority: int = 0
    prompt: str | None = None


@dataclass
class Trace:
    """A run, step by step.

    meta: policy, policy_settings, max_batch_size, num_blocks, block_size, max_model_len, clock, unit
    ("step" or "s"), model, device, dtype. requests: by id. pieces: id -> the text each of its tokens added
    (joined they are the answer; empty strings where a character was not yet whole). outputs: id ->
    {finish_reason, error, text}.
    """

    meta: dict[str, Any] = field(default_factory=dict)
    requests: dict[int, RequestInfo] = field(default_factory=dict)
    steps: list[StepRecord] = field(default_factory=list)
    pieces: dict[int, list[str]] = field(default_factory=dict)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Trace(policy={self.meta.get('policy')}, requests={len(self.requests)}, steps={len(self.steps)})"

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.steps)

    def __getitem__(self, i: int) -> StepRecord:
        return self.steps[i]

    def to_dict(self) -> dict[str, Any]:
        """The whole trace as plain lists and dicts (what the widgets send to the browser)."""
        return {
            "schema": SCHEMA,
            "meta": self.meta,
            "requests": [asdict(r) for r in self.requests.values()],
            "steps": [_step_to_dict(s) for s in self.steps],
            "pieces": {str(k): v for k, v in self.pieces.items()},
            "outputs": {str(k): v for k, v in self.outputs.items()},
        }

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON Lines (written beside the target, then moved, so never half there)."""
        path = Path(path)
        whole = self.to_dict()
        head = {"minirt_trace": SCHEMA, "meta": whole["meta"], "requests": whole["requests"]}
        tail = {"end": len(self.steps), "pieces": whole["pieces"], "outputs": whole["outputs"]}
        tmp = path.with_name(path.name + ".part")
        try:
            with tmp.open("w", encoding="utf-8") as f:
                for line in [head, *whole["steps"], tail]:
                    f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            tmp.replace(path)
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what save() wrote. Raises TraceError naming the line where the file is damaged."""
        path = Path(path)
        if path.is_dir():
            raise TraceError(f"{path}: no such file; it is a folder. Give the trace file in it.")
        if not path.is_file():
            raise TraceError(f"{path}: no such file.")
        # Not splitlines(): texts may hold U+2028 and others that it takes for line ends. Decoded line by line, so that
        # bytes that are no text are named by their line as well.
        lines = path.read_bytes().rstrip(b"\n").split(b"\n")
        if lines == [b""]:
            raise TraceError(f"{path}: the file is empty; it should start with a header line.")
        head = _parse(path, 1, lines[0])
        if head.get("minirt_trace") != SCHEMA:
            raise TraceError(
                f"{path}, line 1: schema {head.get('minirt_trace')!r} where this version reads {SCHEMA}. "
                "Record the run again, or load it with the version that wrote it."
            )
        trace = cls()
        with _naming(path, 1):
            check_header(head["meta"], head["requests"])
            trace.meta = dict(head["meta"])
            trace.requests = {r["id"]: RequestInfo(**r) for r in head["requests"]}
        for n, text in enumerate(lines[1:-1], 2):
            record = _parse(path, n, text)
            with _naming(path, n):
                trace.steps.append(_step_from_dict(record, trace.requests))
                if len(trace.steps) > 1 and record["step"] != trace.steps[-2].step + 1:
                    raise ValueError(f"step {record['step']} follows step {trace.steps[-2].step}")
        tail = _parse(path, len(lines), lines[-1]) if len(lines) > 1 else {}
        if "end" not in tail:
            raise TraceError(f"{path}, line {len(lines)}: the end line is missing; the file was cut off here.")
        with _naming(path, len(lines)):
            if tail["end"] != len(trace.steps):
                raise ValueError(f"the end line counts {tail['end']} steps, the file holds {len(trace.steps)}")
            trace.pieces = {int(k): list(v) for k, v in tail["pieces"].items()}
            trace.outputs = {int(k): dict(v) for k, v in tail["outputs"].items()}
        return trace


def _parse(path: Path, n: int, text: bytes) -> dict[str, Any]:
    with _naming(path, n):
        got = json.loads(text)
        if not isinstance(got, dict):
            raise ValueError("not a JSON object")
        return got


class _naming:
    """Turn whatever goes wrong while reading a line into a TraceError that names the line."""

    def __init__(self, path: Path, line: int) -> None:
        self.path, self.line = path, line

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: object) -> None:
        damage = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
        if isinstance(e, damage) and not isinstance(e, TraceError):
            raise TraceError(f"{self.path}, line {self.line}: damaged ({type(e).__name__}: {e}).") from None


# Lists that are empty in most steps are left out of the file.
_LISTS = (
    "prefill", "decode", "wasted", "drafted", "emitted", "tokens", "forwards", "events", "allocated", "freed",
    "swapped_out", "swapped_in",
)  # fmt: skip
_GAUGES = ("step", "time", "duration", "blocks_used", "blocks_cached", "valid", "external", "waiting", "resident")


def _step_to_dict(s: StepRecord) -> dict[str, Any]:
    out: dict[str, Any] = {k: getattr(s, k) for k in _GAUGES}
    out.update({k: v for k in _LISTS if (v := getattr(s, k))})
    return out


def _step_from_dict(d: dict[str, Any], known: Container[int]) -> StepRecord:
    check_step(d, EVENTS)
    s = StepRecord(**{k: d[k] for k in _GAUGES})
    unknown = set(d) - set(_GAUGES) - set(_LISTS)
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    s.prefill = [PrefillRow(*r) for r in d.get("prefill", [])]
    s.events = [Event(*e) for e in d.get("events", [])]
    for k in ("decode", "wasted", "emitted", "tokens"):
        setattr(s, k, list(d.get(k, [])))
    for k in ("drafted", "forwards", "allocated", "freed", "swapped_out", "swapped_in"):
        setattr(s, k, [tuple(x) for x in d.get(k, [])])
    if len(s.emitted) != len(s.tokens):
        raise ValueError(f"{len(s.emitted)} receivers but {len(s.tokens)} tokens")
    rows = [*s.prefill, *s.drafted, *s.allocated, *s.freed, *s.swapped_out, *s.swapped_in]
    ids = [r[0] for r in rows] + [e.id for e in s.events] + s.decode + s.wasted + s.emitted
    for i in ids:
        if i not in known:
            raise ValueError(f"request {i!r} is not in the header")
    return s


def step_to_dict(record: StepRecord) -> dict[str, Any]:
    """One record as plain lists and dicts, as in the file (for widgets that draw a run as it happens)."""
    return _step_to_dict(record)
