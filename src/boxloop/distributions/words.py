r"""Conjugate laws of word probabilities, and the documents they predict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.dirichlet import Dirichlet
from boxloop.distributions.family import Sums, has_missing, log_factorials
from boxloop.distributions.gamma import draw_log_gamma
from boxloop.distributions.multinomial import GappyCountView, Multinomial
from boxloop.distributions.product import LinearView
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree


@dataclass(frozen=True)
class WordDirichlet(Tree):
    r"""Laws of the word probabilities of multinomial documents, :math:`p_k \sim \mathrm{Dirichlet}(a_k)`.

    Args:
        concentration: a, (k, d); (1, d) for a prior that is the same for all.
        total: words in a document that is drawn or whose mean is asked for.

    Example:
        >>> import torch
        >>> from boxloop.distributions.family import Sums
        >>> prior = WordDirichlet(torch.ones(1, 2))
        >>> prior.after(Sums(torch.tensor([[1.0, 3.0, 0.0]]))).mean  # one document, one word three times
        tensor([[0.8000, 0.2000]])
    """

    concentration: Tensor
    total: int = 1

    @property
    def mean(self) -> Tensor:
        """Expected counts of a document of ``total`` words, (k, d)."""
        return self.total * self.law.mean()

    @cached_property
    def law(self) -> Dirichlet:
        """The laws of the probabilities, without the length of documents."""
        return Dirichlet(self.concentration)

    def after(self, statistics: Sums) -> Self:
        """After documents whose summed (1, counts) these are."""
        return type(self)(self.concentration + statistics.features[:, 1:], self.total)

    def families(self, c: int, stream: Generator) -> list[Multinomial]:
        """c draws of all k members."""
        shape = (c, *self.concentration.shape)
        logs = draw_log_gamma(self.concentration.expand(shape), stream).log_softmax(-1)
        return [Multinomial(each, self.total) for each in logs.exp()]

    def plug_in(self) -> tuple[ExpectedWords, Tensor]:
        r"""What :math:`E[\log p(x)]` is of each member: logs of probabilities that sum to less than one."""
        return ExpectedWords(self.law.expected_log(), self.total), self.concentration.new_zeros(
            self.concentration.shape[0]
        )

    def divergence(self, prior: WordDirichlet) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        return self.law.divergence(prior.law)

    def predictive(self) -> DirichletMultinomial:
        """The law of the next document of each member."""
        return DirichletMultinomial(self.concentration, self.total)

    def expanded(self, k: int) -> Self:
        """One law for each of k members."""
        return type(self)(self.concentration.expand(k, -1), self.total)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return type(self)(self.concentration[index], self.total)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a multinomial law has no affine image among multinomial laws")

    def is_proper(self) -> bool:
        """Whether every concentration is positive."""
        return self.law.is_proper()


@dataclass(frozen=True)
class ExpectedWords(Tree):
    r"""Multinomial laws at :math:`\tilde p_j = e^{E[\log p_j]}`, which sum to less than one.

    Counts that are missing are as in :class:`Multinomial`: given the total N of the words seen, an unseen word j has
    expected count :math:`N \tilde p_j / (1 - \sum_m \tilde p_m)`, the sum being over the unseen words m. What is short
    of one is that of a further word, seen and absent from every document.

    Args:
        log_probability: (k, d).
        total: words in a document.
    """

    log_probability: Tensor
    total: int = 1

    @property
    def mean(self) -> Tensor:
        """Expected counts of a document of ``total`` words, the probabilities made to sum to one, (k, d)."""
        return self.total * self.log_probability.softmax(1)

    def covariance(self) -> forms.Dense:
        """Of a document of ``total`` words, (k, d, d)."""
        return Multinomial(self.log_probability.softmax(1), self.total).covariance()

    @cached_property
    def _whole(self) -> Multinomial:
        """With the further word."""
        probability = self.log_probability.exp()
        rest = (1.0 - probability.sum(1, keepdim=True)).clamp(min=torch.finfo(probability.dtype).tiny)
        return Multinomial(torch.cat([probability, rest], dim=1), self.total)

    def view(self, rows: Tensor) -> LinearView | ShortView:
        """A tile of counts (n, d), dense or sparse CSR."""
        sparse = rows.layout != torch.strided
        if not has_missing(rows.values() if sparse else rows):
            return LinearView(
                self.log_probability, self.log_probability.new_zeros(len(self.log_probability)), rows
            )
        dense = rows.to_dense() if sparse else rows
        return ShortView(
            GappyCountView(self._whole, torch.cat([dense, dense.new_zeros(len(dense), 1)], dim=1))
        )

    def log_base(self, rows: Tensor) -> Tensor:
        """log N! - sum log x_j!, (n,), over the counts that are known."""
        return self._whole.log_base(rows)

    def complete(self, statistics: Sums) -> Tensor:
        """Expected log-probability of the statistics, summed over members."""
        return (statistics.features[:, 1:] * self.log_probability).sum()

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"probabilities": self.log_probability.softmax(1)}


class ShortView:
    """A view of documents with a word that is none of theirs."""

    def __init__(self, inner: GappyCountView) -> None:
        self.inner = inner

    def joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-probability of the words seen, (k, n)."""
        return self.inner.joint(offset)

    def summarise(self, share: Tensor) -> Sums:
        """Words seen, plus the expected counts of the unseen ones."""
        return Sums(self.inner.summarise(share).features[:, :-1])


@dataclass(frozen=True)
class DirichletMultinomial(Tree):
    r"""Documents whose word probabilities are drawn first.

    .. math:: p(x \mid N) = \frac{N!}{\prod_j x_j!} \frac{\Gamma(A)}{\Gamma(A + N)}
              \prod_j \frac{\Gamma(a_j + x_j)}{\Gamma(a_j)}, \qquad A = \sum_j a_j

    Words that are not known (NaN) are left out with their concentrations: the density is that of the words seen.

    Args:
        concentration: a, (k, d).
        total: words in a drawn document; ``mean`` and ``covariance`` refer to it.

    Example:
        >>> import torch
        >>> law = DirichletMultinomial(torch.ones(1, 2), total=3)
        >>> law.log_prob(torch.tensor([[3.0, 0.0], [1.0, 2.0]])).exp()  # all splits are as likely
        tensor([[0.2500, 0.2500]])
    """

    concentration: Tensor
    total: int = 1

    @property
    def mean(self) -> Tensor:
        """(k, d)."""
        return self.total * Dirichlet(self.concentration).mean()

    def covariance(self) -> forms.Dense:
        """(k, d, d)."""
        p = Dirichlet(self.concentration).mean()
        size = self.concentration.sum(1)
        spread = self.total * (size + self.total) / (size + 1.0)
        return forms.Dense(spread[:, None, None] * (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of every row's counts given their total, (k, n), dense or sparse CSR."""
        length, factorials = log_factorials(rows)
        sparse = rows.layout != torch.strided
        if sparse and not has_missing(rows.values()):
            return self._log_prob_sparse(rows) + torch.lgamma(length + 1.0) - factorials
        dense = rows.to_dense() if sparse else rows
        missing = torch.isnan(dense)
        counts, found = torch.nan_to_num(dense, nan=0.0), []
        for a in self.concentration:
            size = torch.where(missing, 0.0, a).sum(1)
            words = torch.where(counts > 0, torch.lgamma(a + counts) - torch.lgamma(a), 0.0).sum(1)
            found.append(
                torch.where(length > 0, torch.lgamma(size) - torch.lgamma(size + length), 0.0) + words
            )
        return torch.stack(found) + torch.lgamma(length + 1.0) - factorials

    def _log_prob_sparse(self, rows: Tensor) -> Tensor:
        """Less the coefficient; only words that occur are looked at."""
        values, column = rows.values(), rows.col_indices()
        row = torch.arange(rows.shape[0], device=values.device).repeat_interleave(rows.crow_indices().diff())
        zero, found = values.new_zeros(rows.shape[0]), []
        length = zero.index_add(0, row, values)
        for a in self.concentration:
            words = torch.lgamma(a[column] + values) - torch.lgamma(a[column])
            size = a.sum()
            found.append(zero.index_add(0, row, words) + torch.lgamma(size) - torch.lgamma(size + length))
        return torch.stack(found)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """Documents of ``total`` words, (k, n, d)."""
        k, d = self.concentration.shape
        logs = draw_log_gamma(self.concentration[:, None].expand(k, n, d), generator).log_softmax(-1)
        laws = Multinomial(logs.exp().reshape(k * n, d), self.total)
        return laws.draw(1, generator).reshape(k, n, d)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return type(self)(self.concentration[index], self.total)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a Dirichlet-multinomial law has no affine image among its kind")
