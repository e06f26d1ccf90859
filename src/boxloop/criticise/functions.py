r"""Test functions, as the user names them: g has a value on rows and an expectation under a law.

A model is judged by its gaps

.. math:: \frac1n \sum_i g(x_i) - E_z \, E[g(x) \mid z],

document 000, eq. 7 to 11, and the generalisation to any g that its section 9 announces. Directions, thresholds and
units are fixed before the rows are looked at: the same for data and model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from boxloop.criticise.custom import CustomProbe
from boxloop.criticise.lagged import LaggedProbe
from boxloop.criticise.probes import BelowProbe, FirstProbe, FourierProbe, PowerProbe, Probe
from boxloop.criticise.second import SecondProbe
from boxloop.criticise.tally import Scene
from boxloop.data import check_choice, column_index
from boxloop.numeric import normal
from boxloop.types import Distribution

WIDEST = 4096
"""Most columns of which all pairs are formed."""


class TestFunction(Protocol):
    """A test function, before it knows the columns."""

    def ready(self, scene: Scene) -> Probe:
        """The same for these columns."""


@runtime_checkable
class AnyFunction(TestFunction, Protocol):
    """A test function of any make, told by its method."""


@dataclass(frozen=True)
class First:
    """Column means (1MEGA, document 000, eq. 11).

    Example:
        >>> First()
        First()
    """

    def ready(self, scene: Scene) -> Probe:
        """Column means."""
        return FirstProbe(scene)


@dataclass(frozen=True)
class Second:
    """All products of two columns (2MEGA, document 000, eq. 10), as matrix products.

    Args:
        about: ``mean`` takes them about the model's mean, so that they are variances and covariances; ``zero`` is the
            document's.

    Example:
        >>> Second(about="zero")
        Second(about='zero')
    """

    about: Literal["mean", "zero"] = "mean"

    def ready(self, scene: Scene) -> Probe:
        """Products about the scene's origin, or about zero."""
        if len(scene.names) > WIDEST:
            raise ValueError(
                f"{len(scene.names)} columns have too many pairs: use Power(2, columns=True, projections=...) for "
                "variances of columns and of random directions, or second_gap_norm for the norm alone"
            )
        check_choice(self.about, "about", ("mean", "zero"))
        return SecondProbe(scene, self.about == "mean")


@dataclass(frozen=True)
class Power:
    """A power of columns, of pairs of columns or of random projections, in units of the model's spread.

    Args:
        order: 3 sees skewness, 4 sees tails.
        pairs: for these pairs of columns, by name or index, the power of their sum and of their difference.
        projections: so many random directions.
        columns: each column by itself; by default only when neither pairs nor projections are asked for.

    Example:
        >>> Power(4, pairs=[("height", "weight")])
        Power(order=4, pairs=[('height', 'weight')], projections=0, columns=None)
    """

    order: int
    pairs: Sequence[tuple[str | int, str | int]] = ()
    projections: int = 0
    columns: bool | None = None

    def ready(self, scene: Scene) -> Probe:
        """Powers along axes, diagonals of pairs and random directions."""
        if self.order < 1:
            raise ValueError(f"the order of a power must be at least 1, got {self.order}")
        if self.projections < 0:
            raise ValueError(f"projections must be at least 0, got {self.projections}")
        d = len(scene.names)
        eye = torch.eye(d, dtype=scene.origin.dtype, device=scene.origin.device)
        parts: list[Tensor] = []
        names: list[str] = []
        if self.columns or (self.columns is None and not self.pairs and not self.projections):
            parts.append(eye)
            names += scene.names
        for pair in self.pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(f"pairs must be pairs of columns, as [('height', 'weight')], got {pair!r}")
            i, j = (column_index(scene.names, key) for key in pair)
            parts.append(torch.stack([eye[i] + eye[j], eye[i] - eye[j]]) / math.sqrt(2.0))
            names += [f"{scene.names[i]} {sign} {scene.names[j]}" for sign in "+-"]
        if self.projections:
            drawn = normal((self.projections, d), scene.generator).to(eye)
            parts.append(drawn / drawn.norm(dim=1, keepdim=True))
            names += [f"direction {i}" for i in range(self.projections)]
        return PowerProbe(scene, self.order, torch.cat(parts), tuple(names))


@dataclass(frozen=True)
class Fourier:
    r"""Random Fourier features :math:`\cos(a^\top y + b)` of standardised rows: bounded, and sensitive to any shape.

    Rahimi and Recht (2007): a is normal with standard deviation 1 / width, b uniform.

    Args:
        count: how many.
        width: of the Gaussian kernel they come from, in units of the model's spread; sqrt(d) when omitted.

    Example:
        >>> Fourier(20)
        Fourier(count=20, width=None)
    """

    count: int = 50
    width: float | None = None

    def ready(self, scene: Scene) -> Probe:
        """Frequencies and phases from the scene's generator."""
        if self.count < 1:
            raise ValueError(f"Fourier needs at least one feature, got {self.count}")
        d = len(scene.names)
        width = math.sqrt(d) if self.width is None else self.width
        if not width > 0:
            raise ValueError(f"width must be positive, got {width}")
        stream = scene.generator
        frequencies = normal((self.count, d), stream).to(scene.origin) / width
        phase = (
            2 * math.pi * torch.rand(self.count, generator=stream, device=stream.device, dtype=torch.float64)
        )
        return FourierProbe(scene, frequencies, phase.to(scene.origin))


@dataclass(frozen=True)
class Below:
    """Whether a column is at most a threshold: gaps between distribution functions.

    To see whether quantiles are right, give those of rows that are not judged by: a model that has them too puts the
    same share below.

    Args:
        levels: thresholds are where a normal law with the model's mean and spread has these probabilities.
        thresholds: values by column, by name or place, in the units of the data; they take the place of ``levels``,
            and other columns are left out.

    Example:
        >>> Below((0.05, 0.95))
        Below(levels=(0.05, 0.95), thresholds=None)
        >>> Below(thresholds={"height": [150, 180]}).thresholds
        {'height': [150, 180]}
    """

    levels: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)
    thresholds: Mapping[str | int, Sequence[float]] | None = None

    def ready(self, scene: Scene) -> Probe:
        """Thresholds of every column, or of those that were given some."""
        if self.thresholds is not None:
            return self._given(scene, self.thresholds)
        if not all(isinstance(level, Real) for level in self.levels):
            raise TypeError(f"levels must be numbers between 0 and 1, got {self.levels!r}")
        if not self.levels or not all(0.0 < level < 1.0 for level in self.levels):
            raise ValueError(f"levels must lie between 0 and 1, got {tuple(self.levels)}")
        at = torch.special.ndtri(torch.tensor(list(self.levels), dtype=torch.float64)).to(scene.origin)
        places = torch.arange(len(scene.names), device=at.device).repeat_interleave(len(at))
        return BelowProbe(scene, places, (scene.origin[:, None] + scene.scale[:, None] * at).flatten())

    def _given(self, scene: Scene, thresholds: Mapping[str | int, Sequence[float]]) -> Probe:
        if not isinstance(thresholds, Mapping):
            raise TypeError(
                f"thresholds must map columns to values, as {{'height': [150, 180]}}, got {type(thresholds).__name__}"
            )
        pairs = [
            (column_index(scene.names, key), float(at)) for key, given in thresholds.items() for at in given
        ]
        if not pairs or not all(math.isfinite(at) for _, at in pairs):
            raise ValueError(f"thresholds must be finite numbers, at least one, got {dict(thresholds)}")
        places, values = zip(*pairs, strict=True)
        device = scene.origin.device
        return BelowProbe(
            scene,
            torch.tensor(places, device=device),
            torch.tensor(values, dtype=torch.float64).to(scene.origin),
        )


@dataclass(frozen=True)
class Lagged:
    """Products of a column with itself ``lag`` rows before: for rows that are a sequence.

    The model has independent rows, so its side is the squared mean. Pairs across two tiles of a large source are left
    out.

    Example:
        >>> Lagged(1)
        Lagged(lag=1)
    """

    lag: int = 1

    def ready(self, scene: Scene) -> Probe:
        """Lagged products of standardised columns."""
        if self.lag < 1:
            raise ValueError(f"lag must be at least 1, got {self.lag}")
        return LaggedProbe(scene, self.lag)


@dataclass(frozen=True)
class Custom:
    """Any function of rows.

    Args:
        function: rows (n, d) -> (n,) or (n, p), a tensor.
        expectation: a batch of m laws -> (m,) or (m, p), its expectation under each; when omitted, the mean over rows
            drawn from each law.
        name: what tables call it.

    Example:
        >>> Custom(lambda rows: rows.amax(1), name="largest").name
        'largest'
    """

    function: Callable[[Tensor], Tensor]
    expectation: Callable[[Distribution], Tensor] | None = None
    name: str = "custom"

    def ready(self, scene: Scene) -> Probe:
        """The function, tried on one row to learn its size."""
        found = self.function(scene.origin[None])
        if not isinstance(found, Tensor) or len(found.reshape(-1)) < 1:
            raise TypeError(
                f"the function of Custom must give a tensor (n,) or (n, p) for rows (n, d), got {type(found).__name__}"
            )
        return CustomProbe(scene, self.function, self.expectation, self.name, found.numel())
