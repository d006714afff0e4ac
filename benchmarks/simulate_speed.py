"""How fast the simulator is: requests with the lengths of the Azure conversation trace, 256 slots, one core.

    python benchmarks/simulate_speed.py [--requests 10000] [--policy vllm] [--csv TRACE.csv] [--profile] [--json]

Lengths come from the trace's published percentiles, or from the trace itself with --csv. Prints seconds and peak
memory; the target is under 60 s and under 1 GB for 10,000 requests.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.arguments import positive
from minirt.simulation import simulate
from minirt.workloads import azure_like, poisson, read_azure_csv


def peak_mb() -> float:
    """Peak resident memory of this process, in MB (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=positive, default=10_000)
    parser.add_argument("--rate", type=float, default=None, help="Poisson arrivals a second (default: all at once)")
    parser.add_argument("--policy", default="vllm")
    parser.add_argument("--slots", type=positive, default=256)
    parser.add_argument("--hardware", default="A100-80GB")
    parser.add_argument("--model", default="Qwen2.5-0.5B")
    parser.add_argument("--csv", default=None, help="a file in the Azure trace's format, for its real lengths")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    t0 = time.perf_counter()
    if args.csv:
        requests = read_azure_csv(args.csv, args.requests, time_scale=1.0 if args.rate else 0.0)
    else:
        requests = azure_like(args.requests, "conv", poisson(args.rate) if args.rate else None)
    made = time.perf_counter()
    profiler = cProfile.Profile() if args.profile else None
    if profiler:
        profiler.enable()
    run = simulate(args.policy, requests, args.hardware, args.model, max_batch_size=args.slots)
    ran = time.perf_counter()
    metrics = run.metrics
    done = time.perf_counter()
    if profiler:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    result = {
        "policy": args.policy,
        "requests": len(requests),
        "tokens": metrics.tokens,
        "steps": len(run.trace),
        "make_requests_s": made - t0,
        "simulate_s": ran - made,
        "metrics_s": done - ran,
        "peak_mb": peak_mb(),
        "virtual_s": metrics.duration,
    }
    if args.json:
        print(json.dumps(result))
        return
    print(metrics)
    print(f"\nLittle's law off by {metrics.littles_law.error:.1e}")
    print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
