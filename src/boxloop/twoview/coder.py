"""Training of a generator: rows beside their relevant variables, a linear layer with a network, its squared error.

See :mod:`boxloop.twoview.generator`, of which this is the part before there is a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, MappedSource, Standardisation, find_array
from boxloop.fit import SINGLE_PROCESS, Workers
from boxloop.models import Part
from boxloop.numeric import column_signs, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.canonical import RelevanceModel
from boxloop.twoview.moments import Products
from boxloop.types import Source

Variance = Literal["diagonal", "spherical"]

TILE = 1 << 12
"""Rows that are decoded at once where nothing is learned."""

COLLAPSED = 1e-10
"""Variance of a direction of the code, beside the largest, below which nothing is in it."""

LEAST = 0.01
"""Size at which a code starts, beside the first, however little it explains."""


@dataclass(frozen=True)
class Coder(Tree):
    """The linear layer and the network, in training: canonical variables (n, r) to standardised rows (n, d).

    Args:
        code: W, (r, k).
        decoder: (n, k) -> (n, d).
    """

    code: Tensor
    decoder: Part

    def trainable(self) -> tuple[Tensor, ...]:
        """The layer, then the network's parameters."""
        return (self.code, *self.decoder.parameters)

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """At other values of these."""
        code, *rest = learned
        return replace(self, code=code, decoder=replace(self.decoder, parameters=tuple(rest)))

    def __call__(self, variables: Tensor) -> Tensor:
        """(n, r) -> (n, d)."""
        return self.decoder(variables @ self.code)


@dataclass(frozen=True)
class SquaredError:
    r"""Mean squared error of a batch, over rows and columns, :math:`\frac{1}{nd} \sum_i w_i \|x_i - \hat x_i\|^2`.

    Args:
        variables: r; a row of the batch holds u(x), then x in standard units.
        unit: mean weight of a row.
        workers: the processes that share the rows of a batch.
    """

    variables: int
    unit: float = 1.0
    workers: Workers = SINGLE_PROCESS

    def __call__(
        self, model: Coder, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The error; there is nothing random in it."""
        mine, count = self.workers.local_rows(len(rows))
        own = rows[mine]
        apart = (model(own[:, : self.variables]) - own[:, self.variables :]).square().mean(1)
        return apart @ (weight[mine] / (self.unit * count)).to(apart), {}


@dataclass(frozen=True)
class HeldError:
    """The error on rows held out.

    Args:
        rows: u(x), then x in standard units.
        variables: r.
        workers: the processes that share them.
    """

    rows: ArraySource
    variables: int
    workers: Workers = SINGLE_PROCESS

    def __call__(self, model: Coder, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean squared error, over rows by their weight."""
        assert self.rows.weight is not None
        unit = float(self.rows.weight.mean())
        loss = SquaredError(self.variables, unit if unit > 0.0 else 1.0, self.workers)
        shares = [
            loss(model, rows, weight, stream)[0] * (len(rows) / self.rows.n_rows)
            for rows, weight in self.rows.chunks(TILE)
        ]
        return torch.stack(shares).sum(), {}


def coded(source: Source, relevance: RelevanceModel, frame: Standardisation, dtype: torch.dtype) -> Source:
    """Rows that hold u(x), then x in standard units: made once where rows are in memory, else as they are read."""

    def beside(rows: Tensor) -> Tensor:
        with torch.no_grad():
            standard = (rows - frame.origin) / frame.scale
            return torch.cat([relevance.left(rows).to(dtype), standard.to(dtype)], 1)

    mapped = MappedSource(source, beside)
    if find_array(source) is None:
        return mapped
    rows, weight = (torch.cat(parts) for parts in zip(*mapped.chunks(), strict=True))
    return ArraySource(rows, weight)


def moments_of(source: Source) -> Products:
    """Sums of products of u(x) and x over rows that hold both, (r + d)."""

    def sums(rows: Tensor, weight: Tensor) -> Products:
        both, mass = rows.double(), weight.double()
        return Products(mass.sum(), product(mass[None], both)[0], upper_gram(both, mass))

    return source.reduce(sums)


def linear_code(moments: Products, variables: int, components: int) -> Tensor:
    r"""Where the linear layer starts: the code from which the best *linear* map makes the rows.

    .. math:: W = R P_k \max(S_k / s_1, 0.01), \qquad R^\top K R = I, \; R^\top \overline{u x^\top} = P S Q^\top

    Reduced-rank regression of x on u (Izenman 1975), from averages of products.

    Deviation: document 003 does not say where its layer starts; a random start has to find these directions first.

    Args:
        moments: of u and x.
        variables: r.
        components: k.

    Returns:
        W, (r, k): uncorrelated codes, each as large as what it explains beside the first.
    """
    if variables < 1:
        raise ValueError("there are no relevant variables to make a code of: are all columns constant?")
    _, covariance = moments.moments()
    values, vectors = torch.linalg.eigh(covariance[:variables, :variables])
    kept = values > COLLAPSED * values[-1].clamp(min=1e-300)
    if components > int(kept.sum()):
        raise ValueError(
            f"n_components={components} is more than the {int(kept.sum())} relevant variables there are: "
            "lower it, or give features that have more"
        )
    root = vectors[:, kept] / values[kept].sqrt()
    left, sizes, _ = torch.linalg.svd(root.mT @ covariance[:variables, variables:], full_matrices=True)
    share = torch.full((components,), LEAST).to(left)
    share[: len(sizes)] = (sizes / sizes[0].clamp(min=1e-300))[:components].clamp(min=LEAST)
    code = root @ left[:, :components]
    return code * column_signs(code) * share


def leftover(coder: Coder, source: Source, variables: int, variance: Variance, floor: float) -> Tensor:
    """Mean square of what a coder leaves over on each column, (d,), or on all, (1,), not below a floor."""

    def squares(rows: Tensor, weight: Tensor) -> Products:
        with torch.no_grad():
            apart = (coder(rows[:, :variables]) - rows[:, variables:]).double().square()
        return Products(weight.double().sum(), weight.double() @ apart, weight.new_zeros(0))

    sums = source.reduce(squares)
    found = sums.first / sums.weight
    return (found if variance == "diagonal" else found.mean()[None]).clamp(min=floor)
