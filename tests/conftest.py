"""The same ground for every test process, however it was started."""

import gc
import random
import signal
from collections.abc import Iterator
from multiprocessing import forkserver, get_context
from types import SimpleNamespace
from typing import Any

import pytest

# A shell that starts tests in the background has Ctrl-C ignored; the tests of Ctrl-C send it themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests are found and kept: what holds them is never garbage, and need not be looked through again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """A file stays with one worker, so that what its tests share is made once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


@pytest.fixture(autouse=True)
def _chance_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to chance is the same in every run, in whatever order and on whichever worker a test comes."""
    import torch

    from boxloop.numeric import random as ours

    chance = random.Random(request.node.nodeid)
    monkeypatch.setattr(ours, "secrets", SimpleNamespace(randbits=chance.getrandbits))
    torch.manual_seed(chance.getrandbits(62))


@pytest.fixture(scope="session")
def quick_workers() -> Iterator[None]:
    """Workers of a cluster begin as copies of one process that has imported what is slow to import, but not boxloop.

    A worker that imports all by itself takes seconds, most of them for libraries that are not ours.
    """
    import dask

    get_context("forkserver").set_forkserver_preload(
        [
            "distributed",
            "dask.array",
            "dask.dataframe",
            "pandas",
            "pyarrow.parquet",
            "sklearn.cluster",
            "torch",
        ]
    )
    forkserver.ensure_running()  # before Dask, which has a list of its own
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield
