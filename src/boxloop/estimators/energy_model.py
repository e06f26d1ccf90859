"""Energy-based models as an estimator: training, the partition function, and whether the fit has converged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from boxloop.chain import advance
from boxloop.data import Standardisation, StandardisedSource, WeightedSum, check_parameters, shuffle_rows
from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.estimators._base import Array, DeviceEstimator, check_no_overflow, to_numpy, warn_of
from boxloop.estimators._input import COMMON, check_sample_size, map_rows, open_rows, pick_device, pick_dtype
from boxloop.estimators._training import COUNT, POSITIVE, RATE, fingerprint_fit
from boxloop.fit import (
    SHORTER,
    STATES,
    Batches,
    ChainState,
    Cooling,
    EnergyPlan,
    TrainState,
    coordinates,
    energy_trainer,
    take_averaged_model,
)
from boxloop.loop import Outcome, run
from boxloop.models import CONSTRAINTS, EnergyModel, ModuleNetwork, Perceptron
from boxloop.numeric import floor_covariance, generator, normal, seed, spawn
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
from boxloop.sample import (
    HMC,
    MALA,
    AnnealingPath,
    KernelFactory,
    RandomWalk,
    Target,
    WeightedDraws,
    choose_temperatures,
)
from boxloop.types import Distribution, Source

BaseKind = Literal["full", "diag"] | None
KERNELS: dict[str, tuple[KernelFactory, Callable[[int], float]]] = {
    "mala": (lambda f, scale: MALA(scale).kernel(Target(f)), MALA().target_acceptance),
    "random_walk": (lambda f, scale: RandomWalk(scale).kernel(Target(f)), RandomWalk().target_acceptance),
    "hmc": (lambda f, scale: HMC(scale).kernel(Target(f)), HMC().target_acceptance),
}
"""By name: a kernel of a log-density and a scale, and its best acceptance rate."""

FLOOR = 1e-3
"""Smallest variance of the base, in standard coordinates, for rows that lie on a plane."""

ANNEALING_STEPS, MIXING_STEPS = 2, 25
"""Steps at each temperature, and, long and short, at the last after resampling, so that copies of a draw separate."""

DIRECTIONS, STEP = 16, 1e-3
"""Random directions of the parameters for the gain of one more step, and the length of a step in them."""

BLOCK = 1 << 12
"""Chains that are annealed together."""


TOLERANCE = 0.15
"""Largest difference of mean energies, and gain of one more step, in nats besides noise, of a converged fit."""

LEAST_CHAINS = 256
"""Fewest chains annealed for draws, which are resampled by weight."""

IGNORED = ("verbose", "checkpoint", "partition_chains", "device")
"""Parameters that do not change the path of the fit."""


def _check_partition(estimator: Any, saved: Saved) -> str | None:
    model: Any = saved.tree
    if model.log_partition is None or model.log_partition_error is None or model.draws is None:
        return "the fields 'log_partition', 'log_partition_error' and 'draws' must be tensors"
    if estimator.energy is None and tuple(estimator.hidden) != model.network.hidden:
        return f"the parameter 'hidden' is {estimator.hidden}, but the network has {model.network.hidden}"
    return None


@dataclass(eq=False, repr=False, kw_only=True)
class EnergyBasedModel(SaveMixin, DeviceEstimator, DensityMixin, BaseEstimator):
    r"""Energy-based model: a density given by a network, with an estimated normalising constant.

    .. math:: p(x) = \frac{b(u) \, e^{-V_\theta(u)}}{Z \prod_j s_j}, \qquad u = (x - o) / s

    Le Corff, section 1.1: trained by the gradient of the likelihood, whose second term is a mean over persistent Markov
    chains with a Metropolis correction. V tilts a Gaussian base b in standard coordinates, which keeps the density
    normalisable (:mod:`boxloop.models.energy`). log Z is estimated by annealed importance sampling.

    Args:
        energy: a ``torch.nn.Module`` (n, d) -> (n,) over standardised rows; a perceptron when ``None``.
        hidden: widths of the perceptron's layers.
        base: covariance of the Gaussian base, ``full`` or ``diag``; ``None`` for an energy that confines itself.
        max_iter: updates, one mini-batch each.
        learning_rate: initial rate of AdamW; it falls to zero along a cosine.
        batch_size: rows of a mini-batch.
        chains: moved at each update.
        steps: of each chain at each update.
        buffer: number of persistent chains; each update moves some of them.
        restart: share of the moved chains that start anew from the base.
        weight_decay: of AdamW; it removes a third of the divergence with at most 1000 rows; lower it with many.
        shrink: weight of a penalty on the mean square of V.
        clip: largest norm of a gradient.
        kernel: ``mala``, ``hmc``, ``random_walk``, or a function (log-density, scale) -> kernel.
        partition_chains: chains annealed for log Z, and draws stored for criticism.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of training, ``float64`` or ``float32``.

    Attributes:
        model_: the fitted :class:`boxloop.models.energy.EnergyModel`, with draws by which it can be criticised.
        log_partition_: log Z.
        log_partition_error_: its standard error, which all log-densities share.
        contrast_: mean energy of the fitted model's draws less that of the rows: zero at a maximum of the likelihood.
        contrast_error_: its standard error.
        contrasts_: the same for the training's chains at each update.
        converged_: whether draws and rows agree, in their mean energy and in its derivatives by the parameters.
        events_: concerns about the fit.
        n_iter_: updates done.

    Example:
        >>> import numpy as np
        >>> from boxloop import EnergyBasedModel
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
        checks=(_check_partition,),
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
        return open_rows(self, X, sample_weight, "gaussian", pick_device(self.device), reset)

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the energy, estimate its partition function, and store draws.

        Args:
            X: complete rows (n, d): an array, frame, source, or a path of a file or folder of rows in random order.
            y: ignored.
            sample_weight: one non-negative weight per row.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        frame = _make_standardisation(source)
        rows = StandardisedSource(source, frame, pick_dtype(self.dtype))
        streams = spawn(generator(self.random_state, frame.origin.device), 3)
        start = _start_model(self.energy, self.hidden, self.base, rows, streams[0])  # type: ignore[arg-type]
        outcome = self._train(start, rows, streams[1])
        model = take_averaged_model(start, outcome.state)
        annealed, draws = anneal_chains(model, self._make_chain_settings(), self.partition_chains, streams[2])
        model = replace(
            model,
            log_partition=frame.origin.new_tensor(annealed.log_mean),
            log_partition_error=frame.origin.new_tensor(annealed.error),
            draws=draws.double(),
        )
        self.n_samples_seen_: float = frame.weight
        self.training_digest_: str | None = frame.digest
        contrast, error = _measure_contrast(model, rows, draws)
        self.contrast_: float = contrast
        self.contrast_error_: float = error
        unconverged = self._explain_non_convergence(*_measure_remaining_gain(model, rows, draws, streams[2]))
        concerns = list(annealed.find_concerns("from the base"))
        if unconverged and not outcome.interrupted:
            concerns.append(unconverged)
        self.n_iter_: int = outcome.n_iter
        self.interrupted_: bool = outcome.interrupted
        self.converged_: bool = not unconverged and not outcome.interrupted
        self.contrasts_: list[float] = list(outcome.trace)
        self.events_: list[str] = [*outcome.events, *concerns]
        self._from_tree(model.affine(frame.origin, frame.scale))
        warn_of(self.events_)
        return self

    def _make_chain_settings(self) -> ChainSettings:
        return ChainSettings.from_kernel(self.kernel, self.n_features_in_)

    def _train(
        self, model: EnergyModel, rows: StandardisedSource, stream: torch.Generator
    ) -> Outcome[TrainState]:
        observers: list[Any] = [ProgressBar(show=True).stage(type(self).__name__)] if self.verbose else []
        resume = None
        if self.checkpoint is not None:
            known, path = fingerprint_fit(self, rows.source, IGNORED, ("energy",)), Path(self.checkpoint)
            resume = (
                read_checkpoint(path, {**STATES, "ChainState": ChainState}, known) if path.exists() else None
            )
            observers.append(CheckpointWriter(path, known, seconds=10.0))
        settings = self._make_chain_settings()
        plan = EnergyPlan(
            Cooling(self.learning_rate, self.max_iter),
            chains=self.chains,
            steps=self.steps,
            restart=self.restart,
            clip=self.clip,
            decay=self.weight_decay,
            shrink=self.shrink,
            goal=settings.target_acceptance,
        )
        order, own = spawn(stream, 2)
        trainer = energy_trainer(
            model,
            Batches(replace(rows, source=shuffle_rows(rows.source, order)), self.batch_size),
            settings.kernels,
            reference_distribution(model),
            plan,
            buffer=max(self.buffer, self.chains),
            random_state=own,
        )
        return run(
            trainer, trainer.start(seed(own)), max_iter=self.max_iter, observers=observers, resume=resume
        )

    def _explain_non_convergence(self, gain: float, noise: float) -> str:
        """Why the fit has not converged; empty if it has."""
        if abs(self.contrast_) > TOLERANCE + 4.0 * self.contrast_error_:
            return (
                f"mean energies of the model's draws and of the rows differ by {self.contrast_:.2f}: the fit has not "
                "converged; raise max_iter or steps, or lower restart"
            )
        if gain > TOLERANCE + 4.0 * noise:
            return (
                f"the log-likelihood per row would still rise by about {gain:.2f} in one more step: the fit has not "
                "converged; raise max_iter or learning_rate"
            )
        return ""

    def _from_tree(self, tree: EnergyModel) -> None:
        self.model_ = tree
        assert tree.log_partition is not None
        assert tree.log_partition_error is not None
        self.log_partition_: float = float(tree.log_partition)
        self.log_partition_error_: float = float(tree.log_partition_error)

    def _evaluate_rows(self, X: Any, function: Callable[[Tensor], Tensor]) -> Array:
        return to_numpy(check_no_overflow(map_rows(self, X, lambda rows: function(rows.double()))))

    def energy_of(self, X: Any) -> Array:
        """E(x) of each row, (n,): minus the log-density, up to ``log_partition_``."""
        return self._evaluate_rows(X, lambda rows: self.model_.energy(rows))

    def score_samples(self, X: Any) -> Array:
        """Log-density of each row, (n,); all share the error of log Z."""
        return self._evaluate_rows(X, lambda rows: self.model_.log_prob(rows))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density of the rows, by their weights where they have any."""
        check_is_fitted(self)
        with torch.no_grad():
            mean = WeightedSum.over(
                self._open(X, sample_weight, reset=False), lambda rows: self.model_.log_prob(rows.double())
            ).mean
        if math.isnan(mean):
            self.score_samples(X)  # raises an error that names the row
        return mean

    def n_parameters(self) -> int:
        """Number of trained parameters."""
        check_is_fitted(self)
        return sum(value.numel() for value in self.model_.parameters)

    def sample(self, n_samples: int = 1) -> Array:
        """Independent rows of the fitted model, (n, d), each from a chain of its own annealed from the base."""
        check_is_fitted(self)
        check_sample_size(n_samples)
        stream = generator(self.random_state, self.model_.origin.device)
        _, draws = anneal_chains(
            self.model_, self._make_chain_settings(), max(n_samples, LEAST_CHAINS), stream
        )
        return to_numpy(self.model_.origin + self.model_.scale * draws[:n_samples].double())

    def _to_tree(self) -> EnergyModel:
        if not isinstance(self.model_.network, Perceptron):
            raise ModelFileError(
                "only the default energy can be saved: a module of yours is code; save its state_dict()"
            )
        return self.model_


@dataclass(frozen=True)
class ChainSettings:
    """How chains move: a kernel, and its best acceptance rate."""

    kernels: KernelFactory
    target_acceptance: float

    @classmethod
    def from_kernel(cls, kernel: Any, columns: int) -> ChainSettings:
        """By name, or from a function (log-density, scale) -> kernel."""
        if isinstance(kernel, str):
            kernels, target_acceptance = KERNELS[kernel]
            return cls(kernels, target_acceptance(columns))
        return cls(kernel, MALA().target_acceptance(columns))


def _make_standardisation(source: Source) -> Standardisation:
    """Standard coordinates of rows; refuses fewer than two rows, and constant columns."""
    if source.n_rows < 2:
        raise ValueError(f"an energy needs at least 2 rows, got n_samples = {source.n_rows}")
    frame = coordinates(source, "columns")
    for name, constant in zip(source.names, frame.constant.tolist(), strict=True):
        if constant:
            raise ValueError(f"column {name!r} is constant and has no density: leave it out")
    return frame


def _start_model(
    energy: nn.Module | None,
    hidden: Sequence[int],
    kind: BaseKind,
    rows: StandardisedSource,
    stream: Generator,
) -> EnergyModel:
    """The model before training: a network over the Gaussian of standardised rows."""
    base = None if kind is None else _fit_base(rows, kind)
    d = rows.n_columns
    if energy is None:
        network = Perceptron(d, tuple(int(width) for width in hidden))
        return EnergyModel.from_network(network, network.draw_parameters(stream, rows.dtype), base, d)
    module, parameters = ModuleNetwork.from_module(energy, rows.dtype, stream.device)
    return EnergyModel.from_network(module, parameters, base, d)


def _fit_base(rows: StandardisedSource, kind: BaseKind) -> Distribution:
    def sum_products(tile: Tensor, weight: Tensor) -> WeightedSum:
        values = tile.double()
        return WeightedSum((values * weight[:, None]).mT @ values, weight.sum())

    total = rows.reduce(sum_products)
    matrix, _ = floor_covariance((total.value / total.weight)[None], FLOOR)
    zero = matrix.new_zeros(1, rows.n_columns)
    base = (
        FullGaussian.from_covariance(zero, matrix)
        if kind == "full"
        else DiagonalGaussian(zero, matrix.diagonal(dim1=1, dim2=2))
    )
    return base.to(dtype=rows.dtype)


def reference_distribution(model: EnergyModel) -> Distribution:
    """The distribution at which chains and annealing start: the base, or a standard normal without one."""
    if model.base is not None:
        base: Distribution = model.base
        return base
    like = model.parameters[0].new_zeros(1, len(model.origin))
    return DiagonalGaussian(like, like + 1.0)


def anneal_chains(
    model: EnergyModel, settings: ChainSettings, chains: int, stream: Generator
) -> tuple[WeightedDraws, Tensor]:
    """Chains annealed from the base to a model of standardised rows.

    Their mean weight estimates Z; the draws are resampled by weight and then moved, so that copies differ.
    """
    base, kernels = reference_distribution(model), settings.kernels
    ladder = choose_temperatures(
        model.log_density, base, kernels, random_state=stream, target_acceptance=settings.target_acceptance
    )
    path = AnnealingPath(model.log_density, base, kernels, ANNEALING_STEPS)
    sizes = [min(BLOCK, chains - start) for start in range(0, chains, BLOCK)]
    blocks = [path.anneal_chains(base.draw(size, stream)[0], ladder, stream) for size in sizes]
    weighted = WeightedDraws(
        torch.cat([b.position for b in blocks]), torch.cat([b.log_weight for b in blocks])
    )
    draws = weighted.resample(chains, stream).split(BLOCK)
    for share in (1.0, SHORTER):  # Short steps move chains that long ones leave in the tails.
        kernel = kernels(model.log_density, share * ladder.scales[-1])
        draws = tuple(advance(kernel, kernel.init(x), MIXING_STEPS, stream).chains.position for x in draws)
    return weighted, torch.cat(draws)


def _measure_contrast(model: EnergyModel, rows: StandardisedSource, draws: Tensor) -> tuple[float, float]:
    """Mean of V over draws of a fitted model less its mean over the rows, and its Monte Carlo error.

    At a maximum of the likelihood the two are equal, for any network whose last layer is linear: the derivative in the
    size of V is zero. They differ if chains do not reach the model's distribution, or after too few updates.
    """
    with torch.no_grad():
        at_rows, value = WeightedSum.over(rows, model.potential), model.potential(draws).double()
    return float(value.mean()) - at_rows.mean, float(value.std() / len(value) ** 0.5)


def _measure_remaining_gain(
    model: EnergyModel, rows: StandardisedSource, draws: Tensor, stream: Generator
) -> tuple[float, float]:
    r"""Gain in log-likelihood per row of one more step, and its noise.

    .. math:: \tfrac12 \delta^\top \Sigma^{-1} \delta, \qquad
              \delta = E_\mathrm{draws}[f] - E_\mathrm{rows}[f], \quad \Sigma = \mathrm{Var}_\mathrm{draws}(f)

    with f the derivatives of V in random directions of the parameters: the gain of a natural-gradient step within
    these. Unlike the mean of V it is not zero at the start, where V is. Its expectation for rows and draws of the same
    distribution is subtracted.
    """
    ahead, behind = _perturb_parameters(model, stream)

    def differentiate(points: Tensor) -> Tensor:
        pairs = [
            (a.potential(points) - b.potential(points)).double() for a, b in zip(ahead, behind, strict=True)
        ]
        return torch.stack(pairs, 1) / (2.0 * STEP)

    def multiply_derivatives(points: Tensor) -> Tensor:
        slope = differentiate(points)
        return torch.cat([slope[:, None], slope[:, :, None] * slope[:, None, :]], 1)

    with torch.no_grad():
        total = WeightedSum.over(rows, multiply_derivatives)
        moments = total.value / total.weight
        row_covariance = moments[1:] - moments[:1].mT @ moments[:1]
        slope = differentiate(draws)
        covariance = slope.mT.cov()
        values, vectors = torch.linalg.eigh(covariance)
        keep = values > 1e-8 * values[-1]
        whiten = vectors[:, keep] / values[keep].sqrt()
        gain = 0.5 * ((slope.mean(0) - moments[0]) @ whiten).square().sum()
        noise = covariance / len(slope) + row_covariance / total.weight
        chance = 0.5 * float((whiten.mT @ noise @ whiten).trace())
    return float(gain) - chance, chance * (2.0 / max(int(keep.sum()), 1)) ** 0.5


def _perturb_parameters(model: EnergyModel, stream: Generator) -> tuple[list[EnergyModel], list[EnergyModel]]:
    """The model with its parameters a small step ahead and behind in random directions, each in its own units."""
    ahead: list[EnergyModel] = []
    behind: list[EnergyModel] = []
    for _ in range(DIRECTIONS):
        # In units of the root mean square of each parameter, or of 1 for those that are all zero.
        sizes = [float(part.square().mean().sqrt()) or 1.0 for part in model.parameters]
        move = [
            STEP * size * normal(tuple(part.shape), stream).to(part)
            for size, part in zip(sizes, model.parameters, strict=True)
        ]
        for models, sign in ((ahead, 1.0), (behind, -1.0)):
            parameters = tuple(p + sign * m for p, m in zip(model.parameters, move, strict=True))
            models.append(replace(model, parameters=parameters))
    return ahead, behind
