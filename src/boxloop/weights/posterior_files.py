"""Posteriors on disk: what was seen of a trajectory, so that it can be followed further."""

from __future__ import annotations

import os

import torch
from torch import nn

from boxloop.average import Power
from boxloop.fit import GradientState, StreamSettings, StreamState
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.weights.constraints import CONSTRAINTS, METHODS
from boxloop.weights.full import FullState
from boxloop.weights.gradient import GradientUnits, WeightUnits
from boxloop.weights.layout import Layout
from boxloop.weights.posterior import PosteriorState, WeightPosterior
from boxloop.weights.record import Record
from boxloop.weights.swa import MeanState
from boxloop.weights.swag import SwagState
from boxloop.weights.window import WindowState

CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(PosteriorState, Layout, Record, Power),
        *METHODS,
        *(StreamState, StreamSettings, GradientUnits, GradientState, WeightUnits),
        *(SwagState, MeanState, FullState, WindowState),
    )
}
"""What a file of a posterior may be made of."""
CLASSES["Units"] = WeightUnits  # the name that it has in older files


def save_posterior(path: str | os.PathLike[str], posterior: WeightPosterior) -> None:
    """Write all that a posterior knows; the weights of the network, and its optimiser's state, are not in it.

    Args:
        path: the file, replaced whole or not at all.
        posterior: at any point of a trajectory.

    Raises:
        ModelFileError: a method that is not of this library, or a schedule that is not a ``Power``.
    """
    save_tree(path, posterior.state())


def load_posterior(
    path: str | os.PathLike[str], net: nn.Module, device: torch.device | str | None = None
) -> WeightPosterior:
    """Read a posterior, to go on observing or to predict.

    Args:
        path: a file that :func:`save_posterior` wrote; nothing in it is executed.
        net: the network that was followed, or another with parameters of the same names and shapes.
        device: where what is kept goes; where the first parameter is when None.

    Returns:
        The posterior: on the same device, whatever it observes from here on leads to the same bits.

    Raises:
        ModelFileError: not a whole file of a posterior, or one of a network with other parameters; the first that
            the network does not have, or not in that shape, is named.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> net = torch.nn.Linear(2, 1)
        >>> posterior = WeightPosterior(net, "swa", random_state=0)
        >>> posterior.observe()
        True
        >>> with TemporaryDirectory() as folder:
        ...     save_posterior(f"{folder}/weights.boxloop", posterior)
        ...     again = load_posterior(f"{folder}/weights.boxloop", net)
        >>> again.count, torch.equal(again.centre(), posterior.centre())
        (1, True)
    """
    state = read_state(path)
    try:
        return WeightPosterior.restore(state, net, device)
    except ValueError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error


def read_state(path: str | os.PathLike[str]) -> PosteriorState:
    """What :func:`save_posterior` wrote, checked."""
    state = load_tree(path, CLASSES, CONSTRAINTS).tree
    if not isinstance(state, PosteriorState):
        raise ModelFileError(f"{os.fspath(path)}: a {type(state).__name__}, not a posterior over weights")
    return state
