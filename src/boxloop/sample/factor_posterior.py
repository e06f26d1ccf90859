r"""The posterior of factor analysis by Gibbs sampling: draws, aligned loadings, and what they say about columns.

The likelihood and the prior of factor analysis do not change when factors are rotated. So the mean of loadings over
draws is near zero whatever the data; only :math:`F F^\top`, communalities and noise can be averaged as drawn. Loadings
are aligned first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from boxloop.data import check_choice, fit_standardisation, open_source, summarise_moments
from boxloop.distributions import FactorPrior, FullGaussian
from boxloop.loop import Observer
from boxloop.models import Mixture
from boxloop.numeric import RandomState, single_threaded, varimax
from boxloop.sample.draws import NO_DRAWS, Draws, NamedQuantities, summarise_quantities
from boxloop.sample.gibbs_posterior import GibbsPosterior, check_prior, check_rows, run_gibbs, start_generator
from boxloop.sample.kernels.factor_gibbs import (
    FactorParameters,
    ScatterStatistics,
    make_factor_kernel,
    pack_factors,
    start_factors,
    unpack_factors,
)
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ITER = 100
"""Most iterations of the alignment."""

TOLERANCE = 1e-8
"""Change of the mean loadings, in units of their size, at which the alignment has converged."""


@single_threaded
def sample_factors(
    X: object,
    n_factors: int,
    *,
    prior: FactorPrior | None = None,
    chains: int = 4,
    draws: int = 1000,
    warmup: int = 500,
    thin: int = 1,
    random_state: RandomState = None,
    device: torch.device | str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    verbose: bool | None = False,
    observers: Sequence[Observer[Any]] = (),
) -> FactorPosterior:
    r"""Draw the parameters of factor analysis from their posterior, by Gibbs sampling with many chains at once.

    .. math:: x = c + F z + \epsilon, \quad F_{jl} \sim N(0, t_j), \quad \psi_j \sim \mathrm{IG}(a_j, b_j), \quad
              c_j \sim N(m_j, s_j)

    One pass over the rows takes their mean and covariance; the cost of a step does not depend on the number of rows.
    Rotations of the factors are not identified: ``summary()`` marks each quantity as rotation-invariant or aligned.

    Reference:
        Lopes and West (2004), *Statistica Sinica* 14; see :mod:`boxloop.sample.kernels.factor_gibbs` for the moves.

    Args:
        X: any table without missing values, see :func:`boxloop.data.open_source`.
        n_factors: k, at most the number of columns.
        prior: in the units of the rows. When omitted, :meth:`~boxloop.distributions.priors.FactorPrior.from_moments`
            the mean and the variances v of the rows: :math:`t_j = v_j`, :math:`\psi_j \sim \mathrm{IG}(3/2, v_j/4)`,
            :math:`s_j = 100 v_j`.
        chains: number of chains, from dispersed loadings.
        draws: of each chain.
        warmup: steps of each chain before the first draw.
        thin: steps from one draw to the next.
        random_state: seed or generator.
        device: of the chains.
        checkpoint: a file to save the chains to, and to resume from if it exists; it needs an integer
            ``random_state``.
        verbose: show progress; None shows it in a terminal.
        observers: of the loop.

    Returns:
        :class:`~boxloop.sample.FactorPosterior`: ``summary()``, ``covariance``, ``communalities``, ``noise``,
        ``loadings`` (aligned), ``alignment``, ``predictive()``, ``plot()``, ``concerns``; ``draws`` before alignment.

    Raises:
        ValueError: a missing or infinite value, more factors than columns, a constant column without a prior.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 1)) * [1.0, 2.0, 0.5] + rng.normal(size=(300, 3))
        >>> posterior = sample_factors(X, 1, draws=300, random_state=0)
        >>> posterior.communalities.mean((0, 1)).round(decimals=1).tolist()
        [0.6, 0.8, 0.2]
    """
    problem = _FactorData.from_table(X, n_factors, prior, device)
    stream = start_generator(random_state, checkpoint, problem.origin.device)
    first = unpack_factors(start_factors(problem.standard_prior, chains, stream), len(problem.names))
    kernel = make_factor_kernel(problem.rows, problem.standard_prior)
    found = run_gibbs(
        kernel,
        {"mean": first.mean, "loadings": first.loadings, "log_noise": first.noise.log()},
        (*problem.rows.leaves(), *problem.standard_prior.leaves()),
        stream,
        draws=draws,
        warmup=warmup,
        thin=thin,
        checkpoint=checkpoint,
        verbose=verbose,
        observers=observers,
    )
    return FactorPosterior(problem.to_data_units(found), problem.prior, problem.rows.count, problem.names)


@dataclass(frozen=True, eq=False)
class _FactorData(Tree):
    """Statistics of the rows and the prior, in standard coordinates and in the units of the rows."""

    rows: ScatterStatistics
    prior: FactorPrior
    standard_prior: FactorPrior
    origin: Tensor
    scale: Tensor
    names: tuple[str, ...]

    @classmethod
    def from_table(
        cls, X: object, n_factors: int, prior: FactorPrior | None, device: torch.device | str | None
    ) -> _FactorData:
        """Read and check a table and a prior."""
        source = open_source(X)
        d = source.n_columns
        if not 1 <= n_factors <= d:
            raise ValueError(
                f"{n_factors} factors of {d} columns: there must be at least 1, and not more than columns"
            )
        if source.n_rows < 2:
            raise ValueError(f"factor analysis needs at least 2 rows, got {source.n_rows} sample")
        moments = summarise_moments(source)
        frame = fit_standardisation(source) if moments is None else moments.frame
        check_rows(frame, source, has_prior=prior is not None)
        if moments is None:
            raise ValueError(f"{d} columns are too many for a covariance matrix")
        origin, scale = frame.origin, frame.scale
        unit = moments.scale / scale
        zero = torch.zeros_like(origin)
        rows = ScatterStatistics.from_covariance(
            zero, unit[:, None] * moments.covariance * unit, source.n_rows
        )
        if prior is None:
            standard = FactorPrior.from_moments(zero, torch.ones_like(zero), n_factors)
            prior = standard.affine(origin, scale)
        else:
            check_prior("factors", prior.n_factors, n_factors, prior.centre.shape[0], d)
            standard = prior.affine(-origin / scale, 1.0 / scale)
        return cls(rows, prior, standard, origin, scale, source.names).to(device)

    def to_data_units(self, draws: Draws) -> Draws:
        """Draws in standard coordinates in the units of the rows; their density with respect to these."""
        mean, loadings, noise = unpack_factors(draws.positions.flatten(0, 1), len(self.names))
        scale = self.scale
        rescaled = FactorParameters(
            self.origin + scale * mean, scale[:, None] * loadings, scale.square() * noise
        )
        times = self.rows.count + 1 + self.prior.n_factors + 2
        density = draws.log_density - times * scale.log().sum()
        positions = pack_factors(rescaled).reshape(draws.positions.shape)
        return replace(draws, positions=positions, log_density=density)


@dataclass(frozen=True, eq=False, repr=False)
class FactorPosterior(GibbsPosterior):
    """Draws of factor analysis, see :func:`~boxloop.sample.sample_factors`.

    The factors of a draw may be rotated against those of the next. ``draws["loadings"]`` are as drawn; ``alignment``
    rotates them to common axes.

    Args:
        draws: in the units of the rows; values are ``mean``, ``loadings`` and ``log_noise``.
        prior: in the units of the rows.
        n_rows: n.
        names: of the columns.
    """

    prior: FactorPrior
    n_rows: int
    names: tuple[str, ...]

    @property
    def mean(self) -> Tensor:
        """(c, n, d)."""
        return self.draws["mean"]

    @property
    def noise(self) -> Tensor:
        """Noise variance of each column, (c, n, d)."""
        return self.draws["log_noise"].exp()

    @property
    def communalities(self) -> Tensor:
        r"""Share of each column's variance that is due to factors, (c, n, d). Rotation-invariant.

        .. math:: h_j = \sum_l F_{jl}^2 \Big/ \Big(\sum_l F_{jl}^2 + \psi_j\Big)
        """
        common = self.draws["loadings"].square().sum(-1)
        return common / (common + self.noise)

    @property
    def covariance(self) -> Tensor:
        r"""Posterior mean of :math:`F F^\top + \Psi`, (d, d). Rotation-invariant."""
        flat = self.draws["loadings"].flatten(0, 1)
        wide = flat.transpose(0, 1).flatten(1)
        return wide @ wide.mT / len(flat) + torch.diag(self.noise.mean((0, 1)))

    @cached_property
    def alignment(self) -> AlignedLoadings:
        """Loadings of all draws on common axes, (c, n, d, k), and how well they agree."""
        pivot = int(self.draws.log_density.T.flatten().argmax())
        return align_loadings(self.draws["loadings"], pivot, self.covariance.diagonal().sqrt())

    @property
    def loadings(self) -> Tensor:
        """Aligned, (c, n, d, k)."""
        return self.alignment.loadings

    def summary(self, level: float = 0.95) -> Any:
        """A frame with one row per quantity.

        Rotation-invariant are the log-density and the mean, noise and communality of every column; loadings are
        aligned. The column ``identification`` says which.

        Args:
            level: of the central interval from ``low`` to ``high``.
        """
        if self.draws.n_draws == 0:
            raise ValueError(NO_DRAWS)
        return summarise_quantities([self.invariant, self.aligned], level)

    def predictive(self, draws: int = 100) -> Mixture[Any]:
        r"""The posterior predictive distribution as a mixture of Gaussians. Rotation-invariant.

        .. math:: p(x_{new} \mid x) \approx \frac1S \sum_s N(x_{new}; c^{(s)}, F^{(s)} F^{(s)\top} + \Psi^{(s)})

        Args:
            draws: S, evenly spaced in all chains; each is a full d x d covariance.
        """
        mean, loadings, noise = unpack_factors(self._select_positions(draws), len(self.names))
        family = FullGaussian.from_covariance(mean, loadings @ loadings.mT + torch.diag_embed(noise))
        return Mixture(mean.new_zeros(len(mean)).log_softmax(0), family)

    def plot(self, ax: Axes | None = None, *, kind: Literal["loadings", "trace"] = "loadings") -> Axes:
        """Aligned loadings with bars of two posterior standard deviations, or the trace of the log-density.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            kind: ``loadings`` are aligned; ``trace`` is rotation-invariant.
        """
        from boxloop.figures import loadings

        check_choice(kind, "kind", ("loadings", "trace"))
        if kind == "trace":
            return self._plot_log_density(ax)
        flat = self.loadings.flatten(0, 1).double() / self.covariance.diagonal().sqrt()[:, None]
        return loadings(
            flat.mean(0).mT.cpu().numpy(),
            self.names,
            flat.std(0).mT.cpu().numpy(),
            ax,
            title="Loadings (aligned over draws)",
            across="in units of a column's standard deviation (bars: 2 posterior standard deviations)",
        )

    @cached_property
    def invariant(self) -> NamedQuantities:
        """Rotation-invariant quantities: log-density, and mean, noise and communality of every column."""
        quantities = {"log_density": self.draws.log_density.T}
        for word, values in (("mean", self.mean), ("noise", self.noise), ("communality", self.communalities)):
            quantities |= {f"{word}[{name}]": values[..., j] for j, name in enumerate(self.names)}
        return NamedQuantities(quantities, "rotation-invariant")

    @cached_property
    def aligned(self) -> NamedQuantities:
        """Aligned loadings."""
        loadings = self.loadings
        values = {
            f"loading[{name}, {f}]": loadings[..., j, f]
            for j, name in enumerate(self.names)
            for f in range(self.prior.n_factors)
        }
        return NamedQuantities(values, "aligned")

    @property
    def _heading(self) -> str:
        return (
            f"factor analysis of {len(self.names)} columns, {self.prior.n_factors} factors, {self.n_rows} rows: "
            f"{self.draws.n_draws} draws of {self.draws.n_chains} chains"
        )

    @property
    def _symmetry(self) -> str:
        return f"Rotation: {self.alignment}"


@dataclass(frozen=True, eq=False)
class AlignedLoadings:
    """Loadings of all draws on common axes."""

    loadings: Tensor  # (c, n, d, k)
    agreement: float  # share of the squared loadings that remains in the square of their mean
    agreement_before: float  # the same share before alignment

    def __str__(self) -> str:
        return (
            "rotations of the factors are not identified; draws were aligned to a common mean (orthogonal Procrustes), "
            f"rotated by varimax. The mean has {100 * self.agreement:.0f}% of the squared loadings, "
            f"{100 * self.agreement_before:.0f}% before alignment"
        )


def align_loadings(loadings: Tensor, pivot: int = 0, unit: Tensor | None = None) -> AlignedLoadings:
    r"""Rotate every draw of loadings towards their mean, and the mean by varimax.

    .. math:: \min_{M, R_s} \sum_s \| F_s R_s - M \|^2, \qquad R_s R_s^\top = I

    In turn M, at first the draw ``pivot``, is the mean of the rotated draws, and :math:`R_s = U V^\top` with
    :math:`F_s^\top M = U D V^\top` (Gower 1975). At the end the mean is rotated by varimax, its factors ordered by
    size, their largest loading positive. Alignment can make weak loadings look more certain than they are.
    """
    c, n, d, k = loadings.shape
    scale = loadings.new_ones(d) if unit is None else unit
    flat = (loadings / scale[:, None]).reshape(c * n, d, k)
    size = flat.square().sum((1, 2)).mean().clamp(min=1e-300)
    before_alignment = float(flat.mean(0).square().sum() / size)
    centre, rotated = flat[pivot], flat
    for _ in range(MAX_ITER):
        left, _, right = torch.linalg.svd(flat.mT @ centre, full_matrices=False)
        rotated = flat @ (left @ right)
        previous, centre = centre, rotated.mean(0)
        if float((centre - previous).square().sum()) <= TOLERANCE**2 * float(size):
            break
    agreement = float(centre.square().sum() / size)
    axes = varimax(centre)
    aligned = (rotated @ axes) * scale[:, None]
    return AlignedLoadings(aligned.reshape(c, n, d, k), agreement, before_alignment)
