"""A trace loads what it saved, and refuses a damaged file with the line at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minirt import Engine, Request, Trace, TraceError
from minirt.trace import EVENTS, SCHEMA
from tests.fake_backend import FakeBackend


class Talker(FakeBackend):
    """Answers with characters that some readers take for line ends."""

    def pieces(self, token_ids: Any) -> list[str]:
        return ["你\u2028\u0085\u2029\x0b🙂\n"[t % 7] for t in token_ids]


def recorded() -> Trace:
    engine = Engine(
        Talker(), "vllm", max_batch_size=3, num_blocks=8, block_size=4, preemption="swap", max_num_batched_tokens=12
    )
    requests = [
        Request(prompt_ids=[i, 2, 3, 4, 5, 6], max_new_tokens=10, arrival=i / 2, ignore_eos=i % 2 == 0, name=f"顾客{i}")
        for i in range(7)
    ]
    trace = engine.run([*requests, Request(prompt_ids=[1] * 600), Request("text \u2028 and more", max_new_tokens=3)]).trace
    kinds = {e.kind for s in trace for e in s.events}
    assert kinds == set(EVENTS) - {"aborted", "moved_out", "moved_in"}  # a run in which nearly everything happens
    return trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return recorded()


@pytest.fixture
def lines(trace: Trace, tmp_path: Path) -> list[str]:
    trace.save(tmp_path / "t.jsonl")
    return (tmp_path / "t.jsonl").read_text(encoding="utf-8").split("\n")[:-1]


def test_what_was_saved_comes_back_the_same(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "t.jsonl")
    again = Trace.load(str(tmp_path / "t.jsonl"))
    assert again == trace
    assert again.to_dict() == trace.to_dict()
    again.save(tmp_path / "u.jsonl")
    assert (tmp_path / "u.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"t.jsonl", "u.jsonl"}  # nothing half written is left


def test_the_file_starts_with_its_schema(lines: list[str], trace: Trace) -> None:
    head = json.loads(lines[0])
    assert head["minirt_trace"] == SCHEMA and head["meta"]["policy"] == "vllm"
    assert len(lines) == len(trace) + 2 and json.loads(lines[-1])["end"] == len(trace)


def test_an_empty_run_is_a_trace_too(tmp_path: Path) -> None:
    Engine(FakeBackend()).run([]).trace.save(tmp_path / "t.jsonl")
    assert len(Trace.load(tmp_path / "t.jsonl")) == 0


def edit(n: int, change: Callable[[dict[str, Any]], None]) -> Callable[[list[str]], int]:
    """Change line n (counted from 1); returns the line that should be named."""

    def apply(lines: list[str]) -> int:
        record = json.loads(lines[n - 1])
        change(record)
        lines[n - 1] = json.dumps(record, ensure_ascii=False)
        return n

    return apply


def cut(lines: list[str]) -> int:
    del lines[9:]
    return 9


def cut_inside(lines: list[str]) -> int:
    lines[6] = lines[6][: len(lines[6]) // 2]
    del lines[7:]
    return 7


def drop(lines: list[str]) -> int:
    del lines[5]
    return 6


def twice(lines: list[str]) -> int:
    lines.insert(4, lines[3])
    return 5


def garble(lines: list[str]) -> int:
    lines[3] = lines[3].replace(":", ";", 1)
    return 4


def empty_line(lines: list[str]) -> int:
    lines[2] = ""
    return 3


def no_object(lines: list[str]) -> int:
    lines[4] = "[1, 2]"
    return 5


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        cut_inside,
        drop,
        twice,
        garble,
        empty_line,
        no_object,
        edit(1, lambda r: r.pop("meta")),
        edit(1, lambda r: r["requests"][0].pop("num_prompt")),
        edit(1, lambda r: r.update(minirt_trace=99)),
        edit(1, lambda r: r.pop("minirt_trace")),
        edit(3, lambda r: r.pop("time")),
        edit(3, lambda r: r.update(time="soon")),
        edit(3, lambda r: r.update(blocks_used=None)),
        edit(3, lambda r: r.update(mystery=1)),
        edit(4, lambda r: r.update(emitted=[0, 1], tokens=[5])),
        edit(4, lambda r: r.update(decode=[77])),
        edit(4, lambda r: r.update(events=[["finished", 77, {}]])),
        edit(4, lambda r: r.update(events=[["finished"]])),
        edit(4, lambda r: r.update(prefill=3)),
    ],
)
def test_damage_is_named_by_its_line(damage: Callable[[list[str]], int], lines: list[str], tmp_path: Path) -> None:
    line = damage(lines)
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(TraceError) as e:
        Trace.load(path)
    assert f"damaged.jsonl, line {line}:" in str(e.value)


def test_damage_at_the_end_line(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    tail = json.loads(lines[-1])
    for change in ({"end": 3}, {"pieces": None}, {"outputs": {"x": {}}}):
        path.write_text("\n".join([*lines[:-1], json.dumps({**tail, **change})]), encoding="utf-8")
        with pytest.raises(TraceError, match=f"line {len(lines)}:"):
            Trace.load(path)


def test_files_that_are_no_traces(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "other.jsonl"
    with pytest.raises(TraceError, match="no such file"):
        Trace.load(path)
    with pytest.raises(TraceError, match="no such file"):
        Trace.load(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="empty"):
        Trace.load(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\x00")
    with pytest.raises(TraceError, match="line 1: damaged"):
        Trace.load(path)
    path.write_bytes("\n".join(lines[:4]).encode() + b"\n\xff\xfe\n")  # bytes that are no text, further down
    with pytest.raises(TraceError, match="line 5: damaged"):
        Trace.load(path)
