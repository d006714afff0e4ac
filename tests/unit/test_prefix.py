"""Prefix caching: what is shared, what is still computed, and that tokens never change. On the fake backend, whose
tokens depend on every block that is read; with real attention in tests/parity/test_policy_parity.py."""

from __future__ import annotations

from typing import Any

import pytest

from minirt import Engine, Request
from minirt.prefix import block_hashes, find_prefix
from minirt.trace import StepRecord
from tests.fake_backend import FakeBackend, expected

SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6]  # two blocks of 4


def engine(num_blocks: int = 32, **options: Any) -> Engine:
    sizes = {"max_batch_size": 4, "num_blocks": num_blocks, "block_size": 4, "prefix_caching": True, **options}
    return Engine(FakeBackend(), "vllm", **sizes)


def ask(*prompt: int, n: int = 3) -> Request:
    return Request(prompt_ids=list(prompt), max_new_tokens=n, ignore_eos=True)


def check(eng: Engine) -> None:
    tables = [s.table for s in [*eng.running.values(), *eng.prefilling.values()] if s.table is not None]
    eng.pool.check(tables)
    for i, out in eng.outputs.items():
        if out.finish_reason == "length":
            want = expected(list(out.request.prompt_ids or ()), out.request.max_new_tokens, True)
            assert out.token_ids == want, f"request {i}"


def finish(eng: Engine) -> None:
    while eng.has_work:
        eng.step()
        check(eng)
    assert eng.pool.num_used == 0


def cached(record: StepRecord) -> dict[int, int]:
    return {e.id: e.data["cached"] for e in record.events if e.kind == "admitted"}


def rows(record: StepRecord) -> dict[int, tuple[int, int]]:
    return {r.id: (r.start, r.n) for r in record.prefill}


def test_a_later_request_shares_full_blocks_and_computes_the_rest() -> None:
    eng = engine()
    eng.add(ask(*SYSTEM, 7, 7))
    eng.step()
    eng.add(ask(*SYSTEM, 8, 8, 8))
    record = eng.step()
    assert cached(record) == {1: 8} and rows(record) == {1: (8, 3)}
    a, b = (eng.running[i].table for i in (0, 1))
    assert a and b and a.blocks[:2] == b.blocks[:2] and not set(a.blocks[2:]) & set(b.blocks[2:])
    assert [eng.pool.refs[x] for x in a.blocks[:2]] == [2, 2] and eng.pool.extra_refs == 2
    finish(eng)


def test_the_first_owner_may_leave_first() -> None:
    eng = engine()
    eng.add(ask(*SYSTEM, 7, n=3))
    eng.step()
    eng.add(ask(*SYSTEM, 8, n=9))
    eng.step()
    shared = list(eng.running[1].table.blocks[:2])  # type: ignore[union-attr]
    eng.abort(0)
    assert [eng.pool.refs[x] for x in shared] == [1, 1]
    finish(eng)


def test_not_shared_are_blocks_that_differ_or_follow_a_difference() -> None:
    eng = engine()
    eng.add(ask(*SYSTEM, 7))
    eng.step()
    eng.add(ask(0, *SYSTEM[1:], 7))  # the first token differs, so the second block is not the same either
    eng.add(ask(*SYSTEM[4:], *SYSTEM[4:], 7))  # the second block, in first place
    eng.add(ask(*SYSTEM[:4], 9, 9, 9, 9, 9))  # only the first block
    assert cached(eng.step()) == {1: 0, 2: 0, 3: 4}
    finish(eng)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_prompt_that_is_cached_whole_still_computes_its_last_token(extra: int) -> None:
    """Its logits are wanted. Where it ends a block, that block is computed again: it may not be written while shared."""
    prompt = SYSTEM + [2] * extra
    eng = engine()
    eng.add(ask(*prompt, n=8))
    eng.step()
    eng.add(ask(*prompt, n=8))
    record = eng.step()
    hit = 8 if extra else 4
    assert cached(record) == {1: hit} and rows(record) == {1: (hit, len(prompt) - hit)}
    assert 1 in record.emitted
    finish(eng)
    assert eng.outputs[0].token_ids == eng.outputs[1].token_ids


def test_requests_of_the_same_step_share() -> None:
    """The first computes the prefix, the others read it in the same forward: each computes its own end only."""
    eng = engine()
    for i in range(4):
        eng.add(ask(*SYSTEM, 10 + i, 20 + i))
    record = eng.step()
    assert rows(record) == {0: (0, 10), 1: (8, 2), 2: (8, 2), 3: (8, 2)}
    assert record.forwards == [(16, 4)] and record.emitted == [0, 1, 2, 3]
    assert eng.pool.num_used == 2 + 4 and eng.pool.extra_refs == 6
    assert record.valid == 8 + 4 * 2  # shared tokens are counted once
    finish(eng)


def test_the_same_step_shares_no_further_than_what_is_computed_in_it() -> None:
    """A chunk cuts the first prompt: the second may share the blocks that chunk fills, and no more."""
    eng = engine(max_num_batched_tokens=7)
    eng.add(ask(*SYSTEM, 1))
    eng.step()  # 7 of 9 tokens: one full block
    eng.add(ask(*SYSTEM, 2))
    record = eng.step()
    assert rows(record) == {0: (7, 2), 1: (8, 1)}  # one block found at admission, the second filled in this very step
    finish(eng)
    assert eng.outputs[1].token_ids == expected([*SYSTEM, 2], 3, True)


def test_free_cached_blocks_are_revived_and_the_oldest_are_given_up_first() -> None:
    eng = engine(num_blocks=8, max_batch_size=1)
    run = eng.run([ask(*[10 + i] * 8, 1, n=1) for i in range(3)])  # 2 full blocks each stay findable
    assert eng.pool.num_cached == 6 and run.metrics.cached_tokens == 0
    first, third = ask(*[10] * 8, 2, n=1), ask(*[12] * 8, 2, n=1)
    assert eng.run([third], keep_cache=True).metrics.cached_tokens == 8
    assert eng.run([ask(*range(30, 47), n=1)], keep_cache=True).metrics.cached_tokens == 0  # wants 5 of 8 blocks
    assert eng.run([third], keep_cache=True).metrics.cached_tokens == 8  # used last: still there
    assert eng.run([first], keep_cache=True).metrics.cached_tokens == 0  # used longest ago: gone
    check(eng)


def test_a_run_begins_without_a_cache_unless_told_to_keep_it() -> None:
    eng = engine()
    assert eng.run([ask(*SYSTEM, 1)]).metrics.cached_tokens == 0
    assert eng.run([ask(*SYSTEM, 1)]).metrics.cached_tokens == 0
    assert eng.run([ask(*SYSTEM, 1)], keep_cache=True).metrics.cached_tokens == 8


def test_a_preempted_request_finds_its_own_blocks() -> None:
    """Recompute need not compute everything: what nobody took meanwhile is still there, answer tokens included."""
    eng = engine(num_blocks=7, watermark=0.0)
    eng.add(ask(1, 2, 3, 4, 5, 6, 7, n=12))
    eng.add(ask(11, 12, 13, 14, 15, 16, 17, n=12))
    back: dict[int, int] = {}
    while eng.has_work:
        record = eng.step()
        check(eng)
        if record.step > 0:
            back.update(cached(record))
    assert sum(e.kind == "preempted" for s in eng.trace for e in s.events) > 0
    assert back and all(n >= 8 for n in back.values())  # more than the prompt's only full block
    assert eng.pool.num_used == 0


def test_decoded_blocks_are_found_by_a_follow_up_question() -> None:
    """A conversation's next turn begins with the last one's prompt and answer."""
    eng = engine()
    answer = eng.run([ask(*SYSTEM, n=9)]).outputs[0].token_ids
    follow_up = ask(*SYSTEM, *answer, 7, 7)
    run = eng.run([follow_up], keep_cache=True)
    assert run.metrics.cached_tokens == 16  # 8 of the prompt and 8 of the answer; the ninth was never fed back
    check(eng)


def test_a_failed_forward_leaves_nothing_to_be_found() -> None:
    eng = engine()
    backend: Any = eng.backend
    backend.fail_at = backend.calls + 1
    eng.add(ask(*SYSTEM, 1))
    with pytest.raises(RuntimeError):
        eng.step()
    backend.fail_at = None
    eng.add(ask(*SYSTEM, 1))
    assert cached(eng.step()) == {1: 0}
    finish(eng)


def test_off_by_default() -> None:
    eng = engine(prefix_caching=None)
    for _ in range(3):
        eng.add(ask(*SYSTEM, 1))
    record = eng.step()
    assert set(cached(record).values()) == {0} and eng.pool.extra_refs == 0 and not eng.pool.num_cached
    finish(eng)
    assert eng.pool.num_cached == 0


def test_hashes_grow_with_the_answer_and_are_kept() -> None:
    eng = engine()
    eng.add(ask(*SYSTEM, n=6))
    eng.step()
    seq = eng.running[0]
    before = list(block_hashes(seq, 4))
    for _ in range(4):
        eng.step()
    assert len(seq.tokens) == 13 and block_hashes(seq, 4)[:2] == before and len(seq.hashes) == 3
    assert find_prefix(eng.pool, seq) == seq.table.blocks[:3]  # type: ignore[union-attr]
