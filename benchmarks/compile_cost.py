"""What torch.compile would cost and give: seconds until the first token, and a decode step's time afterwards.

    python benchmarks/compile_cost.py [--rows 16] [--context 64] [--rounds 9] [--json]

Three ways to run the same forward in one process, timed in turn: the plain decoder, the plain decoder under
torch.compile (dynamic=True, so that another batch size compiles nothing anew), and minirt's fast path. A compiled
forward is paid for at its first call of each kind; `second size` is the first call at another number of rows.
The compiler's cache on disk is put in a fresh folder, as on a learner's machine the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from step_cost import BLOCK, decode_batch

import minirt
from benchmarks.arguments import positive
from minirt.backends.base import BatchDecodeInput
from minirt.backends.native import NativeBackend


def backend(plain: bool) -> NativeBackend:
    """A backend with its own model: with the weights as they are, or packed for the fast path."""
    os.environ["MINIRT_PLAIN"] = "1" if plain else "0"
    return NativeBackend(minirt.load_model(device="cpu", dtype="bfloat16"))


def seconds(way: NativeBackend, batch: BatchDecodeInput) -> float:
    """How long one step takes."""
    start = time.perf_counter()
    way.execute(batch)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=16)
    parser.add_argument("--context", type=positive, default=64)
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    batch, other = decode_batch(args.rows, args.context), decode_batch(args.rows // 2 + 1, args.context)
    ways = {"plain": backend(True), "compiled": backend(True), "fast": backend(False)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        ways["compiled"].forward = torch.compile(ways["compiled"].lm.decoder.forward, dynamic=True)
        report: dict[str, dict[str, float]] = {}
        for name, way in ways.items():
            way.start(args.rows * -(-args.context // BLOCK) + 32, BLOCK, 0)
            first, second = seconds(way, batch), seconds(way, other)
            report[name] = {"first call s": first, "second size s": second}
        steps: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                steps[name].append(seconds(way, batch))
    for name, times in steps.items():
        report[name]["step ms"] = 1e3 * median(times)
    if args.json:
        print(json.dumps({"rows": args.rows, "context": args.context, "torch": torch.__version__, "ways": report}))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rows} rows, context {args.context}\n")
    print("| way | first call s | another size s | step ms |\n|---|---|---|---|")
    for name, r in report.items():
        print(f"| {name} | {r['first call s']:.1f} | {r['second size s']:.1f} | {r['step ms']:.1f} |")


if __name__ == "__main__":
    main()
