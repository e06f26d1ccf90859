"""The path of a penalty: the model that maximises a penalised likelihood, for every weight of the penalty at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boxloop.data import make_frame, to_vector
from boxloop.numeric import RandomState, mean_and_error, seed, single_threaded
from boxloop.select.scores import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class PenaltyPath:
    """Which model is chosen at each alpha >= 0.

    Args:
        breakpoints: where the choice changes, increasing, (m,). At a breakpoint itself two models are equally good, and
            the one with the smaller penalty is chosen.
        chosen: names of the models chosen before, between and after the breakpoints, m + 1 of them.
        names: of all models, in the order given.
        log_likelihood: mean per row of each model, (k,).
        penalty: of each model, (k,).
        breakpoint_errors: standard error of each breakpoint over rows, penalties held fixed; None without rows.
        shares: share of bootstrap samples of the rows in which each model is chosen, (m + 1, k), at
            the alphas in ``share_alphas``; None without rows.
    """

    breakpoints: Array
    chosen: tuple[Hashable, ...]
    names: tuple[Hashable, ...]
    log_likelihood: Array
    penalty: Array
    breakpoint_errors: Array | None = None
    shares: Array | None = None

    @property
    def share_alphas(self) -> Array:
        """One alpha in each interval: its middle, twice the last breakpoint, or 0 where there is none."""
        if len(self.breakpoints) == 0:
            return np.zeros(1)
        edges = np.concatenate([[0.0], self.breakpoints])
        last = min(2.0 * float(edges[-1]), float(np.finfo(np.float64).max))
        return np.append(edges[:-1] + np.diff(edges) / 2.0, last)

    def at(self, alpha: float) -> Hashable:
        """The name of the model chosen at ``alpha``."""
        if not alpha >= 0.0:
            raise ValueError(f"alpha must be at least 0, got {alpha}")
        return self.chosen[int(np.searchsorted(self.breakpoints, alpha, side="right"))]

    def table(self) -> Any:
        """One row per interval of alpha, as a pandas frame."""
        place = [self.names.index(name) for name in self.chosen]
        edges = [0.0, *self.breakpoints.tolist(), float("inf")]
        columns: dict[str, Any] = {
            "from": edges[:-1],
            "to": edges[1:],
            "chosen": list(self.chosen),
            "log_likelihood": self.log_likelihood[place],
            "penalty": self.penalty[place],
        }
        if self.breakpoint_errors is not None:
            columns["to error"] = [*self.breakpoint_errors.tolist(), 0.0]
        if self.shares is not None:
            columns |= {f"share {name}": self.shares[:, j] for j, name in enumerate(self.names)}
        return make_frame(columns)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Penalised likelihood of every model over alpha, minus that of the chosen one, and where the choice changes.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes. Bands are one standard error of a breakpoint.

        Example:
            >>> path = penalised_path([-4.0, -3.0, -2.9], [0.0, 0.1, 0.5], names=["K=1", "K=3", "K=20"])
            >>> path.plot().get_legend().get_texts()[0].get_text()
            'K=20: below 0.25'
        """
        from boxloop.figures import path_lines

        names, places = [str(name) for name in self.names], [self.names.index(name) for name in self.chosen]
        title = "Penalised likelihood over the weight of the penalty"
        errors = self.breakpoint_errors
        return path_lines(
            self.log_likelihood, self.penalty, names, places, self.breakpoints, ax, error=errors, title=title
        )

    def plot_choice(self, ax: Axes | None = None) -> Axes:
        """Which model is chosen at each alpha, one line per model (Beaulac 2023, fig. 7 and 9).

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes. Bands are one standard error of a breakpoint.

        Example:
            >>> path = penalised_path([-4.0, -3.0, -2.9], [0.0, 0.1, 0.5], names=["K=1", "K=3", "K=20"])
            >>> [label.get_text() for label in path.plot_choice().get_yticklabels()]
            ['K=1', 'K=3', 'K=20']
        """
        from boxloop.figures import path_choice

        names, places = [str(name) for name in self.names], [self.names.index(name) for name in self.chosen]
        title = "The model that each penalty chooses"
        return path_choice(names, places, self.breakpoints, ax, error=self.breakpoint_errors, title=title)


@single_threaded
def penalised_path(
    log_likelihood: ArrayLike,
    penalty: ArrayLike,
    names: Sequence[Hashable] | None = None,
    *,
    n_bootstrap: int = 200,
    random_state: RandomState = 0,
) -> PenaltyPath:
    r"""The model that maximises a penalised likelihood, exactly, for every weight of the penalty.

    .. math:: \hat\jmath(\alpha) = \arg\max_j \; \ell_j - \alpha \, r_j, \qquad \alpha \ge 0

    Beaulac (2023), eq. 17 and section 8.1, where :math:`r` is ``1MEGA-F + sqrt(2MEGA-F)``. Each model is
    a line in alpha, so the path is the upper envelope of lines: sorting and one sweep, no grid. Ties go to the smaller
    penalty, then to the model that was given first.

    Deviation: the paper leaves the scale of the log-likelihood open; here it is the mean per row.

    Args:
        log_likelihood: mean log-likelihood per row of each model (k,), or that of every row under every model (n, k)
            for standard errors and a bootstrap over rows. A model at -inf is never chosen.
        penalty: one non-negative number per model, (k,).
        names: of the models; their indices when omitted.
        n_bootstrap: samples of the rows, where rows are given; 0 for none.
        random_state: seed of the bootstrap.

    Returns:
        The path.

    Raises:
        ValueError: no model, NaN, a negative or infinite penalty, or no model with a finite log-likelihood.

    Example:
        >>> path = penalised_path([-4.0, -3.0, -2.9], [0.0, 0.1, 0.5], names=["K=1", "K=3", "K=20"])
        >>> path.breakpoints.round(3).tolist(), path.chosen
        ([0.25, 10.0], ('K=20', 'K=3', 'K=1'))
        >>> path.at(1.0)
        'K=3'
    """
    rows, cost = _check_path_inputs(log_likelihood, penalty)
    labels = tuple(range(len(cost))) if names is None else tuple(names)
    if len(labels) != len(cost) or len(set(labels)) != len(labels):
        raise ValueError(f"names must be {len(cost)} different names, got {list(labels)}")
    mean = rows.mean(0)
    if np.isneginf(mean).all():
        raise ValueError("log_likelihood is -inf for every model")
    places, breakpoints = _find_upper_envelope(mean, cost)
    chosen = tuple(labels[j] for j in places)
    path = PenaltyPath(breakpoints, chosen, labels, mean, cost)
    if np.ndim(log_likelihood) < 2:
        return path
    drop = -np.diff(cost[places])
    errors = [mean_and_error(rows[:, a] - rows[:, b])[1] for a, b in pairwise(places)]
    shares = None
    if n_bootstrap > 0:
        rng = np.random.default_rng(seed(random_state))
        shares = _bootstrap_choice_shares(rows, cost, path.share_alphas, n_bootstrap, rng)
    return PenaltyPath(breakpoints, chosen, labels, mean, cost, np.array(errors) / drop, shares)


def _check_path_inputs(log_likelihood: ArrayLike, penalty: ArrayLike) -> tuple[Array, Array]:
    """Rows (n, k), one where only means are given, and penalties (k,)."""
    rows = to_vector(log_likelihood, "log_likelihood")
    cost = to_vector(penalty, "penalty")
    if rows.ndim not in (1, 2) or cost.ndim != 1 or rows.shape[-1] != len(cost):
        raise ValueError(
            "log_likelihood must be (k,) or (n, k) and penalty (k,): "
            f"their shapes are {rows.shape} and {cost.shape}"
        )
    if rows.size == 0:
        raise ValueError("log_likelihood must hold at least one model and one row")
    if np.isnan(rows).any() or np.isposinf(rows).any():
        raise ValueError("log_likelihood holds NaN or +inf")
    if not np.isfinite(cost).all() or (cost < 0.0).any():
        raise ValueError(f"penalty must be finite and not negative, got {cost.tolist()}")
    return np.atleast_2d(rows), cost


def _find_upper_envelope(mean: Array, cost: Array) -> tuple[list[int], Array]:
    """Models on the upper envelope as alpha rises, and the alphas where they change.

    A line is a point (penalty, likelihood); the envelope is the concave hull from the smallest penalty up to the
    highest likelihood, and the slopes of its edges are the breakpoints.
    """
    hull: list[int] = []
    slopes: list[float] = []
    for j in np.lexsort((-mean, cost)).tolist():
        if hull and not mean[j] > mean[hull[-1]]:
            continue
        while hull:
            with np.errstate(over="ignore", divide="ignore"):
                slope = float((mean[j] - mean[hull[-1]]) / (cost[j] - cost[hull[-1]]))
            # An infinite slope is a breakpoint beyond all numbers: the smaller penalty is never reached.
            if np.isfinite(slope) and (not slopes or slope < slopes[-1]):
                slopes.append(slope)
                break
            hull.pop()
            if slopes:
                slopes.pop()
        hull.append(j)
    return hull[::-1], np.array(slopes[::-1], dtype=np.float64)


def _bootstrap_choice_shares(
    rows: Array, cost: Array, alphas: Array, n_bootstrap: int, rng: np.random.Generator
) -> Array:
    """How often each model is chosen at each alpha when the rows are drawn again with replacement."""
    order = np.argsort(cost, kind="stable")  # argmax takes the first of equals: the smaller penalty
    counts: NDArray[np.float64] = np.zeros((len(alphas), len(cost)))
    with np.errstate(over="ignore"):  # a charge beyond all numbers is infinite
        charge = alphas[:, None] * cost
    for _ in range(n_bootstrap):
        mean = rows[rng.integers(len(rows), size=len(rows))].mean(0)
        best = order[(mean - charge)[:, order].argmax(1)]
        counts[np.arange(len(alphas)), best] += 1.0
    return counts / n_bootstrap
