r"""Annealed importance sampling: the normalising constant of a density, with its error.

Between a normalised base law b and an unnormalised density f, let :math:`f_\beta = b^{1-\beta} f^\beta`. A chain that
starts at :math:`x_0 \sim b` and moves by a kernel of each :math:`f_{\beta_t}`, where
:math:`0 = \beta_0 < \dots < \beta_T = 1`, collects the weight

.. math:: \log w = \sum_{t=1}^T (\beta_t - \beta_{t-1}) \left(\log f - \log b\right)(x_{t-1}),
          \qquad E[w] = Z = \int f(x) \, dx .

The mean of w is exactly unbiased, whatever the kernels and however badly they mix; :math:`\log \hat Z` is then too low
on average (Jensen). Chains that start at draws of f and go down give :math:`E[w] = 1/Z`: a bound from above.

Reference: Neal (2001); Grosse, Ghahramani and Adams (2015) for the sandwich; Zhou, Johansen and Aston (2016) for
temperatures by effective sample size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.concerns import warn_each
from boxloop.numeric import RandomState, generator, single_threaded
from boxloop.sample.bridge import Bridge, Kernels, Ladder, LogDensity, Weighted
from boxloop.types import Distribution

MOST_RUNGS = 1000
"""A pilot that needs more temperatures has lost its way."""


@dataclass(frozen=True)
class Annealing:
    """A normalising constant, its error, and the draws it came from.

    Args:
        log_partition: log of the mean weight; a little too low on average.
        error: its standard error, by the delta method.
        effective: effective sample size of the weights.
        draws: the chains at the end, weighted for the density.
        upper: estimate from chains that went down from draws of the density: a little too high on average.
        upper_error: its standard error.
        worries: what makes the numbers doubtful.
    """

    log_partition: float
    error: float
    effective: float
    draws: Weighted
    upper: float | None = None
    upper_error: float | None = None
    worries: tuple[str, ...] = ()


@single_threaded
def annealed_importance(
    log_density: LogDensity,
    base: Distribution,
    kernels: Kernels,
    temperatures: Ladder | int = 100,
    chains: int = 1024,
    random_state: RandomState = None,
    *,
    steps: int = 1,
    draws: Tensor | None = None,
) -> Annealing:
    r"""Estimate :math:`\log \int f`, with an error from the spread of the weights.

    Args:
        log_density: log f, (c, d) -> (c,); minus infinity outside its support.
        base: one normalised law b, whose support covers that of f.
        kernels: (log-density, scale) -> a kernel that leaves it as it is.
        temperatures: a ladder, from :func:`pilot` or by hand; or how many rungs of :meth:`Ladder.sigmoid` with scale 1.
        chains: how many, all independent.
        random_state: seed or generator.
        steps: of the kernel at each temperature.
        draws: of f, exact or nearly so, (m, d): chains go down from them too, and the two estimates enclose log Z. The
            upper one is a bound only so far as the draws are exact.

    Returns:
        The estimate with its error, effective sample size, and weighted draws of f. Warns where few weights decide.

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.sample.random_walk import RandomWalk
        >>> from boxloop.sample.target import Target
        >>> base = DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
        >>> found = annealed_importance(  # log Z = log(2 pi) / 2 = 0.919
        ...     lambda x: -0.5 * (x[:, 0] - 1.0) ** 2,
        ...     base,
        ...     lambda f, scale: RandomWalk(scale).kernel(Target(f)),
        ...     temperatures=20,
        ...     random_state=0,
        ... )
        >>> abs(found.log_partition - 0.919) < 4 * found.error
        True
    """
    if chains < 2:
        raise ValueError(f"an error needs at least 2 chains, got {chains}")
    ladder = Ladder.sigmoid(temperatures) if isinstance(temperatures, int) else temperatures
    stream = generator(random_state, base.mean.device)
    bridge = Bridge(log_density, base, kernels, steps)
    up = bridge.travel(base.draw(chains, stream)[0], ladder, stream)
    worries = list(up.doubts("up from the base"))
    upper = upper_error = None
    if draws is not None:
        down = bridge.travel(draws, ladder, stream, down=True)
        worries += down.doubts("down from the draws")
        upper, upper_error = -down.log_mean, down.error
    warn_each(worries, UserWarning)
    return Annealing(up.log_mean, up.error, up.effective, up, upper, upper_error, tuple(worries))


@single_threaded
def pilot(
    log_density: LogDensity,
    base: Distribution,
    kernels: Kernels,
    temperatures: Sequence[float] | None = None,
    chains: int = 256,
    random_state: RandomState = None,
    *,
    steps: int = 1,
    kept: float = 0.98,
    goal: float = 0.574,
    scale: float = 1.0,
) -> Ladder:
    r"""Choose temperatures and scales on chains that are then thrown away, so that what follows stays unbiased.

    The next temperature is the furthest at which the weights of one increment keep a share of the draws,

    .. math:: \frac{(\sum_i v_i)^2}{c \sum_i v_i^2} = \texttt{kept}, \qquad
        v_i = e^{(\beta' - \beta) (\log f - \log b)(x_i)},

    and the scale at each temperature is the one before it, moved until a share ``goal`` of the moves is accepted.

    Args:
        log_density: log f.
        base: b.
        kernels: (log-density, scale) -> kernel.
        temperatures: rising from 0 to 1; chosen here when omitted.
        chains: of the pilot.
        random_state: seed or generator.
        steps: of the kernel at each temperature, besides those that tune its scale.
        kept: share of the draws that an increment keeps.
        goal: share of accepted moves.
        scale: where tuning starts.

    Returns:
        The ladder.

    Raises:
        ValueError: the density is zero at almost every draw of the base, or a thousand temperatures do not suffice.

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.sample.random_walk import RandomWalk
        >>> from boxloop.sample.target import Target
        >>> base = DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
        >>> ladder = pilot(
        ...     lambda x: -50.0 * (x[:, 0] - 1.0) ** 2,
        ...     base,
        ...     lambda f, scale: RandomWalk(scale).kernel(Target(f)),
        ...     random_state=0,
        ...     goal=0.44,
        ... )
        >>> len(ladder.scales) > 5, ladder.scales[-1] < ladder.scales[0]  # a narrower law, shorter steps
        (True, True)
    """
    stream = generator(random_state, base.mean.device)
    bridge = Bridge(log_density, base, kernels, steps)
    position = base.draw(chains, stream)[0]
    given = None if temperatures is None else iter(tuple(temperatures)[1:])
    betas, scales = [0.0], [scale]
    while betas[-1] < 1.0:
        rise = bridge.rise(position)
        betas.append(next(given, 1.0) if given is not None else _furthest(rise, betas[-1], kept))
        position = bridge.resampled(position, (betas[-1] - betas[-2]) * rise, stream)
        position, tuned = bridge.tune(position, betas[-1], scales[-1], goal, stream)
        scales.append(tuned)
        if len(scales) > MOST_RUNGS:
            raise ValueError(f"{MOST_RUNGS} temperatures do not lead from the base to the density")
    return Ladder(tuple(betas), tuple(scales[1:]))


def _furthest(rise: Tensor, beta: float, kept: float) -> float:
    """The next temperature, by bisection."""

    def share(after: float) -> float:
        part = ((after - beta) * rise).softmax(0)
        return float(1.0 / (len(part) * part.square().sum()))

    if float((rise > -torch.inf).double().mean()) < 0.1:
        raise ValueError(
            "the density is zero at nine in ten draws of the base: choose a base that lies within it"
        )
    if share(1.0) >= kept:
        return 1.0
    low, high = beta, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= kept else (low, middle)
    return max(low, beta + 1e-6)
