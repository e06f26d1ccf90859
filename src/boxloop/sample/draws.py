"""Draws of chains, with what they say about themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import check_level, make_frame
from boxloop.sample.diagnostics import Diagnosis, diagnose, find_faults
from boxloop.sample.hmc import HMC
from boxloop.sample.space import Space
from boxloop.sample.start import check_whole
from boxloop.sample.trajectories import MANY_GRADIENTS, count_gradients, find_trajectory_concerns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SHOWN = 20

BLURRED = 1e-5
"""Share of numbers at a bound above which a density is cut off there: one that is bounded has almost none."""

WALLS = 0.01
"""Share of moves into density zero that explains why chains do not agree."""

NONE = "there are no draws: sampling was interrupted in warm-up"


class SampleWarning(UserWarning):
    """Something about the chains that a reader of their draws should know."""


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """Draws of c chains, n each, after warm-up.

    Args:
        positions: unconstrained vectors, (n, c, d).
        log_density: of them, (n, c).
        space: how they are read as values.
        algorithm: that made them, as tuned.
        acceptance: mean chance of acceptance of each chain, (c,); None for one that refuses nothing.
        refused: proposals of each chain whose ratio was not a number, (c,).
        warmup: steps before the first draw.
        thin: steps from one draw to the next.
        superchains: number of distinct starts, where chains share them.
        events: what happened on the way.
        interrupted: whether Ctrl-C ended it early.
        outside: proposals of each chain whose density was zero, (c,), where they were counted.
        diverging: whether a trajectory diverged on the way to each draw, (n, c); None without trajectories.

    Example:
        >>> import torch
        >>> from boxloop.sample import sample
        >>> draws = sample(lambda x: -0.5 * (x * x).sum(1), torch.zeros(2), chains=4, random_state=0)
        >>> draws["x"].shape
        torch.Size([4, 1000, 2])
        >>> draws.summary().columns.tolist()
        ['mean', 'sd', 'low', 'high', 'mcse', 'ess_bulk', 'ess_tail', 'r_hat']
        >>> draws.converged
        True
    """

    positions: Tensor
    log_density: Tensor
    space: Space
    algorithm: Any
    acceptance: Tensor | None
    refused: Tensor
    warmup: int
    thin: int = 1
    superchains: int | None = None
    events: tuple[str, ...] = ()
    interrupted: bool = False
    outside: Tensor | None = None
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
        """Draws of each chain with a diverging trajectory on their way, (c,); None without trajectories.

        The error of the energy of such a trajectory exceeds 1000: the density bends more sharply than its steps can
        follow, and draws miss that place.
        """
        return None if self.diverging is None else self.diverging.sum(0)

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Each named value, (c, n, ...), with its constraints."""
        return self.space.unpack(self.positions.transpose(0, 1))[0]

    def __getitem__(self, name: str) -> Tensor:
        """One value, (c, n, ...); ``"x"`` where values have no names."""
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.space.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """One for each number."""
        return self.space.names

    @property
    def table(self) -> NDArray[np.float64]:
        """Every number of the values, (c, n, numbers), in the order of ``names``."""
        parts = [value.flatten(2) if value.dim() > 2 else value[..., None] for value in self.values.values()]
        return torch.cat(parts, 2).double().cpu().numpy()

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """R-hat, effective draws and Monte Carlo errors of every number."""
        return diagnose(self.table, self.superchains, self.space.fixed(self.positions).cpu().numpy())

    def summary(self, level: float = 0.95) -> Any:
        """One line a number, as a frame.

        Args:
            level: of the central interval from ``low`` to ``high``.

        Returns:
            Mean, standard deviation, interval, Monte Carlo error of the mean, effective draws in the bulk and in the
            tails, and R-hat (rank-normalised and split; nested where chains share starts). A number that is not
            finite in every draw, constant in a chain, or fixed by its support, has NaN for them.
        """
        check_level(level)
        if self.n_draws == 0:
            raise ValueError(NONE)
        table = self.table.reshape(-1, self.table.shape[2])
        with np.errstate(invalid="ignore"):  # of draws that are not finite
            low, high = np.quantile(table, [0.5 - level / 2, 0.5 + level / 2], axis=0)
            mean, deviation = table.mean(0), _deviation(table)
        found = self.diagnosis
        columns = {
            "mean": mean,
            "sd": deviation,
            "low": low,
            "high": high,
            "mcse": found.mcse,
            "ess_bulk": found.ess_bulk,
            "ess_tail": found.ess_tail,
            "r_hat": found.r_hat,
        }
        return make_frame({name: values.tolist() for name, values in columns.items()}, list(self.names))

    @cached_property
    def worries(self) -> tuple[str, ...]:
        """What speaks against these draws, worst first; none when they can be used."""
        if not self.n_draws:
            return (*self.faults, NONE)
        near = {name: share for name, share in self.space.blurred(self.positions).items() if share > BLURRED}
        cut = [
            f"{name}: {share:.2g} of its numbers are at a bound of the support as far as rounding tells, and its "
            "density is cut off there: sample its unconstrained form"
            for name, share in near.items()
        ]
        found = (*self.faults, *cut, *self.diagnosis.worries(self.names))
        return (*found, *self._walls()) if found else ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Worries that need no diagnosis: what the algorithm itself met."""
        scaled = getattr(self.algorithm, "scale", None) is not None
        far = isinstance(self.algorithm, HMC) and self.algorithm.goes_far
        short = not far or count_gradients(self.algorithm) > MANY_GRADIENTS
        found = find_faults(self.acceptance, self.refused, self.positions, self.interrupted, scaled, short)
        return (*find_trajectory_concerns(self.diverging, self.positions, self.algorithm), *found)

    @property
    def converged(self) -> bool:
        """Whether there is nothing to worry about; never for one chain."""
        return not self.worries

    def thinned(self, every: int) -> Draws:
        """Every so many-th draw."""
        check_whole("every", every, 1)
        if every > self.n_draws:
            raise ValueError(f"every {every}th of {self.n_draws} draws is none")
        whole = self.n_draws // every * every
        return replace(
            self,
            diverging=None
            if self.diverging is None
            else self.diverging[:whole].unflatten(0, (-1, every)).any(1),
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
            raise ValueError(NONE)
        posterior = {name: value.cpu().numpy() for name, value in self.values.items()}
        statistics = {"lp": self.log_density.T.cpu().numpy()}
        if self.diverging is not None:
            statistics["diverging"] = self.diverging.T.cpu().numpy()
        with warnings.catch_warnings():  # of more chains than draws, which is how many chains are run
            warnings.filterwarnings("ignore", "Found chain dimension to be longer", UserWarning)
            return from_dict({"posterior": posterior, "sample_stats": statistics})

    def plot(
        self, ax: Axes | None = None, *, name: str | None = None, kind: Literal["trace", "rank"] = "trace"
    ) -> Axes:
        """One number in every chain; the one that mixes worst unless named.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            name: one of ``names``.
            kind: ``trace``, the draws in order; ``rank``, how often each chain has each rank among all draws, which is
                even when chains agree.
        """
        from boxloop.figures import chain_ranks, chain_traces

        if self.n_draws == 0:
            raise ValueError(NONE)
        place = self.diagnosis.worst if name is None else self._place(name)
        if kind not in ("trace", "rank"):
            raise ValueError(f"kind must be trace or rank, got {kind!r}")
        r_hat = float(self.diagnosis.r_hat[place])
        title = f"{self.names[place]}, R-hat {r_hat:.3f}" if np.isfinite(r_hat) else self.names[place]
        values = self.table[:, :, place]
        if kind == "trace":
            return chain_traces(values, ax, title=title)
        effective = float(self.diagnosis.ess_bulk[place]) / self.n_chains
        return chain_ranks(values, ax, title=title, effective=effective if np.isfinite(effective) else None)

    def _walls(self) -> list[str]:
        """What to do where moves end beyond bounds that nobody has told."""
        if self.outside is None or self.acceptance is None:
            return []
        share = float(self.outside.sum()) / (self.n_chains * self.n_draws * self.thin)
        said = f"{share:.2g} of the moves end where the density is zero: if values have bounds, name them by support="
        return [said] if share > WALLS else []

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"no number is called {name!r}; the first are {', '.join(self.names[:5])}")
        return self.names.index(name)

    def __repr__(self) -> str:
        accepted = "" if self.acceptance is None else f", acceptance {float(self.acceptance.mean()):.2f}"
        head = (
            f"{self.n_draws} draws of {self.n_chains} chains after {self.warmup} steps of warm-up, "
            f"{type(self.algorithm).__name__}{accepted}"
        )
        if self.n_draws == 0:
            return head
        lines = [head, *str(_shown(self)).splitlines()]
        if len(self.names) > MOST_SHOWN:
            lines.append(f"and {len(self.names) - MOST_SHOWN} more")
        return "\n".join([*lines, *(f"! {worry}" for worry in self.worries)])


def _deviation(table: NDArray[np.float64]) -> Any:
    """Of rows; one alone has none."""
    return table.std(0, ddof=1) if len(table) > 1 else np.full(table.shape[1:], np.nan)


def _shown(draws: Draws) -> str:
    found, table = draws.diagnosis, draws.table
    width = max(len(name) for name in draws.names[:MOST_SHOWN])
    lines = [f"{'':<{width}} {'mean':>10} {'sd':>9} {'mcse':>8} {'ess':>7} {'R-hat':>6}"]
    for j, name in enumerate(draws.names[:MOST_SHOWN]):
        column = table[:, :, j]
        with np.errstate(invalid="ignore"):
            deviation = float(_deviation(column.reshape(-1)))
        lines.append(
            f"{name:<{width}} {column.mean():>10.4g} {deviation:>9.3g} {found.mcse[j]:>8.2g} "
            f"{found.ess_bulk[j]:>7.0f} {found.r_hat[j]:>6.3f}"
        )
    return "\n".join(lines)
