"""The study behind the demonstration: how many groups there are, and which columns vary together.

Everything is judged where it can fail: groups on rows that the fit did not see, loadings by their standard errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from boxloop.data import Bundled, bundled, open_source
from boxloop.estimators import FactorAnalysis, FitWarning, GaussianMixture
from boxloop.types import Source

Array = NDArray[np.float64]
Tell = Callable[[str], None]

SIZES = (1, 2, 3, 4, 5, 6)
FOLDS = 10
FACTORS = 2
DATA = "wine"
MIXED = ("alcohol", "flavanoids", "color_intensity", "proline")
"""Columns of the mixtures: four measures of different kind; the first two of the picture are in the middle."""
PAIR = ("flavanoids", "color_intensity")


@dataclass(frozen=True)
class HeldOut:
    """Log-density of every row under mixtures that were fitted without it.

    Args:
        sizes: the numbers of components tried.
        density: one line a size, (sizes, n).
        troubled: in how many fits of each size something deserved a warning.

    Example:
        >>> held = HeldOut((1, 2), np.array([[-3.0, -2.0, -4.0], [-1.0, -1.0, -1.0]]), (0, 0))
        >>> held.best, held.gap(0)
        (1, (2.0, 0.5773502691896258))
    """

    sizes: tuple[int, ...]
    density: Array
    troubled: tuple[int, ...]

    @property
    def mean(self) -> Array:
        """Held-out log-likelihood of a row, for each size."""
        return np.asarray(self.density.mean(1))

    @property
    def error(self) -> Array:
        """Its standard error."""
        return np.asarray(self.density.std(1, ddof=1) / np.sqrt(self.density.shape[1]))

    @property
    def best(self) -> int:
        """Place of the size that held-out rows prefer."""
        return int(self.mean.argmax())

    def gap(self, place: int) -> tuple[float, float]:
        """How far a size falls short of the best, with the standard error of that difference.

        The same rows are judged under both, so what makes a row hard under any model cancels: the error is
        smaller than those of the two means.
        """
        apart = self.density[self.best] - self.density[place]
        return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart)))


@dataclass(frozen=True)
class Study:
    """What was found.

    Args:
        name: of the data.
        data: all columns, with the classes that no fit saw.
        columns: of the mixtures.
        pair: the two of them that are drawn.
        held: how each number of components does on rows held out.
        mixture: the mixture of the best size, fitted to all rows.
        factors: the factor analysis of all columns.
        errors: standard errors of its loadings in standard units, (k, d).
    """

    name: str
    data: Bundled
    columns: tuple[str, ...]
    pair: tuple[str, str]
    held: HeldOut
    mixture: GaussianMixture = field(repr=False)
    factors: FactorAnalysis = field(repr=False)
    errors: Array = field(repr=False)

    @property
    def rows(self) -> Array:
        """The rows of the mixtures, (n, columns)."""
        return pick(self.data, self.columns)

    @property
    def component(self) -> NDArray[np.int64]:
        """Most probable component of each row."""
        return self.mixture.predict(open_source(self.rows, columns=self.columns))

    @property
    def loadings(self) -> Array:
        """Correlation of every column with every factor, (k, d)."""
        return np.asarray(self.factors.components_ / self.data.rows.std(0))

    def matched(self) -> tuple[int, ...]:
        """The class that each component stands for, under the pairing that most rows agree with."""
        table = np.zeros((len(self.mixture.weights_), len(self.data.classes)))
        np.add.at(table, (self.component, self.data.target.astype(int)), 1)
        where, what = linear_sum_assignment(-table)
        found = dict(zip(where.tolist(), what.tolist(), strict=True))
        return tuple(found.get(k, -1) for k in range(len(table)))

    def agreed(self) -> int:
        """How many rows lie in the component of their class."""
        return int((np.array(self.matched())[self.component] == self.data.target).sum())


def steps(sizes: Sequence[int] = SIZES, folds: int = FOLDS) -> int:
    """How often :func:`run_study` tells of its progress."""
    return len(sizes) * folds + 2


def run_study(tell: Tell, sizes: Sequence[int] = SIZES, folds: int = FOLDS, seed: int = 0) -> Study:
    """Fit mixtures of every size to every part of the rows, then the best to all, then factors.

    Args:
        tell: told what comes next, :func:`steps` times.
        sizes: numbers of components to try.
        folds: parts that are held out in turn.
        seed: of the starts and the parts.

    Raises:
        KeyboardInterrupt: Ctrl-C during any of the fits, which by themselves only end early.
    """
    data = bundled(DATA)
    data = replace(data, classes=tuple(f"cultivar {c}" for c in range(len(data.classes))))
    rows = pick(data, MIXED)
    held = hold_out(rows, sizes, folds, seed, tell)
    size = held.sizes[held.best]
    tell(f"{size} components, all rows")
    mixture = _fitted(size, open_source(rows, columns=MIXED), seed)
    tell("factors and their standard errors")
    source = open_source(data.rows, columns=data.names)
    factors = FactorAnalysis(FACTORS).fit(source)
    if factors.interrupted_:
        raise KeyboardInterrupt
    errors = factors.standard_errors(source)["components"] / data.rows.std(0)
    return Study(DATA, data, MIXED, PAIR, held, mixture, factors, errors)


def hold_out(rows: Array, sizes: Sequence[int], folds: int, seed: int, tell: Tell) -> HeldOut:
    """Log-density of every row under mixtures fitted to the other parts of the rows."""
    density = np.empty((len(sizes), len(rows)))
    troubled = [0] * len(sizes)
    parts = list(KFold(folds, shuffle=True, random_state=seed).split(rows))
    for i, size in enumerate(sizes):
        for j, (seen, unseen) in enumerate(parts):
            tell(f"{size} component{'s' if size > 1 else ''}, part {j + 1} of {folds} held out")
            mixture = _fitted(size, rows[seen], seed)
            density[i, unseen] = mixture.score_samples(rows[unseen])
            troubled[i] += bool(mixture.events_) or not mixture.converged_
    return HeldOut(tuple(sizes), density, tuple(troubled))


def pick(data: Bundled, columns: Sequence[str]) -> Array:
    """Some columns, in this order."""
    return np.ascontiguousarray(data.rows[:, [data.names.index(name) for name in columns]])


def _fitted(size: int, rows: Array | Source, seed: int) -> GaussianMixture:
    mixture = GaussianMixture(size, tol=1e-5, max_iter=500, random_state=seed)
    with warnings.catch_warnings():
        # They are counted by the caller: sixty fits would each have their say.
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(rows)
    if mixture.interrupted_:
        raise KeyboardInterrupt
    return mixture
