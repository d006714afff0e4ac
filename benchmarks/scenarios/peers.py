"""transformers on the same requests: `generate` on static batches, and its continuous batching."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from tqdm.auto import tqdm

from minirt import Request
from minirt.metrics import Summary

PAD = 0  # masked out, so any id will do


def summary(values: list[float]) -> dict[str, float | None]:
    """Mean, p50, p90 and p99, in seconds; None where there are no values."""
    s = Summary.of(values)
    return {k: None if math.isnan(v) else v for k, v in s._asdict().items() if k in ("mean", "p50", "p90", "p99")}


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """transformers says a lot on the way that is no news here."""
    loud = logging.getLogger("transformers")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        loud.setLevel(level)


def load_peer(lm: Any) -> Any:
    """transformers' model from the folder, on the device and in the dtype of a minirt model; warmed up."""
    from transformers import AutoModelForCausalLM

    with quietly():
        model = AutoModelForCausalLM.from_pretrained(lm.path, dtype=lm.dtype, local_files_only=True)
        model = model.to(lm.device).eval()
        model.generate(torch.tensor([[1, 2, 3]], device=model.device), generation_config=_config(2))
    return model


def _config(longest: int) -> Any:
    """Greedy, and no end of sequence: every answer is as long as asked."""
    from transformers import GenerationConfig

    return GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=PAD, max_new_tokens=longest)


class Beat:
    """A streamer for generate(): notes when it is given the prompts and then each step's tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """A step is done."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to do: the last step has been noted."""


def theirs_static(model: Any, requests: list[Request], args: argparse.Namespace) -> dict[str, Any]:
    """transformers' generate on batches of `slots`, left-padded, each until its longest answer is done."""
    started, steps, useful = time.perf_counter(), 0, 0
    ttft, tpot, answers = [], [], []
    total = sum(r.max_new_tokens for r in requests)
    bar = tqdm(total=total, unit="tok", desc="transformers generate", disable=args.quiet)
    for at in range(0, len(requests), args.slots):
        batch = requests[at : at + args.slots]
        prompts = [list(r.prompt_ids or ()) for r in batch]
        width = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        beat = Beat()
        with torch.inference_mode(), quietly():
            config = _config(max(r.max_new_tokens for r in batch))
            out = model.generate(ids, attention_mask=mask, generation_config=config, streamer=beat)
        times = beat.times[1:]  # the first are the prompts
        steps += len(times)
        for r, row in zip(batch, out[:, width:].tolist()):
            n = r.max_new_tokens
            answers.append(row[:n])
            useful += n
            bar.update(n)
            ttft.append(times[0] - started)
            if n > 1:
                tpot.append((times[n - 1] - times[0]) / (n - 1))
    bar.close()
    seconds = time.perf_counter() - started
    return {
        "engine": "transformers generate (static)",
        "seconds": seconds,
        "tokens": useful,
        "tokens_per_s": useful / seconds,
        "decode_steps": steps,
        "occupancy": useful / (steps * args.slots),
        "ttft": summary(ttft),
        "tpot": summary(tpot),
        "answers": answers,
    }


def theirs_continuous(model: Any, requests: list[Request], args: argparse.Namespace) -> dict[str, Any]:
    """transformers' continuous batching. Its manager comes from init_continuous_batching(), as generate_batch()'s
    does; generate_batch() itself takes one max_new_tokens for all requests, so they are added one by one."""
    from transformers import ContinuousBatchingConfig

    batching = ContinuousBatchingConfig(
        page_size=args.page_size,
        num_blocks=max(2, -(-args.blocks * args.block_size // args.page_size)),
        max_batch_tokens=args.budget,
        max_requests_per_batch=args.slots,
        allow_block_sharing=False,
    )
    total = sum(r.max_new_tokens for r in requests)
    bar = tqdm(total=total, unit="tok", desc="transformers continuous", disable=args.quiet)
    done: dict[str, Any] = {}
    with quietly():
        config = _config(max(r.max_new_tokens for r in requests))
        manager = model.init_continuous_batching(generation_config=config, continuous_batching_config=batching)
        manager.start()
        try:
            started = time.perf_counter()
            ids = [
                manager.add_request(list(r.prompt_ids or ()), max_new_tokens=r.max_new_tokens, record_timestamps=True)
                for r in requests
            ]
            while len(done) < len(requests):
                got = manager.get_result(timeout=1)
                if got is None and not manager.is_running():
                    raise SystemExit("transformers' continuous batching ended before its requests did.")
                if got is None or not got.is_finished():
                    continue
                if got.error:
                    raise SystemExit(f"transformers' continuous batching failed: {got.error}")
                done[got.request_id] = got
                bar.update(len(got.generated_tokens))
            seconds = time.perf_counter() - started
        finally:
            manager.stop(block=True, timeout=10)
            bar.close()
    results = [done[i] for i in ids]
    times = [r.timestamps or [] for r in results]
    tokens = sum(len(r.generated_tokens) for r in results)
    return {
        "engine": "transformers continuous",
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "ttft": summary([t[0] - started for t in times if t]),
        "tpot": summary([(t[-1] - t[0]) / (len(t) - 1) for t in times if len(t) > 1]),
        "answers": [r.generated_tokens for r in results],
    }
