"""Steps, acceptance and effective draws on Gaussians of 2 to 200 columns (002, sections 1.3 and 1.4.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from boxloop.numeric import generator
from papers.experiment import Options, Report
from papers.mcmc_figures import draw
from papers.mcmc_findings import exactness, exponents, peaks, rules, worths
from papers.mcmc_finite import finite
from papers.mcmc_theory import GOALS, POWERS, acceptance, scale_for
from papers.mcmc_trials import Array, Measured, measure, tuned_scale, worth_of

GRIDS = {
    "random walk": (0.06, 0.09, 0.13, 0.17, 0.21, 0.25, 0.3, 0.35, 0.42, 0.5, 0.6, 0.75),
    "MALA": (0.2, 0.28, 0.36, 0.44, 0.51, 0.58, 0.65, 0.72, 0.79, 0.86, 0.92, 0.97),
    "HMC": (0.2, 0.28, 0.36, 0.44, 0.51, 0.58, 0.65, 0.72, 0.79, 0.86, 0.92, 0.97),
}
"""Acceptances of Metropolis at which scales are tried; Barker's rule gets the same scales."""

SWEPT = [(name, rule) for name in POWERS for rule in ("metropolis", "barker")]
Sweep = dict[tuple[str, str], list[Measured]]


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        columns: numbers of them.
        repeats: warm-ups of each.
        warmup: steps of them.
        replicates: chains times columns behind an autocorrelation time.
        steps: of the random walk, those of the others being half as many.
        swept: columns of the sweep over scales.
        every: which of the scales.
        resamples: of chains, behind errors of maxima.
    """

    columns: tuple[int, ...]
    repeats: int
    warmup: int
    replicates: int
    steps: int
    swept: int
    every: int
    resamples: int

    def chains(self, d: int) -> int:
        """Of a run."""
        return min(max(self.replicates // d, 32), 2048)

    def length(self, name: str, d: int) -> int:
        """Steps of a run: a random walk of many columns needs more."""
        return max(self.steps, 50 * d) if name == "random walk" else self.steps // 2


QUICK = Size((2, 8, 32), 2, 300, 1000, 600, 20, 2, 40)
FULL = Size((2, 3, 5, 10, 20, 50, 100, 200), 8, 1000, 8000, 4000, 50, 1, 400)


def experiment(options: Options) -> Report:
    """Tune, run, sweep, and check."""
    size = QUICK if options.quick else FULL
    total = len(POWERS) * len(size.columns) + len(SWEPT) + 1
    done = 0

    def tell(what: str) -> None:
        nonlocal done
        options.progress(done, total, what)
        done += 1

    scales, runs = against_columns(size, options.seed, tell)
    sweep = over_scales(size, options.seed, tell)
    tell("finite spaces")
    exact = finite(options.seed)
    tops = {pair: top(sweep[pair], size.resamples, options.seed) for pair in SWEPT}
    findings = [
        *exponents(scales),
        *worths(runs),
        *peaks(sweep, tops, size.swept),
        *rules(sweep, tops, exact),
        *exactness(runs, exact),
    ]
    settings = {
        "columns": list(size.columns),
        "warm-ups of each": size.repeats,
        "steps of warm-up": size.warmup,
        "steps": size.steps,
        "columns of the sweep": size.swept,
        "seed": options.seed,
    }
    title = "Random walk, MALA and HMC on Gaussians: scales, acceptance, effective draws"
    figure = draw(scales, runs, sweep, tops, size.swept)
    return Report(
        "mcmc-scaling", title, settings, findings, _curves(scales, runs, sweep), {"scaling": figure}
    )


def against_columns(
    size: Size, seed: int, tell: Callable[[str], None]
) -> tuple[dict[str, dict[int, Array]], list[Measured]]:
    """Tuned scales by algorithm and columns, one a warm-up; and runs at their geometric mean."""
    scales: dict[str, dict[int, Array]] = {}
    runs = []
    for i, (name, goal) in enumerate(GOALS.items()):
        for d in size.columns:
            tell(f"{name}, {d} columns")
            first = seed + 100_000 * i + 100 * d
            found = [
                tuned_scale(name, goal, d, 64, size.warmup, first + repeat) for repeat in range(size.repeats)
            ]
            scales.setdefault(name, {})[d] = np.asarray(found)
            middle = float(np.exp(np.log(found).mean()))
            runs.append(measure(name, middle, d, size.length(name, d), size.chains(d), first + 50))
    return scales, runs


def over_scales(size: Size, seed: int, tell: Callable[[str], None]) -> Sweep:
    """Runs by algorithm and rule, along scales."""
    found: Sweep = {}
    d = size.swept
    for name, rule in SWEPT:
        tell(f"{name}, {rule}, along scales")
        grid = [scale_for(name, goal, d) for goal in GRIDS[name][:: size.every]]
        found[name, rule] = [
            measure(name, h, d, size.length(name, d), 2 * size.chains(d), seed + 777 + j, rule)
            for j, h in enumerate(grid)
        ]
    return found


def top(runs: list[Measured], resamples: int, seed: int) -> tuple[float, float, float, float]:
    """Where efficiency along scales is highest: acceptance there with its error, efficiency with its error.

    A cubic in log h through the logarithms of efficiency by cost; errors by resampling chains.
    """
    squares = np.stack([run.squares for run in runs])
    steps, cost = runs[0].steps, np.asarray([run.cost for run in runs])
    log_h = np.log([run.scale for run in runs])
    accepted = np.asarray([run.accepted for run in runs])

    def summit(means: Array) -> tuple[float, float]:
        worth = np.log(np.asarray([worth_of(float(mean), steps) for mean in means]) / cost)
        near = worth > worth.max() - 0.7
        fitted = np.polynomial.Polynomial.fit(log_h[near], worth[near], min(3, int(near.sum()) - 1))
        grid = np.linspace(log_h[near].min(), log_h[near].max(), 400)
        best = grid[int(np.argmax(fitted(grid)))]
        order = np.argsort(log_h)
        return float(np.interp(best, log_h[order], accepted[order])), float(np.exp(fitted(best)))

    at, height = summit(squares.mean(1))
    stream = np.random.default_rng(generator(seed).initial_seed())
    again = np.asarray(
        [
            summit(np.asarray([row[stream.integers(len(row), size=len(row))].mean() for row in squares]))
            for _ in range(resamples)
        ]
    )
    return at, float(again[:, 0].std()), height, float(again[:, 1].std())


def _curves(scales: dict[str, dict[int, Array]], runs: list[Measured], sweep: Sweep) -> dict[str, Any]:
    def told(run: Measured) -> dict[str, float]:
        return {
            "columns": run.d,
            "scale": run.scale,
            "acceptance": run.accepted,
            "closed form": acceptance(run.name, run.scale, run.d)
            if run.rule == "metropolis"
            else float("nan"),
            "effective draws a draw": run.worth,
            "error": run.error,
            "cost": run.cost,
        }

    return {
        "tuned scales": {
            name: {str(d): list(map(float, found)) for d, found in by.items()} for name, by in scales.items()
        },
        "against columns": {name: [told(run) for run in runs if run.name == name] for name in POWERS},
        "along scales": {
            f"{name}, {rule}": [told(run) for run in found] for (name, rule), found in sweep.items()
        },
    }
