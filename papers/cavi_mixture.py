"""Coordinate ascent for a Bayesian mixture (002, section 3.3): the bound, the evidence, and what q believes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from papers.cavi_conjugate import curves, judge_conjugate, measure_conjugate
from papers.cavi_mixture_figures import draw
from papers.cavi_mixture_findings import judge
from papers.cavi_mixture_trials import (
    PRIOR,
    Ascent,
    Exact,
    Problem,
    Rows,
    ascend,
    exact_posterior,
    generic,
    information_ratio,
    rounds_to_settle,
    sweep_difference,
)
from papers.experiment import Options, Report

WIDEST = 6.0


@dataclass(frozen=True)
class Size:
    """How much is run: rows, data sets and starts of each problem, distances between the true means."""

    rows: int
    seeds: int
    starts: int
    apart: tuple[float, ...]
    orders: int
    chains: int


FULL = Size(90, 8, 6, (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, WIDEST), 8, 4096)
QUICK = Size(30, 2, 3, (2.0, WIDEST), 2, 1024)


@dataclass(frozen=True)
class Cell:
    """All starts on one data set, beside the exact posterior."""

    problem: Problem
    exact: Exact
    runs: list[Ascent]

    @property
    def best(self) -> Ascent:
        """The start that came highest."""
        return max(self.runs, key=lambda run: float(run.trace[-1]))

    @property
    def gap(self) -> float:
        """Log evidence less the best bound."""
        return self.exact.log_evidence - float(self.best.trace[-1])

    @property
    def reached(self) -> float:
        """Share of the starts that came within 1e-3 of the best bound."""
        ends = np.asarray([run.trace[-1] for run in self.runs])
        return float(np.mean(ends > ends.max() - 1e-3))

    @property
    def ratio(self) -> float:
        """Deviation of the means under q over their exact one given their order, averaged over two means."""
        order = self.best.model.mean[:, 0].argsort()
        believed = self.best.model.variance[order].sqrt().numpy()
        return float(np.mean(believed / self.exact.ordered()[1]))


def measure(size: Size, k: int, apart: float, seed: int) -> list[Cell]:
    """One cell for each data set."""
    cells = []
    for i in range(size.seeds):
        problem = Problem.drawn(size.rows, k, apart, seed + i)
        runs = [ascend(problem, 1000 * (seed + i) + start) for start in range(size.starts)]
        cells.append(Cell(problem, exact_posterior(problem), runs))
    return cells


def many_components(seeds: int, starts: int, seed: int) -> Rows:
    """Bounds that starts end at, 5 components 8 apart, one line for each data set, (seeds, starts)."""
    found = []
    for i in range(seeds):
        problem = Problem.drawn(90, 5, 8.0, seed + i)
        found.append([ascend(problem, 1000 * (seed + i) + start).trace[-1] for start in range(starts)])
    return np.asarray(found)


@dataclass(frozen=True)
class Orders:
    """Sweeping beside drawing, from the same starts.

    Args:
        rounds: until within 1e-4 of the end, in units of as many updates as variables; (runs, 2).
        ends: bounds at the end, (runs, 2).
        falls: largest relative fall of the bound in any round.
        apart: largest difference between the generic engine's sweep and the formulas.
        evidence: largest difference between the generic engine's quadrature and ours.
    """

    rounds: Rows
    ends: Rows
    falls: float
    apart: float
    evidence: float


def compare_orders(size: Size, seed: int) -> Orders:
    """The generic engine, both ways, on small problems; and the engine beside the formulas."""
    rounds, ends, falls, evidence = [], [], -np.inf, 0.0
    for i in range(size.orders):
        problem = Problem.drawn(24, 2, 2.0, seed + i)
        both = [generic(problem, seed + i, "sweep"), generic(problem, seed + i, "random")]
        rounds.append([rounds_to_settle(found) for found in both])
        ends.append([found.elbo for found in both])
        for found in both:
            falls = max(falls, float(np.max(-np.diff(found.trace) / np.abs(found.trace[:-1]))))
        check = both[0].evidence()
        evidence = max(evidence, abs(check.log_evidence - exact_posterior(problem).log_evidence))
    problems = [Problem.drawn(20, k, 2.0, seed + k) for k in (2, 3)]
    apart = max(sweep_difference(problem, seed, 8) for problem in problems)
    return Orders(np.asarray(rounds, dtype=float), np.asarray(ends), falls, apart, evidence)


def experiment(options: Options) -> Report:
    """Bounds beside evidences over distances between components; orders; what q believes of the means."""
    size = QUICK if options.quick else FULL
    cells: dict[int, dict[float, list[Cell]]] = {2: {}, 3: {}}
    total, done = 2 * len(size.apart) + 2, 0
    for k in cells:
        for apart in size.apart:
            options.progress(done, total, f"{k} components, {apart:g} apart")
            cells[k][apart] = measure(size, k, apart, options.seed)
            done += 1
    ends = many_components(4 if options.quick else 12, 15, options.seed)
    options.progress(done, total, "sweeping and drawing")
    orders = compare_orders(size, options.seed)
    options.progress(done + 1, total, "the general conjugate mixture")
    conjugate = measure_conjugate(
        (3.0,) if options.quick else (2.0, 4.0, WIDEST), size.chains, size.starts, options.seed
    )
    limits = {apart: information_ratio(apart) for apart in size.apart}
    settings = {
        "rows": size.rows,
        "prior variance": PRIOR,
        "data sets": size.seeds,
        "starts": size.starts,
        "seed": options.seed,
    }
    return Report(
        "cavi-mixture",
        "Coordinate ascent for a Bayesian mixture",
        settings,
        [*judge(cells, orders, ends, limits), *judge_conjugate(conjugate)],
        curves={
            f"{k} components": {
                str(apart): {
                    "gap": [cell.gap for cell in many],
                    "quadrature error": [cell.exact.error for cell in many],
                    **({"deviation ratio": [cell.ratio for cell in many]} if k == 2 else {}),
                }
                for apart, many in by_apart.items()
            }
            for k, by_apart in cells.items()
        }
        | {"general mixture": curves(conjugate)},
        figures={"bound": draw(cells, limits)},
    )
