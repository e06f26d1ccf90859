"""Regression by neural networks with a posterior over their weights, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import check_parameters, to_labels, validate_rows
from boxloop.estimators._base import Array
from boxloop.estimators._input import check_score_numbers
from boxloop.estimators._network import (
    BLOCK,
    ColumnScaling,
    NetworkEstimator,
    check_finite_outputs,
    declare_network_file,
    drop_zero_weights,
)
from boxloop.networks import Kind, RegressionPrediction
from boxloop.persist import ModelFile


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkRegressor(RegressorMixin, MultiOutputMixin, NetworkEstimator):
    r"""Regression by a neural network with error bars, from a posterior over its weights.

    .. math:: p(y \mid x) = \frac1m \sum_i N\bigl(y; f(x; \theta_i), \sigma^2\bigr), \qquad
        \theta_i \sim \sum_k w_k \, N(\mu_k, c \, (F_k F_k^\top + \operatorname{diag} \psi_k))

    Brownlie (2021). Adam minimises the mean squared error with the weight decay of the prior
    :math:`N(0, \alpha^{-1} I)`, :math:`2 \alpha / (\beta N)`, where the noise variance :math:`1 / \beta` is at first
    the residual variance on held-out rows. SGD at a constant rate then moves around the minimum, and its weights are
    observed. If the final noise variance differs by a factor of 1.5 or more, the training continues with it, up to
    three times. The scale c of the covariance and the noise :math:`\sigma` maximise the log score of the held-out rows,
    with weak priors that matter if these are few (:meth:`boxloop.networks.Predictor.tune`). X and y are standardised.
    The weight of a row multiplies its loss, and N is the sum of the weights, so that loss and prior are those of
    repeated rows; mini-batches and held-out rows are drawn from the rows without regard to weights.

    Args:
        hidden: widths of the hidden layers.
        module: a ``torch.nn.Module`` to use instead, from standardised rows (n, d) to (n, q), which is copied; or a
            function that returns one, given a ``torch.Generator``; several members need a function.
        activation: ``relu``, ``tanh``, ``silu`` or ``gelu``.
        method: of the posterior: ``factor``, ``gradient``, ``swag``, ``swa`` (zero variance; several members are an
            ensemble), ``full``, or a method of :mod:`boxloop.networks` with its own settings.
        rank: of the covariance, for methods that have one.
        members: number of networks with different initial weights, trained together, each with its own posterior.
        n_draws: number of networks in a prediction, at least 2 and at least ``members``.
        learning_rate: of Adam; constant in the first half, then falling to zero.
        epochs: of Adam; ``None`` is about 2000 steps.
        collect: epochs of SGD, in which weights are observed about 500 times; ``None`` is half as many.
        collect_rate: constant learning rate of SGD; ``None`` is the highest of 0.1, 0.05, ... at which the loss rises
            by less than a quarter.
        momentum: of SGD.
        batch_size: rows of a mini-batch; ``None`` is a twelfth of all rows, between 16 and 128.
        prior_precision: alpha, of every weight, for standardised X and y.
        validation_fraction: share of the rows held out, for noise and scale: at least 50 rows, or a quarter if that is
            less. 0 estimates the noise on the training rows.
        random_state: seed or generator; global random state is not used.
        verbose: show progress bars.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float64``, or ``float32``, which is no faster for small networks.

    Attributes:
        posterior_: a :class:`boxloop.networks.MultiPosterior`, in standard units.
        predictor_: a :class:`boxloop.networks.Predictor`, in standard units; its ``tuning`` holds the scores.
        noise_: standard deviation of observations around the output of a network, in units of y, (q,).
        scale_: c.
        weight_decay_: at the end of the training.
        collect_rate_: learning rate of SGD.
        history_: ``loss``, the mean of each epoch.
        n_iter_: number of epochs, of Adam and SGD.
        interrupted_: whether Ctrl-C ended the training.
        weighted_: whether the fit had row weights.
        events_: messages about the fit; each was also a warning.

    Example:
        >>> import numpy as np
        >>> from boxloop import NetworkRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-2.0, 2.0, size=(300, 1))
        >>> y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=300)
        >>> fit = NetworkRegressor(activation="tanh", random_state=0).fit(X, y)
        >>> mean, std = fit.predict([[0.0], [0.8]], return_std=True)
        >>> bool(abs(mean - [0.0, 1.0]).max() < 0.15), bool((abs(std - 0.1) < 0.05).all())
        (True, True)
    """

    _model_file: ClassVar[ModelFile] = declare_network_file(single_=bool)
    _task: ClassVar[Kind] = "regression"

    @check_parameters
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the networks, observe their weights, and tune on held-out rows.

        Args:
            X: rows, (n, d): an array or a frame.
            y: numbers, (n,) or (n, q).
            sample_weight: non-negative weights of the rows, (n,), as repetitions.

        Returns:
            The fitted estimator.
        """
        _check_numeric(y)
        X, y = validate_rows(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y, weight = drop_zero_weights(X, y, sample_weight)
        self.single_: bool = np.ndim(y) == 1
        table = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        self.n_outputs_: int = table.shape[1]
        names = ["y"] if self.single_ else [f"y{j}" for j in range(self.n_outputs_)]
        units = ColumnScaling.from_table(table, names, weight)
        events = [
            f"{name} does not vary, so its standard deviations mean little; if it should vary, rescale it"
            for name in units.constant_columns(names)
        ]
        return self._fit_rows(np.ascontiguousarray(X), table, units.with_finite_scale(), events, weight)

    @property
    def noise_(self) -> Array:
        """Standard deviation of observations around the output of a network, in units of y, (q,)."""
        assert self.y_units_ is not None
        return np.asarray(self.predictor_.noise).reshape(-1) * self.y_units_.scale.numpy()

    def predict_distribution(self, X: Any) -> RegressionPrediction:
        """The predictive distribution: mean, epistemic standard deviation, noise, quantiles and log-densities.

        Args:
            X: rows, (n, d).

        Returns:
            A :class:`boxloop.networks.RegressionPrediction` in units of y.
        """
        return self._predict_rows(self._standardise_rows(X))

    def _predict_rows(self, rows: Tensor, start: int = 0) -> RegressionPrediction:
        """The distribution for rows in standard units; the first has number ``start``."""
        prediction: RegressionPrediction = self.predictor_.predict(rows)
        check_finite_outputs(prediction.outputs, start)
        assert self.y_units_ is not None
        assert prediction.noise is not None
        origin, scale = self.y_units_.origin.numpy(), self.y_units_.scale.numpy()
        outputs, noise = prediction.outputs * scale + origin, prediction.noise * scale
        if self.single_:
            outputs, noise = outputs[..., 0], noise[0]
        return replace(prediction, outputs=outputs, noise=np.asarray(noise))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The coefficient of determination R², weighted if ``sample_weight`` is given."""
        check_is_fitted(self)
        outputs, weight = check_score_numbers(y, sample_weight)
        return float(super().score(X, outputs, weight))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean over networks, (n,) or (n, q).

        Args:
            X: rows, (n, d).
            return_std: also return the standard deviation of an observation, weights and noise together.
        """
        rows = self._standardise_rows(X)
        blocks = [self._predict_rows(rows[i : i + BLOCK], i) for i in range(0, len(rows), BLOCK)]
        mean = np.concatenate([one.mean for one in blocks])
        return (mean, np.concatenate([one.std for one in blocks])) if return_std else mean


def _check_numeric(y: Any) -> None:
    """Refuse text, even if it looks like numbers, and times."""
    values = to_labels(y, "y")
    if y is not None and values.ndim == 0:
        raise TypeError(f"y must be a list with one number per row, got a {type(y).__name__}")
    if values.dtype.kind in "mM":
        raise TypeError(f"y must hold numbers, got times ({values.dtype})")
    if values.dtype.kind in "US" or any(
        isinstance(one, str) for one in values.flat if values.dtype == object
    ):
        raise ValueError("y must hold numbers, got text; NetworkClassifier takes labels")
