r"""The distribution of a gap when the model is true.

A gap varies because of the held-out rows, the Monte Carlo nodes, and the error of the estimated parameters. Rows are
either drawn anew from the model, or held and multiplied by random signs (a multiplier bootstrap: the null distribution
of a norm of many gaps, a weighted sum of chi-squares, at one matrix product per draw). The error of the parameters
enters as a normal shift of the model's moments, or, on the rows of the fit, row by row through the score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.criticise.forward_moments import ForwardMoment, draw_rows
from boxloop.criticise.moment_sums import MomentSums
from boxloop.criticise.parameter_error import ParameterError
from boxloop.criticise.test_functions import Statistic
from boxloop.data import ArraySource, RowSample
from boxloop.numeric import normal
from boxloop.types import LatentModel

BATCH_VALUES = 1 << 21
"""Values (draws x rows x columns) that are held at once."""

SAMPLE_ROWS, SAMPLE_VALUES = 20_000, 1 << 24
"""Most rows, and most values, of the sample from which the errors of a true model are computed."""


@dataclass(frozen=True)
class GapSize:
    """Two numbers for each gap: the mean squared z-score of its entries, and its norm."""

    score: Tensor
    norm: Tensor


def measure_gap(statistic: Statistic, gap: Tensor, error: Tensor) -> GapSize:
    """Both numbers, from distinct entries (..., p); an off-diagonal entry of a matrix counts twice in its norm.

    Entries of infinite error are left out: nothing is known of them.
    """
    gap = torch.where(torch.isinf(error), 0.0, gap)
    z = torch.where(error > 0, gap / error.clamp(min=1e-300), 0.0)
    return GapSize(z.square().mean(-1), (gap.square() @ statistic.multiplicity().to(gap)).sqrt())


@dataclass(frozen=True)
class ParameterShift:
    """Normal errors of the model's moments from its parameters, independent of held-out rows."""

    root: Tensor
    errors: Sequence[Tensor]

    def draw(self, count: int, generator: Generator) -> list[Tensor]:
        """(count, p) for each test function."""
        noise = normal((count, self.root.shape[1]), generator).to(self.root)
        return list((noise @ self.root.mT).split([len(e) for e in self.errors], dim=1))


def null_errors(
    model: LatentModel,
    statistics: Sequence[Statistic],
    n_rows: int,
    own_error: ParameterError | None,
    generator: Generator,
) -> list[Tensor]:
    """Standard error of each entry over this many rows if the model is true, from a large sample of the model.

    Args:
        model: prior and emission.
        statistics: test functions.
        n_rows: of the table.
        own_error: given when these are the rows of the fit, so that each row's influence on the parameters is removed.
        generator: for the sample.
    """
    size = max(1000, min(SAMPLE_ROWS, SAMPLE_VALUES // len(statistics[0].frame.names)))
    fresh = draw_rows(model, size, generator)
    if own_error is None:
        ones = fresh.new_ones(size)
        return [s.flat(s.sum_rows(fresh, ones).variance / n_rows).sqrt() for s in statistics]
    influences = own_error.influence(fresh).split([len(s.labels()) for s in statistics], dim=1)
    errors = []
    for statistic, influence in zip(statistics, influences, strict=True):
        entries = statistic.entries(fresh)
        alone, net = entries.std(0), (entries - influence[: len(entries)]).std(0)
        errors.append(torch.where(net > own_error.matched * alone, net, 0.0) / n_rows**0.5)
    return errors


@dataclass(frozen=True)
class NullDistribution:
    """Draws of what gaps would be if the model were true.

    Args:
        model: prior and emission.
        statistics: test functions.
        forward: their expectations under the model, with Monte Carlo errors.
        errors: standard errors of the entries of each if the model is true.
        shift: the error of the parameters: independent of held-out rows (:class:`ParameterShift`), made by the rows
            themselves (:class:`ParameterError`) when they are those of the fit, or left out.
    """

    model: LatentModel
    statistics: Sequence[Statistic]
    forward: Sequence[ForwardMoment]
    errors: Sequence[Tensor]
    shift: ParameterShift | ParameterError | None

    def draw_from_model(self, n_rows: int, draws: int, generator: Generator) -> list[GapSize]:
        """Sizes of gaps of so many fresh rows from the model, (draws,) for each test function."""
        d = int(self.forward[0].value.shape[-1])
        found: list[list[GapSize]] = []
        for batch in _batches(draws, n_rows * d):
            fresh = draw_rows(self.model, batch * n_rows, generator)
            shift: Sequence[Tensor] | None = None
            if isinstance(self.shift, ParameterShift):
                shift = self.shift.draw(batch, generator)
            elif self.shift is not None:
                shift = self._split(self.shift.influence(fresh).reshape(batch, n_rows, -1).mean(1))
            tables = fresh.reshape(batch, n_rows, -1)
            ones = tables.new_ones(batch, n_rows)
            means = [statistic.sum_rows(tables, ones).mean for statistic in self.statistics]
            gaps = [s.flat(m - f.value) for s, m, f in zip(self.statistics, means, self.forward, strict=True)]
            found.append(self._measure(gaps, shift, generator))
        return [
            GapSize(torch.cat([p.score for p in parts]), torch.cat([p.norm for p in parts]))
            for parts in zip(*found, strict=True)
        ]

    def draw_by_signs(
        self, sample: RowSample, sums: Sequence[MomentSums], draws: int, generator: Generator
    ) -> list[GapSize]:
        """Sizes of gaps of the same rows with random signs about their means, (draws,) for each test function.

        Args:
            sample: the rows, or a sample of them, whose gaps are scaled to the errors of all.
            sums: over all rows.
            draws: how many.
            generator: of the signs.
        """
        totals = [s.first.new_zeros(draws, *s.first.shape) for s in sums]
        own = self.shift if isinstance(self.shift, ParameterError) else None
        influence = None if own is None else own.row_influence.new_zeros(draws, own.row_influence.shape[1])
        row = 0
        for rows, weight in ArraySource(sample.rows, sample.weight).chunks():
            start = 0
            for batch in _batches(draws, rows.numel()):
                signs = torch.randint(2, (batch, len(weight)), generator=generator, device=generator.device)
                signs = (2 * signs - 1).to(weight)
                part = slice(start, start + batch)
                for total, statistic, every in zip(totals, self.statistics, sums, strict=True):
                    signed = statistic.sum_rows(rows, signs * weight)
                    total[part] += signed.first - every.mean * signed.count
                if own is not None and influence is not None:
                    here = slice(row, row + len(weight))
                    influence[part] += signs @ (own.share[here, None] * own.row_influence[here])
                start += batch
            row += len(weight)
        gaps = [
            statistic.flat(total * _mean_of_signed(statistic, every, sample, own is not None))
            for total, statistic, every in zip(totals, self.statistics, sums, strict=True)
        ]
        if isinstance(self.shift, ParameterShift):
            return self._measure(gaps, self.shift.draw(draws, generator), generator)
        return self._measure(gaps, None if influence is None else self._split(influence), generator)

    def _split(self, moments: Tensor) -> Sequence[Tensor]:
        return moments.split([len(statistic.labels()) for statistic in self.statistics], dim=1)

    def _measure(
        self, gaps: Sequence[Tensor], shift: Sequence[Tensor] | None, generator: Generator
    ) -> list[GapSize]:
        """Sizes of gaps (draws, p) with the errors of nodes added and those of the parameters subtracted."""
        found = []
        for i, (statistic, gap) in enumerate(zip(self.statistics, gaps, strict=True)):
            noisy = gap + normal(tuple(gap.shape), generator).to(gap) * statistic.flat(self.forward[i].error)
            found.append(measure_gap(statistic, noisy if shift is None else noisy - shift[i], self.errors[i]))
        return found


def _mean_of_signed(statistic: Statistic, every: MomentSums, sample: RowSample, own: bool) -> Tensor:
    """The factor from a signed sum over the sample to the mean over all rows."""
    if sample.is_complete:
        return 1.0 / every.count.clamp(min=1e-300)
    part = statistic.sum_rows(sample.rows, sample.weight)
    ratio = every.error / part.error.clamp(min=1e-300)
    if own:  # the same for every entry, as it is for the influence of the rows on the parameters
        ratio = torch.full_like(ratio, sample.probability**0.5)
    return torch.where(part.count > 0, ratio / part.count.clamp(min=1e-300), 0.0)


def _batches(draws: int, size: int) -> Iterator[int]:
    step = max(1, BATCH_VALUES // max(size, 1))
    for start in range(0, draws, step):
        yield min(step, draws - start)
