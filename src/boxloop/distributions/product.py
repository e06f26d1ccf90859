r"""Families whose columns are independent: a mixture of them is two matrix products.

With elementwise statistics :math:`t(x_j)`, natural parameters :math:`\eta_{kj}` and log-partition :math:`A_{kj}`,

.. math:: \log p_k(x) = \sum_j \eta_{kj} \cdot t(x_j) - A_{kj} + \log h(x_j) = (W \Phi)_{k}

so that all log-densities are :math:`W\Phi` and all statistics :math:`R\Phi^\top`. A missing value drops its column's
term; its expected statistic is the member's own mean. Le Corff, appendix A.8.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from boxloop.distributions.family import Sums, View
from boxloop.numeric import has_missing, product, sparse_product
from boxloop.tree import Tree


def alternating_signs(like: Tensor, pieces: int) -> Tensor:
    """Multipliers (pieces, d) from 1 down to -1, their signs alternating_signs over the d columns of ``like``."""
    sign = torch.ones_like(like)
    sign[1::2] = -1.0
    return torch.linspace(1.0, -1.0, pieces, dtype=like.dtype, device=like.device)[:, None] * sign


@dataclass(frozen=True)
class ProductFamily(Tree):
    """k members with independent columns. A subclass gives the elementwise facts; nothing is overridden."""

    linear: ClassVar[bool] = False
    """Whether the statistics are the values themselves, so that zeros cost nothing."""

    @abstractmethod
    def elementwise_statistics(self, columns: Tensor) -> Tensor:
        """Elementwise statistics of (d, n), stacked: (q d, n)."""

    @abstractmethod
    def natural_parameters(self) -> Tensor:
        """Natural parameters, in the order of ``elementwise_statistics``: (k, q d)."""

    @abstractmethod
    def log_partition(self) -> Tensor:
        """Log-normaliser of each column, (k, d)."""

    @abstractmethod
    def expected_statistics(self) -> Tensor:
        """Mean of each elementwise statistic, (k, q d)."""

    @abstractmethod
    def log_base(self, rows: Tensor) -> Tensor | None:
        """Log base measure of each row, (n,), where it is not zero; NaN counts as nothing."""

    @abstractmethod
    def perturb(self, member: int, pieces: int) -> Tensor:
        """Mean statistics of slightly different copies of a member, (pieces, q d)."""

    @abstractmethod
    def fit_statistics(self, statistics: Sums) -> Self:
        """Members that match the averaged statistics."""

    def view(self, rows: Tensor) -> View[Sums]:
        """Features of a tile, with or without missing values, dense or sparse CSR."""
        if rows.layout != torch.strided:
            if self.linear and not has_missing(rows.values()):
                return LinearView(self.natural_parameters(), -self.log_partition().sum(1), rows)
            rows = rows.to_dense()
        columns = rows.mT.contiguous()
        centred = self.centred_view(columns)
        if centred is not None:
            return centred
        return MissingValueView(self, columns) if has_missing(columns) else CompleteView(self, columns)

    def centred_view(self, columns: Tensor) -> View[Sums] | None:
        """A view that keeps more digits, where a family needs one for these columns."""
        return None

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n)."""
        joint = self.view(rows).log_joint(self.log_partition().new_zeros(self.log_partition().shape[0]))
        base = self.log_base(rows)
        return joint if base is None else joint + base

    def expected_log_likelihood(self, statistics: Sums) -> Tensor:
        """Expected log-density of the statistics, summed over members."""
        return (
            self.natural_parameters() * statistics.features[:, 1:]
        ).sum() - statistics.count @ self.log_partition().sum(1)

    def split(self, member: int, pieces: int) -> Tensor:
        """Averaged features, (pieces, p), of distinct parts of a member that has taken all the weight."""
        moved = self.perturb(member, pieces)
        return torch.cat([moved.new_ones(pieces, 1), moved], dim=1)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return self.map(lambda leaf: leaf[index])


class CompleteView:
    """A tile without missing values: features (1, t(x)), one matrix product each way."""

    def __init__(self, family: ProductFamily, columns: Tensor) -> None:
        self.family = family
        stats = family.elementwise_statistics(columns)
        self.features: Tensor = torch.cat([stats.new_ones(1, stats.shape[1]), stats])

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density, (k, n)."""
        constant = offset - self.family.log_partition().sum(1)
        weight = torch.cat([constant[:, None], self.family.natural_parameters()], dim=1)
        return product(weight.to(self.features.dtype), self.features)

    def summarise(self, share: Tensor) -> Sums:
        """Features weighted by ``share`` and summed over rows."""
        return Sums(product(share, self.features.mT).double())


class LinearView:
    """A tile whose statistics are its values, dense or sparse CSR."""

    def __init__(self, natural: Tensor, constant: Tensor, rows: Tensor) -> None:
        self.natural = natural
        self.constant = constant
        self.rows = rows
        self.dense: bool = rows.layout == torch.strided

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density, (k, n)."""
        weight = self.natural.to(self.rows.dtype).mT
        joint = product(self.rows, weight) if self.dense else sparse_product(self.rows, weight)
        return joint.mT.contiguous().add_((offset + self.constant).to(joint.dtype)[:, None])

    def summarise(self, share: Tensor) -> Sums:
        """Values weighted by ``share``, behind its sum."""
        if self.dense:
            values = product(share, self.rows)
        else:
            values = sparse_product(self.rows, share.mT.contiguous(), transpose=True).mT
        return Sums(torch.cat([share.sum(1, keepdim=True), values], dim=1).double())


class MissingValueView:
    """A tile with missing values: features (seen, t(x) where seen)."""

    def __init__(self, family: ProductFamily, columns: Tensor) -> None:
        self.family = family
        seen = ~torch.isnan(columns)
        stats = family.elementwise_statistics(torch.where(seen, columns, 0.0))
        self.seen: Tensor = seen.to(stats.dtype)
        repeat = stats.shape[0] // columns.shape[0]
        self.features: Tensor = torch.cat([self.seen, stats * self.seen.repeat(repeat, 1)])

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density of the values present, (k, n)."""
        weight = torch.cat([-self.family.log_partition(), self.family.natural_parameters()], dim=1).to(
            self.features.dtype
        )
        return product(weight, self.features) + offset.to(weight.dtype)[:, None]

    def summarise(self, share: Tensor) -> Sums:
        """Expected features: sums over values present, each member's own mean for the others."""
        sums = product(share, self.features.mT).double()
        d = self.seen.shape[0]
        count = share.double().sum(1, keepdim=True)
        absent = (count - sums[:, :d]).clamp(min=0.0)
        expected = self.family.expected_statistics()
        filled = sums[:, d:] + absent.repeat(1, expected.shape[1] // d) * expected
        return Sums(torch.cat([count, filled], dim=1))
