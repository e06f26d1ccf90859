"""The posterior of a Gaussian mixture as draws, and what they say about rows and components."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from boxloop.data import check_choice, open_source
from boxloop.distributions import Component, MixturePrior, NormalInverseWishart
from boxloop.models import Mixture
from boxloop.numeric import SingleThreaded, generator
from boxloop.sample.draws import Draws
from boxloop.sample.gibbs_mixture import MixtureRows, unpack_mixture
from boxloop.sample.labels import (
    BLOCK,
    Relabelling,
    allocations,
    blocks_of_draws,
    count_occupied,
    relabel,
    similarity_matrix,
)
from boxloop.sample.lines import FREE, Lines, evenly, summary_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL_ROWS = 500
"""Rows on which draws agree about components."""

LABEL_VALUES = 1 << 26
"""Probabilities of components that relabelling holds, in float32."""

COUNTED = 250
"""Draws a chain in which occupied components are counted."""

PAIRED = 4000
"""Most rows of a similarity matrix."""


@dataclass(frozen=True, eq=False, repr=False)
class MixturePosterior(SingleThreaded):
    """Draws of a Gaussian mixture, see :func:`~boxloop.sample.sample_mixture`.

    ``weights``, ``means`` and ``covariances`` are as the chains left them: components may have changed places between
    chains and along them. ``relabelled(...)`` gives them a common order, and ``labels`` says what that took.

    Args:
        draws: in the units of the rows. Values are ``log_weights``, ``means`` and the Cholesky factors ``factors`` with
            logs on the diagonal, or ``log_variances``.
        rows: that were seen, (n, d).
        prior: in the units of the rows.
        origin: of the coordinates in which probabilities are computed, (d,).
        scale: of these, (d,).
        names: of the columns.
    """

    draws: Draws
    rows: Tensor
    prior: MixturePrior
    origin: Tensor
    scale: Tensor
    names: tuple[str, ...]

    @property
    def diagonal(self) -> bool:
        """Whether covariances are diagonal."""
        return not isinstance(self.prior.components, NormalInverseWishart)

    @property
    def n_components(self) -> int:
        """k."""
        return self.prior.n_components

    @property
    def weights(self) -> Tensor:
        """(c, n, k), in the order of the draws."""
        return self.draws["log_weights"].exp()

    @property
    def means(self) -> Tensor:
        """(c, n, k, d), in the order of the draws."""
        return self.draws["means"]

    @property
    def covariances(self) -> Tensor:
        """(c, n, k, d, d), or variances (c, n, k, d), in the order of the draws."""
        if self.diagonal:
            return self.draws["log_variances"].exp()
        _, family = self._members(self.draws.positions.transpose(0, 1).flatten(0, 1))
        dense = family.covariance().dense()
        return dense.reshape(*self.draws["log_weights"].shape, *dense.shape[1:])

    @cached_property
    def variances(self) -> Tensor:
        """Of each column in each component, (c, n, k, d), in the order of the draws."""
        if self.diagonal:
            return self.draws["log_variances"].exp()
        found = torch.empty_like(self.means).flatten(0, 1)
        for part, _, members in self._blocks(self.means[0, 0].numel() * len(self.names)):
            diagonal = members.covariance().diagonal()
            found[part] = diagonal.reshape(-1, *found.shape[1:])
        return found.reshape(self.means.shape)

    @cached_property
    def labels(self) -> Relabelling:
        """The common order of components, from their probabilities on at most 500 rows; it says what it found."""
        c, n, k = self.draws["log_weights"].shape
        most = max(1, min(LABEL_ROWS, LABEL_VALUES // (c * n * k)))
        chosen = torch.randperm(len(self.rows), generator=generator(0))[:most].to(self.rows.device)
        rows = self._standard(self.rows[chosen])
        share = torch.empty(c * n, k, rows.n, dtype=torch.float32, device=self.rows.device)
        for part, weight, members in self._blocks(k * max(rows.n, rows.p), standard=True):
            share[part] = allocations(weight, members, rows).float()
        pivot = int(self.draws.log_density.T.flatten().argmax())
        return relabel(share.reshape(c, n, k, rows.n), pivot)

    def relabelled(self, values: Tensor) -> Tensor:
        """Values of components, (c, n, k, ...), such as ``means``, in the common order."""
        return self.labels.apply(values)

    def summary(self, level: float = 0.95) -> Any:
        """One line a number, as a frame; the column ``labels`` says ``free`` or ``relabelled``.

        Free of labels are the log-density, the number of components that hold rows, the weights sorted by size, and
        the mean and standard deviation of every column under the whole mixture. Relabelled are the weight of each
        component and its mean and standard deviation in every column.

        Args:
            level: of the central interval from ``low`` to ``high``.
        """
        occupied = Lines({"occupied": self.occupied().double()}, FREE)
        return summary_frame([self._free, occupied, self._by_component], level)

    def occupied(self) -> Tensor:
        """Number of components that hold rows, in at most 250 draws of each chain, (c, m). Free of labels."""
        if self.draws.n_draws == 0:
            raise ValueError("there are no draws: sampling was interrupted in warm-up")
        chosen = evenly(self.draws.n_draws, COUNTED)
        flat = self.draws.positions[chosen].transpose(0, 1).flatten(0, 1)
        stream = generator(0, self.rows.device)
        counts = count_occupied(*self._members(flat, standard=True), self._standard(self.rows), stream)
        return counts.reshape(self.draws.n_chains, -1)

    def similarity(self, X: object = None, *, draws: int = 200) -> Tensor:
        """Probability that two rows are of the same component, (m, m). Free of labels.

        Args:
            X: rows, at most 4000; those that were seen when omitted.
            draws: over how many draws to average.
        """
        rows = self.rows if X is None else self._read(X)
        if len(rows) > PAIRED:
            raise ValueError(
                f"similarity of {len(rows)} rows is too large a matrix: pass at most {PAIRED} of them"
            )
        return similarity_matrix(*self._members(self._thinned(draws), standard=True), self._standard(rows))

    def responsibilities(self, X: object = None, *, draws: int = 200) -> Tensor:
        """Probability of each component given each row, averaged over draws, (m, k). Relabelled.

        Args:
            X: rows; those that were seen when omitted.
            draws: over how many draws to average.
        """
        rows = self._standard(self.rows if X is None else self._read(X))
        chosen = evenly(self.draws.n_chains * self.draws.n_draws, draws)
        order = self.labels.order.flatten(0, 1)[chosen.to(self.labels.order.device)]
        total = self.rows.new_zeros(self.n_components, rows.n)
        there = self._members(self._thinned(draws), standard=True)
        for part, weight, members in blocks_of_draws(*there, self.n_components * rows.n):
            share = allocations(weight, members, rows)
            total += share.gather(1, order[part, :, None].expand_as(share)).sum(0)
        return (total / len(chosen)).mT

    def predictive(self, draws: int = 100) -> Mixture[Any]:
        r"""The posterior predictive law as one large mixture. Free of labels.

        .. math:: p(x_{new} \mid x) \approx \frac1S \sum_s \sum_k \pi^{(s)}_k \, N(x_{new}; \mu^{(s)}_k, \Sigma^{(s)}_k)

        Args:
            draws: S, taken evenly from all chains.
        """
        log_weight, family = self._members(self._thinned(draws))
        return Mixture(log_weight.flatten().log_softmax(0), family)

    @cached_property
    def worries(self) -> tuple[str, ...]:
        """What speaks against these draws, told from numbers that are free of labels."""
        if self.draws.n_draws == 0:
            return self.draws.faults
        unsettled = ("relabelling did not settle: components overlap too much",)
        return (*self.draws.faults, *self._free.worries(), *(() if self.labels.settled else unsettled))

    @property
    def converged(self) -> bool:
        """Whether there is nothing to worry about; never for one chain."""
        return not self.worries

    def plot(
        self,
        ax: Axes | None = None,
        *,
        kind: Literal["components", "similarity", "trace"] = "components",
        columns: tuple[int, int] = (0, 1),
    ) -> Axes:
        """Components as ellipses over two columns, pairs of rows that go together, or the trace of the log-density.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            kind: ``components`` are relabelled posterior means; ``similarity`` and ``trace`` are free of labels.
            columns: the two columns of ``components``.
        """
        from boxloop.sample import mixture_pictures

        check_choice(kind, "kind", tuple(mixture_pictures.PICTURES))
        return mixture_pictures.PICTURES[kind](self, ax, columns)

    @cached_property
    def _free(self) -> Lines:
        weight, mean = self.weights, self.means
        centre = (weight[..., None] * mean).sum(2)
        apart = (mean - centre[:, :, None]).square() + self.variances
        spread = (weight[..., None] * apart).sum(2).sqrt()
        ordered = weight.sort(dim=2, descending=True).values
        lines = {"log_density": self.draws.log_density.T}
        lines |= {
            f"sorted weight[{j}]": ordered[..., j]
            for j in range(self.n_components if self.n_components > 1 else 0)
        }
        lines |= {f"mean[{name}]": centre[..., j] for j, name in enumerate(self.names)}
        return Lines(lines | {f"sd[{name}]": spread[..., j] for j, name in enumerate(self.names)}, FREE)

    @cached_property
    def _by_component(self) -> Lines:
        lines: dict[str, Tensor] = {}
        weight, mean = self.relabelled(self.weights), self.relabelled(self.means)
        deviation = self.relabelled(self.variances).sqrt()
        for i in range(self.n_components):
            lines[f"component {i}: weight"] = weight[..., i]
            lines |= {f"component {i}: mean[{name}]": mean[..., i, j] for j, name in enumerate(self.names)}
            lines |= {f"component {i}: sd[{name}]": deviation[..., i, j] for j, name in enumerate(self.names)}
        return Lines(lines, "relabelled")

    def _thinned(self, draws: int) -> Tensor:
        flat = self.draws.positions.transpose(0, 1).flatten(0, 1)
        return flat[evenly(len(flat), draws).to(flat.device)]

    def _blocks(self, width: int, *, standard: bool = False) -> Iterator[tuple[slice, Tensor, Component]]:
        """All draws, a few at a time, such that ``width`` numbers a draw fit."""
        flat = self.draws.positions.transpose(0, 1).flatten(0, 1)
        size = max(1, BLOCK // width)
        for start in range(0, len(flat), size):
            part = slice(start, min(start + size, len(flat)))
            yield part, *self._members(flat[part], standard=standard)

    def _members(self, flat: Tensor, *, standard: bool = False) -> tuple[Tensor, Component]:
        log_weight, family = unpack_mixture(flat, self.n_components, len(self.names), diagonal=self.diagonal)
        return log_weight, family.affine(-self.origin / self.scale, 1.0 / self.scale) if standard else family

    def _standard(self, rows: Tensor) -> MixtureRows:
        return MixtureRows((rows - self.origin) / self.scale, self.diagonal)

    def _read(self, X: object) -> Tensor:
        source = open_source(X)
        rows = torch.cat([rows for rows, _ in source.chunks()]).to(self.rows)
        if rows.shape[1] != len(self.names):
            raise ValueError(f"X has {rows.shape[1]} columns, the mixture has {len(self.names)}")
        if bool(torch.isnan(rows).any()):
            column = source.names[int(torch.isnan(rows).any(0).nonzero()[0])]
            raise ValueError(f"column {column!r} has missing values")
        return rows

    def __repr__(self) -> str:
        kind = "diagonal" if self.diagonal else "full"
        lines = [
            f"Gaussian mixture of {self.n_components} components with {kind} covariances: "
            f"{self.draws.n_draws} draws of {self.draws.n_chains} chains",
        ]
        if self.draws.n_draws:
            table = self.summary()[["mean", "sd", "ess_bulk", "r_hat", "labels"]]
            lines += [
                str(self.labels),
                table.to_string(float_format=lambda value: f"{value:.4g}", max_rows=24),
            ]
        return "\n".join([*lines, *(f"! {worry}" for worry in self.worries)])
