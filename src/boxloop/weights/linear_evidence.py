r"""The evidence of a linear model in the axes of its inputs, and where it is highest.

Let :math:`X = U \Lambda^{1/2} V^\top` have rank r. Under :math:`\theta \sim N(0, \alpha^{-1} I)` and
:math:`y = X \theta + \epsilon`, :math:`\epsilon \sim N(0, \beta^{-1} I)`, the numbers :math:`z = U^\top y` are
independent, and what is left of y lies in n - r directions that are noise alone:

.. math:: \log p(y) = \sum_{i=1}^{r} \log N(z_i; 0, \beta^{-1} + \lambda_i \alpha^{-1})
          - \tfrac{n - r}{2} \log \frac{2 \pi}{\beta} - \tfrac{\beta}{2} R, \qquad R = y^\top y - \sum_i z_i^2.

So one decomposition serves all :math:`\alpha` and :math:`\beta`. With :math:`\rho = \beta / \alpha` the best noise is
known, :math:`n / \beta = R + \sum_i z_i^2 / (1 + \rho \lambda_i)`, and one line in :math:`\log \rho` is left to
search. It may have several summits, so it is first looked at as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from boxloop.tree import Tree

POINTS = 512
"""At which a line is looked at before its highest summit is found to the last digit."""
HALVINGS = 80
NEVER = 30.0
"""A ratio of exp(-NEVER) or less is as good as none."""
ROUNDING = 4.0 * torch.finfo(torch.float64).eps
"""Variance of noise, over the mean square of y, that sums of squares cannot tell from none."""

HARDLY = 1e-6
"""Share of the mean square of y below which noise is called none, where no residual shows it."""

Height = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (p,) -> heights (p,) and slopes (p,)."""


@dataclass(frozen=True)
class Spectrum(Tree):
    """One output along the axes of the inputs.

    Args:
        values: eigenvalues of XᵀX that are not zero, (r,).
        squares: z², (r,).
        rest: R, a number.
        count: n; one less where a level was taken out first.
        least: smallest variance of noise that can be told from rounding.
    """

    values: Tensor
    squares: Tensor
    rest: Tensor
    count: float
    least: float

    def log_evidence(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """log p(y); differentiable in alpha and beta, which are numbers or of one shape (...)."""
        variance = 1.0 / beta[..., None] + self.values / alpha[..., None]
        inside = variance.log().sum(-1) + (self.squares / variance).sum(-1)
        outside = beta * self.rest - (self.count - len(self.values)) * beta.log()
        return -0.5 * (inside + outside + self.count * math.log(2.0 * math.pi))

    def effective(self, alpha: Tensor, beta: Tensor) -> Tensor:
        r"""Directions that the rows determine, :math:`\sum_i \beta \lambda_i / (\alpha + \beta \lambda_i)`."""
        return (beta * self.values / (alpha + beta * self.values)).sum()


@dataclass(frozen=True)
class Precisions:
    """Where the evidence is highest.

    Args:
        alpha: of the prior.
        beta: of the noise.
        edge: what is worth knowing where the summit lies at infinity; empty where it does not.
    """

    alpha: float
    beta: float
    edge: str = ""


def positive(name: str, value: float | Sequence[float], k: int) -> list[float]:
    """One positive, finite number for each of k outputs, from one for all or as many."""
    given: list[float] = np.ravel(np.asarray(value, dtype=np.float64)).tolist()
    for each in given:
        if not 0.0 < each < math.inf:
            raise ValueError(f"{name} must be positive and finite, or None to be found, got {each}")
    if len(given) not in (1, k):
        raise ValueError(f"{name} must be one number or {k}, got {len(given)}")
    return given * k if len(given) == 1 else given


def highest(found: Spectrum, alpha: float | None, beta: float | None) -> Precisions:
    """The precisions that are not given, where the evidence is highest."""
    if alpha is not None and beta is not None:
        return Precisions(alpha, beta)
    if not len(found.values):  # the inputs say nothing: every alpha is as good
        noise = max(float(found.rest) / found.count, found.least)
        return Precisions(
            alpha or 1.0, beta or 1.0 / noise, _told_noise(noise, found) if beta is None else ""
        )
    if alpha is not None:
        return _best_noise(found, alpha)
    return _best_ratio(found) if beta is None else _best_prior(found, beta)


def _best_ratio(found: Spectrum) -> Precisions:
    top = found.values.max().log()
    place, side = _summit(
        lambda u: _ratio_line(found, u),
        float(-NEVER - top),
        float(NEVER - found.values.min().log()),
    )
    ratio = math.exp(place)
    noise = float(_noise(found, torch.tensor([place], dtype=torch.float64))[0])
    edge = _VANISHING if side < 0 else _told_noise(noise, found)
    return Precisions(1.0 / (ratio * noise), 1.0 / noise, edge)


def _best_noise(found: Spectrum, alpha: float) -> Precisions:
    whole = float(found.squares.sum() + found.rest) / found.count

    def line(u: Tensor) -> tuple[Tensor, Tensor]:
        noise = u.exp()
        variance = noise[:, None] + found.values / alpha
        share = noise[:, None] / variance
        log = u * (found.count - len(found.values)) + variance.log().sum(1)
        square = found.rest / noise + (found.squares / variance).sum(1)
        slope = found.count - len(found.values) - found.rest / noise
        slope = slope + (share * (1.0 - found.squares / variance)).sum(1)
        return -0.5 * (log + square), -0.5 * slope

    place, _ = _summit(line, math.log(found.least) - 1.0, math.log(max(2.0 * whole, 10.0 * found.least)))
    noise = max(math.exp(place), found.least)
    return Precisions(alpha, 1.0 / noise, _told_noise(noise, found))


def _best_prior(found: Spectrum, beta: float) -> Precisions:
    def line(u: Tensor) -> tuple[Tensor, Tensor]:
        spread = u.exp()[:, None] * found.values
        variance = 1.0 / beta + spread
        height = variance.log() + found.squares / variance
        return -0.5 * height.sum(1), -0.5 * (spread / variance * (1.0 - found.squares / variance)).sum(1)

    largest = float((found.squares / found.values).max())
    low = -math.log(beta) - float(found.values.max().log()) - NEVER
    place, side = _summit(line, low, max(math.log(max(2.0 * largest, 1e-300)), low + 1.0))
    return Precisions(math.exp(-place), beta, _VANISHING if side < 0 else "")


def _noise(found: Spectrum, place: Tensor) -> Tensor:
    """The best variance of noise for ratios exp(u), (p,)."""
    left = found.squares / (1.0 + place.exp()[:, None] * found.values)
    return (found.rest + left.sum(1)) / found.count


def _ratio_line(found: Spectrum, place: Tensor) -> tuple[Tensor, Tensor]:
    ratio = place.exp()[:, None] * found.values
    gain, noise = ratio / (1.0 + ratio), _noise(found, place)
    height = -0.5 * (found.count * noise.log() + torch.log1p(ratio).sum(1))
    return height, 0.5 * ((found.squares * gain * (1.0 - gain)).sum(1) / noise - gain.sum(1))


def _summit(line: Height, low: float, high: float) -> tuple[float, int]:
    """The highest point between two ends, and -1 or 1 where it is one of them."""
    points = torch.linspace(low, high, POINTS, dtype=torch.float64)
    place = int(line(points)[0].argmax())
    if place == 0:
        return low, -1
    if place == POINTS - 1:
        return high, 1
    left, right = float(points[place - 1]), float(points[place + 1])
    for _ in range(HALVINGS):
        middle = 0.5 * (left + right)
        rising = float(line(torch.tensor([middle], dtype=torch.float64))[1]) > 0.0
        left, right = (middle, right) if rising else (left, middle)
    return 0.5 * (left + right), 0


_VANISHING = (
    "the evidence is highest without any coefficients (alpha at infinity): nothing in the columns tells of y"
)


_EXACT = "y is a linear function of the columns up to rounding: beta is as large as can be told"
_NOISELESS = "the evidence is highest without any noise (beta at infinity): as many directions as rows explain all of y"


def _told_noise(noise: float, found: Spectrum) -> str:
    """What to say of noise that only rounding keeps from vanishing."""
    whole = float(found.squares.sum() + found.rest) / found.count
    floored = float(found.rest) <= 30.0 * found.count * found.least
    if not floored or noise > max(HARDLY * whole, 10.0 * found.least):
        return ""
    return _NOISELESS if found.count <= len(found.values) else _EXACT
