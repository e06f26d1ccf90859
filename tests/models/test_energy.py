"""Energy models: coordinates, networks, and a distribution known by its draws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import t as student
from torch import nn

from boxloop import distributions
from boxloop.criticise import (
    REPLICATES,
    First,
    Power,
    Second,
    as_model,
    forward_moments,
    standardise_by_model,
)
from boxloop.distributions import DiagonalGaussian, Empirical, FullGaussian, PointMasses
from boxloop.models import EnergyModel, ModuleNetwork, Perceptron
from boxloop.numeric import generator, normal
from boxloop.persist import load_tree, save_tree

CPU = torch.device("cpu")


def base(d: int = 2) -> FullGaussian:
    root = normal((d, d), generator(9))
    return FullGaussian.from_covariance(torch.zeros(1, d).double(), (root @ root.mT + torch.eye(d))[None])


def perceptron(d: int = 2, seed: int = 0) -> EnergyModel:
    """A model whose last layer is not zero."""
    network = Perceptron(d, (8, 8))
    *layers, last = network.draw_parameters(generator(seed))
    return EnergyModel.from_network(
        network, (*layers, normal(tuple(last.shape), generator(seed + 1))), base(d)
    )


class Bowl(nn.Module):
    """A quartic bowl with a part that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.steep = nn.Parameter(torch.tensor(0.5))
        self.shift = nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, rows):
        return self.steep * self.drop((rows - self.shift) ** 4).sum(1)


def test_the_model_starts_at_its_base():
    network = Perceptron(2, (16, 16))
    model = EnergyModel.from_network(network, network.draw_parameters(generator(0)), base())
    rows = normal((7, 2), generator(1))
    known = replace(model, log_partition=torch.zeros(()).double())
    torch.testing.assert_close(known.log_prob(rows), base().log_prob(rows)[0])


def test_the_perceptron_is_the_network_it_says():
    model = perceptron()
    a, u, b, v, w = model.parameters
    same = nn.Sequential(
        nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1, bias=False)
    ).double()
    parts = (a.mT, u, b.mT, v, w[None])
    same.load_state_dict(dict(zip(same.state_dict(), parts, strict=True)))
    rows = normal((5, 2), generator(2))
    torch.testing.assert_close(model.potential(rows), same(rows)[:, 0])


def test_units_bring_their_jacobian():
    """The density in other units integrates to the same Z, on a line by the midpoint rule."""
    model = perceptron(1).affine(torch.tensor([50.0]).double(), torch.tensor([0.01]).double())
    line = torch.linspace(-12, 12, 20_001).double()[:, None]
    plain = float(perceptron(1).log_density(line).logsumexp(0)) + math.log(float(line[1] - line[0]))
    moved = 50.0 + 0.01 * line
    found = float((-model.energy(moved)).logsumexp(0)) + math.log(float(moved[1] - moved[0]))
    assert found == pytest.approx(plain, abs=1e-9)


def test_units_compose():
    rows = normal((5, 2), generator(3))
    one, two = torch.tensor([1.0, -2.0]).double(), torch.tensor([3.0, 0.5]).double()
    twice = perceptron().affine(one, two).affine(two, two)
    torch.testing.assert_close(
        twice.energy(rows), perceptron().affine(two + two * one, two * two).energy(rows)
    )


def test_units_carry_the_draws():
    model = replace(perceptron(), draws=normal((20, 2), generator(0)))
    moved = model.affine(torch.ones(2).double(), torch.full((2,), 4.0).double())
    torch.testing.assert_close(moved.draws, 1.0 + 4.0 * model.draws)


def test_a_module_becomes_a_function_of_its_trainable_parameters():
    module = Bowl()
    network, parameters = ModuleNetwork.from_module(module, torch.float64, CPU)
    model = EnergyModel.from_network(network, parameters, columns=1)
    rows = torch.tensor([[0.0], [3.0]]).double()
    assert [p.tolist() for p in parameters] == [0.5]
    torch.testing.assert_close(model.potential(rows), torch.tensor([0.5, 8.0]).double())  # dropout is off
    doubled = replace(model, parameters=(torch.tensor(1.0).double(),))
    torch.testing.assert_close(doubled.potential(rows), torch.tensor([1.0, 16.0]).double())
    assert module.training
    assert module.steep.dtype == torch.float32
    assert module.steep.requires_grad


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match="no trainable parameter"):
        ModuleNetwork.from_module(nn.Identity(), torch.float64, CPU)


def test_an_energy_of_the_wrong_shape_is_refused():
    network, parameters = ModuleNetwork.from_module(nn.Linear(2, 1), torch.float64, CPU)
    with pytest.raises(ValueError, match=r"one number per row: 3 rows need shape \(3,\), got \(3, 1\)"):
        EnergyModel.from_network(network, parameters, base()).potential(torch.zeros(3, 2).double())


@pytest.mark.parametrize("hidden", [(), (0,), (4, -1)])
def test_widths_are_positive(hidden):
    with pytest.raises(ValueError, match="at least one positive width"):
        Perceptron(2, hidden)


def test_what_is_not_known_is_said():
    with pytest.raises(ValueError, match="partition function of this model is not known"):
        perceptron().log_prob(torch.zeros(1, 2).double())
    with pytest.raises(ValueError, match="no draws to be criticised by"):
        perceptron().prior()
    with pytest.raises(ValueError, match="columns must be given when base is None"):
        EnergyModel.from_network(Perceptron(1, (2,)), Perceptron(1, (2,)).draw_parameters(generator(0)))


def test_a_model_is_a_file_and_back(tmp_path):
    model = replace(
        perceptron(), log_partition=torch.tensor(0.3).double(), draws=normal((9, 2), generator(0))
    )
    save_tree(tmp_path / "m.boxloop", model)
    allowed = {name: getattr(distributions, name) for name in distributions.__all__}
    found = load_tree(
        tmp_path / "m.boxloop", {**allowed, "EnergyModel": EnergyModel, "Perceptron": Perceptron}
    ).tree
    rows = normal((4, 2), generator(5))
    assert torch.equal(found.log_prob(rows), model.log_prob(rows))
    assert torch.equal(found.draws, model.draws)


def test_points_and_draws_are_distributions():
    rows = normal((50, 3), generator(0))
    drawn, points = Empirical(rows), PointMasses(rows)
    torch.testing.assert_close(drawn.covariance().dense()[0], rows.mT.cov(correction=0))
    taken = drawn.draw(200, generator(1))[0]
    assert bool((taken[:, None] == rows).all(-1).any(1).all())
    assert points.log_prob(rows[:2])[:3].exp().tolist() == [[1, 0], [0, 1], [0, 0]]
    assert torch.equal(points.draw(2, generator(0))[:, 1], rows)
    assert not points.covariance().diagonal().any()
    with pytest.raises(ValueError, match="no density"):
        drawn.log_prob(rows)


def moments(draws, functions, seed=0):
    model = EnergyModel.from_network(Perceptron(1, (2,)), (torch.zeros(1).double(),), columns=draws.shape[1])
    known = as_model(replace(model, draws=draws))
    frame = standardise_by_model(known, tuple(f"x{j}" for j in range(draws.shape[1])), generator(seed))
    statistics = [function.prepare(frame) for function in functions]
    return statistics, forward_moments(known, statistics, generator(seed))


def test_criticism_sees_the_mean_over_all_draws():
    """Dealt out in equal parts, the draws are each used once: the moment is that of all of them."""
    draws = normal((800, 2), generator(0))
    (first, second), (one, two) = moments(draws, [First(), Second()])
    torch.testing.assert_close(one.value, draws.mean(0) - first.frame.origin)
    assert bool((one.error > 0).all())
    assert bool((second.flatten(two.error) > 0).all())


def test_the_error_of_criticism_is_honest():
    """z-scores of a moment follow Student's t distribution; the share beyond 95% is within 4 deviations (6e-5)."""
    draws = [normal((400, 1), generator(seed)) for seed in range(300)]
    scores = []
    for rows in draws:
        (statistic,), (found,) = moments(rows, [Power(2)])
        origin, scale = statistic.frame.origin, statistic.frame.scale
        exact = (1.0 + origin.square()) / scale.square()
        scores.append(float(((found.value - exact) / found.error).flatten()[0]))
    wide = sum(abs(z) > student.ppf(0.975, REPLICATES - 1) for z in scores) / len(scores)
    assert abs(wide - 0.05) < 4 * (0.05 * 0.95 / len(scores)) ** 0.5


def test_too_few_draws_have_no_error():
    with pytest.raises(ValueError, match="5 draws: at least 32 are needed"):
        moments(normal((5, 1), generator(0)), [First()])


def test_a_diagonal_base_serves_as_well():
    distribution = DiagonalGaussian(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    network = Perceptron(2, (4,))
    model = EnergyModel.from_network(network, network.draw_parameters(generator(0)), distribution)
    rows = torch.zeros(1, 2).double().requires_grad_()
    (slope,) = torch.autograd.grad(model.log_density(rows + 1.0).sum(), rows)
    torch.testing.assert_close(slope, -torch.ones(1, 2).double())
