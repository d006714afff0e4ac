"""第 06 章的题面。"""

from __future__ import annotations

from ..texts import Text

TEXTS = {
    "06.1": Text(
        "按上限预留，坐得下几个人",
        "KV 池有 9,600 块，每块 16 token。Orca(max) 给每个请求连续预留 `max_model_len = 8192` 个 token 的位置。"
        "真实请求平均只有 300 token 的 prompt 和 150 token 的答案。**同时最多有几个请求在跑？**",
        hints=["8192 个 token 要几块？", "人数是整数，装不下一个整的就进不来。"],
        messages={
            "fraction": "除得对，可是 0.75 个请求进不来：预留不下一整份就不准入。",
            "paged": "这是按**真实**长度（450 token）装的人数，分页系统能接近它。Orca 事先不知道答案多长，只好按上限留。",
            "pow2": "这是 pow2 变体：prompt 加上把答案长度凑成 2 的幂（256）。题目问的是 max。",
            "blocks": "单位混了：池子是 9600 **块**，预留的是 8192 个 **token**，先换成同一个单位。",
            "prompt": "你只给 prompt 留了位置。答案的 KV 也要放，而且 Orca 在准入时就要全部留好。",
        },
        after="18 个，而按真实长度能坐 341 个。vLLM 论文（SOSP 2023）量到 Orca(max) 的 KV 显存里只有 20.4% 装着真 token，差距就是这么来的。",
    ),
    "06.2": Text(
        "Orca 的准入：要连续的",
        "写 `first_run(free, tokens, block_size)`：`free[i]` 表示第 `i` 块是否空闲。要放下 `tokens` 个 token，需要**连续**的若干块。"
        "返回最靠前的一段的起点，没有就返回 `None`。\n\n`t2.show(first_run)` 画出你把请求放在哪里。",
        hints=["先算要几块：向上取整。", "从左到右数连续空闲块的个数，遇到占用的就归零。", "数到够的那一刻，起点是 `i - need + 1`。"],
        messages={
            "counts_only": "空闲块的总数够，可它们**不连续**。这正是外部碎片：明明有地方，却放不下。",
            "last_run": "你给的是最靠后的一段，题目要最靠前的。",
            "floor": "块数要向上取整：17 个 token、每块 16，要两块。",
            "tokens": "你把 token 数当成了块数，要求的空间大了 `block_size` 倍。",
            "end": "你返回了这一段的终点，题目要起点。",
            "yes_no": "只回答了放得下放不下。预留要知道**放在哪里**，请返回起点或 `None`。",
        },
        why="连续预留的系统，准入的条件不是“够不够”，而是“有没有这么长的一段”。",
        after="分页把“连续”两个字去掉，准入条件就变成了数数：`free_blocks >= need`。`Planner.admit(reserve=…)` 里做的正是你写的这件事。",
    ),
    "06.3": Text(
        "TGI 的 next_batch",
        "写 `next_batch(waiting, running, waited, ratio, max_waiting, prefill_budget, total_budget)`，返回现在从队首放几个人去 prefill。"
        "`waiting`、`running` 都是 `(prompt, max_new)` 的列表，先来的在前；`waited` 是距上次 prefill 的步数。\n\n"
        "- 每个请求按 `prompt + max_new` 记账，`running` 的账也占着 `total_budget`；\n"
        "- 这一批 prompt 的总和不超过 `prefill_budget`；\n- 先来先服务：放不下队首就停，不跳过；\n"
        "- **最少人数** `int(len(running) * ratio)`：凑不够就一个也不放（返回 0）；但 `waited >= max_waiting` 时没有最少人数。",
        hints=["先按两个预算数出能放几个，再和最少人数比。", "最少人数比的是**放得下的人数**，不是队伍的长度。", "`total` 从 `running` 的账开始累加。"],
        messages={
            "no_minimum": "没有用最少人数。每来一个人就停下全车去 prefill，老乘客会一顿一顿的。",
            "never_patient": "等够 `max_waiting` 步以后，最少人数就不再要求了；否则凑不够的人永远上不来。",
            "forgets_running": "`running` 的请求也记着账：它们将来还要长到 `prompt + max_new`。忘了它们，显存迟早不够。",
            "prompt_only": "每个请求的账是 `prompt + max_new`。只记 prompt，答案长出来的时候就没有地方放了。",
            "no_prefill_budget": "没有限制这一批 prompt 的总和。一次 prefill 太多，正在 decode 的人要停很久。",
            "overtakes": "放不下队首时应当停下，你却跳过它、放了后面更小的。大请求会被一直插队。",
            "checks_queue": "你拿**队伍的长度**和最少人数比。要比的是受预算限制之后真正放得下的人数。",
        },
        why="这个函数就是 TGI 调度的全部：什么时候停车、放几个人上来。",
        after="对照 `minirt.policies.TgiPolicy._let_in`。准入时把最坏情况记满账，所以 TGI 从不抢占；代价是账面总比实际用的多。",
    ),
    "06.4": Text(
        "谁的停顿最短",
        "100 个请求，Llama-3-8B，A100-80GB，每秒 8 个。比较一个请求相邻两个 token 之间**最长**的间隔（ITL max），谁最小？\n\n先锁定预测，再运行。",
        options={
            "A": ("static（整批进出）", ""),
            "B": ("TGI（攒一批再 prefill）", "TGI 给新批 prefill 时，老乘客**停着不出 token**，一次最多 4096 个 prompt token，恰恰停得最久。"),
            "C": ("mini-runtime（分离，chunk 1024）", "decode 虽然每步都做，却要排在同一步的 prefill 后面，几个新人一起来，这一步就长了。"),
            "D": ("vLLM（预算 512，混批）", "一步最多 512 个位置，停顿确实短，但新人的 prompt 还是会把一步撑长。有一家在路上根本不上客。"),
        },
        hints=["停顿来自哪里？是别人的 prefill。谁的 decode 途中不会有人 prefill？"],
        after="静态批路上不上客，所以最平稳；代价是新来的人在门外等整批结束，TTFT 差出几个数量级。单看一个指标选策略，会选到最差的那个。",
    ),
    "06.5": Text(
        "关于抢占的四种说法",
        "哪一句是对的？",
        options={
            "A": ("vLLM 断粮时总是把 KV 换出到 CPU（swap）", "第一代默认也是重算，只有一个请求带多条序列时才 swap；现在的 v1 引擎只重算。"),
            "B": ("被重算的请求会丢掉已经生成的答案，从头开始", "丢掉的是 KV，不是 token。重新准入时，prompt 连同已生成的答案一起 prefill，接着往下写。"),
            "C": ("TGI 按 prompt 加 max_new_tokens 记账准入，所以运行中不需要抢占", ""),
            "D": ("抢占最先上车的人最公平，因为他已经享受得够久", "他的 KV 最长，重算最贵，而且已经快到站了。让最后上车的下去，丢掉的计算最少。"),
        },
        hints=["先分清楚：丢 KV、丢 token、丢座位，是三件事。", "回到第 06 章第 4 节的表：哪几家的抢占次数是 0，为什么？"],
        after="抢占是“乐观准入”的另一半：敢多放人进来，就要有办法请人下去。",
    ),
    "06.6": Text(
        "重算和换出换入，差几倍",
        "Llama-3-8B（8.03e9 个参数，32 层，32 个 query head，8 个 KV head，head size 128，fp16），A100：312 TFLOP/s，PCIe 25 GB/s。"
        "一个被抢占的请求，每个 token **重算**所需的时间，是**换出再换入**的几倍？（只看算力和 PCIe，2% 误差）",
        hints=["每 token 的 KV：$2 \\times 32 \\times 8 \\times 128 \\times 2$ 字节。", "换出一趟，换入还要一趟。", "重算一个 token：$2N$ FLOP。"],
        messages={
            "one_way": "只算了一趟。换出去，日后还要换回来。",
            "one_flop": "一个参数一次乘一次加，是 2 FLOP。",
            "upside_down": "倒过来了：问的是重算是换的几倍。",
            "no_layers": "KV 漏了层数：32 层各有一份。",
            "all_heads": "KV head 是 8 个，不是 32 个 query head。GQA 让换出便宜了 4 倍。",
            "device_memory": "你用了显存带宽（2039 GB/s）。换出走的是 PCIe，慢八十倍。",
        },
        after="4.9 倍，似乎该换出。可是 decode 步里算力大半空着，重算混进去几乎不加时间；换出则要多养一套主机内存和状态。所以 vLLM 现在只重算。",
    ),
    "06.7": Text(
        "搞坏它：刚上车又被赶下来",
        "`EvictsOldest` 断粮时抢占**最早**上车的人（源码见上）。池子 16 块，每块 4 token；8 个 slot。\n\n"
        "1. **搞坏它**：给出 2 到 8 个 `(prompt, output)`，每个单独放得下（$p+o-1 \\le 64$），使引擎计算的位置数达到必需的 **1.9 倍**以上"
        "（必需的是 $\\sum (p+o-1)$，多出来的都是重算）。\n"
        "2. **修好它**：写一个策略类。在隐藏负载上，重算后的总量不超过必需的 **1.3 倍**，总步数不超过一个一个跑的 **55%**，所有人都要答完。\n\n"
        "交 `(jobs, Policy)`。`t7.show((jobs, ...))` 先看你的输入怎样折腾它。",
        hints=[
            "抖动要两个条件：很多人同时在长，而每个人的上下文又长，重算一次很贵。",
            "换受害者：最后上车的人 KV 最短，重算最便宜。只换这一点还不够。",
            "刚抢占过的这一步，不要再放新人进来。",
            "准入时给已经在车上的人留几块余量：`p.admit(seq, keep=…)`，每个在跑的人一块左右。",
        ],
        messages={
            "two_parts": "要交两样东西：`(jobs, Policy)`。",
            "outside_rules": "`jobs` 是 2 到 8 个 `(prompt, output)`，都是正整数。",
            "too_big": "这个请求最多要放 {total} 个 token，池子一共 {room} 个，它单独也放不下。",
            "fits": "所有人都放得下，一次抢占也没有（{ratio} 倍）。要让他们**一起长到**放不下。",
            "not_enough": "现在是 {ratio} 倍，还不到 1.9。让每个人更长，抢占就更频繁，每次重算也更贵。",
            "not_a_policy": "第二样要是一个策略：有 `plan(self, state)` 的类。",
            "gives_up": "有请求没有答完。抢占是请他下去等，不是赶他走。",
            "still_thrashes": "还是重算得太多：总计 {mended} 倍（上限 1.3），步数 {steps}。光换受害者不够，想想**准入**时该留多少余量。",
            "too_careful": "不抖了（{mended} 倍），但太保守：步数是一个一个跑的 {steps}（上限 55%）。按最坏情况记账，车就坐不满。",
            "stalls": "策略卡住了：到第 {step} 步，它的计划什么也没有算，可还有请求没有答完。",
            "broken_plan": "引擎拒绝了它的一份计划：违反了一条规则，原文在下面。",
        },
        after="搞坏时 {ratio} 倍，修好后 {mended} 倍，步数 {steps}。这就是 vLLM 的 watermark、“抢占过的这一步不准入”、抢占最后上车者三条规矩的来由。",
    ),
    "06.8": Text(
        "面试题：Orca、TGI、vLLM 各解决了什么",
        "面试官问：这三家都叫 continuous batching，各自解决了什么问题？又各留下了什么问题？用四五句话回答。",
        model="**Orca**（OSDI 2022）把调度单位从请求变成一次迭代：每步重新组批，谁完成谁走，新人马上补；selective batching 让不同进度的请求在线性层拼在一起。"
        "它的 KV 仍按上限连续预留，显存大半空着，批因此坐不满。\n\n"
        "**vLLM**（SOSP 2023）用分页解决预留：块按需分配，碎片只剩最后一块里的空格，同样的显存坐下更多人；代价是乐观准入可能断粮，于是需要抢占（现在是重算）。"
        "后来又把 prompt 切块，与 decode 共用一个 token 预算。\n\n"
        "**TGI** 把取舍做成旋钮：攒够 `waiting_served_ratio` 或等够 `max_waiting_tokens` 才停车 prefill；按 `prompt + max_new_tokens` 记账，从不抢占，代价是账面比实际多、"
        "prefill 时老乘客停顿。后来的版本也分页、也切块。",
        checklist=[
            ("Orca：迭代级调度，解决了整批进出", "回到第 06 章 1.1 节。"),
            ("Orca 留下的问题：按上限连续预留，显存浪费", "回到 06.1，算算能坐几个人。"),
            ("vLLM：分页、按需分配，以及因此需要的抢占", "回到第 06 章第 4 节的表：谁断粮了，谁没有，为什么？"),
            ("TGI：按上限记账不抢占，或者它的攒批与停顿", "回到 06.3。"),
        ],
        after="会背三个名字的人很多，能说清“各留下了什么”的人不多。",
    ),
}
