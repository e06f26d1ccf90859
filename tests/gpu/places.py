"""The same call in two places: what tests of devices share.

Generators of a GPU give other numbers than the CPU's. Here both places get those of the CPU, moved where they are
wanted, so that whatever draws at random can be compared digit by digit too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from boxloop.fit import Trainer

Case = Callable[[str], Mapping[str, Any]]
"""From a device to named numbers, which must be the same for every device."""


class Twin(torch.Generator):
    """A generator of the CPU that says it is elsewhere."""

    def __new__(cls, device: torch.device | str = "cpu") -> Twin:
        made: Twin = super().__new__(cls, "cpu")
        made.place = torch.empty(0, device=device).device
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Nothing more: the device is not the CPU's."""

    @property
    def device(self) -> torch.device:
        return self.place


class SameNumbers(TorchFunctionMode):
    """Random numbers that were asked of a twin are drawn on the CPU, and moved."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        twins = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Twin)]
        if not twins or twins[0].device.type == "cpu":
            return function(*args, **kwargs)
        place = twins[0].device
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        assert all(part.device == place for part in given), (
            "numbers of one device asked of another's generator"
        )
        host, more = tree_map(_on_host, args), tree_map(_on_host, kwargs)
        if "device" in kwargs or not given:
            assert torch.device(kwargs.get("device", "cpu")).type == place.type, "where are these to be?"
            more["device"] = "cpu"
        made = function(*host, **more)
        if "out" in kwargs:
            return kwargs["out"].copy_(more["out"])
        return args[0].copy_(made) if function.__name__.endswith("_") else made.to(place)


def _on_host(part: Any) -> Any:
    return part.cpu() if isinstance(part, Tensor) else part


@contextmanager
def same_numbers() -> Iterator[None]:
    """Random streams of boxloop are twins, and steps are taken one by one: a captured graph draws by itself."""
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "boxloop"]
    patches = [
        patch.object(module, "Generator", Twin)
        for module in modules
        if vars(module).get("Generator") is torch.Generator
    ]
    for one in patches:
        one.start()
    try:
        with patch.object(Trainer, "is_graphed", False), SameNumbers():
            yield
    finally:
        for one in patches:
            one.stop()


def plain(value: Any) -> Any:
    """Numbers on the host."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def assert_same_in_both(case: Case, device: str, tolerance: float = 1e-8) -> None:
    """What a case finds on the CPU is what it finds on ``device``, relative to the largest number of its kind.

    Numbers that are zero but for rounding, such as the means of standardised columns, have no digits to compare.
    """
    with same_numbers():
        here = {name: plain(value) for name, value in case("cpu").items()}
        there = {name: plain(value) for name, value in case(device).items()}
    assert here.keys() == there.keys()
    assert here, "nothing is compared"
    for name, value in here.items():
        if value.dtype.kind not in "fc":
            np.testing.assert_array_equal(there[name], value, err_msg=name)
            continue
        assert there[name].dtype == value.dtype, name
        largest = np.abs(value[np.isfinite(value)]).max(initial=0.0)
        near = max(tolerance * largest, 1e-12)
        np.testing.assert_allclose(there[name], value, rtol=tolerance, atol=near, err_msg=name)
