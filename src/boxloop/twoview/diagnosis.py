"""Signs that the canonical variables of a fit are unreliable: what they imply that no distribution could."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from boxloop.data import check_count, sample_rows
from boxloop.numeric import RandomState, generator, single_threaded
from boxloop.twoview.conditional import ConditionalDistribution, Function, check_conditional
from boxloop.twoview.objective import ROWS_PER_FEATURE, relevance_loss

BATCHES = 20
"""Batches whose loss is averaged."""

NEGATIVE_MASS, NEGATIVE_VARIANCE, BATCH_LOSS = 0.05, 0.05, 0.1
"""Negative mass, share of negative variances and, per variable, loss above that of a batch that are concerns."""


@dataclass(frozen=True)
class Diagnosis:
    r"""Numbers that are 0 for a true conditional distribution, and the loss on all rows beside that of a batch.

    Args:
        negative_mass: mean over the points conditioned on of the sum of negative weights.
        worst_negative_mass: the largest of them.
        negative_variance: share of conditional variances below 0, over points and functions.
        n_given: number of points conditioned on.
        n_features: variables without the constant, r.
        loss: :math:`r - \sum_i \eta_i^2` on all rows; with :math:`k_0 = r + 1` this is :math:`k_0 - \sum_{i \ge 0}
            \eta_i^2`, as the constant adds 1 to both.
        batch_size: rows of a mini-batch in training; None where there were no batches.
        batch_loss: the same loss from K, L, A of one batch, averaged over batches of rows in random order; chance
            correlations make it smaller than ``loss``.
        rows_per_variable: of a batch, the constant included; at least 10 are needed.
    """

    negative_mass: float
    worst_negative_mass: float
    negative_variance: float
    n_given: int
    n_features: int
    loss: float
    batch_size: int | None = None
    batch_loss: float | None = None
    rows_per_variable: float | None = None

    @property
    def batch_too_small(self) -> bool:
        """Whether a batch has fewer than 10 rows for each variable."""
        return self.rows_per_variable is not None and self.rows_per_variable < ROWS_PER_FEATURE

    @property
    def concerns(self) -> tuple[str, ...]:
        """What to know before the expectations are used, in words; none where all is well."""
        concerns = []
        if self.negative_mass > NEGATIVE_MASS:
            concerns.append(
                f"the conditional distribution has negative mass {self.negative_mass:.2g} on average "
                f"({self.worst_negative_mass:.2g} at worst): tails and quantiles are inaccurate; another number of "
                "features or more rows may help"
            )
        if self.negative_variance > NEGATIVE_VARIANCE:
            concerns.append(
                f"{self.negative_variance:.0%} of conditional variances are negative and were replaced by 0: standard "
                "deviations of those functions are unreliable"
            )
        if self.batch_too_small:
            concerns.append(
                f"a batch of {self.batch_size} rows has {self.rows_per_variable:.1f} for each of {self.n_features + 1} "
                f"variables (the constant included): below {ROWS_PER_FEATURE} the learned relevances are partly "
                "spurious; raise batch_size"
            )
        if self.batch_loss is not None and self.loss - self.batch_loss > BATCH_LOSS * self.n_features:
            concerns.append(
                f"the loss is {self.loss:.3g} on all rows but {self.batch_loss:.3g} in a batch: the correlations of a "
                "batch are partly spurious; raise batch_size"
            )
        return tuple(concerns)

    def __str__(self) -> str:
        lines = [
            f"loss on all rows {self.loss:.4g} of {self.n_features}"
            + (
                ""
                if self.batch_loss is None
                else f", in a batch of {self.batch_size} rows {self.batch_loss:.4g}"
            ),
            f"negative mass {self.negative_mass:.3g} on average, {self.worst_negative_mass:.3g} at worst, over "
            f"{self.n_given} points conditioned on",
            f"negative variances {self.negative_variance:.1%}",
        ]
        return "\n".join([*lines, *(f"note: {concern}" for concern in self.concerns)])


@single_threaded
def diagnose(
    conditional: ConditionalDistribution,
    theta: Function | None = None,
    *,
    n_given: int = 200,
    batch_size: int | None = None,
    random_state: RandomState = 0,
) -> Diagnosis:
    """Diagnose what a fit implies at some of its own rows.

    Args:
        conditional: the fit with its rows.
        theta: functions whose variances are counted; None for the columns.
        n_given: approximate number of rows of the second view to condition on, a random sample.
        batch_size: of training, where there were batches.
        random_state: of the sample.

    Returns:
        The numbers, and a sentence for each that is a concern.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, RelevanceModel, ViewPair
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).double()
        >>> coin = FiniteView(torch.tensor([0.0, 1.0]).double())
        >>> model = RelevanceModel.solve(ViewPair(coin, coin), ArraySource(rows), most=1)
        >>> print(diagnose(ConditionalDistribution(model, ArraySource(rows))))
        loss on all rows 0.6667 of 1
        negative mass 0 on average, 0 at worst, over 4 points conditioned on
        negative variances 0.0%
    """
    check_conditional(conditional)
    model = conditional.model
    check_count(n_given, "n_given")
    sample = sample_rows(conditional.source, n_given, generator(random_state)).rows
    given = model.pair.split_rows(sample)[1]
    expectation = conditional.expect(theta, given)
    correlation = model.canonical.correlation
    r = len(correlation)
    batch = None if batch_size is None else _average_batch_loss(conditional, batch_size, random_state)
    mass = np.where(expectation.negative_mass > 1e-12, expectation.negative_mass, 0.0)
    return Diagnosis(
        negative_mass=float(mass.mean()),
        worst_negative_mass=float(mass.max()),
        negative_variance=float(expectation.negative_variance.mean()),
        n_given=len(given),
        n_features=r,
        loss=float(r - correlation.square().sum()),
        batch_size=batch_size,
        batch_loss=batch,
        rows_per_variable=None if batch_size is None else batch_size / (r + 1),
    )


def _average_batch_loss(
    conditional: ConditionalDistribution, batch_size: int, random_state: RandomState
) -> float:
    """Mean loss of a batch of the model's variables, over at most 20 batches of rows in random order; 0 for none."""
    if not len(conditional.model.canonical.correlation):
        return 0.0
    stream = generator(random_state)
    sample = sample_rows(conditional.source, BATCHES * batch_size, stream)
    order = torch.randperm(len(sample.rows), generator=stream)
    losses: list[float] = []
    with torch.no_grad():
        for index in islice(order.split(batch_size), BATCHES):
            if len(index) == batch_size or not losses:
                rows = sample.rows[index.to(sample.rows.device)]
                rows = rows.to(conditional.device, conditional.first_rows.dtype)
                weight = sample.weight[index.to(sample.weight.device)].to(conditional.device)
                losses.append(float(relevance_loss(*conditional.model.both(rows), weight)))
    return float(np.mean(losses))
