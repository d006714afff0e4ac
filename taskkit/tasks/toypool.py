"""Task 05.6: a block pool that shares blocks and gives them back too early. Its fault is the exercise."""

from __future__ import annotations

from random import Random
from typing import Any

from ..drawing import blocks
from ..task import Attempt
from ..verdict import Unanswered, Wrong


class Pool:
    """Blocks that several requests may hold. tables: name -> block ids; refs: block -> how many tables hold it."""

    def __init__(self, num_blocks: int) -> None:
        self.free_list = list(range(num_blocks))
        self.refs = [0] * num_blocks
        self.tables: dict[str, list[int]] = {}
        self.written_by = [""] * num_blocks  # who allocated the block last: whose KV lies in it
        self.expects: dict[str, list[str]] = {}  # whose KV each request believes to be in its blocks

    def alloc(self, name: str, n: int) -> None:
        """n fresh blocks for a new request."""
        taken = [self.free_list.pop(0) for _ in range(n)]
        for b in taken:
            self.refs[b] = 1
            self.written_by[b] = name
        self.tables[name] = taken
        self.expects[name] = [name] * n

    def fork(self, old: str, new: str) -> None:
        """A new request that shares all blocks of an old one."""
        for b in self.tables[old]:
            self.refs[b] += 1
        self.tables[new] = list(self.tables[old])
        self.expects[new] = list(self.expects[old])

    def free(self, name: str) -> None:
        """A request ends."""
        for b in self.tables.pop(name):
            self.refs[b] = 0
            self.free_list.append(b)


def broken(pool: Pool) -> list[str]:
    """Requests that would read somebody else's KV."""
    return [
        name for name, table in pool.tables.items()
        if any(pool.written_by[b] != who for b, who in zip(table, pool.expects[name]))
    ]  # fmt: skip


def run_operations(pool: Pool, operations: Any) -> None:
    """("alloc", name, n), ("fork", old, new), ("free", name), in order. Raises Wrong on what makes no sense."""
    if not isinstance(operations, (list, tuple)):
        raise Wrong("bad_operation", [("got", operations)], op=operations)
    for op in operations:
        kind = op[0] if isinstance(op, (list, tuple)) and op else None
        if kind == "alloc" and len(op) == 3 and type(op[2]) is int and op[2] > 0 and op[1] not in pool.tables:
            if op[2] > len(pool.free_list):
                raise Wrong("pool_empty", [("input", operations)], op=op)
        elif not (kind == "fork" and len(op) == 3 and op[1] in pool.tables and op[2] not in pool.tables) and not (
            kind == "free" and len(op) == 2 and op[1] in pool.tables
        ):
            raise Wrong("bad_operation", [("input", operations)], op=op)
        getattr(pool, kind)(*op[1:])


def break_the_pool(answer: Any, attempt: Attempt) -> dict[str, Any]:
    """The judge: somebody reads what is no longer his; then, with the learner's free(), nobody can."""
    try:
        operations, free = answer
    except (TypeError, ValueError):
        raise Wrong("two_parts", [("got", answer)]) from None
    if operations is None or operations is ...:
        raise Unanswered
    pool = Pool(6)
    run_operations(pool, operations)
    victims = broken(pool)
    if not victims:
        raise Wrong("not_broken", [("got", operations)], free=len(pool.free_list))
    attempt.half = True
    if free is None or free is ...:
        raise Unanswered
    _mended(operations, free, attempt, 6 + sum(op[2] for op in operations if op[0] == "alloc"))
    rng = Random("taskkit 05.6")
    for _ in range(25):
        _mended(_random_operations(rng), free, attempt, 12)
    return {"victim": victims[0]}


def _mended(operations: Any, free: Any, attempt: Attempt, size: int) -> None:
    pool = Pool(size)
    facts = [("input", operations)]
    pool.free = lambda name: attempt.call(free, pool, name)  # type: ignore[method-assign]
    run_operations(pool, operations)
    if len(set(pool.free_list)) < len(pool.free_list):
        raise Wrong("twice_free", facts, free=list(pool.free_list))
    if broken(pool) or set(pool.free_list) & {b for t in pool.tables.values() for b in t}:
        raise Wrong("still_shared", facts)
    for name in list(pool.tables):
        before = set(pool.tables)
        pool.free(name)
        if name in pool.tables:
            raise Wrong("keeps_table", facts, name=name)
        if set(pool.tables) != before - {name}:
            raise Wrong("frees_others", facts, name=name)
    if len(set(pool.free_list)) < len(pool.free_list):
        raise Wrong("twice_free", facts, free=list(pool.free_list))
    if len(pool.free_list) < size:
        raise Wrong("leaks", facts, missing=size - len(pool.free_list))


def _random_operations(rng: Random) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    names: list[str] = []
    room = 12
    for n in range(rng.randint(4, 12)):
        what = rng.choice(["alloc", "fork", "fork", "free"])
        if what == "alloc" and room >= 2:
            names.append(f"r{n}")
            room -= 2  # never counted back: a safe bound, whatever is shared
            out.append(("alloc", f"r{n}", 2))
        elif what == "fork" and names:
            out.append(("fork", rng.choice(names), f"r{n}"))
            names.append(f"r{n}")
        elif what == "free" and names:
            out.append(("free", names.pop(rng.randrange(len(names)))))
    return out


def draw_pool(answer: Any, attempt: Attempt) -> Any:
    """Who holds which block after each operation."""
    operations = [("alloc", "a", 2), ("alloc", "b", 1)]
    if isinstance(answer, (list, tuple)) and len(answer) == 2 and isinstance(answer[0], (list, tuple)):
        operations = list(answer[0])
    elif isinstance(answer, list):
        operations = answer
    rows: dict[str, dict[str, Any]] = {}
    pool = Pool(6)
    for n, op in enumerate(operations):
        run_operations(pool, [op])
        rows[f"{n} {op[0]} {op[1]}"] = {name: list(t) for name, t in pool.tables.items()}
    return blocks("6 blocks, after each operation", 6, rows)
