"""Whether chains keep the distribution that made parameters and rows: joint-distribution tests and rank uniformity."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy import stats
from torch import Tensor

from boxloop.chain import Kernel, advance
from boxloop.numeric import generator
from contract.scores import mean_scores

Look = Callable[[Tensor], Tensor]


def joint_scores(kernel: Kernel, position: Tensor, look: Look, steps: int = 3, seed: int = 0) -> Tensor:
    """z-scores of what a few steps change, on average over many pairs of true parameters and their own rows.

    A pair (parameters, rows) from the joint distribution stays one when a correct kernel moves the parameters given
    the rows (Geweke 2004). So the mean of ``look(after) - look(before)`` is zero; pairs are independent.

    Args:
        kernel: of c chains with a table each.
        position: the parameters that made the tables, (c, p).
        look: from positions to (c, q) quantities.
        steps: of the kernel.
        seed: of its stream.
    """
    path = advance(kernel, kernel.init(position), steps, generator(seed))
    change = look(path.chains.position) - look(position)
    return mean_scores(change, torch.zeros(change.shape[1], dtype=change.dtype))


def ranks(
    kernel: Kernel, truth: Tensor, start: Tensor, look: Look, draws: int, thin: int, burn: int
) -> Tensor:
    """Ranks of true quantities among ``draws`` thinned draws, (c, q) in 0..draws (Talts et al. 2018)."""
    stream = generator(5)
    chains = advance(kernel, kernel.init(start), burn, stream).chains
    below = torch.zeros_like(look(truth), dtype=torch.long)
    for _ in range(draws):
        chains = advance(kernel, chains, thin, stream).chains
        below += look(chains.position) < look(truth)
    return below


def uniform_chances(rank: Tensor, draws: int, bins: int = 8) -> list[float]:
    """p-value of each column's ranks being uniform, by a chi-square test."""
    assert (draws + 1) % bins == 0
    counts = [torch.bincount(column // ((draws + 1) // bins), minlength=bins) for column in rank.mT]
    return [float(stats.chisquare(count.numpy()).pvalue) for count in counts]
