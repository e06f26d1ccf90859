r"""Components of a mixture have no names: what can be said without any, and how draws are brought to use the same.

A posterior does not change when components change places, so that the mean of "component 1" over draws is the mean of
all. Either a summary does not depend on the order (which rows go together, how many components hold rows, the
predictive law), or draws are relabelled first; a result says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from boxloop.distributions import Component
from boxloop.sample.gibbs_mixture import MixtureRows, natural_of, sweep

ROUNDS = 50
"""Most rounds of relabelling; a handful is usual."""

BLOCK = 1 << 22
"""Probabilities of components made at once."""

LEAST = 1e-12
"""Smallest probability whose log is taken."""


@dataclass(frozen=True, eq=False)
class Relabelling:
    """The order in which each draw's components stand for the same thing in all draws.

    Args:
        order: of c chains of n draws, (c, n, k): component ``order[..., j]`` of a draw is the one called j.
        settled: whether the search for it came to an end.

    Example:
        >>> import torch
        >>> found = Relabelling(torch.tensor([[[0, 1], [1, 0], [0, 1]]]), True)
        >>> found.apply(torch.tensor([[[5.0, 7.0], [7.0, 5.0], [5.0, 7.0]]]))
        tensor([[[5., 7.],
                 [5., 7.],
                 [5., 7.]]])
        >>> found.mixed, found.switches.tolist()
        (True, [2])
        >>> print(found)
        relabelled: in 33% of the draws components stand in another order than in most (2 changes within chains);
        averages of draws as they are would mix components
    """

    order: Tensor
    settled: bool

    def apply(self, values: Tensor) -> Tensor:
        """Values of components, (c, n, k, ...), in the common order."""
        extra = values.dim() - 3
        index = self.order.to(values.device).reshape(*self.order.shape, *[1] * extra)
        return values.gather(2, index.expand_as(values))

    @property
    def apart(self) -> float:
        """Share of draws whose components stand in another order than in most."""
        _, counts = torch.unique(self.order.flatten(0, 1), dim=0, return_counts=True)
        return 1.0 - float(counts.max()) / self.order[..., 0].numel()

    @property
    def switches(self) -> Tensor:
        """How often the order changes from a draw to the next, (c,)."""
        return (self.order[:, 1:] != self.order[:, :-1]).any(2).sum(1)

    @property
    def mixed(self) -> bool:
        """Whether averages over draws as they are would mix components."""
        return self.apart > 0.0

    def __str__(self) -> str:
        if not self.mixed:
            return "relabelled: components stood in the same order in all draws"
        return (
            f"relabelled: in {100 * self.apart:.0f}% of the draws components stand in another order than in most "
            f"({int(self.switches.sum())} changes within chains);\naverages of draws as they are would mix components"
        )


def relabel(share: Tensor, pivot: int) -> Relabelling:
    r"""Relabel draws such that probabilities of components agree best, by Stephens' algorithm.

    .. math:: \min_{Q, \tau} \sum_s \sum_i \sum_j p^{(s)}_{i \tau_s(j)} \log \frac{p^{(s)}_{i \tau_s(j)}}{q_{ij}}

    In turn Q is the mean of the relabelled probabilities, and each draw's order the best assignment to Q.

    Reference:
        Stephens (2000), *Journal of the Royal Statistical Society B* 62, section 4.1.

    Args:
        share: probability of each component given some rows, in c chains of n draws, (c, n, k, r).
        pivot: the draw, counted through all chains, whose order is used first; one of high density.

    Returns:
        The orders.

    Example:
        >>> import torch
        >>> share = torch.tensor([[[[0.9, 0.2], [0.1, 0.8]], [[0.2, 0.7], [0.8, 0.3]]]])
        >>> relabel(share, 0).order
        tensor([[[0, 1],
                 [1, 0]]])
    """
    c, n, k, r = share.shape
    flat = share.reshape(c * n, k, r)
    centre = flat[pivot]
    order = torch.full((c * n, k), -1, device=share.device)
    settled = False
    for _ in range(ROUNDS):
        found = assign_labels(torch.matmul(flat, centre.clamp(min=LEAST).log().mT))
        settled = bool((found == order).all())
        order = found
        if settled:
            break
        # Means over draws without a second copy of all probabilities.
        taken = torch.nn.functional.one_hot(order, k).to(flat.dtype)
        centre = torch.einsum("sjl,slr->jr", taken, flat) / (c * n)
    return Relabelling(order.reshape(c, n, k), settled)


def assign_labels(score: Tensor) -> Tensor:
    """The order of largest total score, (s, k), from scores of each component for each name, (s, k, k)."""
    order = score.argmax(1)
    k = order.shape[1]
    ideal = torch.arange(k, device=order.device)
    clash = (order.sort(1).values != ideal).any(1)
    # Where every name has a best component of its own, nothing is better; only the others need a search.
    for place in torch.nonzero(clash)[:, 0].tolist():
        _, columns = linear_sum_assignment(score[place].mT.cpu().numpy(), maximize=True)
        order[place] = torch.from_numpy(np.asarray(columns)).to(order.device)
    return order


def allocations(log_weight: Tensor, family: Component, rows: MixtureRows) -> Tensor:
    """Probability of each component of s draws given each row, (s, k, r).

    Args:
        log_weight: (s, k).
        family: s k members.
        rows: r of them.
    """
    s, k = log_weight.shape
    weight = natural_of(family).reshape(s, k, -1).clone()
    weight[..., 0] += log_weight
    return torch.matmul(weight, rows.tile(0, rows.n)).softmax(1)


def blocks_of_draws(
    log_weight: Tensor, family: Component, width: int
) -> Iterator[tuple[slice, Tensor, Component]]:
    """A few draws at a time, so that ``width`` numbers a draw fit: where they are, their weights and components."""
    s, k = log_weight.shape
    size = max(1, BLOCK // max(width, 1))
    for start in range(0, s, size):
        part = slice(start, min(start + size, s))
        members = slice(part.start * k, part.stop * k)
        yield part, log_weight[part], family.map(lambda leaf, m=members: leaf[m])


def similarity_matrix(log_weight: Tensor, family: Component, rows: MixtureRows) -> Tensor:
    r"""Probability that two rows are of the same component, (r, r). It does not depend on labels.

    .. math:: P(z_i = z_j \mid x) = \frac1S \sum_s \sum_k p^{(s)}_{ik} \, p^{(s)}_{jk}, \qquad i \ne j

    since components of rows are independent given the parameters.

    Args:
        log_weight: of s draws, (s, k).
        family: s k members.
        rows: r of them.
    """
    total = log_weight.new_zeros(rows.n, rows.n)
    for _, weight, members in blocks_of_draws(log_weight, family, log_weight.shape[1] * rows.n):
        share = allocations(weight, members, rows).reshape(-1, rows.n)
        total += share.mT @ share
    total /= len(log_weight)
    total.fill_diagonal_(1.0)
    return total


def count_occupied(log_weight: Tensor, family: Component, rows: MixtureRows, stream: Generator) -> Tensor:
    """Components that hold at least one row in a draw of the rows' components, (s,). It does not depend on labels.

    Args:
        log_weight: of s draws, (s, k).
        family: s k members.
        rows: all of them.
        stream: randomness; it is advanced.
    """
    counts = [
        (sweep(rows, weight, members, stream)[0][..., 0] > 0.5).sum(1)
        for _, weight, members in blocks_of_draws(log_weight, family, log_weight.shape[1] * rows.p)
    ]
    return torch.cat(counts)
