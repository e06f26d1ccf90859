"""What a hard-to-please user meets: numbers a support fixes, no draws at all, densities that are missing or differ."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import LKJCholesky, constraints

from boxloop.numeric import generator
from boxloop.sample import (
    HMC,
    MALA,
    Gibbs,
    Independent,
    ParameterSpace,
    RandomWalk,
    diagnose,
    restrict_to_support,
    sample_density,
)

SHORT: dict[str, Any] = {"draws": 8, "warmup": 8, "random_state": 0}
F64 = torch.float64


def bowl(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def correlations(values: dict[str, Tensor]) -> Tensor:
    return LKJCholesky(3, torch.tensor(2.0, dtype=F64)).log_prob(values["L"]) - 0.5 * values["a"].square()


def test_numbers_that_a_support_fixes_are_no_concern() -> None:
    """The ones and zeros of a correlation factor cannot move; chains of it can converge all the same."""
    start = {"L": torch.eye(3, dtype=F64), "a": torch.tensor(0.0, dtype=F64)}
    support = {"L": constraints.corr_cholesky}
    draws = sample_density(
        correlations, start, chains=8, warmup=300, draws=600, support=support, random_state=0
    )
    assert draws.concerns == ()
    table = draws.summary()
    assert table.index[table["r_hat"].isna()].tolist() == ["L[0, 0]", "L[0, 1]", "L[0, 2]", "L[1, 2]"]


def test_a_number_that_could_move_and_does_not_is_a_concern() -> None:
    start = {"L": torch.eye(3, dtype=F64).expand(4, 3, 3), "a": torch.zeros(4, dtype=F64)}

    def still(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
        return values["L"]

    def moved(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
        return torch.randn(4, generator=stream, dtype=F64)

    support = {"L": constraints.corr_cholesky}
    found = sample_density(
        None, start, Gibbs({"L": still, "a": moved}), support=support, draws=200, random_state=0
    )
    assert found.concerns[0].startswith("L[1, 0], L[1, 1], L[2, 0] and 2 more: constant in 4 of 4")


@pytest.mark.parametrize(
    ("support", "value", "wanted"),
    [
        (constraints.simplex, torch.full((2, 4), 0.25), [False] * 4),
        (constraints.simplex, torch.ones(2, 1), [True]),
        (constraints.interval(-1.0, 3.0), torch.zeros(2, 2), [False] * 2),
        (constraints.corr_cholesky, torch.eye(2).expand(2, 2, 2), [True, True, False, False]),
        (None, torch.zeros(2, 3), [False] * 3),
    ],
)
def test_what_a_support_fixes(support: Any, value: Tensor, wanted: list[bool]) -> None:
    space = ParameterSpace.from_start(
        {"v": value, "a": torch.zeros(2)}, None if support is None else {"v": support}
    )
    assert space.is_constant(value).tolist() == [*wanted, False]


def test_fixed_numbers_are_left_out_of_a_diagnosis() -> None:
    table = np.random.default_rng(0).normal(size=(4, 500, 2))
    table[:, :, 1] = 1.0
    assert "constant in 4 of 4" in diagnose(table).concerns(("a", "b"))[0]
    assert diagnose(table, fixed=np.array([False, True])).concerns(("a", "b")) == ()


@pytest.mark.parametrize(
    "kernel",
    [HMC(), MALA(), RandomWalk(), Independent(torch.nn.Identity()), "random_walk"],  # type: ignore[arg-type]
    ids=str,
)
def test_moves_that_look_at_a_density_need_one(kernel: Any) -> None:
    """Without one they accepted every move, and said nothing."""
    with pytest.raises(ValueError, match="needs a log_density"):
        sample_density(None, torch.zeros(2).double(), kernel, chains=4, **SHORT)
    if not isinstance(kernel, str):
        with pytest.raises(ValueError, match="needs a log_density"):
            sample_density(None, {"a": torch.zeros(4).double()}, Gibbs({"a": kernel}), **SHORT)


def test_a_second_density_that_differs_is_refused() -> None:
    def other(x: Tensor) -> tuple[Tensor, Tensor]:
        return 4.0 * bowl(x), -4.0 * x

    def shifted(x: Tensor) -> tuple[Tensor, Tensor]:
        return bowl(x) + 1e3, -x

    point = torch.zeros(2).double()
    with pytest.raises(ValueError, match="value_and_gradient and log_density differ by more than a constant"):
        sample_density(bowl, point, chains=4, value_and_gradient=other, **SHORT)
    for dtype in (torch.float32, F64):
        sample_density(bowl, point.to(dtype), chains=4, value_and_gradient=shifted, **SHORT)


@pytest.mark.parametrize(
    ("distribution", "support", "said"),
    [
        (
            lambda v, s: 3.0 * torch.rand(8, generator=s).double(),
            constraints.unit_interval,
            "outside of its support",
        ),
        (lambda v, s: 3.0 + v["p"], constraints.interval(0.0, 2.0), "outside of its support"),
        (lambda v, s: np.full(8, 0.5), constraints.unit_interval, "returned ndarray, not a tensor"),
        (lambda v, s: 0.5, None, "returned float, not a tensor"),
    ],
)
def test_conditional_distributions_that_leave_the_support(distribution: Any, support: Any, said: str) -> None:
    """They were pulled back to the bound, in silence."""
    start = {"p": torch.full((8,), 0.5).double()}
    with pytest.raises(ValueError, match=said):
        sample_density(None, start, Gibbs({"p": distribution}), support=support and {"p": support}, **SHORT)


def test_a_conditional_distribution_at_the_bound_goes_on() -> None:
    """A gamma number that underflows to zero is reported in the end; the chains are not lost."""
    with pytest.warns(UserWarning, match="not finite"):
        found = sample_density(
            None,
            {"p": torch.full((8,), 0.5).double()},
            Gibbs({"p": lambda v, s: torch.rand(8, generator=s).double().round()}),
            support={"p": constraints.positive},
            **SHORT,
        )
    assert found["p"].unique().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="pass float32 or float64"):
        sample_density(bowl, torch.zeros(2, dtype=dtype), chains=4, **SHORT)


def test_no_draws_are_no_convergence() -> None:
    """Thinned to nothing, or interrupted in warm-up: everything that needs draws says so."""

    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    draws = sample_density(bowl, torch.zeros(2).double(), chains=4, **SHORT)
    for every in (9, 0, 2.5, True):
        with pytest.raises(ValueError, match="every"):
            draws.thin_draws(every)  # type: ignore[arg-type]
    start = {"s": torch.tensor(1.0).double()}
    with pytest.warns(UserWarning, match="interrupted after 0 draws"):
        none = sample_density(
            lambda v: -v["s"], start, chains=4, support={"s": constraints.positive}, observers=[stop], **SHORT
        )
    assert none["s"].shape == (4, 0)
    assert not none.converged
    assert "no draws" in none.concerns[-1]
    for ask in (none.summary, none.to_arviz, none.plot):
        with pytest.raises(ValueError, match="no draws"):
            ask()


def test_few_draws_warn_of_nothing_but_themselves() -> None:
    """One number has no deviation, and more chains than draws are how this is used."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = sample_density(bowl, torch.zeros(2).double(), chains=1, draws=1, warmup=8, random_state=0)
        assert one.summary()["sd"].isna().all()
        assert "nan" in repr(one)
        many = sample_density(bowl, torch.zeros(2).double(), chains=9, **SHORT)
        assert many.to_arviz().posterior.x.shape == (9, 8, 2)


def test_volumes_of_no_positions() -> None:
    space = ParameterSpace.from_start(
        {"s": torch.ones(3), "L": torch.eye(2).expand(3, 2, 2)}, {"L": constraints.corr_cholesky}
    )
    position = torch.randn(5, 3, 2, generator=generator(0))
    _, log_volume = space.unpack(position)
    assert space.unpack(position[:0])[1].shape == (0, 3)
    assert torch.equal(log_volume[0], space.unpack(position[0])[1])


@pytest.mark.parametrize(("shape", "cut"), [(0.1, True), (0.5, False), (1.0, False)])
def test_a_density_that_rounding_cuts_off_is_a_concern(shape: float, cut: bool) -> None:
    """A share of 0.014 of beta(0.1, 0.1) lies above the last number below one; R-hat does not see that it is lost.

    With another seed the first case fails if none of 32,000 draws is at the bound, where a share of 0.001 is; the
    others if one of them is, where a share of 1e-8 is: less than once in 1,000.
    """
    distribution = torch.distributions.Beta(torch.tensor(shape, dtype=F64), torch.tensor(shape, dtype=F64))
    start = {"p": torch.tensor(0.5, dtype=F64)}
    draws = sample_density(
        lambda values: distribution.log_prob(values["p"]),
        start,
        RandomWalk(scale=10.0),
        chains=64,
        warmup=200,
        draws=500,
        support={"p": constraints.unit_interval},
        random_state=0,
    )
    assert any("cut off" in concern for concern in draws.concerns) == cut


def test_numbers_near_a_bound() -> None:
    names = {"p": constraints.unit_interval, "s": constraints.positive, "s5": constraints.greater_than(5.0)}
    values = {
        "p": torch.full((1,), 0.5),
        "s": torch.ones(1),
        "s5": torch.full((1,), 6.0),
        "a": torch.zeros(1),
    }
    space = ParameterSpace.from_start({name: value.double() for name, value in values.items()}, names)
    position = torch.tensor([[0.0, -40.0, 0.0, 40.0], [40.0, 40.0, -40.0, 40.0]]).double()
    assert space.measure_share_at_bounds(position) == {"p": 0.5, "s": 0.0, "s5": 0.5}


class OnGPU(Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.parametrize(
    ("free", "inside"), [(torch.zeros(3), [True, False, True]), (torch.zeros(3, 2), [True, False, True])]
)
def test_what_is_outside_of_a_support_on_a_gpu_is_reported_in_the_end(
    free: Tensor, inside: list[bool]
) -> None:
    """No sweep waits for an answer: such numbers are not finite."""
    found = restrict_to_support(
        free.as_subclass(OnGPU), torch.tensor(inside), "the distribution", constraints.positive
    )
    assert torch.equal(torch.isfinite(found).reshape(3, -1).all(1), torch.tensor(inside))


def walled(x: Tensor) -> Tensor:
    return torch.where(((x > 0.0) & (x < 1.0)).all(1), -0.5 * ((x - 0.9) / 0.3).square().sum(1), -torch.inf)


def test_chains_that_meet_walls_are_advised_on_support() -> None:
    start = torch.full((4,), 0.5, dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = sample_density(walled, start, chains=4, warmup=20, draws=30, random_state=0)
        elsewhere = sample_density(bowl, start, chains=4, warmup=20, draws=30, random_state=0)
    assert not there.converged
    assert "end where the density is zero" in there.concerns[-1]
    assert "support=" in there.concerns[-1]
    assert not elsewhere.converged
    assert not any("support=" in concern for concern in elsewhere.concerns)


def test_walls_are_no_concern_where_chains_agree() -> None:
    draws = sample_density(
        walled,
        torch.full((1,), 0.5, dtype=F64),
        RandomWalk(0.4),
        chains=16,
        warmup=200,
        draws=3000,
        random_state=0,
    )
    assert float(draws.zero_density_proposals.sum()) > 0.01 * 16 * 3000
    assert draws.concerns == ()
