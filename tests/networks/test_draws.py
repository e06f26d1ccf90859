"""Draws of weights through networks: against plain networks that hold the draw."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxloop.networks import Component, Layout, NetworkDraws, WeightDistribution, WeightWarning, as_rows
from boxloop.numeric import generator, spawn
from contract.scores import assert_scores
from networks.small_networks import filled, mlp, part_of, rows, stream


def by_hand(draws: NetworkDraws, x: Tensor) -> np.ndarray:
    """A copy of the net for each draw, its weights set."""
    found = []
    for place, part in enumerate(draws.components):
        for vector in torch.cat(list(draws.draw_chunks(place, 3))):
            net = copy.deepcopy(part.net).eval()
            part.layout.write(net, vector)
            with torch.no_grad():
                found.append(net(x))
    return torch.stack(found).double().cpu().numpy()


class Tied(nn.Module):
    """One matrix, used twice; a frozen scale; a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.down.weight = self.up.weight
        self.scale = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x))) * self.scale + self.shift


class Branching(nn.Module):
    """Looks at a value to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        return found if found.sum() > 0 else 2.0 * found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.core(x)[0][:, -1])


class InPlace(nn.Module):
    """Writes what depends on weights into a tensor that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.zeros(len(x), 2, dtype=x.dtype)
        found += self.layer(x)
        return found


class Counting(nn.Module):
    """Changes a buffer at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return self.layer(x)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn_like(x))


def convolution() -> nn.Module:
    layers = [nn.Conv2d(2, 3, 3), nn.GroupNorm(3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(12, 4))


CASES = {
    "mlp": (mlp, (3,)),
    "tied": (Tied, (3,)),
    "convolution": (convolution, (2, 6, 6)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), (3,)),
    "counting": (Counting, (3,)),
}


@pytest.mark.parametrize("case", CASES)
def test_together_is_a_net_for_each_draw(case: str) -> None:
    make, shape = CASES[case]
    net = filled(make()).double()
    x = rows(7, *shape)
    draws = NetworkDraws.allocate([part_of(net)], 6, seed=3)
    found = draws.evaluate(x)
    assert found.used_vmap
    np.testing.assert_allclose(found.values, by_hand(draws, x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(draws.evaluate(x, use_vmap=False).values, found.values, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Branching, (3,)), (Recurrent, (4, 3)), (InPlace, (3,))],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_nets_that_cannot_go_together_go_one_by_one_and_say_so(make: type, shape: tuple[int, ...]) -> None:
    net = filled(make()).double()
    x = rows(7, *shape)
    draws = NetworkDraws.allocate([part_of(net)], 5, seed=3)
    with pytest.warns(WeightWarning, match="cannot be evaluated by vmap .*: draws are evaluated one by one"):
        found = draws.evaluate(x)
    assert not found.used_vmap
    np.testing.assert_allclose(found.values, by_hand(draws, x), rtol=1e-10, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(draws.evaluate(x, use_vmap=False).values, found.values)


def test_a_loop_in_the_guise_of_vmap_is_a_loop() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[:, 0]

    net = filled(Attention()).double()
    x = rows(5, 3, 4)
    draws = NetworkDraws.allocate([part_of(net)], 3, seed=0)
    with pytest.warns(WeightWarning, match="performance drop"):
        found = draws.evaluate(x)
    np.testing.assert_allclose(found.values, by_hand(draws, x), rtol=1e-10, atol=1e-12)


def test_chunks_and_batches_are_the_whole() -> None:
    net, x = mlp(outputs=2), rows(300, 3)
    draws = NetworkDraws.allocate(
        [part_of(net, weight=0.7), part_of(mlp(outputs=2), 0.3, weight=0.3, seed=9)], 11, seed=3
    )
    whole = draws.evaluate(x).values
    for memory in (1, 2000, 20_000, 100_000):
        np.testing.assert_allclose(draws.evaluate(x, memory=memory).values, whole, rtol=1e-10, atol=1e-13)
    for size in (1, 2, 5):
        for place in range(2):
            pieces, at_once = (torch.cat(list(draws.draw_chunks(place, s))) for s in (size, 99))
            assert torch.equal(pieces, at_once)


def test_memory_bounds_what_goes_at_once() -> None:
    """Rows at once times draws at once stay within what was allowed."""
    seen: list[tuple[int, ...]] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1000)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(tuple(x.shape))
            return self.layer(x).sum(1)

    NetworkDraws.allocate([part_of(Watched().double())], 4).evaluate(rows(500, 3), memory=2**20)
    assert max(n for n, _ in seen) == 2**20 // (
        4 * 8000
    )  # four live tensors of 8 kB per row, one draw at a time
    assert sum(n for n, _ in seen) >= 4 * 500


def test_more_draws_begin_with_the_same_networks() -> None:
    net, x = mlp(), rows(4, 3)
    few, many = (NetworkDraws.allocate([part_of(net)], n, seed=3).evaluate(x).values for n in (5, 9))
    np.testing.assert_allclose(many[:5], few, rtol=1e-12)
    other = NetworkDraws.allocate([part_of(net)], 5, seed=4).evaluate(x).values
    assert np.abs(other - few).min() > 0.0


def test_no_spread_is_the_net_itself() -> None:
    net, x = mlp(), rows(6, 3)
    layout = Layout.from_network(net)
    distribution = WeightDistribution.point(layout.read(net, torch.empty(layout.size, dtype=torch.float64)))
    zero = WeightDistribution(distribution.mean, torch.zeros(layout.size, 3).double(), distribution.noise)
    said = copy.deepcopy(net).eval()(x).detach().numpy()
    wide = part_of(net)
    for draws in (
        NetworkDraws.allocate([Component(1.0, net, layout, distribution)], 30),
        NetworkDraws.allocate([Component(1.0, net, layout, zero)], 30),
        NetworkDraws.allocate([wide], 30, scale=0.0),
    ):
        found = draws.evaluate(x).values
        assert len(found) == 1
        np.testing.assert_allclose(found[0], said, rtol=1e-12)


def test_only_the_named_parameters_vary() -> None:
    net, x = mlp(), rows(6, 3)
    draws = NetworkDraws.allocate([part_of(net, which="last")], 5, seed=1)
    np.testing.assert_allclose(draws.evaluate(x).values, by_hand(draws, x), rtol=1e-10)
    with torch.no_grad():  # what does not vary is the net's, as it is now
        net[0].weight.zero_()
        net[0].bias.zero_()
    found = draws.evaluate(x).values
    np.testing.assert_allclose(found, found[:, :1].repeat(6, 1), rtol=1e-12)


@pytest.mark.parametrize("make", [mlp, Tied, Counting, Branching])
def test_the_net_is_left_as_it_was(make: type) -> None:
    net = filled(make()).double()
    net.train()
    next(iter(net.children())).eval()
    modes = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    states = torch.get_rng_state()
    NetworkDraws.allocate([part_of(net)], 4).evaluate(rows(5, 3), use_vmap=make is not Branching)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(value.grad is None for value in net.parameters())
    assert torch.equal(torch.get_rng_state(), states)


def test_the_net_is_left_as_it_was_after_an_error() -> None:
    net = mlp()
    net.train()
    with pytest.raises(
        ValueError, match=r"Sequential cannot be evaluated at rows of shape \(4,\) and torch.float64"
    ):
        NetworkDraws.allocate([part_of(net)], 4).evaluate(rows(5, 4))
    assert all(module.training for module in net.modules())


def test_mean_and_spread_of_a_linear_net() -> None:
    """f = x'w + b is Gaussian: mean x'm, variance x'Sx. False-alarm rate 1e-6."""
    net = filled(nn.Linear(3, 1)).double()
    part, x = part_of(net, 0.7), rows(4, 3)
    found = NetworkDraws.allocate([part], 4000, scale=2.5, seed=8).evaluate(x).values[..., 0]
    design = torch.cat([x, torch.ones(4, 1).double()], 1)
    mean = design @ part.distribution.mean
    covariance = 2.5 * design @ part.distribution.covariance().dense()[0] @ design.mT
    centred = torch.from_numpy(found) - mean
    i, j = torch.triu_indices(4, 4)
    second = centred[:, i] * centred[:, j] - covariance[i, j]
    both = torch.cat([centred, second], 1)
    assert_scores(both.mean(0) / both.std(0) * len(both) ** 0.5)


def test_a_mixture_has_draws_of_every_part() -> None:
    one, two = (
        filled(nn.Linear(3, 1), 1).double(),
        filled(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), 2).double(),
    )
    draws = NetworkDraws.allocate([part_of(one, weight=0.25), part_of(two, weight=0.75)], 8, seed=0)
    x = rows(5, 3)
    assert draws.allocation.counts == (2, 6)
    np.testing.assert_allclose(draws.evaluate(x).values, by_hand(draws, x), rtol=1e-10)
    three = part_of(filled(nn.Linear(3, 2)).double(), weight=0.75)
    with pytest.raises(ValueError, match="outputs of the same shape"):
        NetworkDraws.allocate([part_of(one, weight=0.25), three], 8).evaluate(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_nets_are_run_in_float32(dtype: torch.dtype) -> None:
    """Draws that differ by less than the rounding of the parameters stay apart."""
    net = mlp(dtype)
    part = part_of(net, 1e-4)
    x = rows(6, 3)
    draws = NetworkDraws.allocate([part], 5, seed=2)
    found = draws.evaluate(x).values
    wide = Component(1.0, copy.deepcopy(net).float(), part.layout, part.distribution)
    np.testing.assert_allclose(
        found, by_hand(NetworkDraws.allocate([wide], 5, seed=2), x.float()), rtol=1e-5, atol=1e-6
    )
    assert found.std(0).min() > 1e-6
    assert next(net.parameters()).dtype == dtype


def test_rows_of_any_kind() -> None:
    net, part = mlp(torch.float32), part_of(mlp(torch.float32))
    assert next(net.parameters()).dtype == torch.float32
    draws, x = NetworkDraws.allocate([part], 3), np.random.default_rng(0).normal(size=(4, 3))
    frozen = x.copy()
    frozen.flags.writeable = False
    expected = draws.evaluate(torch.from_numpy(x)).values
    for same in (x, frozen, x.tolist(), np.asfortranarray(x), torch.from_numpy(x).requires_grad_()):
        np.testing.assert_array_equal(draws.evaluate(as_rows(same)).values, expected)
    words = filled(nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(6, 1)))
    assert NetworkDraws.allocate([part_of(words)], 3).evaluate(as_rows([[0, 8], [1, 2]])).values.shape == (
        3,
        2,
        1,
    )


@pytest.mark.parametrize("bad", [np.array([["a"]]), np.zeros((0, 3)), 3.0, np.array([object()])])
def test_rows_that_are_none(bad: object) -> None:
    with pytest.raises(ValueError, match="X must"):
        as_rows(bad)


def test_nets_that_draw_random_numbers_are_refused() -> None:
    net = filled(Noisy()).double()
    states = torch.get_rng_state()
    with pytest.raises(ValueError, match="Noisy draws random numbers in evaluation mode"):
        NetworkDraws.allocate([part_of(net)], 3).evaluate(rows(4, 3))
    assert torch.equal(torch.get_rng_state(), states)


def test_outputs_must_be_one_tensor() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    class Total(Pair):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).sum()

    for net in (Pair(), Total()):
        with pytest.raises(ValueError, match="one tensor with 2 rows"):
            NetworkDraws.allocate([part_of(net)], 3).evaluate(rows(4, 3))


def test_what_does_not_fit_is_reported() -> None:
    net, part = mlp(), part_of(mlp())
    with pytest.raises(ValueError, match="meta device"):
        NetworkDraws.allocate(
            [Component(1.0, copy.deepcopy(net).to("meta"), part.layout, part.distribution)], 3
        )
    with pytest.raises(
        ValueError, match=r"no parameter '0.weight' of shape \(6, 3\): it is not the observed network"
    ):
        NetworkDraws.allocate(
            [Component(1.0, nn.Sequential(nn.Linear(4, 6)), part.layout, part.distribution)], 3
        )
    with pytest.raises(ValueError, match="The distribution has 5 weights, but Sequential has 31"):
        NetworkDraws.allocate([Component(1.0, net, part.layout, part.distribution.marginal(slice(5)))], 3)
    for scale in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale must be"):
            NetworkDraws.allocate([part], 3, scale=scale)


def test_distributions_in_other_dtypes_serve_the_net() -> None:
    net, x = mlp(torch.float32), rows(4, 3, dtype=torch.float32)
    part = part_of(net)
    wide = Component(1.0, net, part.layout, part.distribution.to(dtype=torch.float64))
    found = NetworkDraws.allocate([wide], 4, seed=1).evaluate(x)
    np.testing.assert_allclose(
        found.values, by_hand(NetworkDraws.allocate([wide], 4, seed=1), x), rtol=1e-5, atol=1e-6
    )


def test_global_seeds_do_not_matter() -> None:
    part, x = part_of(mlp()), rows(4, 3)
    one = NetworkDraws.allocate([part], 4, seed=1).evaluate(x).values
    torch.rand(5, generator=stream(0))
    torch.rand(5)
    np.testing.assert_array_equal(NetworkDraws.allocate([part], 4, seed=1).evaluate(x).values, one)


def test_draws_are_those_of_the_distribution() -> None:
    """Scaled draws and draws of the scaled distribution are the same numbers."""
    part = part_of(mlp())
    for scale in (1.0, 0.3):
        own = next(NetworkDraws.allocate([part], 2, scale=scale, seed=7).draw_chunks(0, 1))
        first = generator(spawn(generator(7), 1)[0])
        torch.testing.assert_close(
            own, part.distribution.scale_covariance(scale).draw(1, first), rtol=1e-12, atol=1e-14
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu() -> None:
    """The net there, the distribution here or there, rows here; outputs those of networks that hold the draw."""
    net = mlp(torch.float32).cuda()
    part, x = part_of(net), rows(50, 3, dtype=torch.float32)
    here = Component(1.0, net, part.layout, part.distribution.to("cpu"))
    there = Component(1.0, net, part.layout, part.distribution.to("cuda"))
    for one in (here, there):
        draws = NetworkDraws.allocate([one], 6, seed=3)
        found = draws.evaluate(x)
        assert found.used_vmap
        np.testing.assert_allclose(found.values, by_hand(draws, x.cuda()), rtol=1e-3, atol=1e-4)


def test_a_network_that_turns_to_half_itself_is_reported_what_it_is_run_in() -> None:
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.half())

    with pytest.raises(ValueError, match=r"evaluated in torch.float32: remove casts to half"):
        NetworkDraws.allocate([part_of(filled(Halving()).half())], 3).evaluate(rows(4, 3))


def test_whole_numbers_for_a_network_of_floats_say_what_to_do() -> None:
    net = torch.nn.Linear(2, 1)
    part = Component(1.0, net, Layout.from_network(net), WeightDistribution.point(torch.zeros(3)))
    with pytest.raises(ValueError, match="pass X as floats"):
        NetworkDraws.allocate((part,), 2, scale=1.0, seed=0).evaluate(torch.ones(3, 2, dtype=torch.long))
