"""Small networks with distributions over their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from boxloop.networks import Component, Layout, WeightDistribution


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(net: nn.Module, seed: int = 0) -> nn.Module:
    """The same weights whatever the global seed."""
    draws = stream(seed)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.5 * torch.randn(value.shape, generator=draws, dtype=torch.float64))
    return net


def part_of(
    net: nn.Module, std: float = 0.1, *, weight: float = 1.0, which: str | None = None, seed: int = 0
) -> Component:
    """A distribution of rank 2 with noise, around the weights that the net has."""
    layout, draws = Layout.from_network(net, which), stream(seed + 100)
    dtype = torch.promote_types(next(net.parameters()).dtype, torch.float32)
    mean = layout.read(net, torch.empty(layout.size, dtype=dtype))
    loadings = std * torch.randn(layout.size, 2, generator=draws, dtype=torch.float64)
    noise = std**2 * torch.rand(layout.size, generator=draws, dtype=torch.float64)
    return Component(weight, net, layout, WeightDistribution(mean, loadings.to(dtype), noise.to(dtype)))


def rows(*shape: int, seed: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=stream(seed), dtype=torch.float64).to(dtype)


def mlp(dtype: torch.dtype = torch.float64, outputs: int = 1) -> nn.Module:
    return filled(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, outputs))).to(dtype)


def with_batch_norm(dtype: torch.dtype = torch.float64) -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()]
    return filled(nn.Sequential(*layers, nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))).to(dtype)
