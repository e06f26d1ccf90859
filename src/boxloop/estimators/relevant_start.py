"""The views of a two-view fit before anything is learned: features by the kind of the data and the user's wish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from boxloop.data import sample_rows
from boxloop.estimators._training import NetworkShapes, make_part
from boxloop.estimators.relevant_rows import Edge
from boxloop.fit import coordinates
from boxloop.models import Convolutions, Layers
from boxloop.numeric import spawn
from boxloop.twoview import FiniteView, FourierView, LinearView, NetworkView, View
from boxloop.types import Source

KERNEL_ROWS = 1000
"""Rows among which the median distance, the length of a kernel, is looked for."""


@dataclass(frozen=True)
class Wish:
    """How the features of one view are to be made.

    Args:
        kind: ``auto``, ``linear``, ``fourier``, ``network``, ``finite`` or a module.
        n_features: outputs of a network.
        hidden: of a default network.
        n_fourier: random features of a kernel.
        length: of the kernel in standard units, None for the median distance.
        device: where the view lives.
        dtype: of a network.
    """

    kind: Any
    n_features: int
    hidden: Sequence[int] | None
    n_fourier: int
    length: float | None
    device: torch.device
    dtype: torch.dtype


def finite_wish(kind: Any) -> bool | None:
    """Whether a column is to be taken for labels: yes, no, or by what it holds."""
    if isinstance(kind, str) and kind in ("finite", "auto"):
        return True if kind == "finite" else None
    return False


def start_view(wish: Wish, edge: Edge, source: Source, stream: Generator) -> View:
    """Features of one view.

    Args:
        wish: how.
        edge: what the table is.
        source: its rows, on the device.
        stream: on the CPU.

    Raises:
        ValueError: a module that does not give (n, k) features.
    """
    if edge.values is not None:
        return FiniteView(torch.arange(len(edge.values), dtype=torch.float64, device=wish.device))
    frame = coordinates(source, "columns" if edge.image is None else "common")
    origin, scale = frame.origin.to(wish.device), frame.scale.to(wish.device)
    if wish.kind == "linear":
        return LinearView(origin, scale)
    if wish.kind == "fourier":
        own = spawn(stream, 2)
        length = wish.length or _median(source, origin, scale, own[0])
        return FourierView.start(origin, scale, wish.n_fourier, length, own[1])
    if isinstance(wish.kind, nn.Module):
        part = make_part(wish.kind, None, wish.device, wish.dtype, stream)
        return NetworkView(origin, scale, part, _width(part, origin, wish), bounded=False)
    shapes = NetworkShapes(source.n_columns, wish.n_features, edge.image, wish.hidden)
    seen = shapes.convolution_input
    network: Any = (
        Layers(source.n_columns, shapes.widths, wish.n_features)
        if seen is None
        else Convolutions(seen, shapes.widths, wish.n_features)
    )
    return NetworkView(
        origin, scale, make_part(None, network, wish.device, wish.dtype, stream), wish.n_features
    )


def _median(source: Source, origin: Tensor, scale: Tensor, stream: Generator) -> float:
    """Median distance of rows in standard units."""
    kept = sample_rows(source, KERNEL_ROWS, stream)
    rows = (kept.rows[kept.weight > 0.0].to(origin) - origin) / scale
    found = torch.pdist(rows.double())
    return float(found.median()) if len(found) and bool(found.median() > 0.0) else 1.0


def _width(part: Any, origin: Tensor, wish: Wish) -> int:
    try:
        with torch.no_grad():
            found = part(torch.zeros(2, len(origin), device=wish.device))
    except RuntimeError as error:
        raise ValueError(
            f"{type(wish.kind).__name__} does not take rows of {len(origin)} columns (images flattened): {error}"
        ) from error
    if found.dim() != 2 or found.shape[0] != 2:
        raise ValueError(
            f"a module of features maps rows (n, {len(origin)}) to (n, k); {type(wish.kind).__name__} gave "
            f"{tuple(found.shape)} for 2 rows"
        )
    return int(found.shape[1])
