"""A small training. Processes beside this one find it here, where tests are no module of theirs."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.optim import SGD


def rows() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=draws)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(40, 1, generator=draws)


def network(draws: Generator) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.5 * torch.randn(value.shape, generator=draws))
    return net


def shuffled(draws: Generator) -> list[tuple[Tensor, Tensor]]:
    x, y = rows()
    order = torch.randperm(len(x), generator=draws)
    return [(x[batch], y[batch]) for batch in order.split(10)]


def optimiser(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.05, momentum=0.9)
