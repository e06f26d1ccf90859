"""A classifier by the features that tell most about the label, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import nn

from boxloop.data import pair_sources
from boxloop.estimators._base import Array, check_no_overflow, to_numpy
from boxloop.estimators._input import check_score_labels
from boxloop.estimators._params import COMMON, pick_device, pick_dtype
from boxloop.estimators._training import COUNT, POSITIVE, RATE
from boxloop.estimators.relevant_classifier_probability import (
    fitted_temperature,
    onto_simplex,
    with_temperature,
)
from boxloop.estimators.relevant_classifier_rows import codes_of, labels_of
from boxloop.estimators.relevant_fit import Fitted, fit_views
from boxloop.estimators.relevant_rows import Edge
from boxloop.estimators.relevant_start import Wish, start_view
from boxloop.estimators.relevant_use import TwoViewEstimator, each, views_file
from boxloop.numeric import generator, spawn
from boxloop.persist import ModelFile, ModelFileError, load_model
from boxloop.twoview import RelevanceFit, ViewPair
from boxloop.types import Source


@dataclass(eq=False, repr=False, kw_only=True)
class RelevantClassifier(ClassifierMixin, TwoViewEstimator):
    r"""Classify by the features of a row that tell most about its label: inference by deep canonical correlations.

    .. math:: \max_f \sum_i \eta_i^2(f, 1_y), \qquad
        E[1_y \mid x] \approx \bar 1_y + \sum_{i \ge 1} \eta_i \, u_i(x) \; \overline{v_i \, 1_y}

    Document 003, section 5.2 (DCCI): the second view is the label, whose indicators are all the functions there are of
    it, so only features f of X are learned. The label of a row is the class of the largest expected indicator. The
    expectations are the least squares fit of the indicators to 1 and f(x), weighed by the rows of the fit. So with
    ``linear`` features this is least squares on indicators, and the variables u are those of linear discriminant
    analysis up to their size (Hastie, Tibshirani and Buja, 1994), though for more than two classes the decisions may
    differ; a network is trained such that this fit explains most, each class in units of its own variance.

    Args:
        n_features: features that a network learns; ``None`` is as many as classes. At most so many canonical variables
            are kept; beside the constant there are one fewer than classes.
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
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` passes.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch; ``None`` is ten for each class, and at least 256.
        max_iter: most passes over the rows.
        patience: passes without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of the rows held out, for networks, half of them to choose the best pass and half for
            the temperature; 0 keeps the last pass.
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
        temperature_: that of the calibration, None without.
        history_: as in :class:`RelevantFeatures`; so are ``ridge_``, ``n_iter_``, ``batch_size_``, ``converged_``,
            ``interrupted_`` and ``events_``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from boxloop.estimators.relevant_classifier import RelevantClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> fit = RelevantClassifier(features="fourier", n_fourier=20, random_state=0).fit(X, y)
        >>> fit.score(X, y) > 0.9, fit.transform(X).shape
        (True, (150, 2))
    """

    n_features: int | None = field(default=None, kw_only=False)
    features: Any = "network"
    calibration: str | None = None
    hidden: Any = None
    n_fourier: int = 300
    length_scale: float | None = None
    ridge: float | str | None = None
    constant: str = "enforced"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 100.0
    batch_size: int | None = None
    max_iter: int = 200
    patience: int | None = 20
    validation_fraction: float = 0.1
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str | None = None

    _model_file: ClassVar[ModelFile] = views_file("features", temperature_=float | None)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_features": [COUNT, None],
        "features": [StrOptions({"linear", "fourier", "network"}), nn.Module],
        "calibration": [StrOptions({"temperature"}), None],
        "hidden": ["array-like", None],
        "n_fourier": [COUNT],
        "length_scale": [POSITIVE, None],
        "constant": [StrOptions({"enforced", "learned"})],
        "schedule": [StrOptions({"constant", "cosine"})],
        "batch_size": [COUNT, None],
        "patience": [COUNT, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        "ridge": [RATE, StrOptions({"validation"}), None],
        "weight_decay": [RATE],
        "dtype": [*COMMON["dtype"], None],
        **{name: [POSITIVE] for name in ("learning_rate", "clip")},
        **{name: COMMON[name] for name in ("max_iter", "random_state", "verbose", "checkpoint", "device")},
    }

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the features that tell most about the label.

        Args:
            X: rows (n, d), or images (n, H, W) or (n, C, H, W): an array, frame, source, or a path of a CSV, Parquet
                or npy file or folder.
            y: labels, (n,): text, integers or booleans.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        device = pick_device(self.device)
        table, labels = self._validated(X, reset=True), labels_of(y)
        self.x_edge_, self.y_edge_ = Edge.of(table, "X", False), Edge.of(labels, "y", True)
        check_classification_targets(labels)
        first = self.x_edge_.open(table, device, sample_weight)
        second = self.y_edge_.open(labels, device)
        both = pair_sources(first, second)
        self.classes_ = np.unique(labels)
        several = self._several(both)
        (stream,) = spawn(generator(self.random_state), 1)
        wish = Wish(
            self.features,
            int(self.n_features or len(self.classes_)),
            self.hidden,
            self.n_fourier,
            self.length_scale,
            device,
            pick_dtype(self.dtype or "float32"),
        )
        pair = ViewPair(
            start_view(wish, self.x_edge_, first, stream),
            start_view(wish, self.y_edge_, second, stream),
        )
        most = min(several - 1, self._most(pair.left.n_features))
        fitted = fit_views(self, pair, both, None, most)
        self.temperature_, told = self._tempered(fitted)
        self._store(replace(fitted, events=(*fitted.events, *self._unseen(fitted), *told)), most)
        return self

    def _most(self, width: int) -> int:
        """Canonical variables that could be kept."""
        return min(len(self.classes_) - 1, self.n_features or width, width)

    def _several(self, both: Source) -> int:
        """How many classes have a weight; one alone is refused."""
        codes, weight = codes_of(both)
        heavy = np.bincount(codes, weight, len(self.classes_)) > 0.0
        if heavy.sum() < 2:
            of = "" if len(self.classes_) == 1 else " among the rows whose weight is not 0"
            raise ValueError(
                f"y has one class only, {self.classes_[heavy].tolist()}{of}: there is nothing to tell apart"
            )
        return int(heavy.sum())

    def _unseen(self, fitted: Fitted) -> tuple[str, ...]:
        """Classes without a row among those trained on."""
        lost = self.classes_[to_numpy(fitted.fit.right[0]) <= 0.0].tolist()
        if not lost:
            return ()
        return (
            f"no row of the classes {lost} is left to train on, so they are never predicted: give them rows, "
            "or lower validation_fraction",
        )

    def _tempered(self, fitted: Fitted) -> tuple[float | None, tuple[str, ...]]:
        """The temperature, from rows held out where features were learned."""
        if self.calibration is None:
            return None, ()
        width = len(self.x_edge_.names)
        learned = bool(fitted.fit.model.pair.trainable())
        rows = fitted.rows if fitted.held is None else fitted.held
        points = to_numpy(each(rows, lambda tile: fitted.fit.infer_right(tile[:, :width])))
        found = fitted_temperature(points, *codes_of(rows))
        if not learned or fitted.held is not None:
            return found, ()
        return found, (
            "the temperature is that of the rows which the features were learned from, so probabilities are too "
            "sharp: raise validation_fraction",
        )

    def _expected(self, X: Any) -> Array:
        source = self._x(X)
        found: Array = to_numpy(check_no_overflow(each(source, self.fit_.infer_right)))
        return found

    def transform(self, X: Any) -> Array:
        """The canonical variables u of rows, most relevant first, (n, k)."""
        source = self._x(X)
        found: Array = to_numpy(check_no_overflow(each(source, self.model_.left)))
        return found

    def decision_function(self, X: Any) -> Array:
        """Expected indicators of the classes, (n, C): they sum to 1, and may be negative or above 1.

        With two classes, that of the second less that of the first, (n,): positive where the second is predicted.
        """
        found = self._expected(X)
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows whose class is predicted, by their weights where they have any."""
        check_is_fitted(self)
        labels, weight = check_score_labels(y, sample_weight)
        return float(super().score(X, labels, weight))

    def predict(self, X: Any) -> Any:
        """The class of the largest expected indicator, (n,)."""
        places = self._expected(X).argmax(1)
        return self.classes_[places]

    def predict_proba(self, X: Any) -> Array:
        r"""Probabilities of the classes, (n, C), in the order of ``classes_``.

        Expected indicators are estimates of probabilities, by least squares, which need not lie between 0 and 1.
        Without ``calibration`` each row of them is projected onto the probabilities, the nearest in Euclidean distance:
        it is never farther from the true label than before, and the same class is the largest. A probability may then
        be exactly 0, where a log score is infinite, and features that explain little of a class give probabilities
        that are too timid. ``temperature`` gives :math:`p_c \propto \exp(z_c / T)` instead, where T makes the labels of
        rows held out most probable (of all rows where features are fixed).
        """
        found = self._expected(X)
        return (
            onto_simplex(found) if self.temperature_ is None else with_temperature(found, self.temperature_)
        )

    def _from_tree(self, tree: RelevanceFit) -> None:
        if self.y_edge_.values is None:
            raise ModelFileError("its second view has no classes")
        if self.temperature_ is not None and self.temperature_ <= 0.0:
            raise ModelFileError("the fitted attribute 'temperature_' must be positive, or null")
        self.classes_ = np.asarray(self.y_edge_.values)
        self._publish(tree, self._most(tree.model.pair.left.n_features))

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
