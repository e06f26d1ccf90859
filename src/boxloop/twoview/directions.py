r"""Main directions of conditional covariances, which signed weights may make indefinite.

.. math:: C(y) = \sum_n w_n(y) (\theta_n - \bar\theta)(\theta_n - \bar\theta)^\top, \qquad
    \bar\theta = \sum_n w_n(y) \theta_n
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.numeric import generator, normal, product
from boxloop.tree import Tree
from boxloop.twoview.errors import deviation_error
from boxloop.twoview.influence import ROOM, Side

if TYPE_CHECKING:
    from boxloop.twoview.conditional import Conditional, Function
    from boxloop.twoview.expectation import Expectation

DENSE = 400
"""Functions up to which a covariance is a matrix."""

SPARE = 8
"""Directions beside those wanted that a search carries along."""

DEPTH, ROUNDS, CLOSE = 6, 8, 1e-8
"""Blocks of a Krylov space, times that it is begun anew, and the residual beside the largest value at which it ends."""


@dataclass(frozen=True)
class Sums(Tree):
    """Something added up over rows for some of the given points."""

    of: Tensor


def directions(of: Conditional, theta: Function | None, a: Side, rank: int) -> tuple[Tensor, Tensor]:
    """Largest eigenvalues and their vectors of each conditional covariance, (m, rank) and (m, p, rank).

    A matrix and its decomposition up to 400 functions; beyond, a block Krylov space with Rayleigh and Ritz's values,
    which finds the largest eigenvalues of an indefinite matrix as well, in a few passes over the rows a block.
    """
    origin = of.values(theta, of.first_rows).mean(0)

    def value(rows: Tensor) -> Tensor:
        return of.values(theta, rows) - origin

    weight = a.kept * of.basis.eta
    p = len(origin)
    mean = product(weight, of.averaged(value).kept.mT)
    search = _dense if p <= DENSE else _searched
    some = max(1, 4 * ROOM // (p * p if p <= DENSE else p * (rank + SPARE) * DEPTH))
    parts = [
        search(_Operator(of, value, weight[i : i + some], mean[i : i + some]), rank)
        for i in range(0, len(a), some)
    ]
    values, vectors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(vectors)


@dataclass(frozen=True)
class _Operator:
    """The covariances of some given points, applied by passes over the rows."""

    of: Conditional
    value: Function
    weight: Tensor
    mean: Tensor

    def matrices(self) -> Tensor:
        """(m, p, p)."""

        def add(rows: Tensor, weight: Tensor) -> Sums:
            tile = self.of.tile(rows, weight, self.value)
            signed = product(tile.u, self.weight.mT) * tile.share[:, None]
            return Sums(torch.stack([product((tile.value * w[:, None]).mT, tile.value) for w in signed.mT]))

        return self.of.source.reduce(add).of - self.mean[:, :, None] * self.mean[:, None, :]

    def __call__(self, block: Tensor) -> Tensor:
        """C times (m, p, s), without C."""

        def add(rows: Tensor, weight: Tensor) -> Sums:
            tile = self.of.tile(rows, weight, self.value)
            signed = product(tile.u, self.weight.mT) * tile.share[:, None]
            parts = zip(signed.mT, block, strict=True)
            return Sums(
                torch.stack([
                    product(tile.value.mT, product(tile.value, z) * w[:, None]) for w, z in parts
                ])
            )  # fmt: skip

        return self.of.source.reduce(add).of - self.mean[:, :, None] * (self.mean[:, None, :] @ block)


def _dense(matrix: _Operator, rank: int) -> tuple[Tensor, Tensor]:
    found = matrix.matrices()
    values, vectors = torch.linalg.eigh(0.5 * (found + found.mT))
    return values[:, -rank:].flip(1), vectors[..., -rank:].flip(2)


def _searched(matrix: _Operator, rank: int) -> tuple[Tensor, Tensor]:
    """Largest eigenpairs by a block Krylov space, begun anew from its best vectors until they stand still."""
    (m, p), size = matrix.mean.shape, rank + SPARE
    start = normal((p, size), generator(0)).to(matrix.mean).expand(m, p, size)
    block = torch.linalg.qr(start.contiguous()).Q
    for _ in range(ROUNDS):
        basis, image = block, matrix(block)
        turned = [image]
        for _ in range(1, min(DEPTH, p // size)):
            fresh = _away(_away(turned[-1], basis), basis)
            block = torch.linalg.qr(fresh).Q
            block = torch.linalg.qr(_away(block, basis)).Q
            turned.append(matrix(block))
            basis = torch.cat([basis, block], 2)
        image = torch.cat(turned, 2)
        small = basis.mT @ image
        values, inner = torch.linalg.eigh(0.5 * (small + small.mT))
        best = inner[..., -size:].flip(2)
        block = basis @ best
        values = values[:, -size:].flip(1)
        left = (image @ best - block * values[:, None, :])[..., :rank].norm(dim=1)
        largest = small.diagonal(dim1=1, dim2=2).abs().amax(1).clamp(min=1e-300)
        wanted = values[:, :rank] > 0.0
        if not bool(((left > CLOSE * largest[:, None]) & wanted).any()):
            break
        block = torch.linalg.qr(block).Q
    else:
        warn_caller(
            f"main directions of a conditional covariance are right to {float((left / largest[:, None]).max()):.1g} "
            "of its largest variance only: neighbouring variances are nearly equal",
            UserWarning,
        )
    return values[:, :rank], block[..., :rank]


def _away(block: Tensor, basis: Tensor) -> Tensor:
    return block - basis @ (basis.mT @ block)


def projected_errors(expectation: Expectation, direction: Tensor, variance: Tensor) -> Tensor:
    """Standard errors of standard deviations along a direction for each given point, (m,)."""
    of, theta = expectation.conditional, expectation.theta
    centre = torch.from_numpy(expectation.mean).to(direction)
    parts, some = [], 4096
    for i in range(0, len(direction), some):
        here = slice(i, i + some)
        line, middle = direction[here], (centre[here] - expectation.origin).mul(direction[here]).sum(1)

        def spread(rows: Tensor, line: Tensor = line, middle: Tensor = middle) -> Tensor:
            along = product(of.values(theta, rows) - expectation.origin, line.mT)
            return (along - middle).square()

        parts.append(of.single_errors(expectation.given[here], spread))
    return deviation_error(variance, torch.cat(parts))
