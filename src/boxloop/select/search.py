"""Choose the parameters of a density estimator by cross-validation, AIC, BIC or a criterion of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin, _fit_context, clone
from sklearn.model_selection import ParameterGrid, check_cv
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from boxloop.caller import warn_caller
from boxloop.data import check_weight, is_read_in_place, make_frame, open_source
from boxloop.numeric import SingleThreaded, seed
from boxloop.progress import ProgressBar
from boxloop.select.cells import Fold
from boxloop.select.grid import fill
from boxloop.select.results import label, results
from boxloop.select.rows import checked_rows, fingerprint_table, n_rows, ready
from boxloop.select.rule import one_standard_error
from boxloop.select.store import CellStore
from boxloop.select.warned import SelectionWarning

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _offers(name: str) -> Callable[[Any], bool]:
    """Whether the estimator chosen, or before ``fit`` the one given, has a method."""

    def check(search: Any) -> bool:
        if not search.refit:
            raise AttributeError(f"{name} needs refit=True: no estimator was kept")
        getattr(vars(search).get("best_estimator_", search.estimator), name)
        return True

    return check


@dataclass(eq=False, repr=False)
class Select(SingleThreaded, MetaEstimatorMixin, BaseEstimator):
    r"""The best parameters of a density estimator, with error bars.

    .. math:: \hat\jmath = \arg\max_j \frac1n \sum_i \log p_{j}(x_i; \text{fitted without } x_i)

    Every candidate is fitted to every fold's training rows and judged on the rows held out, the same for all. Of those
    that the rows do not tell from the best, the one with the fewest parameters is taken: the one-standard-error rule of
    Breiman, Friedman, Olshen and Stone (1984), here with the error of paired differences. AIC and BIC come from a fit
    to all rows.

    Args:
        estimator: one with ``fit`` and ``score_samples``, which gives log-densities. A ``random_state`` of None inside
            it is replaced by one seed for all fits.
        grid: lists of values by parameter, or a list of such grids, as in ``sklearn.model_selection.ParameterGrid``.
        cv: number of folds, of shuffled rows (blocks of some 65,000 rows are shuffled each by itself); or a splitter,
            or pairs of training and test places.
        rule: ``one_standard_error``, or ``best`` for the highest score.
        criterion: ``log_likelihood`` (of held-out rows), ``aic`` or ``bic`` (of all rows), or
            ``criterion(estimator, X)`` on the held-out rows of each fold, a number or a pair of a number and its
            standard error, higher being better; errors are then those over folds.
        n_jobs: fits at the same time, as in scikit-learn.
        refit: whether to fit the chosen candidate to all rows, as ``best_estimator_``.
        random_state: seed of the folds; global state is never used.
        verbose: show a progress bar.
        checkpoint: a folder in which finished fits are kept, so that a search that was killed resumes.

    Attributes:
        best_estimator_: the chosen candidate, fitted to all rows; methods such as ``predict`` and ``score_samples``
            are its own.
        best_params_: its parameters.
        best_index_: its place in the grid.
        best_score_: its score.
        n_splits_: number of folds.
        results_: columns by name, one entry a candidate: ``parameters``; ``n_parameters``; ``log_likelihood`` of
            a held-out row with ``log_likelihood_error``; ``difference`` to the highest with ``difference_error``, over
            paired rows (of more than 65,536, over as many groups of them); ``aic``, ``bic``; ``score``, the criterion
            as a mean where higher is better (AIC and BIC by -2n), ``gap`` to the best with ``gap_error``, by which the
            rule chooses; ``failure``; ``warnings``.

    Raises:
        ValueError: no candidate, an unknown parameter, or every candidate failed. One that fails is recorded, warned
            of and never chosen.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2)) + 6.0 * rng.integers(2, size=(300, 1))
        >>> search = Select(GaussianMixture(), {"n_components": [1, 2, 3], "covariance_type": ["full", "spherical"]})
        >>> search.fit(X).best_params_
        {'covariance_type': 'spherical', 'n_components': 2}
    """

    estimator: Any
    grid: Any
    _: KW_ONLY
    cv: Any = 5
    rule: str = "one_standard_error"
    criterion: Any = "log_likelihood"
    n_jobs: int | None = None
    refit: bool = True
    random_state: Any = 0
    verbose: bool = False
    checkpoint: Any = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [HasMethods(["fit", "score_samples"])],
        "grid": [dict, list, tuple],
        "cv": ["cv_object"],
        "rule": [StrOptions({"one_standard_error", "best"})],
        "criterion": [StrOptions({"log_likelihood", "aic", "bic"}), callable],
        "n_jobs": [Integral, None],
        "refit": ["boolean"],
        "random_state": ["random_state", np.random.Generator, torch.Generator],
        "verbose": ["verbose"],
        "checkpoint": [str, PathLike, None],
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit and judge every candidate, choose one, and fit it to all rows.

        Args:
            X: rows (n, d): an array, frame or sparse matrix that the estimator takes; or a path, a source or a Dask
                collection, whose rows stay where they are, where it takes that.
            y: ignored.
            sample_weight: one non-negative weight a row, by which candidates are fitted and held-out rows count; a
                ``criterion`` of one's own does not see them.

        Returns:
            The estimator itself.
        """
        table = open_source(X, sample_weight) if is_read_in_place(X) else X
        rows = checked_rows(self, self.estimator, table, reset=True)
        weight = (
            None
            if sample_weight is None or is_read_in_place(X)
            else self._weight(sample_weight, n_rows(rows))
        )
        number = seed(self.random_state) % 2**32
        grid: Sequence[Mapping[str, Any]] = list(ParameterGrid(self.grid))
        if not grid:
            raise ValueError("the grid holds no candidate")
        candidates = [ready(self.estimator, params, number) for params in grid]
        folds = [Fold(), *self._folds(rows, number)]
        cells = fill(
            candidates,
            rows,
            folds,
            self.criterion if callable(self.criterion) else None,
            n_jobs=self.n_jobs,
            store=None
            if self.checkpoint is None
            else CellStore(self.checkpoint, fingerprint_table(rows, weight)),
            weight=weight,
            observers=[ProgressBar(show=True).stage("Select")] if self.verbose else (),
        )
        lines = [[cells[i, f] for f in range(len(folds))] for i in range(len(grid))]
        self.results_ = results(grid, lines, self.criterion)
        self.n_splits_ = len(folds) - 1
        self._tell()
        self._choose()
        if self.refit:
            given = {} if weight is None else {"sample_weight": weight}
            self.best_estimator_ = clone(candidates[self.best_index_]).fit(rows, **given)
        return self

    def _weight(self, sample_weight: Any, n: int) -> Any:
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise TypeError(f"sample_weight was given, but fit of {type(self.estimator).__name__} takes none")
        return check_weight(sample_weight, n).numpy()

    def _folds(self, rows: Any, number: int) -> list[Fold]:
        n = n_rows(rows)
        if isinstance(self.cv, Integral):
            return Fold.dealt(n, int(self.cv), number)
        try:
            return Fold.given(check_cv(self.cv).split(np.empty(n)), n)
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"cv must be a number of folds, a splitter or pairs of lists of places below {n}: {error}"
            ) from error

    def _choose(self) -> None:
        found = self.results_
        best = int(np.flatnonzero(found["gap"] == 0.0)[0])
        if self.rule == "one_standard_error":
            best = one_standard_error(found["gap"], found["gap_error"], found["n_parameters"])
        self.best_index_ = best
        self.best_params_ = found["parameters"][best]
        self.best_score_ = float(found["score"][best])

    def _tell(self) -> None:
        """Warn of candidates that failed, and once of fits that warned."""
        found = self.results_
        for params, failure in zip(found["parameters"], found["failure"]):
            if failure:
                message = f"{label(params)} could not be fitted and is left out: {failure}"
                warn_caller(message, SelectionWarning)
        uneasy = [
            (label(params), told[0]) for params, told in zip(found["parameters"], found["warnings"]) if told
        ]
        if uneasy:
            warn_caller(
                f"fits of {len(uneasy)} of {len(found['warnings'])} candidates warned, first that of {uneasy[0][0]}: "
                f"{uneasy[0][1]} (all are in results_['warnings'])",
                SelectionWarning,
            )

    def table(self) -> Any:
        """One row a candidate, the chosen one marked, as a pandas frame."""
        check_is_fitted(self, "results_")
        kept = {
            name: column for name, column in self.results_.items() if name not in ("parameters", "warnings")
        }
        kept["warnings"] = [len(told) for told in self.results_["warnings"]]
        kept["chosen"] = [j == self.best_index_ for j in range(len(kept["gap"]))]
        return make_frame(kept, [label(params) for params in self.results_["parameters"]])

    def plot(self, ax: Axes | None = None) -> Axes:
        """How far each candidate is below the best by the criterion, with errors, and the one chosen.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes: lines where one number varies, such as ``n_components``; else one line of text a candidate.

        Example:
            >>> import numpy as np
            >>> from boxloop.estimators import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(100, 2))
            >>> Select(GaussianMixture(), {"n_components": [1, 2]}, cv=2).fit(X).plot().get_xlabel()
            'n_components'
        """
        check_is_fitted(self, "results_")
        from boxloop.select.drawn import draw_candidates

        return draw_candidates(self.results_, self.best_index_, self.criterion, ax)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "results_")

    def _best(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_

    @available_if(_offers("predict"))
    def predict(self, X: Any) -> Any:
        """``predict`` of the chosen estimator."""
        return self._best().predict(X)

    @available_if(_offers("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """``predict_proba`` of the chosen estimator."""
        return self._best().predict_proba(X)

    @available_if(_offers("score"))
    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """``score`` of the chosen estimator."""
        given = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(self._best().score(X, y, **given))

    @available_if(_offers("score_samples"))
    def score_samples(self, X: Any) -> Any:
        """Log-density of each row under the chosen estimator."""
        return self._best().score_samples(X)

    @available_if(_offers("transform"))
    def transform(self, X: Any) -> Any:
        """``transform`` of the chosen estimator."""
        return self._best().transform(X)

    @available_if(_offers("transform"))
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit, then ``transform`` of the chosen estimator."""
        return self.fit(X, y).transform(X)

    @available_if(_offers("sample"))
    def sample(self, n_samples: int = 1) -> Any:
        """``sample`` of the chosen estimator."""
        return self._best().sample(n_samples)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.input_tags = inner.input_tags
        tags.transformer_tags = inner.transformer_tags
        return tags
