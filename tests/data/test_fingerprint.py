"""Fingerprints of tables, values and files."""

from pathlib import Path

import numpy as np
import torch

from boxloop.data import fingerprint_file, fingerprint_source, fingerprint_values, open_source


def test_other_tables() -> None:
    """Rows in another order, columns in another order, another weight and one other bit are other tables."""
    rows, mass = np.random.default_rng(0).normal(size=(50, 3)), np.ones(50)
    other, heavy = rows.copy(), mass.copy()
    other[7, 1], heavy[9] = np.nextafter(other[7, 1], 0.0), 2.0
    tables = [(rows, mass), (rows[::-1], mass), (rows[:, ::-1], mass), (rows, heavy), (other, mass)]
    assert len({fingerprint_source(open_source(*one)) for one in tables}) == 5


def test_same_tables() -> None:
    """The sign of a zero, and which NaN marks a missing value, say nothing."""
    one, two = np.zeros((4, 2)), np.zeros((4, 2))
    one[0, 0], two[0, 0] = np.nan, -np.nan
    two[1, 1] = -0.0
    assert fingerprint_source(open_source(one)) == fingerprint_source(open_source(two))


def test_values_differ_by_type_shape_order_and_place() -> None:
    row = np.arange(4.0)
    values = [
        (row,),
        (row[::-1],),
        (row.astype(np.float32),),
        (row.reshape(2, 2),),
        (row.reshape(2, 2).T,),
        (row[:2], row[2:]),
        (("mean", torch.tensor(row)),),
        (("scale", torch.tensor(row)),),
        (row.tolist(),),
        (row.tobytes(),),
    ]
    assert len({fingerprint_values(*parts) for parts in values}) == len(values)


def test_a_tensor_counts_as_its_array_wherever_it_is_in_memory() -> None:
    """Of a long tensor every value counts, though its repr leaves most out; so it does within a tuple."""
    long, changed = torch.zeros(10_000, 3), torch.zeros(10_000, 3)
    changed[5000, 1] = 1.0
    for wrap in (lambda value: value, lambda value: ("rows", value), lambda value: (("rows", value), "x")):
        assert fingerprint_values(wrap(long)) != fingerprint_values(wrap(changed))
    assert fingerprint_values(long.mT.contiguous().mT) == fingerprint_values(long.numpy())
    assert fingerprint_values(torch.ones(3, dtype=torch.bfloat16, requires_grad=True)) == fingerprint_values(
        np.ones(3, np.float32)
    )


def test_a_file_is_known_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"a,b\n1,2\n")
    assert fingerprint_file(tmp_path / "rows.csv") == fingerprint_values(b"a,b\n1,2\n")
