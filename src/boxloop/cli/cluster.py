"""``--workers`` and ``--cluster``: rows that are read and summed by the workers of a Dask cluster."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any

import click

ANSWER_SECONDS = 10.0
"""Seconds in which a scheduler must answer."""

KEEP_MEMORY = "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_"
"""Dask's workers give memory back at once, and then take it anew for every tile: a pass would take twice as long."""

LOST_WORKER_TIMEOUT = "distributed.deploy.lost-worker-timeout"
"""How long Dask waits for a worker to come back: 15 seconds are too few on a busy machine."""

CERTIFICATES = (
    "certificates are needed: name their files in Dask's settings distributed.comm.tls.ca-file, "
    "distributed.comm.tls.client.cert and distributed.comm.tls.client.key, or in the environment, as "
    "DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on"
)

DASK_MISSING = "--workers and --cluster need Dask: pip install boxloop[dask]"


def _check_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"(tcp|tls)://.+:\d+", value):
        raise click.BadParameter(f"{value}: give the scheduler as tcp://HOST:PORT or tls://HOST:PORT")
    return value


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--workers`` and ``--cluster``, which :func:`open_cluster` reads."""
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Processes of this machine, one thread each, that share the passes over DATA.",
    )
    cluster = click.option(
        "--cluster",
        metavar="ADDRESS",
        callback=_check_address,
        help="Dask scheduler whose workers share them instead: tcp://HOST:PORT or tls://HOST:PORT.",
    )
    return workers(cluster(function))


@contextmanager
def open_cluster(workers: int | None, address: str | None) -> Iterator[bool]:
    """Run a block with a cluster where one was asked for; workers of our own end with it."""
    if workers is not None and address is not None:
        raise click.UsageError("--workers and --cluster exclude each other: give one")
    if workers is None and address is None:
        yield False
        return
    try:
        import distributed  # noqa: F401  (Dask itself comes with it)
    except ImportError as error:
        raise ImportError(DASK_MISSING) from error
    from boxloop.data import ClusterError

    try:
        with _start_workers(workers) if workers is not None else _connect_to_scheduler(str(address)):
            yield True
    except ClusterError as error:
        raise ConnectionError(_name_checkpoint_option(str(error))) from error


def _name_checkpoint_option(message: str) -> str:
    """The message about a lost cluster, with the option that continues the command, if it has one."""
    context = click.get_current_context(silent=True)
    kept = context is None or any(option.name == "checkpoint" for option in context.command.params)
    return (
        message.replace("checkpoint=", "--checkpoint") if kept else message.partition("; with checkpoint=")[0]
    )


@contextmanager
def _start_workers(workers: int) -> Iterator[None]:
    """A client of processes that are started here, and reachable from this machine alone."""
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set({KEEP_MEMORY: 1 << 25, LOST_WORKER_TIMEOUT: "5 minutes"}), _close_in_order() as held:
        with _defer_interrupt():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",  # its pages are off, but a port is taken in any case
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,  # rows are read in batches, and a share may be less than libraries take
                silence_logs="CRITICAL",
            )
        held.enter_context(cluster)
        held.enter_context(Client(cluster))
        yield


@contextmanager
def _close_in_order() -> Iterator[ExitStack]:
    """Hold a cluster, and let go of it in order: Ctrl-C, which ended the work, does not end that, too."""
    with ExitStack() as held:
        try:
            yield held
        finally:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                held.close()
            finally:
                signal.signal(signal.SIGINT, before)


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back; threads and processes that are started meanwhile never get it.

    A terminal sends it to all processes. This one ends the iteration and the workers; they must not end by themselves.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # a first process would start it, and hear Ctrl-C again after that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _connect_to_scheduler(address: str) -> Iterator[None]:
    """A client of a scheduler that others started; certificates are those of Dask's configuration."""
    from distributed import Client
    from distributed.security import Security

    if address.startswith("tls:") and Security().get_connection_args("client").get("ssl_context") is None:
        raise ConnectionError(f"--cluster {address}: {CERTIFICATES}")
    with _silence_logger("distributed.client"), _close_in_order() as held:
        try:
            held.enter_context(Client(address, timeout=ANSWER_SECONDS))
        except (OSError, ValueError, MemoryError) as error:
            raise ConnectionError(f"--cluster {address}: no Dask scheduler answers there: {error}") from error
        yield


@contextmanager
def _silence_logger(name: str) -> Iterator[None]:
    """Keep a logger from repeating what an error of ours says."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
