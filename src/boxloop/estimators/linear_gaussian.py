"""Linear-Gaussian models as estimators: the base of factor analysis and probabilistic principal components."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import _get_feature_names, check_is_fitted

from boxloop.data import (
    check_count,
    check_parameters,
    moment_source,
    summarise_moments,
    to_float_table,
    to_vector,
)
from boxloop.estimators._base import Array, LatentEstimator, to_numpy
from boxloop.estimators._input import COMMON, pick_device
from boxloop.fit import Fit, Plan, fit_linear
from boxloop.models import LinearGaussian
from boxloop.numeric import generator
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False, repr=False, kw_only=True)
class LinearEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, LatentEstimator):
    """Base of the linear-Gaussian estimators; a subclass defines its model."""

    n_components: int | None = field(default=None, kw_only=False)
    tol: float = 1e-7
    max_iter: int = 1000
    noise_floor: float = 1e-6
    random_state: Any = 0
    batch_size: int = 100

    _latent_name: ClassVar[str] = "component"
    _model: ClassVar[type[LinearGaussian]]
    # The best fit to few rows uses factors for single columns, which a stream does not undo.
    _first_iterations: ClassVar[int] = 3
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{name: rule for name, rule in COMMON.items() if name != "n_components"},
        "n_components": [*COMMON["n_components"], None],
        "noise_floor": COMMON["tol"],
    }

    def _count_latent(self, n_columns: int) -> int:
        return n_columns if self.n_components is None else int(self.n_components)

    def _check_factor_count(self, source: Source, start: Any) -> int:
        """The number of factors to fit, which rows and an earlier fit must allow."""
        k = self._count_latent(source.n_columns)
        if k > source.n_columns:
            raise ValueError(f"n_components={k} must not exceed the number of columns, {source.n_columns}")
        if start is not None and tuple(start.loadings.shape) != (source.n_columns, k):
            raise ValueError("warm_start needs a previous fit with the same columns and n_components")
        return k

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        k = self._check_factor_count(source, start)
        if self.n_components is not None:
            _check_row_count(k, source.n_rows)
        return fit_linear(
            source,
            k,
            self._model,
            kind=self._coordinate_kind,
            generator=generator(self.random_state),
            plan=plan,
            floor=self.noise_floor,
            start=start,
            exact=self._has_exact_solver(),
        )

    def _condense_rows(self, source: Source) -> Source:
        summary = summarise_moments(source)
        return source if summary is None else summary.rows()

    def _has_exact_solver(self) -> bool:
        return True

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Args:
            X: rows (n, d): an array, frame, source, or a path of a CSV, Parquet or npy file or folder. NaN marks a
                missing value.
            y: ignored.
            sample_weight: one non-negative weight per row; integers count as repetitions.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        previous = vars(self).get("model_") if self.warm_start else None
        return self._publish_fit(self._fit(source, self._make_plan(source), previous))

    @check_parameters
    def fit_covariance(self, covariance: Any, n_samples: int, mean: Any = None) -> Self:
        """Fit to a covariance matrix and a count instead of rows.

        Args:
            covariance: (d, d), with divisor n; a frame's column names are kept.
            n_samples: number of rows that it summarises.
            mean: (d,); zero when omitted.

        Returns:
            The estimator itself: the same fit as to any rows with these moments.
        """
        names = _get_feature_names(covariance)
        matrix = to_float_table(covariance, "covariance")
        if matrix.shape[0] != matrix.shape[1] or not matrix.size:
            raise ValueError(f"a covariance must be square, got shape {matrix.shape}")
        size = np.abs(matrix).max()
        if not np.isfinite(size) or not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-12 * size):
            raise ValueError("a covariance must be finite and symmetric")
        _check_row_count(self._count_latent(len(matrix)), check_count(n_samples, "n_samples"))
        centre = np.zeros(len(matrix)) if mean is None else to_vector(mean, "mean")
        if centre.shape != matrix.shape[:1] or not np.isfinite(centre).all():
            raise ValueError(f"mean must be {len(matrix)} finite numbers, got shape {centre.shape}")
        first, second = (torch.from_numpy(part).to(pick_device(self.device)) for part in (centre, matrix))
        source = moment_source(first, second, n_samples, None if names is None else tuple(map(str, names)))
        self.fit(source)
        self.training_digest_: str | None = None  # the rows of the covariance are unknown
        return self

    def _to_reported_model(self, model: Any) -> Any:
        return model.to_canonical_form()

    def _publish(self, model: Any) -> None:
        self.mean_: Array = to_numpy(model.mean)
        self.components_: Array = to_numpy(model.loadings.mT)
        self.noise_variance_: Any = to_numpy(model.noise)

    def transform(self, X: Any) -> Array:
        """Expected factors given each row, (n, k)."""
        return to_numpy(self._map_rows(X, lambda rows: self.model_.posterior(rows.double())[0]))

    def posterior(self, X: Any) -> tuple[Array, Array]:
        """Factor scores with their uncertainty: means (n, k) and covariances (n, k, k).

        The covariance is the same for all complete rows; missing values widen it.
        """
        mean = self._map_rows(X, lambda rows: self.model_.posterior(rows.double())[0])
        covariance = self._map_rows(X, lambda rows: self.model_.posterior(rows.double())[1])
        return to_numpy(mean), to_numpy(covariance)

    def inverse_transform(self, X: Any) -> Array:
        """Expected rows given factors, (n, d)."""
        check_is_fitted(self)
        factors = to_float_table(X, "X", len(self.components_))
        return np.asarray(factors @ self.components_ + self.mean_)

    def get_covariance(self) -> Array:
        """Covariance of a row under the model, (d, d)."""
        check_is_fitted(self)
        return to_numpy(self.model_.moments()[1].dense()[0])

    def get_precision(self) -> Array:
        """Inverse of the covariance, (d, d), by Woodbury's identity."""
        check_is_fitted(self)
        scaled = self.model_.loadings / self.model_.psi[:, None]
        inner = self.model_.loadings.mT @ scaled + torch.eye(
            scaled.shape[1], dtype=scaled.dtype, device=scaled.device
        )
        return to_numpy(torch.diag(1.0 / self.model_.psi) - scaled @ torch.linalg.solve(inner, scaled.mT))

    def plot(self, X: Any = None, ax: Axes | None = None, *, top: int = 30) -> Axes:
        """Correlation of every column with every factor; with the training rows, bars of two standard errors.

        Args:
            X: the rows the model was fitted to, for standard errors; without them there are no bars.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: how many columns, those that the factors explain most.

        Returns:
            The axes.

        Raises:
            ValueError: errors are asked for and the loadings are rotated.

        Example:
            >>> import numpy as np
            >>> from boxloop import FactorAnalysis
            >>> X = np.random.default_rng(0).normal(size=(200, 1)) + np.random.default_rng(1).normal(size=(200, 4))
            >>> FactorAnalysis(1).fit(X).plot(X).get_xlabel()
            'correlation with the factor (± 2 s.e.)'
        """
        check_is_fitted(self)
        from boxloop.figures import loadings

        deviation = np.sqrt(to_numpy(self.model_.moments()[1].diagonal()[0]))
        errors = None if X is None else self.standard_errors(X)["components"] / deviation
        across = f"correlation with the {self._latent_name}" + ("" if X is None else " (± 2 s.e.)")
        title = f"Which columns load on which {self._latent_name}"
        return loadings(
            self.components_ / deviation,
            self._column_names(),
            errors,
            ax,
            title=title,
            across=across,
            word=self._latent_name,
            most=top,
        )

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def _count_parameters(self) -> int:
        k = self.components_.shape[0]
        return super()._count_parameters() - k * (k - 1) // 2


def _check_row_count(k: int, n_rows: float) -> None:
    if n_rows < k:
        raise ValueError(f"n_components={k} must not exceed the number of samples: there are {n_rows:g} rows")
