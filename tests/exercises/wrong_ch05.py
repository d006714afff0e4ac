"""Chapter 05: right and typical wrong answers."""

from __future__ import annotations

import itertools

import numpy as np

from tests.exercises.answers import Answers


def grown(free, table, num_tokens, block_size):
    table, free = list(table), list(free)
    while len(table) * block_size < num_tokens:
        if not free:
            return None
        table.append(free.pop(0))
    return table, free


def grown_as_far_as_it_goes(free, table, num_tokens, block_size):
    table, free = list(table), list(free)
    while len(table) * block_size < num_tokens and free:
        table.append(free.pop(0))
    return table, free


def grown_anew(free, table, num_tokens, block_size):
    need = (num_tokens + block_size - 1) // block_size
    return None if need > len(free) else (table + free[:need], free[need:])


def grown_rounded_down(free, table, num_tokens, block_size):
    need = max(0, num_tokens // block_size - len(table))
    return None if need > len(free) else (table + free[:need], free[need:])


def grown_in_place(free, table, num_tokens, block_size):
    need = max(0, (num_tokens + block_size - 1) // block_size - len(table))
    if need > len(free):
        return None
    for _ in range(need):
        table.append(free.pop(0))
    return table, free


def grown_strictly(free, table, num_tokens, block_size):
    need = max(0, (num_tokens + block_size - 1) // block_size - len(table))
    return None if need >= len(free) else (table + free[:need], free[need:])


def chained(tokens, block_size):
    h, out = 0, []
    for i in range(0, len(tokens) // block_size * block_size, block_size):
        h = hash((h, tuple(tokens[i : i + block_size])))
        out.append(h)
    return out


def prefixes(tokens, block_size):
    return [tuple(tokens[: (i + 1) * block_size]) for i in range(len(tokens) // block_size)]


def with_the_rest(tokens, block_size):
    return [hash(tuple(tokens[: i + block_size])) for i in range(0, len(tokens), block_size)]


def unchained(tokens, block_size):
    return [hash(tuple(tokens[i * block_size : (i + 1) * block_size])) for i in range(len(tokens) // block_size)]


def summed(tokens, block_size):
    return list(itertools.accumulate(sum(tokens[i * block_size : (i + 1) * block_size]) + 1000 for i in range(len(tokens) // block_size)))


def whole(tokens, block_size):
    return [hash((tuple(tokens), i)) for i in range(len(tokens) // block_size)]


COUNTER = itertools.count()


def unstable(tokens, block_size):
    return [next(COUNTER) for _ in range(len(tokens) // block_size)]


def paged(q, k_pool, v_pool, table, context):
    size, dim = k_pool.shape[1], q.shape[0]
    keys = np.stack([k_pool[table[p // size], p % size] for p in range(context)])
    values = np.stack([v_pool[table[p // size], p % size] for p in range(context)])
    scores = keys @ q / dim**0.5
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ values


def attention(k, v, q, scale):
    scores = k @ q * scale
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ v


def gathered(pool, table, dim):
    return pool[table].reshape(-1, dim)


def unmasked(q, k, v, t, c):
    return attention(gathered(k, t, len(q)), gathered(v, t, len(q)), q, len(q) ** -0.5)


def unscaled(q, k, v, t, c):
    return attention(gathered(k, t, len(q))[:c], gathered(v, t, len(q))[:c], q, 1.0)


def without_table(q, k, v, t, c):
    return attention(k.reshape(-1, len(q))[:c], v.reshape(-1, len(q))[:c], q, len(q) ** -0.5)


def one_token_short(q, k, v, t, c):
    return attention(gathered(k, t, len(q))[: c - 1], gathered(v, t, len(q))[: c - 1], q, len(q) ** -0.5)


def unnormalised(q, k, v, t, c):
    return (gathered(k, t, len(q))[:c] @ q * len(q) ** -0.5) @ gathered(v, t, len(q))[:c]


def counted(pool, name):
    for b in pool.tables.pop(name):
        pool.refs[b] -= 1
        if pool.refs[b] == 0:
            pool.free_list.append(b)


def at_once(pool, name):
    for b in pool.tables.pop(name):
        pool.refs[b] -= 1
        pool.free_list.append(b)


def both_ends(pool, name):
    for b in pool.tables.pop(name):
        pool.refs[b] -= 1
        if pool.refs[b] == 0:
            pool.free_list = [b, *pool.free_list, b]


def never(pool, name):
    for b in pool.tables.pop(name):
        pool.refs[b] -= 1


def table_left(pool, name):
    for b in pool.tables[name]:
        pool.refs[b] -= 1
        if pool.refs[b] == 0:
            pool.free_list.append(b)


def only_unshared(pool, name):
    for b in pool.tables.pop(name):
        if pool.refs[b] == 1:
            pool.free_list.append(b)


OPS = [("alloc", "a", 2), ("fork", "a", "b"), ("free", "a"), ("alloc", "c", 5)]

ANSWERS = {
    "05.1": Answers(
        [12288, "12.288 kB", "12 KiB"],
        [(512, "one_layer"), (86016, "all_heads"), (6144, "only_k"), (24576, "fp32"), (12.288, "unit_slip"), (1, "too_small")],
    ),
    "05.2": Answers(
        [lambda t, p, s: (t[p // s], p % s), lambda t, p, s: [t[p // s], p - p // s * s]],
        [(lambda t, p, s: (p // s, p % s), "logical"), (lambda t, p, s: t[p // s] * s + p % s, "flat"),
         (lambda t, p, s: (p % s, t[p // s]), "swapped"), (lambda t, p, s: (t[p // s], p), "whole_position"),
         (lambda t, p, s: (t[(p + 1) // s], (p + 1) % s), "from_one"), (lambda t, p, s: t[p], "wrong_type")],
    ),
    "05.3": Answers(
        [grown],
        [(grown_as_far_as_it_goes, "partly"), (grown_anew, "ignores_held"), (grown_rounded_down, "floor"),
         (grown_strictly, "strictly"), (grown_in_place, "changed_input"), (lambda f, t, n, s: print(n), "no_return")],
    ),
    "05.4": Answers(
        [chained, prefixes],
        [(with_the_rest, "partial"), (unchained, "not_chained"), (summed, "unordered"), (whole, "looks_ahead"),
         (unstable, "not_stable"), (lambda t, s: 5, "not_a_list"), (lambda t, s: [], "count"), (7, "not_callable")],
    ),
    "05.5": Answers(
        [paged],
        [(unmasked, "no_mask"), (unscaled, "no_scale"), (without_table, "ignores_table"), (one_token_short, "misses_last"),
         (unnormalised, "no_softmax"), (lambda q, k, v, t, c: q, "differs")],
    ),
    "05.6": Answers(
        [(OPS, counted)],
        [((OPS, at_once), "still_shared"), ((OPS, both_ends), "twice_free"), ((OPS, never), "leaks"), ((OPS, table_left), "keeps_table"),
         ((OPS[:3], counted), "not_broken"), (([("free", "z")], counted), "bad_operation"), (OPS[:1], "two_parts"),
         (([("alloc", "a", 9)], counted), "pool_empty"), ((OPS, only_unshared), "leaks")],
    ),
    "05.7": Answers(["A"], [("B", "chosen_wrong"), ("C", "chosen_wrong"), ("D", "chosen_wrong")]),
}  # fmt: skip
