"""Fits of fixed features; where both views are linear, all that is kept follows from moments of one pass."""

from __future__ import annotations

import torch

from boxloop.data import check_count, check_kind, check_number, check_source
from boxloop.numeric import single_threaded
from boxloop.twoview.canonical import RelevanceModel, canonical_variables
from boxloop.twoview.inference import RelevanceFit
from boxloop.twoview.views import ViewPair
from boxloop.types import Source


@single_threaded
def fit_fixed(
    pair: ViewPair,
    source: Source,
    most: int,
    ridge: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> RelevanceFit:
    r"""Canonical variables of features that are not learned, with the means by which one view is inferred.

    For linear views :math:`\overline{u x^\top} = B_x^\top \mathrm{Cov}(x)`, so the pass that finds the variables finds
    the means; other features are made twice.

    Args:
        pair: the features.
        source: rows that hold both views.
        most: variables to keep.
        ridge: added to each feature's variance, relative to it.
        dtype: of products of two features; see :meth:`RelevanceModel.solve`.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview.views import LinearView
        >>> x = torch.linspace(-1.0, 1.0, 9).double()[:, None]
        >>> still = LinearView(torch.zeros(1).double(), torch.ones(1).double())
        >>> fit = fit_fixed(ViewPair(still, still), ArraySource(torch.cat([x, 3.0 - 2.0 * x], 1)), 1)
        >>> fit.infer_right(torch.tensor([[0.5]]).double())
        tensor([[2.]], dtype=torch.float64)
    """
    check_kind(pair, "pair", ViewPair, "ViewPair(left, right) makes one of two views")
    check_source(source, "source")
    check_count(most, "most")
    check_number(ridge, "ridge")
    canonical, sight, moments = canonical_variables(pair, source, most, ridge, dtype)
    model = RelevanceModel(pair, canonical)
    if not sight.linear:
        return RelevanceFit.of(model, source)
    k = pair.left.n_features
    _, factor = sight.back(moments.mean)
    scale = 1.0 if sight.scale is None else sight.scale
    mean, covariance = sight.origin + scale * moments.mean, moments.covariance * scale
    left = (canonical.left / factor[:k, None]).mT @ covariance[:k, :k]
    right = (canonical.right / factor[k:, None]).mT @ covariance[k:, k:]
    return RelevanceFit(model, torch.cat([mean[None, :k], left]), torch.cat([mean[None, k:], right]))
