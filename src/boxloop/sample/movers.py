"""Whole blocks of steps in one call: compiled, or captured in a CUDA graph.

A step costs a dozen small operations. With few chains, or on a GPU, starting them takes longer than doing them. Since
noise is an argument, a block of steps is a function of tensors alone: ``torch.compile`` fuses it, at twenty seconds for
the first call, and a CUDA graph starts all of it at once. Both make the same moves from the same noise as
:func:`boxloop.chain.advance`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from boxloop.caller import warn_caller
from boxloop.chain import Chains, Kernel, Noise, Path, advance, block_length, follow, join_paths
from boxloop.sample.draws import SampleWarning

UNROLLED = 32
"""Steps of one compiled call: more of them take longer to compile, fewer longer to call."""

CAPTURED = 32
"""Most steps of one graph."""

Mover = Callable[[Kernel, Chains, int, Generator], Path]


class Blocks(NamedTuple):
    """The noise of a block of steps, taken apart.

    Args:
        tensors: each with a leading axis of steps.
        shape: how items are made of them.
    """

    tensors: tuple[Tensor, ...]
    shape: Any

    @classmethod
    def of(cls, noise: Any) -> Blocks | None:
        """None where a part of the noise is not made of tensors."""
        tensors: list[Tensor] = []
        shape = _taken(noise, tensors)
        return None if shape is None else cls(tuple(tensors), shape)

    @staticmethod
    def item(tensors: tuple[Tensor, ...], shape: Any, place: int) -> Any:
        """One step's noise."""
        if isinstance(shape, int):
            return tensors[shape][place]
        return tuple(Blocks.item(tensors, part, place) for part in shape)


def _taken(noise: Any, tensors: list[Tensor]) -> Any:
    if isinstance(noise, Tensor):
        tensors.append(noise)
        return len(tensors) - 1
    if not isinstance(noise, Noise):
        return None
    parts = [_taken(part, tensors) for part in noise.parts]
    return None if None in parts else tuple(parts)


class Ends(NamedTuple):
    """What a block of steps gives, as tensors alone."""

    position: Tensor
    log_density: Tensor
    log_ratio: Tensor
    kept: tuple[Tensor, ...]


def _unrolled(kernel: Kernel, shape: Any, steps: int) -> Callable[[Chains, tuple[Tensor, ...]], Ends]:
    def block(chains: Chains, tensors: tuple[Tensor, ...]) -> Ends:
        path = follow(kernel, chains, [Blocks.item(tensors, shape, place) for place in range(steps)])
        assert path.log_ratio is not None
        return Ends(path.position, path.log_density, path.log_ratio, path.chains.auxiliary)

    return block


def _path(ends: Ends) -> Path:
    chains = Chains(ends.position[-1], ends.log_density[-1], ends.kept)
    return Path(chains, ends.position, ends.log_density, ends.log_ratio, (None,) * len(ends.position))


@dataclass(eq=False)
class Compiled:
    """Blocks of steps through ``torch.compile``.

    The first block of a kernel takes some twenty seconds. A kernel whose noise is not tensors alone is refused.
    """

    blocks: dict[Kernel, Any] = field(default_factory=dict)

    def __call__(self, kernel: Kernel, chains: Chains, steps: int, stream: Generator) -> Path:
        """As :func:`boxloop.chain.advance`."""
        paths = []
        whole = steps - steps % UNROLLED
        block = max(UNROLLED, block_length(chains) // UNROLLED * UNROLLED)
        for done in range(0, whole, block):
            noise = Blocks.of(kernel.noise(chains, min(block, whole - done), stream))
            if noise is None:
                raise ValueError(
                    "this kernel's noise is not made of tensors alone, so that it cannot be compiled"
                )
            call = self._compiled(kernel, chains, noise)
            for parts in zip(*(tensor.split(UNROLLED) for tensor in noise.tensors)):
                paths.append(_path(call(chains, parts)))
                chains = paths[-1].chains
        if steps > whole:
            paths.append(advance(kernel, chains, steps - whole, stream))
        return paths[0] if len(paths) == 1 else join_paths(paths)

    def _compiled(self, kernel: Kernel, chains: Chains, noise: Blocks) -> Any:
        if kernel not in self.blocks:
            block = _unrolled(kernel, noise.shape, UNROLLED)
            self.blocks[kernel] = torch.compile(_apart(block), dynamic=False, fullgraph=True)
            parts = tuple(tensor[:UNROLLED] for tensor in noise.tensors)
            check_compiled_steps(self.blocks[kernel](chains, parts), block(chains, parts))
        return self.blocks[kernel]


def _apart(block: Any) -> Any:
    """The function with code of its own: the compiler counts how often one code was compiled, and gives up at eight."""
    code, closure = block.__code__.replace(), block.__closure__
    return FunctionType(code, block.__globals__, block.__name__, block.__defaults__, closure)


def check_compiled_steps(found: Ends, plain: Ends) -> None:
    """Compilers err: the first two steps must be those of the plain kernel, up to rounding."""
    close = torch.finfo(plain.log_ratio.dtype).eps ** 0.5
    for ours, theirs in zip(found[:3], plain[:3]):
        if not torch.allclose(ours[:2], theirs[:2], rtol=close, atol=close, equal_nan=True):
            raise RuntimeError(
                "compiled steps differ from plain ones, a fault of the compiler: use mode='eager'"
            )


@dataclass(eq=False)
class Graphs:
    """Blocks of steps as CUDA graphs.

    A block whose noise is tensors alone is one graph. Where numbers are a part of it, such as the steps of a
    trajectory, a graph is one step with such numbers. A kernel that draws from laws of its own is run as it is.

    Args:
        strict: whether a density that cannot be captured is an error, rather than a warning and run as it is.
        captured: the graphs, by kernel and shape.
    """

    strict: bool = True
    captured: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, kernel: Kernel, chains: Chains, steps: int, stream: Generator) -> Path:
        """As :func:`boxloop.chain.advance`."""
        paths = []
        while steps > 0:
            count = min(steps, CAPTURED)
            given = kernel.noise(chains, count, stream)
            noise = Blocks.of(given)
            if noise is not None:
                block = _unrolled(kernel, noise.shape, count)
                paths.append(self._replayed((kernel, count), block, chains, noise.tensors))
            elif given[0] is stream:
                paths.append(follow(kernel, chains, given))
            else:
                paths.append(self._stepped(kernel, chains, given))
            chains, steps = paths[-1].chains, steps - count
        return paths[0] if len(paths) == 1 else join_paths(paths)

    def _stepped(self, kernel: Kernel, chains: Chains, noise: Any) -> Path:
        paths = []
        for item in noise:
            tensors: list[Tensor] = []
            shape = extract_tensors(item, tensors)

            def block(begun: Chains, given: tuple[Tensor, ...], shape: Any = shape) -> Ends:
                path = follow(kernel, begun, [insert_tensors(shape, given)])
                assert path.log_ratio is not None
                return Ends(path.position, path.log_density, path.log_ratio, path.chains.auxiliary)

            paths.append(self._replayed((kernel, shape), block, chains, tuple(tensors)))
            chains = paths[-1].chains
        return join_paths(paths)

    def _replayed(self, key: Any, block: Any, chains: Chains, tensors: tuple[Tensor, ...]) -> Path:
        if key not in self.captured:
            self.captured[key] = self._capture(block, chains, tensors)
        return _path(self.captured[key](chains, tensors))

    def _capture(self, block: Any, chains: Chains, tensors: tuple[Tensor, ...]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", UserWarning
                )  # of a capture that failed: it comes as an error too
                return _Graph.of(block, chains, tensors)
        except RuntimeError as error:
            said = str(error.__context__ or error).splitlines()[0]
            if self.strict:
                raise ValueError(
                    f"the density cannot be captured in a graph ({said}): mode='eager'"
                ) from error
        torch.cuda.synchronize()
        warn_caller(f"the density cannot be captured in a graph, and is run as it is ({said})", SampleWarning)
        return block


class _Place(NamedTuple):
    """Where a tensor stands among those of an item."""

    number: int


def extract_tensors(item: Any, tensors: list[Tensor]) -> Any:
    """An item with its tensors taken out."""
    if isinstance(item, Tensor):
        tensors.append(item)
        return _Place(len(tensors) - 1)
    if isinstance(item, tuple):
        parts = [extract_tensors(part, tensors) for part in item]
        return tuple(parts) if type(item) is tuple else type(item)(*parts)
    return item


def insert_tensors(shape: Any, tensors: tuple[Tensor, ...]) -> Any:
    """The inverse of :func:`extract_tensors`."""
    if isinstance(shape, _Place):
        return tensors[shape.number]
    if isinstance(shape, tuple):
        parts = [insert_tensors(part, tensors) for part in shape]
        return tuple(parts) if type(shape) is tuple else type(shape)(*parts)
    return shape


@dataclass(frozen=True, eq=False)
class _Graph:
    """One captured block: where its inputs and outputs lie."""

    graph: Any
    inputs: tuple[Tensor, ...]
    ends: Ends

    @classmethod
    def of(cls, block: Any, chains: Chains, tensors: tuple[Tensor, ...]) -> _Graph:
        chains = Chains(
            chains.position.clone(), chains.log_density.clone(), tuple(k.clone() for k in chains.auxiliary)
        )
        tensors = tuple(tensor.clone() for tensor in tensors)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            block(chains, tensors)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ends = block(chains, tensors)
        return cls(graph, (chains.position, chains.log_density, *chains.auxiliary, *tensors), ends)

    def __call__(self, chains: Chains, tensors: tuple[Tensor, ...]) -> Ends:
        given = (chains.position, chains.log_density, *chains.auxiliary, *tensors)
        for place, tensor in zip(self.inputs, given, strict=True):
            place.copy_(tensor)
        self.graph.replay()
        position, log_density, log_ratio, kept = self.ends
        return Ends(
            position.clone(), log_density.clone(), log_ratio.clone(), tuple(part.clone() for part in kept)
        )
