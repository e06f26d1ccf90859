"""Faults 45 to 49 on real clusters: workers that are killed, a scheduler that is lost, partitions that run twice.

Run as a script, this file is a cluster of its own, which a test kills.
"""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker
from torch import Tensor

import boxloop
from boxloop.data import (
    ClusterError,
    DaskSource,
    dask_source,
    describe_killed_workers,
    open_source,
    pair_sources,
    watch_partitions,
)
from boxloop.tree import Tree

PARTS, ROWS = 6, 100

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a file of tests


def started(workers: int, **more: Any) -> LocalCluster:
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
        **more,
    )


@pytest.fixture(scope="module")
def client(quick_workers: None) -> Iterator[Client]:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        started(2) as local,
        Client(local) as client,
    ):
        yield client


def table() -> np.ndarray:
    rng = np.random.default_rng(0)
    side = rng.random((PARTS * ROWS, 1)) < 0.4
    return rng.normal(size=(PARTS * ROWS, 2)) + 2.5 * side


def through(change: Callable[[np.ndarray, int], np.ndarray]) -> da.Array:
    """The table in partitions, each made by a function of the block and its number."""
    blocks = da.from_array(table(), chunks=(ROWS, 2))
    # With meta, so that Dask does not call the function to find out what it gives.
    return blocks.map_blocks(lambda block, block_id: change(block, block_id[0]), meta=np.empty((0, 2)))


def noted(folder: Path, number: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Leaves a file for every time that a partition is made; one of them hangs at its n-th time until released."""

    def made(block: np.ndarray, place: int) -> np.ndarray:
        (folder / f"made-{place}-{os.getpid()}-{uuid.uuid4().hex}").touch()
        times = len(list(folder.glob(f"made-{place}-*")))
        if place == 4 and times == number:
            (folder / "pid.part").write_text(str(os.getpid()))
            (folder / "pid.part").rename(folder / "pid")
            for _ in range(1200):
                if (folder / "go").exists():
                    break
                time.sleep(0.05)
        return block

    return made


def when_hanging(folder: Path, act: Callable[[int], None]) -> threading.Thread:
    """Act, in a thread, on the process in which a partition hangs."""

    def watch() -> None:
        until(lambda: (folder / "pid").exists())
        act(int((folder / "pid").read_text()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.02)


def executions(folder: Path) -> list[int]:
    return [len(list(folder.glob(f"made-{place}-*"))) for place in range(PARTS)]


@dataclass(frozen=True)
class Sums(Tree):
    count: Tensor
    first: Tensor


def sums(rows: Tensor, weight: Tensor) -> Sums:
    return Sums(weight.sum(), weight @ rows)


def mixture(**more: Any) -> boxloop.GaussianMixture:
    """Fifteen iterations over all rows, after two passes to begin with."""
    start = [[0.0, 0.0], [1.0, 1.0]]
    return boxloop.GaussianMixture(2, means_init=start, random_state=0, tol=1e-6, max_iter=500, **more)


def leaves(fit: Any) -> list[Tensor]:
    return [value for _, value in fit.model_.leaves()]


def same_bits(one: Any, two: Any) -> None:
    assert one.lower_bounds_ == two.lower_bounds_
    for a, b in zip(leaves(one), leaves(two), strict=True):
        assert torch.equal(a, b)


@pytest.fixture(scope="module")
def undisturbed(client: Client) -> Any:
    return mixture().fit(da.from_array(table(), chunks=(ROWS, 2)))


def test_f45_worker_killed(client: Client, undisturbed: Any, tmp_path: Path) -> None:
    thread = when_hanging(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))
    fit = mixture().fit(through(noted(tmp_path, 6)))
    thread.join()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
    assert fit.n_iter_ > 4  # so that the sixth pass is an iteration of EM
    same_bits(fit, undisturbed)
    alone = mixture().fit(table())
    np.testing.assert_allclose(fit.means_, alone.means_, rtol=1e-10)
    np.testing.assert_allclose(fit.covariances_, alone.covariances_, rtol=1e-10)
    np.testing.assert_allclose(fit.lower_bounds_, alone.lower_bounds_, rtol=1e-10)


def test_f45_partition_that_kills(client: Client) -> None:
    def deadly(block: np.ndarray, place: int) -> np.ndarray:
        if place == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    begun = time.monotonic()
    # Another that was on its way to the same workers each time is named beside it.
    with pytest.raises(ClusterError, match=r"given (.* or )?partition 3 (or .* )?died, 2 in a row"):
        open_source(through(deadly)).reduce(sums)
    assert time.monotonic() - begun < 60.0


def test_f45_blame_is_shared_by_those_that_died_each_time() -> None:
    """Dask gives up task 4, which waited both times on the worker that partition 3 killed; 1 waited there once."""
    source = open_source(through(lambda block, _: block))
    assert isinstance(source, DaskSource)
    parts, (one, four) = source.parts, ("boxloop-part-1-a", "boxloop-part-4-a")
    (three,) = (task.key for task in parts[3].tasks())
    error = KilledWorker(four, None, 1)  # type: ignore[arg-type]
    said = describe_killed_workers(error, parts, [{one, "older"}, {four, three, one}, {four, three}])
    assert "given partition 3 or partition 4 died, 2 in a row: one of them may" in said
    assert "given partition 4 died, 2 in a row: it may" in describe_killed_workers(error, parts, [])


@pytest.mark.slow
def test_f46_partition_runs_twice(client: Client, tmp_path: Path) -> None:
    """A worker is killed that holds the sums of partitions, while another partition is still being read."""

    def kill_other(pid: int) -> None:
        def others() -> list[int]:  # by whom each partition was made
            made = [int(found.name.split("-")[2]) for found in tmp_path.glob("made-*")]
            return [each for each in made if each != pid]

        until(lambda: len(others()) >= 2)  # not all: one may wait behind the one that hangs
        time.sleep(0.5)  # so that the last of them is done, and not only begun
        for other in set(others()):
            os.kill(other, signal.SIGKILL)
        time.sleep(0.5)
        (tmp_path / "go").touch()

    thread = when_hanging(tmp_path, kill_other)
    found = open_source(through(noted(tmp_path, 1))).reduce(sums)
    thread.join()
    assert sum(executions(tmp_path)) > PARTS  # some ran twice
    assert float(found.count) == PARTS * ROWS
    again = open_source(da.from_array(table(), chunks=(ROWS, 2))).reduce(sums)
    assert torch.equal(found.first, again.first)


def test_f45_worker_killed_between_two_parts(client: Client, tmp_path: Path) -> None:
    """What waited on it, and the function that it held for others, is made again; all come, each once, in order."""
    source = open_source(through(noted(tmp_path, 0)))
    client.wait_for_workers(2)  # one may have been killed just now
    places = source.map_tiles(lambda rows, weight, start: Sums(weight.sum(), torch.tensor(start)))
    first = next(places)
    until(lambda: sum(executions(tmp_path)) == 4)  # two a thread, and no more until they are asked for
    time.sleep(0.5)
    assert executions(tmp_path) == [1, 1, 1, 1, 0, 0]
    os.kill(int(next(tmp_path.glob("made-*")).name.split("-")[2]), signal.SIGKILL)
    found = [first, *places]
    assert [int(one.first) for one in found] == [ROWS * i for i in range(PARTS)]
    assert [int(one.count) for one in found] == [ROWS] * PARTS


def test_parts_that_nobody_asks_for_are_let_go(client: Client) -> None:
    places = open_source(through(lambda block, _: block)).map_tiles(
        lambda rows, weight, start: sums(rows, weight)
    )
    next(places)
    places.close()
    until(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0, 20.0)


def test_f47_empty_and_other_columns(client: Client, tmp_path: Path) -> None:
    frame = pd.DataFrame(table(), columns=["a", "b"])
    frame[:300].to_parquet(tmp_path / "0.parquet")
    frame[:0].to_parquet(tmp_path / "1.parquet")
    frame[300:].to_parquet(tmp_path / "2.parquet")
    source = dask_source(tmp_path)
    assert source.counts == (300, 0, 300)
    assert float(source.reduce(sums).count) == 600.0
    frame.rename(columns={"b": "c"}).to_parquet(tmp_path / "3.parquet")
    with pytest.raises(ValueError, match=r"3\.parquet: its columns are a, c"):
        dask_source(tmp_path)


def test_f48_scheduler_lost(client: Client, undisturbed: Any, tmp_path: Path) -> None:
    """The checkpoint of a fit whose scheduler was killed goes on, on another cluster, to the same bits."""
    place = tmp_path / "address"
    process = subprocess.Popen([sys.executable, __file__, place], start_new_session=True)
    try:
        until(place.exists)
        with Client(place.read_text(), set_as_default=False) as other, other.as_current():
            killed: list[float] = []

            def kill(pid: int) -> None:
                killed.append(time.monotonic())
                process.kill()

            thread = when_hanging(tmp_path, kill)
            with pytest.raises(ClusterError, match="checkpoint"):
                mixture(checkpoint=tmp_path / "fit.boxloop").fit(through(noted(tmp_path, 7)))
            assert time.monotonic() - killed[0] < 60.0
            thread.join()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert (tmp_path / "fit.boxloop").exists()
    (tmp_path / "go").touch()
    fit = mixture(checkpoint=tmp_path / "fit.boxloop").fit(through(noted(tmp_path, 0)))
    same_bits(fit, undisturbed)


def test_f48_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxloop.data.dask.tasks.PATIENCE", 0.5)
    monkeypatch.setattr("boxloop.data.dask.tasks.CHECK", 0.1)
    with started(0) as local, Client(local, set_as_default=False) as other, other.as_current():
        source = open_source(da.from_array(table(), chunks=(ROWS, 2)))
        with pytest.raises(ClusterError, match="has no worker"):
            source.reduce(sums)
        with pytest.raises(ClusterError, match="has no worker"):
            next(source.map_tiles(lambda rows, weight, start: sums(rows, weight)))


def test_a_source_keeps_what_was_persisted(client: Client) -> None:
    plain = dask_source(da.from_array(table(), chunks=(ROWS, 2)).persist())
    kept = pair_sources(plain, dask_source(da.from_array(table(), chunks=(ROWS, 2)).persist()))
    for source in (plain, kept):
        found = source.reduce(sums)
        assert int(found.count) == PARTS * ROWS


def test_persisted_partitions_that_are_gone_are_reported(client: Client) -> None:
    rows = da.from_array(table(), chunks=(ROWS, 2)).persist()
    source = dask_source(rows)
    client.cancel(rows, force=True)
    with pytest.raises(
        ClusterError, match="persisted are no longer on the workers: persist the collection again"
    ):
        source.reduce(sums)


def held_by_worker() -> int:
    gc.collect()
    return sum(type(found) is Tensor and found.shape == (54321,) for found in gc.get_objects())


def test_workers_keep_nothing_of_a_pass(client: Client) -> None:
    room = torch.ones(54321, dtype=torch.float64)

    def seen(rows: Tensor, weight: Tensor) -> Sums:
        assert 1 <= held_by_worker() <= 2  # whatever the number of partitions; Dask may fetch it again
        return Sums(weight.sum() * room[0], weight @ rows)

    assert int(open_source(da.from_array(table(), chunks=(50, 2))).reduce(seen).count) == PARTS * ROWS
    until(lambda: set(client.run(held_by_worker).values()) == {0})


def test_a_pass_that_is_watched_lets_go_of_what_was_added(client: Client) -> None:
    """Or the statistics of all partitions would lie on the workers until its end."""
    held = []

    def in_memory(dask_scheduler: Any) -> int:
        tasks = dask_scheduler.tasks.items()
        return sum(task.state == "memory" and str(key).startswith("boxloop-part") for key, task in tasks)

    blocks = da.from_array(table(), chunks=(10, 2)).map_blocks(
        lambda block: (time.sleep(0.05), block)[1], meta=np.empty((0, 2))
    )
    with watch_partitions(lambda done, of: held.append((done, client.run_on_scheduler(in_memory)))):
        open_source(blocks).reduce(sums)
    late = [count for done, count in held if done >= 45]
    assert late
    assert max(late) < 40


def test_a_fit_inside_a_task_does_not_wait_for_itself(client: Client) -> None:
    def mean() -> float:
        rows = da.from_array(table(), chunks=(ROWS, 2))
        return float(boxloop.GaussianMixture(1, random_state=0).fit(rows).means_[0, 0])

    tasks = [client.submit(mean, pure=False) for _ in range(2)]  # one for every thread of the cluster
    assert client.gather(tasks) == pytest.approx([table()[:, 0].mean()] * 2, rel=1e-10)


def test_interrupted(client: Client, undisturbed: Any, tmp_path: Path) -> None:
    """Ctrl-C keeps the last complete iteration, and nobody goes on with the tasks."""

    def interrupt(pid: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # a task that runs cannot be stopped: whoever wants its partition again waits for it
        (tmp_path / "go").touch()

    thread = when_hanging(tmp_path, interrupt)
    with pytest.warns(boxloop.FitWarning, match="interrupted after iteration"):
        fit = mixture().fit(through(noted(tmp_path, 6)))
    thread.join()
    assert fit.interrupted_
    assert 0 < fit.n_iter_ < undisturbed.n_iter_
    assert fit.lower_bounds_[:2] == undisturbed.lower_bounds_[:2]
    until(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0, 20.0)


def test_f49_corrupt_row_group(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table(pd.DataFrame(table(), columns=["a", "b"])), path, row_group_size=100, compression="none"
    )
    start = pq.ParquetFile(path).metadata.row_group(3).column(1).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"rows\.parquet.*row group 3"):
        mixture().fit(dask_source(path, part_rows=200))


def test_progress(client: Client) -> None:
    seen: list[tuple[int, int]] = []
    with watch_partitions(lambda done, total: seen.append((done, total))):
        open_source(through(lambda block, place: (time.sleep(0.3), block)[1])).reduce(sums)
    assert {total for _, total in seen} == {PARTS}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert any(0 < done < PARTS for done, _ in seen)


if __name__ == "__main__":
    with started(1) as own:
        Path(sys.argv[1]).with_suffix(".part").write_text(own.scheduler_address)
        Path(sys.argv[1]).with_suffix(".part").rename(sys.argv[1])
        time.sleep(300.0)
