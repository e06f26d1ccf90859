"""A small random instance of every model that ``boxloop.models`` exports; mixtures of every family there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop import models
from contract.distributions import FAMILIES, distribution_case, uniform


@dataclass(frozen=True)
class ModelCase:
    """A model with plausible complete rows.

    Args:
        model: with no floor in reach, and an M step that maximises Q.
        rows: (n, d).
        weight: (n,).
        scale: change of units that stays inside the model; None where it must refuse.
        expanded: the same model with an M step that goes further than the maximum of Q, where there is one.
    """

    model: Any
    rows: Tensor
    weight: Tensor
    scale: Tensor | None
    expanded: Any = None


def _mixture(family: type) -> ModelCase:
    case = distribution_case(family)
    log_weight = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log()
    return _with_weight(models.Mixture(log_weight, case.distribution), case.rows, case.scale)


def _with_weight(model: Any, rows: Tensor, scale: Tensor | None, expanded: Any = None) -> ModelCase:
    weight = uniform(Generator().manual_seed(6), len(rows), low=0.2, high=2.0)
    return ModelCase(model, rows, weight, scale, expanded)


def _linear(kind: type, noise: int, common: bool) -> ModelCase:
    stream = Generator().manual_seed(7)
    d, k = 5, 2
    model = kind(
        uniform(stream, d, low=-2, high=2),
        uniform(stream, d, k, low=-1, high=1),
        uniform(stream, noise, low=0.3, high=1),
        expand=False,
    )
    rows = uniform(stream, 40, d, low=-3, high=3)
    scale = torch.full((d,), 3.0, dtype=torch.float64) if common else uniform(stream, d, low=0.01, high=30)
    return _with_weight(model, rows, scale, replace(model, expand=True))


def factor() -> Iterator[tuple[str, ModelCase]]:
    yield "", _linear(models.FactorModel, noise=5, common=False)


def principal() -> Iterator[tuple[str, ModelCase]]:
    yield "", _linear(models.PrincipalModel, noise=1, common=True)


def mixtures() -> Iterator[tuple[str, ModelCase]]:
    for family in FAMILIES:
        yield family.__name__, _mixture(family)


MODELS: dict[type, Callable[[], Iterator[tuple[str, ModelCase]]]] = {
    models.FactorModel: factor,
    models.Mixture: mixtures,
    models.PrincipalModel: principal,
}
EXPORTED_MODELS = {value for name in models.__all__ if isinstance(value := getattr(models, name), type)}


def model_cases() -> dict[str, ModelCase]:
    """Every case, by the names of its model and its distribution."""
    return {
        f"{model.__name__}-{name}".rstrip("-"): case
        for model, build in MODELS.items()
        for name, case in build()
    }
