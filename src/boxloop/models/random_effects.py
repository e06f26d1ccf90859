"""Rows that belong to groups: sorted by group, so that sums over a group are one pass without a Python loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.numeric import floor_covariance, normal, pack, safe_cholesky, unpack
from boxloop.tree import Tree


@dataclass(frozen=True)
class GroupedRows(Tree):
    """Responses with two sets of columns, sorted by group."""

    response: Tensor  # (n,)
    fixed: Tensor  # columns whose coefficients all groups share, (n, p)
    random: Tensor  # columns whose coefficients each group has for itself, (n, q)
    group: Tensor  # number of each row's group, 0 to g - 1, ascending, (n,)
    offset: Tensor  # known part of the linear predictor, (n,)
    weight: Tensor  # of each row; whole numbers count as repetitions within the group, (n,)
    n_groups: int  # g

    @classmethod
    def from_rows(
        cls,
        response: Tensor,
        fixed: Tensor,
        random: Tensor,
        group: Tensor,
        offset: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Self:
        """Sort rows by group, 0 to g - 1 without gaps; in float64, those of a group in their order."""
        n = len(response)
        order = torch.argsort(group, stable=True)
        count = torch.bincount(group)
        if bool((count == 0).any()):
            raise ValueError(
                f"group {int((count == 0).nonzero()[0])} has no rows: number groups without gaps"
            )
        zero, one = response.new_zeros(n), response.new_ones(n)
        values = (
            response,
            fixed,
            random,
            zero if offset is None else offset,
            one if weight is None else weight,
        )
        y, x, w, o, weights = (value[order].double() for value in values)
        return cls(y, x, w, group[order], o, weights, len(count))

    def sum_by_group(self, values: Tensor) -> Tensor:
        """Sums of ``values`` (n, ...) over the rows of each group, (g, ...)."""
        return values.new_zeros((self.n_groups, *values.shape[1:])).index_add(0, self.group, values)


class Response(Protocol):
    """The distribution of a response given its linear predictor; canonical link."""

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
    """What the M step needs: sums over groups of means over draws."""

    curvature: Tensor  # A, (p, p)
    target: Tensor  # b, (p,)
    first: Tensor  # sum of E[u], (q,)
    second: Tensor  # sum of E[u u'], (q, q)
    count: Tensor  # number of groups, ()


@dataclass(frozen=True)
class RandomEffects(Tree):
    """A generalised linear model whose groups have effects of their own."""

    coefficients: Tensor  # beta, (p,)
    factor: Tensor  # lower Cholesky factor of Sigma, (q, q)
    response: Response
    shared: tuple[int, ...] = ()  # the fixed column that each random one is, for an expanded M step
    floor: float = 1e-10  # smallest eigenvalue of Sigma

    @property
    def covariance(self) -> Tensor:
        """Sigma, (q, q)."""
        return self.factor @ self.factor.mT

    def linear_predictor(self, rows: GroupedRows, z: Tensor) -> Tensor:
        """Linear predictors of all rows under m draws of every group's effects: (g m, q) -> (n, m)."""
        effects = z.reshape(rows.n_groups, -1, z.shape[-1])
        level = (rows.offset + rows.fixed @ self.coefficients)[:, None]
        for j in range(z.shape[-1]):  # a few columns: cheaper than a gather of all at once
            level = level + rows.random[:, j, None] * effects[:, :, j].index_select(0, rows.group)
        return level

    def log_joint(self, rows: GroupedRows, z: Tensor) -> Tensor:
        r"""Log-density of each group's responses with its effects z, (g m, q), those of a group together: (g m,).
        :math:`\sum_j \log f(y_{ij} \mid \eta_{ij}) + \log N(u_i; 0, \Sigma)`."""
        density = self.response.log_prob(rows.response[:, None], self.linear_predictor(rows, z))
        return rows.sum_by_group(density * rows.weight[:, None]).reshape(-1) + self.log_prior(z)

    def log_prior(self, z: Tensor) -> Tensor:
        """Log-density of effects, (c, q) -> (c,)."""
        white = torch.linalg.solve_triangular(self.factor, z.mT, upper=False)
        constant = self.factor.diagonal().log().sum() + 0.5 * len(self.factor) * math.log(2.0 * math.pi)
        return -0.5 * white.square().sum(0) - constant

    def statistics(self, rows: GroupedRows, z: Tensor) -> EffectSums:
        """Means over the draws z, (g m, q), of what the M step needs, summed over groups."""
        mean = self.response.mean(self.linear_predictor(rows, z))
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

    def change_coordinates(self, statistics: EffectSums, z: Tensor) -> tuple[EffectSums, Tensor]:
        """Statistics and effects after ``solve``: less the mean that the coefficients took over.
        Predictors stay as they were, so chains lose nothing; ``solve`` of these statistics is the same model again."""
        if not self.shared:
            return statistics, z
        mean = statistics.first / statistics.count
        target = statistics.target + statistics.curvature[:, list(self.shared)] @ mean
        second = statistics.second - statistics.count * mean[:, None] * mean
        there = replace(statistics, target=target, first=torch.zeros_like(mean), second=second)
        return there, z - mean

    def transport_latent(self, origin: Self, z: Tensor, latent_covariance: Tensor) -> tuple[Tensor, Tensor]:
        r"""Effects under these parameters that stand for effects z under those of ``origin``, and :math:`\log |\det
        T_i|`.

        .. math:: u'_i = T_i u_i + B_i S^\top (\beta_{origin} - \beta), \qquad
                  T_i = B_i + (I - B_i) L L_{origin}^{-1}, \qquad
                  B_i = I - \mathrm{Cov}(u_i \mid y) \Sigma_{origin}^{-1}

        with L the Cholesky factor of :math:`\Sigma`: partial centring (Papaspiliopoulos, Roberts and Sköld 2003). A
        group that knows its own level (B near I) keeps it while parameters change; the effects of one that does not
        follow their prior. Scores along this path have the same mean as along any other, and little noise.
        """
        draws = z.reshape(len(latent_covariance), -1, z.shape[1])
        eye = torch.eye(len(self.factor), dtype=z.dtype, device=z.device)
        share = eye - torch.cholesky_solve(latent_covariance, origin.factor).mT
        relative = torch.linalg.solve_triangular(origin.factor, self.factor, upper=False, left=False)
        turn = share + (eye - share) @ relative
        there = draws @ turn.mT
        if self.shared:
            move = (origin.coefficients - self.coefficients)[list(self.shared)]
            there = there + (share @ move)[:, None]
        volume = torch.linalg.slogdet(turn).logabsdet.repeat_interleave(draws.shape[1])
        return there.reshape(z.shape), volume

    def draw_latent(self, rows: GroupedRows, copies: int, stream: Generator) -> Tensor:
        """Effects from their distribution, ``copies`` for each group, (g copies, q): where chains start."""
        return normal((rows.n_groups * copies, len(self.factor)), stream) @ self.factor.mT

    def proposal_factor(self) -> Tensor:
        """Lower factor of the covariance that proposals for effects should resemble, (q, q)."""
        return self.factor

    def free_parameters(self) -> dict[str, Tensor]:
        """Coefficients and packed covariance: the likelihood is nearly quadratic in these, not in log-variances."""
        return {"coefficients": self.coefficients, "covariance": pack(self.covariance)}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The model at other values of the free parameters; differentiable."""
        covariance = unpack(free["covariance"], len(self.factor))
        factor = safe_cholesky(covariance, "covariance of effects, matrix")
        return replace(self, coefficients=free["coefficients"], factor=factor)

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"coefficients": self.coefficients, "covariance": self.covariance}


MAX_EFFECTS = 3
"""Most effects a group for which a product rule is sensible."""
MAX_ITERATIONS = 60
TOLERANCE = 1e-10


@dataclass(frozen=True)
class EffectModes(Tree):
    """Where each group's effects are most probable given its rows."""

    place: Tensor  # modes, (g, q)
    factor: Tensor  # C with C C' the inverse curvature there, (g, q, q)


def find_modes(model: RandomEffects, rows: GroupedRows) -> EffectModes:
    """Newton's method for all groups at once; the log-joint is concave, and a step that lowers it is halved."""
    q = len(model.factor)
    prior = torch.cholesky_inverse(model.factor)
    place = model.factor.new_zeros((rows.n_groups, q))
    height = model.log_joint(rows, place)
    precision = prior.expand(rows.n_groups, q, q)
    for _ in range(MAX_ITERATIONS):
        mean = model.response.mean(model.linear_predictor(rows, place))[:, 0]
        curve = (rows.weight * model.response.variance(mean))[:, None, None]
        slope = (
            rows.sum_by_group(rows.random * (rows.weight * (rows.response - mean))[:, None]) - place @ prior
        )
        precision = rows.sum_by_group(curve * rows.random[:, :, None] * rows.random[:, None, :]) + prior
        move = torch.linalg.solve(precision, slope[:, :, None])[:, :, 0]
        if bool(((slope * move).sum(1) < TOLERANCE**2).all()):
            break
        place, height = _step_uphill(lambda u: model.log_joint(rows, u), place, height, move)
    half = torch.linalg.cholesky(precision)
    eye = torch.eye(q, dtype=half.dtype, device=half.device)
    return EffectModes(place, torch.linalg.solve_triangular(half.mT, eye, upper=True))


def _step_uphill(
    level: Callable[[Tensor], Tensor], place: Tensor, height: Tensor, move: Tensor
) -> tuple[Tensor, Tensor]:
    """Each group moved by the longest of the steps 1, 1/2, 1/4, ... that does not lower it."""
    for _ in range(40):
        there = level(place + move)
        worse = ~(there >= height - 1e-12 * height.abs())
        if not bool(worse.any()):
            break
        move = torch.where(worse[:, None], 0.5 * move, move)
    better = there >= height
    return torch.where(better[:, None], place + move, place), torch.where(better, there, height)


def group_log_likelihood(
    model: RandomEffects, rows: GroupedRows, nodes: int = 20, at: EffectModes | None = None
) -> Tensor:
    """Log-likelihood of each group, its effects integrated out by Gauss and Hermite's rule about ``at``, (g,).
    One node is Laplace's approximation. Give ``at`` to differentiate with the nodes fixed."""
    q = len(model.factor)
    if q > MAX_EFFECTS:
        raise ValueError(f"quadrature serves at most {MAX_EFFECTS} effects a group, not {q}")
    if at is None:
        with torch.no_grad():
            at = find_modes(model, rows)
    point, weight = np.polynomial.hermite.hermgauss(nodes)
    grid = torch.cartesian_prod(*[torch.from_numpy(point)] * q).reshape(-1, q).to(at.place)
    logs = torch.cartesian_prod(*[torch.from_numpy(np.log(weight))] * q).reshape(-1, q).to(at.place).sum(1)
    z = at.place[:, None, :] + math.sqrt(2.0) * grid @ at.factor.mT
    joint = model.log_joint(rows, z.reshape(-1, q)).reshape(rows.n_groups, -1)
    volume = at.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * q * math.log(2.0)
    return torch.logsumexp(joint + logs + grid.square().sum(1), dim=1) + volume
