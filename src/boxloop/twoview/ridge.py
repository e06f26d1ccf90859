"""How much to damp features that nearly repeat each other: the ridge that predicts rows held out best."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from boxloop.data import check_count, check_kind, check_source
from boxloop.numeric import single_threaded
from boxloop.twoview.canonical import Canonical
from boxloop.twoview.crossfit import fold_products, near_zero
from boxloop.twoview.training import channel_error
from boxloop.twoview.views import ViewPair
from boxloop.types import Source

RIDGES = (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridges that are tried, relative to the variance of a feature."""


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
    r"""The ridge whose canonical variables have the smallest error on folds that did not find them.

    .. math:: \arg\min_\epsilon \sum_f n_f \, E_f(\epsilon)

    where :math:`E_f` is :func:`~boxloop.twoview.training.channel_error` of the variables of all other folds. Random
    features of a kernel nearly repeat each other, and the directions in which they differ follow single rows: without a
    ridge these look relevant. The error of few rows is a little too large, the more so the smaller the ridge, so that
    one above the best is likelier than one below: the safe side, as rows far out are wild without a ridge. One pass
    over the rows makes the sums of every fold; each ridge is then a matter of small matrices.

    Args:
        pair: fixed features of both views.
        source: rows that hold both views.
        most: variables to keep.
        folds: how many.
        key: of the folds.
        ridges: to try; the smallest of equals is taken.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView
        >>> x, noise = torch.randn(2, 40, 12, generator=torch.Generator().manual_seed(0)).double()
        >>> still = LinearView(torch.zeros(12).double(), torch.ones(12).double())
        >>> choose_ridge(ViewPair(still, still), ArraySource(torch.cat([x, x + 2 * noise], 1)), 12) > 1e-3
        True
    """
    check_kind(pair, "pair", ViewPair, "ViewPair(left, right) makes one of two views")
    check_source(source, "source")
    check_count(most, "most")
    k = pair.left.n_features
    with torch.no_grad():
        parts = fold_products(near_zero(pair, source), source, folds, key)
        whole = sum(parts[1:], parts[0])
        errors = [
            sum(
                float(part.weight) * float(channel_error(Canonical.solve(whole - part, k, most, ridge), part))
                for part in parts
            )
            for ridge in ridges
        ]
    return ridges[min(range(len(ridges)), key=lambda i: errors[i])]
