"""Convergence diagnostics of chains, and the concerns that follow from them.

R-hat and effective sample sizes are those of arviz-stats. R-hat alone passes two failures: a chain that never moves,
whose variance is zero, and a draw that is infinite. Both are checked first. The R-hat of one chain is not available,
which is not a pass.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.numeric import format_above, join_words
from boxloop.sample.kernels.hmc import DIVERGED
from boxloop.sample.kernels.metropolis import make_metric, measure_narrowest_width

Array = NDArray[np.float64]

R_HAT_LIMIT = 1.01
"""R-hat up to which chains agree (Vehtari et al. 2021)."""

ESS_LIMIT = 400
"""Effective sample size from which R-hat and quantiles are reliable (Vehtari et al. 2021)."""

MIN_DRAWS = 4
"""Draws per chain below which nothing is diagnosed."""

LOW_ACCEPTANCE, HIGH_ACCEPTANCE = 0.01, 0.995
"""Acceptance below which a chain hardly moves, and above which its steps are too short."""

ACCEPTANCE_DRAWS = 100
"""Draws from which an acceptance rate is reliable: of one chain, or of all of them together."""

NARROW = 1 / 8
"""Standard deviation of the draws in some direction, in units of the metric, below which steps are far too short."""

MANY_GRADIENTS = 16
"""Gradients of a trajectory from which it costs too much, if fewer would do."""

FEWEST_DRAWS, DRAWS_PER_COLUMN = 100, 10
"""Draws, and draws for each column, from which their covariance is compared with the metric."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Diagnostics of p quantities; NaN if not available."""

    r_hat: Array  # rank-normalised split R-hat, (p,); nested R-hat if chains share starts
    ess_bulk: Array  # effective sample size for the centre of the distribution, (p,)
    ess_tail: Array  # effective sample size for its 5% and 95% quantiles, the smaller, (p,)
    mcse: Array  # Monte Carlo standard error of the mean, (p,)
    infinite: NDArray[np.bool_]  # whether a draw is not finite, (p,)
    constant_chains: NDArray[np.int64]  # chains in which the quantity never moves, (p,)
    fixed: NDArray[np.bool_]  # whether it is constant by its support, (p,); it is then not diagnosed
    n_chains: int  # c

    @property
    def worst_index(self) -> int:
        """Index of the quantity that mixes worst."""
        bad = self.infinite | (self.constant_chains > 0)
        if bad.any():
            return int(np.argmax(bad))
        known = np.where(np.isfinite(self.r_hat), self.r_hat, -np.inf)
        return int(np.argmax(known)) if np.isfinite(known).any() else 0

    def concerns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """What the diagnostics give reason to look at, in words."""
        found = []
        if self.infinite.any():
            found.append(f"{_list_names(names, self.infinite)}: not finite in every draw")
        if (self.constant_chains > 0).any():
            most = int(self.constant_chains.max())
            constant = _list_names(names, self.constant_chains > 0)
            found.append(f"{constant}: constant in {most} of {self.n_chains} chains")
        diagnosed = ~self.infinite & (self.constant_chains == 0) & ~self.fixed
        if self.n_chains == 1:
            found.append(
                "one chain: R-hat is not available, and convergence cannot be assessed; run several chains"
            )
        if np.isnan(self.ess_bulk[diagnosed]).any():
            found.append(f"fewer than {MIN_DRAWS} draws per chain: too few to diagnose")
            return tuple(found)
        if self.n_chains > 1:
            apart = diagnosed & ~(self.r_hat <= R_HAT_LIMIT)
            if apart.any():
                worst = float(np.fmax.reduce(self.r_hat[apart]))
                found.append(
                    f"{_list_names(names, apart)}: R-hat up to {format_above(worst, R_HAT_LIMIT)}, above "
                    f"{R_HAT_LIMIT:g}: chains disagree; draw longer"
                )
        few = diagnosed & ~(np.minimum(self.ess_bulk, self.ess_tail) >= ESS_LIMIT)
        if few.any():
            least = float(np.fmin.reduce(np.fmin(self.ess_bulk, self.ess_tail)[few]))
            found.append(
                f"{_list_names(names, few)}: effective sample size {least:.0f}, below {ESS_LIMIT}; draw longer"
            )
        return tuple(found)


def diagnose(
    table: Array, superchains: int | None = None, fixed: NDArray[np.bool_] | None = None
) -> Diagnosis:
    """Diagnose draws (c, n, p)."""
    stats: Any = import_module("arviz_stats.base").array_stats

    chains, draws, quantities = table.shape
    infinite = np.atleast_1d(~np.isfinite(table).all((0, 1)))
    fixed = np.zeros(quantities, dtype=np.bool_) if fixed is None else fixed
    constant = np.zeros(quantities, dtype=np.int64)
    if draws >= MIN_DRAWS:
        still = np.ptp(np.where(infinite, 0.0, table), axis=1) == 0.0
        constant = np.where(infinite | fixed, 0, still.sum(0))
    results = {key: np.full(quantities, np.nan) for key in ("r_hat", "ess_bulk", "ess_tail", "mcse")}
    for j in np.flatnonzero(~infinite & ~fixed & (constant == 0)) if draws >= MIN_DRAWS else ():
        column = np.ascontiguousarray(table[:, :, j])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results["ess_bulk"][j] = stats.ess(column, method="bulk")
            results["ess_tail"][j] = stats.ess(column, method="tail", prob=(0.05, 0.95))
            results["mcse"][j] = stats.mcse(column, method="mean")
            if superchains is not None:
                groups = np.repeat(np.arange(superchains), chains // superchains)
                results["r_hat"][j] = stats.rhat_nested(column, superchain_ids=groups, method="rank")
            elif chains > 1:
                results["r_hat"][j] = stats.rhat(column, method="rank")
    return Diagnosis(**results, infinite=infinite, constant_chains=constant, fixed=fixed, n_chains=chains)


def _list_names(names: tuple[str, ...], mask: NDArray[np.bool_]) -> str:
    return join_words([name for name, chosen in zip(names, mask, strict=True) if chosen], most=3)


def find_proposal_concerns(
    acceptance: Tensor | None,
    nan_proposals: Tensor,
    positions: Tensor,
    interrupted: bool,
    scaled: bool = True,
    may_be_short: bool = True,
) -> tuple[str, ...]:
    """Concerns about the proposals of an algorithm, which need no diagnosis."""
    found = []
    if interrupted:
        found.append(f"interrupted after {len(positions)} draws of each chain")
    if not bool(torch.isfinite(positions).all()):
        found.append("a draw is not finite: the density does not decay, or the step is too long")
    if acceptance is not None and len(positions) * len(acceptance) >= ACCEPTANCE_DRAWS:
        mean, low = float(acceptance.mean()), float(acceptance.min())
        advice = (
            "a smaller scale, a longer warm-up or another start" if scaled else "another proposal or start"
        )
        if mean < LOW_ACCEPTANCE:
            found.append(f"chains accept {mean:.2g} of their moves: {advice}")
        elif low < LOW_ACCEPTANCE and len(positions) >= ACCEPTANCE_DRAWS:
            found.append(f"chain {int(acceptance.argmin())} accepts {low:.2g} of its moves: {advice}")
        if mean > HIGH_ACCEPTANCE and scaled and may_be_short:
            found.append(
                f"acceptance {mean:.4g}: steps are too short to explore the target; use a larger scale"
            )
    if bool((nan_proposals > 0).any()):
        worst = int(nan_proposals.argmax())
        found.append(
            f"{int(nan_proposals.sum())} moves were rejected because the density or its gradient was not a number "
            f"there (most in chain {worst}, {int(nan_proposals[worst])}): a constraint may be missing from support="
        )
    return tuple(found)


def find_trajectory_concerns(diverging: Tensor | None, positions: Tensor, algorithm: Any) -> list[str]:
    """Concerns about trajectories that diverge, or take many times the gradients they need."""
    found = []
    if diverging is not None and bool(diverging.any()):
        counts, scale = diverging.sum(0), getattr(algorithm, "scale", None)
        worst = int(counts.argmax())
        smaller = f"scale={scale / 4:.2g}" if isinstance(scale, float) else "a smaller scale"
        found.append(
            f"{int(counts.sum())} of {diverging.numel()} trajectories diverged (energy error above {DIVERGED:g}; most "
            f"in chain {worst}, {int(counts[worst])}): draws miss regions where the density bends sharply. "
            "Reparametrise (in a funnel, sample effects divided by their scale), pass the bounds of values as "
            f"support=, or pass kernel=dataclasses.replace(draws.algorithm, {smaller})"
        )
    width = _measure_narrowest_direction(positions, algorithm)
    if width < NARROW:
        found.append(
            f"trajectories take {count_gradients(algorithm):.0f} gradients, some {1 / width:.0f} times as many as they "
            f"need: in one direction the draws vary {width:.2g} times as much as the warm-up positions behind the "
            "metric, as chains had not met then; use a longer warm-up, or start from the last draws"
        )
    return found


def count_gradients(algorithm: Any) -> float:
    """The most gradients of one trajectory; 0 for an algorithm that has none, or none that is tuned."""
    scale, trajectory = getattr(algorithm, "scale", None), getattr(algorithm, "trajectory", None)
    if not isinstance(scale, float) or not isinstance(trajectory, float):
        return 0.0
    return trajectory / scale


def _measure_narrowest_direction(positions: Tensor, algorithm: Any) -> float:
    """Smallest standard deviation within chains, in units of the metric; 1 if trajectories are short or draws few."""
    d, metric = positions.shape[2], getattr(algorithm, "metric", None)
    if metric is None or len(metric) != d or count_gradients(algorithm) < MANY_GRADIENTS:
        return 1.0
    centred = (positions - positions.mean(0)).reshape(-1, d)
    if len(centred) < max(FEWEST_DRAWS, DRAWS_PER_COLUMN * d):
        return 1.0
    covariance = centred.mT @ centred / len(centred) if metric.dim() == 2 else centred.square().mean(0)
    factor = make_metric(covariance, len(centred))
    return 1.0 if factor is None else measure_narrowest_width(factor, metric)
