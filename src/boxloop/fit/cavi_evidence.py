r"""The evidence of a small mean-field model by enumeration and quadrature: what its bound must not exceed.

The log-joint is linear in each node's statistics, so one node is summed or integrated out in closed form,

.. math:: \int e^{f(T_1, \dots, T_d)} dz_j = \exp\left( A_j\!\left(\frac{\partial f}{\partial T_j} - b_j\right)
          + f(T_1, \dots, 0, \dots, T_d) \right),

with b as in :mod:`boxloop.distributions.exponential`. The other nodes are enumerated, or walked over by the
trapezoidal rule in
coordinates that range over all real numbers (logs, log-ratios): for smooth functions that vanish at both ends its error
falls exponentially with the number of points (Trefethen and Weideman 2014). Leaving out every other point gives the
error estimate, which is that of the coarser rule and so far too careful.
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

MOST_POINTS = 4_000_000
CHUNK = 4096
REACH = 6.0
"""Half of the first grid's width, in deviations of the factorised law."""
EDGE = 1e-11
"""Share of the integral that the outermost points may hold."""
GUESS = 40
"""Points of an axis, when the node to integrate out is chosen."""


@dataclass(frozen=True, repr=False)
class Evidence:
    """A bound beside what it bounds.

    Args:
        elbo: the evidence lower bound.
        log_evidence: log p(x) by quadrature.
        error: of ``log_evidence``: its change when every other point of the grid is left out.
        collapsed: name of the node that was integrated out in closed form.
        points: of the grid.
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
        """How far the bound is below: the divergence of the factorised law from the posterior."""
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
        points: values of a free coordinate, or places in the support, (g,).
        spacing: between values; None where they are enumerated.
    """

    name: str
    points: Tensor
    spacing: float | None = None

    def wider(self, low: bool, high: bool) -> Axis:
        """With half as many points more on each side that needs them."""
        if self.spacing is None:
            return self
        more = self.spacing * torch.arange(1, len(self.points) // 4 * 2 + 1, dtype=torch.float64)
        before = [self.points[0] - more.flip(0)] if low else []
        after = [self.points[-1] + more] if high else []
        return Axis(self.name, torch.cat([*before, self.points, *after]), self.spacing)

    def trimmed(self, share: Tensor) -> Axis:
        """Without the ends that hold next to nothing of the integral; ``share`` is what each point holds, (g,)."""
        if self.spacing is None:
            return self
        kept = torch.nonzero(share > 0.1 * EDGE)[:, 0]
        return Axis(self.name, self.points[max(int(kept[0]) - 1, 0) : int(kept[-1]) + 2], self.spacing)

    def finer(self) -> Axis:
        """With a point between each two."""
        if self.spacing is None:
            return self
        ends = float(self.points[0]), float(self.points[-1])
        return Axis(
            self.name,
            torch.linspace(*ends, 2 * len(self.points) - 1, dtype=torch.float64),
            0.5 * self.spacing,
        )


def evidence(
    field: MeanField,
    natural: Mapping[str, Tensor],
    *,
    collapse: str | None = None,
    tol: float = 1e-6,
    max_points: int = MOST_POINTS,
) -> Evidence:
    """Log evidence of a small model, with its own error, beside the bound.

    The first grid spans the factorised law; one that cuts something off is made wider, one that is too coarse is made
    finer. Variables of one node share their range, so that a posterior that is the same after variables have changed
    places is seen whole.

    Args:
        field: the model.
        natural: natural parameters of the factorised law, by name.
        collapse: name of the node to integrate out in closed form; the one that leaves the smallest grid if omitted.
        tol: of the log evidence.
        max_points: largest grid.

    Returns:
        The bound, the log evidence, its error, and posterior means of the statistics.

    Raises:
        ValueError: the grid would need more points than allowed, or there is no such node.
    """
    if collapse is None:
        collapse = min(field.nodes, key=lambda name: sum(_effort(field, n) for n in field.nodes if n != name))
    elif collapse not in field.nodes:
        raise ValueError(
            f"there is no node {collapse!r} to integrate out; there are: {', '.join(field.nodes)}"
        )
    grid = Grid(field, collapse)
    axes = [axis for name in field.nodes if name != collapse for axis in _axes(field, name, natural[name])]
    axes, heights = _spanned(grid, axes, max_points)
    while True:
        total, coarse = _total(heights, axes, 1), _total(heights, axes, 2)
        finer = [axis.trimmed(_marginal(heights, j)).finer() for j, axis in enumerate(axes)]
        if abs(total - coarse) <= tol or _size(finer) > max_points:
            break
        axes, heights = finer, grid.heights(finer)
    error = max(abs(total - coarse), 1e-14 * abs(total))
    bound = field.bound(natural, field.expected(natural))
    return Evidence(bound, total, error, collapse, _size(axes), grid.statistics(axes, heights))


@dataclass(frozen=True)
class Grid:
    """The log-joint with one node integrated out, over the product of axes."""

    field: MeanField
    collapse: str

    def heights(self, axes: list[Axis]) -> Tensor:
        """Log of the integrand at every point, one axis of the result for each axis."""
        chunks = torch.arange(_size(axes)).split(CHUNK)
        parts = []
        for chunk in chunks:
            statistics, volume = self._unfolded(axes, chunk)
            parts.append(torch.vmap(self._height)(statistics) + volume)
        return torch.cat(parts).reshape([len(axis.points) for axis in axes])

    def statistics(self, axes: list[Axis], heights: Tensor) -> dict[str, Statistic]:
        """Posterior means of the statistics of every node."""
        share = heights.reshape(-1).softmax(0)
        sums = {
            name: torch.zeros(node.size, len(node.family.base())).double()
            for name, node in self.field.nodes.items()
        }
        for chunk in torch.nonzero(share > 1e-18)[:, 0].split(CHUNK):
            statistics, _ = self._unfolded(axes, chunk)
            statistics[self.collapse] = torch.vmap(self._mean)(statistics)
            for name, values in statistics.items():
                sums[name] += torch.einsum("n,nmp->mp", share[chunk], values)
        return self.field.named(sums)

    def _unfolded(self, axes: list[Axis], chunk: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Statistics (n, m, p) of each node at some points, and the log of the volume each point stands for, (n,)."""
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

    def _height(self, statistics: dict[str, Tensor]) -> Tensor:
        natural, rest = self._natural(statistics)
        return rest + self.field.nodes[self.collapse].log_partition(natural).sum()

    def _mean(self, statistics: dict[str, Tensor]) -> Tensor:
        natural, _ = self._natural(statistics)
        return torch.func.grad(lambda n: self.field.nodes[self.collapse].log_partition(n).sum())(natural)


def _spanned(grid: Grid, axes: list[Axis], max_points: int) -> tuple[list[Axis], Tensor]:
    """Axes wide enough that next to nothing is left outside, and the log of the integrand over them."""
    while True:
        if _size(axes) > max_points:
            raise ValueError(
                f"quadrature over {len(axes)} coordinates needs {_size(axes)} points, more than "
                f"max_points = {max_points}"
            )
        heights = grid.heights(axes)
        ends = [_marginal(heights, j)[[0, -1]] > EDGE for j in range(len(axes))]
        if not any(bool(end.any()) for axis, end in zip(axes, ends) if axis.spacing):
            return axes, heights
        axes = [axis.wider(bool(end[0]), bool(end[1])) for axis, end in zip(axes, ends)]


def _axes(field: MeanField, name: str, natural: Tensor) -> list[Axis]:
    """The coordinates of one node, each over the range that all its variables need together."""
    node = field.nodes[name]
    support = node.family.support()
    if support is not None:
        return [Axis(name, torch.arange(len(support)))] * node.size
    centre, deviation = node.family.window(natural)
    low, high = (centre - REACH * deviation).amin(0), (centre + REACH * deviation).amax(0)
    found = []
    for j in range(centre.shape[1]):
        steps = math.ceil(float((high[j] - low[j]) / deviation[:, j].min()))
        points = torch.linspace(float(low[j]), float(high[j]), steps + 1, dtype=torch.float64)
        found.append(Axis(name, points, float(points[1] - points[0])))
    return found * node.size


def _effort(field: MeanField, name: str) -> float:
    """Log of the number of points that a node adds to the grid."""
    node = field.nodes[name]
    support = node.family.support()
    if support is not None:
        return node.size * math.log(len(support))
    return node.size * node.family.window(node.family.start(1, generator(0)))[0].shape[1] * math.log(GUESS)


def _size(axes: list[Axis]) -> int:
    return math.prod(len(axis.points) for axis in axes)


def _marginal(heights: Tensor, j: int) -> Tensor:
    """Share of the integral that each point of an axis holds, (g,)."""
    return heights.movedim(j, 0).reshape(heights.shape[j], -1).logsumexp(1).softmax(0)


def _total(heights: Tensor, axes: list[Axis], every: int) -> float:
    """Log of the integral by every, or every other, point of the axes that are not enumerated."""
    volume = 0.0
    for j, axis in enumerate(axes):
        if axis.spacing is not None:
            heights = heights.movedim(j, 0)[::every].movedim(0, j)
            volume += math.log(every * axis.spacing)
    return float(heights.reshape(-1).logsumexp(0)) + volume
