"""What the runs of Algorithm 4 say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from boxloop.loop import FALL
from papers.cavi_mixture_trials import Rows
from papers.experiment import Finding
from papers.words import met, percent, standard_error

if TYPE_CHECKING:
    from papers.cavi_mixture import Cell, Orders

Cells = Mapping[int, Mapping[float, "list[Cell]"]]


def judge(cells: Cells, orders: Orders, ends: Rows, limits: Mapping[float, float]) -> list[Finding]:
    """Findings, in the order of the document."""
    return [
        _updates(orders),
        _never_falls(cells, orders),
        _below(cells),
        *(_orders_of_components(k, cells[k]) for k in cells),
        _quadratures(orders),
        _random(orders),
        _starts(ends, cells),
        _too_sure(cells[2], limits),
        _sure_enough(cells[2]),
    ]


def _updates(orders: Orders) -> Finding:
    return Finding(
        "the updates of section 3.3, every sweep",
        "Algorithm 4 as displayed",
        f"largest difference {orders.apart:.1e}",
        None,
        "reproduced" if orders.apart < 1e-12 else "not reproduced",
        "Formulas beside the generic engine, which has only the log-joint and its gradient.",
        exact=True,
    )


def _never_falls(cells: Cells, orders: Orders) -> Finding:
    runs = [run for many in cells.values() for cell in many.values() for one in cell for run in one.runs]
    worst = max(orders.falls, max(run.fall for run in runs))
    sweeps = sum(len(run.trace) - 1 for run in runs)
    return Finding(
        "the bound rises in every sweep (section 3.2)",
        "each update is the best of its coordinate",
        f"largest relative fall {max(worst, 0.0):.1e}",
        None,
        "reproduced" if worst < FALL else "not reproduced",
        f"{len(runs)} runs, {sweeps} sweeps; the loop refuses falls above 1e-9.",
        exact=True,
    )


def _below(cells: Cells) -> Finding:
    every = [cell for many in cells.values() for group in many.values() for cell in group]
    least = min(every, key=lambda cell: cell.gap)
    error = max(cell.exact.error for cell in every)
    return Finding(
        "the bound is below the log evidence (section 3.1)",
        "L(q) <= log p(x)",
        f"smallest gap {least.gap:.4f}",
        None,
        "reproduced" if all(cell.gap > cell.exact.error for cell in every) else "not reproduced",
        f"{len(every)} data sets; evidence by quadrature over the means, error at most {error:.0e}.",
        exact=True,
    )


def _orders_of_components(k: int, by_apart: Mapping[float, list[Cell]]) -> Finding:
    widest = max(by_apart)
    gaps = np.asarray([cell.gap for cell in by_apart[widest]])
    known = math.log(math.factorial(k))
    closest = min(cell.gap for many in by_apart.values() for cell in many)
    return Finding(
        f"{k} components far apart: the bound is short by log {k}!",
        "the text does not say it; q keeps one of the K! orders",
        f"{gaps.mean():.4f}, log {k}! = {known:.4f}",
        standard_error(gaps),
        met(abs(gaps.mean() - known) < 0.05 and closest > known - 0.01),
        f"Distance {widest:g}; at no distance is the gap below {closest:.3f}: overlap only adds to it.",
    )


def _quadratures(orders: Orders) -> Finding:
    return Finding(
        "evidence by the generic engine, labels summed out in closed form",
        "not in the document",
        f"differs from ours by at most {orders.evidence:.1e}",
        None,
        met(orders.evidence < 1e-6),
        "Two programs, two grids, one number.",
    )


def _random(orders: Orders) -> Finding:
    ratio = orders.rounds[:, 1] / orders.rounds[:, 0]
    same = float(np.mean(np.abs(orders.ends[:, 1] - orders.ends[:, 0]) < 1e-4))
    return Finding(
        "one variable drawn at random, or all in turn",
        "both are named, neither is preferred",
        f"drawing takes {ratio.mean():.2f} times the updates",
        standard_error(ratio),
        met(float(ratio.mean()) > 1.0),
        f"Until within 1e-4 of the end; the same end in {percent(same)} of {len(ratio)} runs from equal starts. "
        "A draw of n leaves more than a third of the variables as they were.",
    )


def _starts(ends: Rows, cells: Cells) -> Finding:
    best = ends.max(1, keepdims=True)
    reached = np.mean(ends > best - 1e-3, axis=1)
    fewer = [cell.reached for many in cells.values() for group in many.values() for cell in group]
    return Finding(
        "starts from the prior that reach the best bound, 5 components 8 apart",
        "the optimum is that of each coordinate, the others held",
        percent(float(reached.mean())),
        standard_error(reached),
        met(float(reached.mean()) < 1.0),
        f"{len(ends)} data sets, {ends.shape[1]} starts each; the lowest maximum is {(best - ends).max():.0f} below: "
        f"coordinate ascent needs more than one start. With 2 or 3 components {percent(float(np.mean(fewer)))} did.",
    )


def _too_sure(by_apart: Mapping[float, list[Cell]], limits: Mapping[float, float]) -> Finding:
    """At a distance where modes are two and rows are shared."""
    apart = min(by_apart, key=lambda value: abs(value - 2.0))
    ratio = np.asarray([cell.ratio for cell in by_apart[apart]])
    return Finding(
        f"deviation of a mean under q over the exact one, components {apart:g} apart",
        "not in the document",
        f"{ratio.mean():.3f}",
        standard_error(ratio),
        met(ratio.mean() < 0.95),
        f"Too sure: q takes uncertain labels for known ones. With many rows the ratio is {limits[apart]:.3f}, "
        "the root of the share of information that is left without labels.",
    )


def _sure_enough(by_apart: Mapping[float, list[Cell]]) -> Finding:
    widest = max(by_apart)
    ratio = np.asarray([cell.ratio for cell in by_apart[widest]])
    return Finding(
        f"the same, {widest:g} apart",
        "not in the document",
        f"{ratio.mean():.3f}",
        standard_error(ratio),
        met(abs(ratio.mean() - 1.0) < 0.05),
        "Labels that are certain cost nothing: q is the posterior of one order.",
    )
