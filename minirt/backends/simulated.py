"""A backend that computes nothing and says what it would have cost: the simulator's stand-in for a model.

What it is: sizes, a cost model, and a token id that is always the same. What it is not: a predictor of text.
Answers have exactly the length asked for: there is no end of sequence, so max_new_tokens ends them. The engine,
its policies and its block manager are the real ones. The idea is Vidur's (Agrawal et al., MLSys 2024).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from ..errors import RequestError
from ..presets import Hardware, ModelShape, get_hardware, get_model
from ..roofline import CostModel, Work
from .base import ForwardBatch

TOKEN = 0  # every answer token


class SimulatedBackend:
    """Serves a ModelShape on a Hardware by their names or by themselves; cost_model overrides their roofline."""

    name = "simulated"
    needs_arrays = False

    def __init__(
        self,
        model: ModelShape | str = "Qwen2.5-0.5B",
        hardware: Hardware | str = "A100-80GB",
        cost_model: CostModel | None = None,
    ) -> None:
        self.shape = get_model(model)
        self.hardware = get_hardware(hardware)
        self.cost_model = cost_model or CostModel.of(self.hardware, self.shape)
        self.vocab_size = self.shape.vocab_size
        self.max_model_len = self.shape.max_len
        self.block_size = 16

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        """Nothing to allocate; any pool is granted, also one larger than the hardware's memory."""
        self.block_size = block_size

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        """The same token for every sampled position, and never an end of sequence."""
        return [TOKEN] * batch.num_sampled

    def step_cost(self, batches: Seq[ForwardBatch], swapped_blocks: int = 0) -> float:
        """Seconds of a step with these forwards that also copied so many blocks to or from the host.

        Copies are not overlapped with computing. Nothing done costs nothing.
        """
        if not batches and not swapped_blocks:
            return 0.0
        cost = self.cost_model
        seconds = cost.step_s + cost.swap_time(swapped_blocks * self.block_size)
        for batch in batches:
            seconds += cost.forward_time(Work.of(batch))
        return seconds

    def copy_out(self, seq_id: int, blocks: Seq[int]) -> None:
        """Nothing to copy; step_cost charges it."""

    def copy_in(self, seq_id: int, blocks: Seq[int]) -> None:
        """Nothing to copy; step_cost charges it."""

    def drop(self, seq_id: int) -> None:
        """Nothing was kept."""

    def take(self, seq_id: int) -> None:
        """Nothing was kept, so nothing is given."""
        return None

    def put(self, seq_id: int, kv: Any) -> None:
        """Nothing to keep."""

    def encode(self, prompt: str) -> list[int]:
        """There is no tokenizer here: raises RequestError."""
        raise RequestError(
            f"the simulator has no tokenizer for prompt={prompt[:40]!r}; give prompt_ids=, or lengths through "
            "minirt.workloads.make_requests(prompt=…, output=…)."
        )

    def pieces(self, token_ids: Seq[int]) -> list[str]:
        """No text: an empty piece a token."""
        return [""] * len(token_ids)

    def detokenizer(self) -> None:
        """No text to stream, and so no stop strings either."""
        return None

    def describe(self) -> dict[str, Any]:
        """For the trace's header: what was simulated and by which costs."""
        return {
            "backend": self.name,
            "model": self.shape.name,
            "device": self.hardware.name,
            "dtype": f"{self.shape.bytes_per_element * 8:g}-bit",
            "cost_model": self.cost_model.source,
        }
