"""Factor analysis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from boxloop.data import make_frame
from boxloop.estimators._base import Array, declare_latent_file
from boxloop.estimators.linear_gaussian import LinearEstimator
from boxloop.models import FactorModel
from boxloop.numeric import varimax
from boxloop.persist import ModelFile


@dataclass(eq=False, repr=False, kw_only=True)
class FactorAnalysis(LinearEstimator):
    r"""Factor analysis by maximum likelihood.

    .. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I), \quad \epsilon \sim N(0, \mathrm{diag}(\psi))

    Brownlie (2021), section 2.1. Complete rows are read once: their second moments are enough, and the cost of an
    iteration does not depend on the number of rows. Up to 128 columns an iteration is a Newton step on the profile
    likelihood of the noise; beyond, and with missing values, it is accelerated, parameter-expanded EM.

    Args:
        n_components: number of factors k; all columns when ``None``.
        tol: stop when the mean log-likelihood per row rises by less.
        max_iter: most EM iterations; passes over the rows for the other methods.
        rotation: ``None`` (canonical: :math:`F^\top \Psi^{-1} F` diagonal), ``varimax`` or ``quartimax``,
            of the loadings in standard units.
        noise_floor: smallest noise variance, relative to that of a column.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em``, ``online`` (mini-batches) or ``gradient``.
        accelerate: Newton's method or, where it does not apply, extrapolated EM (guarded SQUAREM); ``False`` is
            plain EM.
        batch_size: rows of a mini-batch.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of passes over the rows.

    Attributes:
        components_: loadings, (k, d).
        noise_variance_: (d,).
        mean_: (d,).
        communalities_: share of each column's variance that the factors explain, (d,).
        model_: the fitted :class:`boxloop.models.FactorModel`.
        loglike_: log-likelihood of all rows after each iteration.
        n_iter_: EM iterations.

    Example:
        >>> import numpy as np
        >>> from boxloop import FactorAnalysis
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 1)) @ np.ones((1, 4)) + 0.5 * rng.normal(size=(500, 4))
        >>> FactorAnalysis(1).fit(X).communalities_.round(1)
        array([0.8, 0.8, 0.8, 0.8])
    """

    rotation: str | None = None

    _latent_name = "factor"
    _model = FactorModel
    _model_file: ClassVar[ModelFile] = declare_latent_file(FactorModel)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearEstimator._parameter_constraints,
        "rotation": [StrOptions({"varimax", "quartimax"}), None],
    }

    def _to_reported_model(self, model: Any) -> Any:
        model = super()._to_reported_model(model)
        if self.rotation is None:
            return model
        deviation = model.moments()[1].diagonal()[0].sqrt()  # so that no column counts more for its units
        turn = varimax(model.loadings / deviation[:, None], power=1.0 if self.rotation == "varimax" else 0.0)
        return replace(model, loadings=model.loadings @ turn)

    def _publish(self, model: Any) -> None:
        super()._publish(model)
        explained = (self.components_**2).sum(0)
        self.communalities_: Array = explained / (explained + self.noise_variance_)
        self.loglike_: list[float] = [self.n_samples_seen_ * value for value in self.lower_bounds_]

    def summary(self) -> Any:
        """One row per column: loading on every factor, communality and noise variance, as a pandas frame."""
        check_is_fitted(self)
        columns: dict[str, Any] = {f"factor {k}": row for k, row in enumerate(self.components_)}
        columns |= {"communality": self.communalities_, "noise variance": self.noise_variance_}
        return make_frame(columns, self._column_names())

    def standard_errors(self, X: Any, sample_weight: Any = None) -> dict[str, Array]:
        """Standard errors in the canonical rotation; see the base class.

        Deviation: loadings in another rotation are refused, since the rotation itself is estimated.
        """
        if self.rotation is not None:
            raise ValueError("standard errors are those of the canonical rotation: set rotation=None")
        return dict(super().standard_errors(X, sample_weight))
