r"""Networks as functions of their parameters: they hold none, so that a trainer may move them.

A :class:`Part` is a network with its parameters, and a tree like any other. :class:`Layers`, :class:`Convolutions` and
:class:`Deconvolutions` are plain descriptions that a model file can hold; :class:`ModuleNetwork` is any
``torch.nn.Module``, which is code, so that a file cannot: there a :class:`SavedModule` stands for it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Protocol, Self

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from boxloop.numeric import normal
from boxloop.tree import Tree

KERNEL, STRIDE, PADDING = 4, 2, 1
"""Of every convolution: each halves height and width, rounded down."""


class Network(Protocol):
    """A function of parameters and rows; it holds neither."""

    def __call__(self, parameters: Sequence[Tensor], rows: Tensor) -> Tensor:
        """(n, d) -> (n,) or (n, p)."""


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A ``torch.nn.Module`` in evaluation mode as a function of its trainable parameters."""

    module: nn.Module  # (n, d) -> (n,) or (n, p)
    names: tuple[str, ...]  # of the trainable parameters

    @classmethod
    def from_module(
        cls, module: nn.Module, dtype: torch.dtype, device: torch.device
    ) -> tuple[Self, tuple[Tensor, ...]]:
        """A copy of a module, and its trainable parameters."""
        own = copy.deepcopy(module).to(device=device, dtype=dtype).eval()
        free = {name: value for name, value in own.named_parameters() if value.requires_grad}
        if not free:
            raise ValueError(f"{type(module).__name__} has no trainable parameter: there is nothing to fit")
        own.requires_grad_(False)
        return cls(own, tuple(free)), tuple(value.detach().clone() for value in free.values())

    def __call__(self, parameters: Sequence[Tensor], rows: Tensor) -> Tensor:
        """(n, d) -> what the module gives; what is not trained follows the rows to their device and precision."""
        own = dict(zip(self.names, parameters, strict=True))
        rest = chain(self.module.named_parameters(), self.module.named_buffers())
        fixed = {
            name: value.to(rows.device, rows.dtype if value.is_floating_point() else None)
            for name, value in rest
            if name not in own
        }
        return functional_call(self.module, {**fixed, **own}, (rows,))


@dataclass(frozen=True)
class SavedModule:
    """What stands in a file for a module, which is the user's code."""

    kind: str  # name of its class
    names: tuple[str, ...]  # of the trainable parameters


@dataclass(frozen=True)
class Part(Tree):
    """A network with its parameters."""

    network: Any  # a function of parameters and rows
    parameters: tuple[Tensor, ...]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) -> (n, p), in the precision of the parameters, whatever that of the rows or of an autocast."""
        like = self.parameters[0]
        output: Tensor = self.network(self.parameters, rows.to(like.dtype))
        return output.to(like.dtype)

    @property
    def saved_module(self) -> str | None:
        """Name of the class of the module that the parameters are of, where they come from a file; else None."""
        return self.network.kind if isinstance(self.network, SavedModule) else None

    def without_module(self) -> Part:
        """The part as a file can hold it."""
        network = self.network
        if not isinstance(network, ModuleNetwork):
            return self
        return replace(self, network=SavedModule(type(network.module).__name__, network.names))

    def with_module(self, module: nn.Module) -> Part:
        """The part of a file, with the user's module, whose parameters must have the saved names and shapes."""
        own, parameters = ModuleNetwork.from_module(module, self.parameters[0].dtype, torch.device("cpu"))
        names = self.network.names
        here = dict(zip(own.names, (tuple(value.shape) for value in parameters), strict=True))
        there = dict(zip(names, (tuple(value.shape) for value in self.parameters), strict=True))
        for name in sorted({*here, *there}):
            if here.get(name) != there.get(name):
                raise ValueError(
                    f"its parameter {name!r} has shape {here.get(name, 'none')}, the saved one "
                    f"{there.get(name, 'none')}"
                )
        return replace(self, network=ModuleNetwork(own.module, names))


@dataclass(frozen=True)
class Layers:
    r"""A perceptron, :math:`A_L h_{L-1} + a_L` with :math:`h_l = \mathrm{silu}(A_l h_{l-1} + a_l)`."""

    columns_in: int
    hidden: tuple[int, ...]  # width of each hidden layer; none makes it an affine map
    columns_out: int

    def __post_init__(self) -> None:
        widths = (self.columns_in, *self.hidden, self.columns_out)
        if min(widths) < 1:
            raise ValueError(f"every layer needs at least one column, got {widths}")

    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """Of the parameters."""
        return _dense_shapes(self.columns_in, *self.hidden, self.columns_out)

    def draw_parameters(self, generator: Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Random slopes, zero shifts; the last layer is small, so that nothing starts far from zero."""
        widths = (self.columns_in, *self.hidden, self.columns_out)
        parameters: list[Tensor] = []
        for i, (before, after) in enumerate(pairwise(widths)):
            parameters += _dense(before, after, generator, dtype, last=i == len(self.hidden))
        return tuple(parameters)

    def __call__(self, parameters: Sequence[Tensor], rows: Tensor) -> Tensor:
        """(n, columns_in) -> (n, columns_out)."""
        *layers, slope, shift = parameters
        for inner, level in zip(layers[::2], layers[1::2], strict=True):
            rows = functional.silu(torch.addmm(level, rows, inner))
        return torch.addmm(shift, rows, slope)


@dataclass(frozen=True)
class Convolutions:
    """Images to columns: convolutions of stride 2, then one affine map."""

    shape: tuple[int, int, int]  # (C, H, W); a row holds C * H * W values, channel by channel
    channels: tuple[int, ...]  # of each convolution
    columns_out: int

    def __post_init__(self) -> None:
        _sizes(self.shape, self.channels)

    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """Of the parameters."""
        height, width = _sizes(self.shape, self.channels)[-1]
        kernels = [
            (after, before, KERNEL, KERNEL) for before, after in pairwise((self.shape[0], *self.channels))
        ]
        shapes = [shape for kernel in kernels for shape in (kernel, kernel[:1])]
        return [*shapes, *_dense_shapes(self.channels[-1] * height * width, self.columns_out)]

    def draw_parameters(self, generator: Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Random kernels and slopes, zero shifts."""
        parameters: list[Tensor] = []
        before = self.shape[0]
        for after in self.channels:
            deviation = math.sqrt(2.0 / (before * KERNEL**2))
            parameters.append(normal((after, before, KERNEL, KERNEL), generator, dtype) * deviation)
            parameters.append(torch.zeros(after, dtype=dtype, device=generator.device))
            before = after
        height, width = _sizes(self.shape, self.channels)[-1]
        return (*parameters, *_dense(before * height * width, self.columns_out, generator, dtype, last=True))

    def __call__(self, parameters: Sequence[Tensor], rows: Tensor) -> Tensor:
        """(n, C * H * W) -> (n, columns_out)."""
        *layers, slope, shift = parameters
        image = rows.reshape(len(rows), *self.shape)
        for kernel, level in zip(layers[::2], layers[1::2], strict=True):
            image = functional.silu(functional.conv2d(image, kernel, level, STRIDE, PADDING))
        return torch.addmm(shift, image.flatten(1), slope)


@dataclass(frozen=True)
class Deconvolutions:
    """Columns to images: one affine map, then transposed convolutions of stride 2; the mirror of
    :class:`Convolutions`. A head that needs several numbers per pixel gets them as so many times the image's
    channels, kind after kind."""

    shape: tuple[int, int, int]  # (C, H, W), flattened channel by channel
    channels: tuple[int, ...]  # of the maps between, coarsest first
    columns_in: int

    def __post_init__(self) -> None:
        _sizes(self.shape, self.channels)

    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """Of the parameters."""
        height, width = _sizes(self.shape, self.channels)[-1]
        kernels = [
            (before, after, KERNEL, KERNEL) for before, after in pairwise((*self.channels, self.shape[0]))
        ]
        shapes = [shape for kernel in kernels for shape in (kernel, kernel[1:2])]
        return [*_dense_shapes(self.columns_in, self.channels[0] * height * width), *shapes]

    def draw_parameters(self, generator: Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Random slopes and kernels, zero shifts."""
        height, width = _sizes(self.shape, self.channels)[-1]
        parameters = _dense(self.columns_in, self.channels[0] * height * width, generator, dtype, last=False)
        afters = (*self.channels[1:], self.shape[0])
        for before, after in zip(self.channels, afters, strict=True):
            # A pixel of the result hears a quarter of the kernel, as the stride is 2 both ways.
            deviation = math.sqrt(2.0 * STRIDE**2 / (before * KERNEL**2))
            parameters.append(normal((before, after, KERNEL, KERNEL), generator, dtype) * deviation)
            parameters.append(torch.zeros(after, dtype=dtype, device=generator.device))
        parameters[-2] = parameters[-2] / math.sqrt(6.0)
        return tuple(parameters)

    def __call__(self, parameters: Sequence[Tensor], rows: Tensor) -> Tensor:
        """(n, columns_in) -> (n, C * H * W)."""
        slope, shift, *layers = parameters
        sizes = _sizes(self.shape, self.channels)[::-1]
        image = torch.addmm(shift, rows, slope).reshape(len(rows), self.channels[0], *sizes[0])
        for (height, width), kernel, level in zip(sizes[1:], layers[::2], layers[1::2], strict=True):
            odd = (height % STRIDE, width % STRIDE)
            image = functional.conv_transpose2d(
                functional.silu(image), kernel, level, STRIDE, PADDING, output_padding=odd
            )
        return image.flatten(1)


def _dense(before: int, after: int, generator: Generator, dtype: torch.dtype, *, last: bool) -> list[Tensor]:
    """Slope (before, after) and shift: outputs of variance 1, or a third of that in a last layer, for inputs of 1."""
    gain = 1.0 / 3.0 if last else 2.0
    slope = normal((before, after), generator, dtype) * math.sqrt(gain / before)
    return [slope, torch.zeros(after, dtype=dtype, device=generator.device)]


def _dense_shapes(*widths: int) -> list[tuple[int, ...]]:
    return [shape for pair in pairwise(widths) for shape in (pair, pair[1:])]


def _sizes(shape: tuple[int, int, int], channels: tuple[int, ...]) -> list[tuple[int, int]]:
    """Height and width before the first and after each convolution."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"an image has the shape (channels, height, width), all positive, got {shape}")
    if not channels or min(channels) < 1:
        raise ValueError(f"channels must name at least one positive number, got {channels}")
    sizes = [(shape[1], shape[2])]
    for _ in channels:
        height, width = sizes[-1]
        if min(height, width) < STRIDE:
            raise ValueError(
                f"an image of {shape[1]} x {shape[2]} cannot be halved {len(channels)} times: name fewer channels"
            )
        sizes.append((height // STRIDE, width // STRIDE))
    return sizes
