"""Chapter 01, motivation: what a static batch wastes, and for whom."""

from __future__ import annotations

from random import Random
from typing import Any

import minirt
from minirt import workloads

from ..drawing import blocks
from ..guard import is_empty
from ..guess import Predict
from ..kinds import Code, Derive, Judged
from ..pictures import beside, play, player
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Unanswered, Wrong
from ..view import short

SLOTS = 4


def static_steps(lengths: list[int], batch_size: int) -> int:
    """Steps of static batches in the order given."""
    return sum(max(lengths[i : i + batch_size]) for i in range(0, len(lengths), batch_size))


def rows(lengths: list[int], batch_size: int) -> tuple[int, int]:
    """Row-steps that give a token, and row-steps computed for requests that have ended."""
    waste = 0
    for i in range(0, len(lengths), batch_size):
        batch = lengths[i : i + batch_size]
        waste += sum(max(batch) - n for n in batch)
    return sum(lengths), waste


def form_batch(arrivals: list[float], now: float, batch_size: int, max_wait: float) -> int:
    """How many of the waiting requests (oldest first) start as a batch now: 0 means go on waiting."""
    if len(arrivals) >= batch_size:
        return batch_size
    return len(arrivals) if arrivals and now - arrivals[0] >= max_wait else 0


def static_script(lengths: list[int], batch_size: int) -> list[list[int]]:
    """The useful rows of each step of static batching."""
    out = []
    for i in range(0, len(lengths), batch_size):
        batch = range(i, min(i + batch_size, len(lengths)))
        out += [[j for j in batch if lengths[j] > s] for s in range(max(lengths[j] for j in batch))]
    return out


def _lengths(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([5, 2, 2, 1], 4), ([3, 1, 1, 4, 2, 2], 2), ([4, 4, 1, 6, 2], 3)]
    return fixed + [([rng.randint(1, 40) for _ in range(rng.randint(5, 30))], rng.randint(2, 8)) for _ in range(20)]


def _waiting(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([0.0, 1.0, 2.0, 3.0], 3.0, 4, 10.0), ([0.0, 6.0], 9.0, 4, 10.0), ([0.0, 6.0], 10.0, 4, 10.0),
        ([], 50.0, 4, 10.0), ([0.0, 0.5, 1.0, 1.5, 2.0, 2.5], 3.0, 4, 10.0),
    ]  # fmt: skip
    out = []
    for _ in range(30):
        times = sorted(rng.randint(0, 20) / 2 for _ in range(rng.randint(1, 9)))
        out.append((times, times[-1] + rng.randint(0, 20) / 2, rng.randint(2, 6), rng.randint(2, 20) / 2))
    return fixed + out


def _tpot_ratio() -> str:
    """A short request's gap between tokens, beside a long one and beside short ones: the run's answer."""

    def tpot(lengths: list[int]) -> float:
        run = minirt.simulate(
            "static", workloads.make_requests(prompt=8, output=lengths), clock="step", max_batch_size=4, num_blocks=400
        )
        return float(run.metrics.requests[1].tpot or 0.0)

    return "A" if tpot([512, 8, 8, 8]) == tpot([8, 8, 8, 8]) else "B"


# -- 01.5: make static batching waste most of its rows, then put the same requests into a better order -----------


def _waste_then_sort(answer: Any, attempt: Attempt) -> dict[str, Any]:
    try:
        lengths, arrange = answer
    except (TypeError, ValueError):
        raise Wrong("two_parts", [("got", answer)]) from None
    if lengths is None or lengths is ...:
        raise Unanswered
    _check_lengths(lengths)
    used, wasted = rows(list(lengths), SLOTS)
    share = used / (used + wasted)
    if share > 0.35:
        raise Wrong("not_wasteful", [("got", list(lengths))], share=f"{share:.0%}")
    attempt.half = True
    rng = Random("taskkit 01.5")
    cases = [(list(lengths), SLOTS), ([1, 2, 3, 4, 5], 2)]
    cases += [([rng.randint(1, 32) for _ in range(rng.randint(5, 24))], rng.randint(2, 6)) for _ in range(12)]
    for given, size in cases:
        got = attempt.call(arrange, list(given), size)
        facts = [("input", (given, size)), ("got", got)]
        if not isinstance(got, (list, tuple)) or sorted(got) != sorted(given):
            raise Wrong("not_a_rearrangement", facts)
        steps, best = static_steps(list(got), size), static_steps(sorted(given, reverse=True), size)
        if steps > best:
            near = "tail_first" if list(got) == sorted(given) else "untouched" if list(got) == given else "not_best"
            raise Wrong(near, facts, steps=steps, best=best)
    return {"share": f"{share:.0%}", "before": static_steps(list(lengths), SLOTS),
            "after": static_steps(sorted(lengths, reverse=True), SLOTS)}  # fmt: skip


def _check_lengths(lengths: Any) -> None:
    if not isinstance(lengths, (list, tuple)) or not all(type(n) is int for n in lengths):
        raise Wrong("not_integers", [("got", lengths)])
    facts = [("got", list(lengths))]
    if len(lengths) != 8:
        raise Wrong("wrong_count", facts, n=len(lengths))
    if outside := [n for n in lengths if not 1 <= n <= 32]:
        raise Wrong("out_of_range", facts, values="、".join(map(short, outside)))
    if sum(lengths) < 64:
        raise Wrong("too_few_tokens", facts, total=sum(lengths))


SHOWN = [5, 2, 2, 1, 3, 1]


def _draw_static(fn: Any) -> Any:
    """01.2 and 01.3: the static batch itself, with its wasted rows."""
    return player(play(static_script(SHOWN, SLOTS), SHOWN, SLOTS, "static", together=True))


def _draw_steps(fn: Any) -> Any:
    """01.2: under the static batch, how many steps each batch has, by the expected function and by the learner's."""
    rows_ = {say("show.want"): _steps_of_batches(static_steps)}
    if fn is not None:
        rows_[say("show.you")] = _steps_of_batches(fn)
    owned = {name: _strip(steps) for name, steps in rows_.items() if steps}
    count = max(sum(steps) for steps in rows_.values() if steps)
    return [_draw_static(None), blocks(f"static_steps({SHOWN}, {SLOTS})", count, owned)]


def _steps_of_batches(fn: Any) -> list[int]:
    """From the totals for one batch, two batches, …; [] where that makes no strip that could be drawn."""
    totals = [0, *(fn(SHOWN[:end], SLOTS) for end in range(SLOTS, len(SHOWN) + SLOTS, SLOTS))]
    whole = all(type(n) is int and 0 <= n <= 30 for n in totals)
    return [b - a for a, b in zip(totals, totals[1:])] if whole and totals == sorted(totals) and totals[-1] else []


def _strip(steps: list[int]) -> dict[str, list[int]]:
    ends = [sum(steps[: i + 1]) for i in range(len(steps))]
    return {say("show.batch", n=i + 1): list(range(end - n, end)) for i, (n, end) in enumerate(zip(steps, ends))}


def _draw_order(answer: Any, attempt: Attempt) -> Any:
    """01.5: what arrange makes of an order; a pair (lengths, arrange) brings its own lengths."""
    lengths, arrange = answer if isinstance(answer, (list, tuple)) and len(answer) == 2 else (None, answer)
    if lengths is None or lengths is ...:
        lengths = [12, 1, 2, 3, 12, 2, 1, 3]
    else:
        _check_lengths(lengths)

    def run(order: list[int], name: str) -> Any:
        return play(static_script(order, SLOTS), order, SLOTS, name, together=True)

    before = run(list(lengths), "static")
    if arrange is None or arrange is ... or is_empty(arrange):
        return player(before)
    return beside(run(list(attempt.call(arrange, list(lengths), SLOTS)), "yours"), before, (say("show.you"), "FCFS"))


TASKS: list[Task] = [
    Derive(
        "01.1", 1, value=lambda: 100 * 536 / (4 * 512), unit="%",
        slips={"waste_coefficient": lambda: 100 * 536 / 512, "idle_share": lambda: 100 * (1 - 536 / 2048),
               "short_over_long": lambda: 100 * 8 / 512, "by_rows": lambda: 25.0},
    ),
    Code(
        "01.2", 1, reference=static_steps, cases=_lengths, draw=_draw_steps, table=True,
        slips={
            "one_max": lambda ls, b: max(ls),
            "fractional": lambda ls, b: sum(ls) / b,
            "bound": lambda ls, b: -(-sum(ls) // b),
            "loses_last": lambda ls, b: sum(max(ls[i : i + b]) for i in range(0, len(ls) // b * b, b)),
            "sorts": lambda ls, b: static_steps(sorted(ls, reverse=True), b),
            "serial": lambda ls, b: sum(ls),
        },
    ),
    Code(
        "01.3", 2, reference=rows, cases=_lengths, draw=_draw_static, table=True,
        slips={
            "empty_slots": lambda ls, b: (sum(ls), b * static_steps(ls, b) - sum(ls)),
            "global_max": lambda ls, b: (sum(ls), sum(max(ls) - n for n in ls)),
            "computed": lambda ls, b: (sum(ls), sum(ls) + rows(ls, b)[1]),
            "steps": lambda ls, b: (sum(ls), static_steps(ls, b)),
            "swapped": lambda ls, b: rows(ls, b)[::-1],
        },
    ),
    Predict("01.4", 1, truth=_tpot_ratio),
    Judged("01.5", 2, judge=_waste_then_sort, draw=_draw_order),
    Code(
        "01.6", 2, reference=form_batch, cases=_waiting,
        slips={
            "only_full": lambda a, t, b, w: b if len(a) >= b else 0,
            "never_waits": lambda a, t, b, w: min(len(a), b),
            "everybody": lambda a, t, b, w: len(a) if len(a) >= b or (a and t - a[0] >= w) else 0,
            "newest_waits": lambda a, t, b, w: b if len(a) >= b else len(a) if a and t - a[-1] >= w else 0,
            "strictly": lambda a, t, b, w: b if len(a) >= b else len(a) if a and t - a[0] > w else 0,
        },
    ),
]  # fmt: skip
