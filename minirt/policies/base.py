"""What a scheduling policy is: an object with a name and a pure function from State to StepPlan.

A policy reads queues and budgets and says who is admitted, who prefills how many tokens, who decodes,
who is preempted and who is refused. It touches no tensor and changes no queue: the engine does that.
Most policies build their plan with a Planner, which keeps count of slots and blocks while they choose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from ..errors import PolicyError
from ..request import Sequence

if TYPE_CHECKING:
    from ..blocks import BlockPool
    from .planner import Planner


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine was given: rows at once, KV blocks, tokens a block, tokens a request, host blocks for swap."""

    max_batch_size: int
    num_blocks: int
    block_size: int
    max_model_len: int
    host_blocks: int = 0


class Queue(Protocol):
    """A queue as a policy sees it: in serving order (priority, then arrival), to be read only."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def __contains__(self, seq: object) -> bool: ...


@dataclass(slots=True)
class State:
    """What a policy may look at when it plans a step.

    waiting: arrived and not admitted, or preempted by recompute (they go to the front). prefilling: admitted,
    prompt not yet wholly in the cache. running: decoding. Both in admission order. ended: finished rows that
    still hold their slot, because the policy returns a batch together. swapped: KV in host memory.
    free_slots, free_blocks: before the step. expecting_more: more requests are known to come.
    pool: to ask about blocks and prefixes. free_host_blocks: room for KV that is swapped out.
    """

    now: float
    step: int
    waiting: Queue
    prefilling: Collection[Sequence]
    running: Collection[Sequence]
    ended: Collection[Sequence]
    swapped: Collection[Sequence]
    free_slots: int
    free_blocks: int
    limits: Limits
    expecting_more: bool
    pool: BlockPool
    free_host_blocks: int = 0
    prefix_caching: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):  # the engine's own numbers: plans are checked against them
            raise PolicyError(f"state.{name} can't be set: a policy reads the state and changes nothing in it.")
        object.__setattr__(self, name, value)


class Admission(NamedTuple):
    """Give `seq` a slot. reserve: tokens to set aside at once, in consecutive blocks; None is paged, on demand."""

    seq: Sequence
    reserve: int | None = None


class Chunk(NamedTuple):
    """Compute `n` more prompt tokens of `seq`, then `padding` positions for nothing (static batches pad)."""

    seq: Sequence
    n: int
    padding: int = 0


class Preemption(NamedTuple):
    """Take slot and blocks from `seq`; "recompute" forgets its KV, "swap" copies it to host memory."""

    seq: Sequence
    how: Literal["recompute", "swap"]


@dataclass(slots=True)
class StepPlan:
    """What shall happen in one step. The engine applies it in the order of the fields.

    refuse: (seq, why) for waiting requests that can never be served. fail: (seq, why) for resident ones that
    can't go on. release: ended rows that give their slot back. mixed: decode rows and prefill chunks share one
    forward; otherwise prefill has a forward of its own, before decode. wait_until: with an empty plan, when to
    ask again at the latest, in the clock's unit. blocked_need: blocks in a row that the first refused
    reservation wanted (the trace counts external fragmentation from it).
    """

    refuse: list[tuple[Sequence, str]] = field(default_factory=list)
    fail: list[tuple[Sequence, str]] = field(default_factory=list)
    release: list[Sequence] = field(default_factory=list)
    preempt: list[Preemption] = field(default_factory=list)
    resume: list[Sequence] = field(default_factory=list)
    admit: list[Admission] = field(default_factory=list)
    prefill: list[Chunk] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    wasted: list[Sequence] = field(default_factory=list)
    mixed: bool = True
    wait_until: float | None = None
    blocked_need: int = 0
    made_by: Planner | None = None


@runtime_checkable
class Policy(Protocol):
    """The protocol. Attributes a policy may also have, with what is assumed where it has none:

    returns_together (False): ended rows keep their slot until the plan releases them.
    prefix_caching (False): full blocks can be found again by their content. resumes (False): its plans resume swapped
    requests, so that one can be handed over from another engine (minirt.handover).
    """

    name: str

    def plan(self, state: State) -> StepPlan: ...
