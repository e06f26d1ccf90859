r"""Training shared by several processes, by ``torch.distributed``: every process takes its rows of every mini-batch.

.. math:: \nabla \ell = \frac1w \sum_{r=1}^w \nabla \ell_r, \qquad
          \ell_r = \frac{w}{n} \sum_{i \in \text{share } r} \ell(x_i)

All processes see the same batches, in the same order, and draw the same random numbers. What is lowered is the mean of
the processes' losses, so a loss that knows nothing of this is right, and merely computed by all of them; one that is a
mean over rows takes its share of them (:meth:`Workers.mine`); one that is a function of averages of rows adds these up
(:meth:`Workers.sum`). Parameters, and all that is decided, are then those of one process with the same batches, to
rounding.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from boxloop.loop import Iteration

S = TypeVar("S")

ALIKE = 1e-6
"""Relative difference of what should be the same in all processes that their rounding may cause."""


@dataclass(frozen=True)
class Workers:
    """Processes that train one model together; by default one, for which nothing here does anything.

    Args:
        rank: number of this process, from 0.
        size: how many there are, w.
        group: of ``torch.distributed``, None for all of its processes.

    Example:
        >>> import torch
        >>> Workers().sum(torch.ones(2))
        tensor([1., 1.])
        >>> [Workers(rank, 3).mine(10)[0] for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    @property
    def alone(self) -> bool:
        """Whether there is nobody to hear from."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and shows."""
        return self.rank == 0

    def mine(self, n: int) -> tuple[slice, float]:
        """Which of n rows are this process's, and the count by which to divide its sums.

        Sums over one's own rows, divided by the count, have as their mean over processes the mean over all rows. Of
        fewer rows than processes each takes all.
        """
        if n < self.size:
            return slice(0, n), float(n)
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size), n / self.size

    def sum(self, value: Tensor) -> Tensor:
        """Over processes, on each of them; nothing is differentiated."""
        if self.alone:
            return value
        total = value.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def mean(self, value: Tensor) -> Tensor:
        """Over processes, on each of them; not finite on all where it is not on one."""
        return value if self.alone else self.sum(value).div_(self.size)

    def count(self, n: int, device: torch.device) -> int:
        """How many all processes have together; they wait here for one another."""
        return n if self.alone else int(self.sum(torch.tensor(n, device=device)))

    def alike(self, values: Tensor) -> bool:
        """Whether all processes have the same numbers, to rounding."""
        if self.alone:
            return True
        ends = torch.cat([values, -values]).double().nan_to_num()
        dist.all_reduce(ends, dist.ReduceOp.MAX, group=self.group)
        high, low = ends.chunk(2)
        return bool((high + low <= ALIKE * torch.maximum(high.abs(), low.abs())).all())

    @contextmanager
    def together(
        self, step: Callable[[S], Iteration[S]], device: torch.device
    ) -> Iterator[Callable[[S], Iteration[S]]]:
        """The step of a loop which Ctrl-C on any process ends on all of them, in the same round.

        One that left the loop alone would leave the others waiting for it; so Ctrl-C waits for the end of the round.
        """
        asked: list[int] = []

        def agreed(state: S) -> Iteration[S]:
            done = step(state)
            if self.count(len(asked), device):
                raise KeyboardInterrupt
            return done

        main = threading.current_thread() is threading.main_thread()
        ours = not self.alone and main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
        try:
            yield step if self.alone else agreed
        finally:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)


ALONE = Workers()

_ACTIVE: ContextVar[Workers] = ContextVar("workers", default=ALONE)


def current() -> Workers:
    """The processes that share a fit here: those of :func:`distributed`, one outside of it."""
    return _ACTIVE.get()


@contextmanager
def distributed(group: Any = None, *, timeout: float = 600.0) -> Iterator[Workers]:
    """Within, networks are trained by all processes of ``torchrun`` together.

    Every process runs the same script with the same rows, parameters and integer ``random_state``, and ends with the
    same fit: that of one process, to rounding. Each takes its share of every mini-batch; checkpoints and progress are
    those of process 0. Shared are the fits of :class:`boxloop.VariationalAutoencoder`,
    :class:`boxloop.RelevantFeatures`, :class:`boxloop.RelevantClassifier` and :class:`boxloop.RelevantGenerator` in
    this thread; all else is done by every process by itself. In a script that was not started by ``torchrun`` there is
    one process, and nothing changes.

    The group is made from what ``torchrun`` tells and ended with the block; one that the script has made before is used
    as it is. Fits on processors talk by gloo, fits on GPUs by NCCL, each process with the card of its ``LOCAL_RANK`` as
    ``device="cuda"``.

    Args:
        group: of ``torch.distributed``, of which this process is one; all processes when omitted.
        timeout: seconds to wait for another process before giving up, of a group that is made here.

    Raises:
        ValueError: this process is not one of the group.

    Example:
        >>> import boxloop
        >>> with boxloop.distributed() as workers:
        ...     workers.rank, workers.size
        (0, 1)
    """
    own = not dist.is_initialized() and "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if own:
        card = int(os.environ.get("LOCAL_RANK", "0"))
        if card < torch.cuda.device_count():
            torch.cuda.set_device(card)  # and it stays: what is fitted here lives there
        ways = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(ways, timeout=timedelta(seconds=timeout))
    try:
        workers = ALONE
        if dist.is_initialized():
            workers = Workers(dist.get_rank(group), dist.get_world_size(group), group)
        if workers.rank < 0:
            raise ValueError("this process is not one of the group")
        token = _ACTIVE.set(workers)
        try:
            yield workers
        finally:
            _ACTIVE.reset(token)
    finally:
        if own:
            dist.destroy_process_group()
