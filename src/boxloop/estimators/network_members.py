"""Which networks an estimator trains, and which of them together."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from numbers import Integral

import torch
from sklearn.base import BaseEstimator
from torch import Generator, nn

from boxloop.estimators._params import pick_device, pick_dtype
from boxloop.estimators.network_rows import Rows
from boxloop.numeric import seed, spawn
from boxloop.weights import StackedLayers, refuse_untracked


@dataclass(frozen=True)
class Group:
    """Networks that are trained as one.

    Args:
        net: all of them.
        nets: each; they share their parameters with ``net``.
        streams: of the order of rows, one a member.
        seeds: of the posteriors.
        alone: whether it is a module of the user's, whose rows have no axis of members.
    """

    net: nn.Module
    nets: tuple[nn.Module, ...]
    streams: tuple[Generator, ...]
    seeds: tuple[int, ...]
    alone: bool


def groups_of(estimator: BaseEstimator, rows: Rows, stream: Generator) -> list[Group]:
    """The library's perceptrons go together; a module of the user's goes by itself.

    Args:
        estimator: with ``hidden``, ``module``, ``activation``, ``members``, ``device`` and ``dtype``.
        rows: that they learn from.
        stream: of all randomness.
    """
    device, dtype = pick_device(estimator.device), pick_dtype(estimator.dtype)
    starting, ordering, following = (spawn(one, estimator.members) for one in spawn(stream, 3))
    seeds = [seed(one) for one in following]
    if estimator.module is None:
        widths = widths_of(estimator, rows.x.shape[1], rows.outputs)
        stack = StackedLayers(widths, estimator.activation, starting, dtype, device)
        return [Group(stack, stack.nets(), tuple(ordering), tuple(seeds), False)]
    nets = [own_net(estimator, one).to(device=device, dtype=dtype) for one in starting]
    _check(nets[0], rows)
    return [
        Group(net, (net,), (order,), (own,), True)
        for net, order, own in zip(nets, ordering, seeds, strict=True)
    ]


def widths_of(estimator: BaseEstimator, columns: int, outputs: int) -> tuple[int, ...]:
    """Columns of every layer of the library's perceptron."""
    for width in estimator.hidden:
        if type(width) is bool or not isinstance(width, Integral) or width < 1:
            raise ValueError(f"hidden must hold whole numbers above 0, the widths of layers, got {width!r}")
    return (columns, *(int(width) for width in estimator.hidden), outputs)


def own_net(estimator: BaseEstimator, stream: Generator) -> nn.Module:
    """A network of the user's: a copy of the module given, or what the function given makes."""
    given = estimator.module
    if isinstance(given, nn.Module):
        if estimator.members > 1:
            raise ValueError(
                f"members={estimator.members} networks would all start from the same module: give module= a function "
                "that makes one, given a torch.Generator"
            )
        return copy.deepcopy(given)
    found = given(stream)
    if not isinstance(found, nn.Module):
        raise ValueError(f"module= must be a torch.nn.Module, or give one, got a {type(found).__name__}")
    return found


def _check(net: nn.Module, rows: Rows) -> None:
    """A network of the user's must give one column an output, or a class, of each row by itself."""
    refuse_untracked(net)
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.no_grad():
            found = net.eval()(rows.x[:2])
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(
            f"module= does not take rows of {rows.x.shape[1]} columns and {rows.x.dtype}: {error}"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    wanted = (len(rows.x[:2]), rows.outputs)
    if tuple(found.shape) != wanted:
        what = "logits of the classes" if rows.classified else "outputs"
        raise ValueError(
            f"module= must give {wanted[1]} {what} a row, (n, {wanted[1]}), got {tuple(found.shape)}"
        )
