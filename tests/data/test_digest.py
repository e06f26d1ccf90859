"""The fingerprint of a table."""

import numpy as np

from boxloop.data import fingerprint_source, open_source


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
