"""The posterior of a Gaussian mixture by Gibbs sampling: draws, and what they say about rows and components."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from boxloop.data import check_choice, fit_standardisation, open_source
from boxloop.distributions import Component, MixturePrior, NormalInverseWishart
from boxloop.loop import Observer
from boxloop.models import Mixture
from boxloop.numeric import RandomState, generator, pack_index, single_threaded
from boxloop.sample.draws import NO_DRAWS, Draws, NamedQuantities, select_spaced_indices, summarise_quantities
from boxloop.sample.gibbs_posterior import GibbsPosterior, check_prior, check_rows, run_gibbs, start_generator
from boxloop.sample.kernels.mixture_gibbs import (
    MixtureRows,
    compute_natural_parameters,
    make_mixture_kernel,
    start_mixture,
    sweep_rows,
    unpack_mixture,
)
from boxloop.tree import Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_RELABELLING_ITER = 50
"""Most iterations of relabelling; a handful is usual."""

BLOCK = 1 << 22
"""Component probabilities computed at once."""

LEAST_PROBABILITY = 1e-12
"""Smallest probability whose log is taken."""

LABEL_ROWS = 500
"""Rows on whose component probabilities draws are relabelled."""

LABEL_VALUES = 1 << 26
"""Component probabilities that relabelling stores, in float32."""

OCCUPIED_DRAWS = 250
"""Draws per chain in which occupied components are counted."""

SIMILARITY_ROWS = 4000
"""Most rows of a similarity matrix."""

SHOWN_ROWS = 300
"""Most rows of a picture of similarity."""


@single_threaded
def sample_mixture(
    X: object,
    n_components: int,
    *,
    covariance: Literal["full", "diag"] = "full",
    prior: MixturePrior | None = None,
    chains: int = 4,
    draws: int = 1000,
    warmup: int = 500,
    thin: int = 1,
    random_state: RandomState = None,
    device: torch.device | str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    verbose: bool | None = False,
    observers: Sequence[Observer[Any]] = (),
) -> MixturePosterior:
    r"""Draw the parameters of a Gaussian mixture from their posterior, by Gibbs sampling with many chains at once.

    .. math:: \pi \sim \mathrm{Dirichlet}(a), \quad (\mu_k, \Sigma_k) \sim \mathrm{NIW}(m, \kappa, \nu, \Psi), \quad
              x_i \sim \textstyle\sum_k \pi_k N(\mu_k, \Sigma_k)

    Component labels are not identified: exchanging components leaves the posterior unchanged, and chains do exchange
    them. ``summary()`` marks each quantity as label-invariant or relabelled (Stephens 2000).

    Reference:
        Diebolt and Robert (1994), *Journal of the Royal Statistical Society B* 56.

    Args:
        X: any table without missing values, see :func:`boxloop.data.open_source`; it is held in memory.
        n_components: k.
        covariance: ``full`` or ``diag``; ignored if ``prior`` is given, which determines it.
        prior: in the units of the rows. When omitted,
            :meth:`~boxloop.distributions.priors.MixturePrior.from_moments` the mean and covariance of the rows:
            uniform weights, :math:`m = \bar x`, :math:`\kappa = 0.01`, :math:`\nu = d + 2`, :math:`\Psi = S / k^{2/d}`.
        chains: number of chains; each begins at its own seeds among the rows.
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
        :class:`~boxloop.sample.MixturePosterior`: ``summary()``, ``labels``, ``similarity()``, ``predictive()``,
        ``responsibilities()``, ``plot()``, ``concerns``; ``draws`` before relabelling.

    Raises:
        ValueError: fewer rows than components, a missing or infinite value, a constant column without a prior.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(-3, 1, (60, 2)), rng.normal(3, 1, (40, 2))])
        >>> posterior = sample_mixture(X, 2, draws=200, warmup=100, random_state=0)
        >>> posterior.relabelled(posterior.weights).mean((0, 1)).sort().values.round(decimals=1).tolist()
        [0.4, 0.6]
        >>> posterior.predictive().log_prob(posterior.rows).shape
        torch.Size([100])
    """
    problem = _MixtureData.from_table(X, n_components, covariance, prior, device)
    stream = start_generator(random_state, checkpoint, problem.rows.device)
    first = start_mixture(problem.standard_rows, problem.standard_prior, chains, stream)
    k, d = n_components, len(problem.names)
    weights, means, scales = first.split([k, k * d, first.shape[1] - k - k * d], 1)
    start = {
        "log_weights": weights,
        "means": means.reshape(chains, k, d),
        "log_variances" if problem.diagonal else "factors": scales.reshape(chains, k, -1),
    }
    kernel = make_mixture_kernel(problem.standard_rows, problem.standard_prior)
    found = run_gibbs(
        kernel,
        start,
        (problem.standard_rows, *problem.standard_prior.leaves()),
        stream,
        draws=draws,
        warmup=warmup,
        thin=thin,
        checkpoint=checkpoint,
        verbose=verbose,
        observers=observers,
    )
    draws_in_units = problem.to_data_units(found)
    return MixturePosterior(
        draws_in_units, problem.rows, problem.prior, problem.origin, problem.scale, problem.names
    )


@dataclass(frozen=True, eq=False)
class _MixtureData(Tree):
    """Rows (n, d) and prior of a mixture, in their own units and in standard coordinates."""

    rows: Tensor
    standard_rows: Tensor
    prior: MixturePrior
    standard_prior: MixturePrior
    origin: Tensor
    scale: Tensor
    names: tuple[str, ...]

    @classmethod
    def from_table(
        cls,
        X: object,
        n_components: int,
        covariance: str,
        prior: MixturePrior | None,
        device: torch.device | str | None,
    ) -> _MixtureData:
        """Read and check a table and a prior."""
        check_choice(covariance, "covariance", ("full", "diag"))
        source = open_source(X)
        if not 1 <= n_components <= source.n_rows:
            raise ValueError(
                f"{n_components} components of {source.n_rows} rows: there must be at least 1, and not more than rows"
            )
        frame = fit_standardisation(source)
        check_rows(frame, source, has_prior=prior is not None)
        origin, scale = frame.origin, frame.scale
        rows = torch.cat([tile.to(torch.float64) for tile, _ in source.chunks()])
        standard_rows = (rows - origin) / scale
        if prior is None:
            second = standard_rows.mT @ standard_rows / len(rows)
            diagonal = covariance == "diag"
            standard = MixturePrior.from_moments(
                torch.zeros_like(origin), second, n_components, diagonal=diagonal
            )
            prior = standard.affine(origin, scale)
        else:
            columns = prior.components.mean.shape[1]
            check_prior("components", prior.n_components, n_components, columns, source.n_columns)
            standard = prior.affine(-origin / scale, 1.0 / scale)
        return cls(rows, standard_rows, prior, standard, origin, scale, source.names).to(device)

    @property
    def diagonal(self) -> bool:
        """Whether covariances are diagonal."""
        return not isinstance(self.prior.components, NormalInverseWishart)

    def to_data_units(self, draws: Draws) -> Draws:
        """Draws in standard coordinates in the units of the rows; their density with respect to these."""
        n, d = self.rows.shape
        k, scale = self.prior.n_components, self.scale
        log_weight, mean, last = draws.positions.split([k, k * d, draws.positions.shape[-1] - k - k * d], -1)
        mean = (mean.unflatten(-1, (k, d)) * scale + self.origin).flatten(-2)
        last = last.unflatten(-1, (k, -1))
        if self.diagonal:
            last = last + 2.0 * scale.log()
        else:  # Entries of factors are multiplied by the scale of their row, and their diagonal is in logs.
            column, row = (index.to(scale.device) for index in pack_index(d))
            last = torch.where(column == row, last + scale[row].log(), last * scale[row])
        # The Jacobian: rows and means once, variances of independent columns twice, matrices d + 1 times.
        times = n + k * (1 + (2 if self.diagonal else d + 1))
        density = draws.log_density - times * scale.log().sum()
        positions = torch.cat([log_weight, mean, last.flatten(-2)], -1)
        return replace(draws, positions=positions, log_density=density)


@dataclass(frozen=True, eq=False, repr=False)
class MixturePosterior(GibbsPosterior):
    """Draws of a Gaussian mixture, see :func:`~boxloop.sample.sample_mixture`.

    ``weights``, ``means`` and ``covariances`` are as drawn: components may have changed places between chains and
    within them. ``relabelled(...)`` brings them to a common order, which ``labels`` describes.

    Args:
        draws: in the units of the rows. Values are ``log_weights``, ``means`` and the Cholesky factors ``factors`` with
            logs on the diagonal, or ``log_variances``.
        rows: the data, (n, d).
        prior: in the units of the rows.
        origin: of the coordinates in which probabilities are computed, (d,).
        scale: of these, (d,).
        names: of the columns.
    """

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
        """(c, n, k), as drawn."""
        return self.draws["log_weights"].exp()

    @property
    def means(self) -> Tensor:
        """(c, n, k, d), as drawn."""
        return self.draws["means"]

    @property
    def covariances(self) -> Tensor:
        """(c, n, k, d, d), or variances (c, n, k, d), as drawn."""
        if self.diagonal:
            return self.draws["log_variances"].exp()
        _, family = self._unpack_components(self._positions)
        dense = family.covariance().dense()
        return dense.reshape(*self.draws["log_weights"].shape, *dense.shape[1:])

    @cached_property
    def variances(self) -> Tensor:
        """Of each column in each component, (c, n, k, d), as drawn."""
        if self.diagonal:
            return self.draws["log_variances"].exp()
        found = torch.empty_like(self.means).flatten(0, 1)
        for part, _, family in self._iterate_blocks(self.means[0, 0].numel() * len(self.names)):
            found[part] = family.covariance().diagonal().reshape(-1, *found.shape[1:])
        return found.reshape(self.means.shape)

    @cached_property
    def labels(self) -> Relabelling:
        """The common order of components, from their probabilities on at most 500 rows."""
        c, n, k = self.draws["log_weights"].shape
        most = max(1, min(LABEL_ROWS, LABEL_VALUES // (c * n * k)))
        chosen = torch.randperm(len(self.rows), generator=generator(0))[:most].to(self.rows.device)
        rows = self._standardise(self.rows[chosen])
        share = torch.empty(c * n, k, rows.n, dtype=torch.float32, device=self.rows.device)
        for part, weight, family in self._iterate_blocks(k * max(rows.n, rows.p), standard=True):
            share[part] = compute_component_probabilities(weight, family, rows).float()
        pivot = int(self.draws.log_density.T.flatten().argmax())
        return relabel_draws(share.reshape(c, n, k, rows.n), pivot)

    def relabelled(self, values: Tensor) -> Tensor:
        """Values of components, (c, n, k, ...), such as ``means``, in the common order."""
        return self.labels.apply(values)

    @cached_property
    def invariant(self) -> NamedQuantities:
        """Label-invariant quantities: log-density, sorted weights, mean and standard deviation of every column."""
        weight, mean = self.weights, self.means
        centre = (weight[..., None] * mean).sum(2)
        within_and_between = (mean - centre[:, :, None]).square() + self.variances
        sd = (weight[..., None] * within_and_between).sum(2).sqrt()
        ordered = weight.sort(dim=2, descending=True).values
        several = self.n_components if self.n_components > 1 else 0
        values = {"log_density": self.draws.log_density.T}
        values |= {f"sorted weight[{j}]": ordered[..., j] for j in range(several)}
        values |= {f"mean[{name}]": centre[..., j] for j, name in enumerate(self.names)}
        values |= {f"sd[{name}]": sd[..., j] for j, name in enumerate(self.names)}
        return NamedQuantities(values, "label-invariant")

    @cached_property
    def by_component(self) -> NamedQuantities:
        """Relabelled quantities: weight, and mean and standard deviation of every column, of each component."""
        values: dict[str, Tensor] = {}
        weight, mean = self.relabelled(self.weights), self.relabelled(self.means)
        sd = self.relabelled(self.variances).sqrt()
        for i in range(self.n_components):
            values[f"component {i}: weight"] = weight[..., i]
            values |= {f"component {i}: mean[{name}]": mean[..., i, j] for j, name in enumerate(self.names)}
            values |= {f"component {i}: sd[{name}]": sd[..., i, j] for j, name in enumerate(self.names)}
        return NamedQuantities(values, "relabelled")

    def summary(self, level: float = 0.95) -> Any:
        """A frame with one row per quantity.

        Label-invariant are the log-density, the number of components that hold rows, the weights sorted by size, and
        the mean and standard deviation of every column under the whole mixture. Relabelled are the weight of each
        component and its mean and standard deviation in every column. The column ``identification`` says which.

        Args:
            level: of the central interval from ``low`` to ``high``.
        """
        occupied = NamedQuantities({"occupied": self.occupied().double()}, "label-invariant")
        return summarise_quantities([self.invariant, occupied, self.by_component], level)

    def occupied(self) -> Tensor:
        """Number of components that hold rows, in at most 250 draws of each chain, (c, m). Label-invariant."""
        if self.draws.n_draws == 0:
            raise ValueError(NO_DRAWS)
        chosen = select_spaced_indices(self.draws.n_draws, OCCUPIED_DRAWS)
        positions = self.draws.positions[chosen].transpose(0, 1).flatten(0, 1)
        components = self._unpack_components(positions, standard=True)
        counts = count_occupied_components(
            *components, self._standardise(self.rows), generator(0, self.rows.device)
        )
        return counts.reshape(self.draws.n_chains, -1)

    def similarity(self, X: object = None, *, draws: int = 200) -> Tensor:
        """Probability that two rows belong to the same component, (m, m). Label-invariant.

        Args:
            X: rows, at most 4000; the data when omitted.
            draws: number of draws to average over.
        """
        rows = self.rows if X is None else self._read_rows(X)
        if len(rows) > SIMILARITY_ROWS:
            raise ValueError(
                f"similarity of {len(rows)} rows is too large a matrix: pass at most {SIMILARITY_ROWS} of them"
            )
        components = self._unpack_components(self._select_positions(draws), standard=True)
        return compute_similarity_matrix(*components, self._standardise(rows))

    def responsibilities(self, X: object = None, *, draws: int = 200) -> Tensor:
        """Probability of each component given each row, averaged over draws, (m, k). Relabelled.

        Args:
            X: rows; the data when omitted.
            draws: number of draws to average over.
        """
        rows = self._standardise(self.rows if X is None else self._read_rows(X))
        chosen = select_spaced_indices(self.draws.n_chains * self.draws.n_draws, draws)
        order = self.labels.order.flatten(0, 1)[chosen.to(self.labels.order.device)]
        total = self.rows.new_zeros(self.n_components, rows.n)
        components = self._unpack_components(self._select_positions(draws), standard=True)
        for part, weight, family in iterate_draw_blocks(*components, self.n_components * rows.n):
            share = compute_component_probabilities(weight, family, rows)
            total += share.gather(1, order[part, :, None].expand_as(share)).sum(0)
        return (total / len(chosen)).mT

    def predictive(self, draws: int = 100) -> Mixture[Any]:
        r"""The posterior predictive distribution as one large mixture. Label-invariant.

        .. math:: p(x_{new} \mid x) \approx \frac1S \sum_s \sum_k \pi^{(s)}_k \, N(x_{new}; \mu^{(s)}_k, \Sigma^{(s)}_k)

        Args:
            draws: S, evenly spaced in all chains.
        """
        log_weight, family = self._unpack_components(self._select_positions(draws))
        return Mixture(log_weight.flatten().log_softmax(0), family)

    @cached_property
    def concerns(self) -> tuple[str, ...]:
        """What these draws give reason to look at, by label-invariant quantities; empty if they can be used."""
        if self.draws.n_draws == 0:
            return self.draws.sampler_concerns
        found = (*self.draws.sampler_concerns, *self.invariant.concerns)
        if self.labels.converged:
            return found
        return (*found, "relabelling did not converge: components overlap too much to be distinguished")

    def plot(
        self,
        ax: Axes | None = None,
        *,
        kind: Literal["components", "similarity", "trace"] = "components",
        columns: tuple[int, int] = (0, 1),
    ) -> Axes:
        """Components as ellipses over two columns, the similarity of rows, or the trace of the log-density.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            kind: ``components`` are relabelled posterior means; ``similarity`` and ``trace`` are label-invariant.
            columns: the two columns of ``components``.
        """
        check_choice(kind, "kind", ("components", "similarity", "trace"))
        if kind == "components":
            return _plot_components(self, ax, columns)
        if kind == "similarity":
            return _plot_similarity(self, ax)
        return self._plot_log_density(ax)

    def _iterate_blocks(
        self, width: int, *, standard: bool = False
    ) -> Iterator[tuple[slice, Tensor, Component]]:
        """All draws, a few at a time, such that ``width`` numbers per draw fit."""
        positions = self._positions
        for part in _slice_blocks(len(positions), width):
            yield part, *self._unpack_components(positions[part], standard=standard)

    def _unpack_components(self, positions: Tensor, *, standard: bool = False) -> tuple[Tensor, Component]:
        """Log-weights and components of draws (m, p), in standard coordinates if requested."""
        log_weight, family = unpack_mixture(
            positions, self.n_components, len(self.names), diagonal=self.diagonal
        )
        return log_weight, family.affine(-self.origin / self.scale, 1.0 / self.scale) if standard else family

    def _standardise(self, rows: Tensor) -> MixtureRows:
        return MixtureRows((rows - self.origin) / self.scale, self.diagonal)

    def _read_rows(self, X: object) -> Tensor:
        source = open_source(X)
        rows = torch.cat([rows for rows, _ in source.chunks()]).to(self.rows)
        if rows.shape[1] != len(self.names):
            raise ValueError(f"X has {rows.shape[1]} columns, the mixture has {len(self.names)}")
        if bool(torch.isnan(rows).any()):
            column = source.names[int(torch.isnan(rows).any(0).nonzero()[0])]
            raise ValueError(f"column {column!r} has missing values: impute them, or leave out its rows")
        return rows

    @property
    def _heading(self) -> str:
        kind = "diagonal" if self.diagonal else "full"
        return (
            f"Gaussian mixture of {self.n_components} components with {kind} covariances: "
            f"{self.draws.n_draws} draws of {self.draws.n_chains} chains"
        )

    @property
    def _symmetry(self) -> str:
        return f"Labels: {self.labels}"


def _plot_components(posterior: MixturePosterior, ax: Axes | None, columns: tuple[int, int]) -> Axes:
    """Rows in two columns, with relabelled posterior means of the components."""
    from boxloop.figures import ellipses

    if len(posterior.names) < 2:
        raise ValueError("a picture of components needs two columns")
    i, j = columns
    pair = torch.tensor(columns, device=posterior.rows.device)
    mean = posterior.relabelled(posterior.means[..., pair])
    if posterior.diagonal:
        covariance = torch.diag_embed(posterior.relabelled(posterior.covariances[..., pair]))
    else:
        covariance = posterior.relabelled(posterior.covariances[..., pair, :][..., pair])
    return ellipses(
        posterior.rows[:, pair].double().cpu().numpy(),
        mean.mean((0, 1)).double().cpu().numpy(),
        covariance.mean((0, 1)).double().cpu().numpy(),
        (posterior.names[i], posterior.names[j]),
        ax,
        component=posterior.responsibilities().argmax(1).cpu().numpy(),
        title="Posterior means of components (relabelled)",
    )


def _plot_similarity(posterior: MixturePosterior, ax: Axes | None) -> Axes:
    """Probability that two rows belong to the same component, similar rows side by side."""
    from scipy.cluster.hierarchy import average, leaves_list
    from scipy.spatial.distance import squareform

    from boxloop.figures import heat_map

    every = max(1, -(-len(posterior.rows) // SHOWN_ROWS))
    similarity = posterior.similarity(posterior.rows[::every]).double().cpu().numpy()
    if len(similarity) > 2:
        order = leaves_list(average(squareform(np.clip(1.0 - similarity, 0.0, None), checks=False)))
        similarity = similarity[np.ix_(order, order)]
    axes = heat_map(
        similarity,
        [str(i) for i in range(len(similarity))],
        ax,
        title="Similarity of rows (label-invariant)",
        label="probability of the same component",
        least=1.0,
    )
    axes.set_xlabel("row, sorted")
    axes.set_ylabel("row, sorted")
    return axes


# Relabelling of draws, and quantities that do not depend on component labels.


@dataclass(frozen=True, eq=False)
class Relabelling:
    """The order of components in which they mean the same in all draws."""

    order: Tensor  # of c chains of n draws, (c, n, k): component ``order[..., j]`` of a draw has the label j
    converged: bool  # whether the search for it converged

    def apply(self, values: Tensor) -> Tensor:
        """Values of components, (c, n, k, ...), in the common order."""
        extra = values.dim() - 3
        index = self.order.to(values.device).reshape(*self.order.shape, *[1] * extra)
        return values.gather(2, index.expand_as(values))

    @property
    def switched_share(self) -> float:
        """Share of draws whose components are in another order than in most."""
        _, counts = torch.unique(self.order.flatten(0, 1), dim=0, return_counts=True)
        return 1.0 - float(counts.max()) / self.order[..., 0].numel()

    @property
    def switches(self) -> Tensor:
        """Changes of the order from a draw to the next, (c,)."""
        return (self.order[:, 1:] != self.order[:, :-1]).any(2).sum(1)

    @property
    def has_switched(self) -> bool:
        """Whether averages over draws before relabelling would mix components."""
        return self.switched_share > 0.0

    def __str__(self) -> str:
        if not self.has_switched:
            return "component labels are not identified, but components have the same order in all draws"
        return (
            "component labels are not identified; draws were relabelled to a common order (Stephens, 2000).\n"
            f"In {100 * self.switched_share:.0f}% of the draws the order differed ({int(self.switches.sum())} switches "
            "within chains): averages before relabelling mix components"
        )


def relabel_draws(share: Tensor, pivot: int) -> Relabelling:
    r"""Relabel draws such that component probabilities agree best, by Stephens' algorithm.

    .. math:: \min_{Q, \tau} \sum_s \sum_i \sum_j p^{(s)}_{i \tau_s(j)} \log \frac{p^{(s)}_{i \tau_s(j)}}{q_{ij}}

    In turn Q is the mean of the relabelled probabilities p (c, n, k, r), and each draw's order the best assignment to
    Q; the order of the draw ``pivot``, counted through all chains, is used first.

    Reference:
        Stephens (2000), *Journal of the Royal Statistical Society B* 62, section 4.1.
    """
    c, n, k, r = share.shape
    flat = share.reshape(c * n, k, r)
    centre = flat[pivot]
    order = torch.full((c * n, k), -1, device=share.device)
    converged = False
    for _ in range(MAX_RELABELLING_ITER):
        found = assign_labels(torch.matmul(flat, centre.clamp(min=LEAST_PROBABILITY).log().mT))
        converged = bool((found == order).all())
        order = found
        if converged:
            break
        # Means over draws without a second copy of all probabilities.
        assignment = torch.nn.functional.one_hot(order, k).to(flat.dtype)
        centre = torch.einsum("sjl,slr->jr", assignment, flat) / (c * n)
    return Relabelling(order.reshape(c, n, k), converged)


def assign_labels(score: Tensor) -> Tensor:
    """The assignment of largest total score, (s, k), from the score of each component for each label, (s, k, k)."""
    order = score.argmax(1)
    k = order.shape[1]
    ideal = torch.arange(k, device=order.device)
    clash = (order.sort(1).values != ideal).any(1)
    # If the best components of all labels differ, no assignment is better; only the others need a search.
    for draw in torch.nonzero(clash)[:, 0].tolist():
        _, columns = linear_sum_assignment(score[draw].mT.cpu().numpy(), maximize=True)
        order[draw] = torch.from_numpy(np.asarray(columns)).to(order.device)
    return order


def compute_component_probabilities(log_weight: Tensor, family: Component, rows: MixtureRows) -> Tensor:
    """Probability of each component of s draws given each row, (s, k, r)."""
    s, k = log_weight.shape
    weight = compute_natural_parameters(family).reshape(s, k, -1).clone()
    weight[..., 0] += log_weight
    return torch.matmul(weight, rows.select_features(0, rows.n)).softmax(1)


def iterate_draw_blocks(
    log_weight: Tensor, family: Component, width: int
) -> Iterator[tuple[slice, Tensor, Component]]:
    """Blocks of draws, such that ``width`` numbers per draw fit: a slice, log-weights and components."""
    s, k = log_weight.shape
    for part in _slice_blocks(s, width):
        members = slice(part.start * k, part.stop * k)
        yield part, log_weight[part], family.map(lambda leaf, m=members: leaf[m])


def _slice_blocks(draws: int, width: int) -> list[slice]:
    size = max(1, BLOCK // max(width, 1))
    return [slice(start, min(start + size, draws)) for start in range(0, draws, size)]


def compute_similarity_matrix(log_weight: Tensor, family: Component, rows: MixtureRows) -> Tensor:
    """Probability that two rows belong to the same component, (r, r). It does not depend on labels."""
    total = log_weight.new_zeros(rows.n, rows.n)
    for _, weight, members in iterate_draw_blocks(log_weight, family, log_weight.shape[1] * rows.n):
        share = compute_component_probabilities(weight, members, rows).reshape(-1, rows.n)
        total += share.mT @ share
    total /= len(log_weight)
    total.fill_diagonal_(1.0)
    return total


def count_occupied_components(
    log_weight: Tensor, family: Component, rows: MixtureRows, stream: Generator
) -> Tensor:
    """Number of components with at least one row in a draw of their components, (s,); label-invariant."""
    counts = [
        (sweep_rows(rows, weight, members, stream)[0][..., 0] > 0.5).sum(1)
        for _, weight, members in iterate_draw_blocks(log_weight, family, log_weight.shape[1] * rows.p)
    ]
    return torch.cat(counts)
