"""Where chains begin, and whether they can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.distributions.constraints import Constraint

from boxloop.chain import Chains
from boxloop.data import check_choice
from boxloop.sample.metropolis import RULES
from boxloop.sample.space import Space, Values
from boxloop.sample.target import Target, check_form

TRIES = 30
"""Times that a scattered start with no density is drawn again, each time nearer to the given point."""


def check_counts(draws: int, warmup: int, thin: int, spread: float) -> None:
    """Refuse lengths that cannot be."""
    for name, count, least in (("draws", draws, 1), ("warmup", warmup, 0), ("thin", thin, 1)):
        check_whole(name, count, least)
    if not isinstance(spread, int | float | np.number) or not 0.0 <= spread < float("inf"):
        raise ValueError(f"spread must be at least 0 and finite, got {spread!r}")


def check_whole(name: str, count: object, least: int) -> None:
    """Refuse what is no count."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {count!r}")


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
        value = target.log_density(found)
        check_form(value, points)
        lost = ~torch.isfinite(value)
        if not bool(lost.any()):
            break
        spread *= 0.5
    return found.repeat_interleave(len(position) // points, 0)


def check_target(target: Target, position: Tensor) -> None:
    """Refuse a density of the wrong form, and chains that begin where there is none."""
    value = target.log_density(position)
    check_form(value, len(position))
    check_begun(Chains(position, value))
    if target.gradient is not None:
        other, slope = target.gradient(position)
        shapes = [tuple(other.shape), tuple(slope.shape)]
        wanted = [tuple(value.shape), tuple(position.shape)]
        if shapes != wanted:
            raise ValueError(
                f"value_and_gradient gave shapes {shapes[0]} and {shapes[1]}; they must be {wanted[0]}, one "
                f"log-density a chain, and {wanted[1]}, its gradient"
            )
        _check_agreed(value, other)


def check_begun(chains: Chains, slopes: bool = False) -> None:
    """Refuse chains that cannot move from where they are; ``slopes``: what is kept with them are gradients."""
    check_form(chains.log_density, len(chains.position))
    gradients = [("gradient", kept) for kept in chains.auxiliary if slopes]
    for what, found in (("log-density", chains.log_density), *gradients):
        bad = ~torch.isfinite(found.reshape(len(found), -1)).all(1)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            value = found[first].flatten()
            worst = float(value[~torch.isfinite(value)][0])
            raise ValueError(
                f"the {what} is {worst} at the start of chain {first} ({int(bad.sum())} of {len(bad)} chains): "
                "begin where the density is positive and finite"
            )


def _check_agreed(value: Tensor, other: Tensor) -> None:
    """Refuse two densities that differ by more than a constant: chains would follow the one, and the other is meant."""
    close = torch.finfo(value.dtype).eps ** 0.5 * (1.0 + value.abs().max() + other.abs().max())
    apart = other - value
    if bool(apart.max() - apart.min() > close):
        raise ValueError(
            "value_and_gradient gives another log-density than log_density where chains begin, and not by a constant"
        )


def has_gradient(target: Target, position: Tensor) -> bool:
    """Whether the density can be differentiated; false for one that leaves torch."""
    if target.gradient is not None:
        return True
    with torch.enable_grad():
        try:
            value = target.log_density(position.detach().requires_grad_())
        except RuntimeError:  # a tensor with a gradient cannot become an array of numpy
            return False
    return value.requires_grad


def check_steps(algorithm: Any, position: Tensor) -> Any:
    """The algorithm with its metric where the chains are; steps that lead nowhere are refused."""
    rule = getattr(algorithm, "rule", "metropolis")
    check_choice(rule, "rule", tuple(RULES))
    for name in ("scale", "trajectory"):
        given = getattr(algorithm, name, None)
        if given is not None and not bool(torch.as_tensor((given > 0) & (given < float("inf"))).all()):
            raise ValueError(f"{name} must be positive and finite, got {given}")
    metric = algorithm.metric
    if metric is None:
        return algorithm
    if len(metric) != position.shape[1]:
        raise ValueError(f"the metric is for {len(metric)} columns, and there are {position.shape[1]}")
    return replace(algorithm, metric=metric.to(position).contiguous())


def make_space(start: Tensor | Values, support: Constraint | Mapping[str, Constraint] | None) -> Space:
    """The form of the values, checked to be finite."""
    for name, value in start.items() if not isinstance(start, Tensor) else [("start", start)]:
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} has values that are not finite")
    return Space.of(start, support)


def _tensor(value: Any, device: Any) -> Tensor:
    try:
        plain = value if isinstance(value, Tensor) else np.asarray(value)
        found = torch.as_tensor(plain, device=device).detach()
    except (TypeError, ValueError) as error:
        raise ValueError(f"start must be numbers, or a mapping of names to numbers, got {value!r}") from error
    if found.is_complex():
        raise ValueError("start is complex: sample real and imaginary parts by name")
    if found.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"start is of {found.dtype}, too coarse for small moves: pass float32 or float64")
    return found if found.is_floating_point() else found.double()


def _repeated(value: Tensor, chains: int) -> Tensor:
    return value.expand(chains, *value.shape)
