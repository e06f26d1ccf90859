"""From a table to findings: try candidates, choose one, criticise it on rows that nothing else has seen.

Rows are split in two. Candidates are compared by cross-validation on the first part; the simplest within one standard
error of the best is fitted to all of it. The second part takes no part in the choice: it is held out to criticise it.
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
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit

from boxloop.criticise import Below, First, Mega, Power, Second, TestFunction, as_model, draw_rows, mega
from boxloop.data import open_source
from boxloop.distributions import TiedGaussian
from boxloop.estimators import BayesianGaussianMixture
from boxloop.fit import AT_FLOOR
from boxloop.loop import Progress
from boxloop.models import Mixture
from boxloop.numeric import generator, mean_and_error
from boxloop.report.candidates import (
    Candidate,
    autoencoder_candidate,
    find_autoencoder_obstacle,
    list_candidates,
)
from boxloop.report.read import Array, Table
from boxloop.select import (
    Fold,
    FoldFit,
    FoldFits,
    GroupedSums,
    PenaltyPath,
    aic_bic,
    cross_validate,
    log_densities,
    measure_gaps_to_best,
    one_standard_error,
    penalised_path,
    to_indices,
)

ProgressCallback = Callable[[str, float], None]
"""Called with what is being done, and which share of the whole is done."""

HELD_OUT, MOST_HELD_OUT, FEWEST = 0.2, 10_000, 20
"""Share of held-out rows, their largest number, and the smallest number of rows of a table."""
MANY, VERY_MANY = 2_000, 20_000
"""Rows from which three folds do in place of five, and one in place of three."""
KNOWN, CHEAP = 3e8, 3e7
"""Most work (parameters x rows x columns) that the error of the parameters may take, for the chosen model and for each
of the others that are criticised."""
DRAWS, FEW_DRAWS = 499, 199
"""From the null distribution of the chosen model, and of the others."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the rows fitted to: as large a share of the held-out rows should lie below them."""
ALIKE = 10.0
"""Columns whose standard deviations differ by no more than this factor may be treated alike."""


@dataclass(frozen=True, eq=False)
class Trial:
    """How one candidate did in cross-validation.

    Args:
        candidate: what was tried.
        log_density: of rows under the fits that did not see them, or lower bounds; None where a fit failed.
        n_parameters: of the model.
        aic: Akaike's criterion of the fit to all rows.
        bic: the Bayesian one.
        warnings: of the fits.
        failure: why there is no result.
    """

    candidate: Candidate
    log_density: GroupedSums | None
    n_parameters: float
    aic: float
    bic: float
    warnings: tuple[str, ...]
    failure: str

    @property
    def has_collapsed(self) -> bool:
        """Whether components shrank onto single values: the likelihood then measures the floor under the variance."""
        at_floor = any(AT_FLOOR in warning for warning in self.warnings)
        return at_floor and self.candidate.unit == "component"

    @property
    def reason_unusable(self) -> str:
        """Why it has no score to compare; empty where it has one."""
        return self.failure or ("" if isfinite(self.score[0]) else "it gives held-out rows density zero")

    @property
    def score(self) -> tuple[float, float]:
        """Mean held-out log-likelihood per row and its standard error."""
        return (float("nan"), float("nan")) if self.log_density is None else self.log_density.mean_and_error()


@dataclass(frozen=True, eq=False)
class Finalist:
    """A candidate fitted to all rows of the first part: its moment gaps, and mean log-likelihood, on the second."""

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
        fit_rows: indices of the rows that candidates were fitted to and chosen by.
        held_out: indices of the rows that took no part.
        n_folds: of the cross-validation.
        trials: every candidate, in order.
        best: index of the candidate with the highest held-out log-likelihood.
        chosen: index of the one taken.
        eligible: which candidates were considered: those that did not collapse, unless all did, (trials,).
        behind_best: how far each candidate is behind the best, with the error of that paired difference, (trials, 2).
        finalists: the chosen one first, then the best of every other family.
        path: which finalist a moment penalty of each weight would choose.
        autoencoder_obstacle: why no autoencoder was tried though one was asked for; empty otherwise.
    """

    table: Table
    seed: int
    fit_rows: NDArray[np.int64]
    held_out: NDArray[np.int64]
    n_folds: int
    trials: tuple[Trial, ...]
    best: int
    chosen: int
    eligible: NDArray[np.bool_]
    behind_best: Array
    finalists: tuple[Finalist, ...]
    path: PenaltyPath
    autoencoder_obstacle: str = ""

    @property
    def model(self) -> Finalist:
        """The model taken."""
        return self.finalists[0]

    @property
    def set_aside(self) -> tuple[int, ...]:
        """Indices of the candidates that have a score and were not considered."""
        return tuple(
            place
            for place, trial in enumerate(self.trials)
            if not (self.eligible[place] or trial.reason_unusable)
        )

    def log_density(self, rows: Array) -> Array:
        """Log-density of rows under the model taken."""
        return log_densities(self.model.estimator, name_columns(rows, self.table.names))

    def sample_model(self, n: int) -> Array:
        """Rows drawn from the model taken, the same every time."""
        model = as_model(self.model.estimator)
        return draw_rows(model, n, generator(self.seed)).numpy()


def examine_table(
    table: Table,
    seed: int = 0,
    jobs: int | None = None,
    tell: ProgressCallback = lambda what, share: None,
    deep: bool = False,
) -> Findings:
    """Try, choose and criticise models of a table; ``deep`` tries an autoencoder, too.

    Example:
        >>> from boxloop.report.read import read_table
        >>> found = examine_table(read_table("iris", columns=["petal length (cm)"]))
        >>> found.model.trial.candidate.name
        'Bayesian Gaussian mixture, at most 10 components (uses 2)'
    """
    n = len(table.rows)
    if n < FEWEST:
        raise ValueError(
            f"{table.label}: {n} rows with a value are too few to judge a model by; {FEWEST} are needed"
        )
    order = np.random.default_rng(seed).permutation(n)
    n_held_out = min(max(round(HELD_OUT * n), FEWEST // 4), MOST_HELD_OUT)
    held_out, fit_rows = np.sort(order[:n_held_out]), np.sort(order[n_held_out:])
    rows, test = table.rows[fit_rows], table.rows[held_out]
    folds = _split_folds(rows, seed)
    obstacle = find_autoencoder_obstacle(rows) if deep else ""
    offered = _choose_candidates(table, rows, folds, seed, deep and not obstacle)
    trials = _cross_validate_candidates(offered, rows, folds, jobs, tell)
    eligible = _find_eligible(trials)
    best, lag = _compare_with_best(trials, eligible)
    counts = [trial.n_parameters for trial in trials]
    chosen = one_standard_error(np.where(eligible, lag[:, 0], np.nan), lag[:, 1], counts)
    finalists = []
    places = _choose_finalists(trials, chosen, eligible)
    for i, place in enumerate(places):
        tell(f"criticising {trials[place].candidate.name}", 0.7 + 0.3 * i / len(places))
        finalists.append(_criticise_finalist(trials[place], rows, test, table.names, seed, first=i == 0))
    path = _trace_penalty_path(finalists, name_columns(test, table.names), seed)
    known = dict(zip(places, (finalist.trial for finalist in finalists)))
    trials = tuple(known.get(place, trial) for place, trial in enumerate(trials))
    split = (fit_rows, held_out, len(folds))
    return Findings(
        table, seed, *split, trials, best, chosen, eligible, lag, tuple(finalists), path, obstacle
    )


def _choose_candidates(
    table: Table, rows: Array, folds: Sequence[Fold], seed: int, deep: bool
) -> tuple[Candidate, ...]:
    deviation = np.nanstd(rows, axis=0)
    alike = bool(deviation.max() <= ALIKE * deviation.min())
    fitted = min(len(to_indices(fold.train, len(rows))) for fold in folds if fold.train is not None)
    d = rows.shape[1]
    extra = (autoencoder_candidate(table.kind, fitted, d, seed),) if deep else ()
    return (*list_candidates(table.kind, fitted, d, seed, alike=alike), *extra)


def _split_folds(rows: Array, seed: int) -> list[Fold]:
    if len(rows) >= VERY_MANY:
        split: Any = ShuffleSplit(1, test_size=0.25, random_state=seed)
    else:
        split = KFold(3 if len(rows) >= MANY else 5, shuffle=True, random_state=seed)
    return Fold.from_pairs(split.split(rows), len(rows))


def _cross_validate_candidates(
    offered: Sequence[Candidate], rows: Array, folds: Sequence[Fold], jobs: int | None, tell: ProgressCallback
) -> tuple[Trial, ...]:
    parts = [*folds, Fold()]
    total = len(offered) * len(parts)

    def observe(progress: Progress[FoldFits]) -> None:
        if not progress.stopped:
            tell(f"fitting {len(offered)} candidates", 0.7 * len(progress.state) / total)

    estimators = [candidate.estimator for candidate in offered]
    cells = cross_validate(estimators, rows, parts, None, n_jobs=jobs, checkpoint=None, observers=[observe])
    return tuple(
        _summarise_fits(candidate, [cells[i, f] for f in range(len(parts))])
        for i, candidate in enumerate(offered)
    )


def _summarise_fits(candidate: Candidate, cells: Sequence[FoldFit]) -> Trial:
    failure = next((cell.failure for cell in cells if cell.failure), "")
    whole = cells[-1]
    messages = (
        whole.warnings or tuple(dict.fromkeys(text for cell in cells for text in cell.warnings[:1]))[:1]
    )
    if failure:
        return Trial(candidate, None, whole.n_parameters, np.nan, np.nan, messages, failure)
    *held_out, all_rows = (cell.density for cell in cells if cell.density is not None)
    known = np.nan if candidate.is_lower_bound else whole.n_parameters
    aic, bic = aic_bic(all_rows.sum, all_rows.n_rows, known)
    return Trial(candidate, reduce(add, held_out), whole.n_parameters, aic, bic, messages, "")


def _find_eligible(trials: Sequence[Trial]) -> NDArray[np.bool_]:
    """Which candidates may be chosen: those that did not collapse, unless all did."""
    fitted = np.array([not trial.reason_unusable for trial in trials])
    if not fitted.any():
        raise ValueError(f"no candidate could be fitted; the first: {trials[0].failure or 'density zero'}")
    eligible = fitted & np.array([not trial.has_collapsed for trial in trials])
    return eligible if eligible.any() else fitted


def _compare_with_best(trials: Sequence[Trial], eligible: NDArray[np.bool_]) -> tuple[int, Array]:
    """The best of the eligible candidates, and how far each candidate is behind it."""
    means = np.array([trial.score[0] for trial in trials])
    best = int(np.where(eligible, means, -np.inf).argmax())
    lag = np.full((len(trials), 2), np.nan)
    fine = np.flatnonzero(np.isfinite(means))
    density = [rows for trial in trials if (rows := trial.log_density) is not None and np.isfinite(rows.mean)]
    lag[fine] = np.column_stack(measure_gaps_to_best(density, int(np.flatnonzero(fine == best)[0])))
    return best, lag


def _choose_finalists(trials: Sequence[Trial], chosen: int, eligible: NDArray[np.bool_]) -> list[int]:
    """The chosen candidate, then the best of every other family, by falling score."""
    best: dict[str, int] = {}
    for place, trial in enumerate(trials):
        family, score = trial.candidate.family, trial.score[0]
        if eligible[place] and (family not in best or score > trials[best[family]].score[0]):
            best[family] = place
    best.pop(trials[chosen].candidate.family)
    return [chosen, *sorted(best.values(), key=lambda place: -trials[place].score[0])]


def _criticise_finalist(
    trial: Trial, rows: Array, held_out: Array, names: tuple[str, ...], seed: int, *, first: bool
) -> Finalist:
    estimator = clone(trial.candidate.estimator)
    train, test = name_columns(rows, names), name_columns(held_out, names)
    known = not trial.candidate.is_lower_bound  # of networks, no information says how they err
    affordable = known and trial.n_parameters * rows.size <= (KNOWN if first else CHEAP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trials hold them
        estimator.fit(train)
        criticism = mega(
            select_criticised_part(estimator),
            test,
            functions=make_test_functions(rows),
            train=train if affordable else None,
            draws=DRAWS if first else FEW_DRAWS,
            random_state=seed,
        )
    used = estimator.n_components_ if isinstance(estimator, BayesianGaussianMixture) else None
    trial = replace(trial, candidate=replace(trial.candidate, used=used))
    return Finalist(trial, estimator, criticism, mean_and_error(log_densities(estimator, test)))


def make_test_functions(rows: Array) -> list[TestFunction]:
    """What a model is criticised by: means, covariances, skewness, tails, and shares below quantiles of some rows."""
    quantiles: dict[str | int, list[float]] = {
        j: np.unique(np.nanquantile(column, LEVELS)).tolist() for j, column in enumerate(rows.T)
    }
    return [First(), Second(), Power(3), Power(4), Below(thresholds=quantiles)]


def _trace_penalty_path(finalists: Sequence[Finalist], held_out: Any, seed: int) -> PenaltyPath:
    """Which finalist a moment penalty of each weight chooses on the held-out rows: Beaulac (2023), eq. 17."""
    density = np.column_stack([log_densities(f.estimator, held_out) for f in finalists])
    # Fits that match the same moments have the same gaps but for rounding, and must not seem to differ.
    penalty = [
        float(f"{f.criticism['first'].norm() + f.criticism['second'].norm() ** 0.5:.9g}") for f in finalists
    ]
    names = [f.trial.candidate.name for f in finalists]
    return penalised_path(density, penalty, names, random_state=seed)


def name_columns(rows: Array, names: tuple[str, ...]) -> Any:
    """Rows with the names of their columns, as estimators take them."""
    return open_source(rows, columns=list(names))


@dataclass(frozen=True)
class ActiveComponents:
    """The components of a fitted mixture that are criticised, with the digest of the rows of its fit."""

    model_: Any
    training_digest_: str | None


def select_criticised_part(estimator: Any) -> Any:
    """A fitted estimator; of a Bayesian mixture, the components in use at their expected parameters.

    How these err is known from the rows fitted to. The predictive distribution has tails that the prior gave it, in
    components that no row belongs to, and these make the errors of its moments infinite.
    """
    if not isinstance(estimator, BayesianGaussianMixture):
        return estimator
    return select_components(estimator.model_, estimator.active_)


def select_components(mixture: Mixture[Any], kept: NDArray[np.bool_]) -> Mixture[Any]:
    """The mixture of some of the components, by their weights."""
    places = torch.from_numpy(np.flatnonzero(kept))
    family: Any = mixture.family
    weight = mixture.log_weight[places]
    if isinstance(family, TiedGaussian):  # one covariance for all
        selected = replace(family, mean=family.mean[places])
    else:
        selected = family.map(lambda leaf: leaf[places])
    return Mixture(weight - weight.logsumexp(0), selected)
