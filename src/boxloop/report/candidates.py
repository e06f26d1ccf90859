"""The models that a report tries, from simple to rich, by what the values are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from boxloop.distributions import CovarianceType
from boxloop.estimators import (
    BayesianGaussianMixture,
    BernoulliMixture,
    FactorAnalysis,
    GaussianMixture,
    PoissonMixture,
    ProbabilisticPCA,
    VariationalAutoencoder,
)
from boxloop.report.read import BINARY, CONTINUOUS, COUNTS, Array
from boxloop.report.text import count_of

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
BAYESIAN, DEEP = "Bayesian Gaussian mixture", "Variational autoencoder"
MOST = 10
"""Components that a Bayesian mixture may use; it empties those that do not pay for themselves."""
LIMITS = {"component": max(MOST, SIZES[-1]), "factor": RANKS[-1]}
"""Most components and factors on offer."""
POISSON, BERNOULLI = "Poisson mixture", "Bernoulli mixture"
INDEPENDENT = (SHAPES["diag"], SHAPES["spherical"], POISSON, BERNOULLI)
"""Families whose columns are unrelated within a component."""
UNITS = {"Factor analysis": "factor", "Probabilistic PCA": "factor", DEEP: "code"}
LIKELIHOODS = {CONTINUOUS: "gaussian", COUNTS: "poisson", BINARY: "bernoulli"}
CODES, HIDDEN, FEWEST_DEEP = 8, (64, 64), 50
"""Most codes of an autoencoder, the widths of its layers, and fewest rows to train it on."""
STEPS, PASSES, DRAWS = 10_000, (30, 500), 64
"""Of its training: steps to plan for, fewest and most passes over the rows; and draws of the code behind a score."""


@dataclass(frozen=True)
class Candidate:
    """A model to try.

    Args:
        family: what it is called without its size.
        size: components, at most for a Bayesian mixture; factors; or codes.
        estimator: not fitted.
        used: components that a Bayesian mixture uses, once that is known.
    """

    family: str
    size: int
    estimator: Any
    used: int | None = None

    @property
    def name(self) -> str:
        """Family and size."""
        most = "" if self.max_components is None else "at most "
        uses = "" if self.used is None else f" (uses {self.used})"
        return f"{self.family}, {most}{count_of(self.size, self.unit)}{uses}"

    @property
    def unit(self) -> str:
        """What the size counts."""
        return UNITS.get(self.family, "component")

    @property
    def size_in_use(self) -> int:
        """Its size; of a Bayesian mixture the components that it uses, where that is known."""
        return self.size if self.used is None else self.used

    @property
    def max_components(self) -> int | None:
        """Components that a Bayesian mixture may use; None for other models, whose size is what they use."""
        return self.size if self.family == BAYESIAN else None

    @property
    def has_independent_columns(self) -> bool:
        """Whether its columns are unrelated within a component."""
        return self.family in INDEPENDENT

    @property
    def is_lower_bound(self) -> bool:
        """Whether its score is a lower bound of the log-likelihood."""
        return self.family == DEEP


def list_candidates(
    kind: str, rows: int, columns: int, seed: int, *, alike: bool = True
) -> tuple[Candidate, ...]:
    """What to try on a table of values of a kind, with so many rows in each fit; the seed is that of every fit.

    Where the columns are not of like standard deviation, models that treat all columns alike are left out, as they
    would depend on the units.

    Example:
        >>> [c.name for c in list_candidates("counts", 60, 3, 0)][:2]
        ['Poisson mixture, 1 component', 'Poisson mixture, 2 components']
    """
    if kind in (COUNTS, BINARY):
        family, estimator = (POISSON, PoissonMixture) if kind == COUNTS else (BERNOULLI, BernoulliMixture)
        sizes = [k for k in SIZES if k == 1 or rows >= 10 * k]
        return tuple(Candidate(family, k, estimator(k, random_state=seed)) for k in sizes)
    found = []
    for shape, family in SHAPES.items():
        too_wide, single = shape in ("full", "tied") and columns > WIDE, shape != "full" and columns == 1
        if too_wide or single or (shape == "spherical" and not alike):
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
        ranks = [r for r in RANKS if _is_identified(r, columns) and rows > r + EACH]
        found += [Candidate(family, r, estimator(r, random_state=seed)) for r in ranks]
    most = min(MOST, rows // EACH)
    if most > 1:
        form: CovarianceType = "diag" if columns > WIDE else "full"
        bayesian = BayesianGaussianMixture(most, covariance_type=form, random_state=seed)
        found.append(Candidate(BAYESIAN, most, bayesian))
    return tuple(found)


def autoencoder_candidate(kind: str, rows: int, columns: int, seed: int) -> Candidate:
    """A small autoencoder, sized by the table.

    Example:
        >>> autoencoder_candidate("measurements", 2000, 13, 0).name
        'Variational autoencoder, 6 codes'
    """
    codes, batch = max(1, min(CODES, columns // 2)), 64 if rows < 2000 else 256
    fewest, most = PASSES
    estimator = VariationalAutoencoder(
        codes,
        hidden=HIDDEN,
        likelihood=LIKELIHOODS[kind],
        batch_size=batch,
        max_iter=max(fewest, min(most, STEPS * batch // rows)),
        schedule="cosine",
        learning_rate=2e-3,
        score_draws=DRAWS,
        random_state=seed,
    )
    return Candidate(DEEP, codes, estimator)


def find_autoencoder_obstacle(rows: Array) -> str:
    """Why an autoencoder cannot be tried on rows; empty where it can.

    Example:
        >>> import numpy as np
        >>> find_autoencoder_obstacle(np.ones((60, 1)))
        'a single column has nothing to encode'
    """
    n, d = rows.shape
    incomplete = int(np.isnan(rows).any(1).sum())
    if incomplete:
        have = "has" if incomplete == 1 else "have"
        return f"it needs complete rows, and {count_of(incomplete, 'row')} of {n} {have} missing values"
    if d == 1:
        return "a single column has nothing to encode"
    return f"{n} rows are too few to train it on; {FEWEST_DEEP} are needed" if n < FEWEST_DEEP else ""


def _is_identified(rank: int, columns: int) -> bool:
    """Whether so many factors leave a covariance matrix something to disagree with (Ledermann's bound)."""
    return rank < columns and (columns - rank) ** 2 > columns + rank
