"""The posterior of factor analysis as draws, and what they say about columns and factors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from boxloop.data import check_choice
from boxloop.distributions import FactorPrior, FullGaussian
from boxloop.models import Mixture
from boxloop.numeric import SingleThreaded
from boxloop.sample.draws import Draws
from boxloop.sample.gibbs_factor import unpack_factors
from boxloop.sample.lines import FREE, Lines, evenly, summary_frame
from boxloop.sample.rotation import Alignment, align

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class FactorPosterior(SingleThreaded):
    """Draws of factor analysis, see :func:`~boxloop.sample.sample_factors`.

    The factors of a draw may be rotated against those of the next. ``draws["loadings"]`` are as the chains left them;
    ``alignment`` turns them to common axes, and says so.

    Args:
        draws: in the units of the rows; values are ``mean``, ``loadings`` and ``log_noise``.
        prior: in the units of the rows.
        n_rows: n.
        names: of the columns.
    """

    draws: Draws
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
        r"""Share of each column's variance that is due to factors, (c, n, d). Free of rotation.

        .. math:: h_j = \sum_l F_{jl}^2 \Big/ \Big(\sum_l F_{jl}^2 + \psi_j\Big)
        """
        common = self.draws["loadings"].square().sum(-1)
        return common / (common + self.noise)

    @property
    def covariance(self) -> Tensor:
        r"""Posterior mean of :math:`F F^\top + \Psi`, (d, d). Free of rotation."""
        flat = self.draws["loadings"].flatten(0, 1)
        wide = flat.transpose(0, 1).flatten(1)
        return wide @ wide.mT / len(flat) + torch.diag(self.noise.mean((0, 1)))

    @cached_property
    def alignment(self) -> Alignment:
        """Loadings of all draws on common axes, (c, n, d, k); it says how."""
        pivot = int(self.draws.log_density.T.flatten().argmax())
        return align(self.draws["loadings"], pivot, self.covariance.diagonal().sqrt())

    @property
    def loadings(self) -> Tensor:
        """Aligned, (c, n, d, k)."""
        return self.alignment.loadings

    def summary(self, level: float = 0.95) -> Any:
        """One line a number, as a frame; the column ``labels`` says ``free`` or ``aligned``.

        Free of rotation are the log-density and the mean, noise and communality of every column. Loadings are aligned.

        Args:
            level: of the central interval from ``low`` to ``high``.
        """
        if self.draws.n_draws == 0:
            raise ValueError("there are no draws: sampling was interrupted in warm-up")
        return summary_frame([self._free, self._aligned], level)

    def predictive(self, draws: int = 100) -> Mixture[Any]:
        r"""The posterior predictive law as a mixture of Gaussians. Free of rotation.

        .. math:: p(x_{new} \mid x) \approx \frac1S \sum_s N(x_{new}; c^{(s)}, F^{(s)} F^{(s)\top} + \Psi^{(s)})

        Args:
            draws: S, taken evenly from all chains; each is a full d x d covariance.
        """
        flat = self.draws.positions.transpose(0, 1).flatten(0, 1)
        mean, loadings, noise = unpack_factors(
            flat[evenly(len(flat), draws).to(flat.device)], len(self.names)
        )
        family = FullGaussian.of(mean, loadings @ loadings.mT + torch.diag_embed(noise))
        return Mixture(mean.new_zeros(len(mean)).log_softmax(0), family)

    @cached_property
    def worries(self) -> tuple[str, ...]:
        """What speaks against these draws, told from numbers that are free of rotation."""
        return (*self.draws.faults, *(self._free.worries() if self.draws.n_draws else ()))

    @property
    def converged(self) -> bool:
        """Whether there is nothing to worry about; never for one chain."""
        return not self.worries

    def plot(self, ax: Axes | None = None, *, kind: Literal["loadings", "trace"] = "loadings") -> Axes:
        """Aligned loadings with bars of two posterior standard deviations, or the trace of the log-density.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            kind: ``loadings`` are aligned; ``trace`` is free of rotation.
        """
        from boxloop.figures import chain_traces, loadings

        check_choice(kind, "kind", ("loadings", "trace"))
        if kind == "trace":
            table = self.draws.log_density.T.double().cpu().numpy()
            return chain_traces(table, ax, title="log-density (free of rotation)")
        flat = self.loadings.flatten(0, 1).double() / self.covariance.diagonal().sqrt()[:, None]
        title = "Loadings (aligned over draws)"
        return loadings(
            flat.mean(0).mT.cpu().numpy(),
            self.names,
            flat.std(0).mT.cpu().numpy(),
            ax,
            title=title,
            across="in units of a column's deviation (bars: 2 posterior standard deviations)",
        )

    @cached_property
    def _free(self) -> Lines:
        lines = {"log_density": self.draws.log_density.T}
        for word, values in (("mean", self.mean), ("noise", self.noise), ("communality", self.communalities)):
            lines |= {f"{word}[{name}]": values[..., j] for j, name in enumerate(self.names)}
        return Lines(lines, FREE)

    @cached_property
    def _aligned(self) -> Lines:
        found = self.loadings
        lines = {
            f"loading[{name}, {f}]": found[..., j, f]
            for j, name in enumerate(self.names)
            for f in range(self.prior.n_factors)
        }
        return Lines(lines, "aligned")

    def __repr__(self) -> str:
        lines = [
            f"factor analysis of {len(self.names)} columns, {self.prior.n_factors} factors, {self.n_rows} rows: "
            f"{self.draws.n_draws} draws of {self.draws.n_chains} chains"
        ]
        if self.draws.n_draws:
            table = self.summary()[["mean", "sd", "ess_bulk", "r_hat", "labels"]]
            lines += [
                str(self.alignment),
                table.to_string(float_format=lambda value: f"{value:.4g}", max_rows=24),
            ]
        return "\n".join([*lines, *(f"! {worry}" for worry in self.worries)])
