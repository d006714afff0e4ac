"""Does a request's answer depend on who else is in the batch? The share of greedy tokens that differ from running alone.

    python benchmarks/invariance.py [--requests 24] [--tokens 48] [--slots 16] [--dtype bfloat16] [--json]

Each prompt of scenarios/prompts.py is answered alone, then all together by continuous batching. In exact arithmetic the
answers are the same. In bfloat16 a sum that is split differently for another batch size rounds differently, and where
two tokens are almost equally likely the other one may win; what follows then differs as well. So there are two numbers:
answers that differ anywhere, and, counting only up to the first difference, how often a token differed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import minirt
from benchmarks.arguments import positive
from benchmarks.scenarios.prompts import PROMPTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=positive, default=24)
    parser.add_argument("--tokens", type=positive, default=48)
    parser.add_argument("--slots", type=positive, default=16)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default=None)
    parser.add_argument("--threads", type=positive, default=None)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    lm = minirt.load_model(device=args.device, dtype=args.dtype)
    prompts = [PROMPTS[i % len(PROMPTS)][0] for i in range(args.requests)]
    requests = [minirt.Request(prompt=p, max_new_tokens=args.tokens, ignore_eos=True) for p in prompts]
    engine = minirt.ContinuousEngine(lm, max_batch_size=args.slots, num_blocks=1024)
    alone = [engine.run([r]).outputs[0].token_ids for r in requests]
    together = [o.token_ids for o in engine.run(requests).outputs]
    same = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(x)) for x, y in zip(alone, together)]
    answers = sum(n < args.tokens for n in same)
    compared = sum(min(n + 1, args.tokens) for n in same)  # up to and with the first difference
    differ = sum(a != b for x, y in zip(alone, together) for a, b in zip(x, y))
    total = args.tokens * len(requests)
    report = {
        "dtype": args.dtype, "requests": len(requests), "tokens": total, "slots": args.slots,
        "answers_that_differ": answers / len(requests), "first_differences_per_token": answers / compared,
        "tokens_that_differ": differ / total,
    }  # fmt: skip
    if args.json:
        print(json.dumps(report))
        return
    print(
        f"{lm.name}, {args.dtype}: of {len(requests)} answers of {args.tokens} tokens, {answers} differ from running alone; "
        f"{answers} first differences in {compared} tokens that follow the same text ({answers / compared:.2%}); "
        f"{differ / total:.1%} of all tokens differ, those after a difference included."
    )


if __name__ == "__main__":
    main()
