"""Base of the network estimators: rows in standard units, training, a posterior over weights, audit and files."""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from boxloop.data import ArraySource, check_weight, to_labels, to_vector, validate_rows
from boxloop.estimators._base import Array, DeviceEstimator, warn_of
from boxloop.estimators._input import COMMON, pick_device, pick_dtype
from boxloop.estimators._training import COUNT, POSITIVE as POSITIVE_NUMBER, RATE
from boxloop.fit import coordinates
from boxloop.networks import (
    ACTIVATIONS,
    CLASSES,
    CONSTRAINTS,
    KEEP,
    METHOD_NAMES,
    SWA,
    Audit,
    Kind,
    Loss,
    MultiPosterior,
    PosteriorState,
    Predictor,
    RegressionMoments,
    ShuffledBatches,
    StackedLayers,
    TrainingHistory,
    WeightPosterior,
    WeightWarning,
    WindowAverage,
    audit,
    check_row_independence,
    has_batch_norm,
    linear_regression,
    make_perceptron,
    pick_method,
    sum_loss_over_members,
    train,
    weight_decay,
    weight_loss_by_row,
)
from boxloop.numeric import ConditionError, generator, seed, spawn
from boxloop.persist import (
    LOCATION,
    POSITIVE,
    PROGRESS,
    SCALE,
    Array as ArrayConstraint,
    Axes,
    Constraints,
    ModelFile,
    ModelFileError,
    Nested,
    Number,
    Saved,
    SaveMixin,
    Table,
    Values,
    load_model,
)
from boxloop.tree import DictTree, Tree, from_tree, to_tree

BLOCK = 1 << 16
"""Rows that are predicted at one time."""
MIN_VALIDATION, ENOUGH_VALIDATION, MAX_SHARE = 8, 50, 0.25
"""Rows below which none are held out; rows that are held out at least, unless they exceed this share."""
STEPS, MIN_EPOCHS, MAX_EPOCHS = 2000, 10, 500
"""Default length of the training: about so many steps, within these numbers of epochs."""
INITIAL_NOISE = 0.05
"""Initial noise variance, as a share of the residual variance of a linear function. All of it would give a weight decay
that keeps the network linear, whose residuals then confirm that noise."""
MIN_NOISE = 1e-6
"""Smallest noise variance, relative to the variance of y."""
VECTORS = 500
"""Weight vectors that are observed, approximately."""
MAX_RATE, HALVINGS, TRIAL_STEPS = 0.1, 10, 100
"""Rates of SGD if none is given: the first, how many are tried, each half the previous, and steps of a trial."""
MAX_RISE, MAX_MEAN_RISE = 1.25, 1.5
"""Factors by which the loss may rise in a trial and over the collection: draws from a posterior that determines one
weight for every four rows raise it by a quarter, and SGD may leave the minimum slowly."""
BURN_IN = 0.1
"""Share of the collection that is not observed, while SGD leaves the minimum."""
REVISIONS, NOISE_FACTOR = 3, 1.5
"""How often training continues with a revised noise, and the factor up to which two noise variances agree."""


@dataclass(frozen=True)
class ColumnScaling(Tree):
    """Origin and scale of columns, (d,) each, float64; an infinite scale makes a constant column 0."""

    origin: Tensor
    scale: Tensor

    @classmethod
    def from_table(cls, table: Array, names: list[str], weight: Tensor | None = None) -> ColumnScaling:
        """Mean and standard deviation of the columns of a finite table (n, d), with optional row weights."""
        frame = coordinates(ArraySource(_to_tensor(table), weight, columns=tuple(names)), "columns")
        return cls(frame.origin.double(), torch.where(frame.constant, torch.inf, frame.scale.double()))

    def constant_columns(self, names: list[str]) -> list[str]:
        """Names of the constant columns."""
        return [name for name, scale in zip(names, self.scale.tolist(), strict=True) if scale == np.inf]

    def with_finite_scale(self) -> ColumnScaling:
        """The same, with scale 1 for constant columns."""
        return ColumnScaling(self.origin, torch.where(self.scale.isinf(), 1.0, self.scale))

    def standardise(self, table: Array, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Rows in these units."""
        return ((_to_tensor(table) - self.origin) / self.scale).to(device=device, dtype=dtype)


def _to_tensor(table: Array) -> Tensor:
    """A table as a tensor, copied if it is read-only, of which torch would warn."""
    return torch.from_numpy(np.require(table, dtype=np.float64, requirements=["C", "W"]))


def drop_zero_weights(
    X: Array, y: NDArray[Any], sample_weight: Any
) -> tuple[Array, NDArray[Any], Tensor | None]:
    """Rows, outputs and checked weights (n,), without rows of weight zero; None if there are no weights."""
    if sample_weight is None:
        return X, y, None
    weight = check_weight(sample_weight, len(X)).cpu()
    positive = (weight > 0.0).numpy()
    return X[positive], y[positive], weight[positive]


def fingerprint_rows(
    X: Array, y: Array | NDArray[np.int64], x_units: ColumnScaling, y_units: ColumnScaling | None
) -> list[float]:
    r"""Numbers that identify rows and their order: n, and :math:`\sum_i \cos(i) x_i` of every column."""
    cpu = torch.device("cpu")
    factors = torch.arange(len(X), dtype=torch.float64).cos()
    numbers = y.astype(np.float64)
    outputs = (
        _to_tensor(numbers[:, None]) if y_units is None else y_units.standardise(numbers, torch.float64, cpu)
    )
    inputs = x_units.standardise(X, torch.float64, cpu)
    return [float(len(X)), *(factors @ inputs).tolist(), *(factors @ outputs).tolist()]


def hold_out(y: Array | NDArray[np.int64], share: float, stream: Generator) -> NDArray[np.bool_]:
    """Which rows are held out, (n,): at random, and the same share of each class, rounded down.

    At least 50, or a quarter if that is less, as fewer determine the noise poorly; none if even that is below 8.
    """
    share = max(share, min(ENOUGH_VALIDATION / len(y), MAX_SHARE)) if share > 0.0 else 0.0
    order = torch.randperm(len(y), generator=stream).numpy()
    mask = np.zeros(len(y), dtype=bool)
    groups = [order] if y.ndim > 1 else [order[y[order] == label] for label in np.unique(y)]
    for group in groups:
        mask[group[: int(share * len(group) + 1e-9)]] = True
    return mask if mask.sum() >= MIN_VALIDATION else np.zeros_like(mask)


def check_finite_outputs(outputs: Array, start: int) -> None:
    """Refuse outputs (m, n, ...) that overflowed and name the row; ``start`` is the number of the first."""
    infinite = ~np.isfinite(outputs).all(axis=(0, *range(2, outputs.ndim)))
    if infinite.any():
        raise ValueError(
            f"Row {start + int(infinite.argmax())} (counted from 0) of X is so far from the rows of the fit that the "
            "networks overflow: remove it, or rescale it as the rows of the fit."
        )


@dataclass(frozen=True)
class TrainingData:
    """Rows in standard units, for training and held out; y is numbers (n, q) or class numbers (n,)."""

    x: Tensor
    y: Tensor
    validation_x: Tensor | None
    validation_y: Tensor | None
    n_outputs: int
    weight: Tensor | None = None
    validation_weight: Tensor | None = None

    @property
    def is_classification(self) -> bool:
        """Whether y holds classes."""
        return not self.y.is_floating_point()

    @property
    def total_weight(self) -> float:
        """N, the sum of the weights."""
        return float(len(self.x) if self.weight is None else self.weight.sum())


@dataclass(frozen=True)
class MemberGroup:
    """Networks trained together as one module: each shares its parameters with ``net``, whose batches, unless
    it is one module of the user's, have an axis of members.
    """

    net: nn.Module
    nets: tuple[nn.Module, ...]
    streams: tuple[Generator, ...]
    seeds: tuple[int, ...]
    is_module: bool


def make_groups(estimator: BaseEstimator, data: TrainingData, stream: Generator) -> list[MemberGroup]:
    """One group of all perceptrons of the library, or a group for each module of the user."""
    device, dtype = pick_device(estimator.device), pick_dtype(estimator.dtype)
    starts, orders, observations = (spawn(one, estimator.members) for one in spawn(stream, 3))
    seeds = [seed(one) for one in observations]
    if estimator.module is None:
        for width in estimator.hidden:
            if type(width) is bool or not isinstance(width, Integral) or width < 1:
                raise ValueError(
                    f"hidden must hold whole numbers above 0, the widths of layers, got {width!r}"
                )
        widths = (data.x.shape[1], *(int(width) for width in estimator.hidden), data.n_outputs)
        stack = StackedLayers(widths, estimator.activation, starts, dtype, device)
        return [MemberGroup(stack, stack.split_members(), tuple(orders), tuple(seeds), False)]
    nets = [_make_module(estimator, one).to(device=device, dtype=dtype) for one in starts]
    _check_module(nets[0], data)
    return [
        MemberGroup(net, (net,), (order,), (own,), True)
        for net, order, own in zip(nets, orders, seeds, strict=True)
    ]


def _make_module(estimator: BaseEstimator, stream: Generator) -> nn.Module:
    """A network of the user: a copy of the module, or what the function returns."""
    module = estimator.module
    if isinstance(module, nn.Module):
        if estimator.members > 1:
            raise ValueError(
                f"members={estimator.members} networks would all start from the same module: pass as module= a "
                "function that makes one, given a torch.Generator"
            )
        return copy.deepcopy(module)
    made = module(stream)
    if not isinstance(made, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, or return one, got a {type(made).__name__}")
    return made


def _check_module(net: nn.Module, data: TrainingData) -> None:
    """Require one column per output or class, for each row independently."""
    check_row_independence(net)
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.no_grad():
            outputs = net.eval()(data.x[:2])
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(
            f"module cannot be evaluated at rows of {data.x.shape[1]} columns and {data.x.dtype}: {error}"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    q = data.n_outputs
    if tuple(outputs.shape) != (len(data.x[:2]), q):
        what = "logits of the classes" if data.is_classification else "outputs"
        raise ValueError(f"module must return {q} {what} per row, (n, {q}), got {tuple(outputs.shape)}")


@dataclass(frozen=True)
class TrainedMembers:
    """The result of a training: a posterior for each member, and the mean loss of members in each epoch."""

    posteriors: tuple[WeightPosterior, ...]
    losses: tuple[float, ...]
    rate: float
    decay: float
    interrupted: bool
    events: tuple[str, ...]


@dataclass(frozen=True)
class MemberTraining:
    """The training of a group of members: Adam to a minimum, then SGD around it, whose weights are observed."""

    estimator: BaseEstimator
    data: TrainingData
    group: MemberGroup

    @property
    def batch_size(self) -> int:
        """Rows of a batch, at most."""
        return int(self.estimator.batch_size or max(16, min(128, len(self.data.x) // 12)))

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.data.x) // self.batch_size)

    @property
    def epochs(self) -> int:
        """Epochs of Adam."""
        default = max(MIN_EPOCHS, min(MAX_EPOCHS, -(-STEPS // self.steps_per_epoch)))
        return int(self.estimator.epochs or default)

    @property
    def collection_epochs(self) -> int:
        """Epochs of SGD."""
        return int(self.estimator.collect or max(MIN_EPOCHS, self.epochs // 2))

    def run(self) -> TrainedMembers:
        """Train and collect, until the noise behind the weight decay agrees with the estimated noise."""
        noise = self.initial_noise()
        adam = self._make_adam()
        losses: tuple[float, ...] = ()
        half = self.epochs // 2
        for epochs, annealed in ((half, False), (self.epochs - half, True)):
            if epochs:
                history, decay = self._run_adam(adam, noise, epochs, annealed)
                losses += self._member_losses(history)
                if history.interrupted:
                    return self._stop_early(losses, decay)
                noise = self.residual_variance(noise)
        result = self.collect_weights(noise, losses)
        for _ in range(REVISIONS):
            if result.interrupted:
                break
            revised = self.estimate_noise(result.posteriors, noise)
            if 1.0 / NOISE_FACTOR <= revised / noise <= NOISE_FACTOR:
                break
            noise = revised
            result = self._retrain_with_noise(result, noise)
        return result

    def initial_noise(self) -> float:
        """The initial noise variance: a share of the residual variance of the best linear function."""
        if self.data.is_classification:
            return 1.0
        x, y = self.data.x.double(), self.data.y.double()
        posterior, _ = linear_regression(RegressionMoments.from_rows(x, y, self.data.weight))
        return _limit_variance(INITIAL_NOISE * posterior.beta.reciprocal())

    def residual_variance(self, previous: float) -> float:
        """The residual variance of the networks on held-out rows, or else on the training rows."""
        if self.data.is_classification:
            return previous
        x, y, weight = self.data.x, self.data.y, self.data.weight
        if self.data.validation_x is not None and self.data.validation_y is not None:
            x, y, weight = self.data.validation_x, self.data.validation_y, self.data.validation_weight
        with self._in_evaluation_mode() as net, torch.no_grad():
            square = (net(x) - y).square()
            if weight is not None:
                square = square * (weight / weight.mean())[:, None]
            return _limit_variance(square)

    def estimate_noise(self, posteriors: Sequence[WeightPosterior], previous: float) -> float:
        """The noise variance that held-out rows imply, beside the epistemic variance."""
        if self.data.is_classification or self.data.validation_x is None:
            return previous
        mixture = MultiPosterior(posteriors)
        mixture.components()  # warns once of what is wrong with them
        with self._in_evaluation_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore", WeightWarning)  # this tuning may not be the last
            predictor = tune_predictor(self.estimator, mixture, self.data, self.group.seeds[0])
        return _limit_variance(torch.as_tensor(predictor.noise).square())

    def collect_weights(self, noise: float, losses: tuple[float, ...]) -> TrainedMembers:
        """SGD around the minimum, at the highest rate at which the loss stays near it."""
        start = {name: value.clone() for name, value in self.group.net.state_dict().items()}
        fixed = self.estimator.collect_rate
        rates = [fixed] if fixed else [MAX_RATE / 2**halvings for halvings in range(HALVINGS)]
        for rate in rates:
            if not fixed and not self._is_rate_stable(start, noise, rate, MAX_RISE * losses[-1]):
                continue
            try:
                result = self._observe_weights(start, noise, rate, losses)
            except (FloatingPointError, ConditionError):
                if fixed:
                    raise
                continue
            collected = result.losses[len(losses) :]
            mean_limit = len(collected) * MAX_MEAN_RISE * losses[-1]
            if fixed or result.interrupted or sum(collected) <= mean_limit:
                return result
        raise FloatingPointError(
            f"SGD diverges from the minimum even at a rate of {rates[-1]:.2g}: remove rows far from all others, or set "
            "collect_rate."
        )

    def _train(self, optimiser: Optimizer, epochs: int, name: str = "", **options: Any) -> TrainingHistory:
        """Some epochs, with a progress bar if they have a name and ``verbose`` is set."""
        data, group = self.data, self.group
        loss: Loss = cross_entropy if data.is_classification else mse_loss
        if data.weight is not None:
            per_row = _cross_entropy_per_row if data.is_classification else _squared_error_per_row
            loss = weight_loss_by_row(per_row, float(data.weight.mean()))
        if not group.is_module:
            loss = sum_loss_over_members(loss, len(group.nets))
        batches = ShuffledBatches(
            data.x, data.y, self.batch_size, group.streams, group.is_module, data.weight
        )
        bar = f"{type(self.estimator).__name__}: {name}" if self.estimator.verbose and name else ""
        return train(group.net, batches, loss, optimiser, epochs=epochs, bar=bar, **options)

    def _member_losses(self, history: TrainingHistory) -> tuple[float, ...]:
        """Mean losses of a member; the loss of a group is the sum."""
        return tuple(value / len(self.group.nets) for value in history.losses)

    def _set_decay(self, optimiser: Optimizer, noise: float) -> float:
        """Set the weight decay that corresponds to the prior, for observations with this noise variance."""
        alpha, n = self.estimator.prior_precision, self.data.total_weight
        if self.data.is_classification:
            decay = weight_decay(alpha, n, "mean_log")
        else:
            decay = weight_decay(alpha, n, "mean_squared", 1.0 / noise, self.data.n_outputs)
        for group in optimiser.param_groups:
            group["weight_decay"] = decay
        return decay

    def _make_adam(self) -> Adam:
        net = self.group.net
        return Adam(net.parameters(), lr=self.estimator.learning_rate, fused=_has_fused_kernel(net))

    def _make_sgd(self, start: dict[str, Tensor], noise: float, rate: float) -> SGD:
        """SGD from the minimum."""
        net = self.group.net
        net.load_state_dict(start)
        momentum, fused = self.estimator.momentum, _has_fused_kernel(net)
        sgd = SGD(net.parameters(), lr=rate, momentum=momentum, fused=fused)
        self._set_decay(sgd, noise)
        return sgd

    def _run_adam(
        self, adam: Adam, noise: float, epochs: int, annealed: bool
    ) -> tuple[TrainingHistory, float]:
        """Epochs of Adam at a constant rate, or at one that falls to nearly 0; and the weight decay."""
        decay = self._set_decay(adam, noise)
        for group in adam.param_groups:
            group["lr"] = self.estimator.learning_rate
        scheduler = None
        if annealed:
            scheduler = LambdaLR(adam, lambda epoch: 0.5 * (1.0 + math.cos(math.pi * epoch / (epochs + 1))))
        return self._train(adam, epochs, "training", scheduler=scheduler), decay

    def _is_rate_stable(self, start: dict[str, Tensor], noise: float, rate: float, limit: float) -> bool:
        """Whether the loss stays below a limit in a trial."""
        sgd = self._make_sgd(start, noise, rate)
        try:
            history = self._train(sgd, -(-TRIAL_STEPS // self.steps_per_epoch))
        except FloatingPointError:
            return False
        return history.interrupted or self._member_losses(history)[-1] <= limit

    def _observe_weights(
        self, start: dict[str, Tensor], noise: float, rate: float, losses: tuple[float, ...]
    ) -> TrainedMembers:
        """Posteriors of all members, from SGD at a rate."""
        estimator, epochs = self.estimator, self.collection_epochs
        posteriors = tuple(
            WeightPosterior(net, estimator.method, estimator.rank, random_state=own)
            for net, own in zip(self.group.nets, self.group.seeds, strict=True)
        )
        sgd = self._make_sgd(start, noise, rate)
        burn_in = int(BURN_IN * epochs)
        every = max(1, (epochs - burn_in) * self.steps_per_epoch // VECTORS)
        history = self._train(sgd, epochs, "collecting", posteriors=posteriors, burn_in=burn_in, every=every)
        losses, decay = (*losses, *self._member_losses(history)), sgd.param_groups[0]["weight_decay"]
        count = min(one.count for one in posteriors)
        if history.interrupted and count < posteriors[0].method.min_vectors:
            return self._stop_early(losses, decay)
        message = f"interrupted while weights were collected, after {count} vectors"
        events = (message,) if history.interrupted else history.events
        return TrainedMembers(posteriors, losses, rate, decay, history.interrupted, events)

    def _retrain_with_noise(self, previous: TrainedMembers, noise: float) -> TrainedMembers:
        """Continue the training with another noise, and collect again; the previous weights if that fails."""
        history, _ = self._run_adam(self._make_adam(), noise, max(1, self.epochs // 2), True)
        losses = previous.losses + self._member_losses(history)
        if history.interrupted:
            message = "interrupted while the noise was revised: the weights are those collected before"
            events = (*previous.events, message)
            return replace(previous, losses=losses, interrupted=True, events=events)
        try:
            return self.collect_weights(noise, losses)
        except FloatingPointError:
            message = (
                f"the weight decay assumes another noise: with {noise**0.5:.2g} standard deviations of y, which rows "
                "held out imply, SGD diverges at every rate"
            )
            return replace(previous, losses=losses, events=(*previous.events, message))

    def _stop_early(self, losses: tuple[float, ...], decay: float) -> TrainedMembers:
        """The current networks, after Ctrl-C before weights were collected."""
        points = tuple(WeightPosterior(net, "swa", random_state=0) for net in self.group.nets)
        for point in points:
            point.observe()
        message = "interrupted before weights were collected: the networks have no weight uncertainty"
        return TrainedMembers(points, losses, math.nan, decay, True, (message,))

    @contextmanager
    def _in_evaluation_mode(self) -> Iterator[nn.Module]:
        net = self.group.net
        training = net.training
        try:
            yield net.eval()
        finally:
            net.train(training)


def tune_predictor(
    estimator: BaseEstimator, posterior: MultiPosterior, data: TrainingData, own_seed: int
) -> Predictor:
    """A predictor with scale, and noise or temperature, from held-out rows."""
    kind: Kind = "classification" if data.is_classification else "regression"
    refresh = data.x if has_batch_norm(posterior.components()) else None
    predictor = Predictor.from_posterior(
        posterior, kind, estimator.n_draws, refresh=refresh, random_state=own_seed
    )
    if data.validation_x is not None and data.validation_y is not None:
        return predictor.tune(data.validation_x, data.validation_y, sample_weight=data.validation_weight)
    return predictor if data.is_classification else predictor.estimate_noise(data.x, data.y, data.weight)


def _squared_error_per_row(out: Tensor, y: Tensor) -> Tensor:
    return mse_loss(out, y, reduction="none").mean(-1)


def _cross_entropy_per_row(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out, y, reduction="none")


def _limit_variance(values: Tensor) -> float:
    return min(max(float(values.double().mean()), MIN_NOISE), 1.0)


def _has_fused_kernel(net: nn.Module) -> bool:
    return next(net.parameters()).device.type in ("cpu", "cuda")


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkEstimator(SaveMixin, DeviceEstimator, BaseEstimator):
    """Base of ``NetworkRegressor`` and ``NetworkClassifier``."""

    hidden: Any = field(default=(50,), kw_only=False)
    module: Any = None
    activation: str = "relu"
    method: Any = "factor"
    rank: int = 10
    members: int = 1
    n_draws: int = 30
    learning_rate: float = 0.01
    epochs: int | None = None
    collect: int | None = None
    collect_rate: float | None = None
    momentum: float = 0.9
    batch_size: int | None = None
    prior_precision: float = 10.0
    validation_fraction: float = 0.1
    random_state: Any = None
    verbose: int = 0
    device: str = "cpu"
    dtype: str = "float64"

    _task: ClassVar[Kind]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden": ["array-like"],
        "module": [nn.Module, callable, None],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "method": [StrOptions(set(METHOD_NAMES)), object],
        "learning_rate": [POSITIVE_NUMBER],
        "prior_precision": [RATE],
        "momentum": [Interval(Real, 0.0, 1.0, closed="left")],
        "collect_rate": [POSITIVE_NUMBER, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        **{name: [COUNT] for name in ("rank", "members", "n_draws")},
        **{name: [COUNT, None] for name in ("epochs", "collect", "batch_size")},
        **{name: COMMON[name] for name in ("random_state", "verbose", "device", "dtype")},
    }

    @abstractmethod
    def predict_distribution(self, X: Any) -> Any:
        """The predictive distribution for new rows."""

    @property
    def scale_(self) -> float:
        """Factor of the covariance of the weights."""
        return float(self.predictor_.scale)

    def audit(self, X: Any, y: Any, X_test: Any, y_test: Any, *, chains: int | None = None) -> Audit:
        r"""Compare the distribution over weights with the posterior, and test its predictions.

        The prior is that of the estimator, :math:`N(0, \alpha^{-1} I)` in standard units; noise, scale and temperature
        are those of the fit; N counts the rows that trained the networks. With several members, predictions of the
        ensemble are scored, and trajectory and last layer are those of the first member.

        Args:
            X: rows of the fit, (n, d), all of them and in their order.
            y: their numbers or labels.
            X_test: other rows.
            y_test: their numbers, or labels that occur in the fit.
            chains: number of Monte Carlo chains, as in :func:`boxloop.networks.audit`.

        Returns:
            :class:`boxloop.networks.Audit`; scores are in standard units.

        Raises:
            ValueError: X and y are not the rows of the fit; a new label; the fit had row weights; or ``random_state``
                is not an integer, from which the rows held out by the fit are found again.

        Example:
            >>> import numpy as np
            >>> from boxloop import NetworkRegressor
            >>> rng = np.random.default_rng(0)
            >>> X = rng.normal(size=(200, 1))
            >>> y = X[:, 0] ** 2 + 0.3 * rng.normal(size=200)
            >>> fit = NetworkRegressor((10,), epochs=30, collect=30, random_state=0).fit(X[:150], y[:150])
            >>> fit.audit(X[:150], y[:150], X[150:], y[150:], chains=0).title.rpartition(",")[0]
            'Audit of FactorEM: rank 10, 31 weights'
        """
        check_is_fitted(self)
        if self.weighted_:
            raise ValueError(
                "audit() does not support row weights: repeat rows by their weights, and fit without sample_weight."
            )
        trained = torch.from_numpy(training_rows(self, y))
        self._check_fitted_rows(X, y)
        rows, test_rows = self._standardise_rows(X)[trained], self._standardise_rows(X_test)
        outputs, test_outputs = _standardise_outputs(self, y)[trained], _standardise_outputs(self, y_test)
        members, predictor = self.posterior_.posteriors, self.predictor_
        optimiser = SGD(
            [value for one in self.posterior_.components() for value in one.net.parameters()],
            lr=1.0,
            weight_decay=self.weight_decay_,
        )
        options: dict[str, Any] = {
            "kind": self._task,
            "prior_precision": self.prior_precision,
            "noise": predictor.noise,
            "optimiser": optimiser,
        }
        tables = (rows, outputs, test_rows, test_outputs)
        first = audit(members[0], *tables, **options, predictor=predictor, chains=chains)
        if len(members) == 1:
            return _relax_weight_decay(first)
        ensemble = audit(self.posterior_, *tables, **options, predictor=predictor, chains=0)
        note = f"trajectory and last layer are those of the first of {len(members)} networks"
        assumptions = (*first.assumptions, note)
        return _relax_weight_decay(
            replace(first, title=ensemble.title, weight_decay=ensemble.weight_decay, assumptions=assumptions)
        )

    @classmethod
    def load(cls, path: str | PathLike[str], *, module: Any = None) -> Self:
        """Read a file of :meth:`save`, onto the CPU. Nothing in the file is executed.

        Args:
            path: the file.
            module: the module whose tensors were saved, or a function that makes it, if the fit had one.
        """
        return load_model(path, cls, {"module": module})

    def _fit_rows(
        self,
        X: Array,
        y: Array | NDArray[np.int64],
        y_units: ColumnScaling | None,
        events: Sequence[str] = (),
        weight: Tensor | None = None,
    ) -> Self:
        """Standardise, hold rows out, train, tune and store; rows are checked, and weights above 0."""
        method = pick_method(self.method, self.rank, self.rank)
        inner = method.inner if isinstance(method, WindowAverage) else method
        if self.n_draws < max(2, self.members) and not isinstance(inner, SWA):
            raise ValueError(
                f"n_draws={self.n_draws} must be at least {max(2, self.members)}: one draw per member, and two to "
                "estimate a variance; only method='swa' needs fewer"
            )
        if len(X) < 2:
            raise ValueError(f"A network needs at least 2 rows, got n_samples = {len(X)}")
        device, dtype = pick_device(self.device), pick_dtype(self.dtype)
        split, training, drawing = spawn(generator(self.random_state), 3)
        self.x_units_: ColumnScaling = ColumnScaling.from_table(X, self._column_names(), weight)
        self.y_units_ = y_units
        self._fingerprint = fingerprint_rows(X, y, self.x_units_, y_units)
        x = self.x_units_.standardise(X, dtype, device)
        if y_units is None:
            outputs = torch.from_numpy(y).to(device)
        else:
            outputs = y_units.standardise(np.asarray(y, dtype=np.float64), dtype, device)
        held = torch.from_numpy(hold_out(y, self.validation_fraction, split)).to(device)
        w = None if weight is None else weight.to(x)
        data = TrainingData(x, outputs, None, None, self.n_outputs_, w)
        if bool(held.any()):
            own_weights = (None, None) if w is None else (w[~held], w[held])
            data = TrainingData(
                x[~held], outputs[~held], x[held], outputs[held], self.n_outputs_, *own_weights
            )
        self.weighted_: bool = weight is not None
        results: list[TrainedMembers] = []
        for group in make_groups(self, data, training):
            results.append(MemberTraining(self, data, group).run())
            if results[-1].interrupted:
                break
        self._publish_training(results)
        self.predictor_: Predictor = tune_predictor(self, self.posterior_, data, seed(drawing))
        messages = (event for result in results for event in result.events)
        self.events_: list[str] = list(dict.fromkeys((*events, *self._describe_data(data), *messages)))
        warn_of(self.events_)
        return self

    def _publish_training(self, results: Sequence[TrainedMembers]) -> None:
        members = [posterior for result in results for posterior in result.posteriors]
        for posterior in members:
            posterior.net.eval()
            for value in posterior.net.parameters():
                value.data = value.data.clone()  # its own memory, not a view of the stack of all members
        self.posterior_: MultiPosterior = MultiPosterior(members)
        sizes = [len(result.posteriors) for result in results]
        self.history_: dict[str, list[float]] = {
            "loss": _mean_losses([result.losses for result in results], sizes)
        }
        self.n_iter_: int = len(self.history_["loss"])
        self.interrupted_: bool = any(result.interrupted for result in results)
        self.collect_rate_: float = min(result.rate for result in results)
        self.weight_decay_: float = results[-1].decay

    def _describe_data(self, data: TrainingData) -> list[str]:
        """Messages about constant columns and missing validation rows."""
        constant = self.x_units_.constant_columns(self._column_names())
        messages = [f"constant columns have no effect: {', '.join(constant)}"] if constant else []
        if data.validation_x is None:
            what = "the noise is" if self._task == "regression" else "the probabilities are"
            messages.append(
                f"no rows are held out: the covariance of the weights is not rescaled, and {what} estimated on "
                "training rows, hence overconfident; raise validation_fraction"
            )
        return messages

    def _standardise_rows(self, X: Any) -> Tensor:
        """New rows, checked, in standard units."""
        check_is_fitted(self)
        table = validate_rows(self, X, reset=False, dtype=np.float64)
        mean = self.posterior_.components()[0].distribution.mean
        return self.x_units_.standardise(np.ascontiguousarray(table), mean.dtype, mean.device)

    def _check_fitted_rows(self, X: Any, y: Any) -> None:
        """Refuse rows that are not those of the fit in their order: others were held out there."""
        table = np.ascontiguousarray(validate_rows(self, X, reset=False, dtype=np.float64))
        outputs = _encode_labels(self, y) if self.y_units_ is None else _to_columns(y)
        same = len(table) == len(outputs) == int(self._fingerprint[0])
        if same:
            found = fingerprint_rows(table, outputs, self.x_units_, self.y_units_)
            tolerance = 1e-6 * len(table) ** 0.5
            same = len(found) == len(self._fingerprint) and np.allclose(
                found, self._fingerprint, rtol=1e-6, atol=tolerance
            )
        if not same:
            raise ValueError(
                "audit() needs the rows of the fit as X and y, all of them and in their order; pass other rows as "
                "X_test and y_test."
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def _to_tree(self) -> NetworkState:
        predictor, posteriors = self.predictor_, self.posterior_.posteriors
        return NetworkState(
            self.x_units_,
            self.y_units_,
            tuple(MemberState(to_tree(one.net.state_dict()), one.state()) for one in posteriors),
            None if self.module is None else type(posteriors[0].net).__name__,
            None if predictor.noise is None else torch.as_tensor(np.array(predictor.noise)),
            None if predictor.buffers is None else tuple(to_tree(dict(one)) for one in predictor.buffers),
            predictor.scale,
            predictor.temperature,
            predictor.seed,
            predictor.n_draws,
        )

    def _from_tree(self, tree: NetworkState) -> None:
        dtype = pick_dtype(self.dtype)
        module = self.module
        if module is None:
            widths = (self.n_features_in_, *self.hidden, self.n_outputs_)
            size = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))
            stored = sum(value.numel() for value in tree.members[0].net.values if isinstance(value, Tensor))
            if size != stored:
                raise ModelFileError(f"layers of {widths} columns have {size} parameters, the file {stored}")
            module = make_perceptron(widths, self.activation, dtype)
        self.x_units_, self.y_units_ = tree.x_units, tree.y_units
        self.posterior_ = MultiPosterior([_restore_member(module, member, dtype) for member in tree.members])
        self.predictor_ = _restore_predictor(tree, self.posterior_, self._task)


def _mean_losses(losses: list[tuple[float, ...]], sizes: list[int]) -> list[float]:
    """Mean over groups of members, by epoch; a group that was interrupted counts as long as it lasted."""
    means = []
    for epoch in range(max(len(one) for one in losses)):
        present = [(one[epoch], size) for one, size in zip(losses, sizes, strict=True) if epoch < len(one)]
        means.append(sum(value * size for value, size in present) / sum(size for _, size in present))
    return means


def training_rows(estimator: NetworkEstimator, y: Any) -> NDArray[np.bool_]:
    """Which rows of a fit trained the networks, (n,); the others determined noise or temperature, and the scale."""
    if not isinstance(estimator.random_state, Integral):
        raise ValueError(
            f"random_state must be a whole number, from which the rows held out are found again, got "
            f"{estimator.random_state!r}"
        )
    outputs = _standardise_outputs(estimator, y).cpu().numpy()
    split, *_ = spawn(generator(int(estimator.random_state)), 3)
    return ~hold_out(outputs, estimator.validation_fraction, split)


def _relax_weight_decay(found: Audit) -> Audit:
    """Allow for a noise that agrees with the final one up to a factor; the setting to change is the prior."""
    decay = found.weight_decay
    if decay is None:
        return found
    return replace(found, weight_decay=replace(decay, tolerance=NOISE_FACTOR, from_prior=True))


def _standardise_outputs(estimator: NetworkEstimator, y: Any) -> Tensor:
    """Numbers in standard units, (n, q), or class numbers, (n,)."""
    mean = estimator.posterior_.components()[0].distribution.mean
    if estimator.y_units_ is not None:
        return estimator.y_units_.standardise(_to_columns(y), mean.dtype, mean.device)
    return torch.from_numpy(_encode_labels(estimator, y)).to(mean.device)


def _to_columns(y: Any) -> Array:
    """Numbers as (n, q)."""
    table: Array = to_vector(y, "y")
    if not table.size:
        raise ValueError("y must hold one or more numbers per row, got no numbers")
    return table.reshape(len(table) if table.ndim else 1, -1)


def _encode_labels(estimator: NetworkEstimator, y: Any) -> NDArray[np.int64]:
    """Indices of labels among the classes, (n,)."""
    labels, classes = to_labels(y, "y"), vars(estimator)["classes_"]
    if labels.ndim != 1 or not labels.size:
        raise ValueError(f"y must hold one label per row, got shape {labels.shape}")
    try:
        places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    except TypeError as error:
        raise TypeError(f"y must hold labels of the same type as {classes.tolist()[0]!r}") from error
    if not (classes[places] == labels).all():
        unknown = next(iter(labels[classes[places] != labels].tolist()))
        raise ValueError(f"y holds the label {unknown!r}, which does not occur in the fit")
    return places.astype(np.int64)


@dataclass(frozen=True)
class MemberState(Tree):
    """A network: all its tensors, and the posterior over those that vary."""

    net: DictTree
    posterior: PosteriorState


@dataclass(frozen=True)
class NetworkState(Tree):
    """The networks and the predictor of a fitted estimator; ``module`` is the class of a user's networks."""

    x_units: ColumnScaling
    y_units: ColumnScaling | None
    members: tuple[MemberState, ...]
    module: str | None
    noise: Tensor | None
    buffers: tuple[DictTree, ...] | None
    scale: float
    temperature: float
    seed: int
    n_draws: int


FACTS: dict[str, Any] = {
    **{name: kind for name, kind in PROGRESS.items() if name != "converged_"},
    "n_outputs_": int,
    "history_": dict[str, list[float]],
    "collect_rate_": float | None,
    "weight_decay_": float,
    "_fingerprint": list[float],
    "weighted_": bool,
}
"""Fitted attributes in a file, beside the networks."""
SCALES = Values(
    "positive, with a square that is not 0", lambda x: bool(((x > 0.0) & (x.double().square() > 0.0)).all())
)
"""Scales of columns; that of a constant one is infinite."""


def _check_state(state: NetworkState, axes: Axes) -> str | None:
    if not state.members:
        return "members must not be empty"
    if state.y_units is not None and not SCALE.hold(state.y_units.scale):
        return f"y_units.scale must be {SCALE.words}"
    if len({len(member.posterior.layout.names) for member in state.members}) > 1:
        return "the layouts of the members differ"
    return None


def _check_member(member: MemberState, axes: Axes) -> str | None:
    named = all(isinstance(key, str) for key in member.net.keys)
    tensors = all(isinstance(value, Tensor) for value in member.net.values)
    return None if named and tensors else "net must hold tensors by name"


def _check_table(table: DictTree, axes: Axes) -> str | None:
    distinct = len(table.keys) == len(table.values) == len(set(table.keys))
    return None if distinct else "keys must be distinct, with as many values"


STATE_CONSTRAINTS: Table = {
    **CONSTRAINTS,
    DictTree: Constraints(_check_table),
    ColumnScaling: Constraints(origin=ArrayConstraint("d", LOCATION), scale=ArrayConstraint("d", SCALES)),
    MemberState: Constraints(_check_member, net=Nested((DictTree,)), posterior=Nested((PosteriorState,))),
    NetworkState: Constraints(
        _check_state,
        x_units=Nested((ColumnScaling,), "d"),
        y_units=Nested((ColumnScaling, type(None)), "d=q"),
        members=Nested((MemberState,)),
        noise=ArrayConstraint("q|1", POSITIVE, torch.float64),
        buffers=Nested((DictTree, type(None))),
        scale=Number(least=0.0, most=1e30),
        temperature=Number(above=0.0, most=1e30),
        seed=Number(least=0),
        n_draws=Number(least=1, most=2**31),
    ),
}
"""Constraints on the fields of each class."""


def declare_network_file(**facts: Any) -> ModelFile:
    """The file of a network estimator; ``facts`` are types of its further fitted attributes."""
    return ModelFile(
        NetworkState,
        (*CLASSES.values(), MemberState, ColumnScaling, DictTree),
        STATE_CONSTRAINTS,
        {**FACTS, **facts},
        checks=(_check_output_count, _check_module_argument),
    )


def _check_output_count(estimator: Any, saved: Saved) -> str | None:
    is_regression = "single_" in vars(estimator)
    n_outputs = saved.axes.get("q") if is_regression else len(estimator.classes_)
    if n_outputs == estimator.n_outputs_ and not (is_regression and estimator.single_ and n_outputs != 1):
        return None
    return f"n_outputs_ is {estimator.n_outputs_}, but the file describes {n_outputs} outputs"


def _check_module_argument(estimator: Any, saved: Saved) -> str | None:
    state: Any = saved.tree
    if state.module is None:
        return (
            None if estimator.module is None else "its networks are perceptrons of boxloop: leave out module="
        )
    if estimator.module is not None:
        return None
    return (
        f"its networks are a module of yours ({state.module}), of which a file holds the tensors only: "
        f"{type(estimator).__name__}.load(path, module=...) restores them"
    )


def _restore_member(module: Any, member: MemberState, dtype: torch.dtype) -> WeightPosterior:
    """A posterior whose network has the tensors of the file."""
    net = copy.deepcopy(module) if isinstance(module, nn.Module) else module(generator(0))
    net = net.to(dtype=dtype).eval()
    try:
        net.load_state_dict(from_tree(member.net))
        return WeightPosterior.restore(member.posterior, net)
    except (RuntimeError, ValueError) as error:
        raise ModelFileError(f"its tensors do not fit the {type(net).__name__} given: {error}") from error


def _restore_predictor(state: NetworkState, posterior: MultiPosterior, kind: Kind) -> Predictor:
    buffers = None if state.buffers is None else tuple(from_tree(one) for one in state.buffers)
    components = posterior.components()
    if buffers is not None and len(buffers) != len(components):
        raise ValueError(f"it has buffers of {len(buffers)} networks, not of {len(components)}")
    predictor = Predictor(
        components,
        kind,
        state.n_draws,
        scale=state.scale,
        noise=None if state.noise is None else state.noise.numpy(),
        temperature=state.temperature,
        seed=state.seed,
        refresh=None if buffers is None else KEEP,
        buffers=buffers,
    )
    for component, n, stored in zip(
        components, predictor.draws.allocation.counts, buffers or (), strict=False
    ):
        own = dict(component.net.named_buffers())
        for name, value in stored.items():
            if name not in own or value.shape != (n, *own[name].shape) or value.dtype != own[name].dtype:
                raise ValueError(f"its buffer {name!r} is not one of the network's for {n} draws")
            if not bool(torch.isfinite(value).all()) or (name.endswith("var") and bool((value < 0).any())):
                raise ValueError(f"its buffer {name!r} must be finite, and a variance at least 0")
    return predictor
