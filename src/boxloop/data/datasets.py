"""Data sets that are there after installation, and simulated problems with a known answer."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.data.sparse import SparseSource, csr_tensor
from boxloop.data.validation import suggest_names
from boxloop.numeric import generator as seeded_generator, normal

CATALOGUE: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""Each data set: what it is, its size, its origin, and the seed of one that is simulated."""


@dataclass(frozen=True)
class Dataset:
    """A table with column names and a target.

    Args:
        names: the d column names.
        rows: (n, d).
        target: (n,), the class or response of each row, which is not among the columns.
        classes: the names of the classes; empty where the target is a number.
    """

    names: tuple[str, ...]
    rows: NDArray[np.float64]
    target: NDArray[np.float64]
    classes: tuple[str, ...]


def load_dataset(name: str) -> Dataset:
    """Load a data set by name; nothing is downloaded.

    Args:
        name: one of :data:`CATALOGUE`.

    Raises:
        ValueError: there is none of this name.

    Example:
        >>> data = load_dataset("iris")
        >>> data.rows.shape, data.names[0], data.classes[0]
        ((150, 4), 'sepal length (cm)', 'setosa')
    """
    if name not in CATALOGUE:
        near = suggest_names(name, CATALOGUE)
        raise ValueError(f"there is no bundled data set {name!r}{near}; there are {', '.join(CATALOGUE)}")
    if name in SIMULATED:
        return SIMULATED[name](CATALOGUE[name])
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    return Dataset(
        tuple(str(column) for column in bunch.feature_names),
        np.asarray(bunch.data, dtype=np.float64),
        np.asarray(bunch.target, dtype=np.float64),
        tuple(str(c) for c in bunch.get("target_names", ())),
    )


@dataclass(frozen=True)
class FactorProblem:
    """A factor model with known parameters, to simulate rows from."""

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    @property
    def covariance(self) -> Tensor:
        """(d, d)."""
        return self.loadings @ self.loadings.mT + torch.diag(self.noise)

    def rows(self, n: int, generator: Generator) -> Tensor:
        """Draw n rows, (n, d)."""
        d, k = self.loadings.shape
        factors, noise = normal((n, k), generator), normal((n, d), generator)
        return self.mean + factors @ self.loadings.mT + self.noise.sqrt() * noise


def draw_factor_problem(
    n_columns: int, n_factors: int, spectrum: tuple[float, float], generator: Generator
) -> FactorProblem:
    """A random factor model. Brownlie (2021), Algorithm 3. The scale s multiplies *rows* of the eigenvectors, so
    the paper's three spectra are nearly one problem at three scales."""
    low, high = spectrum
    mean = normal((n_columns,), generator)
    square = normal((n_columns, n_columns), generator)
    _, vectors = torch.linalg.eigh(square @ square.mT)
    scale = low + (high - low) * torch.rand(n_columns, generator=generator, dtype=torch.float64)
    noise = scale.max() * torch.rand(n_columns, generator=generator, dtype=torch.float64)
    return FactorProblem(mean, vectors[:, -n_factors:] * scale.sqrt()[:, None], noise)


def draw_overlapping_clusters(
    n: int, k: int, n_columns: int, generator: Generator, stretch: float = 8.0, gap: float = 2.2
) -> tuple[Tensor, Tensor]:
    """Parallel long clusters that k-means cuts across: rows (n, d) and labels (n,). ``stretch`` is the standard
    deviation along the long axis, one half across it, where neighbours are ``gap`` apart."""
    label = torch.randint(k, (n,), generator=generator)
    centre = torch.zeros(k, n_columns, dtype=torch.float64)
    centre[:, 0] = normal((k,), generator)
    centre[:, 1] = gap * torch.arange(k, dtype=torch.float64)
    deviation = torch.full((n_columns,), 0.5, dtype=torch.float64)
    deviation[0] = stretch
    rotation, _ = torch.linalg.qr(normal((n_columns, n_columns), generator))
    return (centre[label] + deviation * normal((n, n_columns), generator)) @ rotation, label


def draw_planted_outliers(
    n: int, n_columns: int, n_planted: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """One common factor behind all columns, and rows with one value of the opposite sign: rows (n, d), planted (n,).
    The value would be ordinary in another row, so that limits on single columns miss it."""
    factor = normal((n, 1), generator)
    rows = factor + 0.3 * normal((n, n_columns), generator)
    chosen = torch.randperm(n, generator=generator)[:n_planted]
    column = torch.randint(n_columns, (n_planted,), generator=generator)
    factor[chosen] = factor[chosen].sign() * (1.0 + factor[chosen].abs())
    rows[chosen] = factor[chosen] + 0.3 * normal((n_planted, n_columns), generator)
    rows[chosen, column] = -rows[chosen, column]
    planted = torch.zeros(n, dtype=torch.long)
    planted[chosen] = 1
    return rows, planted


@dataclass(frozen=True)
class Topics:
    """Documents of one topic each, with known topics."""

    weights: Tensor  # of the topics, (k,)
    probabilities: Tensor  # of each word in each topic, (k, b)

    def source(self, n: int, length: int | tuple[int, int] | Tensor, generator: Generator) -> SparseSource:
        """n documents of so many words, of a length drawn between two, or of given lengths (n,), as sparse counts."""
        if isinstance(length, Tensor):
            sizes = length
        else:
            low, high = (length, length) if isinstance(length, int) else length
            sizes = torch.randint(low, high + 1, (n,), generator=generator)
        topic = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        b = self.probabilities.shape[1]
        flat = []
        for h in range(len(self.weights)):
            mine = (topic == h).nonzero()[:, 0]
            place = mine.repeat_interleave(sizes[mine])
            if len(place):
                word = torch.multinomial(
                    self.probabilities[h], len(place), replacement=True, generator=generator
                )
                flat.append(place * b + word)
        cells, counts = torch.cat(flat).unique(return_counts=True)
        ends = torch.searchsorted(cells, torch.arange(n + 1) * b)
        return SparseSource(csr_tensor(ends, cells % b, counts.double(), (n, b)))


def draw_topics(k: int, n_words: int, generator: Generator, *, concentration: float = 0.2) -> Topics:
    """k topics drawn from a symmetric Dirichlet distribution, with weights from Dirichlet(5)."""

    def draw_dirichlet(shape: tuple[int, ...], level: float) -> Tensor:
        draws = torch._standard_gamma(torch.full(shape, level, dtype=torch.float64), generator=generator)
        draws = draws.clamp(min=1e-12)
        return draws / draws.sum(-1, keepdim=True)

    return Topics(draw_dirichlet((k,), 5.0), draw_dirichlet((k, n_words), concentration))


@dataclass(frozen=True)
class DiskAndRing:
    r"""The uniform distribution on a disk and on a ring around it, both about the origin of the plane.

    Learning relevant features for statistical inference, section 5.3 and figure 3, which gives no radii. A gap in the
    ring, about the angle :math:`\pi`, leaves angles in :math:`(-\pi + g/2, \pi - g/2)`.
    """

    disk: float  # radius of the disk
    inner: float  # inner radius of the ring
    outer: float  # outer radius of the ring
    gap: float = 0.0  # angle g that is missing in the ring, in radians; 0 for a whole ring

    def __post_init__(self) -> None:
        if not (0.0 < self.disk <= self.inner < self.outer and 0.0 <= self.gap < 2.0 * math.pi):
            raise ValueError(
                "a ring lies around its disk, 0 < disk <= inner < outer, and has a gap of less than a turn, got "
                f"disk={self.disk}, inner={self.inner}, outer={self.outer}, gap={self.gap}"
            )

    @property
    def ring_share(self) -> float:
        """Probability of the ring: its share of the area."""
        ring = (1.0 - self.gap / (2.0 * math.pi)) * (self.outer**2 - self.inner**2)
        return ring / (ring + self.disk**2)

    def rows(self, n: int, generator: Generator) -> Tensor:
        """Draw n points, (n, 2)."""
        chance, depth, turn = torch.rand((3, n), generator=generator, dtype=torch.float64)
        ring = chance < self.ring_share
        low = torch.where(ring, self.inner**2, 0.0)
        high = torch.where(ring, self.outer**2, self.disk**2)
        radius = (low + depth * (high - low)).sqrt()
        angle = (2.0 * turn - 1.0) * (math.pi - torch.where(ring, 0.5 * self.gap, 0.0))
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)

    def contains(self, points: Tensor) -> Tensor:
        """Whether the distribution has mass at each of the points (n, 2)."""
        radius, angle = torch.linalg.vector_norm(points, dim=1), torch.atan2(points[:, 1], points[:, 0])
        ring = (self.inner <= radius) & (radius <= self.outer) & (angle.abs() <= math.pi - 0.5 * self.gap)
        return ring | (radius <= self.disk)


def _simulate_long_clusters(facts: dict[str, Any]) -> Dataset:
    rows, label = draw_overlapping_clusters(
        facts["rows"], 3, facts["columns"], seeded_generator(facts["seed"])
    )
    return Dataset(("x", "y", "z"), rows.numpy(), label.to(rows.dtype).numpy(), ("first", "second", "third"))


def _simulate_planted_outliers(facts: dict[str, Any]) -> Dataset:
    rows, planted = draw_planted_outliers(
        facts["rows"], facts["columns"], 10, seeded_generator(facts["seed"])
    )
    names = tuple(f"gauge {j + 1}" for j in range(facts["columns"]))
    return Dataset(names, rows.numpy(), planted.to(rows.dtype).numpy(), ("ordinary", "planted"))


SIMULATED: dict[str, Callable[[dict[str, Any]], Dataset]] = {
    "long_clusters": _simulate_long_clusters,
    "planted_outliers": _simulate_planted_outliers,
}
"""Data sets that are simulated, always the same: their seeds are in the catalogue."""
