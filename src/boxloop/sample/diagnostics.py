"""Whether chains agree, and how much they know. R-hat and effective draws are those of arviz-stats.

R-hat alone passes two things that it should not: a chain that never moves, where it divides by nothing, and a draw
that is infinite. Both are looked for first. One chain cannot disagree with another: its R-hat is not available, which
is not a pass.
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

Array = NDArray[np.float64]

AGREED = 1.01
"""R-hat up to which chains agree (Vehtari et al. 2021)."""

ENOUGH = 400
"""Effective draws from which R-hat and quantiles are reliable (Vehtari et al. 2021)."""

RARE, NEARLY_ALL = 0.01, 0.995
"""Acceptance below which a chain hardly moves, and above which it hardly dares to."""

MANY = 100
"""Draws from which acceptance says something: of one chain, or of all of them together."""

FEWEST = 4
"""Draws a chain below which nothing can be said."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Of every number, (p,); NaN where it is not available.

    Args:
        r_hat: rank-normalised split R-hat, or nested R-hat where chains share starts.
        ess_bulk: effective draws for the centre of the law.
        ess_tail: effective draws for its 5% and 95% quantiles, the smaller.
        mcse: Monte Carlo standard error of the mean.
        infinite: whether a draw is not finite.
        stuck: chains that never move in it.
        fixed: whether it cannot move, by its support; nothing is said of it then.
        n_chains: c.
    """

    r_hat: Array
    ess_bulk: Array
    ess_tail: Array
    mcse: Array
    infinite: NDArray[np.bool_]
    stuck: NDArray[np.int64]
    fixed: NDArray[np.bool_]
    n_chains: int

    @property
    def worst(self) -> int:
        """The number that mixes worst."""
        bad = self.infinite | (self.stuck > 0)
        if bad.any():
            return int(np.argmax(bad))
        known = np.where(np.isfinite(self.r_hat), self.r_hat, -np.inf)
        return int(np.argmax(known)) if np.isfinite(known).any() else 0

    def worries(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """In words."""
        found = []
        if self.infinite.any():
            found.append(f"{_list_names(names, self.infinite)}: not finite in every draw")
        if (self.stuck > 0).any():
            most = int(self.stuck.max())
            found.append(
                f"{_list_names(names, self.stuck > 0)}: constant in {most} of {self.n_chains} chains"
            )
        usable = ~self.infinite & (self.stuck == 0) & ~self.fixed
        if self.n_chains == 1:
            found.append(
                "one chain: R-hat is not available, so that nothing shows whether it has found the target"
            )
        if np.isnan(self.ess_bulk[usable]).any():
            found.append(f"fewer than {FEWEST} draws of each chain: too few to tell anything by")
            return tuple(found)
        if self.n_chains > 1:
            apart = usable & ~(self.r_hat <= AGREED)
            if apart.any():
                worst = float(np.fmax.reduce(self.r_hat[apart]))
                found.append(
                    f"{_list_names(names, apart)}: R-hat up to {format_above(worst, AGREED)}, above {AGREED:g}: chains "
                    "disagree; draw longer"
                )
        few = usable & ~(np.minimum(self.ess_bulk, self.ess_tail) >= ENOUGH)
        if few.any():
            least = float(np.fmin.reduce(np.fmin(self.ess_bulk, self.ess_tail)[few]))
            found.append(
                f"{_list_names(names, few)}: {least:.0f} effective draws, fewer than {ENOUGH}; draw longer"
            )
        return tuple(found)


def diagnose(
    table: Array, superchains: int | None = None, fixed: NDArray[np.bool_] | None = None
) -> Diagnosis:
    """Diagnose draws (c, n, p).

    Args:
        table: one number in each of the last places.
        superchains: number of groups of chains that began at the same point, in order.
        fixed: which numbers cannot move, (p,); none when omitted.

    Example:
        >>> import numpy as np
        >>> found = diagnose(np.random.default_rng(0).normal(size=(4, 500, 2)))
        >>> found.worries(("a", "b"))
        ()
    """
    known: Any = import_module("arviz_stats.base").array_stats

    chains, draws, numbers = table.shape
    infinite = np.atleast_1d(~np.isfinite(table).all((0, 1)))
    fixed = np.zeros(numbers, dtype=np.bool_) if fixed is None else fixed
    stuck = np.zeros(numbers, dtype=np.int64)
    if draws >= FEWEST:
        still = np.ptp(np.where(infinite, 0.0, table), axis=1) == 0.0
        stuck = np.where(infinite | fixed, 0, still.sum(0))
    results = {key: np.full(numbers, np.nan) for key in ("r_hat", "ess_bulk", "ess_tail", "mcse")}
    for j in np.flatnonzero(~infinite & ~fixed & (stuck == 0)) if draws >= FEWEST else ():
        column = np.ascontiguousarray(table[:, :, j])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results["ess_bulk"][j] = known.ess(column, method="bulk")
            results["ess_tail"][j] = known.ess(column, method="tail", prob=(0.05, 0.95))
            results["mcse"][j] = known.mcse(column, method="mean")
            if chains > 1:
                results["r_hat"][j] = _r_hat(known, column, superchains)
    return Diagnosis(**results, infinite=infinite, stuck=stuck, fixed=fixed, n_chains=chains)


def find_faults(
    acceptance: Tensor | None,
    refused: Tensor,
    positions: Tensor,
    interrupted: bool,
    scaled: bool = True,
    short: bool = True,
) -> tuple[str, ...]:
    """What an algorithm met, in words; it needs no diagnosis.

    Args:
        acceptance: mean chance of acceptance of each chain, (c,).
        refused: proposals of each chain whose ratio was not a number, (c,).
        positions: (n, c, d).
        interrupted: whether Ctrl-C ended it early.
        scaled: whether the algorithm has a scale.
        short: whether to accept nearly all means that steps are too short.
    """
    found = []
    if interrupted:
        found.append(f"interrupted after {len(positions)} draws of each chain")
    if not bool(torch.isfinite(positions).all()):
        found.append("a draw is not finite: the density does not fall off, or the step is too long")
    if acceptance is not None and len(positions):
        found.extend(_acceptance_faults(acceptance, len(positions), scaled, short))
    if bool((refused > 0).any()):
        worst = int(refused.argmax())
        found.append(
            f"{int(refused.sum())} moves were refused because the density or its gradient was not a number there "
            f"(most in chain {worst}, {int(refused[worst])}): a constraint may be missing from support="
        )
    return tuple(found)


def _acceptance_faults(acceptance: Tensor, draws: int, scaled: bool, short: bool) -> list[str]:
    """A chain alone is judged by many proposals; by fewer, only all chains together are."""
    if draws * len(acceptance) < MANY:
        return []
    found, mean, low = [], float(acceptance.mean()), float(acceptance.min())
    advice = "a smaller scale, a longer warm-up or another start" if scaled else "another proposal or start"
    if mean < RARE:
        found.append(f"chains accept {mean:.2g} of their moves: {advice}")
    elif low < RARE and draws >= MANY:
        found.append(f"chain {int(acceptance.argmin())} accepts {low:.2g} of its moves: {advice}")
    if mean > NEARLY_ALL and scaled and short:
        found.append(f"acceptance {mean:.4g}: steps are too short to get anywhere; a larger scale")
    return found


def _r_hat(stats: Any, column: Array, superchains: int | None) -> float:
    if superchains is None:
        return float(stats.rhat(column, method="rank"))
    groups = np.repeat(np.arange(superchains), len(column) // superchains)
    return float(stats.rhat_nested(column, superchain_ids=groups, method="rank"))


def _list_names(names: tuple[str, ...], mask: NDArray[np.bool_]) -> str:
    return join_words([name for name, chosen in zip(names, mask, strict=True) if chosen], most=3)
