"""What a report says about columns, and which it leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from boxloop.report import BINARY, CONTINUOUS, COUNTS, describe_columns, infer_kind

RNG = np.random.default_rng(0)
N = 400


def describe(**columns):
    rows = np.column_stack(list(columns.values())).astype(float)
    return {column.name: column for column in describe_columns(list(columns), rows, {})}


def test_ordinary_columns_are_used_as_they_are():
    found = describe(a=RNG.normal(size=N), b=RNG.normal(3.0, 2.0, size=N))
    assert all(column.used and not column.notes for column in found.values())
    assert found["b"].mean == pytest.approx(3.0, abs=0.5)
    assert found["b"].std == pytest.approx(2.0, abs=0.3)


def test_useless_columns_are_left_out_with_the_reason():
    a = RNG.normal(size=N)
    found = describe(
        a=a,
        same=np.ones(N),
        again=32 + 1.8 * a,
        row=np.arange(N),
        empty=np.full(N, np.nan),
        flag=a > 0,
        b=RNG.random(N),
    )
    assert {name for name, column in found.items() if column.used} == {"a", "b"}
    assert found["again"].left_out == "the same as a in other units"
    assert found["row"].left_out == "numbers the rows"
    assert "same value" in found["same"].left_out
    assert "no value" in found["empty"].left_out
    assert "two values" in found["flag"].left_out


def test_a_column_that_hardly_varies_is_left_out():
    rare = np.zeros(N)
    rare[:4] = RNG.normal(size=4)
    found = describe(rare=rare, a=RNG.normal(size=N))
    assert found["rare"].left_out == "the same value in all but 4 rows"


def test_columns_that_hold_no_numbers_keep_their_place():
    found = describe_columns(
        ["name", "a"], RNG.normal(size=(N, 1)), {"name": "text, 9 different in the first 400 rows"}
    )
    assert [column.name for column in found] == ["name", "a"]
    assert not found[0].used
    assert found[0].left_out.startswith("text")


def test_what_is_remarkable_is_noted():
    gappy = RNG.normal(size=N)
    gappy[::4] = np.nan
    skewed, zeros = np.exp(RNG.normal(size=N) * 1.5), np.where(RNG.random(N) < 0.7, 0.0, RNG.normal(size=N))
    found = describe(
        gappy=gappy, skewed=skewed, zeros=zeros, tails=RNG.standard_t(2, size=N), plain=RNG.normal(size=N)
    )
    assert found["gappy"].notes == ("25% missing",)
    assert any("logarithm" in note for note in found["skewed"].notes)
    assert any("of the values are 0" in note for note in found["zeros"].notes)
    assert "heavy tails" in found["tails"].notes
    assert found["plain"].notes == ()


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([[0.0, 1.0], [1.0, 1.0]], BINARY),
        ([[0.0, 4.0], [3.0, 0.0], [1.0, np.nan]], COUNTS),
        ([[0.5, 4.0]], CONTINUOUS),
        ([[-1.0, 4.0]], CONTINUOUS),
        ([[1950.0, 3.0], [1987.0, 0.0]], CONTINUOUS),
        ([[170.0], [182.0], [165.0]], CONTINUOUS),
    ],
)
def test_the_kind_of_values(rows, kind):
    assert infer_kind(np.array(rows)) == kind
