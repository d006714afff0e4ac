"""Requests to serve: how long they are, when they arrive, and the two put together.

A length is drawn by a `Lengths` (a function of a random.Random), arrival times by an `Arrivals` (a function of
a random.Random and a count), and `make_requests` joins them:

    make_requests(1000, prompt=uniform(16, 64), output=exponential(200, cap=2048), arrivals=poisson(3.0), seed=1)

Everything is seeded and comes out the same on every machine: Python's own Mersenne Twister, integers, and times
rounded to the microsecond, so that a last bit that differs between maths libraries can't show. Lengths, times
and prompt contents use separate streams: another arrival process leaves the lengths as they were.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from .errors import ConfigError
from .lengths import (
    AZURE_CODE_OUTPUT,
    AZURE_CODE_PROMPT,
    AZURE_CONV_OUTPUT,
    AZURE_CONV_PROMPT,
    Lengths,
    PercentileTable,
    choice,
    constant,
    exponential,
    lognormal,
    positive,
    uniform,
)
from .request import Request

__all__ = [
    "AZURE_CODE_OUTPUT",
    "AZURE_CODE_PROMPT",
    "AZURE_CONV_OUTPUT",
    "AZURE_CONV_PROMPT",
    "Arrivals",
    "Lengths",
    "PercentileTable",
    "article",
    "at_once",
    "azure_like",
    "bursty",
    "choice",
    "constant",
    "evenly",
    "exponential",
    "lognormal",
    "make_requests",
    "poisson",
    "read_azure_csv",
    "shared_prefix",
    "uniform",
]

Arrivals = Callable[[Random, int], list[float]]

VOCAB_SIZE = 32_000  # of the made-up prompts, unless told otherwise


# ---------------------------------------------------------------- arrivals, in the clock's unit


def at_once() -> Arrivals:
    """Everyone is there at time 0."""
    return lambda rng, n: [0.0] * n


def evenly(rate: float) -> Arrivals:
    """One every 1 / rate."""
    positive("rate", rate)
    return lambda rng, n: [round(i / rate, 6) for i in range(n)]


def poisson(rate: float) -> Arrivals:
    """A Poisson process: gaps are independent and exponential, `rate` requests a unit of time on average."""
    positive("rate", rate)
    return lambda rng, n: _running_sum(rng.expovariate(rate) for _ in range(n))


def bursty(rate: float, cv: float = 3.0) -> Arrivals:
    """Gamma-distributed gaps with the coefficient of variation `cv`: 1 is Poisson, more comes in bursts.

    Shape 1 / cv^2, scale cv^2 / rate; used so by FastServe (Wu et al., 2023) and vLLM's benchmark ("burstiness").
    """
    positive("rate", rate)
    positive("cv", cv)
    shape = 1.0 / cv**2
    return lambda rng, n: _running_sum(rng.gammavariate(shape, 1.0 / (rate * shape)) for _ in range(n))


def _running_sum(gaps: Any) -> list[float]:
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        times.append(round(now, 6))
    return times


# ---------------------------------------------------------------- both together


def make_requests(
    n: int | None = None,
    prompt: Lengths | Sequence[int] | int = 16,
    output: Lengths | Sequence[int] | int = 64,
    arrivals: Arrivals | Sequence[float] | None = None,
    *,
    seed: int = 0,
    vocab_size: int = VOCAB_SIZE,
    shared_prefix: int = 0,
    **options: Any,
) -> list[Request]:
    """Requests with these prompt and answer lengths, arriving at these times.

    n: how many (may be left out where a list of lengths or times says it). prompt, output: a distribution, a list,
    or one number, in tokens. arrivals: a process, a list of times, or None for all at once. shared_prefix: the
    first so many prompt tokens are the same in all of them, a system prompt, and come on top of `prompt`.
    Prompts are random ids below vocab_size. Answers have exactly the length drawn (ignore_eos=True, unless
    `options`, which go to every Request, say otherwise). Raises ConfigError where lengths and n disagree.
    """
    given = {
        what: len(x)
        for what, x in (("prompt", prompt), ("output", output), ("arrivals", arrivals))
        if isinstance(x, Sequence)
    }
    if n is None:
        if not given:
            raise ConfigError("make_requests needs n=, or a list of lengths or arrival times.")
        n = next(iter(given.values()))
    wrong = {what: k for what, k in given.items() if k != n}
    if n < 1 or wrong:
        raise ConfigError(f"make_requests: n={n} requests, but these lists have another length: {wrong or given}.")
    if vocab_size < 1 or shared_prefix < 0:
        raise ConfigError(f"vocab_size={vocab_size} must be at least 1 and shared_prefix={shared_prefix} at least 0.")
    prompts = _draw(prompt, n, _stream(seed, "prompt"))
    outputs = _draw(output, n, _stream(seed, "output"))
    if arrivals is None or isinstance(arrivals, Sequence):
        times = list(arrivals or [0.0] * n)
    else:
        times = arrivals(_stream(seed, "arrivals"), n)
    words = _stream(seed, "words")
    ids = list(range(vocab_size))  # one int object an id, shared by all prompts: ten million ids fit in memory
    prefix = words.choices(ids, k=shared_prefix)
    options = {"ignore_eos": True, **options}
    return [
        Request(prompt_ids=prefix + words.choices(ids, k=p), max_new_tokens=o, arrival=t, **options)
        for p, o, t in zip(prompts, outputs, times)
    ]


def _stream(seed: int, what: str) -> Random:
    return Random(f"minirt {what} {seed}")  # a string seeds through SHA-512, the same everywhere


def _draw(lengths: Lengths | Sequence[int] | int, n: int, rng: Random) -> list[int]:
    if isinstance(lengths, int):
        return [lengths] * n
    if isinstance(lengths, Sequence):
        return list(lengths)
    return [lengths(rng) for _ in range(n)]


def article(n: int = 60, seed: int = 2024, least: int = 4, most: int = 12) -> list[Request]:
    """The illustrated article's simulation: 60 requests, 4 to 12 tokens each, seed 2024, all there at once.

    The article has no prompts; here each is one token long, so that a step gives every row one token and the
    counts are the article's own: with 8 slots 510 tokens in 91 static and 69 continuous steps.
    """
    rng = Random(seed)
    lengths = [rng.randint(least, most) for _ in range(n)]
    return make_requests(prompt=1, output=lengths, seed=seed, vocab_size=100)


def azure_like(
    n: int, service: str = "conv", arrivals: Arrivals | None = None, *, seed: int = 0, **options: Any
) -> list[Request]:
    """Requests with the lengths of the Azure trace 2023, service "conv" or "code", drawn from its percentiles."""
    tables = {"conv": (AZURE_CONV_PROMPT, AZURE_CONV_OUTPUT), "code": (AZURE_CODE_PROMPT, AZURE_CODE_OUTPUT)}
    if service not in tables:
        raise ConfigError(f"unknown service {service!r}; the trace has {', '.join(tables)}.")
    prompt, output = tables[service]
    return make_requests(n, prompt, output, arrivals, seed=seed, **options)


def shared_prefix(
    n: int,
    prefix: int = 512,
    prompt: Lengths | Sequence[int] | int = 64,
    output: Lengths | Sequence[int] | int = 64,
    arrivals: Arrivals | None = None,
    **options: Any,
) -> list[Request]:
    """Requests that all begin with the same `prefix` tokens (a system prompt), each followed by its own."""
    return make_requests(n, prompt, output, arrivals, shared_prefix=prefix, **options)


# ---------------------------------------------------------------- recorded traces

AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_azure_csv(
    path: str | Path,
    limit: int | None = None,
    *,
    time_scale: float = 1.0,
    max_total: int | None = None,
    seed: int = 0,
    vocab_size: int = VOCAB_SIZE,
    **options: Any,
) -> list[Request]:
    """Requests from a file in the Azure trace's format: TIMESTAMP, ContextTokens, GeneratedTokens.

    limit: only the first so many. time_scale: arrival times, seconds since the first row, are multiplied by it (0.5:
    twice the load; 0: all at once). max_total: rows with more tokens than this in sum are left out (a model's
    longest context). Raises ConfigError naming the line that can't be read.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file. The reader wants a CSV with columns {', '.join(AZURE_COLUMNS)}.")
    if not time_scale >= 0:
        raise ConfigError(f"time_scale={time_scale} must be 0 or more.")
    prompts: list[int] = []
    outputs: list[int] = []
    times: list[float] = []
    first: datetime | None = None
    with path.open(encoding="utf-8-sig", newline="") as f:
        rows = csv.reader(f)
        head = next(rows, [])
        if [c.strip() for c in head] != AZURE_COLUMNS:
            raise ConfigError(f"{path}, line 1: columns {head} where {AZURE_COLUMNS} should be.")
        for row in rows:
            if not row:
                continue
            if limit is not None and len(prompts) >= limit:
                break
            stamp, context, generated = _azure_row(path, rows.line_num, row)
            first = first or stamp
            if max_total is not None and context + generated > max_total:
                continue
            since = (stamp - first).total_seconds()
            if since < 0 or (times and since * time_scale < times[-1]):
                raise ConfigError(f"{path}, line {rows.line_num}: TIMESTAMP {row[0]} is earlier than the row above it.")
            prompts.append(context)
            outputs.append(generated)
            times.append(since * time_scale)
    if not prompts:
        raise ConfigError(f"{path}: no requests in it" + (f" of at most {max_total} tokens." if max_total else "."))
    return make_requests(None, prompts, outputs, times, seed=seed, vocab_size=vocab_size, **options)


def _azure_row(path: Path, line: int, row: list[str]) -> tuple[datetime, int, int]:
    where = f"{path}, line {line}"
    if len(row) != 3:
        raise ConfigError(f"{where}: {len(row)} fields where there should be 3: {row}")
    try:
        # Seven decimals in the file, six in a datetime.
        stamp = datetime.fromisoformat(row[0].strip()[:26])
    except ValueError:
        raise ConfigError(f"{where}: TIMESTAMP {row[0]!r} is not like 2023-11-16 18:15:46.6805900.") from None
    numbers = []
    for name, text in zip(AZURE_COLUMNS[1:], row[1:]):
        if not text.strip().isdecimal() or int(text) < 1:
            raise ConfigError(f"{where}: {name} {text!r} must be a whole number of at least 1.")
        numbers.append(int(text))
    return stamp, numbers[0], numbers[1]
