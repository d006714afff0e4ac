"""Chapter 10: right and typical wrong answers."""

from __future__ import annotations

import math

from tests.exercises.answers import Answers, Ticks


def plan(prefill=True, seats=True, margin=lambda load: load, rounding=math.ceil):
    def machines(rate, prompt, output, slots, prefill_speed, step, load):
        time = (output - 1) * step + (prompt / prefill_speed if prefill else 0)
        capacity = (slots if seats else 1) / time
        return rounding(rate / (capacity * margin(load)))

    return machines


ONE_MINUTE = (
    "每一步都要读一遍全部权重，所以要把多个请求拼成一批来分摊；静态批一起上下车，短的写完还在陪跑，新人等整批；"
    "连续批每一步重新组批，完成即走，空位即补；没有人排队时它没有收益，座位上限由显存决定。"
)
SLOW = (
    "先把 TTFT 拆成排队和 prefill；看延迟是否一直涨，过载就没有稳态；再看批卡在座位、KV 块还是 token 预算，有没有抢占；"
    "然后看 prompt 长度、前缀缓存命中率和到达的扎堆程度有没有变；最后回放到模拟器里验证。"
)
AGENT = (
    "前缀缓存是第一位的，同一会话要路由回同一台；长历史切块并与 decode 混批，预算由 ITL 反推；显存留余量，用尽时抢占最后上车的；"
    "快完成的任务优先，加老化防饿死；指标用任务级的完成时间和 SLO 下的 goodput。"
)

ANSWERS = {
    "10.1": Answers(["D"], [("A", "chosen_wrong"), ("B", "chosen_wrong"), ("C", "chosen_wrong")]),
    "10.2": Answers(
        ["BE", "E B"],
        [("A", "chosen_wrong"), ("BC", "chosen_wrong"), ("D", "chosen_wrong"), ("BEF", "chosen_wrong"), ("B", "incomplete")],
    ),
    "10.3": Answers(
        [0.2315, 0.23],
        [(833.3, "per_second"), (0.0002315, "per_thousand"), (13.89, "minutes"), (4.32, "upside_down"), (0.3, "too_large"), ("2 s", "unit_dimension")],
    ),
    "10.4": Answers(
        [plan()],
        [(plan(prefill=False), "no_prefill"), (plan(seats=False), "no_slots"), (plan(margin=lambda x: 1), "no_load"),
         (plan(margin=lambda x: 1 / x), "more_load"), (plan(rounding=int), "floor"), (plan(rounding=float), "fraction"),
         (plan(rounding=lambda n: math.ceil(n) + 1), "differs")],
    ),
    "10.5": Answers(["A"], [("B", "chosen_wrong"), ("C", "chosen_wrong"), ("D", "chosen_wrong")]),
    "10.6": Answers(
        [Ticks(ONE_MINUTE, (True, True, True, True))],
        [("就是动态组批。", "too_short"), ("请用一分钟，向一个懂 Python 的人讲清楚什么是 continuous batching，为什么它有效。", "copied"),
         (Ticks(ONE_MINUTE, (True, False, True, True)), "grade.missing"), (Ticks(ONE_MINUTE, (True, True, True)), "grade.count")],
    ),
    "10.7": Answers(
        [Ticks(SLOW, (True, True, True, True))],
        [("重启试试。", "too_short"), ("今天 TTFT p99 从 0.5 s 变成 6 s，吞吐没有变化。你按什么次序查？", "copied"),
         (Ticks(SLOW, (False, True, True, True)), "grade.missing"), (Ticks(SLOW, (True,)), "grade.count")],
    ),
    "10.8": Answers(
        [Ticks(AGENT, (True, True, True, True, True))],
        [("多加几台机器。", "too_short"), ("给出你的设计：准入、分块、缓存、公平、指标，并说明每一项为什么。", "copied"),
         (Ticks(AGENT, (True, True, True, True, False)), "grade.missing"), (Ticks(AGENT, (True, True, True, True)), "grade.count")],
    ),
}  # fmt: skip
