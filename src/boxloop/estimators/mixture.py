"""What the mixture estimators share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from boxloop.data import check_parameters, make_frame, shuffle_rows, standardise_rows
from boxloop.distributions import Family
from boxloop.estimators._base import Array, LatentEstimator, to_numpy
from boxloop.estimators._input import COMMON
from boxloop.fit import (
    STARTS,
    Fit,
    Plan,
    best_start,
    coordinates,
    from_standard,
    lineup,
    to_standard,
    unstandardise,
)
from boxloop.models import Mixture
from boxloop.numeric import ConditionError, generator
from boxloop.types import Source

ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical covariance (for instance "
    "caused by singleton or collapsed samples). Try to decrease the number of components, increase reg_covar, or scale "
    "the input data. Here reg_covar={floor:g}, and {error}."
)
"""In the words of scikit-learn; only components with a covariance, and so with a floor, end in it."""


@dataclass(eq=False, repr=False, kw_only=True)
class MixtureEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, LatentEstimator):
    """Base of the mixture estimators; a subclass names its family."""

    n_components: int = field(default=1, kw_only=False)
    n_init: int = 1
    init_params: str = "auto"

    _estimator_type: ClassVar[str | None] = "density_estimator"
    # Starts of init_params="auto", where they do not depend on the numbers of components and columns.
    _lineup: ClassVar[tuple[str, ...] | None] = None
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON,
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init_params": [StrOptions({"auto", *STARTS})],
    }

    @abstractmethod
    def _make_template(self, n_columns: int, device: torch.device) -> Family[Any]:
        """k members of the family, to fix shapes and floors."""

    def _starts(self, n_columns: int) -> list[str]:
        """Names of the starts that race."""
        auto = self._lineup or lineup(self.n_components, n_columns)
        return [*(auto if self.init_params == "auto" else (self.init_params,))] * self.n_init

    def _make_rivals(self, source: Source) -> Sequence[Mixture[Any]]:
        """Models that race against the starts of ``init_params="auto"``, in standard coordinates."""
        return ()

    def _read_user_start(
        self, template: Family[Any]
    ) -> tuple[Mixture[Any] | None, Callable[[Mixture[Any]], Mixture[Any]] | None]:
        """A start given by the user, or what puts the parts of one into the winner of the race; in data coordinates."""
        return None, None

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture.

        Args:
            X: rows (n, d): an array, frame, sparse matrix, source, or a path of a CSV, Parquet or npy file or
                folder. NaN marks a missing value.
            y: ignored.
            sample_weight: one non-negative weight per row; whole numbers count as repetitions.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        previous = vars(self).get("model_") if self.warm_start else None
        return self._publish_fit(self._fit(source, self._make_plan(source), previous))

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        """Standardise the rows, start from the best of several models, iterate, and map the result back."""
        kind, k = self._coordinate_kind, self.n_components
        if source.n_rows < k:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {k}, n_samples = {source.n_rows}"
            )
        races = start is None and plan.resume is None
        rivals = self._make_rivals(source) if races and self.init_params == "auto" else ()
        stream = generator(self.random_state)
        if plan.engine != "em":
            source = shuffle_rows(source, stream)
        frame = coordinates(source, kind)
        standard = source if kind == "none" else standardise_rows(source, frame, plan.dtype)
        template: Any = self._make_template(source.n_columns, frame.origin.device)
        adjust = None
        if start is None:
            start, adjust = self._read_user_start(template)
        elif not _has_same_shape(start.family, template):
            raise ValueError(
                "warm_start needs a previous fit with the same columns and the same kind of components"
            )
        try:
            interrupted = False
            if plan.resume is not None:
                model = plan.resume.state.model
            elif start is not None:
                model = to_standard(start, frame, kind)
            else:
                starts = self._starts(source.n_columns)
                model, interrupted = best_start(standard, template, starts, stream, rivals)
                if adjust is not None:
                    model = to_standard(adjust(from_standard(model, frame, kind)), frame, kind)
            outcome = plan.run(standard, model, stream, interrupted=interrupted)
            return unstandardise(outcome, source, standard, frame, kind)
        except ConditionError as error:
            raise ValueError(ILL_DEFINED.format(floor=template.floor, error=error)) from error

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.int64]:
        """Fit, then the most probable component of each row."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Most probable component of each row, (n,)."""
        return np.asarray(self.predict_proba(X).argmax(1))

    def predict_proba(self, X: Any) -> Array:
        """Probability of each component given each row, (n, k)."""
        return to_numpy(self._map_rows(X, lambda rows: self.model_.posterior(rows.double())))

    def transform(self, X: Any) -> Array:
        """The same as ``predict_proba``: rows as coordinates on the simplex of components."""
        return self.predict_proba(X)

    def _count_latent(self, n_columns: int) -> int:
        return int(self.n_components)

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_)

    def summary(self) -> Any:
        """One row per component: weight, then mean and standard deviation of every column, as a pandas frame."""
        check_is_fitted(self)
        mean = to_numpy(self.model_.family.mean)
        deviation = np.sqrt(to_numpy(self.model_.family.covariance().diagonal()))
        columns: dict[str, Any] = {"weight": to_numpy(self.model_.log_weight.exp())}
        for j, name in enumerate(self._column_names()):
            columns[f"{name} mean"], columns[f"{name} sd"] = mean[:, j], deviation[:, j]
        return make_frame(columns, [f"component {k}" for k in range(len(mean))])


def _has_same_shape(one: Family[Any], other: Family[Any]) -> bool:
    return type(one) is type(other) and one.mean.shape == other.mean.shape
