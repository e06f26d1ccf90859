"""What should worry the reader of a fit: flat columns, floors that bind, events on the way."""

from __future__ import annotations

from typing import Any

import torch

from boxloop.data import Standardisation
from boxloop.loop import Outcome
from boxloop.models import LinearGaussian, Mixture, PrincipalModel

MOST_COLUMNS = 4096
"""Widest covariance whose eigenvalues are worth computing for a message."""
MOST_NAMED = 10
SAME = 1e-8
"""Relative distance within which two components are one."""

AT_FLOOR = "is held at the floor"
"""How a worry says that a variance would have vanished."""


def worries(
    model: Mixture[Any] | LinearGaussian,
    frame: Standardisation,
    names: tuple[str, ...],
    outcome: Outcome[Any],
) -> tuple[str, ...]:
    """One sentence for each thing that deserves a look.

    Args:
        model: fitted, in the frame's coordinates.
        frame: what the survey of the rows found.
        names: of the columns.
        outcome: how the loop ended.
    """
    found = []
    constant = torch.nonzero(frame.constant)[:, 0].tolist()
    if constant:
        found.append(f"constant column(s) {_listed(constant, names)}: their variance is not known")
    held = _held(model, names)
    if held is not None:
        found.append(
            f"{held} {AT_FLOOR} ({_condition(model)}); the data do not determine it "
            f"(too few rows, {'' if isinstance(model, Mixture) else 'too many factors, '}"
            "duplicate rows or collinear columns)"
        )
    for one, other in _twins(model) if isinstance(model, Mixture) else ():
        found.append(f"components {one} and {other} are the same: the data do not tell them apart")
    return (*found, *outcome.events)


def _held(model: Mixture[Any] | LinearGaussian, names: tuple[str, ...]) -> str | None:
    floored = model.family.floored() if isinstance(model, Mixture) else model.floored()
    low = torch.nonzero(floored)[:, 0].tolist()
    if not low:
        return None
    if isinstance(model, Mixture):
        return f"the variance of component(s) {', '.join(map(str, low[:MOST_NAMED]))}"
    if isinstance(model, PrincipalModel):
        return "the noise variance"
    return f"the noise variance of column(s) {_listed(low, names)}"


def _twins(model: Mixture[Any]) -> list[tuple[int, int]]:
    """Neighbouring pairs of components that are one law; likely with random starts, certain with one kind of row."""
    mean = model.family.mean
    gap = torch.cdist(mean, mean, compute_mode="donot_use_mm_for_euclid_dist")
    near = torch.triu(gap <= SAME * (1.0 + mean.norm(dim=1)), diagonal=1)
    pairs = [(int(row.nonzero()[-1]), j) for j, row in enumerate(near.mT) if bool(row.any())]
    return [pair for pair in pairs if _same(*(model.family.select(torch.tensor([k])) for k in pair))]


def _same(one: Any, other: Any) -> bool:
    leaves = zip(one.leaves(), other.leaves(), strict=True)
    return all(bool(((a - b).abs() <= SAME * (1.0 + a.abs())).all()) for (_, a), (_, b) in leaves)


def _listed(index: list[int], names: tuple[str, ...]) -> str:
    more = f" and {len(index) - MOST_NAMED} more" if len(index) > MOST_NAMED else ""
    return ", ".join(repr(names[j]) for j in index[:MOST_NAMED]) + more


def _condition(model: Mixture[Any] | LinearGaussian) -> str:
    """Largest over smallest eigenvalue of the worst covariance, in standard units."""
    covariance = model.family.covariance() if isinstance(model, Mixture) else model.moments()[1]
    if covariance.diagonal().shape[1] > MOST_COLUMNS:
        return "condition number not computed"
    values = torch.linalg.eigvalsh(covariance.dense())
    return f"condition number {float((values[:, -1] / values[:, 0]).max()):.3g}"
