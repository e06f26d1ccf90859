"""Tiles read ahead by a thread: the same tiles, in the same order, and the thread never outlives them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import boxloop
from boxloop.data import (
    PREFETCHED_TILES,
    ArraySource,
    MappedSource,
    PrefetchedSource,
    find_array,
    open_source,
    prefetch,
)
from boxloop.tree import Tree

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Kept(Tree):
    first: torch.Tensor


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("boxloop-prefetch")]


def counted(made: list[int], stop: int = 1000) -> Iterator[int]:
    for number in range(stop):
        made.append(number)
        yield number


def test_items_come_in_order_and_the_thread_ends() -> None:
    assert list(prefetch(iter(range(100)))) == list(range(100))
    assert not readers()


def test_items_are_made_before_they_are_asked_for_but_not_too_many() -> None:
    made: list[int] = []
    items = prefetch(counted(made))
    assert next(items) == 0
    until = time.monotonic() + 30.0
    while len(made) < PREFETCHED_TILES + 1 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(made) == PREFETCHED_TILES + 1, "one was taken, two wait"
    items.close()


def test_a_fault_of_the_reader_is_raised_after_what_it_had_read() -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("row 7 cannot be read")

    items = prefetch(broken())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="row 7"):
        next(items)
    assert not readers()


@pytest.mark.parametrize("end", ["close", "break", "raise"])
def test_the_thread_ends_with_who_it_works_for(end: str) -> None:
    made: list[int] = []
    items = prefetch(counted(made))
    if end == "close":
        next(items)
        items.close()
    elif end == "break":
        for _ in items:
            break
        del items, _
    else:
        next(items)
        with pytest.raises(ZeroDivisionError):
            items.throw(ZeroDivisionError())
    assert not readers()
    assert len(made) <= PREFETCHED_TILES + 1


def test_ctrl_c_while_waiting_for_a_slow_reader() -> None:
    freed = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        freed.wait(30.0)
        yield 2

    items = prefetch(slow())
    assert next(items) == 1
    threading.Timer(0.3, freed.set).start()
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert not readers()


@pytest.fixture
def table(tmp_path) -> tuple[np.ndarray, str]:
    rows = np.random.default_rng(0).normal(size=(1003, 4))
    path = str(tmp_path / "rows.npy")
    np.save(path, rows)
    return rows, path


def test_tiles_are_those_of_the_source(table) -> None:
    _, path = table
    source = open_source(path, np.linspace(0.0, 2.0, 1003))
    read = PrefetchedSource(source, CPU)
    assert (read.n_rows, read.n_columns, read.names) == (1003, 4, source.names)
    pairs = list(zip(read.chunks(100), source.chunks(100), strict=True))
    assert len(pairs) == 11
    for (rows, weight), (wanted, mass) in pairs:
        assert torch.equal(rows, wanted)
        assert torch.equal(weight, mass)


def test_sums_are_those_of_the_array(table) -> None:
    rows, path = table

    found, wanted = (
        source.reduce(lambda tile, weight: Kept(weight @ tile)).first
        for source in (PrefetchedSource(open_source(path), CPU), ArraySource(torch.from_numpy(rows)))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_fault_in_a_file_is_reported_by_the_fit(tmp_path) -> None:
    rows = np.ones((500, 2))
    rows[400, 1] = np.inf
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(ValueError, match="inf"):
        list(PrefetchedSource(open_source(tmp_path / "rows.npy"), CPU).chunks(50))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_stream_on_a_gpu_is_the_array_there(table) -> None:
    rows, path = table
    cuda = torch.device("cuda")
    for size in (None, 100):
        tiles = list(PrefetchedSource(open_source(path), cuda).chunks(size))
        assert all(part.is_cuda for tile in tiles for part in tile)
        assert torch.equal(torch.cat([tile for tile, _ in tiles]).cpu(), torch.from_numpy(rows))
    fits = [
        boxloop.GaussianMixture(2, random_state=0, device="cuda", max_iter=50, tol=1e-2).fit(data)
        for data in (rows, path)
    ]
    np.testing.assert_allclose(fits[0].score_samples(rows), fits[1].score_samples(rows), rtol=1e-8)


def test_rows_that_stay_in_memory_are_found_below_views() -> None:
    rows = ArraySource(torch.zeros(3, 2))
    assert find_array(rows) is rows
    assert find_array(MappedSource(MappedSource(rows, torch.abs), torch.abs)) is rows
    assert find_array(PrefetchedSource(rows, torch.device("cpu"))) is None, (
        "its tiles are never twice in one place"
    )
