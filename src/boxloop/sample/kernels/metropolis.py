r"""The Metropolis step that every kernel with a ratio shares: propose, compare, accept or stay.

.. math:: \alpha^{MH}(x, y) = \min(1, r), \qquad \alpha^{b}(x, y) = \frac{r}{1 + r},
          \qquad r = \frac{\pi(y) \, q(y, x)}{\pi(x) \, q(x, y)}

Le Corff, lemmas 1.7, 1.8 and 1.10. A proposal is accepted if :math:`\log r` exceeds a random threshold: the logarithm
of a uniform number gives :math:`\alpha^{MH}`, a logistic number :math:`\alpha^b`. An acceptance rule is thus the
distribution of a threshold, and costs the step nothing. A ratio that is not a number exceeds no threshold: such a
proposal is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel, Noise

RuleName = Literal["metropolis", "barker"]
Propose = Callable[[Chains, Any], tuple[Chains, Info]]
Moves = Callable[[Chains, int, Generator], Tensor | Sequence[Any]]

LERP_SIZE = 8192
"""Numbers in the positions from which interpolation is faster than a mask."""


class Rule(NamedTuple):
    """An acceptance rule.

    Args:
        threshold: uniform numbers in [0, 1) -> thresholds of the log-ratio; may work in place.
        probability: log-ratio -> acceptance probability.
    """

    threshold: Callable[[Tensor], Tensor]
    probability: Callable[[Tensor], Tensor]


def _logistic(uniform: Tensor) -> Tensor:
    return torch.logit(uniform.clamp_(min=torch.finfo(uniform.dtype).eps / 4))


RULES: dict[RuleName, Rule] = {
    "metropolis": Rule(
        lambda uniform: uniform.neg_().log1p_(), lambda log_ratio: log_ratio.clamp(max=0.0).exp()
    ),
    "barker": Rule(_logistic, torch.sigmoid),
}
"""Lemma 1.8. Barker's rule accepts less often and mixes more slowly (Peskun 1973)."""


def metropolis(
    init: Callable[[Tensor], Chains],
    noise: Moves,
    propose: Propose,
    rule: RuleName = "metropolis",
    finite: bool = False,
) -> Kernel:
    """A kernel from a proposal and its ratio.

    Args:
        init: positions -> chains, with their log-density and whatever else is stored with a position.
        noise: the randomness of n proposals, one item each.
        propose: (chains, item) -> (proposed chains, info with the log-ratio (c,)). Chains hold the stored log-density
            of both ends.
        rule: how a ratio becomes an acceptance probability.
        finite: whether proposed positions are finite whatever the density does, so that interpolation can select
            between them and the old ones, several times faster than a mask.

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.numeric import generator
        >>> def propose(chains, move):
        ...     position = chains.position + move
        ...     there = Chains(position, -0.5 * position[:, 0] ** 2)
        ...     return there, Info(there.log_density - chains.log_density)
        >>> kernel = metropolis(
        ...     init=lambda position: Chains(position, -0.5 * position[:, 0] ** 2),
        ...     noise=lambda chains, n, stream: torch.randn((n, *chains.position.shape), generator=stream),
        ...     propose=propose,
        ... )
        >>> path = advance(kernel, kernel.init(torch.zeros(1000, 1)), 50, generator(0))
        >>> bool((path.chains.position.var() - 1.0).abs() < 0.2)
        True
    """
    threshold = RULES[rule].threshold

    def noise_and_thresholds(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
        moves = noise(chains, n, stream)
        log_density = chains.log_density
        uniform = torch.rand(
            (n, len(log_density)), generator=stream, dtype=log_density.dtype, device=log_density.device
        )
        return Noise(moves, threshold(uniform))

    def step(chains: Chains, item: tuple[Any, Tensor]) -> tuple[Chains, Info]:
        move, level = item
        there, info = propose(chains, move)
        assert info.log_ratio is not None
        return select_chains(level < info.log_ratio, there, chains, finite), info

    return Kernel(init, noise_and_thresholds, step, RULES[rule].probability)


def select_chains(accept: Tensor, proposed: Chains, current: Chains, finite: bool = False) -> Chains:
    """Each chain at the proposed position if accepted, else where it was."""
    column = accept[:, None]
    if finite and current.position.numel() >= LERP_SIZE and current.position.device.type == "cpu":
        position = torch.lerp(current.position, proposed.position, column.to(current.position.dtype))
    else:
        position = torch.where(column, proposed.position, current.position)
    log_density = torch.where(accept, proposed.log_density, current.log_density)
    if not current.auxiliary:
        return Chains(position, log_density)
    auxiliary = [
        torch.where(column if new.dim() == 2 else accept.reshape(-1, *(1,) * (new.dim() - 1)), new, old)
        for new, old in zip(proposed.auxiliary, current.auxiliary)
    ]
    return Chains(position, log_density, tuple(auxiliary))


def draw_normals(chains: Chains, n: int, stream: Generator) -> Tensor:
    """Standard normal numbers (n, c, d), drawn in float32 and cast: twice as fast, with no measurable effect."""
    position = chains.position
    noise = torch.randn((n, *position.shape), generator=stream, dtype=torch.float32, device=position.device)
    return noise.to(position.dtype)
