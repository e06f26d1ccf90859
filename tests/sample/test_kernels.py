"""What every kernel owes, to rounding: what is stored, what is kept, and that chains never meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.chain import Chains, Kernel, advance
from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    MALA,
    Gibbs,
    Independent,
    ParameterSpace,
    PseudoMarginal,
    RandomWalk,
    Target,
    TrajectoryEnds,
    apply_metric_transpose,
)
from sample.cases import ESTIMATES, KERNELS, NOISE, RULES, SLOPES, Gaussian

NEAR = {"rtol": 1e-10, "atol": 1e-10}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def curved(x: Tensor) -> Tensor:
    """A density whose gradient is not linear: a banana with quartic walls."""
    return (
        -0.1 * x[:, 0] ** 4 - (x[:, 1] - 0.5 * x[:, 0] ** 2).square() - 0.3 * x.square().sum(1).cosh().log()
    )


def metrics(d: int) -> dict[str, Tensor | None]:
    stream = generator(4)
    factor = 0.3 * normal((d, d), stream).tril(-1) + torch.diag(
        0.5 + torch.rand(d, generator=stream).double()
    )
    return {"none": None, "scales": 0.5 + torch.rand(d, generator=stream).double(), "full": factor}


def taken(item: Any, rows: Tensor, chains: int) -> Any:
    """The same noise for some of the chains, in another order."""
    if isinstance(item, Tensor):
        return item[rows] if item.dim() and len(item) == chains else item
    if isinstance(item, tuple):
        parts = [taken(part, rows, chains) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item


def always(item: Any, accept: bool = True) -> Any:
    """The same proposal, accepted or refused for certain."""
    move, bar = item
    return move, torch.full_like(bar, -torch.inf if accept else torch.inf)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_stored_belongs_to_the_position(name: str, dtype: torch.dtype) -> None:
    gaussian = Gaussian.of(3, dtype=dtype)
    algorithm = KERNELS[name](gaussian, "metropolis")
    kernel = algorithm.kernel(gaussian.target)
    path = advance(kernel, kernel.init(gaussian.draw(50, generator(0))), 40, generator(1))
    chains = path.chains
    assert path.position.dtype == chains.log_density.dtype == dtype
    assert path.position.shape == (40, 50, 3)
    assert 0.0 < float((path.position[1:] != path.position[:-1]).double().mean()) <= 1.0
    near = NEAR if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
    if name in ESTIMATES:
        estimate = algorithm.log_estimate(chains.position, chains.auxiliary[0])
        assert_close(chains.log_density, estimate, **near)
        return
    again = kernel.init(chains.position)
    assert_close(chains.log_density, gaussian.log_density(chains.position), **near)
    assert_close(path.log_density[7], gaussian.log_density(path.position[7]), **near)
    assert len(chains.auxiliary) == len(again.auxiliary)
    for stored, fresh in zip(chains.auxiliary, again.auxiliary, strict=True):
        assert stored.dtype == fresh.dtype
        assert_close(stored, fresh, **near)


@every_kernel
def test_density_is_evaluated_once_a_proposal(name: str) -> None:
    """The stored value is used: no step evaluates where it stands."""
    gaussian, calls = Gaussian.of(2), []

    def counted(x: Tensor) -> Tensor:
        calls.append(len(x))
        return gaussian.log_density(x)

    if name in (*ESTIMATES, "generalised"):
        pytest.skip("has a function of its own")
    kernel = KERNELS[name](gaussian, "metropolis").kernel(Target(counted))
    path = advance(kernel, kernel.init(gaussian.draw(5, generator(0))), 30, generator(1))
    leaps = [detail.gradients if isinstance(detail, TrajectoryEnds) else 1 for detail in path.details]
    assert len(calls) == 1 + sum(leaps)


@pytest.mark.parametrize("name", SLOPES)
def test_the_gradient_that_is_kept_is_that_of_autograd(name: str) -> None:
    gaussian = Gaussian.of(2)
    algorithm = KERNELS[name](gaussian, "metropolis")
    kernel = algorithm.kernel(Target(curved))
    path = advance(kernel, kernel.init(0.3 * normal((20, 2), generator(0))), 25, generator(1))
    leaf = path.chains.position.clone().requires_grad_()
    (slope,) = torch.autograd.grad(curved(leaf).sum(), leaf)
    assert_close(path.chains.auxiliary[0], apply_metric_transpose(algorithm.metric, slope), **NEAR)


@pytest.mark.parametrize("algorithm", [MALA, HMC])
@pytest.mark.parametrize("metric", ["none", "scales", "full"])
def test_a_given_gradient_gives_the_same_chains(algorithm: type, metric: str) -> None:
    gaussian = Gaussian.of(3)
    found = []
    for target in (gaussian.target, Target(gaussian.log_density, gaussian.rise)):
        kernel = algorithm(scale=0.3, metric=metrics(3)[metric]).kernel(target)
        found.append(advance(kernel, kernel.init(gaussian.draw(9, generator(0))), 10, generator(1)))
    assert_close(found[0].position, found[1].position, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("metric", ["none", "scales", "full"])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_langevin_ratio_is_that_of_the_proposal_densities(metric: str, d: int) -> None:
    """The shortcut against log q(y, x) - log q(x, y), both Gaussians written out."""
    h, factor = 0.7, metrics(d)[metric]
    target = Target(curved if d > 1 else lambda x: -(x[:, 0] ** 4) - x[:, 0].sin())
    kernel = MALA(h, metric=factor).kernel(target)
    here = kernel.init(normal((30, d), generator(1)))
    (item,) = kernel.noise(here, 1, generator(2))
    there, info = kernel.step(here, always(item))
    root = torch.eye(d).double() if factor is None else torch.diag(factor) if factor.dim() == 1 else factor

    def log_q(x: Tensor, y: Tensor) -> Tensor:
        _, slope = target.value_and_gradient(x)
        mean = x + 0.5 * h**2 * slope @ (root @ root.mT)
        distribution = torch.distributions.MultivariateNormal(mean, scale_tril=h * root)
        return distribution.log_prob(y)

    ratio = there.log_density - here.log_density
    ratio = ratio + log_q(there.position, here.position) - log_q(here.position, there.position)
    assert_close(info.log_ratio, ratio, **NEAR)


@pytest.mark.parametrize("metric", ["none", "scales", "full"])
@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("stages", [1, 2])
def test_trajectories_turn_back(metric: str, jitter: float, stages: Any) -> None:
    """With the momentum reversed, the same steps lead back, and the ratio changes sign."""
    kernel = HMC(0.3, 2.0, metric=metrics(3)[metric], jitter=jitter, stages=stages).kernel(Target(curved))
    here = kernel.init(normal((20, 3), generator(0)))
    (item,) = kernel.noise(here, 1, generator(2))
    there, info = kernel.step(here, always(item))
    end = info.detail.momentum
    launch = item[0]._replace(momentum=-end, energy=0.5 * end.square().sum(1))
    back, returned = kernel.step(there, always((launch, item[1])))
    assert float((there.position - here.position).abs().mean()) > 0.05
    assert_close(back.position, here.position, **NEAR)
    assert_close(returned.detail.momentum, -item[0].momentum, **NEAR)
    assert_close(returned.log_ratio, -info.log_ratio, **NEAR)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("metric", ["none", "scales", "full"])
def test_trajectories_keep_volume(metric: str, stages: Any) -> None:
    """The determinant of the map of position and momentum is one."""
    d, factor = 2, metrics(2)[metric]

    def rise(
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:  # a gradient by formula, so that it can be differentiated again
        value = -0.25 * x.pow(4).sum(1) - x[:, 0] * x[:, 1]
        return value, -x.pow(3) - x.flip(1)

    algorithm = HMC(0.2, 1.0, metric=factor, jitter=0.0, stages=stages)
    kernel = algorithm.kernel(Target(lambda x: rise(x)[0], rise))

    def flow(both: Tensor) -> Tensor:
        here = kernel.init(both[None, :d])
        momentum = both[None, d:]
        (item,) = kernel.noise(here, 1, generator(0))
        launch = item[0]._replace(momentum=momentum, energy=0.5 * momentum.square().sum(1))
        _, info = kernel.step(here, (launch, item[1]))
        return torch.cat([info.detail.position[0], info.detail.momentum[0]])

    for seed in range(3):
        both = normal((2 * d,), generator(seed))
        matrix = torch.autograd.functional.jacobian(flow, both)
        assert float((matrix - torch.eye(2 * d).double()).abs().max()) > 0.1
        assert float(torch.linalg.det(matrix)) == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("length", "steps"), [(1.0, 10), (0.5, 5), (0.45, 5), (0.09, 1), (0.7, 7), (1.1, 11)]
)
def test_the_whole_length_is_gone_without_jitter(length: float, steps: int, stages: Any) -> None:
    kernel = HMC(0.1, stages * length, jitter=0.0, stages=stages).kernel(Target(curved))
    here = kernel.init(torch.zeros(4, 2).double())
    assert {item[0].steps for item in kernel.noise(here, 6, generator(0))} == {steps}


@pytest.mark.parametrize("jitter", [0.5, 1.0])
@pytest.mark.parametrize("stages", [1, 2])
def test_lengths_with_jitter_are_even_shares(jitter: float, stages: Any) -> None:
    """Of eight steps the last four are made equally often with a jitter of one half, all eight with a whole one."""
    kernel = HMC(0.25, 2.0 * stages, jitter=jitter, stages=stages).kernel(Target(curved))
    here = kernel.init(torch.zeros(1, 2).double())
    counts = torch.bincount(torch.tensor([item[0].steps for item in kernel.noise(here, 4000, generator(0))]))
    kinds = round(8 * jitter)
    assert len(counts) == 9
    assert int(counts[: 9 - kinds].sum()) == 0
    z = (counts[9 - kinds :] - 4000 / kinds) / (4000 / kinds * (1.0 - 1.0 / kinds)) ** 0.5
    assert float(z.abs().max()) < 5.3  # 24 scores: a false alarm in 350,000


@pytest.mark.parametrize("stages", [1, 2])
def test_a_single_step_is_whole_or_shorter_at_even_odds(stages: Any) -> None:
    kernel = HMC(0.25, 0.25 * stages, jitter=0.5, stages=stages).kernel(Target(curved))
    here = kernel.init(torch.zeros(1, 2).double())
    launches = [item[0] for item in kernel.noise(here, 4000, generator(0))]
    assert {(one.steps, one.share) for one in launches} == {(1, 1.0), (1, 0.75)}
    whole = sum(one.share == 1.0 for one in launches)
    assert abs(whole - 2000) / 1000**0.5 < 4.9  # a false alarm in a million
    (_, info) = kernel.step(here, (launches[0], torch.zeros(1).double()))
    assert info.detail.length == pytest.approx(0.25 * stages * launches[0].share)


def test_a_single_step_of_half_a_turn_still_mixes_squares() -> None:
    """At the edge of stability a step turns the sign alone; without its shorter kin squares would never change."""
    target = Target(lambda x: -0.5 * x.square().sum(1))
    changes = []
    for jitter in (0.0, 0.5):
        kernel = HMC(1.3, 2.6, jitter=jitter).kernel(target)
        path = advance(kernel, kernel.init(normal((2000, 1), generator(0))), 8, generator(1))
        squares = path.position[:, :, 0].square()
        changes.append(float(torch.corrcoef(squares[[0, -1]])[0, 1]))
    assert changes[0] > 0.8
    assert changes[1] < 0.5


def test_steps_of_two_gradients_keep_the_energy_better_than_two_of_one() -> None:
    """On a spherical Gaussian, a quarter turn by two gradients: the error of the energy is less than a fifth."""
    target = Target(lambda x: -0.5 * x.square().sum(1))
    errors = []
    for stages in (1, 2):
        kernel = HMC(0.85, 1.7, jitter=0.0, stages=stages).kernel(target)  # type: ignore[arg-type]
        path = advance(kernel, kernel.init(normal((2000, 10), generator(0))), 1, generator(1))
        assert path.log_ratio is not None
        assert path.details[0].gradients == 2
        errors.append(float(path.log_ratio.std()))
    assert errors[1] < 0.2 * errors[0]


def test_trajectories_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="stages must be 1 or 2"):
        HMC(stages=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="jitter must lie between 0 and 1"):
        HMC(jitter=1.5)


@every_kernel
@pytest.mark.parametrize("rule", RULES)
def test_chains_do_not_meet(name: str, rule: Any) -> None:
    """Other chains may be left out, or change places: each goes its own way with its own noise."""
    gaussian, c = Gaussian.of(3), 11
    if name == "generalised":
        pytest.skip("draws inside of its step; see the next test")
    kernel = KERNELS[name](gaussian, rule).kernel(gaussian.target)
    whole = kernel.init(gaussian.draw(c, generator(0)))
    rows = torch.tensor([7, 0, 3, 10])
    some = Chains(whole.position[rows], whole.log_density[rows], tuple(k[rows] for k in whole.auxiliary))
    for item in kernel.noise(whole, 20, generator(1)):
        whole, info = kernel.step(whole, item)
        some, said = kernel.step(some, taken(item, rows, c))
        assert_close(said.log_ratio, info.log_ratio[rows], **NEAR)
    assert_close(some.position, whole.position[rows], **NEAR)
    assert_close(some.log_density, whole.log_density[rows], **NEAR)


@every_kernel
@pytest.mark.parametrize("factor", [False, True])
def test_a_chain_that_breaks_harms_no_other(name: str, factor: bool) -> None:
    """NaN in chain 2, of its density alone or of the gradient too: its moves are refused, others do not notice."""
    gaussian, found = Gaussian.of(3), []
    for bad in (0.0, torch.nan):

        def spoil(value: Tensor, bad: float = bad) -> Tensor:
            fault = torch.where(torch.arange(len(value)) == 2, bad, 0.0)
            return value * (1.0 + fault) if factor else value + fault

        algorithm = KERNELS[name](gaussian, "metropolis")
        start = algorithm.kernel(gaussian.target).init(gaussian.draw(6, generator(0)))
        if name == "generalised":
            algorithm = replace(algorithm, log_ratio=lambda x, y, f=algorithm.log_ratio, s=spoil: s(f(x, y)))
        if name in ESTIMATES:
            algorithm = replace(
                algorithm, log_estimate=lambda x, v, f=algorithm.log_estimate, s=spoil: s(f(x, v))
            )
        kernel = algorithm.kernel(Target(lambda x, s=spoil: s(gaussian.log_density(x))))
        found.append(advance(kernel, start, 60, generator(1)).position)
    others = [0, 1, 3, 4, 5]
    assert_close(found[0][:, others], found[1][:, others], rtol=0.0, atol=0.0)
    assert bool((found[1][:, 2] == start.position[2]).all())
    assert all(len(found[0][:, i].unique(dim=0)) > 2 for i in range(6))


@every_kernel
def test_steps_are_pure(name: str) -> None:
    """The same chains and noise give the same step, and neither is changed by it."""
    gaussian = Gaussian.of(2)
    kernel = KERNELS[name](gaussian, "metropolis").kernel(gaussian.target)
    start = kernel.init(gaussian.draw(8, generator(0)))
    before = [start.position.clone(), start.log_density.clone(), *(k.clone() for k in start.auxiliary)]
    first = advance(kernel, start, 12, generator(3))
    second = advance(kernel, start, 12, generator(3))
    assert_close(first.position, second.position, rtol=0.0, atol=0.0)
    assert_close(first.log_density, second.log_density, rtol=0.0, atol=0.0)
    for old, new in zip(before, [start.position, start.log_density, *start.auxiliary], strict=True):
        assert_close(old, new, rtol=0.0, atol=0.0)


def test_scales_of_one_chain_each() -> None:
    """A walk may have its own scale in every chain, (c, 1)."""
    scale = torch.tensor([[0.0], [1e-3], [1.0]]).double()
    kernel = RandomWalk(scale).kernel(Target(lambda x: x.new_zeros(len(x))))
    path = advance(kernel, kernel.init(torch.zeros(3, 400).double()), 1, generator(0))
    spread = path.position[0].std(1)
    assert float(spread[0]) == 0.0
    assert float(spread[2] / spread[1]) == pytest.approx(1000.0, rel=0.2)


def test_the_numbers_of_an_estimate_keep_their_distribution() -> None:
    """rho v + sqrt(1 - rho^2) e: moves that are all accepted leave standard normal numbers so. 3 scores below 4.9."""
    kernel = PseudoMarginal(lambda x, v: x.new_zeros(len(x)), 2, 0.8, scale=1.0).kernel()
    start = kernel.init(torch.zeros(20_000, 1).double())
    v = advance(kernel, start, 6, generator(5)).chains.auxiliary[0]
    first = start.auxiliary[0]
    root = len(v) ** 0.5
    assert abs(float(v[:, 0].mean())) * root < 4.9
    assert abs(float(v.square().mean()) - 1.0) * root < 4.9
    moved = (v * first).mean(1) - 0.8**6
    assert abs(float(moved.mean() / moved.std())) * root < 4.9


def test_numbers_that_are_never_accepted_are_never_drawn_again() -> None:
    """W of the current state stays until a move is accepted, however often it is compared."""
    kernel = PseudoMarginal(
        lambda x, v: torch.where(x[:, 0] == 0.0, NOISE * v[:, 0], -torch.inf), 1, scale=1.0
    ).kernel()
    start = kernel.init(torch.zeros(5, 1).double())
    path = advance(kernel, start, 50, generator(0))
    assert bool((path.log_density == start.log_density).all())
    assert bool((path.chains.auxiliary[0] == start.auxiliary[0]).all())


def test_a_metric_is_checked() -> None:
    for bad in (
        torch.tensor([1.0, 0.0]),
        torch.tensor([1.0, torch.nan]),
        torch.ones(2, 3),
        torch.ones(2, 2),
        -torch.eye(2),
    ):
        for algorithm in (RandomWalk, MALA, HMC):
            with pytest.raises(ValueError, match="metric"):
                algorithm(scale=1.0, metric=bad)


def test_kernels_of_blocks_store_the_joint_density() -> None:
    gaussian = Gaussian.of(3)
    start = {"a": torch.zeros(7, 1).double(), "b": torch.zeros(7, 2).double()}
    target = Target(gaussian.log_density, None, ParameterSpace.from_start(start))

    def draw(values: dict[str, Tensor], stream: Any) -> Tensor:
        return normal((len(values["a"]), 1), stream)

    for blocks in (
        {"a": draw, "b": RandomWalk(0.5)},
        {"b": RandomWalk(0.5), "a": draw},
        {"a": MALA(0.5), "b": HMC(0.3)},
        {"a": Independent(Gaussian.of(1).distribution()), "b": RandomWalk(0.3)},
    ):
        kernel: Kernel = Gibbs(blocks).kernel(target)
        path = advance(kernel, kernel.init(torch.zeros(7, 3).double()), 12, generator(0))
        assert_close(path.log_density[4], gaussian.log_density(path.position[4]), **NEAR)
        assert_close(path.chains.log_density, gaussian.log_density(path.chains.position), **NEAR)
