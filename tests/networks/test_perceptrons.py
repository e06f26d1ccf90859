"""Perceptrons side by side: each is what it would be alone."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD

from boxloop.networks import (
    ACTIVATIONS,
    ShuffledBatches,
    StackedLayers,
    WeightPosterior,
    fit,
    make_perceptron,
    sum_loss_over_members,
    train,
)


def streams(n: int, first: int = 0) -> list[Generator]:
    return [torch.Generator().manual_seed(first + i) for i in range(n)]


def rows(n: int = 50, outputs: int = 1) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(9)
    x = torch.randn(n, 3, generator=draws, dtype=torch.float64)
    return x, torch.sin(x[:, :outputs]) + 0.1 * torch.randn(n, outputs, generator=draws, dtype=torch.float64)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (7,), (5, 6)])
def test_a_member_says_what_its_network_says(activation: str, hidden: tuple[int, ...]) -> None:
    stack = StackedLayers((3, *hidden, 2), activation, streams(4))
    x, _ = rows()
    own = torch.stack([x + i for i in range(4)])
    for k, net in enumerate(stack.split_members()):
        torch.testing.assert_close(stack(x)[k], net(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(stack(own)[k], net(own[k]), rtol=1e-12, atol=1e-12)


def test_losses_together_have_the_gradients_of_each() -> None:
    stack = StackedLayers((3, 5, 4), "tanh", streams(3))
    x = torch.stack([rows()[0] + i for i in range(3)])
    labels = torch.randint(4, (3, 50), generator=torch.Generator())
    numbers = torch.randn(3, 50, 4, generator=torch.Generator(), dtype=torch.float64)
    for loss, y in ((cross_entropy, labels), (mse_loss, numbers)):
        stack.zero_grad()
        sum_loss_over_members(loss, 3)(stack(x), y).backward()
        for k, net in enumerate(stack.split_members()):
            loss(net(x[k]), y[k]).backward()
            for place in range(2):
                alone, layer = net[2 * place], stack.weights[place].grad
                torch.testing.assert_close(layer[k], alone.weight.grad, rtol=1e-11, atol=1e-13)
                torch.testing.assert_close(
                    stack.biases[place].grad[k], alone.bias.grad, rtol=1e-11, atol=1e-13
                )


def test_networks_move_with_the_stack() -> None:
    stack = StackedLayers((3, 5, 1), "relu", streams(2))
    nets, x = stack.split_members(), rows()[0]
    before = nets[1](x).detach()
    SGD(stack.parameters(), lr=0.1)
    (stack(x).square().sum()).backward()
    SGD(stack.parameters(), lr=0.1).step()
    assert not torch.equal(nets[1](x), before)
    torch.testing.assert_close(stack(x)[1], nets[1](x), rtol=1e-12, atol=1e-12)


def test_trained_together_is_trained_alone() -> None:
    x, y = rows(40)
    stack = StackedLayers((3, 6, 1), "tanh", streams(3))
    posteriors = [WeightPosterior(net, "swa", random_state=0) for net in stack.split_members()]
    sgd = SGD(stack.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    batches = ShuffledBatches(x, y, 8, streams(3, 50))
    train(
        stack, batches, sum_loss_over_members(mse_loss, 3), sgd, epochs=20, posteriors=posteriors, burn_in=5
    )
    for k, own in enumerate(posteriors):
        net = StackedLayers((3, 6, 1), "tanh", streams(3)[k : k + 1]).split_members()[0]
        alone = WeightPosterior(net, "swa", random_state=0)
        batches = ShuffledBatches(x, y, 8, streams(3, 50)[k : k + 1], squeeze=True)
        optimiser = SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        fit(alone, batches, mse_loss, optimiser, epochs=20, burn_in=5)
        assert own.count == alone.count == 75
        torch.testing.assert_close(own.mean(), alone.mean(), rtol=1e-9, atol=1e-11)


def test_epochs_hold_every_row_once_in_an_order_of_each_member() -> None:
    x = torch.arange(23.0)[:, None]
    batches = ShuffledBatches(x, torch.arange(23), 5, streams(2))
    assert len(batches) == 5
    seen = [list(batches) for _ in range(2)]
    assert [x.shape[1] for x, _ in seen[0]] == [5, 5, 5, 4, 4]
    orders = [torch.cat([y for _, y in epoch], dim=1) for epoch in seen]
    for order in orders:
        for member in order:
            assert member.sort().values.tolist() == list(range(23))
    assert not torch.equal(orders[0][0], orders[0][1])
    assert not torch.equal(orders[0], orders[1])
    for found, labels in seen[0]:
        assert torch.equal(found[..., 0], labels.float())


def test_starts_have_the_spread_that_keeps_signals_alike() -> None:
    stack = StackedLayers((200, 300, 1), "relu", streams(2))
    # The variance of 60,000 normal draws is known to 0.6 %; 5 standard errors are 3 %.
    assert stack.weights[0].var().item() == pytest.approx(2.0 / 200, rel=0.03)
    assert stack.biases[0].abs().max().item() == 0.0
    one, two = stack.weights[0]
    assert not torch.equal(one, two)


def test_global_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    StackedLayers((3, 5, 1), "relu", streams(2)).split_members()
    make_perceptron((3, 5, 1), "relu", torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_blank_networks_have_the_names_of_members() -> None:
    blank, net = (
        make_perceptron((3, 5, 1), "gelu", torch.float64),
        StackedLayers((3, 5, 1), "gelu", streams(1)).split_members()[0],
    )
    blank.load_state_dict(net.state_dict())
    x, _ = rows()
    assert torch.equal(blank(x), net(x))
    assert isinstance(blank[1], nn.GELU)


@pytest.mark.parametrize(
    ("widths", "activation"), [((3,), "relu"), ((3, 0, 1), "relu"), ((3, 1), "sigmoidal")]
)
def test_shapes_that_are_none_are_refused(widths: tuple[int, ...], activation: str) -> None:
    with pytest.raises(ValueError, match=r"widths must hold|activation must be"):
        StackedLayers(widths, activation, streams(1))
