"""Probabilistic principal components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from boxloop.data import make_frame
from boxloop.estimators._base import Array, declare_latent_file
from boxloop.estimators.linear_gaussian import LinearEstimator
from boxloop.fit import Coordinates
from boxloop.models import PrincipalModel
from boxloop.persist import ModelFile


@dataclass(eq=False, repr=False, kw_only=True)
class ProbabilisticPCA(LinearEstimator):
    r"""Probabilistic principal component analysis.

    .. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I), \quad \epsilon \sim N(0, \sigma^2 I)

    Tipping and Bishop (1999). Closed form for complete rows, EM with missing values.

    Args:
        n_components: number of components k; all columns when ``None``.
        solver: ``auto`` takes the closed form where there is one; ``em`` iterates.
        tol: stop when the mean log-likelihood per row rises by less.
        max_iter: most EM iterations; passes over the rows for the other methods.
        noise_floor: smallest noise variance, relative to the mean variance of a column.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em``, ``online`` (mini-batches) or ``gradient``.
        accelerate: extrapolate EM (guarded SQUAREM).
        batch_size: rows of a mini-batch.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of passes over the rows.

    Attributes:
        components_: scaled principal axes (loadings), (k, d); rows are orthogonal, longest first.
        noise_variance_: sigma^2.
        mean_: (d,).
        explained_variance_: variance along each axis, (k,).
        explained_variance_ratio_: its share of the whole variance.
        singular_values_: of the centred rows, (k,): roots of the variance along each axis times the weight of all rows.
        n_components_: k.
        model_: the fitted :class:`boxloop.models.PrincipalModel`.

    Example:
        >>> import numpy as np
        >>> from boxloop import ProbabilisticPCA
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 1)) @ np.ones((1, 4)) + 0.5 * rng.normal(size=(1000, 4))
        >>> round(ProbabilisticPCA(1).fit(X).noise_variance_, 2)
        0.25
    """

    solver: str = "auto"

    _model = PrincipalModel
    _model_file: ClassVar[ModelFile] = declare_latent_file(PrincipalModel)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearEstimator._parameter_constraints,
        "solver": [StrOptions({"auto", "em"})],
    }

    @property
    def _coordinate_kind(self) -> Coordinates:
        return "common"

    def _has_exact_solver(self) -> bool:
        return bool(self.solver == "auto")

    def _publish(self, model: Any) -> None:
        super()._publish(model)
        self.noise_variance_ = float(self.noise_variance_[0])
        explained = (self.components_**2).sum(1) + self.noise_variance_
        whole = (self.components_**2).sum() + len(self.mean_) * self.noise_variance_
        self.explained_variance_ = explained
        self.explained_variance_ratio_: Array = explained / whole
        self.singular_values_: Array = np.sqrt(self.n_samples_seen_) * np.sqrt(explained)
        self.n_components_: int = len(explained)

    def summary(self) -> Any:
        """One row per component: variance along it, share of the total, and its loading on every column."""
        check_is_fitted(self)
        columns: dict[str, Any] = {
            "variance": self.explained_variance_,
            "share": self.explained_variance_ratio_,
        }
        columns |= dict(zip(self._column_names(), self.components_.T, strict=True))
        return make_frame(columns, [f"component {k}" for k in range(len(self.components_))])
