r"""The channel of a disk and a ring without any learning: its decomposition by quadrature, and names for what it holds.

X is uniform on a disk and a ring, :math:`Y = X + \sigma \epsilon`. Nodes of X are a quadrature of its law (Gauss and
Legendre along squared radii, equal steps or Gauss and Legendre along the angle), places of Y a grid of the plane, which
for smooth densities is as exact as the rounding; then the channel is a matrix, and its decomposition (document 003,
eq. 16 and 17) a singular value decomposition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.isotonic import IsotonicRegression

from boxloop.data import DiskAndRing

Array = NDArray[np.float64]

STEP = 0.8
"""Of the grid and of the nodes along the ring, in standard deviations of the shift."""
REACH = 6.0
"""Standard deviations that the grid goes beyond the ring."""
EMPTY = 1e-15
"""Probability of a place of Y below which it is left out."""
CUTS = 12
"""Angles at which a ring is tried open."""
WAVES = 14
"""Angular frequencies with a name of their own; half waves where the ring has a gap."""


@dataclass(frozen=True)
class Channel:
    """A channel as a matrix, with its most relevant variables.

    Args:
        points: nodes of X, (n, 2).
        weight: their probabilities, (n,).
        ring: which of them are in the ring, (n,).
        places: of Y, (m, 2).
        law: probability of each place given each node, (m, n).
        relevance: of the variables, largest first, the constant left out, (k,).
        variables: of X at the nodes, (n, k), of mean 0 and mean square 1.
    """

    points: Array
    weight: Array
    ring: NDArray[np.bool_]
    places: Array
    law: Array
    relevance: Array
    variables: Array

    @classmethod
    def of(cls, shape: DiskAndRing, sd: float, most: int, step: float = STEP) -> Channel:
        """Decompose the channel.

        Args:
            shape: where X lies.
            sd: sigma, of the shift.
            most: variables to keep, without the constant.
            step: of the quadratures, in units of sd.
        """
        points, weight, ring = _nodes(shape, step * sd)
        edge = shape.outer + REACH * sd
        side = np.linspace(-edge, edge, math.ceil(2.0 * edge / (step * sd)) + 1)
        kernel = np.exp(-0.5 * ((side[:, None, None] - points) / sd) ** 2)
        kernel *= (side[1] - side[0]) / (math.sqrt(2.0 * math.pi) * sd)
        law = (kernel[:, None, :, 0] * kernel[None, :, :, 1]).reshape(-1, len(points))
        chance = law @ weight
        there = chance > EMPTY
        places = np.stack(np.meshgrid(side, side, indexing="ij"), 2).reshape(-1, 2)[there]
        law = law[there] / law[there].sum(0)
        half = law * np.sqrt(weight) / np.sqrt(law @ weight)[:, None]
        ends = [len(points) - 1 - most, len(points) - 2]  # the last is the constant
        values, vectors = eigh(half.T @ half, subset_by_index=ends)
        variables = vectors[:, ::-1] / np.sqrt(weight)[:, None]
        return cls(points, weight, ring, places, law, values[::-1].clip(0.0, 1.0), variables)

    def standard(self, values: Array) -> Array:
        """Functions at the nodes, (n, k), with mean 0 and mean square 1."""
        centred = values - self.weight @ values
        return centred / np.sqrt(self.weight @ centred**2).clip(1e-300)

    def true_relevance(self, left: Array, right: Array) -> Array:
        """Squared correlations of learned pairs under the exact law: what endless new rows would say, (k,).

        Args:
            left: of X at the nodes, (n, k).
            right: of Y at the places, (m, k).
        """
        chance = self.law @ self.weight
        other = right - chance @ right
        other /= np.sqrt(chance @ other**2).clip(1e-300)
        inferred = self.law.T @ other
        return (self.weight @ (self.standard(left) * inferred)).clip(0.0) ** 2


def _nodes(shape: DiskAndRing, step: float) -> tuple[Array, Array, NDArray[np.bool_]]:
    disk = _sector(0.0, shape.disk, 0.0, step, 1.0 - shape.ring_share)
    ring = _sector(shape.inner, shape.outer, shape.gap, step, shape.ring_share)
    inside = np.repeat([False, True], [len(disk[1]), len(ring[1])])
    return np.concatenate([disk[0], ring[0]]), np.concatenate([disk[1], ring[1]]), inside


def _sector(inner: float, outer: float, gap: float, step: float, mass: float) -> tuple[Array, Array]:
    """Nodes and weights of the uniform law between two radii."""
    deep, thick = np.polynomial.legendre.leggauss(4 + math.ceil((outer - inner) / step))
    radius = np.sqrt(inner**2 + 0.5 * (deep + 1.0) * (outer**2 - inner**2))
    n = 8 + math.ceil(2.0 * math.pi * outer / step)
    if gap > 0.0:
        turn, wide = np.polynomial.legendre.leggauss(n)
    else:
        turn, wide = (2.0 * np.arange(n) + 1.0) / n - 1.0, np.full(n, 2.0 / n)
    angle = turn * (math.pi - 0.5 * gap)
    points = np.stack([np.outer(radius, np.cos(angle)), np.outer(radius, np.sin(angle))], 2).reshape(-1, 2)
    return points, mass * np.outer(thick, wide).ravel() / 4.0


def families(channel: Channel, gap: float = 0.0) -> dict[str, Array]:
    r"""Functions of X that have a name, orthonormal under its law, those of one name together.

    On a whole ring :math:`\cos m\theta, \sin m\theta`; with a gap g, where :math:`\theta` runs from end to end,
    :math:`\cos(j \pi (\theta + \pi - g/2) / (2\pi - g))`, j half waves, the first of which is monotone.

    Args:
        channel: where the functions are evaluated.
        gap: of the ring.
    """
    x, y = channel.points.T
    radius, angle, ring = np.hypot(x, y), np.arctan2(y, x), channel.ring[:, None].astype(float)
    depth = radius[:, None] * ring
    waves = _waves(angle, gap)
    found = {"disk or ring": ring}
    found |= {name: wave * ring for name, wave in waves.items()}
    found["x and y in the disk"] = channel.points * (1.0 - ring)
    found["radius in the ring"] = depth
    found["x² - y² and xy in the disk"] = np.stack([x**2 - y**2, x * y], 1) * (1.0 - ring)
    found["radius in the disk"] = (radius**2)[:, None] * (1.0 - ring)
    found["radius times angle in the ring"] = np.hstack(list(waves.values())) * depth
    return _orthonormal(found, channel.weight)


def _waves(angle: Array, gap: float) -> dict[str, Array]:
    if gap > 0.0:
        turn = (angle + math.pi - 0.5 * gap) / (2.0 * math.pi - gap)
        return {half_wave(j): np.cos(j * math.pi * turn)[:, None] for j in range(1, WAVES + 1)}
    return {wave(m): np.stack([np.cos(m * angle), np.sin(m * angle)], 1) for m in range(1, WAVES + 1)}


def wave(m: int) -> str:
    """Name of the pair of one angular frequency."""
    return "sin and cos of the angle" if m == 1 else f"sin and cos of {m} angles"


def half_wave(j: int) -> str:
    """Name of so many half waves along a ring with a gap."""
    return "the angle (half a wave)" if j == 1 else f"{j} half waves of the angle"


def _orthonormal(found: dict[str, Array], weight: Array) -> dict[str, Array]:
    """The same spans, each without what those before it (and the constant) hold: shares then add up."""
    root = np.sqrt(weight)[:, None]
    sizes = [1] + [part.shape[1] for part in found.values()]
    turned, _ = np.linalg.qr(np.hstack([np.ones_like(root), *found.values()]) * root)
    parts = np.split(turned / root, np.cumsum(sizes)[:-1], axis=1)[1:]
    return dict(zip(found, parts))


def shares(channel: Channel, named: dict[str, Array], variables: Array) -> dict[str, Array]:
    """Squared multiple correlation of each variable with each family, by name, (k,) each; they add up to at most 1."""
    standard = channel.standard(variables) * channel.weight[:, None]
    return {name: ((part.T @ standard) ** 2).sum(0) for name, part in named.items()}


def names_of(share: dict[str, Array]) -> list[str]:
    """The family that holds most of each variable."""
    known = list(share)
    return [known[i] for i in np.argmax(np.stack(list(share.values())), axis=0)]


def angle_told(channel: Channel, values: Array) -> float:
    """Share of the angle's variance on the ring that a monotone function of one variable gives.

    The ring is opened where that is best; an angle that goes round needs two variables, for sines rise and fall.

    Args:
        channel: the nodes.
        values: of the variable, (n,).
    """
    x, y = channel.points[channel.ring].T
    mass, seen = channel.weight[channel.ring], values[channel.ring]
    told = []
    for cut in np.linspace(-math.pi, math.pi, CUTS, endpoint=False):
        turn = np.mod(np.arctan2(y, x) - cut, 2.0 * math.pi)
        spread = mass @ (turn - np.average(turn, weights=mass)) ** 2
        for sign in (1.0, -1.0):
            best = IsotonicRegression(out_of_bounds="clip").fit(sign * seen, turn, mass).predict(sign * seen)
            told.append(1.0 - float(mass @ (turn - best) ** 2 / spread))
    return max(told)
