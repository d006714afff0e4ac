"""Tasks 07.5 to 07.7: policies that stall or starve, how they are mended, and the race."""

from __future__ import annotations

from random import Random
from typing import Any

import minirt
from minirt import workloads

from ..pictures import beside, fitting, player
from ..task import Attempt
from ..texts import say
from ..verdict import Unanswered, Wrong
from ..view import Plain, short
from .toysched import (
    BLOCK,
    FirstCome,
    ShortestFirst,
    TakesEveryone,
    check_jobs,
    draw_mended,
    guarded,
    is_missing,
    serve,
    serve_guarded,
    serve_or_stall,
    two_parts,
)  # fmt: skip

# -- 07.5: a policy that stalls ---------------------------------------------------------------------------------

BLOCKS, SLOTS = 8, 4


def stall_then_mend(answer: Any, attempt: Attempt) -> dict[str, Any]:
    """07.5: requests on which TakesEveryone stalls; then a policy that answers them, and others."""
    jobs, policy = two_parts(answer)
    check_jobs(jobs, 6, BLOCKS)
    out = attempt.outcome(lambda: serve(TakesEveryone(), jobs, BLOCKS, SLOTS))
    if out.kind == "ok":
        fits = sum(-(-(p + o - 1) // BLOCK) for p, o in jobs) <= BLOCKS
        raise Wrong("fits" if fits else "gets_by", [("got", jobs)])
    attempt.half = True
    if is_missing(policy):
        raise Unanswered
    rng = Random("taskkit 07.5")
    hidden = [[(rng.randint(1, 24), rng.randint(1, 8)) for _ in range(rng.randint(3, 6))] for _ in range(12)]
    steps = alone = 0
    for given in [list(jobs), *hidden]:
        run = serve_guarded(policy, attempt, given, BLOCKS, SLOTS)
        if any(o.finish_reason != "length" for o in run.outputs):
            raise Wrong("gives_up", [("input", given)])
        steps, alone = steps + len(run.trace), alone + sum(-(-p // BLOCK) + o - 1 for p, o in given)
    if steps > 0.9 * alone:
        raise Wrong("serial", [], steps=steps, alone=alone)
    return {"steps": steps, "alone": alone}


def draw_stall(answer: Any, attempt: Attempt) -> Any:
    """TakesEveryone until it can't go on, and the learner's policy on the same requests."""
    jobs, policy = ([(12, 2)] * 2, None) if answer is None else two_parts(answer)
    check_jobs(jobs, 6, BLOCKS)
    before = serve_or_stall(TakesEveryone(), jobs, BLOCKS, SLOTS)
    return draw_mended(before, "takes-everyone", policy, attempt, jobs, BLOCKS, SLOTS)


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
    return serve(policy, [(1, o) for o in outputs], fitting(outputs, 2)["num_blocks"], 2, arrivals)


def _named(load: tuple[list[int], list[float]]) -> Plain:
    return Plain(f"outputs={short(load[0], 90)}, arrivals={short(load[1], 90)}")


def _streams() -> list[tuple[list[int], list[float]]]:
    rng, out = Random("taskkit 07.6"), []
    for _ in range(3):
        outputs, now, arrivals = [rng.choice([1, 2, 3, 4, 24]) for _ in range(140)], 0.0, []
        for _ in outputs:
            now += rng.expovariate(1 / 3.1)
            arrivals.append(round(now, 2))
        out.append((outputs, arrivals))
    return out


def starve_then_mend(answer: Any, attempt: Attempt) -> dict[str, Any]:
    """07.6: arrivals under which somebody starves; then a policy that is fair, and still faster than FCFS."""
    load, policy = two_parts(answer)
    outputs, arrivals = _checked_load(load)
    worst = overtaken(stream(outputs, arrivals, ShortestFirst()))
    if worst < PASSED:
        raise Wrong("nobody_starves" if worst == 0 else "not_long_enough", [("got", load)], n=worst)
    attempt.half = True
    if is_missing(policy):
        raise Unanswered
    mean = fcfs = 0.0
    for given in _streams():
        run = guarded(policy, attempt, lambda p, g=given: stream(g[0], g[1], p), _named(given))  # type: ignore[misc]
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


def draw_starve(answer: Any, attempt: Attempt) -> Any:
    """ShortestFirst, and the learner's policy under the same arrivals."""
    load, policy = ([(8, 0.0), (8, 0.0), (8, 0.5), (2, 1.0)], None) if answer is None else two_parts(answer)
    outputs, arrivals = _checked_load(load)
    before = stream(outputs, arrivals, ShortestFirst())
    if is_missing(policy):
        return player(before)
    after = guarded(policy, attempt, lambda p: stream(outputs, arrivals, p), _named((outputs, arrivals)))
    return beside(before, after, ("shortest-first", say("show.you")))


# -- 07.7: the race ---------------------------------------------------------------------------------------------


WINS, KEPT = 2, 0.9


def beats_vllm(answer: Any, attempt: Attempt) -> dict[str, Any]:
    """07.7: more goodput than vllm on WINS courses, at least KEPT of it on the others, every request answered."""
    from ..racing import COURSES, built_in
    from ..racing import serve as run_course

    won, table, kept = [], [], {}
    for course in COURSES:
        m = guarded(answer, attempt, lambda p, c=course: run_course(p, c), Plain(f"course={course.name}"))  # type: ignore[misc]
        lost = sum(r.finish_reason != "length" for r in m.requests)
        if lost:
            raise Wrong("gives_up", [], course=course.name, n=lost)
        mine, theirs = m.goodput(ttft=course.ttft, tpot=course.tpot), built_in("vllm", course)
        table.append((course.name, Plain(f"{mine:.2f} : {theirs:.2f}")))
        if mine > theirs + 0.005:
            won.append(course.name)
        kept[course.name] = mine / theirs
    if not won:
        same = all(a == b for a, b in (cell.split(" : ") for _, cell in table))
        raise Wrong("a_copy" if same else "beats_nowhere", table)
    if len(won) < WINS:
        raise Wrong("beats_too_few", table, won="、".join(won))
    worst = min(kept, key=lambda c: kept[c])
    if kept[worst] < KEPT:
        raise Wrong("loses_too_much", table, course=worst, share=f"{kept[worst]:.0%}")
    return {"won": "、".join(won), "table": "；".join(f"{c} {cell}" for c, cell in table)}


def draw_race(answer: Any, attempt: Attempt) -> Any:
    """A course small enough to look at: questions of all lengths, one long prompt among them, four slots."""
    outputs = [40, 8, 30, 6, 24, 4, 36, 6, 28, 8]
    requests = workloads.make_requests(
        prompt=[200] * 4 + [6000] + [200] * 5, output=outputs, arrivals=[0.02 * i for i in range(10)]
    )

    def run(policy: Any) -> Any:
        return minirt.simulate(
            policy, requests, model="Llama-3-8B", max_batch_size=4, num_blocks=28, block_size=256, starvation_limit=None
        )

    vllm = run("vllm")
    if is_missing(answer):
        return player(vllm)
    return beside(guarded(answer, attempt, run, Plain("requests=10, slots=4")), vllm, (say("show.you"), "vllm"))
