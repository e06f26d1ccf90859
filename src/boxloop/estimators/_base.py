r"""What estimators share: rows in, fitted attributes out, streams of rows, devices. Models and engines are elsewhere.

``partial_fit`` is online EM, one call after another. Until enough rows have come to place and scale a model, they are
kept and fitted whole; from then on each batch of b rows, of N seen in all, moves the averaged statistics by
:math:`\gamma = (b / N)^{0.6}`, and the model is that of the averaged path. A stream that follows a ``fit`` goes on from
the statistics of that fit.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.average import Running
from boxloop.caller import warn_caller
from boxloop.data import (
    ArraySource,
    SparseSource,
    Standardisation,
    StandardisedSource,
    WeightedSum,
    finite_source,
    is_read_in_place,
    on_device,
    open_source,
    validate_rows,
    wrap_as_tensor,
)
from boxloop.estimators._input import check_sample_size, map_rows, match_columns, pick_device
from boxloop.estimators.checkpoints import add_checkpoint
from boxloop.fit import (
    Coordinates,
    Engine,
    Fit,
    OnlinePlan,
    OnlineState,
    Plan,
    coordinates,
    from_standard,
    level_of,
    standard_errors,
    to_standard,
)
from boxloop.loop import Outcome
from boxloop.models import CONSTRAINTS
from boxloop.numeric import SingleThreaded, generator, without_gpu
from boxloop.persist import PROGRESS, Check, ModelFile, Saved, SaveMixin
from boxloop.progress import ProgressBar
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]


class FitWarning(UserWarning):
    """The fit is usable, but something about the data or the result deserves a look.

    Example:
        >>> import warnings
        >>> from boxloop import FitWarning
        >>> warnings.simplefilter("error", FitWarning)  # stop at the first doubt
        >>> warnings.simplefilter("default", FitWarning)
    """


def warn_of(concerns: Iterable[str]) -> None:
    """One warning for each concern about a fit."""
    for concern in concerns:
        warn_caller(concern, FitWarning)


FIT_METHODS = ("fit", "fit_predict", "fit_transform", "fit_covariance")
"""Methods that start afresh, and can be called again on another device."""


class DeviceMemoryError(torch.OutOfMemoryError, MemoryError):
    """The GPU has too little memory; the message says what to do."""


class DeviceEstimator(SingleThreaded):
    """Base of estimators with a ``device``: no public method ends in an allocation error without advice."""

    device: Any
    _left_gpu = False

    def _column_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(vars(self)["n_features_in_"])])
        return [str(name) for name in names]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if isinstance(value, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _handle_memory_error(value))


def _handle_memory_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method; where the memory of the GPU ends, on the CPU or with advice."""
    name = function.__name__

    @wraps(function)
    def call_with_advice(self: DeviceEstimator, *args: Any, **kwargs: Any) -> Any:
        if name in FIT_METHODS and self._left_gpu:
            self._left_gpu = False
        try:
            if not self._left_gpu:
                return function(self, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            where = f"the GPU has too little memory for {type(self).__name__}.{name}"
            if self.device != "auto" or name not in FIT_METHODS:
                raise DeviceMemoryError(
                    f"{where}: use device='cpu', dtype='float32' or fewer rows at a time, or fit with device='auto', "
                    f"which goes on on the CPU ({error})"
                ) from error
            warn_caller(f"{where}: it goes on on the CPU", FitWarning)
        with without_gpu():
            found = function(self, *args, **kwargs)
        self._left_gpu = True  # where the model now is
        return found

    return call_with_advice


STEP_EXPONENT = 0.6
"""A batch of b rows, of N seen, moves the averaged statistics of a stream by (b / N) to this power."""

GROWTH = 1.5
"""How much longer a buffer must be than at the last race between starts before there is another."""


@dataclass(frozen=True)
class RowBuffer:
    """Rows kept until a first model is possible: ``raced`` of them at its last fresh starts, ``start`` from before."""

    rows: Tensor
    weight: Tensor
    raced: int = 0
    start: Any = None


@dataclass(frozen=True)
class OnlineStream:
    """A model in motion: coordinates, online state, the weight of all rows seen and of those in the averaged path."""

    frame: Standardisation
    state: OnlineState[Any]
    seen: float
    since: float = 0.0


FACTS: dict[str, Any] = {
    **PROGRESS,
    "n_samples_seen_": float,
    "lower_bound_": float,
    "lower_bounds_": list[float],
    "training_digest_": str | None,
}
"""Fitted attributes of these estimators in a file, beside those that follow from the model."""


@dataclass(eq=False, repr=False, kw_only=True)
class LatentEstimator(SaveMixin, DeviceEstimator, BaseEstimator):
    """Base of the estimators. The constructor stores, ``fit`` computes, ``model_`` holds the result.

    A parameter is a field: the constructor that scikit-learn inspects follows from the fields of a class and its bases.
    """

    tol: float = 1e-4
    max_iter: int = 100
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    method: Engine = "em"
    accelerate: bool = True
    batch_size: int = 256
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str = "float64"

    _estimator_type: ClassVar[str | None] = None
    _sparse: ClassVar[bool] = False
    _objective_name: ClassVar[str] = "likelihood"
    _first_iterations: ClassVar[int] = 100  # of EM, on the rows that begin a stream

    @property
    def _coordinate_kind(self) -> Coordinates:
        """Coordinates in which the model may be fitted: those that map it onto one of its own kind."""
        return "columns"

    @abstractmethod
    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        """Fit rows in the data's coordinates, from ``start`` where it is not None."""

    @abstractmethod
    def _publish(self, model: Any) -> None:
        """Set the fitted attributes that describe a model."""

    @abstractmethod
    def _count_latent(self, n_columns: int) -> int:
        """How many components or factors a table of this width asks for."""

    def _to_reported_model(self, model: Any) -> Any:
        """The fitted model in the form that is reported."""
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _condense_rows(self, source: Source) -> Source:
        """Standardised rows, or fewer that have the same likelihood."""
        return source

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        """Any table as a source on the right device, its columns checked against those seen in ``fit``."""
        source: Source
        if is_read_in_place(X):
            source = open_source(X, sample_weight)
            if isinstance(source, SparseSource) and not self._sparse:
                raise ValueError(f"{type(self).__name__} takes no sparse rows")
            self._match_columns(source.names, reset)
        else:
            X = validate_rows(
                self,
                X,
                reset=reset,
                dtype=[np.float64, np.float32],
                accept_sparse="csr" if self._sparse else False,
                ensure_all_finite=False,  # the source refuses infinite values, and names their column
            )
            named = getattr(self, "feature_names_in_", None)
            names = None if named is None else tuple(map(str, named))
            if type(X) is np.ndarray and X.dtype == np.float64:
                source = finite_source(wrap_as_tensor(X), sample_weight, names)
            else:
                source = open_source(X, sample_weight, names)
        if self.device != "cpu":
            source = on_device(source, pick_device(self.device))
        return source

    def _match_columns(self, names: tuple[str, ...], reset: bool) -> None:
        """Set the columns, or check them against those of the fit, as scikit-learn does for arrays and frames."""
        if reset:
            match_columns(self, names, reset)
            return
        known = getattr(self, "feature_names_in_", None)
        if known is None and len(names) != self.n_features_in_:
            raise ValueError(
                f"X has {len(names)} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        if known is not None and tuple(known) != names:
            raise ValueError(
                f"X has columns {', '.join(names)}, but {type(self).__name__} was fitted to {', '.join(known)}"
            )

    def _make_plan(self, source: Source) -> Plan:
        observers: list[Any] = [ProgressBar(show=True).stage(type(self).__name__)] if self.verbose else []
        plan = Plan(
            engine=self.method,
            max_iter=self.max_iter,
            tol=self.tol,
            accelerate=self.accelerate,
            batch_size=self.batch_size,
            observers=observers,
            dtype=getattr(torch, self.dtype),
        )
        return plan if self.checkpoint is None else add_checkpoint(self, plan, source)

    def _publish_fit(self, fit: Fit[Any]) -> Self:
        """Set the fitted attributes and say what deserves a look."""
        self._set_attributes(fit, fit.frame.weight, fit.frame.digest)
        self._stream: Any = None
        if fit.statistics is not None:  # a stream goes on from here: these rows begin the averaged path
            state = OnlineState(fit.standard, Running(fit.statistics, 1), Running(fit.statistics, 1))
            self._stream = OnlineStream(fit.frame, state, fit.frame.weight, fit.frame.weight)
        warn_of(fit.concerns)
        # The other methods run for a planned number of passes, at whose end nothing is tested.
        if self.method == "em" and not self.converged_ and not self.interrupted_:
            warn_caller(
                f"EM reached max_iter={self.max_iter} before the {self._objective_name} converged (tol={self.tol:g}); "
                "raise max_iter or tol",
                ConvergenceWarning,
            )
        return self

    def _set_attributes(self, fit: Fit[Any], seen: float, digest: str | None) -> None:
        """The fitted attributes, of rows whose weights sum to ``seen``."""
        self.model_: Any = self._to_reported_model(fit.model)
        self.lower_bounds_: list[float] = fit.trace
        self.lower_bound_: float = self.lower_bounds_[-1] if self.lower_bounds_ else -np.inf
        self.n_iter_: int = fit.outcome.n_iter
        self.n_samples_seen_ = seen
        self.training_digest_ = digest
        self.converged_: bool = fit.outcome.converged
        self.interrupted_: bool = fit.outcome.interrupted
        self.events_: list[str] = list(fit.concerns)
        self._publish(self.model_)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Update the model with one batch of rows, which is then forgotten.

        The first calls may bring fewer rows than the model needs: they are kept, and the model appears as soon as
        it can. After ``fit`` the rows of that fit count as seen. Bad input raises before anything changes.

        Args:
            X: a batch of rows, of any length.
            y: ignored.
            sample_weight: one non-negative weight per row.

        Returns:
            The estimator itself.
        """
        self._validate_params()
        first = not hasattr(self, "_stream") and not hasattr(self, "model_")
        source = self._open(X, sample_weight, reset=first)
        tiles = [(_to_dense(rows), weight) for rows, weight in source.chunks()]
        rows, weight = torch.cat([tile for tile, _ in tiles]), torch.cat([w for _, w in tiles])
        stream = vars(self).get("_stream")
        if isinstance(stream, OnlineStream):
            self._stream = self._update_stream(stream, rows, weight)
        else:
            self._stream = self._buffer_batch(stream, rows, weight)
        return self

    def _buffer_batch(self, kept: RowBuffer | None, rows: Tensor, weight: Tensor) -> RowBuffer | OnlineStream:
        if kept is None:
            kept = RowBuffer(rows, weight, start=vars(self).get("model_"))
        else:
            kept = replace(kept, rows=torch.cat([kept.rows, rows]), weight=torch.cat([kept.weight, weight]))
        k, alive = self._count_latent(rows.shape[1]), int((kept.weight > 0).sum())
        enough = alive >= max(200, 20 * k)
        unseen = bool(torch.isnan(kept.rows[kept.weight > 0]).all(0).any())
        if alive < max(2, k) or ((unseen or kept.start is not None) and not enough):
            return kept
        columns = tuple(getattr(self, "feature_names_in_", ())) or None
        source = ArraySource(kept.rows, kept.weight, columns)
        if enough or alive >= GROWTH * kept.raced:
            fit = self._fit(source, Plan(max_iter=self._first_iterations, tol=1e-4, finish=False), kept.start)
            kept = replace(kept, raced=alive)
        else:
            fit = self._fit(source, Plan(max_iter=10, tol=1e-4, finish=False), self.model_)
        self._publish_stream_fit(fit, fit.frame.weight)
        if not enough:
            return kept
        warn_of(fit.concerns)
        state: OnlineState[Any] = OnlineState(fit.standard, Running(fit.statistics, 1))
        return OnlineStream(fit.frame, state, fit.frame.weight)

    def _update_stream(self, stream: OnlineStream, rows: Tensor, weight: Tensor) -> OnlineStream:
        fresh, frame = float(weight.sum()), stream.frame
        seen, since = stream.seen + fresh, stream.since + fresh
        gamma, smoothing = (fresh / seen) ** STEP_EXPONENT, min(1.0, 2.0 * fresh / (since + fresh))
        plan = OnlinePlan(lambda t: gamma, smoothing=lambda t: smoothing)
        done = stream.state.update((rows.double() - frame.origin) / frame.scale, weight, plan)
        best = done.state.best
        outcome = Outcome(done.state, [done.objective], list(done.events), done.state.average.count, True)
        here = replace(frame, observed=(~torch.isnan(rows)).double().mT @ weight, weight=fresh)
        level = level_of(best, ArraySource(rows, weight), here)
        model = from_standard(best, frame, self._coordinate_kind)
        self._publish_stream_fit(
            Fit(model, best, frame, outcome, [done.objective + level], done.events), seen
        )
        warn_of(done.events)
        return OnlineStream(frame, done.state, seen, since)

    def _publish_stream_fit(self, fit: Fit[Any], seen: float) -> None:
        self._set_attributes(fit, seen, None)  # batches are forgotten
        self.converged_, self.interrupted_ = False, False  # more rows may come: nothing is tested

    def _map_rows(self, X: Any, function: Any) -> Tensor:
        """``function(rows)`` of every tile, joined along rows."""
        return check_no_overflow(map_rows(self, X, function))

    def score_samples(self, X: Any) -> Array:
        """Log-density of each row, (n,)."""
        return to_numpy(self._map_rows(X, lambda rows: self.model_.log_prob(rows.double())))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density of the rows, by their weights where they have any."""
        total, n = self._sum_log_densities(X, sample_weight)
        return total / n

    def _sum_log_densities(self, X: Any, sample_weight: Any = None) -> tuple[float, float]:
        """Weighted sum of the log-densities of rows and sum of the weights: two numbers, wherever the rows lie."""
        check_is_fitted(self)
        model = self.model_
        total = WeightedSum.over(
            self._open(X, sample_weight, reset=False), lambda rows: model.log_prob(rows.double())
        )
        if bool(total.value.isnan()):
            self.score_samples(X)  # names the row
        return float(total.value), float(total.weight)

    def _count_parameters(self) -> int:
        return int(sum(value.numel() for value in self.model_.free_parameters().values()))

    def aic(self, X: Any, sample_weight: Any = None) -> float:
        """Akaike's information criterion on X; lower is better."""
        return -2.0 * self._sum_log_densities(X, sample_weight)[0] + 2.0 * self._count_parameters()

    def bic(self, X: Any, sample_weight: Any = None) -> float:
        """Bayesian information criterion on X, whose number of rows is the sum of weights; lower is better."""
        total, n = self._sum_log_densities(X, sample_weight)
        return -2.0 * total + self._count_parameters() * math.log(n)

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Draw rows from the fitted model, with the latent variable of each."""
        check_is_fitted(self)
        check_sample_size(n_samples)
        device = next(self.model_.leaves())[1].device
        rows, latent = self.model_.sample(n_samples, generator(self.random_state, device))
        return to_numpy(rows), latent.cpu().numpy()

    def standard_errors(self, X: Any, sample_weight: Any = None) -> Mapping[str, Array]:
        """Standard errors of the fitted parameters, from the observed information on the training rows.

        Costs two passes over X for every free parameter. NaN marks parameters at a bound or not identified.

        Args:
            X: the rows the model was fitted to.
            sample_weight: their weights, if any.

        Returns:
            One array of errors for each fitted parameter, in its shape.
        """
        check_is_fitted(self)
        source = self._open(X, sample_weight, reset=False)
        frame = coordinates(source, self._coordinate_kind)
        model = to_standard(self.model_, frame, self._coordinate_kind)
        if self._coordinate_kind == "none":
            found = standard_errors(model, source)
        else:
            rows = self._condense_rows(StandardisedSource(source, frame))
            found = standard_errors(
                model, rows, lambda m: m.affine(frame.origin, frame.scale).named_parameters()
            )
        return {name: to_numpy(value) for name, value in found.errors.items()}

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """Mean log-likelihood per row after each iteration of the fit.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(100, 2))
            >>> GaussianMixture(1).fit(X).plot_trace().get_xlabel()
            'iteration'
        """
        check_is_fitted(self)
        from boxloop.figures import trace

        state = "interrupted" if self.interrupted_ else ("converged" if self.converged_ else "not converged")
        title, up = f"{type(self).__name__}: the fit", "mean log-likelihood per row"
        return trace(self.lower_bounds_, ax, title=title, up=up, label=f"{state}: {self.lower_bound_:.6g}")

    def _from_tree(self, tree: Any) -> None:
        super()._from_tree(tree)
        self._publish(tree)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = self._estimator_type
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = self._sparse
        return tags


def check_double_precision(estimator: Any, saved: Saved) -> str | None:
    """A check of a file: its model is of the precision in which it is published."""
    dtype = saved.axes["dtype"]
    return None if dtype == torch.float64 else f"its model holds {dtype}, not torch.float64"


def declare_latent_file(model: type, *parts: type, checks: tuple[Check, ...] = ()) -> ModelFile:
    """The file of a :class:`LatentEstimator`: its model, classes the model may consist of, and checks."""
    return ModelFile(model, parts, CONSTRAINTS, FACTS, checks=(check_double_precision, *checks))


def check_no_overflow(found: Tensor) -> Tensor:
    """What a model says of rows, (n, ...); refuses NaN, from a row so far away that inf was taken from inf."""
    bad = found.isnan()
    if bool(bad.any()):
        row = int(bad.reshape(len(found), -1).any(1).nonzero()[0])
        raise ValueError(
            f"row {row} (counted from 0) of X lies so far from the rows of the fit that numbers overflow: leave it out "
            "or bring it to the scale of the fit"
        )
    return found


def to_numpy(value: Tensor) -> Array:
    """A tensor as float64 NumPy, on the host."""
    return np.asarray(value.detach().cpu().numpy(), dtype=np.float64)


def _to_dense(rows: Tensor) -> Tensor:
    return rows.to_dense() if rows.layout != torch.strided else rows
