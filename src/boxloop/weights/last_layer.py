"""The linear layer that ends a network: what enters it, and where its weights stand in a vector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from boxloop.weights.inputs import Inputs, as_inputs, count, cut, mapped
from boxloop.weights.layout import LAST, Layout

CHUNK = 4096
"""Rows that go through a network at once."""


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer of a network, as far as it is trained.

    Args:
        net: whose output is that of the layer.
        layout: of its trained parameters.
        layer: the layer itself.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> last = LastLayer.of(net)
        >>> last.layout.names, last.features(torch.zeros(5, 2)).shape  # three features and the constant
        (('2.weight', '2.bias'), torch.Size([5, 4]))
    """

    net: nn.Module
    layout: Layout
    layer: nn.Linear

    @classmethod
    def of(cls, net: nn.Module) -> LastLayer:
        """Find it.

        Raises:
            ValueError: the last module with parameters is no ``nn.Linear``, or its weights are not trained.
        """
        layout = Layout.of(net, LAST)
        chosen = {id(net.get_parameter(name)) for name in layout.names}
        own = [module for module in net.modules() if any(True for _ in module.parameters(recurse=False))]
        layer = own[-1]
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"the last module with parameters is a {type(layer).__name__}: an exact or Laplace posterior of the "
                "last layer needs an nn.Linear there"
            )
        if id(layer.weight) not in chosen:
            raise ValueError("the weights of the last layer are frozen: their posterior is a point")
        return cls(net, layout, layer)

    @property
    def bias(self) -> bool:
        """Whether a bias varies with the weights."""
        return len(self.layout.names) == 2

    @property
    def outputs(self) -> int:
        """k."""
        return self.layer.out_features

    @property
    def dtype(self) -> torch.dtype:
        """That of the layer, float32 at least."""
        return torch.promote_types(self.layer.weight.dtype, torch.float32)

    def features(self, X: Any) -> Tensor:
        """What enters the layer for inputs, with a column of ones where its bias varies, (n, h) or (n, h + 1)."""
        try:
            found = torch.cat([chunk for _, chunk in self.chunks(X)])
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"the network does not take these inputs X ({type(X).__name__}); it needs tensors of its columns"
            ) from error
        return torch.cat([found, found.new_ones(len(found), 1)], 1) if self.bias else found

    def chunks(self, X: Any, size: int = CHUNK) -> Iterator[tuple[slice, Tensor]]:
        """What enters the layer, some rows at a time, without the ones."""
        inputs = self._inputs(X)
        with _quiet(self.net), torch.no_grad():
            for start in range(0, count(inputs), size):
                part = cut(inputs, start, start + size)
                yield slice(start, start + count(part)), self._entering(part)

    def offset(self) -> Tensor:
        """Of outputs that no varying weight explains: a frozen bias, (k,) float64."""
        if self.bias or self.layer.bias is None:
            return self.layer.weight.new_zeros(self.outputs, dtype=torch.float64)
        return self.layer.bias.detach().double()

    def weights(self) -> Tensor:
        """The weights as they are, a row an output, the bias last, (k, h) or (k, h + 1), float64."""
        weight = self.layer.weight.detach().double()
        return torch.cat([weight, self.layer.bias.detach().double()[:, None]], 1) if self.bias else weight

    def order(self) -> Tensor:
        """Where each number of a vector of the layout stands in :meth:`weights`, (D,)."""
        h = self.layer.in_features
        places = torch.arange(self.layout.size).reshape(self.outputs, -1)
        parts = {id(self.layer.weight): places[:, :h].reshape(-1)}
        if self.bias:
            parts[id(self.layer.bias)] = places[:, h]
        return torch.cat([parts[id(self.net.get_parameter(name))] for name in self.layout.names])

    def _inputs(self, X: Any) -> Inputs:
        weight = self.layer.weight
        return mapped(
            as_inputs(X), lambda one: one.to(weight.device, weight.dtype if one.is_floating_point() else None)
        )

    def _entering(self, inputs: Inputs) -> Tensor:
        seen: list[tuple[Tensor, Tensor]] = []
        hook = self.layer.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
        try:
            out = self.net(inputs)
        finally:
            hook.remove()
        if len(seen) != 1 or seen[0][0].ndim != 2 or len(seen[0][0]) != count(inputs):
            raise ValueError("the last layer must be used once, with one vector a row")
        entered, left = seen[0]
        if (
            not isinstance(out, Tensor)
            or out.numel() != left.numel()
            or not _alike(out.reshape(left.shape), left)
        ):
            raise ValueError(
                "the output of the network is not that of its last layer: leave out what comes after it, such as a "
                "softmax, or another order of modules than that of their use"
            )
        return entered.detach()


def _alike(out: Tensor, left: Tensor) -> bool:
    return bool(((out == left) | (out.isnan() & left.isnan())).all())


@contextmanager
def _quiet(net: nn.Module) -> Iterator[None]:
    """In evaluation, and as it was afterwards."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
