"""The five policies on one workload, with real weights and simulated, in one table.

    python benchmarks/scenarios/policies.py [--requests 24] [--slots 16] [--blocks 256] [--simulate this] [--json]

The prompts of prompts.py, all there at once, with answers of very different length and no end of sequence before
them. The pool is small on purpose, so that how a policy uses memory decides how many requests run side by side; Orca
stands in the table twice, reserving the longest the engine serves, and just what each request asks for. The simulated
runs take the same decisions (that is checked, step by step) and cost what the model of a machine says: of this one,
measured for some seconds (--simulate this), or of a preset such as H100.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import minirt
from benchmarks.scenarios.baseline import workload
from minirt.presets import ModelShape
from minirt.roofline import CostModel, calibrate
from minirt.run import Run

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {}),
    "orca max": ("orca", {"variant": "max"}),
    "orca oracle": ("orca", {"variant": "oracle"}),
    "tgi": ("tgi", {}),
    "mini-runtime": ("mini-runtime", {}),
    "vllm": ("vllm", {}),
}
COLUMNS = {  # heading -> (key, format)
    "tokens/s": ("tokens_per_s", "{:.1f}"),
    "simulated": ("simulated_tokens_per_s", "{:.1f}"),
    "steps": ("decode_steps", "{}"),
    "served": ("served", "{}"),
    "occupancy": ("occupancy", "{:.1%}"),
    "KV valid": ("kv_valid", "{:.1%}"),
    "TTFT mean": ("ttft_mean", "{:.2f} s"),
    "TPOT mean": ("tpot_mean", "{:.0f} ms"),
    "ITL max": ("itl_max", "{:.0f} ms"),
    "wasted": ("wasted", "{}"),
    "preempted": ("preempted", "{}"),
}


def decisions(run: Run) -> list[Any]:
    """What was decided in each step: rows, blocks and who came and went. The same for real and simulated runs."""
    return [
        (s.prefill, s.decode, s.wasted, s.allocated, s.freed, [(e.kind, e.id) for e in s.events if e.kind != "arrived"])
        for s in run.trace
    ]


def row(name: str, real: Run, simulated: Run) -> dict[str, Any]:
    """One line of the table."""
    m, s = real.metrics, simulated.metrics
    return {
        "policy": name,
        "tokens_per_s": m.throughput,
        "simulated_tokens_per_s": s.throughput,
        "seconds": m.duration,
        "simulated_seconds": s.duration,
        "tokens": m.tokens,
        "decode_steps": m.decode_steps,
        "served": m.completed,
        "occupancy": m.occupancy,
        "kv_valid": m.kv.valid,
        "kv": m.kv._asdict(),
        "ttft_mean": m.ttft.mean,
        "tpot_mean": 1000 * m.tpot.mean,
        "itl_max": 1000 * m.itl.max,
        "wasted": m.wasted_rows + m.padding_tokens,
        "preempted": sum(m.preemptions.values()),
        "same_decisions": decisions(real) == decisions(simulated),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    lines = [f"{'':14}" + "".join(f"{h:>11}" for h in COLUMNS)]
    for r in rows:
        lines.append(f"{r['policy']:14}" + "".join(f"{f.format(r[k]):>11}" for k, f in COLUMNS.values()))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return 0; 1 if a simulated run did not take the real one's decisions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=24, help="how many (default 24)")
    parser.add_argument("--slots", type=int, default=16, help="requests at once (default 16)")
    parser.add_argument("--longest", type=int, default=64, help="tokens of the longest answer (default 64)")
    parser.add_argument("--blocks", type=int, default=256, help="KV blocks (default 256)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a KV block (default 16)")
    parser.add_argument("--max-model-len", type=int, default=1024, help="longest request; what Orca max reserves (1024)")
    parser.add_argument("--simulate", default="this", help="hardware: this (measured first), or a preset's name")
    parser.add_argument("--model", default=None, help="a hub id, a folder, a .gguf (default SmolLM2-135M-Instruct)")
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default=None, help="default: bfloat16 where it is native, else float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    for name in ("requests", "slots", "longest", "blocks", "block_size", "max_model_len"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        lm = minirt.load_model(args.model, device=args.device, dtype=args.dtype)
        requests = workload(lm, args.requests, args.longest, args.seed)
        sizes = {"max_batch_size": args.slots, "num_blocks": args.blocks, "block_size": args.block_size,
                 "max_model_len": args.max_model_len}  # fmt: skip
        shape = ModelShape.of(lm)
        if args.simulate == "this":
            cost = calibrate(lm, max_batch_size=args.slots, budget=5.0)
        else:
            cost = CostModel.of(args.simulate, shape)
        rows = []
        minirt.Engine(lm, **sizes).run(requests[:2])  # warm up
        for name, (policy, options) in ROWS.items():
            real = minirt.Engine(lm, policy, clock=minirt.WallClock(), **sizes, **options).run(
                requests, progress=not args.quiet
            )
            rows.append(row(name, real, minirt.simulate(policy, requests, model=shape, cost_model=cost, **sizes, **options)))
    except minirt.MinirtError as e:
        raise SystemExit(f"policies: {e}") from None
    wrong = [r["policy"] for r in rows if not r["same_decisions"]]
    if args.json:
        report = {"model": lm.name, "device": str(lm.device), "dtype": str(lm.dtype), "machine": platform.platform(),
                  "simulated": cost.source, "workload": {"requests": args.requests, "longest": args.longest, **sizes},
                  "results": rows}  # fmt: skip
        print(json.dumps(report, indent=1))
    else:
        print(f"{lm.name}, {str(lm.dtype)[6:]}, {lm.device}: {args.requests} requests, {args.slots} slots, "
              f"{args.blocks} blocks of {args.block_size}. Simulated: {cost.source}.\n")  # fmt: skip
        print(table(rows))
        print("\nThe simulated runs took the same decisions, step by step." if not wrong else f"\nDIFFERENT: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
