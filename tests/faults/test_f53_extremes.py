"""FAULTS 53 (and 14): numbers at the ends of floating point, in model files and in rows that a model is asked about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import boxloop
from boxloop.persist import ModelFileError
from estimators.public_cases import PUBLIC, Public
from persist.mutations import seal, split

BEYOND = (1e160, 1e200, -1e307)
"""Values whose squares overflow."""
ASKED = ("score_samples", "score", "predict", "predict_proba", "transform", "reconstruct", "energy_of", "bic")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the overflow
@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)
@pytest.mark.parametrize("value", BEYOND)
def test_a_row_beyond_all_numbers_is_named(public: Public, value: float) -> None:
    """It gets an answer, minus infinity among them, or an error that says which row it is."""
    fitted, (X, y) = public.fitted(), public.data()
    rows = X[:6].astype(float)
    rows[2] = value * np.where(np.arange(rows.shape[1]) % 2, -1.0, 1.0)
    for name in ASKED:
        if not hasattr(fitted, name):
            continue
        given = (rows, y[:6]) if name == "score" and y is not None else (rows,)
        try:
            answer, said = np.asarray(getattr(fitted, name)(*given)), ""
        except ValueError as error:
            answer, said = np.zeros(1), str(error)
        assert answer.dtype.kind != "f" or not np.isnan(answer).any(), name
        assert "overflow" not in said or "row 2 " in said
        assert said == "" or len(said) > 30


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_far_rows_are_counted_from_the_first_of_all() -> None:
    rows = np.random.default_rng(0).normal(size=(60_000, 2))
    fitted = boxloop.GaussianMixture(2, random_state=0, max_iter=2, tol=1.0).fit(rows[:500])
    rows[51_234] = 1e200
    for name in ("predict_proba", "predict"):
        with pytest.raises(ValueError, match=r"row 51234 .*leave it out"):
            getattr(fitted, name)(rows)


@pytest.mark.parametrize("name", ["PoissonMixture", "MultinomialMixture"])
def test_counts_whose_squares_overflow_are_refused(name: str) -> None:
    counts = np.random.default_rng(0).poisson(3.0, size=(40, 3)) * 1e200
    with pytest.raises(ValueError, match=r"outside \[0, 1e\+100\] .*column 'x0'"):
        getattr(boxloop, name)(2, random_state=0).fit(counts)


def test_names_of_one_column_twice_are_refused(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "m.boxloop"
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
    boxloop.GaussianMixture(1).fit(frame).save(path)
    document, tensors = split(path.read_bytes())
    path.write_bytes(seal({**document, "columns": ["a", "a"]}, tensors))
    with pytest.raises(ModelFileError, match="more than once"):
        boxloop.load(path)


def test_a_model_of_the_largest_and_smallest_columns_is_saved_and_read(tmp_path: Path) -> None:
    """What a fit takes a file must give back."""
    rows = np.random.default_rng(0).normal(size=(80, 2)) * [1e-150, 1e150]
    for fitted in (
        boxloop.GaussianMixture(2, random_state=0),
        boxloop.GaussianMixture(2, covariance_type="diag", random_state=0),
        boxloop.BayesianGaussianMixture(2, random_state=0),
        boxloop.FactorAnalysis(1),
        boxloop.BayesianFactorAnalysis(1),
    ):
        fitted.fit(rows).save(tmp_path / "m.boxloop")
        again = boxloop.load(tmp_path / "m.boxloop")
        np.testing.assert_array_equal(again.score_samples(rows), fitted.score_samples(rows))
