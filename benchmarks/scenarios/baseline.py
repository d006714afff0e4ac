"""Static against continuous batching, and both against transformers, on the same requests in the same run.

    python benchmarks/scenarios/baseline.py [--requests 24] [--slots 16] [--json]

Takes the prompts of prompts.py (English, Chinese, code), repeated as often as needed, with answers of very different
length: most are short, a few are long, and the end of sequence is ignored so that everybody computes the same number
of tokens. Measured on the wall clock: minirt's static policy and one of its continuous ones; transformers' `generate`
on static, left-padded batches of the same size, which end with their longest answer; and transformers' own continuous
batching (`generate_batch`, which opens a ContinuousBatchingManager through `init_continuous_batching`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import minirt
from benchmarks.scenarios.peers import load_peer, summary, theirs_continuous, theirs_static
from benchmarks.scenarios.prompts import PROMPTS
from minirt.metrics import compare

LENGTHS = (8, 12, 16, 24, 32, 48, 64, 128)
WEIGHTS = (8, 6, 5, 4, 3, 2, 2, 2)


def workload(lm: Any, n: int, longest: int, seed: int) -> list[minirt.Request]:
    """n requests with prompts as token ids (both engines are given the same ids) and answers of 8 to `longest`."""
    rng = Random(seed)
    order = [rng.sample(range(len(PROMPTS)), len(PROMPTS)) for _ in range(-(-n // len(PROMPTS)))]
    which = [i for block in order for i in block][:n]
    tokens = [min(longest, rng.choices(LENGTHS, WEIGHTS)[0]) for _ in which]
    tokens[rng.randrange(min(4, n))] = longest  # a long one from the start: the case static batching is worst at
    return [
        minirt.Request(prompt_ids=lm.encode(PROMPTS[i][0]), max_new_tokens=t, ignore_eos=True)
        for i, t in zip(which, tokens)
    ]


def ours(lm: Any, policy: str, requests: list[minirt.Request], args: argparse.Namespace) -> dict[str, Any]:
    """One of minirt's policies."""
    engine = minirt.Engine(
        lm, policy, max_batch_size=args.slots, num_blocks=args.blocks, block_size=args.block_size,
        clock=minirt.WallClock(),
    )  # fmt: skip
    run = engine.run(requests, progress=not args.quiet)
    m = run.metrics
    lost = [o.error for o in run.outputs if o.finish_reason != "length"]
    if lost:
        raise SystemExit(f"{policy}: {len(lost)} requests were not served: {lost[0]}")
    return {
        "engine": f"minirt {policy}",
        "seconds": m.duration,
        "tokens": m.tokens,
        "tokens_per_s": m.throughput,
        "decode_steps": m.decode_steps,
        "occupancy": m.occupancy,
        "ttft": summary([r.ttft for r in m.requests if r.ttft is not None]),
        "tpot": summary([r.tpot for r in m.requests if r.tpot is not None]),
        "kv_fragmentation": m.fragmentation,
        "wasted_rows": m.wasted_rows,
        "padding_tokens": m.padding_tokens,
        "answers": [o.token_ids for o in run.outputs],
        "metrics": m,
    }


def agreement(results: list[dict[str, Any]]) -> dict[str, float]:
    """Share of answers that are the first engine's, token for token. Below 1 in bfloat16, where near-ties fall
    either way; in float32 the engines agree."""
    first = results[0]["answers"]
    return {r["engine"]: sum(a == b for a, b in zip(first, r["answers"])) / len(first) for r in results}


def table(results: list[dict[str, Any]], requests: list[minirt.Request]) -> str:
    """What was measured, for people."""

    def ms(x: float | None) -> str:
        return "-" if x is None else f"{1000 * x:.0f}"

    lines = [f"{'':32}{'tokens/s':>9}{'seconds':>9}{'decode_steps':>14}{'occupancy':>11}{'KV frag.':>10}"]
    for r in results:
        steps, occupancy, frag = r.get("decode_steps"), r.get("occupancy"), r.get("kv_fragmentation")
        lines.append(
            f"{r['engine']:32}{r['tokens_per_s']:9.1f}{r['seconds']:9.2f}{steps if steps is not None else '-':>14}"
            f"{'-' if occupancy is None else f'{occupancy:.1%}':>11}{'-' if frag is None else f'{frag:.1%}':>10}"
        )
    for name, what in (("ttft", "TTFT [ms]"), ("tpot", "TPOT [ms]")):
        lines += ["", f"{what:32}" + "".join(f"{k:>9}" for k in ("mean", "p50", "p90", "p99"))]
        lines += [
            f"{r['engine']:32}" + "".join(f"{ms(r[name][k]):>9}" for k in ("mean", "p50", "p90", "p99")) for r in results
        ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=24, help="how many (default 24)")
    parser.add_argument("--slots", type=int, default=16, help="requests at once (default 16)")
    parser.add_argument("--longest", type=int, default=128, help="tokens of the longest answer (default 128)")
    parser.add_argument("--policy", default="vllm", help="minirt's continuous policy (default vllm)")
    parser.add_argument("--model", default=None, help="a hub id, a folder, a .gguf (default SmolLM2-135M-Instruct)")
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default=None, help="default: bfloat16 where it is native, else float32")
    parser.add_argument("--threads", type=int, default=None, help="of torch on a CPU")
    parser.add_argument("--blocks", type=int, default=1024, help="KV blocks (default 1024)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens a KV block (default 16)")
    parser.add_argument("--page-size", type=int, default=32, help="tokens a page of transformers' cache (default 32)")
    parser.add_argument("--budget", type=int, default=2048, help="tokens a step of transformers' batching may compute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peers", action="store_true", help="only minirt")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    for name in ("requests", "slots", "longest", "blocks", "block_size", "page_size", "budget"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        lm = minirt.load_model(args.model, device=args.device, dtype=args.dtype)
        requests = workload(lm, args.requests, args.longest, args.seed)
        ours(lm, args.policy, requests[:2], argparse.Namespace(**{**vars(args), "quiet": True}))  # warm up
        results = [ours(lm, policy, requests, args) for policy in ("static", args.policy)]
    except minirt.MinirtError as e:
        raise SystemExit(f"baseline: {e}") from None
    static, continuous = results[0].pop("metrics"), results[1].pop("metrics")
    if not args.no_peers:
        model = load_peer(lm)
        results += [theirs_static(model, requests, args), theirs_continuous(model, requests, args)]
    speed = compare(static, continuous)
    where = torch.cuda.get_device_name(lm.device) if lm.device.type == "cuda" else platform.machine()
    report = {
        "machine": {
            "device": str(lm.device), "name": where, "cpus": os.cpu_count(), "threads": torch.get_num_threads(),
            "dtype": str(lm.dtype).removeprefix("torch."), "torch": torch.__version__, "model": lm.name,
        },
        "workload": {
            "requests": len(requests), "slots": args.slots, "seed": args.seed,
            "prompt_tokens": sum(len(r.prompt_ids or ()) for r in requests),
            "output_tokens": sum(r.max_new_tokens for r in requests),
            "static_total": static.static_total, "lower_bound": static.lower_bound,
        },
        "speedup": {
            "continuous_over_static": speed.speedup,
            "decode_steps": speed.steps,
            **{
                f"minirt_{args.policy}_over_{r['engine'].replace(' ', '_')}": continuous.throughput / r["tokens_per_s"]
                for r in results[2:]
            },
        },
        "same_answers": agreement(results),
        "results": [{k: v for k, v in r.items() if k != "answers"} for r in results],
    }  # fmt: skip
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    m, w = report["machine"], report["workload"]
    machine = f"{m['device']} ({m['name']}, {m['cpus']} CPUs, {m['threads']} threads)"
    print(f"{m['model']}, {m['dtype']}, {machine}, torch {m['torch']}")
    print(
        f"{w['requests']} requests, {w['prompt_tokens']} prompt tokens, {w['output_tokens']} output tokens, "
        f"{w['slots']} slots; static batches take {w['static_total']} steps, no schedule fewer than {w['lower_bound']}\n"
    )
    print(table(results, requests))
    print()
    for name, value in report["speedup"].items():
        print(f"{name.replace('_', ' '):60}{value:6.2f}x")
    same = ", ".join(f"{k} {v:.0%}" for k, v in list(report["same_answers"].items())[1:])
    print(f"\nanswers equal to minirt static's, token for token: {same}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
