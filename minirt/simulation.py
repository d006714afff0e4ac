"""simulate(): any policy on any preset machine and model, in virtual seconds, without weights.

The engine, the policy and the block manager are the real ones. Only the forward is replaced, by its cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .backends.simulated import SimulatedBackend
from .blocks import check_sizes
from .clock import Clock, ModelClock, StepClock
from .errors import ConfigError
from .presets import Hardware, ModelShape
from .request import Request
from .roofline import CostModel

if TYPE_CHECKING:
    from .policies.base import Policy
    from .run import Run


def simulate(
    policy: str | Policy | type,
    requests: Iterable[Request],
    hardware: Hardware | str = "A100-80GB",
    model: ModelShape | str = "Qwen2.5-0.5B",
    *,
    max_batch_size: int = 256,
    num_blocks: int | None = None,
    block_size: int = 16,
    memory_fraction: float = 0.9,
    cost_model: CostModel | None = None,
    clock: Clock | str = "model",
    progress: Any = False,
    **options: Any,
) -> Run:
    """Serve requests (with prompt_ids) under a policy; returns a Run like an engine's, with token ids that mean nothing.

    num_blocks: None takes what fits beside the weights into memory_fraction of the hardware's memory. cost_model: None
    is the roofline of hardware and model; one from calibrate(lm) simulates that machine. clock: "model" (virtual
    seconds), "step", or a Clock. options go to the engine, and what it doesn't know to the policy.
    """
    from .engine import Engine

    clocks: dict[str, type[Clock]] = {"model": ModelClock, "step": StepClock}
    if isinstance(clock, str):
        if clock not in clocks:
            raise ConfigError(f'unknown clock {clock!r} for a simulation; it is "model" (seconds) or "step".')
        clock = clocks[clock]()
    backend = SimulatedBackend(model, hardware, cost_model)
    check_sizes(max_batch_size=max_batch_size, block_size=block_size)
    if num_blocks is None:
        num_blocks = backend.shape.num_blocks(backend.hardware, block_size, memory_fraction)
    engine = Engine(
        backend,
        policy,
        max_batch_size=max_batch_size,
        num_blocks=num_blocks,
        block_size=block_size,
        clock=clock,
        **options,
    )
    return engine.run(requests, progress=progress)
