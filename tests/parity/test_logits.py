"""Our decoder over the paged cache gives transformers' logits, for each architecture and RoPE scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minirt.backends.base import ForwardBatch
from minirt.backends.native import NativeBackend
from minirt.model.loading import LanguageModel, load_model
from minirt.request import Request, Sequence

TOLERANCE = 1e-4
BLOCK = 4
SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # the usual 0.02 makes logits so flat that nearly any mistake is below the tolerance
    "eos_token_id": 7,
    "bos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-all-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama-multi-query": ("llama", {"num_key_value_heads": 1, "head_dim": 24}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 128, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-tied": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True, "attention_bias": True}),
    "rope-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "rope-dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    "rope-llama3": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}),
    "rope-yarn": (
        "qwen3",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
            },
        },
    ),
}


def save_reference(folder: Path, arch: str, extra: dict[str, Any], **save: Any) -> Any:
    """A small random transformers model, saved to `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(arch, **{**SIZES, **extra})).eval()
    with torch.no_grad():  # biases and norms start as 0 and 1: then a forgotten one would not be noticed
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0.0, 0.2)
            elif "norm" in name:
                p.normal_(1.0, 0.2)
    model.save_pretrained(folder, **save)
    return model


def sequences(lengths: list[int], vocab: int, blocks: int) -> tuple[list[Sequence], np.ndarray]:
    """Random prompts, each with blocks scattered over the pool."""
    rng = np.random.default_rng(0)
    seqs = []
    for i, n in enumerate(lengths):
        ids = rng.integers(0, vocab, n).tolist()
        seqs.append(Sequence(i, Request(prompt_ids=ids), ids, n, 0.0, slot=i))
    tables = rng.permutation(blocks)[: len(lengths) * (blocks // len(lengths))].reshape(len(lengths), -1)
    return seqs, tables.astype(np.int32)


def all_logits(lm: LanguageModel, seqs: list[Sequence], tables: np.ndarray, chunks: list[int]) -> list[torch.Tensor]:
    """The logits of every row's last position: prompts in chunks with padding, the last token as a decode row."""
    backend = NativeBackend(lm)
    backend.start(tables.size, BLOCK, 0)
    done = [0] * len(seqs)
    while any(d < len(s.tokens) - 1 for d, s in zip(done, seqs)):
        rows = [i for i, s in enumerate(seqs) if done[i] < len(s.tokens) - 1]
        counts = [min(chunks[i], len(seqs[i].tokens) - 1 - done[i]) for i in rows]
        pads = [max(counts) - c for c in counts]
        starts = [done[i] for i in rows]
        backend.execute(ForwardBatch([seqs[i] for i in rows], starts, counts, pads, 0, [], tables, BLOCK))
        for i, c in zip(rows, counts):
            done[i] += c
    n = len(seqs)
    logits = backend.logits_for(ForwardBatch(seqs, done, [1] * n, [0] * n, n, list(range(n)), tables, BLOCK))
    return list(logits)


def check(lm: LanguageModel, reference: Any, lengths: list[int]) -> None:
    seqs, tables = sequences(lengths, lm.config.vocab_size, 64 * len(lengths))
    with torch.inference_mode():
        wanted = [reference(torch.tensor([s.tokens])).logits[0, -1] for s in seqs]
    least = max(lengths) // 6  # chunks of different sizes, so that rows end at different steps
    for chunks in ([1000] * len(seqs), [least + 3 * i for i in range(len(seqs))]):
        for got, want in zip(all_logits(lm, seqs, tables, chunks), wanted):
            assert (got - want).abs().max() < TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_random_model_of_each_architecture(case: str, tmp_path: Path) -> None:
    arch, extra = CASES[case]
    reference = save_reference(tmp_path, arch, extra)
    lm = load_model(tmp_path, device="cpu", dtype="float32")
    check(lm, reference, [3, 17, 60, 121])


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_greedy_tokens_are_those_of_generate(arch: str, tmp_path: Path) -> None:
    """Rows of different length decode side by side; each gives what transformers gives it alone."""
    reference = save_reference(tmp_path, arch, {})
    lm = load_model(tmp_path, device="cpu", dtype="float32")
    assert lm.eos_ids == {7}
    seqs, tables = sequences([2, 9, 30], 199, 96)
    backend = NativeBackend(lm)
    backend.start(96, BLOCK, 0)
    ended: set[int] = set()
    for _ in range(40):
        live = [s for s in seqs if s.id not in ended]
        live.sort(key=lambda s: s.remaining)
        starts, counts = [s.num_computed for s in live], [s.remaining for s in live]
        decodes = sum(c == 1 for c in counts)
        n = len(live)
        out = backend.execute(ForwardBatch(live, starts, counts, [0] * n, decodes, list(range(n)), tables, BLOCK))
        for s, token in zip(live, out):
            s.num_computed = len(s.tokens)
            if token is None:
                ended.add(s.id)
            else:
                s.tokens.append(token)
    for s in seqs:
        prompt = torch.tensor([s.tokens[: s.num_prompt]])
        with torch.inference_mode():
            ones = torch.ones_like(prompt)
            out = reference.generate(prompt, attention_mask=ones, max_new_tokens=40, do_sample=False)
            full = out[0].tolist()
        assert s.output_ids == [t for t in full[s.num_prompt :] if t != 7]


def test_default_weights() -> None:
    from transformers import AutoModelForCausalLM

    lm = load_model(device="cpu", dtype="float32")
    assert lm.path is not None
    reference = AutoModelForCausalLM.from_pretrained(lm.path, dtype=torch.float32).eval()
    check(lm, reference, [5, 30, 75])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
def test_cuda_agrees_with_cpu(case: str, tmp_path: Path) -> None:
    arch, extra = CASES[case]
    save_reference(tmp_path, arch, extra)
    seqs, tables = sequences([3, 17, 60, 121], 199, 256)
    results = [
        all_logits(load_model(tmp_path, device=d, dtype="float32"), seqs, tables, [7, 9, 11, 13])
        for d in ("cpu", "cuda")
    ]
    for a, b in zip(*results):
        assert (a - b.cpu()).abs().max() < 1e-3
