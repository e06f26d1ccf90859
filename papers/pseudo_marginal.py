"""Pseudo-marginal Metropolis: exact for every number of importance draws, at a price.

Le Corff, Introduction to computational statistics, section 1.4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from boxloop.chain import Kernel, advance
from boxloop.figures import COLOURS, FAINT, INK, MARKERS, dress, new_figure
from boxloop.numeric import generator, normal
from boxloop.sample import PseudoMarginal, RandomWalk, Target
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target

Array = NDArray[np.float64]


# --- Settings ---

GROUPS, EACH, NOISE, PRIOR = 16, 2, 2.0, 3.0
BEST = 0.8
"""The correlation that is tried for every N."""
TEAMS = 8
"""Groups of chains; what they differ by gives errors."""
BLOCK = 200
"""Steps whose path is in memory at once."""


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        draws: N, of each group.
        chains: of every run.
        steps: of each chain; few draws per group are cheap and mix slowly, and get more of them.
        correlations: of the numbers behind the estimate.
        correlated: N for which they are tried.
        noise: standard deviations of the log-normal noise.
        repeats: of W at one place.
    """

    draws: tuple[int, ...]
    chains: int
    steps: int
    correlations: tuple[float, ...]
    correlated: tuple[int, ...]
    noise: tuple[float, ...]
    repeats: int

    def length(self, draws: int) -> int:
        """Steps of each chain with so many draws per group."""
        return self.steps * {1: 5, 2: 2}.get(draws, 1)


QUICK = Size((1, 2, 4, 16), 64, 1500, (0.5, 0.8, 0.98), (2,), (0.0, 0.7, 1.4, 2.1), 4000)
FULL = Size(
    (1, 2, 3, 4, 5, 6, 8, 11, 16, 32),
    256,
    4000,
    (0.5, 0.7, 0.8, 0.9, 0.95, 0.98),
    (1, 2, 4, 8),
    (0.0, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.75, 2.0, 2.3),
    40_000,
)


# --- The problem: means of groups with random effects, whose marginal is known ---


@dataclass(frozen=True, eq=False)
class Problem:
    """Means of groups; their levels are random, theta is the mean of the levels.

    Args:
        means: of the rows of each group, (groups,).
    """

    means: Tensor

    @classmethod
    def drawn(cls, seed: int) -> Problem:
        """Draw a data set."""
        stream = generator(seed)
        level = 0.5 + normal((GROUPS, 1), stream)
        return cls((level + NOISE * normal((GROUPS, EACH), stream)).mean(1))

    @property
    def within(self) -> float:
        """Variance of the mean of a group around its level."""
        return NOISE**2 / EACH

    @property
    def variance(self) -> float:
        """Of the posterior."""
        return 1.0 / (1.0 / PRIOR**2 + len(self.means) / (1.0 + self.within))

    @property
    def mean(self) -> float:
        """Of the posterior."""
        return self.variance * float(self.means.sum()) / (1.0 + self.within)

    @property
    def scale(self) -> float:
        """Of every walk."""
        return 2.38 * self.variance**0.5

    def log_density(self, position: Tensor) -> Tensor:
        """Log of the joint density of theta and the means of groups, (c,)."""
        spread = 1.0 + self.within
        gap = (self.means - position).square().sum(1) / spread
        return (
            -0.5 * (gap + len(self.means) * math.log(2.0 * math.pi * spread))
            - 0.5 * (position[:, 0] / PRIOR) ** 2
        )

    def log_estimate(self, draws: int) -> Any:
        """log W from positions (c, 1) and normal numbers (c, groups * draws)."""
        constant = len(self.means) * (0.5 * math.log(2.0 * math.pi * self.within) + math.log(draws))

        def estimate(position: Tensor, numbers: Tensor) -> Tensor:
            gap = (self.means - position)[:, :, None] - numbers.view(len(position), -1, draws)
            inside = gap.square_().mul_(-0.5 / self.within).logsumexp(2).sum(1)
            return inside - constant - 0.5 * (position[:, 0] / PRIOR) ** 2

        return estimate

    def log_normal(self, sd: float) -> Any:
        """The density times a log-normal number with mean one: what theory assumes of W."""

        def estimate(position: Tensor, numbers: Tensor) -> Tensor:
            return self.log_density(position) + sd * numbers[:, 0] - 0.5 * sd * sd

        return estimate

    def noise(self, draws: int, repeats: int, seed: int) -> Array:
        """log W less the log-density, at the posterior mean."""
        numbers = normal((repeats, GROUPS * draws), generator(seed))
        position = torch.full((repeats, 1), self.mean, dtype=torch.float64)
        return np.asarray((self.log_estimate(draws)(position, numbers) - self.log_density(position)).numpy())


# --- Chains ---


@dataclass(frozen=True, eq=False)
class ChainRun:
    """Chains of theta and what they are worth.

    Args:
        problem: whose posterior.
        label: of the run.
        theta: (c, n).
        accepted: mean chance of acceptance.
    """

    problem: Problem
    label: str
    theta: Array
    accepted: float

    @cached_property
    def table(self) -> Array:
        """theta less its mean and its square, in units of the posterior, (2, c, n)."""
        x = (self.theta - self.problem.mean) / self.problem.variance**0.5
        return np.stack([x, x * x])

    @cached_property
    def errors(self) -> Array:
        """Monte Carlo errors of both means, from effective draws."""
        known: Any = import_module("arviz_stats.base").array_stats
        return np.asarray([float(known.mcse(column, method="mean")) for column in self.table])

    @property
    def z(self) -> Array:
        """Of the mean and of the variance."""
        return np.asarray((self.table.mean((1, 2)) - np.asarray([0.0, 1.0])) / self.errors)

    @property
    def sd(self) -> tuple[float, float]:
        """Standard deviation over that of the posterior, around the exact mean, with its error."""
        found = float(self.table[1].mean()) ** 0.5
        return found, 0.5 * float(self.errors[1]) / found

    @cached_property
    def teams(self) -> Array:
        """Effective draws of theta per draw, by each of several groups of chains."""
        known: Any = import_module("arviz_stats.base").array_stats
        parts = np.array_split(self.table[0], TEAMS)
        return np.asarray([float(known.ess(part, method="mean")) / part.size for part in parts])

    @property
    def worth(self) -> float:
        """Effective draws per draw."""
        return float(self.teams.mean())

    @property
    def error(self) -> float:
        """Its standard error."""
        return float(self.teams.std() / (TEAMS - 1) ** 0.5)


def walk(problem: Problem, kernel: Kernel, label: str, steps: int, chains: int, seed: int) -> ChainRun:
    """Run chains from exact draws of theta; a quarter as many steps come first, since W starts from its prior."""
    stream = generator(seed)
    start = problem.mean + problem.variance**0.5 * normal((chains, 1), stream)
    first = max(1, steps // 4)
    chained = kernel.init(start)
    draws, chance = [], 0.0
    for begin in range(0, first + steps, BLOCK):
        path = advance(kernel, chained, min(BLOCK, first + steps - begin), stream)
        chained = path.chains
        draws.append(path.position[:, :, 0])
        assert path.log_ratio is not None
        assert kernel.chance is not None
        chance += float(kernel.chance(path.log_ratio).mean()) * len(path.position)
    theta = torch.cat(draws)[first:].T.contiguous().numpy()
    return ChainRun(problem, label, theta, chance / (first + steps))


def importance_sampling(problem: Problem, draws: int, seed: int, correlation: float = 0.0) -> Kernel:
    """Pseudo-marginal Metropolis with so many draws per group."""
    return PseudoMarginal(
        problem.log_estimate(draws), GROUPS * draws, correlation, scale=problem.scale, random_state=seed
    ).kernel()


def log_normal_noise(problem: Problem, sd: float, seed: int) -> Kernel:
    """The same walk with log-normal noise of a given sd."""
    return PseudoMarginal(problem.log_normal(sd), 1, scale=problem.scale, random_state=seed).kernel()


def refreshed_weights(problem: Problem, draws: int, seed: int) -> Kernel:
    """A planted bug: W of the current state is drawn anew before every step."""
    stream = generator(seed)
    kernel = PseudoMarginal(
        problem.log_estimate(draws), GROUPS * draws, scale=problem.scale, random_state=stream
    ).kernel()
    return kernel._replace(step=lambda chains, item: kernel.step(kernel.init(chains.position), item))


@dataclass
class Runs:
    """All runs.

    Args:
        exact: with the marginal itself.
        spread: standard deviation of log W at the posterior mean, by N.
        bias: z-score of the mean of W there, by N.
        plain: by N.
        refreshed: with W of the current state drawn anew, by N.
        correlated: by N and correlation.
        ideal: with log-normal noise, by its standard deviation.
    """

    exact: ChainRun
    spread: dict[int, float] = field(default_factory=dict)
    bias: dict[int, float] = field(default_factory=dict)
    plain: dict[int, ChainRun] = field(default_factory=dict)
    refreshed: dict[int, ChainRun] = field(default_factory=dict)
    correlated: dict[tuple[int, float], ChainRun] = field(default_factory=dict)
    ideal: dict[float, ChainRun] = field(default_factory=dict)

    def curves(self) -> dict[str, Any]:
        """Numbers behind the figure."""

        def line(run: ChainRun) -> dict[str, float]:
            z = run.z
            return {
                "effective draws per draw": run.worth,
                "error": run.error,
                "acceptance": run.accepted,
                "sd over the exact one": run.sd[0],
                "z of the mean": float(z[0]),
                "z of the variance": float(z[1]),
            }

        return {
            "exact": line(self.exact),
            "sd of log W": {str(n): sd for n, sd in self.spread.items()},
            "independent": {str(n): line(run) for n, run in self.plain.items()},
            "refreshed": {str(n): line(run) for n, run in self.refreshed.items()},
            "correlated": {f"{n}, {rho:g}": line(run) for (n, rho), run in self.correlated.items()},
            "log-normal": {f"{sd:g}": line(run) for sd, run in self.ideal.items()},
        }


def run_all(
    problem: Problem, size: Size, pairs: list[tuple[int, float]], seed: int, report: Callable[[str], None]
) -> Runs:
    """Run every kernel on one data set."""
    report("the exact marginal")
    target = Target(problem.log_density)
    exact = RandomWalk(scale=problem.scale).kernel(target)
    runs = Runs(walk(problem, exact, "exact", size.steps, size.chains, seed))
    for n in size.draws:
        report(f"{n} draws per group")
        noise = problem.noise(n, size.repeats, seed + n)
        runs.spread[n] = float(noise.std())
        weight = np.exp(noise)
        runs.bias[n] = float((weight.mean() - 1.0) / (weight.std() / len(weight) ** 0.5))
        kernel = importance_sampling(problem, n, seed + 1)
        runs.plain[n] = walk(problem, kernel, f"N = {n}", size.length(n), size.chains, seed + 10 * n)
        report(f"{n} draws per group, refreshed")
        kernel = refreshed_weights(problem, n, seed + 2)
        runs.refreshed[n] = walk(problem, kernel, f"N = {n}", size.steps // 2, size.chains, seed + 10 * n + 1)
    for n, rho in pairs:
        report(f"{n} draws per group, correlation {rho:g}")
        kernel = importance_sampling(problem, n, seed + 3, rho)
        found = walk(problem, kernel, f"N = {n}", size.length(n), size.chains, seed + 10 * n + 2)
        runs.correlated[n, rho] = found
    for sd in size.noise:
        report(f"log-normal noise of sd {sd:g}")
        kernel = log_normal_noise(problem, sd, seed + 4)
        runs.ideal[sd] = walk(problem, kernel, f"sd {sd:g}", size.steps, size.chains, seed + int(100 * sd))
    return runs


# --- Findings ---


def judge_exactness(runs: Runs) -> list[Finding]:
    """Estimates are unbiased, and the posterior is right."""
    bias = np.abs(list(runs.bias.values()))
    lines = [
        Finding(
            "W is unbiased for the density, every N",
            "assumed",
            f"largest of {len(bias)} absolute z-scores {bias.max():.1f}",
            None,
            judge_claim(float(bias.max()) < 4.0),
            f"At the posterior mean, N = {min(runs.bias)} to {max(runs.bias)}; for small N the distribution of W is "
            "skew and the z-score rough.",
        )
    ]
    for what, found in (("independent numbers", runs.plain), ("correlated numbers", runs.correlated)):
        every: list[ChainRun] = list(found.values())
        z = np.abs(np.stack([run.z for run in every]))
        spread = [run.sd[0] for run in every]
        lines.append(
            Finding(
                f"posterior mean and sd for every N, {what}",
                "those of the exact posterior"
                if what[0] == "i"
                else "not in the document; those of the exact posterior",
                f"largest of {z.size} absolute z-scores {z.max():.2f}; "
                f"sd {min(spread):.3f} to {max(spread):.3f} of the exact one",
                None,
                (judge_claim if what[0] == "i" else judge_target)(float(z.max()) < 4.0),
                f"Errors from effective draws; by chance one run in {1.0 / (z.size * 6.33e-5):.0f} would exceed 4.",
            )
        )
    return lines


def judge_mixing(runs: Runs) -> Finding:
    """Effective draws fall as the noise grows."""
    n = sorted(runs.plain)
    worth = np.asarray([runs.plain[k].worth for k in n])
    error = np.asarray([runs.plain[k].error for k in n])
    steps = np.diff(worth) / np.hypot(error[1:], error[:-1])
    return Finding(
        "chains mix more slowly as the variance of log W grows",
        "not in the document; theory says so",
        f"{runs.exact.worth:.3f} effective draws per draw with the marginal, {worth[-1]:.3f} at N = {n[-1]} "
        f"(var log W {runs.spread[n[-1]] ** 2:.2g}), {worth[0]:.4f} at N = {n[0]} (var {runs.spread[n[0]] ** 2:.2g})",
        float(error[-1]),
        judge_target(bool((steps > -3.0).all()) and worth[0] < 0.5 * worth[-1]),
        "Falling from each N to the next smaller one, up to 3 standard errors.",
    )


def judge_planted_bug(runs: Runs) -> list[Finding]:
    """W of the current state drawn anew: another stationary distribution."""
    n = sorted(runs.refreshed)
    found = {k: runs.refreshed[k].sd for k in n}
    z = {k: (sd - 1.0) / error for k, (sd, error) in found.items()}
    few = max(n, key=lambda k: z[k])
    return [
        Finding(
            "W must be kept with the state: drawing it anew is another algorithm (planted bug)",
            "the state is (x, W)",
            f"sd {found[few][0]:.3f} of the exact one at N = {few}, z = {z[few]:.0f}",
            found[few][1],
            judge_claim(z[few] > 6.0),
            "Noise on both sides of the ratio flattens the distribution, and nothing in the chains shows it: they have "
            f"{runs.refreshed[few].worth / runs.plain[few].worth:.0f} times the effective draws of the right ones.",
        ),
        Finding(
            "the bias of drawing W anew against N",
            "not in the document",
            ", ".join(f"{found[k][0]:.3f} at N = {k}" for k in n if k in (n[0], n[len(n) // 2], n[-1])),
            found[n[-1]][1],
            judge_target(abs(found[n[-1]][0] - 1.0) < found[n[0]][0] - 1.0),
            "It vanishes as the estimate becomes exact, and only then.",
        ),
    ]


def judge_correlation(runs: Runs) -> list[Finding]:
    """Correlated numbers at the same N, and how much correlation is best."""
    linked = {n: runs.correlated[n, BEST] for n in runs.plain}
    gain = {n: linked[n].worth / run.worth for n, run in runs.plain.items()}
    error = {
        n: gain[n] * float(np.hypot(run.error / run.worth, linked[n].error / linked[n].worth))
        for n, run in runs.plain.items()
    }
    ahead = {
        n: (linked[n].worth - run.worth) / float(np.hypot(linked[n].error, run.error))
        for n, run in runs.plain.items()
    }
    noisy = [n for n in gain if runs.spread[n] > 1.0]
    example = min(noisy, key=lambda n: abs(runs.spread[n] - 2.0))
    lines = [
        Finding(
            f"correlated numbers (rho = {BEST}) mix better at the same N",
            "not in the document; theory says so",
            f"{gain[example]:.1f} times the effective draws at N = {example} (sd of log W {runs.spread[example]:.1f})",
            error[example],
            judge_target(all(ahead[n] > 3.0 for n in noisy)),
            f"Wherever the sd is above 1; {gain[max(gain)]:.2f} times at N = {max(gain)}: little is left to gain.",
        )
    ]
    tried = {n for n, rho in runs.correlated if rho != BEST}
    for n in sorted(tried & {2}):
        by = {rho: run.worth for (k, rho), run in runs.correlated.items() if k == n}
        best, most = max(by, key=lambda rho: by[rho]), max(by)
        lines.append(
            Finding(
                "more correlation is not always better",
                "not in the document",
                f"at N = {n} best at rho = {best:g} ({by[best]:.3f}); rho = {most:g} has {by[most]:.3f}",
                runs.correlated[n, most].error,
                judge_target(best < most),
                "The numbers themselves must move too: with few groups they, not theta, become the slow part.",
            )
        )
    return lines


def judge_best_noise(runs: Runs) -> list[Finding]:
    """The standard deviation of log W at which an evaluation is worth most."""
    n = sorted(runs.plain)
    sd = np.asarray([runs.spread[k] for k in n])
    plain = np.stack([runs.plain[k].teams / k for k in n])
    linked = np.stack([runs.correlated[k, BEST].teams / k for k in n])
    sds = np.asarray([s for s in runs.ideal if s > 0.0])
    ideal = np.stack([runs.ideal[s].teams * s * s for s in sds])
    lines = []
    for what, x, worth, inside in (
        ("importance sampling, cost N", sd, plain, (1.0, 1.7)),
        ("log-normal noise, cost 1 / variance", sds, ideal, (1.0, 1.7)),
        (f"importance sampling, correlation {BEST}, cost N", sd, linked, (1.2, 4.0)),
    ):
        at, error = find_maximum(x, worth)
        low, high = inside
        lines.append(
            Finding(
                f"best sd of log W, {what}",
                "not in the document; theory says 1.0 to 1.7 (Doucet et al. 2015)"
                if high < 2.0
                else "not in the document; more noise than without",
                f"{at:.2f}",
                error,
                judge_target(low - 3.0 * error < at < high + 3.0 * error),
                f"From a cubic; of {len(x)} points those at sd {_flat_range(x, worth)} are worth at least 0.8 of the "
                "best.",
            )
        )
    return lines


def find_maximum(x: Array, worth: Array) -> tuple[float, float]:
    """Where worth (points, teams) is highest along x, by a cubic in log x; its error by leaving out teams."""

    def top(values: Array) -> float:
        log = np.log(values)
        near = log > log.max() - 1.2
        fitted = np.polynomial.Polynomial.fit(np.log(x[near]), log[near], min(3, int(near.sum()) - 1))
        grid = np.linspace(np.log(x[near]).min(), np.log(x[near]).max(), 400)
        return float(np.exp(grid[int(np.argmax(fitted(grid)))]))

    teams = worth.shape[1]
    left = np.asarray([top(np.delete(worth, j, axis=1).mean(1)) for j in range(teams)])
    return top(worth.mean(1)), float(left.std() * (teams - 1) ** 0.5)


def _flat_range(x: Array, worth: Array) -> str:
    """The range of x where worth is at least 0.8 of its maximum."""
    mean = worth.mean(1)
    good = x[mean > 0.8 * mean.max()]
    return f"{good.min():.2f} to {good.max():.2f}"


# --- Figure ---

PLAIN, LINKED, IDEAL, WRONG = COLOURS[0], COLOURS[2], FAINT, COLOURS[1]


def draw_figure(runs: Runs) -> Figure:
    """Four panels."""
    figure = new_figure(12.0, 8.4)
    axes: Any = figure.subplots(2, 2)
    _draw_mixing(axes[0, 0], runs)
    _draw_price(axes[0, 1], runs)
    _draw_bias(axes[1, 0], runs)
    _draw_correlation(axes[1, 1], runs)
    return figure


def _draw_points(
    axes: Any, x: list[float], found: list[ChainRun], over: list[float], look: str, **more: Any
) -> None:
    axes.errorbar(
        x,
        [run.worth / by for run, by in zip(found, over, strict=True)],
        yerr=[2.0 * run.error / by for run, by in zip(found, over, strict=True)],
        fmt=look,
        lw=1.4,
        markersize=5.5,
        **more,
    )


def _label_points(axes: Any, runs: Runs, which: dict[int, ChainRun], colour: str, over: bool) -> None:
    """The number of draws beside some of the points."""
    for n in [k for k in which if k in (1, 2, 4, 8, 16, 32)]:
        at = which[n].worth / (n if over else 1)
        axes.annotate(
            f"N = {n}" if n == min(which) else f"{n}",
            (runs.spread[n], at),
            xytext=(-7, 6) if over else (5, 5),
            ha="right" if over else "left",
            textcoords="offset points",
            fontsize=8.5,
            color=colour,
        )


def _draw_mixing(axes: Any, runs: Runs) -> None:
    dress(axes, "More noise, slower chains", "standard deviation of log W", "effective draws per draw")
    axes.set(yscale="log")
    n = sorted(runs.plain)
    sd = [runs.spread[k] for k in n]
    ones = [1.0] * len(n)
    linked = {k: runs.correlated[k, BEST] for k in n}
    _draw_points(axes, sd, [runs.plain[k] for k in n], ones, "o-", color=PLAIN, label="independent numbers")
    _draw_points(axes, sd, list(linked.values()), ones, "s-", color=LINKED, label=f"correlation {BEST}")
    axes.plot(
        list(runs.ideal), [run.worth for run in runs.ideal.values()], "--", color=IDEAL, label="log-normal W"
    )
    axes.axhline(runs.exact.worth, color=INK, lw=1.0, ls=":", label="exact marginal")
    _label_points(axes, runs, linked, LINKED, over=False)
    axes.set_xlim(right=1.08 * max(sd))
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_price(axes: Any, runs: Runs) -> None:
    dress(
        axes,
        "What one importance draw is worth",
        "standard deviation of log W",
        "effective draws per draw, over N",
    )
    n = sorted(runs.plain)
    sd = [runs.spread[k] for k in n]
    cost = [float(k) for k in n]
    linked = {k: runs.correlated[k, BEST] for k in n}
    axes.axvspan(1.0, 1.7, color=INK, alpha=0.06, lw=0)
    _draw_points(axes, sd, [runs.plain[k] for k in n], cost, "o-", color=PLAIN, label="independent numbers")
    _draw_points(axes, sd, list(linked.values()), cost, "s-", color=LINKED, label=f"correlation {BEST}")
    top = max(runs.plain[k].worth / k for k in n)
    ideal = {s: run.worth * s * s for s, run in runs.ideal.items() if s > 0.0}
    best = max(ideal.values())
    axes.plot(
        list(ideal),
        [top * v / best for v in ideal.values()],
        "--",
        color=IDEAL,
        label="log-normal W, cost 1 / variance",
    )
    axes.set_ylim(bottom=0.0)
    axes.text(1.35, axes.get_ylim()[1] * 0.985, "1.0 to 1.7", ha="center", va="top", fontsize=9, color=INK)
    axes.set_xlim(0.0, 1.12 * max(sd))
    _label_points(axes, runs, linked, LINKED, over=True)
    axes.legend(frameon=False, fontsize=9, loc="center right")


def _draw_bias(axes: Any, runs: Runs) -> None:
    dress(
        axes,
        "The same posterior for every N, unless W is drawn anew",
        "draws per group, N",
        "sd over the exact one",
    )
    axes.set(xscale="log")
    n = sorted(runs.plain)
    for shift, look, colour, label, found in (
        (0.96, MARKERS[0], PLAIN, "W kept with the state", runs.plain),
        (1.0, MARKERS[2], LINKED, f"W kept, correlation {BEST}", {k: runs.correlated[k, BEST] for k in n}),
        (1.04, MARKERS[1], WRONG, "W of the state drawn anew: wrong", runs.refreshed),
    ):
        sd = [found[k].sd for k in n]
        axes.errorbar(
            np.asarray(n) * shift,
            [value for value, _ in sd],
            yerr=[2.0 * error for _, error in sd],
            fmt=look,
            color=colour,
            markersize=6,
            capsize=2.5,
            label=label,
        )
    axes.axhline(1.0, color=INK, lw=1.0, ls=":")
    axes.set_xlim(0.85 * n[0], 1.2 * n[-1])
    axes.set_xticks(n, [str(k) for k in n])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_correlation(axes: Any, runs: Runs) -> None:
    dress(axes, "Correlation helps, up to a point", "correlation of the numbers", "effective draws per draw")
    tried = sorted({n for n, rho in runs.correlated if rho != BEST}) or sorted(runs.plain)
    for j, n in enumerate(tried):
        found = {0.0: runs.plain[n]} | {
            rho: run for (k, rho), run in sorted(runs.correlated.items()) if k == n
        }
        _draw_points(
            axes,
            list(found),
            list(found.values()),
            [1.0] * len(found),
            MARKERS[j] + "-",
            color=COLOURS[j],
            label=f"N = {n}, sd {runs.spread[n]:.1f}",
        )
    axes.axhline(runs.exact.worth, color=INK, lw=1.0, ls=":")
    axes.text(0.0, runs.exact.worth, "exact marginal", fontsize=9, va="bottom", color=INK)
    axes.set_ylim(0.0, 1.15 * runs.exact.worth)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, 0.86), ncols=2)


def experiment(options: Options) -> Report:
    """Run every kernel, judge, draw."""
    size = QUICK if options.quick else FULL
    extra = [(n, rho) for n in size.correlated for rho in size.correlations if rho != BEST]
    pairs = [*((n, BEST) for n in size.draws), *extra]
    total = 1 + 2 * len(size.draws) + len(pairs) + len(size.noise)
    done = 0

    def report(what: str) -> None:
        nonlocal done
        options.progress(done, total, what)
        done += 1

    problem = Problem.drawn(options.seed)
    runs = run_all(problem, size, pairs, options.seed, report)
    findings = [
        *judge_exactness(runs),
        judge_mixing(runs),
        *judge_planted_bug(runs),
        *judge_correlation(runs),
        *judge_best_noise(runs),
    ]
    settings = {
        "groups": GROUPS,
        "draws per group": list(size.draws),
        "chains": size.chains,
        "steps": size.steps,
        "seed": options.seed,
    }
    title = "Pseudo-marginal Metropolis on a random-effects model with a known marginal"
    return Report("pseudo-marginal", title, settings, findings, runs.curves(), {"mixing": draw_figure(runs)})
