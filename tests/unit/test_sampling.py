"""Sampling: greedy rows are argmax, draws follow the distribution and depend on (seed, position) alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minirt.model.sampling import _threshold, greedy, sample, uniform
from minirt.request import SamplingParams

VOCAB = 40
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 20, 1000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
    seed=st.integers(-(2**70), 2**70),
)


def allowed(row: torch.Tensor, p: SamplingParams) -> set[int]:
    """The tokens that may be drawn, spelled out one at a time."""
    if p.temperature == 0:
        return {int(row.argmax())}
    order = row.argsort(descending=True, stable=True).tolist()
    if p.top_k:
        order = order[: p.top_k]
    probs = ((row[order].double() - row.max()) / p.temperature).softmax(0).tolist()
    kept, mass = [], 0.0
    for token, prob in zip(order, probs):
        if kept and mass >= p.top_p - 1e-6:
            break
        kept.append(token)
        mass += prob
    least = row[kept[-1]]
    return {int(i) for i in (row >= least).nonzero()}


@settings(max_examples=200, deadline=None)
@given(st.lists(PARAMS, min_size=1, max_size=6), st.integers(0, 10**6))
def test_a_row_draws_what_it_draws_alone(params: list[SamplingParams], where: int) -> None:
    logits = torch.randn(len(params), VOCAB, generator=torch.Generator().manual_seed(where)) * 3
    positions = [where + i for i in range(len(params))]
    together = sample(logits, params, positions)
    assert together.shape == (len(params),) and together.dtype == torch.int64
    for i, p in enumerate(params):
        assert sample(logits[i : i + 1], [p], [positions[i]]).item() == together[i].item()
        assert together[i].item() in allowed(logits[i], p)


def test_greedy_is_argmax_and_does_not_mind_its_neighbours() -> None:
    logits = torch.randn(4, VOCAB)
    greedy, hot = SamplingParams(), SamplingParams(temperature=2.0)
    assert torch.equal(sample(logits, [greedy] * 4, [5] * 4), logits.argmax(-1))
    mixed = sample(logits, [hot, greedy, hot, greedy], [5] * 4)
    assert torch.equal(mixed[[1, 3]], logits.argmax(-1)[[1, 3]])


def test_draws_follow_the_distribution() -> None:
    n = 20_000
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    for p, kept in ((SamplingParams(temperature=0.8), 5), (SamplingParams(temperature=1.5, top_k=3), 3)):
        drawn = sample(row.expand(n, -1), [p] * n, list(range(n)))
        want = (row[:kept] / p.temperature).softmax(0)
        got = torch.bincount(drawn, minlength=5) / n
        assert (got[:kept] - want).abs().max() < 0.015
        assert got[kept:].sum() == 0 and got[4] == 0


def test_nucleus_keeps_the_smallest_set_that_reaches_p() -> None:
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    n = 3000
    for top_p, kept in ((0.5 - 1e-4, {0}), (0.51, {0, 1}), (0.8 + 1e-4, {0, 1, 2}), (0.96, {0, 1, 2, 3})):
        p = SamplingParams(temperature=1.0, top_p=top_p)
        drawn = sample(row.expand(n, -1), [p] * n, list(range(n)))
        assert set(drawn.tolist()) == kept


def test_equal_logits_share_one_fate() -> None:
    """bfloat16 logits are often equal: which of them top-k keeps must not depend on how a sort breaks ties."""
    row = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    p = SamplingParams(temperature=1.0, top_k=1)
    drawn = sample(row.expand(500, -1), [p] * 500, list(range(500)))
    assert set(drawn.tolist()) == {0, 1, 2}


def test_uniform_numbers() -> None:
    u = uniform([3] * 50_000, list(range(50_000)))
    assert u.dtype == np.float32 and u.min() > 0 and u.max() <= 1
    histogram = np.histogram(u, bins=20, range=(0, 1))[0]
    assert abs(histogram - 2500).max() < 250
    # Neighbouring seeds and positions have nothing to do with each other, nor is (a, b) the same as (b, a).
    v = uniform([4] * 50_000, list(range(50_000)))
    assert abs(np.corrcoef(u, v)[0, 1]) < 0.02 and abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(u[1:], v[:-1])[0, 1]) < 0.02
    assert uniform([1], [2])[0] != uniform([2], [1])[0]


def test_bfloat16_logits() -> None:
    logits = torch.randn(3, VOCAB).bfloat16()
    out = sample(logits, [SamplingParams(), SamplingParams(0.7, 5, 0.9, 1), SamplingParams(1.0)], [0, 0, 0])
    assert out.dtype == torch.int64 and out[0] == logits[0].argmax()


def test_a_short_list_is_used_only_where_it_is_enough() -> None:
    """Flat and peaked rows over a large vocabulary, against a full sort."""
    vocab = 5000
    generator = torch.Generator().manual_seed(0)
    scaled = torch.randn(6, vocab, generator=generator) * torch.tensor([[0.1], [8.0], [8.0], [3.0], [0.1], [8.0]])
    params = [
        SamplingParams(1.0, 0, 0.9),
        SamplingParams(1.0, 0, 0.9),
        SamplingParams(1.0, 40, 0.5),
        SamplingParams(1.0, 1000, 1.0),
        SamplingParams(1.0, 3000, 0.7),
        SamplingParams(1.0, 0, 0.5),
    ]
    for rows in ([1, 2, 5], [0], [3], [4], list(range(6))):
        got = _threshold(scaled[rows], [params[i] for i in rows])
        for least, i in zip(got, rows):
            kept = {int(j) for j in (scaled[i] >= least).nonzero()}
            want = allowed(scaled[i], params[i])
            assert len(kept ^ want) <= 1  # the sum that reaches p is rounded


def test_mixed_with_a_large_vocabulary() -> None:
    logits = torch.randn(8, 50_000).bfloat16()
    params = [SamplingParams(0.8, 0, 0.9, i) for i in range(8)]
    together = sample(logits, params, [3] * 8)
    assert together.tolist() == [sample(logits[i : i + 1], params[i : i + 1], [3]).item() for i in range(8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [0.0, -9.0])
def test_greedy_is_the_first_largest_in_every_dtype(dtype: torch.dtype, shift: float) -> None:
    """Also where all logits are negative, where the largest stands twice, and for no rows at all."""
    logits = (torch.randn(70, 513, generator=torch.Generator().manual_seed(3)) + shift).to(dtype)
    logits[5, 400] = logits[5, 17] = 30.0
    logits[6] = -0.0
    logits[6, 9] = 0.0
    want = [row.index(max(row)) for row in logits.float().tolist()]
    assert greedy(logits).tolist() == want
    assert greedy(logits[:0]).tolist() == [] and greedy(logits[::2]).tolist() == want[::2]
