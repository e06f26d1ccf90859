"""What a posterior looks at before it takes weights in, or gives a law."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from boxloop.weights.law import WeightLaw

NO_SPREAD = 1e-30
"""A law with no variance above this has none."""


def number_of(loss: Any) -> float:
    """A loss, of which a batch has one."""
    found = loss.detach() if isinstance(loss, Tensor) else loss
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError) as error:
        said = f"shape {tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else repr(found)
        raise ValueError(
            f"observe() takes the loss as one number, such as loss.mean(), got {said:.60}"
        ) from error


def what_is_wrong(vector: Tensor) -> str:
    """With a vector that was refused."""
    if not bool(vector.isfinite().all()):
        return "a weight is not finite"
    wider = ": give dtype=torch.float64" if vector.dtype != torch.float64 else ""
    return f"a weight is not finite once squared in {vector.dtype}{wider}"


def has_spread(law: WeightLaw) -> bool:
    """Whether any weight varies; the loadings are looked at only where the noise does not tell."""
    if float(law.noise.amax()) > NO_SPREAD:
        return True
    return law.rank > 0 and float(law.loadings.abs().amax()) ** 2 > NO_SPREAD
