"""The features of one view that can be inferred from another, as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from boxloop.data import (
    ArraySource,
    ConcatenatedRows,
    SwappedViews,
    check_choice,
    check_count,
    check_parameters,
    pair_sources,
    select_rows,
)
from boxloop.estimators._base import Array, check_no_overflow, to_numpy
from boxloop.estimators._input import pick_device
from boxloop.estimators._training import COUNT, make_part
from boxloop.estimators._two_views import (
    TwoViewEstimator,
    ViewSchema,
    apply_to_rows,
    fit_views,
    make_model_file,
    start_view,
)
from boxloop.numeric import generator, seed, spawn
from boxloop.persist import ModelFile, load_model
from boxloop.twoview import (
    ConditionalDistribution,
    Diagnosis,
    EstimatedValues,
    Expectation,
    FiniteView,
    Function,
    NetworkView,
    RelevanceFit,
    RelevanceModel,
    Significance,
    View,
    ViewPair,
    cross_fitted_significance,
    density_ratio,
    diagnose,
    draw_second_view,
    held_out_significance,
    to_columns_or_indicators,
)
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {"auto", "linear", "fourier", "network", "finite"}

LEAST_ROWS = 3
"""Smallest number of rows of two views."""

Direction = Literal["y_given_x", "x_given_y"]


@dataclass(eq=False, repr=False, kw_only=True)
class RelevantFeatures(TwoViewEstimator):
    r"""The features of each of two views that can be inferred most faithfully from the other.

    .. math:: p(x, y) \approx p(x) \, p(y) \sum_{i=0}^{k} \eta_i \, u_i(x) \, v_i(y), \qquad
        \max_{u, v} \sum_i \eta_i^2, \quad \eta_i = E[u_i v_i]

    Learning relevant features for statistical inference: the canonical variables u and v are orthonormal functions of
    one view each, and span what one view predicts of the other; :math:`\eta_i^2` is the relevance of the i-th pair, and
    :math:`u_0 = v_0 = 1` is always among them. With linear features this is canonical correlation analysis (see
    :class:`boxloop.CCA`), with networks deep canonical correlation analysis. The variables give the expectation of
    *any* function of one view given the other, without another fit: :meth:`expect`.

    Args:
        n_features: number of pairs of variables, k, without the constant (the paper's k0 is k + 1).
        x_features: features of X: ``linear``, its columns; ``fourier``, random features of a Gaussian kernel;
            ``network``, learned, with convolutions for images (n, H, W) or (n, C, H, W); ``finite``, the indicators of
            one column's values; a ``torch.nn.Module`` from flattened, standardised rows (n, d) to (n, k), whose last
            layer should be bounded; ``auto`` is ``finite`` for one column of text or booleans, else ``network``.
        y_features: the same of Y.
        hidden: widths of the default networks' layers, or channels of their convolutions; ``None`` is (128, 128), and
            (32, 64) for images.
        n_fourier: random features of a kernel.
        length_scale: of a kernel, in standard deviations; ``None`` takes the median distance of rows.
        ridge: added to the variances of features, relative to them (in the loss of training, in the units of squared
            features): damps directions in which features hardly vary, and shrinks relevances. ``None`` chooses it on
            validation rows for networks, by cross-validation for ``fourier``, and is 0 for other fixed features, with
            pseudo-inverses where they are collinear; ``validation`` chooses it for these too, which is advisable where
            rows are few relative to columns.
        constant: in training, ``enforced`` or ``learned``: see :func:`boxloop.twoview.relevance_loss`.
        channel: a function (rows, generator) -> rows that draws the second view from the first, such as
            :class:`boxloop.twoview.PixelShuffle`: then ``fit(X)`` needs no Y, and training draws it anew at every step.
        learning_rate: of AdamW, for networks.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` epochs.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch; ``None`` is 30 per feature, and at least 256. Below 10 per feature, relevances
            hold in the batch alone, and a warning says so.
        max_iter: largest number of epochs.
        patience: epochs without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of held-out rows, for networks: half of them choose the best epoch, the others test
            the variables (:meth:`significance`); 0 keeps the last epoch.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float32`` or ``float64``, of networks and of products of fixed features, whose sums are always in
            float64; ``None`` is ``float32`` for networks and ``float64`` for products.

    Attributes:
        model_: the fitted :class:`boxloop.twoview.RelevanceModel`.
        correlation_: canonical correlations on the rows of the fit, largest first, (k,).
        relevance_: their squares.
        loss_: k less the total relevance, on all rows of the fit (those of ``history_`` are of batches).
        history_: a list by name, with a value per epoch: ``loss`` and ``relevance`` in batches,
            ``validation_relevance`` (on held-out rows, by :func:`boxloop.twoview.conditional_distance`),
            ``validation_fitted_relevance``.
        ridge_: the ridge that was used.
        n_iter_: number of epochs.
        batch_size_: rows of a mini-batch.
        converged_: whether validation stopped improving; False where ``max_iter`` came first, planned or not.
        interrupted_: whether Ctrl-C ended the fit; its last complete epoch is kept.
        events_: concerns about the fit, in words.
        held_out_: held-out rows that did not choose the epoch, both views, as a source; None where there are none.

    Example:
        >>> import numpy as np
        >>> from boxloop import RelevantFeatures
        >>> rng = np.random.default_rng(0)
        >>> shared = rng.normal(size=(1000, 1))
        >>> X = np.hstack([shared, rng.normal(size=(1000, 2))])
        >>> Y = np.hstack([shared + rng.normal(size=(1000, 1)), rng.normal(size=(1000, 1))])
        >>> fit = RelevantFeatures(1, x_features="linear", y_features="linear").fit(X, Y)
        >>> fit.relevance_.round(1)
        array([0.5])
        >>> inferred = fit.expect(given=X[:1], direction="y_given_x")
        >>> bool(abs(inferred.mean[0, 0] - shared[0, 0]) < 4 * inferred.standard_error[0, 0])
        True
    """

    n_features: int = field(default=10, kw_only=False)
    x_features: Any = "auto"
    y_features: Any = "auto"
    channel: Any = None

    _model_file: ClassVar[ModelFile] = make_model_file("x_features", "y_features")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TwoViewEstimator._parameter_constraints,
        "n_features": [COUNT],
        "x_features": [StrOptions(KINDS), nn.Module],
        "y_features": [StrOptions(KINDS), nn.Module],
        "channel": [callable, None],
    }

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the variables of each view that the other predicts best.

        Args:
            X: the first view: rows (n, d), images (n, H, W) or (n, C, H, W), or one column of labels: an array, frame,
                source, or a path of a CSV, Parquet or npy file or folder.
            y: the second view Y, with the same rows in the same order; ``None`` with a ``channel``.
            sample_weight: one non-negative weight per row.

        Returns:
            The estimator itself.
        """
        device = pick_device(self.device)
        streams = spawn(generator(self.random_state), 4)
        table = self._validate_first_view(X, reset=True, finite=self.x_features == "finite")
        left, first = ViewSchema.read(table, "X", self.x_features, device, sample_weight)
        if (y is None) == (self.channel is None):
            raise ValueError(
                "requires y to be passed, but the target y is None: give Y, or a channel that draws it"
                if y is None
                else "Y was given and channel= too: the second view is one or the other"
            )
        if y is None:
            if left.values is not None:
                raise ValueError(
                    "a channel disturbs numbers, and X holds labels: give a second view y instead"
                )
            second = draw_second_view(self.channel, first, streams[2])
            image = left.image if len(second.names) == len(left.names) else None
            right = ViewSchema("Y", second.names, image)
        else:
            right, second = ViewSchema.read(y, "Y", self.y_features, device, sample_weight)
        if first.n_rows < LEAST_ROWS:
            raise ValueError(f"two views need at least {LEAST_ROWS} rows, got n_samples = {first.n_rows}")
        most = int(self.n_features)
        pair = ViewPair(
            start_view(self, self.x_features, most, left, first, streams[0]),
            start_view(self, self.y_features, most, right, second, streams[1]),
        )
        both = pair_sources(first, second, hold=bool(pair.trainable()))  # mini-batches want rows side by side
        self.x_schema_ = left
        self.y_schema_ = right
        self._store_fit(fit_views(self, pair, both, None if y is not None else first, most), most)
        return self

    def transform(self, X: Any, y: Any = None) -> Any:
        """The canonical variables of rows: u of X, (n, k), and v of Y beside it where y is given."""
        left = self._map_first_view(X, lambda rows: self.model_.left(rows))
        if y is None:
            return left
        return left, to_numpy(check_no_overflow(apply_to_rows(self._open_second_view(y), self.model_.right)))

    def predict(self, X: Any) -> Array:
        """E[Y | X] in the shape of Y; of a finite Y the weight of each value, which may be negative.

        No rows of the fit are needed. For standard errors, standard deviations, quantiles and other functions of Y, and
        for X given Y, see :meth:`expect`.
        """
        predicted = self._map_first_view(X, lambda rows: self.fit_.infer_right(rows))
        columns: Array = self.y_schema_.reshape(predicted)
        return columns

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Sum of the correlations of the pairs on weighted rows, at most k; a ``channel`` draws a missing y."""
        first = self._open_first_view(X, sample_weight)
        if y is None and self.channel is None:
            raise ValueError("requires y to be passed, but the target y is None: give Y")
        second = (
            self._open_second_view(y)
            if y is not None
            else draw_second_view(self.channel, first, spawn(generator(self.random_state), 4)[2])
        )

        def evaluate_tile(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
            return ConcatenatedRows.of(torch.cat([*self.model_.both(rows), weight[:, None]], 1))

        with torch.no_grad():
            variables = to_numpy(
                check_no_overflow(pair_sources(first, second).reduce(evaluate_tile).concatenate())
            )
        left, right = np.hsplit(variables[:, :-1], 2)
        return float(np.trace(correlate_columns(left, right, variables[:, -1])))

    def loadings(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Correlation of each column with each variable of its own view, (d_x, k) and (d_y, k).

        Columns that are constant have correlation 0; a finite view has a row for each of its values.

        Args:
            X: rows of the first view, (n, d_x).
            y: rows of the second view, (n, d_y).
        """
        sources = self._open_first_view(X), self._open_second_view(y)
        model, pair = self.model_, self.model_.pair
        left, right = (
            correlate_columns(
                to_numpy(apply_to_rows(source, partial(to_columns_or_indicators, view))),
                to_numpy(apply_to_rows(source, variables)),
            )
            for source, view, variables in zip(
                sources, (pair.left, pair.right), (model.left, model.right), strict=True
            )
        )
        return left, right

    def expect(
        self,
        theta: Function | None = None,
        *,
        given: Any,
        direction: Direction = "y_given_x",
        data: tuple[Any, Any] | None = None,
        refits: int = 0,
    ) -> Expectation:
        r"""Expectation of any function of one view given rows of the other, with standard errors, without another fit.

        .. math:: E[\theta(y) \mid x] \approx \sum_{i \ge 0} \eta_i \, \overline{v_i \theta} \; u_i(x)

        Learning relevant features for statistical inference, eq. 9 and 10.

        Args:
            theta: function from rows of the inferred view, a tensor (n, d) with images flattened, to values (n, p) or
                (n,). ``None`` is the columns themselves, or the indicators of a finite view, whose rows hold the number
                of a value in ``x_schema_.labels`` or ``y_schema_.labels``.
            given: rows of the other view; without missing values.
            direction: ``y_given_x`` or ``x_given_y``.
            data: (X, Y), rows over which to average, and on which variables are solved anew; those of the fit when
                omitted.
            refits: number of times to halve the rows and learn features anew from both halves: standard errors of
                means and standard deviations are then multiplied by a factor from the difference of the halves
                (``inflation``). Without it they take the features as given, and are too small for networks.

        Returns:
            Means and standard deviations (m, p), each with its standard error, and a way to quantiles, tail
            probabilities, covariances and the principal direction.

        Example:
            >>> import numpy as np
            >>> from boxloop import RelevantFeatures
            >>> rng = np.random.default_rng(0)
            >>> x = rng.integers(3, size=3000)
            >>> y = x + rng.normal(size=3000)
            >>> fit = RelevantFeatures(2, x_features="finite", y_features="linear", random_state=0)
            >>> fit = fit.set_params(n_features=1).fit(x, y)
            >>> square = fit.expect(lambda rows: rows**2, given=[2])
            >>> bool(abs(square.mean[0, 0] - 5.0) < 1.0)
            True
        """
        if not (theta is None or callable(theta)):
            raise TypeError(f"theta must be a function of rows, not {type(theta).__name__}; rows are given=")
        check_count(refits, "refits", 0)
        conditional = self._build_conditional(direction, data)
        known = self._open_first_view(given) if direction == "y_given_x" else self._open_second_view(given)
        rows = torch.cat([tile for tile, _ in known.chunks()])
        indicators = self._find_indicators(direction) if theta is None else None
        theta = theta if indicators is None else indicators
        expectation = conditional.expect(theta, rows)
        if indicators is not None:
            schema = self.y_schema_ if direction == "y_given_x" else self.x_schema_
            expectation = replace(expectation, names=tuple(schema.labels))
        if not refits:
            return expectation
        if not self.model_.pair.trainable():
            raise ValueError(
                "refits are for learned features; the standard errors of fixed features need none"
            )
        both, halves = self._select_rows_to_average(data), []
        for stream in spawn(generator(self.random_state), refits):
            order = torch.randperm(both.n_rows, generator=stream)
            half = torch.zeros(both.n_rows, dtype=torch.bool)
            half[order[: both.n_rows // 2]] = True
            one, two = (
                self._refit_to_half(select_rows(both, mask), stream, direction).expect(theta, rows)
                for mask in (half, ~half)
            )
            halves.append((one, two))
        return inflate_errors(expectation, halves)

    def density_ratio(self, X: Any, y: Any, data: tuple[Any, Any] | None = None) -> EstimatedValues:
        """p(x, y) / (p(x) p(y)) of each pair of rows, (n,), with its standard error.

        Args:
            X: rows of the first view.
            y: as many of the second view.
            data: (X, Y), rows over which to average, and on which variables are solved anew; those of the fit when
                omitted.
        """
        both = self._open_pair(X, y)
        rows = torch.cat([tile for tile, _ in both.chunks()])
        return density_ratio(self._build_conditional("x_given_y", data), *self.model_.pair.split_rows(rows))

    def significance(
        self, X: Any = None, y: Any = None, *, permutations: int = 999, level: float = 0.05
    ) -> Significance:
        """Test which variables hold on rows that did not find them, and whether ``n_features`` is large enough.

        Fixed features are tested by cross-fitting on the rows of the fit, networks on held-out rows that did not choose
        the epoch.

        Args:
            X: rows that took no part in the fit, to be used instead.
            y: their second view.
            permutations: number of permutations behind the p-values.
            level: false-discovery rate.

        Returns:
            Held-out correlations with errors, p-values, and a verdict; ``print`` and ``plot`` show it.
        """
        check_is_fitted(self)
        options: dict[str, Any] = {"permutations": permutations, "level": level}
        if (X is None) != (y is None):
            raise ValueError("give both X and y, or neither")
        if X is not None:
            return held_out_significance(self.model_, self._open_pair(X, y), **options)
        if not hasattr(self, "_rows"):
            raise ValueError("a model file holds no rows: give X and y that took no part in the fit")
        rows = self._select_rows_to_average(None)
        if not self.model_.pair.trainable():
            most = len(self.correlation_)
            return cross_fitted_significance(self.model_.pair, rows, most, self.ridge_, **options)
        if self.held_out_ is None:
            raise ValueError("no rows were held out, or too few: give X and y, or raise validation_fraction")
        return held_out_significance(self.model_, self.held_out_, **options)

    def diagnose(
        self, direction: Direction = "y_given_x", n_given: int = 200, data: tuple[Any, Any] | None = None
    ) -> Diagnosis:
        """What the fit implies that no distribution could: negative mass and variances, spurious batch correlations.

        Args:
            direction: of the inference to diagnose.
            n_given: number of rows to condition on, of the fit.
            data: (X, Y), rows to take instead, on which variables are solved anew.
        """
        check_is_fitted(self)
        batch = self.batch_size_ if self.model_.pair.trainable() else None
        conditional, theta = self._build_conditional(direction, data), self._find_indicators(direction)
        return diagnose(conditional, theta, n_given=n_given, batch_size=batch)

    def plot_relevance(self, ax: Axes | None = None) -> Axes:
        """Relevances on rows that did not find them, with errors, beside those of the fit: :meth:`significance`."""
        return self.significance().plot(ax)

    def _refit_to_half(self, rows: Source, stream: Generator, direction: str) -> ConditionalDistribution:
        """The distribution of one view given the other by features learned anew from some of the rows."""
        other = clone(self).set_params(random_state=seed(stream), checkpoint=None, verbose=0)
        start, columns, first = self.model_.pair, self.model_.pair.left.n_columns, None
        pair = ViewPair(
            _restart_view(start.left, other.x_features, stream),
            _restart_view(start.right, other.y_features, stream),
        )
        if other.channel is not None:
            assert isinstance(rows, ArraySource)  # a channel takes no other
            first = ArraySource(rows.rows[:, :columns].contiguous(), rows.weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the fit to all rows has warned of it
            fitted = fit_views(other, pair, rows, first, len(self.correlation_))
        return build_conditional_distribution(fitted.fit.model, fitted.rows, fitted.ridge, direction)

    def _build_conditional(self, direction: str, data: Any) -> ConditionalDistribution:
        """The distribution of one view given the other, over rows of the fit, or over others, on which it is solved."""
        check_choice(direction, "direction", ("y_given_x", "x_given_y"))
        rows, model = self._select_rows_to_average(data), self.model_
        if data is not None:
            model = RelevanceModel.solve(model.pair, rows, len(self.correlation_), self.ridge_)
        return build_conditional_distribution(model, rows, self.ridge_, direction)

    def _open_pair(self, X: Any, y: Any) -> Source:
        return pair_sources(self._open_first_view(X), self._open_second_view(y))

    def _find_indicators(self, direction: str) -> Function | None:
        """The indicators of a finite view that is inferred; None, its columns, of any other."""
        view = self.model_.pair.right if direction == "y_given_x" else self.model_.pair.left
        return view if isinstance(view, FiniteView) else None

    def _select_rows_to_average(self, data: Any) -> Source:
        """Rows that hold both views: those of the fit, or a pair of tables."""
        check_is_fitted(self)
        if data is not None:
            if not (isinstance(data, tuple | list) and len(data) == 2):
                raise ValueError("data must be a pair of tables, (X, Y)")
            both = self._open_pair(*data)
            if both.n_rows < LEAST_ROWS:
                raise ValueError(
                    f"data has {both.n_rows} rows: at least {LEAST_ROWS} are needed to average over"
                )
            return both
        if not hasattr(self, "_rows"):
            raise ValueError(
                "a model file holds no rows: give data=(X, Y), those of the fit or others like them"
            )
        rows: Source = self._rows
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.channel is None
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _from_tree(self, tree: RelevanceFit) -> None:
        self._store_model(tree, self.n_features)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        x_features: nn.Module | None = None,
        y_features: nn.Module | None = None,
    ) -> Self:
        """Read what :meth:`save` wrote, onto the CPU. Nothing in the file can run.

        Args:
            path: the file.
            x_features: the module whose tensors were saved, where one was given to the fit; its own are replaced.
            y_features: the same of the second view.
        """
        return load_model(path, cls, {"x_features": x_features, "y_features": y_features})


def build_conditional_distribution(
    model: RelevanceModel, rows: Source, ridge: float, direction: str
) -> ConditionalDistribution:
    """The distribution of one view given the other."""
    if direction == "x_given_y":
        return ConditionalDistribution(model, rows, ridge)
    return ConditionalDistribution(model.swap_views(), SwappedViews(rows, model.pair.left.n_columns), ridge)


def _restart_view(view: View, kind: Any, stream: Generator) -> View:
    """A view before training: a new start for default networks, the given start for a user's module."""
    if not isinstance(view, NetworkView):
        return view
    like, own = view.part.parameters[0], spawn(stream, 1)[0]
    module = kind if isinstance(kind, nn.Module) else None
    return replace(view, part=make_part(module, view.part.network, like.device, like.dtype, own))


def inflate_errors(
    expectation: Expectation, halves: Sequence[tuple[Expectation, Expectation]]
) -> Expectation:
    r"""An expectation whose standard errors contain what learning costs.

    Let :math:`A` and :math:`B` be inferred from complementary halves of the rows, each of which learned features of its
    own: :math:`(A - B)^2 / 2` has the mean of the squared error of such a fit, apart from its bias. A fit to all rows
    is assumed to be no better, since what a network owes to its start and to the order of its batches does not fall
    with the rows. One factor, pooled over points and functions and at least 1, multiplies the standard errors:

    .. math:: f^2 = \frac{\sum (A - B)^2 / 2}{\sum \mathrm{se}^2}

    Args:
        expectation: by the fit to all rows.
        halves: the same expectation by fits to both halves of the rows, for each way to halve them.
    """

    def compute_inflation(name: str, error: Array) -> float:
        apart = [(getattr(one, name) - getattr(two, name)) ** 2 / (2.0 * len(halves)) for one, two in halves]
        total = float((error**2).sum())
        return max(1.0, float(np.sqrt(sum(part.sum() for part in apart) / total))) if total > 0.0 else 1.0

    inflation = compute_inflation("mean", expectation.standard_error)
    return replace(
        expectation,
        standard_error=expectation.standard_error * inflation,
        deviation_error=expectation.deviation_error
        * compute_inflation("deviation", expectation.deviation_error),
        inflation=inflation,
    )


def correlate_columns(left: Array, right: Array, weight: Array | None = None) -> Array:
    """Correlations of every column with every column over weighted rows, (p, q); 0 for constant columns."""
    root = np.ones((len(left), 1)) if weight is None else np.sqrt(weight)[:, None]
    left, right = (root * (part - np.average(part, 0, root[:, 0] ** 2)) for part in (left, right))
    size = np.sqrt(np.outer((left**2).sum(0), (right**2).sum(0)))
    correlation: Array = (left.T @ right) / np.where(size > 0.0, size, 1.0)
    return correlation
