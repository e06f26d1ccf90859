r"""Annealed importance sampling: the normalising constant of a density, with its error.

Between a normalised base distribution b and an unnormalised density f, let :math:`f_\beta = b^{1-\beta} f^\beta`. A
chain that starts at :math:`x_0 \sim b` and moves by a kernel of each :math:`f_{\beta_t}`, where
:math:`0 = \beta_0 < \dots < \beta_T = 1`, collects the weight

.. math:: \log w = \sum_{t=1}^T (\beta_t - \beta_{t-1}) \left(\log f - \log b\right)(x_{t-1}),
          \qquad E[w] = Z = \int f(x) \, dx .

The mean of w is unbiased, whatever the kernels and however badly they mix; :math:`\log \hat Z` is then too low on
average (Jensen). Chains that start at draws of f and run backwards give :math:`E[w] = 1/Z`: an upper bound.

Reference: Neal (2001); Grosse, Ghahramani and Adams (2015) for the sandwich; Zhou, Johansen and Aston (2016) for
temperatures by effective sample size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Generator, Tensor

from boxloop.chain import Kernel, advance
from boxloop.concerns import warn_each
from boxloop.numeric import RandomState, generator, single_threaded
from boxloop.sample.target import LogDensity
from boxloop.types import Distribution

KernelFactory = Callable[[LogDensity, float], Kernel]
"""Makes a kernel that leaves a log-density invariant, with steps of a given scale."""

LEAST_ESS, LEAST_SHARE = 30.0, 0.02
"""Effective sample size, and share of all draws, below which few weights dominate the estimate."""

MAX_TEMPERATURES = 1000
"""Most temperatures that are chosen."""


@dataclass(frozen=True)
class Ladder:
    """Temperatures from the base to the density, and the scale of steps at each, fixed before the estimate.

    Args:
        temperatures: rising from 0 to 1, (T + 1,).
        scales: of the kernels at all but the first, (T,).

    Example:
        >>> Ladder((0.0, 0.5, 1.0), (1.0, 1.0)).temperatures[-1]
        1.0
    """

    temperatures: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        betas = self.temperatures
        is_rising = all(a < b for a, b in pairwise(betas))
        if len(betas) < 2 or not is_rising or (betas[0], betas[-1]) != (0, 1):
            raise ValueError(f"temperatures must rise from 0 to 1, got {self.temperatures}")
        if len(self.scales) != len(self.temperatures) - 1 or not all(scale > 0 for scale in self.scales):
            raise ValueError("every temperature but the first needs a positive scale")

    @classmethod
    def sigmoid(cls, rungs: int, scale: float = 1.0, sharpness: float = 4.0) -> Ladder:
        r"""Temperatures close together at both ends, where the density changes fastest.

        .. math:: \beta_t = \frac{\sigma(k (2t/T - 1)) - \sigma(-k)}{\sigma(k) - \sigma(-k)}

        Args:
            rungs: T.
            scale: of all kernels.
            sharpness: k.

        Example:
            >>> [round(beta, 3) for beta in Ladder.sigmoid(4).temperatures]
            [0.0, 0.105, 0.5, 0.895, 1.0]
        """
        if rungs < 1:
            raise ValueError(f"at least one rung is needed, got {rungs}")
        place = torch.linspace(-sharpness, sharpness, rungs + 1, dtype=torch.float64).sigmoid()
        inner = ((place - place[0]) / (place[-1] - place[0])).tolist()[1:-1]
        return cls((0.0, *inner, 1.0), (scale,) * rungs)


@dataclass(frozen=True)
class WeightedDraws:
    """Weighted draws of annealed chains."""

    position: Tensor  # (c, d), independent of one another
    log_weight: Tensor  # (c,); the mean weight estimates the normalising constant

    @property
    def log_mean(self) -> float:
        """log of the mean weight."""
        return float(self.log_weight.logsumexp(0)) - math.log(len(self.log_weight))

    @property
    def effective(self) -> float:
        r"""Effective sample size :math:`(\sum w)^2 / \sum w^2`."""
        share = self.log_weight.softmax(0)
        return float(1.0 / share.square().sum())

    @property
    def error(self) -> float:
        r"""Standard error of :attr:`log_mean` by the delta method, :math:`\mathrm{sd}(w) / (\bar w \sqrt c)`."""
        c = len(self.log_weight)
        return math.sqrt(max(c / self.effective - 1.0, 0.0) / (c - 1)) if c > 1 else math.nan

    def find_concerns(self, direction: str) -> Iterator[str]:
        """What makes the mean weight of chains in a direction doubtful."""
        c, effective = len(self.log_weight), self.effective
        if not math.isfinite(self.log_mean):
            yield f"no chain {direction} has a finite weight: the partition function is unknown; use a wider base"
        elif effective < max(min(LEAST_ESS, 0.5 * c), LEAST_SHARE * c):
            yield (
                f"few weights dominate the partition function: {c} chains {direction} have an effective sample size of "
                f"{effective:.1f}; use more temperatures, more steps or a base nearer to the density"
            )

    def resample(self, n: int, stream: Generator) -> Tensor:
        """n positions in random order, by weight and with low variance (systematic resampling; Kitagawa 1996)."""
        share = self.log_weight.softmax(0).double().cumsum(0)
        first = torch.rand((), generator=stream, dtype=share.dtype, device=share.device)
        level = (torch.arange(n, dtype=share.dtype, device=share.device) + first) / n * share[-1]
        index = torch.searchsorted(share, level).clamp(max=len(share) - 1)
        order = torch.randperm(n, generator=stream, device=stream.device)
        return self.position[index[order]]


@dataclass(frozen=True)
class AnnealingPath:
    """The path of densities from a base to a density, and how chains move along it."""

    log_density: LogDensity  # log f
    base: Distribution  # b
    kernels: KernelFactory  # (log-density, scale) -> kernel
    steps: int = 1  # of a kernel at each temperature

    def log_density_at(self, beta: float) -> LogDensity:
        """(1 - beta) log b + beta log f; at the ends the other density is not evaluated, as it may be infinite."""
        if beta == 0.0:
            return lambda x: self.base.log_prob(x)[0]
        if beta == 1.0:
            return self.log_density
        return lambda x: (1.0 - beta) * self.base.log_prob(x)[0] + beta * self.log_density(x)

    def log_ratio(self, position: Tensor) -> Tensor:
        """log f - log b of each chain, (c,)."""
        with torch.no_grad():
            found = self.log_density(position) - self.base.log_prob(position)[0]
        bad = torch.isnan(found) | (found == torch.inf)
        if bool(bad.any()):
            first = position[bad][0].tolist()
            raise ValueError(
                f"the log-density is not a number at {int(bad.sum())} draws, the first at {first}"
            )
        return found

    def anneal_chains(
        self, position: Tensor, ladder: Ladder, stream: Generator, *, backwards: bool = False
    ) -> WeightedDraws:
        """Move chains along all temperatures, and collect their weights."""
        log_weight = position.new_zeros(len(position))
        for before, after, scale in _iterate_increments(ladder, backwards):
            log_weight = log_weight + (after - before) * self.log_ratio(position)
            kernel = self.kernels(self.log_density_at(after), scale)
            position = advance(kernel, kernel.init(position), self.steps, stream).chains.position
        return WeightedDraws(position, log_weight)

    def tune_scale(
        self, position: Tensor, beta: float, scale: float, target_acceptance: float, stream: Generator
    ) -> tuple[Tensor, float]:
        """Chains a few steps later, and the scale of the wanted acceptance rate."""
        for step in range(max(self.steps, 4)):
            kernel = self.kernels(self.log_density_at(beta), scale)
            path = advance(kernel, kernel.init(position), 1, stream)
            position = path.chains.position
            if path.log_ratio is not None:
                acceptance = float(path.log_ratio.nan_to_num(nan=-math.inf).clamp(max=0.0).exp().mean())
                scale *= math.exp(2.0 * (acceptance - target_acceptance) / (step + 1) ** 0.5)
        return position, scale


def _iterate_increments(ladder: Ladder, backwards: bool) -> Iterator[tuple[float, float, float]]:
    """(temperature before, temperature after, scale) of every increment."""
    betas, scales = ladder.temperatures, (ladder.scales[0], *ladder.scales)
    if (
        backwards
    ):  # The kernel at a temperature is the one that led up to it, and that at 0 is the last one's.
        betas, scales = betas[::-1], scales[::-1]
    yield from zip(betas, betas[1:], scales[1:])


@dataclass(frozen=True)
class Annealing:
    """Result of annealed importance sampling: a normalising constant, its error, and the weighted draws.

    Args:
        log_partition: log of the mean weight; a little too low on average.
        error: its standard error, by the delta method.
        effective: effective sample size of the weights.
        draws: the chains at the end, with their weights.
        upper: estimate from chains that ran backwards from draws of the density: a little too high on average.
        upper_error: its standard error.
        concerns: what makes the estimates doubtful.
    """

    log_partition: float
    error: float
    effective: float
    draws: WeightedDraws
    upper: float | None = None
    upper_error: float | None = None
    concerns: tuple[str, ...] = ()


@single_threaded
def annealed_importance(
    log_density: LogDensity,
    base: Distribution,
    kernels: KernelFactory,
    temperatures: Ladder | int = 100,
    chains: int = 1024,
    random_state: RandomState = None,
    *,
    steps: int = 1,
    draws: Tensor | None = None,
) -> Annealing:
    r"""Estimate :math:`\log \int f` by annealed importance sampling, with a standard error from the weights.

    Args:
        log_density: log f, (c, d) -> (c,); minus infinity outside its support.
        base: one normalised distribution b, whose support covers that of f.
        kernels: (log-density, scale) -> a kernel that leaves it invariant.
        temperatures: a ladder, from :func:`choose_temperatures` or by hand; or the number of temperatures of
            :meth:`Ladder.sigmoid` with scale 1.
        chains: number of independent chains.
        random_state: seed or generator.
        steps: of the kernel at each temperature.
        draws: of f, exact or nearly so, (m, d): chains run backwards from them too, and the two estimates enclose
            log Z. The upper one is a bound only as far as the draws are exact.

    Returns:
        The estimate with its error, effective sample size, and weighted draws of f. Warns if few weights dominate.

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.sample import RandomWalk, Target
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
    path = AnnealingPath(log_density, base, kernels, steps)
    forward = path.anneal_chains(base.draw(chains, stream)[0], ladder, stream)
    concerns = list(forward.find_concerns("from the base"))
    upper = upper_error = None
    if draws is not None:
        backward = path.anneal_chains(draws, ladder, stream, backwards=True)
        concerns += backward.find_concerns("from the draws")
        upper, upper_error = -backward.log_mean, backward.error
    warn_each(concerns, UserWarning)
    return Annealing(
        forward.log_mean, forward.error, forward.effective, forward, upper, upper_error, tuple(concerns)
    )


@single_threaded
def choose_temperatures(
    log_density: LogDensity,
    base: Distribution,
    kernels: KernelFactory,
    temperatures: Sequence[float] | None = None,
    chains: int = 256,
    random_state: RandomState = None,
    *,
    steps: int = 1,
    ess_share: float = 0.98,
    target_acceptance: float = 0.574,
    scale: float = 1.0,
) -> Ladder:
    r"""Choose temperatures and scales on pilot chains that are then discarded, so that estimates stay unbiased.

    The next temperature is the largest at which the weights of one increment have an effective sample size of

    .. math:: \frac{(\sum_i v_i)^2}{c \sum_i v_i^2} = \texttt{ess\_share}, \qquad
        v_i = e^{(\beta' - \beta) (\log f - \log b)(x_i)},

    and the scale at each temperature is the one before it, moved until the share ``target_acceptance`` of the moves is
    accepted.

    Args:
        log_density: log f.
        base: b.
        kernels: (log-density, scale) -> kernel.
        temperatures: rising from 0 to 1; chosen here when omitted.
        chains: number of pilot chains.
        random_state: seed or generator.
        steps: of the kernel at each temperature, besides those that tune its scale.
        ess_share: effective sample size of the weights of an increment, as a share of the chains.
        target_acceptance: share of accepted moves.
        scale: at which tuning starts.

    Returns:
        The ladder.

    Raises:
        ValueError: the density is zero at almost every draw of the base, or a thousand temperatures do not suffice.

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.sample import RandomWalk, Target
        >>> base = DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
        >>> ladder = choose_temperatures(
        ...     lambda x: -50.0 * (x[:, 0] - 1.0) ** 2,
        ...     base,
        ...     lambda f, scale: RandomWalk(scale).kernel(Target(f)),
        ...     random_state=0,
        ...     target_acceptance=0.44,
        ... )
        >>> len(ladder.scales) > 5, ladder.scales[-1] < ladder.scales[0]  # a narrower density, shorter steps
        (True, True)
    """
    stream = generator(random_state, base.mean.device)
    path = AnnealingPath(log_density, base, kernels, steps)
    position = base.draw(chains, stream)[0]
    given = None if temperatures is None else iter(tuple(temperatures)[1:])
    betas, scales = [0.0], [scale]
    while betas[-1] < 1.0:
        log_ratio = path.log_ratio(position)
        betas.append(
            next(given, 1.0) if given is not None else _find_next_temperature(log_ratio, betas[-1], ess_share)
        )
        weighted = WeightedDraws(position, (betas[-1] - betas[-2]) * log_ratio)
        position = weighted.resample(len(position), stream)  # a pilot need not be unbiased
        position, tuned = path.tune_scale(position, betas[-1], scales[-1], target_acceptance, stream)
        scales.append(tuned)
        if len(scales) > MAX_TEMPERATURES:
            raise ValueError(f"{MAX_TEMPERATURES} temperatures do not lead from the base to the density")
    return Ladder(tuple(betas), tuple(scales[1:]))


def _find_next_temperature(log_ratio: Tensor, beta: float, ess_share: float) -> float:
    """The next temperature, by bisection."""

    def effective_share(after: float) -> float:
        part = ((after - beta) * log_ratio).softmax(0)
        return float(1.0 / (len(part) * part.square().sum()))

    if float((log_ratio > -torch.inf).double().mean()) < 0.1:
        raise ValueError(
            "the density is zero at nine in ten draws of the base: choose a base that lies within it"
        )
    if effective_share(1.0) >= ess_share:
        return 1.0
    low, high = beta, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective_share(middle) >= ess_share else (low, middle)
    return max(low, beta + 1e-6)
