"""Fault 34: fewer snapshots than rank, frozen or tied parameters, a loss or weights that are not finite."""

import pytest
import torch
from torch import nn

from boxloop.networks import WeightPosterior, WeightWarning


class Tied(nn.Module):
    """Words in and words out share one table; the first layer is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.words = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.frozen(self.words(x)))


def learn(net: nn.Module, posterior: WeightPosterior, steps: int, rate: float = 0.1) -> None:
    draws = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        x, y = torch.randint(7, (2, 16), generator=draws)
        loss = nn.functional.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        posterior.observe(loss)


@pytest.mark.parametrize("method", ["factor", "swag"])
def test_fewer_snapshots_than_rank_lower_the_rank(method: str) -> None:
    net = Tied()
    posterior = WeightPosterior(net, method, rank=20, random_state=0)
    learn(net, posterior, 8)
    with pytest.warns(WeightWarning, match="8 vectors give a distribution of rank 7; .* has rank 20"):
        distribution = posterior.distribution()
    assert distribution.rank == 7
    assert distribution.is_finite()
    rows = distribution.draw(5, torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(rows).all())


def test_frozen_and_tied_parameters_are_counted_once() -> None:
    net = Tied()
    posterior = WeightPosterior(net, "swa", random_state=0)
    assert posterior.layout.names == ("words.weight",)
    assert posterior.layout.size == 28
    learn(net, posterior, 10)
    frozen = net.frozen.weight.clone()
    posterior.apply()
    assert torch.equal(net.out.weight, posterior.mean().reshape(7, 4))
    assert net.out.weight is net.words.weight
    assert torch.equal(net.frozen.weight, frozen)


def test_a_snapshot_after_a_nan_loss_is_refused() -> None:
    net = Tied()
    posterior = WeightPosterior(net, "factor", rank=2, random_state=0)
    learn(net, posterior, 10)
    distribution = posterior.distribution()
    with pytest.warns(WeightWarning, match="refused: the loss is nan"):
        assert not posterior.observe(torch.tensor(float("nan")))
    learn(net, posterior, 1, rate=0.0)
    with pytest.warns(WeightWarning, match="refused"):
        learn(net, posterior, 3, rate=float("inf"))
    assert posterior.n_refused == 4
    assert posterior.count == 11
    assert posterior.distribution().is_finite()
    assert bool((posterior.distribution().variance() < 4.0 * distribution.variance() + 1e-12).all())
