"""Block pool and tables: who holds what, in which order blocks are handed out, and what is caught when it is wrong."""

from __future__ import annotations

from random import Random

import pytest

from minirt.blocks import BlockPool, BlockTable, chain_hash
from minirt.errors import ConfigError, MinirtError


def cached(pool: BlockPool, *contents: int) -> list[int]:
    """Blocks with these contents, one of its own each, given back in this order: free, and still findable."""
    blocks = pool.allocate(len(contents))
    for block, x in zip(blocks, contents):
        pool.register(block, chain_hash(0, [x]), 0, [x])
    for block in blocks:
        pool.release([block])
    return blocks


def find(pool: BlockPool, x: int) -> int | None:
    return pool.find(chain_hash(0, [x]), 0, [x])


def test_table() -> None:
    table = BlockTable(4)
    assert table.capacity == 0 and table.blocks_for(9) == 3
    table.blocks += [7, 2]
    assert table.capacity == 8 and table.blocks_for(8) == 0 and table.blocks_for(9) == 1
    assert [table.lookup(p) for p in (0, 3, 4, 7)] == [(7, 0), (7, 3), (2, 0), (2, 3)]
    for wrong in (-1, 8):
        with pytest.raises(IndexError, match=f"position {wrong} is outside this table's capacity of 8"):
            table.lookup(wrong)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8"])
def test_sizes_that_make_no_sense(size: object) -> None:
    with pytest.raises(ConfigError, match="num_blocks="):
        BlockPool(size, 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="block_size="):
        BlockPool(4, size)  # type: ignore[arg-type]


def test_taking_and_giving_back() -> None:
    pool = BlockPool(4, 2)
    a, b = pool.allocate(3), pool.allocate(1)
    assert sorted(a + b) == [0, 1, 2, 3] and (pool.num_free, pool.num_used) == (0, 4)
    with pytest.raises(MinirtError, match="1 KV blocks wanted, 0 of 4 free"):
        pool.allocate(1)
    pool.release(a)
    assert pool.num_free == 3 and pool.allocate(0) == []
    pool.release(b)
    with pytest.raises(MinirtError, match=f"block {b[0]} is released but nobody holds it"):
        pool.release(b)
    pool.check([])


def test_a_shared_block_is_free_when_its_last_holder_leaves() -> None:
    pool = BlockPool(3, 1)
    [block] = pool.allocate(1)
    pool.share(block)
    pool.share(block)
    assert (pool.refs[block], pool.extra_refs, pool.num_used) == (3, 2, 1)
    for left in (2, 1, 0):
        pool.release([block])
        assert pool.refs[block] == left and pool.num_free == (3 if left == 0 else 2)
    assert pool.extra_refs == 0


def test_blocks_without_content_go_first_then_the_least_recently_used() -> None:
    pool = BlockPool(5, 1)
    a, b, c = cached(pool, 10, 11, 12)
    assert pool.num_cached == 3 and pool.num_free == 5
    assert find(pool, 10) == a
    pool.share(a)  # used once more: it is the youngest now
    pool.release([a])
    empty = pool.allocate(2)
    assert not {a, b, c} & set(empty) and pool.num_cached == 3
    assert pool.allocate(1) == [b] and find(pool, 11) is None and find(pool, 10) == a
    assert pool.allocate(2) == [c, a] and find(pool, 10) is None and pool.num_cached == 0


def test_a_prefix_outlives_what_follows_it() -> None:
    """Of one table, the last block is given up first: without the first ones it could not be found anyway."""
    pool = BlockPool(3, 1)
    blocks = pool.allocate(3)
    h = 0
    for block, x in zip(blocks, (5, 6, 7)):
        pool.register(block, chain_hash(h, [x]), h, [x])
        h = chain_hash(h, [x])
    pool.release(blocks)
    assert pool.allocate(3) == blocks[::-1]


def test_the_first_block_with_a_content_keeps_it() -> None:
    pool = BlockPool(2, 1)
    a, b = pool.allocate(2)
    for block in (a, b):
        pool.register(block, chain_hash(0, [1]), 0, [1])
    assert find(pool, 1) == a
    pool.release([a, b])
    assert pool.num_cached == 1
    pool.check([])


def test_a_hash_collision_is_no_hit() -> None:
    pool = BlockPool(2, 1)
    [a] = pool.allocate(1)
    pool.register(a, 99, 0, [1])
    assert pool.find(99, 0, [1]) == a
    assert pool.find(99, 0, [2]) is None and pool.find(99, 5, [1]) is None


def test_chain_hash_tells_position_and_past() -> None:
    assert chain_hash(0, [1, 2]) == chain_hash(0, (1, 2)) != chain_hash(0, [2, 1])
    assert chain_hash(chain_hash(0, [1]), [2]) != chain_hash(chain_hash(0, [3]), [2])


def test_runs() -> None:
    pool = BlockPool(8, 1)
    assert pool.allocate_run(3) == [0, 1, 2] and pool.allocate_run(2) == [3, 4] and pool.allocate_run(2) == [5, 6]
    pool.release([3, 4])  # free: 3 4, 7
    assert (pool.num_free, pool.longest_free_run()) == (3, 2)
    assert (pool.free_in_short_runs(2), pool.free_in_short_runs(3), pool.free_in_short_runs(1)) == (1, 3, 0)
    with pytest.raises(MinirtError, match=r"3 consecutive KV blocks wanted; 3 are free but the longest run is 2 \(external"):
        pool.allocate_run(3)
    assert pool.allocate_run(2) == [3, 4]  # first fit
    assert pool.allocate(1) == [7]  # ids 0 to 6 are still queued as free from the start, and skipped
    pool.release([0, 1, 2, 3, 4, 5, 6, 7])
    pool.check([])
    assert pool.longest_free_run() == 8


def test_a_run_takes_cached_blocks_and_forgets_them() -> None:
    pool = BlockPool(4, 1)
    cached(pool, 1, 2)
    assert pool.allocate_run(4) == [0, 1, 2, 3] and pool.num_cached == 0
    assert find(pool, 1) is None and find(pool, 2) is None


def test_clearing_the_cache() -> None:
    pool = BlockPool(3, 1)
    cached(pool, 1, 2)
    held = pool.allocate(1)
    pool.register(held[0], chain_hash(0, [3]), 0, [3])
    pool.clear_cache()
    assert pool.num_cached == 0 and all(find(pool, x) is None for x in (1, 2, 3))
    pool.release(held)
    pool.check([])
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_check_notices() -> None:
    pool = BlockPool(3, 1)
    table = BlockTable(1)
    table.blocks = pool.allocate(2)
    pool.check([table])
    with pytest.raises(MinirtError, match="block 0 has refcount 1 but 0 tables hold it"):
        pool.check([])
    table.blocks.append(2)
    with pytest.raises(MinirtError, match="block 2 has refcount 0 but 1 tables hold it"):
        pool.check([table])
    table.blocks.pop()
    for break_it, message in (
        (lambda p: p.free_map.__setitem__(0, 1), "marked free"),
        (lambda p: setattr(p, "num_free", 2), "blocks have no owner, 2 counted"),
        (lambda p: p._empty.clear(), "0 can be handed out"),
        (lambda p: setattr(p, "extra_refs", 1), "shared references"),
    ):
        pool = BlockPool(3, 1)
        table.blocks = pool.allocate(2)
        break_it(pool)
        with pytest.raises(MinirtError, match=message):
            pool.check([table])


@pytest.mark.parametrize("seed", range(8))
def test_against_a_naive_pool(seed: int) -> None:
    """Random tables, paged and in runs, with shared contents, against sets and lists that are searched from end to end."""
    rng = Random(seed)
    pool = BlockPool(12, 1)
    tables: list[BlockTable] = []
    content: dict[int, int] = {}  # block -> what it holds
    for _ in range(600):
        held = [b for t in tables for b in t.blocks]
        free = [b for b in range(12) if b not in held]
        action = rng.randrange(4)
        table = BlockTable(1)
        if action == 0 and tables:
            pool.release(tables.pop(rng.randrange(len(tables))).blocks)
        elif action == 1:
            n = rng.randint(1, 4)
            run = next((i for i in range(13 - n) if all(i + k in free for k in range(n))), None)
            if run is None:
                with pytest.raises(MinirtError):
                    pool.allocate_run(n)
                continue
            table.blocks = pool.allocate_run(n)
            assert table.blocks == list(range(run, run + n))
            tables.append(table)
        elif action == 2:
            n = rng.randint(1, 4)
            if n > len(free):
                with pytest.raises(MinirtError):
                    pool.allocate(n)
                continue
            table.blocks = pool.allocate(n)
            assert set(table.blocks) <= set(free) and len(set(table.blocks)) == n
            tables.append(table)
        else:
            x = rng.randrange(6)
            block = find(pool, x)
            if block is not None:
                assert content[block] == x
                pool.share(block)
                table.blocks = [block]
                tables.append(table)
            elif free:
                table.blocks = pool.allocate(1)
                tables.append(table)
                content.pop(table.blocks[0], None)
                pool.register(table.blocks[0], chain_hash(0, [x]), 0, [x])
                content[table.blocks[0]] = x
            continue
        if action in (1, 2):
            for b in table.blocks:
                content.pop(b, None)
                assert all(find(pool, x) != b for x in range(6))
        pool.check(tables)
        assert pool.num_used == len({b for t in tables for b in t.blocks})
    pool.check(tables)
