"""On a CUDA device: the kernel's numbers, graphs against eager, and the engine's answers. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from minirt import ContinuousEngine, Request
from minirt.backends.native import NativeBackend
from minirt.model.attention import AttentionMeta, PagedKV, paged_attention
from minirt.model.cuda_graphs import GraphForward
from minirt.model.loading import load_model, random_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(
    "heads, kv_heads, dim, block", [(9, 3, 64, 16), (14, 2, 64, 16), (32, 8, 128, 16), (4, 2, 8, 4)]
)
def test_triton_kernel(heads: int, kv_heads: int, dim: int, block: int, dtype: torch.dtype, limit: float) -> None:
    from minirt.model.triton_attention import triton_attention

    device, generator = torch.device("cuda"), torch.Generator().manual_seed(0)
    config = random_model(hidden=heads * dim, heads=heads, kv_heads=kv_heads, layers=1).config
    kv = PagedKV(config, 400, block, device, dtype)
    kv.data.copy_(torch.randn(kv.data.shape, generator=generator))
    lens = torch.tensor([1, block, block + 1, 40 * block, 17], dtype=torch.int32, device=device)
    tables = torch.randperm(400, generator=generator)[:200].view(5, 40).int().to(device)
    q = torch.randn(5, heads, dim, generator=generator).to(device, dtype)
    places = torch.zeros(5, dtype=torch.int64, device=device)
    meta = AttentionMeta(places, False, block, 5, tables, lens, 40 * block, [])
    want = paged_attention(q, q, q, kv, 0, meta).float()
    got = triton_attention(q, q, q, kv, 0, meta).float()
    assert (want - got).abs().max().item() < limit


def answers(lm: object, backend: NativeBackend, policy: str, requests: list[Request]) -> list[list[int]]:
    engine = ContinuousEngine(backend, policy, max_batch_size=11, num_blocks=600)
    return [o.token_ids for o in engine.run(requests).outputs]


@pytest.mark.parametrize("policy", ["vllm", "static", "mini-runtime"])
def test_graphs_give_the_eager_answers(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, through buckets of 1 to 16; again after a new pool, whose graphs are new."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    lm = load_model(device="cuda", dtype="float32")
    requests = [Request(prompt_ids=list(range(300, 310 + 3 * i)), max_new_tokens=5 + 4 * i) for i in range(14)]
    graphed, eager = NativeBackend(lm), NativeBackend(lm)
    assert isinstance(graphed.forward, GraphForward), "triton is not installed"
    eager.forward = lm.decoder.forward
    want = answers(lm, eager, policy, requests)
    assert answers(lm, graphed, policy, requests) == want
    assert answers(lm, graphed, policy, requests) == want
    assert graphed.forward._graphs


def test_the_gpu_agrees_with_the_cpu() -> None:
    requests = [Request(prompt="What is a queue?", max_new_tokens=24), Request(prompt="数到十", max_new_tokens=24)]
    both = []
    for device in ("cpu", "cuda"):
        lm = load_model(device=device, dtype="float32")
        both.append(answers(lm, NativeBackend(lm), "vllm", requests))
    assert both[0] == both[1]


def test_one_copy_from_device_to_host_a_step() -> None:
    """Counted by torch's profiler over decode steps: nothing but the chosen tokens comes back."""
    from torch.profiler import ProfilerActivity, profile

    lm = load_model(device="cuda")
    engine = ContinuousEngine(lm, max_batch_size=8, num_blocks=200)
    for i in range(8):
        engine.add(Request(prompt_ids=[300 + i, 301], max_new_tokens=40, ignore_eos=True))
    for _ in range(5):
        engine.step()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        for _ in range(10):
            engine.step()
    copies = sum(e.count for e in p.key_averages() if "Memcpy DtoH" in e.key)
    assert copies == 10
