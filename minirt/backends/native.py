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
from ..model.loading import LanguageModel
from ..model.sampling import sample
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
        self.kv: PagedKV | None = None
        self.host: Tensor | None = None
        self._host_free: list[int] = []
        self._swapped: dict[int, list[int]] = {}

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        """Make the KV pool, and one of host_blocks in host memory for swapping. An earlier one is given back."""
        self.kv = self.host = None
        self._swapped.clear()
        block = block_size * self.lm.config.kv_elements_per_token * self.dtype.itemsize
        _check_fits(num_blocks * block, num_blocks, block, self.device, "num_blocks")
        host = torch.device("cpu")
        both = (num_blocks + host_blocks if self.device.type == "cpu" else host_blocks) * block
        _check_fits(both, host_blocks, block, host, "host_blocks")
        try:
            self.kv = PagedKV(self.lm.config, num_blocks, block_size, self.device, self.dtype)
            shape = (*self.kv.data.shape[:2], host_blocks, *self.kv.data.shape[3:])
            self.host = torch.empty(shape, dtype=self.dtype, pin_memory=self.device.type == "cuda" and host_blocks > 0)
        except (RuntimeError, MemoryError) as e:  # the estimate said yes and the allocator says no
            self.kv = self.host = None
            raise ConfigError(f"a KV pool of {num_blocks} blocks, {num_blocks * block:,} bytes, can't be had: {e}") from e
        self._host_free = list(range(host_blocks))

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """Run the forward. One token id for each sampled row; None where it is an EOS id and the request minds it."""
        with torch.inference_mode():
            logits = self.logits_for(batch)
            if not batch.sampled:
                return []
            rows = [batch.seqs[i] for i in batch.sampled]
            params = [s.request.sampling for s in rows]
            at = [batch.starts[i] + batch.counts[i] for i in batch.sampled]
            tokens: list[int] = sample(logits, params, at).tolist()  # the one copy from device to host
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
        hidden = self.lm.decoder.forward(ids, positions, self.kv, meta)
        return self.lm.decoder.logits(hidden[torch.from_numpy(a.last).to(self.device)])

    def copy_out(self, seq_id: int, blocks: Seq[int]) -> None:
        """Copy blocks to the host pool (swap out)."""
        assert self.kv is not None and self.host is not None  # the engine has called start
        if len(blocks) > len(self._host_free):
            raise ConfigError(
                f"swapping out {len(blocks)} blocks needs more than the {len(self._host_free)} free host blocks; "
                "raise host_blocks."
            )
        places = self._host_free[: len(blocks)]
        self.host[:, :, places] = self.kv.data[:, :, list(blocks)].to("cpu")
        del self._host_free[: len(blocks)]  # only once the copy is there: an interrupt before loses nothing
        self._swapped[seq_id] = places

    def copy_in(self, seq_id: int, blocks: Seq[int]) -> None:
        """Copy what copy_out kept into `blocks`, the first ones where there are fewer, and forget it (swap in)."""
        assert self.kv is not None and self.host is not None
        places = self._swapped[seq_id][: len(blocks)]
        self.kv.data[:, :, list(blocks)] = self.host[:, :, places].to(self.device)
        self.drop(seq_id)

    def drop(self, seq_id: int) -> None:
        """Forget what copy_out kept for seq_id; nothing happens where it kept nothing."""
        self._host_free.extend(self._swapped.pop(seq_id, ()))

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt, through the chat template where there is one. Raises RequestError."""
        ids = self.lm.encode(prompt)
        if not ids:
            raise RequestError(f"prompt={prompt!r} comes to no tokens at all; there is nothing to continue.")
        return ids

    def pieces(self, token_ids: Seq[int]) -> list[str]:
        """The text each token adds; empty while a character is not whole, and always without a tokenizer."""
        if self.lm.tokenizer is None:
            return [""] * len(token_ids)
        detokenizer = IncrementalDetokenizer(self.lm.tokenizer)
        return [detokenizer.push(t) for t in token_ids]

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
            "torch": torch.__version__,
            "notes": list(self.lm.notes),
        }


def _check_fits(need: int, blocks: int, block: int, device: torch.device, setting: str) -> None:
    """Refuse a pool before the system kills the process for it: a zeroed CPU pool takes its pages only later."""
    free = free_bytes(device)
    if blocks and free is not None and need > free:
        raise ConfigError(
            f"{setting}={blocks} blocks of {block:,} bytes make a KV pool of {need:,} bytes on {device}, but only "
            f"{free:,} bytes are free there. Use at most {max(free // block, 0)} blocks."
        )
