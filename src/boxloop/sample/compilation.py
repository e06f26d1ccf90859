"""Blocks of steps in one call: compiled by ``torch.compile``, or captured in a CUDA graph.

A step costs a dozen small operations. With few chains, or on a GPU, launching them takes longer than their arithmetic.
Since noise is an argument, a block of steps is a function of tensors alone: ``torch.compile`` fuses it, at twenty
seconds for the first call, and a CUDA graph launches all of it at once. Both make the same moves from the same noise as
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
from boxloop.chain import (
    Chains,
    Kernel,
    Noise,
    Path,
    advance,
    advance_with_noise,
    choose_block_length,
    join_paths,
)
from boxloop.sample.draws import SampleWarning

UNROLLED = 32
"""Steps of one compiled call: more take longer to compile, fewer longer to call."""

CAPTURED = 32
"""Most steps of one graph."""

Advance = Callable[[Kernel, Chains, int, Generator], Path]


class NoiseBlock(NamedTuple):
    """The noise of a block of steps as a flat list of tensors."""

    tensors: tuple[Tensor, ...]  # each with a leading axis of steps
    shape: Any  # nested tuples of indices into ``tensors``, in the structure of one step's noise

    @classmethod
    def from_noise(cls, noise: Any) -> NoiseBlock | None:
        """None if a part of the noise is not made of tensors."""
        tensors: list[Tensor] = []
        shape = _flatten_noise(noise, tensors)
        return None if shape is None else cls(tuple(tensors), shape)

    @staticmethod
    def select_step(tensors: tuple[Tensor, ...], shape: Any, step: int) -> Any:
        """One step's noise."""
        if isinstance(shape, int):
            return tensors[shape][step]
        return tuple(NoiseBlock.select_step(tensors, part, step) for part in shape)


def _flatten_noise(noise: Any, tensors: list[Tensor]) -> Any:
    if isinstance(noise, Tensor):
        tensors.append(noise)
        return len(tensors) - 1
    if not isinstance(noise, Noise):
        return None
    parts = [_flatten_noise(part, tensors) for part in noise.parts]
    return None if None in parts else tuple(parts)


class StepResults(NamedTuple):
    """The results of a block of steps, as tensors alone."""

    position: Tensor
    log_density: Tensor
    log_ratio: Tensor
    auxiliary: tuple[Tensor, ...]


def _unroll_steps(
    kernel: Kernel, shape: Any, steps: int
) -> Callable[[Chains, tuple[Tensor, ...]], StepResults]:
    def block(chains: Chains, tensors: tuple[Tensor, ...]) -> StepResults:
        path = advance_with_noise(
            kernel, chains, [NoiseBlock.select_step(tensors, shape, step) for step in range(steps)]
        )
        assert path.log_ratio is not None
        return StepResults(path.position, path.log_density, path.log_ratio, path.chains.auxiliary)

    return block


def _to_path(ends: StepResults) -> Path:
    chains = Chains(ends.position[-1], ends.log_density[-1], ends.auxiliary)
    return Path(chains, ends.position, ends.log_density, ends.log_ratio, (None,) * len(ends.position))


@dataclass(eq=False)
class CompiledSteps:
    """Blocks of steps through ``torch.compile``; the first block of a kernel takes some twenty seconds."""

    blocks: dict[Kernel, Any] = field(default_factory=dict)

    def __call__(self, kernel: Kernel, chains: Chains, steps: int, stream: Generator) -> Path:
        """As :func:`boxloop.chain.advance`."""
        paths = []
        compiled = steps - steps % UNROLLED
        block = max(UNROLLED, choose_block_length(chains) // UNROLLED * UNROLLED)
        for done in range(0, compiled, block):
            noise = NoiseBlock.from_noise(kernel.noise(chains, min(block, compiled - done), stream))
            if noise is None:
                raise ValueError(
                    "this kernel cannot be compiled, as its noise is not made of tensors alone: use mode='eager'"
                )
            call = self._compile(kernel, chains, noise)
            for parts in zip(*(tensor.split(UNROLLED) for tensor in noise.tensors)):
                paths.append(_to_path(call(chains, parts)))
                chains = paths[-1].chains
        if steps > compiled:
            paths.append(advance(kernel, chains, steps - compiled, stream))
        return paths[0] if len(paths) == 1 else join_paths(paths)

    def _compile(self, kernel: Kernel, chains: Chains, noise: NoiseBlock) -> Any:
        if kernel not in self.blocks:
            block = _unroll_steps(kernel, noise.shape, UNROLLED)
            self.blocks[kernel] = torch.compile(_copy_function(block), dynamic=False, fullgraph=True)
            parts = tuple(tensor[:UNROLLED] for tensor in noise.tensors)
            check_compiled_steps(self.blocks[kernel](chains, parts), block(chains, parts))
        return self.blocks[kernel]


def _copy_function(block: Any) -> Any:
    """The function with a code object of its own: the compiler gives up after compiling one code object eight times."""
    code, closure = block.__code__.replace(), block.__closure__
    return FunctionType(code, block.__globals__, block.__name__, block.__defaults__, closure)


def check_compiled_steps(compiled: StepResults, eager: StepResults) -> None:
    """Refuse miscompiled code: the first two steps must be those of the eager kernel, up to rounding."""
    close = torch.finfo(eager.log_ratio.dtype).eps ** 0.5
    for ours, theirs in zip(compiled[:3], eager[:3]):
        if not torch.allclose(ours[:2], theirs[:2], rtol=close, atol=close, equal_nan=True):
            raise RuntimeError(
                "compiled steps differ from eager ones, a fault of the compiler: use mode='eager'"
            )


@dataclass(eq=False)
class GraphSteps:
    """Blocks of steps as CUDA graphs; ``strict`` makes a density that cannot be captured an error, not a warning."""

    strict: bool = True
    graphs: dict[Any, Any] = field(default_factory=dict)  # by kernel and shape

    def __call__(self, kernel: Kernel, chains: Chains, steps: int, stream: Generator) -> Path:
        """As :func:`boxloop.chain.advance`."""
        paths = []
        while steps > 0:
            count = min(steps, CAPTURED)
            raw = kernel.noise(chains, count, stream)
            noise = NoiseBlock.from_noise(raw)
            if noise is not None:  # one graph for all steps
                block = _unroll_steps(kernel, noise.shape, count)
                paths.append(self._replay_graph((kernel, count), block, chains, noise.tensors))
            elif raw[0] is stream:  # a kernel that draws from the stream itself
                paths.append(advance_with_noise(kernel, chains, raw))
            else:  # numbers are a part of the noise, such as the steps of a trajectory: one graph for each of them
                paths.append(self._run_step_by_step(kernel, chains, raw))
            chains, steps = paths[-1].chains, steps - count
        return paths[0] if len(paths) == 1 else join_paths(paths)

    def _run_step_by_step(self, kernel: Kernel, chains: Chains, noise: Any) -> Path:
        paths = []
        for item in noise:
            tensors: list[Tensor] = []
            shape = extract_tensors(item, tensors)

            def block(chains: Chains, values: tuple[Tensor, ...], shape: Any = shape) -> StepResults:
                path = advance_with_noise(kernel, chains, [insert_tensors(shape, values)])
                assert path.log_ratio is not None
                return StepResults(path.position, path.log_density, path.log_ratio, path.chains.auxiliary)

            paths.append(self._replay_graph((kernel, shape), block, chains, tuple(tensors)))
            chains = paths[-1].chains
        return join_paths(paths)

    def _replay_graph(self, key: Any, block: Any, chains: Chains, tensors: tuple[Tensor, ...]) -> Path:
        if key not in self.graphs:
            self.graphs[key] = self._capture_graph(block, chains, tensors)
        return _to_path(self.graphs[key](chains, tensors))

    def _capture_graph(self, block: Any, chains: Chains, tensors: tuple[Tensor, ...]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # A failed capture is an error too.
                return _CapturedGraph.capture(block, chains, tensors)
        except RuntimeError as error:
            reason = str(error.__context__ or error).splitlines()[0]
            if self.strict:
                raise ValueError(
                    f"the density cannot be captured in a CUDA graph ({reason}): use mode='eager'"
                ) from error
        torch.cuda.synchronize()
        warn_caller(
            f"the density cannot be captured in a CUDA graph, and is run eagerly ({reason})", SampleWarning
        )
        return block


class _TensorIndex(NamedTuple):
    """The index of a tensor among those of an item."""

    number: int


def extract_tensors(item: Any, tensors: list[Tensor]) -> Any:
    """An item with its tensors moved to a list and their indices in their place."""
    if isinstance(item, Tensor):
        tensors.append(item)
        return _TensorIndex(len(tensors) - 1)
    if isinstance(item, tuple):
        parts = [extract_tensors(part, tensors) for part in item]
        return tuple(parts) if type(item) is tuple else type(item)(*parts)
    return item


def insert_tensors(shape: Any, tensors: tuple[Tensor, ...]) -> Any:
    """The inverse of :func:`extract_tensors`."""
    if isinstance(shape, _TensorIndex):
        return tensors[shape.number]
    if isinstance(shape, tuple):
        parts = [insert_tensors(part, tensors) for part in shape]
        return tuple(parts) if type(shape) is tuple else type(shape)(*parts)
    return shape


@dataclass(frozen=True, eq=False)
class _CapturedGraph:
    """One captured block, with the memory of its inputs and outputs."""

    graph: Any
    inputs: tuple[Tensor, ...]
    ends: StepResults

    @classmethod
    def capture(cls, block: Any, chains: Chains, tensors: tuple[Tensor, ...]) -> _CapturedGraph:
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

    def __call__(self, chains: Chains, tensors: tuple[Tensor, ...]) -> StepResults:
        values = (chains.position, chains.log_density, *chains.auxiliary, *tensors)
        for memory, tensor in zip(self.inputs, values, strict=True):
            memory.copy_(tensor)
        self.graph.replay()
        position, log_density, log_ratio, auxiliary = self.ends
        return StepResults(
            position.clone(),
            log_density.clone(),
            log_ratio.clone(),
            tuple(part.clone() for part in auxiliary),
        )
