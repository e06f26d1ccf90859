"""A classifier by the features that predict the label best, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from boxloop.data import ConcatenatedRows, check_parameters, pair_sources
from boxloop.estimators._base import Array, to_numpy
from boxloop.estimators._input import check_score_labels, pick_device
from boxloop.estimators._training import COUNT
from boxloop.estimators._two_views import (
    TwoViewEstimator,
    ViewSchema,
    apply_to_rows,
    fit_views,
    make_model_file,
    start_view,
)
from boxloop.numeric import generator, spawn
from boxloop.persist import ModelFile, ModelFileError, load_model
from boxloop.twoview import RelevanceFit, ViewPair
from boxloop.types import Source

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 10.0
"""Range of the temperature."""


@dataclass(eq=False, repr=False, kw_only=True)
class RelevantClassifier(ClassifierMixin, TwoViewEstimator):
    r"""Classify by the features of a row that predict its label best: inference by deep canonical correlations.

    .. math:: \max_f \sum_i \eta_i^2(f, 1_y), \qquad
        E[1_y \mid x] \approx \bar 1_y + \sum_{i \ge 1} \eta_i \, u_i(x) \; \overline{v_i \, 1_y}

    Learning relevant features for statistical inference, section 5.2 (DCCI): the second view is the label, whose
    indicators span all functions of it, so only features f of X are learned. The predicted label is the class of the
    largest expected indicator. The expectations are the least squares fit of the indicators to 1 and f(x), weighted by
    the rows of the fit. So with
    ``linear`` features this is least squares on indicators, and the variables u are those of linear discriminant
    analysis up to their size (Hastie, Tibshirani and Buja, 1994), though for more than two classes the decisions may
    differ; a network is trained such that this fit explains most, each class in units of its own variance.

    Args:
        n_features: features that a network learns; ``None`` is the number of classes. At most so many canonical
            variables are kept; beside the constant there are one fewer than classes.
        features: of X: ``network``, learned, with convolutions for images (n, H, W) or (n, C, H, W); ``linear``, its
            columns; ``fourier``, random features of a Gaussian kernel; a ``torch.nn.Module`` from flattened,
            standardised rows (n, d) to (n, k), whose last layer should be bounded.
        calibration: how expected indicators become probabilities: ``None`` projects them, ``temperature`` sharpens
            them: see :meth:`predict_proba`.
        hidden: widths of the default network's layers, or channels of its convolutions; ``None`` is (128, 128), and
            (32, 64) for images.
        n_fourier: random features of a kernel.
        length_scale: of a kernel, in standard deviations; ``None`` takes the median distance of rows.
        ridge: added to the variances of features, relative to them (in training, in the units of squared features):
            shrinks probabilities. ``None`` is 0, but for ``fourier`` features, where it is chosen by cross-validation.
        constant: in training, ``enforced`` or ``learned``: see :func:`boxloop.twoview.relevance_loss`.
        learning_rate: of AdamW, for networks.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` epochs.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch; ``None`` is 30 per feature, and at least 256.
        max_iter: largest number of epochs.
        patience: epochs without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of held-out rows, for networks, half of them to choose the best epoch and half for
            the temperature; 0 keeps the last epoch.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float32`` or ``float64``, as in :class:`RelevantFeatures`.

    Attributes:
        classes_: the labels, in order.
        model_: the fitted :class:`boxloop.twoview.RelevanceModel`.
        correlation_: canonical correlations on the rows of the fit, largest first.
        relevance_: their squares.
        loss_: number of variables that could be kept less the total relevance, on all rows of the fit.
        temperature_: of the calibration; None without.
        history_: as in :class:`RelevantFeatures`; so are ``ridge_``, ``n_iter_``, ``batch_size_``, ``converged_``,
            ``interrupted_``, ``events_`` and ``held_out_``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from boxloop import RelevantClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> fit = RelevantClassifier(features="fourier", n_fourier=20, random_state=0).fit(X, y)
        >>> fit.score(X, y) > 0.9, fit.transform(X).shape
        (True, (150, 2))
    """

    n_features: int | None = field(default=None, kw_only=False)
    features: Any = "network"
    calibration: str | None = None
    validation_fraction: float = 0.1

    _model_file: ClassVar[ModelFile] = make_model_file("features", temperature_=float | None)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TwoViewEstimator._parameter_constraints,
        "n_features": [COUNT, None],
        "features": [StrOptions({"linear", "fourier", "network"}), nn.Module],
        "calibration": [StrOptions({"temperature"}), None],
    }

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the features that predict the label best.

        Args:
            X: rows (n, d), or images (n, H, W) or (n, C, H, W): an array, frame, source, or a path of a CSV, Parquet
                or npy file or folder.
            y: labels, (n,): text, integers or booleans.
            sample_weight: one non-negative weight per row.

        Returns:
            The estimator itself.
        """
        device = pick_device(self.device)
        table = self._validate_first_view(X, reset=True)
        if y is None:
            raise ValueError("a classifier requires y to be passed, but the target y is None")
        labels: Any = column_or_1d(y.numpy(force=True) if isinstance(y, Tensor) else y, warn=True)
        assert_all_finite(labels, input_name="y")
        left, first = ViewSchema.read(table, "X", self.features, device, sample_weight)
        right, second = ViewSchema.read(labels, "y", "finite", device)
        self.x_schema_: ViewSchema = left
        self.y_schema_: ViewSchema = right
        check_classification_targets(labels)
        both = pair_sources(first, second)
        self.classes_: NDArray[Any] = np.unique(labels)
        codes, weight = read_class_numbers(both)
        present = np.bincount(codes, weight, len(self.classes_)) > 0.0
        if present.sum() < 2:
            where = "" if len(self.classes_) == 1 else " among the rows whose weight is not 0"
            raise ValueError(
                f"y has one class only, {self.classes_[present].tolist()}{where}: give rows of a second class"
            )
        (stream,) = spawn(generator(self.random_state), 1)
        width = int(self.n_features or len(self.classes_))
        pair = ViewPair(
            start_view(self, self.features, width, self.x_schema_, first, stream),
            start_view(self, "finite", width, self.y_schema_, second, stream),
        )
        most = min(int(present.sum()) - 1, self._max_variables(pair.left.n_features))
        fitted = fit_views(self, pair, both, None, most)
        concerns = list(fitted.concerns)
        absent = self.classes_[to_numpy(fitted.fit.right[0]) <= 0.0].tolist()
        if absent:
            concerns.append(
                f"the training rows hold none of the classes {absent}, so they are never predicted: give rows of them, "
                "or lower validation_fraction"
            )
        self.temperature_: float | None = None
        if self.calibration is not None:
            rows = fitted.rows if fitted.held_out is None else fitted.held_out
            columns = len(self.x_schema_.names)
            points = apply_to_rows(rows, lambda tile: fitted.fit.infer_right(tile[:, :columns]))
            self.temperature_ = fit_temperature(to_numpy(points), *read_class_numbers(rows))
            if pair.trainable() and fitted.held_out is None:
                concerns.append(
                    "the temperature was fitted to the rows from which the features were learned, so probabilities are "
                    "overconfident: raise validation_fraction"
                )
        self._store_fit(replace(fitted, concerns=tuple(concerns)), most)
        return self

    def _max_variables(self, width: int) -> int:
        """Largest number of canonical variables."""
        return min(len(self.classes_) - 1, self.n_features or width, width)

    def _expect_indicators(self, X: Any) -> Array:
        return self._map_first_view(X, lambda rows: self.fit_.infer_right(rows))

    def transform(self, X: Any) -> Array:
        """The canonical variables u of rows, most relevant first, (n, k)."""
        return self._map_first_view(X, lambda rows: self.model_.left(rows))

    def decision_function(self, X: Any) -> Array:
        """Expected indicators of the classes, (n, C): they sum to 1, and may be negative or above 1.

        With two classes, that of the second less that of the first, (n,): positive where the second is predicted.
        """
        expected = self._expect_indicators(X)
        return expected[:, 1] - expected[:, 0] if expected.shape[1] == 2 else expected

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: share of rows whose class is predicted correctly, by their weights where they have any."""
        check_is_fitted(self)
        labels, weight = check_score_labels(y, sample_weight)
        return float(super().score(X, labels, weight))

    def predict(self, X: Any) -> Any:
        """The class of the largest expected indicator, (n,)."""
        largest = self._expect_indicators(X).argmax(1)
        return self.classes_[largest]

    def predict_proba(self, X: Any) -> Array:
        r"""Probabilities of the classes, (n, C), in the order of ``classes_``.

        Expected indicators are estimates of probabilities, by least squares, which need not lie between 0 and 1.
        Without ``calibration`` each row of them is projected onto the probabilities, the nearest in Euclidean distance:
        it is never farther from the true label than before, and the same class is the largest. A probability may then
        be exactly 0, where a log score is infinite, and features that explain little of a class give underconfident
        probabilities. ``temperature`` gives :math:`p_c \propto \exp(z_c / T)` instead, with the T of largest likelihood
        on held-out rows (on all rows where features are fixed).
        """
        expected = self._expect_indicators(X)
        if self.temperature_ is None:
            return project_to_simplex(expected)
        return apply_temperature(expected, self.temperature_)

    def _from_tree(self, tree: RelevanceFit) -> None:
        if self.y_schema_.values is None:
            raise ModelFileError("its second view has no classes")
        if self.temperature_ is not None and self.temperature_ <= 0.0:
            raise ModelFileError("the fitted attribute 'temperature_' must be positive, or null")
        self.classes_ = np.asarray(self.y_schema_.values)
        self._store_model(tree, self._max_variables(tree.model.pair.left.n_features))

    @classmethod
    def load(cls, path: str | PathLike[str], *, features: nn.Module | None = None) -> Self:
        """Read what :meth:`save` wrote, onto the CPU. Nothing in the file can run.

        Args:
            path: the file.
            features: the module whose tensors were saved, where one was given to the fit; its own are replaced.
        """
        return load_model(path, cls, {"features": features})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


def read_class_numbers(both: Source) -> tuple[Any, Array]:
    """The class number of each row, and its weight."""
    columns = both.reduce(
        lambda rows, weight: ConcatenatedRows.of(torch.stack([rows[:, -1].double(), weight.double()], 1))
    )
    codes, weight = columns.concatenate().unbind(1)
    return to_numpy(codes).astype(np.int64), to_numpy(weight)


def project_to_simplex(points: Array) -> Array:
    r"""The probabilities nearest to points, row by row.

    .. math:: p = \arg\min_{q \ge 0, \, \sum q = 1} \|q - z\|^2 = (z - \tau)_+, \qquad
        \tau = \max_r \tfrac1r \Bigl( \sum_{j \le r} z_{(j)} - 1 \Bigr)

    Held, Wolfe and Crowder (1974), with :math:`z_{(1)} \ge z_{(2)} \ge \dots`. As the simplex is convex and holds every
    indicator, a projection is never farther from a row's own indicator than the point was: the Brier score cannot rise.

    Args:
        points: z, (n, C).

    Returns:
        (n, C); the order of the columns of a row is kept.

    Example:
        >>> import numpy as np
        >>> project_to_simplex(np.array([[0.5, 0.5], [1.25, -0.25], [0.75, -0.25]])).tolist()
        [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]
    """
    falling = -np.sort(-points, axis=1)
    level = (falling.cumsum(1) - 1.0) / np.arange(1, points.shape[1] + 1)
    return np.maximum(points - level.max(1, keepdims=True), 0.0)


def apply_temperature(points: Array, temperature: float) -> Array:
    r"""Probabilities :math:`p_c \propto \exp(z_c / T)`, all positive.

    Example:
        >>> import numpy as np
        >>> apply_temperature(np.array([[1.0, 0.0]]), 1.0 / np.log(3.0)).round(6).tolist()
        [[0.75, 0.25]]
    """
    probabilities: Array = softmax(points / temperature, axis=1)
    return probabilities


def fit_temperature(points: Array, codes: NDArray[np.int64], weight: Array) -> float:
    r"""The temperature of largest likelihood.

    .. math:: \max_T \; \overline{\sum_c t_c \log p_c}, \qquad t = (1 - \epsilon) \, 1_y + \epsilon \, \bar 1_y, \;
        \epsilon = 1 / (2 + \textstyle\sum w)

    Guo et al. (2017). A few rows may all be classified correctly, which would drive T to 0; so the indicators are
    shrunk towards the share of each class, as in Platt (1999).

    Args:
        points: z, expected indicators, (n, C).
        codes: number of each row's class, (n,).
        weight: (n,), not negative.
    """
    truth = np.zeros_like(points)
    truth[np.arange(len(codes)), codes] = 1.0
    share = weight @ truth / weight.sum()
    shrinkage = 1.0 / (2.0 + weight.sum())
    target = ((1.0 - shrinkage) * truth + shrinkage * share) * (weight / weight.sum())[:, None]

    def cross_entropy(log_temperature: float) -> float:
        return -float((target * log_softmax(points * np.exp(-log_temperature), axis=1)).sum())

    ends = (float(np.log(LEAST_TEMPERATURE)), float(np.log(MOST_TEMPERATURE)))
    return float(
        np.exp(minimize_scalar(cross_entropy, bounds=ends, method="bounded", options={"xatol": 1e-6}).x)
    )
