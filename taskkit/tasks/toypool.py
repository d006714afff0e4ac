"""The toy of task 05.6: a block pool that shares blocks and gives them back too early. Its fault is the exercise."""

from __future__ import annotations

from typing import Any

from ..verdict import Wrong


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
