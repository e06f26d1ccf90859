"""Choose the parameters of a density estimator by cross-validation, AIC, BIC or a criterion of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from numbers import Integral, Real
from operator import add
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid, check_cv
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from boxloop.caller import warn_caller
from boxloop.data import check_nested_parameters, check_weight, is_read_in_place, make_frame, open_source
from boxloop.numeric import SingleThreaded, seed
from boxloop.persist import Constraints, MetaSaveMixin, ModelFile, Number
from boxloop.progress import ProgressBar
from boxloop.select.cross_validation import Checkpoint, Criterion, Fold, FoldFit, cross_validate, to_json
from boxloop.select.rows import configure_estimator, count_rows, fingerprint_table, open_table
from boxloop.select.rule import one_standard_error
from boxloop.select.scores import Array, GroupedSums, SelectionWarning, aic_bic, measure_gaps_to_best
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAN = float("nan")

MEASURES = {"log_likelihood": "held-out log-likelihood per row", "aic": "-AIC / 2n", "bic": "-BIC / 2n"}

MAX_LINES = 40
"""Candidates that a plot shows as lines of text: the best."""


@dataclass(frozen=True)
class SearchState(Tree):
    """What the file of a search holds beside the best estimator."""

    results: str  # ``cv_results_`` as JSON
    best_index: int
    n_splits: int


def _has_best_method(name: str) -> Callable[[Any], bool]:
    """Whether the best estimator, or before ``fit`` the one given, has a method."""

    def check_method(search: Any) -> bool:
        if not search.refit:
            raise AttributeError(f"{name} needs refit=True: with refit=False there is no best_estimator_")
        getattr(vars(search).get("best_estimator_", search.estimator), name)
        return True

    return check_method


@dataclass(eq=False, repr=False)
class ModelSearchCV(MetaSaveMixin, SingleThreaded, MetaEstimatorMixin, BaseEstimator):
    r"""The best parameters of a density estimator by cross-validation, with standard errors.

    .. math:: \hat\jmath = \arg\max_j \frac1n \sum_i \log p_{j}(x_i; \text{fitted without } x_i)

    Every candidate is fitted to the training rows of every fold and scored on the held-out rows, the same for all. Of
    those within one standard error of the best, the one with the fewest parameters is chosen: the one-standard-error
    rule of Breiman, Friedman, Olshen and Stone (1984), section 3.4.3, here with the error of paired differences. AIC
    and BIC come from a fit to all rows.

    Args:
        estimator: one with ``fit`` and ``score_samples``, which gives log-densities. A ``random_state`` of None inside
            it is replaced by one seed for all fits.
        param_grid: lists of values by parameter, or a list of such grids, as in
            ``sklearn.model_selection.ParameterGrid``.
        cv: number of folds, of shuffled rows (blocks of some 65,000 rows are shuffled each by itself); or a splitter,
            or pairs of row numbers of training and test rows.
        rule: ``one_standard_error``, or ``best`` for the highest score.
        criterion: ``log_likelihood`` (of held-out rows), ``aic`` or ``bic`` (of all rows), or
            ``criterion(estimator, X)`` on the held-out rows of each fold, a number or a pair of a number and its
            standard error, higher being better; errors are then those over folds.
        n_jobs: fits at the same time, as in scikit-learn.
        refit: whether to fit the best candidate to all rows, as ``best_estimator_``.
        random_state: seed of the folds; global state is never used.
        verbose: show a progress bar.
        checkpoint: a folder for finished fits, so that a search that was killed resumes.

    Attributes:
        best_estimator_: the chosen candidate, fitted to all rows; methods such as ``predict`` and ``score_samples``
            are its own.
        best_params_: its parameters.
        best_index_: its place in the grid.
        best_score_: its ``mean_test_score``.
        n_splits_: number of folds.
        cv_results_: columns by name, one entry per candidate. As in scikit-learn: ``params``, ``param_NAME``,
            ``split0_test_score``, ..., ``mean_test_score``, ``std_test_score``, ``rank_test_score``; scores are the
            criterion, higher being better (AIC and BIC by -1/2n, without splits). Beside them: ``n_parameters``;
            ``log_likelihood`` per held-out row with ``log_likelihood_error``; ``difference`` to the highest with
            ``difference_error``, over paired rows (of more than 65,536, over as many groups of them); ``aic``, ``bic``;
            ``gap`` of the score to the best with ``gap_error``, by which the rule chooses; ``failure``; ``warnings``.

    Deviation: scikit-learn's ``mean_test_score`` weighs folds equally; here every held-out row counts the same.

    Raises:
        ValueError: no candidate, an unknown parameter, or every candidate failed. One that fails is recorded, warned
            of and never chosen.

    Example:
        >>> import numpy as np
        >>> from boxloop import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2)) + 6.0 * rng.integers(2, size=(300, 1))
        >>> grid = {"n_components": [1, 2, 3], "covariance_type": ["full", "spherical"]}
        >>> ModelSearchCV(GaussianMixture(), grid).fit(X).best_params_
        {'covariance_type': 'spherical', 'n_components': 2}
    """

    estimator: Any
    param_grid: Any
    _: KW_ONLY
    cv: Any = 5
    rule: str = "one_standard_error"
    criterion: Any = "log_likelihood"
    n_jobs: int | None = None
    refit: bool = True
    random_state: Any = 0
    verbose: bool = False
    checkpoint: Any = None

    _fitted_attribute: ClassVar[str] = "best_estimator_"
    _model_file: ClassVar[ModelFile] = ModelFile(
        SearchState,
        (),
        {SearchState: Constraints(best_index=Number(0), n_splits=Number(1))},
        {"n_features_in_": int},
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [HasMethods(["fit", "score_samples"])],
        "param_grid": [dict, list, tuple],
        "cv": ["cv_object"],
        "rule": [StrOptions({"one_standard_error", "best"})],
        "criterion": [StrOptions({"log_likelihood", "aic", "bic"}), callable],
        "n_jobs": [Integral, None],
        "refit": ["boolean"],
        "random_state": ["random_state", np.random.Generator, torch.Generator],
        "verbose": ["verbose"],
        "checkpoint": [str, PathLike, None],
    }

    @check_nested_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit and score every candidate, choose one, and fit it to all rows.

        Args:
            X: rows (n, d): an array, frame or sparse matrix that the estimator takes; or a path, a source or a Dask
                collection, whose rows stay where they are, where it takes that.
            y: ignored.
            sample_weight: one non-negative weight per row, by which candidates are fitted and held-out rows count; a
                ``criterion`` of one's own does not see them.

        Returns:
            The estimator itself.
        """
        in_place = is_read_in_place(X)
        rows = open_table(self, self.estimator, open_source(X, sample_weight) if in_place else X, reset=True)
        n = count_rows(rows)
        weight = None
        if sample_weight is not None and not in_place:
            if not has_fit_parameter(self.estimator, "sample_weight"):
                name = type(self.estimator).__name__
                raise TypeError(f"fit of {name} takes no sample_weight: leave it out")
            weight = check_weight(sample_weight, n).numpy()
        number = seed(self.random_state) % 2**32
        grid: Sequence[Mapping[str, Any]] = list(ParameterGrid(self.param_grid))
        if not grid:
            raise ValueError("param_grid holds no candidate")
        candidates = [configure_estimator(self.estimator, params, number) for params in grid]
        folds = [Fold(), *self._make_folds(n, number)]
        checkpoint = None
        if self.checkpoint is not None:
            checkpoint = Checkpoint(self.checkpoint, fingerprint_table(rows, weight))
        fits = cross_validate(
            candidates,
            rows,
            folds,
            self.criterion if callable(self.criterion) else None,
            n_jobs=self.n_jobs,
            checkpoint=checkpoint,
            weight=weight,
            observers=[ProgressBar(show=True).stage("ModelSearchCV")] if self.verbose else (),
        )
        lines = [[fits[i, f] for f in range(len(folds))] for i in range(len(grid))]
        self.cv_results_: dict[str, Any] = summarise_fits(grid, lines, self.criterion)
        self.n_splits_: int = len(folds) - 1
        self._warn_of_failed_fits()
        found = self.cv_results_
        self.best_index_: int = (
            one_standard_error(found["gap"], found["gap_error"], found["n_parameters"])
            if self.rule == "one_standard_error"
            else int(np.flatnonzero(found["gap"] == 0.0)[0])
        )
        self.best_params_: dict[str, Any] = found["params"][self.best_index_]
        self.best_score_: float = float(found["mean_test_score"][self.best_index_])
        if self.refit:
            weights = {} if weight is None else {"sample_weight": weight}
            self.best_estimator_: Any = clone(candidates[self.best_index_]).fit(rows, **weights)
        return self

    def _make_folds(self, n: int, number: int) -> list[Fold]:
        if isinstance(self.cv, Integral):
            return Fold.from_shuffled_rows(n, int(self.cv), number)
        try:
            return Fold.from_pairs(check_cv(self.cv).split(np.empty(n)), n)
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"cv must be a number of folds, a splitter or pairs of lists of row numbers below {n}: {error}"
            ) from error

    def _warn_of_failed_fits(self) -> None:
        """Warn of candidates that failed, and once of fits that warned."""
        found = self.cv_results_
        warned = []
        for params, failure, messages in zip(found["params"], found["failure"], found["warnings"]):
            name = format_parameters(params)
            if failure:
                warn_caller(f"{name} could not be fitted and is left out: {failure}", SelectionWarning)
            if messages:
                warned.append((name, messages[0]))
        if warned:
            warn_caller(
                f"fits of {len(warned)} of {len(found['warnings'])} candidates warned, the first for {warned[0][0]}: "
                f"{warned[0][1]} (all are in cv_results_['warnings'])",
                SelectionWarning,
            )

    def table(self) -> Any:
        """One row per candidate, the chosen one marked, as a pandas frame."""
        check_is_fitted(self, "cv_results_")
        names = (
            *("n_parameters", "log_likelihood", "log_likelihood_error", "difference", "difference_error"),
            *("aic", "bic", "mean_test_score", "gap", "gap_error", "failure"),
        )
        columns: dict[str, Any] = {name: self.cv_results_[name] for name in names}
        columns["warnings"] = [len(messages) for messages in self.cv_results_["warnings"]]
        columns["chosen"] = [j == self.best_index_ for j in range(len(columns["gap"]))]
        return make_frame(columns, [format_parameters(params) for params in self.cv_results_["params"]])

    def plot(self, ax: Axes | None = None) -> Axes:
        """How far each candidate is below the best by the criterion, with errors, and the one chosen.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes: curves where one number varies, such as ``n_components``; else one line of text per candidate.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(100, 2))
            >>> ModelSearchCV(GaussianMixture(), {"n_components": [1, 2]}, cv=2).fit(X).plot().get_xlabel()
            'n_components'
        """
        check_is_fitted(self, "cv_results_")
        from boxloop.figures import COLOURS, curves, forest, short

        found, best = self.cv_results_, self.best_index_
        measure = MEASURES[self.criterion] if isinstance(self.criterion, str) else "score"
        measure = f"{measure}, minus the best's"
        value, error, params = 0.0 - found["gap"], found["gap_error"], found["params"]
        number = find_varying_number(params)
        lines = {} if number is None else group_by_other_parameters(params, number)
        if number is None or len(lines) > len(COLOURS):
            order = np.argsort(np.nan_to_num(-value, nan=np.inf), kind="stable")[:MAX_LINES]
            names, varying = name_candidates(params)
            return forest(
                [names[j] for j in order],
                value[order],
                error[order],
                ax,
                marked=(order == best).tolist(),
                title="Candidates; the chosen one is marked",
                across=measure,
                up=short(varying, 50),
            )
        return curves(
            {
                name: ([params[j][number] for j in places], value[places], error[places])
                for name, places in lines.items()
            },
            ax,
            best=(params[best][number], value[best]),
            label=f"chosen: {format_parameters(params[best])}" if len(lines) == 1 else "chosen",
            title="Candidates of the search",
            across=number,
            up=measure,
        )

    def _to_tree(self) -> SearchState:
        columns = {
            name: [to_json(value) for value in column]
            for name, column in self.cv_results_.items()
            if not name.startswith("param_")
        }
        return SearchState(json.dumps(columns, allow_nan=False), self.best_index_, self.n_splits_)

    def _from_tree(self, tree: SearchState) -> None:
        columns = json.loads(tree.results)
        lists = ("params", "failure", "warnings")
        results: dict[str, Any] = {**_make_parameter_columns(columns["params"])}
        for name, column in columns.items():
            if len(column) != len(columns["params"]):
                raise ValueError(f"cv_results_[{name!r}] has {len(column)} entries")
            if name in lists:
                results[name] = column
            else:
                dtype = np.int32 if name == "rank_test_score" else float
                results[name] = np.array([float(v) for v in column], dtype)
        results["warnings"] = [tuple(messages) for messages in columns["warnings"]]
        self.cv_results_, self.best_index_, self.n_splits_ = results, tree.best_index, tree.n_splits
        self.best_params_ = results["params"][tree.best_index]
        self.best_score_ = float(results["mean_test_score"][tree.best_index])

    def _html_repr(self) -> str:
        """The diagram of scikit-learn, and after ``fit`` the table of candidates."""
        diagram: str = super()._html_repr()
        return f"{diagram}\n{self.table().to_html()}" if "cv_results_" in vars(self) else diagram

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "cv_results_")

    def _get_best_estimator(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_

    @available_if(_has_best_method("predict"))
    def predict(self, X: Any) -> Any:
        """``predict`` of the best estimator."""
        return self._get_best_estimator().predict(X)

    @available_if(_has_best_method("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """``predict_proba`` of the best estimator."""
        return self._get_best_estimator().predict_proba(X)

    @available_if(_has_best_method("score"))
    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """``score`` of the best estimator."""
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(self._get_best_estimator().score(X, y, **weights))

    @available_if(_has_best_method("score_samples"))
    def score_samples(self, X: Any) -> Any:
        """Log-density of each row under the best estimator."""
        return self._get_best_estimator().score_samples(X)

    @available_if(_has_best_method("transform"))
    def transform(self, X: Any) -> Any:
        """``transform`` of the best estimator."""
        return self._get_best_estimator().transform(X)

    @available_if(_has_best_method("transform"))
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit, then ``transform`` of the best estimator."""
        return self.fit(X, y).transform(X)

    @available_if(_has_best_method("sample"))
    def sample(self, n_samples: int = 1) -> Any:
        """``sample`` of the best estimator."""
        return self._get_best_estimator().sample(n_samples)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.input_tags = inner.input_tags
        tags.transformer_tags = inner.transformer_tags
        return tags


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """One candidate over all folds."""

    held_out: GroupedSums  # log-densities under fits without the rows, averaged over repetitions
    scores: GroupedSums  # the criterion on each fold, where it is a function
    all_rows: GroupedSums  # log-densities of all rows under the fit to all rows
    n_parameters: float  # of that fit

    @classmethod
    def from_fits(cls, fits: Sequence[FoldFit]) -> CandidateScores | None:
        """From the fits of one candidate, the first being that to all rows; None where one failed."""
        density = [fit.density for fit in fits if fit.density is not None]
        if len(density) < len(fits):
            return None
        scores = np.array([fit.score for fit in fits[1:]])
        folds = GroupedSums.from_values(scores, np.arange(len(scores)), len(scores))
        return cls(reduce(add, density[1:]), folds, density[0], fits[0].n_parameters)

    def criterion_values(self, criterion: str | Criterion) -> GroupedSums:
        """The criterion as a mean of these values, higher being better: of rows, or of folds for a function."""
        n = self.all_rows.n_rows
        match criterion:
            case "log_likelihood":
                return self.held_out
            case "aic":
                return self.all_rows.subtract(self.n_parameters / n)
            case "bic":
                return self.all_rows.subtract(self.n_parameters * float(np.log(n)) / (2.0 * n))
            case _:
                return self.scores


def summarise_fits(
    grid: Sequence[Mapping[str, Any]], fits: Sequence[Sequence[FoldFit]], criterion: str | Criterion
) -> dict[str, Any]:
    """All criteria of all candidates, as :attr:`ModelSearchCV.cv_results_`; NaN for a candidate that failed."""
    candidates = [CandidateScores.from_fits(line) for line in fits]
    failure = [next((fit.failure for fit in line if fit.failure), "") for line in fits]
    if all(failure):
        raise ValueError(f"no candidate could be fitted: {'; '.join(dict.fromkeys(failure))}")
    density = [None if one is None else one.held_out for one in candidates]
    values = [None if one is None else one.criterion_values(criterion) for one in candidates]
    means = np.array([(NAN, NAN) if sums is None else sums.mean_and_error() for sums in density])
    score = np.array([NAN if sums is None else sums.mean for sums in values])
    below, below_error = _measure_gaps(density)
    gap, gap_error = _measure_gaps(values)
    if not (gap == 0.0).any():
        raise ValueError(
            f"no candidate has a finite {criterion if isinstance(criterion, str) else 'score'}: "
            "each gives some row a density of zero, or its number of parameters is unknown"
        )
    both, splits = np.full((len(fits), 2), NAN), np.full((len(fits), len(fits[0]) - 1), NAN)
    for j, one in enumerate(candidates):
        if one is not None:
            both[j] = aic_bic(one.all_rows.sum, one.all_rows.n_rows, one.n_parameters)
            splits[j] = [_score_of_fold(fit, criterion) for fit in fits[j][1:]]
    ranked = np.nan_to_num(score, nan=-np.inf)
    return {
        **_make_parameter_columns(grid),
        "params": [dict(params) for params in grid],
        **{f"split{i}_test_score": splits[:, i] for i in range(splits.shape[1])},
        "mean_test_score": score,
        "std_test_score": np.array([line.std() if np.isfinite(line).all() else NAN for line in splits]),
        "rank_test_score": (1 + (ranked > ranked[:, None]).sum(1)).astype(np.int32),
        "n_parameters": np.array([NAN if one is None else one.n_parameters for one in candidates]),
        "log_likelihood": means[:, 0],
        "log_likelihood_error": means[:, 1],
        "difference": 0.0 - below,
        "difference_error": below_error,
        "aic": both[:, 0],
        "bic": both[:, 1],
        "gap": gap,
        "gap_error": gap_error,
        "failure": failure,
        "warnings": [tuple(dict.fromkeys(text for fit in line for text in fit.warnings)) for line in fits],
    }


def _score_of_fold(fit: FoldFit, criterion: str | Criterion) -> float:
    """The criterion on one fold; NaN for AIC and BIC, which are those of all rows."""
    if criterion == "log_likelihood":
        return NAN if fit.density is None else fit.density.mean
    return NAN if isinstance(criterion, str) else fit.score


def _make_parameter_columns(grid: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of each parameter, masked for candidates without it, as in scikit-learn."""
    columns: dict[str, Any] = {}
    for name in sorted({name for params in grid for name in params}):
        column: Any = np.ma.MaskedArray(np.empty(len(grid), dtype=object), mask=True)
        for j, params in enumerate(grid):
            if name in params:
                column[j] = params[name]
        columns[f"param_{name}"] = column
    return columns


def _measure_gaps(values: Sequence[GroupedSums | None]) -> tuple[Array, Array]:
    """The gap of each candidate to the best, with paired errors; NaN where one failed or none is finite."""
    mean = np.array([NAN if sums is None else sums.mean for sums in values])
    mean[np.isnan(mean)] = -np.inf
    gap, error = np.full(len(mean), NAN), np.full(len(mean), NAN)
    if np.isfinite(mean).any():
        fitted = [j for j, sums in enumerate(values) if sums is not None]
        sums = [sums for sums in values if sums is not None]
        gap[fitted], error[fitted] = measure_gaps_to_best(sums, fitted.index(int(mean.argmax())))
    return gap, error


def format_parameters(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(f"{name}={value}" for name, value in params.items()) or "default parameters"


def find_varying_number(params: Sequence[Mapping[str, Any]]) -> str | None:
    """The one parameter that takes several numbers and no other values; None where there is none, or several."""
    names = [
        name
        for name in params[0]
        if all(isinstance(one.get(name), Real) and not isinstance(one[name], bool) for one in params)
        and len({one[name] for one in params}) > 1
    ]
    return names[0] if len(names) == 1 else None


def name_candidates(params: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """A short name for every candidate, of the values that vary; and the parameters that these are values of."""
    every = list(dict.fromkeys(name for one in params for name in one))
    varying = [name for name in every if len({repr(one.get(name)) for one in params}) > 1]
    names = [
        ", ".join(str(one.get(name, "-")) for name in varying) or format_parameters(one) for one in params
    ]
    return names, ", ".join(varying)


def group_by_other_parameters(params: Sequence[Mapping[str, Any]], number: str) -> dict[str, list[int]]:
    """Indices of the candidates that agree in all other parameters, by increasing number."""
    lines: dict[str, list[int]] = {}
    for j, one in enumerate(params):
        lines.setdefault(
            format_parameters({name: v for name, v in one.items() if name != number}), []
        ).append(j)
    return {name: sorted(places, key=lambda j: params[j][number]) for name, places in lines.items()}
