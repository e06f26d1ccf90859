"""Posteriors of the library's own models: factors given rows, parameters given rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop import as_model
from boxloop.distributions import Poisson
from boxloop.models import FactorModel, Mixture, central_differences, flatten
from boxloop.numeric import generator
from boxloop.sample import latent_target, parameter_target, sample_latent, sample_parameters
from contract.models import ModelCase, model_cases

DOUBLE = {"dtype": torch.float64}
CASES = model_cases()


def factor_model() -> FactorModel:
    stream = generator(3)
    loadings = torch.randn(4, 2, generator=stream, **DOUBLE)
    return FactorModel(torch.arange(4.0, **DOUBLE), loadings, torch.tensor([0.5, 1.0, 0.3, 2.0], **DOUBLE))


def exact_factors(model: FactorModel, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    seen = ~torch.isnan(row)
    loadings, noise = model.loadings[seen], model.psi[seen]
    covariance = torch.linalg.inv(torch.eye(2, **DOUBLE) + loadings.T @ (loadings / noise[:, None]))
    return covariance @ loadings.T @ ((row - model.mean)[seen] / noise), covariance


def test_factors_have_their_exact_posterior() -> None:
    """|z| < 4.5 on 6 rows x (2 means + 2 variances): a chance of 2e-4 to fail a right sampler."""
    model = factor_model()
    rows = model.sample(6, generator(1))[0]
    rows[2, 1] = torch.nan
    rows[3] = torch.nan
    draws = sample_latent(model, rows, draws=1500, warmup=500, random_state=0)
    z = draws["z"]
    assert z.shape == (4, 1500, 6, 2)
    assert draws.converged
    assert draws.acceptance.shape == (4,)  # the mean over the rows of a chain
    assert bool(((draws.acceptance > 0.3) & (draws.acceptance < 1.0)).all())
    ess = draws.diagnosis.ess_bulk.reshape(6, 2)
    for i, row in enumerate(rows):
        mean, covariance = exact_factors(model, row)
        sd = covariance.diagonal().sqrt()
        found = z[:, :, i].reshape(-1, 2)
        assert (((found.mean(0) - mean) / sd).abs() * torch.as_tensor(ess[i]).sqrt() < 4.5).all()
        # the square of a normal variable has variance 2 sd^4; effective draws of squares are fewer
        assert ((found.var(0) / sd**2 - 1.0).abs() * torch.as_tensor(ess[i] / 4).sqrt() < 4.5 * 2**0.5).all()


def test_decoders_give_the_same_density_whatever_their_distribution_is_called() -> None:
    model = factor_model()
    rows = model.sample(40, generator(1))[0]
    z = torch.randn(40, 2, generator=generator(2), **DOUBLE)
    pair = as_model(2, lambda z: (model.mean + z @ model.loadings.T, model.psi.expand(len(z), 4)))
    named = as_model(
        2, lambda z: torch.distributions.Normal(model.mean + z @ model.loadings.T, model.psi.sqrt())
    )
    expected = torch.stack(
        [
            model.prior().log_prob(z[i : i + 1])[0, 0]
            + model.emission(z[i : i + 1]).log_prob(rows[i : i + 1])[0, 0]
            for i in range(40)
        ]
    )
    for other in (model, pair, named):
        torch.testing.assert_close(
            latent_target(other, rows).log_density(z), expected, rtol=1e-12, atol=1e-12
        )
    twice = latent_target(model, rows).log_density(torch.cat([z, z]))
    torch.testing.assert_close(twice, torch.cat([expected, expected]), rtol=1e-12, atol=1e-12)


def test_classes_are_refused() -> None:
    mixture = Mixture(torch.zeros(1, **DOUBLE), Poisson(torch.ones(1, 1, **DOUBLE)))
    with pytest.raises(ValueError, match=r"classes.*model\.posterior"):
        latent_target(mixture, torch.ones(3, 1, **DOUBLE))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_gradient_in_the_parameters_is_that_of_the_density(case: ModelCase) -> None:
    model, rows = case.model, case.rows

    def log_prior(free: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(-0.5 * value.flatten(1).square().sum(1) for value in free.values())

    target = parameter_target(model, rows, log_prior)
    point = flatten(model.free_parameters())
    value, slope = target.value_and_gradient(point[None])
    assert float(value) == pytest.approx(
        float(model.log_prob(rows).sum() - 0.5 * point.square().sum()), rel=1e-10
    )
    assert float(target.log_density(point[None])) == pytest.approx(float(value), rel=1e-12)
    numeric = central_differences(lambda v: target.log_density(v[None])[0], point)
    torch.testing.assert_close(slope[0], numeric, rtol=2e-5, atol=1e-5 * float(numeric.abs().max()))


def test_a_rate_has_its_gamma_posterior() -> None:
    """A flat prior on the log-rate makes the posterior of the rate a gamma. |z| < 4.5 twice: a chance of 1.4e-5."""
    rows = torch.tensor([[1.0], [4.0], [2.0], [0.0], [3.0]], **DOUBLE)
    model = Mixture(torch.zeros(1, **DOUBLE), Poisson(torch.tensor([[2.0]], **DOUBLE)))
    draws = sample_parameters(
        model,
        rows,
        lambda free: torch.zeros(len(free["log_rate"]), **DOUBLE),
        draws=400,
        warmup=300,
        random_state=0,
    )
    rate = draws["log_rate"].exp().flatten()
    ess = float(draws.diagnosis.ess_bulk.min())
    shape, scale = 10.0, 1 / 5
    assert abs(float(rate.mean()) - shape * scale) < 4.5 * (shape**0.5 * scale) / ess**0.5
    spread = (3.0 + 6.0 / shape - 1.0) ** 0.5 * shape * scale**2  # of a squared deviation, by the kurtosis
    assert abs(float(rate.var()) - shape * scale**2) < 4.5 * spread / (ess / 4) ** 0.5
    again = model.with_free_parameters(
        {name: draws[name][0, -1] for name in draws} | {"logits": torch.zeros(0, **DOUBLE)}
    )
    assert np.isfinite(float(again.log_prob(rows).sum()))
