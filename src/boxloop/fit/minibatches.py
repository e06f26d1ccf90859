"""Mini-batches of a source in random order, and rows held out for validation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, ConcatenatedRows, MappedSource, RowSampler, StandardisedSource
from boxloop.types import Source

Batch = tuple[Tensor, Tensor]

WINDOW_ROWS, WINDOW_VALUES = 1 << 16, 1 << 24
"""Most rows, and most values, of a window of a file, within which rows are shuffled."""


def make_generator_at(seed: int, *place: int, device: torch.device | str = "cpu") -> Generator:
    """The generator of one position in a fit: reproducible after a restart without saved state, on any device."""
    mixed = np.random.SeedSequence(seed, spawn_key=place).generate_state(1, np.uint64)[0]
    return Generator(device).manual_seed(int(mixed >> np.uint64(1)))


class Epochs:
    r"""Mini-batches of a source, epoch after epoch, each reproducible after a restart.

    Rows in memory are shuffled every epoch. Rows of a file are read in order and shuffled within windows of 65536 rows
    (fewer if rows are wide), so sorted files should be shuffled first. An epoch of n rows is cut into :math:`\lceil
    n / s \rceil` batches of nearly equal size.

    Args:
        source: rows.
        size: most rows per batch.
        seed: of the order.
        held_out: (n,), true for rows that are excluded.

    Example:
        >>> import torch
        >>> epochs = Epochs(ArraySource(torch.arange(5.0)[:, None]), size=2, seed=0)
        >>> [len(rows) for rows, weight in epochs.epoch(0)]
        [2, 2, 1]
        >>> bool(torch.cat([rows for rows, weight in epochs.epoch(1)]).sum() == 10.0)
        True
    """

    def __init__(self, source: Source, size: int, seed: int, held_out: Tensor | None = None) -> None:
        self.source = source
        self.seed = seed
        self.n_rows: int = source.n_rows - (0 if held_out is None else int(held_out.sum()))
        if self.n_rows < 1:
            raise ValueError("held_out leaves no row for training")
        self._held_out = held_out
        self.per_epoch: int = -(-self.n_rows // size)
        least, more = divmod(self.n_rows, self.per_epoch)
        # Rows of each batch of an epoch.
        self.sizes: list[int] = [least + 1] * more + [least] * (self.per_epoch - more)
        self._memory: Batch | None = (
            None  # all rows and weights, transformed as the source does; None where in files
        )
        inner = source
        while isinstance(inner, MappedSource | StandardisedSource):
            inner = inner.source
        if isinstance(inner, ArraySource):
            tiles = [(rows, weight.to(rows)) for rows, weight in source.chunks()]
            rows, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
            if held_out is not None:
                kept = torch.nonzero(~held_out)[:, 0].to(rows.device)
                rows, weight = rows[kept], weight[kept]
            self._memory = rows, weight

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Rows and weights of the batches of epoch 0, 1, ..., from batch ``start`` on."""
        if self._memory is None:
            batches = self._read_batches(number)
            for _ in range(start):
                next(batches)
            yield from batches
        else:
            rows, weight = self._memory
            order = torch.randperm(len(rows), generator=make_generator_at(self.seed, number)).to(rows.device)
            for chosen in order.split(self.sizes)[start:]:
                yield rows.index_select(0, chosen), weight.index_select(0, chosen)

    def _read_batches(self, epoch: int) -> Iterator[Batch]:
        step = max(1, min(WINDOW_ROWS, WINDOW_VALUES // self.source.n_columns))
        sizes, start = iter(self.sizes), 0
        wanted = next(sizes)
        rest: Batch | None = None
        for window, (rows, weight) in enumerate(self.source.chunks(step)):
            chosen = torch.arange(len(rows))
            if self._held_out is not None:
                chosen = chosen[~self._held_out[start : start + len(rows)]]
            start += len(rows)
            order = torch.randperm(len(chosen), generator=make_generator_at(self.seed, epoch, window))
            chosen = chosen[order].to(rows.device)
            fresh = rows[chosen], weight[chosen].to(rows)
            rest = fresh if rest is None else (torch.cat([rest[0], fresh[0]]), torch.cat([rest[1], fresh[1]]))
            while rest[0].shape[0] >= wanted:
                yield rest[0][:wanted], rest[1][:wanted]
                rest, wanted = (rest[0][wanted:], rest[1][wanted:]), next(sizes, start + step + 1)


def hold_out(source: Source, share: float, seed: int, most: int) -> tuple[Tensor | None, ArraySource | None]:
    """Split off a share of the rows, at most ``most``, for validation: their mask (n,), and the rows in memory."""
    n = source.n_rows
    wanted = min(most, max(1, round(share * n)), n - 1) if share > 0.0 else 0
    if wanted < 1:
        return None, None
    uniform = torch.rand(n, generator=make_generator_at(seed))
    limit = uniform.kthvalue(wanted).values
    mask = uniform <= limit
    mask[torch.nonzero(mask)[wanted:, 0]] = False  # ties among 2^24 values
    sampler = RowSampler(mask.nonzero()[:, 0], share)

    def take_held_out(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        chosen = sampler.indices_between(start, start + len(weight)).to(rows.device)
        return ConcatenatedRows((torch.cat([rows[chosen], weight[chosen, None].to(rows)], 1),))

    both = torch.cat(source.reduce_at(take_held_out).parts)
    return mask, ArraySource(both[:, :-1].contiguous(), both[:, -1].contiguous(), source.names)


def resample_rows(rows: Tensor, weight: Tensor, stream: Generator) -> Tensor:
    """As many rows, drawn with replacement by weight; uniformly if all weights are 0."""
    return rows[torch.multinomial(weight.clamp(min=1e-30), len(rows), replacement=True, generator=stream)]
