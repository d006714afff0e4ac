"""Every policy gives, token for token in float32, what transformers' generate gives each request alone.

The pools are so small that requests are preempted, swapped, made to wait or refused a run of blocks, and each case
says which of these must really have happened. Mostly a random model, so that it is cheap; once the default weights.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from minirt import Engine, Request, load_model
from minirt.backends.native import NativeBackend
from tests.parity.test_logits import save_reference

VOCAB = 199  # of that model
EOS = frozenset({135, 196})  # these turn up in some of its answers, and end them


def make_prompts() -> list[tuple[list[int], int]]:
    """(prompt, max_new_tokens): some begin alike, two are the same, one fills its blocks exactly."""
    rng = Random(11)
    system = [rng.randrange(8, VOCAB) for _ in range(16)]
    own = [[rng.randrange(8, VOCAB) for _ in range(n)] for n in (1, 3, 9, 20, 33, 40, 6, 14)]
    prompts = own[:5] + [system + p for p in own[:6]] + [system, system]
    return [(p, rng.choice([4, 9, 17, 24])) for p in prompts]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def lm(tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("model")
    save_reference(folder, "llama", {})
    lm = load_model(folder, device="cpu", dtype="float32")
    lm.eos_ids = EOS
    return lm


def generate(path: Path, prompts: list[tuple[list[int], int]], eos: Any) -> list[list[int]]:
    """What transformers answers to each alone, without the end of sequence."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
    out = []
    for prompt, n in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            got = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, eos_token_id=sorted(eos)
            )
        out.append([t for t in got[0, len(prompt) :].tolist() if t not in eos])
    return out


@pytest.fixture(scope="module")
def wanted(lm: Any) -> list[list[int]]:
    return generate(lm.path, PROMPTS, lm.eos_ids)


class Watching(NativeBackend):
    """Counts what is copied, and checks that what comes back from host memory is what went there."""

    out = back = 0
    spoil = False  # overwrite what was copied out: whoever reads it from there now reads nonsense

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        super().start(num_blocks, block_size, host_blocks)
        self.host_limit, self.gone = host_blocks, dict[int, torch.Tensor]()

    def copy_out(self, seq_id: int, blocks: Any) -> None:
        assert self.kv is not None
        self.gone[seq_id] = self.kv.data[:, :, list(blocks)].clone()
        super().copy_out(seq_id, blocks)
        if self.spoil:
            self.kv.data[:, :, list(blocks)] = 1e3
        self.out += len(blocks)
        assert sum(t.shape[2] for t in self._swapped.values()) <= self.host_limit

    def copy_in(self, seq_id: int, blocks: Any) -> None:
        super().copy_in(seq_id, blocks)
        assert self.kv is not None
        assert torch.equal(self.kv.data[:, :, list(blocks)], self.gone.pop(seq_id))
        self.back += len(blocks)


TIGHT = {"max_batch_size": 6, "num_blocks": 24, "block_size": 4}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "static": ("static", {}, "waste"),
    "orca-max": ("orca", {"max_model_len": 80}, "external"),
    "orca-pow2": ("orca", {"variant": "pow2", "num_blocks": 34}, "external"),
    "orca-oracle": ("orca", {"variant": "oracle", "num_blocks": 34}, "external"),
    "tgi": ("tgi", {"waiting_served_ratio": 0.5, "max_waiting_tokens": 4, "max_batch_prefill_tokens": 64}, "wait"),
    "mini-runtime": ("mini-runtime", {"chunk": 7, "step_budget": 20, "num_blocks": 60}, "chunks"),
    "vllm": ("vllm", {"max_num_batched_tokens": 13}, "recompute"),
    "vllm-unchunked": ("vllm", {"max_num_batched_tokens": 64, "enable_chunked_prefill": False}, "recompute"),
    "vllm-prefix": ("vllm", {"prefix_caching": True, "max_num_batched_tokens": 32}, "recompute+hits"),
    "vllm-swap": ("vllm", {"preemption": "swap", "watermark": 0.0}, "swap"),
    "vllm-swap-prefix": ("vllm", {"preemption": "swap", "prefix_caching": True, "watermark": 0.0}, "swap+hits"),
    "vllm-swap-little-host": (
        "vllm", {"preemption": "swap", "host_blocks": 7, "num_blocks": 20, "watermark": 0.0}, "swap+recompute"),
    "blocks-of-one": ("vllm", {"block_size": 1, "num_blocks": 90, "prefix_caching": True}, "recompute+hits"),
    "one-at-a-time": ("vllm", {"max_batch_size": 1}, "wait"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_generate(lm: Any, wanted: list[list[int]], case: str) -> None:
    policy, options, happened = CASES[case]
    backend = Watching(lm)
    backend.spoil = not options.get("prefix_caching", False)  # a shared block stays someone's
    eng = Engine(backend, policy, **{**TIGHT, **options})
    run = eng.run([Request(prompt_ids=p, max_new_tokens=n) for p, n in PROMPTS])
    for out, want, (_, n) in zip(run.outputs, wanted, PROMPTS):
        assert out.token_ids == want
        assert out.finish_reason == ("length" if len(want) == n else "stop")
    eng.pool.check([])
    assert eng.pool.num_used == 0 and not backend.gone
    m = run.metrics
    assert (m.preemptions.get("recompute", 0) > 0) == ("recompute" in happened)
    assert (m.preemptions.get("swap", 0) > 0) == ("swap" in happened) == (backend.out == backend.back > 0)
    assert (m.cached_tokens > 0) == ("hits" in happened)
    assert m.queue_wait.max > 0
    assert (m.wasted_rows > 0 and m.padding_tokens > 0) == (happened == "waste")
    assert (max(s.external for s in run.trace) > 0) == (happened == "external")
    if happened == "chunks":
        assert any(row.start > 0 for s in run.trace for row in s.prefill)


def test_the_model_ends_some_answers_itself(wanted: list[list[int]]) -> None:
    """Otherwise None from the backend would never have been seen above."""
    ended = sum(len(w) < n for w, (_, n) in zip(wanted, PROMPTS))
    assert 0 < ended < len(PROMPTS)


@pytest.mark.slow
def test_default_weights_swapped_and_shared() -> None:
    lm = load_model(device="cpu", dtype="float32")
    texts = ["Name three rivers.", "What is a KV cache?", "Count to five.", "Name three mountains."]
    prompts = [(lm.encode(t), 14) for t in texts]
    assert lm.path is not None
    want = generate(lm.path, prompts, lm.eos_ids)
    backend = Watching(lm)
    eng = Engine(
        backend, "vllm", preemption="swap", prefix_caching=True, watermark=0.0, max_batch_size=4, num_blocks=28,
        block_size=4, host_blocks=20,
    )  # fmt: skip
    run = eng.run([Request(prompt_ids=p, max_new_tokens=n) for p, n in prompts])
    assert [o.token_ids for o in run.outputs] == want
    assert run.metrics.preemptions.get("swap", 0) > 0 and backend.out == backend.back > 0
    assert run.metrics.cached_tokens > 0  # the chat template begins alike
    assert eng.pool.num_used == 0
