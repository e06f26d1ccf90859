"""The models that a report tries, from simple to rich, by what the values are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from boxloop.estimators import (
    BernoulliMixture,
    FactorAnalysis,
    GaussianMixture,
    PoissonMixture,
    ProbabilisticPCA,
)
from boxloop.report.columns import BINARY, COUNTS

SIZES = (1, 2, 3, 4, 5, 6, 8, 10)
RANKS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)
WIDE = 100
"""Most columns for which every component may have a covariance matrix of its own."""
EACH = 5
"""Fewest rows for each component that a size needs to be tried, beside the number of columns."""

SHAPES = {
    "full": "Gaussian mixture",
    "tied": "Gaussian mixture, shared covariance",
    "diag": "Gaussian mixture, independent columns",
    "spherical": "Gaussian mixture, round components",
}


@dataclass(frozen=True)
class Candidate:
    """A model to try.

    Args:
        family: what it is called without its size.
        size: components or factors.
        estimator: not fitted.
    """

    family: str
    size: int
    estimator: Any

    @property
    def name(self) -> str:
        """Family and size."""
        return f"{self.family}, {self.size} {self.unit}{'' if self.size == 1 else 's'}"

    @property
    def unit(self) -> str:
        """What the size counts."""
        return "factor" if self.family in ("Factor analysis", "Probabilistic PCA") else "component"


def candidates(kind: str, rows: int, columns: int, seed: int, *, alike: bool = True) -> tuple[Candidate, ...]:
    """What to try on a table.

    Args:
        kind: of its values, see :func:`boxloop.report.columns.kind_of`.
        rows: that each fit will see.
        columns: of the table.
        seed: of every fit.
        alike: whether the columns are of like spread; where they are not, models that treat all columns alike are
            left out, as they would depend on the units.

    Example:
        >>> [c.name for c in candidates("counts", 60, 3, 0)][:2]
        ['Poisson mixture, 1 component', 'Poisson mixture, 2 components']
    """
    if kind in (COUNTS, BINARY):
        family, estimator = (
            ("Poisson mixture", PoissonMixture) if kind == COUNTS else ("Bernoulli mixture", BernoulliMixture)
        )
        sizes = [k for k in SIZES if k == 1 or rows >= 10 * k]
        return tuple(Candidate(family, k, estimator(k, random_state=seed)) for k in sizes)
    found = []
    for shape, family in SHAPES.items():
        if _left_out(shape, columns, alike):
            continue
        for k in SIZES:
            if k == 1 and shape == "tied":
                continue  # the same model as full
            if k == 1 or rows >= k * (EACH + (columns if shape == "full" else 0)):
                found.append(
                    Candidate(family, k, GaussianMixture(k, covariance_type=shape, random_state=seed))
                )
    factors = [("Factor analysis", FactorAnalysis), ("Probabilistic PCA", ProbabilisticPCA)]
    for family, estimator in factors[: 2 if alike else 1]:
        ranks = [r for r in RANKS if _identified(r, columns) and rows > r + EACH]
        found += [Candidate(family, r, estimator(r, random_state=seed)) for r in ranks]
    return tuple(found)


def _left_out(shape: str, columns: int, alike: bool) -> bool:
    wide, single = shape in ("full", "tied") and columns > WIDE, shape != "full" and columns == 1
    return wide or single or (shape == "spherical" and not alike)


def _identified(rank: int, columns: int) -> bool:
    """Whether so many factors leave a covariance matrix something to disagree with (Ledermann's bound)."""
    return rank < columns and (columns - rank) ** 2 > columns + rank
