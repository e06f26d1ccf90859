"""What strangers give as tables in partitions: taken as the same rows at hand are, or refused in words."""

from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import boxloop
from boxloop.data import ArraySource, dask_source, open_source
from boxloop.data.digest import digest

N = 90


def table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 3))


def parts() -> Any:
    return da.from_array(table(), chunks=(40, 2))


def frame() -> Any:
    return dd.from_pandas(pd.DataFrame(table(), columns=["a", "b", "c"]), npartitions=3)


KINDS = {
    "series": lambda: frame()["a"],
    "scalar": lambda: frame()["a"].sum(),
    "bag": lambda: db.from_sequence([1, 2]),
    "delayed": lambda: dask.delayed(table()),
    "array at hand": table,
    "source": lambda: dask_source(parts()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_table_in_partitions(kind: str) -> None:
    with pytest.raises(TypeError, match=r"a Dask DataFrame .* or a path is needed, not <class"):
        dask_source(KINDS[kind]())


def test_a_target_that_is_no_column() -> None:
    with pytest.raises(TypeError, match=r"is needed, not <class 'dask\.bag"):
        boxloop.BayesianLinearRegression().fit(frame(), db.from_sequence(range(N)))


@pytest.mark.parametrize("shape", [(N, 1), (N // 2, 2), (N - 1,), (2 * N,), ()])
def test_weights_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"one entry a row: shape \(90,\) is needed"):
        dask_source(parts(), da.ones(shape))


def test_weights_that_are_no_column() -> None:
    with pytest.raises(ValueError, match="an array has no column 'x1' of weights"):
        dask_source(parts(), "x1")
    for weight in (frame()[["a"]], db.from_sequence([1.0]), da.ones((N, 1))):
        with pytest.raises(ValueError, match="must be one column: a Dask series or array"):
            dask_source(frame(), weight)


def test_weights_of_chunks_of_unknown_sizes() -> None:
    """Rows that were filtered, or came from a frame, with weights that went the same way."""
    rows, mass = parts(), da.from_array(np.arange(1.0, N + 1), chunks=40)
    some = table()[:, 0] > 0.0
    wanted = ArraySource(torch.from_numpy(table()[some]), torch.arange(1.0, N + 1)[some].double())
    few = rows[:, 0] > 0.0
    assert digest(dask_source(rows[few], mass[few])) == digest(wanted)
    for weight in (mass.rechunk(10)[few.rechunk(10)], mass[: some.sum()]):
        with pytest.raises(
            ValueError, match=r"chunks of unknown sizes: call compute_chunk_sizes\(\) of both"
        ):
            dask_source(rows[few], weight)


def test_columns_of_unknown_number() -> None:
    with pytest.raises(ValueError, match="does not know its number of columns"):
        dask_source(parts()[:, parts()[0] > 0.0])


@pytest.mark.parametrize("opened", [open_source, dask_source])
def test_names_as_frames_give_them(opened: Any) -> None:
    numbered = pd.DataFrame(table())
    table_of = (lambda f: f) if opened is open_source else (lambda f: dd.from_pandas(f, npartitions=2))
    assert opened(table_of(numbered), columns=numbered.columns[[2, 0]]).names == ("2", "0")
    with pytest.raises(ValueError, match="there is no column '7'"):
        opened(table_of(numbered), columns=[7])
    with pytest.raises(ValueError, match="a list of names, not the text '01'"):
        opened(table_of(numbered), columns="01")
    assert open_source(parts(), columns=np.array(["p", "q", "r"])).names == ("p", "q", "r")


def test_masked_values_are_missing() -> None:
    rows = table()
    holes = np.where(rows > 1.0, np.nan, rows)
    here, there = (
        open_source(np.ma.masked_greater(rows, 1.0)),
        dask_source(da.ma.masked_greater(parts(), 1.0)),
    )
    assert digest(here) == digest(there) == digest(open_source(holes))
    whole = np.ma.masked_array([[1, 2], [3, 4]], [[True, False], [False, False]])
    assert next(iter(open_source(whole).chunks()))[0].isnan().tolist() == [[True, False], [False, False]]


def test_sparse_blocks() -> None:
    with pytest.raises(ValueError, match=r"partition \d: its rows are sparse"):
        boxloop.MultinomialMixture(2).fit(da.ones((6, 3), chunks=(3, 3)).map_blocks(sparse.csr_matrix))


@pytest.mark.parametrize("rows", [0, -5])
def test_parts_without_rows(rows: int, tmp_path: Any) -> None:
    np.save(tmp_path / "rows.npy", table())
    with pytest.raises(ValueError, match=f"part_rows must be at least 1, not {rows}"):
        dask_source(tmp_path / "rows.npy", part_rows=rows)


def test_fewer_columns_than_were_fitted() -> None:
    fit = boxloop.GaussianMixture(1).fit(table())
    with pytest.raises(ValueError, match="X has 2 features, but GaussianMixture is expecting 3 features"):
        fit.predict(parts()[:, :2])
