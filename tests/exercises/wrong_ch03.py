"""Chapter 03: right and typical wrong answers."""

from __future__ import annotations

import minirt
from tests.exercises.answers import Answers


def admit(prompt_tokens, free_slots, free_blocks, block_size, keep):
    need = (prompt_tokens + block_size - 1) // block_size
    return free_slots >= 1 and free_blocks - need >= keep


def limits(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot):
    rows = {
        "memory": int(kv_room / kv_per_row),
        "compute": int(prefill_budget * output / prompt),
        "slo": max(0, int((tpot * bandwidth - weights) / kv_per_row)),
    }
    who = min(rows, key=rows.get)
    return rows[who], who


def largest(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot):
    rows = {
        "memory": kv_room // kv_per_row,
        "compute": prefill_budget * output // prompt,
        "slo": max(0, (tpot * bandwidth - weights) // kv_per_row),
    }
    who = max(rows, key=rows.get)
    return rows[who], who


def without_weights(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot):
    return limits(kv_room, kv_per_row, prompt, output, prefill_budget, 0, bandwidth, tpot)


def admissions_a_step(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot):
    return limits(kv_room, kv_per_row, prompt, 1, prefill_budget, weights, bandwidth, tpot)


def below_zero(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot):
    slo = (tpot * bandwidth - weights) // kv_per_row
    return (slo, "slo") if slo < 0 else limits(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot)


class Careful:
    name = "careful"

    def plan(self, state):
        p = minirt.Planner(state, mixed=False)
        size = state.limits.block_size
        promised = sum(-(-s.max_total // size) for s in [*state.running, *state.prefilling])
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            need = -(-seq.max_total // size)
            if promised + need > state.limits.num_blocks or not p.admit(seq):
                break
            promised += need
        return p.plan


class OneAtATime:
    name = "one"

    def plan(self, state):
        p = minirt.Planner(state, mixed=False)
        for seq in state.running:
            p.decode(seq)
        if not state.running:
            for seq in state.waiting:
                p.admit(seq)
                break
        return p.plan


class Hopeful:
    name = "hopeful"

    def plan(self, state):
        p = minirt.Planner(state, mixed=False)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            if not p.admit(seq):
                break
        return p.plan


class Refuses:
    name = "refuses"

    def plan(self, state):
        p = minirt.Planner(state, mixed=False)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            if seq.max_total > 8:
                p.refuse(seq, "too long")
            elif not p.admit(seq):
                break
        return p.plan


class Forgets:
    name = "forgets"

    def plan(self, state):
        minirt.Planner(state)


class Nothing:
    name = "nothing"

    def plan(self, state):
        return minirt.Planner(state, mixed=False).plan


class Endless:
    name = "endless"

    def plan(self, state):
        while True:
            pass


PAIRS = [(4, 12), (4, 12), (4, 12)]

ANSWERS = {
    "03.1": Answers(
        [208, 208.4, "208 rows"],
        [(268.2, "no_weights"), (238.2, "all_memory"), (52.1, "all_heads"), (6669, "one_layer"), (416.8, "only_k"),
         (300, "too_large")],
    ),
    "03.2": Answers(
        [admit],
        [(lambda p, s, f, b, k: s > 0 and p // b <= f - k, "floor"), (lambda p, s, f, b, k: admit(p, 1, f, b, k), "no_slot"),
         (lambda p, s, f, b, k: admit(p, s, f, b, 0), "no_keep"), (lambda p, s, f, b, k: admit(p, s, f - 1, b, k), "strictly"),
         (lambda p, s, f, b, k: s > 0 and p <= f - k, "tokens"), (lambda p, s, f, b, k: s > 0, "always"),
         (lambda p, s, f, b, k: True, "differs")],
    ),
    "03.3": Answers(
        [limits],
        [(largest, "largest"), (without_weights, "no_weights"), (admissions_a_step, "per_prompt"), (below_zero, "negative"),
         (lambda *a: limits(*a)[0], "wrong_type")],
    ),
    "03.4": Answers(["C"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("D", "chosen_wrong")]),
    "03.5": Answers(
        [(PAIRS, Careful), (PAIRS, Careful())],
        [((PAIRS, OneAtATime), "serial"), ((PAIRS, Hopeful), "stalls"), ((PAIRS, Nothing), "does_nothing"),
         ((PAIRS, "mini-runtime"), "still_aborts"),
         ((PAIRS, "vllm"), "preempts"), ((PAIRS, Refuses), "refuses"), (([(2, 2), (2, 2)], Careful), "no_abort"),
         (([(30, 30), (2, 2)], Careful), "too_big"), ((PAIRS, Forgets), "broken_plan"), ((3, Careful), "outside_rules"),
         (PAIRS, "two_parts"), ((PAIRS, Endless), "timeout")],
    ),
}  # fmt: skip
