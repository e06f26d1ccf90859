r"""What networks drawn from a posterior say: weights through ``functional_call``, draws together by ``vmap``.

.. math:: f_i(x) = f(x; \theta_i), \qquad \theta_i \sim \sum_p w_p N(\mu_p, c\,\Sigma_p)

No network is copied. Draws go in chunks and rows in batches, as many as fit the memory allowed. Each draw has a stream
of random numbers of its own, so that however they are cut, the networks are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.numeric import generator, spawn
from boxloop.weights.functional import Buffers, NetFunction, evaluating, refuse_untracked
from boxloop.weights.inputs import Inputs, count, cut
from boxloop.weights.law import WeightLaw
from boxloop.weights.method import Part
from boxloop.weights.strata import Strata
from boxloop.weights.trial import TRIED, Trial, trial

LEAST = 64
"""Rows in a batch, where memory for one draw allows: below it reading the weights costs more than using them."""


@dataclass(frozen=True, eq=False)
class Draws:
    """The networks that a prediction averages.

    Args:
        parts: of the posterior.
        strata: how many draws each has.
        scale: of the covariances.
        seed: of all random numbers.

    Example:
        >>> import torch
        >>> from boxloop.weights.layout import Layout
        >>> net = torch.nn.Linear(2, 1)
        >>> law = WeightLaw(torch.zeros(3), torch.zeros(3, 0), torch.ones(3))
        >>> draws = Draws.of([Part(1.0, net, Layout.of(net), law)], 4, seed=0)
        >>> found = run_draws(draws, torch.ones(5, 2))
        >>> found.outputs.shape, found.together
        ((4, 5, 1), True)
    """

    parts: tuple[Part, ...]
    strata: Strata
    scale: float
    seed: int

    @classmethod
    def of(cls, parts: Sequence[Part], n: int, *, scale: float = 1.0, seed: int = 0) -> Draws:
        """n draws, in proportion to the shares of the parts; a part without spread has one.

        Raises:
            ValueError: too few draws, a scale below 0, or networks that do not fit their laws.
        """
        asked: Any = n
        if not isinstance(asked, Integral):
            raise ValueError(f"draws must be a whole number, got {n!r}")
        if not 0.0 <= scale < float("inf"):
            raise ValueError(f"scale must be a finite number that is not negative, got {scale}")
        for part in parts:
            _check(part)
        points = [scale == 0.0 or _is_point(part.law) for part in parts]
        strata = Strata.of([part.weight for part in parts], points, n)
        return cls(tuple(parts), strata, float(scale), int(seed))

    def chunks(self, place: int, size: int) -> Iterator[Tensor]:
        """The draws of one part in order, at most ``size`` at a time, (c, D)."""
        law, n = self.parts[place].law, self.strata.counts[place]
        if self.strata.points[place]:
            yield law.mean[None]
            return
        own = spawn(generator(self.seed), len(self.parts))[place]
        streams = [generator(own, law.mean.device) for _ in range(n)]
        apart = replace(
            law, mean=torch.zeros_like(law.mean)
        )  # scaling the draws spares a copy of the loadings
        for start in range(0, n, size):
            found = torch.cat([apart.draw(1, stream) for stream in streams[start : start + size]])
            yield found.mul_(self.scale**0.5).add_(law.mean)

    def few(self, place: int) -> Tensor:
        """The first draws of one part, for a trial."""
        return next(self.chunks(place, TRIED))


@dataclass(frozen=True, eq=False)
class Outputs:
    """What every draw says about every row.

    Args:
        outputs: (m, n, ...), float64.
        strata: which draw belongs to which part, and its weight.
        together: whether all networks were run by ``vmap``; draws went one by one otherwise.
    """

    outputs: NDArray[np.float64]
    strata: Strata
    together: bool


def run_draws(
    draws: Draws,
    rows: Inputs,
    *,
    buffers: Sequence[Buffers] | None = None,
    together: bool | None = None,
    memory: int | None = None,
) -> Outputs:
    """Every draw on every row.

    Args:
        draws: which networks.
        rows: (n, ...), or several of the same n, as the network takes them.
        buffers: of each part, with a leading axis of its draws; those of the networks when None.
        together: run draws by ``vmap``; None tries it, and goes one by one with a warning where it cannot be.
        memory: bytes that may be taken for draws in flight; None to choose.

    Raises:
        ValueError: a network that cannot take the rows, or draws random numbers of its own; networks whose outputs
            differ in shape.
    """
    found, every = [], True
    for place, part in enumerate(draws.parts):
        function, kept = NetFunction(part.net, part.layout), {} if buffers is None else buffers[place]
        with evaluating(part.net):
            how = trial(function, draws.few(place), kept, rows, together, memory)
            found.append(_pushed(function, draws, place, kept, rows, how))
        every = every and how.together
    shapes = {one.shape[2:] for one in found}
    if len(shapes) > 1:
        raise ValueError(f"the networks of a mixture differ in the shapes of what they say: {sorted(shapes)}")
    return Outputs(np.concatenate(found), draws.strata, every)


def _pushed(
    function: NetFunction, draws: Draws, place: int, kept: Buffers, rows: Inputs, how: Trial
) -> NDArray[np.float64]:
    n = count(rows)
    size = how.draws(function.layout.size, min(n, LEAST))
    step = how.rows(min(size, draws.strata.counts[place]))
    found, start = [], 0
    for vectors in draws.chunks(place, size):
        weights = function.weights(vectors)
        own = {name: value[start : start + len(vectors)] for name, value in kept.items()}
        start += len(vectors)
        together = how.together and len(vectors) > 1
        said = [
            function(weights, own, function.take(cut(rows, i, i + step)), together=together).double().cpu()
            for i in range(0, n, step)
        ]
        found.append(torch.cat(said, 1))
    return np.asarray(torch.cat(found).numpy())


def _is_point(law: WeightLaw) -> bool:
    return not (bool(law.noise.any()) or bool(law.loadings.any()))


def _check(part: Part) -> None:
    """A network that has numbers, says of a row what it does whatever the others, and has the law's parameters."""
    name = type(part.net).__name__
    refuse_untracked(part.net)
    if any(value.is_meta for value in part.net.parameters()) or part.law.mean.is_meta:
        raise ValueError(f"{name} or its law is on the meta device, where tensors have shapes but no numbers")
    here = {n: tuple(value.shape) for n, value in part.net.named_parameters()}
    for named, shape in zip(part.layout.names, part.layout.shapes, strict=True):
        if here.get(named) != shape:
            raise ValueError(
                f"{name} has no parameter {named!r} of shape {shape}: it is not the network followed"
            )
    if part.law.size != part.layout.size:
        raise ValueError(f"a law of {part.law.size} weights for {part.layout.size} parameters of {name}")
