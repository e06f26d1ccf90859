r"""Pseudo-marginal Metropolis: an unbiased estimate in place of the density.

.. math:: \alpha = \min\left(1, \frac{\tilde W \, q(\tilde x, x)}{W \, q(x, \tilde x)}\right), \quad
          E[W \mid x] = \pi(x)

Le Corff, section 1.4.3, algorithm 2 (Andrieu and Roberts 2009). The estimate W of the current state is stored and
never drawn again: doing so would sample another distribution. In the correlated variant (Deligiannidis, Doucet and Pitt
2018) the normal numbers behind the estimate move little by little, :math:`\tilde v = \rho v + \sqrt{1 - \rho^2} \,
\epsilon`, so that the errors of both ends cancel in the ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel, Noise
from boxloop.numeric import RandomState, generator
from boxloop.sample.kernels.metropolis import (
    Metric,
    RuleName,
    apply_metric,
    check_metric,
    draw_normals,
    make_metropolis_kernel,
)
from boxloop.sample.target import Target

Estimator = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class PseudoMarginal:
    r"""A random walk on an estimated density. The target's log-density is not used and may be omitted.

    Args:
        log_estimate: (positions (c, d), normal numbers (c, numbers)) -> log W, (c,); W, not its logarithm, is unbiased
            for the density. Positions are unconstrained vectors.
        numbers: standard normal numbers that one estimate uses. The normal distribution function makes uniform numbers
            of them.
        correlation: rho; 0 draws all numbers afresh for each proposal.
        scale: of the walk. Tuned in warm-up when omitted.
        metric: of the walk, (d,) or (d, d). Tuned in warm-up when omitted.
        dense: whether warm-up tunes a full metric, or scales of columns; full up to 64 columns when omitted.
        rule: of acceptance, ``metropolis`` or ``barker``.
        random_state: of the numbers behind the first estimates.

    Note:
        The kernel leaves the joint distribution of positions *and* numbers invariant; given a position, its numbers are
        not normal. ``init`` draws normal ones, so that a check that begins at exact positions must take some steps
        first.

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.numeric import generator
        >>> def noisy(x, numbers):  # log-normal noise with mean one
        ...     return -0.5 * x[:, 0] ** 2 + numbers[:, 0] - 0.5
        >>> kernel = PseudoMarginal(noisy, 1, scale=2.0, random_state=0).kernel()
        >>> path = advance(kernel, kernel.init(torch.zeros(2000, 1)), 100, generator(0))
        >>> bool((path.chains.position.var() - 1.0).abs() < 0.15)
        True
    """

    log_estimate: Estimator
    numbers: int
    correlation: float = 0.0
    scale: float | Tensor | None = None
    metric: Metric = None
    dense: bool | None = None
    rule: RuleName = "metropolis"
    random_state: RandomState = 0

    stores_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if not 0.0 <= self.correlation < 1.0:
            raise ValueError(f"correlation must lie in [0, 1), got {self.correlation}")
        if self.numbers < 1:
            raise ValueError(f"numbers must be at least 1, got {self.numbers}")

    def kernel(self, target: Target | None = None) -> Kernel:
        """The kernel that leaves the extended distribution W R(x, dW) invariant; chains store the numbers behind W."""
        fresh = (1.0 - self.correlation**2) ** 0.5

        def init(position: Tensor) -> Chains:
            shape = (len(position), self.numbers)
            stream = generator(self.random_state, position.device)
            numbers = torch.randn(shape, generator=stream, dtype=position.dtype, device=position.device)
            return Chains(position, self.log_estimate(position, numbers), (numbers,))

        def noise(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
            scale = self.initial_scale(chains.position.shape[1]) if self.scale is None else self.scale
            moves = apply_metric(self.metric, draw_normals(chains, n, stream)).mul_(scale)
            numbers = draw_normals(Chains(chains.auxiliary[0], chains.log_density), n, stream).mul_(fresh)
            return Noise(moves, numbers)

        def propose(chains: Chains, item: tuple[Tensor, Tensor]) -> tuple[Chains, Info]:
            move, numbers = item
            position = chains.position + move
            if self.correlation:
                numbers = torch.add(numbers, chains.auxiliary[0], alpha=self.correlation)
            estimate = self.log_estimate(position, numbers)
            return Chains(position, estimate, (numbers,)), Info(estimate - chains.log_density)

        return make_metropolis_kernel(init, noise, propose, self.rule, finite=True)

    def initial_scale(self, columns: int) -> float:
        """The scale at which tuning starts."""
        return 2.38 / columns**0.5

    def target_acceptance(self, columns: int) -> float:
        """Lower than that of a random walk on the density itself: about 0.07 for large d (Sherlock et al. 2015)."""
        return 0.25 if columns == 1 else 0.15 if columns < 5 else 0.07

    def with_steps(self, scale: float, metric: Metric) -> Self:
        """The same walk with another scale and metric."""
        return replace(self, scale=scale, metric=metric)
