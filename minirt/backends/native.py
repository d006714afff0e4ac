"""The backend that computes: one ragged forward in torch over a paged KV cache, then sampling.

What it is: the bridge from a ForwardBatch (requests, positions, blocks) to tensors and back to token ids.
What it is not: it decides nothing. Who runs, where their KV lies and when they stop for length is the
engine's; only the end of a sequence is decided here, because only the model knows its EOS ids.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from ..detokenizer import IncrementalDetokenizer
from ..errors import ConfigError, RequestError
from ..model.attention import PagedKV, make_meta
from ..model.cuda_graphs import graph_forward
from ..model.fast_cpu import fast_forward, why_plain
from ..model.loading import LanguageModel
from ..model.sampling import greedy, sample
from .base import BatchDecodeInput, ForwardBatch
from .memory import free_bytes


class NativeBackend:
    """A LanguageModel behind the Backend protocol (see base.py for what each method owes)."""

    name = "native"
    needs_arrays = True

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.device, self.dtype = lm.device, lm.dtype
        self.vocab_size = lm.config.vocab_size
        self.max_model_len = lm.config.max_model_len
        self.forward = fast_forward(lm.decoder) or graph_forward(lm.decoder) or lm.decoder.forward
        self.greedy = getattr(self.forward, "greedy", greedy)
        self.kv: PagedKV | None = None
        self._swapped: dict[int, Tensor] = {}  # by sequence: [2, layers, blocks, block_size, kv_heads, head_dim]

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        """Make the KV pool; an earlier one is given back. host_blocks bounds what the engine may swap out at once;
        host memory is taken only when a block is. Raises ConfigError with the bytes asked for and the bytes free."""
        self.kv = None
        self._swapped.clear()
        block = block_size * self.lm.config.kv_elements_per_token * self.dtype.itemsize
        need, free = num_blocks * block, free_bytes(self.device)
        # Asked first, because a zeroed CPU pool takes its pages only when they are written: it would seem to fit.
        if free is not None and need > free:
            raise ConfigError(
                f"num_blocks={num_blocks} blocks of {block:,} bytes make a KV pool of {need:,} bytes on {self.device}, "
                f"but only {free:,} bytes are free there. Use at most {free // block} blocks."
            )
        try:
            spare = getattr(self.forward, "spare_blocks", 0)
            self.kv = PagedKV(self.lm.config, num_blocks + spare, block_size, self.device, self.dtype)
        except (RuntimeError, MemoryError) as e:  # free, yet not to be had in one piece
            free_text = "unknown" if free is None else f"{free:,}"
            raise ConfigError(
                f"a KV pool of num_blocks={num_blocks} blocks, {need:,} bytes, can't be had on {self.device} "
                f"(free: {free_text} bytes). Use fewer blocks. The allocator says: {e}"
            ) from e

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """Run the forward. One token id for each sampled position; None where it is an EOS id and the request minds it."""
        with torch.inference_mode():
            logits = self.logits_for(batch)
            if not batch.sampled:
                return []
            if batch.drafts:
                rows, at = map(list, zip(*batch.sampled_positions()))
            else:
                rows = [batch.seqs[i] for i in batch.sampled]
                at = [batch.starts[i] + batch.counts[i] for i in batch.sampled]
            if all(s.request.temperature == 0 for s in rows):
                chosen = self.greedy(logits)
            else:
                chosen = sample(logits, [s.request.sampling for s in rows], at)
            tokens: list[int] = chosen.tolist()  # the one copy from device to host
        eos = self.lm.eos_ids
        return [None if t in eos and not s.request.ignore_eos else t for t, s in zip(tokens, rows)]

    def batch_decode(self, batch: BatchDecodeInput) -> list[int | None]:
        """One token for every row: execute(), by the source chapter's name."""
        return self.execute(batch)

    @torch.inference_mode()
    def logits_for(self, batch: ForwardBatch) -> Tensor:
        """The forward without sampling: logits [S, vocab] of the sampled rows' last positions, on the device."""
        if self.kv is None:
            raise ConfigError("the backend has no KV pool yet: call start(num_blocks, block_size, host_blocks) first.")
        a = batch.arrays()
        ids = torch.from_numpy(a.input_ids).to(self.device)
        positions = torch.from_numpy(a.positions).to(self.device)
        meta = make_meta(a, self.kv.block_size, self.device)
        hidden = self.forward(ids, positions, self.kv, meta)
        return self.lm.decoder.logits(hidden[torch.from_numpy(a.last).to(self.device)])

    def copy_out(self, seq_id: int, blocks: Seq[int]) -> None:
        """Copy the blocks of every layer to host memory under seq_id (swap out)."""
        assert self.kv is not None  # the engine has called start
        self._swapped[seq_id] = self.kv.data[:, :, list(blocks)].to("cpu")

    def copy_in(self, seq_id: int, blocks: Seq[int]) -> None:
        """Copy what copy_out kept into `blocks`, the first ones where there are fewer, and forget it (swap in)."""
        assert self.kv is not None
        kept = self._swapped[seq_id][:, :, : len(blocks)]
        self.kv.data[:, :, list(blocks)] = kept.to(self.device)
        del self._swapped[seq_id]  # only once the copy is there: an interrupt before this loses nothing

    def drop(self, seq_id: int) -> None:
        """Forget what copy_out kept for seq_id; nothing happens where it kept nothing."""
        self._swapped.pop(seq_id, None)

    def take(self, seq_id: int) -> Tensor:
        """Give away the host copy that copy_out made for seq_id."""
        return self._swapped.pop(seq_id)

    def put(self, seq_id: int, kv: Tensor) -> None:
        """Keep another backend's host copy under seq_id. Raises ConfigError where its shape is not this cache's."""
        assert self.kv is not None
        theirs, ours = (*kv.shape[:2], *kv.shape[3:]), (*self.kv.data.shape[:2], *self.kv.data.shape[3:])
        if theirs != ours:
            raise ConfigError(
                f"KV of shape {tuple(kv.shape)} can't be taken: this cache is {ours} apart from the number of blocks "
                "(2, layers, block_size, kv_heads, head_dim)."
            )
        self._swapped[seq_id] = kv

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, through the chat template where there is one. Raises RequestError."""
        ids = self.lm.encode(prompt)
        if not ids:
            raise RequestError(f"prompt={prompt!r} comes to no tokens at all; there is nothing to continue.")
        return ids

    def detokenizer(self) -> IncrementalDetokenizer | None:
        """A new incremental decoder, or None without a tokenizer."""
        return IncrementalDetokenizer(self.lm.tokenizer) if self.lm.tokenizer is not None else None

    def pieces(self, token_ids: Seq[int]) -> list[str]:
        """The text each token adds; empty while a character is not whole, and always without a tokenizer."""
        detokenizer = self.detokenizer()
        return [detokenizer.push(t) if detokenizer else "" for t in token_ids]

    def _forward_name(self) -> str:
        """Which forward runs, and why it is the plain one where it is."""
        if self.forward == self.lm.decoder.forward:
            return f"plain ({why_plain(self.lm.decoder)})" if self.device.type == "cpu" else "plain"
        name = type(self.forward).__name__
        return {"CpuForward": "CPU kernels", "GraphForward": "CUDA graphs"}.get(name, name)

    def describe(self) -> dict[str, Any]:
        """What the trace's header says of this backend."""
        c = self.lm.config
        return {
            "backend": self.name,
            "model": self.lm.name,
            "arch": c.arch,
            "parameters": c.num_parameters,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "kv_bytes_per_token": c.kv_elements_per_token * self.dtype.itemsize,
            "max_model_len": c.max_model_len,
            "threads": torch.get_num_threads(),
            "forward": self._forward_name(),
            "torch": torch.__version__,
            "notes": list(self.lm.notes),
        }
