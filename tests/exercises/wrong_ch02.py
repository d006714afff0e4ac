"""Chapter 02: right and typical wrong answers."""

from __future__ import annotations

from collections import deque

from tests.exercises.answers import Answers, Ticks


def step_loop(lengths, slots):
    left = list(lengths)
    waiting, running, out = deque(range(len(lengths))), [], []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        out.append(running[:])
        for i in running:
            left[i] -= 1
        running = [i for i in running if left[i] > 0]
    return out


def static_loop(lengths, slots):
    out = []
    for start in range(0, len(lengths), slots):
        batch = list(range(start, min(start + slots, len(lengths))))
        step = 0
        while batch:
            out.append(batch)
            step += 1
            batch = [i for i in batch if lengths[i] > step]
    return out


def refilled_late(lengths, slots):
    left = list(lengths)
    waiting, running, out = deque(range(len(lengths))), [], []
    while waiting or running:
        occupied = len(running)
        running = [i for i in running if left[i] > 0]
        while waiting and occupied < slots:
            running.append(waiting.popleft())
            occupied += 1
        if running:
            out.append(running[:])
        for i in running:
            left[i] -= 1
    return out


def shortest_first(lengths, slots):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [[order[i] for i in step] for step in step_loop([lengths[i] for i in order], slots)]


def from_the_back(lengths, slots):
    left = list(lengths)
    waiting, running, out = list(range(len(lengths))), [], []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop())
        out.append(running[:])
        for i in running:
            left[i] -= 1
        running = [i for i in running if left[i] > 0]
    return out


def never_ends(lengths, slots):
    running, out = list(range(len(lengths))), []
    while running:
        out.append(running)
        out = out[-10:]
    return out


def bound(lengths, slots):
    return max(max(lengths), (sum(lengths) + slots - 1) // slots)


GOOD = (
    "同时到达时大家同一步上车、同一步下车，没有陪跑的行，所以两者一样快；陆续到达时静态批要等整批结束才能准入，"
    "刚错过的人白等一批，座位也可能空着；最后一批不满时两边都没有人可补。"
)

ANSWERS = {
    "02.1": Answers(
        [lambda batches, slots: sum(map(len, batches)) / (slots * len(batches))],
        [(lambda bs, s: sum(len(b) / s for b in bs), "no_mean"), (lambda bs, s: sum(map(len, bs)) / len(bs), "rows"),
         (lambda bs, s: max(map(len, bs)) / s, "peak"), (lambda bs, s: sum(len(b) // s for b in bs) / len(bs), "full_steps")],
    ),
    "02.2": Answers(
        [bound],
        [(lambda ls, b: (sum(ls) + b - 1) // b, "no_longest"), (lambda ls, b: max(ls), "no_sum"),
         (lambda ls, b: max(max(ls), sum(ls) // b), "floor"), (lambda ls, b: max(max(ls), sum(ls) / b), "fraction"),
         (lambda ls, b: len(static_loop(ls, b)), "static"), (lambda ls, b: max(ls) + (sum(ls) + b - 1) // b, "added")],
    ),
    "02.3": Answers([69, "69 steps"], [(64, "bound"), (91, "static"), (46, "half"), (12, "longest"), (75, "guess_off")]),
    "02.4": Answers(
        [step_loop, lambda ls, b: [step[::-1] for step in step_loop(ls, b)]],
        [(static_loop, "static"), (refilled_late, "late"), (shortest_first, "shortest_first"), (from_the_back, "last_first"),
         (lambda ls, b: step_loop(ls, 99), "no_slots"), (lambda ls, b: step_loop(ls, 1), "one_by_one"),
         (lambda ls, b: len(step_loop(ls, b)), "wrong_type")],
    ),
    "02.5": Answers(["A"], [("B", "chosen_wrong"), ("C", "chosen_wrong"), ("D", "chosen_wrong")]),
    "02.6": Answers(
        [[0, 1, 1, 1, 15, 17, 17, 17]],
        [([0] * 8, "all_at_once"), ([0, 1, 1, 1, 100, 101, 101, 101], "too_sparse"), ([0, 0, 0, 0, 1, 1, 1, 1], "not_enough"),
         ([0, 1], "outside_rules"), ([1, 0, 0, 0, 0, 0, 0, 0], "outside_rules")],
    ),
    "02.7": Answers(
        [Ticks(GOOD, (True, True, True, True))],
        [("不大。", "too_short"), ("生成长度全部相同时，静态批与连续批的差别还大吗？为什么？", "copied"),
         (Ticks(GOOD, (True, True, True, False)), "grade.missing"), (Ticks(GOOD, (True, False, True, True)), "grade.missing"),
         (Ticks(GOOD, (True, True)), "grade.count")],
    ),
}  # fmt: skip
