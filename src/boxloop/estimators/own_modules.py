"""Modules that are the user's code, in files: their tensors are kept, and put into a module that is given again."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike

import torch
from torch import nn

from boxloop.models.networks import ModuleNetwork, OwnModule, Part
from boxloop.persist import ModelFileError


def told(part: Part) -> Part:
    """A part as a file can hold it."""
    network = part.network
    if not isinstance(network, ModuleNetwork):
        return part
    return replace(part, network=OwnModule(type(network.module).__name__, network.names))


def filled(path: str | PathLike[str], part: Part, which: str, module: nn.Module | None, loader: str) -> Part:
    """A part whose network can be called, with the tensors of the file.

    Args:
        path: the file, for messages.
        part: what it held.
        which: the parameter of the estimator that the module is.
        module: what the user gave.
        loader: the function to which it is given, for messages.
    """
    network = part.network
    if not isinstance(network, OwnModule):
        if module is not None:
            raise ModelFileError(f"{path}: its {which} is boxloop's own: leave out {which}=")
        return part
    if module is None:
        raise ModelFileError(
            f"{path}: its {which} is a module of yours ({network.kind}), of which a file holds the tensors alone: "
            f"{loader}(path, {which}=...) puts them into one"
        )
    if len(network.names) != len(part.parameters):
        raise ModelFileError(
            f"{path}: {len(network.names)} names are given for {len(part.parameters)} parameters of its {which}"
        )
    own, parameters = ModuleNetwork.of(module, part.parameters[0].dtype, torch.device("cpu"))
    here = dict(zip(own.names, (tuple(value.shape) for value in parameters), strict=True))
    there = dict(zip(network.names, (tuple(value.shape) for value in part.parameters), strict=True))
    if here != there:
        odd = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))[0]
        raise ModelFileError(
            f"{path}: the {which} given is not the one that was saved: its parameter {odd!r} has shape "
            f"{here.get(odd, 'none')}, the saved one {there.get(odd, 'none')}"
        )
    return replace(part, network=ModuleNetwork(own.module, network.names))
