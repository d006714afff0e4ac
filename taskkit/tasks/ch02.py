"""Chapter 02, iteration level: the batch is put together anew at every step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import minirt
from minirt import workloads

from ..compare import same
from ..free import Free
from ..guess import Predict
from ..kinds import Code, Judged
from ..pictures import beside, fitting, play, player, schedules
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Unanswered, Wrong
from .ch01 import static_script, static_steps

EQUAL, SLOTS, COUNT = 16, 4, 8  # 02.6: all answers have 16 tokens


def schedule(lengths: list[int], slots: int) -> list[list[int]]:
    """Continuous batching, first come first served: which requests get a token in each step."""
    left, waiting = list(lengths), list(range(len(lengths)))
    running: list[int] = []
    out: list[list[int]] = []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        out.append(list(running))
        for i in running:
            left[i] -= 1
        running = [i for i in running if left[i]]
    return out


def one_step_late(lengths: list[int], slots: int) -> list[list[int]]:
    """The slot that became free is filled one step later than it could be."""
    left, waiting, free = list(lengths), list(range(len(lengths))), slots
    running: list[int] = []
    out: list[list[int]] = []
    while waiting or running:
        done = [i for i in running if not left[i]]
        while waiting and free > 0:
            running.append(waiting.pop(0))
            free -= 1
        running = [i for i in running if left[i]]
        free += len(done)
        if running:
            out.append(list(running))
        for i in running:
            left[i] -= 1
    return out


def _in_order(lengths: list[int], slots: int, order: Sequence[int]) -> list[list[int]]:
    names = list(order)
    return [[names[j] for j in step] for step in schedule([lengths[i] for i in names], slots)]


def occupancy(batches: list[list[int]], slots: int) -> float:
    """Mean share of the slots with a useful row."""
    return sum(len(b) / slots for b in batches) / len(batches)


def lower_bound(lengths: list[int], slots: int) -> int:
    """Steps that no schedule can do without."""
    return max(max(lengths), -(-sum(lengths) // slots))


def _lengths(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([4, 1, 2, 2, 3], 2), ([3, 3], 4), ([9, 1, 1, 1, 1], 2)]
    return fixed + [([rng.randint(1, 15) for _ in range(rng.randint(4, 20))], rng.randint(2, 6)) for _ in range(20)]


def _batches(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([[0, 1, 2, 3], [0, 1], [0]], 4), ([[0], [0]], 2)]
    return fixed + [(schedule(*args), args[1]) for args in _lengths(rng)[3:]]


def _same_steps(got: Any, want: Any) -> bool:
    """The order within a step does not matter."""
    try:
        return same([sorted(step) for step in got], [sorted(step) for step in want])
    except TypeError:
        return False


def _article_steps() -> int:
    run = minirt.simulate("vllm", workloads.article(), clock="step", max_batch_size=8, num_blocks=256)
    return run.metrics.decode_steps


def _equal_speedup() -> str:
    requests = workloads.make_requests(64, 1, EQUAL)
    a, b = (
        minirt.simulate(p, requests, clock="step", max_batch_size=8, num_blocks=256).metrics.duration
        for p in ("static", "vllm")
    )
    return "A" if a == b else "B" if a < 2 * b else "C"


# -- 02.6: answers of one length; find the arrivals that make static batching slow all the same -----------------


def runs_of(arrivals: Sequence[float]) -> tuple[Any, Any]:
    """The same equal requests under both; a static batch sets off with whoever is there when the engine is free."""
    requests = workloads.make_requests(prompt=1, output=[EQUAL] * len(arrivals), arrivals=list(arrivals))
    room: dict[str, Any] = {"clock": "step", "max_batch_size": SLOTS, **fitting([EQUAL], SLOTS)}
    static = minirt.simulate("static", requests, max_wait=0.0, **room)
    return static, minirt.simulate("vllm", requests, **room)


def _arrivals(answer: Any, attempt: Attempt) -> dict[str, Any]:
    times: list[Any] = list(answer) if isinstance(answer, (list, tuple)) else [None]
    if any(t is ... for t in times):
        raise Unanswered
    if len(times) != COUNT or not all(type(t) is int and 0 <= t <= 200 for t in times) or times != sorted(times):
        raise Wrong("outside_rules", [("got", answer)])
    static, continuous = runs_of(times)
    a, b = static.metrics.duration, continuous.metrics.duration
    values = {"static": int(a), "continuous": int(b), "ratio": f"{a / b:.2f}"}
    if a < 1.4 * b:
        code = "all_at_once" if len(set(times)) == 1 else "too_sparse" if _gaps(times) else "not_enough"
        raise Wrong(code, [("got", times)], **values)
    return values


def _gaps(times: list[int]) -> bool:
    """Whether the machine stands idle for so long that the idle time hides the difference."""
    return max(b - a for a, b in zip(times, times[1:])) > 2 * EQUAL


def _draw_arrivals(answer: Any, attempt: Attempt) -> Any:
    times = list(answer) if isinstance(answer, (list, tuple)) and ... not in answer else [0] * COUNT
    static, continuous = runs_of(times)
    return beside(static, continuous, ("static", "continuous"))


def _draw_schedule(fn: Any) -> Any:
    lengths = [6, 2, 3, 5, 1, 4, 2, 3]
    return schedules(fn, schedule, (lengths, 3), lengths, 3, (say("show.you"), say("show.want")))


def _draw_occupancy(fn: Any) -> Any:
    lengths = [6, 2, 3, 5, 1, 4, 2, 3]
    return player(play(schedule(lengths, 3), lengths, 3, "continuous"))


TASKS: list[Task] = [
    Code(
        "02.1", 1, reference=occupancy, cases=_batches, draw=_draw_occupancy, table=True,
        slips={
            "no_mean": lambda bs, s: sum(len(b) / s for b in bs),
            "rows": lambda bs, s: sum(len(b) for b in bs) / len(bs),
            "peak": lambda bs, s: max(len(b) for b in bs) / s,
            "full_steps": lambda bs, s: sum(len(b) == s for b in bs) / len(bs),
        },
    ),
    Code(
        "02.2", 1, kind="derive", reference=lower_bound, cases=_lengths,
        slips={
            "no_longest": lambda ls, b: -(-sum(ls) // b),
            "no_sum": lambda ls, b: max(ls),
            "floor": lambda ls, b: max(max(ls), sum(ls) // b),
            "fraction": lambda ls, b: max(max(ls), sum(ls) / b),
            "static": static_steps,
            "added": lambda ls, b: max(ls) + -(-sum(ls) // b),
        },
    ),
    Predict(
        "02.3", 2, truth=_article_steps, unit="steps",
        slips={"bound": lambda: 64, "static": lambda: 91, "half": lambda: 46, "longest": lambda: 12},
    ),
    Code(
        "02.4", 2, reference=schedule, cases=_lengths, same=_same_steps, draw=_draw_schedule,
        slips={
            "static": static_script,
            "late": one_step_late,
            "shortest_first": lambda ls, b: _in_order(ls, b, sorted(range(len(ls)), key=lambda i: ls[i])),
            "last_first": lambda ls, b: _in_order(ls, b, range(len(ls) - 1, -1, -1)),
            "no_slots": lambda ls, b: schedule(ls, len(ls)),
            "one_by_one": lambda ls, b: schedule(ls, 1),
        },
    ),
    Predict("02.5", 2, truth=_equal_speedup),
    Judged("02.6", 3, judge=_arrivals, draw=_draw_arrivals),
    Free("02.7", 2),
]  # fmt: skip
