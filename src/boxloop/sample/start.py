"""Where chains begin, and whether they can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributions.constraints import Constraint

from boxloop.sample.space import Space, Values
from boxloop.sample.target import Target

TRIES = 30
"""Times that a scattered start with no density is drawn again, each time nearer to the given point."""


def read_start(start: Any, chains: int | None, device: Any = None) -> Tensor | Values:
    """Starting values as tensors with a leading axis of chains."""
    if isinstance(start, Mapping):
        if not start:
            raise ValueError("start is an empty mapping: there is nothing to sample")
        values = {str(name): _tensor(value, device) for name, value in start.items()}
        if chains is not None:
            return {name: _repeated(value, chains) for name, value in values.items()}
        counts = {name: len(value) if value.dim() else 0 for name, value in values.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise ValueError(
                f"the values of start need one common leading axis of chains, got lengths {counts}; "
                "or pass one point, and chains="
            )
        return values
    value = _tensor(start, device)
    if chains is not None:
        return _repeated(value[None] if value.dim() == 0 else value, chains)
    if value.dim() < 2 or len(value) == 0:
        raise ValueError(
            f"start has shape {tuple(value.shape)}: pass positions (chains, columns), or one point and chains="
        )
    return value


def scattered(
    target: Target, position: Tensor, spread: float, stream: Generator, superchains: int | None
) -> Tensor:
    """One point, moved by normal noise for each chain; nearer where there is no density.

    Args:
        target: of the chains.
        position: the point, once for each chain, (c, d).
        spread: standard deviation of the noise, in unconstrained coordinates.
        stream: of the noise.
        superchains: number of distinct points; as many as chains when omitted.
    """
    points = len(position) if superchains is None else superchains
    found = position[:points].clone()
    lost = torch.ones(points, dtype=torch.bool, device=position.device)
    for _ in range(TRIES):
        noise = torch.randn(found.shape, generator=stream, dtype=found.dtype, device=found.device)
        found = torch.where(lost[:, None], position[:points] + spread * noise, found)
        lost = ~torch.isfinite(target.log_density(found))
        if not bool(lost.any()):
            break
        spread *= 0.5
    return found.repeat_interleave(len(position) // points, 0)


def check_target(target: Target, position: Tensor) -> None:
    """Refuse a density of the wrong form, and chains that begin where there is none."""
    value = target.log_density(position)
    if not isinstance(value, Tensor) or tuple(value.shape) != (len(position),):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"log_density gave {shape} for {len(position)} chains: it must return one number a chain, "
            f"({len(position)},); pass batched=False for a function of one chain's values"
        )
    bad = ~torch.isfinite(value)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"the log-density is {float(value[first])} at the start of chain {first} "
            f"({int(bad.sum())} of {len(position)} chains): begin where the density is positive and finite"
        )


def has_gradient(target: Target, position: Tensor) -> bool:
    """Whether the density can be differentiated; false for one that leaves torch."""
    if target.gradient is not None:
        return True
    with torch.enable_grad():
        value = target.log_density(position[:1].detach().requires_grad_())
    return value.requires_grad


def make_space(start: Tensor | Values, support: Constraint | Mapping[str, Constraint] | None) -> Space:
    """The form of the values, checked to be finite."""
    for name, value in start.items() if not isinstance(start, Tensor) else [("start", start)]:
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} has values that are not finite")
    return Space.of(start, support)


def _tensor(value: Any, device: Any) -> Tensor:
    found = torch.as_tensor(value, device=device).detach()
    return found if found.is_floating_point() else found.double()


def _repeated(value: Tensor, chains: int) -> Tensor:
    return value.expand(chains, *value.shape)
