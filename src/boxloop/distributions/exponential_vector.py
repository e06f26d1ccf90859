"""Exponential families of several columns: Gaussian rows and counts of kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.distributions.exponential import ExponentialFamily, only
from boxloop.distributions.gaussian_full import FullGaussian
from boxloop.distributions.multinomial import Multinomial
from boxloop.numeric import pack, pack_index, unpack


@dataclass(frozen=True)
class MultivariateNormalFamily(ExponentialFamily):
    r"""Gaussian rows of d columns: T(x) = (x, x_i x_j for i <= j).

    .. math:: A = \frac12 \mu^\top \Lambda \mu - \frac12 \log|\Lambda| + \frac{d}{2} \log(2\pi), \qquad
              \eta = (\Lambda \mu, -\tfrac12 \Lambda_{ii}, -\Lambda_{ij})

    Args:
        n_columns: d.

    Example:
        >>> import torch
        >>> family = MultivariateNormalFamily(2)
        >>> family.parameters(family.fit([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]]))["mean"]
        tensor([1., 1.], dtype=torch.float64)
    """

    n_columns: int

    def statistic(self, rows: Tensor) -> Tensor:
        """(x, x_i x_j), (n, d + d(d+1)/2)."""
        i, j = pack_index(self.n_columns)
        return torch.cat([rows, rows[:, i] * rows[:, j]], dim=1)

    def log_base(self, rows: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(rows[:, 0])

    def log_partition(self, natural: Tensor) -> Tensor:
        """Through the precision."""
        linear, precision = self._parts(natural)
        factor = torch.linalg.cholesky(precision)
        half = torch.linalg.solve_triangular(factor, linear[:, None], upper=False)
        return (
            0.5 * half.square().sum()
            - factor.diagonal().log().sum()
            + 0.5 * self.n_columns * math.log(2 * math.pi)
        )

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``mean`` (d,) and ``covariance`` (d, d)."""
        mean = torch.as_tensor(parameters["mean"], dtype=torch.float64)
        covariance = torch.as_tensor(parameters["covariance"], dtype=torch.float64)
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        double = precision * (1.0 - 0.5 * torch.eye(self.n_columns, dtype=torch.float64))
        return torch.cat([precision @ mean, -pack(double)])

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``mean`` and ``covariance``."""
        linear, precision = self._parts(natural)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        return {"mean": covariance @ linear, "covariance": covariance}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Through the mean and the covariance; NaN where the latter is singular."""
        first = mean[: self.n_columns]
        covariance = unpack(mean[self.n_columns :], self.n_columns) - torch.outer(first, first)
        if int(torch.linalg.cholesky_ex(covariance).info):
            return torch.full_like(mean, math.nan)
        return self.natural({"mean": first, "covariance": covariance})

    def law(self, natural: Tensor) -> FullGaussian:
        """A :class:`boxloop.distributions.FullGaussian`."""
        found = self.parameters(natural)
        return FullGaussian.of(found["mean"][None], found["covariance"][None])

    def from_law(self, law: FullGaussian) -> Tensor:
        """The natural parameter of a law of one member."""
        covariance = law.factor[0] @ law.factor[0].mT
        return self.natural({"mean": only(law.mean, self.n_columns), "covariance": covariance})

    def _parts(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Precision times mean, and the precision."""
        eye = torch.eye(self.n_columns, dtype=natural.dtype, device=natural.device)
        return natural[: self.n_columns], -unpack(natural[self.n_columns :], self.n_columns) * (1.0 + eye)


@dataclass(frozen=True)
class MultinomialFamily(ExponentialFamily):
    r"""Counts of d kinds among N: :math:`\eta_j = \log(p_j / p_d)`, T = the first d - 1 counts.

    .. math:: A = N \log\Big(1 + \sum_{j < d} e^{\eta_j}\Big)

    With N = 1 and rows of zeros and a one it is the categorical law.

    Args:
        n_kinds: d.
        total: N.

    Example:
        >>> import torch
        >>> family = MultinomialFamily(3)
        >>> family.parameters(family.fit([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]))
        {'probability': tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)}
    """

    n_kinds: int
    total: int = 1

    def statistic(self, rows: Tensor) -> Tensor:
        """All counts but the last: it is what is left of the total."""
        return rows[:, :-1]

    def log_base(self, rows: Tensor) -> Tensor:
        """log N! - sum log x_j!, on counts that add up to N."""
        inside = ((rows >= 0) & (rows == rows.round())).all(1) & (rows.sum(1) == self.total)
        value = math.lgamma(self.total + 1.0) - torch.lgamma(rows.clamp(min=0.0) + 1.0).sum(1)
        return torch.where(inside, value, -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        """N log(1 + sum exp eta)."""
        return self.total * torch.logsumexp(torch.cat([natural, natural.new_zeros(1)]), dim=0)

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``probability`` (d,)."""
        logs = torch.as_tensor(parameters["probability"], dtype=torch.float64).log()
        return logs[:-1] - logs[-1]

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``probability``."""
        return {"probability": torch.cat([natural, natural.new_zeros(1)]).softmax(0)}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Log-ratios to the last kind."""
        return (mean / (self.total - mean.sum())).log()

    def law(self, natural: Tensor) -> Multinomial:
        """A :class:`boxloop.distributions.Multinomial`."""
        return Multinomial(self.parameters(natural)["probability"][None], self.total)

    def from_law(self, law: Multinomial) -> Tensor:
        """The natural parameter of a law of one member; its total must be that of the family."""
        if law.total != self.total:
            raise ValueError(f"the law counts {law.total} things a row, the family {self.total}")
        return self.natural({"probability": only(law.probability, self.n_kinds)})
