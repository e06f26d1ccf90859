"""Draws of chains: values by name, summary tables, concerns, pictures."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from boxloop.data import check_level, make_frame
from boxloop.sample.diagnostics import (
    MANY_GRADIENTS,
    Array,
    Diagnosis,
    count_gradients,
    diagnose,
    find_proposal_concerns,
    find_trajectory_concerns,
)
from boxloop.sample.kernels.hmc import HMC
from boxloop.sample.target import ParameterSpace, check_integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_DRAWS = "there are no draws: sampling was interrupted in warm-up"

SHOWN = 20
"""Quantities in the printed form."""

BOUND_SHARE = 1e-5
"""Share of numbers at a bound above which a density is cut off there: one that is bounded has almost none."""

ZERO_DENSITY_SHARE = 0.01
"""Share of proposals of zero density that explains why chains do not agree."""


class SampleWarning(UserWarning):
    """A concern about chains that a reader of their draws should know."""


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """Draws of c chains, n each, after warm-up.

    Args:
        positions: unconstrained vectors, (n, c, d).
        log_density: of them, (n, c).
        space: how they are read as values.
        algorithm: that made them, as tuned.
        acceptance: mean acceptance probability of each chain, (c,); None for a kernel without rejections.
        nan_proposals: proposals of each chain whose ratio was not a number, (c,).
        warmup: steps before the first draw.
        thin: steps from one draw to the next.
        superchains: number of distinct starts, if chains share them.
        events: what the loop reported.
        interrupted: whether Ctrl-C ended sampling.
        zero_density_proposals: proposals of each chain whose density was zero, (c,), if they were counted.
        diverging: whether a trajectory diverged between two draws, (n, c); None without trajectories.

    Example:
        >>> import torch
        >>> import boxloop
        >>> draws = boxloop.sample_density(lambda x: -0.5 * (x * x).sum(1), torch.zeros(2), random_state=0)
        >>> draws["x"].shape
        torch.Size([4, 1000, 2])
        >>> draws.summary().columns.tolist()
        ['mean', 'sd', 'low', 'high', 'mcse', 'ess_bulk', 'ess_tail', 'r_hat']
        >>> draws.converged, draws.concerns
        (True, ())
    """

    positions: Tensor
    log_density: Tensor
    space: ParameterSpace
    algorithm: Any
    acceptance: Tensor | None
    nan_proposals: Tensor
    warmup: int
    thin: int = 1
    superchains: int | None = None
    events: tuple[str, ...] = ()
    interrupted: bool = False
    zero_density_proposals: Tensor | None = None
    diverging: Tensor | None = None

    @property
    def n_chains(self) -> int:
        """c."""
        return self.positions.shape[1]

    @property
    def n_draws(self) -> int:
        """n, of each chain."""
        return self.positions.shape[0]

    @property
    def divergences(self) -> Tensor | None:
        """Draws of each chain after a diverging trajectory, (c,); None without trajectories.

        The energy error of such a trajectory exceeds 1000: the density bends more sharply than its steps can follow,
        and draws miss that region.
        """
        return None if self.diverging is None else self.diverging.sum(0)

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Each named value, (c, n, ...), with its constraints."""
        return self.space.unpack(self.positions.transpose(0, 1))[0]

    def __getitem__(self, name: str) -> Tensor:
        """One value, (c, n, ...); ``"x"`` for values without names."""
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.space.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """One for each number."""
        return self.space.names

    @property
    def table(self) -> Array:
        """Every number of the values, (c, n, p), in the order of ``names``."""
        parts = [value.flatten(2) if value.dim() > 2 else value[..., None] for value in self.values.values()]
        return np.asarray(torch.cat(parts, 2).double().cpu().numpy())

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """R-hat, effective sample sizes and Monte Carlo errors of every number."""
        return diagnose(self.table, self.superchains, self.space.is_constant(self.positions).cpu().numpy())

    def summary(self, level: float = 0.95) -> Any:
        """A frame with one row per number.

        Args:
            level: of the central interval from ``low`` to ``high``.

        Returns:
            Mean, standard deviation, interval, Monte Carlo error of the mean, effective sample sizes in the bulk and in
            the tails, and R-hat (rank-normalised and split; nested if chains share starts). A number that is not
            finite in every draw, constant in a chain, or fixed by its support, has NaN for them.
        """
        if self.n_draws == 0:
            raise ValueError(NO_DRAWS)
        return make_frame(summarise_table(self.table, self.diagnosis, level), list(self.names))

    @cached_property
    def concerns(self) -> tuple[str, ...]:
        """What these draws give reason to look at, the most serious first; empty if they can be used."""
        if not self.n_draws:
            return (*self.sampler_concerns, NO_DRAWS)
        at_bounds = [
            f"{name}: {share:.2g} of its numbers equal a bound of the support after rounding, and its density is cut "
            "off there: sample its unconstrained form"
            for name, share in self.space.measure_share_at_bounds(self.positions).items()
            if share > BOUND_SHARE
        ]
        found = [*self.sampler_concerns, *at_bounds, *self.diagnosis.concerns(self.names)]
        if found and self.zero_density_proposals is not None and self.acceptance is not None:
            share = float(self.zero_density_proposals.sum()) / (self.n_chains * self.n_draws * self.thin)
            if share > ZERO_DENSITY_SHARE:
                found.append(
                    f"{share:.2g} of the proposals end where the density is zero: if values have bounds, pass them as "
                    "support="
                )
        return tuple(found)

    @property
    def sampler_concerns(self) -> tuple[str, ...]:
        """Those about the algorithm, which need no diagnosis."""
        scaled = getattr(self.algorithm, "scale", None) is not None
        is_long = isinstance(self.algorithm, HMC) and self.algorithm.is_long
        may_be_short = not is_long or count_gradients(self.algorithm) > MANY_GRADIENTS
        proposals = find_proposal_concerns(
            self.acceptance, self.nan_proposals, self.positions, self.interrupted, scaled, may_be_short
        )
        return (*find_trajectory_concerns(self.diverging, self.positions, self.algorithm), *proposals)

    @property
    def converged(self) -> bool:
        """Whether there are no concerns; never for one chain."""
        return not self.concerns

    def thin_draws(self, every: int) -> Draws:
        """Every ``every``-th draw."""
        check_integer("every", every, 1)
        if every > self.n_draws:
            raise ValueError(f"every {every}th of {self.n_draws} draws is none")
        diverging = self.diverging
        if diverging is not None:
            diverging = diverging[: self.n_draws // every * every].unflatten(0, (-1, every)).any(1)
        return replace(
            self,
            diverging=diverging,
            positions=self.positions[every - 1 :: every],
            log_density=self.log_density[every - 1 :: every],
            thin=self.thin * every,
        )

    def to_arviz(self) -> Any:
        """The draws as an ArviZ ``DataTree``: a posterior, and log-density and divergences as sample statistics."""
        try:
            from arviz_base import from_dict
        except ImportError as error:
            raise ImportError("to_arviz needs arviz-base: pip install 'boxloop[arviz]'") from error
        if self.n_draws == 0:
            raise ValueError(NO_DRAWS)
        posterior = {name: value.cpu().numpy() for name, value in self.values.items()}
        statistics = {"lp": self.log_density.T.cpu().numpy()}
        if self.diverging is not None:
            statistics["diverging"] = self.diverging.T.cpu().numpy()
        with warnings.catch_warnings():  # of more chains than draws, which is common here
            warnings.filterwarnings("ignore", "Found chain dimension to be longer", UserWarning)
            return from_dict({"posterior": posterior, "sample_stats": statistics})

    def plot(
        self, ax: Axes | None = None, *, name: str | None = None, kind: Literal["trace", "rank"] = "trace"
    ) -> Axes:
        """One number in every chain; the one that mixes worst unless named.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            name: one of ``names``.
            kind: ``trace``, the draws in order; ``rank``, histograms of each chain's ranks among all draws, which are
                uniform when chains agree.
        """
        from boxloop.figures import chain_ranks, chain_traces

        if self.n_draws == 0:
            raise ValueError(NO_DRAWS)
        if name is not None and name not in self.names:
            raise ValueError(f"no number is called {name!r}; the first are {', '.join(self.names[:5])}")
        index = self.diagnosis.worst_index if name is None else self.names.index(name)
        if kind not in ("trace", "rank"):
            raise ValueError(f"kind must be trace or rank, got {kind!r}")
        r_hat = float(self.diagnosis.r_hat[index])
        title = f"{self.names[index]}, R-hat {r_hat:.3f}" if np.isfinite(r_hat) else self.names[index]
        values = self.table[:, :, index]
        if kind == "trace":
            return chain_traces(values, ax, title=title)
        effective = float(self.diagnosis.ess_bulk[index]) / self.n_chains
        return chain_ranks(values, ax, title=title, effective=effective if np.isfinite(effective) else None)

    @property
    def _heading(self) -> str:
        acceptance = "" if self.acceptance is None else f", acceptance {float(self.acceptance.mean()):.2f}"
        return (
            f"{self.n_draws} draws of {self.n_chains} chains after {self.warmup} steps of warm-up, "
            f"{type(self.algorithm).__name__}{acceptance}"
        )

    def __repr__(self) -> str:
        if self.n_draws == 0:
            return self._heading
        found, table, shown = self.diagnosis, self.table, self.names[:SHOWN]
        width = max(len(name) for name in shown)
        lines = [self._heading, f"{'':<{width}} {'mean':>10} {'sd':>9} {'mcse':>8} {'ess':>7} {'R-hat':>6}"]
        for j, name in enumerate(shown):
            column = table[:, :, j]
            with np.errstate(invalid="ignore"):
                sd = float(compute_standard_deviation(column.reshape(-1)))
            lines.append(
                f"{name:<{width}} {column.mean():>10.4g} {sd:>9.3g} {found.mcse[j]:>8.2g} "
                f"{found.ess_bulk[j]:>7.0f} {found.r_hat[j]:>6.3f}"
            )
        if len(self.names) > SHOWN:
            lines.append(f"and {len(self.names) - SHOWN} more")
        return "\n".join([*lines, *(f"! {concern}" for concern in self.concerns)])

    def _repr_html_(self) -> str:
        return format_summary_html(self._heading, self.summary() if self.n_draws else None, self.concerns)


# Summary tables.


def summarise_table(table: Array, diagnosis: Diagnosis, level: float) -> dict[str, list[float]]:
    """Columns of a summary of draws (c, n, p)."""
    check_level(level)
    draws = table.reshape(-1, table.shape[2])
    with np.errstate(invalid="ignore"):  # of draws that are not finite
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        mean, sd = draws.mean(0), compute_standard_deviation(draws)
    columns = {
        "mean": mean,
        "sd": sd,
        "low": low,
        "high": high,
        "mcse": diagnosis.mcse,
        "ess_bulk": diagnosis.ess_bulk,
        "ess_tail": diagnosis.ess_tail,
        "r_hat": diagnosis.r_hat,
    }
    return {name: values.tolist() for name, values in columns.items()}


def compute_standard_deviation(draws: Array) -> Any:
    """Over the first axis; NaN for a single draw."""
    return draws.std(0, ddof=1) if len(draws) > 1 else np.full(draws.shape[1:], np.nan)


@dataclass(frozen=True, eq=False)
class NamedQuantities:
    """Named quantities of c chains of n draws."""

    values: Mapping[str, Tensor]  # each (c, n)
    identification: str  # of all: label-invariant, rotation-invariant, relabelled or aligned

    @cached_property
    def table(self) -> Array:
        """(c, n, p)."""
        return np.asarray(torch.stack(list(self.values.values()), 2).double().cpu().numpy())

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """R-hat, effective sample sizes and Monte Carlo errors."""
        return diagnose(self.table)

    @property
    def concerns(self) -> tuple[str, ...]:
        """What the diagnostics give reason to look at."""
        return self.diagnosis.concerns(tuple(self.values))


def summarise_quantities(parts: Sequence[NamedQuantities], level: float) -> Any:
    """A frame with one row per quantity."""
    columns: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in summarise_table(part.table, part.diagnosis, level).items():
            columns.setdefault(name, []).extend(values)
        columns.setdefault("identification", []).extend([part.identification] * len(part.values))
    return make_frame(columns, [name for part in parts for name in part.values])


def select_spaced_indices(count: int, most: int) -> Tensor:
    """At most ``most`` indices below ``count``, evenly spaced, including the last."""
    step = max(1, -(-count // most))
    return torch.arange(count - 1, -1, -step).flip(0)


def format_summary_html(head: str, frame: Any, concerns: Iterable[str]) -> str:
    """A heading, a table and a list of concerns as HTML, every text escaped."""
    table = "" if frame is None else frame.to_html(float_format=lambda value: f"{value:.4g}", max_rows=24)
    items = "".join(f"<li>{escape(concern)}</li>" for concern in concerns)
    return f"<p>{escape(head)}</p>{table}" + (f"<p>Concerns</p><ul>{items}</ul>" if items else "")
