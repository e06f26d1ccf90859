"""Threads: a fit runs on one thread of every pool, and the caller's settings come back when it ends.

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
from functools import cache, wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from threadpoolctl import OpenBLASController, ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")

LIBRARIES = ("numpy", "scipy.linalg", "sklearn.utils", "torch")
"""Modules that load a thread pool; pools are looked up again when one of them has been imported since."""

_torch_threads: ContextVar[int] = ContextVar("torch_threads", default=1)


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


class _ThreadLimit:
    """The limit of one Python thread. What it changes is noted first, so that ``end`` undoes a ``begin`` cut short."""

    def __init__(self) -> None:
        self.torch_threads: int | None = None
        self.openmp: list[tuple[Any, int]] = []

    def begin(self) -> None:
        """Limit the pools."""
        _process.begin(self)
        self.openmp = _settings("openmp")
        _thread.limit = self
        _limit(self.openmp)
        torch.set_num_threads(_torch_threads.get())  # MKL's threads too, which are in no pool

    def end(self) -> None:
        """Restore the pools. A second call changes nothing where the first one ran to its end."""
        if self.torch_threads is None:
            return
        _process.end(self)
        _restore(self.openmp)
        torch.set_num_threads(self.torch_threads)
        _thread.limit = None
        self.torch_threads = None


class _ProcessLimit:
    """What concurrent fits share: the limit of the BLAS pools, and the user's number of torch threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.limits: set[_ThreadLimit] = set()
        self.blas: list[tuple[Any, int]] = []
        self.users_torch_threads = 1

    def begin(self, limit: _ThreadLimit) -> None:
        """Limit BLAS if this fit is the first; note the torch threads that its Python thread goes back to."""
        with self.lock:
            torch_threads = torch.get_num_threads()
            if not self.limits:
                self.users_torch_threads = torch_threads
                self.blas = _settings("blas")
            elif torch_threads == 1:  # a thread that began during another one's fit has inherited its limit
                torch_threads = self.users_torch_threads
            limit.torch_threads = torch_threads
            self.limits.add(limit)
            _limit(self.blas)

    def end(self, limit: _ThreadLimit) -> None:
        """Restore BLAS if no other fit is left, and let the Python threads of other fits do so else."""
        with self.lock:
            if self.limits <= {limit}:
                self._restore_blas()
            self.limits.discard(limit)
            _clear_controlling_thread()

    def forget_other_threads(self) -> None:
        """A child process has the Python thread that was forked, and neither the fits nor the locks of others."""
        self.lock = threading.Lock()
        others = {limit for limit in self.limits if limit is not _thread.limit}
        self.limits -= others
        if others and not self.limits:
            self._restore_blas()
            _clear_controlling_thread()
            if torch.get_num_threads() == 1:
                torch.set_num_threads(self.users_torch_threads)

    def _restore_blas(self) -> None:
        """Only where the limit still stands: what is no longer 1, somebody else has set meanwhile."""
        _restore([(pool, threads) for pool, threads in self.blas if pool.num_threads == 1])


def _settings(kind: str) -> list[tuple[Any, int]]:
    """The loaded pools of one kind, each with its number of threads."""
    return [(pool, pool.num_threads) for pool in _pools(kind)]


def _limit(settings: list[tuple[Any, int]]) -> None:
    for pool, _ in settings:
        pool.set_num_threads(1)


def _restore(settings: list[tuple[Any, int]]) -> None:
    for pool, threads in settings:
        pool.set_num_threads(threads)


def _clear_controlling_thread() -> None:
    """Since 3.8 threadpoolctl ignores who sets OpenBLAS's threads, but for the Python thread that did it last."""
    getattr(OpenBLASController, "clear_controlling_thread", lambda: None)()


def _pools(kind: str) -> Any:
    """The loaded thread pools of one kind."""
    return _find_pools(kind, tuple(name for name in LIBRARIES if name in sys.modules))


@cache
def _find_pools(kind: str, loaded: tuple[str, ...]) -> Any:
    """Looking them up takes half a millisecond, so it is done once."""
    return ThreadpoolController().select(user_api=kind).lib_controllers


_thread, _process = _ThreadState(), _ProcessLimit()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_process.forget_other_threads)
