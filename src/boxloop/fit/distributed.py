r"""Data-parallel training by ``torch.distributed``: every process computes its share of every mini-batch.

.. math:: \nabla \ell = \frac1w \sum_{r=1}^w \nabla \ell_r, \qquad
          \ell_r = \frac{w}{n} \sum_{i \in \text{share } r} \ell(x_i)

All processes see the same batches, in the same order, and draw the same random numbers. The loss is the mean of
those of the processes. So a loss that ignores processes is right, but computed by all of them; a mean over rows uses
a share of them (:meth:`Workers.local_rows`); a function of averages over rows adds these up (:meth:`Workers.sum`).
Parameters and decisions are then those of one process with the same batches, to rounding.
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

ROUNDING = 1e-6
"""Relative difference between processes that rounding may cause."""


@dataclass(frozen=True)
class Workers:
    """Processes that train one model together; by default a single one, for which every method is trivial.

    Args:
        rank: number of this process, from 0.
        size: number of processes, w.
        group: of ``torch.distributed``, None for all of its processes.

    Example:
        >>> import torch
        >>> Workers().sum(torch.ones(2))
        tensor([1., 1.])
        >>> [Workers(rank, 3).local_rows(10)[0] for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def local_rows(self, n: int) -> tuple[slice, float]:
        """The rows of this process among n, and the count by which to divide its sums.

        Sums over these rows, divided by the count, average over processes to the mean over all rows. With fewer rows
        than processes each process uses all rows.
        """
        if n < self.size:
            return slice(0, n), float(n)
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size), n / self.size

    def sum(self, value: Tensor) -> Tensor:
        """Sum over processes, on each of them; not differentiable."""
        if self.alone:
            return value
        total = value.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def mean(self, value: Tensor) -> Tensor:
        """Mean over processes, on each of them; not finite on all if it is not finite on one."""
        return value if self.alone else self.sum(value).div_(self.size)

    def count(self, n: int, device: torch.device) -> int:
        """Sum of a count over processes; a barrier."""
        return n if self.alone else int(self.sum(torch.tensor(n, device=device)))

    def have_equal(self, values: Tensor) -> bool:
        """Whether all processes have the same values, to rounding."""
        if self.alone:
            return True
        ends = torch.cat([values, -values]).double().nan_to_num()
        dist.all_reduce(ends, dist.ReduceOp.MAX, group=self.group)
        high, low = ends.chunk(2)
        return bool((high + low <= ROUNDING * torch.maximum(high.abs(), low.abs())).all())

    @contextmanager
    def interruptible(
        self, step: Callable[[S], Iteration[S]], device: torch.device
    ) -> Iterator[Callable[[S], Iteration[S]]]:
        """The step of a loop, which Ctrl-C on any process ends on all of them in the same iteration.

        A process that left the loop alone would leave the others waiting, so Ctrl-C takes effect at the end of an
        iteration.
        """
        interrupts: list[int] = []

        def stop_together(state: S) -> Iteration[S]:
            done = step(state)
            if self.count(len(interrupts), device):
                raise KeyboardInterrupt
            return done

        main = threading.current_thread() is threading.main_thread()
        handles = not self.alone and main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if handles:
            signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
        try:
            yield step if self.alone else stop_together
        finally:
            if handles:
                signal.signal(signal.SIGINT, signal.default_int_handler)


SINGLE_PROCESS = Workers()

ACTIVE_WORKERS: ContextVar[Workers] = ContextVar("workers", default=SINGLE_PROCESS)


def current_workers() -> Workers:
    """The processes of the present :func:`distributed` block; a single one outside."""
    return ACTIVE_WORKERS.get()


@contextmanager
def distributed(group: Any = None, *, timeout: float = 600.0) -> Iterator[Workers]:
    """A context in which all processes of ``torchrun`` train networks together.

    Every process runs the same script with the same rows, parameters and integer ``random_state``, and ends with the
    same fit: that of one process, to rounding. Each takes its share of every mini-batch; checkpoints and progress are
    those of process 0. This applies to the fits of :class:`boxloop.VariationalAutoencoder`,
    :class:`boxloop.RelevantFeatures`, :class:`boxloop.RelevantClassifier` and :class:`boxloop.RelevantGenerator` in
    this thread; everything else is done by every process for itself. In a script that was not started by
    ``torchrun`` there is one process, and nothing changes.

    The process group is created from the environment of ``torchrun`` and destroyed with the block; a group that exists
    is used. Fits on CPUs use gloo, fits on GPUs NCCL, with the GPU of ``LOCAL_RANK`` as ``device="cuda"``.

    Args:
        group: of ``torch.distributed``, which includes this process; all processes when None.
        timeout: seconds to wait for another process, for a group created here.

    Raises:
        ValueError: this process is not in the group.

    Example:
        >>> import boxloop
        >>> with boxloop.distributed() as workers:
        ...     workers.rank, workers.size
        (0, 1)
    """
    own = not dist.is_initialized() and "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if own:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)  # stays set: fitted models are on this GPU
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        workers = SINGLE_PROCESS
        if dist.is_initialized():
            workers = Workers(dist.get_rank(group), dist.get_world_size(group), group)
        if workers.rank < 0:
            raise ValueError("This process is not in the group.")
        token = ACTIVE_WORKERS.set(workers)
        try:
            yield workers
        finally:
            ACTIVE_WORKERS.reset(token)
    finally:
        if own:
            dist.destroy_process_group()
