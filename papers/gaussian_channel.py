r"""The Gaussian channel: exact canonical variables and moments, and variables learned from samples.

Learning relevant features for statistical inference, section 5.3 and appendix C. In
coordinates :math:`a = W_x^\top x, \; b = W_y^\top y` in which both views are white and only :math:`a_i` and
:math:`b_i` are related, with correlation :math:`\rho_i`, Mehler's formula gives the canonical variables (Lancaster
1958):

.. math:: \frac{p(x, y)}{p(x) \, p(y)} = \sum_{n \in \mathbb{N}^m} \Big( \prod_i \rho_i^{n_i} \Big) \,
    h_n(a) \, h_n(b), \qquad h_n(a) = \prod_i \frac{\mathrm{He}_{n_i}(a_i)}{\sqrt{n_i!}}

The relevance of the variable with powers n is the square :math:`\prod_i \rho_i^{2 n_i}`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import special
from torch import Generator, Tensor

from boxloop.estimators import RelevantFeatures
from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, new_figure, relevance_spectrum
from boxloop.numeric import column_signs, generator, normal, safe_cholesky, spawn
from boxloop.tree import Tree
from boxloop.twoview import Significance
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target

Array = NDArray[np.float64]


# --- Settings ---

TAU, SIGMA = 1.0, 1.0
NODES = 200
"""Quadrature nodes of each of two axes."""
JUDGED = 4
"""Variables, of those learned, whose relevance is compared: the last ones learned are seldom whole."""
DEGREES = ("He₁", "He₂", "He₃", "He₄")
ROUNDING = 1e-12
"""Correlations below this are rounding."""


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        rows: of a data set.
        held: test rows.
        seeds: data sets.
        passes: epochs.
        hidden: widths of both networks.
        variables: learned, without the constant.
    """

    rows: int
    held: int
    seeds: int
    passes: int
    hidden: tuple[int, ...]
    variables: int = 5


FULL = Size(rows=50_000, held=20_000, seeds=8, passes=60, hidden=(64, 64))
QUICK = Size(rows=20_000, held=10_000, seeds=1, passes=40, hidden=(32, 32))


# --- The channel, of which everything is known ---


@dataclass(frozen=True)
class GaussianChannel(Tree):
    """Two jointly Gaussian views with mean zero.

    Args:
        cov_x: covariance of the first view, (d, d), positive definite.
        cov_y: of the second, (e, e), positive definite.
        cov_xy: between them, (d, e).

    Raises:
        ValueError: shapes that do not fit; covariances that no rows have.
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
        """x normal with standard deviation ``tau``, y = x plus noise of standard deviation ``sigma`` (appendix C)."""
        square = torch.tensor([[tau**2]], dtype=torch.float64)
        return cls(square, square + sigma**2, square.clone())

    def _decomposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_x (d, m), rho (m,), W_y (e, m)."""
        left, right = safe_cholesky(self.cov_x), safe_cholesky(self.cov_y)
        inner = torch.linalg.solve_triangular(left, self.cov_xy, upper=False)
        whole = torch.linalg.solve_triangular(right, inner.mT, upper=False).mT
        u, rho, vt = torch.linalg.svd(whole, full_matrices=False)
        first = torch.linalg.solve_triangular(left.mT, u, upper=True)
        second = torch.linalg.solve_triangular(right.mT, vt.mT, upper=True)
        return first * column_signs(first), rho, second * column_signs(first)

    @property
    def correlation(self) -> Tensor:
        """Canonical correlations of linear functions, largest first, (m,) with m = min(d, e)."""
        return self._decomposed()[1].clamp(max=1.0)

    def powers(self, count: int) -> Tensor:
        """The powers n of the most relevant variables, in falling order, (count, m); lower degrees first in a tie.

        Raises:
            ValueError: independent views, which have no variables.
        """
        cost = [-2.0 * math.log(rho) if rho > ROUNDING else math.inf for rho in self.correlation.tolist()]
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

    def left(self, rows: Tensor, count: int) -> Tensor:
        """Canonical variables u of rows of the first view, (n, count)."""
        return hermite_products(rows @ self._decomposed()[0], self.powers(count))

    def right(self, rows: Tensor, count: int) -> Tensor:
        """Canonical variables v of rows of the second view, (n, count); each has the sign of its partner u."""
        return hermite_products(rows @ self._decomposed()[2], self.powers(count))

    def conditional(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The first view given rows (n, e) of the second: means (n, d) and covariance (d, d)."""
        slope = torch.cholesky_solve(self.cov_xy.mT, safe_cholesky(self.cov_y))  # (e, d)
        return given @ slope, self.cov_x - self.cov_xy @ slope

    def conditional_moment(self, order: int, given: Tensor) -> Tensor:
        r"""Raw moments of the columns of the first view given rows of the second, (n, d).

        .. math:: E[x^k \mid y] = \sum_i \binom{k}{2i} (2i - 1)!! \; s^{2i} \mu(y)^{k - 2i}
        """
        mean, spread = self.conditional(given)
        return normal_moment(order, mean, spread.diagonal())

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

        Eq. 47 to 50.

        Args:
            size: k0, the constant included.

        Returns:
            (k0, k0) each.
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

        Eq. 10, 52 and 53: exact for :math:`k < k_0`. Deviation: eq. 52 carries a factor p(y) too many.

        Args:
            order: k.
            given: values of y, (n,).
            size: k0.

        Returns:
            (n,).
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
    r"""Hermite polynomials, orthonormal under the standard normal density, :math:`\mathrm{He}_n(t)/\sqrt{n!}`.

    Args:
        values: t, of any shape.
        degree: the highest.

    Returns:
        (degree + 1, *shape).
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


def nodes(channel: GaussianChannel, count: int = NODES) -> tuple[Tensor, Tensor]:
    """Nodes (x, y) of a Gauss-Hermite rule for the joint density of two columns, and their weights."""
    place, weight = (torch.from_numpy(part) for part in special.roots_hermitenorm(count))
    weight = weight / weight.sum()
    whole = torch.cat(
        [torch.cat([channel.cov_x, channel.cov_xy], 1), torch.cat([channel.cov_xy.mT, channel.cov_y], 1)]
    )
    grid = torch.cartesian_prod(place, place) @ torch.linalg.cholesky(whole).mT
    return grid, (weight[:, None] * weight).reshape(-1)


def correlations(u: Tensor, v: Tensor, mass: Tensor) -> Array:
    """Of pairs of columns, under weights that add up to 1."""
    a, b = u - mass @ u, v - mass @ v
    return np.asarray((mass @ (a * b)) / ((mass @ a.square()) * (mass @ b.square())).sqrt())


def exact_error(channel: GaussianChannel, n: int, count: int) -> Array:
    r"""Standard errors of the relevances of the exact variables on n rows, (count,), by quadrature.

    .. math:: 2 \rho \, \sqrt{E \left( u v - \tfrac12 \rho (u^2 + v^2) \right)^2 / n}

    Fourth powers of Hermite polynomials have tails that a sample seldom shows: an error from the rows themselves is
    too small as often as not.
    """
    grid, mass = nodes(channel)
    u, v = channel.left(grid[:, :1], count), channel.right(grid[:, 1:], count)
    rho = channel.relevance(count).sqrt()
    influence = u * v - 0.5 * rho * (u.square() + v.square())
    return np.asarray(2.0 * rho * (mass @ influence.square() / n).sqrt())


def inferred_density(channel: GaussianChannel, x: Array, y: float, variables: int) -> Array:
    """p(x | y) by so many variables, the constant included (eq. 52 without its p(y)); (n,)."""
    rows = torch.from_numpy(x)[:, None]
    prior = np.exp(-0.5 * x**2 / float(channel.cov_x)) / math.sqrt(2.0 * math.pi * float(channel.cov_x))
    if variables == 1:
        return np.asarray(prior)
    u = channel.left(rows, variables - 1)
    v = channel.right(torch.tensor([[y]], dtype=torch.float64), variables - 1)[0]
    return np.asarray(prior * (1.0 + (u @ (channel.relevance(variables - 1).sqrt() * v)).numpy()))


# --- Variables learned from samples ---


@dataclass(frozen=True)
class Learned:
    """Variables learned from one data set.

    Args:
        fit: the estimator.
        judged: on test rows.
        channel: that the rows are from.
    """

    fit: RelevantFeatures
    judged: Significance
    channel: GaussianChannel

    def variables(self, x: Tensor) -> Tensor:
        """u of values x, (n, r)."""
        with torch.no_grad():
            found: Tensor = self.fit.model_.left(x[:, None])
        return found

    @cached_property
    def by_quadrature(self) -> tuple[Array, Array]:
        """Correlations of the pairs (r,), and of each u with the Hermite variable of its place (r,), by quadrature."""
        grid, mass = nodes(self.channel)
        x, y = grid[:, :1], grid[:, 1:]
        with torch.no_grad():
            u, v = self.fit.model_.left(x), self.fit.model_.right(y)
        known = self.channel.left(x, u.shape[1])
        return correlations(u, v, mass), np.abs(correlations(u, known, mass))

    def moments(self, y: Array) -> tuple[Array, Array]:
        """E[x | y] and E[x^2 | y] by the learned variables, (n, 2), and their standard errors."""
        found = self.fit.expect(
            lambda rows: torch.cat([rows, rows.square()], 1), given=y[:, None], direction="x_given_y"
        )
        return np.asarray(found.mean), np.asarray(found.standard_error)


def learn_variables(channel: GaussianChannel, size: Size, seed: int) -> Learned:
    """Draw rows, train two networks, evaluate their canonical variables on test rows."""
    streams = spawn(generator(seed), 3)
    x, y = (part.numpy() for part in channel.draw(size.rows, streams[0]))
    fit = RelevantFeatures(
        size.variables,
        x_features="network",
        y_features="network",
        hidden=size.hidden,
        batch_size=size.rows // 10,
        learning_rate=5e-3,
        schedule="cosine",
        max_iter=size.passes,
        validation_fraction=0.0,
        random_state=streams[2],
    ).fit(x, y)
    others = (part.numpy() for part in channel.draw(size.held, streams[1]))
    return Learned(fit, fit.significance(*others), channel)


# --- Findings: what appendix C claims ---


def judge_exact(seed: int) -> list[Finding]:
    """Equations 49 to 53, at several channels, and what is said around them."""
    stream = generator(seed)
    pairs = [(TAU, SIGMA), *(2.0 * torch.rand(5, 2, generator=stream, dtype=torch.float64) + 0.1).tolist()]
    channels = [(tau, sigma, GaussianChannel.noisy(tau, sigma)) for tau, sigma in pairs]
    gaps = [_matrix_errors(*one) for one in channels]
    return [
        *_judge_correlators(np.asarray(gaps).max(0), len(pairs)),
        _judge_eigenvalues(),
        _judge_moments(channels),
        _judge_normalisation(),
        _judge_rank(),
        _judge_parameters(),
    ]


def _matrix_errors(tau: float, sigma: float, channel: GaussianChannel) -> list[float]:
    """Largest relative differences of K, L, A (eq. 49, 50) and of M (eq. 51)."""
    t, s = tau**2, sigma**2
    w, gamma = t + s, t / (t + s)
    found = channel.monomials(3)
    inner, outer, cross = found
    whole = torch.linalg.solve(inner, cross.mT @ torch.linalg.solve(outer, cross))
    known = [
        [[1, 0, t], [0, t, 0], [t, 0, 3 * t**2]],
        [[1, 0, w], [0, w, 0], [w, 0, 3 * w**2]],
        [[1, 0, t], [0, t, 0], [w, 0, t * (s + 3 * t)]],
        [[1, 0, t * (1 - gamma**2)], [0, gamma, 0], [0, 0, gamma**2]],
    ]
    return [
        _relative_difference(a, torch.tensor(b, dtype=torch.float64)) for a, b in zip((*found, whole), known)
    ]


def _relative_difference(found: Tensor, known: Tensor) -> float:
    return float((found - known).abs().max() / known.abs().max())


def _judge_correlators(gap: Array, count: int) -> list[Finding]:
    return [
        Finding(
            "K, L and A of 1, x, x² (eq. 49, 50)",
            "closed forms",
            f"largest relative difference {gap[:3].max():.0e}",
            None,
            "reproduced" if gap[:3].max() < 1e-12 else "not reproduced",
            f"Against moments by Isserlis' pairings, for {count} pairs of deviations.",
            exact=True,
        ),
        Finding(
            "M = K⁻¹AᵀL⁻¹A is triangular (eq. 51)",
            "diagonal 1, γ, γ²; corner τ²(1 − γ²)",
            f"largest relative difference {gap[3]:.0e}",
            None,
            "reproduced" if gap[3] < 1e-9 else "not reproduced",
            "Its eigenfunctions are 1, x and x² − τ².",
            exact=True,
        ),
    ]


def _judge_eigenvalues() -> Finding:
    gamma, size = TAU**2 / (TAU**2 + SIGMA**2), 8
    inner, outer, cross = GaussianChannel.noisy(TAU, SIGMA).monomials(size)
    whole = torch.linalg.solve(inner, cross.mT @ torch.linalg.solve(outer, cross))
    found = torch.linalg.eigvals(whole).real.sort(descending=True).values.numpy()
    gap = float(np.abs(found / gamma ** np.arange(size) - 1.0).max())
    return Finding(
        "relevances are 1, γ, γ², ...",
        "three of them",
        f"{size} of them, largest relative difference {gap:.0e}",
        None,
        "reproduced" if gap < 1e-8 else "not reproduced",
        "The relevance of xⁿ less its projection on lower powers is γⁿ = η², as the correlation of x and y is √γ.",
        exact=True,
    )


def _judge_moments(channels: Sequence[tuple[float, float, GaussianChannel]]) -> Finding:
    inside, beyond = 0.0, math.inf
    for tau, sigma, channel in channels:
        y = math.hypot(tau, sigma) * torch.linspace(-2, 2, 9, dtype=torch.float64)
        for size in range(2, 7):
            for order in range(1, size + 1):
                known = channel.conditional_moment(order, y[:, None])[:, 0]
                gap = _relative_difference(channel.inferred_moment(order, y, size), known)
                inside, beyond = (max(inside, gap), beyond) if order < size else (inside, min(beyond, gap))
    return Finding(
        "moments of x given y up to k0 − 1 are exact (eq. 53)",
        "exact",
        f"relative error at most {inside:.0e} for k0 = 2 to 6; of the k0-th moment at least {beyond:.1g}",
        None,
        "reproduced" if inside < 1e-8 and beyond > 1e-6 else "not reproduced",
        "Powers below k0 lie in the span of the variables; the next does not.",
        exact=True,
    )


def _judge_normalisation() -> Finding:
    channel, y = GaussianChannel.noisy(TAU, SIGMA), 1.0
    x = np.linspace(-12.0, 12.0, 4001) * TAU
    mass = float(inferred_density(channel, x, y, 3).sum() * (x[1] - x[0]))
    both = mass * math.exp(-0.5 * y**2 / float(channel.cov_y)) / math.sqrt(2 * math.pi * float(channel.cov_y))
    return Finding(
        "the inferred distribution of x given y (eq. 52)",
        "p(x) p(y) Σ ...",
        f"integral {mass:.6f} with p(x) alone, {both:.3f} with both, at y = 1",
        None,
        "reproduced" if abs(both - 1.0) < abs(mass - 1.0) else "not reproduced",
        "An erratum: p(y) does not belong there; the moments of eq. 53 are those without it.",
        exact=True,
    )


def _judge_rank() -> Finding:
    cutoff, gamma = 0.1, TAU**2 / (TAU**2 + SIGMA**2)
    count = 1 + math.floor(2.0 * math.log(cutoff) / math.log(gamma))
    found = 1 + int((GaussianChannel.noisy(TAU, SIGMA).relevance(200).sqrt() > cutoff).sum())
    return Finding(
        "the rank is infinite even for any finite cutoff on the singular values",
        "infinite",
        f"{found} singular values above {cutoff}, by the formula {count}",
        None,
        "not reproduced" if found == count else "reproduced",
        "An erratum: γ^(n/2) falls below every positive cutoff; the rank is infinite only without one.",
        exact=True,
    )


def _judge_parameters() -> Finding:
    eye = torch.eye(2, dtype=torch.float64)
    near, far = (
        GaussianChannel(eye, eye, torch.tensor([0.9, rho], dtype=torch.float64).diag()).powers(2)[1].tolist()
        for rho in (0.85, 0.5)
    )
    return Finding(
        "relevant variables do not depend on the parameters of a Gaussian distribution",
        "a general property",
        f"of two columns, correlations 0.9 and 0.85: second variable {_describe_powers(near)}; "
        f"0.9 and 0.5: {_describe_powers(far)}",
        None,
        "reproduced" if near == far else "not reproduced",
        "It holds for one column in each view; of several, which products of powers come first depends on the "
        "correlations, and in which coordinates on the covariances.",
        exact=True,
    )


def _describe_powers(power: Sequence[int]) -> str:
    return " ".join(f"He{p}(a{i + 1})" for i, p in enumerate(power) if p)


# --- Findings: learned variables ---


def judge_learned(runs: Sequence[Learned], size: Size) -> list[Finding]:
    """Learned variables beside the exact ones."""
    return [
        _judge_relevances(runs, size),
        _judge_true_relevances(runs),
        _judge_functions(runs),
        _judge_inference(runs, size),
        _judge_rank_of_samples(runs),
    ]


def _judge_relevances(runs: Sequence[Learned], size: Size) -> Finding:
    channel = runs[0].channel
    known, error = channel.relevance(JUDGED).numpy(), exact_error(channel, size.held, JUDGED)
    found = np.asarray([run.judged.relevance[:JUDGED] for run in runs])
    z = (found - known) / error
    line = ", ".join(f"{f:.3f} ± {e:.3f} ({k:.4f})" for f, e, k in zip(found.mean(0), error, known))
    return Finding(
        f"learned relevances of rows held out, n = 1 to {JUDGED}, beside γⁿ",
        "γⁿ",
        line,
        None,
        judge_claim(bool((np.abs(z) < 3.0).mean() >= 0.9)),
        f"Mean of {len(runs)} data sets of {size.rows} rows, ± the sampling error of one, γⁿ in brackets; "
        f"{int((np.abs(z) < 3.0).sum())} of {z.size} lie within three errors.",
    )


def _judge_true_relevances(runs: Sequence[Learned]) -> Finding:
    known = runs[0].channel.relevance(JUDGED).numpy()
    share = np.asarray([run.by_quadrature[0][:JUDGED] ** 2 / known for run in runs])
    return Finding(
        "relevance of the learned variables under the true distribution, as a share of γⁿ",
        "—",
        ", ".join(f"{value:.3f}" for value in share.mean(0)) + f"; lowest {share.min():.2f}",
        None,
        judge_target(bool(share.mean(0)[:2].min() > 0.95 and share.mean(0)[2] > 0.85)),
        "By quadrature, free of sampling error of the rows held out: what is missing was not learned.",
    )


def _judge_functions(runs: Sequence[Learned]) -> Finding:
    match = np.asarray([run.by_quadrature[1][:JUDGED] for run in runs])
    return Finding(
        "learned variables are Hermite polynomials",
        "He₁, He₂, ...",
        "correlations " + ", ".join(f"{value:.3f}" for value in match.mean(0)),
        None,
        judge_claim(bool(match.mean(0)[:2].min() > 0.95)),
        "Under the true distribution, each with the polynomial of its degree; those of higher degree mix.",
    )


def _judge_inference(runs: Sequence[Learned], size: Size) -> Finding:
    channel = runs[0].channel
    spread = float(channel.cov_y) ** 0.5
    y = np.linspace(-2.0, 2.0, 9) * spread
    given = torch.from_numpy(y)[:, None]
    known = torch.cat([channel.conditional_moment(k, given) for k in (1, 2)], 1).numpy()
    gaps = np.asarray([run.moments(y)[0] - known for run in runs])
    rms = np.sqrt((gaps**2).mean((0, 1))) / (TAU, TAU**2)
    return Finding(
        "learned variables infer the mean and the second moment of x given y",
        "γy and γ²y² + (1 − γ)τ²",
        f"root mean square errors {rms[0]:.3f} τ and {rms[1]:.3f} τ²",
        None,
        judge_target(bool(rms[0] < 0.05 and rms[1] < 0.15)),
        f"At 9 values of y up to two deviations, by `expect` on the {size.rows} rows of each fit.",
    )


def _judge_rank_of_samples(runs: Sequence[Learned]) -> Finding:
    last = [not run.judged.sufficient for run in runs]
    return Finding(
        f"{len(runs[0].judged.correlation)} variables are not all there are",
        "the rank is infinite",
        f"the last is still significant in {sum(last)} of {len(runs)} fits",
        None,
        judge_target(sum(last) >= 0.5 * len(runs)),
        "Permutation tests on rows held out, at a false-discovery rate of 5%.",
    )


# --- Figures ---


def draw_learned(runs: Sequence[Learned], size: Size) -> Figure:
    """Relevances, inferred moments, and four variables."""
    figure = new_figure(13.0, 8.0)
    layout: Any = [["relevance"] * 2 + ["moments"] * 2, [f"u{n}" for n in range(1, 5)]]
    axes: Any = figure.subplot_mosaic(layout)
    first, channel = runs[0], runs[0].channel
    judged = first.judged
    relevance_spectrum(
        judged.relevance,
        judged.relevance_error,
        axes["relevance"],
        training=judged.training_correlation**2,
        exact=channel.relevance(len(judged.relevance)).numpy(),
        title=f"Relevances, {size.rows} rows",
        across="canonical variable n (exact: γⁿ)",
    )
    _draw_moments(axes["moments"], first)
    for n in range(4):
        _draw_variable(axes[f"u{n + 1}"], runs, n)
    add_legend(axes["u1"], "upper left")
    return figure


def _draw_moments(axes: Any, run: Learned) -> None:
    dress(axes, "Inferred by the learned variables", "y", "moment of x given y\n(bands: 2 standard errors)")
    spread = float(run.channel.cov_y) ** 0.5
    y = np.linspace(-2.5, 2.5, 61) * spread
    mean, error = run.moments(y)
    given = torch.from_numpy(y)[:, None]
    for k, name in ((1, "E[x | y]"), (2, "E[x² | y]")):
        exact = run.channel.conditional_moment(k, given)[:, 0].numpy()
        axes.plot(y, exact, color=INK, lw=1.2, ls="--", label="exact" if k == 1 else None)
        axes.plot(y, mean[:, k - 1], color=COLOURS[k - 1], lw=1.8, label=name)
        low, high = mean[:, k - 1] - 2 * error[:, k - 1], mean[:, k - 1] + 2 * error[:, k - 1]
        axes.fill_between(y, low, high, color=COLOURS[k - 1], alpha=0.2, linewidth=0)
    add_legend(axes, "upper center")


def _draw_variable(axes: Any, runs: Sequence[Learned], n: int) -> None:
    """The n-th variable of every data set, with the sign of the polynomial; shaded where nine rows in ten are."""
    dress(axes, f"Variable {n + 1} and {DEGREES[n]}", "x, in deviations", "value" if n == 0 else "")
    channel = runs[0].channel
    scale = float(channel.cov_x) ** 0.5
    x = torch.linspace(-3.5, 3.5, 281, dtype=torch.float64) * scale
    known = channel.left(x[:, None], n + 1)[:, n]
    weight = torch.exp(-0.5 * (x / scale).square())
    axes.axvspan(-1.645, 1.645, color=FAINT, alpha=0.12, linewidth=0)
    for j, run in enumerate(runs):
        u = run.variables(x)[:, n]
        u = u * torch.sign((weight * u * known).sum())
        axes.plot(x / scale, u, color=COLOURS[0], lw=1.0, alpha=0.7, label=None if j else "learned")
    axes.plot(x / scale, known, color=INK, lw=1.4, ls="--", label="exact")
    near = known[x.abs() <= 2.7 * scale]
    low, high = float(near.min()), float(near.max())
    axes.set(xlim=(-3.5, 3.5), ylim=(low - 0.15 * (high - low), high + 0.15 * (high - low)))


def draw_densities(channel: GaussianChannel) -> Figure:
    """The density of x given y by 3, 5 and 9 variables with the constant, beside the exact one, at two values of y."""
    figure = new_figure(11.0, 4.4)
    spread, scale = float(channel.cov_y) ** 0.5, float(channel.cov_x) ** 0.5
    x = np.linspace(-4.0, 4.0, 401) * scale
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, at in zip(panels, (0.5, 1.5)):
        y = at * spread
        dress(axes, f"x given y = {at:g} deviations", "x", "density" if at == 0.5 else "")
        mean, cover = channel.conditional(torch.tensor([[y]], dtype=torch.float64))
        exact = np.exp(-0.5 * (x - float(mean)) ** 2 / float(cover)) / math.sqrt(2 * math.pi * float(cover))
        axes.axhline(0.0, color=FAINT, lw=0.8)
        for j, count in enumerate((3, 5, 9)):
            axes.plot(
                x, inferred_density(channel, x, y, count), color=COLOURS[j], lw=1.6, label=f"k0 = {count}"
            )
        axes.plot(x, exact, color=INK, lw=1.4, ls="--", label="exact")
    add_legend(panels[0], "upper left")
    return figure


def experiment(options: Options) -> Report:
    """Matrices, eigenvalues and moments of the appendix; relevances learned from samples beside powers of gamma."""
    size = QUICK if options.quick else FULL
    channel = GaussianChannel.noisy(TAU, SIGMA)
    runs = []
    for i in range(size.seeds):
        options.progress(i, size.seeds, f"data set {i + 1}: {size.rows} rows")
        runs.append(learn_variables(channel, size, options.seed + i))
    settings = {"tau": TAU, "sigma": SIGMA, **asdict(size), "seed": options.seed}
    return Report(
        "gaussian-channel",
        "The Gaussian channel: Hermite variables, known and learned",
        settings,
        [*judge_exact(options.seed), *judge_learned(runs, size)],
        curves={
            "exact relevance": channel.relevance(size.variables).tolist(),
            "learned": [
                {
                    "held-out relevance": run.judged.relevance.tolist(),
                    "error": run.judged.relevance_error.tolist(),
                    "training relevance": (run.judged.training_correlation**2).tolist(),
                    "relevance under the true distribution": (run.by_quadrature[0] ** 2).tolist(),
                    "correlation with the Hermite variable": run.by_quadrature[1].tolist(),
                    "p-value": run.judged.p_value.tolist(),
                }
                for run in runs
            ],
        },
        figures={"learned": draw_learned(runs, size), "densities": draw_densities(channel)},
    )
