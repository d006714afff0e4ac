"""第 05 章的题面。"""

from __future__ import annotations

from ..texts import Text

TEXTS = {
    "05.1": Text(
        "一个 token 的行李",
        "Qwen2.5-0.5B：24 层，14 个 query head，2 个 KV head，head size 64，fp16。**一个 token 的 KV cache 是多少字节？**（可以写 `\"12.3 kB\"` 这样的单位，1% 误差）",
        hints=["每一层、每个 KV head，存一个 K 向量和一个 V 向量，各 64 个数。", "$2 L H_{kv} D \\times 2$ 字节。"],
        messages={
            "one_layer": "这是**一层**的。24 层各有自己的 K 和 V，漏乘层数是最常见的错误，差 24 倍。",
            "all_heads": "GQA：14 个 query head 共用 2 个 KV head，存的是后者。",
            "only_k": "少了一个 2：K 和 V 都要存；fp16 每个数也要占 2 字节。",
            "one_byte": "fp16 每个数占 2 字节。",
            "fp32": "4 字节是 fp32，这里是 fp16。",
            "one_head": "有 2 个 KV head，你只算了 1 个。",
        },
        after="12,288 字节。1024 个 token 是 12.6 MB，一个 2048 token 的请求是 25.2 MB。权重一共才 988 MB。",
    ),
    "05.2": Text(
        "查块表",
        "写 `lookup(table, position, block_size)`：第 `position` 个 token（从 0 数）的 KV 在哪里？返回 `(物理块号, 块内偏移)`。\n\n"
        "例：`lookup([7, 2, 5], 6, 4)` 是 `(2, 2)`。",
        hints=["它在第几个**逻辑块**？整除。", "逻辑块号再去 `table` 里查物理块号；偏移是余数。"],
        messages={
            "wrong_type": "要返回两个数的元组 `(物理块号, 块内偏移)`，收到的是 {type}。",
            "logical": "你返回的是**逻辑**块号，还要去 `table` 里查它落在哪个物理块。",
            "flat": "你把块号和偏移合成了一个数（vLLM 叫 slot mapping）。这一题要分开的一对。",
            "swapped": "次序反了：先块号，后偏移。",
            "from_one": "位置从 0 数起，不需要加 1。加了 1，每块的最后一个 token 就错到下一块去了。",
            "by_remainder": "整除和取余用反了：第几块是整除，块内第几个是取余。",
            "whole_position": "偏移是块**内**的位置，要对 `block_size` 取余。",
        },
        why="attention 每读一个位置都要经过这张表，查错一格读到的就是别人的 KV。",
        after="`BlockTable.lookup` 就是这一行。操作系统的页表也是这样：高位查表，低位是页内偏移。",
    ),
    "05.3": Text(
        "按需长一块",
        "写 `grow(free, table, num_tokens, block_size)`：让这个请求**总共**放得下 `num_tokens` 个 token。\n\n"
        "- 它已经有 `table` 里的块，缺几块就从 `free` 的**前面**取几块，按次序接在后面；\n- 返回 `(新的 table, 新的 free)`，不要改动传进来的列表；\n"
        "- 不够就返回 `None`，一块也不取（all or nothing）。",
        hints=["缺几块：总共需要的块数（向上取整）减去已有的块数，不小于 0。", "列表切片 `free[:need]` 和 `free[need:]` 不会改动原来的列表。"],
        messages={
            "partly": "不够的时候你把剩下的都拿走了。请求还是放不下，块却占着，别人也用不成：要么全拿，要么不拿。",
            "ignores_held": "没有减去已经有的块，每次都从头申请一遍。",
            "floor": "要向上取整：最后一块即使只用一格，也要整块拿。",
            "one_more": "恰好整除时多拿了一块。用 `-(-n // block_size)`，不要用 `n // block_size + 1`。",
            "strictly": "剩下的块恰好够用时也应该给。",
            "one_block": "每次最多只长一块。decode 时一步只多一个 token，这样够用；prefill 一次进来几百个 token 就不够了。",
            "pair": "要返回一对：`(新的 table, 新的 free)`。",
        },
        why="块表的长度和实际 token 数对不上，轻则浪费，重则写进别人的块。",
        after="`BlockTable.blocks_for` 加上 `BlockPool.allocate`。浪费至多是每个请求最后一块里的空格。",
    ),
    "05.4": Text(
        "前缀的指纹",
        "写 `prefix_hashes(tokens, block_size)`：给每个**满**块一个 hash（任何能比较相等的值都行），使得两个请求的第 $i$ 个 hash 相等，"
        "当且仅当它们的前 $i+1$ 块 token **完全相同**。最后不满的块没有 hash。\n\n`t4.show(prefix_hashes)` 拿两个请求试一试：hash 相同的块，画成同一个字母。",
        hints=[
            "只对块内的 token 做 hash 不够：同样的 16 个 token，前文不同，KV 也不同（attention 看得到前文）。",
            "让第 $i$ 块的 hash 依赖第 $i-1$ 块的 hash。",
            "`h = hash((h, tuple(block)))`，从 `h = 0` 开始。",
        ],
        messages={
            "partial": "不满的块也给了 hash。它还会继续被写入，内容不固定，不能共享。",
            "count": "应当有 {want} 个满块，你返回了 {got} 个 hash。",
            "not_stable": "同样的输入，两次结果不同：用了随机数、时间或 `id()`？那样永远命中不了。",
            "looks_ahead": "后面的 token 变了，前面块的 hash 也跟着变。第 $i$ 个 hash 只能依赖到第 $i$ 块为止，否则前缀相同也命中不了。",
            "not_chained": "两个请求的**前文不同**，你却给了某一块相同的 hash。K 和 V 由整个前文算出来，共享这样的块会得到错的答案。",
            "unordered": "token 的**次序**不同，hash 却相同（例如用了求和）。“我咬狗”和“狗咬我”不是同一个前缀。",
            "not_a_list": "要返回一个列表，每个满块一项。",
        },
        after="`minirt.blocks.chain_hash` 就是这一行。引擎在命中以后还要核对 token：hash 相同不等于内容相同，只是极可能相同。",
    ),
    "05.5": Text(
        "一个 query 的 paged attention",
        "写 `attend(q, k_pool, v_pool, table, context)`（单个 head，numpy）：\n\n"
        "- `q`：`[D]`；`k_pool`、`v_pool`：`[num_blocks, block_size, D]`；\n"
        "- 这个请求的 `context` 个 token 依次放在 `table` 列出的块里，最后一块可能没满，**没满的格子里是别人留下的旧数据**；\n"
        "- 返回 $\\mathrm{softmax}(q K^T/\\sqrt{D})\\,V$，形状 `[D]`。",
        hints=[
            "`k_pool[table]` 一次取出这些块，形状 `[len(table), block_size, D]`。",
            "`reshape(-1, D)` 接成一条，再 `[:context]` 去掉旧数据。",
            "softmax 之前减去最大值，数值上更稳；结果不变。",
        ],
        messages={
            "no_scale": "没有除以 $\\sqrt{D}$：分数太大，softmax 会过于尖锐。",
            "scaled_by_d": "除的是 $D$，应当是 $\\sqrt{D}$。",
            "no_mask": "最后一块里没写过的格子也参加了 attention，那是别人的旧数据。只取前 `context` 个。",
            "misses_last": "少读了最后一个 token：当前 token 自己的 K、V 也在 cache 里，它要看得到自己。",
            "ignores_table": "你从池子的开头顺着读，没有经过块表：读到的是别的请求的 KV。",
            "no_softmax": "没有 softmax：权重要归一化，和为 1。",
            "mixes_k": "最后加权求和的应当是 $V$，不是 $K$。",
        },
        why="分页之后，KV 不连续了，算出来的结果却必须和连续存放时一模一样。",
        after="这就是 `minirt/model/attention.py` 里 decode 一行的算法。PagedAttention 的 kernel 省掉的，是把块复制到一起的那次 gather。",
    ),
    "05.6": Text(
        "搞坏它：提前归还的块",
        "`Pool` 允许两个请求共享块（`fork`），但它的 `free` 有毛病。先读上面的源码。\n\n"
        "1. **搞坏它**：给出一串操作 `[(\"alloc\", 名字, 块数), (\"fork\", 旧, 新), (\"free\", 名字), …]`（池子 6 块），"
        "使某个**还活着**的请求，块里已经是别人的 KV。\n"
        "2. **修好它**：写 `free(pool, name)`，用 `pool.refs`、`pool.tables`、`pool.free_list`，使得无论怎样共享，块既不会提前归还，也不会漏掉不还。\n\n"
        "交 `(operations, free)`。`t6.show((operations, ...))` 画出每步之后谁占着哪些块（虚线框表示两个人占着）。",
        hints=[
            "`fork` 之后，一个人先走，会发生什么？",
            "被提前归还的块，还要**再被别人拿去写**，才真的坏掉。注意 `alloc` 从空闲表的哪一头取。",
            "修：每个块 `refs` 减 1，减到 0 才放回 `free_list`。请求的表也要从 `pool.tables` 里拿掉。",
        ],
        messages={
            "two_parts": "要交两样东西：`(operations, free)`。",
            "bad_operation": "这个操作做不了：{op}。名字要存在（`fork`、`free`），新名字不能重复。",
            "pool_empty": "空闲块不够做 {op}。池子一共 6 块。",
            "not_broken": "还没有人受害。块被提前归还之后，还要有人**把它拿去用**：现在空闲 {free} 块，它们从前面取。",
            "twice_free": "同一块在空闲表里出现了两次：{free}。下次会发给两个人。",
            "still_shared": "还有人占着的块，已经回到空闲表里了（或者已经发给了别人）。",
            "keeps_table": "`{name}` 已经结束，`pool.tables` 里还留着它。",
            "frees_others": "释放 `{name}` 时，别人的表也没了。",
            "leaks": "所有人都走了，还有 {missing} 块没有回到空闲表：泄漏。跑久了，池子会慢慢变小，直到谁也进不来。",
        },
        after="受害者是 `{victim}`：它会安静地读着别人的 KV，给出流畅而错误的回答，没有任何报错。所以引用计数是不变量，不是优化："
        "`BlockPool.check()` 在测试里的每一步之后都会核对它。",
    ),
    "05.7": Text(
        "分页以后还浪费多少",
        "500 个请求，长度在 1 到 1000 之间均匀分布，块大小 16，按需分配。**分配出去的格子里，有百分之几是空的？**\n\n先锁定预测，再运行。",
        options={
            "A": ("约 1% 到 2%", ""),
            "B": ("约 10%", "每个请求只有**最后一块**不满，平均空着 7.5 格。和平均长度 500 比一比。"),
            "C": ("约 25%", "这是按 2 的幂预留时的量级。分页按需要一块一块给，空的只在最后一块。"),
            "D": ("约 50%", "50% 是按最大长度 1000 预留、平均只用一半的情形：连续预留的浪费，正是分页要消除的。"),
        },
        hints=["一个请求最多浪费几格？平均呢？"],
        after="1.5%。vLLM 的论文（SOSP 2023）量到的是 96.3% 的有效率，连续预留的 Orca 只有 20% 到 38%。块越小浪费越少，可是块表越长、搬运越碎，16 是折中。",
    ),
}
