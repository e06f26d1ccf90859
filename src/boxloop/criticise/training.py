r"""How the error of estimated parameters moves a model's moments.

With scores :math:`s_i` of the n training rows and observed information H a row, the parameters err by
:math:`\hat\theta - \theta \approx \frac1n \sum_i H^{-1} s_i`. A forward moment :math:`\mu(\theta)` with derivative J
then errs by J times that, whose covariance is the sandwich
:math:`J H^{-1} \overline{s s^\top} H^{-1} J^\top / n`.
Directions that do not change the law (a rotation of factors) have neither score nor effect and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import ArraySource, RowSample
from boxloop.models import central_differences, observed_information
from boxloop.tree import flatten, unflatten
from boxloop.types import LatentModel

FLAT = 1e-7
"""Smallest curvature, in units of the parameters' own information, that is told from zero."""

MOST_PARAMETERS = 5000

MATCHED = 1e-4
"""What differences leave of an error that is zero; of the information of some rows in place of all, more is left."""


@runtime_checkable
class Free(LatentModel, Protocol):
    """A model whose parameters can be moved."""

    def free(self) -> dict[str, Tensor]:
        """Parameters that may take any value."""

    def with_free(self, free: dict[str, Tensor]) -> Any:
        """The model at other values of them."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row."""

    def expect(self, rows: Tensor, weight: Tensor) -> Any:
        """E step."""


@dataclass(frozen=True)
class Training:
    """What the training rows say about the error of the parameters.

    Args:
        pull: rows (n, d) -> influence of each on the moments, (n, p): the mean over training rows is how far the
            moments are off.
        shift: that of the training rows, or of a random part of them.
        weight: of each of these, (n,).
        part: which part of the training rows they are; 1 for all.
    """

    pull: Callable[[Tensor], Tensor]
    shift: Tensor
    weight: Tensor
    part: float = 1.0

    @property
    def share(self) -> Tensor:
        """Of each row in the error of the moments, (n,): fewer rows than were fitted to stand for all of them."""
        return self.part**0.5 * self.weight / self.weight.sum()

    @property
    def matched(self) -> float:
        """An entry whose error is this much below that of its rows is one that the fit sets to the data's."""
        return MATCHED if self.part == 1.0 else max(MATCHED, 3.0 / len(self.weight) ** 0.5)

    @property
    def covariance_root(self) -> Tensor:
        """(p, r) with r at most min(n, p): its product with its transpose is the covariance of the moments."""
        _, size, right = torch.linalg.svd(self.shift * self.share[:, None], full_matrices=False)
        return right.mT * size

    @property
    def error(self) -> Tensor:
        """Standard errors of the moments, (p,)."""
        return (self.share.square() @ self.shift.square()).sqrt()


def training_error(
    model: Free,
    kept: RowSample,
    moments: Callable[[Any], Sequence[Tensor]],
    origin: Tensor,
    scale: Tensor,
) -> Training:
    """The influence of every training row on a model's moments.

    Args:
        model: in the data's coordinates, at a maximum of the likelihood of these rows.
        kept: the training rows, or a random part of them.
        moments: a model in the data's coordinates -> its forward moments, flat.
        origin: of standard coordinates, (d,); steps of differences are taken there.
        scale: of standard coordinates, (d,).
    """
    standard, origin, scale, back = _standardised(model, origin, scale)
    rows, weight = kept.rows, kept.weight
    seen = (rows - origin) / scale
    free = standard.free()
    point = flatten(free)
    if len(point) > MOST_PARAMETERS:
        raise ValueError(
            f"the training error of {len(point)} parameters takes as many passes over the rows: "
            "leave out train=, or bootstrap over refits"
        )

    def at(vector: Tensor) -> Any:
        return standard.with_free(unflatten(vector, free))

    def moved(vector: Tensor) -> Tensor:
        there = at(vector)
        return torch.cat(list(moments(there.affine(origin, scale) if back else there)))

    total = weight.sum()
    observed = observed_information(standard, ArraySource(seen, weight), free, point) / total
    unit = observed.diagonal().clamp(min=1e-300).rsqrt()
    unit = torch.where(observed.diagonal() > 1e-9, unit, 0.0)
    values, vectors = torch.linalg.eigh(observed * unit * unit[:, None])
    keep = values > FLAT
    half = unit[:, None] * vectors[:, keep]
    turn = (half / values[keep]) @ (half.mT @ central_differences(moved, point).mT)

    def pull(some: Tensor) -> Tensor:
        placed = (some - origin) / scale
        return central_differences(lambda v: at(v).log_prob(placed), point) @ turn

    return Training(pull, pull(rows), weight, kept.probability)


def _standardised(model: Any, origin: Tensor, scale: Tensor) -> tuple[Any, Tensor, Tensor, bool]:
    """The model in standard coordinates: a scale a column, or a common one, or none where the model allows no other."""
    for unit in (scale, torch.full_like(scale, float(scale.log().mean().exp()))):
        try:
            return model.affine(-origin / unit, 1.0 / unit), origin, unit, True
        except ValueError:
            continue
    return model, torch.zeros_like(origin), torch.ones_like(scale), False


def has_free(model: LatentModel) -> TypeGuard[Free]:
    """Whether a model has parameters that can be moved; a distribution over parameters refuses to name any."""
    if not isinstance(model, Free):
        return False
    try:
        model.free()
    except TypeError:
        return False
    return True


def knows_error(model: LatentModel) -> bool:
    """Whether the error of a model's parameters follows from its training rows, at a bearable cost."""
    return has_free(model) and flatten(model.free()).numel() <= MOST_PARAMETERS


def are_training_rows(model: object, adapted: LatentModel, digest: str, train: str | None) -> bool:
    """Whether the rows to judge by are those of the fit, by what they hold.

    Args:
        model: as the user gave it; estimators of this library know the digest of their training rows.
        adapted: the model in it.
        digest: of the rows to judge by.
        train: of the training rows that were given, if any were.

    Raises:
        ValueError: the training rows given are not what the model was fitted to.
    """
    known, name = getattr(model, "training_digest_", None), type(model).__name__
    if train is not None and known is not None and train != known:
        raise ValueError(
            f"train= holds other rows than the {name} was fitted to, and the error of its parameters cannot be taken "
            "from them: pass the table that was given to fit, with its weights if it had any (open_source(X, weight)), "
            "or leave train= out"
        )
    if train is not None:
        return train == digest
    if known != digest:
        return False
    how = (
        "their error is taken from the same rows, as with train=X"
        if knows_error(adapted)
        else "as the error of its parameters is not known, p-values are too large"
    )
    warn_caller(
        f"X holds the rows that the {name} was fitted to: moments that the fit matches have no gap by construction, "
        f"and {how}. Judge by held-out rows; if these are meant, give them as train= (--train) too",
        UserWarning,
    )
    return True
