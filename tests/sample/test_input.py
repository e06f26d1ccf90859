"""Bad input to ``sample``: each a ValueError that says what to do, before a step is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close

from boxloop.distributions import DiagonalGaussian
from boxloop.sample import HMC, MALA, Gibbs, Independent, PseudoMarginal, RandomWalk, sample_density

POINT = torch.zeros(2).double()
SHORT: dict[str, Any] = {"draws": 8, "warmup": 8, "random_state": 0}


def bowl(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def named(values: dict[str, Tensor]) -> Tensor:
    return bowl(values["a"])


def refused(match: str, *args: Any, **options: Any) -> None:
    with pytest.raises(ValueError, match=match):
        sample_density(*args, **{**SHORT, **options})


@pytest.mark.parametrize(
    ("log_density", "said"),
    [
        (lambda x: -x.square().sum(), r"returned \(\) for 3 chains"),
        (lambda x: -x.square().sum(1, keepdim=True), r"returned \(3, 1\) for 3 chains"),
        (lambda x: -x.square(), r"returned \(3, 2\) for 3 chains"),
        (lambda x: 0.0, "returned float"),
        (lambda x: x.numpy().sum(1), "returned ndarray"),
        (lambda x: (x[:, 0] > 9.0).long(), r"torch\.int64"),
    ],
)
def test_densities_of_the_wrong_form(log_density: Any, said: str) -> None:
    refused(said + r".*one number per chain, \(3,\); pass batched=False", log_density, POINT, chains=3)
    refused(said, log_density, torch.zeros(3, 2).double())
    # A mapping has a volume to add, which must not hide the form.
    refused(said, lambda v: log_density(v["a"]), {"a": POINT}, chains=3)


def test_a_density_of_one_chain_must_give_one_number() -> None:
    refused(r"returned \(3, 2\)", lambda x: x, POINT, chains=3, batched=False)


@pytest.mark.parametrize(
    ("start", "chains", "said"),
    [
        (
            torch.zeros(0, 2),
            None,
            r"shape \(0, 2\): pass positions \(chains, columns\), or one point and chains=",
        ),
        (torch.zeros(3, 0), None, "no numbers to sample"),
        ([], 2, "no numbers to sample"),
        ({}, 2, "empty mapping"),
        ({}, None, "empty mapping"),
        (
            {"a": torch.zeros(3, 2), "b": torch.zeros(2, 1)},
            None,
            r"common leading axis.*'a': 3, 'b': 2.*chains=",
        ),
        ({"a": torch.zeros(0, 2)}, None, "common leading axis"),
        ("abc", None, "start must be numbers.*'abc'"),
        (None, 3, "start must be numbers"),
        ([[1.0], [2.0, 3.0]], None, "start must be numbers"),
        (torch.zeros(2, 2, dtype=torch.complex128), None, "complex"),
        ([0.0, float("nan")], 2, "not finite"),
        ({"a": [0.0, float("inf")]}, 2, "a has values that are not finite"),
        (torch.zeros(4, 2), 4, "leave chains out if start has a point for each chain"),
    ],
)
def test_starts_of_the_wrong_form(start: Any, chains: int | None, said: str) -> None:
    refused(said, named if isinstance(start, dict) else bowl, start, chains=chains)


@pytest.mark.parametrize(
    "start",
    [
        torch.tensor([[1, 2], [3, 4]]),
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[1, 2], [3, 4]]),
        [[1.0, 2.0], [3.0, 4.0]],
        ((1, 2), (3, 4)),
    ],
)
def test_starts_of_many_kinds_are_double(start: Any) -> None:
    found = sample_density(bowl, start, **SHORT)
    wanted = sample_density(bowl, torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double(), **SHORT)
    assert_close(found.positions, wanted.positions, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draws": 0}, "draws must be an integer of at least 1, got 0"),
        ({"draws": -5}, "draws must be an integer of at least 1"),
        ({"draws": 2.5}, r"draws must be an integer of at least 1, got 2\.5"),
        ({"draws": True}, "draws must be an integer"),
        ({"chains": True}, "chains must be an integer"),
        ({"superchains": 2.0}, "superchains must be an integer"),
        ({"start_sd": "wide"}, "start_sd"),
        ({"warmup": -1}, "warmup must be an integer of at least 0"),
        ({"thin": 0}, "thin must be an integer of at least 1"),
        ({"chains": 0}, "chains must be an integer of at least 1"),
        ({"chains": 2.5}, "chains must be an integer"),
        ({"chains": 5, "superchains": 2}, "at least 2 groups of at least 2, got 2 of 5"),
        ({"superchains": 1}, "at least 2 groups"),
        ({"superchains": 4}, "at least 2 groups"),
        ({"start_sd": -1.0}, "start_sd"),
        ({"start_sd": float("nan")}, "start_sd"),
        ({"random_state": "seed"}, "random_state"),
        ({"checkpoint": "x.boxloop", "random_state": None}, "integer random_state"),
    ],
)
def test_numbers_that_cannot_be(options: dict[str, Any], said: str) -> None:
    refused(said, bowl, POINT, **{"chains": 4, **options})


def test_superchains_of_a_start_with_chains() -> None:
    refused("pass it as start, and chains=", bowl, torch.zeros(4, 2).double(), superchains=2)


@pytest.mark.parametrize("start", [0.0, [0.0, 1.0], POINT, np.zeros(2)])
def test_one_point_has_four_chains_around_it(start: Any) -> None:
    found = sample_density(bowl, start, **SHORT)
    same = sample_density(bowl, start, chains=4, **SHORT)
    assert found.n_chains == 4
    assert_close(found.positions, same.positions, rtol=0.0, atol=0.0)


def test_named_values_with_a_number_among_them_are_one_point() -> None:
    def density(values: dict[str, Tensor]) -> Tensor:
        return bowl(values["b"]) - values["a"].square()

    found = sample_density(density, {"a": 0.0, "b": torch.zeros(3)}, **SHORT)
    assert found["a"].shape == (4, 8)
    assert found["b"].shape == (4, 8, 3)
    assert sample_density(density, {"a": 0.0, "b": torch.zeros(4)}, superchains=2, **SHORT).superchains == 2


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("nuts", "one of hmc, mala, random_walk, an algorithm or a Kernel, got 'nuts'"),
        (HMC, r"such as HMC\(\)"),
        (3, r"such as HMC\(\)"),
        (HMC(0.0), "scale must be positive and finite"),
        (RandomWalk(-1.0), "scale must be positive"),
        (MALA(float("nan")), "scale must be positive"),
        (RandomWalk(torch.tensor([[1.0], [0.0], [1.0]])), "scale must be positive"),
        (HMC(1.0, -1.0), "trajectory must be positive"),
        (MALA(rule="glauber"), "rule must be one of 'metropolis', 'barker'"),
        (MALA(metric=torch.ones(3)), "for 3 columns, and there are 2"),
        (Gibbs({"a": lambda values, stream: values["a"]}), "'a' is on one side only"),
    ],
)
def test_kernels_that_cannot_be(kernel: Any, said: str) -> None:
    refused(said, bowl, POINT, kernel, chains=3)


def test_without_a_density_there_must_be_a_kernel() -> None:
    refused("there must be a kernel", None, POINT, chains=3)
    refused("HMC needs a log_density", None, POINT, "hmc", chains=3)


def test_metrics_are_moved_to_the_chains() -> None:
    found = sample_density(bowl, POINT.float(), MALA(1.0, metric=torch.eye(2).double()), chains=3, **SHORT)
    assert found.positions.dtype == torch.float32
    with pytest.raises(ValueError, match="a metric is a tensor"):
        MALA(metric=[1.0, 2.0])


@pytest.mark.parametrize(
    ("start", "support", "said"),
    [
        (POINT, {"y": constraints.positive}, r"support names 'y', which is not among \['x'\]"),
        ({"a": POINT}, {"b": constraints.positive}, r"support names 'b', which is not among \['a'\]"),
        ({"a": POINT}, constraints.positive, "give support by name"),
        (POINT, "positive", r"one of torch\.distributions\.constraints, got 'positive'"),
        (POINT - 1.0, constraints.positive, "'x' lies outside of its support"),
        (POINT, constraints.positive, "'x' lies on the boundary of its support.*move it inside"),
        (POINT, constraints.nonnegative, "boundary"),
        (POINT + 1.0, constraints.unit_interval, "boundary"),
        (POINT, constraints.interval(-1.0, 0.0), "boundary"),
        (torch.tensor([1.0, 0.0]), constraints.simplex, "boundary"),
        (torch.tensor([1.0, 1.0]), constraints.simplex, "outside"),
        (POINT, constraints.independent(constraints.positive, 1), "boundary"),
        (POINT, constraints.boolean, "no map leads"),
        (POINT, constraints.nonnegative_integer, "no map leads"),
        (torch.tensor(1.0), constraints.simplex, "no numbers to sample"),
    ],
)
def test_supports_that_cannot_be(start: Any, support: Any, said: str) -> None:
    density = named if isinstance(start, dict) else bowl
    refused(said, density, start, chains=2, support=support)


def outside_torch(x: Tensor) -> Tensor:
    return torch.from_numpy(-0.5 * (x.numpy() ** 2).sum(1))


@pytest.mark.parametrize("density", [lambda x: bowl(x.detach()), outside_torch])
def test_densities_without_a_gradient(density: Any) -> None:
    for kernel in ("hmc", "mala", HMC(0.1), MALA(0.1)):
        refused(
            "needs a gradient.*write it in torch, pass value_and_gradient, or use RandomWalk",
            density,
            POINT,
            kernel,
            chains=3,
        )
    assert isinstance(sample_density(density, POINT, chains=3, **SHORT).algorithm, RandomWalk)
    given = sample_density(density, POINT, chains=3, value_and_gradient=lambda x: (bowl(x), -x), **SHORT)
    assert isinstance(given.algorithm, HMC)
    assert isinstance(sample_density(bowl, POINT, chains=3, **SHORT).algorithm, HMC)


def test_gradients_of_the_wrong_form() -> None:
    refused(
        r"shapes \(2,\) and \(2, 1\).*must be \(2,\).*and \(2, 2\)",
        bowl,
        POINT,
        chains=2,
        value_and_gradient=lambda x: (bowl(x), -x[:, :1]),
    )
    refused("they must be", bowl, POINT, chains=2, value_and_gradient=lambda x: (-x, bowl(x)))
    for start, support in ((POINT + 1.0, constraints.positive), ({"a": POINT}, None)):
        refused(
            "for vectors without constraint: leave it out",
            named if support is None else bowl,
            start,
            chains=2,
            support=support,
            value_and_gradient=lambda x: (bowl(x), -x),
        )


def test_a_density_with_data_of_each_chain() -> None:
    """All questions to the density are about all chains: it may hold a row for each."""
    data = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()

    def density(x: Tensor) -> Tensor:
        assert len(x) == 5
        return -0.5 * torch.stack([(x[i] - data[i]).square().sum() for i in range(5)])

    assert sample_density(density, torch.zeros(3).double(), chains=5, **SHORT).n_chains == 5


def test_blocks_that_cannot_be() -> None:
    def still(values: dict[str, Tensor], stream: Any) -> Tensor:
        return values["a"]

    start = {"a": POINT, "b": POINT}
    refused("'b' is on one side only", None, start, Gibbs({"a": still}), chains=3)
    refused("'c' is on one side only", None, start, Gibbs({"a": still, "b": still, "c": still}), chains=3)
    refused(
        r"conditional of 'a' returned shape \(3, 1\), not \(3, 2\)",
        None,
        {"a": POINT},
        Gibbs({"a": lambda values, stream: values["a"][:, :1]}),
        chains=3,
    )
    refused("block 'a' needs a scale", named, {"a": POINT}, Gibbs({"a": RandomWalk()}), chains=3)
    noisy = PseudoMarginal(lambda x, v: bowl(x), 1, scale=1.0)
    refused("estimate cannot be stored", named, {"a": POINT}, Gibbs({"a": noisy}), chains=3)


def test_estimates_of_the_wrong_form() -> None:
    refused(r"returned \(3, 1\)", None, POINT, PseudoMarginal(lambda x, v: v, 1), chains=3)
    for options in ({"correlation": 1.0}, {"correlation": -0.1}, {"numbers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            PseudoMarginal(lambda x, v: bowl(x), **{"numbers": 1, **options})


def test_a_proposal_distribution_has_one_member() -> None:
    distribution = DiagonalGaussian(torch.zeros(2, 2).double(), torch.ones(2, 2).double())
    refused("one member", bowl, POINT, Independent(distribution), chains=3)
