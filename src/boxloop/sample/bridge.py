"""The way from a base law to a density: temperatures, the laws between, and chains that travel along them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.chain import Kernel, advance
from boxloop.types import Distribution

LogDensity = Callable[[Tensor], Tensor]
Kernels = Callable[[LogDensity, float], Kernel]
"""A kernel that leaves a log-density as it is, with steps of a given scale."""

FEW, SHARE = 30.0, 0.02
"""Fewer effective draws than this, or a smaller share of all, and a few weights decide the estimate."""


@dataclass(frozen=True)
class Ladder:
    """Temperatures from the base to the density, and the scale of steps at each: fixed before any chain that counts.

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
        rising = all(a < b for a, b in zip(self.temperatures, self.temperatures[1:]))
        if (
            len(self.temperatures) < 2
            or not rising
            or (self.temperatures[0], self.temperatures[-1]) != (0, 1)
        ):
            raise ValueError(f"temperatures must rise from 0 to 1, got {self.temperatures}")
        if len(self.scales) != len(self.temperatures) - 1 or not all(scale > 0 for scale in self.scales):
            raise ValueError("every temperature but the first needs a positive scale")

    @classmethod
    def sigmoid(cls, rungs: int, scale: float = 1.0, sharpness: float = 4.0) -> Ladder:
        r"""Temperatures close together at both ends, where the law changes fastest.

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
class Weighted:
    """Draws with weights.

    Args:
        position: (c, d), independent of one another.
        log_weight: (c,), with the constant that makes their mean an estimate.
    """

    position: Tensor
    log_weight: Tensor

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

    def doubts(self, way: str) -> Iterator[str]:
        """What makes the mean weight doubtful, of chains that went a way."""
        c, effective = len(self.log_weight), self.effective
        if not math.isfinite(self.log_mean):
            yield f"no chain that went {way} has a finite weight: the partition function is not known"
        elif effective < max(min(FEW, 0.5 * c), SHARE * c):
            yield (
                f"few weights decide the partition function: of {c} chains that went {way}, {effective:.1f} count; "
                "use more temperatures, more steps or a base nearer to the density"
            )

    def resample(self, n: int, stream: Generator) -> Tensor:
        """n positions in random order, by weight and with low variance (systematic resampling; Kitagawa 1996)."""
        share = self.log_weight.softmax(0).double().cumsum(0)
        first = torch.rand((), generator=stream, dtype=share.dtype, device=share.device)
        at = (torch.arange(n, dtype=share.dtype, device=share.device) + first) / n * share[-1]
        place = torch.searchsorted(share, at).clamp(max=len(share) - 1)
        order = torch.randperm(n, generator=stream, device=stream.device)
        return self.position[place[order]]


@dataclass(frozen=True)
class Bridge:
    """The densities between a base and a density, and how chains move under them.

    Args:
        log_density: log f.
        base: b.
        kernels: (log-density, scale) -> kernel.
        steps: of a kernel at each temperature.
    """

    log_density: LogDensity
    base: Distribution
    kernels: Kernels
    steps: int = 1

    def between(self, beta: float) -> LogDensity:
        """(1 - beta) log b + beta log f; at the ends the other side is not looked at, for it may be infinite."""
        if beta == 0.0:
            return lambda x: self.base.log_prob(x)[0]
        if beta == 1.0:
            return self.log_density
        return lambda x: (1.0 - beta) * self.base.log_prob(x)[0] + beta * self.log_density(x)

    def rise(self, position: Tensor) -> Tensor:
        """log f - log b at each chain, (c,).

        Raises:
            ValueError: it is NaN or plus infinity.
        """
        with torch.no_grad():
            found = self.log_density(position) - self.base.log_prob(position)[0]
        bad = torch.isnan(found) | (found == torch.inf)
        if bool(bad.any()):
            place = position[bad][0].tolist()
            raise ValueError(
                f"the log-density is not a number at {int(bad.sum())} draws, the first at {place}"
            )
        return found

    def travel(self, position: Tensor, ladder: Ladder, stream: Generator, *, down: bool = False) -> Weighted:
        """Chains along all temperatures, with the weights they collect."""
        log_weight = position.new_zeros(len(position))
        for before, after, scale in _rungs(ladder, down):
            log_weight = log_weight + (after - before) * self.rise(position)
            kernel = self.kernels(self.between(after), scale)
            position = advance(kernel, kernel.init(position), self.steps, stream).chains.position
        return Weighted(position, log_weight)

    def resampled(self, position: Tensor, log_weight: Tensor, stream: Generator) -> Tensor:
        """Chains of a pilot by their weight; it need not be unbiased."""
        return Weighted(position, log_weight).resample(len(position), stream)

    def tune(
        self, position: Tensor, beta: float, scale: float, goal: float, stream: Generator
    ) -> tuple[Tensor, float]:
        """Chains a few steps on, and the scale at which a share ``goal`` of their moves is accepted."""
        for step in range(max(self.steps, 4)):
            kernel = self.kernels(self.between(beta), scale)
            path = advance(kernel, kernel.init(position), 1, stream)
            position = path.chains.position
            if path.log_ratio is not None:
                accepted = float(path.log_ratio.nan_to_num(nan=-math.inf).clamp(max=0.0).exp().mean())
                scale *= math.exp(2.0 * (accepted - goal) / (step + 1) ** 0.5)
        return position, scale


def _rungs(ladder: Ladder, down: bool) -> Iterator[tuple[float, float, float]]:
    """(temperature before, temperature after, scale) of every increment.

    Going down, the kernel at a temperature is the one that led up to it, and that at 0 is the last one's.
    """
    betas, scales = ladder.temperatures, (ladder.scales[0], *ladder.scales)
    if down:
        betas, scales = betas[::-1], scales[::-1]
    yield from zip(betas, betas[1:], scales[1:])
