"""The contract of this room: a method says how a trajectory is followed; a follower has seen part of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from boxloop.caller import warn_caller
from boxloop.tree import Tree
from boxloop.weights.law import WeightLaw
from boxloop.weights.layout import Layout


class WeightWarning(UserWarning):
    """Something about a posterior over weights that its user should know."""


def warn(message: str) -> None:
    """A :class:`WeightWarning` at the user's line."""
    warn_caller(message, WeightWarning)


class Follower(Protocol):
    """What is kept of the vectors seen so far: running means, never the vectors."""

    @property
    def count(self) -> int:
        """Vectors seen."""

    @property
    def rank(self) -> int:
        """Directions of the law once enough was seen."""

    def observe(self, vector: Tensor) -> None:
        """Take in one finite vector (D,); it may be overwritten afterwards."""

    def law(self) -> WeightLaw:
        """The law of weights after what was seen; its rank is lower than asked for where too little was."""

    def state(self) -> Tree:
        """A copy of all that is known, for a checkpoint."""


class Method(Protocol):
    """A frozen dataclass of settings: one file is one method."""

    @property
    def least(self) -> int:
        """Vectors that a law needs."""

    def start(self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device) -> Follower:
        """A follower of vectors of ``size`` numbers that has seen none."""

    def restore(self, state: Any, device: torch.device) -> Follower:
        """A follower that goes on from a state, on the same device bit for bit."""


@dataclass(frozen=True)
class Part:
    """One Gaussian of a posterior.

    Args:
        weight: its share; the shares of all parts sum to 1.
        net: whose parameters vary; those that do not, and buffers, are taken from it.
        layout: which of its parameters vary.
        law: of these.
    """

    weight: float
    net: nn.Module
    layout: Layout
    law: WeightLaw


@runtime_checkable
class Posterior(Protocol):
    """A law over the weights of networks, from which predictions are made."""

    def parts(self) -> tuple[Part, ...]:
        """One Gaussian of a single run, several of a mixture; the nets may differ."""
