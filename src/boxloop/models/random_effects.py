r"""Zeros and ones, or counts, whose groups differ at random.

.. math:: y_{ij} \mid u_i \sim f(\cdot \mid \eta_{ij}), \qquad
          \eta_{ij} = o_{ij} + x_{ij}^\top \beta + w_{ij}^\top u_i, \qquad u_i \sim N(0, \Sigma)

The likelihood of a group is an integral over its effects :math:`u_i` without a closed form, so exact EM is impossible:
this is the worked example of Monte Carlo EM (document 002, sections 2.4 and 2.6). The rows of one group belong
together, so the model is one of *groups*: it does not fit the contract of models whose rows are independent, and has
that of :class:`boxloop.fit.SampledModel`.

**The M step is one Newton step** on the expected complete-data log-likelihood (the EM gradient algorithm, Lange 1995),
written as statistics that add:

.. math:: A = \sum_{ij} E[\mu'_{ij}] x_{ij} x_{ij}^\top, \qquad
          b = A \beta_{old} + \sum_{ij} x_{ij} (y_{ij} - E[\mu_{ij}]), \qquad
          \beta = A^{-1} b, \qquad \Sigma = \frac1g \sum_i E[u_i u_i^\top]

A full maximisation would have to go back to the draws at every inner step, and its statistics could not be averaged
over rounds. This one costs one pass, its statistics are p x p whatever the number of draws, and a running mean of them
(stochastic approximation) solves the same equation: at a fixed point :math:`b = A \beta`, hence
:math:`\sum x (y - E[\mu]) = 0`, the score of the likelihood. Near it the map has the derivative of EM's own, so it
converges at EM's rate.

**It is expanded** where a random column is also a fixed one. Groups that say much about themselves make EM slow: their
effects follow the old coefficients, and the coefficients the effects. So the effects get a mean of their own,
:math:`u_i \sim N(\alpha, \Sigma)`, for the length of the M step, and the coefficients of the same columns take it over
(PX-EM, Liu, Rubin and Wu 1998): :math:`\alpha = \frac1g \sum_i E[u_i]`, :math:`\Sigma` is the moment about it,
:math:`\beta + S \alpha` the coefficients. The likelihood knows only :math:`\beta + S \alpha`, so with r its score in
:math:`\beta` the whole step is :math:`(A^{-1} + S \Sigma S^\top / g) r`: zero only at a maximum, as before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Generator, Tensor

from boxloop.models.grouped import GroupedRows
from boxloop.numeric import floor_covariance, normal, pack, safe_cholesky, unpack
from boxloop.tree import Tree


class Response(Protocol):
    """The law of a response given its linear predictor; canonical link."""

    def log_prob(self, response: Tensor, predictor: Tensor) -> Tensor:
        """Log-probability of responses."""

    def mean(self, predictor: Tensor) -> Tensor:
        """E[y]."""

    def variance(self, mean: Tensor) -> Tensor:
        """Var[y], which for a canonical link is also the derivative of the mean."""


@dataclass(frozen=True)
class BernoulliResponse:
    """Zeros and ones: the chance of a one is the logistic function of the predictor."""

    def log_prob(self, response: Tensor, predictor: Tensor) -> Tensor:
        """``y eta - log(1 + exp(eta))``."""
        return response * predictor - torch.nn.functional.softplus(predictor)

    def mean(self, predictor: Tensor) -> Tensor:
        """The chance of a one."""
        return torch.sigmoid(predictor)

    def variance(self, mean: Tensor) -> Tensor:
        """``p (1 - p)``."""
        return mean * (1.0 - mean)


@dataclass(frozen=True)
class PoissonResponse:
    """Counts: the rate is the exponential of the predictor."""

    def log_prob(self, response: Tensor, predictor: Tensor) -> Tensor:
        """``y eta - exp(eta) - log y!``."""
        return response * predictor - predictor.exp() - torch.lgamma(response + 1.0)

    def mean(self, predictor: Tensor) -> Tensor:
        """The rate."""
        return predictor.exp()

    def variance(self, mean: Tensor) -> Tensor:
        """Equal to the mean."""
        return mean


@dataclass(frozen=True)
class EffectSums(Tree):
    """What the M step needs: sums over groups of means over draws.

    Args:
        curvature: A, (p, p).
        target: b, (p,).
        first: sum of E[u], (q,).
        second: sum of E[u u'], (q, q).
        count: number of groups, ().
    """

    curvature: Tensor
    target: Tensor
    first: Tensor
    second: Tensor
    count: Tensor


@dataclass(frozen=True)
class RandomEffects(Tree):
    """A generalised linear model whose groups have effects of their own.

    Args:
        coefficients: beta, (p,).
        factor: lower Cholesky factor of Sigma, (q, q).
        response: law of y given the predictor.
        shared: the fixed column that each random column is, q numbers, for an expanded M step; none when empty.
        floor: smallest eigenvalue of Sigma.

    Example:
        >>> import torch
        >>> from boxloop.models.grouped import GroupedRows
        >>> one = torch.ones(4, 1).double()
        >>> rows = GroupedRows.of(torch.tensor([0.0, 1.0, 1.0, 1.0]), one, one, torch.tensor([0, 0, 1, 1]))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), BernoulliResponse())
        >>> model.log_joint(rows, torch.zeros(2, 1).double()).exp()  # 1/4 of the rows times the normal density at 0
        tensor([0.0997, 0.0997], dtype=torch.float64)
    """

    coefficients: Tensor
    factor: Tensor
    response: Response
    shared: tuple[int, ...] = ()
    floor: float = 1e-10

    @property
    def covariance(self) -> Tensor:
        """Sigma, (q, q)."""
        return self.factor @ self.factor.mT

    def predictor(self, rows: GroupedRows, z: Tensor) -> Tensor:
        """Linear predictors of all rows under m draws of every group's effects: (g m, q) -> (n, m)."""
        effects = z.reshape(rows.n_groups, -1, z.shape[-1])
        level = (rows.offset + rows.fixed @ self.coefficients)[:, None]
        for j in range(z.shape[-1]):  # a few columns: cheaper than a gather of all at once
            level = level + rows.random[:, j, None] * effects[:, :, j].index_select(0, rows.group)
        return level

    def log_joint(self, rows: GroupedRows, z: Tensor) -> Tensor:
        r"""Log-density of each group's responses together with effects of its own.

        .. math:: \sum_j \log f(y_{ij} \mid \eta_{ij}) + \log N(u_i; 0, \Sigma)

        Args:
            rows: of g groups.
            z: m effects for each group, (g m, q), those of a group together.

        Returns:
            One value for each row of z, (g m,).
        """
        density = self.response.log_prob(rows.response[:, None], self.predictor(rows, z))
        return rows.total(density * rows.weight[:, None]).reshape(-1) + self.log_prior(z)

    def log_prior(self, z: Tensor) -> Tensor:
        """Log-density of effects, (c, q) -> (c,)."""
        white = torch.linalg.solve_triangular(self.factor, z.mT, upper=False)
        constant = self.factor.diagonal().log().sum() + 0.5 * len(self.factor) * math.log(2.0 * math.pi)
        return -0.5 * white.square().sum(0) - constant

    def statistics(self, rows: GroupedRows, z: Tensor) -> EffectSums:
        """Means over the draws z, (g m, q), of what the M step needs, summed over groups."""
        mean = self.response.mean(self.predictor(rows, z))
        curve = rows.weight * self.response.variance(mean).mean(1)
        rest = rows.weight * (rows.response - mean.mean(1))
        curvature = rows.fixed.mT @ (rows.fixed * curve[:, None])
        target = curvature @ self.coefficients + rows.fixed.mT @ rest
        share = rows.n_groups / len(z)
        count = z.new_tensor(float(rows.n_groups))
        return EffectSums(curvature, target, z.sum(0) * share, z.mT @ z * share, count)

    def solve(self, statistics: EffectSums) -> Self:
        """One Newton step for the coefficients, the second moment for the covariance of effects; both expanded."""
        half = safe_cholesky(statistics.curvature, "information of the coefficients, matrix")
        coefficients = torch.cholesky_solve(statistics.target[:, None], half)[:, 0]
        second = statistics.second / statistics.count
        if self.shared:
            mean = statistics.first / statistics.count
            coefficients[list(self.shared)] += mean
            second = second - mean[:, None] * mean
        covariance, _ = floor_covariance(second, self.floor)
        return replace(self, coefficients=coefficients, factor=torch.linalg.cholesky(covariance))

    def carry(self, statistics: EffectSums, z: Tensor) -> tuple[EffectSums, Tensor]:
        """Statistics and effects as the solved model sees them: less the mean that the coefficients took over.

        Predictors stay as they were, so chains lose nothing; ``solve`` of these statistics is the same model again.
        """
        if not self.shared:
            return statistics, z
        mean = statistics.first / statistics.count
        target = statistics.target + statistics.curvature[:, list(self.shared)] @ mean
        second = statistics.second - statistics.count * mean[:, None] * mean
        there = replace(statistics, target=target, first=torch.zeros_like(mean), second=second)
        return there, z - mean

    def follow(self, origin: Self, z: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        r"""Effects under these parameters that stand for effects z under those of ``origin``.

        .. math:: u'_i = T_i u_i + B_i S^\top (\beta_{origin} - \beta), \qquad
                  T_i = B_i + (I - B_i) L L_{origin}^{-1}, \qquad
                  B_i = I - \mathrm{Cov}(u_i \mid y) \Sigma_{origin}^{-1}

        with L the Cholesky factor of :math:`\Sigma`. A group that knows its own level (B near I) keeps it while
        parameters change; the effects of one that does not follow their law. Scores along this path have the same mean
        as along any other, and little noise (partial centring, Papaspiliopoulos, Roberts and Sköld 2003).

        Args:
            origin: the model under which z was drawn.
            z: (g m, q).
            spread: rough posterior covariance of each group's effects, (g, q, q).

        Returns:
            The effects, and the logarithm of :math:`|\det T_i|`, (g m,).
        """
        draws = z.reshape(len(spread), -1, z.shape[1])
        eye = torch.eye(len(self.factor), dtype=z.dtype, device=z.device)
        share = eye - torch.cholesky_solve(spread, origin.factor).mT
        relative = torch.linalg.solve_triangular(origin.factor, self.factor, upper=False, left=False)
        turn = share + (eye - share) @ relative
        there = draws @ turn.mT
        if self.shared:
            move = (origin.coefficients - self.coefficients)[list(self.shared)]
            there = there + (share @ move)[:, None]
        volume = torch.linalg.slogdet(turn).logabsdet.repeat_interleave(draws.shape[1])
        return there.reshape(z.shape), volume

    def draw(self, rows: GroupedRows, copies: int, stream: Generator) -> Tensor:
        """Effects from their law, ``copies`` for each group, (g copies, q): where chains start."""
        return normal((rows.n_groups * copies, len(self.factor)), stream) @ self.factor.mT

    def shape(self) -> Tensor:
        """Lower factor of the covariance that proposals for effects should resemble, (q, q)."""
        return self.factor

    def free(self) -> dict[str, Tensor]:
        """Coefficients and the packed covariance of effects: the likelihood is nearly quadratic in these.

        In logarithms of a small variance it is not: it is flat towards zero.
        """
        return {"coefficients": self.coefficients, "covariance": pack(self.covariance)}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The model at other values of them; differentiable.

        Raises:
            ConditionError: the covariance is not positive definite.
        """
        covariance = unpack(free["covariance"], len(self.factor))
        factor = safe_cholesky(covariance, "covariance of effects, matrix")
        return replace(self, coefficients=free["coefficients"], factor=factor)

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"coefficients": self.coefficients, "covariance": self.covariance}
