"""Targets: constraints and their Jacobians, names and shapes, gradients, functions of one chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    LKJCholesky,
    LogNormal,
    Normal,
    Pareto,
    Uniform,
    constraints,
)
from torch.testing import assert_close

from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    MALA,
    ParameterSpace,
    RandomWalk,
    Target,
    disable_validation,
    make_target,
    sample_density,
)

NEAR = {"rtol": 1e-10, "atol": 1e-10}


def one(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


SUPPORTS: dict[str, tuple[Any, Distribution, Tensor]] = {
    "positive": (constraints.positive, Gamma(number(3.0), number(1.5)), one(1.0)[0]),
    "nonnegative": (constraints.nonnegative, Exponential(number(0.7)), one(1.0)[0]),
    "greater_than": (constraints.greater_than(2.0), Pareto(number(2.0), number(3.0)), one(3.0)[0]),
    "less_than": (constraints.less_than(1.0), Normal(number(-1.0), number(1.0)), one(0.0)[0]),
    "unit_interval": (constraints.unit_interval, Beta(number(2.0), number(3.0)), one(0.5)[0]),
    "interval": (constraints.interval(-1.0, 3.0), Uniform(number(-1.0), number(3.0)), one(0.0)[0]),
    "real": (constraints.real, Normal(number(1.0), number(2.0)), one(0.0)[0]),
    "positive vector": (
        constraints.positive,
        torch.distributions.Independent(LogNormal(one(0.0, 0.5), one(0.5, 0.7)), 1),
        one(1.0, 2.0),
    ),
    "simplex": (constraints.simplex, Dirichlet(one(2.0, 3.0, 1.5)), one(0.2, 0.3, 0.5)),
    "corr_cholesky": (
        constraints.corr_cholesky,
        LKJCholesky(2, concentration=number(2.0)),
        torch.eye(2, dtype=torch.float64),
    ),
}


def mass(name: str) -> float:
    """The integral of the unconstrained density over a grid: sums of even steps are exact for what falls off."""
    support, distribution, point = SUPPORTS[name]
    space = ParameterSpace.from_start(point[None], support)
    target = make_target(distribution.log_prob, space)
    line = torch.linspace(-45.0, 45.0, 3001 if space.n_columns == 1 else 601, dtype=torch.float64)
    grid = torch.cartesian_prod(*[line] * space.n_columns).reshape(-1, space.n_columns)
    with disable_validation():
        density = target.log_density(grid).nan_to_num(nan=-torch.inf).exp()
    if name == "less_than":
        density = density / distribution.cdf(number(1.0))
    return float(density.sum()) * float(line[1] - line[0]) ** space.n_columns


@pytest.mark.parametrize("name", SUPPORTS)
def test_unconstrained_densities_integrate_to_one(name: str) -> None:
    """A Jacobian that is missing or wrong changes the mass."""
    assert mass(name) == pytest.approx(1.0, abs=1e-6)


def test_the_mass_sees_a_missing_jacobian(monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = ParameterSpace.unpack
    monkeypatch.setattr(
        ParameterSpace, "unpack", lambda self, x: (unpack(self, x)[0], x.new_zeros(x.shape[:-1]))
    )
    for name in SUPPORTS:
        if name != "real":
            assert mass(name) != pytest.approx(1.0, abs=1e-3), name


CLOSED: dict[str, tuple[Any, Distribution, Tensor, Tensor]] = {
    "larger simplex": (
        constraints.simplex,
        Dirichlet(one(1.0, 2.0, 3.0, 4.0, 5.0)),
        torch.full((5,), 0.2).double(),
        one(1.0, 2.0, 3.0, 4.0, 5.0) / 15.0,
    ),
    "several simplices": (
        constraints.simplex,
        torch.distributions.Independent(Dirichlet(torch.ones(2, 3).double() * one(1.0, 2.0, 3.0)), 1),
        torch.full((2, 3), 1 / 3).double(),
        (one(1.0, 2.0, 3.0) / 6.0).expand(2, 3),
    ),
    "larger correlations": (
        constraints.corr_cholesky,
        LKJCholesky(3, concentration=number(1.5)),
        torch.eye(3, dtype=torch.float64),
        torch.tensor([torch.nan] * 3 + [0.0] + [torch.nan] * 2 + [0.0, torch.nan, torch.nan])
        .double()
        .reshape(3, 3),
    ),
    "positive matrix": (
        constraints.positive,
        torch.distributions.Independent(Gamma(2.0 * torch.ones(2, 2).double(), number(1.0)), 2),
        torch.ones(2, 2).double(),
        2.0 * torch.ones(2, 2).double(),
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_constrained_draws_have_the_means_they_should(name: str) -> None:
    """z-scores from effective draws. 25 scores, each below 5.1: a false alarm in 1e5 runs."""
    support, distribution, point, mean = CLOSED[name]
    draws = sample_density(
        distribution.log_prob,
        point,
        chains=16,
        support=support,
        draws=200,
        warmup=200,
        start_sd=0.3,
        random_state=2,
    )
    assert draws["x"].shape == (16, 200, *point.shape)
    assert bool(support.check(draws["x"]).all())
    known = ~torch.isnan(mean.flatten())
    z = (draws.table.mean((0, 1)) - mean.flatten().numpy()) / draws.diagnosis.mcse
    assert np.abs(z[known.numpy()]).max() < 5.1


def test_the_marginal_of_a_correlation() -> None:
    """Under LKJ(eta) in d columns a correlation is 2 Beta(b, b) - 1 with b = eta + d / 2 - 1. 3 scores below 4.9."""
    draws = sample_density(
        LKJCholesky(3, concentration=number(1.5)).log_prob,
        torch.eye(3).double(),
        chains=16,
        support=constraints.corr_cholesky,
        draws=200,
        warmup=200,
        start_sd=0.3,
        random_state=1,
    )
    factor = draws["x"]
    whole = factor @ factor.mT
    from boxloop.sample import diagnose

    second = torch.stack([whole[..., 1, 0], whole[..., 2, 0], whole[..., 2, 1]], 2).square().numpy()
    z = (second.mean((0, 1)) - 1.0 / (2 * (1.5 + 1.5 - 1.0) + 1.0)) / diagnose(second).mcse
    assert np.abs(z).max() < 4.9


def model(values: dict[str, Tensor]) -> Tensor:
    apart = values["mean"] - one(1.0, -1.0)
    return -0.5 * (apart / values["scale"][:, None]).square().sum(1) - values["scale"] + values["corr"][:, 0]


START = {
    "mean": one(0.5, 0.5),
    "scale": number(1.5),
    "corr": one(0.4, 0.6),
}
SUPPORT = {"scale": constraints.positive, "corr": constraints.simplex}


def spaced() -> tuple[ParameterSpace, Tensor]:
    start = {name: value.expand(6, *value.shape) for name, value in START.items()}
    space = ParameterSpace.from_start(start, SUPPORT)
    return space, space.pack(start) + 0.5 * normal((6, 4), generator(0))


def test_values_are_packed_and_unpacked() -> None:
    space, position = spaced()
    assert space.n_columns == 4
    assert space.names == ("mean[0]", "mean[1]", "scale", "corr[0]", "corr[1]")
    values, _ = space.unpack(position)
    assert {name: tuple(value.shape) for name, value in values.items()} == {
        "mean": (6, 2),
        "scale": (6,),
        "corr": (6, 2),
    }
    assert_close(space.pack(values), position, **NEAR)
    # Any leading axes do.
    several, volume = space.unpack(position.expand(3, 5, 6, 4))
    assert several["corr"].shape == (3, 5, 6, 2)
    assert volume.shape == (3, 5, 6)


def test_the_jacobian_of_several_values_is_that_of_autograd() -> None:
    space, position = spaced()
    _, volume = space.unpack(position)

    def free(row: Tensor) -> Tensor:  # one number of a simplex follows from the rest
        values, _ = space.unpack(row)
        return torch.cat([values["mean"], values["scale"][None], values["corr"][:1]])

    for row, wanted in zip(position, volume, strict=True):
        matrix = torch.autograd.functional.jacobian(free, row)
        assert_close(torch.linalg.slogdet(matrix)[1], wanted, **NEAR)


def test_names_of_numbers() -> None:
    start = {"a": torch.zeros(2), "b": torch.zeros(2, 2, 2), "c": torch.zeros(2, 1)}
    assert ParameterSpace.from_start(start).names == ("a", "b[0, 0]", "b[0, 1]", "b[1, 0]", "b[1, 1]", "c[0]")


def test_a_mapping_and_a_tensor_agree() -> None:
    """The same vector by name and as a whole: the same chains, bit for bit."""

    def whole(x: Tensor) -> Tensor:
        return -0.5 * (x - one(1.0, 2.0, 3.0)).square().sum(1)

    def named(values: dict[str, Tensor]) -> Tensor:
        return whole(torch.cat([values["a"][:, None], values["b"]], 1))

    start = normal((4, 3), generator(0))
    plain = sample_density(whole, start, draws=50, warmup=60, random_state=0)
    by_name = sample_density(
        named, {"a": start[:, 0], "b": start[:, 1:]}, draws=50, warmup=60, random_state=0
    )
    assert_close(plain.positions, by_name.positions, **NEAR)
    assert_close(by_name["b"], plain["x"][..., 1:], **NEAR)
    assert by_name["a"].shape == (4, 50)
    assert list(by_name) == ["a", "b"]


@pytest.mark.filterwarnings("ignore::boxloop.sample.SampleWarning")
@pytest.mark.parametrize("kernel", [RandomWalk(0.5), MALA(0.3), HMC(0.1), HMC()])
def test_functions_of_one_chain_agree_with_functions_of_all(kernel: Any) -> None:
    def single(values: dict[str, Tensor]) -> Tensor:
        apart = values["mean"] - one(1.0, -1.0)
        return -0.5 * (apart / values["scale"]).square().sum() - values["scale"] + values["corr"][0]

    options: Any = {
        "chains": 3,
        "support": SUPPORT,
        "draws": 12,
        "warmup": 20,
        "start_sd": 0.1,
        "random_state": 0,
    }
    first = sample_density(model, START, kernel, **options)
    second = sample_density(single, START, kernel, batched=False, **options)
    assert_close(first.positions, second.positions, rtol=1e-7, atol=1e-7)


def test_values_of_higher_shape_without_support() -> None:
    draws = sample_density(
        lambda x: -0.5 * x.square().sum((1, 2)),
        torch.zeros(2, 3),
        chains=4,
        draws=20,
        warmup=20,
        random_state=0,
    )
    assert draws["x"].shape == (4, 20, 2, 3)
    assert draws.names[-1] == "x[1, 2]"


def test_a_target_may_be_given_as_it_is() -> None:
    target = Target(lambda x: -0.5 * x.square().sum(1))
    first = sample_density(target, torch.zeros(2), chains=4, draws=30, warmup=30, random_state=0)
    second = sample_density(target.log_density, torch.zeros(2), chains=4, draws=30, warmup=30, random_state=0)
    assert_close(first.positions, second.positions, rtol=0.0, atol=0.0)


def test_gradients_need_no_second_function() -> None:
    value, slope = Target(lambda x: x.pow(3).sum(1)).value_and_gradient(one(1.0, 2.0)[None])
    assert_close(value, one(9.0))
    assert_close(slope, one(3.0, 12.0)[None])
    assert not value.requires_grad
    assert not slope.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_that_of_the_start(dtype: torch.dtype) -> None:
    start = {"a": torch.tensor(1.0, dtype=dtype), "b": torch.zeros(2, dtype=dtype)}
    draws = sample_density(
        lambda v: -v["a"] - 0.5 * v["b"].square().sum(1),
        start,
        chains=3,
        support={"a": constraints.positive},
        draws=10,
        warmup=20,
        random_state=0,
    )
    assert draws["a"].dtype == draws["b"].dtype == draws.log_density.dtype == dtype


def test_stray_parameters_are_refused_not_raised() -> None:
    """A proposal where a distribution's own checks would raise is a move that is refused; they are on again after."""
    assert Distribution._validate_args
    with pytest.warns(UserWarning, match="not a number"):
        draws = sample_density(
            lambda x: (
                torch.distributions.Gamma(2.0, 1.0).log_prob(x[:, 0])
                + torch.distributions.Exponential(x[:, 0]).log_prob(one(1.0))
            ),
            one(1.0),
            RandomWalk(2.0),
            chains=4,
            draws=200,
            start_sd=0.1,
            random_state=0,
        )
    assert bool((draws["x"] > 0).all())
    assert int(draws.nan_proposals.sum()) > 0
    assert Distribution._validate_args
