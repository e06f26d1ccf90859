r"""Stacked perceptrons: several members of an ensemble trained as one network.

.. math:: h^{(k)}_{l} = g\bigl(h^{(k)}_{l-1} A_l^{(k)\top} + a_l^{(k)}\bigr), \qquad k = 1, \dots, m

One batched matrix product serves all members, so five small networks take little longer than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import skip_init

from boxloop.data import check_choice
from boxloop.networks.inputs import map_tensors
from boxloop.numeric import normal

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""Activations between layers, by name."""


class StackedLayers(nn.Module):
    """Perceptrons of the same shape, each with its own weights, drawn from its own stream."""

    def __init__(
        self,
        widths: Sequence[int],
        activation: str,
        streams: Sequence[Generator],
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if min(widths) < 1 or len(widths) < 2:
            raise ValueError(f"widths must hold at least two numbers above 0, got {tuple(widths)}")
        check_choice(activation, "activation", tuple(ACTIVATIONS))
        self.widths: tuple[int, ...] = tuple(widths)
        self.members: int = len(streams)
        self.activation: nn.Module = ACTIVATIONS[activation]()
        gain = 2.0 if activation != "tanh" else 1.0
        weights: list[nn.Parameter] = []
        biases: list[nn.Parameter] = []
        for fan_in, fan_out in pairwise(self.widths):
            std = math.sqrt((gain if len(weights) < len(widths) - 2 else 1.0) / fan_in)
            stack = torch.stack([std * normal((fan_out, fan_in), own, dtype).to(device) for own in streams])
            weights.append(nn.Parameter(stack))
            biases.append(nn.Parameter(stack.new_zeros(self.members, fan_out)))
        self.weights: nn.ParameterList = nn.ParameterList(weights)
        self.biases: nn.ParameterList = nn.ParameterList(biases)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (n, d) for all members, or (m, n, d), to outputs (m, n, q)."""
        hidden = rows.expand(self.members, *rows.shape[-2:])
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias[:, None], self.activation(hidden) if layer else hidden, weight.mT)
        return hidden

    def split_members(self) -> tuple[nn.Sequential, ...]:
        """The members as separate networks, whose parameters are views of those of the stack."""
        layers = list(zip(self.weights, self.biases, strict=True))
        return tuple(
            _make_sequential(
                self.widths,
                self.activation,
                [(weight.detach()[k], bias.detach()[k]) for weight, bias in layers],
            )
            for k in range(self.members)
        )


def make_perceptron(widths: Sequence[int], activation: str, dtype: torch.dtype) -> nn.Sequential:
    """One perceptron with all weights 0."""
    zeros = [
        (torch.zeros(fan_out, fan_in, dtype=dtype), torch.zeros(fan_out, dtype=dtype))
        for fan_in, fan_out in pairwise(widths)
    ]
    return _make_sequential(widths, ACTIVATIONS[activation](), zeros)


def _make_sequential(
    widths: Sequence[int], activation: nn.Module, values: Sequence[tuple[Tensor, Tensor]]
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for (fan_in, fan_out), (weight, bias) in zip(pairwise(widths), values, strict=True):
        layer = skip_init(nn.Linear, fan_in, fan_out)  # nn.Linear alone would draw from the global generator
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        layers += [layer, type(activation)()]
    return nn.Sequential(*layers[:-1])


class ShuffledBatches:
    """Mini-batches of rows in memory, shuffled in every epoch, in a different order for each member."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        size: int,
        streams: Sequence[Generator],
        squeeze: bool = False,  # batches of a single member have no axis of members
        weight: Tensor | None = None,  # of the rows; batches then hold pairs (y, weight) in place of y
    ) -> None:
        self.x = x
        self.y = y
        self.weight = weight
        self.streams: list[Generator] = list(streams)
        self.squeeze = squeeze
        self.count: int = -(-len(x) // size)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        orders = torch.stack([torch.randperm(len(self.x), generator=own) for own in self.streams])
        least, more = divmod(len(self.x), self.count)
        sizes = [least + 1] * more + [least] * (self.count - more)
        order = orders[0] if self.squeeze else orders
        for batch in order.to(self.x.device).split(sizes, dim=-1):
            y = self.y[batch]
            yield self.x[batch], y if self.weight is None else (y, self.weight[batch])


def sum_loss_over_members(
    loss: Callable[[Tensor, Any], Tensor], members: int
) -> Callable[[Tensor, Any], Tensor]:
    """The sum of the members' mean losses, so that each member has the gradient of its own mean loss."""
    return lambda out, y: members * loss(out.flatten(0, 1), map_tensors(y, lambda one: one.flatten(0, 1)))


def weight_loss_by_row(
    loss: Callable[[Tensor, Tensor], Tensor], mean_weight: float
) -> Callable[[Tensor, Any], Tensor]:
    """The weighted mean loss of a batch of pairs (y, weight), from the loss of each row."""
    # Divided by the mean over all rows, not over the batch: the expectation over batches is the weighted mean.
    return lambda out, y_weight: (loss(out, y_weight[0]) * y_weight[1]).mean() / mean_weight
