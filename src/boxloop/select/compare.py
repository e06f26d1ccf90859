"""Fitted models side by side on the same rows, with errors of their differences."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from boxloop.data import AnySource, check_weight, is_read_in_place, make_frame, open_source
from boxloop.numeric import single_threaded
from boxloop.select.rows import count_rows
from boxloop.select.scores import Array, aic_bic, count_parameters, measure_gaps_to_best, sum_log_densities

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Criterion = Callable[[Any, Any], float | tuple[float, float]]

CLEAR = 2.0
"""How many standard errors make a difference clear."""
COLUMNS = ("log_likelihood", "error", "difference", "difference error", "aic", "bic", "verdict")
"""Names of columns of every comparison."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Models compared on the same rows, the best first.

    Args:
        names: of the models, by decreasing log-likelihood.
        n_rows: number of rows; the sum of the weights where there are any.
        log_likelihood: mean per row, (k,).
        error: its standard error.
        difference: mean log-likelihood per row minus that of the first model, (k,).
        difference_error: its standard error, over paired rows.
        aic: Akaike's criterion on these rows, NaN where the number of parameters is unknown.
        bic: the Bayesian one.
        tied: models within two standard errors of the first, or whose difference has no standard error.
        criteria: values and standard errors of further criteria, by name.
    """

    names: tuple[str, ...]
    n_rows: float
    log_likelihood: Array
    error: Array
    difference: Array
    difference_error: Array
    aic: Array
    bic: Array
    tied: tuple[str, ...] = ()
    criteria: Mapping[str, tuple[Array, Array]] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The first model, where it is more than two standard errors ahead of every other one; else None."""
        return None if self.tied else self.names[0]

    @property
    def verdict(self) -> str:
        """One sentence: the best model, or which are tied."""
        if self.tied:
            return f"{self.names[0]} is within two standard errors of {', '.join(self.tied)}"
        return f"{self.names[0]} is best" if len(self.names) > 1 else f"{self.names[0]} is the only model"

    def _collect_columns(self) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "log_likelihood": self.log_likelihood,
            "error": self.error,
            "difference": self.difference,
            "difference error": self.difference_error,
            "aic": self.aic,
            "bic": self.bic,
        }
        for name, (value, error) in self.criteria.items():
            columns[name] = value
            if not np.isnan(error).all():
                columns[f"{name} error"] = error
        return columns

    def table(self) -> Any:
        """One row per model, as a pandas frame; the last column says which is best or tied."""
        first = f"tied with {', '.join(self.tied)}" if self.tied else "best"
        others = ["tied" if name in self.tied else "" for name in self.names[1:]]
        return make_frame({**self._collect_columns(), "verdict": [first, *others]}, self.names)

    def plot(self, ax: Axes | None = None) -> Axes:
        """How far each model is below the first on the same rows, with one and two standard errors of the difference.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes; the best model is marked.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(100, 2))
            >>> models = {"full": GaussianMixture(1).fit(X), "diag": GaussianMixture(1, covariance_type="diag").fit(X)}
            >>> len(compare(models, X).plot().get_yticks())
            2
        """
        from boxloop.figures import forest, short

        return forest(
            self.names,
            self.difference,
            self.difference_error,
            ax,
            marked=[name == self.best for name in self.names],
            title=short(self.verdict, 56),
            across="log-likelihood per row, minus the best's",
        )

    def __str__(self) -> str:
        columns = self._collect_columns()
        rows = [["", *columns]]
        rows += [
            [name, *(f"{values[j]:.6g}" for values in columns.values())] for j, name in enumerate(self.names)
        ]
        width = [max(map(len, column)) for column in zip(*rows)]
        lines = [
            "  ".join([row[0].ljust(width[0]), *(cell.rjust(w) for cell, w in zip(row[1:], width[1:]))])
            for row in rows
        ]
        return "\n".join([*lines, f"On {self.n_rows:g} rows: {self.verdict}."])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(f'On {self.n_rows:g} rows: {self.verdict}.')}</p>\n{self.table().to_html()}"


@single_threaded
def compare(
    models: Any,
    X: Any,
    *,
    criteria: Mapping[str, Criterion] | None = None,
    sample_weight: Any = None,
) -> Comparison:
    r"""Compare fitted models on the same held-out rows.

    .. math:: \hat\Delta_j = \frac1n \sum_i \log p_j(x_i) - \log p_b(x_i), \qquad
        \mathrm{se}^2 = \frac{1}{n (n - 1)} \sum_i (\Delta_{ji} - \hat\Delta_j)^2

    Every model sees the same rows, so the error of a difference is that of paired values (Vuong 1989). The model with
    the highest mean log-likelihood is best only where it is more than two such errors ahead of every other.

    Args:
        models: fitted estimators, ours, scikit-learn's, or others whose ``score_samples`` gives log-densities: a
            dictionary by name, a list, or one model. Models without a name are named by their classes, with numbers
            where a class occurs more than once.
        X: rows that none of them was fitted to; whatever all of them take. Those of a path, a source or a Dask
            collection stay where they are, and memory does not grow with them: above 65,536 rows, errors are those of
            as many groups of rows.
        criteria: further criteria by name, each ``criterion(estimator, X)``, a number or a pair of a number and its
            standard error.
        sample_weight: one non-negative weight per row; whole numbers count as repetitions. Criteria do not see them.

    Returns:
        The comparison; print it, or take its ``table()``.

    Raises:
        ValueError: no model, log-densities that are NaN or of different lengths, unusable weights.
        TypeError: a model without ``score_samples``.

    Example:
        >>> import numpy as np
        >>> from boxloop import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 2)) + 4.0 * rng.integers(2, size=(1000, 1))
        >>> models = {f"K={k}": GaussianMixture(k, random_state=0).fit(X[:500]) for k in (1, 2)}
        >>> compare(models, X[500:]).best
        'K=2'
    """
    named = name_models(models)
    if not isinstance(criteria, Mapping | None):
        raise TypeError(f"criteria must map names to functions, got {type(criteria).__name__}")
    criteria = dict(criteria or {})
    for name, criterion in criteria.items():
        if not callable(criterion):
            raise TypeError(f"criteria must map names to functions; {name!r} is a {type(criterion).__name__}")
        if name in COLUMNS:
            raise ValueError(f"a criterion cannot be called {name!r}, which is a column of every comparison")
    rows = open_source(X, sample_weight) if is_read_in_place(X) else X
    weight = None
    if sample_weight is not None and not isinstance(rows, AnySource):
        weight = check_weight(sample_weight, count_rows(rows)).numpy()
    found = sum_log_densities(list(named.values()), rows, weight=weight)
    means = np.array([sums.mean_and_error() for sums in found])
    order = np.argsort(-means[:, 0], kind="stable")
    density = [found[j] for j in order]
    names = tuple(list(named)[j] for j in order)
    if np.isneginf(density[0].mean):  # no model has a finite mean
        gap, error = np.zeros(len(density)), np.full(len(density), np.nan)
    else:
        gap, error = measure_gaps_to_best(density, 0)
    counts = [count_parameters(named[name], rows) for name in names]
    both = np.array([aic_bic(sums.sum, sums.n_rows, count) for sums, count in zip(density, counts)])
    return Comparison(
        names=names,
        n_rows=density[0].n_rows,
        log_likelihood=means[order, 0],
        error=means[order, 1],
        difference=0.0 - gap,
        difference_error=error,
        aic=both[:, 0],
        bic=both[:, 1],
        tied=tuple(
            name for name, g, e in zip(names[1:], gap[1:], error[1:]) if not (np.isposinf(g) or g > CLEAR * e)
        ),
        criteria={
            name: _evaluate_criterion(criterion, [named[n] for n in names], X)
            for name, criterion in criteria.items()
        },
    )


def name_models(models: Any) -> dict[str, Any]:
    """Models by name: as given, or by class, numbered from 1 where a class occurs more than once."""
    if isinstance(models, Mapping):
        named = dict(models)
    elif isinstance(models, list | tuple):
        classes = [type(model).__name__ for model in models]
        numbers = [classes[: place + 1].count(name) for place, name in enumerate(classes)]
        named = {
            name if classes.count(name) == 1 else f"{name} {number}": model
            for name, number, model in zip(classes, numbers, models, strict=True)
        }
    elif hasattr(models, "score_samples"):
        named = {type(models).__name__: models}
    else:
        raise TypeError(
            "models must be a fitted estimator with score_samples, a list or a dictionary of them, got "
            f"{type(models).__name__}"
        )
    if not named:
        raise ValueError("models is empty: at least one model is needed")
    return named


def _evaluate_criterion(criterion: Criterion, models: Sequence[Any], X: Any) -> tuple[Array, Array]:
    values = [criterion(model, X) for model in models]
    pairs = [value if isinstance(value, tuple) else (value, float("nan")) for value in values]
    return np.array([float(v) for v, _ in pairs]), np.array([float(e) for _, e in pairs])
