"""Written tables read back the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

from boxloop.data import open_source, write_table


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("names", [["a"], ["a", "b, c", 'd"e']])
def test_numbers_read_back_the_same(tmp_path: Path, suffix: str, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, len(names))) * 10.0 ** rng.integers(-300, 300, (200, len(names)))
    rows[::7] = np.nan
    path = tmp_path / f"t{suffix}"
    write_table(path, dict(zip(names, rows.T, strict=True)))
    source = open_source(path)
    assert source.names == tuple(names)
    np.testing.assert_array_equal(source.rows.numpy(), rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_whole_numbers_and_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write_table(
        str(path),
        {"group": np.array([3, 1]), "name": np.array(["é, x", "y"]), "yes": np.array([True, False])},
    )
    frame = pandas.read_csv(path) if suffix == ".csv" else pandas.read_parquet(path)
    assert frame.to_dict("list") == {"group": [3, 1], "name": ["é, x", "y"], "yes": [True, False]}


@pytest.mark.parametrize(
    "columns", [{}, {"a": np.ones(2), "b": np.ones(3)}, {"a": np.ones((2, 2))}, {"a": np.array(1.0)}]
)
def test_columns_of_unequal_length_are_refused(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="columns of equal length are needed"):
        write_table(tmp_path / "t.csv", columns)
    assert not (tmp_path / "t.csv").exists()


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"t\.xlsx: the name must end in"):
        write_table(tmp_path / "t.xlsx", {"a": np.ones(2)})


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_nothing_is_written_through_a_link_at_the_unfinished_file(link: str, tmp_path: Path) -> None:
    """Such a link would lead the rows into another file."""
    other = tmp_path / "rows.csv"
    other.write_text("a\n1\n")
    getattr(tmp_path / ".t.csv.part", link)(other)
    write_table(tmp_path / "t.csv", {"b": np.array([2.0])})
    assert other.read_text() == "a\n1\n"
    assert (tmp_path / "t.csv").read_text() == "b\n2.0\n"
