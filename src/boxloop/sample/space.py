"""Values of any shape and support as one unconstrained vector a chain, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to
from torch.distributions.constraints import Constraint, independent, real, simplex

Values = Mapping[str, Tensor]
ONE = "x"
"""The name of values that have none."""


@dataclass(frozen=True)
class Part:
    """One named value: where it lies in the vector, and how it is made of it.

    Args:
        shape: of the value, for one chain.
        free: shape of its unconstrained form.
        first: place of its first number.
        transform: from unconstrained numbers to the value; None where it is the identity.
        support: of the value; None where it has no constraint.
    """

    shape: tuple[int, ...]
    free: tuple[int, ...]
    first: int
    transform: Transform | None
    support: Constraint | None = None

    @property
    def place(self) -> slice:
        """Its columns in the vector."""
        return slice(self.first, self.first + prod(self.free))


@dataclass(frozen=True)
class Space:
    """The form of what is sampled.

    Args:
        parts: by name.
        named: whether users meet the values as a mapping, rather than as one tensor.

    Example:
        >>> import torch
        >>> from torch.distributions.constraints import positive
        >>> space = Space.of({"scale": torch.ones(5), "mean": torch.zeros(5, 2)}, {"scale": positive})
        >>> position = space.pack({"scale": torch.ones(5), "mean": torch.zeros(5, 2)})
        >>> position.shape, space.names
        (torch.Size([5, 3]), ('scale', 'mean[0]', 'mean[1]'))
        >>> values, log_volume = space.unpack(position)
        >>> values["scale"]
        tensor([1., 1., 1., 1., 1.])
    """

    parts: Mapping[str, Part]
    named: bool

    @classmethod
    def of(cls, start: Tensor | Values, support: Constraint | Mapping[str, Constraint] | None = None) -> Self:
        """The space of starting values with a leading axis of chains."""
        named = not isinstance(start, Tensor)
        values: Values = start if not isinstance(start, Tensor) else {ONE: start}
        if support is None:
            supports: Mapping[str, Constraint] = {}
        elif isinstance(support, Mapping):
            supports = support
        elif named:
            raise ValueError(
                f"the values of start have names: give support by name too, {{{next(iter(values))!r}: ...}}"
            )
        else:
            supports = {ONE: support}
        stray = set(supports) - set(values)
        if stray:
            raise ValueError(f"support names {sorted(stray)[0]!r}, which is not among {sorted(values)}")
        parts: dict[str, Part] = {}
        first = 0
        for name, value in values.items():
            parts[name] = _part(name, value, supports.get(name), first)
            first += prod(parts[name].free)
        if first == 0:
            raise ValueError("start has no numbers to sample")
        return cls(parts, named)

    @property
    def columns(self) -> int:
        """d: length of an unconstrained vector."""
        return sum(prod(part.free) for part in self.parts.values())

    @property
    def is_plain(self) -> bool:
        """Whether a position is the value itself."""
        if self.named:
            return False
        part = self.parts[ONE]
        return part.transform is None and len(part.shape) == 1

    @property
    def names(self) -> tuple[str, ...]:
        """One for each number of the values."""
        return tuple(label for name, part in self.parts.items() for label in _labels(name, part.shape))

    def fixed(self, like: Tensor) -> Tensor:
        """Whether each number of the values is the same at every position, as the zeros of a triangular factor are."""
        apart = torch.linspace(0.5, 1.0, self.columns, dtype=like.dtype, device=like.device)
        values, _ = self.unpack(torch.stack([torch.zeros_like(apart), apart]))
        return torch.cat([(value[0] == value[1]).reshape(-1) for value in values.values()])

    def blurred(self, position: Tensor) -> dict[str, float]:
        """Share of each value's numbers so near to a bound that a move away from them leads to the same number.

        Of supports of single numbers. A density that rises to a bound without end is cut off there by rounding.
        """
        values, moved = self.unpack(position)[0], self.unpack(position + 0.5)[0]
        alone = [name for name, part in self.parts.items() if part.transform and part.free == part.shape]
        return {name: float((values[name] == moved[name]).double().mean()) for name in alone}

    def pack(self, values: Tensor | Values) -> Tensor:
        """Unconstrained vectors (c, d) of values with a leading axis of chains."""
        given: Values = values if not isinstance(values, Tensor) else {ONE: values}
        free = [
            given[name] if part.transform is None else part.transform.inv(given[name])
            for name, part in self.parts.items()
        ]
        return torch.cat([value.reshape(len(value), -1) for value in free], 1)

    def unpack(self, position: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Values, and the log of the volume that the map to them stretches, of vectors (..., d)."""
        values: dict[str, Tensor] = {}
        log_volume = position.new_zeros(position.shape[:-1])
        for name, part in self.parts.items():
            free = position[..., part.place].reshape((*position.shape[:-1], *part.free))
            values[name] = free if part.transform is None else part.transform(free)
            if part.transform is not None:
                stretch = part.transform.log_abs_det_jacobian(free, values[name])
                log_volume = log_volume + stretch[..., None].flatten(log_volume.dim()).sum(-1)
        return values, log_volume


def _part(name: str, value: Tensor, support: Constraint | None, first: int) -> Part:
    shape = tuple(value.shape[1:])
    if support is None or support is real:
        return Part(shape, shape, first, None)
    if not isinstance(support, Constraint):
        raise ValueError(
            f"the support of {name!r} must be one of torch.distributions.constraints, got {support!r}"
        )
    try:
        transform = biject_to(support)
    except NotImplementedError as error:
        raise ValueError(
            f"no map leads from unconstrained numbers to the support of {name!r}, {support}"
        ) from error
    if _on_boundary(support, value):
        raise ValueError(f"start of {name!r} lies on the boundary of its support, {support}: move it inside")
    if not bool(support.check(value).all()):
        raise ValueError(f"start of {name!r} lies outside of its support, {support}")
    free = transform.inv(value)
    if not bool(torch.isfinite(free).all()):
        raise ValueError(f"start of {name!r} lies on the boundary of its support, {support}: move it inside")
    return Part(shape, tuple(free.shape[1:]), first, transform, support)


def _on_boundary(support: Constraint, value: Tensor) -> bool:
    """Whether a number is at its bound; maps with a clamp would take it for one far out."""
    if isinstance(support, independent):
        return _on_boundary(support.base_constraint, value)
    if support is simplex:
        return bool((value == 0.0).any())
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    return any(bool((value == bound).any()) for bound in bounds if bound is not None)


def _labels(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    places = torch.cartesian_prod(*(torch.arange(size) for size in shape)).reshape(-1, len(shape)).tolist()
    return [f"{name}[{', '.join(map(str, place))}]" for place in places]
