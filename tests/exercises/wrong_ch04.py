"""Chapter 04: right and typical wrong answers."""

from __future__ import annotations

import math

from tests.exercises.answers import Answers, Ticks


def seconds(batch, context, params, kv_per_token, peak, bandwidth):
    compute = 2 * params * batch / peak
    memory = (2 * params + batch * context * kv_per_token) / bandwidth
    return max(compute, memory)


def enough(context, params, kv_per_token, bandwidth, share):
    return math.ceil(share / (1 - share) * 2 * params / (context * kv_per_token) - 1e-9)


def crossing(context, params, kv_per_token, bandwidth, share):
    return math.ceil(2 * params / (context * kv_per_token))


GOOD = (
    "T(B) 是一条直线：截距是读一遍权重，斜率是每一行自己的 KV。约 39 行之前权重占大头，吞吐近似线性；之后 KV 占大头，"
    "吞吐趋向带宽除以每请求的 KV。计算项的斜率更小，所以不会变成计算受限。"
)

ANSWERS = {
    "04.1": Answers(
        [0.4846, "0.485 ms", "485 us", "0.000485 s"],
        [(0.2423, "one_byte"), (0.003167, "flops"), (0.969, "fp32"), (2063.6, "inverse"), (0.4846e-3, "unit_slip"),
         ("0.48 GB", "unit_dimension")],
    ),
    "04.2": Answers(["C", "c"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("D", "chosen_wrong")]),
    "04.3": Answers([153, 153.02], [(306, "fp32"), (76.5, "half"), (0.00653, "inverse"), (39.26, "kv"), (500, "too_large")]),
    "04.4": Answers(
        [seconds],
        [(lambda b, c, n, k, p, w: 2 * n * b / p + (2 * n + b * c * k) / w, "sum"),
         (lambda b, c, n, k, p, w: max(2 * n * b / p, (2 * n + c * k) / w), "kv_once"),
         (lambda b, c, n, k, p, w: seconds(b, 1, n, k, p, w), "no_context"),
         (lambda b, c, n, k, p, w: max(2 * n * b / p, b * (2 * n + c * k) / w), "weights_per_row"),
         (lambda b, c, n, k, p, w: seconds(b, c, n, k, 2 * p, w), "one_flop"),
         (lambda b, c, n, k, p, w: max(2 * n * b / p, (n + b * c * k) / w), "one_byte"),
         (lambda b, c, n, k, p, w: max(2 * n / p, (2 * n + b * c * k) / w), "memory_only"),
         (lambda b, c, n, k, p, w: min(2 * n * b / p, (2 * n + b * c * k) / w), "faster"),
         (lambda b, c, n, k, p, w: (2 * n + b * c * k) / w, "memory_only"),
         (lambda b, c, n, k, p, w: 1e3 * seconds(b, c, n, k, p, w), "differs")],
    ),
    "04.5": Answers(
        [3.459, "3.46x", "3.46 倍"],
        [(100, "linear"), (1, "constant"), (1.105, "no_layers"), (15.98, "all_heads"), (0.289, "upside_down"), (2.244, "short")],
    ),
    "04.6": Answers(
        [39.3, 39.26, "39.3 行"],
        [(942, "no_layers"), (5.609, "all_heads"), (78.5, "short"), (153, "ridge"), (19.6, "one_byte"), (1000, "too_large")],
    ),
    "04.7": Answers(
        [81020, "81,020 tokens/s", 8.1e4],
        [(315768, "compute"), (58179, "at_100"), (2064, "weights"), (1.9445e6, "no_layers"), (201228, "linear")],
    ),
    "04.8": Answers(
        [enough],
        [(crossing, "always_crossing"), (lambda c, n, k, w, s: enough(c, n, k, w, s) - 1, "one_short"),
         (lambda c, n, k, w, s: s / (1 - s) * 2 * n / (c * k), "fraction"),
         (lambda c, n, k, w, s: math.ceil(s * 2 * n / (c * k)), "kv_is_share_of_weights"),
         (lambda c, n, k, w, s: enough(c, n, k, w, 1 - s), "time_share")],
    ),
    "04.9": Answers(
        [525, "525.5 tokens"],
        [(153, "ridge"), (12612, "no_layers"), (75.07, "all_heads"), (80409, "weights"), (262.7, "one_flop")],
    ),
    "04.10": Answers(
        [Ticks(GOOD, (True, True, True, True))],
        [("线性增长", "too_short"), (Ticks(GOOD, (False, True, True, True)), "grade.missing"),
         (Ticks(GOOD, (True, True, False, True)), "grade.missing"), (Ticks(GOOD, (True,)), "grade.count")],
    ),
}  # fmt: skip
