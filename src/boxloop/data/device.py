"""Rows on a device: here, or on that of the worker that reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

import torch

from boxloop.data.array import ArraySource
from boxloop.data.dask import DaskSource
from boxloop.data.mapped import Mapped
from boxloop.data.parts import Part
from boxloop.data.prefetch import Prefetched
from boxloop.data.stream import StreamSource
from boxloop.types import Source


@dataclass(frozen=True)
class MovedPart:
    """A part whose rows go to a device as it is opened: at once where they are in memory, ahead of use from a file.

    Args:
        part: where they come from.
        device: where they go, on the worker.
    """

    part: Part
    device: torch.device

    @property
    def label(self) -> str:
        """That of the part."""
        return self.part.label

    def named(self, message: str) -> bool:
        """As the part is."""
        return self.part.named(message)

    @property
    def content(self) -> Any:
        """That of the part."""
        return self.part.content

    def open(self, content: Any) -> Source:
        """The rows, on the device."""
        return on_device(self.part.open(content), self.device)

    def tasks(self) -> list[Any]:
        """Those of the part."""
        return self.part.tasks()

    def sent(self) -> MovedPart:
        """The part as it travels, and the name of the device."""
        return MovedPart(self.part.sent(), self.device)


def on_device(source: Source, device: torch.device) -> Source:
    """The source with its rows on a device, where they are read: an array moves once, a stream ahead of its use.

    Example:
        >>> from boxloop.data import ArraySource
        >>> on_device(ArraySource(torch.ones(2, 1)), torch.device("meta")).rows.device.type
        'meta'
    """
    if device.type == "cpu":
        return source
    if isinstance(source, ArraySource):
        weight = None if source.weight is None else source.weight.to(device)
        return ArraySource(source.rows.to(device), weight, source.columns)
    if isinstance(source, StreamSource):
        return Prefetched(source, device)
    if isinstance(source, DaskSource):
        return replace(source, parts=tuple(MovedPart(part, device) for part in source.parts))
    return Mapped(source, methodcaller("to", device), device)
