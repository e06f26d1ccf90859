"""Chains from a log-density: start, warm-up, draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor
from torch.distributions.constraints import Constraint

from boxloop.average import Running
from boxloop.caller import warn_caller
from boxloop.chain import Chains, Kernel, Path, advance
from boxloop.data import check_callable, check_choice, fingerprint_values
from boxloop.loop import Iteration, Observer, Outcome, Progress, run
from boxloop.numeric import RandomState, generator, seed, single_threaded
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.progress import ProgressBar
from boxloop.sample.adapt import PositionMoments, TrajectoryLength, TunableAlgorithm, Tuner, TuningState
from boxloop.sample.compilation import Advance, CompiledSteps, GraphSteps
from boxloop.sample.diagnostics import diagnose
from boxloop.sample.draws import Draws, SampleWarning
from boxloop.sample.kernels.gibbs import Gibbs, SamplingAlgorithm
from boxloop.sample.kernels.hmc import HMC, is_divergent
from boxloop.sample.kernels.independent import Independent
from boxloop.sample.kernels.mala import MALA
from boxloop.sample.kernels.metropolis import RULES
from boxloop.sample.kernels.random_walk import RandomWalk
from boxloop.sample.target import (
    ParameterSpace,
    Target,
    ValueAndGradient,
    Values,
    check_integer,
    check_log_density,
    disable_validation,
    make_target,
)
from boxloop.tree import Tree

CHAINS = 4
"""Chains around a start that is one point, unless a number is given."""

TRIES = 30
"""Times that a start outside the support is drawn again, each time at half the distance from the given point."""

BLOCK = 32
"""Draws of each chain in an iteration of the loop."""

ALGORITHMS: dict[str, Callable[[], SamplingAlgorithm]] = {"hmc": HMC, "mala": MALA, "random_walk": RandomWalk}


@single_threaded
def sample_density(
    log_density: Callable[..., Tensor] | Target | None,
    start: Any,
    kernel: SamplingAlgorithm | Kernel | Literal["hmc", "mala", "random_walk"] | None = None,
    *,
    chains: int | None = None,
    draws: int = 1000,
    warmup: int = 1000,
    thin: int = 1,
    support: Constraint | Mapping[str, Constraint] | None = None,
    value_and_gradient: ValueAndGradient | None = None,
    batched: bool = True,
    start_sd: float = 1.0,
    superchains: int | None = None,
    random_state: RandomState = None,
    device: torch.device | str | None = None,
    mode: Literal["eager", "compiled", "graph"] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    verbose: bool | None = False,
    observers: Sequence[Observer[SamplerState]] = (),
) -> Draws:
    r"""Draw from a density that is known up to a constant, by Markov chain Monte Carlo with many chains at once.

    .. math:: \pi(x) \propto \exp(\text{log-density}(x))

    Warm-up tunes scale, metric and trajectory length and is discarded; nothing is tuned after it, so that the chains
    leave the target invariant. Available as :func:`boxloop.sample_density` and in :mod:`boxloop.sample`.

    Reference:
        Le Corff, *Introduction to computational statistics*, chapter 1.

    Args:
        log_density: the values of all chains -> (c,). Values are a tensor (c, ...) or, if ``start`` is a mapping, a
            mapping of such. None if the kernel needs none. A :class:`~boxloop.sample.Target` is sampled as it is.
        start: one point (a number, a vector, or a mapping with at least one number among its values), around which
            ``chains`` chains begin; or values with a leading axis of chains. With ``chains``, always one point.
        kernel: an algorithm (:class:`~boxloop.sample.HMC`, :class:`~boxloop.sample.MALA`,
            :class:`~boxloop.sample.RandomWalk`, ...), its name, or a :class:`~boxloop.chain.Kernel`. When
            omitted, Hamiltonian Monte Carlo with lengths tuned across chains if the density can be differentiated,
            a random walk otherwise.
        chains: number of chains around a start that is one point; 4 when omitted.
        draws: of each chain.
        warmup: steps of each chain before the first draw.
        thin: steps from one draw to the next.
        support: constraint of the values (``torch.distributions.constraints``), by name for a mapping. Chains move in
            unconstrained coordinates, and the density is corrected by the Jacobian.
        value_and_gradient: positions (c, d) -> log-density (c,) and gradient (c, d), if a formula is faster than
            automatic differentiation; for a vector without constraint.
        batched: false for a log-density of one chain's values.
        start_sd: standard deviation of the noise around ``start`` if it is one point, in unconstrained coordinates.
        superchains: begin the chains in this number of groups, each from one point; R-hat is then the nested one, which
            shows whether many *short* chains have reached the target (Margossian et al. 2024).
        random_state: seed or generator.
        device: of the chains; that of ``start`` when omitted.
        mode: how steps are executed. ``eager``, one operation after another; ``graph``, as CUDA graphs; ``compiled``,
            by ``torch.compile``, which takes some twenty seconds to begin with and pays for long runs of a few
            chains (not for trajectories). When omitted, graphs on a GPU and eager elsewhere.
        checkpoint: a file to save the chains to, and to resume from if it exists. The same trajectory
            results, bit for bit, for the same ``draws``; for more draws, chains continue from the last one. It needs an
            integer ``random_state``.
        verbose: show progress with acceptance and R-hat; None shows it in a terminal.
        observers: of the loop.

    Returns:
        :class:`~boxloop.sample.Draws`: ``draws["name"]``, ``summary()``, ``concerns``, ``plot()``, ``to_arviz()``.

    Raises:
        ValueError: the density has the wrong form, or is zero, infinite or not a number where a chain begins.

    Warns:
        SampleWarning: trajectories diverged, proposals were rejected because the density was not a number there,
            acceptance is near 0 or 1, trajectories take many times the gradients they need, a draw is not finite, or
            Ctrl-C ended sampling.

    Example:
        >>> import torch
        >>> import boxloop
        >>> from torch.distributions import Normal, constraints
        >>> rows = torch.tensor([2.1, 1.2, 3.3, 2.7, 1.9]).double()
        >>> def log_density(values):
        ...     likelihood = Normal(values["mean"][:, None], values["scale"][:, None])
        ...     return likelihood.log_prob(rows).sum(1) - values["scale"]
        >>> draws = boxloop.sample_density(
        ...     log_density, {"mean": 0.0, "scale": 1.0}, support={"scale": constraints.positive}, random_state=0
        ... )
        >>> draws.converged, round(float(draws["mean"].mean()), 1)
        (True, 2.2)
    """
    for name, count, least in (("draws", draws, 1), ("warmup", warmup, 0), ("thin", thin, 1)):
        check_integer(name, count, least)
    if not isinstance(start_sd, int | float | np.number) or not 0.0 <= start_sd < float("inf"):
        raise ValueError(f"start_sd must be at least 0 and finite, got {start_sd!r}")
    values, chains = read_start(start, chains, device)
    if superchains is not None:
        _check_superchains(superchains, chains)
    target, position = _read_target(log_density, values, support, value_and_gradient, batched)
    stream = generator(seed(random_state), position.device)
    with torch.no_grad():
        if chains is not None:
            with disable_validation():
                position = _scatter_start(target, position, start_sd, stream, superchains)
        _check_target(target, position)
    algorithm = _choose_algorithm(kernel, target, position, log_density is not None)
    tuner = None
    if isinstance(algorithm, TunableAlgorithm) and algorithm.scale is None and warmup > 0:
        tuner = Tuner(algorithm, position.shape[1], warmup, len(position))
    sampler = Sampler(
        algorithm, target, tuner, warmup, draws, thin, stream, _choose_execution(mode, position)
    )
    progress = [] if verbose is False else [_make_progress_bar(verbose, sampler)]
    outcome = _run_chains(sampler, position, checkpoint, random_state, [*observers, *progress])
    found = _collect_draws(sampler, outcome, target.space or ParameterSpace.from_start(position), superchains)
    if found.sampler_concerns:
        warn_caller("; ".join(found.sampler_concerns), SampleWarning)
    return found


# Where chains begin, and whether they can.


def read_start(start: Any, chains: int | None, device: Any = None) -> tuple[Tensor | Values, int | None]:
    """Starting values with a leading axis of chains, and the number of chains if the start is one point, else None."""
    if chains is not None:
        check_integer("chains", chains, 1)
    if isinstance(start, Mapping):
        if not start:
            raise ValueError("start is an empty mapping: there is nothing to sample")
        values = {str(name): _to_start_tensor(value, device) for name, value in start.items()}
        if chains is None and any(value.dim() == 0 for value in values.values()):
            chains = CHAINS
        if chains is not None:
            return {name: value.expand(chains, *value.shape) for name, value in values.items()}, chains
        counts = {name: len(value) for name, value in values.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise ValueError(
                f"the values of start need one common leading axis of chains, got lengths {counts}; "
                "or pass one point, and chains="
            )
        return values, None
    value = torch.atleast_1d(_to_start_tensor(start, device))
    if chains is None and value.dim() < 2:
        chains = CHAINS
    if chains is not None:
        return value.expand(chains, *value.shape), chains
    if len(value) == 0:
        raise ValueError(
            f"start has shape {tuple(value.shape)}: pass positions (chains, columns), or one point and chains="
        )
    return value, None


def _to_start_tensor(value: Any, device: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(
            value if isinstance(value, Tensor) else np.asarray(value), device=device
        ).detach()
    except (TypeError, ValueError) as error:
        raise ValueError(f"start must be numbers, or a mapping of names to numbers, got {value!r}") from error
    if tensor.is_complex():
        raise ValueError("start is complex: sample real and imaginary parts by name")
    if tensor.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"start is of {tensor.dtype}, too coarse for small moves: pass float32 or float64")
    return tensor if tensor.is_floating_point() else tensor.double()


def _check_superchains(superchains: int, chains: int | None) -> None:
    if chains is None:
        raise ValueError("superchains begin around one point: pass it as start, and chains=")
    check_integer("superchains", superchains, 1)
    if superchains < 2 or chains % superchains or chains == superchains:
        raise ValueError(
            f"superchains must divide chains into at least 2 groups of at least 2, got {superchains} of {chains}"
        )


def _read_target(
    log_density: Any,
    values: Tensor | Values,
    support: Constraint | Mapping[str, Constraint] | None,
    value_and_gradient: ValueAndGradient | None,
    batched: bool,
) -> tuple[Target, Tensor]:
    """The target with its space, and the starting values as positions."""
    for name, value in values.items() if not isinstance(values, Tensor) else [("start", values)]:
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} has values that are not finite")
    space = ParameterSpace.from_start(values, support)
    position = space.pack(values)
    if isinstance(log_density, Target):
        return (log_density if log_density.space is not None else replace(log_density, space=space)), position
    if log_density is None:
        return Target(lambda rows: rows.new_zeros(len(rows)), None, space), position
    check_callable(log_density, "log_density", "all chains' values")
    return make_target(log_density, space, value_and_gradient, batched), position


def _scatter_start(
    target: Target, position: Tensor, start_sd: float, stream: Generator, superchains: int | None
) -> Tensor:
    """One point, repeated (c, d), with normal noise, less of it where the density is zero."""
    points = len(position) if superchains is None else superchains
    scattered = position[:points].clone()
    outside = torch.ones(points, dtype=torch.bool, device=position.device)
    for _ in range(TRIES):
        noise = torch.randn(scattered.shape, generator=stream, dtype=scattered.dtype, device=scattered.device)
        scattered = torch.where(outside[:, None], position[:points] + start_sd * noise, scattered)
        value = target.log_density(scattered)
        check_log_density(value, points)
        outside = ~torch.isfinite(value)
        if not bool(outside.any()):
            break
        start_sd *= 0.5
    return scattered.repeat_interleave(len(position) // points, 0)


def _check_target(target: Target, position: Tensor) -> None:
    """Refuse a density of the wrong form, chains that begin outside the support, and a wrong value_and_gradient."""
    value = target.log_density(position)
    check_log_density(value, len(position))
    _check_start(Chains(position, value))
    if target.gradient is None:
        return
    other, gradient = target.gradient(position)
    if (other.shape, gradient.shape) != (value.shape, position.shape):
        raise ValueError(
            f"value_and_gradient returned shapes {tuple(other.shape)} and {tuple(gradient.shape)}; they must be "
            f"{tuple(value.shape)}, one log-density per chain, and {tuple(position.shape)}, its gradient"
        )
    # Chains would follow the one density while the user means the other.
    close = torch.finfo(value.dtype).eps ** 0.5 * (1.0 + value.abs().max() + other.abs().max())
    difference = other - value
    if bool(difference.max() - difference.min() > close):
        raise ValueError(
            "value_and_gradient and log_density differ by more than a constant where chains begin: correct one of them"
        )


def _check_start(chains: Chains, has_gradients: bool = False) -> None:
    """Refuse chains whose density, or gradient in ``auxiliary``, is not finite where they begin."""
    check_log_density(chains.log_density, len(chains.position))
    gradients = [("gradient", part) for part in chains.auxiliary if has_gradients]
    for what, found in (("log-density", chains.log_density), *gradients):
        bad = ~torch.isfinite(found.reshape(len(found), -1)).all(1)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            value = found[first].flatten()
            worst = float(value[~torch.isfinite(value)][0])
            raise ValueError(
                f"the {what} is {worst} at the start of chain {first} ({int(bad.sum())} of {len(bad)} chains): "
                "begin where the density is positive and finite"
            )


# Which algorithm moves the chains, and how its steps are executed.


def _choose_algorithm(kernel: Any, target: Target, position: Tensor, has_density: bool) -> Any:
    """The algorithm that was requested, or the default of the target."""
    if isinstance(kernel, str):
        if kernel not in ALGORITHMS:
            raise ValueError(
                f"kernel must be one of {', '.join(ALGORITHMS)}, an algorithm or a Kernel, got {kernel!r}"
            )
        kernel = ALGORITHMS[kernel]()
    if kernel is None:
        if not has_density:
            raise ValueError("without a log_density there must be a kernel")
        kernel = HMC() if has_gradient(target, position) else RandomWalk()
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, type) or not isinstance(kernel, SamplingAlgorithm):
        raise ValueError(f"kernel must be an algorithm such as HMC(), its name, or a Kernel, got {kernel!r}")
    if not has_density:  # Metropolis moves would accept every proposal.
        for block in kernel.blocks.values() if isinstance(kernel, Gibbs) else (kernel,):
            if isinstance(block, HMC | MALA | RandomWalk | Independent):
                raise ValueError(f"{type(block).__name__} needs a log_density, and it is None")
    if isinstance(kernel, HMC | MALA) and not has_gradient(target, position):
        raise ValueError(
            f"{type(kernel).__name__} needs a gradient, and log_density cannot be differentiated: "
            "write it in torch, pass value_and_gradient, or use RandomWalk"
        )
    return _check_scale_and_metric(kernel, position) if isinstance(kernel, TunableAlgorithm) else kernel


def has_gradient(target: Target, position: Tensor) -> bool:
    """Whether the density can be differentiated; false for one that leaves torch."""
    if target.gradient is not None:
        return True
    with torch.enable_grad():
        try:
            value = target.log_density(position.detach().requires_grad_())
        except RuntimeError:  # A tensor with a gradient cannot become a NumPy array.
            return False
    return value.requires_grad


def _check_scale_and_metric(algorithm: Any, position: Tensor) -> Any:
    """The algorithm with its metric on the chains' device; scales and metrics that are not valid are refused."""
    check_choice(getattr(algorithm, "rule", "metropolis"), "rule", tuple(RULES))
    for name in ("scale", "trajectory"):
        value = getattr(algorithm, name, None)
        if value is not None and not bool(torch.as_tensor((value > 0) & (value < float("inf"))).all()):
            raise ValueError(f"{name} must be positive and finite, got {value}")
    metric = algorithm.metric
    if metric is None:
        return algorithm
    if len(metric) != position.shape[1]:
        raise ValueError(f"the metric is for {len(metric)} columns, and there are {position.shape[1]}")
    return replace(algorithm, metric=metric.to(position).contiguous())


def _choose_execution(mode: str | None, position: Tensor) -> Advance:
    """How blocks of steps are executed."""
    requested = mode is not None
    if mode is None:
        mode = "graph" if position.is_cuda else "eager"
    if mode == "graph" and not position.is_cuda:
        raise ValueError("graphs are for a GPU: pass device='cuda', or mode='compiled'")
    graphs = GraphSteps(strict=requested)
    modes: dict[str, Advance] = {"eager": advance, "compiled": CompiledSteps(), "graph": graphs}
    check_choice(mode, "mode", tuple(modes))
    return modes[mode]


# One iteration of the loop: a block of warm-up steps with their tuning, or a block of draws.


@dataclass(frozen=True)
class SamplerState(Tree):
    """State of sampling after an iteration; all that is needed to continue."""

    position: Tensor  # of the chains, (c, d)
    log_density: Tensor  # there, (c,)
    auxiliary: tuple[Tensor, ...]  # what else the kernel stores with positions
    stream: Tensor  # state of the random number generator
    tuning: TuningState | None  # of warm-up; None for an algorithm that is not tuned
    steps: int  # made so far, including those of warm-up
    draws: tuple[Tensor, ...]  # positions, a block per iteration, each (n, c, d)
    densities: tuple[Tensor, ...]  # log-densities, each (n, c)
    acceptance_sum: Tensor  # sum of acceptance probabilities of each chain since warm-up, (c,)
    nan_proposals: Tensor  # proposals of each chain since warm-up whose ratio was not a number, (c,)
    zero_density_proposals: Tensor  # those whose density was zero, (c,)
    diverging: tuple[Tensor, ...] = ()  # trajectories that diverged between two draws, each (n, c)

    @property
    def chains(self) -> Chains:
        """As a kernel sees them."""
        return Chains(self.position, self.log_density, self.auxiliary)

    @property
    def n_draws(self) -> int:
        """Draws of each chain so far."""
        return sum(len(block) for block in self.draws)

    def move_chains(self, chains: Chains, steps: int) -> SamplerState:
        """The state with its chains at other positions, some steps later."""
        position, log_density, auxiliary = chains
        steps += self.steps
        return replace(self, position=position, log_density=log_density, auxiliary=auxiliary, steps=steps)


STATES = {c.__name__: c for c in (SamplerState, TuningState, Running, PositionMoments, TrajectoryLength)}


@dataclass(frozen=True, eq=False)
class Sampler:
    """How chains are moved."""

    algorithm: Any  # that makes kernels, or a kernel
    target: Target  # of the chains
    tuner: Tuner | None  # of the algorithm; None if nothing is tuned
    warmup: int  # steps
    draws: int  # of each chain
    thin: int  # steps from one draw to the next
    stream: Generator  # one generator, set to the state's own before each iteration
    advance: Advance = advance  # how a block of draws is executed
    kernels: dict[int, Kernel] = field(default_factory=dict)  # the kernel of the draws, once there are any

    @property
    def warmup_block_length(self) -> int:
        """Steps in an iteration of warm-up."""
        return BLOCK if self.tuner is None else self.tuner.steps_per_update

    def make_initial_state(self, position: Tensor) -> SamplerState:
        """The state before the first step."""
        tuning = None if self.tuner is None else self.tuner.make_initial_state()
        chains = self.make_kernel(tuning, 0).init(position)
        zeros = torch.zeros(len(position), dtype=torch.float64, device=position.device)
        counts = torch.zeros_like(zeros, dtype=torch.int64)
        return SamplerState(*chains, self.stream.get_state(), tuning, 0, (), (), zeros, counts, counts)

    def make_tuned_algorithm(self, tuning: TuningState | None, steps: int) -> Any:
        """The algorithm as tuned after a number of steps."""
        if self.tuner is None or tuning is None:
            return self.algorithm
        return self.tuner.make_tuned_algorithm(tuning, steps)

    def make_kernel(self, tuning: TuningState | None, steps: int) -> Kernel:
        """The kernel of :meth:`make_tuned_algorithm`."""
        algorithm = self.make_tuned_algorithm(tuning, steps)
        return algorithm if isinstance(algorithm, Kernel) else algorithm.kernel(self.target)

    def get_draw_kernel(self, state: SamplerState) -> Kernel:
        """The kernel of the draws: one object, so that what was compiled for it is found again."""
        if self.warmup not in self.kernels:
            self.kernels[self.warmup] = self.make_kernel(state.tuning, self.warmup)
        return self.kernels[self.warmup]

    def run_iteration(self, state: SamplerState) -> Iteration[SamplerState]:
        """One iteration."""
        self.stream.set_state(state.stream)
        with torch.no_grad(), disable_validation():
            state = self._warm_up(state) if state.steps < self.warmup else self._draw_block(state)
        state = replace(state, stream=self.stream.get_state())
        return Iteration(state, objective=float(state.log_density.mean()))

    def _warm_up(self, state: SamplerState) -> SamplerState:
        steps = min(self.warmup_block_length, self.warmup - state.steps)
        kernel = self.make_kernel(state.tuning, state.steps)
        path = advance(kernel, state.chains, steps, self.stream)
        tuning, chains = state.tuning, path.chains
        if self.tuner is not None and tuning is not None:
            before = tuning.metric
            tuning = self.tuner.update(tuning, path, state.steps, _measure_acceptance(kernel, path)[0])
            if self.algorithm.stores_gradient and tuning.metric is not before:
                chains = self.make_kernel(tuning, 0).init(chains.position)
        return replace(state.move_chains(chains, steps), tuning=tuning)

    def _draw_block(self, state: SamplerState) -> SamplerState:
        count = min(BLOCK, self.draws - state.n_draws)
        kernel = self.get_draw_kernel(state)
        path = self.advance(kernel, state.chains, count * self.thin, self.stream)
        chance, undefined, outside = _measure_acceptance(kernel, path)
        diverging = state.diverging
        if isinstance(self.algorithm, HMC) and path.log_ratio is not None:
            diverging = (*diverging, is_divergent(path.log_ratio).reshape(count, self.thin, -1).any(1))
        return replace(
            state.move_chains(path.chains, count * self.thin),
            draws=(*state.draws, path.position[self.thin - 1 :: self.thin]),
            densities=(*state.densities, path.log_density[self.thin - 1 :: self.thin]),
            acceptance_sum=state.acceptance_sum + chance.sum(0),
            nan_proposals=state.nan_proposals + undefined.sum(0),
            zero_density_proposals=state.zero_density_proposals + outside.sum(0),
            diverging=diverging,
        )


def _measure_acceptance(kernel: Kernel, path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Acceptance probability of each proposal (n, c), and whether its ratio was not a number, or zero."""
    log_ratio = path.log_ratio
    if log_ratio is None or kernel.chance is None:
        log_ratio = path.log_density.new_zeros(0, path.log_density.shape[1])
    undefined, outside = torch.isnan(log_ratio), torch.isneginf(log_ratio)
    chance = log_ratio if kernel.chance is None else kernel.chance(log_ratio).masked_fill_(undefined, 0.0)
    return chance.double(), undefined, outside


# The run, its checkpoint, its progress bar, and the draws.


def _run_chains(
    sampler: Sampler,
    position: Tensor,
    checkpoint: str | PathLike[str] | None,
    random_state: RandomState,
    observers: Sequence[Observer[SamplerState]],
) -> Outcome[SamplerState]:
    with torch.no_grad():
        state = sampler.make_initial_state(position)
    _check_start(state.chains, isinstance(sampler.algorithm, HMC | MALA))
    resume = None
    if checkpoint is not None:
        if not isinstance(random_state, int | np.integer):
            raise ValueError("a checkpoint needs an integer random_state: the same start must be drawn again")
        fingerprint = _fingerprint_run(sampler, state, int(random_state))
        if FilePath(checkpoint).exists():
            resume = read_checkpoint(checkpoint, STATES, fingerprint)
            state = resume.state
        observers = [*observers, CheckpointWriter(checkpoint, fingerprint, seconds=10.0)]
    before = 0 if resume is None else resume.n_iter
    warm, rest = max(0, sampler.warmup - state.steps), max(0, sampler.draws - state.n_draws)
    iterations = before - (-warm // sampler.warmup_block_length) - (-rest // BLOCK)
    return run(sampler.run_iteration, state, max_iter=iterations, observers=observers, resume=resume)


def _fingerprint_run(sampler: Sampler, state: SamplerState, random_state: int) -> dict[str, Any]:
    """What a checkpoint must share with the run that resumes it; the number of draws may change."""
    algorithm = _describe_part(sampler.algorithm)
    return {
        **(algorithm if isinstance(algorithm, dict) else {"algorithm": algorithm}),
        "start": _describe_part(state.position),
        "density": _describe_part(state.log_density),  # functions cannot be compared between processes
        "warmup": sampler.warmup,
        "thin": sampler.thin,
        "random_state": random_state,
    }


def _describe_part(value: Any) -> Any:
    """A part of an algorithm: tensors by their bytes, functions by their names."""
    if isinstance(value, Tensor):
        return fingerprint_values(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: _describe_part(getattr(value, part.name)) for part in fields(value)}
        return {"algorithm": type(value).__name__, **parts}
    if isinstance(value, Mapping):
        return {str(name): _describe_part(part) for name, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__name__)


def _make_progress_bar(verbose: bool | None, sampler: Sampler) -> Observer[SamplerState]:
    """A progress bar with the phase, the acceptance, and R-hat of the log-density once a second."""
    text, updated = "", 0.0

    def describe(progress: Progress[SamplerState]) -> str:
        nonlocal text, updated
        state = progress.state
        if state.n_draws == 0:
            return "warm-up"
        if time.monotonic() - updated > 1.0 or progress.stopped:
            acceptance = ""
            if sampler.get_draw_kernel(state).chance is not None:
                mean = float(state.acceptance_sum.mean()) / (state.n_draws * sampler.thin)
                acceptance = f"acceptance {mean:.2f}, "
            table = torch.cat(state.densities).T[:, :, None].double().cpu().numpy()
            r_hat = float(diagnose(table).r_hat[0])
            text = acceptance + (f"R-hat {r_hat:.3f}" if np.isfinite(r_hat) else "R-hat not available")
            updated = time.monotonic()
        return text

    return ProgressBar(verbose).stage("chains", describe=describe)


def _collect_draws(
    sampler: Sampler, outcome: Outcome[SamplerState], space: ParameterSpace, superchains: int | None
) -> Draws:
    """The draws of all iterations."""
    state = outcome.state
    kernel = sampler.get_draw_kernel(state)
    steps = state.n_draws * sampler.thin
    empty = state.position[None][:0], state.log_density[None][:0]
    return Draws(
        positions=torch.cat([empty[0], *state.draws])[: sampler.draws],
        log_density=torch.cat([empty[1], *state.densities])[: sampler.draws],
        space=space,
        algorithm=sampler.make_tuned_algorithm(state.tuning, sampler.warmup),
        acceptance=None if kernel.chance is None or steps == 0 else state.acceptance_sum / steps,
        nan_proposals=state.nan_proposals,
        zero_density_proposals=state.zero_density_proposals,
        diverging=torch.cat(state.diverging)[: sampler.draws] if state.diverging else None,
        warmup=min(sampler.warmup, state.steps),
        thin=sampler.thin,
        superchains=superchains,
        events=tuple(outcome.events),
        interrupted=outcome.interrupted,
    )
