"""Energy-based models as an estimator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from boxloop.data import (
    ConcatenatedRows,
    StandardisedSource,
    WeightedSum,
    check_count,
    is_read_in_place,
    on_device,
    open_source,
    validate_rows,
)
from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.estimators._base import Array, DeviceEstimator, check_no_overflow, to_numpy, warn_of
from boxloop.estimators._params import COMMON, pick_device, pick_dtype
from boxloop.estimators.energy_fit import (
    KERNELS,
    Means,
    disagreement,
    explore,
    frame_of,
    remaining_gain,
    start_model,
    train,
)
from boxloop.estimators.learned import COUNT, POSITIVE, RATE, fingerprint
from boxloop.fit import STATES, ChainState, Cooling, EnergyPlan, TrainState, averaged
from boxloop.loop import Outcome
from boxloop.models import CONSTRAINTS, EnergyModel, Perceptron
from boxloop.numeric import generator, spawn
from boxloop.persist import (
    PROGRESS,
    CheckpointWriter,
    ModelFile,
    ModelFileError,
    Saved,
    SaveMixin,
    read_checkpoint,
)
from boxloop.progress import ProgressBar
from boxloop.types import Source

APART = 0.15
"""Largest difference of mean energies, and gain of one more step, in nats besides noise, of a fit that has settled."""

LEAST_CHAINS = 256
"""Chains annealed for even one draw: it is chosen among them by weight."""


WATCHERS = ("verbose", "checkpoint", "partition_chains", "device")
"""Parameters that do not change the path of the fit."""


def _has_partition(estimator: Any, saved: Saved) -> str | None:
    model: Any = saved.tree
    if model.log_partition is None or model.log_partition_error is None or model.draws is None:
        return "the fields 'log_partition', 'log_partition_error' and 'draws' must be tensors"
    if estimator.energy is None and tuple(estimator.hidden) != model.network.hidden:
        return f"the parameter 'hidden' is {estimator.hidden}, but the network has {model.network.hidden}"
    return None


@dataclass(eq=False, repr=False, kw_only=True)
class EnergyBasedModel(SaveMixin, DeviceEstimator, DensityMixin, BaseEstimator):
    r"""A density given by a network, up to a constant that is estimated.

    .. math:: p(x) = \frac{b(u) \, e^{-V_\theta(u)}}{Z \prod_j s_j}, \qquad u = (x - o) / s

    Document 002, section 1.1: trained by the gradient of the likelihood, whose second term is a mean over persistent
    Markov chains with a Metropolis correction. V tilts a Gaussian base b in standard coordinates, which keeps the
    density normalisable; :mod:`boxloop.models.energy` says why. log Z comes from annealed importance sampling.

    Args:
        energy: a ``torch.nn.Module`` (n, d) -> (n,) over standardised rows; a perceptron when ``None``.
        hidden: widths of the perceptron's layers.
        base: covariance of the Gaussian base, ``full`` or ``diag``; ``None`` for an energy that confines itself.
        max_iter: updates, one mini-batch each.
        learning_rate: of AdamW, at first; it falls to zero along a cosine.
        batch_size: rows of a mini-batch.
        chains: moved at each update.
        steps: of each chain at each update.
        buffer: chains that are kept; each update moves some of them.
        restart: share of the moved chains that start anew from the base.
        weight_decay: of AdamW; worth a third of the divergence at 1000 rows and fewer, dear at many: lower it there.
        shrink: weight of the mean square of V, which holds it near zero.
        clip: largest norm of a gradient.
        kernel: ``mala``, ``hmc``, ``random_walk``, or a function (log-density, scale) -> kernel.
        partition_chains: chains annealed for log Z, and draws kept for criticism.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of training, ``float64`` or ``float32``.

    Attributes:
        model_: the fitted :class:`boxloop.models.energy.EnergyModel`, with draws by which it can be criticised.
        log_partition_: log Z.
        log_partition_error_: its standard error; it shifts all log-densities alike.
        contrast_: mean energy of the fitted model's draws less that of the rows: zero at a maximum of the likelihood.
        contrast_error_: its standard error.
        contrasts_: the same of the training's chains at each update.
        converged_: whether draws and rows agree, in their mean energy and in its derivatives by the parameters.
        events_: what went wrong on the way.
        n_iter_: updates done.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators.energy_model import EnergyBasedModel
        >>> rng = np.random.default_rng(0)
        >>> X = rng.choice([-2.0, 2.0], size=(500, 1)) + 0.5 * rng.normal(size=(500, 1))
        >>> fit = EnergyBasedModel(hidden=(16, 16), max_iter=1000, learning_rate=0.01, random_state=0).fit(X)
        >>> bool(fit.score_samples([[2.0]]) > fit.score_samples([[0.0]]))
        True
    """

    energy: nn.Module | None = field(default=None, kw_only=False)
    hidden: Any = (64, 64)
    base: str | None = "full"
    max_iter: int = 2000
    learning_rate: float = 3e-3
    batch_size: int = 256
    chains: int = 256
    steps: int = 10
    buffer: int = 1024
    restart: float = 0.02
    weight_decay: float = 0.1
    shrink: float = 0.0
    clip: float = 10.0
    kernel: Any = "mala"
    partition_chains: int = 4096
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str = "float64"

    _model_file: ClassVar[ModelFile] = ModelFile(
        EnergyModel,
        (Perceptron, DiagonalGaussian, FullGaussian),
        CONSTRAINTS,
        {**PROGRESS, "n_samples_seen_": float, "contrasts_": list[float], "training_digest_": str | None},
        checks=(_has_partition,),
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "energy": [nn.Module, None],
        "hidden": ["array-like"],
        "base": [StrOptions({"full", "diag"}), None],
        **{name: [COUNT] for name in ("batch_size", "chains", "steps", "buffer")},
        **{name: [POSITIVE] for name in ("learning_rate", "clip")},
        **{name: [RATE] for name in ("weight_decay", "shrink")},
        "restart": [Interval(Real, 0.0, 1.0, closed="both")],
        "kernel": [StrOptions(set(KERNELS)), callable],
        "partition_chains": [Interval(Integral, 16, None, closed="left")],
        **{
            name: COMMON[name]
            for name in ("max_iter", "random_state", "verbose", "checkpoint", "device", "dtype")
        },
    }

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        """Any table as a source on the right device."""
        if is_read_in_place(X):
            source = open_source(X, sample_weight)
            if reset:
                self.n_features_in_ = source.n_columns
            elif source.n_columns != self.n_features_in_:
                raise ValueError(f"X has {source.n_columns} columns, the fit had {self.n_features_in_}")
        else:
            rows = validate_rows(self, X, reset=reset, dtype=[np.float64, np.float32])
            source = open_source(rows, sample_weight)
        return on_device(source, pick_device(self.device))

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the energy, estimate its partition function, and keep draws.

        Args:
            X: whole rows (n, d): an array, frame, source, or a path of a file or folder of rows in random order.
            y: ignored.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        frame = frame_of(source)
        rows = StandardisedSource(source, frame, pick_dtype(self.dtype))
        streams = spawn(generator(self.random_state, frame.origin.device), 3)
        start = start_model(self.energy, self.hidden, self.base, rows, streams[0])  # type: ignore[arg-type]
        outcome = self._train(start, rows, streams[1])
        model = averaged(start, outcome.state)
        found, drawn = explore(model, self._means(), self.partition_chains, streams[2])
        model = replace(
            model,
            log_partition=frame.origin.new_tensor(found.log_mean),
            log_partition_error=frame.origin.new_tensor(found.error),
            draws=drawn.double(),
        )
        self.n_samples_seen_, self.training_digest_ = frame.weight, frame.digest
        self.contrast_, self.contrast_error_ = disagreement(model, rows, drawn)
        unsettled = self._unsettled(*remaining_gain(model, rows, drawn, streams[2]))
        doubts = list(found.doubts("up from the base"))
        if unsettled and not outcome.interrupted:
            doubts.append(unsettled)
        self._store(model.affine(frame.origin, frame.scale), outcome, doubts, not unsettled)
        return self

    def _means(self) -> Means:
        return Means.of(self.kernel, self.n_features_in_)

    def _train(
        self, model: EnergyModel, rows: StandardisedSource, stream: torch.Generator
    ) -> Outcome[TrainState]:
        observers: list[Any] = [ProgressBar(show=True).stage(type(self).__name__)] if self.verbose else []
        resume = None
        if self.checkpoint is not None:
            known, path = fingerprint(self, rows.source, WATCHERS, ("energy",)), Path(self.checkpoint)
            resume = (
                read_checkpoint(path, {**STATES, "ChainState": ChainState}, known) if path.exists() else None
            )
            observers.append(CheckpointWriter(path, known, seconds=10.0))
        plan = EnergyPlan(
            Cooling(self.learning_rate, self.max_iter),
            chains=self.chains,
            steps=self.steps,
            restart=self.restart,
            clip=self.clip,
            decay=self.weight_decay,
            shrink=self.shrink,
        )
        return train(
            model,
            rows,
            self._means(),
            plan,
            steps=self.max_iter,
            buffer=self.buffer,
            batch_size=self.batch_size,
            stream=stream,
            observers=observers,
            resume=resume,
        )

    def _unsettled(self, gain: float, noise: float) -> str:
        """Why the fit has not settled; empty where it has."""
        if abs(self.contrast_) > APART + 4.0 * self.contrast_error_:
            return (
                f"energies of the model's draws and of the rows differ by {self.contrast_:.2f} on average: the fit has "
                "not settled; raise max_iter or steps, or lower restart"
            )
        if gain > APART + 4.0 * noise:
            return (
                f"the log-likelihood per row would still rise by about {gain:.2f} in one more step: the fit has not "
                "settled; raise max_iter or learning_rate"
            )
        return ""

    def _store(
        self, model: EnergyModel, outcome: Outcome[TrainState], doubts: list[str], settled: bool
    ) -> None:
        self.n_iter_ = outcome.n_iter
        self.interrupted_ = outcome.interrupted
        self.converged_ = settled and not outcome.interrupted
        self.contrasts_ = list(outcome.trace)
        self.events_ = [*outcome.events, *doubts]
        self._publish(model)
        warn_of(self.events_)

    def _publish(self, model: EnergyModel) -> None:
        self.model_ = model
        assert model.log_partition is not None
        assert model.log_partition_error is not None
        self.log_partition_ = float(model.log_partition)
        self.log_partition_error_ = float(model.log_partition_error)

    def _each(self, X: Any, function: Callable[[Tensor], Tensor]) -> Array:
        check_is_fitted(self)
        source = self._open(X, reset=False)
        with torch.no_grad():
            found = source.reduce(lambda rows, weight: ConcatenatedRows.of(function(rows.double())))
        return to_numpy(check_no_overflow(found.concatenate()))

    def energy_of(self, X: Any) -> Array:
        """E(x) of each row, (n,): minus the log-density, but for ``log_partition_``."""
        return self._each(X, lambda rows: self.model_.energy(rows))

    def score_samples(self, X: Any) -> Array:
        """Log-density of each row, (n,); all share the error of log Z."""
        return self._each(X, lambda rows: self.model_.log_prob(rows))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density of the rows, by their weights where they have any."""
        check_is_fitted(self)
        with torch.no_grad():
            mean = WeightedSum.over(
                self._open(X, sample_weight, reset=False), lambda rows: self.model_.log_prob(rows.double())
            ).mean
        if math.isnan(mean):
            self.score_samples(X)  # names the row
        return mean

    def n_parameters(self) -> int:
        """Number of trained parameters."""
        check_is_fitted(self)
        return sum(value.numel() for value in self.model_.parameters)

    def sample(self, n_samples: int = 1) -> Array:
        """Independent rows of the fitted model, (n, d), each from a chain of its own annealed from the base."""
        check_is_fitted(self)
        if check_count(n_samples, "n_samples", None) < 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples}. At least one sample is needed.")
        stream = generator(self.random_state, self.model_.origin.device)
        _, drawn = explore(self.model_, self._means(), max(n_samples, LEAST_CHAINS), stream)
        return to_numpy(self.model_.origin + self.model_.scale * drawn[:n_samples].double())

    def _to_tree(self) -> EnergyModel:
        if not isinstance(self.model_.network, Perceptron):
            raise ModelFileError(
                "only the default energy can be saved: a module of yours is code, save its parameters"
            )
        return self.model_

    def _from_tree(self, tree: EnergyModel) -> None:
        self._publish(tree)
