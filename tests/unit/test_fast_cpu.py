"""The CPU's fast path computes what the plain one does, and steps aside where it can't run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from minirt import ContinuousEngine, Request
from minirt.backends.base import ForwardBatch
from minirt.backends.native import NativeBackend
from minirt.model import attention, fast_cpu
from minirt.model.decoder import Linear
from minirt.model.loading import LanguageModel, random_model
from minirt.model.sampling import greedy
from minirt.request import Sequence

DTYPES = [torch.float32, torch.bfloat16]
BLOCK = 4


def forward_of(lm: LanguageModel) -> fast_cpu.CpuForward:
    forward = fast_cpu.fast_forward(lm.decoder)
    if forward is None:
        pytest.skip("no C compiler here")
    return forward


def mixed_batch(vocab: int, seed: int = 0) -> ForwardBatch:
    """Three decode rows, a prompt that starts, one that continues, one with padding; blocks scattered."""
    rng = np.random.default_rng(seed)
    starts, counts, pads = [6, 0, 12, 0, 5, 0], [1, 1, 1, 9, 4, 3], [0, 0, 0, 0, 0, 6]
    tables = rng.permutation(6 * 5).astype(np.int32).reshape(6, 5)
    seqs = []
    for i, (s, c) in enumerate(zip(starts, counts)):
        seqs.append(Sequence(i, Request(prompt_ids=[1]), rng.integers(0, vocab, s + c).tolist(), s + c, 0.0, slot=i))
    return ForwardBatch(seqs, starts, counts, pads, 3, [0, 1, 2, 3, 4, 5], tables, BLOCK)


def both(lm: LanguageModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(logits, cache) of one batch, by the plain and by the fast forward, over a cache of the same random past."""
    out = []
    for forward in (lm.decoder.forward, forward_of(lm)):
        backend = NativeBackend(lm)
        backend.forward = forward
        backend.start(31, BLOCK, 0)
        assert backend.kv is not None
        backend.kv.data.copy_(torch.randn(backend.kv.data.shape, generator=torch.Generator().manual_seed(1)))
        logits = backend.logits_for(mixed_batch(lm.config.vocab_size))
        out.append((logits.float(), backend.kv.data.float()))
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 3, 40])
def test_packed_linear(dtype: torch.dtype, rows: int) -> None:
    if not fast_cpu.can_pack(dtype):
        pytest.skip("oneDNN can't pack this dtype here")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 40, generator=generator).to(dtype)
    bias, x = torch.randn(24, generator=generator).to(dtype), torch.randn(rows, 40, generator=generator).to(dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-1}
    torch.testing.assert_close(fast_cpu.PackedLinear(Linear(weight))(x), F.linear(x, weight), **close)
    torch.testing.assert_close(fast_cpu.PackedLinear(Linear(weight, bias))(x), F.linear(x, weight, bias), **close)


def test_pack_replaces_every_linear_and_keeps_the_embedding() -> None:
    lm = random_model(tied=True)
    x = torch.tensor([1, 2, 3])
    before = lm.decoder.head(lm.decoder.embed[x])
    if not fast_cpu.pack(lm.decoder):
        pytest.skip("oneDNN can't pack here")
    layer = lm.decoder.layers[0]
    linears = (layer.qkv, layer.o, layer.gate_up, layer.down, lm.decoder.head)
    assert all(isinstance(f, fast_cpu.PackedLinear) for f in linears)
    torch.testing.assert_close(lm.decoder.head(lm.decoder.embed[x]), before)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_forward_in_float32(arch: str) -> None:
    """To a few units in the last place; the cache holds the same, and nothing where the padding was."""
    lm = random_model(arch=arch, hidden=48, heads=6, kv_heads=2, head_dim=16)
    (logits, cache), (fast_logits, fast_cache) = both(lm)
    torch.testing.assert_close(fast_logits, logits, rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(fast_cache, cache, rtol=1e-4, atol=1e-4)


def test_forward_in_bfloat16_is_no_further_from_float32_than_the_plain_one() -> None:
    exact = both(random_model(hidden=64, layers=4))[0][0]
    plain, fast = (logits for logits, _ in both(random_model(hidden=64, layers=4, dtype=torch.bfloat16)))
    assert (fast - exact).pow(2).mean() < 1.5 * (plain - exact).pow(2).mean() + 1e-6


@pytest.mark.parametrize("policy", ["vllm", "static", "mini-runtime"])
def test_same_tokens_through_the_engine(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = random_model(vocab=97, hidden=48, heads=6, kv_heads=2, head_dim=16)
    forward_of(lm)
    requests = [Request(prompt_ids=list(range(1, 2 + 5 * i)), max_new_tokens=3 + 4 * i) for i in range(5)]

    def serve() -> list[list[int]]:
        run = ContinuousEngine(lm, policy, max_batch_size=3, num_blocks=64, block_size=BLOCK).run(requests)
        return [o.token_ids for o in run.outputs]

    fast = serve()
    monkeypatch.setenv("MINIRT_PLAIN", "1")
    assert fast_cpu.fast_forward(lm.decoder) is None
    assert fast == serve()


def test_an_attention_of_ones_own_is_used() -> None:
    lm = random_model()
    forward_of(lm)
    seen = []
    plain = lm.decoder.attend

    def spy(*args: Any) -> torch.Tensor:
        seen.append(args[4])
        return plain(*args)

    lm.decoder.attend = spy
    ContinuousEngine(lm, num_blocks=8).run([Request(prompt_ids=[1, 2], max_new_tokens=2)])
    assert seen == [0, 1, 0, 1]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cpu.shutil, "which", lambda name: None)
    fast_cpu.kernels.cache_clear()
    try:
        assert fast_cpu.fast_forward(random_model().decoder) is None
        assert NativeBackend(lm := random_model()).forward == lm.decoder.forward
    finally:
        fast_cpu.kernels.cache_clear()


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("MINIRT_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "false")  # there, and always unhappy
    fast_cpu.kernels.cache_clear()
    try:
        assert fast_cpu.fast_forward(random_model().decoder) is None
        assert not list(tmp_path.glob("kernels/*"))
    finally:
        fast_cpu.kernels.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_take_the_plain_path(dtype: torch.dtype) -> None:
    assert fast_cpu.fast_forward(random_model(dtype=dtype).decoder) is None
    assert not fast_cpu.can_pack(dtype)


@pytest.mark.parametrize("t, start, padding", [(300, 0, 0), (300, 0, 9), (200, 50, 0), (129, 1, 3)])
def test_a_long_prompt_in_parts(t: int, start: int, padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few queries at a time give what all at once give."""
    generator = torch.Generator().manual_seed(t)
    context = start + t if start else t + padding  # rows that start at 0 see their own k and v, padding included
    q = torch.randn(t + padding, 6, 16, generator=generator)
    k, v = torch.randn(2, context, 2, 16, generator=generator)
    mask = torch.arange(context) <= torch.arange(start, start + t + padding)[:, None] if start else None
    parts = attention._row(q, k, v, mask, start)
    monkeypatch.setattr(attention, "QUERIES", 1 << 30)
    torch.testing.assert_close(parts[:t], attention._row(q, k, v, mask, start)[:t])


def wide_model(dtype: torch.dtype, head_dim: int = 64) -> LanguageModel:
    """Heads of the size that fast_cpu_avx512.c is written for; three query heads a key head."""
    return random_model(hidden=96, heads=6, kv_heads=2, head_dim=head_dim, layers=3, dtype=dtype)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_wide_heads_in_bfloat16_are_no_further_from_float32(head_dim: int) -> None:
    """Decode rows, a new prompt, one that continues and one with padding, by whichever kernels this processor has."""
    exact, exact_cache = both(wide_model(torch.float32, head_dim))[0]
    (plain, plain_cache), (fast, cache) = both(wide_model(torch.bfloat16, head_dim))
    assert (fast - exact).pow(2).mean() < 1.5 * (plain - exact).pow(2).mean() + 1e-6
    assert (cache - exact_cache).pow(2).mean() < 1.5 * (plain_cache - exact_cache).pow(2).mean() + 1e-6


@pytest.mark.parametrize("start, count", [(0, 1), (0, 47), (0, 49), (0, 200), (63, 2), (64, 64), (65, 130), (150, 7)])
def test_prompt_kernel_against_plain_attention(start: int, count: int) -> None:
    """Every length around the kernel's block sizes (48 queries, 64 keys), in one row behind an earlier part."""
    forward = forward_of(wide_model(torch.bfloat16))
    if not forward.prefills:
        pytest.skip("no AVX512-BF16 here")
    c, context = forward.decoder.config, start + count
    generator = torch.Generator().manual_seed(context)
    kv = attention.PagedKV(c, 60, BLOCK, torch.device("cpu"), torch.bfloat16)
    kv.data.copy_(torch.randn(kv.data.shape, generator=generator))
    qkv = torch.randn(count, c.num_heads + 2 * c.num_kv_heads, c.head_dim, generator=generator).bfloat16()
    table = torch.randperm(60, generator=generator)[: -(-context // BLOCK)].to(torch.int32)
    row = attention.PrefillRow(0, count, context, start, table)
    out = torch.full((count, c.q_size), torch.nan, dtype=torch.bfloat16)
    places = torch.full((count,), -1)
    empty = torch.empty(0, dtype=torch.int32)
    meta = attention.AttentionMeta(places, True, BLOCK, 0, empty.view(0, 0), empty, 0, [row])
    forward._attend_prompts(step_of(forward, qkv, out, kv, meta), qkv.flatten(1), kv, 0, meta, out)
    k, v = (x[table.long()].flatten(0, 1)[:context].float() for x in (kv.keys[0], kv.values[0]))
    mask = torch.arange(context) <= torch.arange(start, context)[:, None]
    expected = attention._row(qkv[:, : c.num_heads].float(), k, v, mask, start)
    torch.testing.assert_close(out.float(), expected.flatten(1), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("context", [1, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("rows", [1, 9])
def test_decode_kernel_against_plain_attention(rows: int, context: int) -> None:
    """Contexts around the kernel's tile of 16 tokens; few rows (shared out by heads) and more."""
    lm = wide_model(torch.bfloat16)
    forward, c = forward_of(lm), lm.config
    generator = torch.Generator().manual_seed(context)
    width = -(-context // BLOCK)
    kv = attention.PagedKV(c, rows * width, BLOCK, lm.device, torch.bfloat16)
    kv.data.copy_(torch.randn(kv.data.shape, generator=generator))
    lens = torch.randint(1, context + 1, (rows,), generator=generator, dtype=torch.int32)
    lens[0] = context
    tables = torch.randperm(rows * width, generator=generator).to(torch.int32).view(rows, width)
    meta = attention.AttentionMeta(torch.full((rows,), -1), True, BLOCK, rows, tables, lens, context, [])
    qkv = torch.randn(rows, c.q_size + 2 * c.kv_size, generator=generator).bfloat16()
    out = torch.full((rows, c.q_size), torch.nan, dtype=torch.bfloat16)
    forward.lib.attend(step_of(forward, qkv, out, kv, meta), qkv.data_ptr(), 1)
    heads = qkv[:, : c.q_size].view(rows, c.num_heads, c.head_dim)
    expected = attention._decode(heads.float(), _floats(kv), 1, meta).flatten(1)
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)


def step_of(
    forward: fast_cpu.CpuForward, qkv: torch.Tensor, out: torch.Tensor, kv: attention.PagedKV, meta: Any
) -> fast_cpu.Step:
    """A Step for attention alone, with a RoPE that turns nothing; what it points to is kept by the caller or here."""
    half = forward.decoder.config.head_dim // 2
    still = torch.ones(len(qkv), half), torch.zeros(len(qkv), half)
    KEPT.extend(still)
    return forward._step(qkv, qkv, out, qkv, *still, kv, meta)


KEPT: list[torch.Tensor] = []


def _floats(kv: attention.PagedKV) -> attention.PagedKV:
    """The same cache in float32."""
    kv.keys, kv.values = [k.float() for k in kv.keys], [v.float() for v in kv.values]
    return kv


def test_without_the_wide_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without AVX512-BF16 gets the portable ones, and the same answer within rounding."""
    (_, _), (wide, _) = both(wide_model(torch.bfloat16))
    monkeypatch.setattr(fast_cpu, "FLAGS", [f for f in fast_cpu.FLAGS if f != "-march=native"])
    fast_cpu.kernels.cache_clear()
    try:
        forward = forward_of(lm := wide_model(torch.bfloat16))
        assert not forward.prefills
        (plain, _), (portable, _) = both(lm)
    finally:
        fast_cpu.kernels.cache_clear()
    spread = plain.std()
    assert (portable - plain).abs().max() < 0.2 * spread
    assert (wide - portable).abs().max() < 0.2 * spread


def test_greedy_is_the_first_largest() -> None:
    forward = forward_of(random_model(dtype=torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 3000, generator=generator).bfloat16()
    logits[2] = 1.0  # all equal: the first
    logits[3, [1023, 1024, 2999]] = 50.0  # a tie across the parts in which the kernel reads
    logits[4, 2999] = torch.inf
    assert forward.greedy(logits).tolist() == logits.float().argmax(-1).tolist()
    logits[5] = 0.0
    logits[5, :7] = -0.0  # equal to 0: the first of all
    for signs in (logits, -logits.abs()):
        assert forward.greedy(signs).tolist() == signs.float().argmax(-1).tolist()
    assert forward.greedy(logits[:, ::2]).tolist() == greedy(logits[:, ::2]).tolist()
    assert forward.greedy(logits[:0]).tolist() == []


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 16, 96, 97])
def test_few_rows_against_onednn(rows: int) -> None:
    """The kernel for a few rows reads oneDNN's packed weights: same numbers, up to its limit of rows and behind it."""
    few_rows = getattr(forward_of(wide_model(torch.bfloat16)).lib, "few_rows", None)
    if few_rows is None or not fast_cpu.can_pack(torch.bfloat16):
        pytest.skip("no AVX512-BF16 here")
    generator = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(192, 576, generator=generator).bfloat16(), torch.randn(192, generator=generator).bfloat16()
    x = torch.randn(rows, 576, generator=generator).bfloat16()
    for plain in (Linear(weight), Linear(weight, bias)):
        linear = fast_cpu.PackedLinear(plain, few_rows)
        assert linear.few_rows is not None, "this oneDNN packs otherwise than the kernel reads"
        torch.testing.assert_close(linear(x), linear.by_onednn(x), rtol=0.01, atol=0.05)
        every_second = torch.empty(rows, 1152).bfloat16()[:, ::2].copy_(x)  # not in one piece
        torch.testing.assert_close(linear(every_second), linear.by_onednn(x), rtol=0.01, atol=0.05)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    few_rows = getattr(forward_of(wide_model(torch.bfloat16)).lib, "few_rows", None)
    if few_rows is None or not fast_cpu.can_pack(torch.bfloat16):
        pytest.skip("no AVX512-BF16 here")
    generator = torch.Generator().manual_seed(0)
    linear = fast_cpu.PackedLinear(Linear(torch.randn(64, 576, generator=generator).bfloat16()), few_rows)
    x = torch.randn(96, 576, generator=generator).bfloat16()
    assert all(torch.equal(linear(x[i : i + 1]), linear(x)[i : i + 1]) for i in range(96))


@pytest.mark.parametrize("shape", [(100, 64), (64, 33)])
def test_few_rows_is_not_used_for_sizes_that_onednn_pads(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    if not fast_cpu.can_pack(torch.bfloat16):
        pytest.skip("oneDNN can't pack this dtype here")

    def never(*args: Any) -> None:
        raise AssertionError("read past the weight's layout")

    linear, x = fast_cpu.PackedLinear(Linear(weight), never), torch.ones(3, shape[1]).bfloat16()
    assert linear.few_rows is None
    torch.testing.assert_close(linear(x), F.linear(x, weight), rtol=0.01, atol=0.1)


def test_another_layout_is_found_out() -> None:
    """Where oneDNN packs otherwise, the kernel's numbers are wrong, and oneDNN multiplies."""
    if not fast_cpu.can_pack(torch.bfloat16):
        pytest.skip("oneDNN can't pack this dtype here")
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    linear = fast_cpu.PackedLinear(Linear(weight), lambda *args: None)  # leaves what memory held
    assert linear.few_rows is None
