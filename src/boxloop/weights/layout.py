"""Which parameters of a network are followed, and where each stands in one long vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor, nn

LAST = "last"
"""The word for the last module that has parameters of its own."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of parameters, in the order in which they stand in a vector of D numbers.

    Frozen parameters are left out, and one that several modules share is there once, by its first name.

    Args:
        names: as ``net.named_parameters()`` gives them.
        shapes: of each.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> layout = Layout.of(net, "last")
        >>> layout.names, layout.size
        (('2.weight', '2.bias'), 4)
        >>> layout.views(torch.arange(4.0))["2.bias"]
        tensor([3.])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, net: nn.Module, which: str | Sequence[str] | None = None) -> Self:
        """The layout of a network.

        Args:
            net: any module.
            which: names of parameters or of modules; ``"last"`` for the last module with parameters of its own; all
                that are trained when None.

        Raises:
            TypeError: not a module.
            ValueError: a name that the network does not have, or nothing that is trained among those named; parameters
                that are complex or have no shape yet; a wrapper whose network cannot be run with other weights.
        """
        _check(net)
        free = {name: value for name, value in net.named_parameters() if value.requires_grad}
        if which is not None:
            free = _named(net, free, _wanted(net, which))
        for name, value in free.items():
            _check_parameter(name, value)
        if not any(value.numel() for value in free.values()):
            raise ValueError(
                f"{type(net).__name__} has no trainable parameter there that holds a number: nothing to follow"
            )
        return cls(tuple(free), tuple(tuple(value.shape) for value in free.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """D."""
        return sum(self.sizes)

    @property
    def places(self) -> dict[str, slice]:
        """Where each parameter stands."""
        ends = list(accumulate(self.sizes))
        return {name: slice(end - n, end) for name, end, n in zip(self.names, ends, self.sizes, strict=True)}

    def read(self, net: nn.Module, out: Tensor) -> Tensor:
        """The parameters of a network as they are now, written into ``out``, (D,), in its dtype and on its device.

        Raises:
            ValueError: a parameter is no longer there, has another shape, or is on the meta device.
        """
        found = self._found(net)
        if all(value.dtype == out.dtype and value.device == out.device for value in found):
            return torch.cat([value.detach().reshape(-1) for value in found], out=out)
        for part, value in zip(out.split(self.sizes), found, strict=True):
            part.copy_(value.detach().reshape(-1))
        return out

    @torch.no_grad()
    def write(self, net: nn.Module, vector: Tensor) -> None:
        """Set the parameters of a network, in place, to those of a vector (D,).

        Raises:
            ValueError: not a vector of D numbers; the network is as it was.
        """
        if not isinstance(vector, Tensor) or tuple(vector.shape) != (self.size,):
            got = tuple(vector.shape) if isinstance(vector, Tensor) else f"a {type(vector).__name__}"
            raise ValueError(f"weights are one tensor of shape ({self.size},), got {got}")
        for value, part in zip(self._found(net), vector.split(self.sizes), strict=True):
            value.copy_(part.reshape(value.shape))

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Parameters by name from one vector (D,), or from many, (m, D): views of ``(*shape,)`` or ``(m, *shape)``."""
        lead = vectors.shape[:-1]
        parts = vectors.split(self.sizes, dim=-1)
        return {
            name: part.reshape((*lead, *shape))
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def _found(self, net: nn.Module) -> list[Tensor]:
        here = dict(net.named_parameters())
        for name, shape in zip(self.names, self.shapes, strict=True):
            now = tuple(here[name].shape) if name in here else None
            if now != shape:
                said = "is no longer there" if now is None else f"has shape {now}"
                raise ValueError(
                    f"parameter {name!r} was followed with shape {shape} and {said}{_hint(name, here)}"
                )
            if here[name].is_meta:
                raise ValueError(f"parameter {name!r} is on the meta device, where tensors have no numbers")
        return [here[name] for name in self.names]


def _check(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"a network is a torch.nn.Module, got a {type(net).__name__}")
    if isinstance(net, nn.DataParallel):
        raise ValueError(
            "DataParallel cannot be run with other weights: follow its net.module, which has the same"
        )
    if isinstance(net, torch.jit.ScriptModule):
        raise ValueError(
            "a network of torch.jit cannot be run with other weights: follow the module that was scripted or traced"
        )


def _check_parameter(name: str, value: nn.Parameter) -> None:
    if isinstance(value, nn.UninitializedParameter):
        raise ValueError(
            f"parameter {name!r} has no shape yet: run the network once on a batch, then follow it"
        )
    if not value.is_floating_point():
        raise ValueError(
            f"parameter {name!r} is {str(value.dtype).removeprefix('torch.')}, and a law is of real numbers: name "
            "those that vary by parameters=, or hold real and imaginary part as two parameters"
        )


def _hint(name: str, here: dict[str, nn.Parameter]) -> str:
    """Where only the wrapper of ``torch.compile`` differs."""
    inner = name.removeprefix("_orig_mod.")
    if inner != name and inner in here:
        return ": give the compiled network, as torch.compile(net)"
    return ": give the network within, not the compiled one" if f"_orig_mod.{name}" in here else ""


def _wanted(net: nn.Module, which: str | Sequence[str]) -> tuple[str, ...]:
    if which == LAST:
        own = [
            name
            for name, module in net.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        ]
        return tuple(own[-1:])
    names = (which,) if isinstance(which, str) else tuple(which) if isinstance(which, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"parameters= takes names of parameters or modules, or {LAST!r}, got {which!r:.60}")
    return names


def _named(net: nn.Module, free: dict[str, nn.Parameter], wanted: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """Those of the trained parameters that are named, by whatever name, or belong to a module that is."""
    aliases = dict(net.named_parameters(remove_duplicate=False))
    modules = dict(net.named_modules())
    chosen: set[int] = set()
    for name in wanted:
        if name in modules:
            chosen |= {id(value) for value in modules[name].parameters()}
        elif name in aliases:
            chosen.add(id(aliases[name]))
        else:
            raise ValueError(f"{type(net).__name__} has no parameter and no module named {name!r}")
    return {name: value for name, value in free.items() if id(value) in chosen}
