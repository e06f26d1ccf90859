r"""Documents as word counts: multinomial rows, dense or sparse.

The density is that of the counts given their total, :math:`N! \prod_j p_j^{x_j} / x_j!`. Missing counts are those of a
truncated multinomial: given the total :math:`N_o` of the words seen, an unseen word has expected count
:math:`N_o p_j / \sum_{o} p` (Dempster, Laird and Rubin 1977, section 4.2), and the density is that of the words seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import Sums, log_factorials
from boxloop.distributions.product import LinearView, alternating_signs
from boxloop.numeric import covariance as forms, has_missing
from boxloop.tree import Tree

TOGETHER = 1 << 24
"""Most words of a component that are drawn one by one."""


@dataclass(frozen=True)
class Multinomial(Tree):
    r"""k multinomial distributions over d words.

    Args:
        probability: (k, d), rows sum to one.
        total: words in a drawn document; ``mean`` and ``covariance`` refer to it.
        smoothing: pseudo-count of each word in ``fit_statistics``, relative to a member's average count, or to its
            documents where these are fewer.

    Example:
        >>> import torch
        >>> distribution = Multinomial(torch.tensor([[0.5, 0.5]]), total=2)
        >>> distribution.log_prob(torch.tensor([[1.0, 1.0]])).exp()
        tensor([[0.5000]])
    """

    probability: Tensor
    total: int = 1
    smoothing: float = 1e-10

    @property
    def mean(self) -> Tensor:
        """Expected counts of a document of ``total`` words, (k, d)."""
        return self.total * self.probability

    @cached_property
    def log_probability(self) -> Tensor:
        """(k, d). That of a word near one is found from the others: a document of 1e9 words multiplies its error."""
        p = self.probability
        rest = torch.where(p > 0.5, 0.0, p).sum(1, keepdim=True).clamp(max=0.5)
        return torch.where(p > 0.5, torch.log1p(-rest), p.log())

    def view(self, rows: Tensor) -> LinearView | MissingCountView:
        """A tile of counts (n, d), dense or sparse CSR."""
        sparse = rows.layout != torch.strided
        if has_missing(rows.values() if sparse else rows):
            return MissingCountView(self, rows.to_dense() if sparse else rows)
        log_probability = self.log_probability
        return LinearView(log_probability, log_probability.new_zeros(len(log_probability)), rows)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of every row's counts given their total, (k, n)."""
        offset = self.probability.new_zeros(self.probability.shape[0])
        return self.view(rows).log_joint(offset) + self.log_base(rows)

    def log_base(self, rows: Tensor) -> Tensor:
        """log N! - sum log x_j!, (n,), over the counts that are known."""
        length, factorials = log_factorials(rows)
        return torch.lgamma(length + 1.0) - factorials

    def fit_statistics(self, statistics: Sums) -> Self:
        """Weighted word frequencies, smoothed so that no probability is exactly zero."""
        counts = statistics.features[:, 1:]
        # One document that is far longer than the others must not smooth away what these say.
        level = torch.minimum(counts.mean(1, keepdim=True), statistics.count[:, None]).clamp(min=1e-300)
        counts = counts + self.smoothing * level
        return type(self)(counts / counts.sum(1, keepdim=True), self.total, self.smoothing)

    def split(self, member: int, pieces: int) -> Tensor:
        """Averaged features of parts that favour alternating words."""
        p = self.probability[member]
        parts = p * (1.0 + 0.5 * alternating_signs(p, pieces))
        counts = self.total * parts / parts.sum(1, keepdim=True)
        return torch.cat([counts.new_ones(pieces, 1), counts], dim=1)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return type(self)(self.probability[index], self.total, self.smoothing)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a multinomial distribution has no affine image among multinomial distributions")

    def covariance(self) -> forms.Dense:
        """total (diag(p) - p p'), (k, d, d)."""
        p = self.probability
        return forms.Dense(self.total * (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]))

    def draw(self, n: int, generator: Generator) -> Tensor:
        """Documents of ``total`` words, (k, n, d)."""
        k, d = self.probability.shape
        if n * self.total > TOGETHER:
            return self._draw_counts(n, generator)
        words = torch.multinomial(self.probability, n * self.total, replacement=True, generator=generator)
        row = torch.arange(n, device=words.device).repeat_interleave(self.total)
        flat = (torch.arange(k, device=words.device)[:, None] * n + row) * d + words
        counts = torch.bincount(flat.reshape(-1), minlength=k * n * d)
        return counts.reshape(k, n, d).to(self.probability.dtype)

    def _draw_counts(self, n: int, generator: Generator) -> Tensor:
        """Count by count, each binomial given those before it: memory does not grow with the words."""
        p = self.probability.double()
        rest = p.flip(1).cumsum(1).flip(1)
        left = p.new_full((len(p), n), float(self.total))
        counts = []
        for j in range(p.shape[1] - 1):
            share = (p[:, j] / rest[:, j]).clamp(max=1.0)
            counts.append(torch.binomial(left, share[:, None].expand_as(left), generator=generator))
            left = left - counts[-1]
        return torch.stack([*counts, left], 2).to(self.probability.dtype)

    def expected_log_likelihood(self, statistics: Sums) -> Tensor:
        """Expected log-probability of the statistics, summed over members."""
        return (statistics.features[:, 1:] * self.log_probability).sum()

    def free_parameters(self) -> dict[str, Tensor]:
        """Log-probabilities relative to each member's most frequent word."""
        top = self.probability.argmax(1, keepdim=True)
        rest = torch.ones_like(self.probability, dtype=torch.bool).scatter(1, top, False)
        logs = self.probability.log() - self.probability.gather(1, top).log()
        return {"log_odds": logs[rest].reshape(len(top), -1)}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other log-probabilities."""
        odds = free["log_odds"]
        top = self.probability.argmax(1, keepdim=True)
        order = torch.arange(self.probability.shape[1], device=top.device)
        place = torch.where(order == top, odds.shape[1], order - (order > top).long())
        logs = torch.cat([odds, odds.new_zeros(len(odds), 1)], dim=1).gather(1, place)
        return type(self)(logs.softmax(1), self.total, self.smoothing)

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"probabilities": self.probability}

    def is_floored(self) -> Tensor:
        """Never a warning: a word absent from a component is ordinary."""
        return torch.zeros(self.probability.shape[0], dtype=torch.bool, device=self.probability.device)


class MissingCountView:
    """A tile in which some counts are unknown."""

    def __init__(self, family: Multinomial, rows: Tensor) -> None:
        self.family = family
        self.seen: Tensor = (~torch.isnan(rows)).to(family.probability.dtype)
        self.counts: Tensor = torch.nan_to_num(rows, nan=0.0).to(family.probability.dtype)
        self.length: Tensor = self.counts.sum(1)
        mass = family.probability @ self.seen.mT
        # A row with nothing seen has no mass: 0 log 0 is 0.
        self.mass: Tensor = mass.clamp(min=torch.finfo(mass.dtype).tiny)

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-probability of the words seen, (k, n)."""
        joint = self.family.log_probability @ self.counts.mT - self.length * self.mass.log()
        return joint + offset[:, None]

    def summarise(self, share: Tensor) -> Sums:
        """Words seen, plus the expected counts of the unseen ones."""
        share = share.to(self.counts.dtype)
        unseen = (share * self.length / self.mass) @ (1.0 - self.seen)
        words = share @ self.counts + unseen * self.family.probability
        return Sums(torch.cat([share.sum(1, keepdim=True), words], dim=1))
