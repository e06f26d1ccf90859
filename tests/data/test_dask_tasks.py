"""What a pass asks of Dask: how many tasks, what they carry, what is left of it. Threads of this process run them."""

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from dask.callbacks import Callback
from dask.task_spec import DataNode
from torch import Tensor

from boxloop.data import (
    Broadcast,
    ConcatenatedRows,
    DaskSource,
    dask_source,
    open_source,
    pair_sources,
    pickle_value,
    plan_contents,
)

N = 40


def table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 3))


def frame() -> pd.DataFrame:
    return pd.DataFrame(table(), columns=["a", "b", "c"])


def blocks() -> da.Array:
    return da.from_array(table(), chunks=(2, 3))


def summed(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
    return ConcatenatedRows.of((weight @ rows)[None])


@pytest.fixture
def ran() -> Iterator[list[Any]]:
    """The name of every task."""
    names: list[Any] = []
    with Callback(pretask=lambda key, graph, state: names.append(key)):
        yield names


COLLECTIONS: dict[str, Callable[[], Any]] = {
    "array": blocks,
    "made": lambda: da.ones((N, 3), chunks=(2, 3)) + 1.0,
    "frame": lambda: dd.from_pandas(frame(), npartitions=20),
    "another name for it": lambda: dd.from_delayed(
        [dask.delayed(lambda i: frame()[i : i + 2])(i) for i in range(0, N, 2)],
        meta=frame()[:0],
        verify_meta=False,
    ),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_one_task_makes_a_partition_and_sums_it(name: str, ran: list[Any]) -> None:
    source = dask_source(COLLECTIONS[name]())
    ran.clear()
    found = source.reduce(summed).concatenate()
    assert len([key for key in ran if str(key).startswith("boxloop-part")]) == 20
    assert len(ran) <= 20 + 3 + 1  # sums of sixteen, and the function
    assert len(found) == 20


def test_what_partitions_share_is_made_once() -> None:
    made: list[int] = []

    def noted(block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
        made.append(block_id[0])
        return block

    rows = blocks().map_blocks(noted, meta=np.empty((0, 3)))
    source = dask_source(rows)
    found = pair_sources(source, source).reduce(summed).concatenate()
    assert sorted(made) == list(range(20))
    assert torch.equal(found[:, :3], found[:, 3:])
    whole = dask.delayed(lambda: (made.append(-1), table())[1])()
    cut = [da.from_delayed(whole[i : i + 2], (2, 3), float) for i in range(0, N, 2)]
    source = dask_source(da.concatenate(cut))
    made.clear()
    np.testing.assert_allclose(source.reduce(summed).concatenate().sum(0), table().sum(0), rtol=1e-12)
    assert made == [-1]


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_table_beside_itself(name: str) -> None:
    source = dask_source(COLLECTIONS[name]())
    found = pair_sources(source, source).reduce(summed).concatenate()
    assert torch.equal(found, source.reduce(summed).concatenate().repeat(1, 2))


@pytest.mark.parametrize("given", [blocks().rechunk((2, 1)), dd.concat([dd.from_pandas(frame(), 4)] * 2)])
def test_partitions_made_of_others(given: Any) -> None:
    times = 1 if isinstance(given, da.Array) else 2
    found = dask_source(given).reduce(summed).concatenate()
    np.testing.assert_allclose(found.sum(0), times * table().sum(0), rtol=1e-12)


def test_only_what_is_asked_for_is_in_the_graph() -> None:
    source = dask_source(da.from_array(table(), chunks=(2, 1)))
    assert isinstance(source, DaskSource)
    assert len(plan_contents(source.parts)[1]) == 3 * 20
    assert len(plan_contents(source.parts[4:6])[1]) == 3 * 2


def test_partitions_are_let_go_without_a_search_for_cycles() -> None:
    """Futures of persisted ones keep them on the workers."""
    block = table()[:2]
    ref = weakref.ref(block)
    rows = da.Array({("rows", 0, 0): DataNode(("rows", 0, 0), block)}, "rows", ((2,), (3,)), float)
    gc.collect()
    gc.disable()
    try:
        dask_source(rows).reduce(summed)
        del rows, block
        assert ref() is None
    finally:
        gc.enable()


def sent(monkeypatch: pytest.MonkeyPatch, source: Any) -> int:
    """Bytes of all tasks of a pass."""
    sizes: list[int] = []
    plain = import_module("boxloop.data.dask.tasks").compute_task

    def weighed(graph: Any, *more: Any) -> Any:
        sizes.append(len(cloudpickle.dumps(graph)))
        return plain(graph, *more)

    monkeypatch.setattr("boxloop.data.dask.reduce.compute_task", weighed)
    source.reduce(summed)
    return sizes[-1]


def test_what_is_at_hand_travels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and targets are cut into views of one memory, which must not go along with each of them."""
    n = 20_000
    rows = da.ones((n, 2), chunks=(500, 2))
    bare, slack = sent(monkeypatch, dask_source(rows)), 400 * 40
    assert sent(monkeypatch, dask_source(rows, np.arange(n) + 1.0)) < bare + 8 * n + slack
    side = dask_source(rows), dask_source(da.ones((n, 1), chunks=(500, 1)))
    at_hand = pair_sources(side[0], open_source(np.ones((n, 1))))
    assert sent(monkeypatch, at_hand) < sent(monkeypatch, pair_sources(*side)) + 8 * n + slack


def test_one_after_the_other_each_takes_its_own_along(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    plain = import_module("boxloop.data.dask.tasks").compute_in_order

    def noted(tasks: Iterable[Any], *more: Any) -> Iterator[Any]:
        return plain(((key, graphs.append(graph) or graph) for key, graph in tasks), *more)  # type: ignore[func-returns-value]

    monkeypatch.setattr("boxloop.data.dask.reduce.compute_in_order", noted)
    source = dask_source(COLLECTIONS["made"]())
    found = list(source.map_tiles(lambda rows, weight, start: summed(rows, weight)))
    assert len(found) == len(graphs) == 20
    assert {len(graph) for graph in graphs} == {2}  # the function, and what makes and sums a partition


class Noisy:
    """Counts how often it is unpacked."""

    times = 0

    def __setstate__(self, state: Any) -> None:
        type(self).times += 1

    def __getstate__(self) -> int:
        return 0


@pytest.mark.parametrize("threads", [1, 4])
def test_a_function_is_unpacked_once_for_each_thread(threads: int) -> None:
    noisy = Noisy()
    Noisy.times = 0

    def function(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
        assert isinstance(noisy, Noisy)
        return summed(rows, weight)

    with dask.config.set(scheduler="threads", num_workers=threads):
        dask_source(blocks()).reduce(function)
    assert 1 <= Noisy.times <= threads


def test_threads_do_not_share_what_a_function_writes_to() -> None:
    room = torch.zeros(3, dtype=torch.float64)

    def function(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
        here = threading.get_ident()
        room.fill_(here)
        time.sleep(0.005)
        assert bool((room == float(here)).all())
        return summed(rows, weight)

    with dask.config.set(scheduler="threads", num_workers=8):
        found = dask_source(blocks()).reduce(function).concatenate()
    np.testing.assert_allclose(found.sum(0), table().sum(0), rtol=1e-12)
    assert not bool(room.any())


def opened(broadcast: Broadcast, barrier: threading.Barrier) -> Any:
    barrier.wait()
    assert broadcast.value() is broadcast.value()
    return broadcast.value()


def test_carried() -> None:
    broadcast, barrier = Broadcast(pickle_value({"room": torch.zeros(1000)})), threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        found = [task.result() for task in [pool.submit(opened, broadcast, barrier) for _ in range(3)]]
        found.append(broadcast.value())
        assert len({id(one["room"]) for one in found}) == 4
        refs = [weakref.ref(one["room"]) for one in found]
        again = pickle.loads(pickle.dumps(broadcast))
        assert torch.equal(again.value()["room"], found[0]["room"])
        assert broadcast.__sizeof__() > 4000
        del found, broadcast, again
        gc.collect()
        assert all(ref() is None for ref in refs)  # though the threads are still there


def test_nothing_of_a_pass_is_left() -> None:
    with dask.config.set(scheduler="threads", num_workers=2):
        room = torch.zeros(1234)
        dask_source(blocks()).reduce(
            lambda rows, weight: ConcatenatedRows.of((weight @ rows)[None] + room.sum())
        )
        gc.collect()
        assert [t for t in gc.get_objects() if type(t) is Tensor and t.shape == (1234,)] == [room]
