"""Which kind of table becomes which source, and what is no table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from torch import Tensor

from boxloop import GaussianMixture
from boxloop.data import (
    ArraySource,
    ConcatenatedRows,
    StandardisedSource,
    TiledSource,
    dask_source,
    fit_standardisation,
    open_source,
    open_table,
    write_table,
)

TABLE = {"a": np.arange(5.0), "b": np.ones(5)}


class Own(TiledSource):
    """A source made elsewhere."""

    n_rows = 3
    n_columns = 2
    names = ("a", "b")

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.zeros(3, 2), torch.ones(3)


def test_a_source_is_returned_as_it_is(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE)
    array = ArraySource(torch.zeros(3, 2, dtype=torch.float64))
    for source in (
        array,
        StandardisedSource(array, fit_standardisation(array)),
        Own(),
        open_source(tmp_path / "t.csv", memory=0),
    ):
        assert open_source(source) is source
    with pytest.raises(ValueError, match="its own weights"):
        open_source(array, weight=np.ones(3))


def test_float64_is_shared_not_copied() -> None:
    rows = np.ones((4, 2))
    assert np.shares_memory(open_source(rows).rows.numpy(), rows)
    tensor = torch.ones(4, 2, dtype=torch.float64)
    assert open_source(tensor).rows.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("data", [3.0, None, object(), {"a": [1]}, iter([1])])
def test_what_is_no_table_is_a_type_error(data: object) -> None:
    with pytest.raises(TypeError, match="a table is needed"):
        open_source(data)


def test_paths_as_text_and_suffixes_in_capitals(tmp_path: Path) -> None:
    write_table(tmp_path / "T.CSV", TABLE)
    assert open_source(str(tmp_path / "T.CSV")).names == ("a", "b")


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.csv: no such file"):
        open_source(tmp_path / "no.csv")
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(ValueError, match=r"t\.xlsx: a \.npy, \.csv"):
        open_source(tmp_path / "t.xlsx")
    with pytest.raises(ValueError, match="the folder holds no"):
        open_source(tmp_path)


def test_a_folder_is_read_in_order_and_markers_are_left_out(tmp_path: Path) -> None:
    for i in (2, 0, 1):
        np.save(tmp_path / f"part{i}.npy", np.full((2, 1), float(i)))
    for marker in ("_SUCCESS", ".part0.npy.crc", "_old.npy", "notes.txt"):
        (tmp_path / marker).write_text("x")
    assert open_source(tmp_path).rows[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_a_folder_of_two_kinds_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE)
    write_table(tmp_path / "t.parquet", TABLE)
    with pytest.raises(ValueError, match="more than one kind"):
        open_source(tmp_path)


def test_sparse_tensors_get_advice() -> None:
    with pytest.raises(ValueError, match="give a SciPy sparse array"):
        open_source(torch.eye(3).to_sparse_coo())


def test_a_tensor_keeps_no_graph() -> None:
    rows = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    assert not open_source(rows).rows.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_follow_the_rows_to_their_device() -> None:
    source = open_source(torch.ones(3, 2, device="cuda"), weight=[1, 2, 3])
    assert source.rows.device == source.weight.device


PATHS = ["rows/1.parquet", "rows/2.parquet"]


@pytest.mark.parametrize("opened", [open_source, dask_source, GaussianMixture(1).fit])
@pytest.mark.parametrize("data", [PATHS, tuple(PATHS), [Path(p) for p in PATHS]])
def test_a_list_of_paths_is_no_table(opened: Callable[[object], object], data: object) -> None:
    with pytest.raises(
        ValueError, match=r"a list of text is no table \(it begins with 'rows/1.parquet'\): of"
    ):
        opened(data)


@pytest.mark.parametrize("opened", [open_source, dask_source, open_table])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_patterns_are_not_taken(opened: Callable[[str], object], scheme: str, tmp_path: Path) -> None:
    write_table(tmp_path / "1.parquet", TABLE)
    for pattern in ("*.parquet", "[0-9].parquet", "?.parquet"):
        with pytest.raises(
            FileNotFoundError, match="no such file or folder; patterns of names are not taken"
        ):
            opened(f"{scheme}{tmp_path}/{pattern}")
    write_table(tmp_path / "[1].parquet", TABLE)
    assert open_source(tmp_path / "[1].parquet").n_rows == 5


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_tables_in_subfolders(scheme: str, tmp_path: Path) -> None:
    place = tmp_path / "rows"
    (place / "g=0").mkdir(parents=True)
    if not scheme:
        with pytest.raises(ValueError, match=r"with any content$"):
            open_source(place)
    write_table(place / "g=0" / "part.0.parquet", TABLE)
    with pytest.raises(
        ValueError, match=r"with any content.*; there are subfolders: name one of them, or give"
    ):
        open_source(f"{scheme}{place}")
    assert open_source(f"{scheme}{place}/g=0").n_rows == 5


def test_urls_that_are_no_parquet(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE)
    with pytest.raises(ValueError, match=r"t\.csv: there is no Parquet file .* only Parquet is read by URL$"):
        open_source(f"file://{tmp_path}/t.csv")
    with pytest.raises(ValueError, match=r"foo://x/y: Protocol not known: foo"):
        open_source("foo://x/y")


def test_files_that_a_worker_does_not_find(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", TABLE)
    system = fsspec.filesystem("memory")
    system.pipe("/here-alone/t.parquet", (tmp_path / "t.parquet").read_bytes())
    source = dask_source("memory://here-alone")
    system.rm("/here-alone/t.parquet")
    with pytest.raises(FileNotFoundError, match=r"does not find it: every worker .*here-alone/t.par"):
        source.reduce(lambda rows, weight: ConcatenatedRows.of(rows))
