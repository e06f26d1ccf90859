"""Learning features: the objective of a mini-batch, and a score of features on rows that were not used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, check_kind
from boxloop.fit import ALONE, Workers
from boxloop.twoview.canonical import Canonical
from boxloop.twoview.moments import Products
from boxloop.twoview.objective import Constant, relevance_loss
from boxloop.twoview.views import ViewPair
from boxloop.types import Source

Channel = Callable[[Tensor, Generator], Tensor]
"""(rows of the first view, generator) -> rows of the second, drawn anew at every call."""

BATCH_RATIO = 10
"""Rows of a mini-batch for each feature, below which relevances of the batch are spurious: document 003, A.2."""

SLACK = 0.01
"""Share of the best score that a smaller ridge may lose and still be taken."""


@dataclass(frozen=True)
class RelevanceLoss:
    """:func:`relevance_loss` of a mini-batch, as a trainer takes it.

    Args:
        ridge: see there.
        constant: see there.
        weighted: whether rows have weights of their own.
        channel: makes the second view of rows that hold the first one alone.
        workers: the processes that share the rows of a batch; the channel is drawn for all rows by each of them.
    """

    ridge: float = 0.0
    constant: Constant = "enforced"
    weighted: bool = False
    channel: Channel | None = None
    workers: Workers = ALONE

    def __call__(
        self, pair: ViewPair, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and the total relevance in the batch."""
        mine, _ = self.workers.mine(len(rows))
        left, right = pair(with_channel(rows, self.channel, stream)[mine])
        mass = weight[mine] if self.weighted else None
        loss = relevance_loss(
            left, right, mass, ridge=self.ridge, constant=self.constant, workers=self.workers
        )
        return loss, {"relevance": min(left.shape[1], right.shape[1]) - loss}


def with_channel(rows: Tensor, channel: Channel | None, stream: Generator) -> Tensor:
    """Rows that hold both views."""
    return rows if channel is None else torch.cat([rows, channel(rows, stream)], 1)


def channel_error(fitted: Canonical, products: Products) -> Tensor:
    r"""How far the fitted law of one view given the other is from that of other rows.

    .. math:: \sum_{x, y} \frac{(q(x, y) - p(x, y))^2}{p(x) p(y)} - \sum_i \eta_i^2 =
        \sum_{ij} \hat\eta_i \hat\eta_j \overline{\hat u_i \hat u_j} \, \overline{\hat v_i \hat v_j}
        - 2 \sum_i \hat\eta_i \overline{\hat u_i \hat v_i}

    Document 003, theorem 1 (eq. 22), up to a term that no fit changes; bars are means over the other rows. It needs no
    inverse of their moments, so few of them will do, and relevances that were fitted to noise make it larger: a proper
    score, known for Markov processes as VAMP-E (Wu and Noé, 2020).

    Two things keep it from being exact, both small where rows are many. The first term is a product of two means over
    the same rows, too large by one part in their number. And the means of the fit stand for those of the other rows: a
    term :math:`2 \sum_i \hat\eta_i \, \overline{\hat u_i} \, \overline{\hat v_i}` is left out, of mean
    :math:`2 \sum_i \eta_i^2 / n` for n rows of the fit. Estimated from few other rows it would do more harm than good:
    with 30 rows of three classes it made a network's validation choose a ridge of 1 where 0 was right.

    Args:
        fitted: canonical variables from the rows of the fit.
        products: of features, over other rows.

    Returns:
        A scalar; minus the total relevance where the other rows are those of the fit.
    """
    check_kind(fitted, "fitted", Canonical, "the field canonical of a RelevanceModel is one")
    check_kind(products, "products", Products, "Products.of(pair, rows, weight) makes one")
    k = fitted.left.shape[0]
    mean, moment = products.moments()
    apart = mean - torch.cat([fitted.left_mean, fitted.right_mean])
    moment = moment + apart[:, None] * apart
    left = fitted.left.mT @ moment[:k, :k] @ fitted.left
    right = fitted.right.mT @ moment[k:, k:] @ fitted.right
    cross = ((fitted.left.mT @ moment[:k, k:]) * fitted.right.mT).sum(1)
    eta = fitted.correlation
    return eta @ (left * right) @ eta - 2.0 * eta @ cross


@dataclass(frozen=True)
class HeldOut:
    """Validation of features: canonical variables from rows of the fit, judged on rows that are not among them.

    Args:
        train: some rows of the fit, both views.
        rows: rows held out, both views.
        ridges: relative ridges of the canonical variables, rising, of which the best is taken.
    """

    train: Source
    rows: ArraySource
    ridges: tuple[float, ...] = (0.0,)

    def __call__(self, pair: ViewPair, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The error of the channel counted from that of independence, and the relevances on both sets of rows."""
        error, fitted, ridge = self.best(pair)
        return error, {
            "relevance": -error,
            "fitted_relevance": fitted.relevance.sum(),
            "ridge": torch.tensor(ridge, dtype=error.dtype),
        }

    def best(self, pair: ViewPair) -> tuple[Tensor, Canonical, float]:
        """The variables of the smallest ridge that does about as well as any on rows held out: error, variables, ridge.

        Features that nearly repeat each other differ in directions that hold for single rows of the fit; on others
        these are wild. A ridge damps them.
        """
        k, most = pair.left.n_features, min(pair.left.n_features, pair.right.n_features)
        with torch.no_grad():
            here, there = (
                source.reduce(lambda rows, weight: Products.of(pair, rows, weight))
                for source in (self.train, self.rows)
            )
            found = [(Canonical.solve(here, k, most, ridge), ridge) for ridge in self.ridges]
            errors = [channel_error(fitted, there) for fitted, _ in found]
        low = min(float(error) for error in errors)
        place = next((i for i, error in enumerate(errors) if float(error) <= low + SLACK * abs(low)), 0)
        return errors[place], *found[place]
