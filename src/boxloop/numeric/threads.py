"""Threads: a fit runs on one thread of every pool, and the caller's settings come back when it ends.

A process that uses this library has up to four pools: OpenMP of torch and of scikit-learn, OpenBLAS of NumPy and of
SciPy. Where the work alternates between two of them, the idle workers of one spin while those of the other wait for a
core: a mixture of 20,000 x 10 rows took 25 times as long on two cores as on one. So all pools are limited together.

BLAS pools are limited for the process: the first fit limits them and the last one restores them. OpenMP and torch keep
one setting for each Python thread, so each thread limits and restores its own.
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
from threadpoolctl import ThreadpoolController

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


@contextmanager
def limit_threads() -> Iterator[None]:
    """Run the block on one thread of each pool; a block inside another one changes nothing."""
    if _thread.limited:
        yield
        return
    with _process.limit() as torch_threads:
        try:
            with _pools("openmp").limit(limits=1):
                torch.set_num_threads(_torch_threads.get())  # MKL's threads too, which are in no pool
                _thread.limited = True
                yield
        finally:
            _thread.limited = False
            torch.set_num_threads(torch_threads)


def single_threaded(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run under :func:`limit_threads`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with limit_threads():
            return function(*args, **kwargs)

    return call


class SingleThreaded:
    """Base of classes whose public methods run under :func:`limit_threads`, those of subclasses too."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if isinstance(value, FunctionType) and not name.startswith("_"):
                setattr(cls, name, single_threaded(value))


class _ThreadState(threading.local):
    """Whether this Python thread is inside :func:`limit_threads`."""

    limited = False


class _ProcessLimit:
    """What concurrent fits share: the limit of the BLAS pools, and the user's number of torch threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.limiter: Any = None
        self.users_torch_threads = 1

    @contextmanager
    def limit(self) -> Iterator[int]:
        """Limit BLAS while at least one fit is inside; yields the torch threads that the caller goes back to."""
        with self.lock:
            torch_threads = torch.get_num_threads()
            if self.users == 0:
                self.users_torch_threads = torch_threads
                self.limiter = _pools("blas").limit(limits=1)
            elif torch_threads == 1:  # a thread that began during another one's fit has inherited its limit
                torch_threads = self.users_torch_threads
            self.users += 1
        try:
            yield torch_threads
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    self.limiter.restore_original_limits()

    def renew_lock(self) -> None:
        """A child process has no use for a lock that another thread held when it was forked."""
        self.lock = threading.Lock()


def _pools(kind: str) -> Any:
    """The loaded thread pools of one kind."""
    return _find_pools(kind, tuple(name for name in LIBRARIES if name in sys.modules))


@cache
def _find_pools(kind: str, loaded: tuple[str, ...]) -> Any:
    """Looking them up takes half a millisecond, so it is done once."""
    return ThreadpoolController().select(user_api=kind)


_thread, _process = _ThreadState(), _ProcessLimit()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_process.renew_lock)
