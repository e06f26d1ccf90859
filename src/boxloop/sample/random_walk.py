r"""Random walk Metropolis (document 002, example 1.9).

.. math:: y = x + h F z, \quad z \sim N(0, I), \qquad r = \pi(y) / \pi(x)

With :math:`h = 2.38 / \sqrt d` and :math:`F F^\top` the covariance of a Gaussian target, 0.234 of the moves are
accepted for large d, which is best (Roberts, Gelman and Gilks 1997); in one column 0.44 is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample.metric import Metric, check_metric, stretch
from boxloop.sample.metropolis import RuleName, metropolis, normals
from boxloop.sample.target import Target


@dataclass(frozen=True, eq=False)
class RandomWalk:
    r"""Symmetric Gaussian proposals around where a chain is.

    Args:
        scale: h; a number, or one for each chain, (c, 1). Tuned in warm-up when omitted.
        metric: F; scales (d,), or a Cholesky factor (d, d). Where omitted it is tuned with the scale, and the identity
            beside a scale that is given.
        dense: whether warm-up tunes a full metric, or scales of columns; full up to 64 columns when omitted.
        rule: of acceptance, ``metropolis`` or ``barker``.

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.numeric import generator
        >>> kernel = RandomWalk(scale=1.0).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
        >>> path = advance(kernel, kernel.init(torch.zeros(500, 2)), 100, generator(0))
        >>> path.position.shape
        torch.Size([100, 500, 2])
    """

    scale: float | Tensor | None = None
    metric: Metric = None
    dense: bool | None = None
    rule: RuleName = "metropolis"

    keeps_slopes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target's law as it is."""
        density = target.log_density

        def init(position: Tensor) -> Chains:
            return Chains(position, density(position))

        def noise(chains: Chains, n: int, stream: Generator) -> Tensor:
            scale = self.first_scale(chains.position.shape[1]) if self.scale is None else self.scale
            return stretch(self.metric, normals(chains, n, stream)).mul_(scale)

        def propose(chains: Chains, move: Tensor) -> tuple[Chains, Info]:
            position = chains.position + move
            there = Chains(position, density(position))
            return there, Info(there.log_density - chains.log_density)

        return metropolis(init, noise, propose, self.rule, finite=True)

    def first_scale(self, columns: int) -> float:
        """Where tuning starts."""
        return 2.38 / columns**0.5

    def goal(self, columns: int) -> float:
        """The share of moves that is best accepted; 0.158 by Barker's rule (Agrawal et al. 2023)."""
        best = 0.44 if columns == 1 else 0.35 if columns < 5 else 0.234
        return best if self.rule == "metropolis" else 0.158 / 0.234 * best

    def tuned(self, scale: float, metric: Metric) -> Self:
        """The same walk with other steps."""
        return replace(self, scale=scale, metric=metric)
