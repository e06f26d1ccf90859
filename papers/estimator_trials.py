"""Estimators of appendix A on drawn samples: how far they miss, what they say of it, and whether they cover."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.fit import Estimate, huber, m_estimate, match_moments, quantile, quantile_step, z_estimate
from boxloop.numeric import generator, normal

RATE = 2.0
CHANCE = 0.3
GROWTH = 0.5 * 0.5 + 2.0 * 2.0 * 0.5 * math.sqrt(2.0 / math.pi) + 3.0
"""n times the variance of the slope when x is normal and the noise has deviation 1/2 + |x|: E[x^2 (1/2 + |x|)^2]."""
COMMON = 0.25 + math.sqrt(2.0 / math.pi) + 1.0
"""What the information says instead: E[(1/2 + |x|)^2]."""

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A law to draw from, an estimator, and what is known of both.

    Args:
        name: of the estimator.
        draw: n rows from a stream.
        estimate: from rows, with weights if any.
        truth: the parameter that is judged.
        spread: n times the estimator's variance as n grows, in closed form.
        place: of the parameter among those estimated.
    """

    name: str
    draw: Callable[[int, Generator], Tensor]
    estimate: Callable[[Tensor, Tensor | None], Estimate]
    truth: float
    spread: float
    place: int = 0


def waiting_times(n: int, stream: Generator) -> Tensor:
    """Exponential rows of rate 2, (n, 1)."""
    return -torch.rand((n, 1), generator=stream, dtype=torch.float64).clamp(min=1e-300).log() / RATE


def growing_noise(n: int, stream: Generator) -> Tensor:
    """x, and y = 1 + 2 x + (1/2 + |x|) e, (n, 2)."""
    x, e = normal((n, 1), stream), normal((n, 1), stream)
    return torch.cat([x, 1.0 + 2.0 * x + (0.5 + x.abs()) * e], dim=1)


def coin_flips(n: int, stream: Generator) -> Tensor:
    """Zeros and ones, (n, 1)."""
    return (torch.rand((n, 1), generator=stream, dtype=torch.float64) < CHANCE).double()


def laplace(n: int, stream: Generator) -> Tensor:
    """A symmetric law about 1 with heavy tails and variance 2, (n, 1)."""
    first, second = waiting_times(n, stream), waiting_times(n, stream)
    return 1.0 + RATE * (first - second)


def first_moment(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.1 with T(x) = x."""
    return match_moments(lambda x: x, lambda rate: 1.0 / rate, rows, [1.0], sample_weight=weight)


def second_moment(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.1 with T(x) = x^2."""
    return match_moments(
        lambda x: x.square(), lambda rate: 2.0 / rate.square(), rows, [1.0], sample_weight=weight
    )


def both_moments(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Both statistics, weighed by their covariance."""
    return match_moments(
        lambda x: torch.cat([x, x.square()], dim=1),
        lambda rate: torch.cat([1.0 / rate, 2.0 / rate.square()]),
        rows,
        [1.0],
        sample_weight=weight,
    )


def location(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.2."""
    return z_estimate(lambda theta, x: x - theta, rows, [0.0], sample_weight=weight)


def bernoulli(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.4, by maximising the displayed log-likelihood."""
    return m_estimate(
        lambda p, x: x[:, 0] * p[0].log() + (1.0 - x[:, 0]) * torch.log1p(-p[0]),
        rows,
        [0.5],
        likelihood=True,
        sample_weight=weight,
    )


def gaussian_line(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Example A.5, by maximising its likelihood in (intercept, slope, log sigma): one sigma for all rows."""

    def density(theta: Tensor, x: Tensor) -> Tensor:
        residual = x[:, 1] - theta[0] - theta[1] * x[:, 0]
        return -theta[2] - 0.5 * residual.square() * (-2.0 * theta[2]).exp()

    return m_estimate(density, rows, [0.0, 0.0, 0.0], likelihood=True, sample_weight=weight)


def robust(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """Huber's location, bend 1.345."""
    return z_estimate(huber(1.345), rows, [0.0], sample_weight=weight)


def median(rows: Tensor, weight: Tensor | None = None) -> Estimate:
    """A step function's root; its slope is a density, which a robust spread tells the width of."""
    low, high = torch.quantile(rows[:, 0], torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    step = quantile_step(0.5, len(rows), (high - low) / 1.349)
    return z_estimate(quantile(0.5), rows, [float(rows.mean())], smooth=step, sample_weight=weight)


def huber_spread(bend: float = 1.345) -> float:
    """n times the variance of Huber's location of Laplace rows: E[psi^2] / P(|x| < b)^2."""
    inside = 1.0 - math.exp(-bend)
    square = 2.0 - math.exp(-bend) * (bend * bend + 2.0 * bend + 2.0) + bend * bend * math.exp(-bend)
    return square / inside**2


PROBLEMS = (
    Problem("A.1: first moment of waiting times", waiting_times, first_moment, RATE, RATE**2),
    Problem("A.1: second moment of waiting times", waiting_times, second_moment, RATE, 1.25 * RATE**2),
    Problem("A.2: mean of a Laplace law", laplace, location, 1.0, 2.0),
    Problem("Huber's location of a Laplace law", laplace, robust, 1.0, huber_spread()),
    Problem("median of a Laplace law", laplace, median, 1.0, 1.0),
    Problem("A.4: Bernoulli likelihood", coin_flips, bernoulli, CHANCE, CHANCE * (1.0 - CHANCE)),
    Problem("A.5: slope, noise that grows", growing_noise, gaussian_line, 2.0, GROWTH, 1),
)


@dataclass(frozen=True)
class Trials:
    """Many samples of one problem: estimates, sandwich errors, information errors (NaN where there are none)."""

    problem: Problem
    n: int
    value: Rows
    error: Rows
    information: Rows

    @property
    def miss(self) -> Rows:
        """Estimates less the truth."""
        return self.value - self.problem.truth

    def covered(self, error: Rows) -> float:
        """Share of 95% intervals that hold the truth."""
        return float((np.abs(self.miss) < 1.959964 * error).mean())


def run_trials(problem: Problem, n: int, repeats: int, seed: int) -> Trials:
    """Estimate anew on ``repeats`` samples of n rows."""
    found = []
    for i in range(repeats):
        estimate = problem.estimate(problem.draw(n, generator(seed + i)), None)
        j, inner = problem.place, estimate.information
        known = math.nan if inner is None else float(inner[j, j].sqrt())
        found.append((float(estimate.vector[j]), float(estimate.covariance[j, j].sqrt()), known))
    value, error, information = np.asarray(found).T
    return Trials(problem, n, value, error, information)


def bootstrap_error(problem: Problem, rows: Tensor, repeats: int, stream: Generator) -> float:
    """Standard deviation of the estimate over resampled rows: a resample is a weight for each row."""
    n, values = len(rows), []
    for _ in range(repeats):
        drawn = torch.randint(n, (n,), generator=stream)
        weight = torch.bincount(drawn, minlength=n).double()
        values.append(float(problem.estimate(rows, weight).vector[problem.place]))
    return float(np.std(values, ddof=1))
