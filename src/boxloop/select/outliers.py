"""Outliers by low density, with p-values that hold for any model and reasons that name columns."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, OutlierMixin
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import (
    AnySource,
    ArraySource,
    ConcatenatedRows,
    IndexSelection,
    check_count,
    check_nested_parameters,
    make_frame,
)
from boxloop.numeric import SingleThreaded, seed
from boxloop.persist import ANY, Array as ArrayOf, Constraints, MetaSaveMixin, ModelFile, Saved
from boxloop.select.rows import configure_estimator, count_rows, open_table, take_rows
from boxloop.select.scores import Array, SelectionWarning, conditional_log_densities, log_densities
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CALIBRATION = 1 << 17
"""Most calibration rows: more would only make p-values finer than 1 in 100,000."""

REFERENCE_ROWS = 256
"""Rows that give the median conditional log-density of each column."""

ROUNDING = 1e-9
"""Relative difference within which two log-densities of a row, from other tiles or processors, are ties."""


def _is_calibrated(detector: Any) -> bool:
    if detector.contamination != "auto":
        raise AttributeError("p-values need calibration rows: set contamination='auto'")
    return True


@dataclass(frozen=True)
class DetectorState(Tree):
    """What the file of a detector holds beside the estimator inside."""

    offset: Tensor  # threshold of the log-density, which may be -inf, ()
    calibration_scores: Tensor | None  # increasing, (n,); None of a detector by share
    reference: Tensor  # rows that give the medians of ``reasons``, which may miss values, (m, d)
    named: bool  # whether the estimator inside knows the names of the columns


def _check_state(state: DetectorState, axes: dict[str, Any]) -> str | None:
    scores = state.calibration_scores
    if bool(state.offset.isnan()):
        return "its offset is not a number"
    if scores is not None and (bool(scores.isnan().any()) or bool((scores.diff() < 0.0).any())):
        return "its calibration scores do not increase"
    return None


def _check_calibration_scores(detector: Any, saved: Saved) -> str | None:
    state: Any = saved.tree
    if (detector.contamination == "auto") is (state.calibration_scores is not None):
        return None
    return f"calibration scores do not belong to contamination={detector.contamination!r}"


@dataclass(eq=False, repr=False)
class OutlierDetector(MetaSaveMixin, SingleThreaded, OutlierMixin, MetaEstimatorMixin, BaseEstimator):
    r"""Flag rows of low density under any density estimator, with conformal p-values.

    .. math:: p(x) = \frac{1 + \#\{i : s(x_i) \le s(x)\}}{n + 1}, \qquad s = \log \hat p

    With ``contamination="auto"`` the estimator is fitted to one part of the rows and the :math:`n` others calibrate it:
    a new row from the distribution of the calibration rows has :math:`P(p(x) \le t) \le t` for every t, whatever the
    estimator and however wrong (split conformal: Vovk, Gammerman and Shafer 2005; Bates, Candès, Lei, Romano and
    Sesia 2023). Rows with ``p <= level`` are flagged. The guarantee is for rows not seen in ``fit``.

    With a number for ``contamination`` that share of the training rows is flagged, as in Beaulac (2023), section 8.2.

    Args:
        estimator: one with ``fit`` and ``score_samples``, which gives log-densities. A ``random_state`` of None inside
            it is replaced by a seed.
        contamination: ``auto``, or the share of outliers among the training rows, at most a half.
        level: false-alarm rate among ordinary rows, for ``auto``.
        calibration: share of the rows that calibrate, for ``auto``; at most 131,072 rows.
        random_state: seed of the split; global state is never used.

    Attributes:
        estimator_: the fitted estimator.
        offset_: rows with a lower log-density are flagged.
        calibration_scores_: log-densities of the calibration rows, increasing; for ``auto``.
        n_features_in_: number of columns.
        feature_names_in_: their names, where X has any.

    Example:
        >>> import numpy as np
        >>> from boxloop import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> detector = OutlierDetector(GaussianMixture(), level=0.01).fit(rng.normal(size=(1000, 3)))
        >>> rows = np.array([[0.0, 0.0, 0.0], [0.0, 6.0, 0.0]])
        >>> detector.predict(rows)
        array([ 1, -1])
        >>> detector.reasons(rows, top=1)["column 1"].tolist()[1]
        'x1'
    """

    estimator: Any
    _: KW_ONLY
    contamination: Any = "auto"
    level: float = 0.05
    calibration: float = 0.5
    random_state: Any = 0

    _fitted_attribute: ClassVar[str] = "estimator_"
    _model_file: ClassVar[ModelFile] = ModelFile(
        DetectorState,
        (),
        {
            DetectorState: Constraints(
                _check_state,
                offset=ArrayOf("", ANY, torch.float64),
                calibration_scores=ArrayOf("n", ANY, torch.float64),
                reference=ArrayOf("m d", ANY, torch.float64),
            )
        },
        {"n_features_in_": int},
        checks=(_check_calibration_scores,),
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [HasMethods(["fit", "score_samples"])],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0.0, 0.5, closed="right")],
        "level": [Interval(Real, 0.0, 1.0, closed="neither")],
        "calibration": [Interval(Real, 0.0, 1.0, closed="neither")],
        "random_state": ["random_state", np.random.Generator, torch.Generator],
    }

    @check_nested_parameters
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the estimator and find the threshold.

        Args:
            X: rows (n, d): an array, frame, or sparse matrix where the estimator takes one. NaN marks a missing
                value where the estimator takes them. A path, a source or a Dask collection, whose rows stay where
                they are, where it takes that.
            y: ignored.

        Returns:
            The estimator itself.
        """
        rows = self._open_rows(X, reset=True)
        number = seed(self.random_state) % 2**32
        rng = np.random.default_rng(number)
        n = count_rows(rows)
        estimator = configure_estimator(self.estimator, {}, number)
        if self.contamination == "auto":
            if n < 2:
                raise ValueError(f"X needs rows to fit and rows to calibrate, got n_samples={n}")
            size = min(max(round(self.calibration * n), 1), n - 1, MAX_CALIBRATION)
            calibration = rng.choice(n, size, replace=False)
            reference = calibration[:REFERENCE_ROWS]
            places = torch.from_numpy(np.sort(calibration))
            train, held_out = IndexSelection(places, complement=True), IndexSelection(places)
            self.estimator_: Any = estimator.fit(take_rows(rows, train), None)
            self.calibration_scores_: Array = np.sort(
                log_densities(self.estimator_, take_rows(rows, held_out))
            )
            self.offset_: float = self._find_threshold()
        else:
            self.estimator_ = estimator.fit(rows, None)
            self.__dict__.pop("calibration_scores_", None)
            scores = log_densities(self.estimator_, rows)
            self.offset_ = _lower_by_rounding(float(np.quantile(scores, self.contamination)))
            reference = rng.choice(n, min(n, REFERENCE_ROWS), replace=False)
        self._names = rows.names if isinstance(rows, AnySource) else None
        self._reference: Any = _load_rows(take_rows(rows, np.sort(reference)))
        self._medians: Array | None = None
        return self

    def _open_rows(self, X: Any, *, reset: bool) -> Any:
        return open_table(self, self.estimator, X, reset=reset, keep_frame=False)

    def _find_threshold(self) -> float:
        """The score below which, and only below which, ``p <= level``."""
        scores = self.calibration_scores_
        n = len(scores)
        rank = int(np.sum(np.arange(1.0, n + 2.0) / (n + 1.0) <= self.level))
        if rank == 0:
            warn_caller(
                f"{n} calibration rows give no p-value below {1.0 / (n + 1):.3g}: at level={self.level:g} no row can "
                "be flagged; give more rows or raise level",
                SelectionWarning,
            )
            return float("-inf")
        return _lower_by_rounding(float(scores[rank - 1]))

    def score_samples(self, X: Any) -> Array:
        """Log-density of each row, (n,); low for outliers."""
        check_is_fitted(self)
        return log_densities(self.estimator_, self._open_rows(X, reset=False))

    def decision_function(self, X: Any) -> Array:
        """Log-density minus the threshold, (n,); negative for outliers."""
        scores = self.score_samples(X)
        if np.isneginf(self.offset_):  # no row is flagged, not even one of density zero
            return np.full(len(scores), np.inf)
        return np.asarray(scores - self.offset_)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """-1 for outliers and 1 for other rows, (n,)."""
        return np.where(self.decision_function(X) < 0.0, -1, 1)

    @available_if(_is_calibrated)
    def p_values(self, X: Any) -> Array:
        """Conformal p-value of each row, (n,): small where few calibration rows have a density as low.

        For rows from the distribution of the calibration rows, the chance of one at most t is at most t, for every t.
        """
        scores = self.score_samples(X)  # first, since it says when there is no fit
        return conformal_p_values(self.calibration_scores_, scores)

    def reasons(self, X: Any, top: int = 3) -> Any:
        r"""Which columns make each row unusual.

        .. math:: d_j(x) = m_j - \log p(x_j \mid x_{-j}), \qquad
            \log p(x_j \mid x_{-j}) = \log p(x) - \log p(x_{-j})

        The density without a column comes from the estimator itself, with the value taken as missing.

        Deviation: the conditional density by itself would rank columns by their units; :math:`m_j` is its median over
        rows of the fit, so the drop is about 0 for an ordinary value in any units.

        Args:
            X: rows (n, d).
            top: how many columns to name.

        Returns:
            A pandas frame: ``column 1``, ``drop 1``, ``column 2``, ... by falling drop in log-density. A value that
            is missing has no drop: its name and drop are missing too.

        Raises:
            TypeError: the estimator takes no missing values.
            ValueError: ``top`` is not at least 1.
        """
        check_is_fitted(self)
        if not get_tags(self.estimator_).input_tags.allow_nan:
            raise TypeError(
                f"reasons need an estimator that takes missing values (NaN); {type(self.estimator).__name__} does not"
            )
        check_count(top, "top")
        index = getattr(X, "index", None)
        drop = self._measure_density_drops(_load_rows(self._open_rows(X, reset=False)))
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(drop.shape[1])])
        order = np.argsort(-drop, axis=1, kind="stable")[:, :top]
        columns: dict[str, Any] = {}
        for rank in range(order.shape[1]):
            place = order[:, rank]
            size = drop[np.arange(len(drop)), place]
            columns[f"column {rank + 1}"] = [
                None if np.isnan(s) else str(names[j]) for s, j in zip(size, place)
            ]
            columns[f"drop {rank + 1}"] = size
        return make_frame(columns, None if callable(index) else index)

    def plot(self, X: Any, ax: Axes | None = None) -> Axes:
        """Log-density of every row with the threshold below which it is flagged.

        Args:
            X: rows (n, d).
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes; the lowest rows carry their number.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(500, 2))
            >>> OutlierDetector(GaussianMixture()).fit(X).plot(X).get_ylabel()
            'log-density'
        """
        from boxloop.figures import outlier_scores

        scores = self.score_samples(X)
        return outlier_scores(scores, self.offset_, ax, title="Rows by density", up="log-density")

    def _compute_log_densities(self, rows: Array) -> Array:
        """Log-densities of rows in memory, with the column names of the fit."""
        named = rows if self._names is None else ArraySource(torch.from_numpy(rows), None, self._names)
        return log_densities(self.estimator_, named)

    def _to_tree(self) -> DetectorState:
        scores = vars(self).get("calibration_scores_")
        return DetectorState(
            torch.tensor(self.offset_, dtype=torch.float64),
            None if scores is None else torch.from_numpy(scores),
            torch.from_numpy(_to_dense(self._reference)),
            self._names is not None and hasattr(self, "feature_names_in_"),
        )

    def _from_tree(self, tree: DetectorState) -> None:
        self.offset_ = float(tree.offset)
        if tree.calibration_scores is not None:
            self.calibration_scores_ = tree.calibration_scores.numpy()
        self._names = tuple(map(str, self.feature_names_in_)) if tree.named else None
        self._reference, self._medians = tree.reference.numpy(), None

    def _measure_density_drops(self, rows: Any) -> Array:
        """Drop in log-density that each value accounts for, (n, d); NaN where it is missing."""
        if self._medians is None:
            columns = conditional_log_densities(self._compute_log_densities, _to_dense(self._reference)).T
            present = [column[~np.isnan(column)] for column in columns]
            self._medians = np.array([np.median(column) if len(column) else 0.0 for column in present])
        return np.asarray(
            self._medians - conditional_log_densities(self._compute_log_densities, _to_dense(rows))
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def _load_rows(rows: Any) -> Any:
    """The rows; those of a source are read into memory."""
    if not isinstance(rows, AnySource):
        return rows
    return rows.reduce(lambda tile, weight: ConcatenatedRows.of(tile)).concatenate().cpu().numpy()


def _to_dense(rows: Any) -> Array:
    return np.asarray(rows.toarray() if not isinstance(rows, np.ndarray) else rows, dtype=np.float64)


def conformal_p_values(calibration: Array, scores: Array) -> Array:
    r"""P-values by increasing calibration scores, :math:`(1 + \#\{i: s_i \le s\}) / (n + 1)`."""
    highest = scores + ROUNDING * np.clip(np.abs(scores), 1.0, np.finfo(float).max)
    return np.asarray((1.0 + np.searchsorted(calibration, highest, side="right")) / (len(calibration) + 1.0))


def _lower_by_rounding(score: float) -> float:
    """The highest score that is below another by more than rounding."""
    return score - ROUNDING * max(1.0, abs(score)) if np.isfinite(score) else score
