"""Chapter 08: right and typical wrong answers."""

from __future__ import annotations

import math

import numpy as np

from tests.exercises.answers import Answers, Ticks


def both(times, returned):
    if len(times) <= 1:
        return None
    gaps = len(times) - 1
    return (times[-1] - times[0]) / gaps, (returned - times[0]) / gaps


def changed(first=lambda t: t[0], gaps=lambda t: len(t) - 1, single=None):
    def f(times, returned):
        if len(times) < 2:
            return single
        return (times[-1] - first(times)) / gaps(times), (returned - first(times)) / gaps(times)

    return f


def per_second(ok):
    return lambda rs, duration, ttft, tpot: len([r for r in rs if ok(*r, ttft, tpot)]) / duration


def fine(a, b, s, t):
    return a is not None and a <= s and (b is None or b <= t)


def quantile(values, q):
    v = sorted(values)
    r = q / 100 * (len(v) - 1)
    low, high = math.floor(r), math.ceil(r)
    return v[low] * (1 - (r - low)) + v[high] * (r - low)


GOOD = (
    "闭环压测里服务器慢了用户就来得慢，过载被藏起来，应当用开环的 Poisson 到达去扫到达率；平均值不够，要报 p50 和 p99，还要看 TPOT；"
    "GPU 利用率百分之百只说明有 kernel 在跑，不等于坐满；要给出 SLO，用延迟吞吐曲线或 goodput 支持每秒五十个的结论。"
)

ANSWERS = {
    "08.1": Answers(
        [both],
        [(changed(gaps=len), "by_n"), (changed(first=lambda t: 0), "from_arrival"), (changed(single=(0.0, 0.0)), "one_token"),
         (lambda t, r: both(t, r) and both(t, r)[::-1], "swapped"),
         (lambda t, r: both(t, r) and (max(b - a for a, b in zip(t, t[1:])), both(t, r)[1]), "largest_gap"),
         (lambda t, r: both(t, r) and (both(t, r)[0], (r - t[-1]) / (len(t) - 1)), "only_the_wait"),
         (lambda t, r: both(t, r) and both(t, r)[0], "wrong_type")],
    ),
    "08.2": Answers(
        [per_second(fine)],
        [(lambda rs, d, s, t: sum(fine(*r, s, t) for r in rs) / len(rs), "share"),
         (per_second(lambda a, b, s, t: a is not None and (a <= s or (b is not None and b <= t))), "either"),
         (per_second(lambda a, b, s, t: a is not None and a <= s), "ttft_only"),
         (per_second(lambda a, b, s, t: a is not None and (b is None or b <= t)), "tpot_only"),
         (per_second(lambda a, b, s, t: a is not None and a < s and (b is None or b < t)), "strictly"),
         (per_second(lambda a, b, s, t: None not in (a, b) and a <= s and b <= t), "one_token"),
         (per_second(lambda a, b, s, t: a is not None), "throughput"),
         (lambda rs, d, s, t: sum(a <= s and b <= t for a, b in rs) / d, "crash")],
    ),
    "08.3": Answers([19.2, "19.2 rows"], [(16, "no_queue"), (3.33, "divided"), (2.4, "stay"), (1600, "tokens"), (16003, "milliseconds"), (25, "too_large")]),
    "08.4": Answers(
        [13.64, 13.5],
        [(14.0, "no_prefill"), (0.8525, "one_row"), (111.1, "steps"), (1777.8, "tokens"), (0.8735, "rows_share"), (10, "too_small")],
    ),
    "08.5": Answers(["C"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("Z", "not_an_option")]),
    "08.6": Answers(["B"], [("A", "chosen_wrong"), ("C", "chosen_wrong"), ("D", "chosen_wrong")]),
    "08.7": Answers(
        [quantile, lambda v, q: np.percentile(v, q)],
        [(lambda v, q: v[int(q / 100 * (len(v) - 1))], "unsorted"), (lambda v, q: sorted(v)[int((len(v) - 1) * q / 100)], "no_interpolation"),
         (lambda v, q: sorted(v)[min(len(v) - 1, int(q * len(v) / 100))], "out_by_one"), (lambda v, q: quantile(v, 100 - q), "upside_down"),
         (lambda v, q: max(v) * q / 100, "of_the_maximum"), (lambda v, q: max(v), "differs")],
    ),
    "08.8": Answers(
        [Ticks(GOOD, (True, True, True, True))],
        [("没问题。", "too_short"), ("平均 TTFT 80 ms，GPU 利用率 100%，所以线上每秒 50 个请求没有问题。", "copied"),
         (Ticks(GOOD, (False, True, True, True)), "grade.missing"), (Ticks(GOOD, (True, True, False, True)), "grade.missing"),
         (Ticks(GOOD, (True, True, True)), "grade.count")],
    ),
}  # fmt: skip
