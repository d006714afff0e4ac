"""Chapter 07: right and typical wrong answers."""

from __future__ import annotations

import minirt
from minirt.policies import MiniRuntimePolicy, VllmPolicy
from tests.exercises.answers import Answers, Ticks


def pieces(remaining, chunk, budget):
    given = []
    for n in remaining:
        take = min(n, chunk)
        take = max(0, min(take, budget - sum(given)))
        given.append(take)
    return given


def whole_pieces(remaining, chunk, budget):
    given = []
    for n in remaining:
        take = min(n, chunk)
        given.append(take if sum(given) + take <= budget else 0)
    return given


def evict(key, enough=lambda free, need: free >= need, start=True, stop_at=None, in_vain=False):
    def victims(running, free, need):
        have, out = free if start else 0, []
        for row in sorted(running, key=key):
            if enough(have, need) or (stop_at and len(out) == stop_at):
                return out
            out.append(row[0])
            have += row[3]
        return out if have >= need or stop_at or in_vain else None

    return victims


def last(row):
    return (-row[1], -row[2])


def by_score(score):
    return lambda waiting, now, rate: [w[0] for w in sorted(waiting, key=lambda w: (score(w, now, rate), w[2]))]


class Base:
    name = "base"
    budget = None

    def key(self, seq, state):
        return seq.arrival

    def fits(self, promised, state):
        return True

    def plan(self, state):
        p = minirt.Planner(state, budget=self.budget)
        size = state.limits.block_size
        promised = sum(-(-s.max_total // size) for s in [*state.running, *state.prefilling])
        line = sorted(state.running, key=lambda s: s.admitted_order)
        while line:
            seq = line.pop(0)
            while not p.decode(seq):
                victim = line.pop() if line else seq
                p.preempt(victim)
                if victim is seq:
                    break
        for seq in state.prefilling:
            p.prefill(seq)
        if not p.plan.preempt:
            for seq in sorted(state.waiting, key=lambda s: self.key(s, state)):
                promised += -(-seq.max_total // size)
                if not self.fits(promised, state) or not p.admit(seq):
                    break
        return p.plan


class Books(Base):
    def fits(self, promised, state):
        return promised <= state.limits.num_blocks


class OneByOne(Base):
    def fits(self, promised, state):
        return not state.running and not state.prefilling

    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.prefilling:
            p.prefill(seq, 4)
        if not state.running and not state.prefilling:
            p.admit(next(iter(state.waiting)), chunk=4)
        return p.plan


class Hopes(Base):
    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            if not p.admit(seq):
                break
        return p.plan


class Fails(Base):
    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            if not p.decode(seq):
                p.fail(seq, "no block")
        for seq in state.waiting:
            if not p.admit(seq):
                break
        return p.plan


class Ageing(Base):
    def key(self, seq, state):
        return seq.max_new_tokens - 0.5 * (state.now - seq.arrival)


class Shortest(Base):
    def key(self, seq, state):
        return seq.max_new_tokens


class Racer(Base):
    budget = 256

    def key(self, seq, state):
        return seq.max_new_tokens + seq.remaining / 8


class ReadmeShortest(Base):
    """The README's example, as it stands there."""

    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            if not p.decode(seq):
                p.preempt(seq)
        for seq in sorted(state.waiting, key=lambda s: s.max_new_tokens):
            if not p.admit(seq):
                break
        return p.plan


class LongOnly(Racer):
    """Never more than twelve at once, where answers of a chat want more."""

    def fits(self, promised, state):
        short = all(s.num_prompt <= 256 for s in [*state.running, *state.waiting])
        return not short or len(state.running) + len(state.prefilling) < 12


class Sheds(Racer):
    def plan(self, state):
        plan = super().plan(state)
        admitted = {a.seq.id for a in plan.admit}
        for seq in state.waiting:
            if state.now - seq.arrival > 0.4 and seq.id not in admitted and not seq.num_preempted:
                plan.refuse.append((seq, "too late"))
        return plan


class NoReturn(Base):
    def plan(self, state):
        super().plan(state)


class Idle(Base):
    def plan(self, state):
        return minirt.StepPlan()


STALL = [(16, 4)] * 3
STARVE = [(8, 0.0), (8, 0.0), (40, 0.5), *[(2, 1.0 + 0.8 * i) for i in range(50)]]
GOOD = (
    "资源守恒：slot、块和预算不超，结束或抢占之后块要还清，否则泄漏；不卡死：不能人人占着一部分谁也走不动；"
    "不饿死：不能让后来者无限插队；正确性：答案不随调度改变，每个请求恰好结束一次，否则说明 KV 写乱了。"
)

ANSWERS = {
    "07.1": Answers(["BD", "D, B"], [("A", "chosen_wrong"), ("BCD", "chosen_wrong"), ("B", "incomplete"), ("E", "not_an_option")]),
    "07.2": Answers(
        [pieces],
        [(lambda r, c, b: [min(n, c) for n in r], "no_budget"), (lambda r, c, b: [min(n, c, b) for n in r], "budget_each"),
         (lambda r, c, b: pieces(r, b, b), "no_chunk"), (whole_pieces, "only_whole"),
         (lambda r, c, b: [n for n in pieces(r, c, b) if n > 0], "drops_zeros"),
         (lambda r, c, b: [min(n, c, b // len(r)) for n in r], "even_share"), (lambda r, c, b: sum(pieces(r, c, b)), "wrong_type")],
    ),
    "07.3": Answers(
        [evict(last)],
        [(evict(lambda r: (-r[1], r[2])), "oldest"), (evict(lambda r: -r[3]), "biggest"), (evict(lambda r: -r[2]), "ignores_priority"),
         (evict(lambda r: (r[1], -r[2])), "priority_upside_down"), (evict(last, stop_at=1), "only_one"),
         (evict(last, start=False), "ignores_free"), (evict(last, enough=lambda f, n: f > n), "one_more"),
         (evict(last, in_vain=True), "in_vain")],
    ),
    "07.4": Answers(
        [by_score(lambda w, now, rate: w[1] - rate * (now - w[2]))],
        [(by_score(lambda w, now, rate: w[1]), "no_ageing"), (by_score(lambda w, now, rate: w[2]), "fcfs"),
         (by_score(lambda w, now, rate: w[1] + rate * (now - w[2])), "older_is_later"),
         (by_score(lambda w, now, rate: w[1] - now + w[2]), "no_rate"),
         (by_score(lambda w, now, rate: rate * (now - w[2]) - w[1]), "longest"),
         (lambda ws, now, rate: sorted(n - rate * (now - a) for _, n, a in ws), "keys")],
    ),
    "07.5": Answers(
        [(STALL, Base), (STALL, Books)],
        [(([(4, 4)] * 3, Base), "fits"), (([(12, 4), (24, 4)], Base), "gets_by"), (([(40, 4)] * 2, Base), "too_big"), (([], Base), "outside_rules"),
         (3, "two_parts"), ((STALL, Hopes), "stalls"), ((STALL, OneByOne), "serial"), ((STALL, Fails), "gives_up"),
         ((STALL, NoReturn), "broken_plan"), ((STALL, "vllm"), "not_a_policy")],
    ),
    "07.6": Answers(
        [(STARVE, Ageing)],
        [(([(3, 0.0), (3, 0.0)], Ageing), "nobody_starves"), ((STARVE[:10], Ageing), "not_long_enough"), (([(99, 0.0)] * 3, Ageing), "outside_rules"),
         (STARVE[0][0], "two_parts"), ((STARVE, Shortest), "still_starves"), ((STARVE, Base), "no_gain"), ((STARVE, Idle), "stalls"),
         ((STARVE, NoReturn), "broken_plan")],
    ),
    "07.7": Answers(
        [Racer, Racer()],
        [(VllmPolicy, "a_copy"), (MiniRuntimePolicy, "gives_up"), (Books, "beats_nowhere"), (ReadmeShortest, "beats_too_few"), (LongOnly, "loses_too_much"), (Sheds, "gives_up"), (Idle, "stalls"), (NoReturn, "broken_plan"), (7, "not_a_policy")],
    ),
    "07.8": Answers(
        [Ticks(GOOD, (True, True, True, True))],
        [("要快。", "too_short"), ("你会检查哪些必须成立的事？至少说出四条，各说明违反了会怎样。", "copied"),
         (Ticks(GOOD, (True, False, True, True)), "grade.missing"), (Ticks(GOOD, (False, True, True, True)), "grade.missing"),
         (Ticks(GOOD, (True, True, True, True, True)), "grade.count")],
    ),
}  # fmt: skip
