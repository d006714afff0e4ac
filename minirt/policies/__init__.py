"""Scheduling policies, one a file, all for the same engine. `make_policy` turns a name into one."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from ..errors import ConfigError
from .base import Admission, Chunk, Limits, Policy, Preemption, State, StepPlan
from .mini_runtime import MiniRuntimePolicy
from .orca import OrcaPolicy
from .planner import Planner
from .static import StaticPolicy
from .tgi import TgiPolicy
from .vllm import VllmPolicy

POLICIES: dict[str, type] = {
    "static": StaticPolicy,
    "orca": OrcaPolicy,
    "tgi": TgiPolicy,
    "mini-runtime": MiniRuntimePolicy,
    "vllm": VllmPolicy,
}

__all__ = [
    "POLICIES", "Admission", "Chunk", "Limits", "Planner", "Policy", "Preemption", "State", "StepPlan", "make_policy",
]  # fmt: skip


def make_policy(policy: str | Policy | type, **options: Any) -> Policy:
    """A policy by name (with its options), a class to be made, or an object with the protocol, taken as it is.

    Raises ConfigError: unknown name (names the known ones), unknown option (names the policy's), no protocol.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            near = difflib.get_close_matches(policy.lower(), POLICIES, 1, 0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"unknown policy {policy!r}; known are {', '.join(map(repr, POLICIES))}.{hint}")
        policy = POLICIES[policy]
    if isinstance(policy, type):
        takes = [n for n in inspect.signature(policy).parameters if n not in ("args", "kwargs")]
        unknown = sorted(set(options) - set(takes))
        if unknown:
            name = getattr(policy, "name", policy.__name__)
            raise ConfigError(
                f"policy {name!r} has no option {', '.join(map(repr, unknown))}; it takes {', '.join(takes) or 'none'}."
            )
        policy = policy(**options)
    elif options:
        raise ConfigError(f"options {sorted(options)} were given with a policy object; set them when you make it.")
    if not callable(getattr(policy, "plan", None)):
        raise ConfigError(
            f"{type(policy).__name__} is not a policy: it needs a method plan(state) that returns a StepPlan "
            "(see minirt.policies.base)."
        )
    return policy  # type: ignore[return-value]
