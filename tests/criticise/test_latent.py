"""Codes of an autoencoder: which columns are used, and how far all of them together are from the prior."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop import VariationalAutoencoder, mega
from boxloop.criticise import active_units, aggregate_gap
from boxloop.distributions import DiagonalGaussian
from boxloop.figures import png
from boxloop.models import (
    Autoencoder,
    FactorModel,
    GaussianHead,
    Layers,
    NormalMixturePrior,
    Part,
    StandardNormal,
)
from boxloop.numeric import generator, normal
from contract.scores import assert_scores
from models.autoencoder_cases import exact, rows_of, small


def coded(slope: Tensor, level: Tensor) -> Autoencoder:
    """q(z|x) = N(slope x, exp(level)) of one column of rows, k columns of codes; the decoder does not matter."""
    k = len(slope)
    encoder = Part(
        Layers(1, (), 2 * k),
        (torch.cat([slope, 0 * slope])[None], torch.cat([0 * slope, level])),
    )
    decoder = Part(Layers(k, (), 2), (torch.zeros(k, 2).double(), torch.zeros(2).double()))
    return Autoencoder.from_parts(encoder, decoder, GaussianHead(), StandardNormal(k), 1)


SLOPE = torch.tensor([0.8, 0.0, 0.05]).double()
LEVEL = torch.tensor([0.36, 1.0, 0.9975]).double().log()


def test_columns_that_say_nothing_are_not_active() -> None:
    """Rows are standard normal: the variance of a posterior mean is slope^2, its divergence known."""
    rows = normal((4000, 1), generator(0))
    found = active_units(coded(SLOPE, LEVEL), rows.numpy())
    assert found.active.tolist() == [True, False, False]
    assert found.count == 1
    error = np.where(found.error > 0, found.error, 1.0)
    assert_scores(torch.from_numpy((found.variance - SLOPE.square().numpy()) / error))
    assert found.variance[1] == found.error[1] == found.divergence[1] == 0.0
    expected = 0.5 * (SLOPE.square() + LEVEL.exp() - 1.0 - LEVEL)
    shortfall = torch.from_numpy(found.divergence) - expected
    assert_scores(shortfall[[0, 2]] / torch.from_numpy(found.divergence_error)[[0, 2]])
    assert list(found.summary().index) == ["z0", "z2", "z1"]
    assert found.n_rows == 4000


def test_the_error_of_a_variance_is_that_of_many_tables() -> None:
    variances = [active_units(coded(SLOPE, LEVEL), normal((200, 1), generator(s))) for s in range(800)]
    spread = np.std([found.variance[0] for found in variances])
    assert np.mean([found.error[0] for found in variances]) == pytest.approx(
        spread, rel=0.12
    )  # 4.8 errors of the spread


def test_divergences_add_up_to_that_of_the_bound() -> None:
    model, truth = exact()
    rows = truth.sample(300, generator(0))[0]
    total = model.evidence_bound(rows, generator(1)).divergence.mean()
    assert active_units(model, rows).divergence.sum() == pytest.approx(float(total), rel=1e-10)
    chunks = np.vsplit(rows.numpy(), 3)
    parts = np.mean([active_units(model, part).divergence for part in chunks], axis=0)
    np.testing.assert_allclose(parts, active_units(model, rows.numpy()).divergence, rtol=1e-10)
    mixture = small(latent="mixture")
    assert active_units(mixture, rows_of(mixture)).divergence.shape == (2,)


def test_codes_that_follow_the_prior_pass() -> None:
    """The exact posterior of rows of the model averages to the prior."""
    model, truth = exact()
    found = aggregate_gap(model, truth.sample(800, generator(0))[0])
    assert found.p_value > 1e-3
    assert_scores(torch.tensor(list(found.z().values())))
    assert (
        found.divergence_low.value - 4 * found.divergence_low.error
        < 0.0
        < found.divergence_high.value + 4 * found.divergence_high.error
    )
    assert found.divergence_low.value < found.divergence_high.value
    assert found.n_rows == 800


def test_codes_elsewhere_are_found_and_the_divergence_is_bracketed() -> None:
    r"""Rows standard normal, codes N(a x, v): q(z) = N(0, a^2 + v), so that its divergence is known."""
    a, v = 1.5, 0.5
    model = coded(torch.tensor([a]).double(), torch.tensor([v]).double().log())
    wide = a * a + v
    truth = 0.5 * (wide - 1.0 - math.log(wide))
    found = [aggregate_gap(model, normal((400, 1), generator(s)), s, permutations=49) for s in range(20)]
    assert all(gap.p_value <= 0.02 for gap in found)
    least, most = (
        np.array([getattr(gap, name).value for gap in found])
        for name in ("divergence_low", "divergence_high")
    )
    assert np.all(least < most)
    error = least.std(ddof=1) / math.sqrt(len(found))
    assert least.mean() < truth + 4 * error
    assert most.mean() > truth - 4 * error
    assert most.mean() - least.mean() < 0.05
    second = np.array([gap.second[0, 0] / gap.second_error[0, 0] for gap in found])
    assert second.min() > 4.0
    rates = np.array([gap.rate.value for gap in found])
    exact_rate = 0.5 * (wide - 1.0 - math.log(v))
    assert abs(rates.mean() - exact_rate) < 4 * rates.std(ddof=1) / math.sqrt(len(found))
    information = 0.5 * math.log(wide / v)
    assert rates.mean() - most.mean() == pytest.approx(information, abs=0.15)


def test_moments_against_a_learned_prior_are_exact() -> None:
    model = small("shared", "mixture")
    moved = replace(model, latent=replace(model.latent, mean=model.latent.mean + 2.0))
    rows = rows_of(model, 300)
    distribution, prior = moved.posterior(rows), moved.latent.distribution(rows)
    assert isinstance(distribution, DiagonalGaussian)
    found = aggregate_gap(moved, rows, permutations=19)
    np.testing.assert_allclose(found.first, (distribution.mean.mean(0) - prior.mean[0]).numpy(), rtol=1e-10)
    apart = distribution.mean - prior.mean[0]
    second = torch.einsum("ni,nj->ij", apart, apart) / 300 + torch.diag(distribution.variance.mean(0))
    np.testing.assert_allclose(found.second, (second - prior.covariance().dense()[0]).numpy(), rtol=1e-9)
    assert found.p_value == 0.05
    assert isinstance(moved.latent, NormalMixturePrior)


def test_the_same_seed_gives_the_same_numbers_and_many_rows_are_thinned() -> None:
    model = coded(SLOPE, LEVEL)
    rows = normal((3000, 1), generator(0))
    one, two = (aggregate_gap(model, rows, 3, max_rows=300, permutations=19) for _ in range(2))
    assert one.discrepancy == two.discrepancy
    assert one.divergence_high == two.divergence_high
    assert 200 < one.n_rows < 400
    assert aggregate_gap(model, rows, 4, max_rows=300, permutations=19).divergence_high != one.divergence_high


def test_pictures_and_tables() -> None:
    model = small("shared")
    rows = rows_of(model, 200)
    used, gap = active_units(model, rows), aggregate_gap(model, rows, permutations=19)
    assert png(used.plot()).startswith(b"\x89PNG")
    shown = gap.plot(top=3)
    assert "(3 of 5)" in shown.get_title(loc="left")
    assert png(shown).startswith(b"\x89PNG")
    table = gap.summary()
    assert list(table.columns) == ["value", "error", "p_value"]
    assert table.loc["mean KL(q(z|x) || p(z))", "value"] == pytest.approx(gap.rate.value)
    collapsed = replace(used, variance=np.zeros(2))
    assert collapsed.plot().get_title(loc="left") == "0 of 2 columns of the code are active"


def test_what_cannot_be_judged_says_so() -> None:
    model = small("shared")
    rows = rows_of(model, 10).numpy()
    rows[3, 2] = np.nan
    for judge in (active_units, aggregate_gap):
        with pytest.raises(ValueError, match="missing values"):
            judge(model, rows)
        with pytest.raises(ValueError, match="at least 2 are needed"):
            judge(model, rows[:1])
        with pytest.raises(TypeError, match="no encoder"):
            judge(FactorModel(torch.zeros(1), torch.ones(1, 1), torch.ones(1)), rows[:, :1])


def test_columns_of_the_code_do_not_depend_on_tiles() -> None:
    model = coded(SLOPE, LEVEL)
    rows = normal((50, 1), generator(0))
    distribution = model.posterior(rows)
    expected = model.latent.column_divergence(distribution.mean, distribution.variance.log()).mean(0)
    assert_close(torch.from_numpy(active_units(model, rows).divergence), expected)


def test_images_are_rows():
    """What an autoencoder takes, its critics take: the same numbers from images as from their rows."""
    images = np.random.default_rng(0).random((60, 8, 8))
    fit = VariationalAutoencoder(2, hidden=(4, 8), max_iter=2, patience=None, random_state=0).fit(images)
    flat = images.reshape(60, 64)
    np.testing.assert_array_equal(active_units(fit, images).variance, active_units(fit, flat).variance)
    held = np.random.default_rng(1).random((60, 8, 8))
    gaps = [mega(fit, rows, draws=0)["first"].norm() for rows in (held, held.reshape(60, 64))]
    assert gaps[0] == gaps[1]
    assert aggregate_gap(fit, images).summary().equals(aggregate_gap(fit, flat).summary())
