"""The Triton kernel under Triton's interpreter, on the CPU, against the torch path.

Runs where the package triton is installed, in a process of its own: the interpreter is chosen when triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch
from minirt.model.attention import AttentionMeta, PagedKV, paged_attention
from minirt.model.loading import random_model
from minirt.model.triton_attention import decode, triton_attention

worst = 0.0
for heads, kv_heads, dim, block, dtype in [
    (4, 2, 8, 4, torch.float32), (9, 3, 64, 16, torch.float32), (6, 1, 24, 3, torch.float32),
    (2, 2, 16, 1, torch.float32), (9, 3, 64, 16, torch.bfloat16),
]:
    generator = torch.Generator().manual_seed(heads)
    config = random_model(hidden=heads * dim, heads=heads, kv_heads=kv_heads, layers=1).config
    kv = PagedKV(config, 40, block, torch.device("cpu"), dtype)
    kv.data.copy_(torch.randn(kv.data.shape, generator=generator))
    lens = torch.tensor([1, block, block + 1, 4 * block, 2 * block + 1], dtype=torch.int32)
    tables = torch.randperm(40, generator=generator)[:20].view(5, 4).int()
    q = torch.randn(5, heads, dim, generator=generator).to(dtype)
    meta = AttentionMeta(torch.zeros(5, dtype=torch.int64), False, block, 5, tables, lens, int(lens.max()), [])
    want = paged_attention(q, q[:, :kv_heads], q[:, :kv_heads], kv, 0, meta).float()
    got = triton_attention(q, q[:, :kv_heads], q[:, :kv_heads], kv, 0, meta).float()
    limit = 2e-6 if dtype == torch.float32 else 2e-2
    error = (want - got).abs().max().item()
    print(heads, kv_heads, dim, block, dtype, error)
    assert error < limit, error
padding = decode(q, kv.keys[0], kv.values[0], tables, torch.zeros(5, dtype=torch.int32))
assert not padding.any() and not padding.isnan().any()
print("same numbers")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
def test_kernel_in_the_interpreter() -> None:
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "same numbers" in done.stdout
