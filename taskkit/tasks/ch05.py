"""Chapter 05, KV cache: bytes, blocks, tables, shared prefixes, and attention that reads through a table."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from minirt import roofline

from ..drawing import blocks
from ..guard import is_empty
from ..guess import Predict
from ..kinds import Code, Derive, Judged
from ..task import Attempt, Task
from ..texts import say
from ..verdict import Wrong
from .toypool import break_the_pool, draw_pool

QWEN = roofline.get_model("Qwen2.5-0.5B")


def lookup(table: list[int], position: int, block_size: int) -> tuple[int, int]:
    """Physical block and offset of a token position."""
    return table[position // block_size], position % block_size


def _positions(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [([7, 2, 5], 0, 4), ([7, 2, 5], 6, 4), ([7, 2, 5], 8, 4)]
    out = []
    for _ in range(40):
        size, n = rng.choice([1, 2, 4, 8, 16]), rng.randint(1, 9)
        out.append((rng.sample(range(50), n), rng.randrange(n * size), size))
    return fixed + out


def grow(free: list[int], table: list[int], num_tokens: int, block_size: int) -> tuple[list[int], list[int]] | None:
    """Table and free list after making room for num_tokens in all; None, and nothing taken, where it does not fit."""
    need = max(0, -(-num_tokens // block_size) - len(table))
    if need > len(free):
        return None
    return table + free[:need], free[need:]


def _grow_partly(free: list[int], table: list[int], n: int, size: int) -> tuple[list[int], list[int]]:
    need = max(0, -(-n // size) - len(table))
    return table + free[:need], free[need:]


def _grow_by(rule: Any, strictly: bool = False) -> Any:
    def wrong(free: list[int], table: list[int], n: int, size: int) -> tuple[list[int], list[int]] | None:
        need = max(0, rule(n, size, len(table)))
        if need > len(free) or (strictly and need == len(free)):
            return None
        return table + free[:need], free[need:]

    return wrong


def _pools(rng: Random) -> list[tuple[Any, ...]]:
    fixed: list[tuple[Any, ...]] = [
        ([4, 1, 7, 0], [], 9, 4), ([7, 0], [4, 1], 9, 4), ([7, 0], [4, 1], 7, 4), ([7], [4, 1], 17, 4),
        ([7, 0], [4, 1], 16, 4),
    ]  # fmt: skip
    out = []
    for _ in range(40):
        ids = rng.sample(range(40), rng.randint(2, 14))
        held, size = rng.randint(0, len(ids) - 1), rng.choice([2, 4, 8, 16])
        out.append((ids[held:], ids[:held], rng.randint(1, size * (len(ids) + 1)), size))
    return fixed + out


def _draw_grow(fn: Any) -> Any:
    free, table, n, size = [4, 1, 7, 0], [5, 2], 14, 4
    rows = {say("show.before"): {"R0": table}, say("show.want"): {"R0": (grow(free, table, n, size) or ([], []))[0]}}
    if fn is not None:
        got = fn(free, table, n, size)
        if not isinstance(got, (list, tuple)) or len(got) != 2:
            raise Wrong("pair", [("got", got)])
        rows[say("show.you")] = {"R0": list(got[0])}
    return blocks("num_tokens = 14, block_size = 4", 8, rows, numbered=True)


# -- 05.4: hashes of prefixes ----------------------------------------------------------------------------------


def _prefix_hashes(fn: Any, attempt: Attempt) -> dict[str, Any]:
    if not callable(fn):
        raise Wrong("not_callable", type=type(fn).__name__)
    rng = Random("taskkit 05.4")
    for size in (4, 2, 3, 8):
        blocks_ = [[rng.randint(0, 99) for _ in range(size)] for _ in range(4)]
        a, b, c, d = blocks_
        tail = [rng.randint(0, 99) for _ in range(size - 1)]
        base = _hashes(fn, attempt, [*a, *b, *c, *tail], size)
        facts = [("input", ([*a, *b, *c, *tail], size)), ("got", base)]
        if len(base) != 3:
            raise Wrong("partial" if len(base) == 4 else "count", facts, want=3, got=len(base))
        if _hashes(fn, attempt, [*a, *b, *c, *tail], size) != base:
            raise Wrong("not_stable", facts)
        if _hashes(fn, attempt, [*a, *b, *d], size)[:2] != base[:2]:
            raise Wrong("looks_ahead", facts)
        other = _hashes(fn, attempt, [*d, *b, *c], size)
        if other[1] == base[1] or other[2] == base[2]:
            raise Wrong("not_chained", facts)
        twice = _hashes(fn, attempt, [*a, *a], size)
        if twice[0] == twice[1]:
            raise Wrong("not_chained", [("input", ([*a, *a], size)), ("got", twice)])
        if sorted(a) != list(reversed(a)) and _hashes(fn, attempt, [*sorted(a), *b], size)[0] == _hashes(
            fn, attempt, [*sorted(a, reverse=True), *b], size
        )[0]:
            raise Wrong("unordered", [("input", (sorted(a), size))])
        if _hashes(fn, attempt, [*b, *a], size)[1] == base[1]:
            raise Wrong("unordered", facts)
    return {}


def prefix_hashes(tokens: list[int], block_size: int) -> list[int]:
    """One for each full block, that stands for everything up to its end."""
    out: list[int] = []
    for i in range(len(tokens) // block_size):
        out.append(hash((out[-1] if out else 0, tuple(tokens[i * block_size : (i + 1) * block_size]))))
    return out


def _draw_hashes(fn: Any, attempt: Attempt) -> Any:
    """Two requests of four-token blocks; blocks with the same hash have one letter and colour."""
    a, b, c = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]
    requests = {"A": [*a, *b, 7], "B": [*a, *c, *b]}
    rows: dict[str, dict[str, list[int]]] = {}
    found = {say("show.want"): {name: prefix_hashes(tokens, 4) for name, tokens in requests.items()}}
    if fn is not None and not is_empty(fn):
        found[say("show.you")] = {name: _hashes(fn, attempt, tokens, 4) for name, tokens in requests.items()}
    for whose, hashes in found.items():
        seen: list[Any] = []
        for name, values in hashes.items():
            row = rows.setdefault(f"{whose} {name}", {})
            for at, value in enumerate(values):
                if value not in seen:
                    seen.append(value)
                row.setdefault("abcdefgh"[min(7, seen.index(value))], []).append(at)
    return blocks("A = " + ", ".join(map(str, requests["A"])) + ";  B = " + ", ".join(map(str, requests["B"])), 4, rows)


def _hashes(fn: Any, attempt: Attempt, tokens: list[int], size: int) -> list[Any]:
    got = attempt.call(fn, list(tokens), size)
    if got is None:
        raise Wrong("no_return")
    if not isinstance(got, (list, tuple)):
        raise Wrong("not_a_list", [("got", got)])
    return list(got)


# -- 05.5: paged attention of one query ------------------------------------------------------------------------


def attend(q: Any, k_pool: Any, v_pool: Any, table: list[int], context: int) -> Any:
    """Attention of one query over `context` tokens that lie in the blocks of `table`. [head_size]"""
    k = k_pool[table].reshape(-1, q.shape[0])[:context]
    v = v_pool[table].reshape(-1, q.shape[0])[:context]
    return _softmax(k @ q / np.sqrt(q.shape[0])) @ v


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


def _attend(rule: str) -> Any:
    def wrong(q: Any, k_pool: Any, v_pool: Any, table: list[int], context: int) -> Any:
        size = q.shape[0]
        ids = list(range(len(table))) if rule == "ignores_table" else table
        n = len(ids) * k_pool.shape[1] if rule == "no_mask" else context - 1 if rule == "misses_last" else context
        k, v = k_pool[ids].reshape(-1, size)[:n], v_pool[ids].reshape(-1, size)[:n]
        scores = k @ q if rule == "no_scale" else k @ q / (size if rule == "scaled_by_d" else np.sqrt(size))
        if rule == "no_softmax":
            return scores @ v
        return _softmax(scores) @ (k if rule == "mixes_k" else v)

    return wrong


def _contexts(rng: Random) -> list[tuple[Any, ...]]:
    out = []
    for n, (size, dim) in enumerate([(2, 4), (4, 4), (4, 8), (8, 16), (3, 8), (1, 4), (16, 32)]):
        draw = np.random.default_rng(rng.randint(0, 2**31))
        count = 3 + n % 3
        pool = [draw.normal(size=(12, size, dim)) for _ in range(2)]
        context = size * count - rng.randrange(min(size, size * count - 2)) if n else 5
        table = [7, 2, 9, 4, 11][:count]
        last, used = table[-1], context - size * (count - 1)
        for p in pool:  # what a former owner left behind in the last block
            p[last, used:] = 4.0
        out.append((draw.normal(size=dim), pool[0], pool[1], table, context))
    return out


def _near(got: Any, want: Any) -> bool:
    try:
        a, b = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
    except (TypeError, ValueError):
        return False
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-4, atol=1e-5))


def _draw_attend(fn: Any) -> Any:
    task = next(t for t in TASKS if t.id == "05.5")
    _, k, _, table, context = next(iter(_contexts(task.rng())))
    title = f"table = {table}, block_size = {k.shape[1]}, context = {context}"
    return blocks(title, 12, {"table": {"R0": table}}, numbered=True)


def _paged_waste() -> str:
    rng = Random(5)
    lengths = [rng.randint(1, 1000) for _ in range(500)]
    held = sum(-(-n // 16) * 16 for n in lengths)
    waste = 1 - sum(lengths) / held
    return "A" if waste < 0.04 else "B" if waste < 0.15 else "C"


TASKS: list[Task] = [
    Derive(
        "05.1", 1, value=lambda: QWEN.kv_bytes_per_token, unit="B",
        slips={
            "one_layer": lambda: 512, "all_heads": lambda: 2 * 24 * 14 * 64 * 2, "only_k": lambda: 6144,
            "one_byte": lambda: 6144 * 1.0001, "fp32": lambda: 24576, "one_head": lambda: 2 * 24 * 64 * 2 * 1.0001,
        },
    ),
    Code(
        "05.2", 1, reference=lookup, cases=_positions,
        slips={
            "logical": lambda t, p, s: (p // s, p % s),
            "flat": lambda t, p, s: t[p // s] * s + p % s,
            "swapped": lambda t, p, s: (p % s, t[p // s]),
            "from_one": lambda t, p, s: (t[(p + 1) // s], (p + 1) % s),
            "by_remainder": lambda t, p, s: (t[p % s], p // s),
            "whole_position": lambda t, p, s: (t[p // s], p),
        },
    ),
    Code(
        "05.3", 2, reference=grow, cases=_pools, draw=_draw_grow,
        slips={
            "partly": _grow_partly,
            "ignores_held": _grow_by(lambda n, s, held: -(-n // s)),
            "floor": _grow_by(lambda n, s, held: n // s - held),
            "one_more": _grow_by(lambda n, s, held: n // s + 1 - held),
            "strictly": _grow_by(lambda n, s, held: -(-n // s) - held, strictly=True),
            "one_block": _grow_by(lambda n, s, held: int(n > held * s)),
        },
    ),
    Judged("05.4", 2, kind="code", judge=_prefix_hashes, draw=_draw_hashes),
    Code(
        "05.5", 3, reference=attend, cases=_contexts, same=_near, draw=_draw_attend, table=True,
        slips={r: _attend(r) for r in (
            "no_scale", "scaled_by_d", "no_mask", "misses_last", "ignores_table", "no_softmax", "mixes_k")},
    ),
    Judged("05.6", 3, judge=break_the_pool, draw=draw_pool),
    Predict("05.7", 1, truth=_paged_waste),
]  # fmt: skip
