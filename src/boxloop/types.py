"""The contract: what a distribution, a model and a source of rows are.

Rows flow one way: rows -> small additive statistics -> parameters -> criticism. Axes: n rows, d columns,
k components or factors, m members of a batch of distributions. :mod:`boxloop.distributions.family` adds what a
mixture's distribution must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from torch import Generator, Tensor

from boxloop.tree import Tree

T = TypeVar("T", bound=Tree)
S = TypeVar("S", bound=Tree)


@dataclass(frozen=True)
class Expected(Tree, Generic[S]):
    """What an E step adds up over rows: statistics, log-likelihood, total weight."""

    statistics: S
    log_likelihood: Tensor
    weight: Tensor


class Covariance(Protocol):
    """Covariance of m distributions over d columns, in the form that was cheapest to hold."""

    def dense(self) -> Tensor:
        """As (m, d, d). The only place where a structured covariance becomes a matrix."""

    def diagonal(self) -> Tensor:
        """The variances, (m, d)."""


@runtime_checkable
class Distribution(Protocol):
    """A batch of m distributions over d columns: p(z), p(x|z) or q(z|x)."""

    @property
    def mean(self) -> Tensor:
        """(m, d)."""

    def covariance(self) -> Covariance:
        """Never densified without asking."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member: (n, d) -> (m, n). NaN entries are marginalised."""

    def draw(self, n: int, generator: Generator) -> Tensor:
        """n draws from each member: (m, n, d)."""


@runtime_checkable
class LatentModel(Protocol):
    """p(z) and p(x|z): enough for criticism, generation, an ELBO or a sampler."""

    def prior(self) -> Distribution:
        """The distribution of z."""

    def emission(self, z: Tensor) -> Distribution:
        """The distribution of x given each row of z."""


class ExpectationModel(LatentModel, Protocol[S]):
    """A model fitted by every EM-like engine."""

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[S]:
        """E step on a tile: additive expected statistics and log-likelihood, less the base measure."""

    def repair_statistics(self, statistics: S) -> tuple[S, tuple[str, ...]]:
        """Statistics that ``solve`` can use, with a note for each thing that had to be changed."""

    def solve(self, statistics: S) -> Self:
        """M step: the model that maximises the expected log-likelihood; scale of ``statistics`` is irrelevant."""

    def expected_log_likelihood(self, statistics: S) -> Tensor:
        """Expected complete-data log-likelihood Q of this model given statistics; differentiable."""

    def log_base(self, rows: Tensor) -> Tensor | None:
        """The part of ``log_prob`` that no parameter enters, (n,), or None where it is zero."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,)."""

    def moments(self) -> tuple[Tensor, Covariance]:
        """Exact mean (d,) and covariance (one member) of a row."""

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) with the latent values behind them."""

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``; one of counts refuses."""

    def free_parameters(self) -> dict[str, Tensor]:
        """Parameters that may take any value, for gradients and standard errors."""

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The model at other values of them; differentiable."""

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""

    def is_finite(self) -> bool:
        """Whether every parameter is finite."""


class Source(Protocol):
    """Where rows live. Knows how to reduce, not what is reduced."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_columns(self) -> int:
        """Number of columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(rows, weight)`` tiles in row order; at most ``size`` rows each."""

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all tiles, in a fixed order; it may be called where the rows live."""

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)``, for what depends on where rows stand."""

    def map_tiles(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield the sums over consecutive rows that ``reduce_at`` adds up, in row order, few of them held at once."""
