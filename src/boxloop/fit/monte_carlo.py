r"""Monte Carlo EM: the averages of the E step are taken over Markov chains of the latent values.

.. math:: \hat s_k = \frac1m \sum_{j=1}^m t(x, z_j), \quad z_j \sim p_{\theta_{k-1}}(z \mid x), \qquad
          s_k = s_{k-1} + \gamma_k (\hat s_k - s_{k-1}), \qquad \theta_k = \mathrm{solve}(s_k)

The rate and the number of draws decide the method: rate 1 and a growing m is Monte Carlo EM (Wei and Tanner 1990), rate
1 and m = 1 stochastic EM (which never converges), a decreasing rate with few draws stochastic-approximation EM (Delyon,
Lavielle and Moulines 1999; Kuhn and Lavielle 2004). Section 2.6 of Le Corff's notes is about these and is empty.

Every unit (a group of rows, or one row) has chains of its own, and all of them move together. They persist: an
iteration starts where the last one ended, since the posterior changes little. Only the *density* cached with a
position is wrong once parameters have changed, so ``kernel.init`` evaluates it again. The kernel is fixed within an
iteration; between iterations the scale of each unit's proposals adapts to the optimal acceptance rate.

Ascent-based EM (Caffo, Jank and Jones 2005) lets the Monte Carlo error choose m. A step that raises Q raises the
likelihood, but Monte Carlo EM only has an estimate

.. math:: \Delta = \frac1m \sum_j \log \frac{p_{\theta'}(x, z_j)}{p_\theta(x, z_j)}, \qquad z_j \sim p_\theta(z \mid x)

so the step is taken when :math:`\Delta - c\,\sigma_\Delta > 0`; otherwise more draws are added. The next iteration
begins with as many draws as would have shown this step with twice the confidence. The fit ends when
:math:`\Delta + c\,\sigma_\Delta` is below a tolerance. The error :math:`\sigma_\Delta` comes from independent chains
of the same unit, so it needs no model of the autocorrelation and no batch length.

Standard errors come from chains that continue at the fitted parameters :math:`\hat\theta` with a fixed kernel. With
:math:`s_i = \nabla \log p_\theta(x_i, z_i)` the complete-data score of a unit, score and observed information are

.. math:: \nabla \ell = \sum_i E[s_i], \qquad
          I = \sum_i E[-\nabla^2 \log p_\theta(x_i, z_i)] - \sum_i \mathrm{Cov}(s_i)

given the rows (Fisher's and Louis' identities; Louis 1982). They hold for any latent coordinates, so latent values may
follow the parameters (``model.transport_latent``), which removes most of the noise. The reported estimate is
:math:`\hat\theta + I^{-1} \widehat{\nabla \ell}`, one Newton step on the likelihood. It removes what EM has not
gained yet, whatever engine and rate were used, and its Monte Carlo error is known, :math:`I^{-1} V I^{-1}` with V
the error of the score, from the differences between chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Running, Schedule
from boxloop.chain import Chains, Kernel, Path, advance
from boxloop.fit.errors import differentiate_named
from boxloop.loop import Iteration
from boxloop.models import derivatives_by_unit, flatten, unflatten
from boxloop.numeric import ConditionError, safe_cholesky, single_threaded
from boxloop.tree import Tree

LogDensity = Callable[[Tensor], Tensor]
Kernels = Callable[[LogDensity, Tensor, Tensor], Kernel]
"""Makes a kernel from a log-density (c, q) -> (c,), proposal scales (c, 1) and a proposal factor (q, q)."""

MAX_BLOCK = 1 << 18
"""Most numbers of positions in memory at once."""
ADAPTATION_RATE = Power(0.6)
"""Step of the log scale in iteration k per unit of excess acceptance; times 2."""


class SampledModel(Protocol):
    """A model of units whose latent values are drawn. ``z`` has m values per unit, (units m, q), grouped by unit."""

    def log_joint(self, rows: Any, z: Tensor) -> Tensor:
        """Joint log-density of each unit's rows and each of its latent values, (units m,)."""

    def statistics(self, rows: Any, z: Tensor) -> Any:
        """A tree of complete-data statistics: means over the m draws, summed over units."""

    def solve(self, statistics: Any) -> Self:
        """M step."""

    def change_coordinates(self, statistics: Any, z: Tensor) -> tuple[Any, Tensor]:
        """Statistics and latent values in the coordinates of the solved model, if the M step changes coordinates."""

    def transport_latent(self, origin: Self, z: Tensor, latent_covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Latent values that correspond to z under ``origin``, and the log-Jacobian of that map, (units m,).

        Any smooth map is valid that is the identity at ``origin``. A good one makes scores vary little; it may use an
        approximate posterior covariance of each unit's values, (units, q, q).
        """

    def draw_latent(self, rows: Any, n_chains: int, stream: Generator) -> Tensor:
        """Latent values where chains may start, (units n_chains, q)."""

    def proposal_factor(self) -> Tensor:
        """Lower factor of the covariance that proposals should resemble, (q, q)."""

    def free_parameters(self) -> dict[str, Tensor]:
        """Unconstrained parameters, in which the likelihood is nearly quadratic."""

    def with_free_parameters(self, free: dict[str, Tensor]) -> Self:
        """The model at other values of :meth:`free`, differentiable; ConditionError where there is none."""

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""


M = TypeVar("M", bound=SampledModel)


@dataclass(frozen=True)
class MonteCarloState(Tree, Generic[M]):
    """State of Monte Carlo EM, random generator included.

    Args:
        model: current parameters.
        position: of all chains, (units n_chains, q), grouped by unit.
        log_scale: log scale of each unit's proposals, (units,).
        stream: state of the random generator.
        average: averaged statistics.
        smooth: average of their path.
        iteration: number of iterations done.
        spent: steps of all chains of a unit so far.
        draws: per unit, at which the next iteration of :func:`ascent_em` begins.
        gain: in Q of the last iteration, where it was measured.
        error: standard error of ``gain``.
    """

    model: M
    position: Tensor
    log_scale: Tensor
    stream: Tensor
    average: Running[Any] = field(default_factory=Running)
    smooth: Running[Any] = field(default_factory=Running)
    iteration: int = 0
    spent: int = 0
    draws: int = 0
    gain: float = math.nan
    error: float = math.nan

    @classmethod
    def start(cls, model: M, rows: Any, n_chains: int, stream: Generator) -> Self:
        """Chains at draws from the prior of latent values; ``stream`` is advanced."""
        position = model.draw_latent(rows, n_chains, stream)
        first = math.log(2.4 / math.sqrt(position.shape[1]))
        scale = position.new_full((len(position) // n_chains,), first)
        return cls(model, position, scale, stream.get_state())

    @property
    def n_chains(self) -> int:
        """Chains per unit."""
        return len(self.position) // len(self.log_scale)

    @property
    def best(self) -> M:
        """The model of the smoothed path, if there is one."""
        return self.model if self.smooth.value is None else self.model.solve(self.smooth.value)


class ChainSampler(Generic[M]):
    """The chains of one iteration: a fixed kernel, and sums over the visited positions."""

    def __init__(
        self, state: MonteCarloState[M], rows: Any, kernels: Kernels, persistent: bool = True
    ) -> None:
        self.state = state
        self.rows = rows
        self.units: int = len(state.log_scale)
        self.n_chains: int = state.n_chains
        self.stream: Generator = Generator(state.position.device)
        self.stream.set_state(state.stream)
        scale = state.log_scale.exp().repeat_interleave(self.n_chains)[:, None]
        self.kernel: Kernel = kernels(
            lambda z: state.model.log_joint(rows, z), scale, state.model.proposal_factor()
        )
        place = state.position if persistent else state.model.draw_latent(rows, self.n_chains, self.stream)
        self.chains: Chains = self.kernel.init(place)
        self.spent: int = 0
        self.steps: int = 0
        self.log_density_sum: float = 0.0
        self.acceptance_sum: Tensor | None = None
        self.sums: Any = None

    def advance_chains(self, steps: int) -> Iterator[Path]:
        """Advance by ``steps``, in blocks that fit in memory."""
        block = max(1, MAX_BLOCK // self.chains.position.numel())
        while steps > 0:
            path = advance(self.kernel, self.chains, min(block, steps), self.stream)
            self.chains = path.chains
            self.spent += len(path.position) * self.n_chains
            steps -= len(path.position)
            yield path

    def discard_steps(self, steps: int) -> None:
        """Advance without averaging."""
        for _ in self.advance_chains(steps):
            pass

    def average_draws(self, steps: int) -> list[Path]:
        """Advance and add the positions to the averages; return the paths."""
        paths = []
        for path in self.advance_chains(steps):
            length = len(path.position)
            fresh = self.state.model.statistics(self.rows, self.group_by_unit(path.position)) * float(length)
            self.sums = fresh if self.sums is None else self.sums + fresh
            self.log_density_sum += float(path.log_density.sum()) / self.n_chains
            if path.log_ratio is not None:
                probability = path.log_ratio.nan_to_num(nan=-math.inf).clamp(max=0.0).exp()
                accepted = probability.reshape(length, self.units, -1).mean(2).sum(0)
                self.acceptance_sum = (
                    accepted if self.acceptance_sum is None else self.acceptance_sum + accepted
                )
            self.steps += length
            paths.append(path)
        return paths

    def group_by_unit(self, position: Tensor) -> Tensor:
        """Positions (t, units copies, q) as t copies draws of every unit, a unit's together."""
        q = position.shape[-1]
        return position.reshape(-1, self.units, self.n_chains, q).transpose(0, 1).reshape(-1, q)

    @property
    def statistics(self) -> Any:
        """Means over all averaged draws."""
        return self.sums * (1.0 / self.steps)

    @property
    def objective(self) -> float:
        """Mean log-joint of a unit: Q of the model given itself."""
        return self.log_density_sum / (self.steps * self.units)

    def adapt_log_scale(self, number: int) -> Tensor:
        """Scales after iteration ``number``: larger where too much was accepted; unchanged without rejections."""
        if self.acceptance_sum is None:
            return self.state.log_scale
        return self.state.log_scale + 2.0 * ADAPTATION_RATE(number) * (
            self.acceptance_sum / self.steps - self.target_acceptance
        )

    @property
    def target_acceptance(self) -> float:
        """Optimal acceptance rate: 0.44 in one dimension, 0.234 in many (Roberts, Gelman and Gilks 1997)."""
        q = self.chains.position.shape[1]
        return 0.44 if q == 1 else 0.35 if q < 5 else 0.234

    def next_state(self, average: Running[Any]) -> MonteCarloState[M]:
        """The state after an M step on averaged statistics."""
        old = self.state
        carried, position = old.model.change_coordinates(average.value, self.chains.position)
        return replace(
            old,
            model=old.model.solve(average.value),
            position=position,
            log_scale=self.adapt_log_scale(old.iteration + 1),
            stream=self.stream.get_state(),
            average=Running(carried, average.count),
            iteration=old.iteration + 1,
            spent=old.spent + self.spent,
        )


@dataclass(frozen=True)
class BurnIn:
    """Rate 1 for some iterations, to forget the start; then another schedule from its beginning.

    Example:
        >>> [BurnIn(2, Power(1.0))(t) for t in (1, 2, 3, 4)]
        [1.0, 1.0, 1.0, 0.5]
    """

    iterations: int
    then: Schedule = field(default_factory=lambda: Power(0.7))

    def __call__(self, t: int) -> float:
        """Rate of iteration t."""
        return 1.0 if t <= self.iterations else self.then(t - self.iterations)


def quadratic_draws(k: int) -> int:
    """k² draws in iteration k."""
    return k * k


@dataclass(frozen=True)
class MonteCarloPlan:
    """Draws and rates of Monte Carlo EM.

    Args:
        draws: per unit in iteration k = 1, 2, ..., over all its chains.
        rate: step of iteration k: 1 replaces the averages.
        n_chains: chains per unit.
        discard: steps of every chain at the start of an iteration that are not averaged.
        persistent: whether chains continue where they were; otherwise they start at draws from the prior.
        smooth_after: iteration after which the path of the averages is averaged (Polyak and Ruppert); None for never.
    """

    draws: Callable[[int], int] = quadratic_draws
    rate: Schedule = field(default_factory=lambda: Power(0.0))
    n_chains: int = 1
    discard: int = 0
    persistent: bool = True
    smooth_after: int | None = None

    def steps(self, k: int) -> int:
        """Steps of every chain in iteration k."""
        return max(1, math.ceil(self.draws(k) / self.n_chains))


def warm_up(
    state: MonteCarloState[M], rows: Any, kernels: Kernels, iterations: int = 15, steps: int = 10
) -> MonteCarloState[M]:
    """Burn in the chains of a new state and adapt their scales, before any parameter changes.

    Draws from the prior may have a very small likelihood (a rate is the exponential of an effect), so averages over
    them would make the first M step useless.
    """
    for number in range(1, iterations + 1):
        sampler = ChainSampler(state, rows, kernels)
        sampler.average_draws(steps)
        state = replace(
            state,
            position=sampler.chains.position,
            log_scale=sampler.adapt_log_scale(number),
            stream=sampler.stream.get_state(),
            spent=state.spent + sampler.spent,
        )
    return state


def monte_carlo_em(
    rows: Any, kernels: Kernels, plan: MonteCarloPlan
) -> Callable[[MonteCarloState[M]], Iteration[MonteCarloState[M]]]:
    """Monte Carlo EM, or stochastic-approximation EM: expect by chains, average, solve.

    Args:
        rows: what the model's ``log_joint`` takes.
        kernels: makes a kernel for a log-density.
        plan: draws and rates.

    Returns:
        A step for :func:`boxloop.loop.run`. Its objective is the mean complete-data log-density of a unit,
        which is not a likelihood and need not increase.

    Example:
        >>> import torch
        >>> from boxloop.models import GroupedRows, PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.loop import run
        >>> from boxloop.sample import RandomWalk, Target
        >>> one = torch.ones(400, 1).double()
        >>> rows = GroupedRows.from_rows((torch.arange(400) // 4 % 5).double(), one, one, torch.arange(400) // 4)
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), PoissonResponse(), shared=(0,))
        >>> start = warm_up(MonteCarloState.start(model, rows, 4, generator(1)), rows, kernels)
        >>> plan = MonteCarloPlan(draws=lambda k: 8, rate=BurnIn(20), n_chains=4)  # stochastic approximation
        >>> outcome = run(monte_carlo_em(rows, kernels, plan), start, max_iter=60)
        >>> rate = (outcome.state.model.coefficients + outcome.state.model.covariance[0] / 2).exp()
        >>> bool(1.8 < rate < 2.7)  # of groups whose counts are 0 to 4, so 2 on average
        True
    """

    def step(state: MonteCarloState[M]) -> Iteration[MonteCarloState[M]]:
        if state.n_chains != plan.n_chains:
            raise ValueError(
                f"plan.n_chains is {plan.n_chains}, but the state has {state.n_chains} chains per unit."
            )
        sampler = ChainSampler(state, rows, kernels, plan.persistent)
        sampler.discard_steps(plan.discard)
        sampler.average_draws(plan.steps(state.iteration + 1))
        average = state.average.update(sampler.statistics, plan.rate)
        after = sampler.next_state(average)
        if plan.smooth_after is not None and after.iteration > plan.smooth_after:
            after = replace(after, smooth=state.smooth.update(after.average.value, Power(1.0)))
        return Iteration(after, sampler.objective)

    return step


@dataclass(frozen=True)
class AscentPlan:
    """Confidence and effort of ascent-based Monte Carlo EM.

    Args:
        tol: stop when the upper bound of the gain in Q is below it.
        confidence: of each one-sided bound.
        draws: per unit in the first iteration.
        growth: relative growth of draws while the sign of a gain is uncertain.
        max_draws: per unit and iteration; with these a step is taken anyway, with a note.
        discard: steps of every chain at the start of an iteration that are not averaged.
    """

    tol: float = 1e-2
    confidence: float = 0.9
    draws: int = 32
    growth: float = 0.5
    max_draws: int = 20_000
    discard: int = 2

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1.0:
            raise ValueError(f"confidence must lie between 0.5 and 1, got {self.confidence}")
        if not self.tol > 0.0 or not self.growth > 0.0:
            raise ValueError(f"tol and growth must be positive, got {self.tol} and {self.growth}")
        if not 1 <= self.draws <= self.max_draws:
            raise ValueError(f"draws must lie between 1 and max_draws={self.max_draws}, got {self.draws}")


def ascent_em(
    rows: Any, kernels: Kernels, plan: AscentPlan
) -> Callable[[MonteCarloState[M]], Iteration[MonteCarloState[M]]]:
    """Monte Carlo EM with as many draws as each step needs.

    A step that certainly *lowers* Q (the M step may be one Newton step, which can overshoot) is halved, by
    interpolating the statistics.

    Args:
        rows: what the model's ``log_joint`` takes.
        kernels: makes a kernel for a log-density.
        plan: confidence and effort.

    Returns:
        A step for :func:`boxloop.loop.run`, which ends the loop itself; its objective is that of
        :func:`monte_carlo_em`.

    Example:
        >>> import torch
        >>> from boxloop.models import GroupedRows, PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.loop import run
        >>> from boxloop.sample import RandomWalk, Target
        >>> one = torch.ones(300, 1).double()
        >>> counts = torch.poisson(torch.full((300,), 4.0), generator=generator(0))
        >>> rows = GroupedRows.from_rows(counts, one, one, torch.arange(300) // 6)
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), PoissonResponse())
        >>> start = MonteCarloState.start(model, rows, 8, generator(1))
        >>> outcome = run(ascent_em(rows, kernels, AscentPlan(tol=0.1)), start, max_iter=50)
        >>> outcome.converged, outcome.state.gain + 1.29 * outcome.state.error < 0.1
        (True, True)
    """
    quantile = NormalDist().inv_cdf(plan.confidence)

    def step(state: MonteCarloState[M]) -> Iteration[MonteCarloState[M]]:
        if state.n_chains < 2:
            raise ValueError(f"ascent_em needs at least 2 chains per unit, got {state.n_chains}")
        sampler = ChainSampler(state, rows, kernels)
        sampler.discard_steps(plan.discard)
        paths: list[Path] = []
        rate, more = 1.0, math.ceil(max(state.draws, plan.draws) / sampler.n_chains)
        while True:
            paths += sampler.average_draws(more)
            average, old = sampler.statistics, state.average.value
            if old is not None and rate < 1.0:
                average = old * (1.0 - rate) + average * rate
            gain, error = _estimate_gain(sampler, average, paths)
            falls = gain + quantile * error < 0.0 and state.average.count > 0
            small = gain + quantile * error < plan.tol
            uncertain = not falls and not small and sampler.steps * sampler.n_chains >= plan.max_draws
            if not falls and (gain - quantile * error > 0.0 or small or uncertain):
                break
            rate, more = (0.5 * rate, 0) if falls else (rate, math.ceil(plan.growth * sampler.steps))
        after = sampler.next_state(Running(average, state.average.count + 1))
        ratio = 2.0 * quantile * error / gain if gain > 0.0 else 1.0
        wanted = sampler.steps * sampler.n_chains * min(ratio, plan.max_draws) ** 2
        draws = int(min(max(state.draws, plan.draws, wanted), plan.max_draws))
        events = (
            (f"a step was within its Monte Carlo error with {plan.max_draws} draws per unit",)
            if uncertain
            else ()
        )
        return Iteration(
            replace(after, draws=draws, gain=gain, error=error),
            sampler.objective,
            events,
            final=small,
        )

    return step


def _estimate_gain(sampler: ChainSampler[M], statistics: Any, paths: Sequence[Path]) -> tuple[float, float]:
    """Gain in Q from solving ``statistics``, estimated on the draws and summed over units, and its standard error."""
    # Where the M step changes the coordinates of latent values, the draws are transformed with them.
    model = sampler.state.model.solve(statistics)
    total = torch.zeros(sampler.units, sampler.n_chains, dtype=torch.float64, device=paths[0].position.device)
    for path in paths:
        _, z = sampler.state.model.change_coordinates(statistics, sampler.group_by_unit(path.position))
        after = model.log_joint(sampler.rows, z).reshape(sampler.units, -1, sampler.n_chains)
        before = path.log_density.reshape(-1, sampler.units, sampler.n_chains).sum(0)
        total += after.sum(1) - before
    mean = total / sampler.steps
    variance = mean.var(1) / sampler.n_chains  # of each unit's mean over chains
    return float(mean.mean(1).sum()), float(variance.sum().sqrt())


NamedParameters = Callable[[M], Mapping[str, Tensor]]

MIN_INFORMATION = 1e-4
"""Smallest observed fraction of the complete-data information that is not treated as zero."""
MAX_STEP = 1.0
"""Longest Newton step, in standard errors: beyond it the quadratic approximation is poor."""
SHORT_STEP = 0.3
"""Longest step after which no other is needed."""
MAX_STRETCH = 20.0
"""Longest step relative to that of EM, in case noise makes the estimated information too small."""


@dataclass(frozen=True)
class LouisErrors(Generic[M]):
    """A fit after one Newton step on the likelihood, with its standard errors and Monte Carlo errors.

    Args:
        model: after the step, which is at most one standard error long.
        step: its length before that limit, in standard errors; NaN where the information is not positive.
        noise_step: length that Monte Carlo error alone would give it.
        covariance: of the free parameters, (p, p).
        monte_carlo_covariance: Monte Carlo covariance of the free parameters, (p, p).
        errors: standard errors by public name, NaN where the likelihood is flat.
        monte_carlo_errors: by public name.
        latent_mean: posterior mean of each unit's latent values, (units, q).
        latent_covariance: (units, q, q).
        draws: per unit.
        state: with the model after the step, and the present chains.
    """

    model: M
    step: float
    noise_step: float
    covariance: Tensor
    monte_carlo_covariance: Tensor
    errors: Mapping[str, Tensor]
    monte_carlo_errors: Mapping[str, Tensor]
    latent_mean: Tensor
    latent_covariance: Tensor
    draws: int
    state: MonteCarloState[M]

    @property
    def is_short(self) -> bool:
        """Whether the step was of the length that noise gives it, so that the quadratic approximation suffices."""
        return self.step < min(SHORT_STEP, max(0.1, 2.0 * self.noise_step))

    @property
    def error_ratio(self) -> float:
        """Largest ratio of Monte Carlo error to standard error over public parameters; NaN where none is known."""
        ratios = [(self.monte_carlo_errors[name] / error).reshape(-1) for name, error in self.errors.items()]
        known = torch.cat(ratios)
        known = known[torch.isfinite(known)]
        return float(known.max()) if len(known) else math.nan


@single_threaded
def louis_errors(
    state: MonteCarloState[M],
    rows: Any,
    kernels: Kernels,
    draws: int = 2000,
    discard: int = 50,
    named: NamedParameters[M] | None = None,
) -> LouisErrors[M]:
    """Standard errors by Louis' identity, Monte Carlo errors, and the fit after one Newton step.

    Args:
        state: of the fit, whose chains are continued.
        rows: that were fitted.
        kernels: as in the fit.
        draws: per unit, over all its chains.
        discard: initial steps of every chain, which only estimate the covariance of each unit's latent values.
        named: parameters whose errors are wanted, as a differentiable function of the model; all if None.

    Returns:
        Errors and the improved fit; ``state`` is unchanged.

    Example:
        >>> import torch
        >>> from boxloop.models import GroupedRows, PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.sample import RandomWalk, Target
        >>> one = torch.ones(400, 1).double()
        >>> rows = GroupedRows.from_rows((torch.arange(400) // 4 % 5).double(), one, one, torch.arange(400) // 4)
        >>> model = RandomEffects(torch.tensor([0.4]).double(), torch.eye(1).double(), PoissonResponse())
        >>> start = MonteCarloState.start(model, rows, 10, generator(0))
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> found = louis_errors(start, rows, kernels)
        >>> found.errors["coefficients"].shape, bool(found.error_ratio < 0.2)
        (torch.Size([1]), True)
    """
    if state.n_chains < 2:
        raise ValueError(f"Monte Carlo errors need at least 2 chains per unit, got {state.n_chains}")
    sampler = ChainSampler(state, rows, kernels)
    sums = _ScoreSums(sampler, _estimate_latent_covariance(sampler, discard))
    for path in sampler.advance_chains(-(-draws // sampler.n_chains)):
        sums.add(path.position)
    return _compute_errors(state, sums, named or (lambda model: model.named_parameters()))


def _estimate_latent_covariance(sampler: ChainSampler[M], steps: int) -> Tensor:
    """Covariance of each unit's latent values over the next steps, (units, q, q)."""
    visited = torch.cat([path.position for path in sampler.advance_chains(steps)])
    z = sampler.group_by_unit(visited).reshape(sampler.units, -1, visited.shape[2])
    centred = z - z.mean(1, keepdim=True)
    return centred.mT @ centred / z.shape[1]


class _ScoreSums(Generic[M]):
    """Sums over draws of scores, products of scores, curvature, and latent values."""

    def __init__(self, sampler: ChainSampler[M], latent_covariance: Tensor) -> None:
        self.sampler, self.latent_covariance = sampler, latent_covariance
        self.free = sampler.state.model.free_parameters()
        self.point = flatten(self.free)
        p, q = len(self.point), sampler.state.position.shape[1]
        self.steps: int = 0
        self.score = self.point.new_zeros(sampler.units, sampler.n_chains, p)
        self.product = self.point.new_zeros(p, p)
        self.curvature = self.point.new_zeros(p, p)
        self.latent = self.point.new_zeros(sampler.units, q)
        self.square = self.point.new_zeros(sampler.units, q, q)

    def add(self, position: Tensor) -> None:
        sampler, z = self.sampler, self.sampler.group_by_unit(position)

        def joint(vector: Tensor) -> Tensor:
            there = sampler.state.model.with_free_parameters(unflatten(vector, self.free))
            moved, volume = there.transport_latent(sampler.state.model, z, self.latent_covariance)
            return there.log_joint(sampler.rows, moved) + volume

        _, score, curvature = derivatives_by_unit(joint, self.point)
        self.product += score.mT @ score / sampler.n_chains
        self.score += score.reshape(sampler.units, -1, sampler.n_chains, score.shape[1]).sum(1)
        self.curvature -= curvature / sampler.n_chains
        draws = z.reshape(sampler.units, -1, z.shape[1])
        self.latent += draws.sum(1) / sampler.n_chains
        self.square += draws.mT @ draws / sampler.n_chains
        self.steps += len(position)

    def information(self) -> tuple[Tensor, Tensor, Tensor]:
        """Score (p,), its Monte Carlo covariance, and the observed information, (p, p) each."""
        copy = self.score / self.steps
        unit = copy.mean(1)
        apart = (copy - unit[:, None]).reshape(-1, copy.shape[2])
        error = apart.mT @ apart / (self.sampler.n_chains * (self.sampler.n_chains - 1))
        # The square of an estimated mean exceeds that of the mean by the variance of the estimate.
        missing = self.product / self.steps - unit.mT @ unit + error
        information = self.curvature / self.steps - missing
        return unit.sum(0), error, 0.5 * (information + information.mT)


def _information_fractions(complete: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Observed fractions of the complete-data information, along directions with complete-data information 1."""
    # Directions are columns, (p, p); the rate of EM along each is one minus its fraction, (p,).
    try:
        half = safe_cholesky(complete)
    except ConditionError:  # far from a maximum; any scale of the parameters serves
        half = torch.diag(complete.diagonal().abs().clamp(min=1e-300).sqrt())
    inner = torch.linalg.solve_triangular(half, observed, upper=False)
    inner = torch.linalg.solve_triangular(half.mT, inner, upper=True, left=False)
    share, vectors = torch.linalg.eigh(0.5 * (inner + inner.mT))
    return torch.linalg.solve_triangular(half.mT, vectors, upper=True), share


def _move_while_valid(model: M, free: dict[str, Tensor], point: Tensor, move: Tensor) -> M:
    """The model after a step, which is halved until the model exists."""
    for _ in range(30):
        try:
            return model.with_free_parameters(unflatten(point + move, free))
        except ConditionError:
            move = 0.5 * move
    return model


def _compute_errors(
    state: MonteCarloState[M], sums: _ScoreSums[M], named: NamedParameters[M]
) -> LouisErrors[M]:
    score, error, information = sums.information()
    model, point, free = state.model, sums.point, sums.free
    basis, share = _information_fractions(sums.curvature / sums.steps, information)
    good = share > MIN_INFORMATION
    covariance = (basis[:, good] / share[good]) @ basis[:, good].mT
    monte_carlo_covariance = covariance @ error @ covariance
    noise_step = float((covariance * error).sum().clamp(min=0.0).sqrt())
    along = basis.mT @ score
    length = float((along.square() / share).sum().sqrt()) if bool(good.all()) else torch.nan
    stretch = 1.0 / share.clamp(min=1.0 / MAX_STRETCH)
    reach = float((along.square() * stretch).sum().sqrt())
    model = _move_while_valid(
        model, free, point, basis @ (along * stretch) * min(1.0, MAX_STEP / max(reach, MAX_STEP))
    )
    point = flatten(model.free_parameters())
    flat = basis[:, ~good]
    errors: dict[str, Tensor] = {}
    monte_carlo: dict[str, Tensor] = {}
    for name, slope in differentiate_named(named, state.model, point).items():
        blind = (slope @ flat).norm(dim=-1) > 1e-4 * (slope @ basis).norm(dim=-1)
        for to, matrix in ((errors, covariance), (monte_carlo, monte_carlo_covariance)):
            variance = torch.einsum("...i,ij,...j->...", slope, matrix, slope)
            to[name] = torch.where(blind, torch.nan, variance.clamp(min=0.0).sqrt())
    mean = sums.latent / sums.steps
    latent_covariance = sums.square / sums.steps - mean[:, :, None] * mean[:, None, :]
    sampler = sums.sampler
    after = replace(state, model=model, position=sampler.chains.position, stream=sampler.stream.get_state())
    draws = sums.steps * sampler.n_chains
    return LouisErrors(
        model,
        length,
        noise_step,
        covariance,
        monte_carlo_covariance,
        errors,
        monte_carlo,
        mean,
        latent_covariance,
        draws,
        after,
    )


@dataclass(frozen=True)
class RefinementState(Generic[M]):
    """The fit so far, its latest errors, and the draws of the next evaluation."""

    state: MonteCarloState[M]
    errors: LouisErrors[M] | None = None
    draws: int = 1000


@single_threaded
def newton_refine(
    rows: Any,
    kernels: Kernels,
    *,
    precision: float = 0.1,
    max_draws: int = 20_000,
    named: NamedParameters[M] | None = None,
) -> Callable[[RefinementState[M]], Iteration[RefinementState[M]]]:
    """Newton steps on the likelihood until the step is short and the Monte Carlo errors are small.

    Args:
        rows: that were fitted.
        kernels: as in the fit.
        precision: largest ratio of Monte Carlo error to standard error.
        max_draws: per unit and step.
        named: as in :func:`louis_errors`.

    Returns:
        A step for :func:`boxloop.loop.run`, final once both hold or cannot: with ``max_draws`` draws, or where
        the information is not positive. Its objective is minus the length of the step.

    Example:
        >>> import torch
        >>> from boxloop.models import GroupedRows, PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.loop import run
        >>> from boxloop.sample import RandomWalk, Target
        >>> one = torch.ones(400, 1).double()
        >>> rows = GroupedRows.from_rows((torch.arange(400) // 4 % 5).double(), one, one, torch.arange(400) // 4)
        >>> model = RandomEffects(torch.tensor([0.4]).double(), torch.eye(1).double(), PoissonResponse(), shared=(0,))
        >>> start = MonteCarloState.start(model, rows, 10, generator(0))
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> outcome = run(newton_refine(rows, kernels, precision=0.05), RefinementState(start), max_iter=6)
        >>> outcome.converged, outcome.state.errors.error_ratio < 0.05
        (True, True)
    """

    def step(last: RefinementState[M]) -> Iteration[RefinementState[M]]:
        errors = louis_errors(last.state, rows, kernels, last.draws, named=named)
        no_information = math.isnan(errors.step)
        precise = not errors.error_ratio > precision
        more = 4.0 if no_information else 1.3 * (errors.error_ratio / precision) ** 2
        # Far from the maximum more draws would be wasted.
        enough = not no_information and (precise or errors.step > MAX_STEP)
        draws = last.draws if enough else min(max_draws, int(more * last.draws))
        final = (precise and errors.is_short) or (
            last.draws == max_draws and (no_information or errors.is_short)
        )
        return Iteration(RefinementState(errors.state, errors, draws), -errors.step, final=final)

    return step
