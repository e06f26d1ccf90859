r"""Training by gradient: any model with learned tensors, in mini-batches, in the loop of :mod:`boxloop.loop`.

.. math:: \theta_t = \theta_{t-1} - \mathrm{AdamW}\left( \nabla_\theta \left[ \overline{\ell_\theta}_{\text{batch}}
          + \alpha_t \, P_\theta(\text{batch}) \right] \right)

An iteration of the loop is a block of mini-batches, on a GPU a CUDA graph that is replayed. Within a block nothing
waits for the device: a loss or gradient that is not finite leaves parameters and Adam's means unchanged and halves the
learning rate, by ``where``; the outcome is read once, at the end. The random numbers of a block follow from the seed
and its position, so a restart needs no generator state and may be on another device.

The file has the plan and the state of a training, mini-batches, CUDA graphs of steps, and the trainer.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.average import Schedule
from boxloop.data import ArraySource, ConcatenatedRows, MappedSource, RowSampler, StandardisedSource
from boxloop.fit.adam import (
    PATIENCE,
    Adam,
    Constant,
    clip_gradient,
    flatten_parameters,
    generator_at,
    unflatten_parameters,
)
from boxloop.fit.distributed import SINGLE_PROCESS, Workers
from boxloop.loop import Iteration, Outcome
from boxloop.tree import Tree
from boxloop.types import Source

Batch = tuple[Tensor, Tensor]


class Trainable(Protocol):
    """A model whose learned tensors can be replaced."""

    def trainable(self) -> tuple[Tensor, ...]:
        """All learned tensors, in a fixed order."""

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The model with other values of these tensors; differentiable."""


class Batched(Protocol):
    """Mini-batches, such as :class:`Epochs`."""

    per_epoch: int

    def __call__(self, t: int) -> Batch:
        """Rows and weights of update t = 0, 1, ..."""


M = TypeVar("M", bound=Trainable)
Parts = dict[str, Tensor]
Loss = Callable[[M, Tensor, Tensor, Generator], tuple[Tensor, Parts]]
"""(model, rows, weight, generator) -> the loss, and named numbers to report, with the same names at every call."""

Penalty = Callable[[M, Tensor, Generator], Tensor]
"""(model, rows, generator) -> a penalty, which the loss includes with a weight."""

Validation = Callable[[M, Generator], tuple[Tensor, Parts]]
"""(model, generator) -> validation loss and named numbers, with the same random numbers at every call."""


@dataclass(frozen=True)
class TrainPlan:
    """Options of training.

    Args:
        rate: learning rate of update t = 1, 2, ...
        weight: of the penalty at update t.
        clip: largest norm of a gradient.
        decay: decoupled weight decay.
        block: most mini-batches per iteration of the loop; the last block of an epoch may be shorter.
        patience: epochs without a better validation loss before training stops; None never stops it.
        least: updates before which such epochs do not count.
        by_weight: give the penalty, which takes no weights, rows resampled by weight.
        graphs: on a GPU, capture steps in CUDA graphs and replay them.
        mixed: compute the loss in bfloat16 by autocast; parameters, penalty and validation keep their precision.
    """

    rate: Schedule = field(default_factory=lambda: Constant(1e-3))
    weight: Schedule = field(default_factory=lambda: Constant(0.0))
    clip: float = 100.0
    decay: float = 0.0
    block: int = 100
    patience: int | None = None
    least: int = 0
    by_weight: bool = False
    graphs: bool = True
    mixed: bool = False

    def __post_init__(self) -> None:
        if self.block < 1 or (self.patience is not None and self.patience < 1):
            raise ValueError(f"block and patience must be at least 1, got {self.block} and {self.patience}")
        if not (self.clip > 0.0 and self.decay >= 0.0):
            raise ValueError(
                f"clip must be positive and decay not negative, got {self.clip} and {self.decay}"
            )


@dataclass(frozen=True)
class TrainState(Tree):
    """The complete state of training, so that it resumes bit for bit.

    Args:
        point: the parameters as one vector, (p,).
        first: running mean of their gradient.
        second: running mean of its square.
        best: parameters with the best validation loss so far; without validation those of the last epoch.
        totals: of this epoch so far: rows, then each reported number times its rows.
        recent: mean of each reported number over the last block.
        history: one row per epoch, one column for each of ``columns``.
        seed: of all random numbers.
        names: of the reported numbers: ``loss``, the parts that the loss names, ``penalty``.
        columns: of the history: ``names``, ``rate``, ``refused``, and the names of validation.
        count: mini-batches seen.
        taken: steps that were accepted.
        refused: consecutive refused steps.
        slower: factor of the learning rate, halved by every refused step.
        lowest: best validation loss so far.
        stale: epochs since then.
    """

    point: Tensor
    first: Tensor
    second: Tensor
    best: Tensor
    totals: Tensor
    recent: Tensor
    history: Tensor
    seed: int
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    count: int = 0
    taken: int = 0
    refused: int = 0
    slower: float = 1.0
    lowest: float = math.inf
    stale: int = 0

    @classmethod
    def start(cls, model: Trainable, seed: int) -> TrainState:
        """The state before the first step."""
        point = flatten_parameters(model.trainable()).detach()
        zero, none = torch.zeros_like(point), torch.zeros(0, dtype=torch.float64)
        return cls(point, zero, zero, point, none, none, torch.zeros(0, 0, dtype=torch.float64), seed)

    def fitted(self, model: M) -> M:
        """The model with the best parameters."""
        return model.with_trainable(unflatten_parameters(self.best, model.trainable()))

    def to_device(self, device: torch.device) -> TrainState:
        """The state with parameters and means on a device; the statistics stay on the CPU."""
        names = ("point", "first", "second", "best")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def history_by_name(self) -> dict[str, list[float]]:
        """The history as lists by column name."""
        return {name: self.history[:, j].tolist() for j, name in enumerate(self.columns)}


def resample_rows(rows: Tensor, weight: Tensor, stream: Generator) -> Tensor:
    """As many rows, drawn with replacement by weight; uniformly if all weights are 0."""
    return rows[torch.multinomial(weight.clamp(min=1e-30), len(rows), replacement=True, generator=stream)]


def continue_training(resume: Outcome[TrainState] | None, device: torch.device) -> Outcome[TrainState] | None:
    """An outcome that was read to the CPU, moved to a device to continue there."""
    return None if resume is None else replace(resume, state=resume.state.to_device(device))


WINDOW_ROWS, WINDOW_VALUES = 1 << 16, 1 << 24
"""Most rows, and most values, of a window of a file, within which rows are shuffled."""


class Epochs:
    r"""Mini-batches of a source, epoch after epoch; the t-th batch is reproducible after a restart.

    Rows in memory are shuffled every epoch. Rows of a file are read in order and shuffled within windows of 65536 rows
    (fewer if rows are wide), so sorted files should be shuffled first. An epoch of n rows is cut into :math:`\lceil
    n / s \rceil` batches of nearly equal size.

    Args:
        source: rows.
        size: most rows per batch.
        seed: of the order.
        held_out: (n,), true for rows that are excluded.

    Example:
        >>> import torch
        >>> epochs = Epochs(ArraySource(torch.arange(5.0)[:, None]), size=2, seed=0)
        >>> [len(epochs(t)[0]) for t in range(epochs.per_epoch)]
        [2, 2, 1]
        >>> bool(torch.cat([epochs(t)[0] for t in range(3, 6)]).sum() == 10.0)
        True
    """

    def __init__(self, source: Source, size: int, seed: int, held_out: Tensor | None = None) -> None:
        self.source, self.seed = source, seed
        self.n_rows = source.n_rows - (0 if held_out is None else int(held_out.sum()))
        if self.n_rows < 1:
            raise ValueError("held_out leaves no row for training")
        self._held_out = held_out
        self.per_epoch = -(-self.n_rows // size)
        self._memory = _load_rows(source, held_out)
        self._epoch, self._position = -1, 0
        self._iterator: Iterator[Batch] = iter(())

    @property
    def sizes(self) -> list[int]:
        """Number of rows of each batch of an epoch."""
        least, more = divmod(self.n_rows, self.per_epoch)
        return [least + 1] * more + [least] * (self.per_epoch - more)

    def __call__(self, t: int) -> Batch:
        """Rows and weights of update t = 0, 1, ..."""
        epoch, place = divmod(t, self.per_epoch)
        if epoch != self._epoch or place < self._position:
            self._epoch, self._position = epoch, 0
            self._iterator = self._in_memory(epoch) if self._memory else self._from_files(epoch)
        for _ in range(place - self._position):
            next(self._iterator)
        self._position = place + 1
        return next(self._iterator)

    def _in_memory(self, epoch: int) -> Iterator[Batch]:
        assert self._memory is not None
        rows, weight = self._memory
        order = torch.randperm(len(rows), generator=generator_at(self.seed, epoch)).to(rows.device)
        for batch in order.split(self.sizes):
            yield rows[batch], weight[batch]

    def _from_files(self, epoch: int) -> Iterator[Batch]:
        step = max(1, min(WINDOW_ROWS, WINDOW_VALUES // self.source.n_columns))
        sizes, start = iter(self.sizes), 0
        wanted = next(sizes)
        rest: Batch | None = None
        for window, (rows, weight) in enumerate(self.source.chunks(step)):
            chosen = _training_rows(self._held_out, start, len(rows))
            start += len(rows)
            order = torch.randperm(len(chosen), generator=generator_at(self.seed, epoch, window))
            chosen = chosen[order].to(rows.device)
            fresh = rows[chosen], weight[chosen].to(rows)
            rest = fresh if rest is None else (torch.cat([rest[0], fresh[0]]), torch.cat([rest[1], fresh[1]]))
            while rest[0].shape[0] >= wanted:
                yield rest[0][:wanted], rest[1][:wanted]
                rest, wanted = (rest[0][wanted:], rest[1][wanted:]), next(sizes, start + step + 1)


def hold_out(source: Source, share: float, seed: int, most: int) -> tuple[Tensor | None, ArraySource | None]:
    """Split off random rows for validation.

    Args:
        source: all rows.
        share: approximate fraction of the rows; with share > 0 and two rows at least one is held out and one is left.
        seed: of the choice.
        most: most rows held out.

    Returns:
        Mask of the rows, (n,) on the CPU, and the rows, in memory; None and None if there are none.
    """
    n = source.n_rows
    wanted = min(most, max(1, round(share * n)), n - 1) if share > 0.0 else 0
    if wanted < 1:
        return None, None
    uniform = torch.rand(n, generator=generator_at(seed))
    limit = uniform.kthvalue(wanted).values
    mask = uniform <= limit
    mask[torch.nonzero(mask)[wanted:, 0]] = False  # ties among 2^24 values
    lot = RowSampler(mask.nonzero()[:, 0], share)

    def taken(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        chosen = lot.indices_between(start, start + len(weight)).to(rows.device)
        return ConcatenatedRows.of(torch.cat([rows[chosen], weight[chosen, None].to(rows)], 1))

    both = source.reduce_at(taken).concatenate()
    return mask, ArraySource(both[:, :-1].contiguous(), both[:, -1].contiguous(), source.names)


def _training_rows(held_out: Tensor | None, start: int, rows: int) -> Tensor:
    if held_out is None:
        return torch.arange(rows)
    return torch.nonzero(~held_out[start : start + rows])[:, 0]


def _load_rows(source: Source, held_out: Tensor | None) -> Batch | None:
    """All rows and weights of a source in memory, transformed as it does; None if they are in files."""
    inner = source
    while isinstance(inner, MappedSource | StandardisedSource):
        inner = inner.source
    if not isinstance(inner, ArraySource):
        return None
    tiles = [(rows, weight.to(rows)) for rows, weight in source.chunks()]
    rows, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    if held_out is not None:
        kept = torch.nonzero(~held_out)[:, 0].to(rows.device)
        rows, weight = rows[kept], weight[kept]
    return rows, weight


@dataclass(frozen=True)
class TrainingBlock(Tree):
    """Training within a block of steps; all tensors on the device.

    Args:
        point: parameters, (p,).
        adam: their running means.
        taken: steps that were accepted.
        slower: factor of the learning rate.
        refused: consecutive refused steps.
        worst: most of these within the block.
        totals: rows seen, then each reported number times its rows; empty before the first step.
    """

    point: Tensor
    adam: Adam
    taken: Tensor
    slower: Tensor
    refused: Tensor
    worst: Tensor
    totals: Tensor


@dataclass(frozen=True)
class StepInput:
    """Input of a step: rows, weights, learning rate, weight of the penalty, and whether there is one."""

    rows: Tensor
    weight: Tensor
    rate: float | Tensor
    penalty_weight: float | Tensor
    penalised: bool


StepFunction = Callable[
    [TrainingBlock, StepInput, Generator, Generator], tuple[TrainingBlock, tuple[str, ...]]
]
"""(block, input, generators of loss and penalty) -> the block after one step, and names of the reported numbers."""


@dataclass(frozen=True)
class CapturedGraph:
    graph: Any
    step_input: StepInput


@dataclass(eq=False)
class StepGraphs:
    """CUDA graphs of training steps, captured once per batch size.

    A step of a small network is a hundred small operations, which keep a GPU waiting for the host. All steps with
    batches of one size run the same operations, so they are captured once and replayed: parameters and statistics have
    fixed addresses, rows and rates are copied in, and random numbers continue from the seed of the block.

    Args:
        refusal: why steps cannot be captured, if they cannot.
    """

    refusal: str = ""
    _graphs: dict[tuple[int, bool], CapturedGraph] = field(default_factory=dict)
    _block: TrainingBlock | None = None
    _streams: tuple[Generator, ...] = ()
    _names: tuple[str, ...] = ()

    def run(
        self,
        take_step: StepFunction,
        block: TrainingBlock,
        inputs: Iterable[StepInput],
        streams: list[Generator],
    ) -> tuple[TrainingBlock, tuple[str, ...]]:
        """Run one step after another.

        Args:
            take_step: one step. It is not stored: a graph in a reference cycle could be freed by the garbage collector
                during a capture, which is an error.
            block: the block so far.
            inputs: inputs of the steps.
            streams: generators of the block.

        Raises:
            RuntimeError: a step cannot be captured; ``refusal`` says why, and nothing has changed.
        """
        for step_input in inputs:
            key = (len(step_input.rows), step_input.penalised)
            if key not in self._graphs:
                self._graphs[key] = self._capture_step(take_step, block, step_input)
            if streams:
                self._load_block(block, streams)
                streams = []
            graph = self._graphs[key]
            fixed = graph.step_input
            fixed.rows.copy_(step_input.rows)
            fixed.weight.copy_(step_input.weight)
            for name in ("rate", "penalty_weight"):
                getattr(fixed, name).fill_(getattr(step_input, name))
            graph.graph.replay()
        assert self._block is not None
        return self._block.map(torch.clone), self._names

    def _load_block(self, block: TrainingBlock, streams: list[Generator]) -> None:
        """Copy a block and its seeds to the addresses of the graphs."""
        assert self._block is not None
        for own, stream in zip(self._streams, streams, strict=True):
            own.manual_seed(stream.initial_seed())
        for (_, place), (_, value) in zip(self._block.leaves(), block.leaves(), strict=True):
            place.copy_(value) if value.numel() else place.zero_()

    def _capture_step(
        self, take_step: StepFunction, block: TrainingBlock, step_input: StepInput
    ) -> CapturedGraph:
        device = block.point.device
        rate, penalty_weight = (block.slower.new_zeros(()), block.point.new_zeros(()))
        rows, weight = step_input.rows.clone(), step_input.weight.clone()
        static = StepInput(rows, weight, rate, penalty_weight, step_input.penalised)
        if not self._streams:
            self._streams = (Generator(device), Generator(device))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            side
        ):  # allocations and algorithm choices of a first call must not be captured
            for _ in range(2):
                after, self._names = take_step(block, static, Generator(device), Generator(device))
        torch.cuda.current_stream().wait_stream(side)
        if self._block is None:
            self._block = after.map(torch.zeros_like)
        graph = torch.cuda.CUDAGraph()
        for stream in self._streams:
            graph.register_generator_state(stream)
        try:
            with warnings.catch_warnings(), without_garbage_collection(), torch.cuda.graph(graph):
                warnings.simplefilter("ignore", UserWarning)  # a failed capture raises too
                fresh, _ = take_step(self._block, static, *self._streams)
                for (_, place), (_, value) in zip(self._block.leaves(), fresh.leaves(), strict=True):
                    place.copy_(value)
        except RuntimeError as error:
            self.refusal = str(error.__context__ or error).splitlines()[0]
            torch.cuda.synchronize()
            raise
        return CapturedGraph(graph, static)


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


@dataclass(frozen=True)
class Trainer(Generic[M]):
    """Training as a step for :func:`boxloop.loop.run`: one block of mini-batches per iteration, validation after each
    epoch.

    The objective of an iteration is minus its mean loss, before each step. Validation selects the best parameters, and
    stops training after ``plan.patience`` epochs without improvement; without validation the last parameters are used.

    Args:
        model: its learned tensors are replaced by those of the state.
        batches: rows and weights of update t.
        loss: of a batch.
        plan: rates and blocks.
        penalty: of a batch, with weight ``plan.weight``.
        validate: validation loss.
        workers: processes that train together; gradients and reported numbers are means over them.

    Raises:
        FloatingPointError: ten consecutive steps are refused.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> from boxloop.data import ArraySource
        >>> from boxloop.fit.adam import Constant
        >>> from boxloop.fit.train import Epochs
        >>> from boxloop.loop import run
        >>> @dataclass(frozen=True)
        ... class Place:
        ...     at: torch.Tensor
        ...     def trainable(self): return (self.at,)
        ...     def with_trainable(self, values): return Place(*values)
        >>> def distance(model, rows, weight, generator):
        ...     value = (rows - model.at).square().sum(1) @ weight / len(rows)
        ...     return value, {"distance": value}
        >>> rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]] * 50).double()
        >>> start = Place(torch.zeros(2).double())
        >>> trainer = Trainer(start, Epochs(ArraySource(rows), 20, seed=0), distance, TrainPlan(Constant(0.1)))
        >>> outcome = run(trainer, TrainState.start(start, seed=0), max_iter=trainer.rounds(100))
        >>> outcome.state.fitted(start).at.round(decimals=0)
        tensor([2., 5.], dtype=torch.float64)
    """

    model: M
    batches: Batched
    loss: Loss[M]
    plan: TrainPlan
    penalty: Penalty[M] | None = None
    validate: Validation[M] | None = None
    workers: Workers = SINGLE_PROCESS

    @cached_property
    def graphs(self) -> StepGraphs:
        """Captured steps."""
        return StepGraphs()

    def rounds(self, epochs: int) -> int:
        """Iterations of the loop for a number of epochs."""
        return epochs * -(-self.batches.per_epoch // self.plan.block)

    def epochs(self, state: TrainState) -> int:
        """Completed epochs."""
        return state.count // self.batches.per_epoch

    def __call__(self, state: TrainState) -> Iteration[TrainState]:
        """One block of mini-batches."""
        per_epoch = self.batches.per_epoch
        stop = min(state.count + self.plan.block, (state.count // per_epoch + 1) * per_epoch)
        block, names, refusal = self._run_block(state, range(state.count, stop))
        after, events = _read_block(state, block, names, stop)
        events = (*refusal, *events)
        objective = -float(after.recent[0])
        if stop % per_epoch:
            return Iteration(after, objective, events)
        done, concerns = self._finish_epoch(after)
        final = self.plan.patience is not None and done.stale >= self.plan.patience
        return Iteration(done, objective, (*events, *concerns), final=final)

    def _run_block(
        self, state: TrainState, steps: range
    ) -> tuple[TrainingBlock, tuple[str, ...], tuple[str, ...]]:
        """Run the steps of a block, on a GPU from a graph if possible."""
        device = state.point.device
        streams = [generator_at(state.seed, place, state.count, device=device) for place in (0, 2)]
        block, names = _start_block(state), state.names
        notes: tuple[str, ...] = ()
        if device.type == "cuda" and self._uses_graphs:
            try:
                return *self.graphs.run(self.take_step, block, map(self._step_input, steps), streams), ()
            except RuntimeError:
                if not self.graphs.refusal:
                    raise
            notes = (f"steps cannot be captured in a CUDA graph and run one by one ({self.graphs.refusal})",)
        for t in steps:
            block, names = self.take_step(block, self._step_input(t), *streams)
        return block, names, notes

    @property
    def _uses_graphs(self) -> bool:
        """Resampling waits for the device, and processes wait for one another: neither can be captured."""
        waits = not self.workers.alone or (self.penalty is not None and self.plan.by_weight)
        return self.plan.graphs and not waits and not self.graphs.refusal

    def _step_input(self, t: int) -> StepInput:
        """Input of update t."""
        penalty_weight = 0.0 if self.penalty is None else self.plan.weight(t + 1)
        return StepInput(*self.batches(t), self.plan.rate(t + 1), penalty_weight, penalty_weight != 0.0)

    def take_step(
        self, block: TrainingBlock, step_input: StepInput, stream: Generator, other: Generator
    ) -> tuple[TrainingBlock, tuple[str, ...]]:
        """One step: the next parameters, or the same ones if a number is not finite.

        The penalty has a generator of its own, so that a run is the same as without it until it begins.
        """
        rows, weight = step_input.rows, step_input.weight
        leaf = block.point.detach().requires_grad_()
        here = self.model.with_trainable(unflatten_parameters(leaf, self.model.trainable()))
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=self.plan.mixed, cache_enabled=False):
            loss, parts = self.loss(here, rows, weight, stream)
        reported = {"loss": loss, **parts}
        if self.penalty is not None:
            with torch.set_grad_enabled(step_input.penalised):
                sample = resample_rows(rows, weight, other) if self.plan.by_weight else rows
                reported["penalty"] = self.penalty(here, sample, other)
            if step_input.penalised:
                reported["loss"] = loss = loss + reported["penalty"] * step_input.penalty_weight
        (gradient,) = map(self.workers.mean, torch.autograd.grad(loss, leaf))
        values = self.workers.mean(torch.stack([value.detach().double() for value in reported.values()]))
        norm = gradient.norm()
        finite = torch.isfinite(norm) & torch.isfinite(values).all()
        taken = block.taken + finite
        adam, point = block.adam.step(
            block.point,
            clip_gradient(gradient, self.plan.clip, norm),
            taken.clamp(min=1.0),
            block.slower * step_input.rate,
            self.plan.decay,
        )
        refused = torch.where(finite, 0.0, block.refused + 1.0)
        fresh = torch.cat([values.new_ones(1), values]) * len(rows)
        point, adam = _select_accepted(finite, (point, adam), (block.point, block.adam))
        after = TrainingBlock(
            point,
            adam,
            taken,
            torch.where(finite, block.slower, 0.5 * block.slower),
            refused,
            torch.maximum(block.worst, refused),
            torch.where(finite, fresh, 0.0) + (block.totals if block.totals.numel() else 0.0),
        )
        return after, tuple(reported)

    def _finish_epoch(self, state: TrainState) -> tuple[TrainState, tuple[str, ...]]:
        """The state at the end of an epoch, with validation and a new row of the history."""
        rows, sums = state.totals[0], state.totals[1:]
        line = {name: float(value) for name, value in zip(state.names, sums / rows, strict=True)}
        line["rate"] = state.slower * self.plan.rate(state.count)
        line["refused"] = float(state.count - state.taken)
        closed = replace(state, totals=torch.zeros_like(state.totals))
        concerns: tuple[str, ...] = ()
        if self.validate is None:
            closed = replace(closed, best=state.point)
        else:
            here = self.model.with_trainable(unflatten_parameters(state.point, self.model.trainable()))
            with torch.no_grad():
                loss, parts = self.validate(here, generator_at(state.seed, 1, device=state.point.device))
            reported = {
                "validation_loss": loss,
                **{f"validation_{name}": part for name, part in parts.items()},
            }
            numbers = torch.tensor([float(part) for part in reported.values()], dtype=torch.float64)
            numbers = self.workers.mean(numbers.to(state.point.device))
            line |= dict(zip(reported, numbers.tolist(), strict=True))
            value = line["validation_loss"]
            better = value < state.lowest
            closed = replace(
                closed,
                best=state.point if better else state.best,
                lowest=value if better else state.lowest,
                stale=0 if better or state.count <= self.plan.least else state.stale + 1,
            )
            concerns = () if math.isfinite(value) else ("the validation loss is not finite",)
        fresh = torch.tensor([list(line.values())], dtype=torch.float64)
        history = torch.cat([state.history, fresh]) if state.columns else fresh
        return replace(closed, history=history, columns=tuple(line)), concerns


def _select_accepted(
    finite: Tensor, new: tuple[Tensor, Adam], old: tuple[Tensor, Adam]
) -> tuple[Tensor, Adam]:
    """The result of a step if it is finite, else what was before; without a copy on a CPU."""
    if not finite.is_cuda:
        return new if bool(finite) else old
    return torch.where(finite, new[0], old[0]), new[1].map(lambda a, b: torch.where(finite, a, b), old[1])


def _start_block(state: TrainState) -> TrainingBlock:
    def number(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=state.point.device)

    adam = Adam(state.first, state.second)
    return TrainingBlock(
        state.point,
        adam,
        number(state.taken),
        number(state.slower),
        number(state.refused),
        number(state.refused),
        torch.zeros(0),
    )


def _read_block(
    state: TrainState, block: TrainingBlock, names: tuple[str, ...], stop: int
) -> tuple[TrainState, tuple[str, ...]]:
    """The state after a block, in one transfer from the device."""
    numbers = torch.cat(
        [torch.stack([block.taken, block.slower, block.refused, block.worst]), block.totals]
    ).cpu()
    taken, slower, refused, worst = numbers[:4].tolist()
    totals = numbers[4:]
    if worst >= PATIENCE:
        raise FloatingPointError(
            f"The loss or its gradient was not finite in {PATIENCE} steps in a row, among steps {state.count + 1} to "
            f"{stop}: lower the learning rate, check that the networks give finite values, or train in full precision"
        )
    after = replace(
        state,
        point=block.point,
        first=block.adam.first,
        second=block.adam.second,
        totals=state.totals + totals if state.totals.numel() else totals,
        recent=totals[1:] / totals[0],
        names=names,
        count=stop,
        taken=int(taken),
        refused=int(refused),
        slower=slower,
    )
    refused_steps = (stop - state.count) - (int(taken) - state.taken)
    message = (
        f"{refused_steps} of {stop - state.count} steps had a loss or gradient that is not finite: refused, learning "
        f"rate lowered to {slower:.3g} of its plan"
    )
    return after, (message,) if refused_steps else ()
