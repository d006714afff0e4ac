"""Measure what a step costs on this machine with this model, and fit a CostModel to it.

Forwards of chosen shapes are run and timed on the backend itself: some decode only, at short and long contexts,
some prompt only, in one or several rows, some mixed, some that sample nothing. Every term of the CostModel varies
on its own somewhere among them, so a least-squares fit can tell them apart. No text is involved; KV contents don't
change the time. The engine's own share of a step is measured by running it on a backend that computes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .backends.base import Backend, BatchDecodeInput, ForwardBatch
from .backends.simulated import SimulatedBackend
from .clock import WallClock
from .engine import Engine
from .errors import ConfigError
from .presets import ModelShape
from .request import Request, Sequence
from .roofline import CostModel, Work

BLOCK_SIZE = 16


class Shape(NamedTuple):
    """A forward to be timed: `decode` rows that see `context` tokens on average, and prompt chunks (start, n).

    Contexts are spread evenly from half of that to one and a half times as much, as rows in service differ too: a
    backend that pads them to the longest one pays for it, and the fit should know.
    """

    decode: int = 0
    context: int = 0
    chunks: tuple[tuple[int, int], ...] = ()
    sampled: bool = True


def default_shapes(rows: int = 16, context: int = 512) -> list[Shape]:
    """Shapes up to `rows` rows of `context` tokens: about twenty, from the cheapest to the dearest of each kind."""
    some, short, long = max(1, rows // 4), max(1, context // 16), max(2, context)
    counts = sorted({1, max(1, rows // 8), some, max(1, rows // 2), rows})
    shapes = [Shape(n, c) for n in counts for c in (short, long // 2)]
    shapes += [Shape(1, long), Shape(rows, long), Shape(rows, short, sampled=False), Shape(some, short, sampled=False)]
    for n in (max(1, long // 16), max(1, long // 8), max(1, long // 4), max(1, long // 2)):
        shapes.append(Shape(chunks=((0, n),)))
    shapes.append(Shape(chunks=((0, max(1, long // 16)),) * some))
    shapes.append(Shape(chunks=((0, max(1, long // 8)),) * some))
    shapes.append(Shape(chunks=((long // 2, max(1, long // 8)),)))
    shapes.append(Shape(max(1, rows // 2), short, ((0, max(1, long // 8)),)))
    shapes.append(Shape(max(1, rows // 2), long // 2, ((0, max(1, long // 16)),)))
    return shapes


def make_batch(shape: Shape, vocab_size: int = 2) -> tuple[ForwardBatch, int]:
    """The ForwardBatch of a shape, with a block table for each row, and how many blocks it needs."""
    step = shape.context / max(1, shape.decode - 1)
    contexts = [max(1, round(shape.context / 2 + i * step)) for i in range(shape.decode)]
    if shape.decode == 1:
        contexts = [shape.context]
    spans = [(c - 1, 1) for c in contexts] + list(shape.chunks)
    width = max(-(-(start + n) // BLOCK_SIZE) for start, n in spans)
    tables: NDArray[np.int32] = np.arange(len(spans) * width, dtype=np.int32).reshape(len(spans), width)
    seqs = []
    for i, (start, n) in enumerate(spans):
        request = Request(prompt_ids=[1], ignore_eos=True)
        seqs.append(Sequence(i, request, [min(1, vocab_size - 1)] * (start + n), start + n, 0.0, slot=i))
    rows = list(range(len(spans))) if shape.sampled else []
    kind = ForwardBatch if shape.chunks else BatchDecodeInput
    starts, counts = [s for s, _ in spans], [n for _, n in spans]
    batch = kind(seqs, starts, counts, [0] * len(spans), shape.decode, rows, tables, BLOCK_SIZE)
    return batch, len(spans) * width


def measure(
    backend: Backend,
    shapes: list[Shape],
    budget: float = 8.0,
    now: Callable[[], float] = time.perf_counter,
) -> tuple[list[Work], list[float]]:
    """What each shape does and its median seconds. Rounds over all shapes go on until `budget` seconds are spent.

    Round by round and not shape by shape, so that a slow moment of the machine falls on all of them. The first round
    only warms up, unless it alone uses up the budget: then it is what there is.
    """
    made = [make_batch(s, backend.vocab_size) for s in shapes]
    backend.start(max(blocks for _, blocks in made), BLOCK_SIZE, 0)
    times: list[list[float]] = [[] for _ in shapes]
    start, rounds = now(), 0
    while rounds < 2 or now() - start < budget * rounds / (rounds + 1):  # is there time for one more?
        if rounds == 1:
            if now() - start > budget:
                break
            times = [[] for _ in shapes]
        for (batch, _), seen in zip(made, times):
            t = now()
            backend.execute(batch)
            seen.append(now() - t)
        rounds += 1
    return [Work.of(batch) for batch, _ in made], [median(seen) for seen in times]


def fit(works: list[Work], seconds: list[float]) -> CostModel:
    """The CostModel (combine="sum") closest to these measurements, in relative error, with no negative term.

    Least squares over every subset of the terms, of which the best one without a negative coefficient is the
    non-negative optimum; with seven terms that is 127 small problems, and no iteration that could fail.
    """
    terms = ("forward_s", "prefill_token_s", "prefill_row_s", "decode_row_s", "pair_s", "context_s", "sample_s")
    rows = [
        (1.0, w.prefill_tokens, w.prefill_rows, w.decode_rows, w.pairs, w.context_tokens, w.sampled_rows) for w in works
    ]
    t = np.asarray(seconds, np.float64)
    if len(t) < len(terms) or not (t > 0).all():
        raise ConfigError(
            f"{len(t)} measurements can't fit {len(terms)} terms: give at least {len(terms)}, all above 0 s."
        )
    x = np.asarray(rows, np.float64) / t[:, None]  # dividing by the time makes every error a relative one
    return CostModel(combine="sum", **dict(zip(terms, _non_negative(x).tolist())))


def _non_negative(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The non-negative b that minimises |x b - 1|."""
    n = x.shape[1]
    scale = np.abs(x).max(axis=0)
    scale[scale == 0] = 1.0  # columns of very different size would make the problem ill-conditioned
    best, best_error = np.zeros(n), float(len(x))
    for size in range(1, n + 1):
        for columns in map(list, combinations(range(n), size)):
            b, *_ = np.linalg.lstsq(x[:, columns] / scale[columns], np.ones(len(x)), rcond=None)
            error = float(((x[:, columns] / scale[columns] @ b - 1) ** 2).sum())
            if error < best_error and (b >= 0).all():
                best, best_error = np.zeros(n), error
                best[columns] = b / scale[columns]
    return best


def engine_overhead(shape: ModelShape, rows: int = 16, tokens: int = 64) -> tuple[float, float]:
    """Seconds a step and seconds a row that the engine itself takes (planning, bookkeeping, recording)."""
    per_step = []
    for n in (1, max(2, rows)):
        backend = SimulatedBackend(shape)
        engine = Engine(backend, "vllm", max_batch_size=n, num_blocks=n * (tokens // 8 + 1), clock=WallClock())
        run = engine.run([Request(prompt_ids=[0], max_new_tokens=tokens, ignore_eos=True)] * n)
        # From start to start: what happens between two records belongs to the step as well.
        starts = [r.time for r in run.trace]
        per_step.append(median(b - a for a, b in zip(starts, starts[1:])))
    row = max(0.0, (per_step[1] - per_step[0]) / (max(2, rows) - 1))
    return max(0.0, per_step[0] - row), row


def calibrate(
    lm: Any,
    *,
    max_batch_size: int = 16,
    max_context: int = 512,
    budget: float = 8.0,
    shapes: list[Shape] | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> CostModel:
    """A CostModel of this machine running `lm` (from load_model), for up to so many rows of so many tokens.

    Takes about `budget` seconds. Measure on a quiet machine: whatever else runs is measured too. now: the time that is
    measured (time.process_time for CPU seconds). Use it as
    `simulate(…, cost_model=calibrate(lm), model=ModelShape.of(lm))`.
    """
    from .backends.native import NativeBackend

    backend = NativeBackend(lm)
    shapes = shapes or default_shapes(max_batch_size, max(32, min(max_context, backend.max_model_len * 2 // 3)))
    model = fit(*measure(backend, shapes, budget, now))
    step, row = engine_overhead(ModelShape.of(lm), max_batch_size)
    return model.but(
        step_s=step,
        decode_row_s=model.decode_row_s + row,
        source=f"measured: {lm.name} in {str(lm.dtype).removeprefix('torch.')} on {lm.device}",
    )
