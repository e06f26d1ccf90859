"""Bayesian linear regression, exact, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import (
    ConcatenatedRows,
    as_column,
    as_frame,
    check_parameters,
    check_table,
    fill_masked,
    is_read_in_place,
    on_device,
    open_source,
    pair_sources,
)
from boxloop.estimators._base import Array, DeviceEstimator, check_double_precision, to_numpy, warn_of
from boxloop.estimators._input import check_score_numbers, open_rows, pick_device
from boxloop.networks import (
    CONSTRAINTS,
    Centre,
    LinearPosterior,
    LinearPrediction,
    linear_regression,
    regression_moments,
)
from boxloop.persist import ModelFile, Saved, SaveMixin
from boxloop.types import Source

UNLIKE = 1e4
"""Ratio of the sizes of columns from which they hardly share a prior."""


def _check_single_output(estimator: Any, saved: Saved) -> str | None:
    if not estimator.single_ or saved.axes["k"] == 1:
        return None
    return f"the fitted attribute 'single_' is true for {saved.axes['k']} outputs"


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianLinearRegression(SaveMixin, DeviceEstimator, RegressorMixin, BaseEstimator):
    r"""Bayesian linear regression: the exact posterior, with precisions that maximise the evidence.

    .. math:: y = X \theta + \epsilon, \quad \theta \sim N(0, \alpha^{-1} I), \; \epsilon \sim N(0, \beta^{-1} I)
        \;\Rightarrow\; \theta \mid y \sim N(m, S), \quad S^{-1} = \alpha I + \beta X^\top X, \; m = \beta S X^\top y

    Brownlie (2021), section 2.2. Rows are read once, from memory or from files; the rest uses their sums. Alpha and
    beta maximise the evidence :math:`p(y \mid X, \alpha, \beta)` to rounding, and are then treated as known. So with
    few rows standard deviations are too small: in 300 problems each, 95% intervals covered 80% of the coefficients with
    20 rows of 2 columns, 90% with 20 of 10, 94% with 60 of 5 and 95% with 300 of 10. With both precisions given they
    cover 95%. Rescaled columns and outputs give the same fit, in other units.

    Deviation: the bias in Brownlie (2021) is a column of ones with the prior of the others. Here the intercept has a
        flat prior and is integrated out, which costs one row; ``fit_intercept=False`` and a column of ones give that
        model. scikit-learn's ``BayesianRidge`` treats the mean of y as known instead, and calls our alpha ``lambda_``
        and our beta ``alpha_``.

    Args:
        alpha: precision of the prior of each coefficient; ``None`` estimates it.
        beta: precision of the noise, one over its variance; ``None`` estimates it.
        fit_intercept: whether there is an intercept.
        standardise: whether the prior is on coefficients of columns in units of their standard deviation. One alpha for
            columns in different units means little; a warning says if it matters.
        device: for the sums over rows: ``cpu``, ``cuda`` or ``auto``.

    Attributes:
        coef_: posterior mean, (d,), or (k, d) for k outputs.
        intercept_: a number, or (k,).
        covariance_: posterior covariance of the coefficients, (d, d), or (k, d, d).
        alpha_: as given or estimated; one for each output if y has several.
        beta_: likewise.
        log_evidence_: log p(y | X, alpha, beta); with a flat prior of density 1 for an intercept.
        n_effective_: directions that the rows determine, between 0 and ``rank_``.
        rank_: of the columns.
        n_samples_seen_: total weight of the rows.
        model_: the :class:`boxloop.networks.LinearPosterior`.
        events_: what is worth knowing of the fit; each was a warning.

    Example:
        >>> import numpy as np
        >>> from boxloop import BayesianLinearRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2))
        >>> y = 3.0 + X @ [1.0, -2.0] + 0.5 * rng.normal(size=200)
        >>> fit = BayesianLinearRegression().fit(X, y)
        >>> fit.coef_.round(1), round(fit.beta_**-0.5, 1)
        (array([ 1. , -1.9]), 0.5)
        >>> mean, deviation = fit.predict([[0.0, 0.0]], return_std=True)
        >>> mean.round(1), deviation.round(1)
        (array([3.]), array([0.5]))
    """

    alpha: float | None = field(default=None, kw_only=False)
    beta: float | None = field(default=None, kw_only=False)
    fit_intercept: bool = True
    standardise: bool = False
    device: str = "cpu"

    _model_file: ClassVar[ModelFile] = ModelFile(
        LinearPosterior,
        (Centre,),
        CONSTRAINTS,
        {"n_features_in_": int, "n_samples_seen_": float, "single_": bool, "events_": list[str]},
        checks=(check_double_precision, _check_single_output),
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0.0, None, closed="neither"), None],
        "beta": [Interval(Real, 0.0, None, closed="neither"), None],
        "fit_intercept": ["boolean"],
        "standardise": ["boolean"],
        "device": [str, torch.device],
    }

    @check_parameters
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the posterior.

        Args:
            X: rows (n, d): an array, frame, source, or the path of a CSV, Parquet or npy file or folder.
            y: outputs, (n,) or (n, k): any of these.
            sample_weight: one non-negative weight per row; a weight of 2 counts a row twice.

        Returns:
            The estimator itself.
        """
        rows = self._open_rows(X, sample_weight, reset=True)
        outputs, self.single_ = _open_outputs(y)
        if not is_read_in_place(X) and not isinstance(X, Tensor) and not is_read_in_place(y):
            check_consistent_length(X, y)
        k = outputs.n_columns
        sums, centre = regression_moments(
            pair_sources(rows, on_device(outputs, pick_device(self.device))),
            k,
            centred=self.fit_intercept,
            scaled=self.standardise,
        )
        self.n_samples_seen_: float = float(sums.weight)
        model, concerns = linear_regression(sums, self.alpha, self.beta, centre)
        self.events_: list[str] = [*concerns, *self._find_scale_concerns(sums.gram.diagonal())]
        self._from_tree(model)
        warn_of(self.events_)
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the outputs' variance that is explained, by the weights of rows where they have any."""
        check_is_fitted(self)
        outputs, weight = check_score_numbers(y, sample_weight)
        return float(super().score(X, outputs, weight))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected outputs.

        Args:
            X: rows (n, d).
            return_std: whether to give the standard deviation of an observation too: of the noise, and of what is not
                known of the coefficients.

        Returns:
            Means (n,) or (n, k); with ``return_std`` also deviations of the same shape.
        """
        found = self.predictive(X)
        mean = self._drop_single_output(found.mean)
        return (mean, self._drop_single_output(found.std)) if return_std else mean

    def predictive(self, X: Any) -> LinearPrediction:
        """Means with the two standard deviations, ``epistemic_std`` and ``noise``, as tensors (n, k)."""
        check_is_fitted(self)
        rows = self._open_rows(X, None, reset=False)
        model = self.model_

        def predict_tile(tile: Tensor, weight: Tensor) -> ConcatenatedRows:
            found = model.predict(tile.cpu())
            return ConcatenatedRows.of(torch.stack([found.mean, found.epistemic_std], 1))

        mean, std = rows.reduce(predict_tile).concatenate().unbind(1)
        return LinearPrediction(mean, std, model.beta.rsqrt())

    @property
    def covariance_(self) -> Array:
        """Posterior covariance of the coefficients, (d, d), or (k, d, d) for k outputs."""
        check_is_fitted(self)
        found = [to_numpy(self.model_.covariance(j)) for j in range(len(self.model_.alpha))]
        return found[0] if self.single_ else np.stack(found)

    def _open_rows(self, X: Any, sample_weight: Any, *, reset: bool) -> Source:
        return open_rows(self, X, sample_weight, "gaussian", pick_device(self.device), reset)

    def _from_tree(self, tree: LinearPosterior) -> None:
        self.model_ = tree
        self.coef_: Array = to_numpy(tree.coefficients()[0] if self.single_ else tree.coefficients())
        self.rank_: int = tree.rank
        self.intercept_: Array | float = self._unwrap_single_output(tree.intercept())
        self.alpha_: Array | float = self._unwrap_single_output(tree.alpha)
        self.beta_: Array | float = self._unwrap_single_output(tree.beta)
        self.log_evidence_: Array | float = self._unwrap_single_output(tree.log_evidence)
        self.n_effective_: Array | float = self._unwrap_single_output(tree.effective)

    def _unwrap_single_output(self, values: Tensor) -> Array | float:
        return float(values[0]) if self.single_ else to_numpy(values)

    def _drop_single_output(self, values: Tensor) -> Array:
        return to_numpy(values[:, 0] if self.single_ else values)

    def _find_scale_concerns(self, squares: Tensor) -> list[str]:
        """A warning where one prior is for columns of very different sizes."""
        sizes = squares[squares > 0.0].sqrt()
        if self.standardise or not len(sizes) or float(sizes.max() / sizes.min()) <= UNLIKE:
            return []
        return [
            f"columns differ in size by a factor of {float(sizes.max() / sizes.min()):.0e}, and one alpha is for all "
            "of them: standardise=True puts the prior on coefficients of standardised columns"
        ]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _open_outputs(y: Any) -> tuple[Source, bool]:
    """Outputs as a source of complete rows, and whether they have one dimension."""
    if y is None:
        raise ValueError("a regression requires y to be passed, but the target y is None")
    if is_read_in_place(y):
        table = as_column(y)
        return open_source(table), table is not y
    values = y.numpy(force=True) if isinstance(y, Tensor) else y
    check_table(values, "y")
    if np.asarray(values).ndim == 0:
        raise ValueError(f"y must have one dimension or two; got a {type(y).__name__}, a single value")
    frame = as_frame(values)
    names = None if frame is None else [str(name) for name in frame.columns]
    table = check_array(fill_masked(values), ensure_2d=False, dtype=np.float64, input_name="y", allow_nd=True)
    if table.ndim not in (1, 2):
        raise ValueError(f"y must have one dimension or two, got {table.ndim}")
    single = table.ndim == 1
    return open_source(table[:, None] if single else table, None, ["y"] if single else names), single
