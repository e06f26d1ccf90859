r"""Training by gradient: any model, loss and optimiser of torch, in mini-batches, in the loop of :mod:`boxloop.loop`.

.. math:: \theta_t = \theta_{t-1} - \mathrm{AdamW}\left( \nabla_\theta \left[ \overline{\ell_\theta}_{\text{batch}}
          + \alpha_t \, P_\theta(\text{batch}) \right] \right)

One trainer serves autoencoders, features of two views, generators, energies and networks whose weights have a
posterior. An iteration of the loop is a block of mini-batches. The optimiser moves the tensors in place, as in any
loop of PyTorch; after each block all that the next one depends on is copied, so that Ctrl-C and a restart continue from
the last whole block, bit for bit. A step whose loss or gradient is not finite is refused: nothing moves.

The random numbers of a block follow from the seed and its position, so a restart needs no state of generators and may
be on another device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from boxloop.average import Schedule
from boxloop.fit.distributed import SINGLE_PROCESS, Workers
from boxloop.fit.minibatches import make_generator_at, resample_rows
from boxloop.fit.step_graphs import BlockTotals, GraphStep, StepGraphs
from boxloop.loop import Iteration
from boxloop.tree import DictTree, ListTree, Tree, from_tree, to_tree


@dataclass(frozen=True)
class Constant:
    """The same learning rate at every update.

    Example:
        >>> Constant(0.1)(7)
        0.1
    """

    rate: float

    def __call__(self, t: int) -> float:
        """Rate of update t."""
        return self.rate


@dataclass(frozen=True)
class Cooling:
    r"""Cosine schedule of learning rates, :math:`\alpha_t = \tfrac{\alpha}{2} (1 + \cos \pi t / T)`.

    Args:
        rate: initial rate.
        steps: T.

    Example:
        >>> [round(Cooling(0.1, 10)(t), 3) for t in (0, 5, 10)]
        [0.1, 0.05, 0.0]
    """

    rate: float
    steps: int

    def __call__(self, t: int) -> float:
        """Rate of update t."""
        return 0.5 * self.rate * (1.0 + math.cos(math.pi * min(t / max(self.steps, 1), 1.0)))


@dataclass(frozen=True)
class Warming:
    r"""Linear warm-up of a weight, :math:`\alpha_t = \alpha \min(1, (t - a)_+ / T)`.

    Args:
        weight: final weight.
        steps: T.
        after: a, updates with weight 0.

    Example:
        >>> [Warming(0.5, 10, after=10)(t) for t in (0, 10, 15, 20, 30)]
        [0.0, 0.0, 0.25, 0.5, 0.5]
    """

    weight: float
    steps: int
    after: int = 0

    def __call__(self, t: int) -> float:
        """Weight at update t."""
        return self.weight * min(max(t - self.after, 0) / max(self.steps, 1), 1.0)


PATIENCE = 10
"""Consecutive refused steps after which training fails."""


class Trainable(Protocol):
    """A model whose learned tensors can be replaced."""

    def trainable(self) -> tuple[Tensor, ...]:
        """All learned tensors, in a fixed order."""

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The model that holds these very tensors in their place."""


class BatchSource(Protocol):
    """Mini-batches, such as :class:`boxloop.fit.Epochs`."""

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch; not asked for where blocks are epochs."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch 0, 1, ..., from batch ``start`` on: tuples, of which the last has an entry per row."""


M = TypeVar("M")
T = TypeVar("T", bound=Trainable)
Parts = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Parts]]
"""(model, *batch, generator) -> the loss, and named numbers to report, with the same names at every call."""

Penalty = Callable[[M, Tensor, Generator], Tensor]
"""(model, rows, generator) -> a penalty, which the loss includes with a weight."""

Validation = Callable[[M, Generator], tuple[Tensor, Parts]]
"""(model, generator) -> validation loss and named numbers, with the same random numbers at every call."""


@dataclass(frozen=True)
class TrainPlan:
    """Options of training.

    Args:
        rate: learning rate of update t = 1, 2, ...; None leaves those of an optimiser of the caller's as they are.
        weight: of the penalty at update t.
        clip: largest norm of a gradient; None clips nothing.
        decay: decoupled weight decay.
        block: most mini-batches per iteration of the loop; the last block of an epoch may be shorter. None is an epoch,
            which need not know its length.
        patience: epochs without a better validation loss before training stops; None never stops it.
        least: updates before which such epochs do not count.
        by_weight: give the penalty, which takes no weights, rows resampled by weight.
        backoff: factor of the learning rate at each refused step.
        graphs: on a GPU, capture steps in CUDA graphs and replay them.
        mixed: compute the loss in bfloat16 by autocast; parameters, penalty and validation keep their precision.
    """

    rate: Schedule | None = Constant(1e-3)
    weight: Schedule = Constant(0.0)
    clip: float | None = 100.0
    decay: float = 0.0
    block: int | None = 100
    patience: int | None = None
    least: int = 0
    by_weight: bool = False
    backoff: float = 0.5
    graphs: bool = True
    mixed: bool = False

    def __post_init__(self) -> None:
        for name in ("block", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not ((self.clip is None or self.clip > 0.0) and self.decay >= 0.0):
            raise ValueError(
                f"clip must be positive and decay not negative, got {self.clip} and {self.decay}"
            )


@dataclass(frozen=True)
class TrainState(Tree):
    """The complete state of training after a block, so that it resumes bit for bit.

    Args:
        parameters: the learned tensors.
        optimiser: its ``state_dict``, as a tree.
        followers: the state of each of :attr:`Trainer.followers`.
        best: parameters with the best validation loss so far; without validation those of the last epoch.
        totals: of this epoch so far: rows, then each reported number times its rows.
        recent: mean of each reported number over the last block.
        history: one row per epoch, one column for each of ``columns``.
        seed: of all random numbers.
        names: of the reported numbers: ``loss``, the parts that the loss names, ``penalty``.
        columns: of the history: ``names``, ``rate``, ``refused``, and the names of validation.
        epoch: complete epochs.
        place: mini-batches of the present epoch.
        count: mini-batches seen.
        taken: steps that were accepted.
        refused: consecutive refused steps.
        slower: factor of the learning rate, lowered by every refused step.
        lowest: best validation loss so far.
        stale: epochs since then.
    """

    parameters: tuple[Tensor, ...]
    optimiser: Any
    followers: tuple[Any, ...]
    best: tuple[Tensor, ...]
    totals: Tensor
    recent: Tensor
    history: Tensor
    seed: int
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    epoch: int = 0
    place: int = 0
    count: int = 0
    taken: int = 0
    refused: int = 0
    slower: float = 1.0
    lowest: float = math.inf
    stale: int = 0

    def fitted(self, model: T) -> T:
        """The model with the best parameters, on its device."""
        pairs = zip(self.best, model.trainable(), strict=True)
        return model.with_trainable(tuple(value.to(like.device) for value, like in pairs))

    def history_by_name(self) -> dict[str, list[float]]:
        """The history as lists by column name."""
        return {name: self.history[:, j].tolist() for j, name in enumerate(self.columns)}


STATES: dict[str, type] = {kind.__name__: kind for kind in (TrainState, DictTree, ListTree)}
"""The classes that a checkpoint of a training may hold, beside those of its followers."""


@dataclass(frozen=True)
class StepReport:
    """A step as followers see it.

    Args:
        update: its number, from 1.
        epoch: complete epochs before it.
        loss: before the step.
        refusal: why the step was not taken; None if it was.
        parameters: as they are now.
    """

    update: int
    epoch: int
    loss: float
    refusal: str | None
    parameters: Sequence[Tensor]


class Follower:
    """What goes along with a training, and is copied and put back with it. Each method may be left as it is."""

    def before_step(self) -> None:
        """Before the loss of each batch."""

    def after_step(self, step: StepReport) -> None:
        """After each step, taken or refused."""

    def after_epoch(self, loss: float) -> None:
        """After each epoch, with its mean loss."""

    def state(self) -> Any:
        """A copy of all that the next step depends on, as a tree."""
        return None

    def restore(self, state: Any) -> None:
        """Be again as in a state, which is left as it is."""


@dataclass(eq=False)
class Trainer(Generic[M]):
    """Training as a step for :func:`boxloop.loop.run`: one block of mini-batches per iteration, validation after each
    epoch.

    The objective of an iteration is minus the mean of a reported number, before each step. Validation selects the best
    parameters, and stops training after ``plan.patience`` epochs without improvement; without validation the last
    parameters are used.

    Args:
        model: a :class:`Trainable`, whose tensors are copied; or, with an optimiser, anything that holds the tensors
            which this moves in place.
        batches: the batches of each epoch.
        loss: of a batch.
        plan: rates and blocks.
        penalty: of the rows of a batch, with weight ``plan.weight``.
        validate: validation loss.
        workers: processes that train together; gradients and reported numbers are means over them.
        optimiser: of torch, on tensors of the model; AdamW on copies of ``model.trainable()`` when None.
        followers: what is copied and put back with the training.
        objective: name of the reported number that the trace of the loop shows.

    Raises:
        FloatingPointError: ten consecutive steps are refused.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> from boxloop.data import ArraySource
        >>> from boxloop.fit.minibatches import Epochs
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
        >>> outcome = run(trainer, trainer.start(seed=0), max_iter=trainer.iterations(100))
        >>> outcome.state.fitted(start).at.round(decimals=0)
        tensor([2., 5.], dtype=torch.float64)
    """

    model: M
    batches: BatchSource
    loss: Loss
    plan: TrainPlan
    penalty: Penalty[M] | None = None
    validate: Validation[M] | None = None
    workers: Workers = SINGLE_PROCESS
    optimiser: Optimizer | None = None
    followers: Sequence[Follower] = ()
    objective: str = "loss"

    def __post_init__(self) -> None:
        self._live: Any = self.model
        if self.optimiser is None:
            trainable: Any = self.model
            self.parameters: list[Tensor] = [
                value.detach().clone().requires_grad_() for value in trainable.trainable()
            ]
            self._live = trainable.with_trainable(tuple(self.parameters))
            self.device: torch.device = self.parameters[0].device
            graphed, fused = self.device.type == "cuda", self.device.type in ("cpu", "cuda")
            rate: Any = torch.zeros((), device=self.device) if graphed else 0.0  # set at every step
            self._optimiser: Optimizer = AdamW(
                self.parameters, lr=rate, weight_decay=self.plan.decay, fused=fused, capturable=graphed
            )
        else:
            self._optimiser = self.optimiser
            self.parameters = [value for group in self.optimiser.param_groups for value in group["params"]]
            self.device = self.parameters[0].device
        self._state: TrainState | None = None  # where everything stands; None in the middle of a block
        self._batches: Iterator[Any] | None = None  # the rest of the present epoch
        self._graphs: StepGraphs | None = None
        self._refusal = ""  # why steps cannot be captured in a graph

    def start(self, seed: int) -> TrainState:
        """The state before the first step."""
        none = torch.zeros(0, dtype=torch.float64)
        state = self._copy_state(TrainState((), None, (), (), none, none, none[:, None], seed))
        self._state = replace(state, best=state.parameters)
        return self._state

    def restore(self, state: TrainState) -> None:
        """Put parameters, optimiser and followers back to where they were in a state."""
        with torch.no_grad():
            for value, before in zip(self.parameters, state.parameters, strict=True):
                value.copy_(before)
        rates = [group["lr"] for group in self._optimiser.param_groups]
        self._optimiser.load_state_dict(from_tree(state.optimiser))
        for group, rate in zip(self._optimiser.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):  # the same tensor, on its device
                group["lr"] = rate
        for follower, before in zip(self.followers, state.followers, strict=True):
            follower.restore(before)
        self._batches, self._graphs = None, None  # graphs hold the addresses of what the optimiser had
        self._state = state

    def iterations(self, epochs: int) -> int:
        """Iterations of the loop for a number of epochs."""
        return epochs * (1 if self.plan.block is None else -(-self.batches.per_epoch // self.plan.block))

    def __call__(self, state: TrainState) -> Iteration[TrainState]:
        """One block of mini-batches."""
        if state is not self._state:
            self.restore(state)
        self._state = None
        block = self._run_block(state)
        if not block.count:
            raise ValueError("batches are empty: there is nothing to train on")
        after = self._add_block(state, block)
        events = list(block.notes)
        if block.rejected:
            events.append(
                f"{block.rejected} of {block.count} steps had a loss or gradient that is not finite: refused"
                + (f", learning rate lowered to {after.slower:.3g} of its plan" if block.slower < 1.0 else "")
            )
        final, improved = False, False
        if self.plan.block is None or after.place == self.batches.per_epoch:
            after, improved = self._finish_epoch(after)
            if self.validate is not None and not math.isfinite(
                after.history_by_name()["validation_loss"][-1]
            ):
                events.append("the validation loss is not finite")
            final = self.plan.patience is not None and after.stale >= self.plan.patience
        after = self._copy_state(after)
        if improved:
            after = replace(after, best=after.parameters)
        objective = -float(after.recent[after.names.index(self.objective)])
        self._state = after
        return Iteration(after, objective, tuple(events), final, rejected=block.rejected == block.count)

    def _copy_state(self, state: TrainState) -> TrainState:
        """A state with copies of everything that steps change in place."""
        return replace(
            state,
            parameters=tuple(value.detach().clone() for value in self.parameters),
            optimiser=to_tree(self._optimiser.state_dict()),
            followers=tuple(follower.state() for follower in self.followers),
        )

    def _run_block(self, state: TrainState) -> BlockTotals:
        """The steps of a block, on a GPU from graphs if possible."""
        streams = [make_generator_at(state.seed, place, state.count, device=self.device) for place in (0, 2)]
        if self._batches is None or state.place == 0:
            self._batches = self.batches.epoch(state.epoch, state.place)
        batches = islice(self._batches, self.plan.block)
        if not self.is_graphed:
            return self._take_steps(state, batches, streams)
        try:
            return self._replay_steps(state, batches, streams)
        except RuntimeError:
            if self._graphs is None or not self._graphs.refusal:
                raise
            self._refusal = self._graphs.refusal
        self.restore(state)
        self._state = None
        note = f"steps cannot be captured in a CUDA graph and run one by one ({self._refusal})"
        return replace(self._run_block(state), notes=(note,))

    @property
    def is_graphed(self) -> bool:
        """Resampling and followers wait for the device, and processes for one another: none can be captured."""
        waits = (
            bool(self.followers)
            or not self.workers.alone
            or (self.penalty is not None and self.plan.by_weight)
        )
        own = self.optimiser is None and self.plan.rate is not None
        return self.device.type == "cuda" and own and self.plan.graphs and not waits and not self._refusal

    def _replay_steps(
        self, state: TrainState, batches: Iterator[Any], streams: Sequence[Generator]
    ) -> BlockTotals:
        """Steps from CUDA graphs, looked at together."""
        rate, plan = self.plan.rate, self.plan
        assert rate is not None
        if self._graphs is None:
            self._graphs = StepGraphs(self.parameters, self._optimiser, self._report, plan.clip, plan.backoff)
        steps = (
            GraphStep(rows, weight, rate(t), 0.0 if self.penalty is None else plan.weight(t))
            for t, (rows, weight) in enumerate(batches, state.count + 1)
        )
        block, most_refused = self._graphs.run(steps, streams, state.refused, state.slower)
        if most_refused >= PATIENCE:
            raise FloatingPointError(_describe_failure(state.count + 1, state.count + block.count, ""))
        return block

    def _take_steps(
        self, state: TrainState, batches: Iterator[Any], streams: Sequence[Generator]
    ) -> BlockTotals:
        """Steps one by one, each looked at before the next."""
        block = BlockTotals(state.refused, state.slower)
        for t, batch in enumerate(batches, state.count + 1):
            for follower in self.followers:
                follower.before_step()
            values, refusal = self._take_step(batch, t, block.slower, streams)
            block.count, block.names = block.count + 1, tuple(values)
            if refusal is None:
                rows = count_rows(batch)
                totals = block.sums or [0.0] * len(values)
                block.sums = [total + rows * value for total, value in zip(totals, values.values())]
                block.rows, block.refused = block.rows + rows, 0
            else:
                block.rejected, block.refused = block.rejected + 1, block.refused + 1
                block.slower *= self.plan.backoff
            report = StepReport(t, state.epoch, values["loss"], refusal, self.parameters)
            for follower in self.followers:
                follower.after_step(report)
            if block.refused >= PATIENCE:
                raise FloatingPointError(_describe_failure(t - PATIENCE + 1, t, f"; at the last {refusal}"))
        return block

    def _take_step(
        self, batch: Any, t: int, slower: float, streams: Sequence[Generator]
    ) -> tuple[dict[str, float], str | None]:
        """The reported numbers before one step, and why it was not taken."""
        self._optimiser.zero_grad()
        weight = 0.0 if self.penalty is None else self.plan.weight(t)
        reported = self._report(batch, weight, streams)
        reported["loss"].backward(inputs=self.parameters)
        gradients = [value.grad for value in self.parameters if value.grad is not None]
        if not self.workers.alone:
            _average_gradients(gradients, self.workers)
        norm = get_total_norm(gradients)
        numbers = [*(value.detach() for value in reported.values()), norm]
        if self.workers.alone and self.device.type == "cpu":
            *values, length = [value.item() for value in numbers]
        else:
            *values, length = self.workers.mean(torch.stack([value.double() for value in numbers])).tolist()
        named = dict(zip(reported, values, strict=True))
        wrong = [f"the {name} is {value}" for name, value in named.items() if not math.isfinite(value)]
        if wrong or not math.isfinite(length):
            return named, (wrong or [f"the norm of the gradient is {length}"])[0]
        if self.plan.clip is not None and length > self.plan.clip:
            clip_grads_with_norm_(self.parameters, self.plan.clip, norm)
        if self.plan.rate is not None:
            rate = slower * self.plan.rate(t)
            for group in self._optimiser.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:  # in float32, as a GPU holds it, so that devices agree
                    group["lr"] = float(np.float32(rate))
        self._optimiser.step()
        return named, None

    def _report(self, batch: Any, penalty_weight: float | Tensor, streams: Sequence[Generator]) -> Parts:
        """The loss of a batch with its penalty, which has a generator of its own, and the other numbers to report."""
        penalised = isinstance(penalty_weight, Tensor) or penalty_weight != 0.0
        kind = self.device.type
        with torch.autocast(kind, torch.bfloat16, cache_enabled=False) if self.plan.mixed else nullcontext():
            loss, parts = self.loss(self._live, *batch, streams[0])
        reported = {"loss": loss, **parts}
        if self.penalty is not None:
            with torch.set_grad_enabled(penalised):
                rows, weight = batch
                sample = resample_rows(rows, weight, streams[1]) if self.plan.by_weight else rows
                reported["penalty"] = self.penalty(self._live, sample, streams[1])
            if penalised:
                reported["loss"] = loss + reported["penalty"] * penalty_weight
        return reported

    def _add_block(self, state: TrainState, block: BlockTotals) -> TrainState:
        """The numbers of a state after a block."""
        totals = torch.tensor([block.rows, *(block.sums or [0.0] * len(block.names))], dtype=torch.float64)
        return replace(
            state,
            totals=state.totals + totals if state.totals.numel() else totals,
            recent=totals[1:] / totals[0],
            names=block.names,
            place=state.place + block.count,
            count=state.count + block.count,
            taken=state.taken + block.count - block.rejected,
            refused=block.refused,
            slower=block.slower,
        )

    def _finish_epoch(self, state: TrainState) -> tuple[TrainState, bool]:
        """The numbers of a state at the end of an epoch, with a new row of the history; and whether it is the best."""
        means = (state.totals[1:] / state.totals[0]).tolist()
        line = dict(zip(state.names, means, strict=True))
        if self.plan.rate is not None:
            line["rate"] = state.slower * self.plan.rate(state.count)
        line["refused"] = float(state.count - state.taken)
        for follower in self.followers:
            follower.after_epoch(line["loss"])
        lowest, stale, improved = state.lowest, 0, True
        if self.validate is not None:
            with torch.no_grad():
                loss, parts = self.validate(self._live, make_generator_at(state.seed, 1, device=self.device))
            named = {"validation_loss": loss, **{f"validation_{name}": part for name, part in parts.items()}}
            numbers = torch.tensor([float(part) for part in named.values()], dtype=torch.float64)
            numbers = self.workers.mean(numbers.to(self.device))
            line |= dict(zip(named, numbers.tolist(), strict=True))
            improved = line["validation_loss"] < state.lowest
            lowest = line["validation_loss"] if improved else state.lowest
            stale = 0 if improved or state.count <= self.plan.least else state.stale + 1
        fresh = torch.tensor([list(line.values())], dtype=torch.float64)
        done = replace(
            state,
            totals=torch.zeros_like(state.totals),
            history=torch.cat([state.history, fresh]) if state.columns else fresh,
            columns=tuple(line),
            epoch=state.epoch + 1,
            place=0,
            lowest=lowest,
            stale=stale,
        )
        return done, improved


def count_rows(batch: Any) -> int:
    """Rows of a batch: entries of the last tensor of the last of its parts."""
    while isinstance(batch, tuple | list):
        batch = batch[-1]
    return len(batch) if isinstance(batch, Tensor) and batch.ndim else 1


def _average_gradients(gradients: Sequence[Tensor], workers: Workers) -> None:
    """Gradients as the mean over processes, in place."""
    flat = workers.mean(torch.cat([value.reshape(-1) for value in gradients]))
    for value, part in zip(gradients, flat.split([value.numel() for value in gradients]), strict=True):
        value.copy_(part.view_as(value))


def _describe_failure(first: int, last: int, why: str) -> str:
    return (
        f"The loss or its gradient was not finite in {PATIENCE} steps in a row ({first} to {last}{why}): lower the "
        "learning rate, clip the gradient, train in full precision, or look for missing or huge values in the rows"
    )
