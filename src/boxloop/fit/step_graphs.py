"""Training steps as CUDA graphs.

A step of a small network is a hundred small operations, which keep a GPU waiting for the host. All steps with batches
of one size run the same operations on the same addresses, so they are captured once and replayed: parameters and the
optimiser's means are changed in place, rows and rates are copied in, and random numbers continue from the seed of the
block. Nothing within a block waits for the device: a step whose loss or gradient is not finite changes nothing and
lowers the learning rate there, and the outcome is read once, at the end.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

Report = Callable[[Any, Tensor | float, Sequence[Generator]], dict[str, Tensor]]
"""(batch, weight of the penalty, generators) -> the loss and other numbers to report."""


@dataclass(frozen=True)
class GraphStep:
    """Input of a step: rows, weights, learning rate, weight of the penalty, and whether there is one."""

    rows: Tensor
    weight: Tensor
    rate: float
    penalty_weight: float

    @property
    def key(self) -> tuple[int, bool]:
        """Steps with the same key run the same operations."""
        return len(self.rows), self.penalty_weight != 0.0


@dataclass(frozen=True)
class CapturedStep:
    """A captured step and the addresses of its input."""

    graph: Any
    rows: Tensor
    weight: Tensor
    rate: Tensor
    penalty_weight: Tensor | float


@dataclass
class BlockTotals:
    """What the steps of a block come to."""

    refused: int  # consecutive refused steps at the end
    slower: float  # factor of the learning rate after them
    names: tuple[str, ...] = ()  # of the reported numbers
    sums: Sequence[float] = ()  # of each, times rows, over accepted steps
    rows: float = 0.0  # of these steps
    count: int = 0  # steps
    rejected: int = 0  # steps that were not taken
    notes: tuple[str, ...] = ()  # what else is worth knowing


class StepGraphs:
    """Captured steps, one for each size of a batch; parameters move in place under a fused, capturable optimiser."""

    def __init__(
        self,
        parameters: list[Tensor],
        optimiser: Optimizer,
        report: Report,
        clip: float | None,
        backoff: float,
    ) -> None:
        self.parameters = parameters
        self.optimiser = optimiser
        self.report = report
        self.clip = clip
        self.backoff = backoff
        self.refusal: str = ""  # why steps cannot be captured, if they cannot
        self._steps: dict[tuple[int, bool], CapturedStep] = {}
        device = parameters[0].device
        self._streams = (Generator(device), Generator(device))
        self._counts = torch.zeros(4, dtype=torch.float64, device=device)  # taken, refused, worst, slower
        self._totals = torch.zeros(0, dtype=torch.float64, device=device)
        self._names: tuple[str, ...] = ()

    def run(
        self, steps: Iterable[GraphStep], streams: Sequence[Generator], refused: int, slower: float
    ) -> tuple[BlockTotals, int]:
        """Replay a block of steps, capturing new sizes first: its totals, and the most consecutive refused steps."""
        count = 0
        for step in steps:
            if step.key not in self._steps:
                self._steps[step.key] = self._capture(step)
            if not count:
                for own, stream in zip(self._streams, streams, strict=True):
                    own.manual_seed(stream.initial_seed())
                self._counts.copy_(torch.tensor([0.0, refused, refused, slower], dtype=torch.float64))
                self._totals.zero_()
            static = self._steps[step.key]
            static.rows.copy_(step.rows)
            static.weight.copy_(step.weight)
            static.rate.fill_(step.rate)
            if isinstance(static.penalty_weight, Tensor):
                static.penalty_weight.fill_(step.penalty_weight)
            static.graph.replay()
            count += 1
        taken, after, worst, lower, rows, *sums = torch.cat([self._counts, self._totals]).tolist()
        block = BlockTotals(int(after), lower, self._names, sums, rows, count, count - int(taken))
        return block, int(worst)

    def _take_step(self, static: CapturedStep) -> None:
        """One step on static addresses."""
        reported = self.report((static.rows, static.weight), static.penalty_weight, self._streams)
        reported["loss"].backward(inputs=self.parameters)
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        norm = get_total_norm(gradients)
        values = torch.stack([value.detach().double() for value in reported.values()])
        finite = torch.isfinite(norm) & torch.isfinite(values).all()
        if self.clip is not None:
            clip_grads_with_norm_(self.parameters, self.clip, norm)
        taken, refused, worst, slower = self._counts.unbind()
        for group in self.optimiser.param_groups:
            group["lr"].copy_(slower * static.rate)
        self.optimiser.found_inf = (~finite).float()  # type: ignore[attr-defined]  # as torch's gradient scaler does
        self.optimiser.step()
        accepted = finite.double()
        after = (1.0 - accepted) * (refused + 1.0)
        factor = torch.where(finite, 1.0, self.backoff)
        self._counts.copy_(
            torch.stack([taken + accepted, after, torch.maximum(worst, after), slower * factor])
        )
        fresh = torch.cat([values.new_ones(1), values]) * len(static.rows)
        if len(self._totals) != len(fresh):
            self._totals, self._names = torch.zeros_like(fresh), tuple(reported)
        self._totals.add_(torch.where(finite, fresh, 0.0))

    def _capture(self, step: GraphStep) -> CapturedStep:
        """A graph of one step, which leaves parameters and optimiser as they were."""
        device = self.parameters[0].device
        number = torch.full((), step.penalty_weight, dtype=step.rows.dtype, device=device)
        static = CapturedStep(
            torch.cuda.CUDAGraph(),
            step.rows.clone(),
            step.weight.clone(),
            torch.zeros((), dtype=torch.float64, device=device),
            number if step.penalty_weight else 0.0,
        )
        with self._restore_afterwards():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # allocations and choices of a first call must not be captured
                for _ in range(2):
                    self.optimiser.zero_grad()
                    self._take_step(static)
                self.optimiser.zero_grad()
            torch.cuda.current_stream().wait_stream(side)
            for stream in self._streams:
                static.graph.register_generator_state(stream)
            try:
                with warnings.catch_warnings(), without_garbage_collection(), torch.cuda.graph(static.graph):
                    warnings.simplefilter("ignore", UserWarning)  # a failed capture raises too
                    self._take_step(static)
            except RuntimeError as error:
                self.refusal = str(error.__context__ or error).splitlines()[0]
                torch.cuda.synchronize()
                raise
        return static

    @contextmanager
    def _restore_afterwards(self) -> Iterator[None]:
        """Parameters, means and counts as before, at the same addresses; means that are new are zero."""
        before = {id(value): (value, value.detach().clone()) for value in self._list_changed_tensors()}
        try:
            yield
        finally:
            with torch.no_grad():
                for value, kept in before.values():
                    value.copy_(kept)
                for value in self._list_changed_tensors():
                    if id(value) not in before:
                        value.zero_()

    def _list_changed_tensors(self) -> list[Tensor]:
        """All that a step changes in place."""
        means = [
            value
            for parameter in self.parameters
            for value in self.optimiser.state.get(parameter, {}).values()
            if isinstance(value, Tensor)
        ]
        return [*self.parameters, self._counts, self._totals, *means]


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: freeing another graph would end a capture."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
