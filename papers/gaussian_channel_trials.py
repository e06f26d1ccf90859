"""Variables of a Gaussian channel, learned by networks from samples, and what they are worth under the true law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from boxloop.estimators import RelevantFeatures
from boxloop.numeric import generator, spawn
from boxloop.twoview import GaussianChannel, Significance

Array = NDArray[np.float64]

TAU, SIGMA = 1.0, 1.0
NODES = 200
"""Quadrature nodes of each of two axes."""


@dataclass(frozen=True)
class Size:
    """How much is learned from how many rows.

    Args:
        rows: of a data set.
        held: further rows, on which variables are judged.
        seeds: data sets.
        passes: over the rows.
        hidden: widths of both networks.
        variables: learned, without the constant.
    """

    rows: int
    held: int
    seeds: int
    passes: int
    hidden: tuple[int, ...]
    variables: int = 5


@dataclass(frozen=True)
class Learned:
    """Variables learned from one data set.

    Args:
        fit: the estimator.
        judged: on rows of their own.
        channel: the law of the rows.
    """

    fit: RelevantFeatures
    judged: Significance
    channel: GaussianChannel

    def variables(self, x: Tensor) -> Tensor:
        """u of values x, (n, r)."""
        with torch.no_grad():
            found: Tensor = self.fit.model_.left(x[:, None])
        return found

    @cached_property
    def under_law(self) -> tuple[Array, Array]:
        """Correlations of the pairs (r,), and of each u with the Hermite variable of its place (r,), by quadrature."""
        grid, mass = nodes(self.channel)
        x, y = grid[:, :1], grid[:, 1:]
        with torch.no_grad():
            u, v = self.fit.model_.left(x), self.fit.model_.right(y)
        known = self.channel.left(x, u.shape[1])
        return correlations(u, v, mass), np.abs(correlations(u, known, mass))

    def moments(self, y: Array) -> tuple[Array, Array]:
        """E[x | y] and E[x^2 | y] by the learned variables, (n, 2), and their standard errors."""
        found = self.fit.expect(
            lambda rows: torch.cat([rows, rows.square()], 1), given=y[:, None], direction="x_given_y"
        )
        return np.asarray(found.mean), np.asarray(found.standard_error)


def learn(channel: GaussianChannel, size: Size, seed: int) -> Learned:
    """Draw rows, train two networks, judge their canonical variables on other rows."""
    streams = spawn(generator(seed), 3)
    x, y = (part.numpy() for part in channel.draw(size.rows, streams[0]))
    fit = RelevantFeatures(
        size.variables,
        x_features="network",
        y_features="network",
        hidden=size.hidden,
        batch_size=size.rows // 10,
        learning_rate=5e-3,
        schedule="cosine",
        max_iter=size.passes,
        validation_fraction=0.0,
        random_state=streams[2],
    ).fit(x, y)
    others = (part.numpy() for part in channel.draw(size.held, streams[1]))
    return Learned(fit, fit.significance(*others), channel)


def nodes(channel: GaussianChannel, count: int = NODES) -> tuple[Tensor, Tensor]:
    """Places (x, y) of a Gauss-Hermite rule under the joint law of two columns, and their weights."""
    place, weight = (torch.from_numpy(part) for part in special.roots_hermitenorm(count))
    weight = weight / weight.sum()
    whole = torch.cat(
        [torch.cat([channel.cov_x, channel.cov_xy], 1), torch.cat([channel.cov_xy.mT, channel.cov_y], 1)]
    )
    grid = torch.cartesian_prod(place, place) @ torch.linalg.cholesky(whole).mT
    return grid, (weight[:, None] * weight).reshape(-1)


def correlations(u: Tensor, v: Tensor, mass: Tensor) -> Array:
    """Of pairs of columns, under weights that add up to 1."""
    a, b = u - mass @ u, v - mass @ v
    return np.asarray((mass @ (a * b)) / ((mass @ a.square()) * (mass @ b.square())).sqrt())


def exact_error(channel: GaussianChannel, n: int, count: int) -> Array:
    r"""Standard errors of the relevances of the exact variables on n rows, (count,), by quadrature.

    .. math:: 2 \rho \, \sqrt{E \left( u v - \tfrac12 \rho (u^2 + v^2) \right)^2 / n}

    Fourth powers of Hermite polynomials have tails that a sample seldom shows: an error from the rows themselves is
    too small as often as not.
    """
    grid, mass = nodes(channel)
    u, v = channel.left(grid[:, :1], count), channel.right(grid[:, 1:], count)
    rho = channel.relevance(count).sqrt()
    influence = u * v - 0.5 * rho * (u.square() + v.square())
    return np.asarray(2.0 * rho * (mass @ influence.square() / n).sqrt())


def inferred_density(channel: GaussianChannel, x: Array, y: float, variables: int) -> Array:
    """p(x | y) by so many variables, the constant included (document 003, eq. 52 without its p(y)); (n,)."""
    rows = torch.from_numpy(x)[:, None]
    prior = np.exp(-0.5 * x**2 / float(channel.cov_x)) / math.sqrt(2.0 * math.pi * float(channel.cov_x))
    if variables == 1:
        return np.asarray(prior)
    u = channel.left(rows, variables - 1)
    v = channel.right(torch.tensor([[y]], dtype=torch.float64), variables - 1)[0]
    return np.asarray(prior * (1.0 + (u @ (channel.relevance(variables - 1).sqrt() * v)).numpy()))
