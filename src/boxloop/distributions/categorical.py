"""Categories: one of a finite set, and independent columns of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import TILE
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree


@dataclass(frozen=True)
class Categorical(Tree):
    """m distributions on {0, ..., k-1}; a draw is an index in one column.

    Args:
        log_weight: normalised log-probabilities, (m, k).

    Example:
        >>> import torch
        >>> Categorical(torch.tensor([[0.25, 0.75]]).log()).mean
        tensor([[0.7500]])
    """

    log_weight: Tensor

    @property
    def support(self) -> Tensor:
        """All values, (k,): expectations over them are exact."""
        return torch.arange(self.log_weight.shape[1], device=self.log_weight.device)

    @property
    def mean(self) -> Tensor:
        """Mean index, (m, 1)."""
        return self.log_weight.exp() @ self.support.to(self.log_weight.dtype)[:, None]

    def covariance(self) -> forms.Diagonal:
        """Variance of the index, (m, 1)."""
        square = self.support.to(self.log_weight.dtype).square()
        return forms.Diagonal(self.log_weight.exp() @ square[:, None] - self.mean.square())

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of each index, (m, n) for rows (n, 1) or (n,)."""
        return self.log_weight[:, rows.reshape(-1).long()]

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, 1) indices."""
        return torch.multinomial(self.log_weight.exp(), n, replacement=True, generator=generator)[..., None]


@dataclass(frozen=True)
class CategoricalColumns(Tree):
    r"""m distributions of d independent columns; column j holds a code in :math:`\{0, \dots, c_j - 1\}`.

    .. math:: \log p(x) = \sum_j \eta_{j, x_j} - \log \sum_{c < c_j} e^{\eta_{j, c}}

    Means and variances are those of the codes: they judge the share of each category only where :math:`c_j = 2`, and
    else as far as the order of the codes means something. A value that is no code of its column has probability zero.

    Args:
        logits: of all columns side by side, (m, c_1 + ... + c_d); any constant may be added within a column.
        sizes: c, (d,), whole numbers.

    Example:
        >>> import torch
        >>> distribution = CategoricalColumns(torch.zeros(1, 5), torch.tensor([2, 3]))
        >>> distribution.mean, distribution.paired_log_prob(torch.tensor([[1.0, 2.0]])).exp()
        (tensor([[0.5000, 1.0000]]), tensor([0.1667]))
    """

    logits: Tensor
    sizes: Tensor

    @property
    def _first_categories(self) -> Tensor:
        """Place of the first category of each column, (d,)."""
        return self.sizes.cumsum(0) - self.sizes

    @property
    def _column_of_category(self) -> Tensor:
        """Column of each category, (C,). The size is given, so that a GPU need not be waited for."""
        columns = torch.arange(len(self.sizes), device=self.sizes.device)
        return columns.repeat_interleave(self.sizes, output_size=self.logits.shape[1])

    def _column_indicators(self) -> Tensor:
        """1 where a category is of a column, (C, d): sums over columns are one product, in a fixed order."""
        columns = torch.arange(len(self.sizes), device=self.sizes.device)
        return (self._column_of_category[:, None] == columns).to(self.logits.dtype)

    def _log_normaliser(self) -> Tensor:
        """log of the sum over the categories of each column, (m, d)."""
        owner = self._column_of_category.expand_as(self.logits)
        low = self.logits.new_full((len(self.logits), len(self.sizes)), -torch.inf)
        peak = low.scatter_reduce(1, owner, self.logits.detach(), "amax")
        total = (self.logits - peak.gather(1, owner)).exp() @ self._column_indicators()
        return peak + total.log()

    def probabilities(self) -> Tensor:
        """Of all categories of all columns, (m, C)."""
        return (
            self.logits - self._log_normaliser().gather(1, self._column_of_category.expand_as(self.logits))
        ).exp()

    def _category_codes(self) -> Tensor:
        """Code of each category within its column, (C,)."""
        places = torch.arange(self.logits.shape[1], device=self.sizes.device)
        return (places - self._first_categories[self._column_of_category]).to(self.logits.dtype)

    @property
    def mean(self) -> Tensor:
        """Mean code of each column, (m, d)."""
        return self.probabilities() @ (self._column_indicators() * self._category_codes()[:, None])

    def covariance(self) -> forms.Diagonal:
        """Variance of the code of each column, (m, d)."""
        apart = self._category_codes() - self.mean.gather(1, self._column_of_category.expand_as(self.logits))
        return forms.Diagonal((self.probabilities() * apart.square()) @ self._column_indicators())

    def _find_categories(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Place of each value among all categories, (n, d), and whether it is a code at all."""
        codes = torch.minimum(torch.nan_to_num(rows, nan=0.0).clamp(min=0.0), self.sizes - 1).long()
        return codes + self._first_categories, codes == rows

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of every row under every member, (m, n); missing values are left out."""
        place, known = self._find_categories(rows)
        missing = torch.isnan(rows)
        level = self.logits - self._log_normaliser().gather(
            1, self._column_of_category.expand_as(self.logits)
        )
        step = max(1, TILE // max(1, rows.numel()))
        parts = [
            part[:, place].masked_fill(~known, -torch.inf).masked_fill(missing, 0.0).sum(-1)
            for part in level.split(step)
        ]
        return torch.cat(parts)

    def paired_log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of row i under member i, (m,)."""
        place, known = self._find_categories(rows)
        entries = self.logits.gather(1, place) - self._log_normaliser()
        return entries.masked_fill(~known, -torch.inf).masked_fill(torch.isnan(rows), torch.nan).sum(1)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d) codes, column by column."""
        columns = self.logits.split(self.sizes.tolist(), dim=1)
        drawn = [
            torch.multinomial(part.softmax(1), n, replacement=True, generator=generator) for part in columns
        ]
        return torch.stack(drawn, dim=-1).to(self.logits.dtype)
