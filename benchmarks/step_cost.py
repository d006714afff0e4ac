"""Where the time of a decode step goes, by part, for 1 to 64 rows: a table and a picture.

    python benchmarks/step_cost.py [--context 64] [--rows 1,4,16,32,64] [--rounds 9] [--png FILE] [--json]

Real steps of the real engine's backend are run with a stopwatch around each part; rounds go through all batch sizes in
turn, and each figure is the median over rounds (`rest` is what is left of a step). `engine` is measured on a backend
that computes nothing. `step / linears`: against minirt's own linears and LM head; `step / oneDNN`: against the same
products by oneDNN with weights packed beforehand, timed in the same rounds. Then prompts: what a prefill of 512 tokens
takes against its linears alone.
MINIRT_PLAIN=1 in the environment shows the plain path.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import minirt
from benchmarks.arguments import positive, positives
from minirt.backends import native
from minirt.backends.base import BatchDecodeInput, ForwardBatch
from minirt.backends.simulated import SimulatedBackend
from minirt.model.fast_cpu import KNOWN_LINEARS, LINEARS, CpuForward, PackedLinear
from minirt.request import Sequence

PARTS = ("linears", "RoPE, attention", "norm, SiLU", "LM head", "sampling", "batch", "engine", "rest")
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#000000", "#BBBBBB")  # Okabe & Ito
KERNELS = {"add_rms_norm": PARTS[2], "silu_mul": PARTS[2], "attend": PARTS[1], "paged_prefill": PARTS[1]}
BLOCK = 16


class Stopwatch:
    """Seconds by part. What is measured inside another measured part counts for the inner one only."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed."""

        def timed(*args: Any) -> Any:
            start = self.now()
            try:
                return function(*args)
            finally:
                self.seconds[part] += self.now() - start

        return timed


class Timed:
    """A linear with a stopwatch around it, of a kind that the fast forward accepts."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, x: torch.Tensor) -> Any:
        return self.call(x)


KNOWN_LINEARS.add(Timed)


def instrument(backend: native.NativeBackend, watch: Stopwatch) -> None:
    """Put the stopwatch around the parts of a backend, for good."""
    decoder = backend.lm.decoder
    for layer in decoder.layers:
        for name in ("qkv", "o", "gate_up", "down"):
            setattr(layer, name, Timed(watch.around("linears", getattr(layer, name))))
    decoder.head = watch.around("LM head", decoder.head)
    if isinstance(backend.forward, CpuForward):
        lib = backend.forward.lib
        timed = {name: watch.around(part, getattr(lib, name)) for name, part in KERNELS.items() if hasattr(lib, name)}
        timed["first_largest"] = lib.first_largest
        backend.forward.lib = SimpleNamespace(**timed)  # type: ignore[assignment]
    else:
        decoder.attend = watch.around(PARTS[1], decoder.attend)
    backend.greedy = watch.around("sampling", backend.greedy)
    native.make_meta = watch.around("batch", native.make_meta)
    ForwardBatch.arrays = watch.around("batch", ForwardBatch.arrays)  # type: ignore[method-assign]


def decode_batch(rows: int, context: int) -> BatchDecodeInput:
    """`rows` decode rows that each see `context` tokens, their blocks scattered over the pool."""
    width = -(-context // BLOCK)
    tables = np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(rows, width)
    one = minirt.Request(prompt_ids=[1], ignore_eos=True)
    seqs = [Sequence(i, one, [5] * context, context, 0.0, slot=i) for i in range(rows)]
    return BatchDecodeInput(seqs, [context - 1] * rows, [1] * rows, [0] * rows, rows, list(range(rows)), tables, BLOCK)


def prompt_batch(tokens: int) -> ForwardBatch:
    """One prompt."""
    tables = np.arange(-(-tokens // BLOCK), dtype=np.int32)[None]
    seq = Sequence(0, minirt.Request(prompt_ids=[1], ignore_eos=True), [5] * tokens, tokens, 0.0, slot=0)
    return ForwardBatch([seq], [0], [tokens], [0], 0, [0], tables, BLOCK)


def packed_linears(lm: minirt.LanguageModel) -> list[PackedLinear]:
    """The model's products in their order; none where the weights are not packed."""
    all_of_them = [f for layer in lm.decoder.layers for f in LINEARS(layer)] + [lm.decoder.head]
    return [f for f in all_of_them if isinstance(f, PackedLinear)]


@torch.inference_mode()
def onednn_seconds(linears: list[PackedLinear], rows: int, now: Callable[[], float]) -> float:
    """A decode step's products alone, by oneDNN."""
    operands = {f.width: torch.ones(rows, f.width, dtype=f.dtype) for f in linears}
    start = now()
    for f in linears:
        f.by_onednn(operands[f.width])
    return now() - start


class Nothing(SimulatedBackend):
    """Computes nothing, but the engine keeps the arrays that a real backend needs."""

    needs_arrays = True


def engine_seconds(rows: int, now: Callable[[], float], steps: int = 100) -> float:
    """Median of the engine's own part of a step in which every row decodes."""
    engine = minirt.Engine(Nothing(), max_batch_size=rows, num_blocks=rows * 40, max_num_batched_tokens=1 << 20)
    for _ in range(rows):
        engine.add(minirt.Request(prompt_ids=[1] * 64, max_new_tokens=400, ignore_eos=True))
    times = []
    for _ in range(steps + 5):
        start = now()
        engine.step()
        times.append(now() - start)
    return median(times[5:])


def picture(report: dict[int, dict[str, float]], context: int, path: Path) -> None:
    """Stacked bars, one a batch size; milliseconds and shares."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    names = [str(n) for n in report]
    for ax, share in zip(axes, (False, True)):
        bottom = np.zeros(len(report))
        for part, colour in zip(PARTS, COLOURS):
            height = np.array([r[part] * 1e3 for r in report.values()])
            if share:
                height = 100 * height / np.array([r["step"] * 1e3 for r in report.values()])
            ax.bar(names, height, bottom=bottom, color=colour, label=part, width=0.7)
            bottom += height
        ax.set_xlabel("rows in the batch")
        ax.set_ylabel("share of the step, %" if share else "ms a step")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(f"A decode step at a context of {context} tokens", loc="left")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, reverse=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=positive, default=64)
    parser.add_argument("--rows", type=positives, default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--threads", type=positive, default=None)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--png", default=str(Path(__file__).parent / "img" / "step_cost.png"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    now = time.perf_counter
    sizes = args.rows
    lm = minirt.load_model(device="cpu", dtype=args.dtype)
    backend, watch = native.NativeBackend(lm), Stopwatch(now)
    linears = packed_linears(lm)
    instrument(backend, watch)
    backend.start(max(sizes) * -(-args.context // BLOCK) + 32, BLOCK, 0)
    batches: dict[Any, ForwardBatch] = {n: decode_batch(n, args.context) for n in sizes}
    batches["prompt"] = prompt_batch(512)
    onednn: dict[Any, list[float]] = {n: [] for n in sizes}
    seen: dict[Any, list[dict[str, float]]] = {n: [] for n in batches}
    for i in range(args.rounds + 1):
        for n, batch in batches.items():
            watch.seconds.clear()
            start = now()
            backend.execute(batch)
            took = now() - start
            if i:  # the first round warms up
                parts = {p: watch.seconds.get(p, 0.0) for p in PARTS}
                seen[n].append({**parts, "rest": took - sum(parts.values()), "step": took})
            if i and linears and n != "prompt":
                onednn[n].append(onednn_seconds(linears, n, now))
    report = {n: {p: median(r[p] for r in rounds) for p in rounds[0]} for n, rounds in seen.items()}
    prompt = report.pop("prompt")
    for n in sizes:
        report[n]["rest"] = report[n]["step"] - sum(report[n][p] for p in PARTS if p != "rest")
        report[n]["engine"] = engine_seconds(n, now)
        report[n]["step"] += report[n]["engine"]
        report[n]["of_linears"] = report[n]["step"] / (report[n]["linears"] + report[n]["LM head"])
        report[n]["of_onednn"] = report[n]["step"] / median(onednn[n]) if onednn[n] else float("nan")
        overhead = report[n]["engine"] + report[n]["batch"] + report[n]["sampling"]
        report[n]["not_forward"] = overhead / report[n]["step"]
    picture(report, args.context, Path(args.png))
    prefill = {"tokens": 512, "seconds": prompt["step"], "of_linears_rate": prompt["linears"] / prompt["step"]}
    if args.json:
        print(json.dumps({"context": args.context, "decode": report, "prefill": prefill}))
        return
    path = "fast" if isinstance(backend.forward, CpuForward) else "plain"
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{lm.name}, {lm.dtype}, {path} path, {torch.get_num_threads()} threads, context {args.context}{load}\n")
    print("| rows | step ms | " + " | ".join(PARTS) + " | step / linears | step / oneDNN | not the forward |")
    print("|---|" + "---|" * (len(PARTS) + 4))
    for n, r in report.items():
        cells = " | ".join(f"{1e3 * r[p]:.2f}" for p in PARTS)
        onednn_ratio = f"{r['of_onednn']:.2f}" if linears else "–"
        ratios = f"{r['of_linears']:.2f} | {onednn_ratio} | {r['not_forward']:.1%}"
        print(f"| {n} | {1e3 * r['step']:.2f} | {cells} | {ratios} |")
    print(
        f"\nPrefill of {prefill['tokens']} tokens: {1e3 * prompt['step']:.0f} ms, "
        f"{prefill['of_linears_rate']:.2f} of its linears' own rate.\n{args.png}"
    )


if __name__ == "__main__":
    main()
