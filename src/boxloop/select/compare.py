"""Fitted models side by side on the same rows, with errors of their differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from boxloop.data.checks import check_weight
from boxloop.data.frames import make_frame
from boxloop.select.scores import (
    Array,
    information,
    log_densities,
    mean_error,
    n_parameters,
    paired,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Criterion = Callable[[Any, Any], float | tuple[float, float]]

CLEAR = 2.0
"""How many standard errors make a difference clear."""
OWN = ("log_likelihood", "error", "difference", "difference error", "aic", "bic", "verdict")
"""Columns of every comparison."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Models judged on the same rows, the best first.

    Args:
        names: of the models, by falling log-likelihood.
        n_rows: how many rows they were judged on; the sum of the weights where there are any.
        log_likelihood: mean per row, (k,).
        error: its standard error.
        difference: mean log-likelihood per row less that of the first model, (k,).
        difference_error: its standard error, over paired rows.
        aic: Akaike's criterion on these rows, NaN where the number of parameters is unknown.
        bic: the Bayesian one.
        tied: models whose difference to the first is not clear: within two standard errors, or not measurable.
        criteria: values and standard errors of the criteria that were asked for, by name.
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
        """The first model, where it is clearly better than every other one; else None."""
        return None if self.tied else self.names[0]

    @property
    def verdict(self) -> str:
        """One sentence: the best model, or which are tied."""
        if self.tied:
            return f"{self.names[0]} is tied with {', '.join(self.tied)}"
        return f"{self.names[0]} is best" if len(self.names) > 1 else f"{self.names[0]} is the only model"

    def _columns(self) -> dict[str, Any]:
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

    def _marks(self) -> list[str]:
        first = f"tied with {', '.join(self.tied)}" if self.tied else "best"
        return [first, *("tied" if name in self.tied else "" for name in self.names[1:])]

    def table(self) -> Any:
        """One row a model, as a pandas frame; the last column says which is best or tied."""
        return make_frame({**self._columns(), "verdict": self._marks()}, self.names)

    def plot(self, ax: Axes | None = None) -> Axes:
        """How far each model is below the first on the same rows, with one and two errors of that difference.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes; a model that is clearly best is marked.

        Example:
            >>> import numpy as np
            >>> from boxloop.estimators import GaussianMixture
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
            across="log-likelihood of a row, less the best's",
        )

    def __str__(self) -> str:
        columns = self._columns()
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


def compare(
    models: Mapping[str, Any],
    X: Any,
    *,
    criteria: Mapping[str, Criterion] | None = None,
    sample_weight: Any = None,
) -> Comparison:
    r"""Judge fitted models on the same held-out rows.

    .. math:: \hat\Delta_j = \frac1n \sum_i \log p_j(x_i) - \log p_b(x_i), \qquad
        \mathrm{se}^2 = \frac{1}{n (n - 1)} \sum_i (\Delta_{ji} - \hat\Delta_j)^2

    Every model sees the same rows, so the error of a difference is that of paired values (Vuong 1989). The model with
    the highest mean log-likelihood is called best only where it is more than two such errors ahead of every other.

    Args:
        models: fitted estimators by name: ours, scikit-learn's, anything whose ``score_samples`` gives log-densities.
        X: rows that none of them was fitted to; whatever all of them take.
        criteria: more judgements by name, each ``criterion(estimator, X)``, a number or a pair of a number and its
            standard error.
        sample_weight: one non-negative weight a row; whole numbers count as repetitions. Criteria do not see them.

    Returns:
        The comparison; print it, or take its ``table()``.

    Raises:
        ValueError: no model, log-densities that are NaN or of different lengths, unusable weights.
        TypeError: a model without ``score_samples``.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 2)) + 4.0 * rng.integers(2, size=(1000, 1))
        >>> models = {f"K={k}": GaussianMixture(k, random_state=0).fit(X[:500]) for k in (1, 2)}
        >>> compare(models, X[500:]).best
        'K=2'
    """
    if not models:
        raise ValueError("at least one model is needed")
    asked = dict(criteria or {})
    for name in asked:
        if name in OWN:
            raise ValueError(f"a criterion may not be called {name!r}: that column is there already")
    density = _densities(models, X)
    weight = None if sample_weight is None else check_weight(sample_weight, len(density[0])).numpy()
    counts = [n_parameters(model, X, rows) for model, rows in zip(models.values(), density)]
    if weight is not None:
        density = [rows[weight > 0.0] for rows in density]
        weight = np.asarray(weight[weight > 0.0])
    means = np.array([mean_error(rows, weight) for rows in density])
    order = np.argsort(-means[:, 0], kind="stable")
    density = [density[j] for j in order]
    behind, error = _behind(density, weight)
    names = tuple(list(models)[j] for j in order)
    criterion = np.array([information(rows, counts[j], weight) for j, rows in zip(order, density)])
    return Comparison(
        names=names,
        n_rows=float(len(density[0]) if weight is None else weight.sum()),
        log_likelihood=means[order, 0],
        error=means[order, 1],
        difference=0.0 - behind,
        difference_error=error,
        aic=criterion[:, 0],
        bic=criterion[:, 1],
        tied=tuple(name for name, b, e in zip(names[1:], behind[1:], error[1:]) if not _clear(b, e)),
        criteria={name: _judged(rule, [models[n] for n in names], X) for name, rule in asked.items()},
    )


def _densities(models: Mapping[str, Any], X: Any) -> list[Array]:
    density = [log_densities(model, X) for model in models.values()]
    lengths = {len(rows) for rows in density}
    if len(lengths) > 1:
        raise ValueError(f"the models gave log-densities of different numbers of rows: {sorted(lengths)}")
    return density


def _behind(density: Sequence[Array], weight: Array | None) -> tuple[Array, Array]:
    """Distance of each model to the first; zero, with unknown errors, where no model has a finite mean."""
    if np.isneginf(density[0]).any():
        return np.zeros(len(density)), np.full(len(density), np.nan)
    return paired(density, 0, weight)


def _clear(behind: float, error: float) -> bool:
    return bool(np.isposinf(behind) or behind > CLEAR * error)


def _judged(rule: Criterion, models: Sequence[Any], X: Any) -> tuple[Array, Array]:
    found = [rule(model, X) for model in models]
    pairs = [value if isinstance(value, tuple) else (value, float("nan")) for value in found]
    return np.array([float(v) for v, _ in pairs]), np.array([float(e) for _, e in pairs])
