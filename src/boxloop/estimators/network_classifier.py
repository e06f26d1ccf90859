"""Classification by networks whose weights have a posterior, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from boxloop.data import to_labels, validate_rows
from boxloop.estimators.base import Array
from boxloop.estimators.network_base import BLOCK, NetworkEstimator
from boxloop.estimators.network_rows import check_outputs, weighted_rows
from boxloop.estimators.network_state import network_file
from boxloop.estimators.scored import scored_labels
from boxloop.persist import Labels, ModelFile
from boxloop.weights import ClassificationPrediction, Kind


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkClassifier(ClassifierMixin, NetworkEstimator):
    r"""Classification by a network that knows what it does not know: a posterior over its weights.

    .. math:: p(c \mid x) = \frac1m \sum_i \operatorname{softmax}\bigl(f(x; \theta_i) / T\bigr)_c, \qquad
        \theta_i \sim \sum_k w_k \, N(\mu_k, s \, (F_k F_k^\top + \operatorname{diag} \psi_k))

    Document 004. Adam brings the network to a minimum of the mean cross-entropy with the weight decay that the prior
    :math:`N(0, \alpha^{-1} I)` asks for, :math:`\alpha / N`; SGD at a constant rate then wanders around it, and is
    followed. The scale s of the covariance and the temperature T are those of the best log score of rows held out, of
    each class the same share, with weak priors where these are few (:meth:`boxloop.weights.Predictor.tuned`). X is
    standardised inside. Weights of rows are taken as by :class:`NetworkRegressor`.

    Args:
        hidden: widths of the hidden layers.
        module: a ``torch.nn.Module`` to use instead, from standardised rows (n, d) to logits (n, C), which is copied;
            or a function that makes one, given a ``torch.Generator``, which several members need.
        activation: between layers: ``relu``, ``tanh``, ``silu`` or ``gelu``.
        method: how weights are followed, as of :class:`NetworkRegressor`.
        rank: of the covariance, of methods that have one.
        members: networks from different starts, trained side by side.
        n_draws: networks that a prediction averages, 2 at least, and as many as members.
        learning_rate: of Adam at first; it falls to zero in the second half.
        epochs: passes over the rows in training; ``None`` is about 2000 steps.
        collect: passes in which weights are observed, about 500 times; ``None`` is half as many.
        collect_rate: constant learning rate of SGD in them; ``None`` is the highest of 0.1, 0.05, ... at which the
            loss rises by less than a quarter.
        momentum: of SGD.
        batch_size: rows of a mini-batch; ``None`` is a twelfth of them, between 16 and 128.
        prior_precision: alpha, of every weight, for standardised X.
        validation_fraction: share of the rows held out, for temperature and scale: 50 rows at least, or a quarter where
            that is less. 0 leaves both at 1.
        random_state: seed or generator; global state is never used.
        verbose: show progress bars.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float64``, or ``float32``, which is no faster for small networks.

    Attributes:
        classes_: the labels, in order.
        posterior_: a :class:`boxloop.weights.MultiPosterior`, in standard units.
        predictor_: a :class:`boxloop.weights.Predictor`; its ``tuning`` tells what was tried.
        temperature_: T.
        scale_: s.
        weight_decay_: of both phases.
        collect_rate_: of SGD.
        history_: ``loss``, the mean of each epoch.
        n_iter_: epochs, of both phases.
        interrupted_: whether Ctrl-C ended the training.
        weighted_: whether rows had weights.
        events_: what is worth knowing of the fit; each was a warning.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from boxloop.estimators.network_classifier import NetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> fit = NetworkClassifier(epochs=20, collect=20, random_state=0).fit(X, y)
        >>> fit.score(X, y) > 0.9, fit.predict_proba(X).shape
        (True, (150, 3))
        >>> found = fit.predict_distribution([[5.0, 3.0, 1.5, 0.2], [50.0, 3.0, 1.5, 9.0]])
        >>> found.probability.shape, bool((found.mutual_information >= 0.0).all())
        ((2, 3), True)
    """

    prior_precision: float = 3.0

    _model_file: ClassVar[ModelFile] = network_file(classes_=Labels)
    _kind: ClassVar[Kind] = "classification"

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train, follow the weights, and tune on rows held out.

        Args:
            X: rows, (n, d): an array or a frame.
            y: labels, (n,): text, integers or booleans.
            sample_weight: one non-negative weight a row, (n,), as its repetitions.

        Returns:
            The estimator itself.
        """
        X, y = validate_rows(self, X, to_labels(y, "y"), dtype=np.float64)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        X, labels, weight = weighted_rows(X, labels, sample_weight)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_.tolist()}: there is nothing to tell apart"
            )
        self.n_outputs_ = len(self.classes_)
        return self._learn(
            np.ascontiguousarray(X), codes.astype(np.int64), None, self.n_outputs_, weight=weight
        )

    def _ignorance(self, y: Tensor) -> float:
        return float(np.log(self.n_outputs_))

    @property
    def temperature_(self) -> float:
        """By which logits are divided."""
        return float(self.predictor_.temperature)

    @property
    def scale_(self) -> float:
        """Of the covariance."""
        return float(self.predictor_.scale)

    def predict_distribution(self, X: Any) -> ClassificationPrediction:
        """All that is known about new rows: probabilities, entropy, and how much of it networks disagree about.

        Args:
            X: rows, (n, d).

        Returns:
            A :class:`boxloop.weights.ClassificationPrediction`; its classes are places in ``classes_``.
        """
        return self._of(self._rows(X))

    def _of(self, rows: Tensor, start: int = 0) -> ClassificationPrediction:
        """Of rows in standard units; the first of them is number ``start``."""
        found: ClassificationPrediction = self.predictor_.predict(rows)
        check_outputs(found.outputs, start)
        return found

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, (n, C), in the order of ``classes_``: the mean over networks."""
        rows = self._rows(X)
        blocks = [self._of(rows[i : i + BLOCK], i) for i in range(0, len(rows), BLOCK)]
        return np.concatenate([one.probability for one in blocks])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows whose class is predicted, by their weights where they have any."""
        check_is_fitted(self)
        labels, weight = scored_labels(y, sample_weight)
        return float(super().score(X, labels, weight))

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of largest probability, (n,)."""
        chosen = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[chosen])
