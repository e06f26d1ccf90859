"""A network as a function of its weights: many vectors of weights at once, the network itself untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from boxloop.weights.inputs import Inputs, count, cut, mapped, wide
from boxloop.weights.layout import Layout

Buffers = Mapping[str, Tensor]
"""By name, with a leading axis of draws."""


def batch_norms(net: nn.Module) -> dict[str, _BatchNorm | _InstanceNorm]:
    """Modules whose running statistics were gathered under other weights than those drawn."""
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(module, (_BatchNorm, _InstanceNorm)) and module.running_mean is not None
    }


def refuse_untracked(net: nn.Module) -> None:
    """A network whose BatchNorm takes its statistics from the rows at hand.

    Raises:
        ValueError: what it says of a row depends on the rows beside it.
    """
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{type(module).__name__} {name!r} has no running statistics, so that what the network says of a row "
                "depends on the rows beside it: give it track_running_stats=True, or use LayerNorm or GroupNorm"
            )


@contextmanager
def evaluating(net: nn.Module, *, refreshing: bool = False) -> Iterator[None]:
    """``net.eval()`` for a while; with ``refreshing`` only BatchNorm trains, and averages all batches alike."""
    modes = [(module, module.training) for module in net.modules()]
    norms = [(module, module.momentum) for module in batch_norms(net).values()]
    try:
        for module, _ in modes:
            module.training = False
        for norm, _ in norms if refreshing else ():
            norm.training, norm.momentum = True, None
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for norm, momentum in norms:
            norm.momentum = momentum


@dataclass(frozen=True, eq=False)
class NetFunction:
    """What a network says, given vectors of weights.

    Half-precision parameters are taken up to float32: draws closer together than their rounding would all be one.

    Args:
        net: any module; its parameters outside the layout, and its buffers, are used as they are.
        layout: the parameters that vary.
    """

    net: nn.Module
    layout: Layout

    @property
    def like(self) -> Tensor:
        """A parameter, whose device and dtype inputs should have."""
        return self.net.get_parameter(self.layout.names[0])

    def take(self, rows: Inputs) -> Inputs:
        """Rows as the network wants them."""
        like, wanted = self.like, wide(self.like.dtype)
        return mapped(rows, lambda one: one.to(like.device, wanted if one.is_floating_point() else one.dtype))

    def weights(self, vectors: Tensor) -> dict[str, Tensor]:
        """(m, D) as parameters (m, ...), each where its own is."""
        here = dict(self.net.named_parameters())
        return {
            name: value.to(here[name].device, wide(here[name].dtype))
            for name, value in self.layout.views(vectors).items()
        }

    def fixed(self) -> dict[str, Tensor]:
        """All else that the network has: parameters that do not vary, and copies of buffers, which it may change."""
        varies = set(self.layout.names)
        found = {n: p.detach() for n, p in self.net.named_parameters() if n not in varies}
        found |= {n: b.detach().clone() for n, b in self.net.named_buffers()}
        return {n: v.to(wide(v.dtype)) for n, v in found.items()}

    def __call__(self, weights: Buffers, buffers: Buffers, rows: Inputs, *, together: bool) -> Tensor:
        """Outputs (m, n, ...) under m draws, all at once by ``vmap`` or one after another."""

        def said(own: Buffers, kept: Buffers) -> Tensor:
            return _one_tensor(functional_call(self.net, {**fixed, **own, **kept}, (rows,)), n)

        fixed, n = self.fixed(), count(rows)
        if together:
            return vmap(said, in_dims=(0, 0))(dict(weights), dict(buffers))
        return torch.stack([said(*one) for one in _each(weights, buffers)])

    def statistics(self, weights: Buffers, buffers: Buffers, rows: Inputs, *, together: bool) -> Buffers:
        """Running statistics after one more batch; ``num_batches_tracked`` is common to all draws."""

        def seen(own: Buffers, kept: Buffers) -> dict[str, Tensor]:
            now = {name: value.clone() for name, value in kept.items()}
            seen_so_far = {name: value.clone() for name, value in counts.items()}
            functional_call(self.net, {**fixed, **own, **now, **seen_so_far}, (rows,))
            return now

        counts = {name: value for name, value in buffers.items() if value.ndim == 0}
        fixed, moving = self.fixed(), {n: v for n, v in buffers.items() if n not in counts}
        if together:
            found = vmap(seen, in_dims=(0, 0))(dict(weights), moving)
        else:
            each = [seen(*one) for one in _each(weights, moving)]
            found = {name: torch.stack([one[name] for one in each]) for name in moving}
        return {**found, **{name: value + 1 for name, value in counts.items()}}

    def cost(self, weights: Buffers, buffers: Buffers, rows: Inputs) -> int:
        """Bytes of the largest tensor that one more row makes under one draw."""
        sizes = []
        one = cut(rows, 0, 1)
        for x in (one, mapped(one, lambda first: torch.cat([first, first]))):
            with _Sizes() as mode:
                self(weights, buffers, x, together=False)
            sizes.append(mode.bytes)
        return max([b - a for a, b in zip(*sizes, strict=False)], default=0)


class _Sizes(TorchFunctionMode):
    """Notes how many bytes each operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.bytes.append(found.numel() * found.element_size())
        return found


def _each(weights: Buffers, buffers: Buffers) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    for i in range(len(next(iter(weights.values())))):
        yield {n: v[i] for n, v in weights.items()}, {n: v[i].clone() for n, v in buffers.items()}


def _one_tensor(found: Any, n: int) -> Tensor:
    said = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    if not isinstance(found, Tensor) or found.ndim == 0 or len(found) != n:
        raise ValueError(f"the network must give one tensor with a row for each of {n} inputs, got {said}")
    return found
