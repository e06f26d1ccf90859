r"""The Metropolis-adjusted Langevin algorithm (Le Corff, section 1.4.1).

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
from boxloop.sample.kernels.metropolis import (
    Metric,
    RuleName,
    add_metric_step,
    apply_metric,
    apply_metric_transpose,
    check_metric,
    draw_normals,
    make_metropolis_kernel,
)
from boxloop.sample.target import Target


@dataclass(frozen=True, eq=False)
class MALA:
    r"""Langevin proposals: a step along the gradient, plus noise.

    Args:
        scale: h. Tuned in warm-up when omitted.
        metric: F; scales (d,), or a Cholesky factor (d, d). When omitted, tuned together with the scale, or the
            identity if the scale is given.
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

    stores_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target invariant; chains store the gradient F' grad log pi."""
        metric, value_and_gradient = self.metric, target.value_and_gradient
        fixed = self.scale

        def init(position: Tensor) -> Chains:
            value, gradient = value_and_gradient(position)
            return Chains(position, value, (apply_metric_transpose(metric, gradient),))

        def scale_of(chains: Chains) -> float:
            return self.initial_scale(chains.position.shape[1]) if fixed is None else fixed

        def noise(chains: Chains, n: int, stream: Generator) -> Noise:
            draws = draw_normals(chains, n, stream).mul_(scale_of(chains))
            return Noise(draws, apply_metric(metric, draws))

        def propose(chains: Chains, item: tuple[Tensor, Tensor]) -> tuple[Chains, Info]:
            move, stretched = item
            (here,) = chains.auxiliary
            square = scale_of(chains) ** 2
            position = add_metric_step(metric, chains.position, here, 0.5 * square).add_(stretched)
            value, gradient = value_and_gradient(position)
            there = apply_metric_transpose(metric, gradient)
            both = here + there
            cross = torch.add(move, both, alpha=0.25 * square).mul_(both).sum(1)
            log_ratio = (value - chains.log_density).sub_(cross, alpha=0.5)
            return Chains(position, value, (there,)), Info(log_ratio)

        return make_metropolis_kernel(init, noise, propose, self.rule, finite=True)

    def initial_scale(self, columns: int) -> float:
        """The scale at which tuning starts."""
        return 1.65 / columns ** (1 / 6)

    def target_acceptance(self, columns: int) -> float:
        """The best acceptance rate; 0.347 with Barker's rule (Agrawal et al. 2023)."""
        return 0.574 if self.rule == "metropolis" else 0.347

    def with_steps(self, scale: float, metric: Metric) -> Self:
        """The same proposals with another scale and metric."""
        return replace(self, scale=scale, metric=metric)
