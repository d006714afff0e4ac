"""On a GPU: decode eager against CUDA graphs, with the share of memory bandwidth that it reaches; static against continuous.

    python benchmarks/gpu.py [--model …] [--context 512] [--bandwidth 4.8e12] [--json]

Decode steps of 1 to 256 rows at one context length: milliseconds by the plain forward, by the Triton kernel without
graphs, and by graphs; and (weights + KV read) / time / bandwidth for the last. Then the same requests under the static
and the continuous policy.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import minirt
from minirt.backends.base import BatchDecodeInput
from minirt.backends.native import NativeBackend
from minirt.model.cuda_graphs import GraphForward
from minirt.presets import ModelShape
from minirt.request import Sequence
from minirt.workloads import lognormal, make_requests, uniform


def decode_batch(rows: int, context: int, block: int = 16) -> BatchDecodeInput:
    """`rows` decode rows that each see `context` tokens, their blocks scattered over the pool."""
    width = -(-context // block)
    tables = np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(rows, width)
    one = minirt.Request(prompt_ids=[1], ignore_eos=True)
    seqs = [Sequence(i, one, [5] * context, context, 0.0, slot=i) for i in range(rows)]
    return BatchDecodeInput(seqs, [context - 1] * rows, [1] * rows, [0] * rows, rows, list(range(rows)), tables, block)


def milliseconds(backend: NativeBackend, batch: BatchDecodeInput, repeat: int = 20) -> float:
    """Median of a step, from the batch to the tokens on the host (which waits for the GPU)."""
    times = []
    for _ in range(repeat + 3):
        start = time.perf_counter()
        backend.execute(batch)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--bandwidth", type=float, default=4.8e12, help="bytes a second (default: an H200's 4.8e12)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu.py needs a CUDA device; benchmarks/peers.py measures a CPU.")
    lm = minirt.load_model(args.model, device="cuda")
    shape, backend = ModelShape.of(lm), NativeBackend(lm)
    graphs = backend.forward
    if not isinstance(graphs, GraphForward):
        raise SystemExit("triton is not installed, so there are no graphs to measure.")
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "decode": []}
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        batch = decode_batch(rows, args.context)
        backend.start(rows * -(-args.context // 16), 16, 0)
        row: dict[str, Any] = {"rows": rows}
        for name, forward in (("plain", lm.decoder.forward), ("triton", graphs._eager), ("graphs", graphs)):
            backend.forward = forward
            row[name] = milliseconds(backend, batch)
        moved = shape.weight_bytes + rows * shape.kv_bytes(args.context)
        row["bandwidth_share"] = moved / (row["graphs"] / 1e3) / args.bandwidth
        report["decode"].append(row)
        if not args.json:
            print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    vocab = min(1000, shape.vocab_size)
    requests = make_requests(128, uniform(16, 256), lognormal(64, 0.8, cap=512), seed=0, vocab_size=vocab)
    for policy in ("static", "vllm"):
        engine = minirt.Engine(lm, policy, max_batch_size=64, num_blocks=8192, clock=minirt.WallClock())
        engine.run(requests[:64])
        report[policy] = engine.run(requests).metrics.throughput
        if not args.json:
            print(f"{policy}: {report[policy]:.0f} tokens/s", flush=True)
    if args.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
