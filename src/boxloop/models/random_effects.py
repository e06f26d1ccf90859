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
    """Responses with two sets of columns, sorted by group.

    Args:
        response: (n,).
        fixed: columns whose coefficients all groups share, (n, p).
        random: columns whose coefficients each group has for itself, (n, q).
        group: number of each row's group, 0 to g - 1, ascending, (n,).
        offset: known part of the linear predictor, (n,).
        weight: of each row; whole numbers count as repetitions within the group, (n,).
        n_groups: g.

    Example:
        >>> import torch
        >>> one = torch.ones(3, 1)
        >>> rows = GroupedRows.of(torch.tensor([5.0, 6.0, 7.0]), one, one, torch.tensor([1, 0, 1]))
        >>> rows.response, rows.group
        (tensor([6., 5., 7.], dtype=torch.float64), tensor([0, 1, 1]))
        >>> rows.total(rows.response)
        tensor([ 6., 12.], dtype=torch.float64)
    """

    response: Tensor
    fixed: Tensor
    random: Tensor
    group: Tensor
    offset: Tensor
    weight: Tensor
    n_groups: int

    @classmethod
    def of(
        cls,
        response: Tensor,
        fixed: Tensor,
        random: Tensor,
        group: Tensor,
        offset: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Self:
        """Sort rows by group.

        Args:
            response: (n,).
            fixed: (n, p).
            random: (n, q).
            group: (n,) whole numbers from 0 to g - 1, each of them at least once.
            offset: (n,); zeros when omitted.
            weight: (n,); ones when omitted.

        Returns:
            The rows in float64; those of a group keep their order.
        """
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

    def total(self, values: Tensor) -> Tensor:
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
        response: distribution of y given the predictor.
        shared: the fixed column that each random column is, q numbers, for an expanded M step; none when empty.
        floor: smallest eigenvalue of Sigma.

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import GroupedRows
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

    def change_coordinates(self, statistics: EffectSums, z: Tensor) -> tuple[EffectSums, Tensor]:
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

    def transport_latent(self, origin: Self, z: Tensor, latent_covariance: Tensor) -> tuple[Tensor, Tensor]:
        r"""Effects under these parameters that stand for effects z under those of ``origin``.

        .. math:: u'_i = T_i u_i + B_i S^\top (\beta_{origin} - \beta), \qquad
                  T_i = B_i + (I - B_i) L L_{origin}^{-1}, \qquad
                  B_i = I - \mathrm{Cov}(u_i \mid y) \Sigma_{origin}^{-1}

        with L the Cholesky factor of :math:`\Sigma`. A group that knows its own level (B near I) keeps it while
        parameters change; the effects of one that does not follow their prior. Scores along this path have the same
        mean as along any other, and little noise (partial centring, Papaspiliopoulos, Roberts and Sköld 2003).

        Args:
            origin: the model under which z was drawn.
            z: (g m, q).
            latent_covariance: rough posterior covariance of each group's effects, (g, q, q).

        Returns:
            The effects, and the logarithm of :math:`|\det T_i|`, (g m,).
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


MAX_EFFECTS = 3
"""Most effects a group for which a product rule is sensible."""
MAX_ITERATIONS = 60
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Modes(Tree):
    """Where each group's effects are most probable given its rows.

    Args:
        place: modes, (g, q).
        factor: C with C C' the inverse curvature there, (g, q, q).
    """

    place: Tensor
    factor: Tensor


def modes(model: RandomEffects, rows: GroupedRows) -> Modes:
    """Newton's method for all groups at once; the log-joint is concave, and a step that lowers it is halved.

    Args:
        model: at which parameters.
        rows: of g groups.

    Returns:
        Modes and curvatures.

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import BernoulliResponse
        >>> one = torch.ones(2, 1).double()
        >>> rows = GroupedRows.of(torch.tensor([0.0, 1.0]), one, one, torch.tensor([0, 0]))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), BernoulliResponse())
        >>> modes(model, rows).place.abs() < 1e-9  # one zero and one one: the effect is zero
        tensor([[True]])
    """
    q = len(model.factor)
    prior = torch.cholesky_inverse(model.factor)
    place = model.factor.new_zeros((rows.n_groups, q))
    height = model.log_joint(rows, place)
    precision = prior.expand(rows.n_groups, q, q)
    for _ in range(MAX_ITERATIONS):
        mean = model.response.mean(model.predictor(rows, place))[:, 0]
        curve = (rows.weight * model.response.variance(mean))[:, None, None]
        slope = rows.total(rows.random * (rows.weight * (rows.response - mean))[:, None]) - place @ prior
        precision = rows.total(curve * rows.random[:, :, None] * rows.random[:, None, :]) + prior
        move = torch.linalg.solve(precision, slope[:, :, None])[:, :, 0]
        if bool(((slope * move).sum(1) < TOLERANCE**2).all()):
            break
        place, height = _step_uphill(lambda u: model.log_joint(rows, u), place, height, move)
    half = torch.linalg.cholesky(precision)
    eye = torch.eye(q, dtype=half.dtype, device=half.device)
    return Modes(place, torch.linalg.solve_triangular(half.mT, eye, upper=True))


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
    model: RandomEffects, rows: GroupedRows, nodes: int = 20, at: Modes | None = None
) -> Tensor:
    """Log-likelihood of each group, its effects integrated out.

    Args:
        model: at which parameters; differentiable in them.
        rows: of g groups.
        nodes: of the rule, for each effect; 1 is Laplace's approximation.
        at: where the nodes are centred; at the modes when omitted. Give them to differentiate with the nodes fixed.

    Returns:
        One value for each group, (g,).

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import BernoulliResponse
        >>> one = torch.ones(1, 1).double()
        >>> rows = GroupedRows.of(torch.ones(1), one, one, torch.tensor([0]))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), BernoulliResponse())
        >>> group_log_likelihood(model, rows).exp()  # by symmetry
        tensor([0.5000], dtype=torch.float64)
    """
    q = len(model.factor)
    if q > MAX_EFFECTS:
        raise ValueError(f"quadrature serves at most {MAX_EFFECTS} effects a group, not {q}")
    if at is None:
        with torch.no_grad():
            at = modes(model, rows)
    point, weight = np.polynomial.hermite.hermgauss(nodes)
    grid = torch.cartesian_prod(*[torch.from_numpy(point)] * q).reshape(-1, q).to(at.place)
    logs = torch.cartesian_prod(*[torch.from_numpy(np.log(weight))] * q).reshape(-1, q).to(at.place).sum(1)
    z = at.place[:, None, :] + math.sqrt(2.0) * grid @ at.factor.mT
    joint = model.log_joint(rows, z.reshape(-1, q)).reshape(rows.n_groups, -1)
    volume = at.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * q * math.log(2.0)
    return torch.logsumexp(joint + logs + grid.square().sum(1), dim=1) + volume
