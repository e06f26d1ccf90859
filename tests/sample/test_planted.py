"""Planted bugs: wrong kernels must fail the checks that right ones pass."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    OUTER,
    Gibbs,
    Independent,
    ParameterSpace,
    RandomWalk,
    Target,
    check_joint,
    check_ranks,
    check_reversible,
    make_target,
    sample_density,
    select_accepted,
)
from sample.cases import NOISE, Gaussian, exact_draws, kernel_of
from sample.posteriors import MODELS, posterior, with_numbers
from sample.test_finite import (
    SIZE,
    Table,
    at,
    by_inverse_cdf,
    distribution,
    independent_moves,
    random_proposals,
    states,
    table_of_two,
)

Change = Callable[[Chains, Chains, Info], Tensor]
Spoil = Callable[[Kernel], Kernel]
H = 0.4
"""Step of the trajectories below."""


def with_ratio(change: Change, accept: Callable[[Tensor, Tensor], Tensor] = torch.lt) -> Spoil:
    """The same proposals with another ratio, or another comparison with the threshold."""

    def spoil(kernel: Kernel) -> Kernel:
        def step(chains: Chains, item: Any) -> tuple[Chains, Info]:
            move, bar = item
            there, info = kernel.step(chains, (move, torch.full_like(bar, -torch.inf)))
            ratio = change(chains, there, info)
            return select_accepted(accept(bar, ratio), there, chains), Info(ratio, info.detail)

        return kernel._replace(step=step)

    return spoil


def backwards(here: Chains, there: Chains, info: Info) -> Tensor:
    return -info.log_ratio


def densities_alone(here: Chains, there: Chains, info: Info) -> Tensor:
    return there.log_density - here.log_density


def unchanged(here: Chains, there: Chains, info: Info) -> Tensor:
    return info.log_ratio


def without_last_half_step(here: Chains, there: Chains, info: Info) -> Tensor:
    """The energy of a momentum that was not brought up to where the position is."""
    known = info.detail.momentum
    behind = known - OUTER * H * there.auxiliary[0]
    return info.log_ratio + 0.5 * (known.square().sum(1) - behind.square().sum(1))


def stale(kernel: Kernel) -> Kernel:
    """The position moves, and the stored density does not."""

    def step(chains: Chains, item: Any) -> tuple[Chains, Info]:
        there, info = kernel.step(chains, item)
        return there._replace(log_density=chains.log_density), info

    return kernel._replace(step=step)


def refreshed(kernel: Kernel) -> Kernel:
    """Pseudo-marginal: the estimate of where the chain is, drawn again before each comparison."""
    stream = generator(99)

    def step(chains: Chains, item: Any) -> tuple[Chains, Info]:
        x = chains.position[:, :-1]
        v = normal((len(x), 1), stream)
        old = chains.log_density - NOISE * chains.position[:, -1]
        return kernel.step(Chains(torch.cat([x, v], 1), old + NOISE * v[:, 0]), item)

    return kernel._replace(step=step)


BUGS: dict[str, tuple[str, Spoil]] = {
    "ratio upside down": ("walk", with_ratio(backwards)),
    "threshold on the wrong side": ("walk", with_ratio(unchanged, torch.gt)),
    "langevin without its proposal": ("langevin", with_ratio(densities_alone)),
    "independent without its proposal": ("independent", with_ratio(densities_alone)),
    "generalised without its proposal": ("generalised", with_ratio(densities_alone)),
    "half step forgotten": ("hamiltonian", with_ratio(without_last_half_step)),
    "energy forgotten": ("hamiltonian", with_ratio(densities_alone)),
    "stale density": ("walk", stale),
    "stale density of trajectories": ("hamiltonian by leapfrog", stale),
    "estimate drawn again": ("pseudo-marginal", refreshed),
}
every_bug = pytest.mark.parametrize("bug", BUGS)


def nothing(kernel: Kernel) -> Kernel:
    return kernel


def reversible(name: str, spoil: Spoil) -> bool:
    gaussian = Gaussian(torch.tensor([0.3, -0.5]).double(), torch.tensor([[1.0, 0.0], [0.5, 0.8]]).double())
    kernel = kernel_of(name, gaussian)
    if name == "hamiltonian":
        kernel = HMC(H, 1.2).kernel(gaussian.target)
    if name == "hamiltonian by leapfrog":
        kernel = HMC(H, 1.2, jitter=1.0, stages=1).kernel(gaussian.target)
    check = check_reversible(spoil(kernel), exact_draws(name, gaussian), steps=4, level=1e-6)
    return check.invariant and check.reversible


def parts(name: str, spoil: Spoil) -> tuple[Any, Any, Any]:
    model = MODELS["normal"]
    distribution = with_numbers(model) if name == "pseudo-marginal" else model
    kernel = posterior(model, name)
    return distribution.prior, distribution.simulate, lambda data: spoil(kernel(data))


def joint(name: str, spoil: Spoil) -> bool:
    return check_joint(*parts(name, spoil), chains=10_000, iterations=5, steps=3, level=1e-6).passed


def ranked(name: str, spoil: Spoil) -> bool:
    return check_ranks(*parts(name, spoil), simulations=2000, draws=99, level=1e-6).passed


@pytest.mark.parametrize("check", [reversible, joint, ranked])
@pytest.mark.parametrize("name", sorted({name for name, _ in BUGS.values()}))
def test_right_kernels_pass(name: str, check: Callable[[str, Spoil], bool]) -> None:
    assert check(name, nothing)
    if name != "pseudo-marginal":
        assert check(name, with_ratio(unchanged)), "taking a step apart changes nothing"


@every_bug
def test_wrong_kernels_are_not_invariant(bug: str) -> None:
    assert not reversible(*BUGS[bug])


SUBTLE = {"half step forgotten", "stale density"}
"""What they do to a posterior of variance 1/4 is too little for parameters and data in turn, or for ranks."""


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in SUBTLE])
def test_wrong_kernels_fail_the_joint_test(bug: str) -> None:
    assert not joint(*BUGS[bug])


@pytest.mark.parametrize("bug", [b for b in BUGS if b not in {*SUBTLE, "independent without its proposal"}])
def test_wrong_kernels_have_uneven_ranks(bug: str) -> None:
    assert not ranked(*BUGS[bug])


def flipped(kernel: Kernel) -> Kernel:
    return with_ratio(backwards)(kernel)


def without_proposal(kernel: Kernel) -> Kernel:
    return with_ratio(densities_alone)(kernel)


@pytest.mark.parametrize("spoil", [flipped, without_proposal])
@pytest.mark.parametrize("rule", ["metropolis", "barker"])
def test_wrong_ratios_are_wrong_on_finite_spaces(spoil: Spoil, rule: Any) -> None:
    weight = distribution(1)
    kernel, moves = by_inverse_cdf(weight, random_proposals(51), rule)
    assert check_reversible(kernel, weight, states=states(), moves=moves).invariant
    check = check_reversible(spoil(kernel), weight, states=states(), moves=moves)
    assert not check.invariant
    assert not check.reversible
    assert check.invariance > 1e-3


@pytest.mark.parametrize("spoil", [flipped, without_proposal])
def test_wrong_ratios_of_independent_proposals_are_wrong_on_finite_spaces(spoil: Spoil) -> None:
    weight, proposal = distribution(4), Table(distribution(5))
    kernel = spoil(Independent(proposal).kernel(Target(at(weight))))
    check = check_reversible(kernel, weight, states=states(), moves=independent_moves(proposal))
    assert not check.invariant
    assert not check.reversible


def test_a_walk_that_is_not_symmetric_is_wrong() -> None:
    """Twice as often up as down, without a proposal in the ratio."""
    weight, places = distribution(1), torch.arange(SIZE)
    kernel = RandomWalk(1.0).kernel(Target(at(weight)))
    moves = [
        (states()[(places + step) % SIZE] - states(), share) for step, share in ((1, 2 / 3), (-1, 1 / 3))
    ]
    check = check_reversible(kernel, weight, states=states(), moves=moves)
    assert not check.invariant
    assert not check.reversible


def gamma_parts() -> tuple[Any, Any, Any]:
    """A rate s ~ Gamma(3, 1), as log s, and two counts of exponential gaps with that rate."""
    space = ParameterSpace.from_start(torch.ones(1, 1).double(), torch.distributions.constraints.positive)

    def prior(n: int, stream: Generator) -> Tensor:
        uniform = torch.rand(n, 3, generator=stream, dtype=torch.float64)
        return torch.log1p(-uniform).sum(1, keepdim=True).neg().log()

    def simulate(theta: Tensor, stream: Generator) -> Tensor:
        uniform = torch.rand(len(theta), 2, generator=stream, dtype=torch.float64)
        return -torch.log1p(-uniform) / theta.exp()

    def kernel(data: Tensor) -> Kernel:
        def log_density(s: Tensor) -> Tensor:
            return (2.0 * s.log() - s)[:, 0] + (s.log() - s * data).sum(1)

        return RandomWalk(0.8).kernel(make_target(log_density, space))

    return prior, simulate, kernel


@pytest.mark.parametrize("missing", [False, True])
def test_a_missing_jacobian_is_caught(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing:
        unpack = ParameterSpace.unpack
        monkeypatch.setattr(
            ParameterSpace, "unpack", lambda self, x: (unpack(self, x)[0], x.new_zeros(x.shape[:-1]))
        )
    prior, simulate, kernel = gamma_parts()
    assert check_joint(prior, simulate, kernel, level=1e-6).passed is not missing
    assert check_ranks(prior, simulate, kernel, level=1e-6).passed is not missing
    none = torch.zeros(20_000, 0).double()
    check = check_reversible(kernel(none), prior, level=1e-6)
    assert check.invariant is not missing


def sweep_parts(share: float) -> tuple[Any, Any, Any]:
    """The normal model with a conditional distribution of ``share`` times the right variance."""
    model = MODELS["normal"]

    def kernel(data: Tensor) -> Kernel:
        def draw(name: str, column: int) -> Any:
            return lambda values, stream: (
                data[:, :, column].sum(1, keepdim=True) / 4.0
                + (0.25 * share) ** 0.5 * normal((len(data), 1), stream)
            )

        space = ParameterSpace.from_start(
            {"a": torch.zeros(len(data), 1).double(), "b": torch.zeros(len(data), 1).double()}
        )
        target = Target(lambda theta: model.log_density(theta, data), None, space)
        return Gibbs({"a": draw("a", 0), "b": draw("b", 1)}).kernel(target)

    return model.prior, model.simulate, kernel


@pytest.mark.parametrize(("share", "right"), [(1.0, True), (1.5, False), (0.6, False)])
def test_a_wrong_conditional_is_caught(share: float, right: bool) -> None:
    assert check_joint(*sweep_parts(share), level=1e-6).passed is right
    assert check_ranks(*sweep_parts(share), simulations=2000, draws=19, level=1e-6).passed is right


def test_a_wrong_conditional_is_wrong_on_a_finite_space() -> None:
    weight, target, blocks = table_of_two()
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(2)).double()
    moves = [(((i + 0.5) / 6, (j + 0.5) / 4), 1 / 24) for i, j in product(range(6), range(4))]

    def skewed(values: dict[str, Tensor], u: tuple[float, float]) -> Tensor:
        return blocks["b"](values, (u[0], u[1] ** 2))

    for block, right in ((blocks["b"], True), (skewed, False)):
        kernel = Gibbs({"a": blocks["a"], "b": block}).kernel(target)
        check = check_reversible(kernel, weight.flatten(), states=pairs, moves=moves)
        assert check.invariant is right


def test_tuning_is_frozen_where_draws_begin() -> None:
    """Every draw is made by one kernel; see test_tuning for what an adaptation that went on would do."""
    made: list[tuple[Any, Any]] = []
    plain = RandomWalk.kernel

    class Watched(RandomWalk):
        def kernel(self, target: Target) -> Kernel:
            made.append((self.scale, self.metric))
            return plain(self, target)

    gaussian = Gaussian.of(2)
    found = sample_density(
        gaussian.log_density,
        torch.zeros(2).double(),
        Watched(),
        chains=4,
        draws=320,
        warmup=200,
        random_state=0,
    )
    last = made[-1]
    assert last == (found.algorithm.scale, found.algorithm.metric)
    assert len({scale for scale, _ in made}) > 10
