r"""What learning costs: how far two fits to different halves of the rows are apart, beside their error bars.

Error bars of an expectation hold for features as they are. Let :math:`A` and :math:`B` be inferred from complementary
halves of the rows, each of which learned features of its own: :math:`(A - B)^2 / 2` has the mean of the squared error
of such a fit, its bias apart. A fit to all rows is taken to be no better, since what a network owes to its start and
to the order of its batches does not fall with the rows. One factor, pooled over points and functions,

.. math:: f^2 = \frac{\sum (A - B)^2 / 2}{\sum \mathrm{se}^2}

then says how much longer the error bars should be.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from torch import Generator, Tensor, nn

from boxloop.data import ArraySource, SwappedViews, select_rows
from boxloop.estimators._training import make_part
from boxloop.estimators.relevant_fit import fit_views
from boxloop.numeric import generator, seed, spawn
from boxloop.twoview import Conditional, Expectation, Function, NetworkView, View, ViewPair
from boxloop.types import Source


@dataclass(frozen=True)
class Refits:
    """Two fits to complementary halves of the rows, some times.

    Args:
        estimator: a fitted ``RelevantFeatures``.
        rows: of its fit, both views.
        pairs: how many times the rows are halved.
    """

    estimator: BaseEstimator
    rows: Source
    pairs: int

    def lengthened(
        self, found: Expectation, theta: Function | None, given: Tensor, turned: bool
    ) -> Expectation:
        """An expectation with error bars that contain what learning costs.

        Args:
            found: by the whole fit.
            theta: its function.
            given: the rows that it is given.
            turned: whether the second view is the inferred one.
        """
        apart, spread = np.zeros_like(found.mean), np.zeros_like(found.mean)
        for stream in spawn(generator(self.estimator.random_state), self.pairs):
            order = torch.randperm(self.rows.n_rows, generator=stream)
            half = torch.zeros(self.rows.n_rows, dtype=torch.bool)
            half[order[: self.rows.n_rows // 2]] = True
            one, two = (
                self.inferred(select_rows(self.rows, mask), stream, theta, given, turned)
                for mask in (half, ~half)
            )
            apart += (one.mean - two.mean) ** 2 / (2.0 * self.pairs)
            spread += (one.deviation - two.deviation) ** 2 / (2.0 * self.pairs)
        mean = _factor(apart, found.standard_error)
        deviation = _factor(spread, found.deviation_error)
        return replace(
            found,
            standard_error=found.standard_error * mean,
            deviation_error=found.deviation_error * deviation,
            inflation=mean,
        )

    def inferred(
        self, rows: Source, stream: Generator, theta: Function | None, given: Tensor, turned: bool
    ) -> Expectation:
        """The expectation under a fit of its own to some of the rows."""
        other = clone(self.estimator).set_params(random_state=seed(stream), checkpoint=None, verbose=0)
        start = self.estimator.model_.pair
        pair = ViewPair(
            fresh(start.left, other.x_features, stream), fresh(start.right, other.y_features, stream)
        )
        first = None
        if other.channel is not None:
            assert isinstance(rows, ArraySource)  # a channel takes no other
            first = ArraySource(rows.rows[:, : start.left.n_columns].contiguous(), rows.weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the whole fit has spoken of it
            fitted = fit_views(other, pair, rows, first, len(self.estimator.correlation_))
        model, used = fitted.fit.model, fitted.rows
        if turned:
            model, used = model.swapped(), SwappedViews(used, start.left.n_columns)
        return Conditional(model, used, fitted.ridge).expect(theta, given)


def fresh(view: View, kind: Any, stream: Generator) -> View:
    """A view before it learned anything: networks start anew, a user's module from where it was given."""
    if not isinstance(view, NetworkView):
        return view
    like, own = view.part.parameters[0], spawn(stream, 1)[0]
    module = kind if isinstance(kind, nn.Module) else None
    return replace(view, part=make_part(module, view.part.network, like.device, like.dtype, own))


def _factor(apart: np.ndarray, error: np.ndarray) -> float:
    """How much longer error bars should be; never shorter."""
    total = float((error**2).sum())
    return max(1.0, float(np.sqrt(apart.sum() / total))) if total > 0.0 else 1.0
