"""Counts: sparse = dense, words nobody counted, splits of rare things."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop.distributions import Bernoulli, Multinomial, Poisson, Sums, alternating_signs
from boxloop.models import Mixture
from contract.distribution_checks import near
from contract.distributions import uniform

K, D, N = 3, 6, 40


def families() -> dict[str, Any]:
    stream = Generator().manual_seed(0)
    p = uniform(stream, K, D, low=0.05, high=0.9)
    return {
        "Poisson": Poisson(2.0 * p),
        "Bernoulli": Bernoulli(p),
        "Multinomial": Multinomial(p / p.sum(1, keepdim=True), total=7),
    }


def table(family: Any) -> Tensor:
    rows = family.draw(N, Generator().manual_seed(1)).reshape(-1, D)[:N]
    rows[3] = 0.0
    return rows


def sparse(rows: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return rows.to_sparse_csr()


@pytest.mark.parametrize("name", families())
@pytest.mark.parametrize("gaps", [False, True])
def test_sparse_rows_give_what_dense_rows_give(name: str, gaps: bool) -> None:
    model = Mixture(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log(), families()[name])
    dense = table(model.family)
    if gaps:
        dense[5, 2], dense[6, :] = math.nan, math.nan
    weight = uniform(Generator().manual_seed(2), N)
    thin = sparse(dense)
    near(model.expect(thin, weight), model.expect(dense, weight), rtol=1e-13)
    assert_close(model.log_prob(thin), model.log_prob(dense), rtol=1e-13, atol=1e-13)
    assert_close(model.posterior(thin), model.posterior(dense), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", families())
def test_float32_counts(name: str) -> None:
    model = Mixture(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log(), families()[name])
    rows, weight = table(model.family), torch.ones(N).double()
    low, high = model.expect(rows.float(), weight), model.expect(rows, weight)
    near(low, high, rtol=1e-6)
    near(model.expect(sparse(rows.float()), weight), high, rtol=1e-6)


def test_unknown_counts_leave_the_distribution_of_the_known_words() -> None:
    """Given their number, the words seen are multinomial in their own proportions; all outcomes sum to one."""
    family = families()["Multinomial"]
    seen, total = [0, 2, 5], 4
    outcomes = [c for c in itertools.product(range(total + 1), repeat=3) if sum(c) == total]
    rows = torch.full((len(outcomes), D), math.nan, dtype=torch.float64)
    rows[:, seen] = torch.tensor(outcomes, dtype=torch.float64)
    mass = family.log_prob(rows).exp().sum(1)
    assert_close(mass, torch.ones(K).double(), rtol=1e-12, atol=0)
    own = family.probability[:, seen]
    known = Multinomial(own / own.sum(1, keepdim=True))
    assert_close(family.log_prob(rows), known.log_prob(rows[:, seen]), rtol=1e-12, atol=1e-12)


def test_with_no_word_known_nothing_is_learnt() -> None:
    family = families()["Multinomial"]
    rows = torch.full((2, D), math.nan, dtype=torch.float64)
    assert family.log_prob(rows).eq(0).all()
    share = torch.ones(K, 2).double()
    assert family.view(rows).summarise(share).features[:, 1:].eq(0).all()


def test_em_with_unknown_counts_climbs_to_a_flat_place() -> None:
    family = families()["Multinomial"]
    rows = table(family)
    rows[uniform(Generator().manual_seed(3), N, D) < 0.3] = math.nan
    model, weight = (
        Mixture(torch.full((K,), 1 / K, dtype=torch.float64).log(), family),
        torch.ones(N).double(),
    )
    levels = []
    for _ in range(300):
        expected = model.expect(rows, weight)
        levels.append(float(expected.log_likelihood))
        model = model.solve(expected.statistics)
    rises = torch.tensor(levels).diff()
    assert float(rises.min()) > -1e-9 * abs(levels[-1])
    assert float(rises[-1]) < 1e-3 * float(rises[0])


def test_a_zero_count_is_smoothed_only_a_little() -> None:
    family = Multinomial(torch.full((1, 3), 1 / 3, dtype=torch.float64))
    rows = torch.tensor([[3.0, 1.0, 0.0]], dtype=torch.float64)
    fitted = family.fit_statistics(family.view(rows).summarise(torch.ones(1, 1).double()))
    assert_close(
        fitted.probability[0, :2], torch.tensor([0.75, 0.25], dtype=torch.float64), rtol=1e-9, atol=0
    )
    assert 0.0 < float(fitted.probability[0, 2]) < 1e-9


@pytest.mark.parametrize("level", [1e-6, 0.5, 1 - 1e-6])
def test_parts_of_a_rare_thing_differ(level: float) -> None:
    parts = Bernoulli(torch.full((1, D), level, dtype=torch.float64)).split(0, 4)[:, 1:]
    assert bool(((parts > 0) & (parts < 1)).all())
    assert len({tuple(part.tolist()) for part in parts}) == 4
    rates = Poisson(torch.full((1, D), level, dtype=torch.float64)).split(0, 4)[:, 1:]
    assert bool((rates > 0).all())
    assert len({tuple(rate.tolist()) for rate in rates}) == 4


@pytest.mark.parametrize("name", ["Poisson", "Bernoulli"])
def test_a_floor_keeps_the_density_finite(name: str) -> None:
    family, rows = families()[name], torch.zeros(4, D).double()
    fitted = family.fit_statistics(family.view(rows).summarise(torch.ones(K, 4).double()))
    assert bool(torch.isfinite(fitted.log_prob(torch.ones(1, D).double())).all())
    assert_close(fitted.log_prob(rows), torch.zeros(K, 4).double(), rtol=0, atol=1e-8)


def test_a_floor_keeps_chances_from_one() -> None:
    family, rows = families()["Bernoulli"], torch.ones(4, D).double()
    fitted = family.fit_statistics(family.view(rows).summarise(torch.ones(K, 4).double()))
    assert bool(torch.isfinite(fitted.log_prob(torch.zeros(1, D).double())).all())
    assert_close(fitted.log_prob(rows), torch.zeros(K, 4).double(), rtol=0, atol=1e-8)


def test_pieces_of_a_poisson_member_are_half_a_standard_deviation_away() -> None:
    """Along alternating signs of columns: four times a rate of 16 is 2 above or below it, and a rate of 0.01 no less
    than a tenth of itself."""
    distribution = Poisson(torch.tensor([[16.0, 64.0, 0.01]]).double())
    pieces = distribution.perturb(0, 3)
    signs = alternating_signs(distribution.mean[0], 3)
    assert_close(pieces[:, :2] - distribution.mean[:, :2], signs[:, :2] * torch.tensor([2.0, 4.0]).double())
    assert float(pieces[:, 2].min()) == pytest.approx(0.001)
    assert len({tuple(piece.tolist()) for piece in pieces}) == 3


def test_log_probabilities_near_one_keep_their_digits() -> None:
    """log(1 - 1e-12) from its own logarithm errs by 2e-5 of itself, and a document of 1e12 words by as many nats."""
    distribution = Multinomial(torch.tensor([[1.0 - 3e-12, 1e-12, 2e-12]]).double())
    assert float(distribution.log_probability[0, 0]) == pytest.approx(math.log1p(-3e-12), rel=1e-15)
    assert_close(
        distribution.log_probability[:, 1:], distribution.probability[:, 1:].log(), rtol=0.0, atol=0.0
    )


def test_one_long_document_does_not_smooth_the_others_away() -> None:
    """A pseudo-count is at most 1e-10 of a document's word, however long one document is."""
    words = torch.tensor([[1.0, 1e12, 0.0]]).double()
    distribution = Multinomial(torch.full((1, 2), 0.5).double()).fit_statistics(Sums(words))
    assert float(distribution.probability[0, 1]) == pytest.approx(1e-22, rel=1e-6)


def test_documents_of_very_many_words_are_drawn_count_by_count() -> None:
    """Word by word they would take the memory of their words; each Pearson statistic has d - 1 degrees of freedom.

    The mean of 4000 has a z-score above 4.5 by chance in 1 run of 100,000.
    """
    p, total, n = torch.tensor([[0.2, 0.5, 0.3], [1.0 - 2e-6, 1e-6, 1e-6]]).double(), 2**30, 4000
    rows = Multinomial(p, total=total).draw(n, Generator().manual_seed(0))
    assert rows.shape == (2, n, 3)
    assert bool((rows.sum(2) == total).all())
    expected = total * p[:, None]
    pearson = ((rows - expected).square() / expected).sum(2).mean(1)
    assert bool(((pearson - 2.0).abs() < 4.5 * math.sqrt(4.0 / n)).all())


def test_pieces_of_bits_and_of_words_are_near_their_member() -> None:
    """One unit of log-odds away, and half of each probability before they are divided by their sum."""
    bits = Bernoulli(torch.tensor([[0.2, 0.001, 0.7]]).double())
    moved = torch.logit(bits.perturb(0, 3)) - torch.logit(bits.mean[0])
    assert_close(moved, alternating_signs(bits.mean[0], 3))
    assert_close(moved.abs().amax(0), torch.ones(3).double())
    words = Multinomial(torch.tensor([[0.2, 0.3, 0.5]]).double())
    weight = words.probability[0] * (1.0 + 0.5 * alternating_signs(words.probability[0], 2))
    parts = words.split(0, 2)[:, 1:]
    assert_close(parts / parts.sum(1, keepdim=True), weight / weight.sum(1, keepdim=True))
