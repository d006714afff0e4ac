"""How long requests are: distributions of token counts, and the Azure trace's published percentiles.

A `Lengths` is any function from a random.Random to a whole number of tokens, at least 1. See minirt.workloads,
which exports all of this and joins lengths with arrival times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from .errors import ConfigError

Lengths = Callable[[Random], int]


def constant(tokens: int) -> Lengths:
    """Always the same length."""
    positive("tokens", tokens)
    return lambda rng: tokens


def uniform(least: int, most: int) -> Lengths:
    """Every length from `least` to `most`, both included, equally likely."""
    positive("least", least)
    if most < least:
        raise ConfigError(f"uniform lengths: most={most} is below least={least}.")
    return lambda rng: rng.randint(least, most)


def exponential(mean: float, cap: int | None = None) -> Lengths:
    """Exponential with this mean (before rounding up to 1 and cutting at `cap`): most short, some very long.

    The output lengths of Anyscale's comparison of static and continuous batching (2023) are drawn like this.
    """
    positive("mean", mean)
    return lambda rng: _clip(rng.expovariate(1.0 / mean), cap)


def lognormal(median: float, sigma: float, cap: int | None = None) -> Lengths:
    """Lognormal: its median, and sigma, the standard deviation of the logarithm (0.5 mild, 1.5 long-tailed)."""
    positive("median", median)
    if sigma < 0:
        raise ConfigError(f"lognormal lengths: sigma={sigma} must be 0 or more.")
    return lambda rng: _clip(rng.lognormvariate(math.log(median), sigma), cap)


def choice(values: Sequence[int], weights: Sequence[float] | None = None) -> Lengths:
    """One of `values`, with these weights (equal where not given)."""
    for v in values:
        positive("a value", v)
    return lambda rng: rng.choices(values, weights)[0]


@dataclass(frozen=True)
class PercentileTable:
    """A length distribution known by its percentiles: drawn by inverting the table (inverse CDF).

    points: (percent, tokens), from 0 to 100, both rising. Between two points the inverse is low + (high - low) u^k.
    k = 1 would be straight lines, which weigh long tails too much (the code trace's mean output would come out a
    third too large); where the published `mean` is known, k is chosen so that the distribution has it.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    mean: float | None = None

    def __post_init__(self) -> None:
        p = self.points
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in zip(p, p[1:]))
        if len(p) < 2 or p[0][0] != 0 or p[-1][0] != 100 or not rising or p[0][1] < 1:
            raise ConfigError(f"{self.name}: points must rise from percent 0 (at least 1 token) to percent 100: {p}")

    @property
    def bend(self) -> float:
        """k: each stretch averages low + (high - low) / (k + 1), so the mean gives k in closed form."""
        if self.mean is None:
            return 1.0
        stretches = [((b[0] - a[0]) / 100, a[1], b[1]) for a, b in zip(self.points, self.points[1:])]
        lows = sum(w * low for w, low, _ in stretches)
        highs = sum(w * high for w, _, high in stretches)
        if not lows < self.mean < highs:
            raise ConfigError(
                f"{self.name}: mean={self.mean} is outside what the points allow: {lows:.1f} to {highs:.1f}."
            )
        return (highs - lows) / (self.mean - lows) - 1

    def quantile(self, percent: float) -> float:
        """Tokens at this percent (0 to 100), not rounded."""
        at = [q for q, _ in self.points]
        i = min(bisect_right(at, percent), len(at) - 1)
        (p0, low), (p1, high) = self.points[i - 1], self.points[i]
        u: float = (percent - p0) / (p1 - p0)
        return low + (high - low) * math.pow(u, self.bend)

    def __call__(self, rng: Random) -> int:
        return max(1, round(self.quantile(100 * rng.random())))


# Azure LLM inference trace 2023 (AzurePublicDataset), one hour of production requests to two services; CC-BY.
# Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024.
# Only percentiles and means are kept here; prompt and answer lengths are drawn independently, as the trace's are not.
_PERCENTS = (0, 1, 10, 25, 50, 75, 90, 95, 99, 100)


def _azure(name: str, mean: float, *tokens: float) -> PercentileTable:
    return PercentileTable(name, tuple(zip(_PERCENTS, tokens)), mean)


AZURE_CONV_PROMPT = _azure("conv prompt", 1154.7, 2, 29, 207, 396, 1020, 1189, 2734.5, 4083, 4142, 14050)
AZURE_CONV_OUTPUT = _azure("conv output", 211.1, 7, 16, 54, 85, 129, 395, 424, 451, 601, 1000)
AZURE_CODE_PROMPT = _azure("code prompt", 2047.8, 3, 17, 147, 578, 1469, 2744.5, 5187.6, 7303.3, 7436, 7437)
AZURE_CODE_OUTPUT = _azure("code output", 27.9, 6, 6, 7, 9, 13, 24, 55, 90, 251.5, 1899)


def _clip(x: float, cap: int | None) -> int:
    n = max(1, math.ceil(x))
    return n if cap is None else min(n, cap)


def positive(what: str, value: float) -> None:
    """Raise ConfigError unless value is above 0."""
    if not value > 0:
        raise ConfigError(f"{what}={value!r} must be above 0.")
