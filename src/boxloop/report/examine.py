"""From a table to findings: try candidates, choose one, criticise it on rows that nothing else has seen.

Rows are split in two. Candidates are compared by cross-validation on the first part; the simplest that is not told from
the best is fitted to all of it. The second part, which took no part in the choice, judges it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit

from boxloop.criticise import Below, First, Mega, Power, Second, TestFunction, as_model, draw_rows, mega
from boxloop.data import open_source
from boxloop.estimators import BayesianGaussianMixture
from boxloop.fit import AT_FLOOR
from boxloop.loop import Progress
from boxloop.numeric import generator, mean_and_error
from boxloop.report.candidates import Candidate, autoencoder, candidates, no_autoencoder
from boxloop.report.outliers import criticised
from boxloop.report.read import Array, Table
from boxloop.select import (
    Fold,
    FoldFit,
    FoldFits,
    GroupedSums,
    PenaltyPath,
    aic_bic,
    cross_validate,
    gaps_to_best,
    log_densities,
    one_standard_error,
    penalised_path,
    to_indices,
)


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


Tell = Callable[[str, float], None]

HELD, MOST_HELD, FEWEST = 0.2, 10_000, 20
"""Share of the rows that judge, most of them, and fewest rows of a table that can be reported on."""
MANY, VERY_MANY = 2_000, 20_000
"""Rows from which three folds do in place of five, and one in place of three."""
KNOWN, CHEAP = 3e8, 3e7
"""Most work (parameters x rows x columns) that the error of the parameters may take, for the chosen model and for each
of the others that are criticised."""
DRAWS, FEW_DRAWS = 499, 199
"""From the null law of the chosen model, and of the others."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the rows fitted to: as large a share of the rows that judge should lie below them."""
ALIKE = 10.0
"""Columns whose spreads differ by no more than this may be treated alike."""


def examine(
    table: Table,
    seed: int = 0,
    jobs: int | None = None,
    tell: Tell = lambda what, share: None,
    deep: bool = False,
) -> Findings:
    """Try, choose and criticise models of a table.

    Args:
        table: rows.
        seed: of splits and fits: the same seed gives the same findings.
        jobs: fits at the same time.
        tell: told what is being done, and which share of the whole is done.
        deep: whether to try an autoencoder, too.

    Raises:
        ValueError: too few rows, or no candidate that can be fitted.

    Example:
        >>> from boxloop.report.read import read_table
        >>> found = examine(read_table("iris", columns=["petal length (cm)"]))
        >>> found.model.trial.candidate.name
        'Bayesian Gaussian mixture, at most 10 components (uses 2)'
    """
    n = len(table.rows)
    if n < FEWEST:
        raise ValueError(
            f"{table.label}: {n} rows with a value are too few to judge a model by; {FEWEST} are needed"
        )
    order = np.random.default_rng(seed).permutation(n)
    held = min(max(round(HELD * n), FEWEST // 4), MOST_HELD)
    second, first = np.sort(order[:held]), np.sort(order[held:])
    rows = table.rows[first]
    folds = _folds(rows, seed)
    without = no_autoencoder(rows) if deep else ""
    offered = _offered(table, rows, folds, seed, deep and not without)
    trials = _tried(offered, rows, folds, jobs, tell)
    sound = _sound(trials)
    best, lag = _behind(trials, sound)
    counts = [trial.n_parameters for trial in trials]
    chosen = one_standard_error(np.where(sound, lag[:, 0], np.nan), lag[:, 1], counts)
    finalists = []
    places = _finalists(trials, chosen, sound)
    for i, place in enumerate(places):
        tell(f"criticising {trials[place].candidate.name}", 0.7 + 0.3 * i / len(places))
        finalists.append(_judged(trials[place], rows, table.rows[second], table.names, seed, first=i == 0))
    path = _path(finalists, named(table.rows[second], table.names), seed)
    known = dict(zip(places, (finalist.trial for finalist in finalists)))
    trials = tuple(known.get(place, trial) for place, trial in enumerate(trials))
    split = (first, second, len(folds))
    return Findings(table, seed, *split, trials, best, chosen, sound, lag, tuple(finalists), path, without)


def _offered(
    table: Table, rows: Array, folds: Sequence[Fold], seed: int, deep: bool
) -> tuple[Candidate, ...]:
    spread = np.nanstd(rows, axis=0)
    alike = bool(spread.max() <= ALIKE * spread.min())
    seen, d = (
        min(len(to_indices(fold.train, len(rows))) for fold in folds if fold.train is not None),
        rows.shape[1],
    )
    extra = (autoencoder(table.kind, seen, d, seed),) if deep else ()
    return (*candidates(table.kind, seen, d, seed, alike=alike), *extra)


def _folds(rows: Array, seed: int) -> list[Fold]:
    if len(rows) >= VERY_MANY:
        split: Any = ShuffleSplit(1, test_size=0.25, random_state=seed)
    else:
        split = KFold(3 if len(rows) >= MANY else 5, shuffle=True, random_state=seed)
    return Fold.from_pairs(split.split(rows), len(rows))


def _tried(
    offered: Sequence[Candidate], rows: Array, folds: Sequence[Fold], jobs: int | None, tell: Tell
) -> tuple[Trial, ...]:
    parts = [*folds, Fold()]
    total = len(offered) * len(parts)

    def observe(progress: Progress[FoldFits]) -> None:
        if not progress.stopped:
            tell(f"fitting {len(offered)} candidates", 0.7 * len(progress.state) / total)

    estimators = [candidate.estimator for candidate in offered]
    cells = cross_validate(estimators, rows, parts, None, n_jobs=jobs, checkpoint=None, observers=[observe])
    return tuple(
        _trial(candidate, [cells[i, f] for f in range(len(parts))]) for i, candidate in enumerate(offered)
    )


def _trial(candidate: Candidate, cells: Sequence[FoldFit]) -> Trial:
    failure = next((cell.failure for cell in cells if cell.failure), "")
    whole = cells[-1]
    troubles = (
        whole.warnings or tuple(dict.fromkeys(said for cell in cells for said in cell.warnings[:1]))[:1]
    )
    if failure:
        return Trial(candidate, None, whole.n_parameters, np.nan, np.nan, troubles, failure)
    *held, all_rows = (cell.density for cell in cells if cell.density is not None)
    known = np.nan if candidate.bounded else whole.n_parameters
    aic, bic = aic_bic(all_rows.sum, all_rows.n_rows, known)
    return Trial(candidate, reduce(add, held), whole.n_parameters, aic, bic, troubles, "")


def _sound(trials: Sequence[Trial]) -> NDArray[np.bool_]:
    """Which candidates may be chosen: those that did not collapse, unless all did."""
    fitted = np.array([bool(np.isfinite(trial.score[0])) for trial in trials])
    if not fitted.any():
        raise ValueError(f"no candidate could be fitted; the first: {trials[0].failure or 'density zero'}")
    sound = fitted & np.array([not trial.collapsed for trial in trials])
    return sound if sound.any() else fitted


def _behind(trials: Sequence[Trial], sound: NDArray[np.bool_]) -> tuple[int, Array]:
    """The best of the sound candidates, and how far each candidate is behind it."""
    means = np.array([trial.score[0] for trial in trials])
    scores = np.where(sound, means, -np.inf)
    best = int(scores.argmax())
    found = np.full((len(trials), 2), np.nan)
    fine = np.flatnonzero(np.isfinite(means))
    density = [rows for trial in trials if (rows := trial.density) is not None and np.isfinite(rows.mean)]
    found[fine] = np.column_stack(gaps_to_best(density, int(np.flatnonzero(fine == best)[0])))
    return best, found


def _finalists(trials: Sequence[Trial], chosen: int, sound: NDArray[np.bool_]) -> list[int]:
    """The chosen candidate, then the best of every other family, by falling score."""
    best: dict[str, int] = {}
    for place, trial in enumerate(trials):
        family, score = trial.candidate.family, trial.score[0]
        if sound[place] and (family not in best or score > trials[best[family]].score[0]):
            best[family] = place
    best.pop(trials[chosen].candidate.family)
    return [chosen, *sorted(best.values(), key=lambda place: -trials[place].score[0])]


def _judged(
    trial: Trial, rows: Array, held: Array, names: tuple[str, ...], seed: int, *, first: bool
) -> Finalist:
    estimator, judges = clone(trial.candidate.estimator), named(held, names)
    known = not trial.candidate.bounded  # of networks, no information says how they err
    affordable = known and trial.n_parameters * rows.size <= (KNOWN if first else CHEAP)
    draws = DRAWS if first else FEW_DRAWS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trials have told them
        estimator.fit(named(rows, names))
        train = named(rows, names) if affordable else None
        found = mega(
            criticised(estimator),
            judges,
            functions=functions(rows),
            train=train,
            draws=draws,
            random_state=seed,
        )
    used = estimator.n_components_ if isinstance(estimator, BayesianGaussianMixture) else None
    told = replace(trial, candidate=replace(trial.candidate, used=used))
    return Finalist(told, estimator, found, mean_and_error(log_densities(estimator, judges)))


def functions(rows: Array) -> list[TestFunction]:
    """What a model is criticised by: means, covariances, skewness, tails, and shares below quantiles of some rows."""
    quantiles: dict[str | int, list[float]] = {}
    for j, column in enumerate(rows.T):
        quantiles[j] = np.unique(np.nanquantile(column, LEVELS)).tolist()
    return [First(), Second(), Power(3), Power(4), Below(thresholds=quantiles)]


def _path(finalists: Sequence[Finalist], held: Any, seed: int) -> PenaltyPath:
    """Eq. 17 of document 000 over the finalists, on the rows that judge."""
    density = np.column_stack([log_densities(f.estimator, held) for f in finalists])
    # Fits that match the same moments have the same gaps but for rounding, and must not seem to differ.
    penalty = [
        float(f"{f.criticism['first'].norm() + f.criticism['second'].norm() ** 0.5:.9g}") for f in finalists
    ]
    names = [f.trial.candidate.name for f in finalists]
    return penalised_path(density, penalty, names, random_state=seed)
