r"""Training by gradient: any model whose tensors can be learned, in mini-batches, in the loop of :mod:`boxloop.loop`.

.. math:: \theta_t = \theta_{t-1} - \mathrm{AdamW}\left( \nabla_\theta \left[ \overline{\ell_\theta}_{\text{batch}}
          + \alpha_t \, P_\theta(\text{batch}) \right] \right)

A round is a block of mini-batches, on a GPU a CUDA graph that is replayed. Within it nothing waits for the device: a
loss or gradient that is not finite leaves parameters and Adam's means as they are and halves the learning rate, all by
``where``; what happened is read once, at the end. The random numbers of a block follow from the seed and its place, so
that a restart needs no generator's state and may be on another device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic

import torch
from torch import Generator, Tensor

from boxloop.fit.adam import PATIENCE, Adam, clipped, parted, stream_at
from boxloop.fit.parallel import ALONE, Workers
from boxloop.fit.train_graph import Graphs, Turn, Walk
from boxloop.fit.train_state import (
    Batched,
    Loss,
    M,
    Penalty,
    TrainPlan,
    TrainState,
    Validation,
    drawn_by_weight,
)
from boxloop.loop import Iteration


@dataclass(frozen=True)
class Trainer(Generic[M]):
    """Training as a step for :func:`boxloop.loop.run`: one block of mini-batches a round, validation after each epoch.

    The objective of a round is minus its mean loss, before each step. Validation keeps the best parameters, and ends
    training when none came for ``plan.patience`` epochs; without validation the last are kept.

    Args:
        model: the start; its learned tensors are replaced by those of the state.
        batches: rows and weights of update t.
        loss: of a batch.
        plan: rates and blocks.
        penalty: of a batch, weighed by ``plan.weight``.
        validate: on rows held out.
        workers: the processes that train together: gradients and numbers are means over them.

    Raises:
        FloatingPointError: ten steps in a row are refused.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> from boxloop.data import ArraySource
        >>> from boxloop.fit.adam import Constant
        >>> from boxloop.fit.epochs import Epochs
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
    workers: Workers = ALONE

    @cached_property
    def graphs(self) -> Graphs:
        """Steps that were captured."""
        return Graphs()

    def rounds(self, epochs: int) -> int:
        """Rounds of so many epochs."""
        return epochs * -(-self.batches.per_epoch // self.plan.block)

    def epochs(self, state: TrainState) -> int:
        """Epochs that are complete."""
        return state.count // self.batches.per_epoch

    def __call__(self, state: TrainState) -> Iteration[TrainState]:
        """One block of mini-batches."""
        whole = self.batches.per_epoch
        stop = min(state.count + self.plan.block, (state.count // whole + 1) * whole)
        walk, names, refusal = self._block(state, range(state.count, stop))
        moved, events = _read(state, walk, names, stop)
        events = (*refusal, *events)
        objective = -float(moved.recent[0])
        if stop % whole:
            return Iteration(moved, objective, events)
        done, worries = self._closed(moved)
        final = self.plan.patience is not None and done.stale >= self.plan.patience
        return Iteration(done, objective, (*events, *worries), final=final)

    def _block(self, state: TrainState, steps: range) -> tuple[Walk, tuple[str, ...], tuple[str, ...]]:
        """One step after another: replayed from a graph on a GPU, where they can be."""
        device = state.point.device
        streams = [stream_at(state.seed, place, state.count, device=device) for place in (0, 2)]
        walk, names = _walk(state), state.names
        said: tuple[str, ...] = ()
        if device.type == "cuda" and self._graphed:
            try:
                return *self.graphs.block(self.moved, walk, map(self._turn, steps), streams), ()
            except RuntimeError:
                if not self.graphs.refusal:
                    raise
            said = (f"steps cannot be captured in a graph, and are run as they are ({self.graphs.refusal})",)
        for t in steps:
            walk, names = self._step(walk, t, *streams)
        return walk, names, said

    @property
    def _graphed(self) -> bool:
        """Rows drawn by weight wait for the device, and several processes for one another: they have no graph."""
        waits = not self.workers.alone or (self.penalty is not None and self.plan.by_weight)
        return self.plan.graphs and not waits and not self.graphs.refusal

    def _turn(self, t: int) -> Turn:
        """The input of update t."""
        heavy = 0.0 if self.penalty is None else self.plan.weight(t + 1)
        return Turn(*self.batches(t), self.plan.rate(t + 1), heavy, heavy != 0.0)

    def _step(self, walk: Walk, t: int, stream: Generator, other: Generator) -> tuple[Walk, tuple[str, ...]]:
        """One mini-batch."""
        return self.moved(walk, self._turn(t), stream, other)

    def moved(
        self, walk: Walk, turn: Turn, stream: Generator, other: Generator
    ) -> tuple[Walk, tuple[str, ...]]:
        """One step: the next parameters, or the same ones where a number is not finite.

        The penalty draws from a stream of its own: until it begins, a run is the one without it.
        """
        rows, weight = turn.rows, turn.weight
        leaf = walk.point.detach().requires_grad_()
        here = self.model.with_trainable(parted(leaf, self.model.trainable()))
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=self.plan.mixed, cache_enabled=False):
            loss, parts = self.loss(here, rows, weight, stream)
        told = {"loss": loss, **parts}
        if self.penalty is not None:
            with torch.set_grad_enabled(turn.penalised):
                seen = drawn_by_weight(rows, weight, other) if self.plan.by_weight else rows
                told["penalty"] = self.penalty(here, seen, other)
            if turn.penalised:
                told["loss"] = loss = loss + told["penalty"] * turn.heavy
        (gradient,) = map(self.workers.mean, torch.autograd.grad(loss, leaf))
        values = self.workers.mean(torch.stack([value.detach().double() for value in told.values()]))
        norm = gradient.norm()
        fine = torch.isfinite(norm) & torch.isfinite(values).all()
        taken = walk.taken + fine
        adam, point = walk.adam.step(
            walk.point,
            clipped(gradient, self.plan.clip, norm),
            taken.clamp(min=1.0),
            walk.slower * turn.rate,
            self.plan.decay,
        )
        refused = torch.where(fine, 0.0, walk.refused + 1.0)
        fresh = torch.cat([values.new_ones(1), values]) * len(rows)
        point, adam = _chosen(fine, (point, adam), (walk.point, walk.adam))
        after = Walk(
            point,
            adam,
            taken,
            torch.where(fine, walk.slower, 0.5 * walk.slower),
            refused,
            torch.maximum(walk.worst, refused),
            torch.where(fine, fresh, 0.0) + (walk.totals if walk.totals.numel() else 0.0),
        )
        return after, tuple(told)

    def _closed(self, state: TrainState) -> tuple[TrainState, tuple[str, ...]]:
        """The state at the end of an epoch: validated, and entered into the history."""
        rows, sums = state.totals[0], state.totals[1:]
        line = {name: float(value) for name, value in zip(state.names, sums / rows, strict=True)}
        line["rate"] = state.slower * self.plan.rate(state.count)
        line["refused"] = float(state.count - state.taken)
        closed = replace(state, totals=torch.zeros_like(state.totals))
        worries: tuple[str, ...] = ()
        if self.validate is None:
            closed = replace(closed, best=state.point)
        else:
            here = self.model.with_trainable(parted(state.point, self.model.trainable()))
            with torch.no_grad():
                found, parts = self.validate(here, stream_at(state.seed, 1, device=state.point.device))
            judged = {
                "validation_loss": found,
                **{f"validation_{name}": part for name, part in parts.items()},
            }
            numbers = torch.tensor([float(part) for part in judged.values()], dtype=torch.float64)
            numbers = self.workers.mean(numbers.to(state.point.device))
            line |= dict(zip(judged, numbers.tolist(), strict=True))
            value = line["validation_loss"]
            better = value < state.lowest
            closed = replace(
                closed,
                best=state.point if better else state.best,
                lowest=value if better else state.lowest,
                stale=0 if better or state.count <= self.plan.least else state.stale + 1,
            )
            worries = () if math.isfinite(value) else ("the loss on validation rows is not finite",)
        fresh = torch.tensor([list(line.values())], dtype=torch.float64)
        history = torch.cat([state.history, fresh]) if state.columns else fresh
        return replace(closed, history=history, columns=tuple(line)), worries


def _chosen(fine: Tensor, new: tuple[Tensor, Adam], old: tuple[Tensor, Adam]) -> tuple[Tensor, Adam]:
    """What a step made, or what was there before; a CPU need not copy to choose."""
    if not fine.is_cuda:
        return new if bool(fine) else old
    return torch.where(fine, new[0], old[0]), new[1].map(lambda a, b: torch.where(fine, a, b), old[1])


def _walk(state: TrainState) -> Walk:
    def number(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=state.point.device)

    adam = Adam(state.first, state.second)
    return Walk(
        state.point,
        adam,
        number(state.taken),
        number(state.slower),
        number(state.refused),
        number(state.refused),
        torch.zeros(0),
    )


def _read(
    state: TrainState, walk: Walk, names: tuple[str, ...], stop: int
) -> tuple[TrainState, tuple[str, ...]]:
    """What a block did, in one transfer from the device."""
    numbers = torch.cat([torch.stack([walk.taken, walk.slower, walk.refused, walk.worst]), walk.totals]).cpu()
    taken, slower, refused, worst = numbers[:4].tolist()
    totals = numbers[4:]
    if worst >= PATIENCE:
        raise FloatingPointError(
            f"the loss or its gradient was not finite in {PATIENCE} steps in a row, among steps {state.count + 1} to "
            f"{stop}: lower the learning rate, check that the networks give finite values, or train in full precision"
        )
    moved = replace(
        state,
        point=walk.point,
        first=walk.adam.first,
        second=walk.adam.second,
        totals=state.totals + totals if state.totals.numel() else totals,
        recent=totals[1:] / totals[0],
        names=names,
        count=stop,
        taken=int(taken),
        refused=int(refused),
        slower=slower,
    )
    lost = (stop - state.count) - (int(taken) - state.taken)
    event = f"{lost} of {stop - state.count} steps had a loss or gradient that is not finite: refused, learning rate "
    return moved, (f"{event}lowered to {slower:.3g} of its plan",) if lost else ()
