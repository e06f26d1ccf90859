"""More equations than parameters: the generalised method of moments, with Hansen's test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from boxloop.fit.equations.faults import EquationError
from boxloop.fit.equations.newton import Measuring
from boxloop.fit.equations.result import JTest
from boxloop.fit.equations.search import APART, Found, find_least
from boxloop.fit.equations.sums import Measure

Steps = Literal["one", "two", "iterated"]
TOLD = {"one": "one step", "two": "two steps", "iterated": "iterated"}
DEPENDENT = 1e-10
"""Smallest eigenvalue of the correlation of the equations that is not zero."""


@dataclass(frozen=True)
class Weighed:
    """Where the last search ended, the weighting it used, and the covariance of the equations there."""

    found: Found
    whiten: Tensor
    meat: Tensor


def find_weighed(
    measure: Measuring,
    start: Tensor,
    first: Measure,
    meat: Callable[[Found | None], Tensor],
    steps: Steps,
    *,
    max_iter: int,
    tol: float,
) -> Weighed:
    r"""Parameters that make the weighted equations least.

    .. math:: \hat\theta = \arg\min_\theta \bar\psi(\theta)^\top W \bar\psi(\theta)

    W is diagonal, each equation in units of its own spread, in the first step; then the inverse of the equations'
    covariance at the last estimate, which is efficient (Hansen 1982).

    Args:
        measure: mean equations and slope at a point.
        start: (p,).
        first: what the rows say there.
        meat: covariance of the equations where a search ended, (q, q), with that of a simulation.
        steps: ``one``, ``two``, or ``iterated`` until the weighting no longer changes the estimate.
        max_iter: most rounds of each search, and most changes of weighting.
        tol: standard errors by which a parameter may miss.
    """
    whiten = torch.diag(1.0 / _spread(meat(None)))
    found = find_least(measure, whiten, start, first, max_iter=max_iter, tol=tol)
    rounds = found.n_iter
    for _ in range({"one": 0, "two": 1, "iterated": max_iter}[steps]):
        before = found.point
        whiten = inverse_factor(meat(found))
        found = find_least(measure, whiten, before, found.here, max_iter=max_iter, tol=tol)
        rounds += found.n_iter
        moved = whiten @ found.here.slope @ (found.point - before)
        if float(found.here.weight**0.5 * moved.norm()) <= APART * tol**0.5:
            break
    done = Found(found.point, found.here, rounds, found.converged)
    return Weighed(done, whiten, meat(found))


def hansen(weighed: Weighed, p: int) -> JTest:
    r"""The test of over-identification.

    .. math:: J = n\, \bar\psi(\hat\theta)^\top S^{-1} \bar\psi(\hat\theta) \sim \chi^2_{q - p}

    Its law holds at the efficient weighting, that of ``steps`` two or iterated.
    """
    here = weighed.found.here
    statistic = here.weight * float((inverse_factor(weighed.meat) @ here.mean).square().sum())
    degrees = len(here.mean) - p
    return JTest(statistic, degrees, float(stats.chi2.sf(statistic, degrees)))


def inverse_factor(covariance: Tensor) -> Tensor:
    """C with C' C the inverse of a covariance, through its correlations."""
    spread = _spread(covariance)
    correlation = covariance / spread / spread[:, None]
    values, vectors = torch.linalg.eigh(correlation)
    if float(values[0]) <= DEPENDENT * float(values[-1]):
        raise EquationError(
            f"the equations are linearly dependent: {_combination(vectors[:, 0])} does not vary"
        )
    factor = torch.linalg.cholesky(correlation)
    eye = torch.eye(len(spread), dtype=factor.dtype)
    return torch.linalg.solve_triangular(factor, eye, upper=False) / spread


def _spread(covariance: Tensor) -> Tensor:
    found = covariance.diagonal().clamp(min=0.0).sqrt()
    if not bool((found > 0).all()):
        raise EquationError(
            f"equation {int((found <= 0).float().argmax())} is the same on every row: it has no error to be weighed by"
        )
    return found


def _combination(vector: Tensor) -> str:
    parts: Sequence[int] = torch.nonzero(vector.abs() > 1e-3)[:, 0].tolist()
    return " ".join(f"{float(vector[j]):+.2g} x equation {j}" for j in parts[:4])
