"""Does the simulator predict this machine? Calibrate, then simulate and really run a held-out mixed workload.

    python benchmarks/calibration.py [--runs 3] [--requests 24] [--json]

The workload (prompts of 8 to 200 tokens, answers of up to 96, all there at once, so that no idle time flatters the
ratio) is not among the shapes that were measured. Prints simulated / measured seconds a policy; the target is within
15 % of 1. Needs a quiet machine; on a busy one, --cpu-time --threads 1 compares CPU seconds instead, which others'
work disturbs less.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import minirt
from benchmarks.arguments import positive
from minirt.calibrate import calibrate
from minirt.presets import ModelShape
from minirt.workloads import lognormal, make_requests, uniform


class Stopwatch(minirt.WallClock):
    """A WallClock that reads another watch."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.read, self.start = read, read()

    def reset(self) -> None:
        self.start = self.read()

    def now(self) -> float:
        return self.read() - self.start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=positive, default=3, help="calibrations, each with fresh measurements")
    parser.add_argument("--requests", type=positive, default=24)
    parser.add_argument("--slots", type=positive, default=16)
    parser.add_argument("--budget", type=float, default=8.0, help="seconds a calibration")
    parser.add_argument("--policies", default="vllm,static,mini-runtime")
    parser.add_argument("--model", default=None)
    parser.add_argument("--threads", type=positive, default=None)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    if args.threads:
        torch.set_num_threads(args.threads)
    lm = minirt.load_model(args.model)
    now = time.process_time if args.cpu_time else time.perf_counter
    shape = ModelShape.of(lm)
    results = []
    for i in range(args.runs):
        t = time.perf_counter()
        cost = calibrate(lm, max_batch_size=args.slots, budget=args.budget, now=now)
        took = time.perf_counter() - t
        requests = make_requests(
            args.requests, uniform(8, 200), lognormal(24, 0.8, cap=96), seed=i, vocab_size=min(1000, shape.vocab_size)
        )
        options = {"max_batch_size": args.slots, "num_blocks": 512}
        minirt.Engine(lm, "vllm", **options).run(requests)  # the first run in a process takes its memory page by page
        for policy in args.policies.split(","):
            real = minirt.Engine(lm, policy, clock=Stopwatch(now), **options).run(requests)
            simulated = minirt.simulate(policy, requests, model=shape, cost_model=cost, **options)
            row = {
                "run": i,
                "policy": policy,
                "calibration_s": took,
                "steps": len(real.trace),
                "simulated_steps": len(simulated.trace),
                "measured_s": real.metrics.duration,
                "simulated_s": simulated.metrics.duration,
                "ratio": simulated.metrics.duration / real.metrics.duration,
            }
            results.append(row)
            if not args.json:
                print(
                    "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
                    flush=True,
                )
        if not args.json:
            print(cost, flush=True)
    worst = max(abs(r["ratio"] - 1) for r in results)
    if args.json:
        print(json.dumps({"results": results, "worst": worst}))
    else:
        print(f"worst error {worst:.1%} (target 15 %)")


if __name__ == "__main__":
    main()
