r"""Two views of finitely many values each: a contingency table, decomposed exactly.

.. math:: \frac{P_{ab} - p_a q_b}{\sqrt{p_a q_b}} = \sum_i U_{ai} \, \eta_i \, V_{bi}, \qquad
    u_i(a) = \frac{U_{ai}}{\sqrt{p_a}}, \; v_i(b) = \frac{V_{bi}}{\sqrt{q_b}}

Lancaster (1958); document 003, eq. 1 and appendix B.2. Pearson's statistic of independence is the number of
observations times the total relevance, :math:`\chi^2 = n \sum_i \eta_i^2`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.tree import Tree


@dataclass(frozen=True)
class FiniteChannel(Tree):
    """The law of two views that are codes 0, 1, ...

    Args:
        table: counts or probabilities, (a, b), not negative: rows are values of the first view.

    Raises:
        ValueError: a table without mass, or with negative or missing entries.

    Example:
        >>> import torch
        >>> channel = FiniteChannel(torch.tensor([[30.0, 10.0], [10.0, 50.0]]))
        >>> channel.correlation
        tensor([0.5833], dtype=torch.float64)
        >>> channel.expect(torch.tensor([0.0, 1.0]))
        tensor([0.2500, 0.8333], dtype=torch.float64)
    """

    table: Tensor

    def __post_init__(self) -> None:
        if self.table.dim() != 2 or not self.table.numel():
            raise ValueError(f"a table has two axes, got shape {tuple(self.table.shape)}")
        if not bool((self.table >= 0).all()) or not bool(torch.isfinite(self.table).all()):
            raise ValueError("entries of a table are counts or probabilities: finite and not negative")
        if not bool(self.table.sum() > 0):
            raise ValueError("the table is empty: all its entries are 0")

    @property
    def joint(self) -> Tensor:
        """p(x, y), (a, b), float64."""
        return self.table.double() / self.table.double().sum()

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """p(x), (a,), and p(y), (b,)."""
        return self.joint.sum(1), self.joint.sum(0)

    def _decomposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """u (a, r), eta (r,), v (b, r); 0 at values that never come."""
        p, q = self.marginals
        some, others = p > 0.0, q > 0.0
        first, second = p[some].sqrt(), q[others].sqrt()
        whole = self.joint[some][:, others] / (first[:, None] * second)
        whole = (
            whole + first[:, None] * second
        )  # the constant's 1 becomes 2: apart from all others, and first
        left, eta, right = torch.linalg.svd(whole, full_matrices=False)
        u = torch.zeros(len(p), len(eta) - 1, dtype=p.dtype, device=p.device)
        v = torch.zeros(len(q), len(eta) - 1, dtype=p.dtype, device=p.device)
        u[some], v[others] = left[:, 1:] / first[:, None], right.mT[:, 1:] / second[:, None]
        return u, eta[1:], v

    @property
    def correlation(self) -> Tensor:
        """Canonical correlations, largest first, without the constant's 1; one fewer than the smaller view's values."""
        return self._decomposed()[1].clamp(max=1.0)

    @property
    def relevance(self) -> Tensor:
        """Their squares."""
        return self.correlation.square()

    def left(self, codes: Tensor) -> Tensor:
        """Canonical variables u of codes (n,) of the first view, (n, r)."""
        return self._decomposed()[0][codes.long()]

    def right(self, codes: Tensor) -> Tensor:
        """Canonical variables v of codes (n,) of the second view, (n, r)."""
        return self._decomposed()[2][codes.long()]

    def chi_square(self, n: float | None = None) -> float:
        r"""Pearson's statistic of independence, :math:`n \sum_i \eta_i^2`.

        Args:
            n: observations; the sum of the table when omitted.
        """
        return float((self.table.double().sum() if n is None else n) * self.relevance.sum())

    def conditional(self) -> Tensor:
        """p(x | y), (a, b): a column for each value of the second view; NaN where it never comes."""
        return self.joint / self.marginals[1]

    def expect(self, theta: Tensor) -> Tensor:
        """E[theta(x) | y] for each value of y, (b,) or (b, p), of theta (a,) or (a, p); exact."""
        return self.conditional().mT @ theta.double()

    def truncated(self, rank: int) -> Tensor:
        r"""The joint law that the most relevant variables represent, (a, b); entries may be negative.

        .. math:: q(x, y) = p(x) \, p(y) \Big( 1 + \sum_{i=1}^{k} \eta_i u_i(x) v_i(y) \Big)

        Document 003, theorem 1: no other law of this rank is nearer to :attr:`joint` in the mean square of
        :math:`(q - p) / \sqrt{p(x) p(y)}`, which is :math:`\sum_{i > k} \eta_i^2`.

        Args:
            rank: variables, the constant not counted.
        """
        u, eta, v = self._decomposed()
        p, q = self.marginals
        return p[:, None] * q * (1.0 + (u[:, :rank] * eta[:rank]) @ v[:, :rank].mT)

    def swapped(self) -> FiniteChannel:
        """The same with the views exchanged."""
        return FiniteChannel(self.table.mT)

    def draw(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n pairs of codes, (n,) each."""
        cells = torch.multinomial(self.joint.reshape(-1), n, replacement=True, generator=generator)
        return cells // self.table.shape[1], cells % self.table.shape[1]
