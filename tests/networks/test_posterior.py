"""A posterior that watches a training, and what it says when something is wrong."""

import copy
import inspect
import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from boxloop.networks import (
    METHOD_NAMES,
    SWAG,
    FactorEM,
    FullCovariance,
    WeightPosterior,
    WeightWarning,
    WindowAverage,
)
from networks.trajectories import dense, followed


def network(seed: int = 0) -> nn.Sequential:
    draws = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.5 * torch.randn(value.shape, generator=draws))
    return net


def train(
    net: nn.Module, posterior: WeightPosterior, steps: int, rate: float = 0.05, seed: int = 1
) -> Tensor:
    """SGD on a small regression; the vectors that it passes through, (steps, D)."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 3, generator=draws).double()
    y = x[:, :1].sin() + 0.1 * torch.randn(64, 1, generator=draws)
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    seen = []
    for _ in range(steps):
        batch = torch.randint(64, (8,), generator=draws)
        loss = (net(x[batch]) - y[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        assert posterior.observe(loss)
        seen.append(nn.utils.parameters_to_vector(net.parameters()).detach().clone())
    return torch.stack(seen)


@pytest.mark.parametrize("word", METHOD_NAMES)
def test_in_the_users_own_loop(word: str) -> None:
    net = network()
    posterior = WeightPosterior(net, word, rank=3, random_state=0)
    rows = train(net, posterior, 60)
    assert posterior.count == 60
    distribution = posterior.distribution()
    torch.testing.assert_close(distribution.mean, rows.mean(0), rtol=1e-9, atol=1e-12)
    assert torch.equal(posterior.trace.values, rows)
    assert posterior.draw(4, random_state=0).shape == (4, 26)
    (part,) = posterior.components()
    assert (part.weight, part.net, part.layout) == (1.0, net, posterior.layout)


def test_the_distribution_is_that_of_the_method_alone() -> None:
    net = network()
    posterior = WeightPosterior(net, WindowAverage(4, SWAG(3)), random_state=0)
    rows = train(net, posterior, 40)
    torch.testing.assert_close(
        dense(posterior.distribution()),
        dense(followed(WindowAverage(4, SWAG(3)), rows).distribution()),
        rtol=1e-12,
        atol=0.0,
    )


def test_same_seed_same_distribution() -> None:
    distributions = []
    for state in (3, 3, 4):
        net = network()
        posterior = WeightPosterior(net, "factor", rank=2, random_state=state)
        train(net, posterior, 20)
        distributions.append(posterior.distribution())
    assert torch.equal(distributions[0].loadings, distributions[1].loadings)
    assert not torch.equal(distributions[0].loadings, distributions[2].loadings)


def test_nothing_observed() -> None:
    posterior = WeightPosterior(network(), "factor", random_state=0)
    for ask in (posterior.distribution, posterior.components, posterior.mean, lambda: posterior.draw(1)):
        with pytest.raises(
            ValueError, match=r"FactorEM needs at least 2 vectors.*observe\(\) was never called"
        ):
            ask()
    posterior.observe()
    with pytest.raises(ValueError, match=r"was called 1 time"):
        posterior.distribution()


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), torch.tensor(float("-inf"))])
def test_a_loss_that_is_not_finite_refuses_the_weights(loss: float | Tensor) -> None:
    net = network()
    posterior = WeightPosterior(net, "swa", random_state=0)
    posterior.observe(1.0)
    centre = posterior.mean()
    with torch.no_grad():
        net[0].bias += 1.0
    with pytest.warns(WeightWarning, match=r"after 1 vectors were refused: the loss is"):
        assert not posterior.observe(loss)
    assert (posterior.count, posterior.n_refused) == (1, 1)
    assert torch.equal(posterior.mean(), centre)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    net = network()
    posterior = WeightPosterior(net, "factor", rank=2, random_state=0)
    rows = train(net, posterior, 10)
    kept = [leaf.clone() for _, leaf in posterior.state().leaves()]
    with torch.no_grad():
        net[2].bias.fill_(bad)
    with pytest.warns(WeightWarning, match="a weight is not finite|squares of the weights overflow"):
        assert not posterior.observe()
    assert (posterior.count, posterior.n_refused) == (10, 1)
    assert all(torch.equal(a, b) for a, (_, b) in zip(kept, posterior.state().leaves(), strict=True))
    torch.testing.assert_close(posterior.mean(), rows.mean(0), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_are_averaged_in_single(dtype: torch.dtype) -> None:
    net = network().to(dtype)
    posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
    assert posterior.dtype == torch.float32
    rows = []
    for step in range(8):
        with torch.no_grad():
            net[0].bias += 0.01 * step
        posterior.observe()
        rows.append(nn.utils.parameters_to_vector(net.parameters()).detach().float())
    torch.testing.assert_close(posterior.mean(), torch.stack(rows).mean(0), rtol=1e-6, atol=1e-7)
    posterior.apply()
    assert net[0].weight.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_nothing_is_kept_in_half_precision(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="dtype must be float32 or float64"):
        WeightPosterior(network(), "swa", dtype=dtype)


def test_a_network_that_changed_shape_is_named_and_nothing_taken_in() -> None:
    net = network()
    posterior = WeightPosterior(net, "swa", random_state=0)
    posterior.observe()
    net[2] = nn.Linear(5, 2).double()
    with pytest.raises(ValueError, match=r"'2.weight' had shape \(1, 5\) and now has shape \(2, 5\)"):
        posterior.observe()
    assert (posterior.count, posterior.n_refused) == (1, 0)


@pytest.mark.parametrize(("method", "rank"), [("factor", 10), ("swag", 10), ("gradient", 20), ("full", 26)])
def test_fewer_vectors_than_directions_lower_the_rank_with_one_warning(method: str, rank: int) -> None:
    net = network()
    posterior = WeightPosterior(net, method, rank=rank, random_state=0)
    train(net, posterior, 6)
    with pytest.warns(WeightWarning, match=rf"6 vectors give a distribution of rank .* has rank {rank}"):
        distribution = posterior.distribution()
    assert distribution.rank == (0 if method == "gradient" else 5)
    posterior.distribution()
    posterior.draw(2, random_state=0)
    train(net, posterior, 1)
    with pytest.warns(WeightWarning, match="7 vectors give"):
        posterior.distribution()


@pytest.mark.parametrize(
    "method", [word for word in METHOD_NAMES if word != "swa"] + [WindowAverage(2, FullCovariance())], ids=str
)
def test_a_learning_rate_of_zero_is_a_distribution_without_spread_and_a_warning(method) -> None:
    net = network()
    posterior = WeightPosterior(net, method, rank=2, random_state=0)
    rows = train(net, posterior, 30, rate=0.0)
    with pytest.warns(WeightWarning, match=r"All 30 vectors are identical.*learning rate 0"):
        distribution = posterior.distribution()
    torch.testing.assert_close(distribution.mean, rows[0], rtol=1e-14, atol=0.0)
    assert float(distribution.variance().amax()) <= 1e-30
    train(net, posterior, 40, rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)
        assert float(posterior.distribution().variance().amin()) > 1e-12


def test_swa_has_no_spread_and_does_not_complain() -> None:
    net = network()
    posterior = WeightPosterior(net, "swa", random_state=0)
    train(net, posterior, 3, rate=0.0)
    assert not bool(posterior.distribution().variance().any())


def test_parts_of_a_network_and_frozen_ones() -> None:
    net = network()
    net[0].bias.requires_grad_(False)
    posterior = WeightPosterior(net, "swa", parameters="last", random_state=0)
    assert posterior.layout.names == ("2.weight", "2.bias")
    assert WeightPosterior(net, "swa").layout.names == ("0.weight", "2.weight", "2.bias")


def test_apply_sets_the_network_to_the_mean_or_to_a_vector() -> None:
    net = network()
    posterior = WeightPosterior(net, "swa", random_state=0)
    rows = train(net, posterior, 5)
    posterior.apply()
    torch.testing.assert_close(
        nn.utils.parameters_to_vector(net.parameters()).detach(), rows.mean(0), rtol=1e-12, atol=0.0
    )
    posterior.apply(rows[2])
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()).detach(), rows[2])


def test_observing_does_not_touch_the_training() -> None:
    one, other = network(), network()
    train(one, WeightPosterior(one, "factor", random_state=0), 20)
    train(other, WeightPosterior(other, "swa", random_state=0), 20)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_restored_posterior_goes_on_bit_for_bit_with_a_copy_of_the_network() -> None:
    net = network()
    posterior = WeightPosterior(net, FactorEM(2), random_state=0)
    train(net, posterior, 13)
    twin = copy.deepcopy(net)
    again = WeightPosterior.restore(posterior.state(), twin)
    train(net, posterior, 12, seed=5)
    train(twin, again, 12, seed=5)
    assert again.count == posterior.count == 25
    pairs = zip(posterior.state().leaves(), again.state().leaves(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("loss", [torch.ones(3), np.ones(2), "low", 1j, torch.tensor(1j)])
def test_a_loss_that_is_not_one_number_is_reported(loss: object) -> None:
    posterior = WeightPosterior(nn.Linear(2, 1), "swa")
    with pytest.raises(ValueError, match=r"loss must be one number"):
        posterior.observe(loss)  # type: ignore[arg-type]
    assert posterior.count == 0


def test_weights_whose_squares_overflow_are_reported_from_those_that_are_not_finite() -> None:
    net = nn.Linear(2, 1)
    nn.init.constant_(net.weight, 1e25)
    with pytest.warns(
        WeightWarning, match=r"squares of the weights overflow in torch.float32; use dtype=torch.float64"
    ):
        assert not WeightPosterior(net, "swa").observe()
    assert WeightPosterior(net, "swa", dtype=torch.float64).observe()


@pytest.mark.parametrize("method", [SWAG, None, 3])
def test_a_method_must_be_one(method: object) -> None:
    with pytest.raises(ValueError, match=r"or a method such as SWAG\(10\)"):
        WeightPosterior(nn.Linear(2, 1), method)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [2.5, None, "5", 0])
def test_a_rank_is_a_whole_number(rank: object) -> None:
    with pytest.raises(ValueError, match=f"rank must be a whole number, at least 1, got {rank!r}"):
        WeightPosterior(nn.Linear(2, 1), "swag", rank=rank)  # type: ignore[arg-type]


def test_a_network_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="on the meta device, where tensors have no values"):
        WeightPosterior(nn.Linear(2, 1, device="meta"), "swa")
    net = nn.Linear(2, 1)
    posterior = WeightPosterior(net, "swa")
    net.to("meta")
    with pytest.raises(ValueError, match="Parameter 'weight' is on the meta device"):
        posterior.observe()
    assert posterior.count == 0


def test_a_device_that_is_not_there_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cuda' was asked for, but no CUDA device is available"):
        WeightPosterior(nn.Linear(2, 1), "swa", device="cuda")
    posterior = WeightPosterior(nn.Linear(2, 1), "swa", device="auto")
    assert posterior.device == torch.device("cpu")
    with pytest.raises(ValueError, match="device='gpu' is no device: use 'cpu', 'cuda', 'cuda:1' or 'auto'"):
        WeightPosterior.restore(posterior.state(), nn.Linear(2, 1), device="gpu")


def test_warnings_point_at_the_line_that_calls_the_library() -> None:
    net, x = nn.Linear(2, 1), torch.ones(4, 2)
    posterior = WeightPosterior(net, "swa")
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    batches, here = [(x, x[:, :1]), (x * math.nan, x[:, :1])], inspect.currentframe()
    with pytest.warns(WeightWarning) as record:
        posterior.fit(batches, nn.functional.mse_loss, optimiser, epochs=1)
    assert here is not None
    assert [(one.filename, one.lineno) for one in record] == [(__file__, here.f_lineno - 2)]
