r"""Relabelling of mixture draws, and quantities that do not depend on component labels.

The posterior of a mixture does not change when components exchange labels (label switching), so that the mean of
"component 1" over draws is the mean of all components. Either a quantity is label-invariant (which rows go together,
how many components hold rows, the predictive distribution), or draws are relabelled first; a result says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from boxloop.distributions import Component
from boxloop.sample.kernels.mixture_gibbs import MixtureRows, natural_parameters, sweep

MAX_ITER = 50
"""Most iterations of relabelling; a handful is usual."""

BLOCK = 1 << 22
"""Component probabilities computed at once."""

LEAST_PROBABILITY = 1e-12
"""Smallest probability whose log is taken."""


@dataclass(frozen=True, eq=False)
class Relabelling:
    """The order of components in which they mean the same in all draws.

    Args:
        order: of c chains of n draws, (c, n, k): component ``order[..., j]`` of a draw has the label j.
        converged: whether the search for it converged.

    Example:
        >>> import torch
        >>> labels = Relabelling(torch.tensor([[[0, 1], [1, 0], [0, 1]]]), True)
        >>> labels.apply(torch.tensor([[[5.0, 7.0], [7.0, 5.0], [5.0, 7.0]]]))
        tensor([[[5., 7.],
                 [5., 7.],
                 [5., 7.]]])
        >>> labels.has_switched, labels.switches.tolist()
        (True, [2])
        >>> print(labels)
        component labels are not identified; draws were relabelled to a common order (Stephens, 2000).
        In 33% of the draws the order differed (2 switches within chains): averages before relabelling mix components
    """

    order: Tensor
    converged: bool

    def apply(self, values: Tensor) -> Tensor:
        """Values of components, (c, n, k, ...), in the common order."""
        extra = values.dim() - 3
        index = self.order.to(values.device).reshape(*self.order.shape, *[1] * extra)
        return values.gather(2, index.expand_as(values))

    @property
    def switched_share(self) -> float:
        """Share of draws whose components are in another order than in most."""
        _, counts = torch.unique(self.order.flatten(0, 1), dim=0, return_counts=True)
        return 1.0 - float(counts.max()) / self.order[..., 0].numel()

    @property
    def switches(self) -> Tensor:
        """Changes of the order from a draw to the next, (c,)."""
        return (self.order[:, 1:] != self.order[:, :-1]).any(2).sum(1)

    @property
    def has_switched(self) -> bool:
        """Whether averages over draws before relabelling would mix components."""
        return self.switched_share > 0.0

    def __str__(self) -> str:
        if not self.has_switched:
            return "component labels are not identified, but components have the same order in all draws"
        return (
            "component labels are not identified; draws were relabelled to a common order (Stephens, 2000).\n"
            f"In {100 * self.switched_share:.0f}% of the draws the order differed ({int(self.switches.sum())} switches "
            "within chains): averages before relabelling mix components"
        )


def relabel(share: Tensor, pivot: int) -> Relabelling:
    r"""Relabel draws such that component probabilities agree best, by Stephens' algorithm.

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
    converged = False
    for _ in range(MAX_ITER):
        found = assign_labels(torch.matmul(flat, centre.clamp(min=LEAST_PROBABILITY).log().mT))
        converged = bool((found == order).all())
        order = found
        if converged:
            break
        # Means over draws without a second copy of all probabilities.
        assignment = torch.nn.functional.one_hot(order, k).to(flat.dtype)
        centre = torch.einsum("sjl,slr->jr", assignment, flat) / (c * n)
    return Relabelling(order.reshape(c, n, k), converged)


def assign_labels(score: Tensor) -> Tensor:
    """The assignment of largest total score, (s, k), from the score of each component for each label, (s, k, k)."""
    order = score.argmax(1)
    k = order.shape[1]
    ideal = torch.arange(k, device=order.device)
    clash = (order.sort(1).values != ideal).any(1)
    # If the best components of all labels differ, no assignment is better; only the others need a search.
    for draw in torch.nonzero(clash)[:, 0].tolist():
        _, columns = linear_sum_assignment(score[draw].mT.cpu().numpy(), maximize=True)
        order[draw] = torch.from_numpy(np.asarray(columns)).to(order.device)
    return order


def component_probabilities(log_weight: Tensor, family: Component, rows: MixtureRows) -> Tensor:
    """Probability of each component of s draws given each row, (s, k, r).

    Args:
        log_weight: (s, k).
        family: s k members.
        rows: r of them.
    """
    s, k = log_weight.shape
    weight = natural_parameters(family).reshape(s, k, -1).clone()
    weight[..., 0] += log_weight
    return torch.matmul(weight, rows.tile(0, rows.n)).softmax(1)


def iterate_draw_blocks(
    log_weight: Tensor, family: Component, width: int
) -> Iterator[tuple[slice, Tensor, Component]]:
    """Blocks of draws, such that ``width`` numbers per draw fit: a slice, log-weights and components."""
    s, k = log_weight.shape
    size = max(1, BLOCK // max(width, 1))
    for start in range(0, s, size):
        part = slice(start, min(start + size, s))
        members = slice(part.start * k, part.stop * k)
        yield part, log_weight[part], family.map(lambda leaf, m=members: leaf[m])


def similarity_matrix(log_weight: Tensor, family: Component, rows: MixtureRows) -> Tensor:
    r"""Probability that two rows belong to the same component, (r, r). It does not depend on labels.

    .. math:: P(z_i = z_j \mid x) = \frac1S \sum_s \sum_k p^{(s)}_{ik} \, p^{(s)}_{jk}, \qquad i \ne j

    since components of rows are independent given the parameters.

    Args:
        log_weight: of s draws, (s, k).
        family: s k members.
        rows: r of them.
    """
    total = log_weight.new_zeros(rows.n, rows.n)
    for _, weight, members in iterate_draw_blocks(log_weight, family, log_weight.shape[1] * rows.n):
        share = component_probabilities(weight, members, rows).reshape(-1, rows.n)
        total += share.mT @ share
    total /= len(log_weight)
    total.fill_diagonal_(1.0)
    return total


def count_occupied(log_weight: Tensor, family: Component, rows: MixtureRows, stream: Generator) -> Tensor:
    """Number of components with at least one row in a draw of the rows' components, (s,). It does not depend on labels.

    Args:
        log_weight: of s draws, (s, k).
        family: s k members.
        rows: all of them.
        stream: randomness; it is advanced.
    """
    counts = [
        (sweep(rows, weight, members, stream)[0][..., 0] > 0.5).sum(1)
        for _, weight, members in iterate_draw_blocks(log_weight, family, log_weight.shape[1] * rows.p)
    ]
    return torch.cat(counts)
