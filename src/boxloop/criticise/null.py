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
from boxloop.numeric.random import normal
from boxloop.types import LatentModel, Source

BATCH_VALUES = 1 << 21
"""Values (draws x rows x columns) that are held at once."""

SAMPLE_ROWS, SAMPLE_VALUES = 20_000, 1 << 24
"""Most rows, and most values, of the sample from which the errors of a true model are computed."""

MATCHED = 1e-4
"""An entry whose error is this much below that of its rows is one that the fit sets to the data's."""


@dataclass(frozen=True)
class Measure:
    """Two numbers for each test function: the mean squared z-score of its entries, and the norm of its gap."""

    score: Tensor
    norm: Tensor


def measure(probe: Probe, gap: Tensor, error: Tensor) -> Measure:
    """Both numbers, from distinct entries (..., p); an off-diagonal entry of a matrix counts twice in its norm."""
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
        found.append(torch.where(own > MATCHED * plain, own, 0.0) / rows**0.5)
    return found


def from_model(
    model: LatentModel,
    probes: Sequence[Probe],
    forward: Sequence[Forward],
    errors: Sequence[Tensor],
    rows: int,
    shift: Shift | Training | None,
    draws: int,
    generator: Generator,
) -> list[Measure]:
    """Measures of gaps of fresh rows from the model, (draws,) for each test function.

    ``shift`` is the error of the parameters: independent of held-out rows (:class:`Shift`), or made by the rows
    themselves (:class:`Training`) when they are those of the fit.
    """
    d = int(forward[0].value.shape[-1])
    results: list[list[Measure]] = [[] for _ in probes]
    for batch in _batches(draws, rows * d):
        fresh = sample_rows(model, batch * rows, generator)
        moved: Sequence[Tensor] | None = None
        if isinstance(shift, Shift):
            moved = shift.draw(batch, generator)
        elif shift is not None:
            mean = shift.pull(fresh).reshape(batch, rows, -1).mean(1)
            moved = mean.split([len(probe.labels()) for probe in probes], dim=1)
        tables = fresh.reshape(batch, rows, -1)
        for i, probe in enumerate(probes):
            gap = probe.flat(probe.tally(tables, tables.new_ones(batch, rows)).mean - forward[i].value)
            gap = gap + normal(tuple(gap.shape), generator).to(gap) * probe.flat(forward[i].error)
            gap = gap if moved is None else gap - moved[i]
            results[i].append(measure(probe, gap, errors[i]))
    return [_joined(parts) for parts in results]


def from_signs(
    source: Source,
    probes: Sequence[Probe],
    tallies: Sequence[Tally],
    errors: Sequence[Tensor],
    forward: Sequence[Forward],
    shift: Shift | Training | None,
    draws: int,
    generator: Generator,
) -> list[Measure]:
    """Measures of gaps of the same rows with random signs about their means, (draws,) for each test function."""
    sums = [torch.zeros(draws, *t.first.shape, dtype=t.first.dtype, device=t.first.device) for t in tallies]
    pulled = (
        None
        if shift is None or isinstance(shift, Shift)
        else shift.shift.new_zeros(draws, shift.shift.shape[1])
    )
    row = 0
    for rows, weight in source.chunks():
        values = (rows.to_dense() if rows.layout != torch.strided else rows).to(torch.float64)
        start = 0
        for batch in _batches(draws, values.numel()):
            signs = (
                torch.randint(2, (batch, len(weight)), generator=generator, device=generator.device) * 2 - 1
            )
            heavy = signs.to(weight) * weight
            part = slice(start, start + batch)
            for total, probe, tally in zip(sums, probes, tallies, strict=True):
                found = probe.tally(values, heavy)
                total[part] += found.first - tally.mean * found.count
            if pulled is not None and isinstance(shift, Training):
                pulled[part] += heavy @ shift.shift[row : row + len(weight)] / shift.weight.sum()
            start += batch
        row += len(weight)
    if isinstance(shift, Shift):
        moved: Sequence[Tensor] | None = shift.draw(draws, generator)
    else:
        moved = None if pulled is None else pulled.split([len(probe.labels()) for probe in probes], dim=1)
    return _signed(sums, probes, tallies, errors, forward, moved, generator)


def _signed(
    sums: Sequence[Tensor],
    probes: Sequence[Probe],
    tallies: Sequence[Tally],
    errors: Sequence[Tensor],
    forward: Sequence[Forward],
    moved: Sequence[Tensor] | None,
    generator: Generator,
) -> list[Measure]:
    found = []
    for i, probe in enumerate(probes):
        gap = probe.flat(sums[i] / tallies[i].count.clamp(min=1e-300))
        gap = gap + normal(tuple(gap.shape), generator).to(gap) * probe.flat(forward[i].error)
        found.append(measure(probe, gap if moved is None else gap - moved[i], errors[i]))
    return found


def _joined(parts: Sequence[Measure]) -> Measure:
    return Measure(torch.cat([p.score for p in parts]), torch.cat([p.norm for p in parts]))


def _batches(draws: int, size: int) -> Iterator[int]:
    step = max(1, BATCH_VALUES // max(size, 1))
    for start in range(0, draws, step):
        yield min(step, draws - start)
