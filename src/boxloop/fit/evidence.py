r"""Evidence of a small mean-field model by enumeration and quadrature, to compare with its lower bound.

The log-joint is linear in each node's statistics, so one node is integrated out in closed form,

.. math:: \int e^{f(T_1, \dots, T_d)} dz_j = \exp\left( A_j\!\left(\frac{\partial f}{\partial T_j} - b_j\right)
          + f(T_1, \dots, 0, \dots, T_d) \right),

with b the base measure of the node's family. The other nodes are enumerated, or integrated by the trapezoidal rule in
unconstrained coordinates (logs, log-ratios): for smooth functions that vanish at both ends its error falls
exponentially with the number of points (Trefethen and Weideman 2014). The error estimate is the change when every other
point is left out, which is the error of the coarser rule and so far too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.distributions import Statistic
from boxloop.fit.mean_field import MeanField
from boxloop.numeric import generator

MAX_POINTS = 4_000_000
CHUNK = 4096
HALF_WIDTH = 6.0
"""Half of the width of the first grid, in standard deviations of the factorised approximation."""
EDGE_SHARE = 1e-11
"""Largest share of the integral at the outermost points."""
TYPICAL_POINTS = 40
"""Points per axis assumed in choosing the node to integrate out."""


@dataclass(frozen=True, repr=False)
class Evidence:
    """The evidence lower bound and the evidence.

    Args:
        elbo: the evidence lower bound.
        log_evidence: log p(x) by quadrature.
        error: of ``log_evidence``: its change when every other point of the grid is left out.
        collapsed: name of the node that was integrated out in closed form.
        points: number of grid points.
        statistics: exact posterior means of the statistics of every node, under their names.
    """

    elbo: float
    log_evidence: float
    error: float
    collapsed: str
    points: int
    statistics: dict[str, Statistic]

    @property
    def gap(self) -> float:
        """Log evidence minus bound: the Kullback-Leibler divergence of the approximation from the posterior."""
        return self.log_evidence - self.elbo

    def __repr__(self) -> str:
        return (
            f"bound {self.elbo:.6g} below log evidence {self.log_evidence:.6g} ± {self.error:.1g}: "
            f"short by {self.gap:.3g}"
        )


@dataclass(frozen=True)
class Axis:
    """One coordinate of the grid.

    Args:
        name: of the node.
        points: values of an unconstrained coordinate, or indices of the support, (g,).
        spacing: between values; None where the support is enumerated.
    """

    name: str
    points: Tensor
    spacing: float | None = None

    def widen(self, low: bool, high: bool) -> Axis:
        """Extend by half as many points on each side that needs them."""
        if self.spacing is None:
            return self
        more = self.spacing * torch.arange(1, len(self.points) // 4 * 2 + 1, dtype=torch.float64)
        before = [self.points[0] - more.flip(0)] if low else []
        after = [self.points[-1] + more] if high else []
        return Axis(self.name, torch.cat([*before, self.points, *after]), self.spacing)

    def trim(self, share: Tensor) -> Axis:
        """Drop the ends with almost none of the integral; ``share`` is that of each point, (g,)."""
        if self.spacing is None:
            return self
        inside = torch.nonzero(share > 0.1 * EDGE_SHARE)[:, 0]
        return Axis(self.name, self.points[max(int(inside[0]) - 1, 0) : int(inside[-1]) + 2], self.spacing)

    def refine_spacing(self) -> Axis:
        """Halve the spacing."""
        if self.spacing is None:
            return self
        ends = float(self.points[0]), float(self.points[-1])
        return Axis(
            self.name,
            torch.linspace(*ends, 2 * len(self.points) - 1, dtype=torch.float64),
            0.5 * self.spacing,
        )


def compute_evidence(
    field: MeanField,
    natural: Mapping[str, Tensor],
    *,
    collapse: str | None = None,
    tol: float = 1e-6,
    max_points: int = MAX_POINTS,
) -> Evidence:
    """Log evidence of a small model with an error estimate, and the bound.

    The first grid spans the factorised approximation; it is widened where it truncates the integrand and refined until
    the error is small. Variables of one node share their range, so that every mode of an exchangeable posterior is
    covered.

    Args:
        field: the model.
        natural: natural parameters of the approximation, by name.
        collapse: name of the node to integrate out in closed form; when None the one that leaves the smallest grid.
        tol: of the log evidence.
        max_points: most grid points.

    Returns:
        The bound, the log evidence, its error, and posterior means of the statistics.

    Raises:
        ValueError: the grid would need more points than allowed, or there is no such node.
    """
    if collapse is None:
        collapse = min(
            field.nodes, key=lambda name: sum(_log_grid_size(field, n) for n in field.nodes if n != name)
        )
    elif collapse not in field.nodes:
        raise ValueError(
            f"collapse={collapse!r}: there is no node {collapse!r}; the nodes are {', '.join(field.nodes)}"
        )
    grid = Grid(field, collapse)
    axes = [
        axis for name in field.nodes if name != collapse for axis in _initial_axes(field, name, natural[name])
    ]
    axes, log_integrand = _widen_axes(grid, axes, max_points)
    while True:
        total, coarse = _log_integral(log_integrand, axes, 1), _log_integral(log_integrand, axes, 2)
        refine_spacing = [
            axis.trim(_axis_weights(log_integrand, j)).refine_spacing() for j, axis in enumerate(axes)
        ]
        if abs(total - coarse) <= tol or _grid_size(refine_spacing) > max_points:
            break
        axes, log_integrand = refine_spacing, grid.log_integrand(refine_spacing)
    error = max(abs(total - coarse), 1e-14 * abs(total))
    bound = field.bound(natural, field.expected(natural))
    return Evidence(bound, total, error, collapse, _grid_size(axes), grid.statistics(axes, log_integrand))


@dataclass(frozen=True)
class Grid:
    """The log-joint with one node integrated out, over the product of axes."""

    field: MeanField
    collapse: str

    def log_integrand(self, axes: list[Axis]) -> Tensor:
        """Log of the integrand at every grid point, with one dimension per axis."""
        chunks = torch.arange(_grid_size(axes)).split(CHUNK)
        parts = []
        for chunk in chunks:
            statistics, volume = self._statistics_at(axes, chunk)
            parts.append(torch.vmap(self._log_height)(statistics) + volume)
        return torch.cat(parts).reshape([len(axis.points) for axis in axes])

    def statistics(self, axes: list[Axis], log_integrand: Tensor) -> dict[str, Statistic]:
        """Posterior means of the statistics of every node."""
        share = log_integrand.reshape(-1).softmax(0)
        sums = {
            name: torch.zeros(node.size, len(node.family.base())).double()
            for name, node in self.field.nodes.items()
        }
        for chunk in torch.nonzero(share > 1e-18)[:, 0].split(CHUNK):
            statistics, _ = self._statistics_at(axes, chunk)
            statistics[self.collapse] = torch.vmap(self._mean)(statistics)
            for name, values in statistics.items():
                sums[name] += torch.einsum("n,nmp->mp", share[chunk], values)
        return self.field.named(sums)

    def _statistics_at(self, axes: list[Axis], chunk: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Statistics (n, m, p) of each node at grid points, and the log-Jacobian at each point, (n,)."""
        columns: dict[str, list[Tensor]] = {name: [] for name in self.field.nodes if name != self.collapse}
        rest = chunk
        for axis in reversed(axes):
            columns[axis.name].insert(0, axis.points[rest % len(axis.points)])
            rest = rest // len(axis.points)
        statistics, volume = {}, torch.zeros(len(chunk), dtype=torch.float64)
        for name, many in columns.items():
            node, values = self.field.nodes[name], torch.stack(many, dim=1)
            support = node.family.support()
            if support is not None:
                statistics[name] = support[values]
                continue
            flat, one = node.family.unfold(values.reshape(len(chunk) * node.size, -1))
            statistics[name] = flat.reshape(len(chunk), node.size, -1)
            volume = volume + one.reshape(len(chunk), -1).sum(1)
        return statistics, volume

    def _natural(self, statistics: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Natural parameters of the collapsed node given the others, and the log-joint without it."""
        node = self.field.nodes[self.collapse]
        zero = torch.zeros(node.size, len(node.family.base()), dtype=torch.float64)

        def along(own: Tensor) -> Tensor:
            return self.field.value({**statistics, self.collapse: own})

        slope, rest = torch.func.grad_and_value(along)(zero)
        return slope - node.family.base(), rest

    def _log_height(self, statistics: dict[str, Tensor]) -> Tensor:
        natural, rest = self._natural(statistics)
        return rest + self.field.nodes[self.collapse].log_partition(natural).sum()

    def _mean(self, statistics: dict[str, Tensor]) -> Tensor:
        natural, _ = self._natural(statistics)
        return torch.func.grad(lambda n: self.field.nodes[self.collapse].log_partition(n).sum())(natural)


def _widen_axes(grid: Grid, axes: list[Axis], max_points: int) -> tuple[list[Axis], Tensor]:
    """Widen axes until almost nothing is outside; returns them and the log of the integrand."""
    while True:
        if _grid_size(axes) > max_points:
            raise ValueError(
                f"Quadrature over {len(axes)} coordinates needs {_grid_size(axes)} points, more than "
                f"max_points = {max_points}"
            )
        log_integrand = grid.log_integrand(axes)
        ends = [_axis_weights(log_integrand, j)[[0, -1]] > EDGE_SHARE for j in range(len(axes))]
        if not any(bool(end.any()) for axis, end in zip(axes, ends) if axis.spacing):
            return axes, log_integrand
        axes = [axis.widen(bool(end[0]), bool(end[1])) for axis, end in zip(axes, ends)]


def _initial_axes(field: MeanField, name: str, natural: Tensor) -> list[Axis]:
    """The coordinates of one node, each over the range that all its variables need."""
    node = field.nodes[name]
    support = node.family.support()
    if support is not None:
        return [Axis(name, torch.arange(len(support)))] * node.size
    centre, sd = node.family.window(natural)
    low, high = (centre - HALF_WIDTH * sd).amin(0), (centre + HALF_WIDTH * sd).amax(0)
    axes = []
    for j in range(centre.shape[1]):
        steps = math.ceil(float((high[j] - low[j]) / sd[:, j].min()))
        points = torch.linspace(float(low[j]), float(high[j]), steps + 1, dtype=torch.float64)
        axes.append(Axis(name, points, float(points[1] - points[0])))
    return axes * node.size


def _log_grid_size(field: MeanField, name: str) -> float:
    """Log of the number of grid points due to a node."""
    node = field.nodes[name]
    support = node.family.support()
    if support is not None:
        return node.size * math.log(len(support))
    return (
        node.size
        * node.family.window(node.family.start(1, generator(0)))[0].shape[1]
        * math.log(TYPICAL_POINTS)
    )


def _grid_size(axes: list[Axis]) -> int:
    return math.prod(len(axis.points) for axis in axes)


def _axis_weights(log_integrand: Tensor, j: int) -> Tensor:
    """Share of the integral at each point of an axis, (g,)."""
    return log_integrand.movedim(j, 0).reshape(log_integrand.shape[j], -1).logsumexp(1).softmax(0)


def _log_integral(log_integrand: Tensor, axes: list[Axis], stride: int) -> float:
    """Log of the integral from every point, or every other point, of the axes that are not enumerated."""
    volume = 0.0
    for j, axis in enumerate(axes):
        if axis.spacing is not None:
            log_integrand = log_integrand.movedim(j, 0)[::stride].movedim(0, j)
            volume += math.log(stride * axis.spacing)
    return float(log_integrand.reshape(-1).logsumexp(0)) + volume
