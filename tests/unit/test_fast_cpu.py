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
from minirt.model import attention, cpu_kernels, fast_cpu
from minirt.model.decoder import Linear
from minirt.model.loading import LanguageModel, random_model
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


def test_without_the_wide_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without AVX512-BF16 gets the portable ones, and the same answer within rounding."""
    (_, _), (wide, _) = both(wide_model(torch.bfloat16))
    monkeypatch.setattr(cpu_kernels, "FLAGS", [f for f in cpu_kernels.FLAGS if f != "-march=native"])
    cpu_kernels.kernels.cache_clear()
    try:
        forward = forward_of(lm := wide_model(torch.bfloat16))
        assert not forward.prefills
        (plain, _), (portable, _) = both(lm)
    finally:
        cpu_kernels.kernels.cache_clear()
    spread = plain.std()
    assert (portable - plain).abs().max() < 0.2 * spread
    assert (wide - portable).abs().max() < 0.2 * spread


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_linear_of_ones_own_is_used(dtype: torch.dtype) -> None:
    """Its result may be anything that torch can read: the kernels can't, so the plain forward runs."""
    lm, other = random_model(dtype=dtype), random_model(dtype=dtype)
    forward_of(lm)
    other.decoder.replace_linears(lambda plain: lambda x: (plain.weight @ x.T).T)  # not in one piece
    requests = [Request(prompt_ids=[1, 2, 3, 4], max_new_tokens=12, ignore_eos=True)]
    plain, own = (ContinuousEngine(m, num_blocks=8).run(requests).outputs[0].token_ids for m in (lm, other))
    assert own == plain


def test_norm_weights_may_be_replaced() -> None:
    lm = random_model()
    requests = [Request(prompt_ids=[1, 2, 3, 4], max_new_tokens=12, ignore_eos=True)]
    engine = ContinuousEngine(lm, num_blocks=8)
    engine.run(requests)
    for layer in lm.decoder.layers:
        layer.attn_norm.weight = torch.linspace(-2, 2, 32)
    changed = engine.run(requests).outputs[0].token_ids
    engine.backend.forward = lm.decoder.forward
    assert changed == engine.run(requests).outputs[0].token_ids


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_scale_and_many_rows(dtype: torch.dtype) -> None:
    """A model whose RoPE has a scale, a prompt longer than any block of the kernels, wide heads, odd inner size."""
    outs = {}
    for kind in dict.fromkeys((torch.float32, dtype)):
        lm = random_model(hidden=96, heads=6, kv_heads=2, head_dim=64, intermediate=104, dtype=kind)
        lm.decoder.rope.scale = 1.25
        batch = long_batch(lm.config.vocab_size)
        for name, forward in (("plain", lm.decoder.forward), ("fast", forward_of(lm))):
            backend = NativeBackend(lm)
            backend.forward = forward
            backend.start(40, BLOCK * 4, 0)
            outs[name, kind] = backend.logits_for(batch).float()
    exact = outs["plain", torch.float32]
    torch.testing.assert_close(outs["fast", torch.float32], exact, rtol=1e-3, atol=2e-3)
    plain, fast = (outs[name, dtype] - exact for name in ("plain", "fast"))
    assert fast.pow(2).mean() < 2 * plain.pow(2).mean() + 1e-6


def long_batch(vocab: int) -> ForwardBatch:
    """A short prompt before a long one, and one with padding behind."""
    rng, counts, pads = np.random.default_rng(5), [3, 150, 70], [0, 0, 9]
    tables = rng.permutation(3 * 10).astype(np.int32).reshape(3, 10)
    seqs = [
        Sequence(i, Request(prompt_ids=[1]), rng.integers(0, vocab, c).tolist(), c, 0.0, slot=i)
        for i, c in enumerate(counts)
    ]
    return ForwardBatch(seqs, [0, 0, 0], counts, pads, 0, [0, 1, 2], tables, BLOCK * 4)


@pytest.mark.parametrize(
    "value, plain", [("1", True), ("yes", True), ("0", False), ("", False), ("false", False), ("Off", False)]
)
def test_which_forward_runs_is_said(value: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = random_model()
    forward_of(lm)
    monkeypatch.setenv("MINIRT_PLAIN", value)
    said = NativeBackend(lm).describe()["forward"]
    assert said == ("plain (MINIRT_PLAIN asks for it)" if plain else "CPU kernels")
