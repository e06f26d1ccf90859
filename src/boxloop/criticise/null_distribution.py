r"""The distribution of a gap when the model is true.

A gap varies because of the held-out rows, the Monte Carlo nodes, and the error of the estimated parameters. Rows are
either drawn anew from the model, or held and multiplied by random signs (a multiplier bootstrap: the null distribution
of a norm of many gaps, a weighted sum of chi-squares, at one matrix product per draw). The error of the parameters
enters as a normal shift of the model's moments, or, on the rows of the fit, row by row through the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.criticise.forward_moments import ForwardMoment, draw_rows
from boxloop.criticise.parameter_error import ParameterUncertainty
from boxloop.criticise.test_functions import MomentSums, Statistic
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
    """Both numbers, from distinct entries (..., p); those of infinite error are left out."""
    gap = torch.where(torch.isinf(error), 0.0, gap)
    z = torch.where(error > 0, gap / error.clamp(min=1e-300), 0.0)
    # An off-diagonal entry of a matrix counts twice in its norm.
    return GapSize(z.square().mean(-1), (gap.square() @ statistic.entry_multiplicity().to(gap)).sqrt())


def estimate_null_errors(
    model: LatentModel,
    statistics: Sequence[Statistic],
    n_rows: int,
    own_error: ParameterUncertainty | None,
    generator: Generator,
) -> list[Tensor]:
    """Standard error of each entry over so many rows if the model is true, from a large sample of the model.

    ``own_error`` is given when these are the rows of the fit: each row's influence on the parameters is then removed.
    """
    size = max(1000, min(SAMPLE_ROWS, SAMPLE_VALUES // len(statistics[0].frame.names)))
    fresh = draw_rows(model, size, generator)
    if own_error is None:
        ones = fresh.new_ones(size)
        return [s.flatten(s.sum_rows(fresh, ones).variance / n_rows).sqrt() for s in statistics]
    influences = own_error.influence(fresh).split([len(s.entry_multiplicity()) for s in statistics], dim=1)
    errors = []
    for statistic, influence in zip(statistics, influences, strict=True):
        entries = statistic.evaluate(fresh)
        alone, net = entries.std(0), (entries - influence[: len(entries)]).std(0)
        errors.append(torch.where(net > own_error.match_tolerance * alone, net, 0.0) / n_rows**0.5)
    return errors


@dataclass(frozen=True)
class NullDistribution:
    """Draws of what gaps would be if the model were true."""

    model: LatentModel
    statistics: Sequence[Statistic]
    forward: Sequence[ForwardMoment]
    errors: Sequence[Tensor]  # standard errors of the entries of each test function if the model is true
    parameter_error: ParameterUncertainty | None
    own_rows: bool  # whether the rows are those of the fit, which move the parameters themselves

    def draw_from_model(self, n_rows: int, draws: int, generator: Generator) -> list[GapSize]:
        """Sizes of gaps of so many fresh rows from the model, (draws,) for each test function."""
        parameters = self.parameter_error
        root = None if parameters is None or self.own_rows else parameters.covariance_root
        found: list[list[GapSize]] = []
        step = max(1, BATCH_VALUES // (n_rows * int(self.forward[0].value.shape[-1])))
        for start in range(0, draws, step):
            batch = min(step, draws - start)
            fresh = draw_rows(self.model, batch * n_rows, generator)
            shift = None
            if root is not None:
                shift = normal((batch, root.shape[1]), generator).to(root) @ root.mT
            elif parameters is not None:
                shift = parameters.influence(fresh).reshape(batch, n_rows, -1).mean(1)
            tables = fresh.reshape(batch, n_rows, -1)
            ones = tables.new_ones(batch, n_rows)
            means = [statistic.sum_rows(tables, ones).mean for statistic in self.statistics]
            gaps = [
                s.flatten(m - f.value) for s, m, f in zip(self.statistics, means, self.forward, strict=True)
            ]
            found.append(self._measure_gaps(gaps, shift, generator))
        return [
            GapSize(torch.cat([p.score for p in parts]), torch.cat([p.norm for p in parts]))
            for parts in zip(*found, strict=True)
        ]

    def draw_by_random_signs(
        self, sample: RowSample, sums: Sequence[MomentSums], draws: int, generator: Generator
    ) -> list[GapSize]:
        """Sizes of gaps of the same rows with random signs about their means, (draws,) for each test function.

        Gaps of a sample of the rows are scaled to the errors of all, which are those of ``sums``.
        """
        totals = [s.first.new_zeros(draws, *s.first.shape) for s in sums]
        own = self.parameter_error if self.own_rows else None
        shift = None if own is None else own.row_influence.new_zeros(draws, own.row_influence.shape[1])
        row = 0
        for rows, weight in ArraySource(sample.rows, sample.weight).chunks():
            step = max(1, BATCH_VALUES // max(rows.numel(), 1))
            for start in range(0, draws, step):
                part = slice(start, min(start + step, draws))
                size = (part.stop - start, len(weight))
                signs = torch.randint(2, size, generator=generator, device=generator.device)
                signs = (2 * signs - 1).to(weight)
                for total, statistic, every in zip(totals, self.statistics, sums, strict=True):
                    signed = statistic.sum_rows(rows, signs * weight)
                    total[part] += signed.first - every.mean * signed.count
                if own is not None and shift is not None:
                    here = slice(row, row + len(weight))
                    shift[part] += signs @ (own.row_share[here, None] * own.row_influence[here])
            row += len(weight)
        gaps = [
            statistic.flatten(total * _scale_of_signed_sum(statistic, every, sample, own is not None))
            for total, statistic, every in zip(totals, self.statistics, sums, strict=True)
        ]
        if self.parameter_error is not None and own is None:
            root = self.parameter_error.covariance_root
            shift = normal((draws, root.shape[1]), generator).to(root) @ root.mT
        return self._measure_gaps(gaps, shift, generator)

    def _measure_gaps(
        self, gaps: Sequence[Tensor], shift: Tensor | None, generator: Generator
    ) -> list[GapSize]:
        """Sizes of gaps (draws, p) with the errors of nodes added and the shift by the parameters subtracted."""
        shifts = None if shift is None else shift.split([len(error) for error in self.errors], dim=1)
        found = []
        for i, (statistic, gap) in enumerate(zip(self.statistics, gaps, strict=True)):
            node_error = statistic.flatten(self.forward[i].error)
            noisy = gap + normal(tuple(gap.shape), generator).to(gap) * node_error
            found.append(
                measure_gap(statistic, noisy if shifts is None else noisy - shifts[i], self.errors[i])
            )
        return found


def _scale_of_signed_sum(statistic: Statistic, every: MomentSums, sample: RowSample, own: bool) -> Tensor:
    """The factor from a signed sum over the sample to the mean over all rows."""
    if sample.is_complete:
        return 1.0 / every.count.clamp(min=1e-300)
    part = statistic.sum_rows(sample.rows, sample.weight)
    ratio = every.error / part.error.clamp(min=1e-300)
    if own:  # the same for every entry, as it is for the influence of the rows on the parameters
        ratio = torch.full_like(ratio, sample.probability**0.5)
    return torch.where(part.count > 0, ratio / part.count.clamp(min=1e-300), 0.0)
