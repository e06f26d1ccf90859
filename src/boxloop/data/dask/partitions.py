"""Partitions of a table: descriptions of consecutive rows that are opened where they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from boxloop.data.folder import file_readers
from boxloop.data.read import frame_source
from boxloop.data.source import ArraySource
from boxloop.data.stream import Reader, StreamSource
from boxloop.data.validation import as_frame, check_finite, check_weight_values, to_tensor
from boxloop.types import Source

WEIGHT = "boxloop weight"
"""Name of the column of weights that come as a collection of their own."""


class Partition(Protocol):
    """Consecutive rows of a table. The description travels; the rows do not."""

    @property
    def label(self) -> str:
        """How messages name it."""
        ...

    def is_named_in(self, message: str) -> bool:
        """Whether a message names the partition already."""
        ...

    @property
    def content(self) -> Any:
        """A Dask task whose value holds the rows, or None where they are read from somewhere else."""
        ...

    def open(self, content: Any) -> Source:
        """The rows, where the partition is read; ``content`` is the value of that task."""
        ...

    def tasks(self) -> list[Any]:
        """The Dask tasks of its content."""
        ...

    def without_content(self) -> Partition:
        """The partition without its content, as it travels."""
        ...


@dataclass(frozen=True)
class FilePartition:
    """A file, or some of its row groups or rows."""

    reader: Reader  # of these rows alone
    names: tuple[str, ...]  # the columns used
    weight: Tensor | str | None = None  # a column, or the weights of these rows

    content: None = None

    @property
    def label(self) -> str:
        return self.reader.label

    def is_named_in(self, message: str) -> bool:
        return any(file.label in message for file in file_readers(self.reader))

    def open(self, content: Any) -> Source:
        return StreamSource(self.reader, self.names, self.weight, part=True)

    def tasks(self) -> list[Any]:
        return []

    def without_content(self) -> FilePartition:
        return self


@dataclass(frozen=True)
class CollectionPartition:
    """A partition of a Dask collection: a data frame, or a block of an array."""

    number: int  # of the partition, counted from 0
    names: tuple[str, ...]  # the columns used
    weight: Tensor | str | None  # a column, or the weights of these rows
    content: Any  # the task that makes it
    whole: Any = None  # the collection: what was persisted stays on the workers while somebody holds it

    @property
    def label(self) -> str:
        return f"partition {self.number}"

    def is_named_in(self, message: str) -> bool:
        return self.label in message

    def open(self, content: Any) -> Source:
        d = len(self.names)
        wanted = (*self.names, self.weight) if isinstance(self.weight, str) else self.names
        frame = as_frame(content)
        if frame is not None:
            rows = frame_source(frame, None, wanted).rows
        elif sparse.issparse(content):
            raise ValueError(
                "its rows are sparse: map_blocks(lambda block: block.toarray()) makes them dense"
            )
        else:
            rows = to_tensor(np.asanyarray(content))
        check_finite(rows, wanted, 0)
        weight = rows[:, d] if isinstance(self.weight, str) else self.weight
        if self.weight == WEIGHT and bool(torch.isnan(rows[:, d]).any()):
            raise ValueError(
                f"row {int(rows[:, d].isnan().nonzero()[0])} (counted from 0) has no weight: a Dask series of weights "
                "needs one for the label of each row, as Dask aligns them; values at hand go by position"
            )
        if weight is not None:
            check_weight_values(weight)
        return ArraySource(rows[:, :d], weight, self.names)

    def tasks(self) -> list[Any]:
        return [self.content]

    def without_content(self) -> CollectionPartition:
        return replace(self, content=None, whole=None)


@dataclass(frozen=True)
class ArrayPartition:
    """Rows in memory, which travel: targets beside rows that stay where they are."""

    rows: Tensor  # (n, d)
    weight: Tensor | None  # (n,)
    names: tuple[str, ...]
    label: str  # how messages name it

    content: None = None

    def is_named_in(self, message: str) -> bool:
        return self.label in message

    def open(self, content: Any) -> Source:
        return ArraySource(self.rows, self.weight, self.names)

    def tasks(self) -> list[Any]:
        return []

    def without_content(self) -> ArrayPartition:
        return self


def count_rows(part: Partition, content: Any) -> int:
    """Rows of a partition, from the value of its task."""
    return len(content)


def split_weight(weight: Tensor | str | None, counts: tuple[int, ...]) -> Iterator[Tensor | str | None]:
    """The weights of each partition; the name of a column is the same for all."""
    if isinstance(weight, Tensor):
        yield from torch.split(weight, list(counts))
    else:
        yield from [weight] * len(counts)


def partition_key(number: int, token: str) -> str:
    """Name of the task that reads a partition."""
    return f"boxloop-part-{number}-{token}"
