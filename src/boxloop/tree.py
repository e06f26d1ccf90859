"""Frozen dataclasses of tensors that add and scale.

Statistics, models and loop states are all trees: a field is a tensor, another tree, a tuple of trees, ``None``,
or a plain value that is carried along unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Tree:
    """Base of every frozen dataclass whose tensor fields behave as one vector.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Pair(Tree):
        ...     a: torch.Tensor
        ...     b: torch.Tensor
        >>> pair = Pair(torch.ones(2), torch.zeros(1))
        >>> (pair + pair * 2.0).a
        tensor([3., 3.])
    """

    def map(self, function: Callable[..., Tensor], *others: Self) -> Self:
        """Apply ``function`` to each tensor, together with the tensors of ``others`` at the same place."""
        fields = dataclasses.fields(self)
        values = {
            f.name: _map(function, getattr(self, f.name), *(getattr(o, f.name) for o in others))
            for f in fields
        }
        return dataclasses.replace(self, **values)

    def __add__(self, other: Self) -> Self:
        fields = dataclasses.fields(self)
        values = {f.name: _sum(getattr(self, f.name), getattr(other, f.name)) for f in fields}
        return dataclasses.replace(self, **values)

    def absorb(self, other: Self) -> Self:
        """``self + other`` in the memory of ``self``, which must be nobody else's: new memory costs more than a sum."""
        if type(self).__add__ is not Tree.__add__:  # a sum of its own kind
            return self + other
        fields = dataclasses.fields(self)
        values = {f.name: _absorb(getattr(self, f.name), getattr(other, f.name)) for f in fields}
        return dataclasses.replace(self, **values)

    def __sub__(self, other: Self) -> Self:
        return self.map(torch.sub, other)

    def __mul__(self, factor: float | Tensor) -> Self:
        return self.map(partial(torch.mul, other=factor))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move every tensor to a device and every floating tensor to a dtype."""

        def move(leaf: Tensor) -> Tensor:
            return leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None)

        return self.map(move)

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield ``(dotted path, tensor)`` in field order."""
        waiting = [(f"{prefix}{f.name}", getattr(self, f.name)) for f in reversed(dataclasses.fields(self))]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, Tensor):
                yield path, value
            elif isinstance(value, Tree):
                yield from value.leaves(f"{path}.")
            elif isinstance(value, tuple):
                waiting += [(f"{path}.{i}", value[i]) for i in reversed(range(len(value)))]

    def dot(self, other: Self) -> Tensor:
        """Inner product over all tensors, in float64."""
        pairs = zip(self.leaves(), other.leaves(), strict=True)
        return torch.stack([(a.double() * b.double()).sum() for (_, a), (_, b) in pairs]).sum()

    def is_finite(self) -> bool:
        """Whether every tensor is finite."""
        return all(bool(torch.isfinite(leaf).all()) for _, leaf in self.leaves())


@dataclasses.dataclass(frozen=True)
class DictTree(Tree):
    """A dictionary as a tree holds it."""

    keys: tuple[str | int, ...]
    values: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class ListTree(Tree):
    """A list as a tree holds it."""

    values: tuple[Any, ...]


def to_tree(value: Any) -> Any:
    """Dictionaries and lists, at any depth, as trees of copies of their tensors; the rest as it is.

    Example:
        >>> to_tree({"lr": 0.1, "betas": [0.9, 0.999]})
        DictTree(keys=('lr', 'betas'), values=(0.1, ListTree(values=(0.9, 0.999))))
    """
    if isinstance(value, dict):
        return DictTree(tuple(value), tuple(to_tree(item) for item in value.values()))
    if isinstance(value, list):
        return ListTree(tuple(to_tree(item) for item in value))
    if isinstance(value, Tensor):
        return value.detach().clone()
    return tuple(to_tree(item) for item in value) if type(value) is tuple else value


def from_tree(value: Any) -> Any:
    """The inverse of :func:`to_tree`."""
    if isinstance(value, DictTree):
        return {key: from_tree(item) for key, item in zip(value.keys, value.values, strict=True)}
    if isinstance(value, ListTree):
        return [from_tree(item) for item in value.values]
    if isinstance(value, Tensor):
        return value.clone()
    return tuple(from_tree(item) for item in value) if type(value) is tuple else value


def _sum(value: Any, other: Any) -> Any:
    """Parts add as they will: one that is a tree may have a sum of its own."""
    if isinstance(value, Tensor | Tree):
        return value + other
    if isinstance(value, tuple):
        return tuple(_sum(a, b) for a, b in zip(value, other, strict=True))
    return value


def _absorb(value: Any, other: Any) -> Any:
    if isinstance(value, Tensor):
        fits = value.shape == other.shape and value.dtype == other.dtype and value.device == other.device
        return value.add_(other) if fits else value + other
    if isinstance(value, Tree):
        return value.absorb(other)
    if isinstance(value, tuple):
        return tuple(_absorb(a, b) for a, b in zip(value, other, strict=True))
    return value


def _map(function: Callable[..., Tensor], value: Any, *others: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value, *others)
    if isinstance(value, Tree):
        return value.map(function, *others)
    if isinstance(value, tuple):
        return tuple(_map(function, *items) for items in zip(value, *others, strict=True))
    return value
