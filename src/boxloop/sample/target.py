r"""What is sampled: a log-density over unconstrained vectors, and the map from those vectors to values.

Values may be tensors of any shape, several by name, some of them constrained (positive, on a simplex, ...). Chains move
in unconstrained vectors u; with :math:`x = T(u)` their density is

.. math:: \log \pi_u(u) = \log \pi_x(T(u)) + \log \lvert \det \partial T / \partial u \rvert .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to
from torch.distributions.constraints import Constraint, independent, real, simplex

LogDensity = Callable[[Tensor], Tensor]
ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
Values = Mapping[str, Tensor]

UNNAMED = "x"
"""The name of a start that is one tensor."""


@dataclass(frozen=True)
class Target:
    """A log-density over positions (c, d), evaluated for all chains in one call.

    Args:
        log_density: (c, d) -> (c,), up to a constant; the value of a chain depends on its own row alone.
        gradient: (c, d) -> (log-density (c,), its gradient (c, d)), if known; automatic differentiation otherwise.
        space: how positions are read as values; a plain vector when omitted.

    Example:
        >>> import torch
        >>> target = Target(lambda x: -0.5 * (x * x).sum(1))
        >>> target.value_and_gradient(torch.tensor([[1.0, 2.0]]))
        (tensor([-2.5000]), tensor([[-1., -2.]]))
    """

    log_density: LogDensity
    gradient: ValueAndGradient | None = None
    space: ParameterSpace | None = None

    def value_and_gradient(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (c,) and gradient (c, d), by one backward pass for all chains, as chains are independent."""
        if self.gradient is not None:
            return self.gradient(position)
        if torch.compiler.is_compiling():
            # The tape cannot be traced; the functional form can, but is slower without compilation.
            value, pull_back, *_ = torch.func.vjp(self.log_density, position)
            return value, pull_back(torch.ones_like(value))[0]
        with torch.enable_grad():
            leaf = position.detach().requires_grad_()
            value = self.log_density(leaf)
            (gradient,) = torch.autograd.grad(value, leaf, torch.ones_like(value))
        return value.detach(), gradient


def make_target(
    log_density: Callable[..., Tensor],
    space: ParameterSpace,
    gradient: ValueAndGradient | None = None,
    batched: bool = True,
) -> Target:
    """The density of unconstrained vectors, from a density of values."""
    of_chains = log_density if batched else torch.func.vmap(log_density)
    if space.is_vector:
        return Target(of_chains, gradient, space)
    if gradient is not None:
        raise ValueError(
            "value_and_gradient is for vectors without constraint: leave it out, and the density is differentiated"
        )

    def density(position: Tensor) -> Tensor:
        values, log_volume = space.unpack(position)
        value = of_chains(values if space.named else values[UNNAMED])
        check_log_density(value, len(position))
        return value + log_volume

    return Target(density, None, space)


def check_log_density(value: Any, chains: int) -> None:
    """Refuse anything but one floating-point number per chain."""
    if not isinstance(value, Tensor) or tuple(value.shape) != (chains,) or not value.is_floating_point():
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        dtype = f" of {value.dtype}" if isinstance(value, Tensor) and not value.is_floating_point() else ""
        raise ValueError(
            f"log_density returned {shape}{dtype} for {chains} chains: it must return a tensor with one number per "
            f"chain, ({chains},); pass batched=False for a function of one chain's values, and leave chains out if "
            "start has a point for each chain"
        )


def check_integer(name: str, value: object, least: int) -> None:
    """Refuse anything but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


@contextmanager
def disable_validation() -> Iterator[None]:
    """Switch off parameter checks of ``torch.distributions`` and NumPy warnings: invalid proposals are rejected."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        Distribution.set_default_validate_args(before)


@dataclass(frozen=True)
class ValueLayout:
    """One named value: its columns in the vector, and its transform."""

    shape: tuple[int, ...]  # of the value, for one chain
    free_shape: tuple[int, ...]  # of its unconstrained form
    first: int  # its first column in the vector
    transform: Transform | None  # from unconstrained numbers to the value; None for the identity
    support: Constraint | None = None  # of the value; None without a constraint

    @property
    def columns(self) -> slice:
        """Its columns in the vector."""
        return slice(self.first, self.first + prod(self.free_shape))


@dataclass(frozen=True)
class ParameterSpace:
    """Shapes and supports of the values that are sampled, and their map from unconstrained vectors."""

    parts: Mapping[str, ValueLayout]  # by name
    named: bool  # whether users see the values as a mapping, rather than as one tensor

    @classmethod
    def from_start(
        cls, start: Tensor | Values, support: Constraint | Mapping[str, Constraint] | None = None
    ) -> Self:
        """The space of starting values with a leading axis of chains."""
        named = not isinstance(start, Tensor)
        values: Values = start if not isinstance(start, Tensor) else {UNNAMED: start}
        if support is None:
            supports: Mapping[str, Constraint] = {}
        elif isinstance(support, Mapping):
            supports = support
        elif named:
            raise ValueError(
                f"the values of start have names: give support by name too, {{{next(iter(values))!r}: ...}}"
            )
        else:
            supports = {UNNAMED: support}
        unknown = set(supports) - set(values)
        if unknown:
            raise ValueError(f"support names {sorted(unknown)[0]!r}, which is not among {sorted(values)}")
        parts: dict[str, ValueLayout] = {}
        first = 0
        for name, value in values.items():
            parts[name] = _make_value_layout(name, value, supports.get(name), first)
            first += prod(parts[name].free_shape)
        if first == 0:
            raise ValueError("start has no numbers to sample")
        return cls(parts, named)

    @property
    def n_columns(self) -> int:
        """d: length of an unconstrained vector."""
        return sum(prod(part.free_shape) for part in self.parts.values())

    @property
    def is_vector(self) -> bool:
        """Whether a position is the value itself."""
        if self.named:
            return False
        part = self.parts[UNNAMED]
        return part.transform is None and len(part.shape) == 1

    @property
    def names(self) -> tuple[str, ...]:
        """One for each number of the values."""
        return tuple(label for name, part in self.parts.items() for label in _name_elements(name, part.shape))

    def is_constant(self, like: Tensor) -> Tensor:
        """Whether each number of the values is the same at every position, as the zeros of a triangular factor are."""
        other = torch.linspace(0.5, 1.0, self.n_columns, dtype=like.dtype, device=like.device)
        values, _ = self.unpack(torch.stack([torch.zeros_like(other), other]))
        return torch.cat([(value[0] == value[1]).reshape(-1) for value in values.values()])

    def measure_share_at_bounds(self, position: Tensor) -> dict[str, float]:
        """Share of each value's numbers so near to a bound that a move away from the others leaves them unchanged."""
        # A density that rises to a bound without limit is cut off there by rounding.
        values, moved = self.unpack(position)[0], self.unpack(position + 0.5)[0]
        scalar = [
            name for name, part in self.parts.items() if part.transform and part.free_shape == part.shape
        ]
        return {name: float((values[name] == moved[name]).double().mean()) for name in scalar}

    def pack(self, values: Tensor | Values) -> Tensor:
        """Unconstrained vectors (c, d) of values with a leading axis of chains."""
        by_name: Values = values if not isinstance(values, Tensor) else {UNNAMED: values}
        free = [
            by_name[name] if part.transform is None else part.transform.inv(by_name[name])
            for name, part in self.parts.items()
        ]
        return torch.cat([value.reshape(len(value), -1) for value in free], 1)

    def unpack(self, position: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Values of vectors (..., d), and the log-determinant of the Jacobian of the map to them."""
        values: dict[str, Tensor] = {}
        log_volume = position.new_zeros(position.shape[:-1])
        for name, part in self.parts.items():
            free = position[..., part.columns].reshape((*position.shape[:-1], *part.free_shape))
            values[name] = free if part.transform is None else part.transform(free)
            if part.transform is not None:
                log_jacobian = part.transform.log_abs_det_jacobian(free, values[name])
                log_volume = log_volume + log_jacobian[..., None].flatten(log_volume.dim()).sum(-1)
        return values, log_volume


def _make_value_layout(name: str, value: Tensor, support: Constraint | None, first: int) -> ValueLayout:
    shape = tuple(value.shape[1:])
    if support is None or support is real:
        return ValueLayout(shape, shape, first, None)
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
    if _is_on_boundary(support, value):
        raise ValueError(f"start of {name!r} lies on the boundary of its support, {support}: move it inside")
    if not bool(support.check(value).all()):
        raise ValueError(f"start of {name!r} lies outside of its support, {support}")
    free = transform.inv(value)
    if not bool(torch.isfinite(free).all()):
        raise ValueError(f"start of {name!r} lies on the boundary of its support, {support}: move it inside")
    return ValueLayout(shape, tuple(free.shape[1:]), first, transform, support)


def _is_on_boundary(support: Constraint, value: Tensor) -> bool:
    """Whether a number equals its bound; transforms that clamp would map it to a point far out."""
    if isinstance(support, independent):
        return _is_on_boundary(support.base_constraint, value)
    if support is simplex:
        return bool((value == 0.0).any())
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    return any(bool((value == bound).any()) for bound in bounds if bound is not None)


def _name_elements(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    indices = torch.cartesian_prod(*(torch.arange(size) for size in shape)).reshape(-1, len(shape)).tolist()
    return [f"{name}[{', '.join(map(str, index))}]" for index in indices]
