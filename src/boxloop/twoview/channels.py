r"""Channels: two views of one table, the second a disturbed copy of the first.

What can be inferred of a row from its disturbed copy is what the disturbance leaves whole. Document 003, sections 5.3
and 5.4: displaced pixels and noise leave what is of larger scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.data import check_callable, check_table
from boxloop.numeric import RandomState, generator as stream_of, normal, single_threaded

Array = NDArray[np.float64]

WIDEST = 0.9
"""Largest mean displacement, as a share of that of pixels put anywhere: swaps come near it slowly."""


class Channel(Protocol):
    """A random function of rows; a pure one of rows and generator, so that training may call it at every step."""

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        """(n, d) -> (n, d'), row by row; the generator is on the device of the rows."""


@dataclass(frozen=True)
class GaussianNoise:
    r"""Independent noise, :math:`y = x + \sigma \epsilon, \; \epsilon \sim N(0, I)`.

    Args:
        sd: sigma, in the units of the columns; one number, or one a column, (d,), as a tensor, array or list.

    Example:
        >>> import torch
        >>> GaussianNoise(0.0)(torch.ones(1, 2), torch.Generator())
        tensor([[1., 1.]])
    """

    sd: float | Tensor | Array | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        if not bool((torch.as_tensor(self.sd) >= 0.0).all()):
            raise ValueError(f"sd must not be negative, got {self.sd}")

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        """(n, d) -> (n, d)."""
        sd = torch.as_tensor(self.sd, dtype=rows.dtype, device=rows.device)
        if sd.numel() not in (1, rows.shape[1]):
            raise ValueError(f"sd is of {sd.numel()} columns, and rows have {rows.shape[1]}")
        return rows + sd * normal(tuple(rows.shape), generator, rows.dtype)


@dataclass(frozen=True)
class PixelShuffle:
    r"""Neighbouring pixels swapped at random until they lie a given distance from home on average, then noise.

    One round pairs every column of pixels with a neighbour, or every row, and swaps each pair of pixels with
    probability p; pairs begin at an even or an odd place, by chance for every image, and in turn. Along one axis the
    place of a pixel is then a Markov chain, and the two axes are independent, so that the mean Euclidean distance from
    home

    .. math:: \overline{D}(T, p) = \frac{1}{HW} \sum_{\text{pixels}} E \sqrt{\Delta_x^2 + \Delta_y^2}

    is known exactly: T is the fewest rounds that can reach ``displacement`` with :math:`p \le 1/2`, and p solves
    :math:`\overline{D}(T, p) =` ``displacement``. Every image has a permutation of its own; its channels (colours)
    move together.

    Document 003, section 5.4: "randomly permuting neighboring pixels in the image, until the mean displacement per
    pixel is of order 1", with Gaussian noise.

    Deviation: swaps that do not touch one another are made at once; the document's come one after another.

    Args:
        shape: of an image, (H, W) or (C, H, W); a row holds its values, channel by channel.
        displacement: mean distance of a pixel from its place, in pixels.
        noise: standard deviation of what is added to every value afterwards.

    Example:
        >>> import torch
        >>> channel = PixelShuffle((2, 2), displacement=0.5, noise=0.0)
        >>> sorted(channel(torch.arange(4.0)[None], torch.Generator().manual_seed(0))[0].tolist())
        [0.0, 1.0, 2.0, 3.0]
    """

    shape: tuple[int, ...]
    displacement: float = 1.0
    noise: float = 0.1

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3) or min(self.shape) < 1:
            raise ValueError(f"an image has the shape (H, W) or (C, H, W), all positive, got {self.shape}")
        if not (self.displacement >= 0.0 and self.noise >= 0.0):
            raise ValueError("displacement and noise must not be negative")
        most = WIDEST * _scattered(*self.shape[-2:])
        if self.displacement > most:
            raise ValueError(
                f"a mean displacement of {self.displacement:g} pixels is more than swaps reach in an image of "
                f"{self.shape[-2]} x {self.shape[-1]}: at most {most:.3g}"
            )

    @cached_property
    def rounds(self) -> tuple[int, float]:
        """T, rounds along each axis, and p, the chance of a swap."""
        if self.displacement == 0.0:
            return 0, 0.0
        height, width = self.shape[-2:]
        least, most = 0, 1
        while mean_displacement(height, width, most, 0.5) < self.displacement:
            least, most = most, 2 * most
        while most - least > 1:
            middle = (least + most) // 2
            enough = mean_displacement(height, width, middle, 0.5) >= self.displacement
            least, most = (least, middle) if enough else (middle, most)
        low, high = 0.0, 0.5
        for _ in range(50):
            p = 0.5 * (low + high)
            low, high = (
                (p, high) if mean_displacement(height, width, most, p) < self.displacement else (low, p)
            )
        return most, high

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        """(n, d) -> (n, d). Nothing here waits for the device."""
        if rows.shape[1] != prod(self.shape):
            raise ValueError(f"images of shape {tuple(self.shape)} are not rows of {rows.shape[1]} columns")
        image = rows.reshape(len(rows), -1, *self.shape[-2:])
        rounds, p = self.rounds
        coins = (len(rows), 1, *self.shape[-2:])
        begin = torch.rand((2, len(rows), 1, 1, 1), generator=generator, device=rows.device) < 0.5
        for t in range(rounds):
            for axis in (-1, -2):
                heads = torch.rand(coins, generator=generator, device=rows.device) < p
                image = _swapped(image, begin[axis] ^ bool(t % 2), heads, axis)
        found = image.reshape(rows.shape)
        return found + self.noise * normal(tuple(rows.shape), generator, rows.dtype) if self.noise else found


@dataclass(frozen=True)
class Composed:
    """Channels one after another.

    Args:
        channels: the first to be applied first.

    Example:
        >>> import torch
        >>> both = Composed((PixelShuffle((1, 2), 0.3, 0.0), GaussianNoise(0.0)))
        >>> float(both(torch.tensor([[1.0, 2.0]]), torch.Generator().manual_seed(0)).sum())
        3.0
    """

    channels: tuple[Channel, ...]

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        """(n, d) -> (n, d')."""
        for channel in self.channels:
            rows = channel(rows, generator)
        return rows


@dataclass(frozen=True)
class TimeShift:
    """Rows in order of time, and the same some rows later: what of the present tells about the future.

    It changes the number of rows, so it makes two tables of one before any training.

    Args:
        lag: rows between the two.

    Example:
        >>> import torch
        >>> x, y = TimeShift(2)(torch.arange(4.0)[:, None])
        >>> x[:, 0].tolist(), y[:, 0].tolist()
        ([0.0, 1.0], [2.0, 3.0])
    """

    lag: int = 1

    def __post_init__(self) -> None:
        if self.lag < 1 or int(self.lag) != self.lag:
            raise ValueError(f"lag must be a whole number, at least 1, got {self.lag}")

    def __call__(self, rows: Tensor, series: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x_t and x_{t + lag}, (n - lag, d) each.

        Args:
            rows: (n, d), in order.
            series: (n,), which of several series a row belongs to, each in one piece: pairs of two series are left out.
        """
        if len(rows) <= self.lag:
            raise ValueError(f"a lag of {self.lag} needs more than {self.lag} rows, got {len(rows)}")
        x, y = rows[: -self.lag], rows[self.lag :]
        if series is None:
            return x, y
        same = series[: -self.lag] == series[self.lag :]
        if not bool(same.any()):
            raise ValueError(f"no series is longer than the lag of {self.lag}")
        return x[same], y[same]


@single_threaded
def self_views(X: Any, channel: Channel | TimeShift, random_state: RandomState = None) -> tuple[Any, Any]:
    """Two views of one table: the rows, and what a channel makes of them.

    Args:
        X: rows (n, d), or images (n, H, W) or (n, C, H, W): an array or a tensor.
        channel: what disturbs them, or a :class:`TimeShift`.
        random_state: seed or generator.

    Returns:
        X and Y, of as many rows each, as arrays (tensors for a tensor); images stay images.

    Example:
        >>> import numpy as np
        >>> X, Y = self_views(np.zeros((3, 2)), GaussianNoise(1.0), random_state=0)
        >>> X.shape, Y.shape, bool(Y.std() > 0)
        ((3, 2), (3, 2), True)
    """
    check_callable(channel, "channel", "rows, such as GaussianNoise(0.5) or TimeShift(1)")
    check_table(X)
    given = X if isinstance(X, Tensor) else torch.from_numpy(np.array(X))
    rows = given if given.is_floating_point() else given.double()
    if not rows.dim() or not rows.numel():
        raise ValueError(f"X must be rows (n, d) or images, got the shape {tuple(rows.shape)}")
    flat = rows.reshape(len(rows), -1)
    if isinstance(channel, TimeShift):
        x, y = channel(flat)
    else:
        x, y = flat, channel(flat, stream_of(random_state, flat.device))
    x, y = (
        part.reshape(-1, *rows.shape[1:]) if part.shape[1:] == flat.shape[1:] else part for part in (x, y)
    )
    return (x, y) if isinstance(X, Tensor) else (x.numpy(), y.numpy())


def mean_displacement(height: int, width: int, rounds: int, p: float) -> float:
    """Mean distance of a pixel from its place after so many rounds along each axis with chance p of a swap."""
    down, across = (_moved(size, rounds, p) for size in (height, width))
    far = np.hypot(np.arange(height)[:, None], np.arange(width))
    return float(down @ far @ across)


def _moved(size: int, rounds: int, p: float) -> Array:
    """Chance of each distance 0, ..., size - 1 along one axis, over places and over where pairs begin."""
    found = np.zeros(size)
    gap = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    for begin in (0, 1):
        chance = np.eye(size)
        for t in range(rounds):
            chance = chance @ _paired(size, (begin + t) % 2, p)
        found += np.bincount(gap.ravel(), chance.ravel(), size) / (2 * size)
    return found


def _paired(size: int, begin: int, p: float) -> Array:
    """Chances of one round from place to place, (size, size)."""
    step = np.eye(size)
    first = np.arange(begin, size - 1, 2)
    step[first, first] = step[first + 1, first + 1] = 1.0 - p
    step[first, first + 1] = step[first + 1, first] = p
    return step


def _scattered(height: int, width: int) -> float:
    """Mean distance of two places drawn alike."""

    def apart(size: int) -> Array:
        gap = np.arange(size)
        return np.where(gap > 0, 2.0, 1.0) * (size - gap) / size**2

    far = np.hypot(np.arange(height)[:, None], np.arange(width))
    return float(apart(height) @ far @ apart(width))


def _swapped(image: Tensor, odd: Tensor, heads: Tensor, axis: int) -> Tensor:
    """One round along an axis: pairs begin at even places, or at odd ones, and are swapped where the coin of the first
    shows heads."""
    size = image.shape[axis]
    shape = [1, 1, 1, 1]
    shape[axis] = size
    place = torch.arange(size, device=image.device).reshape(shape)
    first = (place % 2 == 1) == odd
    up = first & heads & (place < size - 1)
    down = ~first & heads.roll(1, axis) & (place > 0)
    return torch.where(up, image.roll(-1, axis), torch.where(down, image.roll(1, axis), image))
