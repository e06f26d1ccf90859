"""Forward moments: exact, quasi-Monte Carlo and sampled agree within their errors, and have gradients."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch.quasirandom import SobolEngine

from boxloop.criticise import (
    First,
    Fourier,
    Power,
    Second,
    as_model,
    cdf_of_counts,
    draw_latent_nodes,
    forward_moments,
    mega,
    moment_of_counts,
    standardise_by_model,
)
from boxloop.distributions import Bernoulli, DiagonalGaussian, FullGaussian, Poisson
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator, normal

FUNCTIONS = [First(), Second(), Power(3), Power(4, projections=3), Fourier(5)]


def factors() -> FactorModel:
    return FactorModel(
        torch.tensor([1.0, -2.0, 0.5]).double(),
        normal((3, 2), generator(1)),
        torch.tensor([0.5, 1.0, 0.2]).double(),
    )


def mixture() -> Mixture:
    family = FullGaussian(normal((2, 3), generator(2)), torch.eye(3).double().expand(2, 3, 3) * 0.7)
    return Mixture(torch.tensor([0.3, 0.7]).double().log(), family)


def moments(model, method, nodes=8192, seed=0):
    frame = standardise_by_model(model, ("a", "b", "c"), generator(5))
    return forward_moments(model, [f.prepare(frame) for f in FUNCTIONS], generator(seed), method, nodes)


@pytest.mark.parametrize("method", ["sobol", "monte_carlo", "sample"])
@pytest.mark.parametrize("model", [factors, mixture])
def test_every_method_finds_the_exact_moment(model, method):
    """The error has 7 degrees of freedom: |t| < 12 fails by chance once in 1e5 entries."""
    for exact, found in zip(moments(model(), "exact"), moments(model(), method), strict=True):
        assert float(exact.error.abs().max()) == 0.0
        assert bool(((found.value - exact.value).abs() <= 12 * found.error + 1e-12).all())


def test_quasi_random_nodes_are_worth_many_plain_ones():
    exact = moments(factors(), "exact")
    size = {
        method: sum(
            float((a.value - b.value).square().sum())
            for a, b in zip(exact, moments(factors(), method), strict=True)
        )
        for method in ("sobol", "monte_carlo")
    }
    assert size["sobol"] < 0.05 * size["monte_carlo"]


def test_the_forward_estimator_beats_the_sample_estimator():
    """Beaulac (2023), appendix: over 200 repetitions, root mean squares of the second moment."""
    model = factors()
    frame = standardise_by_model(model, ("a", "b", "c"), generator(5))
    statistic = [Second().prepare(frame)]
    exact = forward_moments(model, statistic, generator(0), "exact")[0].value
    error = {"monte_carlo": 0.0, "sample": 0.0}
    for seed in range(200):
        for method in error:
            found = forward_moments(model, statistic, generator(seed), method, 256)[0].value
            error[method] += float((found - exact).square().sum())
    assert error["monte_carlo"] < error["sample"]


def test_moments_do_not_depend_on_blocks(monkeypatch):
    whole = moments(factors(), "sobol", 4096)
    monkeypatch.setattr(sys.modules["boxloop.criticise.forward_moments"], "BLOCK", 100)
    for a, b in zip(whole, moments(factors(), "sobol", 4096), strict=True):
        torch.testing.assert_close(a.value, b.value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["exact", "sobol"])
def test_gradients_reach_the_parameters(method):
    model = factors()
    frame = standardise_by_model(model, ("a", "b", "c"), generator(5))
    statistics = [f.prepare(frame) for f in FUNCTIONS]

    def total(mean, loadings, noise):
        moved = FactorModel(mean, loadings, noise)
        found = forward_moments(moved, statistics, generator(0), method, 64)
        return sum(
            (f.value * (1 + torch.arange(f.value.numel()).reshape(f.value.shape))).sum() for f in found
        )

    inputs = [t.clone().requires_grad_() for t in (model.mean, model.loadings, model.noise)]
    assert torch.autograd.gradcheck(total, inputs, rtol=1e-5)


def test_sobol_nodes_follow_the_prior():
    prior = DiagonalGaussian(torch.tensor([[3.0, -1.0]]).double(), torch.tensor([[4.0, 0.25]]).double())
    z = torch.cat(list(draw_latent_nodes(prior, 8192, generator(0), quasi=True)))
    torch.testing.assert_close(z.mean(0), prior.mean[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(z.var(0), prior.variance[0], rtol=5e-3, atol=0)


def test_what_has_no_exact_moments_says_so():
    decoder = as_model(2, lambda z: (torch.tanh(z), torch.ones_like(z)))
    frame = standardise_by_model(decoder, ("a", "b"), generator(0))
    with pytest.raises(ValueError, match="needs a finite or linear-Gaussian latent variable"):
        forward_moments(decoder, [First().prepare(frame)], generator(0), "exact")
    with pytest.raises(ValueError, match="nodes must be at least 32, got 4"):
        forward_moments(decoder, [First().prepare(frame)], generator(0), "sobol", 4)


def test_a_model_without_a_second_moment_is_refused():
    distribution = torch.distributions.StudentT(torch.tensor(1.5).double())
    heavy = as_model(1, lambda z: torch.distributions.StudentT(torch.full_like(z, 1.5), z))
    assert distribution.variance.isinf()
    with pytest.raises(ValueError, match="no finite second moment in column 'a'"):
        standardise_by_model(heavy, ("a",), generator(0))
    with pytest.raises(ValueError, match="3 columns, the rows have 2"):
        standardise_by_model(factors(), ("a", "b"), generator(0))


@pytest.mark.parametrize(
    "distribution",
    [Poisson(torch.tensor([[0.3, 4.0]]).double()), Bernoulli(torch.tensor([[0.3, 0.7]]).double())],
)
def test_powers_and_shares_of_counts_are_exact(distribution):
    """Against two hundred thousand draws: ten z-scores below 4.5, a false alarm in 1e4 runs."""
    origin, draws = torch.tensor([0.4, 2.5]).double(), distribution.draw(200_000, generator(0))[0]
    places, thresholds = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([-0.5, 0.0, 0.9, 3.0, 6.5]).double()
    pairs = [(moment_of_counts(distribution, origin, r)[0], (draws - origin) ** r) for r in (1, 2, 3, 4)]
    pairs.append(
        (cdf_of_counts(distribution, places, thresholds)[0], (draws[:, places] <= thresholds).double())
    )
    for exact, values in pairs:
        error = values.std(0) / len(values) ** 0.5
        gap = (values.mean(0) - exact).abs()
        assert bool((gap <= 4.5 * error + 1e-12).all())


def test_nodes_of_a_float32_prior_are_finite(monkeypatch):
    """A Sobol point next to 1 is 1 in float32, whose quantile is infinite."""
    monkeypatch.setattr(
        SobolEngine, "draw", lambda self, n, dtype: torch.full((n, 1), 1 - 2.0**-30, dtype=dtype)
    )
    prior = DiagonalGaussian(torch.zeros(1, 1), torch.ones(1, 1))
    (nodes,) = draw_latent_nodes(prior, 4, generator(0), quasi=True)
    assert nodes.dtype == torch.float32
    assert bool(torch.isfinite(nodes).all())


DECODERS = {
    "light: tanh z": (lambda z: torch.tanh(z), 0.0),
    "cubic: (z + 1)^3": (lambda z: (z + 1.0) ** 3, 4.0),
    "exp(z)": (lambda z: torch.exp(z), math.exp(0.5)),
    "exp(3z/2)": (lambda z: torch.exp(1.5 * z), math.exp(1.125)),
    "exp(2z)": (lambda z: torch.exp(2.0 * z), math.exp(2.0)),
    "exp(4z)": (lambda z: torch.exp(4.0 * z), math.exp(8.0)),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("k", [1, 2])
def test_errors_of_nodes_hold_for_heavy_tailed_decoders(name: str, k: int) -> None:
    """The exact mean lies outside 1.96 errors in at most 5% and four deviations of 100 runs (3e-5 each, 1e-3 in all).

    Shares outside over 300 runs of 8192 nodes, for one and for two latent columns, before: light 3 and 5%, exp(z) 17
    and 20%, exp(2z) 26 and 26%, exp(4z) 56 and 60%. Now: at most 4% of each over 400 runs; the error is infinite, so
    that the moment is left out of p-values, in 2% of runs of exp(z), 41% of exp(3z/2), 89% of exp(2z) and all of
    exp(4z).
    """
    decode, exact = DECODERS[name]
    model = as_model(k, lambda z: (decode(z[:, :1]), torch.ones(len(z), 1).double()))
    frame = standardise_by_model(model, ("a",), generator(0))
    statistic = First().prepare(frame)
    outside, infinite = 0, 0
    for seed in range(100):
        (found,) = forward_moments(model, [statistic], generator(seed))
        outside += int((found.value + frame.origin - exact).abs() > 1.96 * found.error)
        infinite += int(torch.isinf(found.error))
    assert outside <= 100 * (0.05 + 4 * (0.05 * 0.95 / 100) ** 0.5)
    assert infinite == 0 if name.startswith("light") else infinite <= 100
    assert infinite >= 90 if name == "exp(4z)" else True


def test_errors_of_few_nodes_are_the_larger_of_two_where_tails_are_heavy() -> None:
    """exp(5z/4) at 1024 nodes: outside 1.96 errors in 1 of 100 runs; with the smaller of the two errors in 15."""
    model = as_model(1, lambda z: (torch.exp(1.25 * z), torch.ones(len(z), 1).double()))
    frame = standardise_by_model(model, ("a",), generator(0))
    statistic = First().prepare(frame)
    found = [forward_moments(model, [statistic], generator(seed), nodes=1024)[0] for seed in range(100)]
    exact = math.exp(1.25**2 / 2) - float(frame.origin)
    assert sum(bool((one.value - exact).abs() > 1.96 * one.error) for one in found) <= 5


@pytest.mark.parametrize("nodes", [1024, 8192])
def test_few_errors_of_skewed_decoders_are_far_too_small(nodes: int) -> None:
    """Off by more than 3 errors: of 8 replicates 6% of 400 runs at 1024 nodes and 4% at 8192, of 32 at most 1.2%.

    More than 9 of 300 by chance in 1e-2, of fixed seeds.
    """
    model = as_model(1, lambda z: (torch.exp(0.5 * z), torch.ones(len(z), 1).double()))
    frame = standardise_by_model(model, ("a",), generator(0))
    statistic = First().prepare(frame)
    found = [forward_moments(model, [statistic], generator(seed), nodes=nodes)[0] for seed in range(300)]
    off = [abs(float(one.value + frame.origin - math.exp(0.125)) / float(one.error)) for one in found]
    assert sum(z > 3.0 for z in off) <= 9


@pytest.mark.parametrize("k", [1, 2])
def test_errors_of_squares_of_a_linear_decoder_are_no_wider_than_they_must(k: int) -> None:
    """Outside 1.96 errors in 4 to 8% of 300 runs; 20 of 100 by chance in 1e-4. Before: none, at 15 times the width."""
    model = as_model(k, lambda z: (z.sum(1, keepdim=True) / k**0.5, torch.ones(len(z), 1).double()))
    frame = standardise_by_model(model, ("a",), generator(0))
    found = [forward_moments(model, [Second().prepare(frame)], generator(seed))[0] for seed in range(100)]
    gap = torch.stack([one.value for one in found]).flatten() - 2.0 - float(frame.origin) ** 2
    error = torch.stack([one.error for one in found]).flatten()
    assert int((gap.abs() > 1.96 * error).sum()) <= 19
    assert float(error.median() / gap.square().mean().sqrt()) < 1.5


def test_moments_of_unknown_error_are_named_and_left_out() -> None:
    """Covariances of exp(4z) are infinitely uncertain by 8192 nodes; those of the other column count as before."""
    stream = generator(0)
    z = normal((300, 2), stream)
    rows = torch.stack([torch.exp(4.0 * z[:, 0]), z[:, 1]], 1) + normal((300, 2), stream)
    model = as_model(
        2, lambda z: (torch.stack([torch.exp(4.0 * z[:, 0]), z[:, 1]], 1), torch.ones(len(z), 2).double())
    )
    with pytest.warns(UserWarning, match=r"second: x0 x x0.*left out of p-values; raise nodes="):
        found = mega(model, rows, functions=[Second()], draws=99)
    errors = found["second"].node_error
    assert torch.isinf(errors).tolist() == [True, True, False] or torch.isinf(errors).tolist() == [
        True,
        False,
        False,
    ]
    assert found.p_value > 0.01
    assert float(found["second"].z[0]) == 0.0
    with pytest.warns(UserWarning, match="left out"):
        shifted = mega(model, rows + torch.tensor([0.0, 3.0]), functions=[Second()], draws=99)
    assert shifted.p_value == 0.01


def test_sums_over_nodes_are_those_of_single_distributions() -> None:
    """Matrix products of independent columns against every distribution by itself, also with full and shared ones."""
    from boxloop.criticise import NodeSums
    from boxloop.distributions import TiedGaussian

    mean = normal((40, 3), generator(0))
    weight = torch.rand(40, generator=generator(1)).double() / 40
    frame = standardise_by_model(factors(), ("a", "b", "c"), generator(5))
    distributions = [
        DiagonalGaussian(mean, normal((40, 3), generator(3)).square()),
        TiedGaussian(mean, torch.eye(3).double()),
        FullGaussian(mean, normal((40, 3, 3), generator(4)).tril() + 2.0 * torch.eye(3).double()),
    ]
    for distribution in distributions:
        for about in ("mean", "zero"):
            statistic = Second(about).prepare(frame)
            at = distribution.mean - frame.origin if about == "mean" else distribution.mean
            values = distribution.covariance().dense() + at[:, :, None] * at[:, None, :]
            values = values - (
                statistic.to_data_units(values) - values
            )  # products about zero are held about the origin
            found = statistic.sum_nodes(distribution, weight, generator(0), None)
            wanted = NodeSums.from_values(values.flatten(1), weight, None)
            for a, b in zip(
                (found.value, found.square, found.fourth), (wanted.value, wanted.square, wanted.fourth)
            ):
                torch.testing.assert_close(a.flatten(), b, rtol=1e-9, atol=1e-12)


def test_functions_without_a_closed_form_have_errors() -> None:
    """Waves of Poisson columns come from draws, whose error was left out; normal ones stay exact."""
    counts = Mixture(torch.zeros(1).double(), Poisson(torch.tensor([[2.0, 5.0]]).double()))
    frame = standardise_by_model(counts, ("a", "b"), generator(0))
    (drawn,) = forward_moments(counts, [Fourier(3).prepare(frame)], generator(0))
    assert bool((drawn.error > 0).all())
    assert bool(torch.isfinite(drawn.error).all())
