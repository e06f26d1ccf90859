"""Tables and priors in standard coordinates, and draws back in the units of the rows."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, replace
from os import PathLike

import numpy as np
import torch
from torch import Tensor

from boxloop.chain import Kernel
from boxloop.data import Standardisation, check_choice, fit_standardisation, open_source, summarise_moments
from boxloop.distributions import FactorPrior, MixturePrior, NormalInverseWishart
from boxloop.numeric import RandomState, pack_index, seed
from boxloop.sample.draws import Draws
from boxloop.sample.gibbs_factor import Factors, Scatter, pack_factors, unpack_factors
from boxloop.sample.target import Target
from boxloop.tree import Tree
from boxloop.types import Source


@dataclass(frozen=True, eq=False)
class ModelGibbs:
    """A finished Gibbs kernel as an algorithm: a checkpoint knows it by the rows and the prior it was made of.

    Args:
        made: the kernel.
        digest: of what it was made of.
    """

    made: InitVar[Kernel]
    digest: str

    def __post_init__(self, made: Kernel) -> None:
        object.__setattr__(self, "_made", made)

    def kernel(self, target: Target) -> Kernel:
        """The kernel; it knows its target."""
        return self.__dict__["_made"]


@dataclass(frozen=True, eq=False)
class MixtureTask(Tree):
    """Rows and prior of a mixture, as given and in standard coordinates.

    Args:
        rows: (n, d), in their own units.
        seen: (n, d), standard.
        prior: in the units of the rows.
        standard: the same prior, standard.
        origin: of the standard coordinates, (d,).
        scale: of these, (d,).
        names: of the columns.
    """

    rows: Tensor
    seen: Tensor
    prior: MixturePrior
    standard: MixturePrior
    origin: Tensor
    scale: Tensor
    names: tuple[str, ...]

    @property
    def diagonal(self) -> bool:
        """Whether covariances are diagonal."""
        return not isinstance(self.prior.components, NormalInverseWishart)

    def in_units(self, draws: Draws) -> Draws:
        """Draws of standard coordinates in the units of the rows; their density with respect to these."""
        n, d = self.rows.shape
        k, scale = self.prior.n_components, self.scale
        log_weight, mean, rest = draws.positions.split([k, k * d, draws.positions.shape[-1] - k - k * d], -1)
        mean = (mean.unflatten(-1, (k, d)) * scale + self.origin).flatten(-2)
        rest = rest.unflatten(-1, (k, -1))
        if self.diagonal:
            rest = rest + 2.0 * scale.log()
        else:  # entries of factors are multiplied by the scale of their row, and their diagonal is in logs
            column, row = (index.to(scale.device) for index in pack_index(d))
            rest = torch.where(column == row, rest + scale[row].log(), rest * scale[row])
        # Rows, means and covariances are stretched; variances of independent columns twice, matrices d + 1 times.
        times = n + k * (1 + (2 if self.diagonal else d + 1))
        density = draws.log_density - times * scale.log().sum()
        return replace(
            draws, positions=torch.cat([log_weight, mean, rest.flatten(-2)], -1), log_density=density
        )


@dataclass(frozen=True, eq=False)
class FactorTask(Tree):
    """What factor analysis sees of the rows, and its prior; as for a mixture."""

    seen: Scatter
    prior: FactorPrior
    standard: FactorPrior
    origin: Tensor
    scale: Tensor
    names: tuple[str, ...]

    def in_units(self, draws: Draws) -> Draws:
        """Draws of standard coordinates in the units of the rows; their density with respect to these."""
        mean, loadings, noise = unpack_factors(draws.positions.flatten(0, 1), len(self.names))
        scale = self.scale
        moved = Factors(self.origin + scale * mean, scale[:, None] * loadings, scale.square() * noise)
        times = self.seen.count + 1 + self.prior.n_factors + 2
        density = draws.log_density - times * scale.log().sum()
        return replace(
            draws, positions=pack_factors(moved).reshape(draws.positions.shape), log_density=density
        )


def mixture_task(
    X: object,
    n_components: int,
    covariance: str,
    prior: MixturePrior | None,
    device: torch.device | str | None,
) -> MixtureTask:
    """Read and check a table and the prior of a mixture; see :func:`~boxloop.sample.sample_mixture`."""
    check_choice(covariance, "covariance", ("full", "diag"))
    source = open_source(X)
    if not 1 <= n_components <= source.n_rows:
        raise ValueError(
            f"{n_components} components of {source.n_rows} rows: there must be at least 1, and not more than rows"
        )
    frame = fit_standardisation(source)
    _check_frame(frame, source, known=prior is not None)
    rows = torch.cat([tile.to(torch.float64) for tile, _ in source.chunks()])
    seen = (rows - frame.origin) / frame.scale
    if prior is None:
        zero, spread = torch.zeros_like(frame.origin), seen.mT @ seen / len(seen)
        standard = MixturePrior.around(zero, spread, n_components, diagonal=covariance == "diag")
        prior = standard.affine(frame.origin, frame.scale)
    else:
        _check_prior(prior.n_components, n_components, prior.components.mean.shape[1], source.n_columns)
        standard = prior.affine(-frame.origin / frame.scale, 1.0 / frame.scale)
    return MixtureTask(rows, seen, prior, standard, frame.origin, frame.scale, source.names).to(device)


def factor_task(
    X: object, n_factors: int, prior: FactorPrior | None, device: torch.device | str | None
) -> FactorTask:
    """Read and check a table and the prior of factor analysis; see :func:`~boxloop.sample.sample_factors`."""
    source = open_source(X)
    d = source.n_columns
    if not 1 <= n_factors <= d:
        raise ValueError(
            f"{n_factors} factors of {d} columns: there must be at least 1, and not more than columns"
        )
    if source.n_rows < 2:
        raise ValueError(f"factor analysis needs at least 2 rows, got {source.n_rows} sample")
    found = summarise_moments(source)
    frame = fit_standardisation(source) if found is None else found.frame
    _check_frame(frame, source, known=prior is not None)
    if found is None:
        raise ValueError(f"{d} columns are too many for a covariance matrix")
    unit = found.scale / frame.scale
    zero = torch.zeros_like(frame.origin)
    seen = Scatter.of(zero, unit[:, None] * found.covariance * unit, source.n_rows)
    if prior is None:
        standard = FactorPrior.around(zero, torch.ones_like(zero), n_factors)
        prior = standard.affine(frame.origin, frame.scale)
    else:
        _check_prior(prior.n_factors, n_factors, prior.centre.shape[0], d)
        standard = prior.affine(-frame.origin / frame.scale, 1.0 / frame.scale)
    return FactorTask(seen, prior, standard, frame.origin, frame.scale, source.names).to(device)


def first_seed(random_state: RandomState, checkpoint: str | PathLike[str] | None) -> int:
    """The seed of starts and chains; with a checkpoint it must be known."""
    if checkpoint is not None and not isinstance(random_state, int | np.integer):
        raise ValueError("a checkpoint needs an integer random_state: the same start must be drawn again")
    return seed(random_state)


def _check_frame(frame: Standardisation, source: Source, *, known: bool) -> None:
    if frame.weight != source.n_rows:
        raise ValueError("rows with weights have no posterior of this kind: repeat rows instead")
    if frame.missing:
        gap = source.names[int((frame.observed < frame.weight).nonzero()[0])]
        raise ValueError(f"column {gap!r} has missing values: fill them in, or leave out its rows")
    if not known and bool(frame.constant.any()):
        flat = source.names[int(frame.constant.nonzero()[0])]
        raise ValueError(
            f"column {flat!r} is constant, so that no prior follows from it: leave it out, or pass prior="
        )


def _check_prior(k: int, wanted: int, d: int, columns: int) -> None:
    if (k, d) != (wanted, columns):
        raise ValueError(f"the prior is for {k} of them and {d} columns, not for {wanted} and {columns}")
