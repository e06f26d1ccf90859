"""The convolutional network of half images, as features of a view and as a direct regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from boxloop.data import ArraySource
from boxloop.fit import Cooling, Epochs, Trainer, TrainPlan, TrainState, hold_out
from boxloop.loop import run
from boxloop.models import ModuleNetwork, Part
from boxloop.numeric import generator
from boxloop.twoview import NetworkView

Array = NDArray[np.float64]


class FourConvolutions(nn.Module):
    """Four convolutions and a dense layer, as document 003 has them, which does not say how wide: half images to k.

    Kernels of 3 x 3, every second of stride 2; rectifiers between, a hyperbolic tangent at the end (appendix A.2).

    Args:
        half: height and width of a half image.
        features: k.
        channels: of the first two convolutions; the others have twice as many.
        stream: of the start, which reads no global seed.
        bounded: with the hyperbolic tangent.
    """

    def __init__(
        self, half: tuple[int, int], features: int, channels: int, stream: Generator, bounded: bool = True
    ) -> None:
        super().__init__()
        self.size, self.bounded = half, bounded
        before, height, width = 1, *half
        layers: list[nn.Module] = []
        for place, after in enumerate((channels, channels, 2 * channels, 2 * channels)):
            stride = 1 + place % 2
            made = nn.utils.skip_init(nn.Conv2d, before, after, 3, stride=stride, padding=1)
            layers += [cast(nn.Module, made), nn.ReLU()]
            before, height, width = after, -(-height // stride), -(-width // stride)
        dense = cast(nn.Module, nn.utils.skip_init(nn.Linear, before * height * width, features))
        self.layers = nn.Sequential(*layers, nn.Flatten(), dense)
        for part in self.layers:
            if isinstance(part, nn.Conv2d | nn.Linear):
                gain: Literal["linear", "relu"] = "linear" if part is dense else "relu"
                nn.init.kaiming_normal_(part.weight, nonlinearity=gain, generator=stream)
                assert part.bias is not None
                nn.init.zeros_(part.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, H * W) -> (n, k)."""
        found: Tensor = self.layers(rows.reshape(len(rows), 1, *self.size))
        return found.tanh() if self.bounded else found


@dataclass(frozen=True)
class Squares:
    """Mean squared error of a network that gives the last columns of a row from the first, as a trainer takes it."""

    known: int

    def __call__(
        self, view: NetworkView, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; weights are all alike."""
        error = (view(rows[:, : self.known]).double() - rows[:, self.known :].double()).square().mean()
        return error, {"squares": error}


@dataclass(frozen=True)
class HeldSquares:
    """The same on rows held out."""

    rows: ArraySource
    known: int

    def __call__(self, view: NetworkView, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean squared error, which chooses the pass."""
        rows = self.rows.rows
        with torch.no_grad():
            return Squares(self.known)(view, rows, rows.new_ones(len(rows)), stream)


@dataclass(frozen=True)
class Regression:
    """How a network is fitted to least squares.

    Args:
        channels: see :class:`FourConvolutions`.
        passes: over the rows, at a rate that falls to zero by a cosine.
        batch: rows of a mini-batch.
        rate: of Adam.
        device: where.
    """

    channels: int
    passes: int
    batch: int
    rate: float
    device: torch.device

    def predicted(self, given: Array, wanted: Array, new: Array, half: tuple[int, int], seed: int) -> Array:
        """Train on pairs of half images, the best pass by a tenth of them, and predict for new ones.

        Args:
            given: (n, d), what is known.
            wanted: (n, d).
            new: (m, d).
            half: height and width.
            seed: of the start, the split and the order.
        """
        rows = torch.from_numpy(np.hstack([given, wanted])).to(self.device)
        d = given.shape[1]
        module = FourConvolutions(half, d, self.channels, generator(seed), bounded=False)
        part = Part(*ModuleNetwork.of(module, torch.float32, self.device))
        origin, scale = rows[:, :d].mean(), rows[:, :d].std()
        view = NetworkView(origin.expand(d), scale.expand(d), part, d, bounded=False)
        source = ArraySource(rows)
        mask, held = hold_out(source, 0.1, seed, len(rows))
        assert held is not None
        epochs = Epochs(source, self.batch, seed, mask)
        plan = TrainPlan(Cooling(self.rate, self.passes * epochs.per_epoch), graphs=False)
        trainer = Trainer(view, epochs, Squares(d), plan, None, HeldSquares(held, d))
        outcome = run(trainer, TrainState.start(view, seed), max_iter=trainer.rounds(self.passes))
        fitted = outcome.state.fitted(view)
        with torch.no_grad():
            tiles = torch.from_numpy(new).to(self.device).split(1000)
            return torch.cat([fitted(tile) for tile in tiles]).double().cpu().numpy()
