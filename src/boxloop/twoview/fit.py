"""Fits of features that are not learned: the ridge, the canonical variables, and the means that infer a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from boxloop.data import FIRST_ROWS, check_count, check_kind, check_number, check_source
from boxloop.numeric import scrambled, single_threaded
from boxloop.tree import Tree
from boxloop.twoview.canonical import (
    CanonicalVariables,
    MomentSums,
    RelevanceFit,
    RelevanceModel,
    solve_canonical_variables,
)
from boxloop.twoview.objective import conditional_distance
from boxloop.twoview.views import ViewPair
from boxloop.types import Source

RIDGES = (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridges to choose from, relative to the variance of a feature."""

FeatureFunction = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows that hold both views -> features of each."""


def check_fit_arguments(pair: ViewPair, source: Source, most: int, ridge: float = 0.0) -> None:
    """Refuse arguments that no canonical variables can be solved from."""
    check_kind(pair, "pair", ViewPair, "ViewPair(left, right) makes one of two views")
    check_source(source, "source")
    check_count(most, "most")
    check_number(ridge, "ridge")


@single_threaded
def fit_fixed_features(
    pair: ViewPair,
    source: Source,
    most: int,
    ridge: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> RelevanceFit:
    r"""Canonical variables of features that are not learned, with the means by which one view is inferred.

    For linear views :math:`\overline{u x^\top} = B_x^\top \mathrm{Cov}(x)`, so one pass finds the variables and the
    means; other features are computed twice.

    Args:
        pair: the features.
        source: rows that hold both views.
        most: largest number of variables.
        ridge: added to each feature's variance, relative to it.
        dtype: of products of two features; see :meth:`RelevanceModel.solve`.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView
        >>> x = torch.linspace(-1.0, 1.0, 9).double()[:, None]
        >>> linear = LinearView(torch.zeros(1).double(), torch.ones(1).double())
        >>> source = ArraySource(torch.cat([x, 3.0 - 2.0 * x], 1))
        >>> fit = fit_fixed_features(ViewPair(linear, linear), source, 1)
        >>> fit.infer_right(torch.tensor([[0.5]]).double())
        tensor([[2.]], dtype=torch.float64)
    """
    check_fit_arguments(pair, source, most, ridge)
    canonical, centred, moments = solve_canonical_variables(pair, source, most, ridge, dtype)
    model = RelevanceModel(pair, canonical)
    if not centred.linear:
        return RelevanceFit.of(model, source)
    k = pair.left.n_features
    _, factor = centred.to_feature_units(moments.mean)
    scale = 1.0 if centred.scale is None else centred.scale
    mean, covariance = centred.origin + scale * moments.mean, moments.covariance * scale
    left = (canonical.left / factor[:k, None]).mT @ covariance[:k, :k]
    right = (canonical.right / factor[k:, None]).mT @ covariance[k:, k:]
    return RelevanceFit(model, torch.cat([mean[None, :k], left]), torch.cat([mean[None, k:], right]))


@single_threaded
def choose_ridge(
    pair: ViewPair,
    source: Source,
    most: int,
    *,
    folds: int = 5,
    key: int = 0,
    ridges: Sequence[float] = RIDGES,
) -> float:
    r"""The ridge whose canonical variables have the smallest cross-validated error.

    .. math:: \arg\min_\epsilon \sum_f n_f \, E_f(\epsilon)

    where :math:`E_f` is :func:`conditional_distance` on fold f of the variables of all other folds. Random
    features of a
    kernel nearly repeat each other, and the directions in which they differ follow single rows: without a ridge these
    look relevant. The error on few rows is a little too large, the more so the smaller the ridge, so that a choice
    above the best ridge is likelier than one below: the safe side, since outliers get extreme variables without a
    ridge. One pass over the rows sums the moments of every fold; each ridge then needs small matrices alone.

    Args:
        pair: fixed features of both views.
        source: rows that hold both views.
        most: largest number of variables.
        folds: how many.
        key: seed of the folds.
        ridges: to choose from; of several with the same error the first is chosen.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView
        >>> x, noise = torch.randn(2, 40, 12, generator=torch.Generator().manual_seed(0)).double()
        >>> linear = LinearView(torch.zeros(12).double(), torch.ones(12).double())
        >>> choose_ridge(ViewPair(linear, linear), ArraySource(torch.cat([x, x + 2 * noise], 1)), 12) > 1e-3
        True
    """
    check_fit_arguments(pair, source, most)
    k = pair.left.n_features
    with torch.no_grad():
        parts = sum_moments_by_fold(centre_features(pair, source), source, folds, key)
        total = sum(parts[1:], parts[0])
        errors = [
            sum(
                float(part.weight)
                * float(conditional_distance(CanonicalVariables.solve(total - part, k, most, ridge), part))
                for part in parts
            )
            for ridge in ridges
        ]
    return ridges[min(range(len(ridges)), key=lambda i: errors[i])]


def centre_features(pair: ViewPair, source: Source) -> FeatureFunction:
    """Features in float64 less their means over some rows, so that squares keep the digits of a small variance."""
    head, _ = next(iter(source.chunks(FIRST_ROWS)))
    origins = []
    for part in pair(head):  # only its distance from 0 shows that a feature is constant but for rounding
        mean, deviation = part.double().mean(0), part.double().std(0, correction=0)
        origins.append(torch.where(deviation > 1e-13 * mean.abs(), mean, 0.0))

    def evaluate_centred(rows: Tensor) -> tuple[Tensor, Tensor]:
        f, g = pair(rows)
        return f.double() - origins[0], g.double() - origins[1]

    return evaluate_centred


@dataclass(frozen=True)
class _MomentsByFold(Tree):
    parts: tuple[MomentSums, ...]


def sum_moments_by_fold(features: FeatureFunction, source: Source, folds: int, key: int) -> list[MomentSums]:
    """Moment sums of features over the rows of each fold, in one pass."""

    def sum_folds(rows: Tensor, weight: Tensor, start: int) -> _MomentsByFold:
        both = torch.cat([part.double() for part in features(rows)], 1)
        fold = assign_folds(start, start + len(weight), folds, key).to(both.device)
        inside = (fold == f for f in range(folds))
        return _MomentsByFold(tuple(MomentSums.of_features(both[mask], weight[mask]) for mask in inside))

    parts = source.reduce_at(sum_folds).parts
    if any(float(part.weight) <= 0.0 for part in parts):
        raise ValueError(f"one of {folds} folds has no row with weight: give more rows, or fewer folds")
    return list(parts)


def assign_folds(start: int, stop: int, folds: int, key: int) -> Tensor:
    """Folds of the rows ``start`` to ``stop`` by their numbers; of every ``folds`` rows in turn, one goes to each."""
    first, last = start // folds, -(-stop // folds)
    words = scrambled(np.arange(first * folds, last * folds, dtype=np.uint64), key)
    order = words.reshape(-1, folds).argsort(1).reshape(-1)
    return torch.from_numpy(order[start - first * folds : stop - first * folds])
