"""Mini-batches in a new random order every epoch, from memory or from files, and rows held out from them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from boxloop.data import ArraySource, ConcatenatedRows, MappedSource, RowSampler, StandardisedSource
from boxloop.fit.adam import stream_at
from boxloop.types import Source

Batch = tuple[Tensor, Tensor]

WINDOW_ROWS, WINDOW_VALUES = 1 << 16, 1 << 24
"""Most rows, and most values, of a file that are in memory at once, and among which order is random."""


class Epochs:
    r"""Mini-batches of a source, over and over; the t-th can be asked for after a restart.

    Rows in memory come in a new random order every epoch. Rows of a file are read in their order, and shuffled anew
    within windows of 65536 rows (fewer where rows are wide); rows sorted by what they hold should be shuffled first.
    An epoch of n rows is cut into :math:`\lceil n / s \rceil` batches of nearly equal size: no last batch of one row.

    Args:
        source: where rows come from.
        size: most rows of a batch; all of them when there are no more.
        seed: of the order.
        held_out: (n,), true for rows that are left out.

    Example:
        >>> import torch
        >>> epochs = Epochs(ArraySource(torch.arange(5.0)[:, None]), size=2, seed=0)
        >>> [len(epochs(t)[0]) for t in range(epochs.per_epoch)]
        [2, 2, 1]
        >>> bool(torch.cat([epochs(t)[0] for t in range(3, 6)]).sum() == 10.0)
        True
    """

    def __init__(self, source: Source, size: int, seed: int, held_out: Tensor | None = None) -> None:
        self.source, self.seed = source, seed
        self.n_rows = source.n_rows - (0 if held_out is None else int(held_out.sum()))
        if self.n_rows < 1:
            raise ValueError("no row is left to train on")
        self._held_out = held_out
        self.per_epoch = -(-self.n_rows // size)
        self._memory = _held(source, held_out)
        self._epoch, self._position = -1, 0
        self._iterator: Iterator[Batch] = iter(())

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch of an epoch."""
        least, more = divmod(self.n_rows, self.per_epoch)
        return [least + 1] * more + [least] * (self.per_epoch - more)

    def __call__(self, t: int) -> Batch:
        """Rows and weights of update t = 0, 1, ..."""
        epoch, place = divmod(t, self.per_epoch)
        if epoch != self._epoch or place < self._position:
            self._epoch, self._position = epoch, 0
            self._iterator = self._in_memory(epoch) if self._memory else self._from_files(epoch)
        for _ in range(place - self._position):
            next(self._iterator)
        self._position = place + 1
        return next(self._iterator)

    def _in_memory(self, epoch: int) -> Iterator[Batch]:
        assert self._memory is not None
        rows, weight = self._memory
        order = torch.randperm(len(rows), generator=stream_at(self.seed, epoch)).to(rows.device)
        for some in order.split(self.sizes):
            yield rows[some], weight[some]

    def _from_files(self, epoch: int) -> Iterator[Batch]:
        step = max(1, min(WINDOW_ROWS, WINDOW_VALUES // self.source.n_columns))
        sizes, start = iter(self.sizes), 0
        wanted = next(sizes)
        rest: Batch | None = None
        for window, (rows, weight) in enumerate(self.source.chunks(step)):
            chosen = _kept(self._held_out, start, len(rows))
            start += len(rows)
            order = torch.randperm(len(chosen), generator=stream_at(self.seed, epoch, window))
            chosen = chosen[order].to(rows.device)
            fresh = rows[chosen], weight[chosen].to(rows)
            rest = fresh if rest is None else (torch.cat([rest[0], fresh[0]]), torch.cat([rest[1], fresh[1]]))
            while rest[0].shape[0] >= wanted:
                yield rest[0][:wanted], rest[1][:wanted]
                rest, wanted = (rest[0][wanted:], rest[1][wanted:]), next(sizes, start + step + 1)


def hold_out(source: Source, share: float, seed: int, most: int) -> tuple[Tensor | None, ArraySource | None]:
    """Rows kept from training, by chance.

    Args:
        source: all rows.
        share: of the rows, about; at least one row is kept back and one left where there are two and share > 0.
        seed: of the chances.
        most: rows kept back, at most.

    Returns:
        Which they are, (n,) on the CPU, and the rows themselves, in memory; None and None for none.
    """
    n = source.n_rows
    wanted = min(most, max(1, round(share * n)), n - 1) if share > 0.0 else 0
    if wanted < 1:
        return None, None
    chance = torch.rand(n, generator=stream_at(seed))
    limit = chance.kthvalue(wanted).values
    mask = chance <= limit
    mask[torch.nonzero(mask)[wanted:, 0]] = False  # ties, at 2^24 values of chance
    lot = RowSampler(mask.nonzero()[:, 0], share)

    def taken(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        chosen = lot.indices_between(start, start + len(weight)).to(rows.device)
        return ConcatenatedRows.of(torch.cat([rows[chosen], weight[chosen, None].to(rows)], 1))

    both = source.reduce_at(taken).concatenate()
    return mask, ArraySource(both[:, :-1].contiguous(), both[:, -1].contiguous(), source.names)


def _kept(held_out: Tensor | None, start: int, rows: int) -> Tensor:
    if held_out is None:
        return torch.arange(rows)
    return torch.nonzero(~held_out[start : start + rows])[:, 0]


def _held(source: Source, held_out: Tensor | None) -> Batch | None:
    """All rows and weights of a source in memory, as it shows them; None where they are in files."""
    inner = source
    while isinstance(inner, MappedSource | StandardisedSource):
        inner = inner.source
    if not isinstance(inner, ArraySource):
        return None
    tiles = [(rows, weight.to(rows)) for rows, weight in source.chunks()]
    rows, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    if held_out is not None:
        kept = torch.nonzero(~held_out)[:, 0].to(rows.device)
        rows, weight = rows[kept], weight[kept]
    return rows, weight
