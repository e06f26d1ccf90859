r"""Random walk Metropolis (Le Corff, example 1.9).

.. math:: y = x + h F z, \quad z \sim N(0, I), \qquad r = \pi(y) / \pi(x)

With :math:`h = 2.38 / \sqrt d` and :math:`F F^\top` the covariance of a Gaussian target, 0.234 of the moves are
accepted for large d, which is best (Roberts, Gelman and Gilks 1997); in one column 0.44 is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample.kernels.metropolis import (
    Metric,
    RuleName,
    apply_metric,
    check_metric,
    draw_normals,
    make_metropolis_kernel,
)
from boxloop.sample.target import Target


@dataclass(frozen=True, eq=False)
class RandomWalk:
    r"""Symmetric Gaussian proposals around the position of a chain.

    Args:
        scale: h; a number, or one for each chain, (c, 1). Tuned in warm-up when omitted.
        metric: F; scales (d,), or a Cholesky factor (d, d). When omitted, tuned together with the scale, or the
            identity if the scale is given.
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

    stores_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target invariant."""
        density = target.log_density

        def init(position: Tensor) -> Chains:
            return Chains(position, density(position))

        def noise(chains: Chains, n: int, stream: Generator) -> Tensor:
            scale = self.initial_scale(chains.position.shape[1]) if self.scale is None else self.scale
            return apply_metric(self.metric, draw_normals(chains, n, stream)).mul_(scale)

        def propose(chains: Chains, move: Tensor) -> tuple[Chains, Info]:
            position = chains.position + move
            there = Chains(position, density(position))
            return there, Info(there.log_density - chains.log_density)

        return make_metropolis_kernel(init, noise, propose, self.rule, finite=True)

    def initial_scale(self, columns: int) -> float:
        """The scale at which tuning starts."""
        return 2.38 / columns**0.5

    def target_acceptance(self, columns: int) -> float:
        """The best acceptance rate; 0.158 with Barker's rule (Agrawal et al. 2023)."""
        best = 0.44 if columns == 1 else 0.35 if columns < 5 else 0.234
        return best if self.rule == "metropolis" else 0.158 / 0.234 * best

    def with_steps(self, scale: float, metric: Metric) -> Self:
        """The same walk with another scale and metric."""
        return replace(self, scale=scale, metric=metric)
