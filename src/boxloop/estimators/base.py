"""What every estimator shares: rows in, fitted attributes out. Engines and models are elsewhere."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import (
    ConcatenatedRows,
    SparseSource,
    StandardisedSource,
    WeightedSum,
    check_count,
    is_read_in_place,
    on_device,
    open_source,
    validate_rows,
)
from boxloop.estimators.checkpoints import checkpointed
from boxloop.estimators.device_memory import DeviceEstimator
from boxloop.estimators.flow import continued
from boxloop.estimators.options import pick_device, pick_dtype
from boxloop.estimators.warned import warn_of
from boxloop.fit import Coordinates, Engine, Fit, Plan, coordinates, standard_errors, to_standard
from boxloop.models import CONSTRAINTS
from boxloop.numeric import generator
from boxloop.persist import PROGRESS, Check, ModelFile, Saved, SaveMixin
from boxloop.progress import ProgressBar
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

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

    _sparse: ClassVar[bool] = False
    _height: ClassVar[str] = "likelihood"

    @property
    def _kind(self) -> Coordinates:
        """Coordinates in which the model may be fitted: those that map it onto one of its own kind."""
        return "columns"

    @abstractmethod
    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        """Fit rows in the data's coordinates, from ``start`` where it is not None."""

    @abstractmethod
    def _publish(self, model: Any) -> None:
        """Set the fitted attributes that describe a model."""

    def _reported(self, model: Any) -> Any:
        """The fitted model in the form that is reported."""
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _condensed(self, source: Source) -> Source:
        """Standardised rows, or fewer that have the same likelihood."""
        return source

    def _prepare(self, source: Source) -> Source:
        """Check or change rows before any use."""
        return source

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        """Any table as a source on the right device, its columns checked against those seen in ``fit``."""
        if is_read_in_place(X):
            source = open_source(X, sample_weight)
            if isinstance(source, SparseSource) and not self._sparse:
                raise ValueError(f"{type(self).__name__} takes no sparse rows")
            self._match(source.names, reset)
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
            source = open_source(X, sample_weight, None if named is None else list(named))
        return self._prepare(on_device(source, pick_device(self.device)))

    def _match(self, names: tuple[str, ...], reset: bool) -> None:
        if reset:
            self.n_features_in_ = len(names)
            self.__dict__.pop("feature_names_in_", None)
            if names != tuple(
                f"x{j}" for j in range(len(names))
            ):  # what a table without names calls its columns
                self.feature_names_in_ = np.asarray(names, dtype=object)
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

    def _plan(self, source: Source) -> Plan:
        observers: list[Any] = [ProgressBar(show=True).stage(type(self).__name__)] if self.verbose else []
        plan = Plan(
            engine=self.method,
            max_iter=self.max_iter,
            tol=self.tol,
            accelerate=self.accelerate,
            batch_size=self.batch_size,
            observers=observers,
            dtype=pick_dtype(self.dtype),
        )
        return plan if self.checkpoint is None else checkpointed(self, plan, source)

    def _run(self, X: Any, sample_weight: Any) -> Self:
        source = self._open(X, sample_weight, reset=True)
        start = self.model_ if self.warm_start and hasattr(self, "model_") else None
        fit = self._fit(source, self._plan(source), start)
        self._store(fit)
        self._stream: Any = continued(fit)
        return self

    def _store(self, fit: Fit[Any]) -> None:
        self.model_ = self._reported(fit.model)
        self.lower_bounds_ = fit.trace
        self.lower_bound_ = fit.trace[-1] if fit.trace else -np.inf
        self.n_iter_ = fit.outcome.n_iter
        self.n_samples_seen_ = fit.frame.weight
        self.training_digest_ = fit.frame.digest
        self.converged_ = fit.outcome.converged
        self.interrupted_ = fit.outcome.interrupted
        self.events_ = list(fit.worries)
        self._publish(self.model_)
        warn_of(fit.worries)
        # The other methods run for a planned number of passes, at whose end nothing is tested.
        if self.method == "em" and not self.converged_ and not self.interrupted_:
            warn_caller(
                f"EM reached max_iter={self.max_iter} before the {self._height} settled (tol={self.tol:g}); "
                "raise max_iter or tol",
                ConvergenceWarning,
            )

    def _each(self, X: Any, function: Any) -> Tensor:
        """``function(rows)`` of every tile, joined along rows."""
        check_is_fitted(self)
        source = self._open(X, reset=False)
        return check_no_overflow(
            source.reduce(lambda rows, weight: ConcatenatedRows.of(function(rows))).concatenate()
        )

    def score_samples(self, X: Any) -> Array:
        """Log-density of each row, (n,)."""
        return to_numpy(self._each(X, lambda rows: self.model_.log_prob(rows.double())))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density of the rows, by their weights where they have any."""
        total, n = self._density(X, sample_weight)
        return total / n

    def _density(self, X: Any, sample_weight: Any = None) -> tuple[float, float]:
        """Weighted sum of the log-densities of rows and sum of the weights: two numbers, wherever the rows lie."""
        check_is_fitted(self)
        model = self.model_
        total = WeightedSum.over(
            self._open(X, sample_weight, reset=False), lambda rows: model.log_prob(rows.double())
        )
        if bool(total.value.isnan()):
            self.score_samples(X)  # names the row
        return float(total.value), float(total.weight)

    def _n_parameters(self) -> int:
        return int(sum(value.numel() for value in self.model_.free().values()))

    def aic(self, X: Any, sample_weight: Any = None) -> float:
        """Akaike's information criterion on X; lower is better."""
        return -2.0 * self._density(X, sample_weight)[0] + 2.0 * self._n_parameters()

    def bic(self, X: Any, sample_weight: Any = None) -> float:
        """Bayesian information criterion on X, whose number of rows is the sum of weights; lower is better."""
        total, n = self._density(X, sample_weight)
        return -2.0 * total + self._n_parameters() * math.log(n)

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Draw rows from the fitted model, with the latent variable of each."""
        check_is_fitted(self)
        if check_count(n_samples, "n_samples", None) < 1:
            raise ValueError(
                f"Invalid value for 'n_samples': {n_samples}. The sampling requires at least one sample."
            )
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
        frame = coordinates(source, self._kind)
        model = to_standard(self.model_, frame, self._kind)
        if self._kind == "none":
            found = standard_errors(model, source)
        else:
            rows = self._condensed(StandardisedSource(source, frame))
            found = standard_errors(model, rows, lambda m: m.affine(frame.origin, frame.scale).named())
        return {name: to_numpy(value) for name, value in found.errors.items()}

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """Mean log-likelihood of a row after each round of the fit.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(100, 2))
            >>> GaussianMixture(1).fit(X).plot_trace().get_xlabel()
            'round'
        """
        check_is_fitted(self)
        from boxloop.figures import trace

        told = "interrupted" if self.interrupted_ else ("settled" if self.converged_ else "not settled")
        title, up = f"{type(self).__name__}: the fit", "mean log-likelihood of a row"
        return trace(self.lower_bounds_, ax, title=title, up=up, told=f"{told}: {self.lower_bound_:.6g}")

    def _names(self) -> list[str]:
        return [
            str(name)
            for name in getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        ]

    def _from_tree(self, tree: Any) -> None:
        super()._from_tree(tree)
        self._publish(tree)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = self._sparse
        return tags


def is_double(estimator: Any, saved: Saved) -> str | None:
    """A check of a file: its model is of the precision in which it is published."""
    dtype = saved.axes["dtype"]
    return None if dtype == torch.float64 else f"its model holds {dtype}, not torch.float64"


def latent_file(model: type, *parts: type, checks: tuple[Check, ...] = ()) -> ModelFile:
    """The file of a :class:`LatentEstimator`.

    Args:
        model: class of its model.
        parts: classes that the model may consist of.
        checks: of the estimator against its file.
    """
    return ModelFile(model, parts, CONSTRAINTS, FACTS, checks=(is_double, *checks))


def check_no_overflow(found: Tensor) -> Tensor:
    """What a model says of rows, (n, ...), unless it is not a number.

    Raises:
        ValueError: a row so far away that infinity was taken from infinity; the message names it.
    """
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
