"""What the mixture estimators share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from boxloop.data import make_frame
from boxloop.distributions import Family
from boxloop.estimators._base import Array, LatentEstimator, to_numpy
from boxloop.estimators._params import COMMON
from boxloop.fit import PARTITIONS, Fit, Plan, fit_mixture, lineup
from boxloop.models import Mixture
from boxloop.numeric import generator
from boxloop.types import Source


@dataclass(eq=False, repr=False, kw_only=True)
class MixtureEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, LatentEstimator):
    """Base of the mixture estimators; a subclass names its family."""

    n_components: int = field(default=1, kw_only=False)
    n_init: int = 1
    init_params: str = "auto"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON,
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init_params": [StrOptions({"auto", *PARTITIONS})],
    }

    @abstractmethod
    def _template(self, n_columns: int, device: torch.device) -> Family[Any]:
        """k members of the family, to fix shapes and floors."""

    def _lineup(self, source: Source) -> tuple[str, ...]:
        """The starts that race by default."""
        return lineup(self.n_components, source.n_columns)

    def _rivals(self, source: Source) -> tuple[Mixture[Any], ...]:
        """Models that race against them."""
        return ()

    def _given(
        self, template: Family[Any]
    ) -> tuple[Mixture[Any] | None, Callable[[Mixture[Any]], Mixture[Any]] | None]:
        """A start given by the user, or what puts the parts of one into the winner of the race; in data coordinates."""
        return None, None

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        if source.n_rows < self.n_components:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components}, "
                f"n_samples = {source.n_rows}"
            )
        device = next(iter(source.chunks(1)))[1].device
        template = self._template(source.n_columns, device)
        if start is not None and not _alike(start.family, template):
            raise ValueError(
                "warm_start needs a previous fit with the same columns and the same kind of components"
            )
        given, adjust = self._given(template) if start is None else (start, None)
        auto = self.init_params == "auto"
        starts = self._lineup(source) if auto else (self.init_params,)
        rivals = self._rivals(source) if auto and start is None and plan.resume is None else ()
        return fit_mixture(
            source,
            template,
            kind=self._kind,
            generator=generator(self.random_state),
            plan=plan,
            starts=starts * self.n_init,
            start=given,
            adjust=adjust,
            rivals=rivals,
        )

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture.

        Args:
            X: rows (n, d): an array, frame, sparse matrix, source, or a path of a CSV, Parquet or npy file or
                folder. NaN marks a missing value.
            y: ignored.
            sample_weight: one non-negative weight a row; whole numbers count as repetitions.

        Returns:
            The estimator itself.
        """
        return self._fit_table(X, sample_weight)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.int64]:
        """Fit, then the most probable component of each row."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Most probable component of each row, (n,)."""
        return np.asarray(self.predict_proba(X).argmax(1))

    def predict_proba(self, X: Any) -> Array:
        """Probability of each component given each row, (n, k)."""
        return to_numpy(self._each(X, lambda rows: self.model_.posterior(rows.double())))

    def transform(self, X: Any) -> Array:
        """The same as ``predict_proba``: rows as coordinates on the simplex of components."""
        return self.predict_proba(X)

    def _n_latent(self, n_columns: int) -> int:
        return int(self.n_components)

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_)

    def summary(self) -> Any:
        """One row a component: weight, then mean and standard deviation of every column, as a pandas frame."""
        check_is_fitted(self)
        mean = to_numpy(self.model_.family.mean)
        deviation = np.sqrt(to_numpy(self.model_.family.covariance().diagonal()))
        columns: dict[str, Any] = {"weight": to_numpy(self.model_.log_weight.exp())}
        for j, name in enumerate(self._names()):
            columns[f"{name} mean"], columns[f"{name} sd"] = mean[:, j], deviation[:, j]
        return make_frame(columns, [f"component {k}" for k in range(len(mean))])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "density_estimator"
        return tags


def _alike(one: Family[Any], other: Family[Any]) -> bool:
    return type(one) is type(other) and one.mean.shape == other.mean.shape
