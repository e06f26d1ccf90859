"""The penalty of Beaulac (2023), eq. 17 to 19: value, gradient, and that it does what it is for."""

from __future__ import annotations

import pytest
import torch

from boxloop.criticise import (
    MomentPenalty,
    as_model,
    fused_moment_gap,
    moment_penalty,
    paper_gaps,
    second_moment,
)
from boxloop.distributions import DiagonalGaussian, FullGaussian, LowRankGaussian
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator, gram, normal


def naive(rows: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """The published form: an outer product for every node."""
    data = (rows[:, :, None] * rows[:, None, :]).mean(0)
    model = (mean[:, :, None] * mean[:, None, :] + torch.diag_embed(variance)).mean(0)
    first = (rows.mean(0) - mean.mean(0)).norm()
    return first + ((data - model).square().sum().sqrt() + 1e-12).sqrt()


def decoder(weight: torch.Tensor, noise: torch.Tensor):
    return as_model(2, lambda z: (torch.tanh(z @ weight), noise.expand(len(z), weight.shape[1])))


def test_the_penalty_is_the_published_form():
    weight, noise, rows = (
        normal((2, 4), generator(0)),
        torch.rand(4, generator=generator(1)).double(),
        normal((9, 4), generator(2)),
    )
    penalty = moment_penalty(2.0, nodes=64, method="monte_carlo")
    z = normal((1, 64, 2), generator(3))[0]
    found = penalty(decoder(weight, noise), rows, generator(3))
    assert float(found) == pytest.approx(
        2.0 * float(naive(rows, torch.tanh(z @ weight), noise.expand(64, 4))), rel=1e-12
    )


@pytest.mark.parametrize("method", ["sobol", "monte_carlo"])
def test_gradients(method):
    rows = normal((9, 4), generator(2))

    def value(weight, noise):
        return MomentPenalty(1.0, 32, method)(decoder(weight, noise), rows, generator(3))

    inputs = (
        normal((2, 4), generator(0)).requires_grad_(),
        torch.rand(4, generator=generator(1)).double().requires_grad_(),
    )
    assert torch.autograd.gradcheck(value, inputs, rtol=1e-5)


def test_the_gram_matrix_has_first_and_second_derivatives():
    rows = normal((5, 3), generator(0)).requires_grad_()
    assert torch.autograd.gradcheck(gram, (rows,))
    assert torch.autograd.gradgradcheck(gram, (rows,))
    weight = torch.rand(5, generator=generator(1)).double()
    torch.testing.assert_close(gram(rows, weight), rows.mT @ (rows * weight[:, None]))


@pytest.mark.parametrize(
    "distribution",
    [
        DiagonalGaussian(normal((6, 3), generator(0)), torch.rand(6, 3, generator=generator(1)).double()),
        FullGaussian(normal((6, 3), generator(0)), torch.eye(3).double().expand(6, 3, 3)),
        LowRankGaussian(normal((3,), generator(0)), normal((3, 2), generator(1)), torch.ones(3).double()),
    ],
    ids=lambda distribution: type(distribution).__name__,
)
@pytest.mark.parametrize("equal", [True, False])
def test_second_moments_of_many_distributions(distribution, equal):
    m = len(distribution.mean)
    weight = torch.full((m,), 1.0 / m).double() if equal else torch.rand(m, generator=generator(2)).double()
    dense = distribution.covariance().dense() + distribution.mean[:, :, None] * distribution.mean[:, None, :]
    torch.testing.assert_close(
        second_moment(distribution, None if equal else weight), (weight[:, None, None] * dense).sum(0)
    )


def test_exact_moments_are_used_where_there_are_any():
    model = FactorModel(torch.ones(3).double(), normal((3, 1), generator(0)), torch.ones(3).double())
    rows = normal((20, 3), generator(1))
    few, many = (MomentPenalty(1.0, nodes)(model, rows, generator(0)) for nodes in (2, 4096))
    assert float(few) == float(many)
    mixture = Mixture(
        torch.zeros(1).double(), FullGaussian(torch.zeros(1, 3).double(), torch.eye(3).double()[None])
    )
    assert float(MomentPenalty(1.0, 2)(mixture, rows, generator(0))) > 0


def test_the_penalty_pulls_a_decoder_to_the_moments():
    """Three clusters: a few steps on the penalty alone cut the second gap twentyfold, as the rate falls."""
    rows = torch.cat(
        [
            normal((100, 2), generator(i)) * 0.3 + centre
            for i, centre in enumerate(torch.tensor([[-2.0, 0], [2, 0], [0, 2.5]]))
        ]
    )
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).double()
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * normal(tuple(parameter.shape), generator(50 + i)))

    def emission(z):
        mean, log_variance = net(z).chunk(2, dim=1)
        return mean, log_variance.exp()

    model, penalty, stream = as_model(2, emission), MomentPenalty(1.0, 256), generator(9)
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    before = paper_gaps(model, rows, generator(0), 20_000)[1].norm()
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 150)
    for _ in range(150):
        optimiser.zero_grad()
        penalty(model, rows, stream).backward()
        optimiser.step()
        falling.step()
    with torch.no_grad():
        after = paper_gaps(model, rows, generator(0), 20_000)[1].norm()
    assert float(after) < 0.05 * float(before.detach())


@pytest.mark.parametrize("sample", [False, True])
def test_the_paper_s_gaps_are_unbiased_up_to_its_own_bias(sample):
    """Mean over 200 repetitions within 5 standard errors of Cov/n: 5 entries, a false alarm in 3e5 runs."""
    model = FactorModel(
        torch.tensor([1.0, -1.0]).double(), normal((2, 1), generator(0)), torch.ones(2).double()
    )
    covariance = model.moments()[1].dense()[0]
    found = []
    for seed in range(200):
        rows, _ = model.sample(30, generator(1000 + seed))
        first, second = paper_gaps(model, rows, generator(seed), 100, sample=sample)
        found.append(torch.cat([first, second.flatten()]))
    stack = torch.stack(found)
    wanted = torch.cat([torch.zeros(2).double(), covariance.flatten() / 30])
    assert bool(((stack.mean(0) - wanted).abs() < 5 * stack.std(0) / 200**0.5).all())


def test_alpha_must_not_be_negative():
    with pytest.raises(ValueError, match="alpha"):
        moment_penalty(-1.0)


def test_the_paper_s_gaps_of_a_wide_mixture_count_their_nodes():
    """5000 nodes of 300 x 300 covariances would be 3.6 GB, node by node."""
    family = FullGaussian(normal((2, 300), generator(0)), torch.eye(300).double().expand(2, 300, 300))
    model = Mixture(torch.tensor([0.3, 0.7]).double().log(), family)
    rows = model.sample(50, generator(1))[0]
    first, second = paper_gaps(model, rows, generator(2), 5000)
    drawn = model.prior().draw(5000, generator(2)).reshape(-1)
    torch.testing.assert_close(first, rows.mean(0) - family.mean[drawn].mean(0))
    assert second.shape == (300, 300)


@pytest.mark.parametrize("shape", [(4,), (4, 4)], ids=["diagonal", "full"])
def test_the_fused_gap_and_its_gradient(shape):
    rows, mean = normal((6, 4), generator(0)).requires_grad_(), normal((9, 4), generator(1)).requires_grad_()
    spread = normal(shape, generator(2)).requires_grad_()

    def fused(rows, mean, spread):
        return fused_moment_gap(rows, mean, spread if len(shape) == 1 else spread + spread.mT)

    def plain(rows, mean, spread):
        matrix = torch.diag(spread) if len(shape) == 1 else spread + spread.mT
        second = rows.mT @ rows / 6 - mean.mT @ mean / 9 - matrix
        return (rows.mean(0) - mean.mean(0)).norm() + (second.norm() + 1e-12).sqrt()

    inputs = (rows, mean, spread)
    assert torch.autograd.gradcheck(fused, inputs)
    torch.testing.assert_close(fused(*inputs), plain(*inputs), rtol=1e-12, atol=0.0)


def test_the_fused_gap_of_equal_moments_has_a_finite_gradient():
    rows = normal((6, 4), generator(0)).requires_grad_()
    fused_moment_gap(rows, rows.detach(), torch.zeros(4, dtype=torch.float64)).backward()
    assert bool(torch.isfinite(rows.grad).all())
