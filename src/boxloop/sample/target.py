r"""What is sampled: a log-density over vectors, with its gradient.

Values may be tensors of any shape, several by name, some of them constrained (positive, on a simplex, ...). Chains move
in unconstrained vectors u; with :math:`x = T(u)` their density is

.. math:: \log \pi_u(u) = \log \pi_x(T(u)) + \log \lvert \det \partial T / \partial u \rvert .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from boxloop.sample.space import Space, Values

Function = Callable[[Tensor], Tensor]
Pair = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Target:
    """A log-density over positions (c, d), all chains in one call.

    Args:
        log_density: (c, d) -> (c,), up to a constant; each chain's value depends on its own row alone.
        gradient: (c, d) -> (log-density (c,), its gradient (c, d)), where it is known; else it is differentiated.
        space: how positions are read as values; a plain vector when omitted.

    Example:
        >>> import torch
        >>> target = Target(lambda x: -0.5 * (x * x).sum(1))
        >>> target.value_and_gradient(torch.tensor([[1.0, 2.0]]))
        (tensor([-2.5000]), tensor([[-1., -2.]]))
    """

    log_density: Function
    gradient: Pair | None = None
    space: Space | None = None

    def value_and_gradient(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density (c,) and gradient (c, d): one backward pass for all chains, since they do not meet."""
        if self.gradient is not None:
            return self.gradient(position)
        if (
            torch.compiler.is_compiling()
        ):  # the tape cannot be traced; the functional form can, but is slower without
            value, pulled, *_ = torch.func.vjp(self.log_density, position)
            return value, pulled(torch.ones_like(value))[0]
        with torch.enable_grad():
            leaf = position.detach().requires_grad_()
            value = self.log_density(leaf)
            (slope,) = torch.autograd.grad(value, leaf, torch.ones_like(value))
        return value.detach(), slope


def make_target(
    log_density: Callable[..., Tensor], space: Space, gradient: Pair | None = None, batched: bool = True
) -> Target:
    """The density of unconstrained vectors, from one of values.

    Args:
        log_density: a function of the values, for all chains at once; a mapping of tensors where they have names.
        space: the form of the values.
        gradient: value and gradient in one call, for plain vectors without constraint only.
        batched: false for a function of the values of one chain; it is then mapped over chains.
    """
    whole = log_density if batched else torch.func.vmap(log_density)
    if space.is_plain:
        return Target(whole, gradient, space)
    if gradient is not None:
        raise ValueError(
            "value_and_gradient is for vectors without constraint: leave it out, and the density is differentiated"
        )

    def density(position: Tensor) -> Tensor:
        values, log_volume = space.unpack(position)
        value = whole(_alone(space, values))
        check_form(value, len(position))
        return value + log_volume

    return Target(density, None, space)


def check_form(value: Any, chains: int) -> None:
    """Refuse what is not one number a chain."""
    if not isinstance(value, Tensor) or tuple(value.shape) != (chains,) or not value.is_floating_point():
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        kind = f" of {value.dtype}" if isinstance(value, Tensor) and not value.is_floating_point() else ""
        raise ValueError(
            f"log_density gave {shape}{kind} for {chains} chains: it must return a tensor with one number a chain, "
            f"({chains},); pass batched=False for a function of one chain's values, and leave chains out where start "
            "has a point for each chain"
        )


@contextmanager
def unvalidated() -> Iterator[None]:
    """Without checks of parameters in ``torch.distributions`` and warnings of numpy: a stray proposal is refused."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        Distribution.set_default_validate_args(before)


def _alone(space: Space, values: Values) -> Values | Tensor:
    return values if space.named else next(iter(values.values()))
