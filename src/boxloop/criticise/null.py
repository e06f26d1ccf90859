r"""The law of a gap when the model is true.

A gap varies because of the held-out rows, the Monte Carlo nodes, and the error of the estimated parameters. Rows are
either drawn anew from the model, or kept and multiplied by random signs (a multiplier bootstrap: the null law of a norm
of many gaps, a weighted sum of chi-squares, at one matrix product a draw). The error of the parameters enters as a
normal shift of the model's moments, or, on the rows of the fit, row by row through the score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.criticise.forward import Forward
from boxloop.criticise.probes import Probe
from boxloop.criticise.sampling import sample_rows
from boxloop.criticise.tally import Tally
from boxloop.criticise.training import Training
from boxloop.data import ArraySource, RowSample
from boxloop.numeric import normal
from boxloop.types import LatentModel

BATCH_VALUES = 1 << 21
"""Values (draws x rows x columns) that are held at once."""

SAMPLE_ROWS, SAMPLE_VALUES = 20_000, 1 << 24
"""Most rows, and most values, of the sample from which the errors of a true model are computed."""


@dataclass(frozen=True)
class Measure:
    """Two numbers for each test function: the mean squared z-score of its entries, and the norm of its gap."""

    score: Tensor
    norm: Tensor


def measure(probe: Probe, gap: Tensor, error: Tensor) -> Measure:
    """Both numbers, from distinct entries (..., p); an off-diagonal entry of a matrix counts twice in its norm.

    Entries of infinite error are left out: nothing is known of them.
    """
    gap = torch.where(torch.isinf(error), 0.0, gap)
    z = torch.where(error > 0, gap / error.clamp(min=1e-300), 0.0)
    return Measure(z.square().mean(-1), (gap.square() @ probe.multiplicity().to(gap)).sqrt())


@dataclass(frozen=True)
class Shift:
    """Normal errors of the model's moments from the training of its parameters, test function by test function."""

    root: Tensor
    errors: Sequence[Tensor]

    def draw(self, count: int, generator: Generator) -> list[Tensor]:
        """(count, p) for each test function."""
        noise = normal((count, self.root.shape[1]), generator).to(self.root)
        return list((noise @ self.root.mT).split([len(e) for e in self.errors], dim=1))


def model_errors(
    model: LatentModel, probes: Sequence[Probe], rows: int, training: Training | None, generator: Generator
) -> list[Tensor]:
    """Standard error of each entry over this many rows if the model is true, from a large sample of it.

    Args:
        model: prior and emission.
        probes: test functions.
        rows: of the table that is judged.
        training: given when these are the rows of the fit, so that each row's pull on the parameters is taken off.
        generator: for the sample.
    """
    size = max(1000, min(SAMPLE_ROWS, SAMPLE_VALUES // len(probes[0].scene.names)))
    fresh = sample_rows(model, size, generator)
    if training is None:
        ones = fresh.new_ones(size)
        return [probe.flat(probe.tally(fresh, ones).variance / rows).sqrt() for probe in probes]
    pulls = training.pull(fresh).split([len(probe.labels()) for probe in probes], dim=1)
    found = []
    for probe, pull in zip(probes, pulls, strict=True):
        entries = probe.entries(fresh)
        plain, own = entries.std(0), (entries - pull[: len(entries)]).std(0)
        found.append(torch.where(own > training.matched * plain, own, 0.0) / rows**0.5)
    return found


@dataclass(frozen=True)
class Null:
    """What gaps would be if the model were true.

    Args:
        model: prior and emission.
        probes: test functions.
        forward: their expectations under the model, with Monte Carlo errors.
        errors: standard errors of the entries of each if the model is true.
        shift: the error of the parameters: independent of held-out rows (:class:`Shift`), made by the rows themselves
            (:class:`Training`) when they are those of the fit, or left out.
    """

    model: LatentModel
    probes: Sequence[Probe]
    forward: Sequence[Forward]
    errors: Sequence[Tensor]
    shift: Shift | Training | None

    def from_model(self, rows: int, draws: int, generator: Generator) -> list[Measure]:
        """Measures of gaps of so many fresh rows from the model, (draws,) for each test function."""
        d = int(self.forward[0].value.shape[-1])
        found: list[list[Measure]] = []
        for batch in _batches(draws, rows * d):
            fresh = sample_rows(self.model, batch * rows, generator)
            moved: Sequence[Tensor] | None = None
            if isinstance(self.shift, Shift):
                moved = self.shift.draw(batch, generator)
            elif self.shift is not None:
                moved = self._split(self.shift.pull(fresh).reshape(batch, rows, -1).mean(1))
            tables = fresh.reshape(batch, rows, -1)
            ones = tables.new_ones(batch, rows)
            means = [probe.tally(tables, ones).mean for probe in self.probes]
            gaps = [p.flat(m - f.value) for p, m, f in zip(self.probes, means, self.forward, strict=True)]
            found.append(self._measured(gaps, moved, generator))
        return [_joined(parts) for parts in zip(*found, strict=True)]

    def from_signs(
        self, kept: RowSample, tallies: Sequence[Tally], draws: int, generator: Generator
    ) -> list[Measure]:
        """Measures of gaps of the same rows with random signs about their means, (draws,) for each test function.

        Args:
            kept: the rows, or so many of them as are worth the work: their gaps are scaled to the errors of all.
            tallies: of all rows.
            draws: how many.
            generator: of the signs.
        """
        sums = [t.first.new_zeros(draws, *t.first.shape) for t in tallies]
        own = self.shift if isinstance(self.shift, Training) else None
        pulled = None if own is None else own.shift.new_zeros(draws, own.shift.shape[1])
        row = 0
        for rows, weight in ArraySource(kept.rows, kept.weight).chunks():
            start = 0
            for batch in _batches(draws, rows.numel()):
                signs = torch.randint(2, (batch, len(weight)), generator=generator, device=generator.device)
                signs = (2 * signs - 1).to(weight)
                part = slice(start, start + batch)
                for total, probe, tally in zip(sums, self.probes, tallies, strict=True):
                    found = probe.tally(rows, signs * weight)
                    total[part] += found.first - tally.mean * found.count
                if own is not None and pulled is not None:
                    here = slice(row, row + len(weight))
                    pulled[part] += signs @ (own.share[here, None] * own.shift[here])
                start += batch
            row += len(weight)
        gaps = [
            probe.flat(total * _unit(probe, tally, kept, own is not None))
            for total, probe, tally in zip(sums, self.probes, tallies, strict=True)
        ]
        if isinstance(self.shift, Shift):
            return self._measured(gaps, self.shift.draw(draws, generator), generator)
        return self._measured(gaps, None if pulled is None else self._split(pulled), generator)

    def _split(self, moved: Tensor) -> Sequence[Tensor]:
        return moved.split([len(probe.labels()) for probe in self.probes], dim=1)

    def _measured(
        self, gaps: Sequence[Tensor], moved: Sequence[Tensor] | None, generator: Generator
    ) -> list[Measure]:
        """Measures of gaps (draws, p) with the errors of nodes added and those of the parameters taken off."""
        found = []
        for i, (probe, gap) in enumerate(zip(self.probes, gaps, strict=True)):
            noisy = gap + normal(tuple(gap.shape), generator).to(gap) * probe.flat(self.forward[i].error)
            found.append(measure(probe, noisy if moved is None else noisy - moved[i], self.errors[i]))
        return found


def _unit(probe: Probe, tally: Tally, kept: RowSample, own: bool) -> Tensor:
    """From a signed sum over the rows kept to the mean over all rows."""
    if kept.is_complete:
        return 1.0 / tally.count.clamp(min=1e-300)
    part = probe.tally(kept.rows, kept.weight)
    ratio = tally.error / part.error.clamp(min=1e-300)
    if own:  # the same for every entry, as it is for the pull of the rows on the parameters
        ratio = torch.full_like(ratio, kept.probability**0.5)
    return torch.where(part.count > 0, ratio / part.count.clamp(min=1e-300), 0.0)


def _joined(parts: Sequence[Measure]) -> Measure:
    return Measure(torch.cat([p.score for p in parts]), torch.cat([p.norm for p in parts]))


def _batches(draws: int, size: int) -> Iterator[int]:
    step = max(1, BATCH_VALUES // max(size, 1))
    for start in range(0, draws, step):
        yield min(step, draws - start)
