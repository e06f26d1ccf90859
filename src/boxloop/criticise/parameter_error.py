r"""How the error of estimated parameters moves a model's moments, and whether rows are those of the fit.

With scores :math:`s_i` of the n training rows and observed information H per row, the parameters err by
:math:`\hat\theta - \theta \approx \frac1n \sum_i H^{-1} s_i`. A forward moment :math:`\mu(\theta)` with derivative J
then errs by J times that, whose covariance is the sandwich
:math:`J H^{-1} \overline{s s^\top} H^{-1} J^\top / n`.
Directions that do not change the density (a rotation of factors) have neither score nor effect and are left out.

All of this holds for the rows of the fit alone, so tables are recognised: the training table by its digest, copies of
it by means that equal the model's, parts of it by rows in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.criticise.forward_moments import ForwardMoment
from boxloop.criticise.test_functions import FirstStatistic, MomentSums, Statistic
from boxloop.data import ArraySource, RowSample, hash_values_of_rows
from boxloop.models import central_differences, flatten, observed_information, unflatten
from boxloop.types import LatentModel

MIN_CURVATURE = 1e-7
"""Smallest curvature, in units of the parameters' own information, that counts as different from zero."""

MAX_PARAMETERS = 5000

MATCHED = 1e-4
"""What differences leave of an error that is zero; the information of a sample of the rows leaves more."""

CLOSE = 1e-3
"""Standard errors within which all column means of held-out rows are as the model's in fewer than 1 table in 1e6."""
CLOSE_ALONE = 1e-4
"""The same for a table of one column: fewer than 1 in 1e4."""

APART = 0.1
"""Standard errors between the means of training rows and the model's from which on the rows are others."""

SHARED, DISTINCT = 0.05, 0.99
"""Share of the rows found among the training rows that is no chance where so many of these differ from one another."""


@runtime_checkable
class ParametricModel(LatentModel, Protocol):
    """A model with a likelihood, and free parameters that may take any value."""

    def free_parameters(self) -> dict[str, Tensor]: ...

    def with_free_parameters(self, free: dict[str, Tensor]) -> Any: ...

    def log_prob(self, rows: Tensor) -> Tensor: ...

    def expect(self, rows: Tensor, weight: Tensor) -> Any: ...


def require_free_parameters(model: LatentModel) -> ParametricModel:
    """The model, or a TypeError where the error of its parameters cannot be computed."""
    try:
        if isinstance(model, ParametricModel):
            model.free_parameters()  # a posterior over parameters has none
            return model
    except TypeError:
        pass
    raise TypeError(
        f"the parameter error of {type(model).__name__} cannot be computed from training rows: leave out train="
    )


def has_parameter_error(model: LatentModel) -> bool:
    """Whether the parameter error can be computed from training rows, at a bearable cost."""
    try:
        free = require_free_parameters(model).free_parameters()
    except TypeError:
        return False
    return flatten(free).numel() <= MAX_PARAMETERS


@dataclass(frozen=True)
class ParameterUncertainty:
    """The error of a model's moments that comes from its fitted parameters."""

    model: ParametricModel  # in standard coordinates
    point: Tensor  # its free parameters, (q,)
    response: Tensor  # change of each moment with the score of a row, (q, p)
    origin: Tensor  # of standard coordinates, (d,)
    scale: Tensor  # (d,)
    rows: RowSample  # the training rows, or a random sample of them
    row_influence: Tensor  # of each of these on the moments, (n, p)
    row_share: (
        Tensor  # weight of each in the error of the moments, (n,): a sample stands for all rows of the fit
    )

    def influence(self, rows: Tensor) -> Tensor:
        """Influence of rows (n, d) on the moments, (n, p): over training rows its mean is the error of the moments."""
        return (
            _compute_score_vectors(self.model, self.point, (rows - self.origin) / self.scale) @ self.response
        )

    @property
    def match_tolerance(self) -> float:
        """An entry whose error is this much below that of its rows is one that the fit sets to the data's."""
        return MATCHED if self.rows.is_complete else max(MATCHED, 3.0 / len(self.rows.weight) ** 0.5)

    @property
    def covariance_root(self) -> Tensor:
        """(p, r) with r at most min(n, p): its product with its transpose is the covariance of the moments."""
        _, size, right = torch.linalg.svd(self.row_influence * self.row_share[:, None], full_matrices=False)
        return right.mT * size


def estimate_parameter_error(
    model: ParametricModel,
    rows: RowSample,
    moments: Callable[[Any], Tensor],
    origin: Tensor,
    scale: Tensor,
) -> ParameterUncertainty:
    """The influence of every training row on a model's moments.

    The model is in the data's coordinates, at a maximum of the likelihood of these rows; ``moments`` takes such a model
    to its forward moments (p,). Steps of differences are taken in standard coordinates.
    """
    standard, origin, scale, is_affine = _standardise_model(model, origin, scale)
    free = standard.free_parameters()
    point = flatten(free)
    if len(point) > MAX_PARAMETERS:
        raise ValueError(
            f"the error of {len(point)} parameters takes as many passes over the training rows: leave out train=, or "
            "bootstrap over refits"
        )

    def moments_at(point: Tensor) -> Tensor:
        moved = standard.with_free_parameters(unflatten(point, free))
        return moments(moved.affine(origin, scale) if is_affine else moved)

    standard_rows = (rows.rows - origin) / scale
    source = ArraySource(standard_rows, rows.weight)
    information = observed_information(standard, source, free, point) / rows.weight.sum()
    unit = information.diagonal().clamp(min=1e-300).rsqrt()
    unit = torch.where(information.diagonal() > 1e-9, unit, 0.0)
    values, vectors = torch.linalg.eigh(information * unit * unit[:, None])
    curved = values > MIN_CURVATURE
    half = unit[:, None] * vectors[:, curved]
    response = (half / values[curved]) @ (half.mT @ central_differences(moments_at, point).mT)
    influence = _compute_score_vectors(standard, point, standard_rows) @ response
    share = rows.probability**0.5 * rows.weight / rows.weight.sum()
    return ParameterUncertainty(standard, point, response, origin, scale, rows, influence, share)


def combine_errors(*errors: Tensor) -> Tensor:
    """Standard errors from independent sources, together."""
    return torch.stack([error.square() for error in errors]).sum(0).sqrt()


def _compute_score_vectors(model: ParametricModel, point: Tensor, rows: Tensor) -> Tensor:
    """Derivative of each row's log-density in the free parameters, (n, q)."""
    free = model.free_parameters()
    return central_differences(lambda v: model.with_free_parameters(unflatten(v, free)).log_prob(rows), point)


def _standardise_model(model: Any, origin: Tensor, scale: Tensor) -> tuple[Any, Tensor, Tensor, bool]:
    """The model in standard coordinates: a scale per column, else a common one, else as it is."""
    for unit in (scale, torch.full_like(scale, float(scale.log().mean().exp()))):
        try:
            return model.affine(-origin / unit, 1.0 / unit), origin, unit, True
        except ValueError:
            continue
    return model, torch.zeros_like(origin), torch.ones_like(scale), False


def is_training_table(model: object, adapted: LatentModel, digest: str, train: str | None) -> bool:
    """Whether a table is the one that the model was fitted to, by the digests of its rows and of ``train``."""
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
        if has_parameter_error(adapted)
        else "as the error of its parameters cannot be computed, p-values are too large"
    )
    warn_caller(
        f"X holds the rows that the {name} was fitted to: moments that the fit matches have no gap by construction, "
        f"and {how}. Use held-out rows; to use these on purpose, give them as train= (--train) too",
        UserWarning,
    )
    return True


def check_column_names(model: object, names: Sequence[str], what: str) -> None:
    """Refuse rows whose columns have other names than those of the fit, or another order."""
    known = getattr(model, "feature_names_in_", None)
    unnamed = [f"x{j}" for j in range(len(names))]
    if known is None or len(known) != len(names) or list(names) in (unnamed, list(known)):
        return
    raise ValueError(
        f"{what} has columns {', '.join(names)}, but {type(model).__name__} was fitted to {', '.join(map(str, known))}"
    )


def warn_of_matching_means(
    statistics: Sequence[Statistic],
    sums: Sequence[MomentSums],
    forward: Sequence[ForwardMoment],
    sample: RowSample,
    n_rows: int,
) -> None:
    """Warn where the means of the rows equal the model's, as they do for rows that were rounded after the fit.

    Columns of few values do not count: means of counts agree by chance.
    """
    for statistic, found, model in zip(statistics, sums, forward, strict=True):
        if not isinstance(statistic, FirstStatistic) or bool((model.error > 0).any()):
            continue
        varies = found.error > 0
        apart = ((found.mean - model.value.detach()).abs() / found.error)[varies]
        if not bool((apart < CLOSE).all()):
            continue
        steps = sample.rows.sort(0).values.diff(dim=0)  # smallest distance between two values of a column
        step = torch.where(steps > 0.0, steps, torch.inf).amin(0)
        fine = apart[step[varies] / n_rows <= CLOSE_ALONE * found.error[varies]]
        if len(fine) and bool((fine < (CLOSE if len(fine) > 1 else CLOSE_ALONE)).all()):
            warn_caller(
                "the column means of X equal those of the model to a thousandth of their standard errors: X seems to "
                "hold the rows of the fit, rounded, repeated or with other weights, or was centred at its own means as "
                "they were. Moments that the fit matches then have no gap by construction, and p-values are too large; "
                "use held-out rows, in the units of the fit",
                UserWarning,
            )


def warn_of_wrong_training_rows(mean: Tensor, training: RowSample) -> None:
    """Warn where the means of training rows are not the model's, as they are at a maximum of their likelihood.

    A random sample has other means, and so have rows with missing values: these are not tested.
    """
    weight, total = training.weight[:, None], training.weight.sum()
    if training.probability < 1.0 or bool(torch.isnan(training.rows).any()):
        return
    own = (weight * training.rows).sum(0) / total
    error = (weight * (training.rows - own)).square().sum(0).sqrt() / total
    apart = torch.where(error > 0.0, (own - mean).abs() / error, 0.0).amax()
    if bool(apart > APART):
        warn_caller(
            "train= holds other rows than the model was fitted to, or the fit had not converged: the column means of "
            f"train are up to {float(apart):.1f} standard errors away from the model's, and not equal to them, so that "
            "the parameter error cannot be taken from these rows. Pass the rows of the fit, or leave out train=",
            UserWarning,
        )


def warn_of_shared_rows(sample: RowSample, training: RowSample) -> None:
    """Warn where rows are among the training rows, if these are so distinct that it is no chance."""
    words = hash_values_of_rows(training.rows)
    if len(words.unique()) < len(words) * (1.0 - (1.0 - DISTINCT) * training.probability):
        return
    found = int(torch.isin(hash_values_of_rows(sample.rows), words).sum())
    if found > SHARED * training.probability * len(sample.rows):
        warn_caller(
            f"{found} of {len(sample.rows)} rows of X are among the training rows, too: gaps are smaller on these than "
            "on held-out rows, and p-values too large; leave them out of X",
            UserWarning,
        )
