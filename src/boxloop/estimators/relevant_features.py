"""The features of one view that can be inferred from another, as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from boxloop.data import pair_sources
from boxloop.estimators._params import COMMON, pick_device, pick_dtype
from boxloop.estimators._training import COUNT, POSITIVE, RATE
from boxloop.estimators.relevant_channel import drawn
from boxloop.estimators.relevant_fit import fit_views
from boxloop.estimators.relevant_infer import LEAST, InferringViews
from boxloop.estimators.relevant_rows import Edge
from boxloop.estimators.relevant_start import Wish, finite_wish, start_view
from boxloop.estimators.relevant_use import views_file
from boxloop.numeric import generator, spawn
from boxloop.persist import ModelFile, load_model
from boxloop.twoview import RelevanceFit, ViewPair
from boxloop.types import Source

KINDS = {"auto", "linear", "fourier", "network", "finite"}


@dataclass(eq=False, repr=False, kw_only=True)
class RelevantFeatures(InferringViews):
    r"""The features of each of two views that can be inferred most faithfully from the other.

    .. math:: p(x, y) \approx p(x) \, p(y) \sum_{i=0}^{k} \eta_i \, u_i(x) \, v_i(y), \qquad
        \max_{u, v} \sum_i \eta_i^2, \quad \eta_i = E[u_i v_i]

    Document 003: the canonical variables u and v, orthonormal functions of one view each, span what one view tells of
    the other; :math:`\eta_i^2` is the relevance of the i-th pair, and :math:`u_0 = v_0 = 1` is always among them. With
    linear features this is canonical correlation analysis, with networks deep canonical correlation analysis. The
    variables give the expectation of *any* function of one view given the other, without another fit: :meth:`expect`.

    Args:
        n_features: pairs of variables to keep, k; the constant (the document's k0 is k + 1) comes free.
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
            features): damps directions in which features hardly vary, and shrinks relevances. ``None`` chooses on
            validation rows for networks, by cross-validation for ``fourier``, and is 0 for other fixed features, with
            pseudo-inverses where they are collinear; ``validation`` chooses for these too, as it should where rows are
            few beside columns.
        constant: in training, ``enforced`` or ``learned``: see :func:`boxloop.twoview.relevance_loss`.
        channel: a function (rows, generator) -> rows that draws the second view from the first, such as
            :class:`boxloop.twoview.PixelShuffle`: then ``fit(X)`` needs no Y, and training draws it anew at every step.
        learning_rate: of AdamW, for networks.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` passes.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch; ``None`` is 30 for each feature, and at least 256. Below 10 for each,
            relevances hold in the batch alone, with a warning.
        max_iter: most passes over the rows.
        patience: passes without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of the rows that networks do not see: half of them choose the best pass, the others
            judge the variables; 0 keeps the last pass.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: ``float32`` or ``float64``, of networks and of products of fixed features, whose sums are in float64
            all the same; ``None`` is ``float32`` for networks and ``float64`` for products.

    Attributes:
        model_: the fitted :class:`boxloop.twoview.RelevanceModel`.
        correlation_: canonical correlations on the rows of the fit, largest first, (k,).
        relevance_: their squares.
        loss_: k less the total relevance, on all rows of the fit (those of ``history_`` are of batches).
        history_: a list a pass by name: ``loss`` and ``relevance`` in batches, ``validation_relevance`` (that of rows
            held out, by the score of :func:`boxloop.twoview.channel_error`), ``validation_fitted_relevance``.
        ridge_: the ridge that was used.
        n_iter_: passes done.
        batch_size_: rows of a mini-batch.
        converged_: whether validation stopped improving; False where ``max_iter`` came first, planned or not.
        interrupted_: whether Ctrl-C ended the fit; its last complete round is kept.
        events_: what went wrong on the way.

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
    hidden: Any = None
    n_fourier: int = 300
    length_scale: float | None = None
    ridge: float | str | None = None
    constant: str = "enforced"
    channel: Any = None
    learning_rate: float = 1e-3
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 100.0
    batch_size: int | None = None
    max_iter: int = 200
    patience: int | None = 20
    validation_fraction: float = 0.2
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str | None = None

    _model_file: ClassVar[ModelFile] = views_file("x_features", "y_features")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_features": [COUNT],
        "x_features": [StrOptions(KINDS), nn.Module],
        "y_features": [StrOptions(KINDS), nn.Module],
        "hidden": ["array-like", None],
        "n_fourier": [COUNT],
        "length_scale": [POSITIVE, None],
        "ridge": [RATE, StrOptions({"validation"}), None],
        "constant": [StrOptions({"enforced", "learned"})],
        "channel": [callable, None],
        "schedule": [StrOptions({"constant", "cosine"})],
        "weight_decay": [RATE],
        "dtype": [*COMMON["dtype"], None],
        "batch_size": [COUNT, None],
        "patience": [COUNT, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        **{name: [POSITIVE] for name in ("learning_rate", "clip")},
        **{name: COMMON[name] for name in ("max_iter", "random_state", "verbose", "checkpoint", "device")},
    }

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the variables of each view that the other tells most about.

        Args:
            X: the first view: rows (n, d), images (n, H, W) or (n, C, H, W), or one column of labels: an array, frame,
                source, or a path of a CSV, Parquet or npy file or folder.
            y: the second view Y, row by row that of the same things; ``None`` with a ``channel``.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        device = pick_device(self.device)
        streams = spawn(generator(self.random_state), 4)
        left, first = self._first(X, sample_weight, device)
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
            second = self._drawn(first, streams[2])
            right = Edge("Y", second.names, left.image if len(second.names) == len(left.names) else None)
        else:
            right = Edge.of(y, "Y", finite_wish(self.y_features))
            second = right.open(y, device, sample_weight)
        both = pair_sources(first, second, hold=False)
        if both.n_rows < LEAST:
            raise ValueError(f"two views need at least {LEAST} rows, got n_samples = {both.n_rows}")
        views = [
            start_view(self._wish(kind, device), edge, source, stream)
            for kind, edge, source, stream in (
                (self.x_features, left, first, streams[0]),
                (self.y_features, right, second, streams[1]),
            )
        ]
        pair = ViewPair(views[0], views[1])
        both = (
            pair_sources(first, second) if pair.trainable() else both
        )  # mini-batches want rows side by side
        self.x_edge_, self.y_edge_ = left, right
        most = self.n_features
        self._store(fit_views(self, pair, both, None if y is not None else first, most), most)
        return self

    def _first(self, X: Any, weight: Any, device: torch.device) -> tuple[Edge, Source]:
        table = self._validated(X, reset=True, finite=self.x_features == "finite")
        edge = Edge.of(table, "X", finite_wish(self.x_features))
        return edge, edge.open(table, device, weight)

    def _drawn(self, first: Source, stream: torch.Generator) -> Source:
        """One draw of the second view, for all that is not training."""
        return drawn(self.channel, first, stream)

    def _wish(self, kind: Any, device: torch.device) -> Wish:
        dtype = pick_dtype(self.dtype or "float32")
        return Wish(kind, int(self.n_features), self.hidden, self.n_fourier, self.length_scale, device, dtype)

    def _from_tree(self, tree: RelevanceFit) -> None:
        self._publish(tree, self.n_features)

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
