"""第 09 章的题面。"""

from __future__ import annotations

from ..texts import Text

TEXTS = {
    "09.1": Text(
        "思考题 3（一）：decode 会怎样",
        "8 个人正在 decode（Llama-3-8B，A100-80GB，平时一步约 8.5 ms）。mini-runtime 策略，prefill 与 decode **分离执行**，chunk 和预算都是 8192。"
        "第 0.5 秒来了一个 8192 token 的 prompt，一个人吃满整步预算。**那一步，正在 decode 的人等了平时的几倍？**\n\n先锁定预测，再运行。",
        options={
            "A": ("1 倍：两者是分开的两次前向，互不影响", "分开的是**前向**，不是时间。同一步里 decode 排在 prefill 后面，要等它全部算完。"),
            "B": ("约 5 倍", "prefill 8192 个位置已经远远过了 ridge point，是计算受限的：时间和位置数成正比。算一算 $2N \\times 8192 / \\text{FLOPs}$。"),
            "C": ("约 50 倍", ""),
            "D": ("几百倍以上：要等到那个请求整个答完", "只等它的 **prefill** 那一步。之后它也进入 decode，和大家同一次前向。"),
        },
        hints=["prefill 8192 个位置要多少 FLOP？A100 每秒 312 TFLOP。"],
        after="平时 8.5 ms，那一步 431 ms：所有人同时停住将近半秒。Sarathi 把它叫 generation stall。平均 TPOT 只从 8.5 变成 10.4 ms，p99 仍是 9 ms：停顿只有一步，约 1600 个间隔里占 8 个。**报表上看不见它，坐在车上的人看得见**，所以要看最大值。",
    ),
    "09.2": Text(
        "思考题 3（二）：那一步有多长",
        "用式 (3) 的计算项估计：Llama-3-8B（8.03e9 个参数），一次前向算 8192 个位置，312 TFLOP/s。**要多少毫秒？**（3% 误差；attention 自己的 FLOP 不计）",
        hints=["每个位置 $2N$ FLOP。", "访存项只有 8 ms 左右，可以不管。"],
        messages={
            "one_flop": "一个参数一次乘一次加，是 2 FLOP。",
            "weights": "这是读一遍权重的时间，也就是一步 decode。8192 个位置时，算的时间远超读的时间。",
            "weights_each": "权重只读一遍，不是每个位置读一遍：那是 8192 步 decode 的时间。",
            "one_token": "这是一个位置的计算时间，乘上 8192。",
        },
        after="约 422 ms，模拟器给出 431 ms（还要加上那一步的 decode）。停顿与一步里 prefill 的位置数成正比，这就指出了修法：一步少算一些。",
    ),
    "09.3": Text(
        "思考题 3（三）：一步能塞多少",
        "写 `largest_chunk(target, rows, context, params, kv_per_token, peak, bandwidth)`：**混批**，一步里有 `rows` 行 decode（上下文各 `context`），"
        "还想塞进 $c$ 个 prompt token，使这一步不超过 `target` 秒：\n\n"
        "$$\\max\\left(\\frac{2N(\\text{rows}+c)}{\\text{FLOPs}},\\ \\frac{2N+\\text{rows}\\cdot L\\cdot\\text{kv}}{BW}\\right) \\le \\text{target}$$\n\n"
        "返回最大的整数 $c$；访存项已经超了，或者一个也塞不下，返回 0。",
        hints=["先看访存项，它和 $c$ 无关：超了就是 0。", "再从计算项解出 $c$，向下取整，不小于 0。"],
        messages={
            "no_memory": "没有检查访存项：光是读权重和 KV 就超时了，一个 prompt token 也不该加。",
            "no_rows": "decode 的那些行也要算，$c$ 里要减去 `rows`。",
            "adds_up": "两项相加了。算和搬同时进行，较慢的一方决定时间，所以是 `max`；搭车的好处正在这里。",
            "one_flop": "一个位置是 $2N$ FLOP，你只算了 $N$，一步会长出一倍。",
            "fraction": "token 数是整数，向下取整。",
        },
        why="塞多了，承诺的 TPOT 守不住；塞少了，长 prompt 等得更久。",
        after="20 ms、16 行时约 372 个。`max_num_batched_tokens` 该取多少，就这样从 TPOT 的 SLO 反推。",
    ),
    "09.4": Text(
        "思考题 3（四）：修好它",
        "交一个策略（类或对象；可以是 `policies.VllmPolicy(…)`、`policies.MiniRuntimePolicy(…)`，也可以自己写），在三个场面里都做到：\n\n"
        "- 任何人相邻两个 token 的间隔（ITL）**不超过 20 ms**；\n- 长 prompt 的 TTFT 不超过原来（一口气算完）的 **1.25 倍**；\n- 所有人都答完。\n\n"
        "场面：8 个人加一个 8192 的 prompt；16 个人加两个，隔 0.2 s；12 个人加一个 6000 的。`t4.show(policy)` 画出第一位乘客的每个间隔。",
        hints=[
            "先试 `policies.MiniRuntimePolicy(chunk=256, step_budget=256)`，看看差在哪里。",
            "分离执行每步要读两遍权重；混批只读一遍。",
            "`policies.VllmPolicy(max_num_batched_tokens=…)`：用 09.3 算算 20 ms 里能放多少。",
        ],
        messages={
            "not_a_policy": "要交一个策略：有 `plan(self, state)` 的类或对象。",
            "gives_up": "有人没有答完。拒绝长 prompt 不算修好。",
            "unchanged": "最长的停顿还是 {worst} ms：整段 prompt 仍然在一步里算完。",
            "still_long": "最长的停顿 {worst} ms，还超过 20 ms。块再小一些。",
            "two_forwards": "最长的停顿 {worst} ms，很接近了。分离执行时，这一步除了 prefill 还要为 decode 再读一遍权重；想想怎样只读一遍。",
            "too_fine": "停顿只有 {worst} ms，可长 prompt 的 TTFT 成了原来的 {ratio} 倍：切得太碎，每一小块都要重读一遍权重和前面的 KV。",
            "long_never_comes": "停顿只有 {worst} ms，可长 prompt 的 TTFT 成了原来的 {ratio} 倍：它几乎一直在等。",
            "stalls": "你的策略卡住了：到第 {step} 步，它的计划什么也没有算，可还有请求没有答完。",
            "broken_plan": "引擎拒绝了它的一份计划：违反了一条规则，原文在下面。",
        },
        after="最长的停顿 {worst} ms，TTFT 是原来的 {ratio} 倍。停顿少了二十多倍，长 prompt 只多等一成多：因为 256 个位置已经过了 ridge point，切开并不让算力闲着。",
    ),
    "09.5": Text(
        "思考题 3（五）：写成结论",
        "> mini-runtime 的 prefill 与 decode 分离执行（每步先全量 prefill 再 decode）。若某步 prefill 预算 8192 全被一个请求吃满，decode 的延迟会怎样？\n\n"
        "用自己的话回答：会怎样、为什么、怎样修、代价是什么。",
        model="**会怎样**：那一步，所有正在 decode 的请求都要等整段 prefill 算完，ITL 从约 8.5 ms 变成约 430 ms，五十倍。它只发生一步，摊到 200 个 token 上，平均 TPOT 只从 8.5 变成 10.4 ms，看得见它的是 ITL 的最大值。\n\n"
        "**为什么**：8192 个位置远超 ridge point，是计算受限的，时间约 $2N \\times 8192/\\text{FLOPs} = 422$ ms；分离的是前向，不是时间，decode 排在它后面。\n\n"
        "**怎样修**：把 prompt 切块（chunked prefill），每步只算几百个位置，并与 decode 混在同一次前向里，权重只读一遍；块的大小由 ITL 的 SLO 反推，下限是 ridge point。"
        "256 时停顿约 16 ms。或者把两个阶段放到两台机器上（PD 分离）。\n\n"
        "**代价**：长 prompt 自己的 TTFT 变长（256 时一成多，切到 64 就是三倍）；分块要重读前面已有的 KV；混批的形状更不规整。",
        checklist=[
            ("decode 停住整步，约五十倍；平均值和 p99 都看不出来", "回到 09.1。"),
            ("原因：计算受限，时间与 prefill 的位置数成正比；同一步里 decode 排在后面", "回到 09.2。"),
            ("修法：切块，并与 decode 混批（或 PD 分离）", "回到 09.4。"),
            ("代价：长 prompt 的 TTFT，切得太碎会成倍变长", "把 09.4 的预算改成 64 试试。"),
        ],
        messages={"series": "三道思考题都做完了。"},
        after="思考题 3 完成。",
    ),
    "09.6": Text(
        "从上文里猜",
        "写 `propose(tokens, n, k)`：看最后 `n` 个 token 上一次出现在哪里（**最近**的一次，不算末尾自己），返回当时**跟在后面**的至多 `k` 个 token；没有出现过就返回 `[]`。\n\n"
        "例：`propose([1, 2, 3, 9, 1, 2, 4, 7, 1, 2], 2, 3)` 是 `[4, 7, 1]`。",
        hints=["`tail = tokens[-n:]`；从后往前试每个终点 `end`，比较 `tokens[end - n : end]`。", "`end` 从 `len(tokens) - 1` 起，才不会匹配到末尾自己。"],
        messages={
            "first_place": "你找到的是**最早**的一处。最近的上文更可能延续同样的说法。",
            "finds_itself": "总是返回空：多半是匹配到了末尾自己，它后面当然什么也没有。",
            "with_tail": "把匹配到的那 n 个也放进去了。它们已经在文中，要猜的是**后面**的。",
            "one_late": "跳过了一个：紧跟在匹配处后面的第一个 token 就是第一个猜测。",
            "only_one": "只猜了一个。至多 `k` 个，猜对一个省一步。",
            "everything": "没有限制在 `k` 个以内。",
        },
        why="猜的人不需要聪明，只要便宜：错了也不过是多算几行。",
        after="`minirt.speculative.NgramLookup` 在此之上再从长到短试几个 n。摘要、改代码这类“抄原文”的回答，最合适；第 09 章量了它的命中率。",
    ),
    "09.7": Text(
        "验收",
        "写 `accept(guess, model)`：一次前向算了 `1 + len(guess)` 个位置，`model[i]` 是在 `guess[:i]` 都正确的前提下模型自己要说的下一个 token。"
        "返回这一步真正产出的 token。\n\n例：`accept([4, 7, 1, 2], [4, 7, 3, 2, 5])` 是 `[4, 7, 3]`。",
        hints=["从头比，遇到第一个不同就停。", "停下的那个位置，模型说了什么？它的前文全是对的，这个 token 可以直接用。"],
        messages={
            "no_bonus": "漏了白送的那一个：第一个猜错的位置上，模型自己的 token 是可信的（它的前文都对）。全猜中时，最后还多一个。",
            "goes_on": "猜错之后还接着收。后面的位置是建立在错的前文上算出来的，不能要。",
            "everything": "不管猜得对不对，全都收了。第一个猜错之后的都要扔掉。",
            "all_or_nothing": "只要错一个就全扔了。错之前的都是对的，应当留下。",
            "guess": "你返回的是猜测本身。要以模型为准。",
        },
        why="贪心解码时，投机的结果必须和不投机时逐 token 相同。",
        after="所以最坏情况（全猜错）也产出一个 token，和平常一样；只是多算了几行。",
    ),
    "09.8": Text(
        "一步期望出几个",
        "每步猜 $k=4$ 个，每个猜中的概率都是 $\\alpha=0.8$，互相独立，遇到第一个错就停。**一步平均产出几个 token？**（算上模型自己的那一个，1% 误差）",
        hints=["至少产出 1 个。产出第 2 个要求第 1 个猜中，产出第 3 个要求前两个都猜中……", "$1+\\alpha+\\alpha^2+\\alpha^3+\\alpha^4$。"],
        messages={
            "independent": "$1+k\\alpha$ 假设错了一个后面照样能用。遇到第一个错就停，后面的猜中也不算。",
            "no_bonus": "漏了模型自己的那一个。",
            "all": "5 个是全猜中的情形。",
            "all_right": "这是四个全中的概率，不是个数。",
        },
        after="$(1-\\alpha^{k+1})/(1-\\alpha) = 3.36$（Leviathan 等，2023）。可是一步也变贵了：批大的时候，多出来的行要真金白银地算，加速会变成减速。",
    ),
    "09.9": Text(
        "PD 分离",
        "把 prefill 和 decode 放到两台机器上，哪一句是对的？",
        options={
            "A": ("两台机器，吞吐自然是一台的两倍", "两种活的比例由负载决定。prompt 短、答案长时，prefill 那台大半闲着。分离换来的是互不干扰，不是免费的产能。"),
            "B": ("KV 不用传：decode 那台自己重新算一遍就行", "重算就等于又做了一遍 prefill，分离就白做了。KV 要交接过去，网络带宽因此成了新的瓶颈。"),
            "C": ("TTFT 和 TPOT 可以分开配置硬件和并行方式，各自满足各自的 SLO", ""),
            "D": ("有了 chunked prefill，PD 分离就没有意义了", "chunked prefill 让两者和平共处，但块仍占着每一步的时间，TPOT 和 TTFT 互相牵制。SLO 都很紧时，分开更容易两头都满足。"),
        },
        hints=["两个阶段一个要算力、一个要带宽。放在一起时，为了一个 SLO 调的旋钮会伤到另一个。"],
        after="DistServe（OSDI 2024）和 Splitwise 的出发点都是这个：goodput 受两个 SLO 约束，分开之后各调各的。",
    ),
}
