"""An estimated likelihood in place of the likelihood: exact for every number of draws, at a price (002, 1.4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boxloop.sample import RandomWalk, Target
from papers.experiment import Options, Report
from papers.pseudo_marginal_figures import draw
from papers.pseudo_marginal_findings import best_noise, correlation, exactness, mixing, planted
from papers.pseudo_marginal_trials import BEST, GROUPS, Problem, Runs, idealised, importance, refreshing, walk


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        draws: N, of each group.
        chains: of every run.
        steps: of each chain; few draws a group are cheap and mix slowly, and get more of them.
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
        """Steps of each chain with so many draws a group."""
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


def experiment(options: Options) -> Report:
    """Run every kernel on one data set."""
    size = QUICK if options.quick else FULL
    extra = [(n, rho) for n in size.correlated for rho in size.correlations if rho != BEST]
    pairs = [*((n, BEST) for n in size.draws), *extra]
    total = 1 + 2 * len(size.draws) + len(pairs) + len(size.noise)
    done = 0

    def tell(what: str) -> None:
        nonlocal done
        options.progress(done, total, what)
        done += 1

    problem = Problem.drawn(options.seed)
    runs = run_all(problem, size, pairs, options.seed, tell)
    findings = [
        *exactness(runs),
        mixing(runs),
        *planted(runs),
        *correlation(runs),
        *best_noise(runs),
    ]
    settings = {
        "groups": GROUPS,
        "draws a group": list(size.draws),
        "chains": size.chains,
        "steps": size.steps,
        "seed": options.seed,
    }
    title = "Pseudo-marginal Metropolis on a random-effects model with a known marginal"
    return Report("pseudo-marginal", title, settings, findings, runs.told(), {"mixing": draw(runs)})


def run_all(
    problem: Problem, size: Size, pairs: list[tuple[int, float]], seed: int, tell: Callable[[str], None]
) -> Runs:
    """Every kernel."""
    tell("the exact marginal")
    target = Target(problem.log_density)
    exact = RandomWalk(scale=problem.scale).kernel(target)
    runs = Runs(walk(problem, exact, "exact", size.steps, size.chains, seed))
    for n in size.draws:
        tell(f"{n} draws a group")
        noise = problem.noise(n, size.repeats, seed + n)
        runs.spread[n] = float(noise.std())
        weight = np.exp(noise)
        runs.bias[n] = float((weight.mean() - 1.0) / (weight.std() / len(weight) ** 0.5))
        kernel = importance(problem, n, seed + 1)
        runs.plain[n] = walk(problem, kernel, f"N = {n}", size.length(n), size.chains, seed + 10 * n)
        tell(f"{n} draws a group, refreshed")
        kernel = refreshing(problem, n, seed + 2)
        runs.refreshed[n] = walk(problem, kernel, f"N = {n}", size.steps // 2, size.chains, seed + 10 * n + 1)
    for n, rho in pairs:
        tell(f"{n} draws a group, correlation {rho:g}")
        kernel = importance(problem, n, seed + 3, rho)
        found = walk(problem, kernel, f"N = {n}", size.length(n), size.chains, seed + 10 * n + 2)
        runs.correlated[n, rho] = found
    for sd in size.noise:
        tell(f"log-normal noise of sd {sd:g}")
        kernel = idealised(problem, sd, seed + 4)
        runs.ideal[sd] = walk(problem, kernel, f"sd {sd:g}", size.steps, size.chains, seed + int(100 * sd))
    return runs
