"""What the posteriors by Gibbs sampling share: checks of rows and prior, the run, and the printed form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.chain import Kernel
from boxloop.data import Standardisation, fingerprint_values
from boxloop.numeric import RandomState, SingleThreaded, generator, seed
from boxloop.sample.draws import Draws, NamedQuantities, format_summary_html, select_spaced_indices
from boxloop.sample.sampler import sample_density
from boxloop.sample.target import Target
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class FixedKernel:
    """A kernel as an algorithm, which a checkpoint identifies by the rows and the prior behind it."""

    sweep: Kernel
    digest: str

    def kernel(self, target: Target) -> Kernel:
        """The kernel, whatever the target."""
        return self.sweep


def start_generator(
    random_state: RandomState, checkpoint: str | PathLike[str] | None, device: torch.device
) -> Generator:
    """The stream of starts and chains; with a checkpoint it must have a seed."""
    if checkpoint is not None and not isinstance(random_state, int | np.integer):
        raise ValueError("a checkpoint needs an integer random_state: the same start must be drawn again")
    return generator(seed(random_state), device)


def run_gibbs(
    kernel: Kernel, start: dict[str, Tensor], known: Iterable[object], stream: Generator, **options: Any
) -> Draws:
    """Draws of a kernel that is identified by what is ``known``: the rows and the prior."""
    algorithm = FixedKernel(kernel, fingerprint_values(*known))
    return sample_density(None, start, algorithm, random_state=seed(stream), **options)


def check_rows(frame: Standardisation, source: Source, *, has_prior: bool) -> None:
    """Refuse weights, missing values and, without a prior, constant columns."""
    if frame.weight != source.n_rows:
        raise ValueError("Gibbs sampling takes no sample weights: repeat rows instead")
    if frame.missing:
        column = source.names[int((frame.observed < frame.weight).nonzero()[0])]
        raise ValueError(f"column {column!r} has missing values: impute them, or leave out its rows")
    if not has_prior and bool(frame.constant.any()):
        column = source.names[int(frame.constant.nonzero()[0])]
        raise ValueError(
            f"column {column!r} is constant, so that no default prior follows from it: leave it out, or pass prior="
        )


def check_prior(what: str, k: int, expected: int, d: int, columns: int) -> None:
    """Refuse a prior of other dimensions."""
    if (k, d) != (expected, columns):
        raise ValueError(f"prior is for {k} {what} and {d} columns; expected {expected} and {columns}")


@dataclass(frozen=True, eq=False, repr=False)
class GibbsPosterior(SingleThreaded):
    """Draws of a model whose parameters are identified up to a symmetry: of labels, or of rotations."""

    draws: Draws

    @cached_property
    def invariant(self) -> NamedQuantities:
        """Quantities that the symmetry does not change."""
        raise NotImplementedError

    def summary(self, level: float = 0.95) -> Any:
        """A frame with one row per quantity."""
        raise NotImplementedError

    @cached_property
    def concerns(self) -> tuple[str, ...]:
        """What these draws give reason to look at, by invariant quantities; empty if they can be used."""
        return (*self.draws.sampler_concerns, *(self.invariant.concerns if self.draws.n_draws else ()))

    @property
    def converged(self) -> bool:
        """Whether there are no concerns; never for one chain."""
        return not self.concerns

    @property
    def _heading(self) -> str:
        raise NotImplementedError

    @property
    def _symmetry(self) -> str:
        """How the symmetry was removed."""
        raise NotImplementedError

    @property
    def _positions(self) -> Tensor:
        """All draws, (c n, p)."""
        return self.draws.positions.transpose(0, 1).flatten(0, 1)

    def _select_positions(self, draws: int) -> Tensor:
        """At most ``draws`` of all draws, evenly spaced."""
        positions = self._positions
        return positions[select_spaced_indices(len(positions), draws).to(positions.device)]

    def _plot_log_density(self, ax: Axes | None) -> Axes:
        from boxloop.figures import chain_traces

        values = self.draws.log_density.T.double().cpu().numpy()
        return chain_traces(values, ax, title=f"log-density ({self.invariant.identification})")

    def __repr__(self) -> str:
        lines = [self._heading]
        if self.draws.n_draws:
            table = self.summary()[["mean", "sd", "ess_bulk", "r_hat", "identification"]]
            text = table.to_string(float_format=lambda value: f"{value:.4g}", max_rows=24)
            lines += [text, self._symmetry]
        return "\n".join([*lines, *(f"! {concern}" for concern in self.concerns)])

    def _repr_html_(self) -> str:
        if not self.draws.n_draws:
            return format_summary_html(self._heading, None, self.concerns)
        return format_summary_html(f"{self._heading}. {self._symmetry}", self.summary(), self.concerns)
