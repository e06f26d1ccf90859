"""What a run of chains is, in words that its checkpoint can be compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from boxloop.data import fingerprint_values
from boxloop.sample.loop import Plan, Sampling


def fingerprint(plan: Plan, state: Sampling, random_state: int) -> dict[str, Any]:
    """What these chains are; how many draws are wanted may change.

    The density is known by its values where the chains begin: functions cannot be compared from one process to another.

    Args:
        plan: how chains are moved.
        state: before the first step.
        random_state: their seed.
    """
    told = describe(plan.algorithm)
    return {
        **(told if isinstance(told, dict) else {"algorithm": told}),
        "start": describe(state.position),
        "density": describe(state.log_density),
        "warmup": plan.warmup,
        "thin": plan.thin,
        "random_state": random_state,
    }


def describe(value: Any) -> Any:
    """Anything an algorithm is made of: tensors by their bytes, functions by their names."""
    if isinstance(value, Tensor):
        return fingerprint_values(value)
    if is_dataclass(value) and not isinstance(value, type):
        inside = {field.name: describe(getattr(value, field.name)) for field in fields(value)}
        return {"algorithm": type(value).__name__, **inside}
    if isinstance(value, Mapping):
        return {str(name): describe(part) for name, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__name__)
