"""The contract of an exponential family: a law that can be refitted from averaged statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, TypeVar

from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import Law

S = TypeVar("S", bound=Tree)
S_co = TypeVar("S_co", bound=Tree, covariant=True)


class View(Protocol[S_co]):
    """A tile of rows as one family sees it: what its log-density and its statistics share."""

    def joint(self, offset: Tensor) -> Tensor:
        """``offset[:, None]`` + log-density of each member at each row, (k, n), less the base measure."""

    def summarise(self, share: Tensor) -> S_co:
        """Sufficient statistics of the rows, weighted by ``share`` (k, n) and summed over rows."""


class Family(Law, Protocol[S]):
    """An exponential family, k members at once."""

    def view(self, rows: Tensor) -> View[S]:
        """Prepare a tile of rows (n, d) for the two products of an EM round."""

    def log_base(self, rows: Tensor) -> Tensor | None:
        """Log base measure of each row, (n,), where there is one: no parameter enters it, so EM leaves it out."""

    def fitted(self, statistics: S) -> Self:
        """Maximum-likelihood members given summed statistics, within the family's floors."""

    def complete(self, statistics: S) -> Tensor:
        """Expected log-density of summed statistics, less the base measure; differentiable."""

    def split(self, member: int, pieces: int) -> Tensor:
        """Averaged features (pieces, p) of distinct parts of a member, for re-seeding empty ones."""

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The family of ``origin + scale * x``; a family of counts refuses."""

    def free(self) -> dict[str, Tensor]:
        """Parameters that may take any value."""

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other values of them; differentiable."""

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""

    def floored(self) -> Tensor:
        """Which members are held up by a floor, (k,), where that deserves a warning."""
