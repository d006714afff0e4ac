"""Prefix caching: which leading blocks of a request already lie in the pool.

Only full blocks are shared, and a prompt that is cached whole still computes its last token, since
its logits are what the first answer token is drawn from. The block that token lies in is therefore
not shared: the request would write into it.
"""

from __future__ import annotations

from .blocks import BlockPool, chain_hash
from .request import Sequence


def block_hashes(seq: Sequence, block_size: int, upto: int | None = None) -> list[int]:
    """Chain hash of every full block of the request's tokens (kept in seq.hashes and extended as it grows)."""
    full = len(seq.tokens) // block_size if upto is None else upto
    hashes = seq.hashes
    while len(hashes) < full:
        i = len(hashes)
        hashes.append(chain_hash(hashes[-1] if hashes else 0, seq.tokens[i * block_size : (i + 1) * block_size]))
    return hashes


def find_prefix(pool: BlockPool, seq: Sequence, skip: int | None = None) -> list[int]:
    """Blocks of the pool that hold the request's tokens, as far as they can be shared.

    skip: the request is being served and holds so many already; what follows is found only where somebody holds it
    as well, because its plan has not counted on reviving free blocks.
    """
    bs = pool.block_size
    usable = (len(seq.tokens) - 1) // bs  # at least the last token must be computed
    hashes = block_hashes(seq, bs)
    out: list[int] = []
    for i in range(skip or 0, usable):
        block = pool.find(hashes[i], hashes[i - 1] if i else 0, seq.tokens[i * bs : (i + 1) * bs])
        if block is None or (skip is not None and not pool.refs[block]):
            break
        out.append(block)
    return out


def register_full(pool: BlockPool, seq: Sequence, before: int, after: int) -> None:
    """Make the blocks that become full between `before` and `after` computed tokens findable."""
    bs = pool.block_size
    first, full = before // bs, after // bs
    if full > first and seq.table is not None:
        hashes = block_hashes(seq, bs, full)
        for i in range(first, full):
            previous = hashes[i - 1] if i else 0
            pool.register(seq.table.blocks[i], hashes[i], previous, seq.tokens[i * bs : (i + 1) * bs])
