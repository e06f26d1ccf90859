r"""Two jointly Gaussian views, of which everything is known: a bed to test on.

In coordinates :math:`a = W_x^\top x, \; b = W_y^\top y` in which both views are white and only :math:`a_i` and
:math:`b_i` are related, with correlation :math:`\rho_i`, Mehler's formula gives the canonical variables:

.. math:: \frac{p(x, y)}{p(x) \, p(y)} = \sum_{n \in \mathbb{N}^m} \Big( \prod_i \rho_i^{n_i} \Big) \,
    h_n(a) \, h_n(b), \qquad h_n(a) = \prod_i \frac{\mathrm{He}_{n_i}(a_i)}{\sqrt{n_i!}}

Lancaster (1958); document 003, section 5.3 and appendix C. The relevance of the variable with powers n is the square
:math:`\prod_i \rho_i^{2 n_i}`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.numeric import normal, safe_cholesky, signs
from boxloop.tree import Tree

NONE = 1e-12
"""Correlations below this are rounding."""


@dataclass(frozen=True)
class GaussianChannel(Tree):
    """The law of two views, normal together, with mean zero.

    Args:
        cov_x: covariance of the first view, (d, d), positive definite.
        cov_y: of the second, (e, e), positive definite.
        cov_xy: between them, (d, e).

    Raises:
        ValueError: shapes that do not fit; covariances that no rows have.

    Example:
        >>> channel = GaussianChannel.noisy(tau=1.0, sigma=1.0)
        >>> channel.relevance(3)
        tensor([0.5000, 0.2500, 0.1250], dtype=torch.float64)
    """

    cov_x: Tensor
    cov_y: Tensor
    cov_xy: Tensor

    def __post_init__(self) -> None:
        d, e = self.cov_xy.shape
        if self.cov_x.shape != (d, d) or self.cov_y.shape != (e, e):
            shapes = tuple(self.cov_x.shape), tuple(self.cov_y.shape), (d, e)
            raise ValueError(f"covariances must be (d, d), (e, e) and (d, e), got {shapes}")
        if float(self._decomposed()[1].amax()) > 1.0 + 1e-9:
            raise ValueError("no rows have these covariances: the correlation of two columns would exceed 1")

    @classmethod
    def noisy(cls, tau: float, sigma: float) -> Self:
        """x normal with deviation ``tau``, y the same with noise of deviation ``sigma`` (document 003, appendix C)."""
        square = torch.tensor([[tau**2]], dtype=torch.float64)
        return cls(square, square + sigma**2, square.clone())

    def swapped(self) -> GaussianChannel:
        """The same with the views exchanged."""
        return GaussianChannel(self.cov_y, self.cov_x, self.cov_xy.mT)

    def _decomposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_x (d, m), rho (m,), W_y (e, m)."""
        left, right = safe_cholesky(self.cov_x), safe_cholesky(self.cov_y)
        inner = torch.linalg.solve_triangular(left, self.cov_xy, upper=False)
        whole = torch.linalg.solve_triangular(right, inner.mT, upper=False).mT
        u, rho, vt = torch.linalg.svd(whole, full_matrices=False)
        first = torch.linalg.solve_triangular(left.mT, u, upper=True)
        second = torch.linalg.solve_triangular(right.mT, vt.mT, upper=True)
        return first * signs(first), rho, second * signs(first)

    @property
    def correlation(self) -> Tensor:
        """Canonical correlations of linear functions, largest first, (m,) with m = min(d, e)."""
        return self._decomposed()[1].clamp(max=1.0)

    def powers(self, count: int) -> Tensor:
        """The powers n of the most relevant variables, in falling order, (count, m); lower degrees first in a tie.

        Raises:
            ValueError: independent views, which have no variables.
        """
        cost = [-2.0 * math.log(rho) if rho > NONE else math.inf for rho in self.correlation.tolist()]
        m = len(cost)
        useful = [i for i in range(m) if cost[i] < math.inf]
        if not useful:
            raise ValueError("the views are independent: no variable is relevant")
        heap = [_Entry(cost[i], tuple(int(i == j) for j in range(m)), i).key() for i in useful]
        heapq.heapify(heap)
        found: list[tuple[int, ...]] = []
        while len(found) < count:
            entry = heapq.heappop(heap)[-1]
            found.append(entry.power)
            for i in (j for j in useful if j >= entry.last):  # each once: by its last entry, or one after it
                higher = tuple(p + (i == j) for j, p in enumerate(entry.power))
                heapq.heappush(heap, _Entry(entry.cost + cost[i], higher, i).key())
        return torch.tensor(found, dtype=torch.int64)

    def relevance(self, count: int) -> Tensor:
        r"""Products :math:`\prod_i \rho_i^{2 n_i}`, largest first, without the constant's 1, (count,)."""
        return self.correlation.square().pow(self.powers(count).to(self.cov_x.device)).prod(1)

    @property
    def total_relevance(self) -> float:
        r"""Sum over all variables but the constant, :math:`\prod_i (1 - \rho_i^2)^{-1} - 1`."""
        return float((1.0 / (1.0 - self.correlation.square())).prod() - 1.0)

    @property
    def mutual_information(self) -> float:
        r""":math:`-\tfrac12 \sum_i \log(1 - \rho_i^2)`, in nats."""
        return float(-0.5 * torch.log1p(-self.correlation.square()).sum())

    def left(self, rows: Tensor, count: int) -> Tensor:
        """Canonical variables u of rows of the first view, (n, count)."""
        return hermite_products(rows @ self._decomposed()[0], self.powers(count))

    def right(self, rows: Tensor, count: int) -> Tensor:
        """Canonical variables v of rows of the second view, (n, count); each has the sign of its partner u."""
        return hermite_products(rows @ self._decomposed()[2], self.powers(count))

    def conditional(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The law of the first view given rows (n, e) of the second: means (n, d) and covariance (d, d)."""
        slope = torch.cholesky_solve(self.cov_xy.mT, safe_cholesky(self.cov_y))  # (e, d)
        return given @ slope, self.cov_x - self.cov_xy @ slope

    def conditional_moment(self, order: int, given: Tensor) -> Tensor:
        r"""Raw moments of the columns of the first view given rows of the second, (n, d).

        .. math:: E[x^k \mid y] = \sum_i \binom{k}{2i} (2i - 1)!! \; s^{2i} \mu(y)^{k - 2i}
        """
        mean, spread = self.conditional(given)
        return normal_moment(order, mean, spread.diagonal())

    def density_ratio(self, x: Tensor, y: Tensor) -> Tensor:
        """p(x, y) / (p(x) p(y)) of pairs of rows (n, d) and (n, e), in closed form, (n,)."""
        first, rho, second = self._decomposed()
        a, b, rest = x @ first, y @ second, 1.0 - rho.square()  # 0, and no ratio, where a column is shared
        exponent = (2.0 * rho * a * b - rho.square() * (a.square() + b.square())) / (2.0 * rest)
        return (exponent - 0.5 * rest.log()).sum(1).exp()

    def draw(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n pairs of rows: (n, d) and (n, e)."""
        both = torch.cat(
            [torch.cat([self.cov_x, self.cov_xy], 1), torch.cat([self.cov_xy.mT, self.cov_y], 1)]
        )
        values, vectors = torch.linalg.eigh(both)  # singular where one view is a function of the other
        noise = normal((n, len(both)), generator, both.dtype).to(both.device)
        rows = (
            noise @ (vectors * values.clamp(min=0.0).sqrt()) @ vectors.mT
        )  # the root that has no sign to choose
        return rows[:, : len(self.cov_x)], rows[:, len(self.cov_x) :]

    def monomials(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        r"""K, L and A of the powers :math:`x^0, \dots, x^{k_0 - 1}` and those of y, one column each.

        .. math:: K_{ij} = E[x^{i+j}], \quad L_{ij} = E[y^{i+j}], \quad A_{ij} = E[y^i x^j]

        Document 003, eq. 47 to 50.

        Args:
            size: k0, the constant included.

        Returns:
            (k0, k0) each.

        Example:
            >>> GaussianChannel.noisy(tau=1.0, sigma=2.0).monomials(3)[2]
            tensor([[1., 0., 1.],
                    [0., 1., 0.],
                    [5., 0., 7.]], dtype=torch.float64)
        """
        xx, yy, xy = self._one_column()
        place = torch.arange(size)
        return (
            torch.tensor([[central(int(i + j), xx) for j in place] for i in place], dtype=torch.float64),
            torch.tensor([[central(int(i + j), yy) for j in place] for i in place], dtype=torch.float64),
            torch.tensor(
                [[joint_moment(int(i), int(j), xx, yy, xy) for j in place] for i in place],
                dtype=torch.float64,
            ),
        )

    def inferred_moment(self, order: int, given: Tensor, size: int) -> Tensor:
        r"""What ``size`` most relevant variables, the constant included, infer of :math:`E[x^k \mid y]`.

        .. math:: \sum_{i,j=0}^{k_0 - 1} (K^{-1} A^\top L^{-1})_{ji} \, E[x^{k+j}] \; y^i

        Document 003, eq. 10, 52 and 53: exact for :math:`k < k_0`. Deviation: eq. 52 carries a factor p(y) too many.

        Args:
            order: k.
            given: values of y, (n,).
            size: k0.

        Returns:
            (n,).

        Example:
            >>> import torch
            >>> channel, y = GaussianChannel.noisy(tau=1.0, sigma=1.0), torch.tensor([2.0]).double()
            >>> channel.inferred_moment(2, y, 3), channel.inferred_moment(2, y, 2)
            (tensor([1.5000], dtype=torch.float64), tensor([1.], dtype=torch.float64))
        """
        inner, outer, cross = self.monomials(size)
        xx, _, _ = self._one_column()
        theta = torch.tensor([central(order + j, xx) for j in range(size)], dtype=torch.float64)
        weights = torch.linalg.solve(outer, cross @ torch.linalg.solve(inner, theta))
        return given[:, None].pow(torch.arange(size, device=given.device)) @ weights.to(given)

    def _one_column(self) -> tuple[float, float, float]:
        if self.cov_xy.shape != (1, 1):
            raise ValueError(f"powers are of one column in each view, got {tuple(self.cov_xy.shape)}")
        return float(self.cov_x), float(self.cov_y), float(self.cov_xy)


@dataclass(frozen=True)
class _Entry:
    """Powers of a variable, minus the logarithm of its relevance, and the last power that is not 0."""

    cost: float
    power: tuple[int, ...]
    last: int

    def key(self) -> tuple[float, int, tuple[int, ...], _Entry]:
        """In falling order of relevance; equal ones, but for rounding, by degree."""
        return round(self.cost, 10), sum(self.power), tuple(-p for p in self.power), self


def central(order: int, variance: float) -> float:
    """E[x^k] of a centred normal: (k - 1)!! s^k, and 0 for odd k."""
    return 0.0 if order % 2 else float(math.prod(range(order - 1, 0, -2))) * variance ** (order // 2)


def joint_moment(i: int, j: int, xx: float, yy: float, xy: float) -> float:
    r"""E[y^i x^j] of two centred normals, by Isserlis' pairings: r pairs of one x and one y each.

    .. math:: \sum_r r! \binom{i}{r} \binom{j}{r} \, E[xy]^r \, E[y^{i-r}] \, E[x^{j-r}]

    Example:
        >>> joint_moment(2, 2, xx=1.0, yy=5.0, xy=1.0)
        7.0
    """
    return sum(
        math.factorial(r)
        * math.comb(i, r)
        * math.comb(j, r)
        * xy**r
        * central(i - r, yy)
        * central(j - r, xx)
        for r in range(min(i, j) + 1)
    )


def normal_moment(order: int, mean: Tensor, variance: Tensor) -> Tensor:
    """E[x^k] of normals with these means and variances."""
    total = torch.zeros_like(mean)
    for i in range(order // 2 + 1):
        total = total + math.comb(order, 2 * i) * central(2 * i, 1.0) * variance**i * mean ** (order - 2 * i)
    return total


def hermite(values: Tensor, degree: int) -> Tensor:
    r"""Hermite polynomials, orthonormal under the standard normal law, :math:`\mathrm{He}_n(t)/\sqrt{n!}`.

    Args:
        values: t, of any shape.
        degree: the highest.

    Returns:
        (degree + 1, *shape).

    Example:
        >>> import torch
        >>> hermite(torch.tensor([2.0]).double(), 2)[:, 0]
        tensor([1.0000, 2.0000, 2.1213], dtype=torch.float64)
    """
    found = [torch.ones_like(values), values]
    for n in range(1, degree):
        found.append((values * found[n] - math.sqrt(n) * found[n - 1]) / math.sqrt(n + 1))
    return torch.stack(found[: degree + 1])


def hermite_products(values: Tensor, powers: Tensor) -> Tensor:
    """Products of polynomials of the columns of values (n, m), one for each line of powers (r, m): (n, r)."""
    table = hermite(values, int(powers.max()))  # (degree + 1, n, m)
    found = torch.ones(len(values), len(powers), dtype=values.dtype, device=values.device)
    for i in range(powers.shape[1]):
        found = found * table[powers[:, i], :, i].mT
    return found
