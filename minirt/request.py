"""What a caller asks for (Request), what the engine knows of it (Sequence), what comes back (Output).

A Request is a description and never changes, so that one list of requests can be served by
several engines and compared. All that moves while it is served lives in a Sequence, which the
engine makes for it and a policy may read.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from .errors import RequestError

GREEDY_BELOW = 1e-5  # logits divided by less than this leave float32, and the likeliest token has all the probability

if TYPE_CHECKING:
    from .blocks import BlockTable


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen from the logits.

    temperature: 0 (and whatever is below GREEDY_BELOW, 1e-5) is greedy; otherwise logits are divided by it.
    top_k: keep the k likeliest tokens (0 = all). top_p: keep the smallest set whose probability
    reaches p (1.0 = all; Holtzman et al., 2020). seed: draws depend on (seed, position) alone,
    never on what else is in the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class RequestState(str, enum.Enum):
    """Where a request is in its life. A preempted request goes back to WAITING (recompute) or SWAPPED."""

    ARRIVING = "arriving"  # its arrival time has not come yet
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued.

    prompt: text (the model's chat template is applied where it has one), or prompt_ids: token ids
    taken as they are; exactly one of the two. max_new_tokens: at least 1. arrival: when it joins the
    queue, in the clock's unit (steps or seconds). priority: a whole number, lower is served first. temperature,
    top_p, top_k, seed: see SamplingParams; a temperature below 1e-5 is greedy as 0 is; seed None is 0. stop: strings
    that end the answer; the text ends before them (token_ids hold them).
    name: a label for pictures. Raises RequestError on a value that can't be served.
    """

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | list[int] | None = None
    max_new_tokens: int = 64
    arrival: float = 0.0
    ignore_eos: bool = False
    priority: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompt_ids is None):
            raise RequestError("a request needs exactly one of prompt= (text) and prompt_ids= (token ids).")
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise RequestError(
                f"prompt= must be a string, not {type(self.prompt).__name__}; for token ids use prompt_ids=."
            )
        if self.prompt is not None and not self.prompt.strip():
            raise RequestError("prompt= is empty: there is nothing to continue. Pass at least one word.")
        if self.prompt is not None and not _is_unicode(self.prompt):
            raise RequestError(
                "prompt= holds half of a surrogate pair, which is no character. It was probably cut or decoded wrongly; "
                "prompt.encode('utf-8', 'replace').decode() replaces it."
            )
        if self.prompt_ids is not None:
            object.__setattr__(self, "prompt_ids", _checked_ids(self.prompt_ids))
        self._whole("max_new_tokens", 1, "ask for at least one token")
        self._whole("top_k", 0, "0 keeps all tokens")
        self._whole("priority", None, "lower is served first")
        if self.seed is not None:
            self._whole("seed", None, "or None, which is 0")
        self._number("arrival", lambda x: 0.0 <= x < math.inf, "0 or later, and finite")
        self._number("temperature", lambda x: 0.0 <= x < math.inf, "0 (greedy) or a positive number")
        self._number("top_p", lambda x: 0.0 < x <= 1.0, "above 0 and at most 1 (1 keeps all tokens)")
        if self.name is not None and not isinstance(self.name, str):
            raise RequestError(f"name={self.name!r} must be a string.")
        if self.name is not None and not _is_unicode(self.name):
            raise RequestError(f"name={self.name!r} holds half of a surrogate pair, which is no character.")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos={self.ignore_eos!r} must be True or False.")
        stop = self.stop
        if stop is not None:
            stop = (stop,) if isinstance(stop, str) else stop
            if not isinstance(stop, (tuple, list)) or not all(isinstance(s, str) and s for s in stop):
                raise RequestError(f"stop={self.stop!r} must be one or more strings that are not empty.")
            object.__setattr__(self, "stop", tuple(stop))

    # Numbers become Python's own (from NumPy's, say), since a trace is saved as JSON.
    def _whole(self, name: str, least: int | None, hint: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
            limit = "" if least is None else f" of at least {least}"
            raise RequestError(f"{name}={value!r} must be a whole number{limit} ({hint}).")
        object.__setattr__(self, name, int(value))

    def _number(self, name: str, ok: Callable[[float], bool], limit: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real) or not ok(_float(value)):
            raise RequestError(f"{name}={value!r} must be {limit}.")
        object.__setattr__(self, name, float(value))

    @property
    def sampling(self) -> SamplingParams:
        """The sampling part of this request."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.seed or 0)


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond what a float holds
        return math.inf


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _checked_ids(ids: Iterable[int]) -> tuple[int, ...]:
    if isinstance(ids, (set, frozenset, dict, bytes, bytearray)):
        raise RequestError(f"prompt_ids= must be a sequence of whole numbers, not {type(ids).__name__}; use a list.")
    try:
        out = tuple(operator.index(i) for i in ids)
    except TypeError as e:
        raise RequestError(f"prompt_ids= must be a sequence of whole numbers ({e}).") from None
    if not out:
        raise RequestError("prompt_ids= is empty: there is nothing to continue. Pass at least one token id.")
    if min(out) < 0:
        raise RequestError(f"prompt_ids= holds the negative id {min(out)}; ids start at 0.")
    return out


@dataclass(slots=True, eq=False)
class Sequence:
    """A request while it is served: its tokens, how many of them are in the KV cache, its slot and blocks.

    One rule covers prefill, decode and recompute: `tokens` holds prompt and answer so far, `num_computed`
    of them are in the cache, and a forward computes some of the `remaining`. When remaining reaches 0
    the last position's logits give the next token. A decode is simply remaining == 1.
    """

    id: int
    request: Request
    tokens: list[int]
    num_prompt: int
    arrival: float
    state: RequestState = RequestState.ARRIVING
    num_computed: int = 0
    slot: int = -1
    table: BlockTable | None = None
    admitted_order: int = -1  # rises with every admission: the last admitted has the largest
    num_preempted: int = 0
    finish_reason: str | None = None
    error: str | None = None
    ended: bool = False  # its answer is complete; under a static batch it may still hold its slot
    num_swapped: int = 0  # blocks it owns in host memory while SWAPPED
    num_wasted: int = 0  # steps in which it was computed after its end
    last_row: int = -1  # the last step that gave it a row
    passed_over: int = 0  # later arrivals admitted before it
    priority: int = 0
    max_new_tokens: int = 0
    detokenizer: Any = None  # made when its text is followed token by token
    hashes: list[int] = field(default_factory=list)  # prefix hash of each full block of `tokens`

    @property
    def remaining(self) -> int:
        """Tokens that are known but not yet in the KV cache."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Answer tokens produced so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def max_total(self) -> int:
        """Tokens the KV cache must hold at most: the last generated token is never fed back."""
        return self.num_prompt + self.max_new_tokens - 1

    @property
    def output_ids(self) -> list[int]:
        """Answer tokens produced so far."""
        return self.tokens[self.num_prompt :]


@dataclass(slots=True)
class Output:
    """What a request came to.

    finish_reason: "stop" (end of sequence or stop string), "length" (max_new_tokens), "rejected"
    (could never be served), "aborted" (by the caller, an interrupt, or because it failed on the way).
    error says why for the last two. token_ids holds no end-of-sequence id, text ends before a stop string. arrival:
    in the clock's unit; the other times of its life are in run.metrics.requests.
    """

    id: int
    request: Request
    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    error: str | None = None
    arrival: float = 0.0
