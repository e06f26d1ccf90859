r"""Channels: two views of one table, the second a disturbed copy of the first.

What can be inferred of a row from its disturbed copy is what the disturbance preserves. Learning relevant features for
statistical inference, sections 5.3 and 5.4: displaced pixels and noise preserve structure of larger scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.data import ArraySource, PlacedTile, SourceView, check_callable, check_table
from boxloop.fit import make_generator_at
from boxloop.numeric import RandomState, generator as stream_of, normal, seed, single_threaded
from boxloop.types import Source

Array = NDArray[np.float64]

MAX_DISPLACEMENT = 0.9
"""Largest mean displacement, relative to that of pixels placed at random: swaps approach it slowly."""

BLOCK = 256
"""Rows that share a stream, so that a row is disturbed in the same way in every pass, whatever its tile."""


class Channel(Protocol):
    """A random function of rows: a pure function of rows and generator, which training calls at every step."""

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        """(n, d) -> (n, d'), row by row; the generator is on the device of the rows."""


@dataclass(frozen=True)
class GaussianNoise:
    r"""Independent noise, :math:`y = x + \sigma \epsilon, \; \epsilon \sim N(0, I)`.

    Args:
        sd: sigma, in the units of the columns; one number, or one per column, (d,), as a tensor, array or list.

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
            raise ValueError(
                f"sd has {sd.numel()} values, but rows have {rows.shape[1]} columns: give one value, or one per column"
            )
        return rows + sd * normal(tuple(rows.shape), generator, rows.dtype)


@dataclass(frozen=True)
class PixelShuffle:
    r"""Neighbouring pixels swapped at random up to a given mean displacement, then Gaussian noise.

    One sweep pairs every column of pixels with a neighbour, or every row, and swaps each pair of pixels with
    probability p; pairs begin at an even or an odd place, at random for every image, and alternate. Along one axis the
    place of a pixel is then a Markov chain, and the two axes are independent, so that the mean Euclidean displacement

    .. math:: \overline{D}(T, p) = \frac{1}{HW} \sum_{\text{pixels}} E \sqrt{\Delta_x^2 + \Delta_y^2}

    is known exactly: T is the smallest number of sweeps that can reach ``displacement`` with :math:`p \le 1/2`, and p
    solves :math:`\overline{D}(T, p) =` ``displacement``. Every image has a permutation of its own; its colour channels
    move together.

    Learning relevant features for statistical inference, section 5.4: "randomly permuting neighboring pixels in the
    image, until the mean displacement per pixel is of order 1", with Gaussian noise.

    Deviation: swaps of disjoint pairs are made at once; the paper's come one after another.

    Args:
        shape: of an image, (H, W) or (C, H, W); a row holds its values, channel by channel.
        displacement: mean distance of a pixel from its place, in pixels.
        noise: standard deviation of the noise added to every value afterwards.

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
        most = MAX_DISPLACEMENT * _mean_displacement_at_random(*self.shape[-2:])
        if self.displacement > most:
            raise ValueError(
                f"a mean displacement of {self.displacement:g} pixels is more than swaps reach in an image of "
                f"{self.shape[-2]} x {self.shape[-1]}: at most {most:.3g}"
            )

    @cached_property
    def sweeps(self) -> tuple[int, float]:
        """T, sweeps along each axis, and p, the probability of a swap."""
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
            enough = mean_displacement(height, width, most, p) >= self.displacement
            low, high = (low, p) if enough else (p, high)
        return most, high

    def __call__(self, rows: Tensor, generator: Generator) -> Tensor:
        """(n, d) -> (n, d), without synchronising with the device."""
        if rows.shape[1] != prod(self.shape):
            raise ValueError(f"images of shape {tuple(self.shape)} are not rows of {rows.shape[1]} columns")
        image = rows.reshape(len(rows), -1, *self.shape[-2:])
        sweeps, p = self.sweeps
        coins = (len(rows), 1, *self.shape[-2:])
        begin = torch.rand((2, len(rows), 1, 1, 1), generator=generator, device=rows.device) < 0.5
        for t in range(sweeps):
            for axis in (-1, -2):
                heads = torch.rand(coins, generator=generator, device=rows.device) < p
                image = _swap_pixel_pairs(image, begin[axis] ^ bool(t % 2), heads, axis)
        shuffled = image.reshape(rows.shape)
        if not self.noise:
            return shuffled
        return shuffled + self.noise * normal(tuple(rows.shape), generator, rows.dtype)


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
    """Rows in order of time, and the rows some steps later: what of the present predicts the future.

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
            series: (n,), which of several series a row belongs to, each contiguous: no pair joins two series.
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
    """Two views of one table: the rows, and the output of a channel.

    Args:
        X: rows (n, d), or images (n, H, W) or (n, C, H, W): an array or a tensor.
        channel: a random function of rows, or a :class:`TimeShift`.
        random_state: seed or generator.

    Returns:
        X and Y, with the same number of rows, as arrays (tensors for a tensor); images stay images.

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


def mean_displacement(height: int, width: int, sweeps: int, p: float) -> float:
    """Mean distance of a pixel from its place after so many sweeps along each axis with probability p of a swap."""
    down, across = (_displacement_distribution(size, sweeps, p) for size in (height, width))
    far = np.hypot(np.arange(height)[:, None], np.arange(width))
    return float(down @ far @ across)


def _displacement_distribution(size: int, sweeps: int, p: float) -> Array:
    """Probability of each distance 0, ..., size - 1 along one axis, over places and over where pairs begin."""
    distribution = np.zeros(size)
    gap = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    for begin in (0, 1):
        probability = np.eye(size)
        for t in range(sweeps):
            probability = probability @ _transition_matrix(size, (begin + t) % 2, p)
        distribution += np.bincount(gap.ravel(), probability.ravel(), size) / (2 * size)
    return distribution


def _transition_matrix(size: int, begin: int, p: float) -> Array:
    """Probabilities of one sweep from place to place, (size, size)."""
    step = np.eye(size)
    first = np.arange(begin, size - 1, 2)
    step[first, first] = step[first + 1, first + 1] = 1.0 - p
    step[first, first + 1] = step[first + 1, first] = p
    return step


def _mean_displacement_at_random(height: int, width: int) -> float:
    """Mean distance of two places drawn at random."""

    def distance_distribution(size: int) -> Array:
        gap = np.arange(size)
        return np.where(gap > 0, 2.0, 1.0) * (size - gap) / size**2

    far = np.hypot(np.arange(height)[:, None], np.arange(width))
    return float(distance_distribution(height) @ far @ distance_distribution(width))


def _swap_pixel_pairs(image: Tensor, odd: Tensor, heads: Tensor, axis: int) -> Tensor:
    """One sweep along an axis: pairs begin at even or odd places; the coin of the first decides."""
    size = image.shape[axis]
    shape = [1, 1, 1, 1]
    shape[axis] = size
    place = torch.arange(size, device=image.device).reshape(shape)
    first = (place % 2 == 1) == odd
    up = first & heads & (place < size - 1)
    down = ~first & heads.roll(1, axis) & (place > 0)
    return torch.where(up, image.roll(-1, axis), torch.where(down, image.roll(1, axis), image))


def draw_second_view(channel: Any, first: Source, stream: Generator) -> Source:
    """The output of a channel for rows: drawn once in memory, else as rows are read, the same in every pass."""
    if isinstance(channel, TimeShift):
        raise ValueError(
            "TimeShift leaves fewer rows: boxloop.twoview.self_views(X, TimeShift(lag)) gives X and Y for fit(X, Y)"
        )
    if isinstance(first, ArraySource):
        own = stream_of(stream, first.rows.device)
        rows = torch.cat([_apply_channel(channel, tile, own) for tile, _ in first.chunks()])
        return ArraySource(rows, None, first.names if rows.shape[1] == first.n_columns else None)
    key = seed(stream)
    rows, _ = next(iter(first.chunks(BLOCK)))
    width = _apply_channel(channel, rows, make_generator_at(key, device=rows.device)).shape[1]
    names = first.names if width == first.n_columns else tuple(f"x{j}" for j in range(width))
    return ChannelSource(first, channel, key, names)


@dataclass(frozen=True)
class ChannelSource(SourceView):
    """A second view that is drawn where the rows are, the same in every pass."""

    source: Source  # the first view
    channel: Channel
    key: int  # seed of all draws
    columns: tuple[str, ...]  # names of its columns

    @property
    def n_columns(self) -> int:
        """Number of its columns."""
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.columns

    def tile_transform(self) -> Callable[[Tensor, Tensor, int], PlacedTile]:
        """The draws of a tile, block by block; rows of a block outside the tile are filled with one inside."""
        channel, key = self.channel, self.key

        def draw_tile(rows: Tensor, weight: Tensor, start: int) -> PlacedTile:
            parts, stop = [], start + len(rows)
            for block in range(start // BLOCK, -(-stop // BLOCK)):
                here = slice(max(start, block * BLOCK) - start, min(stop, (block + 1) * BLOCK) - start)
                place = slice(start + here.start - block * BLOCK, start + here.stop - block * BLOCK)
                filled = rows[here.start].expand(BLOCK, -1).clone()
                filled[place] = rows[here]
                stream = make_generator_at(key, block, device=rows.device)
                parts.append(_apply_channel(channel, filled, stream)[place])
            return torch.cat(parts), weight, start

        return draw_tile


def _apply_channel(channel: Channel, rows: Tensor, stream: Generator) -> Tensor:
    """The output of a channel for some rows, checked."""
    own = rows.clone()
    output = channel(own, stream)
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(rows):
        kind = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"a channel must return a tensor (n, d) with one row for each of its {len(rows)} rows; it returned {kind}"
        )
    if not torch.equal(own, rows):
        raise ValueError(
            "the channel changes its rows in place, so that both views would be the same: copy them first"
        )
    if not bool(torch.isfinite(output).all()):
        raise ValueError("the channel returned a missing or infinite value")
    return output
