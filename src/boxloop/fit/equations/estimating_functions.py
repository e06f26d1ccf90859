r"""Estimating functions that many need, ready for :func:`boxloop.z_estimate`.

All but the first are regressions of one column on the others, :math:`\psi = x\, s(y - x^\top \theta)` with a score s of
the residual; on a table of one column they estimate a location. They take the intercept first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy import stats
from torch import Tensor

from boxloop.data import check_level

Psi = Callable[[Tensor, Tensor], Tensor]


def mean_equation(theta: Tensor, rows: Tensor) -> Tensor:
    """The means of all columns, psi = x - theta (Le Corff, example A.2).

    Args:
        theta: (d,).
        rows: (n, d).
    """
    return rows - theta


def linear_regression(outcome: int = -1, *, intercept: bool = True) -> Psi:
    r"""Least squares of one column on the others.

    .. math:: \psi(\beta, (x, y)) = x (y - x^\top \beta)

    Its root solves :math:`\Phi^\top \Phi \beta = \Phi^\top Y`.

    Deviation: Le Corff, example A.5 has :math:`\Phi \Phi^\top \beta = \Phi Y`, whose shapes do not fit.

    Args:
        outcome: place of the column y.
        intercept: whether a constant comes before the other columns.

    Example:
        >>> import torch
        >>> from boxloop import z_estimate
        >>> rows = torch.tensor([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0]])
        >>> z_estimate(linear_regression(), rows, [0.0, 0.0]).theta.round(decimals=6)
        tensor([1., 2.], dtype=torch.float64)
    """
    return residual_equation(lambda residual: residual, outcome, intercept)


def huber(
    bend: float = 1.345, scale: float | None = 1.0, outcome: int = -1, *, intercept: bool = True
) -> Psi:
    r"""Huber's robust location or regression.

    .. math:: \psi(\theta, (x, y)) = x \max(-b, \min(b, (y - x^\top \beta) / \sigma))

    With ``scale=None`` the last parameter is :math:`\sigma`, found together with :math:`\beta` from
    :math:`E[\psi_1^2] = E_{N(0,1)}[\max(-b, \min(b, Z))^2]` (proposal 2 of Huber 1964).

    Args:
        bend: b; 1.345 keeps 95% of the efficiency of least squares on Gaussian errors.
        scale: sigma, or None to estimate it as well.
        outcome: place of the column y.
        intercept: whether a constant comes before the other columns.

    Example:
        >>> import torch
        >>> from boxloop import z_estimate
        >>> rows = torch.tensor([[1.0], [2.0], [3.0], [1000.0]])
        >>> z_estimate(huber(1.5), rows, [2.0]).theta
        tensor([2.5000], dtype=torch.float64)
    """
    if bend <= 0 or (scale is not None and scale <= 0):
        raise ValueError("bend and scale must be positive")
    if scale is not None:
        return residual_equation(lambda residual: (residual / scale).clamp(-bend, bend), outcome, intercept)
    level = _clipped_square(bend)

    def psi(theta: Tensor, rows: Tensor) -> Tensor:
        design, y = split_design_and_outcome(rows, outcome, intercept)
        score = ((y - design @ theta[:-1]) / theta[-1]).clamp(-bend, bend)
        return torch.cat([design * score[:, None], (score.square() - level)[:, None]], dim=1)

    return psi


def quantile(level: float, outcome: int = -1, *, intercept: bool = True) -> Psi:
    r"""A quantile of one column, or its linear quantile regression on the others (Koenker and Bassett 1978).

    .. math:: \psi(\theta, (x, y)) = x\, (\tau - 1[y < x^\top \theta])

    It jumps, so autograd sees no slope: give :func:`boxloop.z_estimate` a ``smooth`` step, such as
    :func:`quantile_step`.

    Args:
        level: tau, between 0 and 1.
        outcome: place of the column y.
        intercept: whether a constant comes before the other columns.

    Example:
        >>> import torch
        >>> from boxloop import z_estimate
        >>> rows = torch.arange(101.0)[:, None]
        >>> step = quantile_step(0.5, 101, spread=29.0)
        >>> middle = z_estimate(quantile(0.5), rows, [40.0], smooth=step).theta
        >>> bool(49.0 < middle < 51.0)
        True
    """
    check_level(level)
    return residual_equation(lambda residual: level - (residual < 0).to(residual.dtype), outcome, intercept)


def quantile_step(level: float, n: float, spread: float) -> float:
    r"""A step for the slope of quantile equations, by the rule of Hall and Sheather (1988) for normal tails.

    .. math:: h = n^{-1/3} z_{0.975}^{2/3}
              \Big(\frac{1.5\, \phi(\Phi^{-1}(\tau))^2}{2 \Phi^{-1}(\tau)^2 + 1}\Big)^{1/3}, \qquad
              \mathrm{step} = \sigma\, \frac{\Phi^{-1}(\tau + h) - \Phi^{-1}(\tau - h)}{2}

    Args:
        level: tau.
        n: rows.
        spread: standard deviation of the column, or of the residuals of a regression; a robust one is better.
    """
    z = float(stats.norm.ppf(level))
    width = (1.5 * float(stats.norm.pdf(z)) ** 2 / (2.0 * z * z + 1.0)) ** (1.0 / 3.0)
    h = n ** (-1.0 / 3.0) * float(stats.norm.ppf(0.975)) ** (2.0 / 3.0) * width
    low, high = max(level - h, 0.5 * level), min(level + h, 0.5 * (1.0 + level))
    return 0.5 * spread * float(stats.norm.ppf(high) - stats.norm.ppf(low))


def residual_equation(score: Callable[[Tensor], Tensor], outcome: int = -1, intercept: bool = True) -> Psi:
    """Regression by any score of the residual: psi = x s(y - x' theta).

    Args:
        score: s, of residuals (n,).
        outcome: place of the column y.
        intercept: whether a constant comes before the other columns.
    """

    def psi(theta: Tensor, rows: Tensor) -> Tensor:
        design, y = split_design_and_outcome(rows, outcome, intercept)
        return design * score(y - design @ theta)[:, None]

    return psi


def split_design_and_outcome(rows: Tensor, outcome: int, intercept: bool) -> tuple[Tensor, Tensor]:
    """Rows (n, d) as the design of a regression, and the outcome (n,)."""
    place = outcome % rows.shape[1]
    others = torch.cat([rows[:, :place], rows[:, place + 1 :]], dim=1)
    if intercept:
        others = torch.cat([torch.ones_like(rows[:, :1]), others], dim=1)
    return others, rows[:, place]


def _clipped_square(bend: float) -> float:
    """E[clip(Z, -b, b)^2] of a standard normal Z."""
    inside = math.erf(bend / math.sqrt(2.0))
    density = math.exp(-0.5 * bend * bend) / math.sqrt(2.0 * math.pi)
    return inside - 2.0 * bend * density + bend * bend * (1.0 - inside)
