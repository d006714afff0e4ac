"""The errors minirt raises on purpose. Each message says what was wrong, the value, the limit, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run


class MinirtError(Exception):
    """Base of every error that minirt raises deliberately."""


class RequestError(MinirtError, ValueError):
    """A request that can't be served as it is written (empty prompt, max_new_tokens < 1, …)."""


class ConfigError(MinirtError, ValueError):
    """An engine, policy or workload was asked for with settings that make no sense."""


class PolicyError(MinirtError):
    """A policy's plan broke the rules of the protocol. The message names the rule and the numbers.

    run: the Run so far, where the error came out of run() or simulate(): what had ended is whole, the rest is aborted.
    """

    run: Run | None = None


class ModelLoadError(MinirtError):
    """Weights or a model description could not be loaded: missing, damaged or not supported."""


class TraceError(MinirtError, ValueError):
    """A trace file is damaged or of another schema. The message names the line at fault."""
