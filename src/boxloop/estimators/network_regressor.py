"""Regression by networks whose weights have a posterior, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import to_labels, validate_rows
from boxloop.estimators.base import Array
from boxloop.estimators.network_base import BLOCK, NetworkEstimator
from boxloop.estimators.network_rows import Units, check_outputs, weighted_rows
from boxloop.estimators.network_state import network_file
from boxloop.estimators.scored import scored_numbers
from boxloop.persist import ModelFile
from boxloop.weights import Kind, RegressionPrediction


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkRegressor(RegressorMixin, MultiOutputMixin, NetworkEstimator):
    r"""Regression by a network with error bars: a posterior over its weights, from the path of its training.

    .. math:: p(y \mid x) = \frac1m \sum_i N\bigl(y; f(x; \theta_i), \sigma^2\bigr), \qquad
        \theta_i \sim \sum_k w_k \, N(\mu_k, c \, (F_k F_k^\top + \operatorname{diag} \psi_k))

    Document 004. Adam brings the network to a minimum of the mean squared error with the weight decay that the prior
    :math:`N(0, \alpha^{-1} I)` asks for, :math:`2 \alpha / (\beta N)`, where the noise :math:`1 / \beta` is at first
    what the network leaves of rows held out; SGD at a constant rate then wanders around it, and is followed. Where the
    noise found in the end is another, by a factor of 1.5 or more, training goes on with it, up to three times. The
    scale c of the covariance and the noise :math:`\sigma` are those of the best log score of the rows held out, with
    weak priors where these are few (:meth:`boxloop.weights.Predictor.tuned`). X and y are standardised inside.
    A weight of a row multiplies its loss, and N is the sum of the weights, so that the loss and the prior are those of
    repeated rows; mini-batches, and the rows held out, are drawn from rows as they are.

    Args:
        hidden: widths of the hidden layers.
        module: a ``torch.nn.Module`` to use instead, from standardised rows (n, d) to (n, q), which is copied; or a
            function that makes one, given a ``torch.Generator``, which several members need.
        activation: between layers: ``relu``, ``tanh``, ``silu`` or ``gelu``.
        method: how weights are followed: ``factor``, ``gradient``, ``swag``, ``swa`` (no spread: with several members
            an ensemble), ``full``, or a method with settings of its own.
        rank: of the covariance, of methods that have one.
        members: networks from different starts, trained side by side, each with a posterior of its own.
        n_draws: networks that a prediction averages, 2 at least, and as many as members.
        learning_rate: of Adam at first; it falls to zero in the second half.
        epochs: passes over the rows in training; ``None`` is about 2000 steps.
        collect: passes in which weights are observed, about 500 times; ``None`` is half as many.
        collect_rate: constant learning rate of SGD in them; ``None`` is the highest of 0.1, 0.05, ... at which the
            loss rises by less than a quarter.
        momentum: of SGD.
        batch_size: rows of a mini-batch; ``None`` is a twelfth of them, between 16 and 128.
        prior_precision: alpha, of every weight, for standardised X and y.
        validation_fraction: share of the rows held out, for noise and scale: 50 rows at least, or a quarter where that
            is less. 0 takes the noise from the training.
        random_state: seed or generator; global state is never used.
        verbose: show progress bars.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float64``, or ``float32``, which is no faster for small networks.

    Attributes:
        posterior_: a :class:`boxloop.weights.MultiPosterior`, in standard units.
        predictor_: a :class:`boxloop.weights.Predictor`, in standard units; its ``tuning`` tells what was tried.
        noise_: standard deviation of observations around the network, in units of y, (q,).
        scale_: c.
        weight_decay_: of the last phase.
        collect_rate_: of SGD.
        history_: ``loss``, the mean of each epoch.
        n_iter_: epochs, of all phases.
        interrupted_: whether Ctrl-C ended the training.
        weighted_: whether rows had weights.
        events_: what is worth knowing of the fit; each was a warning.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators.network_regressor import NetworkRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-2.0, 2.0, size=(300, 1))
        >>> y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=300)
        >>> fit = NetworkRegressor(activation="tanh", random_state=0).fit(X, y)
        >>> mean, deviation = fit.predict([[0.0], [0.8]], return_std=True)
        >>> bool(abs(mean - [0.0, 1.0]).max() < 0.15), bool((abs(deviation - 0.1) < 0.05).all())
        (True, True)
    """

    _model_file: ClassVar[ModelFile] = network_file(single_=bool)
    _kind: ClassVar[Kind] = "regression"

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train, follow the weights, and tune on rows held out.

        Args:
            X: rows, (n, d): an array or a frame.
            y: numbers, (n,) or (n, q).
            sample_weight: one non-negative weight a row, (n,), as its repetitions.

        Returns:
            The estimator itself.
        """
        _refuse_text(y)
        X, y = validate_rows(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y, weight = weighted_rows(X, y, sample_weight)
        self.single_ = np.ndim(y) == 1
        table = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        self.n_outputs_ = table.shape[1]
        names = ["y"] if self.single_ else [f"y{j}" for j in range(self.n_outputs_)]
        units = Units.of(table, names, weight)
        told = [
            f"no spread is found in {name}: it is learned in units of 1, by which deviations mean little; if it "
            "varies, rescale it"
            for name in units.still(names)
        ]
        return self._learn(np.ascontiguousarray(X), table, units.counted(), self.n_outputs_, told, weight)

    def _ignorance(self, y: Tensor) -> float:
        return 1.0

    @property
    def noise_(self) -> Array:
        """In units of y, (q,)."""
        assert self.y_units_ is not None
        return np.asarray(self.predictor_.noise).reshape(-1) * self.y_units_.scale.numpy()

    @property
    def scale_(self) -> float:
        """Of the covariance."""
        return float(self.predictor_.scale)

    def predict_distribution(self, X: Any) -> RegressionPrediction:
        """All that is known about new rows: mean, spread and noise apart, quantiles, intervals, log-densities.

        Args:
            X: rows, (n, d).

        Returns:
            A :class:`boxloop.weights.RegressionPrediction` in units of y.
        """
        return self._of(self._rows(X))

    def _of(self, rows: Tensor, start: int = 0) -> RegressionPrediction:
        """Of rows in standard units; the first of them is number ``start``."""
        found: RegressionPrediction = self.predictor_.predict(rows)
        check_outputs(found.outputs, start)
        assert self.y_units_ is not None
        assert found.noise is not None
        origin, scale = self.y_units_.origin.numpy(), self.y_units_.scale.numpy()
        outputs, noise = found.outputs * scale + origin, found.noise * scale
        if self.single_:
            outputs, noise = outputs[..., 0], noise[0]
        return replace(found, outputs=outputs, noise=np.asarray(noise))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the outputs' variance that is explained, by the weights of rows where they have any."""
        check_is_fitted(self)
        outputs, weight = scored_numbers(y, sample_weight)
        return float(super().score(X, outputs, weight))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean over networks, (n,) or (n, q).

        Args:
            X: rows, (n, d).
            return_std: also give the standard deviation of an observation, weights and noise together.
        """
        rows = self._rows(X)
        found = [self._of(rows[i : i + BLOCK], i) for i in range(0, len(rows), BLOCK)]
        mean = np.concatenate([one.mean for one in found])
        return (mean, np.concatenate([one.deviation for one in found])) if return_std else mean


def _refuse_text(y: Any) -> None:
    """Labels are not numbers, even those that look like some."""
    given = to_labels(y, "y")
    if y is not None and given.ndim == 0:
        raise TypeError(f"y must be a list of numbers, one a row; got a {type(y).__name__}")
    if given.dtype.kind in "mM":
        raise TypeError(f"y holds times ({given.dtype}): give them as numbers")
    if given.dtype.kind in "US" or any(isinstance(one, str) for one in given.flat if given.dtype == object):
        raise ValueError("y holds text, and NetworkRegressor learns numbers: NetworkClassifier takes labels")
