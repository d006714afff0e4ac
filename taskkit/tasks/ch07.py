"""Chapter 07, minirt: the pieces of a scheduler, three ways to break one, and the race."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ..free import Free
from ..kinds import Choice, Code, Judged
from ..pictures import beside, player
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Unanswered, Wrong
from .toysched import BLOCK, FirstCome, ShortestFirst, TakesEveryone, check_jobs, guarded, serve, two_parts

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


# -- 07.5: a policy that stalls ---------------------------------------------------------------------------------

BLOCKS, SLOTS = 8, 4


def _stall_then_mend(answer: Any, attempt: Attempt) -> dict[str, Any]:
    jobs, policy = two_parts(answer)
    check_jobs(jobs, 6, BLOCKS)
    out = attempt.outcome(lambda: serve(TakesEveryone(), jobs, BLOCKS, SLOTS))
    if out.kind == "ok":
        fits = sum(-(-(p + o - 1) // BLOCK) for p, o in jobs) <= BLOCKS
        raise Wrong("fits" if fits else "gets_by", [("got", jobs)])
    if policy is None or policy is ...:
        raise Unanswered
    rng = Random("taskkit 07.5")
    hidden = [[(rng.randint(1, 24), rng.randint(1, 8)) for _ in range(rng.randint(3, 6))] for _ in range(12)]
    steps = alone = 0
    for given in [list(jobs), *hidden]:
        run = guarded(policy, attempt, lambda p, g=given: serve(p, g, BLOCKS, SLOTS), given)  # type: ignore[misc]
        if any(o.finish_reason != "length" for o in run.outputs):
            raise Wrong("gives_up", [("input", given)])
        steps, alone = steps + len(run.trace), alone + sum(-(-p // BLOCK) + o - 1 for p, o in given)
    if steps > 0.9 * alone:
        raise Wrong("serial", [], steps=steps, alone=alone)
    return {"steps": steps, "alone": alone}


# -- 07.6: a policy that starves --------------------------------------------------------------------------------

PASSED = 20


def overtaken(run: Any) -> int:
    """How many later arrivals were admitted before the one who was overtaken most."""
    place: dict[int, int] = {}
    for step in run.trace:
        for e in step.events:
            if e.kind == "admitted":
                place.setdefault(e.id, len(place))
    arrival = {r.id: r.arrival for r in run.metrics.requests}
    return max(sum(arrival[j] > arrival[i] and place[j] < place[i] for j in place) for i in place)


def stream(outputs: list[int], arrivals: list[float], policy: Any) -> Any:
    """One-token prompts on two slots."""
    return serve(policy, [(1, o) for o in outputs], 64, 2, arrivals)


def _streams() -> list[tuple[list[int], list[float]]]:
    rng, out = Random("taskkit 07.6"), []
    for _ in range(3):
        outputs, now, arrivals = [rng.choice([1, 2, 3, 4, 24]) for _ in range(140)], 0.0, []
        for _ in outputs:
            now += rng.expovariate(1 / 3.1)
            arrivals.append(round(now, 2))
        out.append((outputs, arrivals))
    return out


def _starve_then_mend(answer: Any, attempt: Attempt) -> dict[str, Any]:
    load, policy = two_parts(answer)
    outputs, arrivals = _checked_load(load)
    worst = overtaken(stream(outputs, arrivals, ShortestFirst()))
    if worst < PASSED:
        raise Wrong("nobody_starves" if worst == 0 else "not_long_enough", [("got", load)], n=worst)
    if policy is None or policy is ...:
        raise Unanswered
    mean = fcfs = 0.0
    for given in _streams():
        run = guarded(policy, attempt, lambda p, g=given: stream(g[0], g[1], p), Ellipsis)  # type: ignore[misc]
        if any(o.finish_reason != "length" for o in run.outputs):
            raise Wrong("gives_up", [])
        if (most := overtaken(run)) > PASSED:
            raise Wrong("still_starves", [], n=most)
        mean, fcfs = mean + run.metrics.e2e.mean, fcfs + stream(*given, FirstCome()).metrics.e2e.mean
    if mean > 0.85 * fcfs:
        raise Wrong("no_gain", [], mean=f"{mean / fcfs:.0%}")
    return {"n": worst, "mean": f"{mean / fcfs:.0%}"}


def _checked_load(load: Any) -> tuple[list[int], list[float]]:
    try:
        pairs = [(o, float(t)) for o, t in load]
    except (TypeError, ValueError):
        raise Wrong("outside_rules", [("got", load)]) from None
    times = [t for _, t in pairs]
    fine = all(type(o) is int and 1 <= o <= 64 for o, _ in pairs) and all(0 <= t <= 500 for t in times)
    if not 2 <= len(pairs) <= 60 or not fine or times != sorted(times):
        raise Wrong("outside_rules", [("got", load)])
    return [o for o, _ in pairs], times


def _draw_starve(answer: Any) -> Any:
    load, policy = ([(8, 0.0), (8, 0.0), (8, 0.5), (2, 1.0)], None) if answer is None else two_parts(answer)
    outputs, arrivals = _checked_load(load)
    before = stream(outputs, arrivals, ShortestFirst())
    if policy is None or policy is ...:
        return player(before)
    after = guarded(policy, Attempt(20.0), lambda p: stream(outputs, arrivals, p), load)
    return beside(before, after, ("shortest-first", say("show.you")))


# -- 07.7: the race ---------------------------------------------------------------------------------------------


def _beats_vllm(answer: Any, attempt: Attempt) -> dict[str, Any]:
    from ..racing import COURSES, built_in
    from ..racing import serve as run_course

    won, table = [], []
    for course in COURSES:
        m = guarded(answer, attempt, lambda p, c=course: run_course(p, c), course.name)  # type: ignore[misc]
        lost = sum(r.finish_reason != "length" for r in m.requests)
        if lost:
            raise Wrong("gives_up", [], course=course.name, n=lost)
        mine, theirs = m.goodput(ttft=course.ttft, tpot=course.tpot), built_in("vllm", course)
        table.append((course.name, f"{mine:.2f} : {theirs:.2f}"))
        if mine > theirs + 0.005:
            won.append(course.name)
    if not won:
        same = all(a == b for a, b in (cell.split(" : ") for _, cell in table))
        raise Wrong("a_copy" if same else "beats_nowhere", table)
    return {"won": "、".join(won), "table": "；".join(f"{c} {cell}" for c, cell in table)}


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
    Judged("07.5", 2, judge=_stall_then_mend, limit=20.0),
    Judged("07.6", 3, judge=_starve_then_mend, draw=_draw_starve, limit=20.0),
    Judged("07.7", 3, kind="code", judge=_beats_vllm, limit=60.0),
    Free("07.8", 2),
]  # fmt: skip
