"""Tables as commands name them, bundled data, and tables written part by part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxloop.data import (
    CATALOGUE,
    ArraySource,
    load_dataset,
    open_source,
    open_table,
    table_writer,
    write_table,
)


@pytest.mark.parametrize("name", CATALOGUE)
def test_bundled_data_are_whole(name: str) -> None:
    data = load_dataset(name)
    assert data.rows.shape == (len(data.target), len(data.names))
    assert data.rows.shape == (CATALOGUE[name]["rows"], CATALOGUE[name]["columns"])
    np.testing.assert_array_equal(data.rows, load_dataset(name).rows)
    assert np.isfinite(data.rows).all()
    assert not data.classes or len(data.classes) == len(np.unique(data.target))
    source = open_table(name)
    assert isinstance(source, ArraySource)
    np.testing.assert_array_equal(source.rows.numpy(), data.rows)
    assert source.names == data.names


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"no bundled data set 'irises' \(did you mean 'iris'\?\); there are "
    ):
        load_dataset("irises")
    with pytest.raises(FileNotFoundError, match=r"irises: no such file or folder.*did you mean 'iris'"):
        open_table("irises")


def test_a_file_comes_before_a_bundled_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("iris").mkdir()
    write_table("iris/part.csv", {"a": np.ones(2)})
    assert open_table("iris").names == ("a",)


@pytest.fixture(params=[".csv", ".parquet"])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"mixed{request.param}"
    numbers = np.arange(4.0)
    write_table(path, {"a": numbers, "kind": np.array(list("wxyz")), "b": -numbers, "w": numbers})
    return path


def test_columns_are_chosen_by_name(mixed: Path) -> None:
    source = open_table(mixed, "w", drop=["kind"])
    assert source.names == ("a", "b")
    assert isinstance(source, ArraySource)
    np.testing.assert_array_equal(source.weight.numpy(), np.arange(4.0))
    assert open_table(mixed, columns=["b", "a"]).names == ("b", "a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "column 'kind' is not numeric"),
        ({"drop": ["nope"]}, "there is no column 'nope'"),
        ({"columns": ["nope"]}, "there is no column 'nope'"),
        ({"weight": "nope"}, "there is no column 'nope'"),
        ({"columns": ["a"], "drop": ["a"]}, "there is no column 'a'"),
        ({"drop": ["a", "b", "kind"], "weight": "w"}, "no column is left to use"),
    ],
)
def test_columns_that_cannot_be_used_are_named(mixed: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_table(mixed, **options)


def test_columns_of_npy_files_can_be_chosen(tmp_path: Path) -> None:
    rows = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "x.npy", rows)
    source = open_table(tmp_path / "x.npy", drop=["x1"])
    assert source.names == ("x0", "x2")
    np.testing.assert_array_equal(next(iter(source.chunks()))[0].numpy(), rows[:, [0, 2]])


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_parts_make_one_table(tmp_path: Path, suffix: str) -> None:
    rows = np.random.default_rng(0).normal(size=(10, 2))
    with table_writer(tmp_path / f"t{suffix}") as write:
        for part in np.split(rows, [3, 4]):
            write({"a": part[:, 0], "b": part[:, 1]})
    np.testing.assert_array_equal(open_source(tmp_path / f"t{suffix}").rows.numpy(), rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_unfinished_table_leaves_the_old_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write_table(path, {"a": np.array([1.0])})

    def fail() -> None:
        with table_writer(path) as write:
            write({"a": np.array([2.0])})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    np.testing.assert_array_equal(open_source(path).rows.numpy(), [[1.0]])
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
