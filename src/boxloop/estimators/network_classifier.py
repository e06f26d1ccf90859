"""Classification by neural networks with a posterior over their weights, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from boxloop.data import check_parameters, to_labels, validate_rows
from boxloop.estimators._base import Array
from boxloop.estimators._input import check_score_labels
from boxloop.estimators._network import (
    BLOCK,
    NetworkEstimator,
    check_finite_outputs,
    declare_network_file,
    drop_zero_weights,
)
from boxloop.networks import ClassificationPrediction, Kind
from boxloop.persist import Labels, ModelFile


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkClassifier(ClassifierMixin, NetworkEstimator):
    r"""Classification by a neural network with a posterior over its weights.

    .. math:: p(c \mid x) = \frac1m \sum_i \operatorname{softmax}\bigl(f(x; \theta_i) / T\bigr)_c, \qquad
        \theta_i \sim \sum_k w_k \, N(\mu_k, s \, (F_k F_k^\top + \operatorname{diag} \psi_k))

    Brownlie (2021). Adam minimises the mean cross-entropy with the weight decay of the prior
    :math:`N(0, \alpha^{-1} I)`, :math:`\alpha / N`. SGD at a constant rate then moves around the minimum, and its
    weights are observed. The scale s of the covariance and the temperature T maximise the log score of held-out rows,
    the same share of each class, with weak priors that matter if these are few
    (:meth:`boxloop.networks.Predictor.tune`). X is standardised. Row weights are treated as by
    :class:`NetworkRegressor`.

    Args:
        hidden: widths of the hidden layers.
        module: a ``torch.nn.Module`` to use instead, from standardised rows (n, d) to logits (n, C), which is copied;
            or a function that returns one, given a ``torch.Generator``; several members need a function.
        activation: ``relu``, ``tanh``, ``silu`` or ``gelu``.
        method: of the posterior, as in :class:`NetworkRegressor`.
        rank: of the covariance, for methods that have one.
        members: number of networks with different initial weights, trained together.
        n_draws: number of networks in a prediction, at least 2 and at least ``members``.
        learning_rate: of Adam; constant in the first half, then falling to zero.
        epochs: of Adam; ``None`` is about 2000 steps.
        collect: epochs of SGD, in which weights are observed about 500 times; ``None`` is half as many.
        collect_rate: constant learning rate of SGD; ``None`` is the highest of 0.1, 0.05, ... at which the loss rises
            by less than a quarter.
        momentum: of SGD.
        batch_size: rows of a mini-batch; ``None`` is a twelfth of all rows, between 16 and 128.
        prior_precision: alpha, of every weight, for standardised X.
        validation_fraction: share of the rows held out, for temperature and scale: at least 50 rows, or a quarter if
            that is less. 0 leaves both at 1.
        random_state: seed or generator; global random state is not used.
        verbose: show progress bars.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float64``, or ``float32``, which is no faster for small networks.

    Attributes:
        classes_: the labels, in order.
        posterior_: a :class:`boxloop.networks.MultiPosterior`, in standard units.
        predictor_: a :class:`boxloop.networks.Predictor`; its ``tuning`` holds the scores.
        temperature_: T.
        scale_: s.
        weight_decay_: of Adam and SGD.
        collect_rate_: learning rate of SGD.
        history_: ``loss``, the mean of each epoch.
        n_iter_: number of epochs, of Adam and SGD.
        interrupted_: whether Ctrl-C ended the training.
        weighted_: whether the fit had row weights.
        events_: messages about the fit; each was also a warning.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from boxloop import NetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> fit = NetworkClassifier(epochs=20, collect=20, random_state=0).fit(X, y)
        >>> fit.score(X, y) > 0.9, fit.predict_proba(X).shape
        (True, (150, 3))
        >>> prediction = fit.predict_distribution([[5.0, 3.0, 1.5, 0.2], [50.0, 3.0, 1.5, 9.0]])
        >>> prediction.probability.shape, bool((prediction.mutual_information >= 0.0).all())
        ((2, 3), True)
    """

    prior_precision: float = 3.0

    _model_file: ClassVar[ModelFile] = declare_network_file(classes_=Labels)
    _task: ClassVar[Kind] = "classification"

    @check_parameters
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the networks, observe their weights, and tune on held-out rows.

        Args:
            X: rows, (n, d): an array or a frame.
            y: labels, (n,): text, integers or booleans.
            sample_weight: non-negative weights of the rows, (n,), as repetitions.

        Returns:
            The fitted estimator.
        """
        X, y = validate_rows(self, X, to_labels(y, "y"), dtype=np.float64)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        X, labels, weight = drop_zero_weights(X, labels, sample_weight)
        classes, codes = np.unique(labels, return_inverse=True)
        self.classes_: NDArray[Any] = classes
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes, got one class, {self.classes_.tolist()}")
        self.n_outputs_: int = len(self.classes_)
        return self._fit_rows(np.ascontiguousarray(X), codes.astype(np.int64), None, weight=weight)

    @property
    def temperature_(self) -> float:
        """The factor by which logits are divided."""
        return float(self.predictor_.temperature)

    def predict_distribution(self, X: Any) -> ClassificationPrediction:
        """The predictive distribution: probabilities, entropy, and mutual information with the weights.

        Args:
            X: rows, (n, d).

        Returns:
            A :class:`boxloop.networks.ClassificationPrediction`; its classes are indices of ``classes_``.
        """
        return self._predict_rows(self._standardise_rows(X))

    def _predict_rows(self, rows: Tensor, start: int = 0) -> ClassificationPrediction:
        """The distribution for rows in standard units; the first has number ``start``."""
        prediction: ClassificationPrediction = self.predictor_.predict(rows)
        check_finite_outputs(prediction.outputs, start)
        return prediction

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities, (n, C), in the order of ``classes_``: the mean over networks."""
        rows = self._standardise_rows(X)
        blocks = [self._predict_rows(rows[i : i + BLOCK], i) for i in range(0, len(rows), BLOCK)]
        return np.concatenate([one.probability for one in blocks])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy, weighted if ``sample_weight`` is given."""
        check_is_fitted(self)
        labels, weight = check_score_labels(y, sample_weight)
        return float(super().score(X, labels, weight))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class, (n,)."""
        chosen = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[chosen])
