"""The Gibbs kernel of Gaussian mixtures: identities, closed forms, the joint distribution, and bugs it must show."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.chain import advance
from boxloop.distributions import Component, Dirichlet, MixturePrior, NormalInverseGamma, NormalInverseWishart
from boxloop.models import Mixture
from boxloop.numeric import generator, normal
from boxloop.sample import (
    TILE_ENTRIES,
    MixtureRows,
    compute_component_probabilities,
    compute_natural_parameters,
    make_mixture_kernel,
    pack_mixture,
    start_mixture,
    sweep_rows,
    unpack_mixture,
)
from contract.scores import assert_scores, mean_scores, moment_scores
from sample.calibrated import joint_scores, ranks, uniform_chances

EXACT = {"rtol": 1e-10, "atol": 1e-10}
kinds = pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])


def make_prior(k: int = 3, d: int = 2, *, diagonal: bool = False) -> MixturePrior:
    """Informative enough that all moments in use are finite, and unlike in every component."""
    centre = 0.3 * torch.arange(k * d, dtype=torch.float64).reshape(k, d)
    strength, dof = torch.linspace(0.5, 1.0, k).double(), torch.linspace(d + 9.0, d + 12.0, k).double()
    weights = Dirichlet(torch.linspace(1.0, 3.0, k).double())
    scale = torch.tensor([3.0, 5.0, 4.0], dtype=torch.float64)[:d]
    if diagonal:
        return MixturePrior(weights, NormalInverseGamma(centre, strength, dof, scale.expand(k, d)))
    full = torch.diag(scale) + 0.5
    return MixturePrior(weights, NormalInverseWishart(centre, strength, dof, full.expand(k, d, d)))


def draw_tables(prior: MixturePrior, c: int, n: int, seed: int = 0) -> tuple[Tensor, Component, Tensor]:
    """Log-weights and components of c mixtures, and n rows of each, (c, n, d)."""
    stream = generator(seed)
    log_weight, family = prior.draw(c, stream)
    k = prior.n_components
    component = torch.multinomial(log_weight.exp(), n, replacement=True, generator=stream)
    member = (torch.arange(c)[:, None] * k + component).reshape(-1)
    return log_weight, family, family.select(member).draw(1, stream).reshape(c, n, -1)


def looks(prior: MixturePrior, rows: Tensor, diagonal: bool):
    """Parameters, their squares, and their products with a mean of the rows."""
    centre = rows.mean(1)
    free = 1 if prior.n_components == 1 else 0  # a single weight never changes

    def look(position: Tensor) -> Tensor:
        p = position[:, free:]
        return torch.cat([p, p.square(), p * centre[:, :1], p * centre[:, -1:].square()], 1)

    return look


@kinds
def test_positions_come_back(diagonal: bool) -> None:
    prior = make_prior(diagonal=diagonal)
    log_weight, family = prior.draw(4, generator(0))
    position = pack_mixture(log_weight, family)
    again, members = unpack_mixture(position, 3, 2, diagonal=diagonal)
    assert_close(again, log_weight)
    for (_, a), (_, b) in zip(family.leaves(), members.leaves(), strict=True):
        assert_close(a, b)
    stacked, members = unpack_mixture(position.reshape(2, 2, -1), 3, 2, diagonal=diagonal)
    assert stacked.shape == (2, 2, 3)
    assert members.mean.shape == (12, 2)


@kinds
def test_stored_density_is_that_of_the_parameters(diagonal: bool) -> None:
    prior = make_prior(diagonal=diagonal)
    rows = normal((50, 2), generator(1))
    kernel = make_mixture_kernel(rows, prior)
    chains = advance(kernel, kernel.init(start_mixture(rows, prior, 3, generator(2))), 4, generator(3)).chains
    assert_close(kernel.init(chains.position).log_density, chains.log_density, **EXACT)
    for i in range(3):
        log_weight, family = unpack_mixture(chains.position[i : i + 1], 3, 2, diagonal=diagonal)
        density = Mixture(log_weight[0], family).log_prob(rows).sum() + prior.log_prob(log_weight, family)[0]
        assert_close(chains.log_density[i], density, **EXACT)


def test_order_of_components_does_not_change_the_density() -> None:
    prior = MixturePrior.from_moments(
        torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64), 3, diagonal=True
    )
    log_weight, family = prior.draw(1, generator(0))
    rows = normal((20, 2), generator(1))
    turn = torch.tensor([2, 0, 1])
    turned = pack_mixture(log_weight[:, turn], family.select(turn))
    kernel = make_mixture_kernel(rows, prior)
    first, second = kernel.init(pack_mixture(log_weight, family)), kernel.init(turned)
    assert_close(first.log_density, second.log_density, **EXACT)


@kinds
def test_tiles_and_whole_give_the_same(diagonal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = make_prior(diagonal=diagonal)
    rows = normal((301, 2), generator(1))
    there = prior.draw(3, generator(2))
    whole = MixtureRows(rows, diagonal)
    monkeypatch.setitem(TILE_ENTRIES, "cpu", 700)
    monkeypatch.setattr(sys.modules["boxloop.sample.kernels.mixture_gibbs"], "STORED", 100)
    tiled = MixtureRows(rows, diagonal)
    assert tiled.stored is None
    assert len(tiled.list_spans(9)) > 3
    assert_close(sweep_rows(tiled, *there, None)[1], sweep_rows(whole, *there, None)[1], **EXACT)
    sums, _ = sweep_rows(tiled, *there, generator(0))
    assert_close(sums.sum(1), whole.total.expand(3, -1), **EXACT)


def test_components_of_rows_have_their_shares() -> None:
    """Counts of drawn components against responsibilities, over many chains at the same parameters."""
    prior = make_prior()
    log_weight, family = prior.draw(1, generator(4))
    rows = normal((3, 2), generator(5))
    c = 20_000
    many = family.map(lambda leaf: leaf.repeat(c, *[1] * (leaf.dim() - 1)))
    sums, _ = sweep_rows(MixtureRows(rows, False), log_weight.expand(c, 3), many, generator(6))
    share = Mixture(log_weight[0], family).posterior(rows)
    assert_scores(mean_scores(sums[:, :, 0], share.sum(0)))
    assert_scores(mean_scores(sums[:, :, 1], share.mT @ rows[:, 0]))
    assert bool((sums[..., 0].sum(1) == 3).all())


@kinds
def test_a_table_for_each_chain(diagonal: bool) -> None:
    """Chains that share a table, and chains with copies of it, make the same steps."""
    prior = make_prior(diagonal=diagonal)
    rows = normal((40, 2), generator(1))
    start = start_mixture(rows, prior, 3, generator(2))
    paths = []
    for table in (rows, rows.expand(3, 40, 2)):
        kernel = make_mixture_kernel(table, prior)
        paths.append(advance(kernel, kernel.init(start), 5, generator(3)))
    assert_close(paths[0].position, paths[1].position, **EXACT)


@kinds
def test_one_component_is_its_closed_form(diagonal: bool) -> None:
    """The posterior of a single Gaussian, drawn exactly in every step; false alarms as in contract.scores."""
    prior = make_prior(1, diagonal=diagonal)
    rows = normal((15, 2), generator(7)) + 1.0
    sums = MixtureRows(rows, diagonal).total
    known = prior.components.posterior(sums[None])
    kernel = make_mixture_kernel(rows, prior)
    start = start_mixture(rows, prior, 20_000, generator(8))
    _, family = unpack_mixture(
        advance(kernel, kernel.init(start), 2, generator(9)).chains.position, 1, 2, diagonal=diagonal
    )
    dof = float(known.dof)
    if diagonal:
        covariance = torch.diag(known.scale[0] / (dof - 2))
        assert_scores(mean_scores(family.variance, covariance.diagonal()))
    else:
        covariance = known.scale[0] / (dof - 3)
        i, j = torch.triu_indices(2, 2)
        assert_scores(mean_scores((family.factor @ family.factor.mT)[:, i, j], covariance[i, j]))
    assert_scores(moment_scores(family.mean, known.mean[0], covariance / known.strength[0]))


@kinds
@pytest.mark.parametrize("k", [1, 3])
def test_the_joint_distribution_stays(k: int, diagonal: bool) -> None:
    """Geweke's test over 20,000 pairs; false alarms as in contract.scores."""
    prior = make_prior(k, diagonal=diagonal)
    log_weight, family, rows = draw_tables(prior, 20_000, 8)
    kernel = make_mixture_kernel(rows, prior)
    position = pack_mixture(log_weight, family)
    assert_scores(joint_scores(kernel, position, looks(prior, rows, diagonal)))


def exact_partitions(rows: Tensor, prior: MixturePrior) -> tuple[Tensor, Tensor]:
    """Every allocation of n rows, (k^n, n), and its posterior probability, parameters integrated out."""
    n, k = len(rows), prior.n_components
    where = torch.cartesian_prod(*[torch.arange(k)] * n)
    features = MixtureRows(rows, False).stored.mT
    sums = torch.stack([torch.stack([features[z == j].sum(0) for j in range(k)]) for z in where])
    # The evidence is prior times likelihood over posterior, at any parameters.
    _, there = prior.draw(1, generator(20))
    every = there.map(lambda leaf: leaf.repeat(len(where), *[1] * (leaf.dim() - 1)))
    likelihood = (compute_natural_parameters(there) * sums).sum(-1)
    after = prior.components.posterior(sums)
    evidence = prior.components.log_prob(there) + likelihood - after.log_prob(every).reshape(len(where), k)
    a, count = prior.weights.concentration, sums[..., 0]
    weight = (torch.lgamma(a + count) - torch.lgamma(a)).sum(-1)
    return where, (evidence.sum(-1) + weight).softmax(0)


def test_rows_go_together_as_enumeration_says() -> None:
    """Five rows have 32 allocations to two components: exact probabilities against 4000 independent chains."""
    prior = make_prior(2)
    rows = torch.tensor([[0.0, 0.0], [0.5, 0.2], [2.0, 2.5], [2.5, 1.5], [1.2, 1.0]], dtype=torch.float64)
    where, chance = exact_partitions(rows, prior)
    kernel = make_mixture_kernel(rows, prior)
    start = start_mixture(rows, prior, 4000, generator(21))
    chains = advance(kernel, kernel.init(start), 60, generator(22)).chains
    there = unpack_mixture(chains.position, 2, 2, diagonal=False)
    share = compute_component_probabilities(*there, MixtureRows(rows, False))  # (s, k, n)
    i, j = torch.triu_indices(5, 5, offset=1)
    together = (share[:, :, i] * share[:, :, j]).sum(1)
    exact = ((where[:, i] == where[:, j]) * chance[:, None]).sum(0)
    assert_scores(mean_scores(together, exact))
    first = (chance[:, None] * (where == 0)).sum(0)  # unlike priors tell components apart
    assert_scores(mean_scores(share[:, 0], first))


def parameters(distribution: NormalInverseWishart) -> tuple[Tensor, ...]:
    """What a distribution is made of, and nothing of what it has worked out."""
    return distribution.mean, distribution.strength, distribution.dof, distribution.scale


class OneRowLess(NormalInverseWishart):
    """Planted: degrees of freedom miss one row."""

    def posterior(self, sums: Tensor) -> NormalInverseWishart:
        distribution = NormalInverseWishart.posterior(NormalInverseWishart(*parameters(self)), sums)
        return NormalInverseWishart(
            distribution.mean, distribution.strength, distribution.dof - 1.0, distribution.scale
        )


class WithoutPriorScale(NormalInverseWishart):
    """Planted: the prior's own term between its mean and that of the rows is dropped from the scatter."""

    def posterior(self, sums: Tensor) -> NormalInverseWishart:
        prior = NormalInverseWishart(*parameters(self))
        distribution = prior.posterior(sums)
        apart = self.mean - distribution.mean
        pull = self.strength[..., None, None] * apart[..., :, None] * apart[..., None, :]
        return NormalInverseWishart(
            distribution.mean, distribution.strength, distribution.dof, distribution.scale - 0.5 * pull
        )


class SpreadOfOneRow(NormalInverseWishart):
    """Planted: means are drawn as if the prior were worth no rows."""

    def posterior(self, sums: Tensor) -> NormalInverseWishart:
        distribution = NormalInverseWishart.posterior(NormalInverseWishart(*parameters(self)), sums)
        return NormalInverseWishart(
            distribution.mean, sums[..., 0] + 0.1, distribution.dof, distribution.scale
        )


class WithoutCounts(Dirichlet):
    """Planted: weights forget half of the rows."""

    def posterior(self, count: Tensor) -> Dirichlet:
        return Dirichlet(self.concentration + 0.5 * count)


@pytest.mark.parametrize("bug", [OneRowLess, WithoutPriorScale, SpreadOfOneRow, WithoutCounts])
def test_planted_bugs_break_the_joint_distribution(bug: type) -> None:
    prior = make_prior()
    log_weight, family, rows = draw_tables(prior, 20_000, 8)
    weights, components = prior.weights, prior.components
    if issubclass(bug, Dirichlet):
        weights = bug(weights.concentration)
    else:
        components = bug(*parameters(components))
    kernel = make_mixture_kernel(rows, MixturePrior(weights, components))
    scores = joint_scores(kernel, pack_mixture(log_weight, family), looks(prior, rows, False))
    with pytest.raises(AssertionError, match="z-score"):
        assert_scores(scores)


def label_free(diagonal: bool):
    """Largest weight, mean of the first column, and mean of the log-variance over components."""

    def look(position: Tensor) -> Tensor:
        log_weight, family = unpack_mixture(position, 2, 2, diagonal=diagonal)
        c = len(position)
        centre = (log_weight.exp() * family.mean[:, 0].reshape(c, 2)).sum(1)
        spread = family.covariance().dense()[:, 0, 0].log().reshape(c, 2).mean(1)
        return torch.stack([log_weight.amax(1), centre, spread], 1)

    return look


@kinds
@pytest.mark.parametrize("simulations", [500, pytest.param(4000, marks=pytest.mark.slow)])
def test_ranks_are_uniform(diagonal: bool, simulations: int) -> None:
    """Simulation-based calibration. Six p-values a size: one below 1e-5 in 1 run of 16,000."""
    prior = make_prior(2, diagonal=diagonal)
    log_weight, family, rows = draw_tables(prior, simulations, 20, seed=1)
    start = pack_mixture(*prior.draw(simulations, generator(2)))
    kernel = make_mixture_kernel(rows, prior)
    truth = pack_mixture(log_weight, family)
    rank = ranks(kernel, truth, start, label_free(diagonal), draws=31, thin=8, burn=100)
    assert min(uniform_chances(rank, 31)) > 1e-5


def test_ranks_show_a_wrong_posterior() -> None:
    prior = make_prior(2)
    log_weight, family, rows = draw_tables(prior, 1000, 20, seed=1)
    wrong = MixturePrior(prior.weights, OneRowLess(*parameters(prior.components)))
    narrow = MixturePrior(WithoutCounts(wrong.weights.concentration), wrong.components)
    kernel = make_mixture_kernel(rows, narrow)
    truth = pack_mixture(log_weight, family)
    rank = ranks(kernel, truth, truth, label_free(False), draws=31, thin=8, burn=100)
    assert min(uniform_chances(rank, 31)) < 1e-5


def test_starts_are_scattered_and_sane() -> None:
    rows = torch.cat([normal((100, 2), generator(0)), normal((100, 2), generator(1)) + 20.0])
    prior = MixturePrior.from_moments(rows.mean(0), rows.T.cov(), 2)
    start = start_mixture(rows, prior, 50, generator(2))
    assert bool(torch.isfinite(start).all())
    assert bool((start.std(0) > 0).all())
    _, family = unpack_mixture(start, 2, 2, diagonal=False)
    near = (family.mean.reshape(50, 2, 2)[:, :, 0] > 10.0).sum(1)
    assert float((near == 1).double().mean()) > 0.9


def test_equal_rows_start_too() -> None:
    rows = torch.ones(10, 2, dtype=torch.float64)
    prior = make_prior(3)
    kernel = make_mixture_kernel(rows, prior)
    path = advance(kernel, kernel.init(start_mixture(rows, prior, 2, generator(0))), 20, generator(1))
    assert bool(torch.isfinite(path.position).all())
