"""The CPU kernels one by one, and how they are built, kept and done without."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from minirt.backends.native import NativeBackend
from minirt.model import attention, cpu_kernels, fast_cpu
from minirt.model.decoder import Linear, RMSNorm
from minirt.model.loading import LanguageModel, random_model
from minirt.model.sampling import greedy

DTYPES = [torch.float32, torch.bfloat16]
BLOCK = 4


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """torch's number of threads, put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def wide_model(dtype: torch.dtype, head_dim: int = 64) -> LanguageModel:
    """Heads of the size that fast_cpu_avx512.c is written for; three query heads a key head."""
    return random_model(hidden=96, heads=6, kv_heads=2, head_dim=head_dim, layers=3, dtype=dtype)


def forward_of(lm: LanguageModel) -> fast_cpu.CpuForward:
    forward = fast_cpu.fast_forward(lm.decoder)
    if forward is None:
        pytest.skip(fast_cpu.why_plain(lm.decoder))
    return forward


def library(dtype: torch.dtype = torch.bfloat16) -> ctypes.CDLL:
    return forward_of(wide_model(dtype)).lib


def step_of(
    forward: fast_cpu.CpuForward, qkv: torch.Tensor, out: torch.Tensor, kv: attention.PagedKV, meta: Any, active: Any = None
) -> cpu_kernels.Step:
    """A Step for one kernel alone, with a RoPE that turns nothing; what it points to is kept by the caller or here."""
    half = forward.decoder.config.head_dim // 2
    still = torch.ones(len(qkv), half), torch.zeros(len(qkv), half)
    KEPT.extend(still)
    return forward._step(qkv, out, out, qkv if active is None else active, *still, kv, meta)


KEPT: list[torch.Tensor] = []


def no_rows(count: int, prefill: list[attention.PrefillRow] | None = None) -> attention.AttentionMeta:
    """`count` positions that are stored nowhere, none of them decoding."""
    empty = torch.empty(0, dtype=torch.int32)
    return attention.AttentionMeta(
        torch.full((count,), -1), True, BLOCK, 0, empty.view(0, 0), empty, 0, prefill or []
    )


def random_kv(
    config: Any, blocks: int, dtype: torch.dtype, generator: torch.Generator, size: float = 1.0
) -> attention.PagedKV:
    """Random keys, `size` times as large as the values."""
    kv = attention.PagedKV(config, blocks, BLOCK, torch.device("cpu"), dtype)
    kv.data.copy_(torch.randn(kv.data.shape, generator=generator))
    kv.data[0] *= size
    return kv


def poison(kv: attention.PagedKV, tables: torch.Tensor, lens: torch.Tensor) -> None:
    """NaN wherever no row has a token: whoever reads there shows it."""
    used = torch.zeros(kv.data.shape[2] * BLOCK, dtype=torch.bool)
    for table, n in zip(tables.long(), lens.tolist()):
        at = torch.arange(n)
        used[table[at // BLOCK] * BLOCK + at % BLOCK] = True
    kv.data.flatten(2, 3)[:, :, ~used] = torch.nan


def floats(kv: attention.PagedKV) -> attention.PagedKV:
    """A copy in float32."""
    copy = object.__new__(attention.PagedKV)
    copy.block_size, copy.data = kv.block_size, kv.data.float()
    copy.keys, copy.values = list(copy.data[0].unbind(0)), list(copy.data[1].unbind(0))
    return copy


@pytest.mark.parametrize("size", [1.0, 300.0], ids=["small scores", "scores of thousands"])
@pytest.mark.parametrize("start, count", [(0, 1), (0, 47), (0, 49), (0, 200), (63, 2), (64, 64), (65, 130), (150, 7)])
def test_prompts_against_plain_attention(start: int, count: int, size: float, threads: int) -> None:
    """Every length around the kernel's block sizes (48 queries, 64 keys), behind a shorter prompt in the same forward."""
    forward = forward_of(wide_model(torch.bfloat16))
    if not forward.prefills:
        pytest.skip("no AVX512-BF16 here")
    c, context = forward.decoder.config, start + count
    generator = torch.Generator().manual_seed(context)
    kv = random_kv(c, 62, torch.bfloat16, generator, size)
    qkv = torch.randn(3 + count + 2, c.num_heads + 2 * c.num_kv_heads, c.head_dim, generator=generator).bfloat16()
    blocks = torch.randperm(62, generator=generator).to(torch.int32)
    short, long = blocks[:1], blocks[1 : 1 + -(-context // BLOCK)]
    rows = [
        attention.PrefillRow(0, 3, 3, 0, short, BLOCK, qkv.device),
        attention.PrefillRow(3, 3 + count + 2, context, start, long, BLOCK, qkv.device),
    ]
    expected = [one_prompt(floats(kv), table, qkv[i : i + n, : c.num_heads], at) for table, i, n, at in
                ((short, 0, 3, 0), (long, 3, count, start))]  # fmt: skip
    width = torch.full((2, len(long)), 0, dtype=torch.int32)
    width[0, 0], width[1] = short[0], long
    poison(kv, width, torch.tensor([3, context]))
    out = torch.full((len(qkv), c.q_size), torch.nan, dtype=torch.bfloat16)
    meta = no_rows(len(qkv), rows)
    forward._attend_prompts(step_of(forward, qkv, out, kv, meta), qkv.flatten(1), kv, 0, meta, out)
    torch.testing.assert_close(out[:-2].float(), torch.cat(expected).flatten(1), rtol=0.02, atol=0.02)
    assert not out[-2:].any()  # the padding behind the second prompt


def one_prompt(kv: attention.PagedKV, table: torch.Tensor, q: torch.Tensor, start: int) -> torch.Tensor:
    """Plain attention of one row's queries, the first at position `start`."""
    context = start + len(q)
    k, v = (x[table.long()].flatten(0, 1)[:context] for x in (kv.keys[0], kv.values[0]))
    mask = torch.arange(context) <= torch.arange(start, context)[:, None]
    return attention._row(q.float(), k, v, mask, start)


@pytest.mark.parametrize("size", [1.0, 300.0], ids=["small scores", "scores of thousands"])
@pytest.mark.parametrize("context", [1, 15, 16, 17, 32, 33, 100])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_against_plain_attention(dtype: torch.dtype, rows: int, context: int, size: float, threads: int) -> None:
    """Contexts around the kernel's tile of 16 tokens; few rows (shared out by heads) and more."""
    lm = wide_model(dtype)
    forward, c = forward_of(lm), lm.config
    generator = torch.Generator().manual_seed(context)
    width = -(-context // BLOCK)
    kv = random_kv(c, rows * width, dtype, generator, size)
    lens = torch.randint(1, context + 1, (rows,), generator=generator, dtype=torch.int32)
    lens[0] = context
    tables = torch.randperm(rows * width, generator=generator).to(torch.int32).view(rows, width)
    meta = attention.AttentionMeta(torch.full((rows,), -1), True, BLOCK, rows, tables, lens, context, [])
    qkv = torch.randn(rows, c.q_size + 2 * c.kv_size, generator=generator).to(dtype)
    out = torch.full((rows, c.q_size), torch.nan, dtype=dtype)
    heads = qkv[:, : c.q_size].view(rows, c.num_heads, c.head_dim)
    expected = attention._decode(heads.float(), floats(kv), 1, meta).flatten(1)
    poison(kv, tables, lens)
    forward.lib.attend(step_of(forward, qkv, out, kv, meta), qkv.data_ptr(), 1)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(out.float(), expected, **close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_in_a_key_is_seen(dtype: torch.dtype) -> None:
    lm = wide_model(dtype)
    forward, c = forward_of(lm), lm.config
    kv = random_kv(c, 5, dtype, torch.Generator().manual_seed(0))
    kv.keys[0][1, 2, 0, 5] = torch.nan  # token 6, key head 0
    tables, lens = torch.arange(5, dtype=torch.int32).view(1, 5), torch.tensor([20], dtype=torch.int32)
    meta = attention.AttentionMeta(torch.tensor([-1]), True, BLOCK, 1, tables, lens, 20, [])
    qkv, out = torch.ones(1, c.q_size + 2 * c.kv_size, dtype=dtype), torch.zeros(1, c.q_size, dtype=dtype)
    forward.lib.attend(step_of(forward, qkv, out, kv, meta), qkv.data_ptr(), 0)
    assert out[0].isnan().sum() == c.q_size // c.num_kv_heads


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_silu_alone(dtype: torch.dtype, threads: int) -> None:
    """A large eps, small numbers, an inner size that fills no register, and nothing written behind the last row."""
    lm = random_model(hidden=96, heads=6, kv_heads=2, head_dim=64, intermediate=104, dtype=dtype)
    forward = forward_of(lm)
    generator = torch.Generator().manual_seed(0)
    rows, c = 70, lm.config
    x, delta, weight = (torch.randn(n, 96, generator=generator).mul(0.01).to(dtype) for n in (rows, rows, 1))
    normed, active = torch.zeros(rows, 96, dtype=dtype), torch.full((rows + 1, 104), 7.0, dtype=dtype)
    gate_up = torch.randn(rows, 208, generator=generator).mul(4).to(dtype)
    gate_up[0, :4] = torch.tensor([200.0, -200.0, 0.0, -30.0])
    kv = attention.PagedKV(c, 1, BLOCK, torch.device("cpu"), dtype)
    step = step_of(forward, x, normed, kv, no_rows(rows), active)
    step.eps = 0.3
    summed = x + delta
    forward.lib.add_rms_norm(step, delta.data_ptr(), weight.data_ptr())
    forward.lib.silu_mul(step, gate_up.data_ptr())
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.01}
    torch.testing.assert_close(x, summed, **close)
    torch.testing.assert_close(normed, RMSNorm(weight[0], 0.3)(summed), **close)
    gate, up = gate_up.chunk(2, dim=1)
    torch.testing.assert_close(active[:rows], F.silu(gate) * up, **close)
    assert (active[rows] == 7.0).all()


def test_greedy_is_the_first_largest(threads: int) -> None:
    forward = forward_of(random_model(dtype=torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(130, 3000, generator=generator).bfloat16()
    logits[2] = 1.0  # all equal: the first
    logits[3, [1023, 1024, 2999]] = 50.0  # a tie across the parts in which the kernel reads
    logits[4, 2999] = torch.inf
    logits[5] = 0.0
    logits[5, :7] = -0.0  # equal to 0: the first of all
    logits[6, [40, 50]] = torch.nan
    logits[7, 9] = -torch.tensor(torch.nan)
    for signs in (logits, -logits.abs()):
        assert forward.greedy(signs).tolist() == signs.float().argmax(-1).tolist()
    assert forward.greedy(logits[:, ::2]).tolist() == greedy(logits[:, ::2]).tolist()
    assert forward.greedy(logits[:0]).tolist() == []


# -- products of a few rows ---------------------------------------------------------------------
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 16, 96, 97])
def test_few_rows_against_onednn(rows: int, threads: int) -> None:
    """The kernel for a few rows reads oneDNN's packed weights: same numbers, up to its limit of rows and behind it."""
    few_rows = getattr(library(), "few_rows", None)
    if few_rows is None or not fast_cpu.can_pack(torch.bfloat16):
        pytest.skip("no AVX512-BF16 here")
    generator = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(192, 896, generator=generator).bfloat16(), torch.randn(192, generator=generator).bfloat16()
    x = torch.randn(rows, 896, generator=generator).bfloat16()  # 448 pairs: the kernel takes 96 at a time
    for plain in (Linear(weight), Linear(weight, bias)):
        linear = fast_cpu.PackedLinear(plain, few_rows)
        assert linear.few_rows is not None, "this oneDNN packs otherwise than the kernel reads"
        torch.testing.assert_close(linear(x), linear.by_onednn(x), rtol=0.01, atol=0.05)
        every_second = torch.empty(rows, 1792).bfloat16()[:, ::2].copy_(x)  # not in one piece
        torch.testing.assert_close(linear(every_second), linear.by_onednn(x), rtol=0.01, atol=0.05)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    few_rows = getattr(library(), "few_rows", None)
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


def test_what_the_kernel_cannot_read_goes_to_onednn() -> None:
    """Another dtype or width is refused there, more dimensions are multiplied; nothing is read past its end."""
    few_rows = getattr(library(), "few_rows", None)
    if few_rows is None or not fast_cpu.can_pack(torch.bfloat16):
        pytest.skip("no AVX512-BF16 here")
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    linear = fast_cpu.PackedLinear(Linear(weight), few_rows)
    for wrong in (torch.ones(4, 64), torch.ones(4, 64, dtype=torch.float64), torch.ones(4, 32).bfloat16()):
        with pytest.raises(RuntimeError):
            linear(wrong)
    x = torch.randn(2, 3, 64).bfloat16()
    torch.testing.assert_close(linear(x), F.linear(x, weight), rtol=0.01, atol=0.1)


# -- building -----------------------------------------------------------------------------------
@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, and nothing remembered of what was built before."""
    forward_of(random_model())
    monkeypatch.setenv("MINIRT_CACHE", str(tmp_path))
    cpu_kernels.kernels.cache_clear()
    yield tmp_path
    cpu_kernels.kernels.cache_clear()


def plain_because() -> str:
    """What describe() says of a model that can't have the fast forward."""
    assert fast_cpu.fast_forward(random_model().decoder) is None
    backend = NativeBackend(lm := random_model())
    assert backend.forward == lm.decoder.forward
    return str(backend.describe()["forward"])


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels.shutil, "which", lambda name: None)
    assert plain_because() == "plain (there is no C compiler (cc, gcc or clang))"


@pytest.mark.parametrize(
    "compiler, why", [("false", "false failed: exit status 1"), ("true", "could not be built with true")]
)
def test_a_compiler_that_fails(compiler: str, why: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    assert why in plain_because()
    assert not list(fresh.glob("kernels/*"))


def test_no_room_to_write(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("MINIRT_CACHE", str(fresh / "file"))
    assert "could not be built" in plain_because()


@pytest.mark.parametrize("left", [0, 20, 4096, -32, -1])
def test_a_library_that_was_cut_short_is_built_again(left: int, fresh: Path) -> None:
    """Loading such a file would kill the process, so it is looked at first; in a process of its own, to be sure."""
    program = "from minirt.model.cpu_kernels import kernels; import torch; print(bool(kernels(torch.float32, 8, 2).library))"
    call = {"env": {**os.environ, "MINIRT_CACHE": str(fresh)}, "capture_output": True, "text": True, "check": True}
    root = str(Path(__file__).resolve().parents[2])
    assert subprocess.run([sys.executable, "-c", program], cwd=root, **call).stdout == "True\n"  # type: ignore[call-overload]
    (built,) = fresh.glob("kernels/*.so")
    whole = built.read_bytes()
    built.write_bytes(whole[:left])
    assert subprocess.run([sys.executable, "-c", program], cwd=root, **call).stdout == "True\n"  # type: ignore[call-overload]
    assert len(built.read_bytes()) == len(whole) and [p.name for p in fresh.glob("kernels/*")] == [built.name]


def test_another_processor_or_source_gets_a_library_of_its_own(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cpu_kernels._built("cc", [*cpu_kernels.FLAGS, *cpu_kernels.SIZES_AS_FLAGS, "-DHEAD_DIM=8", "-DGROUP=2"])
    monkeypatch.setattr(cpu_kernels, "_cpu", lambda: "flags: another processor")
    second = cpu_kernels._built("cc", [*cpu_kernels.FLAGS, *cpu_kernels.SIZES_AS_FLAGS, "-DHEAD_DIM=8", "-DGROUP=2"])
    assert first != second and first.exists() and second.exists()
