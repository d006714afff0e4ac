"""What is checked of a plan before it is played through a Planner: its shape, and whom it names.

A policy is the learner's own code, so any mistake may stand in a plan. Each is refused with the rule and the
numbers before anything has changed, and the engine can go on with a better plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, MinirtError, PolicyError
from ..request import RequestState, Sequence
from .base import State, StepPlan

if TYPE_CHECKING:
    from .planner import Planner

# What an entry of each list of a StepPlan holds. A NamedTuple (Admission, Chunk, Preemption) is a tuple as well.
_SHAPES: dict[str, tuple[str, tuple[type | tuple[type, ...], ...]]] = {
    "refuse": ("(seq, why)", (Sequence, str)),
    "fail": ("(seq, why)", (Sequence, str)),
    "preempt": ("Preemption(seq, how)", (Sequence, str)),
    "admit": ("Admission(seq, reserve)", (Sequence, (int, type(None)))),
    "prefill": ("Chunk(seq, n, padding)", (Sequence, int, int)),
}


def whole(name: str, value: Any, least: int, error: type[MinirtError] = ConfigError) -> int:
    """value as Python's own int; raises `error` unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise error(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """value, which must be True or False ("no" would count as yes). Raises ConfigError."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise ConfigError(f"{name}={value!r} must be True or False.")
    return bool(value)


def count(name: str, value: Any) -> Any:
    """A count of tokens or blocks that a policy hands to a Planner, or None. Raises PolicyError if it is no whole number."""
    if value is None or type(value) is int:
        return value
    if not isinstance(value, Integral):
        raise PolicyError(f"{name}={value!r} must be a whole number: tokens and blocks don't come in parts.")
    return int(value)


class Counted:
    """An attribute of a Planner that only the Planner itself counts (under the same name with a _ before it)."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, planner: Any, owner: type | None = None) -> int:
        return getattr(planner, "_" + self.name)  # type: ignore[no-any-return]

    def __set__(self, planner: Any, value: object) -> None:
        raise PolicyError(f"planner.{self.name} can't be set: it is counted from the state and from what is planned.")


def check_shape(plan: Any) -> None:
    """Raise PolicyError unless each list of a plan holds what it should: Sequences, Chunks, Admissions, …"""
    for name in ("release", "resume", "decode", "wasted"):
        for i, seq in enumerate(_list(plan, name)):
            if not isinstance(seq, Sequence):
                raise PolicyError(f"plan.{name}[{i}] is {_what(seq)}; it should be a request taken from the state.")
    for name, (wanted, types) in _SHAPES.items():
        kind = {"preempt": "how", "admit": "reserve", "prefill": "n"}.get(name)
        for i, entry in enumerate(_list(plan, name)):
            fits = isinstance(entry, tuple) and len(entry) == len(types) and (kind is None or hasattr(entry, kind))
            if not fits or not all(isinstance(x, t) and not isinstance(x, bool) for x, t in zip(entry, types)):
                raise PolicyError(f"plan.{name}[{i}] is {_what(entry)}; it should be {wanted}.")


def _list(plan: StepPlan, name: str) -> list[Any]:
    entries = getattr(plan, name)
    if not isinstance(entries, list):
        raise PolicyError(f"plan.{name} is {_what(entries)}; it should be a list.")
    return entries


def _what(x: object) -> str:
    text = repr(x)
    return f"a {type(x).__name__}, {text if len(text) < 80 else text[:77] + '…'}"


def check_known(plan: StepPlan, state: State) -> None:
    """Raise PolicyError if the plan names a request that does not stand in this state. O(running + planned)."""
    running, prefilling = set(map(id, state.running)), set(map(id, state.prefilling))
    swapped, ended = set(map(id, state.swapped)), set(map(id, state.ended))

    def look(name: str, seqs: Iterable[Sequence], homes: set[int], also_waiting: bool = False) -> None:
        for seq in seqs:
            if id(seq) not in homes and not (also_waiting and seq in state.waiting):
                raise PolicyError(
                    f"plan.{name} names request {seq.id}, which {_where(seq)} and does not stand in this state. Take "
                    "requests from the state of this very step (what an earlier one held may have ended since), and change "
                    "nothing in them, such as their priority: the engine would not find them again."
                )

    look("decode", plan.decode, running | swapped)
    look("prefill", (c.seq for c in plan.prefill), prefilling | swapped, also_waiting=True)
    look("admit", (a.seq for a in plan.admit), set(), also_waiting=True)
    look("preempt", (v.seq for v in plan.preempt), running | prefilling)
    look("resume", plan.resume, swapped)
    look("refuse", (s for s, _ in plan.refuse), set(), also_waiting=True)
    look("fail", (s for s, _ in plan.fail), running | prefilling)
    look("release", plan.release, ended)
    look("wasted", plan.wasted, ended)


def _where(seq: Sequence) -> str:
    if seq.state is RequestState.FINISHED:
        return f"has ended ({seq.finish_reason})"
    return f"is {seq.state.value}"


def check_fits(ok: bool | int, p: Planner, what: str, run: bool = False) -> None:
    """Raise PolicyError, with what is free after the plan so far, unless ok."""
    if not ok:
        limits = p.state.limits
        longest = f", the longest run of them {max(map(len, p.free_map().split(bytes(1))))}" if run else ""
        raise PolicyError(
            f"the plan wants to {what}, but there are {p.free_slots} free slots of {limits.max_batch_size} and "
            f"{p.free_blocks} free blocks of {limits.num_blocks} ({limits.block_size} tokens each) left at that point"
            f"{longest}."
        )


def two_steps(reserving: Sequence, resuming: Sequence) -> PolicyError:
    """The error of a plan that resumes one request and reserves a run of blocks for another."""
    return PolicyError(
        f"request {reserving.id} can't be promised consecutive blocks in the step that resumes request {resuming.id}, "
        "whose KV comes back into any free blocks. Resume in one step, reserve in another."
    )
