"""Monte Carlo EM: what makes it converge, and what makes it collapse.

Le Corff, Introduction to computational statistics, section 2.6, which is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Generator, Tensor

from boxloop.average import Power
from boxloop.chain import Chains, Info, Kernel
from boxloop.figures import COLOURS, FAINT, INK, dress, new_figure
from boxloop.fit import (
    AscentPlan,
    BurnIn,
    Kernels,
    LogDensity,
    MonteCarloPlan,
    MonteCarloState,
    RefinementState,
    ascent_em,
    monte_carlo_em,
    newton_refine,
    warm_up,
)
from boxloop.loop import run
from boxloop.models import (
    BernoulliResponse,
    GroupedRows,
    RandomEffects,
    find_modes,
    flatten,
    group_log_likelihood,
    jacobian,
    unflatten,
)
from boxloop.numeric import from_log_factor, generator, log_factor, normal
from boxloop.sample import RandomWalk, Target
from boxloop.tree import Tree
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_target

Rows = NDArray[np.float64]


# --- Settings ---


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        seeds: runs of each scheme.
        draws: per group, of each scheme.
        repeats: runs on each small problem.
        short: draws per unit, of the small problems.
        ascents: runs of ascent-based EM.
    """

    seeds: int
    draws: int
    repeats: int
    short: int
    ascents: int


FULL, QUICK = Size(8, 4000, 24, 400, 16), Size(3, 800, 8, 300, 6)
EMPTY = "section 2.6 is empty"
ONE, TWENTY, GROWING, FALLING = (
    "m = 1, full replacement",
    "m = 20",
    "m = k²",
    "stochastic approximation, m = 5",
)
SCHEMES = (ONE, TWENTY, GROWING, FALLING)
PAIRS = ((GROWING, f"{GROWING}, restarted"), (FALLING, "stochastic approximation, restarted"))


def one_draw(k: int) -> int:
    """One draw per iteration."""
    return 1


def schemes(draws: int) -> dict[str, tuple[MonteCarloPlan, int]]:
    """Plans by name, each with as many iterations as spend the draws."""
    iterations = draws // 5
    approximation = BurnIn(iterations // 10, Power(0.7))
    growing = int((3.0 * draws) ** (1.0 / 3.0))

    def five(persistent: bool) -> MonteCarloPlan:
        return MonteCarloPlan(lambda k: 5, approximation, smooth_after=iterations // 4, persistent=persistent)

    return {
        "m = 1, full replacement": (MonteCarloPlan(one_draw), draws),
        "m = 20": (MonteCarloPlan(lambda k: 20), draws // 20),
        "m = k²": (MonteCarloPlan(), growing),
        "stochastic approximation, m = 5": (five(persistent=True), iterations),
        "m = k², restarted": (MonteCarloPlan(persistent=False), growing),
        "stochastic approximation, restarted": (five(persistent=False), iterations),
    }


# --- A logistic model with random intercepts, and its maximum by quadrature ---


def random_walks(density: LogDensity, scale: Tensor, shape: Tensor) -> Kernel:
    """Random walk Metropolis, the kernel of these experiments."""
    return RandomWalk(scale=scale, metric=shape).kernel(Target(density))


def logistic_groups(seed: int, groups: int, each: int, deviation: float = 1.0) -> GroupedRows:
    """Zeros and ones of groups whose intercepts have a standard deviation; one column with coefficient -0.8."""
    stream = generator(seed)
    n = groups * each
    group = torch.arange(n) // each
    one = torch.ones(n, 1, dtype=torch.float64)
    fixed = torch.cat([one, normal((n, 1), stream)], 1)
    level = fixed @ torch.tensor([0.3, -0.8]).double() + deviation * normal((groups,), stream)[group]
    return GroupedRows.from_rows(torch.bernoulli(torch.sigmoid(level), generator=stream), fixed, one, group)


def start() -> RandomEffects:
    """A model far from the truth in every parameter."""
    two = torch.tensor([[2.0]], dtype=torch.float64)
    return RandomEffects(torch.zeros(2, dtype=torch.float64), two, BernoulliResponse(), shared=(0,))


@dataclass(frozen=True)
class Reference:
    """The maximum of the likelihood by quadrature, with the standard errors of the free parameters."""

    model: RandomEffects
    point: Tensor
    errors: Tensor
    log_likelihood: float

    def distance(self, model: RandomEffects) -> float:
        """Root mean square distance of a model's parameters, in standard errors."""
        return float(((flatten(model.free_parameters()) - self.point) / self.errors).square().mean().sqrt())


def reference(model: RandomEffects, rows: GroupedRows, nodes: int = 20) -> Reference:
    """Maximise the likelihood by quadrature and quasi-Newton steps, from ``model``."""
    p, q = len(model.coefficients), len(model.factor)

    def at(vector: Tensor) -> RandomEffects:
        return replace(model, coefficients=vector[:p], factor=from_log_factor(vector[p:], q))

    def loss(values: Rows) -> tuple[float, Rows]:
        vector = torch.tensor(values, requires_grad=True)
        level = -group_log_likelihood(at(vector), rows, nodes).sum()
        (slope,) = torch.autograd.grad(level, vector)
        return float(level.detach()), slope.numpy()

    begin = torch.cat([model.coefficients, log_factor(model.factor)]).numpy()
    found: Any = minimize(loss, begin, jac=True, method="BFGS", options={"gtol": 1e-6})
    best = at(torch.from_numpy(found.x))
    free, centre = best.free_parameters(), find_modes(best, rows)

    def slope(vector: Tensor) -> Tensor:
        level = group_log_likelihood(
            best.with_free_parameters(unflatten(vector, free)), rows, nodes, centre
        ).sum()
        return torch.autograd.grad(level, vector, create_graph=True)[0]

    information = -jacobian(slope, flatten(free))
    errors = torch.linalg.inv(information).diagonal().sqrt()
    return Reference(best, flatten(free), errors, -float(found.fun))


@dataclass(frozen=True)
class Trail:
    """One run, by iteration: draws spent per group, distance from the maximum, standard deviation of the effects."""

    spent: Rows
    distance: Rows
    deviation: Rows


def follow_trail(
    rows: GroupedRows, truth: Reference, plan: MonteCarloPlan, iterations: int, seed: int
) -> Trail:
    """Run a plan and record each iteration."""
    state = warm_up(MonteCarloState.start(start(), rows, plan.n_chains, generator(seed)), rows, random_walks)
    seen: list[tuple[float, float, float]] = []

    def watch(progress: Any) -> None:
        if not progress.stopped:
            model = progress.state.best
            spread = float(model.covariance[0, 0]) ** 0.5
            seen.append((progress.state.spent - state.spent, truth.distance(model), spread))

    run(monte_carlo_em(rows, random_walks, plan), state, max_iter=iterations, observers=[watch])
    return Trail(*np.asarray(seen).T)


# --- A mixture of two Gaussians ---


@dataclass(frozen=True)
class LabelSums(Tree):
    """Counts, (2,), and sums, (2,), of the rows of each component."""

    count: Tensor
    total: Tensor


@dataclass(frozen=True)
class TwoMeans(Tree):
    """Two Gaussians of unit variance with unknown weights and means; the latent value is the label, 0 or 1.

    Args:
        weight: (2,).
        mean: (2,).
    """

    weight: Tensor
    mean: Tensor

    def log_joint(self, rows: Tensor, z: Tensor) -> Tensor:
        """Log-density of each row with each of its labels."""
        label = z[:, 0].long()
        x = rows.repeat_interleave(len(z) // len(rows))
        return self.weight.log()[label] - 0.5 * (x - self.mean[label]).square()

    def statistics(self, rows: Tensor, z: Tensor) -> LabelSums:
        """Mean counts and sums of the components over draws."""
        share = z.reshape(len(rows), -1).mean(1)
        both = torch.stack([1.0 - share, share])
        return LabelSums(both.sum(1), both @ rows)

    def solve(self, statistics: LabelSums) -> Self:
        """Shares and means; an empty component keeps its mean, and never comes back."""
        empty = statistics.count == 0.0
        mean = torch.where(empty, self.mean, statistics.total / statistics.count.clamp(min=1e-300))
        return type(self)(statistics.count / statistics.count.sum(), mean)

    def change_coordinates(self, statistics: LabelSums, z: Tensor) -> tuple[LabelSums, Tensor]:
        """Labels have no coordinates to change."""
        return statistics, z

    def transport_latent(self, origin: Self, z: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Labels have no coordinates to follow."""
        return z, torch.zeros(len(z), dtype=z.dtype)

    def draw_latent(self, rows: Tensor, copies: int, stream: Generator) -> Tensor:
        """Labels from their prior."""
        chance = self.weight[1].expand(len(rows) * copies)
        return torch.bernoulli(chance, generator=stream)[:, None]

    def proposal_factor(self) -> Tensor:
        """One: kernels of labels have no metric."""
        return torch.ones(1, 1, dtype=torch.float64)

    def free_parameters(self) -> dict[str, Tensor]:
        """Weight of the second component, and the means."""
        return {"weight": self.weight[1:], "mean": self.mean}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The mixture at other values of them."""
        return type(self)(torch.cat([1.0 - free["weight"], free["weight"]]), free["mean"])

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"weights": self.weight, "means": self.mean}


def label_draws(density: LogDensity, scale: Tensor, shape: Tensor) -> Kernel:
    """Independent draws of a label, 0 or 1, from its posterior: no chain mixes better."""

    def chains(position: Tensor) -> Chains:
        return Chains(position, density(position))

    def step(here: Chains, uniform: Tensor) -> tuple[Chains, Info]:
        zero, one = density(torch.zeros_like(here.position)), density(torch.ones_like(here.position))
        drawn = (uniform < torch.sigmoid(one - zero)).to(here.position.dtype)
        return Chains(drawn[:, None], torch.where(drawn == 1.0, one, zero)), Info()

    def noise(here: Chains, n: int, stream: Generator) -> list[Tensor]:
        drawn = torch.rand((n, len(here.position)), generator=stream, dtype=here.position.dtype)
        return list(drawn.unbind())

    return Kernel(chains, noise, step)


# --- Runs ---


@dataclass(frozen=True)
class Small:
    """A problem that may collapse: model, rows, kernels, and whether a model has collapsed."""

    model: Any
    rows: Any
    kernels: Any
    gone: Callable[[Any], bool]


def small_problems() -> dict[str, Small]:
    """A mixture of 12 rows, and random effects of few groups and of many."""
    stream = generator(5)
    x = torch.cat([normal((4,), stream) - 1.2, normal((8,), stream) + 1.2])
    mixture = TwoMeans(torch.tensor([0.5, 0.5]).double(), torch.tensor([-1.0, 1.0]).double())

    def without_spread(model: Any) -> bool:
        return float(model.covariance[0, 0]) < 1e-2

    found = {"mixture, 12 rows": Small(mixture, x, label_draws, lambda m: float(m.weight.min()) < 1e-3)}
    for groups, each in ((12, 3), (200, 10)):
        rows = logistic_groups(3, groups, each)
        found[f"{groups} groups of {each}"] = Small(start(), rows, random_walks, without_spread)
    return found


def iterations_to_collapse(
    model: Any, rows: Any, kernels: Kernels, plan: MonteCarloPlan, iterations: int, seed: int, gone: Any
) -> int:
    """The iteration after which ``gone(model)`` holds to the end; ``iterations + 1`` if it does not."""
    state = warm_up(
        MonteCarloState.start(model, rows, plan.n_chains, generator(seed)), rows, kernels, iterations=3
    )
    seen: list[bool] = []

    def watch(progress: Any) -> None:
        if not progress.stopped:
            seen.append(bool(gone(progress.state.model)))

    run(monte_carlo_em(rows, kernels, plan), state, max_iter=iterations, observers=[watch])
    alive = [k for k, is_gone in enumerate(seen) if not is_gone]
    return (alive[-1] + 2) if alive else 1


def measure_collapses(problem: Small, size: Size, seed: int) -> dict[str, Rows]:
    """Draws after which each scheme has collapsed for good, one for each repetition; infinite if it has not."""
    growing = int((3.0 * size.short) ** (1.0 / 3.0))
    plans = {
        "m = 1, full replacement": (MonteCarloPlan(one_draw), size.short),
        "m = k²": (MonteCarloPlan(), growing),
        "stochastic approximation": (MonteCarloPlan(one_draw, BurnIn(10, Power(0.7))), size.short),
    }
    found = {}
    for name, (plan, iterations) in plans.items():
        spent = np.cumsum([plan.draws(k) for k in range(1, iterations + 1)])
        when = [
            iterations_to_collapse(
                problem.model, problem.rows, problem.kernels, plan, iterations, seed + i, problem.gone
            )
            for i in range(size.repeats)
        ]
        found[name] = np.asarray(
            [spent[k - 1] if k <= iterations else np.inf for k in when], dtype=np.float64
        )
    return found


def measure_ascents(rows: GroupedRows, truth: Reference, size: Size, seed: int) -> tuple[Rows, Rows]:
    """Increments of the true log-likelihood in all accepted steps but the last, and z-scores of the estimates."""
    rises: list[float] = []
    scores = []
    for i in range(size.ascents):
        first = MonteCarloState.start(start(), rows, 8, generator(seed + i))
        state = warm_up(first, rows, random_walks)
        levels = [float(group_log_likelihood(state.model, rows).sum())]

        def watch(progress: Any, levels: list[float] = levels) -> None:
            if not progress.stopped:
                levels.append(float(group_log_likelihood(progress.state.model, rows).sum()))

        outcome = run(ascent_em(rows, random_walks, AscentPlan()), state, max_iter=60, observers=[watch])
        rises += np.diff(levels)[:-1].tolist()
        last = run(newton_refine(rows, random_walks), RefinementState(outcome.state), max_iter=6)
        found = last.state.errors
        assert found is not None
        scores.append(
            (
                (flatten(found.model.free_parameters()) - truth.point)
                / found.monte_carlo_covariance.diagonal().sqrt()
            ).numpy()
        )
    return np.asarray(rises), np.asarray(scores)


# --- Findings ---


def judge(
    trails: Mapping[str, Sequence[Trail]],
    gone: Mapping[str, Mapping[str, Rows]],
    rises: Rows,
    scores: Rows,
) -> list[Finding]:
    """Findings, in the order of the panels."""
    return [
        *(_judge_collapse(problem, schemes) for problem, schemes in gone.items()),
        _judge_single_draw(trails[ONE]),
        _judge_constant(trails[TWENTY]),
        _judge_convergence(GROWING, trails[GROWING], trails[TWENTY]),
        _judge_convergence(FALLING, trails[FALLING], trails[TWENTY]),
        _judge_restarts(GROWING, trails[GROWING], trails[f"{GROWING}, restarted"]),
        _judge_restarts(FALLING, trails[FALLING], trails["stochastic approximation, restarted"]),
        _judge_ascent(rises),
        _judge_calibration(scores),
    ]


def distance_at_end(trails: Sequence[Trail], begin: float = 0.75, end: float = 1.0) -> tuple[float, float]:
    """Root mean square distance from the maximum over a part of the draws, with its error over seeds."""
    parts = []
    for trail in trails:
        share = trail.spent / trail.spent[-1]
        parts.append(np.mean(trail.distance[(share > begin) & (share <= end)] ** 2))
    level = float(np.sqrt(np.mean(parts)))
    return level, float(np.std(parts) / len(parts) ** 0.5 / (2.0 * level))


def _share_error(share: float, n: int) -> float:
    """Error of a share, never zero (Agresti and Coull 1998)."""
    middle = (share * n + 2.0) / (n + 4.0)
    return float((middle * (1.0 - middle) / (n + 4.0)) ** 0.5)


def _judge_collapse(problem: str, schemes: Mapping[str, Rows]) -> Finding:
    share = {name: float(np.isfinite(when).mean()) for name, when in schemes.items()}
    alone = share.pop(ONE)
    n = len(schemes[ONE])
    ours = max(share.values())
    where = (
        "It does collapse here" if alone > 0.2 else "No collapse here: so many units leave little to chance"
    )
    return Finding(
        f"m = 1 with full replacement, {problem}",
        EMPTY,
        f"{alone:.0%} of runs collapse; with m = k² or falling rates {ours:.0%}",
        _share_error(alone, n),
        judge_target(ours == 0.0),
        f"{where}. {n} runs each, of equal cost; a collapsed one never comes back.",
    )


def _judge_single_draw(one: Sequence[Trail]) -> Finding:
    level, error = distance_at_end(one)
    last = np.asarray([trail.deviation[-1] for trail in one])
    return Finding(
        "m = 1 on 60 groups of 6 rows",
        EMPTY,
        f"{level:.2f} standard errors from the maximum",
        error,
        judge_target(level > 0.5),
        f"It wanders until the variance between groups is gone, which nothing undoes: so end {np.mean(last < 0.1):.0%}"
        " of the seeds.",
    )


def _judge_constant(constant: Sequence[Trail]) -> Finding:
    early, _ = distance_at_end(constant, 0.25, 0.5)
    late, error = distance_at_end(constant)
    return Finding(
        "m = 20 in every iteration",
        EMPTY,
        f"{late:.2f} standard errors in the last quarter, {early:.2f} in the second",
        error,
        judge_target(late > 0.5 * early),
        "A floor of noise: more iterations do not lower it.",
    )


def _judge_convergence(name: str, trails: Sequence[Trail], constant: Sequence[Trail]) -> Finding:
    late, error = distance_at_end(trails, 0.9)
    early, _ = distance_at_end(trails, 0.05, 0.25)
    floor, _ = distance_at_end(constant)
    return Finding(
        name,
        EMPTY,
        f"{late:.3f} standard errors at the end, {early:.3f} early on",
        error,
        judge_target(late < 0.5 * early),
        f"At the same cost m = 20 is at {floor:.3f}, and stays there.",
    )


def _judge_restarts(name: str, kept: Sequence[Trail], again: Sequence[Trail]) -> Finding:
    ours, error = distance_at_end(kept, 0.9)
    theirs, _ = distance_at_end(again, 0.9)
    strict = name != GROWING
    reason = (
        "Short chains never reach the posterior they should average over: a bias that no rate removes."
        if strict
        else "Iterations of hundreds of draws forget where they began: here persistence gains little."
    )
    return Finding(
        f"persistent chains, {name}",
        EMPTY,
        f"{ours:.3f} standard errors; {theirs:.3f} if chains start anew each iteration",
        error,
        judge_target(ours < theirs if strict else ours < 1.5 * theirs),
        reason,
    )


def _judge_ascent(rises: Rows) -> Finding:
    share = float((rises > 0.0).mean())
    return Finding(
        "steps taken at 90% confidence raise the true likelihood",
        EMPTY,
        f"{share:.0%} of {len(rises)} steps",
        _share_error(share, len(rises)),
        judge_target(share >= 0.9),
        "Ascent-based Monte Carlo EM; the likelihood of every step is checked by quadrature.",
    )


def _judge_calibration(scores: Rows) -> Finding:
    spread = float(np.sqrt(np.mean(scores**2)))
    return Finding(
        "distance of the final estimate over its reported Monte Carlo error",
        EMPTY,
        f"root mean square {spread:.2f}",
        spread / (2.0 * len(scores)) ** 0.5,
        judge_target(0.5 < spread < 1.7),
        f"It should be 1. {len(scores)} seeds; the parameters of one seed are correlated, so the error counts seeds.",
    )


# --- Figure ---


def draw_figure(
    trails: Mapping[str, Sequence[Trail]],
    gone: Mapping[str, Mapping[str, Rows]],
    deviation: float,
    draws: int,
) -> Figure:
    """Four panels.

    Args:
        trails: runs of each scheme, one a seed.
        gone: draws until each scheme collapsed, by problem.
        deviation: of the effects at the maximum of the likelihood.
        draws: spent in the problems that may collapse.
    """
    figure = new_figure(12.0, 8.6)
    axes: Any = figure.subplots(2, 2)
    _draw_distances(axes[0, 0], trails)
    _draw_paths(axes[0, 1], trails, deviation)
    _draw_collapses(axes[1, 0], gone, draws)
    _draw_restarts(axes[1, 1], trails)
    return figure


def _average_trails(trails: Sequence[Trail]) -> tuple[Rows, Rows, Rows]:
    """Root mean square distance over seeds, in bins of draws of equal ratio, with two standard errors either side."""
    edges = np.geomspace(10.0, trails[0].spent[-1] * 1.001, 16)
    at, middle, reach = [], [], []
    for low, high in pairwise(edges):
        inside = [trail.distance[(trail.spent > low) & (trail.spent <= high)] for trail in trails]
        if len(inside[0]):
            squares = np.asarray([np.mean(values**2) for values in inside])
            at.append(float(np.sqrt(low * high)))
            middle.append(float(np.sqrt(squares.mean())))
            reach.append(float(squares.std() / len(squares) ** 0.5 / middle[-1]))
    return np.asarray(at), np.asarray(middle), np.asarray(reach)


def _draw_line(axes: Any, trails: Sequence[Trail], colour: str, label: str, style: str = "o-") -> None:
    at, middle, reach = _average_trails(trails)
    axes.plot(at, middle, style, color=colour, lw=1.5, markersize=4, label=label)
    axes.fill_between(
        at, np.maximum(middle - reach, 1e-2 * middle), middle + reach, color=colour, alpha=0.15, lw=0
    )


def _draw_distances(axes: Any, trails: Mapping[str, Sequence[Trail]]) -> None:
    dress(
        axes,
        "Only growing draws or falling rates converge",
        "draws per group",
        "distance, in standard errors",
    )
    axes.set(xscale="log", yscale="log")
    for j, name in enumerate(SCHEMES):
        _draw_line(axes, trails[name], COLOURS[j], name)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_paths(axes: Any, trails: Mapping[str, Sequence[Trail]], deviation: float) -> None:
    dress(axes, "Deviation of the effects, one seed", "draws per group", "standard deviation")
    for j, name in enumerate(SCHEMES):
        trail = trails[name][0]
        axes.plot(trail.spent, trail.deviation, color=COLOURS[j], lw=1.3, alpha=0.9, label=name)
    axes.axhline(deviation, color=INK, lw=1.2, ls="--", label="maximum of the likelihood")
    axes.set_ylim(0.0, 1.7)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_collapses(axes: Any, gone: Mapping[str, Mapping[str, Rows]], draws: int) -> None:
    dress(axes, "Share of runs that have collapsed", "draws per unit", "share of runs")
    for j, (problem, schemes) in enumerate(gone.items()):
        for scheme, when in schemes.items():
            alone = scheme.startswith("m = 1")
            at = np.concatenate([[0.0], np.sort(when[np.isfinite(when)]), [draws]])
            share = np.concatenate([np.arange(len(at) - 1), [len(at) - 2]]) / len(when)
            axes.step(
                at,
                share,
                where="post",
                color=COLOURS[j],
                lw=1.8 if alone else 1.2,
                ls="-" if alone else ":",
                label=f"{problem}, m = 1" if alone else None,
            )
    axes.plot([], [], ":", color=FAINT, label="m = k² and stochastic approximation")
    axes.set_ylim(-0.03, 1.5)  # room for the legend above all lines
    axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_restarts(axes: Any, trails: Mapping[str, Sequence[Trail]]) -> None:
    dress(axes, "Chains that persist, at equal cost", "draws per group", "distance, in standard errors")
    axes.set(xscale="log", yscale="log")
    for j, (kept, again) in enumerate(PAIRS):
        _draw_line(axes, trails[kept], COLOURS[2 + j], f"{kept}, persistent")
        _draw_line(axes, trails[again], COLOURS[2 + j], again, "^--")
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def experiment(options: Options) -> Report:
    """Schemes on one problem against its maximum by quadrature, then collapses, then accepted steps."""
    size = QUICK if options.quick else FULL
    rows = logistic_groups(options.seed + 1, 60, 6)
    truth = reference(start(), rows)
    plans, problems = schemes(size.draws), small_problems()
    total, done = len(plans) + len(problems) + 1, 0
    trails: dict[str, list[Trail]] = {}
    for name, (plan, iterations) in plans.items():
        options.progress(done, total, name)
        seeds = range(options.seed, options.seed + size.seeds)
        trails[name] = [follow_trail(rows, truth, plan, iterations, seed) for seed in seeds]
        done += 1
    gone = {}
    for name, problem in problems.items():
        options.progress(done, total, f"collapse: {name}")
        gone[name] = measure_collapses(problem, size, options.seed)
        done += 1
    options.progress(done, total, "steps that go up")
    rises, scores = measure_ascents(rows, truth, size, options.seed)
    settings = {
        "groups": 60,
        "rows a group": 6,
        "draws per group": size.draws,
        "seeds": size.seeds,
        "repetitions of collapses": size.repeats,
        "seed": options.seed,
    }
    deviation = float(truth.model.covariance[0, 0]) ** 0.5
    return Report(
        "mcem",
        "Monte Carlo EM",
        settings,
        judge(trails, gone, rises, scores),
        curves={
            name: [{"draws": t.spent.tolist(), "distance": t.distance.tolist()} for t in many]
            for name, many in trails.items()
            if len(many[0].spent) < 1000
        },
        figures={"draws": draw_figure(trails, gone, deviation, size.short)},
    )
