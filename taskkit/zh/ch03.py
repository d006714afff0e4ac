"""第 03 章的题面。"""

from __future__ import annotations

from ..texts import Text

TEXTS = {
    "03.1": Text(
        "显存装得下几个请求",
        "一张 A100-80GB（80 GB，按 $10^9$ 计）用来服务 Llama-3-8B：8,030,261,248 个参数，fp16；32 层，32 个 query head、"
        "**8 个 KV head**，head size 128。允许引擎用 90% 的显存，其余留给激活值等。\n\n"
        "每个请求的上下文都是 2048 个 token。**显存最多同时容纳多少个请求？**（写算出来的数，不取整也行，允许 1% 误差）",
        hints=[
            "先算 KV 的地盘：可用显存减去权重。",
            "每个 token 的 KV 字节数：$2 \\times 层数 \\times H_{kv} \\times D \\times 2$ 字节。前一个 2 是 K 和 V，后一个 2 是 fp16。",
            "GQA 里多个 query head 共用一个 KV head，存的是 KV head。",
        ],
        messages={
            "no_weights": "忘了给权重留地方：16 GB 的权重一直在显存里。",
            "all_memory": "用了 100% 的显存。题目只给引擎 90%。",
            "all_heads": "你用了 32 个 query head。KV cache 里存的是 8 个 **KV head**，GQA 省的正是这 4 倍。",
            "one_layer": "这只是一层的 KV。每一层都有自己的 K 和 V，要乘 32。",
            "only_k": "K 和 V 都要存，少乘了一个 2。",
        },
        after="约 208 个。这是式 (2) 里的 $B_{\\text{显存}}$。请求真的全长到 2048 时才需要这么多，而引擎事先不知道谁会长到多长，所以才要按块、按需分配。",
    ),
    "03.2": Text(
        "准入判断",
        "写 `can_admit(prompt_tokens, free_slots, free_blocks, block_size, keep)`，返回 `True` 或 `False`：队头的请求现在能不能进来。\n\n"
        "- 要有空的 slot；\n- 它的 **prompt** 要放得下，KV 按 `block_size` 个 token 一块分配；\n"
        "- 放下之后，至少还要剩 `keep` 个空闲块（watermark，留给正在 decode 的请求生长）。",
        hints=["33 个 token、每块 16 个，要几块？", "整数的向上取整可以写成 `-(-a // b)`。", "剩下的块数是 `free_blocks` 减去要用的，它要大于等于 `keep`。"],
        messages={
            "floor": "除不尽时要向上取整：33 个 token 需要 3 块，最后一块只用 1 格也要整块给它。",
            "no_slot": "没有看空闲的 slot：块够了，批里没有座位也进不来。",
            "no_keep": "没有留出 `keep` 块。刚让人进来，下一步别人要长新块时就没有了，只好抢占或报错。",
            "strictly": "恰好剩下 `keep` 块也是可以的：题目说“至少”。",
            "tokens": "你拿 token 数直接和块数比了。一块能装 `block_size` 个 token。",
            "always": "有 slot 就放行，块不够怎么办？",
        },
        why="准入放得太松会导致抢占或失败，太紧则座位空着。",
        after="`Planner.admit(seq, keep=…)` 做的就是这个判断；`VllmPolicy` 的 `watermark` 就是 `keep` 占总块数的比例。",
    ),
    "03.3": Text(
        "式 (2)：$B_{\\max}$ 和谁说了算",
        "写 `b_max(kv_room, kv_per_row, prompt, output, prefill_budget, weights, bandwidth, tpot)`，返回 `(B, 谁)`，"
        "谁是 `\"memory\"`、`\"compute\"` 或 `\"slo\"`。三个上限各自向下取整：\n\n"
        "- memory：`kv_room` 字节里放得下几个 `kv_per_row` 字节的请求；\n"
        "- compute：稳态下每步平均有 $B/\\text{output}$ 个请求离开，同样多的新 prompt 要算，每步不超过 `prefill_budget` 个 token；\n"
        "- slo：一步要读完权重和所有行的 KV，$(\\text{weights} + B \\cdot \\text{kv\\_per\\_row})/\\text{bandwidth} \\le \\text{tpot}$。"
        "连 $B=0$ 都不满足时算 0。\n\n测试里三者不会相等。单位都是字节、秒、token。",
        hints=[
            "compute：$B \\cdot \\text{prompt}/\\text{output} \\le \\text{prefill\\_budget}$，解出 $B$。",
            "slo：把不等式解成 $B \\le \\dots$，注意减去读权重的时间。",
            "`min` 之后还要知道是谁最小：放进字典，再 `min(d, key=d.get)`。",
        ],
        messages={
            "wrong_type": "要返回一对 `(B, 谁)`，收到的是 {type}。",
            "largest": "三个约束要**同时**满足，所以取最小的，不是最大的。",
            "no_weights": "slo 一项忘了权重：每一步不管几行，先要把权重读一遍，剩下的时间才归 KV。",
            "per_prompt": "compute 一项你用了 `prefill_budget / prompt`，那是一步里能新进几个。一个请求要待 `output` 步，所以同时在批里的有 `output` 倍。",
            "negative": "连权重都读不完时，slo 允许的行数是 0，不是负数。",
            "fraction": "请求没有半个：向下取整。",
        },
        after="三个量里只有一个说了算。调参之前先算一算是哪一个：给显存受限的系统放宽 SLO，什么也换不来。",
    ),
    "03.4": Text(
        "显存加倍，批能多大？",
        "A100-40GB 上的 Llama-3-8B，平均 prompt 768、output 512（平均上下文约 1024），每步 prefill 预算 8192，TPOT 的 SLO 是 **15 ms**。"
        "把显存换成 80 GB（带宽不变），$B_{\\max}$ 会怎样？\n\n先锁定预测，再运行。",
        options={
            "A": ("大约翻一倍", "KV 的地盘其实涨得不止一倍（权重只占一份），可那是显存的上限。先看现在是谁在说了算。"),
            "B": ("不止翻一倍：权重只占一份，多出来的全归 KV", "这个推理对 $B_{\\text{显存}}$ 是对的：148 变成约 416。但 $B_{\\max}$ 是三者中最小的，"
                  "而 15 ms 里光读权重就用掉 10.3 ms，剩下的只够读 54 行的 KV。"),
            "C": ("不变", ""),
            "D": ("变小：KV 多了，每步更慢", "每步多慢取决于批里**实际**有几行。显存大只是允许更多行，并没有强迫引擎放进来。"),
        },
        hints=["15 ms 里，读 16 GB 权重要用掉几毫秒？剩下的时间能读几个请求的 KV？"],
        after="卡住它的是 SLO。能让 $B_{\\max}$ 变大的是更高的带宽、更小的权重（量化）或更短的 KV，而不是更多的显存。",
    ),
    "03.5": Text(
        "搞坏它：fail-fast 的 runtime",
        "`mini-runtime` 没有抢占：decode 时要不到新块，这个请求就以错误结束（`aborted`）。引擎有 8 块、每块 4 个 token、4 个 slot。\n\n"
        "1. **搞坏它**：给出 `pairs`，2 到 6 个 `(prompt, output)`，每一个**单独**都放得下（`prompt + output - 1 <= 32`），却有人被 abort。\n"
        "2. **修好它**：写一个 policy 类，有方法 `plan(self, state)`。在你的负载和隐藏的负载上，人人都要生成完，**不许抢占、不许拒绝**，"
        "还要比一个一个跑快（总步数不超过串行的 80%）。\n\n"
        "交 `(pairs, YourPolicy)`。可用的东西：`minirt.Planner(state)`，它的 `decode`、`prefill`、`admit`；"
        "`seq.max_total` 是这个请求最多要在 KV 里放多少 token。`t5.show((pairs, ...))` 看你的输入怎样跑。",
        hints=[
            "准入时只看 prompt 放不放得下。进来以后，它们会一起长大。",
            "修：准入时问的不是“现在放得下吗”，而是“里面的人全都长到头，还放得下它吗”。",
            "给每个在批里的请求按 `-(-seq.max_total // block_size)` 记账，加上新人不超过 `num_blocks` 才 `p.admit`。记账不等于真的占住块：块仍按需分配。",
        ],
        messages={
            "two_parts": "要交两样东西：`(pairs, YourPolicy)`。",
            "outside_rules": "`pairs` 要有 2 到 6 个 `(prompt, output)`，都是正整数。",
            "too_big": "有一个请求单独就放不下（{total} 个 token，池子只有 32）。那是拒绝，不是这里要的失败。",
            "no_abort": "没有人被 abort。准入时要都放得下，decode 到一半才不够：prompt 短一些，output 长一些。",
            "still_aborts": "你的 policy 还是有人被中途中止。看看准入时有没有算上**已经在里面的人将来**要长的块。",
            "refuses": "你拒绝了单独放得下的请求。让它等，等前面的人走了再进来。",
            "preempts": "你用了抢占。这一题要的是让它根本不会发生的准入判断。",
            "does_nothing": "你的 policy 一个人也没有放进来。`plan` 里要给 `state.waiting` 里的人 `p.admit(seq)`，给已经在批里的人 `p.prefill(seq)`、`p.decode(seq)`。",
            "stalls": "引擎停住了：批里的请求都要新块，块却没有了，谁也走不动，谁也不退。这是死锁，根子同样在准入。",
            "broken_plan": "引擎不接受这个 plan：它违反了一条规则，原文在下面。",
            "serial": "人人都完成了，但一共用了 {steps} 步，串行才 {alone} 步：几乎没有同时跑。放得下的时候要让人进来。",
        },
        after="{aborted} 个请求不再被中止，总共 {steps} 步（串行 {alone} 步）。代价也看到了：按最坏情形记账，座位常常空着。"
        "vLLM 的选择相反：乐观准入，真不够了再抢占。这两种办法的比较在后面的章节。",
    ),
}
