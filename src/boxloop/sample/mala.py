r"""The Metropolis-adjusted Langevin algorithm (document 002, section 1.4.1).

.. math:: y = x + \tfrac{h^2}{2} F F^\top \nabla \log \pi(x) + h F z, \qquad z \sim N(0, I)

The proposal's densities need not be evaluated: with :math:`s = F^\top (\nabla \log \pi(x) + \nabla \log \pi(y))`,

.. math:: \log \frac{q(y, x)}{q(x, y)} = -\tfrac12 s^\top \left( h z + \tfrac{h^2}{4} s \right) .
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel, Noise
from boxloop.sample.metric import Metric, check_metric, pull, shifted, stretch
from boxloop.sample.metropolis import RuleName, metropolis, normals
from boxloop.sample.target import Target


@dataclass(frozen=True, eq=False)
class MALA:
    r"""Langevin proposals: a step up the gradient, and noise.

    Args:
        scale: h. Tuned in warm-up when omitted.
        metric: F; scales (d,), or a Cholesky factor (d, d). Where omitted it is tuned with the scale, and the identity
            beside a scale that is given.
        dense: whether warm-up tunes a full metric, or scales of columns; full up to 64 columns when omitted.
        rule: of acceptance, ``metropolis`` or ``barker``.

    Reference:
        Roberts and Tweedie (1996); the acceptance of 0.574 is best for large d (Roberts and Rosenthal 1998).

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.numeric import generator
        >>> kernel = MALA(scale=1.0).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
        >>> path = advance(kernel, kernel.init(torch.zeros(500, 2)), 20, generator(0))
        >>> path.position.shape
        torch.Size([20, 500, 2])
    """

    scale: float | None = None
    metric: Metric = None
    dense: bool | None = None
    rule: RuleName = "metropolis"

    keeps_slopes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target's law as it is; chains keep the gradient F' grad log pi."""
        metric, rise = self.metric, target.value_and_gradient
        fixed = self.scale

        def init(position: Tensor) -> Chains:
            value, slope = rise(position)
            return Chains(position, value, (pull(metric, slope),))

        def length(chains: Chains) -> float:
            return self.first_scale(chains.position.shape[1]) if fixed is None else fixed

        def noise(chains: Chains, n: int, stream: Generator) -> Noise:
            draws = normals(chains, n, stream).mul_(length(chains))
            return Noise(draws, stretch(metric, draws))

        def propose(chains: Chains, item: tuple[Tensor, Tensor]) -> tuple[Chains, Info]:
            move, stretched = item
            (here,) = chains.auxiliary
            square = length(chains) ** 2
            position = shifted(metric, chains.position, here, 0.5 * square).add_(stretched)
            value, slope = rise(position)
            there = pull(metric, slope)
            both = here + there
            cross = torch.add(move, both, alpha=0.25 * square).mul_(both).sum(1)
            log_ratio = (value - chains.log_density).sub_(cross, alpha=0.5)
            return Chains(position, value, (there,)), Info(log_ratio)

        return metropolis(init, noise, propose, self.rule, finite=True)

    def first_scale(self, columns: int) -> float:
        """Where tuning starts."""
        return 1.65 / columns ** (1 / 6)

    def goal(self, columns: int) -> float:
        """The share of moves that is best accepted; 0.347 by Barker's rule (Agrawal et al. 2023)."""
        return 0.574 if self.rule == "metropolis" else 0.347

    def tuned(self, scale: float, metric: Metric) -> Self:
        """The same proposals with other steps."""
        return replace(self, scale=scale, metric=metric)
