"""Devices as users name them, and threads: a fit uses one thread of every pool, then restores the caller's settings.

A process that uses this library has up to four pools: OpenMP of torch and of scikit-learn, OpenBLAS of NumPy and of
SciPy. Where the work alternates between two of them, the idle workers of one spin while those of the other wait for a
core: a mixture of 20,000 x 10 rows took 25 times as long on two cores as on one. So all pools are limited together.

BLAS pools are limited for the process: the first fit limits them and the last one restores them. OpenMP and torch keep
one setting for each Python thread, so each thread limits and restores its own. torch also gives its last setting to
threads that use it for the first time: one that does so during another one's fit begins with a single thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from threadpoolctl import OpenBLASController, ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")

LIBRARIES = ("numpy", "scipy.linalg", "sklearn.utils", "torch")
"""Modules that load a thread pool; pools are looked up again when one of them has been imported since."""

Settings = list[tuple[Any, int]]
"""Thread pools, each with its number of threads."""

release_openblas: Callable[[], None] = getattr(OpenBLASController, "clear_controlling_thread", lambda: None)
"""Since 3.8 threadpoolctl ignores who sets OpenBLAS's threads, but for the Python thread that did it last."""

_torch_threads: ContextVar[int] = ContextVar("torch_threads", default=1)

_without_gpu: ContextVar[bool] = ContextVar("without_gpu", default=False)


@contextmanager
def without_gpu() -> Iterator[None]:
    """Inside, ``"auto"`` is the CPU."""
    token = _without_gpu.set(True)
    try:
        yield
    finally:
        _without_gpu.reset(token)


def pick_device(device: str | torch.device) -> torch.device:
    """A torch device from ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` (CUDA where there is one)."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and not _without_gpu.get() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={str(device)!r} is no device: use 'cpu', 'cuda', 'cuda:1' or 'auto'"
        ) from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={str(device)!r} was asked for, but no CUDA device is available; use device='auto'"
        )
    return chosen


@contextmanager
def use_threads(n: int) -> Iterator[None]:
    """Let torch use n threads in the fits inside this block, instead of one.

    Worth it for large networks: small ones, mixtures and factor models are fastest on one thread. NumPy and SciPy keep
    one thread. Sums may round differently with another number of threads.

    Args:
        n: threads, at least 1.

    Example:
        >>> import numpy as np
        >>> from boxloop import GaussianMixture, use_threads
        >>> with use_threads(2):
        ...     mixture = GaussianMixture(2, random_state=0).fit(np.random.default_rng(0).normal(size=(100, 2)))
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n must be a whole number of threads, at least 1; got {n!r}")
    token = _torch_threads.set(n)
    try:
        yield
    finally:
        _torch_threads.reset(token)


def single_threaded(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run on one thread of each pool; inside another such function this changes nothing."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _thread.limit is not None:
            return function(*args, **kwargs)
        limit = _ThreadLimit()
        try:
            try:
                limit.begin()
                return function(*args, **kwargs)
            finally:
                limit.end()
        finally:
            limit.end()  # Ctrl-C may have cut the first one short

    return call


class SingleThreaded:
    """Base of classes whose public methods are :func:`single_threaded`, those of subclasses too."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if isinstance(value, FunctionType) and not name.startswith("_"):
                setattr(cls, name, single_threaded(value))


class _ThreadState(threading.local):
    """The limit that this Python thread is inside of."""

    limit: _ThreadLimit | None = None


@dataclass(eq=False)
class _ThreadLimit:
    """The limit of one Python thread. What it changes is noted first, so that ``end`` undoes a ``begin`` cut short."""

    torch_threads: int | None = None
    openmp: Settings = field(default_factory=list)

    def begin(self) -> None:
        """Limit OpenMP and torch in this Python thread, and BLAS in the process."""
        blas, openmp = _find_pools(tuple(name for name in LIBRARIES if name in sys.modules))
        with _process.lock:
            torch_threads = torch.get_num_threads()
            if not _process.limits:
                _process.users_torch_threads = torch_threads
                _process.blas = [(pool, pool.num_threads) for pool in blas]
            elif torch_threads == 1:  # a thread that began during another one's fit has inherited its limit
                torch_threads = _process.users_torch_threads
            self.torch_threads = torch_threads
            _process.limits.add(self)
            for pool, _ in _process.blas:
                pool.set_num_threads(1)
        self.openmp = [(pool, pool.num_threads) for pool in openmp]
        _thread.limit = self
        for pool, _ in self.openmp:
            pool.set_num_threads(1)
        torch.set_num_threads(_torch_threads.get())  # MKL's threads too, which are in no pool

    def end(self) -> None:
        """Restore the pools, BLAS if no other fit is left. A second call changes nothing where the first one ran to
        its end."""
        if self.torch_threads is None:
            return
        with _process.lock:
            if _process.limits <= {self}:
                _process.restore_blas()
            _process.limits.discard(self)
            release_openblas()  # to the Python threads of other fits
        for pool, threads in self.openmp:
            pool.set_num_threads(threads)
        torch.set_num_threads(self.torch_threads)
        _thread.limit = None
        self.torch_threads = None


@dataclass
class _ProcessState:
    """What concurrent fits share: their limits, the user's settings of BLAS and the user's number of torch threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    limits: set[_ThreadLimit] = field(default_factory=set)
    blas: Settings = field(default_factory=list)
    users_torch_threads: int = 1

    def restore_blas(self) -> None:
        """Only where the limit still stands: what is no longer 1, somebody else has set meanwhile."""
        for pool, threads in self.blas:
            if pool.num_threads == 1:
                pool.set_num_threads(threads)

    def forget_other_threads(self) -> None:
        """A child process has the Python thread that was forked, and neither the fits nor the locks of others."""
        self.lock = threading.Lock()
        others = {limit for limit in self.limits if limit is not _thread.limit}
        self.limits -= others
        if others and not self.limits:
            self.restore_blas()
            release_openblas()
            if torch.get_num_threads() == 1:
                torch.set_num_threads(self.users_torch_threads)


@cache
def _find_pools(loaded: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """BLAS and OpenMP pools. Looking them up takes half a millisecond, so it is done once."""
    pools = ThreadpoolController()
    return pools.select(user_api="blas").lib_controllers, pools.select(user_api="openmp").lib_controllers


_thread, _process = _ThreadState(), _ProcessState()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_process.forget_other_threads)
