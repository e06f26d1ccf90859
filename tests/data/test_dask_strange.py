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
from boxloop.data import ArraySource, dask_source, fingerprint_source, open_source

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
    with pytest.raises(ValueError, match=r"one entry per row: shape \(90,\) is needed"):
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
    assert fingerprint_source(dask_source(rows[few], mass[few])) == fingerprint_source(wanted)
    for weight in (mass.rechunk(10)[few.rechunk(10)], mass[: some.sum()]):
        with pytest.raises(
            ValueError, match=r"chunks of unknown sizes: call compute_chunk_sizes\(\) of both"
        ):
            dask_source(rows[few], weight)


@pytest.mark.parametrize("chunks", [30, 40, 7, ((50, 20, 20),)])
def test_an_array_of_weights_goes_by_position(chunks: Any) -> None:
    mass = np.arange(1.0, N + 1)
    wanted = fingerprint_source(open_source(pd.DataFrame(table(), columns=["a", "b", "c"]), mass))
    for rows in (frame(), frame().clear_divisions()):
        assert fingerprint_source(dask_source(rows, da.from_array(mass, chunks=chunks))) == wanted
    few = table()[:, 0] > 1.5
    some = dask_source(frame().query("a > 1.5"), da.from_array(mass[few], chunks=2))
    assert 0 in dask_source(frame().query("b > 2.2")).counts
    assert fingerprint_source(some) == fingerprint_source(
        open_source(table()[few], mass[few], ["a", "b", "c"])
    )
    with pytest.raises(ValueError, match=r"one entry per row: shape \(90,\) is needed, \(60,\) was given"):
        dask_source(frame(), da.ones(60, chunks=20))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("moved", [0, 7, 700])
def test_a_series_of_weights_goes_by_label(known: bool, moved: int) -> None:
    mass = pd.Series(np.arange(1.0, N + 1), index=np.arange(N) + moved)
    rows, weight = frame(), dd.from_pandas(mass, npartitions=3)
    if not known:
        rows, weight = rows.clear_divisions(), weight.clear_divisions()
    if moved:
        with pytest.raises(
            ValueError, match=r"partition 0: row 0 .* has no weight: a Dask series of weights"
        ):
            boxloop.GaussianMixture(1).fit(rows, sample_weight=weight)
    else:
        wanted = boxloop.GaussianMixture(1).fit(table(), sample_weight=mass).means_
        np.testing.assert_allclose(
            boxloop.GaussianMixture(1).fit(rows, sample_weight=weight).means_, wanted, rtol=1e-10
        )


@pytest.mark.parametrize("known", [True, False])
def test_a_series_of_weights_keeps_rows_beside_targets_at_hand(known: bool) -> None:
    """Dask would shuffle rows without divisions."""
    y, mass = np.arange(N) + table()[:, 0], pd.Series(np.arange(1.0, N + 1))
    rows, weight = frame(), dd.from_pandas(mass, npartitions=3)
    if not known:
        rows, weight = rows.clear_divisions(), weight.clear_divisions()
    here = boxloop.BayesianLinearRegression().fit(rows.compute(), y, sample_weight=mass)
    there = boxloop.BayesianLinearRegression().fit(rows, y, sample_weight=weight)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-8)


def test_weights_in_other_partitions_without_divisions() -> None:
    rows = frame().clear_divisions()
    weight = dd.from_pandas(pd.Series(np.ones(N)), npartitions=2).clear_divisions()
    for other in (weight, weight.values):
        with pytest.raises(ValueError, match="in 3 partitions and the weights in 2, and it is not known"):
            dask_source(rows, other)


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
    missing = np.where(rows > 1.0, np.nan, rows)
    here, there = (
        open_source(np.ma.masked_greater(rows, 1.0)),
        dask_source(da.ma.masked_greater(parts(), 1.0)),
    )
    assert fingerprint_source(here) == fingerprint_source(there) == fingerprint_source(open_source(missing))
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
