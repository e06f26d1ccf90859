r"""Perceptrons side by side: several members of an ensemble trained as one network.

.. math:: h^{(k)}_{l} = g\bigl(h^{(k)}_{l-1} A_l^{(k)\top} + a_l^{(k)}\bigr), \qquad k = 1, \dots, m

One product of stacks serves all members, so that five small networks take little longer than one.
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
from boxloop.numeric import normal
from boxloop.weights.inputs import mapped

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""Between two layers, by name."""


class StackedLayers(nn.Module):
    """Perceptrons of the same shape, each with weights of its own.

    Args:
        widths: columns of the inputs, of every hidden layer, and of the outputs.
        activation: one of :data:`ACTIVATIONS`.
        streams: of the random numbers that each member starts from; one member a stream.
        dtype: of the weights.
        device: of the weights.

    Example:
        >>> import torch
        >>> streams = [torch.Generator().manual_seed(i) for i in range(3)]
        >>> stack = StackedLayers((2, 8, 1), "tanh", streams)
        >>> x = torch.ones(5, 2, dtype=torch.float64)
        >>> stack(x).shape
        torch.Size([3, 5, 1])
        >>> torch.allclose(stack(x)[1], stack.nets()[1](x))
        True
    """

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
            raise ValueError(f"every layer needs at least one column, got {tuple(widths)}")
        check_choice(activation, "activation", tuple(ACTIVATIONS))
        self.widths, self.members = tuple(widths), len(streams)
        self.between = ACTIVATIONS[activation]()
        gain = 2.0 if activation != "tanh" else 1.0
        slopes: list[nn.Parameter] = []
        shifts: list[nn.Parameter] = []
        for before, after in pairwise(self.widths):
            size = math.sqrt((gain if len(slopes) < len(widths) - 2 else 1.0) / before)
            found = torch.stack([size * normal((after, before), own, dtype).to(device) for own in streams])
            slopes.append(nn.Parameter(found))
            shifts.append(nn.Parameter(found.new_zeros(self.members, after)))
        self.slopes, self.shifts = nn.ParameterList(slopes), nn.ParameterList(shifts)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, d), the same rows for all, or (m, n, d), each its own -> (m, n, q)."""
        here = rows.expand(self.members, *rows.shape[-2:])
        for place, (slope, shift) in enumerate(zip(self.slopes, self.shifts, strict=True)):
            here = torch.baddbmm(shift[:, None], self.between(here) if place else here, slope.mT)
        return here

    def nets(self) -> tuple[nn.Sequential, ...]:
        """Each member as a network like any other, whose parameters are those of the stack: they move together."""
        return tuple(self._net(k) for k in range(self.members))

    def _net(self, k: int) -> nn.Sequential:
        return _plain(
            self.widths,
            self.between,
            [
                (slope.detach()[k], shift.detach()[k])
                for slope, shift in zip(self.slopes, self.shifts, strict=True)
            ],
        )


def perceptron(widths: Sequence[int], activation: str, dtype: torch.dtype) -> nn.Sequential:
    """A network of the shape of a member, without values yet."""
    empty = [
        (torch.zeros(after, before, dtype=dtype), torch.zeros(after, dtype=dtype))
        for before, after in pairwise(widths)
    ]
    return _plain(widths, ACTIVATIONS[activation](), empty)


def _plain(
    widths: Sequence[int], between: nn.Module, values: Sequence[tuple[Tensor, Tensor]]
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for (before, after), (slope, shift) in zip(pairwise(widths), values, strict=True):
        layer = skip_init(nn.Linear, before, after)  # nn.Linear alone would draw from the global generator
        layer.weight, layer.bias = nn.Parameter(slope), nn.Parameter(shift)
        layers += [layer, type(between)()]
    return nn.Sequential(*layers[:-1])


class ShuffledRows:
    """Mini-batches of rows in memory, every member's in an order of its own, new in every epoch.

    An epoch of n rows is cut into batches of nearly equal size.

    Args:
        x: rows, (n, d).
        y: what belongs to them, (n, ...).
        size: most rows of a batch.
        streams: of the orders, one a member.
        alone: whether batches of a single member have no axis of members.
        weight: of the rows, (n,), which then come with y, as a pair.

    Example:
        >>> import torch
        >>> streams = [torch.Generator().manual_seed(i) for i in range(2)]
        >>> batches = ShuffledRows(torch.arange(5.0)[:, None], torch.arange(5), 2, streams)
        >>> [(tuple(x.shape), tuple(y.shape)) for x, y in batches]
        [((2, 2, 1), (2, 2)), ((2, 2, 1), (2, 2)), ((2, 1, 1), (2, 1))]
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        size: int,
        streams: Sequence[Generator],
        alone: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        self.x, self.y, self.weight, self.streams, self.alone = x, y, weight, list(streams), alone
        self.count = -(-len(x) // size)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        orders = torch.stack([torch.randperm(len(self.x), generator=own) for own in self.streams])
        least, more = divmod(len(self.x), self.count)
        sizes = [least + 1] * more + [least] * (self.count - more)
        chosen = orders[0] if self.alone else orders
        for some in chosen.to(self.x.device).split(sizes, dim=-1):
            y = self.y[some]
            yield self.x[some], y if self.weight is None else (y, self.weight[some])


def summed(loss: Callable[[Tensor, Any], Tensor], members: int) -> Callable[[Tensor, Any], Tensor]:
    """The losses of all members together, from a mean over all rows: each member's gradient is that of its own mean."""
    return lambda out, y: members * loss(out.flatten(0, 1), mapped(y, lambda one: one.flatten(0, 1)))


def weighted(loss: Callable[[Tensor, Tensor], Tensor], level: float) -> Callable[[Tensor, Any], Tensor]:
    """The mean over a batch of y and weights, from the loss of each row.

    Weights count in units of ``level``, their mean over all rows and not over the batch: so the expectation over
    batches is the weighted mean over all rows.
    """
    return lambda out, given: (loss(out, given[0]) * given[1]).mean() / level
