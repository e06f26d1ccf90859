"""The right weight decay leads an optimiser to the most probable weights; others are found out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from boxloop.networks import check_weight_decay, implied_precision, weight_decay

ALPHA, BETA, N = 3.0, 4.0, 60
DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=DRAWS, dtype=torch.float64)
Y = X @ torch.tensor([[1.0, 0.5], [-2.0, 0.0], [0.0, 1.0]]).double() + 0.5 * torch.randn(
    N, 2, generator=DRAWS, dtype=torch.float64
)
BEST = torch.linalg.solve(ALPHA * torch.eye(3).double() + BETA * X.mT @ X, BETA * X.mT @ Y)

LOSSES = {
    "mean_squared": lambda e: e.square().mean(),
    "half_mean_squared": lambda e: 0.5 * e.square().mean(),
    "mean_log": lambda e: 0.5 * BETA * e.square().sum() / N,
    "sum_squared": lambda e: e.square().sum(),
    "half_sum_squared": lambda e: 0.5 * e.square().sum(),
    "sum_log": lambda e: 0.5 * BETA * e.square().sum(),
}


def descended(make, loss, steps: int) -> Tensor:
    theta = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    optimiser = make([theta])
    for _ in range(steps):
        optimiser.zero_grad()
        loss(X @ theta - Y).backward()
        optimiser.step()
    return theta.detach()


@pytest.mark.parametrize("word", LOSSES)
def test_sgd_finds_the_posterior_mean(word):
    decay = weight_decay(ALPHA, N, word, BETA, n_outputs=2)
    curvature = torch.linalg.eigvalsh(X.mT @ X).max() * {"log": BETA}.get(word[-3:], 2.0)
    rate = 0.9 / float(curvature / (1.0 if word.startswith(("sum", "half_sum")) else N)) / 2.0
    found = descended(lambda p: torch.optim.SGD(p, lr=rate, weight_decay=decay), LOSSES[word], 2000)
    torch.testing.assert_close(found, BEST, rtol=1e-8, atol=1e-8)
    assert implied_precision(decay, N, word, BETA, n_outputs=2) == pytest.approx(ALPHA)


def test_coupled_adam_finds_it_and_decoupled_does_not():
    decay = weight_decay(ALPHA, N, "mean_log")
    adam = descended(lambda p: torch.optim.Adam(p, lr=0.005, weight_decay=decay), LOSSES["mean_log"], 3000)
    apart = descended(lambda p: torch.optim.AdamW(p, lr=0.005, weight_decay=decay), LOSSES["mean_log"], 3000)
    torch.testing.assert_close(adam, BEST, rtol=1e-3, atol=1e-3)
    assert float((apart - BEST).abs().max()) > 0.01


def test_the_paper_s_numbers():
    """alpha 0.01, beta 1, N 100: 2e-4, not the ratio alpha / beta (REPLICATION.md)."""
    assert weight_decay(0.01, 100, noise_precision=1.0) == pytest.approx(2e-4)


def groups(net: nn.Module, decay: float, bias: float) -> list[dict]:
    return [{"params": [net.weight], "weight_decay": decay}, {"params": [net.bias], "weight_decay": bias}]


@pytest.mark.parametrize(
    ("decay", "levels"),
    [
        (0.003, ["good"]),
        (0.00305, ["good"]),
        (0.005, ["doubtful"]),
        (0.03, ["bad"]),
        (0.0003, ["bad"]),
        (0.0, ["bad"]),
    ],
)
def test_verdicts(decay, levels):
    net = nn.Linear(2, 1)
    found = check_weight_decay(torch.optim.Adam(net.parameters(), weight_decay=decay), 3.0, 1000, "mean_log")
    assert [concern.level for concern in found.concerns] == levels
    assert found.expected == pytest.approx(0.003)
    if levels != ["good"]:
        assert "0.003" in found.concerns[0].next


def test_every_group_is_looked_at():
    net = nn.Linear(4, 1)
    found = check_weight_decay(torch.optim.SGD(groups(net, 0.003, 0.0), lr=0.1), 3.0, 1000, "mean_log")
    assert [group.size for group in found.groups] == [4, 1]
    assert [concern.level for concern in found.concerns] == ["bad"]
    assert "1 weights have none" in str(found)
    assert found.table()["implied precision"].tolist() == pytest.approx([3.0, 0.0])
    only = check_weight_decay(
        torch.optim.SGD(groups(net, 0.003, 0.0), lr=0.1), 3.0, 1000, "mean_log", parameters=[net.weight]
    )
    assert [concern.level for concern in only.concerns] == ["good"]
    with pytest.raises(ValueError, match="none of these"):
        check_weight_decay(torch.optim.SGD(net.parameters(), lr=0.1), 1.0, 9, "mean_log", parameters=[])


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adafactor, torch.optim.Muon])
def test_decoupled_decay_is_no_prior(kind):
    net = nn.Linear(2, 1, bias=False)
    found = check_weight_decay(kind(net.parameters(), weight_decay=0.003), 3.0, 1000, "mean_log")
    assert [concern.level for concern in found.concerns] == ["doubtful"]
    assert "no Gaussian prior" in str(found)
    assert math.isnan(found.table()["implied precision"].iloc[0])


def test_adam_set_to_decouple_and_optimisers_of_others():
    net = nn.Linear(2, 1)
    radam = torch.optim.RAdam(net.parameters(), weight_decay=0.003, decoupled_weight_decay=True)
    assert check_weight_decay(radam, 3.0, 1000, "mean_log").groups[0].kind == "decoupled"

    class Own(torch.optim.SGD):
        pass

    own = check_weight_decay(Own(net.parameters(), lr=0.1, weight_decay=0.003), 3.0, 1000, "mean_log")
    assert own.groups[0].kind == "unknown"
    assert own.concerns[0].level == "doubtful"
    rprop = check_weight_decay(torch.optim.Rprop(net.parameters()), 3.0, 1000, "mean_log")
    assert rprop.groups[0].kind == "none"
    assert rprop.concerns[0].level == "bad"
    flat = check_weight_decay(torch.optim.Rprop(net.parameters()), 0.0, 1000, "mean_log")
    assert flat.concerns[0].level == "good"


def test_bad_input_is_said():
    with pytest.raises(ValueError, match="noise_precision"):
        weight_decay(1.0, 10)
    with pytest.raises(ValueError, match="loss must be one of"):
        weight_decay(1.0, 10, "squared")
    with pytest.raises(ValueError, match="prior_precision"):
        weight_decay(-1.0, 10, "mean_log")
    with pytest.raises(ValueError, match="n_rows"):
        weight_decay(1.0, 0, "mean_log")
    with pytest.raises(ValueError, match="decay must be at least 0"):
        implied_precision(float("nan"), 10, "mean_log")


def test_asgd_has_a_second_decay():
    """Its ``lambd`` shrinks weights in the same step: both together are what the prior must ask for."""
    right = weight_decay(ALPHA, N, "mean_log")
    rate = 0.05

    def make(parameters):
        return torch.optim.ASGD(
            parameters, lr=rate, weight_decay=0.25 * right, lambd=0.75 * right, alpha=0.0, t0=1e9
        )

    found = descended(make, LOSSES["mean_log"], 3000)
    torch.testing.assert_close(found, BEST, rtol=1e-8, atol=1e-8)
    theta = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    assert check_weight_decay(make([theta]), ALPHA, N, "mean_log").concerns[0].level == "good"
    plain = check_weight_decay(torch.optim.ASGD([theta], lr=rate), ALPHA, N, "mean_log")
    assert plain.groups[0].decay == pytest.approx(1e-4)
