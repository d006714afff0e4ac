"""KV memory in fixed-size blocks: the pool that owns them and the table that maps a request onto them.

What it is: bookkeeping only, ids and counts. The tensors behind the ids belong to the backend.
The idea is PagedAttention's (Kwon et al., SOSP 2023): a request's KV lies in blocks anywhere in the
pool, its block table says which, and a full block can be shared by all requests whose tokens up to
its end are the same (prefix caching, as in vLLM and SGLang's RadixAttention).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from .errors import ConfigError, MinirtError

MOST_ROWS = 1 << 24  # a slot costs memory before it is used


def check_sizes(**sizes: object) -> None:
    """Raise ConfigError unless each is a whole number of at least 1."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name}={value!r} must be a whole number of at least 1.")
    if (rows := sizes.get("max_batch_size")) and isinstance(rows, int) and rows > MOST_ROWS:
        raise ConfigError(f"max_batch_size={rows} is more rows than an engine has slots for: at most {MOST_ROWS}.")


class BlockTable:
    """Logical block i of a request lies in physical block `blocks[i]`.

    capacity: tokens that fit into the blocks held.
    """

    __slots__ = ("block_size", "blocks", "num_shared")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: list[int] = []
        self.num_shared = 0  # leading blocks found in the prefix cache at admission

    @property
    def capacity(self) -> int:
        """Tokens that fit into the blocks this table holds."""
        return len(self.blocks) * self.block_size

    def lookup(self, position: int) -> tuple[int, int]:
        """(physical block, offset in it) of a token position. Raises IndexError past the capacity."""
        if not 0 <= position < self.capacity:
            raise IndexError(f"position {position} is outside this table's capacity of {self.capacity} tokens.")
        return self.blocks[position // self.block_size], position % self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks still missing before `num_tokens` tokens fit."""
        return max(0, -(-num_tokens // self.block_size) - len(self.blocks))


def chain_hash(previous: int, tokens: Sequence[int]) -> int:
    """Hash of a full block: of its tokens and of everything before it (through `previous`)."""
    return hash((previous, tuple(tokens)))


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens: free list, reference counts, prefix index.

    A block is free (refs 0), or held by as many tables as it has refs. A free block whose prefix is
    still indexed is "cached": it can be found by its content until it is handed out again, and the
    least recently freed is handed out first. Blocks without cached content are always preferred.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        check_sizes(num_blocks=num_blocks, block_size=block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.refs = [0] * num_blocks
        self.free_map = bytearray(b"\x01" * num_blocks)  # 1 where refs == 0; bytes.find gives runs fast
        self._empty: deque[int] = deque(range(num_blocks))  # free, nothing cached in it; may hold stale ids
        self._cached: OrderedDict[int, None] = OrderedDict()  # free but findable, oldest first
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._content: dict[int, tuple[int, tuple[int, ...]]] = {}  # to tell a true hit from a hash collision
        self.num_free = num_blocks
        self.extra_refs = 0  # sum of (refs - 1) over blocks held more than once

    # -- counting -------------------------------------------------------------------------------
    @property
    def num_used(self) -> int:
        """Blocks that some table holds."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks whose content can still be found."""
        return len(self._cached)

    def longest_free_run(self) -> int:
        """Length of the longest run of consecutive free blocks."""
        return max((len(run) for run in self.free_map.split(b"\x00")), default=0)

    def free_in_short_runs(self, need: int) -> int:
        """Free blocks in runs shorter than `need`: what a contiguous reservation of `need` can't use."""
        return sum(len(run) for run in self.free_map.split(b"\x00") if len(run) < need)

    # -- taking and giving back -----------------------------------------------------------------
    def allocate(self, n: int) -> list[int]:
        """n free blocks, wherever they lie. Raises MinirtError when there are not enough."""
        if n > self.num_free:
            raise MinirtError(f"{n} KV blocks wanted, {self.num_free} of {self.num_blocks} free.")
        out: list[int] = []
        while len(out) < n:
            if self._empty:
                block = self._empty.popleft()
                if not self.free_map[block] or block in self._cached:
                    continue  # taken by a contiguous reservation, or cached, since it was queued
            else:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
            self._take(block)
            out.append(block)
        return out

    def allocate_run(self, n: int) -> list[int]:
        """n consecutive blocks, first fit. Raises MinirtError when no run is long enough."""
        start = self.free_map.find(b"\x01" * n) if n else 0
        if start < 0:
            raise MinirtError(
                f"{n} consecutive KV blocks wanted; {self.num_free} are free but the longest run is "
                f"{self.longest_free_run()} (external fragmentation)."
            )
        out = list(range(start, start + n))
        for block in out:
            if block in self._cached:
                del self._cached[block]
                self._forget(block)
            self._take(block)
        return out

    def _take(self, block: int) -> None:
        self.refs[block] = 1
        self.free_map[block] = 0
        self.num_free -= 1

    def share(self, block: int) -> None:
        """One more table holds `block` (a prefix hit): a held block gains a ref, a cached one is revived."""
        if self.refs[block]:
            self.refs[block] += 1
            self.extra_refs += 1
        else:
            del self._cached[block]
            self._take(block)

    def release(self, blocks: Iterable[int]) -> None:
        """A table gives its blocks back, last one first, so that a prefix outlives what follows it."""
        for block in reversed(list(blocks)):
            if self.refs[block] < 1:
                raise MinirtError(f"block {block} is released but nobody holds it.")
            self.refs[block] -= 1
            if self.refs[block]:
                self.extra_refs -= 1
                continue
            self.free_map[block] = 1
            self.num_free += 1
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._empty.append(block)
        if len(self._empty) > 4 * self.num_blocks:  # contiguous runs leave stale ids behind: weed them out
            self._empty = deque(dict.fromkeys(b for b in self._empty if self.free_map[b] and b not in self._cached))

    # -- prefix index ---------------------------------------------------------------------------
    def register(self, block: int, h: int, previous: int, tokens: Sequence[int]) -> None:
        """Make a full block findable by its chain hash. The first block with a content keeps it."""
        if h not in self._block_of and block not in self._hash_of:
            self._block_of[h] = block
            self._hash_of[block] = h
            self._content[block] = (previous, tuple(tokens))

    def find(self, h: int, previous: int, tokens: Sequence[int]) -> int | None:
        """The block with this content, or None."""
        block = self._block_of.get(h)
        if block is None or self._content[block] != (previous, tuple(tokens)):
            return None
        return block

    def _forget(self, block: int) -> None:
        h = self._hash_of.pop(block, None)
        if h is not None:
            del self._block_of[h]
            del self._content[block]

    def clear_cache(self) -> None:
        """Forget every cached prefix (after a forward that failed, what the blocks hold is unknown)."""
        self._block_of.clear()
        self._hash_of.clear()
        self._content.clear()
        self._empty.extend(self._cached)
        self._cached.clear()

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Raise MinirtError unless refs, free list and the given tables agree (invariant 2 of the design)."""
        held = [0] * self.num_blocks
        for table in tables:
            for block in table.blocks:
                held[block] += 1
        for block, (refs, count) in enumerate(zip(self.refs, held)):
            if refs != count:
                raise MinirtError(f"block {block} has refcount {refs} but {count} tables hold it.")
            if bool(self.free_map[block]) != (refs == 0):
                raise MinirtError(f"block {block} is marked {'free' if refs else 'held'} with refcount {refs}.")
        free = self.refs.count(0)
        reachable = len({b for b in self._empty if not self.refs[b]} | set(self._cached))
        if free != self.num_free or reachable != free:
            raise MinirtError(f"{free} blocks have no owner, {self.num_free} counted, {reachable} can be handed out.")
        if self.extra_refs != sum(r - 1 for r in self.refs if r):
            raise MinirtError("the count of shared references is off.")
