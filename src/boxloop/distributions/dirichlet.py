"""Dirichlet and stick-breaking distributions of weights, and Dirichlet-multinomial documents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import Sums, log_factorials
from boxloop.distributions.gamma import draw_log_gamma
from boxloop.distributions.multinomial import MissingCountView, Multinomial
from boxloop.distributions.product import LinearView
from boxloop.numeric import covariance as forms, has_missing
from boxloop.tree import Tree

LARGE = 1e3
"""Concentrations beyond which the terms of Stirling's series that are left out are below rounding."""


@dataclass(frozen=True)
class Dirichlet(Tree):
    r"""Distributions of weights, :math:`p(\pi) \propto \prod_k \pi_k^{a_k - 1}`.

    Args:
        concentration: a, (..., k), positive.
    """

    concentration: Tensor

    @property
    def n_components(self) -> int:
        """k."""
        return self.concentration.shape[-1]

    def posterior(self, count: Tensor) -> Self:
        """After components were seen ``count`` times, (..., k)."""
        return type(self)(self.concentration + count)

    def counts_since(self, prior: Dirichlet) -> Tensor:
        """How often each component was seen since ``prior``, (..., k)."""
        return self.concentration - prior.concentration

    def draw(self, stream: Generator) -> Tensor:
        """Logs of weights, (..., k)."""
        return draw_log_gamma(self.concentration, stream).log_softmax(-1)

    def log_prob(self, log_weight: Tensor) -> Tensor:
        """Log-density over the first k - 1 weights, (...)."""
        a = self.concentration
        constant = torch.lgamma(a.sum(-1)) - torch.lgamma(a).sum(-1)
        # A concentration of 1 says nothing, even of a weight that has underflowed.
        return constant + torch.where(a == 1.0, 0.0, (a - 1.0) * log_weight).sum(-1)

    def expected_log(self) -> Tensor:
        r""":math:`E[\log \pi_k] = \psi(a_k) - \psi(\sum_l a_l)`, (..., k)."""
        return self._expected_logs

    def mean(self) -> Tensor:
        """E[pi], (..., k)."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    def variance(self) -> Tensor:
        """Var[pi], (..., k)."""
        mean = self.mean()
        return mean * (1.0 - mean) / (self.concentration.sum(-1, keepdim=True) + 1.0)

    def divergence(self, prior: Dirichlet) -> Tensor:
        r"""Kullback-Leibler divergence from a prior, (...).

        .. math:: \log B(a_0) + \sum_k h(a_k) - h(\textstyle\sum_k a_k) - \sum_k a_{0k} E[\log \pi_k],
                  \qquad h(a) = a \psi(a) - \log \Gamma(a) - a

        Counts of 1e9 have terms of 1e10 whose sum is of the size of 10; those of h are as small as the sum.
        """
        a = self.concentration
        gain = _entropy_excess(a).sum(-1) - _entropy_excess(a.sum(-1))
        return log_beta(prior.concentration) + gain - (prior.concentration * self._expected_logs).sum(-1)

    def is_proper(self) -> bool:
        """Whether every concentration is positive."""
        return bool((self.concentration > 0.0).all())

    @cached_property
    def _expected_logs(self) -> Tensor:
        a = self.concentration
        total = a.sum(-1, keepdim=True)
        plain = torch.digamma(a) - torch.digamma(total)
        # log(a / total), to the last digit of what is short of zero, and what digamma has beside its logarithm
        rest = torch.where(a > 0.5 * total, 0.0, a).sum(-1, keepdim=True)
        ratio = torch.where(a > 0.5 * total, torch.log1p(-rest / total), (a / total).log())
        return torch.where(a > LARGE, ratio + _digamma_less_log(a) - _digamma_less_log(total), plain)


def _digamma_less_log(a: Tensor) -> Tensor:
    """Digamma less the logarithm, for large a."""
    return -0.5 / a - (1.0 / 12.0 - 1.0 / (120.0 * a.square())) / a.square()


def _entropy_excess(a: Tensor) -> Tensor:
    """a digamma(a) - log Gamma(a) - a, without its cancellation for large a."""
    large = 0.5 * (a / (2.0 * math.pi)).log() - 0.5 - (1.0 / 6.0 - 1.0 / (90.0 * a.square())) / a
    return torch.where(a > LARGE, large, a * torch.digamma(a) - torch.lgamma(a) - a)


def log_beta(concentration: Tensor) -> Tensor:
    r""":math:`\log \prod_k \Gamma(a_k) / \Gamma(\sum_k a_k)` over the last axis."""
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


@dataclass(frozen=True)
class StickBreaking(Tree):
    r"""Distributions of weights that are pieces broken off a stick.

    .. math:: \pi_j = v_j \prod_{l < j} (1 - v_l), \qquad v_j \sim \mathrm{Beta}(a_j, b_j), \qquad v_k = 1

    With :math:`a_j = 1` and :math:`b_j = \alpha` it is the Dirichlet process of concentration :math:`\alpha`, truncated
    (Blei and Jordan 2006, *Bayesian Analysis* 1). The order of components matters: the largest should come first.

    Args:
        first: a, (..., k - 1), positive.
        second: b, (..., k - 1), positive.
    """

    first: Tensor
    second: Tensor

    @classmethod
    def dirichlet_process(cls, n_components: int, concentration: Tensor) -> Self:
        """The Dirichlet process of a concentration (), cut off."""
        second = concentration.expand(n_components - 1).clone()
        return cls(torch.ones_like(second), second)

    @property
    def n_components(self) -> int:
        """k."""
        return self.first.shape[-1] + 1

    @cached_property
    def _break_distributions(self) -> Dirichlet:
        """(v, 1 - v) as Dirichlet distributions, (..., k - 1, 2)."""
        return Dirichlet(torch.stack([self.first, self.second], dim=-1))

    def posterior(self, count: Tensor) -> Self:
        """After components were seen ``count`` times, (..., k)."""
        beyond = count.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return type(self)(self.first + count[..., :-1], self.second + beyond)

    def counts_since(self, prior: StickBreaking) -> Tensor:
        """How often each of two or more components was seen since ``prior``, (..., k)."""
        last = (self.second - prior.second)[..., -1:]
        return torch.cat([self.first - prior.first, last], dim=-1)

    def log_evidence(self, count: Tensor) -> Tensor:
        """Log-probability that rows fall on components in this way, (...): what the order of components changes."""
        return (
            log_beta(self.posterior(count)._break_distributions.concentration)
            - log_beta(self._break_distributions.concentration)
        ).sum(-1)

    def draw(self, stream: Generator) -> Tensor:
        """Logs of weights, (..., k)."""
        pair = draw_log_gamma(self._break_distributions.concentration, stream).log_softmax(-1)
        return _log_stick_pieces(pair[..., 0], pair[..., 1])

    def log_prob(self, log_weight: Tensor) -> Tensor:
        """Log-density over the first k - 1 weights, (...)."""
        rest = log_weight.flip(-1).logcumsumexp(-1).flip(-1)
        logs = torch.stack([log_weight[..., :-1], rest[..., 1:]], dim=-1) - rest[..., :-1, None]
        return (self._break_distributions.log_prob(logs) - rest[..., :-1]).sum(-1)

    def expected_log(self) -> Tensor:
        r""":math:`E[\log \pi_j] = E[\log v_j] + \sum_{l < j} E[\log(1 - v_l)]`, (..., k)."""
        logs = self._break_distributions.expected_log()
        return _log_stick_pieces(logs[..., 0], logs[..., 1])

    def mean(self) -> Tensor:
        """E[pi], (..., k)."""
        share = self._break_distributions.mean().log()
        return _log_stick_pieces(share[..., 0], share[..., 1]).exp()

    def variance(self) -> Tensor:
        """Var[pi], (..., k)."""
        breaks = self._break_distributions
        square = (breaks.variance() + breaks.mean().square()).log()
        return (_log_stick_pieces(square[..., 0], square[..., 1]).exp() - self.mean().square()).clamp(min=0.0)

    def divergence(self, prior: StickBreaking) -> Tensor:
        """Kullback-Leibler divergence from a prior, (...): the sum of those of the sticks."""
        return self._break_distributions.divergence(prior._break_distributions).sum(-1)

    def is_proper(self) -> bool:
        """Whether every stick has valid parameters."""
        return self._break_distributions.is_proper()


def _log_stick_pieces(broken: Tensor, left: Tensor) -> Tensor:
    """Logs of pieces from logs of v and of 1 - v, (..., k - 1) -> (..., k)."""
    zero = torch.zeros_like(broken.sum(-1, keepdim=True))
    before = torch.cat([zero, left.cumsum(-1)], dim=-1)
    return torch.cat([broken, zero], dim=-1) + before


@dataclass(frozen=True)
class WordDirichlet(Tree):
    r"""Distributions of the word probabilities of multinomial documents, :math:`p_k \sim \mathrm{Dirichlet}(a_k)`.

    Args:
        concentration: a, (k, d); (1, d) for a prior that is the same for all.
        total: words in a document that is drawn or whose mean is asked for.
    """

    concentration: Tensor
    total: int = 1

    @property
    def mean(self) -> Tensor:
        """Expected counts of a document of ``total`` words, (k, d)."""
        return self.total * self.dirichlet.mean()

    @cached_property
    def dirichlet(self) -> Dirichlet:
        """The distributions of the probabilities, without the length of documents."""
        return Dirichlet(self.concentration)

    def update(self, statistics: Sums) -> Self:
        """After documents whose summed (1, counts) these are."""
        return type(self)(self.concentration + statistics.features[:, 1:], self.total)

    def draw_families(self, c: int, stream: Generator) -> list[Multinomial]:
        """c draws of all k members."""
        shape = (c, *self.concentration.shape)
        logs = draw_log_gamma(self.concentration.expand(shape), stream).log_softmax(-1)
        return [Multinomial(each, self.total) for each in logs.exp()]

    def plug_in(self) -> tuple[ExpectedWords, Tensor]:
        r"""What :math:`E[\log p(x)]` is of each member: logs of probabilities that sum to less than one."""
        return ExpectedWords(self.dirichlet.expected_log(), self.total), self.concentration.new_zeros(
            self.concentration.shape[0]
        )

    def divergence(self, prior: WordDirichlet) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        return self.dirichlet.divergence(prior.dirichlet)

    def predictive(self) -> DirichletMultinomial:
        """The distribution of the next document of each member."""
        return DirichletMultinomial(self.concentration, self.total)

    def expand_members(self, k: int) -> Self:
        """One distribution for each of k members."""
        return type(self)(self.concentration.expand(k, -1), self.total)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return type(self)(self.concentration[index], self.total)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a multinomial distribution has no affine image among multinomial distributions")

    def is_proper(self) -> bool:
        """Whether every concentration is positive."""
        return self.dirichlet.is_proper()


@dataclass(frozen=True)
class ExpectedWords(Tree):
    r"""Multinomial distributions at :math:`\tilde p_j = e^{E[\log p_j]}`, which sum to less than one.
    The rest is the probability of a further word, seen and absent from every document."""

    log_probability: Tensor  # (k, d)
    total: int = 1  # words in a document

    @property
    def mean(self) -> Tensor:
        """Expected counts of a document of ``total`` words, the probabilities made to sum to one, (k, d)."""
        return self.total * self.log_probability.softmax(1)

    def covariance(self) -> forms.Dense:
        """Of a document of ``total`` words, (k, d, d)."""
        return Multinomial(self.log_probability.softmax(1), self.total).covariance()

    @cached_property
    def _with_unseen_word(self) -> Multinomial:
        """With the further word."""
        probability = self.log_probability.exp()
        rest = (1.0 - probability.sum(1, keepdim=True)).clamp(min=torch.finfo(probability.dtype).tiny)
        return Multinomial(torch.cat([probability, rest], dim=1), self.total)

    def view(self, rows: Tensor) -> LinearView | _ObservedWordsView:
        """A tile of counts (n, d), dense or sparse CSR."""
        sparse = rows.layout != torch.strided
        if not has_missing(rows.values() if sparse else rows):
            return LinearView(
                self.log_probability, self.log_probability.new_zeros(len(self.log_probability)), rows
            )
        dense = rows.to_dense() if sparse else rows
        return _ObservedWordsView(
            MissingCountView(
                self._with_unseen_word, torch.cat([dense, dense.new_zeros(len(dense), 1)], dim=1)
            )
        )

    def log_base(self, rows: Tensor) -> Tensor:
        """log N! - sum log x_j!, (n,), over the counts that are known."""
        return self._with_unseen_word.log_base(rows)

    def expected_log_likelihood(self, statistics: Sums) -> Tensor:
        """Expected log-probability of the statistics, summed over members."""
        return (statistics.features[:, 1:] * self.log_probability).sum()

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"probabilities": self.log_probability.softmax(1)}


class _ObservedWordsView:
    """A view of documents with a word that is none of theirs."""

    def __init__(self, inner: MissingCountView) -> None:
        self.inner = inner

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-probability of the words seen, (k, n)."""
        return self.inner.log_joint(offset)

    def summarise(self, share: Tensor) -> Sums:
        """Words seen, plus the expected counts of the unseen ones."""
        return Sums(self.inner.summarise(share).features[:, :-1])


@dataclass(frozen=True)
class DirichletMultinomial(Tree):
    r"""Documents whose word probabilities are drawn first; words that are not known (NaN) are left out.

    .. math:: p(x \mid N) = \frac{N!}{\prod_j x_j!} \frac{\Gamma(A)}{\Gamma(A + N)}
              \prod_j \frac{\Gamma(a_j + x_j)}{\Gamma(a_j)}, \qquad A = \sum_j a_j
    """

    concentration: Tensor  # a, (k, d)
    total: int = 1  # words in a drawn document; ``mean`` and ``covariance`` refer to it

    @property
    def mean(self) -> Tensor:
        """(k, d)."""
        return self.total * Dirichlet(self.concentration).mean()

    def covariance(self) -> forms.Dense:
        """(k, d, d)."""
        p = Dirichlet(self.concentration).mean()
        size = self.concentration.sum(1)
        scale = self.total * (size + self.total) / (size + 1.0)
        return forms.Dense(scale[:, None, None] * (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of every row's counts given their total, (k, n), dense or sparse CSR."""
        length, factorials = log_factorials(rows)
        sparse = rows.layout != torch.strided
        if sparse and not has_missing(rows.values()):
            return self._log_prob_sparse(rows) + torch.lgamma(length + 1.0) - factorials
        dense = rows.to_dense() if sparse else rows
        missing = torch.isnan(dense)
        counts, log_probs = torch.nan_to_num(dense, nan=0.0), []
        for a in self.concentration:
            size = torch.where(missing, 0.0, a).sum(1)
            words = torch.where(counts > 0, torch.lgamma(a + counts) - torch.lgamma(a), 0.0).sum(1)
            log_probs.append(
                torch.where(length > 0, torch.lgamma(size) - torch.lgamma(size + length), 0.0) + words
            )
        return torch.stack(log_probs) + torch.lgamma(length + 1.0) - factorials

    def _log_prob_sparse(self, rows: Tensor) -> Tensor:
        """Less the coefficient; only words that occur are looked at."""
        values, column = rows.values(), rows.col_indices()
        row = torch.arange(rows.shape[0], device=values.device).repeat_interleave(rows.crow_indices().diff())
        zero, log_probs = values.new_zeros(rows.shape[0]), []
        length = zero.index_add(0, row, values)
        for a in self.concentration:
            words = torch.lgamma(a[column] + values) - torch.lgamma(a[column])
            size = a.sum()
            log_probs.append(zero.index_add(0, row, words) + torch.lgamma(size) - torch.lgamma(size + length))
        return torch.stack(log_probs)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """Documents of ``total`` words, (k, n, d)."""
        k, d = self.concentration.shape
        logs = draw_log_gamma(self.concentration[:, None].expand(k, n, d), generator).log_softmax(-1)
        documents = Multinomial(logs.exp().reshape(k * n, d), self.total)
        return documents.draw(1, generator).reshape(k, n, d)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return type(self)(self.concentration[index], self.total)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a Dirichlet-multinomial distribution has no affine image among its kind")
