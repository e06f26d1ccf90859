"""Faults 20 to 23 as an estimator meets them: other columns, odd tables, streams of rows."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from scipy import sparse
from sklearn.utils import get_tags

from boxloop import BernoulliMixture, MultinomialMixture, PoissonMixture
from boxloop.data import open_source, write_table
from estimators.cases import CASES, Case, assert_same, counted, every, over

NAMES = ("height", "width", "depth", "weight", "age", "sex", "race", "class")


def frame(rows: np.ndarray) -> pandas.DataFrame:
    return pandas.DataFrame(rows, columns=list(NAMES[: rows.shape[1]]))


def methods(estimator: Any) -> list[Any]:
    names = (
        "transform",
        "score_samples",
        "score",
        "aic",
        "bic",
        "partial_fit",
        "standard_errors",
        "predict_proba",
    )
    return [getattr(estimator, name) for name in names if name in dir(estimator)]


@every
def test_f20_another_number_of_columns(case: Case) -> None:
    X = case.rows(60)
    estimator = case.make().fit(X)
    message = rf"X has {X.shape[1] - 1} features, but {case.kind.__name__} is expecting {X.shape[1]} features"
    for method in methods(estimator):
        with pytest.raises(ValueError, match=message):
            method(X[:, 1:])


@every
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_f20_other_names_or_order(case: Case, library: str) -> None:
    make = frame if library == "pandas" else (lambda rows: polars.from_pandas(frame(rows)))
    X = make(case.rows(60))
    estimator = case.make().fit(X)
    assert estimator.feature_names_in_.tolist() == list(X.columns)
    strange = X.rename(columns={"width": "girth"}) if library == "pandas" else X.rename({"width": "girth"})
    swapped = X[["width", "height", *X.columns[2:]]]
    for method in methods(estimator):
        with pytest.raises(ValueError, match=r"(?s)The feature names should match.*girth"):
            method(strange)
        with pytest.raises(
            ValueError, match=r"(?s)The feature names should match.*must be in the same order"
        ):
            method(swapped)


@over([case for case in CASES if case.name in ("gaussian-full", "factor", "poisson")])
def test_f20_files_with_other_columns(case: Case, tmp_path: Path) -> None:
    X = frame(case.rows(60))
    write_table(tmp_path / "t.csv", {name: X[name] for name in X})
    write_table(tmp_path / "o.csv", {name: X[name] for name in reversed(X.columns)})
    estimator = case.make().fit(tmp_path / "t.csv")
    np.testing.assert_allclose(estimator.transform(X), estimator.transform(tmp_path / "t.csv"), rtol=1e-12)
    with pytest.raises(
        ValueError, match=rf"X has columns .*but {case.kind.__name__} was fitted to height, width"
    ):
        estimator.transform(tmp_path / "o.csv")
    np.save(tmp_path / "t.npy", X.to_numpy())
    plain = case.make().fit(tmp_path / "t.npy")
    np.testing.assert_allclose(plain.transform(X.to_numpy()), plain.transform(tmp_path / "t.npy"), rtol=1e-12)


@every
def test_f21_numbers_of_other_kinds_are_converted(case: Case) -> None:
    X = np.round(case.rows(60)) if case.counting else np.round(case.rows(60) * 8)
    expected = case.make().fit(X)
    kinds = [X.astype(object), X.astype(np.int16), X.astype(np.float16), X.tolist(), torch.from_numpy(X)]
    for data in kinds:
        assert_same(case.make().fit(data), expected)
    if not case.mixing:
        return
    for data in (frame(X), frame(X).astype("Int64"), polars.from_pandas(frame(X)), pyarrow.table(frame(X))):
        assert_same(case.make().fit(data), expected)


@every
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array([["a", "b"]] * 9), "holds text"),
        (np.array([[1.0, "red"]] * 9, dtype=object), "column 1 of X holds text, 'red'"),
        (np.ones((9, 2), dtype=complex), "Complex data not supported"),
        (np.ones(9), "Expected 2D array, got 1D array instead"),
        (np.ones((9, 2, 2)), "dim 3"),
    ],
)
def test_f21_what_is_not_numeric(case: Case, data: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.make().fit(data)


@every
def test_f21_tags_tell_the_truth(case: Case) -> None:
    estimator, X = case.make(), abs(case.rows(60))
    tags = get_tags(estimator).input_tags
    assert tags.allow_nan
    assert tags.sparse == (case.kind in (MultinomialMixture, PoissonMixture))
    table = sparse.csr_array(X)
    if tags.sparse:
        assert_same(case.make().fit(table), case.make().fit(X))
        for kind in (sparse.csc_array, sparse.coo_matrix):
            assert_same(case.make().fit(kind(X)), case.make().fit(X))
    else:
        with pytest.raises(TypeError, match="Sparse data was passed"):
            estimator.fit(table)
        with pytest.raises(ValueError, match=f"{case.kind.__name__} takes no sparse rows"):
            estimator.fit(open_source(table))


@counted
def test_f21_negative_counts_are_named(case: Case) -> None:
    X = case.rows(60)
    X[7, 1] = -2.0
    more = {"binarize": None} if case.kind is BernoulliMixture else {}
    assert get_tags(case.make(**more)).input_tags.positive_only
    with pytest.raises(ValueError, match=r"Negative values in data passed to .*: column 'x1' holds -2"):
        case.make(**more).fit(X)
    with pytest.raises(ValueError, match="column 'width' holds -2"):
        case.make(**more).partial_fit(frame(X))


def test_f21_not_zeros_and_ones() -> None:
    with pytest.raises(ValueError, match=r"Values outside \[0, 1\] .* column 'x1' holds 3"):
        BernoulliMixture(2, binarize=None).fit(np.array([[0.0, 1.0], [1.0, 3.0]] * 9))


@every
def test_f22_any_layout(case: Case, tmp_path: Path) -> None:
    X = case.rows(80)
    np.save(tmp_path / "t.npy", X)
    fixed = X.copy()
    fixed.flags.writeable = False
    layouts = {
        "memory map": np.load(tmp_path / "t.npy", mmap_mode="r"),
        "read-only": fixed,
        "Fortran": np.asfortranarray(X),
        "strided": np.repeat(np.repeat(X, 2, 0), 3, 1)[::2, ::3],
        "negative strides": X[::-1, ::-1].copy()[::-1, ::-1],
        "big-endian": X.astype(">f8"),
        "file": tmp_path / "t.npy",
    }
    expected = case.make().fit(X.copy())
    before = X.copy()
    for name, data in layouts.items():
        found = case.make().fit(data)
        assert_same(found, expected, rtol=1e-10)
        np.testing.assert_allclose(found.transform(data), expected.transform(X), rtol=1e-9, err_msg=name)
    np.testing.assert_array_equal(X, before, err_msg="input is never changed")


@every
def test_f23_first_call_with_fewer_rows_than_components(case: Case) -> None:
    X = case.rows(400)
    estimator = case.make(n_components=3)
    estimator.partial_fit(X[:1]).partial_fit(X[1:2])
    for start in range(2, 400, 50):
        estimator.partial_fit(X[start : start + 50])
    assert estimator.model_.is_finite()
    assert np.isfinite(estimator.score(X))


@every
def test_f23_batches_of_one_row(case: Case) -> None:
    """One by one from the first, and one by one across the change from kept rows to a flow."""
    X = case.rows(230)
    estimator = case.quick()
    for batch in np.split(X, [*range(1, 8), *range(190, 230)]):
        estimator.partial_fit(batch)
        if "model_" in vars(estimator):
            assert estimator.model_.is_finite()
    assert np.isfinite(estimator.score(X))


def without(estimator: Any, *names: str) -> bytes:
    return pickle.dumps({k: v for k, v in vars(estimator).items() if k not in names})


@every
@pytest.mark.parametrize("rows", [1, 60, 400])
def test_f23_columns_change(case: Case, rows: int) -> None:
    X = case.rows(500)
    estimator = case.make().partial_fit(frame(X[:rows]))
    before = without(estimator)
    for bad in (frame(X[:9]).drop(columns="width"), frame(X[:9])[::-1].iloc[:, ::-1]):
        with pytest.raises(ValueError, match="The feature names should match"):
            estimator.partial_fit(bad)
        assert without(estimator) == before
    spoilt = frame(X[:9]).astype(float)
    spoilt.iloc[3, 1] = np.inf
    with pytest.raises(ValueError, match="infinite"):
        estimator.partial_fit(spoilt)
    with pytest.raises(ValueError, match="weight at row 0"):
        estimator.partial_fit(frame(X[:9]), sample_weight=-np.ones(9))
    assert without(estimator) == before
    twin = copy.deepcopy(estimator)
    estimator.partial_fit(frame(X[400:]))
    assert_same(estimator, twin.partial_fit(frame(X[400:])), rtol=0, atol=0)
