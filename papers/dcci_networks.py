"""Convolutional classifiers with dropout and batch normalisation, as functions of their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from boxloop.numeric import normal

Level = tuple[Tensor, Tensor]
"""Mean and variance of each channel."""

TINY = 1e-5
"""Added to the variances that activations are divided by."""

TORCH_GAIN, HE_GAIN = 1.0 / 3.0, 2.0
"""Variance of a slope, times the values that it sums: where torch starts, and where activations keep their size."""


@dataclass(frozen=True)
class Classifier:
    """Convolutions of 3 x 3, then dense layers, all with silu between; one output a class.

    There is no mode. Training says what it draws the dropped units from; and activations are normalised by the rows
    at hand unless levels are given, which are those of many training rows when the network is used.

    Args:
        shape: of an image, (C, H, W); a row holds its values, channel by channel.
        channels: of each convolution; a negative number halves height and width.
        dense: widths of the hidden dense layers.
        classes: columns of the result.
        pooled: halve by the largest of four values, else by a stride of 2.
        normalised: whether the activations of convolutions are normalised.
        dropped: share of the units before each dense layer that training drops.
        gain: of the start.
    """

    shape: tuple[int, int, int]
    channels: tuple[int, ...]
    dense: tuple[int, ...]
    classes: int
    pooled: bool = False
    normalised: bool = False
    dropped: float = 0.0
    gain: float = TORCH_GAIN

    def start(self, stream: Generator, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Kernels and slopes of variance ``gain`` over the values that they sum, zero shifts, scales of 1.

        The last slopes have the smaller gain: a hyperbolic tangent of large outputs learns nothing.
        """
        found: list[Tensor] = []
        before, side = self.shape[0], self.shape[1:]
        for after in self.channels:
            kernel = normal((abs(after), before, 3, 3), stream, dtype) * math.sqrt(self.gain / (9 * before))
            found += [kernel, torch.zeros(abs(after), dtype=dtype)]
            if self.normalised:
                found += [torch.ones(abs(after), dtype=dtype), torch.zeros(abs(after), dtype=dtype)]
            if after < 0:  # a stride rounds up, a pool down
                side = ((side[0] + (not self.pooled)) // 2, (side[1] + (not self.pooled)) // 2)
            before = abs(after)
        widths = (before * side[0] * side[1], *self.dense, self.classes)
        for i, (inner, outer) in enumerate(pairwise(widths)):
            gain = min(self.gain, TORCH_GAIN) if i == len(self.dense) else self.gain
            found.append(normal((inner, outer), stream, dtype) * math.sqrt(gain / inner))
            found.append(torch.zeros(outer, dtype=dtype))
        return tuple(found)

    def __call__(
        self,
        parameters: Sequence[Tensor],
        rows: Tensor,
        stream: Generator | None = None,
        levels: Sequence[Level] | None = None,
        seen: list[Level] | None = None,
    ) -> Tensor:
        """(n, C * H * W) -> (n, classes).

        Args:
            parameters: of the network.
            rows: images.
            stream: draws the units that are dropped; None drops none.
            levels: of every normalised layer; None takes those of the rows.
            seen: where levels of the rows are entered.
        """
        rest, image = list(parameters), rows.reshape(len(rows), *self.shape)
        for i, after in enumerate(self.channels):
            step = 2 if after < 0 and not self.pooled else 1
            image = functional.conv2d(image, rest.pop(0), rest.pop(0), step, padding=1)
            image = functional.silu(image)
            if self.normalised:
                variance, mean = (
                    torch.var_mean(image, (0, 2, 3), correction=0) if levels is None else levels[i]
                )
                if seen is not None:
                    seen.append((variance, mean))
                factor = rest.pop(0) * (variance + TINY).rsqrt()
                shift = rest.pop(0) - mean * factor
                image = image * factor[:, None, None] + shift[:, None, None]
            if after < 0 and self.pooled:
                image = functional.max_pool2d(image, 2)
        found = image.flatten(1)
        while rest:
            if stream is not None and self.dropped > 0.0:
                kept = torch.rand(found.shape, generator=stream, device=found.device) >= self.dropped
                found = found * kept / (1.0 - self.dropped)
            found = torch.addmm(rest.pop(1), found, rest.pop(0))
            found = functional.silu(found) if rest else found
        return found


@dataclass(frozen=True)
class Learner:
    """A network with its parameters, as a trainer moves it."""

    network: Classifier
    parameters: tuple[Tensor, ...]

    def trainable(self) -> tuple[Tensor, ...]:
        """All parameters."""
        return self.parameters

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The network elsewhere."""
        return replace(self, parameters=tuple(learned))

    def trained(self, rows: Tensor, stream: Generator) -> Tensor:
        """Outputs in training."""
        return self.network(self.parameters, rows, stream)

    def levels(self, rows: Tensor) -> list[Level]:
        """Of activations on many rows at once: exact for them, where running means over steps lag behind."""
        seen: list[Level] = []
        if self.network.normalised:
            self.network(self.parameters, rows, seen=seen)
        return seen

    def used(self, rows: Tensor, levels: Sequence[Level], tile: int = 2000) -> Tensor:
        """Outputs in use, which for one row depend on no other."""
        return torch.cat([self.network(self.parameters, some, levels=levels) for some in rows.split(tile)])
