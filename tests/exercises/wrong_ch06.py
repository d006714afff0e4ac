"""Chapter 06: right and typical wrong answers."""

from __future__ import annotations

from collections import deque

import minirt
from minirt.policies import VllmPolicy
from tests.exercises.answers import Answers, Ticks


def run_of_blocks(free, tokens, block_size):
    need = (tokens + block_size - 1) // block_size
    for start in range(len(free) - need + 1):
        if all(free[start : start + need]):
            return start
    return None


def run_floor(free, tokens, block_size):
    need = tokens // block_size
    return next((s for s in range(len(free) - need + 1) if all(free[s : s + need])), None)


def run_last(free, tokens, block_size):
    need = -(-tokens // block_size)
    found = [s for s in range(len(free) - need + 1) if all(free[s : s + need])]
    return found[-1] if found else None


def run_end(free, tokens, block_size):
    start = run_of_blocks(free, tokens, block_size)
    return None if start is None else start + -(-tokens // block_size) - 1


def enough(free, tokens, block_size):
    return free.index(True) if sum(free) * block_size >= tokens else None


def batch(least=True, patient=True, running_counts=True, new_counts=True, prefill_counts=True, jumps=False, queue=False):
    def next_batch(waiting, running, waited, ratio, max_waiting, prefill_budget, total_budget):
        minimum = int(len(running) * ratio) if least and (waited < max_waiting or not patient) else 0
        total = sum(p + n for p, n in running) if running_counts else 0
        prompts, chosen = 0, []
        for p, n in waiting:
            cost = p + n if new_counts else p
            if total + cost > total_budget or (prefill_counts and prompts + p > prefill_budget):
                if jumps:
                    continue
                break
            total += cost
            prompts += p
            chosen.append(p)
        size = len(waiting) if queue else len(chosen)
        return len(chosen) if size >= minimum else 0

    return next_batch


class Calm:
    name = "calm"

    def plan(self, state):
        p = minirt.Planner(state)
        line = deque(sorted(state.running, key=lambda s: s.admitted_order))
        while line:
            seq = line.popleft()
            while not p.decode(seq):
                victim = line.pop() if line else seq
                p.preempt(victim)
                if victim is seq:
                    break
        if not p.plan.preempt:
            for seq in state.waiting:
                if not p.admit(seq, keep=len(p.plan.decode) + 2 * len(p.plan.admit)):
                    break
        return p.plan


class Books:
    name = "books"

    def plan(self, state):
        p = minirt.Planner(state)
        size = state.limits.block_size
        booked = sum(-(-s.max_total // size) for s in state.running)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            booked += -(-seq.max_total // size)
            if booked > state.limits.num_blocks or not p.admit(seq):
                break
        return p.plan


class Drops:
    name = "drops"

    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            if not p.decode(seq):
                p.fail(seq, "no block")
        for seq in state.waiting:
            if not p.admit(seq):
                break
        return p.plan


class Stuck:
    name = "stuck"

    def plan(self, state):
        return minirt.StepPlan()


THRASH = [(16, 24)] * 8
GOOD = (
    "Orca 把调度从请求级变成迭代级，不再整批进出，但按上限连续预留，显存大半空着；vLLM 用分页按需分配，同样显存坐下更多人，"
    "因此可能断粮，需要抢占重算；TGI 按 prompt 加上限记账所以不抢占，攒一批再停车 prefill，老乘客会停顿。"
)

ANSWERS = {
    "06.1": Answers(
        [18, "18 rows"],
        [(18.75, "fraction"), (341.3, "paged"), (276, "pow2"), (1.17, "blocks"), (512, "prompt"), (40, "too_large")],
    ),
    "06.2": Answers(
        [run_of_blocks],
        [(enough, "counts_only"), (run_last, "last_run"), (run_floor, "floor"), (run_end, "end"),
         (lambda f, t, b: run_of_blocks(f, t * b, b), "tokens"), (lambda f, t, b: run_of_blocks(f, t, b) is not None, "yes_no")],
    ),
    "06.3": Answers(
        [batch()],
        [(batch(least=False), "no_minimum"), (batch(patient=False), "never_patient"), (batch(running_counts=False), "forgets_running"),
         (batch(new_counts=False), "prompt_only"), (batch(prefill_counts=False), "no_prefill_budget"), (batch(jumps=True), "overtakes"),
         (batch(queue=True), "checks_queue"), (lambda *a: len(a[0]), "differs")],
    ),
    "06.4": Answers(["A"], [("B", "chosen_wrong"), ("C", "chosen_wrong"), ("D", "chosen_wrong")]),
    "06.5": Answers(["C", "c"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("D", "chosen_wrong"), ("X", "not_an_option")]),
    "06.6": Answers(
        [4.91, "4.9x"],
        [(9.82, "one_way"), (2.455, "one_flop"), (0.2037, "upside_down"), (157.1, "no_layers"), (1.227, "all_heads"),
         (400.4, "device_memory"), ("4.9 ms", "unit_dimension")],
    ),
    "06.7": Answers(
        [(THRASH, Calm), (THRASH, Calm())],
        [(([(4, 4)] * 3, Calm), "fits"), (([(12, 20)] * 4, Calm), "not_enough"), (([(60, 20)] * 2, Calm), "too_big"),
         ((7, Calm), "outside_rules"), (5, "two_parts"), ((THRASH, VllmPolicy), "still_thrashes"), ((THRASH, Books), "too_careful"),
         ((THRASH, Drops), "gives_up"), ((THRASH, Stuck), "stalls"), ((THRASH, 3), "not_a_policy")],
    ),
    "06.8": Answers(
        [Ticks(GOOD, (True, True, True, True))],
        [("都差不多。", "too_short"), ("这三家都叫 continuous batching，各自解决了什么问题？又各留下了什么问题？", "copied"),
         (Ticks(GOOD, (True, False, True, True)), "grade.missing"), (Ticks(GOOD, (True, True, True, False)), "grade.missing"),
         (Ticks(GOOD, (True,)), "grade.count")],
    ),
}  # fmt: skip
