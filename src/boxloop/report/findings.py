"""What a report found: every candidate tried, the finalists, and the model taken."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.criticise import Mega, as_model, draw_rows
from boxloop.data import open_source
from boxloop.fit import AT_FLOOR
from boxloop.numeric import generator
from boxloop.report.candidates import Candidate
from boxloop.report.columns import Array
from boxloop.report.read import Table
from boxloop.select import GroupedSums, PenaltyPath, log_densities


@dataclass(frozen=True, eq=False)
class Trial:
    """How one candidate did.

    Args:
        candidate: what was tried.
        density: log-densities of rows under the fits that did not see them, or lower bounds of them; None where a fit
            failed.
        n_parameters: of the model.
        aic: Akaike's criterion of the fit to all rows.
        bic: the Bayesian one.
        troubles: what the fits warned of.
        failure: why there is no result.
    """

    candidate: Candidate
    density: GroupedSums | None
    n_parameters: float
    aic: float
    bic: float
    troubles: tuple[str, ...]
    failure: str

    @property
    def collapsed(self) -> bool:
        """Whether components shrank onto single values: the likelihood then measures the floor under the variance."""
        held = any(AT_FLOOR in said for said in self.troubles)
        return held and self.candidate.unit == "component"

    @property
    def unusable(self) -> str:
        """Why it has no score to compare; empty where it has one."""
        return self.failure or ("" if isfinite(self.score[0]) else "it gives held-out rows density zero")

    @property
    def score(self) -> tuple[float, float]:
        """Mean held-out log-likelihood of a row and its standard error."""
        return (float("nan"), float("nan")) if self.density is None else self.density.mean_error()


@dataclass(frozen=True, eq=False)
class Finalist:
    """A candidate fitted to all rows of the first part and judged on the second.

    Args:
        trial: how it did before.
        estimator: fitted.
        criticism: its moment gaps on the rows that judge.
        score: mean log-likelihood of these rows and its standard error.
    """

    trial: Trial
    estimator: Any
    criticism: Mega
    score: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Findings:
    """All that a report says.

    Args:
        table: the rows.
        seed: of every random choice.
        first: places of the rows that candidates were fitted to and chosen by.
        second: places of the rows that judge.
        folds: how often the first part was split.
        trials: every candidate, in order.
        best: place of the candidate with the highest held-out log-likelihood.
        chosen: place of the one taken.
        sound: which candidates were considered: those that did not collapse, unless all did, (trials,).
        behind: how far each candidate is behind the best, with the error of that paired difference, (trials, 2).
        finalists: the chosen one first, then the best of every other family.
        path: which finalist a moment penalty of each weight would choose.
        without: why no autoencoder was tried though one was asked for; empty otherwise.
    """

    table: Table
    seed: int
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    folds: int
    trials: tuple[Trial, ...]
    best: int
    chosen: int
    sound: NDArray[np.bool_]
    behind: Array
    finalists: tuple[Finalist, ...]
    path: PenaltyPath
    without: str = ""

    @property
    def model(self) -> Finalist:
        """The model taken."""
        return self.finalists[0]

    @property
    def set_aside(self) -> tuple[int, ...]:
        """Places of the candidates that have a score and were not considered."""
        return tuple(
            place for place, trial in enumerate(self.trials) if not (self.sound[place] or trial.unusable)
        )

    def density(self, rows: Array) -> Array:
        """Log-density of rows under it."""
        return log_densities(self.model.estimator, named(rows, self.table.names))

    def drawn(self, n: int) -> Array:
        """Rows drawn from it, the same every time."""
        model = as_model(self.model.estimator)
        return draw_rows(model, n, generator(self.seed)).numpy()


def named(rows: Array, names: tuple[str, ...]) -> Any:
    """Rows with the names of their columns, as estimators take them."""
    return open_source(rows, columns=list(names))
