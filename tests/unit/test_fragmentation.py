"""Where KV memory goes, on runs small enough to count by hand: valid, reserved, internal and external."""

from __future__ import annotations

from typing import Any

import pytest

from minirt import Engine, Request
from minirt.metrics import RunMetrics
from tests.fake_backend import FakeBackend


def serve(policy: str, *requests: tuple[int, int], **options: Any) -> tuple[RunMetrics, list[tuple[int, int, int]]]:
    """Metrics, and (blocks used, valid tokens, external blocks) after each step. requests: (prompt, answer) lengths."""
    eng = Engine(FakeBackend(max_model_len=16), policy, **options)
    run = eng.run([Request(prompt_ids=[1] * p, max_new_tokens=n, ignore_eos=True) for p, n in requests])
    return run.metrics, [(s.blocks_used, s.valid, s.external) for s in run.trace]


def check(m: RunMetrics, valid: float, reserved: float, internal: float, external: float) -> None:
    assert m.kv == pytest.approx((valid, reserved, internal, external))
    assert sum(m.kv) == pytest.approx(1)


def test_paged() -> None:
    """5 prompt tokens and an answer of 3 fill 7 positions of 2 blocks of 4; the last step leaves nothing in use."""
    m, steps = serve("vllm", (5, 3), num_blocks=8, block_size=4)
    assert steps == [(2, 5, 0), (2, 6, 0), (0, 0, 0)]
    # of 8 positions: 5 then 6 valid, 2 then 1 filled later, 1 never
    check(m, 11 / 16, 3 / 16, 2 / 16, 0)
    assert m.fragmentation == pytest.approx(1 - 11 / 16)


def test_paged_takes_a_block_only_when_it_is_needed() -> None:
    m, steps = serve("vllm", (3, 4), num_blocks=8, block_size=4)
    assert steps == [(1, 3, 0), (1, 4, 0), (2, 5, 0), (0, 0, 0)]
    # 6 positions are filled in the end: nothing of the first block is lost, 2 of the second's are
    check(m, (3 / 4 + 4 / 4 + 5 / 8) / 3, (1 / 4 + 0 + 1 / 8) / 3, (2 / 8) / 3, 0)


@pytest.mark.parametrize("variant, tokens", [("max", 16), ("pow2", 12), ("oracle", 8)])
def test_reserved_whole(variant: str, tokens: int) -> None:
    """The same request: the model's 16 positions; 5 + 4 in 3 blocks; its 7 in 2 blocks."""
    m, steps = serve("orca", (5, 3), variant=variant, num_blocks=8, block_size=4)
    assert steps == [(tokens // 4, 5, 0), (tokens // 4, 6, 0), (0, 0, 0)]
    check(m, 11 / 2 / tokens, 3 / 2 / tokens, (tokens - 7) / tokens, 0)


def test_external() -> None:
    """A, B and C hold 2 blocks each of 6. A and C leave: 4 blocks are free, 2 and 2, and D wants 3 in a row."""
    m, steps = serve("orca", (2, 2), (2, 3), (2, 2), (5, 1), variant="oracle", num_blocks=6, block_size=2)
    assert steps == [(6, 6, 0), (2, 3, 4), (0, 0, 0), (0, 0, 0)]
    # Step 0, of 12 positions: 6 valid, A and C never fill one each, 4 are filled later.
    # Step 1, of the 4 that B holds and the 8 that are free in vain: 3 valid, 1 filled later, 8 external.
    check(m, (6 + 3) / 24, (4 + 1) / 24, (2 + 0) / 24, (0 + 8) / 24)
    assert m.fragmentation == pytest.approx(((1 - 6 / 12) + (1 - 3 / 4)) / 2)


def test_paged_memory_has_no_external_fragmentation() -> None:
    """The same four requests: D takes the two holes at once, and the queue is served a step earlier."""
    m, steps = serve("vllm", (2, 2), (2, 3), (2, 2), (5, 1), num_blocks=6, block_size=2, watermark=0.0)
    assert all(external == 0 for _, _, external in steps) and m.kv.external == 0
    orca, _ = serve("orca", (2, 2), (2, 3), (2, 2), (5, 1), variant="oracle", num_blocks=6, block_size=2)
    assert m.duration == orca.duration - 1


def test_free_blocks_nobody_waits_for_are_not_fragmentation() -> None:
    _, steps = serve("orca", (2, 2), (2, 3), (2, 2), variant="oracle", num_blocks=6, block_size=2)
    assert steps == [(6, 6, 0), (2, 3, 0), (0, 0, 0)]


def test_static() -> None:
    """Both rows get the longest prompt and the longest answer, 2 + 3 - 1 positions; the second never fills 3 of its."""
    m, steps = serve("static", (2, 3), (1, 1), max_batch_size=2, num_blocks=8, block_size=2)
    assert steps == [(4, 3, 0), (4, 4, 0), (4, 5, 0), (0, 0, 0)]
    check(m, 12 / 24, 3 / 24, 9 / 24, 0)


def test_shared_blocks_count_once() -> None:
    """Two requests share a block of 4 and hold one each: 3 blocks, 12 positions."""
    m, steps = serve("vllm", (5, 2), (5, 2), num_blocks=8, block_size=4, prefix_caching=True)
    assert steps[0] == (3, 4 + 1 + 1, 0)
    assert m.fragmentation == pytest.approx(1 - 6 / 12)
