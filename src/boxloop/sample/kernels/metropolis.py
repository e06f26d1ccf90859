r"""The Metropolis step that every kernel with a ratio shares, and the metric of proposals.

.. math:: \alpha^{MH}(x, y) = \min(1, r), \qquad \alpha^{b}(x, y) = \frac{r}{1 + r},
          \qquad r = \frac{\pi(y) \, q(y, x)}{\pi(x) \, q(x, y)}

Le Corff, lemmas 1.7, 1.8 and 1.10. A proposal is accepted if :math:`\log r` exceeds a random threshold: the logarithm
of a uniform number gives :math:`\alpha^{MH}`, a logistic number :math:`\alpha^b`. An acceptance rule is thus the
distribution of a threshold, and costs the step nothing. A ratio that is not a number exceeds no threshold: such a
proposal is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel, Noise

RuleName = Literal["metropolis", "barker"]
Propose = Callable[[Chains, Any], tuple[Chains, Info]]
Moves = Callable[[Chains, int, Generator], Tensor | Sequence[Any]]

Metric = Tensor | None
"""None for the identity, (d,) for scales of the columns, (d, d) for a lower triangular factor."""

LEAST_VARIANCE = 1e-12
"""Variance given to a column that never moved, in units of the largest."""

LERP_SIZE = 8192
"""Numbers in the positions from which interpolation is faster than a mask."""


class AcceptanceRule(NamedTuple):
    """An acceptance rule."""

    threshold: Callable[[Tensor], Tensor]  # uniform numbers -> thresholds of the log-ratio; may work in place
    probability: Callable[[Tensor], Tensor]  # log-ratio -> acceptance probability


def _to_logistic(uniform: Tensor) -> Tensor:
    return torch.logit(uniform.clamp_(min=torch.finfo(uniform.dtype).eps / 4))


RULES: dict[RuleName, AcceptanceRule] = {
    "metropolis": AcceptanceRule(
        lambda uniform: uniform.neg_().log1p_(), lambda log_ratio: log_ratio.clamp(max=0.0).exp()
    ),
    "barker": AcceptanceRule(_to_logistic, torch.sigmoid),
}
"""Lemma 1.8. Barker's rule accepts less often and mixes more slowly (Peskun 1973)."""


def make_metropolis_kernel(
    init: Callable[[Tensor], Chains],
    noise: Moves,
    propose: Propose,
    rule: RuleName = "metropolis",
    finite: bool = False,
) -> Kernel:
    """A kernel from a proposal and its ratio; ``finite`` says that proposals are finite whatever the density does."""
    threshold = RULES[rule].threshold

    def noise_and_thresholds(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
        moves = noise(chains, n, stream)
        log_density = chains.log_density
        uniform = torch.rand(
            (n, len(log_density)), generator=stream, dtype=log_density.dtype, device=log_density.device
        )
        return Noise(moves, threshold(uniform))

    def step(chains: Chains, item: tuple[Any, Tensor]) -> tuple[Chains, Info]:
        move, level = item
        there, info = propose(chains, move)
        assert info.log_ratio is not None
        return select_accepted(level < info.log_ratio, there, chains, finite), info

    return Kernel(init, noise_and_thresholds, step, RULES[rule].probability)


def select_accepted(accept: Tensor, proposed: Chains, current: Chains, finite: bool = False) -> Chains:
    """Each chain at the proposed position if accepted, else where it was."""
    column = accept[:, None]
    if finite and current.position.numel() >= LERP_SIZE and current.position.device.type == "cpu":
        position = torch.lerp(current.position, proposed.position, column.to(current.position.dtype))
    else:
        position = torch.where(column, proposed.position, current.position)
    log_density = torch.where(accept, proposed.log_density, current.log_density)
    if not current.auxiliary:
        return Chains(position, log_density)
    auxiliary = [
        torch.where(column if new.dim() == 2 else accept.reshape(-1, *(1,) * (new.dim() - 1)), new, old)
        for new, old in zip(proposed.auxiliary, current.auxiliary)
    ]
    return Chains(position, log_density, tuple(auxiliary))


def repeat_stream(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
    """The noise of n steps that draw from the stream themselves."""
    return [stream] * n


def draw_normals(chains: Chains, n: int, stream: Generator) -> Tensor:
    """Standard normal numbers (n, c, d), drawn in float32 and cast: twice as fast, with no measurable effect."""
    position = chains.position
    noise = torch.randn((n, *position.shape), generator=stream, dtype=torch.float32, device=position.device)
    return noise.to(position.dtype)


# The metric of a proposal: a factor F such that F F' approximates the covariance of the target.


def apply_metric(metric: Metric, rows: Tensor) -> Tensor:
    """F times each row, (..., d)."""
    if metric is None:
        return rows
    return rows * metric if metric.dim() == 1 else rows @ metric.mT


def add_metric_step(metric: Metric, base: Tensor, rows: Tensor, factor: float) -> Tensor:
    """``base + factor * F rows``, in one operation if possible."""
    if metric is None:
        return torch.add(base, rows, alpha=factor)
    if metric.dim() == 1:
        return torch.addcmul(base, rows, metric, value=factor)
    return torch.addmm(base, rows, metric.mT, alpha=factor)


def apply_metric_transpose(metric: Metric, gradients: Tensor) -> Tensor:
    """F' times each row: gradients in the coordinates of the metric."""
    if metric is None:
        return gradients
    return gradients * metric if metric.dim() == 1 else gradients @ metric


def check_metric(metric: Metric) -> None:
    """Refuse anything but a factor of a covariance."""
    if metric is None:
        return
    if not isinstance(metric, Tensor) or metric.dim() not in (1, 2) or metric.shape[0] != metric.shape[-1]:
        raise ValueError(
            "a metric is a tensor: a vector of positive scales or a lower triangular factor of a covariance"
        )
    diagonal = metric if metric.dim() == 1 else metric.diagonal()
    if not bool((diagonal > 0).all()) or not bool(torch.isfinite(metric).all()):
        raise ValueError(
            "a metric must have positive scales or a positive diagonal, and finite numbers throughout"
        )
    if metric.dim() == 2 and bool(metric.triu(1).any()):
        raise ValueError("a metric must be lower triangular: pass torch.linalg.cholesky(covariance)")


def make_metric(covariance: Tensor, count: int) -> Tensor | None:
    """A metric from the covariance of ``count`` positions, shrunk if they are few; None if all are equal."""
    variance = covariance if covariance.dim() == 1 else covariance.diagonal()
    if not bool(torch.isfinite(covariance).all()) or not bool((variance > 0).any()):
        return None
    scale = torch.where(variance > 0, variance, LEAST_VARIANCE * variance.max()).sqrt()
    if covariance.dim() == 1:
        return scale
    correlation = covariance / (scale[:, None] * scale) * (count / (count + 2.0 * len(scale)))
    correlation.diagonal().fill_(1.0)
    # Row-major, as read from a checkpoint: products with another layout differ in their last digit.
    return (scale[:, None] * torch.linalg.cholesky(correlation)).contiguous()


def measure_narrowest_width(factor: Tensor, metric: Tensor) -> float:
    """Smallest standard deviation over directions, in units of the metric, of a covariance with this factor."""
    if factor.dim() == 1:
        return float((factor / metric).min())
    return float(torch.linalg.svdvals(torch.linalg.solve_triangular(metric, factor, upper=False))[-1])
