r"""Moment gaps as a penalty for any trainer, and the estimator of Beaulac (2023).

.. math:: \alpha \left( \|\text{1MEGA}\|_2 + \sqrt{\|\text{2MEGA}\|_F} \right)

Beaulac (2023), eq. 17 to 19.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from boxloop.criticise.adapt import as_model, check_distribution
from boxloop.criticise.forward_moments import draw_latent_nodes, draw_rows, marginal_mixture
from boxloop.distributions import Categorical
from boxloop.numeric import (
    average_covariance,
    column_means,
    covariance as forms,
    gram,
    product,
    single_threaded,
)
from boxloop.types import Covariance, Distribution, LatentModel

ROOT_FLOOR = 1e-12
"""Added under the root of the second gap, whose slope is infinite at zero."""


@dataclass(frozen=True)
class MomentPenalty:
    r"""A differentiable term that pulls a model's first two moments to those of a batch of rows.

    Args:
        alpha: its weight.
        nodes: latent draws where the model's moments are not exact.
        method: ``sobol`` or ``monte_carlo`` nodes; exact moments are used where the model has them.

    Example:
        >>> import torch
        >>> from boxloop.criticise import as_model
        >>> from boxloop.numeric import generator
        >>> shift = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        >>> model = as_model(2, lambda z: (z @ torch.ones(2, 3).double() + shift, torch.ones(len(z), 3).double()))
        >>> penalty = MomentPenalty(alpha=0.1, nodes=256)
        >>> penalty(model, torch.ones(10, 3).double(), generator(0)).backward()
        >>> bool((shift.grad < 0).all())
        True
    """

    alpha: float
    nodes: int = 5000
    method: Literal["sobol", "monte_carlo"] = "sobol"

    def __post_init__(self) -> None:
        alpha: object = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, Real):
            raise TypeError(f"alpha must be a number, got {self.alpha!r}")
        if not self.alpha >= 0.0:
            raise ValueError(f"alpha must not be negative, got {self.alpha}")

    def __call__(self, model: LatentModel, rows: Tensor, generator: Generator) -> Tensor:
        """The penalty of a model on a batch of rows (n, d)."""
        return self.alpha * self.gap(model, rows, generator)

    def gap(self, model: LatentModel, rows: Tensor, generator: Generator) -> Tensor:
        """The penalty without its weight."""
        finite = marginal_mixture(model)
        if finite is None:
            quasi = self.method == "sobol"
            z = torch.cat(list(draw_latent_nodes(model.prior(), self.nodes, generator, quasi=quasi)))
            distribution, weight = model.emission(z.to(rows)), None
        else:
            distribution, weight = finite
        if weight is None and not is_low_rank_form_smaller(rows, distribution):
            return fused_moment_gap(rows, distribution.mean, _average_covariance_or_diagonal(distribution))
        m = len(distribution.mean)
        share = distribution.mean.new_full((m,), 1.0 / m) if weight is None else weight
        first = rows.mean(0) - share @ distribution.mean
        if is_low_rank_form_smaller(rows, distribution):
            second = second_gap_norm(rows, distribution, share)
        else:
            second = torch.linalg.matrix_norm(gram(rows) / len(rows) - second_moment(distribution, weight))
        return torch.linalg.vector_norm(first) + (second + ROOT_FLOOR).sqrt()


def moment_penalty(
    alpha: float, nodes: int = 5000, method: Literal["sobol", "monte_carlo"] = "sobol"
) -> MomentPenalty:
    r"""The penalty of Beaulac (2023), eq. 18, as a function of (model, rows, generator); see :class:`MomentPenalty`.

    .. math:: \alpha \left( \|\text{1MEGA}\|_2 + \sqrt{\|\text{2MEGA}\|_F} \right)

    Args:
        alpha: its weight.
        nodes: latent draws where the model's moments are not exact.
        method: ``sobol`` or ``monte_carlo``.

    Example:
        >>> moment_penalty(0.1)
        MomentPenalty(alpha=0.1, nodes=5000, method='sobol')
    """
    return MomentPenalty(alpha, nodes, method)


def second_moment(distribution: Distribution, weight: Tensor | None = None) -> Tensor:
    """Second moment about zero of a mixture of m distributions, of equal weights if None, (d, d); differentiable."""
    mean, covariance = distribution.mean, distribution.covariance()
    if weight is None:
        m = len(mean)
        return average_covariance(covariance, mean.new_full((m,), 1.0 / m)) + gram(mean) / m
    return average_covariance(covariance, weight) + (mean * weight[:, None]).mT @ mean


def _average_covariance_or_diagonal(distribution: Distribution) -> Tensor:
    """Of m distributions of equal weight: (d, d), or its diagonal (d,) where the rest is zero."""
    covariance = distribution.covariance()
    if isinstance(covariance, forms.Diagonal):
        return column_means(covariance.variance)
    return average_covariance(
        covariance, distribution.mean.new_full((len(distribution.mean),), 1.0 / len(distribution.mean))
    )


def fused_moment_gap(rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    r"""Both terms of the penalty and their gradient, of rows X (n, d) and m distributions of equal weight.

    .. math:: f = \|u\|_2 + \sqrt{\|G\|_F}, \quad u = \bar x - \bar\mu, \quad G = X^\top X / n - M^\top M / m - S, \quad
       \partial f / \partial M = -\left( \mathbf 1 u^\top / \|u\| + M G / \|G\|_F^{3/2} \right) / m

    Two half products forward, one product backward: autograd over the parts would start three times as many kernels,
    which on a GPU is all their time. Nothing here waits for the device, so a trainer's step that contains it can be
    captured in a CUDA graph.
    """
    function: Any = _FusedGap
    return cast(Tensor, function.apply(rows, mean, covariance))


class _FusedGap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
        first = column_means(rows) - column_means(mean)
        second = _measure_second_gap(rows, mean)
        (second.diagonal() if covariance.dim() == 1 else second).sub_(covariance)
        first_norm, second_norm = torch.linalg.vector_norm(first), torch.linalg.vector_norm(second)
        root = (second_norm + ROOT_FLOOR).sqrt()
        ctx.save_for_backward(rows, mean, first, second, first_norm, second_norm, root)
        ctx.diagonal = covariance.dim() == 1
        return first_norm + root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        rows, mean, first, second, first_norm, second_norm, root = ctx.saved_tensors
        tiny = torch.finfo(first_norm.dtype).tiny
        to_first = first * (slope / first_norm.clamp(min=tiny))
        to_second = second * (slope / (2.0 * root * second_norm.clamp(min=tiny)))
        by_rows, by_mean, _ = ctx.needs_input_grad
        n, m = len(rows), len(mean)
        return (
            _add_scaled_product(to_first * (1.0 / n), rows, to_second, 2.0 / n) if by_rows else None,
            _add_scaled_product(to_first * (-1.0 / m), mean, to_second, -2.0 / m) if by_mean else None,
            -to_second.diagonal() if ctx.diagonal else -to_second,
        )


def _add_scaled_product(offset: Tensor, left: Tensor, right: Tensor, factor: float) -> Tensor:
    """``offset + factor * left @ right``; a GPU adds inside a float32 product for free, in float64 at a cost."""
    if left.device.type == "cuda" and left.dtype == torch.float32:
        return torch.addmm(offset, left, right, alpha=factor)
    return product(left, right * factor).add_(offset)


def _measure_second_gap(rows: Tensor, mean: Tensor) -> Tensor:
    if rows.device.type == "cpu":
        return (gram(rows) / len(rows)).sub_(gram(mean), alpha=1.0 / len(mean))
    result = rows.mT @ rows
    half = len(result) // 2
    for upper, right_of in ((slice(half), slice(None)), (slice(half, None), slice(half, None))):
        left, right = mean[:, upper].mT, mean[:, right_of]
        result[upper, right_of].addmm_(left, right, beta=1.0 / len(rows), alpha=-1.0 / len(mean))
    result[half:, :half] = result[:half, half:].mT
    return result


@single_threaded
def second_gap_norm(rows: Tensor, distribution: Distribution, weight: Tensor) -> Tensor:
    r"""Frobenius norm of the second moment of rows about zero minus that of a mixture, without a d x d matrix.

    With the rows and the distributions' means and loadings as rows :math:`z_i` of signs :math:`s_i = \pm 1`, and
    independent variances v on the diagonal,

    .. math:: \Big\| \sum_i s_i z_i z_i^\top - \mathrm{diag}(v) \Big\|_F^2
       = \sum_{ij} s_i s_j (z_i^\top z_j)^2 - 2 \sum_{i} s_i \sum_c v_c z_{ic}^2 + \sum_c v_c^2 ,

    so that n rows, m distributions and d columns take (n + m)^2 d operations and memory for (n + m)(n + m + d) numbers.

    Args:
        rows: (n, d).
        distribution: m distributions over d columns, with diagonal or low-rank covariance.
        weight: of each distribution, (m,).

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> normal = DiagonalGaussian(torch.zeros(1, 10_000), torch.ones(1, 10_000))
        >>> second_gap_norm(torch.zeros(5, 10_000), normal, torch.ones(1))  # of the unit matrix
        tensor(100.)
    """
    check_distribution(distribution, "distribution")
    if not isinstance(rows, Tensor) or rows.dim() != 2:
        raise ValueError("rows must be a tensor (n, d)")
    m = len(distribution.mean)
    if tuple(weight.shape) != (m,):
        raise ValueError(
            f"weight must be one number for each of {m} distributions, got shape {tuple(weight.shape)}"
        )
    parts = _average_low_rank_covariance(distribution.covariance(), weight)
    if parts is None:
        raise ValueError("distribution must have diagonal or low-rank covariances, got full ones")
    loadings, variance = parts
    n = len(rows)
    z = torch.cat([rows / n**0.5, distribution.mean * weight.sqrt()[:, None], loadings])
    signs = torch.cat([z.new_ones(n), -z.new_ones(len(z) - n)])
    cross = signs @ gram(z.mT).square() @ signs
    mixed = signs @ (z.square() @ variance)
    return (cross - 2.0 * mixed + variance.square().sum()).clamp(min=0.0).sqrt()


def is_low_rank_form_smaller(rows: Tensor, distribution: Distribution) -> bool:
    """Whether :func:`second_gap_norm` takes less than d x d numbers."""
    covariance = distribution.covariance()
    if isinstance(covariance, forms.Shared):
        covariance = covariance.one
    if not isinstance(covariance, forms.Diagonal | forms.LowRank):
        return False
    extra = 0
    if isinstance(covariance, forms.LowRank):
        extra = covariance.loadings.shape[0] * covariance.loadings.shape[2]
    return len(rows) + len(distribution.mean) + extra < rows.shape[1]


def _average_low_rank_covariance(covariance: Covariance, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean covariance as rows of loadings (r, d) and variances (d,)."""
    if isinstance(covariance, forms.Shared):
        return _average_low_rank_covariance(covariance.one, weight.sum()[None])
    if isinstance(covariance, forms.Diagonal):
        variance = weight @ covariance.variance
        return variance.new_zeros(0, len(variance)), variance
    if isinstance(covariance, forms.LowRank):
        weighted = covariance.loadings * weight.sqrt()[:, None, None]
        return weighted.mT.reshape(-1, weighted.shape[1]), weight @ covariance.noise
    return None


@single_threaded
def paper_gaps(
    model: object, rows: Tensor, generator: Generator, nodes: int = 5000, *, sample: bool = False
) -> tuple[Tensor, Tensor]:
    r"""1MEGA (d,) and 2MEGA (d, d) as in Beaulac (2023): eq. 7 for the data, plain Monte Carlo for the model.

    .. math:: \bar x - \frac1m \sum_j E[x \mid z_j], \qquad
        S + \bar x \bar x^\top - \frac1m \sum_j E[x x^\top \mid z_j]

    Deviation: none. Eq. 7 overshoots the second moment by Cov/n, and the nodes have an error that the paper does not
    give; :func:`boxloop.criticise.mega` has neither fault.

    Args:
        model: prior and emission.
        rows: (n, d), at least two.
        generator: for the nodes.
        nodes: m.
        sample: use draws of x (the sample estimator, SE) instead of distributions (the forward estimator, FME).

    Returns:
        Both gaps, data minus model.
    """
    model = as_model(model)
    if not isinstance(rows, Tensor) or rows.dim() != 2 or len(rows) < 2:
        raise ValueError("rows must be a tensor (n, d) of at least 2 rows")
    if nodes < 1:
        raise ValueError(f"nodes must be at least 1, got {nodes}")
    mean = rows.mean(0)
    data = torch.cov(rows.mT).reshape(len(mean), -1) + mean[:, None] * mean
    if sample:
        fresh = draw_rows(model, nodes, generator)
        return mean - fresh.mean(0), data - gram(fresh) / nodes
    prior = model.prior()
    if isinstance(prior, Categorical):  # equal nodes have equal emissions: count them
        drawn = prior.draw(nodes, generator).reshape(-1)
        share = torch.bincount(drawn, minlength=len(prior.support)).to(mean) / nodes
        distribution = model.emission(prior.support)
        return mean - share @ distribution.mean, data - second_moment(distribution, share)
    first, second = torch.zeros_like(mean), torch.zeros_like(data)
    for z in draw_latent_nodes(prior, nodes, generator, quasi=False):
        distribution = model.emission(z)
        part = len(distribution.mean) / nodes
        first = first + part * distribution.mean.mean(0)
        second = second + part * second_moment(distribution)
    return mean - first, data - second
