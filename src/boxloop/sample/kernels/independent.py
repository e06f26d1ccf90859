r"""The independence sampler, and Metropolis-Hastings with any proposal whose ratio is known.

.. math:: y \sim g, \qquad r = \frac{\pi(y) \, g(x)}{\pi(x) \, g(y)}

Le Corff, section 1.3 with :math:`q(x, y) = g(y)`. The better g covers the target, its tails above all, the more
proposals are accepted; if g misses a part of the target, chains get stuck there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel, Noise
from boxloop.sample.kernels.metropolis import RuleName, make_metropolis_kernel, repeat_stream
from boxloop.sample.target import Target
from boxloop.types import Distribution


@dataclass(frozen=True, eq=False)
class Independent:
    """Independent proposals from a fixed distribution.

    Args:
        proposal: distribution g of the proposals, in unconstrained coordinates, with one member, as in
            :mod:`boxloop.distributions`.
        rule: of acceptance, ``metropolis`` or ``barker``.

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.numeric import generator
        >>> wide = DiagonalGaussian(torch.zeros(1, 2).double(), 2.0 * torch.ones(1, 2).double())
        >>> kernel = Independent(wide).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
        >>> path = advance(kernel, kernel.init(torch.zeros(500, 2).double()), 20, generator(0))
        >>> bool(((path.log_ratio.clamp(max=0.0).exp()).mean() - 0.6).abs() < 0.1)
        True
    """

    proposal: Distribution
    rule: RuleName = "metropolis"

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target invariant; chains store log g of their positions."""
        density, proposal = target.log_density, self.proposal

        def init(position: Tensor) -> Chains:
            log_proposal = proposal.log_prob(position)
            if len(log_proposal) != 1:
                raise ValueError(f"proposal must have one member, got {len(log_proposal)}")
            return Chains(position, density(position), (log_proposal[0],))

        def noise(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
            shape = (n, *chains.position.shape)
            positions = proposal.draw(n * shape[1], stream)[0].to(chains.position.dtype)
            return Noise(positions.reshape(shape), proposal.log_prob(positions)[0].reshape(shape[:2]))

        def propose(chains: Chains, item: tuple[Tensor, Tensor]) -> tuple[Chains, Info]:
            position, log_proposal = item
            value = density(position)
            there = Chains(position, value, (log_proposal,))
            return there, Info(value - log_proposal - chains.log_density + chains.auxiliary[0])

        return make_metropolis_kernel(init, noise, propose, self.rule)


@dataclass(frozen=True, eq=False)
class MetropolisHastings:
    r"""Metropolis-Hastings with a given proposal and ratio (Le Corff, section 1.4.2, lemma 1.10).

    .. math:: r(x, y) = \frac{d\mu_1}{d\mu_0}(x, y), \qquad \mu_0 = \pi(dx) Q(x, dy), \quad \mu_1 = \pi(dy) Q(y, dx)

    For proposals without a density: moves between spaces, reflections, discrete jumps.

    Args:
        propose: (positions (c, d), stream) -> proposals (c, d).
        log_ratio: (x, y) -> log r, (c,). It must be antisymmetric, log r(y, x) = -log r(x, y);
            :func:`check_reversible` checks it.
        rule: of acceptance, ``metropolis`` or ``barker``.

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.numeric import generator
        >>> flip = MetropolisHastings(lambda x, stream: -x, lambda x, y: (x - y)[:, 0])
        >>> kernel = flip.kernel()
        >>> path = advance(kernel, kernel.init(torch.ones(4, 1)), 3, generator(0))
        >>> path.position.abs().unique()
        tensor([1.])
    """

    propose: Callable[[Tensor, Generator], Tensor]
    log_ratio: Callable[[Tensor, Tensor], Tensor]
    rule: RuleName = "metropolis"

    def kernel(self, target: Target | None = None) -> Kernel:
        """The kernel. Chains store the target's log-density, if any; the ratio alone decides."""

        def init(position: Tensor) -> Chains:
            stored = position.new_zeros(len(position)) if target is None else target.log_density(position)
            return Chains(position, stored)

        def propose(chains: Chains, stream: Generator) -> tuple[Chains, Info]:
            position = self.propose(chains.position, stream)
            return init(position), Info(self.log_ratio(chains.position, position))

        return make_metropolis_kernel(init, repeat_stream, propose, self.rule)
