"""minirt: a small, real engine for LLM inference with continuous batching, to learn from and to measure with.

    lm = minirt.load_model()
    run = minirt.ContinuousEngine(lm, policy="vllm").run([minirt.Request("Hello!")])
    run.outputs[0].text, run.metrics, run.trace
"""

from __future__ import annotations

from typing import Any

from .clock import ModelClock, StepClock, WallClock
from .engine import ContinuousEngine, Engine, StaticEngine
from .errors import ConfigError, MinirtError, ModelLoadError, PolicyError, RequestError, TraceError
from .policies import POLICIES, Planner, StepPlan
from .request import Output, Request, RequestState, SamplingParams
from .run import Run
from .speculative import NgramLookup
from .trace import StepRecord, Trace

__version__ = "0.1.0"

__all__ = [
    "POLICIES", "ConfigError", "ContinuousEngine", "Engine", "MinirtError", "ModelClock", "ModelLoadError",
    "NgramLookup", "Output", "Planner", "PolicyError", "Request", "RequestError", "RequestState", "Run",
    "SamplingParams", "StaticEngine", "StepClock", "StepPlan", "StepRecord", "Trace", "TraceError", "WallClock",
    "load_model", "simulate",
]  # fmt: skip


def load_model(name_or_path: str | None = None, device: str | None = None, dtype: Any = None) -> Any:
    """A language model with its tokenizer: nothing = the default weights; or a hub id, a folder, a .gguf.

    device: cuda, else mps, else cpu. dtype: bfloat16 where the device computes it natively, else float32.
    Raises ModelLoadError. (torch is imported only when this is called.)
    """
    from .model.loading import load_model as load

    return load(name_or_path, device=device, dtype=dtype)


def simulate(policy: Any, requests: Any, hardware: Any = "A100-80GB", model: Any = "Qwen2.5-0.5B", **options: Any) -> Run:
    """Schedule requests without weights, on a cost model's virtual seconds. See minirt.simulation.simulate."""
    from .simulation import simulate as run

    return run(policy, requests, hardware=hardware, model=model, **options)
