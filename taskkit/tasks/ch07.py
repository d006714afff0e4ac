"""Chapter 07, minirt: the pieces of a scheduler, three ways to break one, and the race."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ..free import Free
from ..kinds import Choice, Code, Judged
from ..task import Task
from .ch07_policies import beats_vllm, draw_race, draw_stall, draw_starve, stall_then_mend, starve_then_mend

# -- 07.2: cut prompts into pieces ------------------------------------------------------------------------------


def cut(remaining: list[int], chunk: int, budget: int) -> list[int]:
    """Prompt tokens each request computes in this step, the first come first."""
    out = []
    for left in remaining:
        n = min(left, chunk, budget)
        out.append(n)
        budget -= n
    return out


def _cut_only_whole(remaining: list[int], chunk: int, budget: int) -> list[int]:
    out = []
    for left in remaining:
        n = min(left, chunk)
        n = n if n <= budget else 0
        out.append(n)
        budget -= n
    return out


def _cut_and_stop(remaining: list[int], chunk: int, budget: int) -> list[int]:
    found = cut(remaining, chunk, budget)
    return [n for n in found if n]


def _prompts(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([900, 3000, 500], 1024, 2048), ([100, 100, 100], 64, 150), ([5000], 1024, 8192)]
    out: list[tuple[Any, ...]] = []
    for _ in range(40):
        left = [rng.randint(1, 400) for _ in range(rng.randint(1, 7))]
        out.append((left, rng.randint(20, 200), rng.randint(50, 600)))
    return fixed + out


# -- 07.3: whom to preempt --------------------------------------------------------------------------------------

Row = tuple[str, int, int, int]


def victims(running: list[Row], free: int, need: int) -> list[str] | None:
    """(name, priority, order of admission, blocks): whose blocks to take until `need` are free; None: in vain."""
    return _victims(running, free, need, lambda r: (-r[1], -r[2]))


def _victims(
    running: list[Row], free: int, need: int, rank: Callable[[Row], Any], change: str = ""
) -> list[str] | None:
    out: list[str] = []
    free = 0 if change == "ignores_free" else free
    for row in sorted(running, key=rank):
        if free > need if change == "one_more" else free >= need or (change == "only_one" and out):
            break
        out.append(row[0])
        free += row[3]
    return out if free >= need or change in ("only_one", "in_vain") else None


def _by(rank: Callable[[Row], Any], change: str = "") -> Any:
    def wrong(running: list[Row], free: int, need: int) -> list[str] | None:
        return _victims(running, free, need, rank, change)

    return wrong


def _last(r: Row) -> Any:
    return (-r[1], -r[2])


def _rows(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([("A", 0, 0, 6), ("B", 0, 1, 2), ("C", 0, 2, 3)], 0, 4), ([("A", 0, 0, 4), ("B", 5, 1, 2), ("C", 0, 2, 3)], 1, 2),
        ([("A", 0, 0, 4)], 2, 2), ([("A", 0, 0, 1)], 0, 3),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(60):
        n = rng.randint(1, 7)
        order = rng.sample(range(30), n)
        rows = [(chr(65 + i), rng.choice([0, 0, 0, 1, 5]), order[i], rng.randint(1, 6)) for i in range(n)]
        out.append((rows, rng.randint(0, 4), rng.randint(1, 12)))
    return fixed + out


# -- 07.4: shortest first, with ageing --------------------------------------------------------------------------


def order(waiting: list[tuple[str, int, float]], now: float, rate: float) -> list[str]:
    """(name, answer length, arrival): the order to admit in; a wait of one unit is worth `rate` tokens."""
    return [w[0] for w in sorted(waiting, key=lambda w: (w[1] - rate * (now - w[2]), w[2]))]


def _sorted_by(key: Callable[[tuple[str, int, float], float, float], Any]) -> Any:
    return lambda waiting, now, rate: [w[0] for w in sorted(waiting, key=lambda w: (key(w, now, rate), w[2]))]


def _lines(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([("A", 100, 0.0), ("B", 10, 95.0), ("C", 50, 60.0)], 100.0, 1.0), ([("A", 100, 0.0), ("B", 10, 5.0)], 10.0, 1.0),
        ([("A", 30, 0.0), ("B", 10, 10.0)], 20.0, 2.0), ([], 5.0, 1.0),
    ]  # fmt: skip
    out: list[tuple[Any, ...]] = []
    for _ in range(40):
        line = [(chr(65 + i), rng.randint(1, 200), float(rng.randint(0, 100))) for i in range(rng.randint(2, 8))]
        rng.shuffle(line)
        out.append((line, 100.0 + rng.randint(0, 20), rng.choice([0.5, 1.0, 2.0])))
    return fixed + out


TASKS: list[Task] = [
    Choice("07.1", 1, right="BD"),
    Code(
        "07.2", 1, reference=cut, cases=_prompts,
        slips={
            "no_budget": lambda r, c, b: [min(x, c) for x in r],
            "budget_each": lambda r, c, b: [min(x, c, b) for x in r],
            "no_chunk": lambda r, c, b: cut(r, 10**9, b),
            "only_whole": _cut_only_whole,
            "drops_zeros": _cut_and_stop,
            "even_share": lambda r, c, b: [min(x, c, b // len(r)) for x in r],
        },
    ),
    Code(
        "07.3", 2, reference=victims, cases=_rows,
        slips={
            "oldest": _by(lambda r: (-r[1], r[2])),
            "biggest": _by(lambda r: -r[3]),
            "ignores_priority": _by(lambda r: -r[2]),
            "priority_upside_down": _by(lambda r: (r[1], -r[2])),
            "only_one": _by(_last, "only_one"),
            "ignores_free": _by(_last, "ignores_free"),
            "one_more": _by(_last, "one_more"),
            "in_vain": _by(_last, "in_vain"),
        },
    ),
    Code(
        "07.4", 2, reference=order, cases=_lines,
        slips={
            "no_ageing": _sorted_by(lambda w, now, rate: w[1]),
            "fcfs": _sorted_by(lambda w, now, rate: w[2]),
            "older_is_later": _sorted_by(lambda w, now, rate: w[1] + rate * (now - w[2])),
            "no_rate": _sorted_by(lambda w, now, rate: w[1] - (now - w[2])),
            "longest": _sorted_by(lambda w, now, rate: -(w[1] - rate * (now - w[2]))),
            "keys": lambda ws, now, rate: sorted(w[1] - rate * (now - w[2]) for w in ws),
        },
    ),
    Judged("07.5", 2, judge=stall_then_mend, draw=draw_stall, limit=20.0),
    Judged("07.6", 3, judge=starve_then_mend, draw=draw_starve, limit=20.0),
    Judged("07.7", 2, kind="code", judge=beats_vllm, draw=draw_race, racing=True, limit=30.0),
    Free("07.8", 2),
]  # fmt: skip
