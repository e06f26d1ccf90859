"""Parameters of an equation of one's own: a vector or a dictionary of tensors, with a name for every number."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.tree import flatten, unflatten

Theta = Tensor | dict[str, Tensor]
"""What the user gave as ``start``: a vector, or tensors by name."""


@dataclass(frozen=True)
class Parameters:
    """A starting point as one vector, and the way back to what the user gave.

    Args:
        vector: (p,), float64.
        names: one for each number.
        like: the shapes of the tensors by name; None where the user gave a vector.
    """

    vector: Tensor
    names: tuple[str, ...]
    like: dict[str, Tensor] | None = None

    def shaped(self, vector: Tensor) -> Theta:
        """A vector in the form the user gave."""
        return vector if self.like is None else unflatten(vector, self.like)


def read_start(start: Any, names: Sequence[str] | None = None) -> Parameters:
    """A starting point, checked.

    Args:
        start: (p,) numbers, or a dictionary of tensors, arrays or numbers of any shape.
        names: p names; made from places and keys when omitted.

    Raises:
        ValueError: not one axis, empty, a value that is not finite, or a wrong number of names.

    Example:
        >>> read_start({"scale": 2.0, "slope": [1.0, 0.5]}).names
        ('scale', 'slope[0]', 'slope[1]')
    """
    like = None
    if isinstance(start, Mapping):
        like = {str(name): _number(value) for name, value in start.items()}
        if not like:
            raise ValueError("the start holds no parameter")
        vector = flatten(like)
        made = [label for name, value in like.items() for label in _labels(name, value)]
    else:
        vector = _number(start)
        if vector.ndim != 1:
            raise ValueError(
                f"the start must be a vector or a dictionary of tensors; this one has {vector.ndim} axes"
                + (f": give [{float(vector)}]" if vector.ndim == 0 else "")
            )
        made = _labels("theta", vector)
    if vector.numel() == 0:
        raise ValueError("the start holds no parameter")
    if names is not None and len(names) != len(made):
        raise ValueError(f"{len(names)} names were given for {len(made)} parameters")
    chosen = tuple(str(name) for name in names or made)
    bad = torch.nonzero(~torch.isfinite(vector))[:, 0].tolist()
    if bad:
        raise ValueError(
            f"the start of {chosen[bad[0]]} is {float(vector[bad[0]])}; a finite number is needed"
        )
    return Parameters(vector, chosen, like)


def _number(value: Any) -> Tensor:
    try:
        given = torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"the start must hold numbers, and holds a {type(value).__name__}") from error
    return given.detach().to(device="cpu", dtype=torch.float64).clone()


def _labels(name: str, value: Tensor) -> list[str]:
    if value.ndim == 0:
        return [name]
    places = itertools.product(*(range(size) for size in value.shape))
    return [f"{name}[{', '.join(map(str, place))}]" for place in places]
