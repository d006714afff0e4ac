"""Chapter 09: right and typical wrong answers."""

from __future__ import annotations

import math

import minirt
from minirt.policies import MiniRuntimePolicy, VllmPolicy
from tests.exercises.answers import Answers, Ticks


def chunk(memory=True, minus_rows=True, both=False, flops=2, whole=True):
    def largest(target, rows, context, params, kv_per_token, peak, bandwidth):
        read = (2 * params + rows * context * kv_per_token) / bandwidth
        if memory and read > target:
            return 0
        left = (target - read if both else target) / (flops * params / peak) - (rows if minus_rows else 0)
        return max(0, math.floor(left) if whole else left)

    return largest


def lookup(tokens, n, k):
    tail = tokens[len(tokens) - n :] if len(tokens) >= n else None
    for start in reversed(range(len(tokens) - n)):
        if tokens[start : start + n] == tail:
            return tokens[start + n : start + n + k]
    return []


def lookup_first(tokens, n, k):
    for start in range(len(tokens) - n):
        if tokens[start : start + n] == tokens[-n:]:
            return tokens[start + n : start + n + k]
    return []


def lookup_itself(tokens, n, k):
    for start in reversed(range(len(tokens) - n + 1)):
        if tokens[start : start + n] == tokens[-n:]:
            return tokens[start + n : start + n + k]
    return []


def verify(guess, model):
    out = []
    for i, token in enumerate(model):
        out.append(token)
        if i == len(guess) or guess[i] != token:
            return out
    return out


class Waits:
    """Keeps long prompts out until nobody decodes."""

    name = "waits"

    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            if (seq.num_prompt > 1000 and p.plan.decode) or not p.admit(seq):
                break
        return p.plan


class Refuses:
    name = "refuses"

    def plan(self, state):
        p = minirt.Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            if seq.num_prompt > 1000:
                p.refuse(seq, "too long")
            elif not p.admit(seq):
                break
        return p.plan


GOOD = (
    "那一步所有 decode 都要等整段 prefill 算完，ITL 从八毫秒多变成四百多毫秒，大约五十倍，平均值却看不出来；原因是八千个位置计算受限，"
    "时间与位置数成正比，而 decode 排在后面。修法是切块并与 decode 混批，代价是长 prompt 的 TTFT 变长，切得太碎会成倍。"
)

ANSWERS = {
    "09.1": Answers(["C"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("D", "chosen_wrong")]),
    "09.2": Answers(
        [422, "0.422 s", 431],
        [(211, "one_flop"), (7.88, "weights"), ("64.5 s", "weights_each"), (0.0515, "one_token"), (300, "too_small")],
    ),
    "09.3": Answers(
        [chunk()],
        [(chunk(memory=False), "no_memory"), (chunk(minus_rows=False), "no_rows"), (chunk(both=True), "adds_up"),
         (chunk(flops=1), "one_flop"), (chunk(whole=False), "fraction")],
    ),
    "09.4": Answers(
        [VllmPolicy(max_num_batched_tokens=256)],
        [(VllmPolicy, "still_long"), (VllmPolicy(max_num_batched_tokens=384), "still_long"), (MiniRuntimePolicy(8192, 8192), "unchanged"), (MiniRuntimePolicy(256, 256), "two_forwards"),
         (VllmPolicy(max_num_batched_tokens=64), "too_fine"), (Refuses, "gives_up"), (Waits, "long_never_comes"), ("vllm", "not_a_policy")],
    ),
    "09.5": Answers(
        [Ticks(GOOD, (True, True, True, True))],
        [("会变慢。", "too_short"), ("若某步 prefill 预算 8192 全被一个请求吃满，decode 的延迟会怎样？", "copied"),
         (Ticks(GOOD, (True, True, False, True)), "grade.missing"), (Ticks(GOOD, (False, True, True, True)), "grade.missing"),
         (Ticks(GOOD, (True,)), "grade.count")],
    ),
    "09.6": Answers(
        [lookup],
        [(lookup_first, "first_place"), (lookup_itself, "finds_itself"), (lambda t, n, k: lookup(t, n, 1), "only_one"),
         (lambda t, n, k: lookup(t, n, 10**6), "everything"), (lambda t, n, k: lookup(t, n, k + 1)[1:], "one_late"),
         (lambda t, n, k: (t[-n:] + lookup(t, n, k))[:k] if lookup(t, n, k) else [], "with_tail")],
    ),
    "09.7": Answers(
        [verify],
        [(lambda g, m: verify(g, m)[:-1], "no_bonus"), (lambda g, m: [y for x, y in zip(g, m) if x == y] + [m[-1]], "goes_on"),
         (lambda g, m: m[:], "everything"), (lambda g, m: m[:] if g == m[:-1] else [m[0]], "all_or_nothing"), (lambda g, m: g[:], "guess")],
    ),
    "09.8": Answers(
        [3.36, "3.36 tokens"],
        [(4.2, "independent"), (2.36, "no_bonus"), (5, "all"), (0.41, "all_right"), (3, "too_small")],
    ),
    "09.9": Answers(["C"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("D", "chosen_wrong")]),
}  # fmt: skip
