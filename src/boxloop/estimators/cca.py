"""Canonical correlation analysis with scikit-learn's interface, solved exactly, as an estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import (
    ArraySource,
    check_parameters,
    check_table,
    fit_standardisation,
    pair_sources,
    to_float_table,
    validate_rows,
    wrap_as_tensor,
)
from boxloop.estimators._base import Array, to_numpy, warn_of
from boxloop.estimators._input import check_score_numbers
from boxloop.persist import ModelFile, Saved, SaveMixin
from boxloop.twoview import (
    CONSTRAINTS,
    CanonicalVariables,
    LinearView,
    RelevanceFit,
    RelevanceModel,
    ViewPair,
    fit_fixed_features,
)


def _has_linear_variables(estimator: Any, saved: Saved) -> str | None:
    """A check of a file: both views are linear, with the columns of the estimator, and their variables independent."""
    fit: Any = saved.tree
    views = fit.model.pair.left, fit.model.pair.right
    if not all(isinstance(view, LinearView) for view in views):
        return "its views are not linear"
    if views[0].n_columns != estimator.n_features_in_:
        return f"its first view has {views[0].n_columns} columns, not {estimator.n_features_in_}"
    if estimator._predict_1d and views[1].n_columns != 1:
        return f"its second view has {views[1].n_columns} columns, and predictions of one"
    for name in ("left", "right"):
        length = np.diag(np.linalg.qr(to_numpy(getattr(fit.model.canonical, name)), mode="r"))
        with np.errstate(divide="ignore", over="ignore"):
            if not np.isfinite(1.0 / length).all():  # rotations are in units of these lengths
                return f"the field 'model.canonical.{name}' must have linearly independent columns"
    return None


@dataclass(eq=False, repr=False, kw_only=True)
class CCA(
    SaveMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    RegressorMixin,
    MultiOutputMixin,
    BaseEstimator,
):
    r"""Canonical correlation analysis: a drop-in for :class:`sklearn.cross_decomposition.CCA`, solved exactly.

    .. math:: \max_{a_i, b_i} \; \mathrm{corr}(X a_i, Y b_i), \qquad
        \mathrm{corr}(X a_i, X a_j) = \mathrm{corr}(Y b_i, Y b_j) = \mathrm{corr}(X a_i, Y b_j) = 0 \; (i \ne j)

    Hotelling (1936); Learning relevant features for statistical inference, eq. 1, with linear features. The means and
    covariances of the columns are summed in one pass, and a singular value decomposition gives all pairs at once.
    Parameters, attributes and methods are scikit-learn's, and so are their values where its iterations have converged.
    :class:`boxloop.RelevantFeatures` adds standard errors and tests, expectations of one view given the other, a ridge,
    weights of rows, kernels and networks, labels, and tables larger than memory.

    Args:
        n_components: number of pairs of canonical variables, at most the number of rows and of columns of each view.
        scale: whether weights and loadings are those of columns in units of their standard deviations.
        max_iter: accepted for compatibility; nothing is iterated.
        tol: accepted for compatibility; the solution is exact.
        copy: accepted for compatibility; ``fit`` never changes its input.

    Attributes:
        x_weights_: projections of the deflated X, of unit length, (p, n_components).
        y_weights_: the same of y, (q, n_components).
        x_loadings_: coefficients of the regression of X on its scores, (p, n_components).
        y_loadings_: the same of y, (q, n_components).
        x_rotations_: projections of X: ``transform`` multiplies by them, (p, n_components).
        y_rotations_: the same of y, (q, n_components).
        coef_: of the linear model ``y = X @ coef_.T + intercept_`` of centred X, (q, p).
        intercept_: (q,).
        correlation_: canonical correlations on the rows of the fit, largest first, (n_components,).
        n_iter_: 1 for each component.
        n_features_in_: p.
        feature_names_in_: names of the columns of X, where they are text.

    Deviation: scikit-learn finds one pair after the other by the NIPALS power method and stops at ``tol``, by default
    far from the solution where neighbouring correlations are close.

    Example:
        >>> import numpy as np
        >>> from boxloop import CCA
        >>> rng = np.random.default_rng(0)
        >>> shared = rng.normal(size=(500, 1))
        >>> X = np.hstack([shared + rng.normal(size=(500, 1)), rng.normal(size=(500, 2))])
        >>> y = np.hstack([shared + rng.normal(size=(500, 1)), rng.normal(size=(500, 1))])
        >>> u, v = CCA(n_components=1).fit(X, y).transform(X, y)
        >>> bool(np.corrcoef(u[:, 0], v[:, 0])[0, 1] > 0.4)
        True
    """

    n_components: int = field(default=2, kw_only=False)
    scale: bool = True
    max_iter: int = 500
    tol: float = 1e-6
    copy: bool = True

    _model_file: ClassVar[ModelFile] = ModelFile(
        RelevanceFit,
        (RelevanceModel, CanonicalVariables, ViewPair, LinearView),
        CONSTRAINTS,
        {"n_features_in_": int, "_predict_1d": bool},
        attribute="fit_",
        checks=(_has_linear_variables,),
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "scale": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "copy": ["boolean"],
    }

    @check_parameters
    def fit(self, X: Any, y: Any) -> Self:
        """Find the most correlated pairs of linear functions of X and of y.

        Args:
            X: the first view, (n, p).
            y: the second view, (n, q) or (n,).

        Returns:
            The estimator itself.
        """
        left = wrap_as_tensor(validate_rows(self, X, dtype=np.float64, ensure_min_samples=2))
        right = wrap_as_tensor(self._check_second_view(y))
        check_consistent_length(left, right)
        self._predict_1d = right.ndim == 1
        right = right.reshape(len(right), -1)
        (n, p), q = left.shape, right.shape[1]
        most = min(n, p, q)
        if self.n_components > most:
            raise ValueError(
                f"`n_components` upper bound is {most}. Got {self.n_components} instead. Reduce `n_components`."
            )
        pair = ViewPair(self._fit_linear_view(left), self._fit_linear_view(right))
        source = pair_sources(ArraySource(left), ArraySource(right), hold=False)
        self._from_tree(fit_fixed_features(pair, source, self.n_components))
        concerns = []
        if n <= p + q:
            concerns.append(
                f"{n} rows for {p + q} columns of both views: any rows are then related perfectly; use more rows or "
                "fewer columns, or RelevantFeatures with a ridge"
            )
        rank = len(self.fit_.model.canonical.correlation)
        if rank < self.n_components:
            concerns.append(
                f"X and y have {rank} pair{'s' * (rank != 1)} of canonical variables, fewer than "
                f"n_components={self.n_components}: the other components are 0; constant and collinear columns add none"
            )
        warn_of(concerns)
        return self

    def _check_second_view(self, y: Any) -> Array:
        table = check_table(y, "y")
        if isinstance(table, Real):
            raise ValueError(f"y must have one value or row for each row of X, got {y!r}")
        checked: Array = check_array(table, input_name="y", dtype=np.float64, ensure_2d=False)
        return checked

    def _fit_linear_view(self, rows: Tensor) -> LinearView:
        frame = fit_standardisation(ArraySource(rows), hashed=False)
        if not self.scale:
            return LinearView(frame.origin, torch.ones_like(frame.origin))
        unbiased = math.sqrt(len(rows) / (len(rows) - 1))
        return LinearView(frame.origin, torch.where(frame.constant, 1.0, frame.scale * unbiased))

    def _from_tree(self, tree: RelevanceFit) -> None:
        """Set scikit-learn's attributes, which all follow from the canonical variables and the means of u x'."""
        pair: Any = tree.model.pair  # of linear views
        self.fit_ = tree
        canonical = tree.model.canonical
        rank = len(canonical.correlation)
        empty = self.n_components - rank
        x = _deflate_view(pair.left, canonical.left, tree.left[1:])
        y = _deflate_view(pair.right, canonical.right, tree.right[1:])
        weights = x[0]
        largest = np.abs(weights).argmax(0)
        sign = np.where(weights[largest, np.arange(rank)] < 0.0, -1.0, 1.0)
        pad = ((0, 0), (0, empty))
        self.x_weights_, self.x_loadings_, self.x_rotations_ = (np.pad(part * sign, pad) for part in x)
        self.y_weights_, self.y_loadings_, self.y_rotations_ = (np.pad(part * sign, pad) for part in y)
        self._x_mean, self._x_std = to_numpy(pair.left.origin), to_numpy(pair.left.scale)
        self._y_mean, self._y_std = to_numpy(pair.right.origin), to_numpy(pair.right.scale)
        self.coef_: Array = (self.x_rotations_ @ self.y_loadings_.T * self._y_std).T / self._x_std
        self.intercept_: Array = self._y_mean
        self.correlation_: Array = np.pad(to_numpy(canonical.correlation), (0, empty))
        self.n_iter_: list[int] = [1] * self.n_components

    def transform(self, X: Any, y: Any = None, copy: bool = True) -> Any:
        """Scores of rows: those of X, (n, n_components), and those of y beside them where y is given.

        Args:
            X: (n, p).
            y: (n, q) or (n,).
            copy: accepted for compatibility; the input is never changed.
        """
        left = (self._check_rows(X) - self._x_mean) / self._x_std @ self.x_rotations_
        if y is None:
            return left
        columns = self._check_second_view(y)
        return left, (columns.reshape(len(columns), -1) - self._y_mean) / self._y_std @ self.y_rotations_

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """``fit(X, y).transform(X, y)``: the scores of X, and those of y."""
        return self.fit(X, y).transform(X, y)

    def inverse_transform(self, X: Any, y: Any = None) -> Any:
        """Rows from scores, by the loadings: exact where there are as many components as columns.

        Args:
            X: scores of the first view, (n, n_components).
            y: scores of the second view, (n, n_components); None leaves it out.

        Returns:
            Rows of the first view, (n, p), and those of the second beside them where y is given.
        """
        check_is_fitted(self)
        scores = to_float_table(X, "X", self.n_components)
        left = scores @ self.x_loadings_.T * self._x_std + self._x_mean
        if y is None:
            return left
        right = to_float_table(y, "y", self.n_components) @ self.y_loadings_.T
        return left, right * self._y_std + self._y_mean

    def predict(self, X: Any, copy: bool = True) -> Array:
        """y of rows of X as scikit-learn predicts it, (n, q), or (n,) where the fit had a y of one dimension.

        The scores of X stand for those of y without their correlation, so predictions overshoot;
        :meth:`boxloop.RelevantFeatures.predict` is the least squares prediction.

        Args:
            X: (n, p).
            copy: accepted for compatibility; the input is never changed.
        """
        predicted: Array = (self._check_rows(X) - self._x_mean) @ self.coef_.T + self.intercept_
        return predicted.ravel() if self._predict_1d else predicted

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean coefficient of determination R² of :meth:`predict` over the columns of y.

        Args:
            X: (n, p).
            y: (n, q) or (n,).
            sample_weight: one non-negative weight per row.
        """
        check_is_fitted(self)
        outputs, weight = check_score_numbers(y, sample_weight)
        return float(super().score(X, outputs, weight))

    def _check_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        checked: Array = validate_rows(self, X, dtype=np.float64, reset=False)
        return checked

    @property
    def _n_features_out(self) -> int:
        return int(self.x_rotations_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        tags.target_tags.required = False
        return tags


def _deflate_view(view: Any, coefficients: Tensor, means: Tensor) -> tuple[Array, Array, Array]:
    r"""Weights, loadings and rotations of one view, (d, r) each.

    The deflated rows of component k are :math:`X_k = X (I - \sum_{j<k} b_j p_j^\top)`, whose kernel is spanned by the
    :math:`b_j`; NIPALS returns the solution of :math:`X_k w_k \propto u_k` that is orthogonal to it, of unit length.
    """
    b = to_numpy(coefficients)
    basis, triangle = np.linalg.qr(b)
    weights = basis * np.sign(np.diag(triangle))  # b_k less its projection on earlier ones, of unit length
    length = np.abs(np.diag(triangle))
    loadings = to_numpy(means / view.scale).T * length
    return weights, loadings, b / length
