"""Tables in partitions: sums over them are those of the same rows at hand. No cluster: Dask's threads run the tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import boxloop
from boxloop.data import (
    ArraySource,
    ConcatenatedRows,
    DaskSource,
    PairedSource,
    PrefetchedSource,
    dask_source,
    fingerprint_source,
    fit_standardisation,
    map_partitions,
    on_device,
    open_source,
    open_table,
    pair_sources,
    pickle_value,
    sample_rows,
    select_rows,
    unpickle_value,
)
from boxloop.tree import Tree
from boxloop.types import Source

N, NAMES = 250, ["a", "b", "c"]


def table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 1e3]


def frame() -> pd.DataFrame:
    return pd.DataFrame(table(), columns=NAMES)


@dataclass(frozen=True)
class Sums(Tree):
    weight: Tensor
    first: Tensor
    second: Tensor
    places: Tensor


def sums(rows: Tensor, weight: Tensor, start: int) -> Sums:
    heavy = rows * weight[:, None]
    place = torch.arange(start, start + len(rows), dtype=torch.float64)
    return Sums(weight.sum(), heavy.sum(0), heavy.mT @ rows, place @ rows)


def in_turn(source: Source) -> Tensor:
    """All rows beside their weights and places, as they come one part after the other."""

    def lines(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        place = torch.arange(start, start + len(rows), dtype=torch.float64)
        return ConcatenatedRows.of(torch.cat([rows, weight[:, None], place[:, None]], 1))

    return torch.cat([part.concatenate() for part in source.map_tiles(lines)])


def agree(one: Source, two: Source) -> None:
    """The same rows, in the same places, with the same weights."""
    assert (one.n_rows, one.names) == (two.n_rows, two.names)
    for (_, a), (_, b) in zip(one.reduce_at(sums).leaves(), two.reduce_at(sums).leaves(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0.0, equal_nan=True)
    assert fingerprint_source(one) == fingerprint_source(two)
    assert torch.equal(in_turn(one).nan_to_num(9e9), in_turn(two).nan_to_num(9e9))
    tiles = [torch.cat(parts) for parts in zip(*one.chunks(7), strict=True)]
    others = [torch.cat(parts) for parts in zip(*two.chunks(7), strict=True)]
    assert all(torch.equal(a.nan_to_num(9e9), b.nan_to_num(9e9)) for a, b in zip(tiles, others, strict=True))


def files(folder: Path, kind: str) -> Path:
    folder.mkdir()
    for i, start in enumerate(range(0, N, 90)):
        part = frame()[start : start + 90]
        if kind == "parquet":
            part.to_parquet(folder / f"{i}.parquet", index=False)
        elif kind == "csv":
            part.to_csv(folder / f"{i}.csv", index=False, float_format="%.17g")
        else:
            np.save(folder / f"{i}.npy", part.to_numpy())
    return folder


def row_groups(path: Path) -> Path:
    pq.write_table(pa.table(frame()), path, row_group_size=40)
    return path


def unknown() -> da.Array:
    whole = da.from_array(table(), chunks=(60, 3))
    return whole[whole[:, 0] > -np.inf]  # nobody knows how many rows are left in a block


def in_memory(tmp_path: Path) -> str:
    system = fsspec.filesystem("memory")
    for path in files(tmp_path / "rows", "parquet").iterdir():
        system.pipe(f"/dask-rows/{path.name}", path.read_bytes())
    return "memory://dask-rows"


TABLES: dict[str, Callable[[Path], Any]] = {
    "array": lambda tmp: da.from_array(table(), chunks=(60, 3)),
    "columns in chunks": lambda tmp: da.from_array(table(), chunks=((100, 30, 120), (1, 2))),
    "unknown sizes": lambda tmp: unknown(),
    "array of another type": lambda tmp: da.from_array(table(), chunks=(60, 3)).astype(np.longdouble),
    "frame": lambda tmp: dd.from_pandas(frame(), npartitions=4),
    "frame read by Dask": lambda tmp: dd.read_parquet(files(tmp / "rows", "parquet")),
    "parquet folder": lambda tmp: dask_source(files(tmp / "rows", "parquet")),
    "row groups": lambda tmp: dask_source(row_groups(tmp / "rows.parquet"), part_rows=100),
    "npy": lambda tmp: dask_source(files(tmp / "rows", "npy"), part_rows=37),
    "csv folder": lambda tmp: dask_source(files(tmp / "rows", "csv")),
    "file url": lambda tmp: dask_source(f"file://{files(tmp / 'rows', 'parquet')}"),
    "url in memory": lambda tmp: dask_source(in_memory(tmp)),
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, where it reads Parquet itself
@pytest.mark.parametrize("name", TABLES)
def test_same_rows(name: str, tmp_path: Path) -> None:
    found = open_source(TABLES[name](tmp_path))
    assert isinstance(found, DaskSource)
    assert len(found.counts) > 2
    plain = name in ("array", "columns in chunks", "unknown sizes", "array of another type", "npy")
    agree(found, open_source(table(), columns=None if plain else NAMES))


def test_row_groups_are_kept_together(tmp_path: Path) -> None:
    assert dask_source(row_groups(tmp_path / "rows.parquet"), part_rows=100).counts == (80, 80, 90)


def many(folder: Path, rows: int = 10) -> Path:
    """A file for every ten rows."""
    folder.mkdir()
    for i, start in enumerate(range(0, N, rows)):
        frame()[start : start + rows].to_parquet(folder / f"{i:03}.parquet", index=False)
    return folder


def test_many_small_files_share_tasks(tmp_path: Path) -> None:
    folder, mass = many(tmp_path / "rows"), np.arange(N) % 3
    found = dask_source(folder)
    assert found.counts == (160, 90)
    agree(found, open_source(table(), columns=NAMES))
    agree(dask_source(folder, mass), open_source(table(), mass, NAMES))
    assert dask_source(folder, part_rows=40).counts == (40,) * 6 + (10,)
    assert dask_source(folder, part_rows=5).counts == (10,) * 25


def test_a_task_of_many_files_does_not_grow_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boxloop.data.dask.source.MERGED_VALUES", 3 * 35)
    assert dask_source(many(tmp_path / "rows")).counts == (30,) * 8 + (10,)


@pytest.mark.parametrize("opened", [open_source, dask_source])
def test_what_is_wrong_in_one_of_many_files_is_found_there(opened: Any, tmp_path: Path) -> None:
    folder = many(tmp_path / "rows")
    bad = frame()[:10].assign(b=np.inf)
    bad.to_parquet(folder / "007.parquet", index=False)
    with pytest.raises(ValueError, match=r"^\S*007\.parquet: column 'b' holds an infinite value .* at row 0"):
        opened(folder).reduce_at(sums)
    frame()[:10].assign(w=[1.0] * 9 + [-1.0]).to_parquet(folder / "007.parquet", index=False)
    for i in range(25):
        if i != 7:
            frame()[i * 10 : i * 10 + 10].assign(w=1.0).to_parquet(folder / f"{i:03}.parquet", index=False)
    with pytest.raises(ValueError, match=r"^\S*007\.parquet: the weight at row 9 .* is -1.0"):
        opened(folder, "w").reduce_at(sums)


def test_tiny_partitions_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = dask_source(da.from_array(table(), chunks=(1, 3))), []
    plain = map_partitions

    def counted(function: Any, parts: Any) -> Any:
        asked.append(len(parts))
        return plain(function, parts)

    monkeypatch.setattr("boxloop.data.dask.source.map_partitions", counted)
    monkeypatch.setattr("boxloop.data.dask.source.FIRST_ROWS", 100)
    rows, _ = next(iter(source.chunks(40)))
    np.testing.assert_array_equal(rows, table()[:40])
    assert asked == [1, 100]
    assert torch.equal(torch.cat([rows for rows, _ in source.chunks(40)]), torch.from_numpy(table()))
    assert asked == [1, 100, 1, 100, 100, 49]


def test_columns(tmp_path: Path) -> None:
    rows = open_source(table()[:, [2, 0]], columns=["c", "a"])
    agree(dask_source(dd.from_pandas(frame(), npartitions=3), columns=["c", "a"]), rows)
    agree(dask_source(files(tmp_path / "rows", "parquet"), columns=["c", "a"]), rows)
    with pytest.raises(ValueError, match="no column 'd'"):
        dask_source(dd.from_pandas(frame(), npartitions=3), columns=["d"])
    with pytest.raises(ValueError, match="2 column names were given for 3"):
        dask_source(da.ones((9, 3)), columns=["a", "b"])


def weights(part: int = 60) -> np.ndarray:
    """All zero in the second partition."""
    found = np.random.default_rng(1).random(N)
    found[part : 2 * part] = 0.0
    return found


def test_weights(tmp_path: Path) -> None:
    mass = weights()
    rows, named = da.from_array(table(), chunks=(60, 3)), frame().assign(w=mass)
    agree(dask_source(rows, mass), open_source(table(), mass))
    agree(dask_source(rows, da.from_array(mass, chunks=35)), open_source(table(), mass))
    wanted = open_source(table(), mass, NAMES)
    collection = dd.from_pandas(named, npartitions=4)
    agree(dask_source(collection, "w"), wanted)
    agree(dask_source(collection[NAMES], collection["w"]), wanted)
    agree(dask_source(collection[NAMES], mass), wanted)
    named.to_parquet(tmp_path / "rows.parquet", row_group_size=60)
    agree(dask_source(tmp_path / "rows.parquet", "w", part_rows=60), wanted)
    agree(dask_source(tmp_path / "rows.parquet", mass, NAMES, part_rows=60), wanted)


@pytest.mark.parametrize("given", ["values", "collection", "column"])
def test_weights_that_are_no_weights(given: str) -> None:
    def opened(mass: np.ndarray) -> Source:
        collection = dd.from_pandas(frame().assign(w=mass), npartitions=4)
        if given == "column":
            return dask_source(collection, "w")
        return dask_source(collection[NAMES], mass if given == "values" else collection["w"])

    with pytest.raises(ValueError, match="the weights are all zero"):
        opened(np.zeros(N)).reduce_at(sums)
    mass = np.ones(N)
    mass[200] = -1.0
    with pytest.raises(ValueError, match=r"is -1\.0") as caught:
        opened(mass).reduce_at(sums)
    assert given == "values" or "partition 3" in str(caught.value)
    with pytest.raises(ValueError, match=r"one entry per row|Mismatched|[Ll]ength"):
        dask_source(da.from_array(table(), chunks=(60, 3)), mass[:-1])


def test_missing_and_empty() -> None:
    rows = table()
    rows[:130, 1] = np.nan  # of no row of the first partitions
    padded = da.from_array(np.concatenate([rows[:60], np.full((60, 3), -9e9), rows[60:]]), chunks=(60, 3))
    source = dask_source(padded[padded[:, 0] != -9e9])
    assert source.counts == (60, 0, 60, 60, 60, 10)
    agree(source, open_source(rows))
    first, second = boxloop.FactorAnalysis(1, tol=1e-6), boxloop.FactorAnalysis(1, tol=1e-6)
    np.testing.assert_allclose(first.fit(source).score(rows), second.fit(rows).score(rows), rtol=1e-10)
    hollow = dd.from_pandas(frame(), npartitions=4)
    agree(open_source(hollow[hollow["a"] > 0.0]), open_source(frame()[frame()["a"] > 0.0]))
    with pytest.raises(ValueError, match=r"0 sample"):
        dask_source(hollow[hollow["a"] > 1e9])
    with pytest.raises(ValueError, match=r"0 feature"):
        dask_source(da.zeros((5, 0)))


def made(*parts: pd.DataFrame) -> Any:
    return dd.from_delayed([dask.delayed(part) for part in parts], meta=frame()[:0], verify_meta=False)


def test_partitions_at_fault() -> None:
    whole = frame()
    with pytest.raises(ValueError, match=r"partition 1: .*'c'"):
        open_source(made(whole, whole.rename(columns={"c": "d"}))).reduce_at(sums)
    with pytest.raises(ValueError, match="partition 1: column 'b' is not numeric"):
        open_source(made(whole, whole.assign(b="text"))).reduce_at(sums)
    with pytest.raises(ValueError, match=r"partition 2: column 'a' holds an infinite value \(inf\) at row 5"):
        open_source(made(whole, whole, whole.assign(a=np.where(np.arange(N) == 5, np.inf, 0.0)))).reduce_at(
            sums
        )
    far = table()
    far[130, 2] = -np.inf
    with pytest.raises(
        ValueError, match=r"partition 2: column 'x2' holds an infinite value \(-inf\) at row 10"
    ):
        open_source(da.from_array(far, chunks=(60, 3))).reduce_at(sums)
    text = dd.from_pandas(frame().assign(b="text"), npartitions=2)
    with pytest.raises(ValueError, match="'b' is not numeric"):
        boxloop.GaussianMixture(2).fit(text)
    with pytest.raises(ValueError, match="Expected 2D array, got 1D"):
        open_source(da.ones(5))
    with pytest.raises(ValueError, match="Complex data"):
        open_source(da.ones((5, 2), dtype=complex)).reduce_at(sums)


def test_files_at_fault(tmp_path: Path) -> None:
    folder = files(tmp_path / "rows", "csv")
    (folder / "1.csv").write_text("a,b,c\n1,2,3\n4,x,6\n")
    with pytest.raises(ValueError, match=r"1\.csv.*row"):
        dask_source(folder).reduce_at(sums)
    (folder / "1.csv").write_text("a,b,c\n1,2,3\n4,inf,6\n")
    with pytest.raises(ValueError, match=r"1\.csv: column 'b' holds an infinite value"):
        dask_source(folder).reduce_at(sums)
    (folder / "1.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"1\.csv: its columns are a, b"):
        dask_source(folder)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        dask_source("memory://nowhere-at-all")


def test_data_that_change(tmp_path: Path) -> None:
    """Rows that come or go between two passes are reported, whoever counts them."""
    source = dask_source(files(tmp_path / "rows", "parquet"))
    frame()[:50].to_parquet(tmp_path / "rows" / "1.parquet", index=False)
    with pytest.raises(ValueError, match=r"1\.parquet: 90 rows were counted, and 50 read: the data changed"):
        source.reduce_at(sums)
    sizes = iter([10, 10, 7])
    grown = made(frame()).map_partitions(lambda part: part[: next(sizes)], meta=frame()[:0])
    source = open_source(grown)
    source.reduce_at(sums)
    with pytest.raises(ValueError, match="partition 0: 10 rows were counted, and 7 read"):
        source.reduce_at(sums)


def test_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits however many threads there are, and in whatever order they end; a sum in a tree of any height."""
    rows = da.from_array(table(), chunks=(7, 3))
    found = []
    for fan, threads in ((4, 1), (4, 8), (16, 3)):
        monkeypatch.setattr("boxloop.data.dask.reduce.FAN", fan)
        with dask.config.set(scheduler="threads", num_workers=threads):
            found.append(open_source(rows).reduce_at(sums))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(found[0].leaves(), found[1].leaves(), strict=True))
    for (_, a), (_, b) in zip(found[0].leaves(), found[2].leaves(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0.0)


def test_a_part_without_rows_is_left_out_in_turn() -> None:
    """One that is empty, and one of which a mask leaves nothing; weights of zero everywhere are reported at the end."""
    rows = da.from_array(table(), chunks=((90, 0, 160), (3,)))
    source, mask = dask_source(rows), torch.arange(N) >= 90
    assert source.counts == (90, 0, 160)
    few = list(source.map_tiles(sums))
    assert len(few) == 2
    torch.testing.assert_close((few[0] + few[1]).second, source.reduce_at(sums).second, rtol=1e-12, atol=0.0)
    assert torch.equal(in_turn(select_rows(source, mask))[:, :3], torch.from_numpy(table()[90:]))
    assert torch.equal(in_turn(select_rows(source, mask))[:, 4], torch.arange(160.0).double())
    assert len(list(select_rows(source, mask).map_tiles(sums))) == 1
    nothing = dask_source(rows, da.zeros(N, chunks=rows.chunks[:1])).map_tiles(sums)
    assert len(list(zip(range(2), nothing, strict=False))) == 2
    with pytest.raises(ValueError, match="weights are all zero"):
        next(nothing)


def test_a_column_that_begins_late_and_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first value is found on the workers, so that a small spread far from zero keeps its digits."""
    monkeypatch.setattr("boxloop.data.standardise.FIRST_ROWS", 50)
    rows = table()
    rows[:, 1] = 1e7 + 1e-3 * rows[:, 0]
    rows[:130, 1] = rows[200:, 1] = np.nan
    found = fit_standardisation(open_source(da.from_array(rows, chunks=(60, 3)))).scale[1]
    np.testing.assert_allclose(float(found), np.std(rows[130:200, 1] - 1e7), rtol=1e-9)


def test_rows_by_lot_do_not_depend_on_partitions() -> None:
    kept = [
        sample_rows(open_source(rows), 40, torch.Generator().manual_seed(3))
        for rows in (table(), da.from_array(table(), chunks=(60, 3)), da.from_array(table(), chunks=(11, 1)))
    ]
    assert len(kept[0].rows) < N
    assert all(torch.equal(kept[0].rows, one.rows) for one in kept)


def test_pairs() -> None:
    rows = da.from_array(table(), chunks=(60, 3))
    side = torch.from_numpy(table()[:, :2] * 2.0)
    both = np.concatenate([table(), side.numpy()], 1)
    names = ["x:x0", "x:x1", "x:x2", "y:x0", "y:x1"]
    agree(pair_sources(open_source(rows), ArraySource(side)), open_source(both, columns=names))
    agree(pair_sources(open_source(rows), open_source(rows[:, :2] * 2.0)), open_source(both, columns=names))
    with pytest.raises(ValueError, match="different numbers of rows: repartition"):
        pair_sources(open_source(rows), open_source(rows.rechunk((50, 3))))


def opened(part: Any) -> Source:
    """A part as a worker opens it."""
    held = part.content
    values = [None if one is None else one.compute() for one in (held if isinstance(held, list) else [held])]
    return unpickle_value(pickle_value(part.without_content())).open(
        values if isinstance(held, list) else values[0]
    )


@pytest.mark.parametrize("kind", ["file", "array", "both"])
def test_partitions_are_opened_on_a_device(kind: str, tmp_path: Path) -> None:
    """Files are read ahead, blocks move at once, and what stands beside them is where they are; no GPU is needed."""
    rows, place = np.arange(60.0).reshape(20, 3), torch.device("meta")
    np.save(tmp_path / "rows.npy", rows)
    there = dask_source(tmp_path if kind == "file" else da.from_array(rows, chunks=(5, 3)))
    moved: Any = on_device(there, place)
    assert (type(moved), moved.counts, moved.names) == (DaskSource, there.counts, there.names)
    if kind == "both":
        beside: Any = pair_sources(moved, on_device(open_source(rows[:, :1]), place))
        moved = beside.source
    for part, count in zip(moved.parts, moved.counts, strict=True):
        found = opened(part)
        tiles = list(found.chunks())
        assert isinstance(found, {"file": PrefetchedSource, "array": ArraySource, "both": PairedSource}[kind])
        assert {one.device.type for tile in tiles for one in tile} == {"meta"}
        assert sum(len(weight) for _, weight in tiles) == count


def test_workers_in_another_folder_find_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "here" / "rows.npy", np.ones((6, 2)))
    monkeypatch.chdir(tmp_path / "here")
    sources = [dask_source("rows.npy"), open_table("rows.npy", cluster=True), dask_source(Path("../here"))]
    monkeypatch.chdir(tmp_path)
    for source in sources:
        assert source.reduce(lambda rows, weight: ConcatenatedRows.of(rows)).concatenate().shape == (6, 2)
