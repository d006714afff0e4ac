"""From logits to token ids: greedy, or a draw under temperature, top-k and top-p, for all rows at once.

A draw depends on the request's seed and the position it fills, and on nothing else: not on the other
rows of the batch, not on the policy, not on whether the request was preempted on the way. So each row
gets its one random number from a hash of (seed, position), a counter-based generator (Salmon et al.,
2011, "Parallel random numbers: as easy as 1, 2, 3"), instead of from a generator that keeps state.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..request import GREEDY_BELOW, SamplingParams

SHORT = 256  # tokens to look for a nucleus in, before the whole vocabulary is sorted


def sample(logits: Tensor, params: Seq[SamplingParams], positions: Seq[int]) -> Tensor:
    """Token ids [S] int64 for logits [S, vocab]. positions: the place in its sequence that each token will fill.

    Rows with a temperature of 0, or below GREEDY_BELOW, take the likeliest token, whatever the other rows do."""
    likeliest = greedy(logits)
    rows = [i for i, p in enumerate(params) if p.temperature >= GREEDY_BELOW]
    if not rows:
        return likeliest
    chosen = [params[i] for i in rows]
    device = logits.device
    at = torch.tensor(rows, device=device)
    u = uniform([p.seed for p in chosen], [positions[i] for i in rows])
    picked = logits[at] if len(rows) < len(params) else logits
    drawn = _draw(picked.float(), chosen, torch.from_numpy(u).to(device))
    return likeliest.index_copy_(0, at, drawn)


def _draw(logits: Tensor, params: Seq[SamplingParams], u: Tensor) -> Tensor:
    """One token a row. logits: [S, vocab] float32; u: [S] in (0, 1]."""
    device = logits.device
    temperature = torch.tensor([p.temperature for p in params], device=device, dtype=torch.float32)
    # The maximum goes first: a temperature near 0 then gives 0 and -inf instead of inf - inf.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
    narrowed = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0]
    if narrowed:
        at = torch.tensor(narrowed, device=device)
        least = torch.full((len(params),), -torch.inf, device=device)
        least.index_copy_(0, at, _threshold(scaled[at], [params[i] for i in narrowed]))
        scaled = scaled.masked_fill(scaled < least[:, None], -torch.inf)
    # Inverse transform: the first token at which the summed probability reaches u. u is above 0, so a token
    # that was masked out (where the sum does not rise) is never the first. Logits that are no numbers have no such token:
    # they get the last id, one row of nonsense instead of an id that does not exist.
    cdf = scaled.softmax(-1, dtype=torch.float32).cumsum(-1)
    return torch.searchsorted(cdf, u[:, None] * cdf[:, -1:]).squeeze(-1).clamp_max(logits.shape[-1] - 1)


def _threshold(scaled: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """The least logit each row keeps, [S]. Working with a value instead of a set of indices makes equal
    logits share one fate, so that the result does not depend on how a sort breaks ties."""
    vocab, device = scaled.shape[-1], scaled.device
    ks = [min(p.top_k, vocab) if p.top_k > 0 else vocab for p in params]
    k = torch.tensor(ks, device=device)[:, None]
    p = torch.tensor([q.top_p for q in params], device=device, dtype=torch.float32)[:, None]
    if device.type == "cpu" and max(ks) > SHORT:
        # A nucleus is nearly always a few tokens: look among the likeliest before sorting a whole vocabulary.
        # Not on a GPU, where sorting is cheap and asking "was it enough?" would make the host wait.
        least, sure = _cut(scaled, scaled.topk(SHORT).values, k, p)
        if bool(sure.all()):
            return least
    top = scaled.topk(max(ks)).values if max(ks) < vocab else scaled.sort(descending=True).values
    return _cut(scaled, top, k, p)[0]


def _cut(scaled: Tensor, top: Tensor, k: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Where top-k, and then top-p on what it left (transformers' order), cut off each row; and whether that is sure.

    top: [S, n], the n largest of scaled [S, vocab] in falling order. k, p: [S, 1]. Returns two [S]."""
    vocab, n = scaled.shape[-1], top.shape[-1]
    kept = top.masked_fill(torch.arange(n, device=top.device) >= k, -torch.inf)
    whole = torch.where(k < vocab, kept.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    probs = (kept - whole).exp()
    before = probs.cumsum(-1) - probs  # a token stays while the probability of those before it is below p
    count = ((before < p) & (kept > -torch.inf)).sum(-1, keepdim=True).clamp_min(1)
    count = torch.where(p < 1.0, count, k.clamp_max(n))
    sure = (k <= n) | ((k == vocab) & (p < 1.0) & (count < n))
    return top.gather(-1, count - 1).squeeze(-1), sure.squeeze(-1)


def greedy(logits: Tensor) -> Tensor:
    """The first largest of each row, [S] int64, for logits [S, vocab]. In float32, as transformers compares them."""
    if logits.device.type != "cpu":
        return logits.float().argmax(-1)
    # NumPy's is more than ten times as fast as torch's on a CPU. The bits of a positive float, read as a whole number,
    # stand in the float's order, and those of negative ones read as negative: bfloat16 needs no conversion.
    if logits.dtype == torch.bfloat16:
        bits = logits.contiguous().view(torch.int16).numpy()
        at = bits.argmax(-1)
        if (bits[np.arange(len(at)), at] > 0).all():
            return torch.from_numpy(at)
    # A few rows at a time stay in the processor's cache.
    parts = [part.float().numpy().argmax(-1) for part in logits.split(32)]
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, np.int64))


def uniform(seeds: Seq[int], positions: Seq[int]) -> NDArray[np.float32]:
    """One number in (0, 1] for each (seed, position), from splitmix64's mixing function (Steele et al., 2014)."""
    mask = (1 << 64) - 1
    with np.errstate(over="ignore"):  # arithmetic modulo 2 ** 64 is what is wanted
        x = _mix(np.array([s & mask for s in seeds], dtype=np.uint64))
        x = _mix(x + np.asarray(positions, dtype=np.uint64))
    # 24 bits are what a float32 holds exactly.
    return (((x >> np.uint64(40)).astype(np.int64) + 1) / float(1 << 24)).astype(np.float32)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
