"""Fitted models on the same rows: criteria against scikit-learn, errors against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import FactorAnalysis as TheirFactors
from sklearn.mixture import GaussianMixture as Theirs
from sklearn.neighbors import KernelDensity

import boxloop
from boxloop.select import compare, count_parameters
from estimators.cases import CASES, Case, blobs, every


class Given:
    """A model whose log-densities are one column of the rows."""

    def __init__(self, column: int) -> None:
        self.column = column

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        return X[:, self.column]


def given(table: Any, **more: Any) -> Any:
    table = np.asarray(table, dtype=float)
    return compare({f"m{j}": Given(j) for j in range(table.shape[1])}, table, **more)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_criteria_are_those_of_scikit_learn(kind: str) -> None:
    models = {f"K={k}": Theirs(k, covariance_type=kind, random_state=0).fit(blobs(200)) for k in (1, 2, 3)}
    held = blobs(100, seed=1)
    found = compare(models, held)
    for j, name in enumerate(found.names):
        assert found.aic[j] == pytest.approx(models[name].aic(held), rel=1e-12)
        assert found.bic[j] == pytest.approx(models[name].bic(held), rel=1e-12)
        assert found.log_likelihood[j] == pytest.approx(models[name].score(held), rel=1e-12)


@every
def test_criteria_are_those_of_ours(case: Case) -> None:
    model = case.quick().fit(case.rows(200))
    held = case.rows(60, 1)
    found = compare({"model": model}, held)
    assert found.aic[0] == pytest.approx(model.aic(held), rel=1e-12)
    assert found.bic[0] == pytest.approx(model.bic(held), rel=1e-12)


def test_parameters_are_counted_whole() -> None:
    d, k = 3, 2
    X = blobs(200)
    expected = k - 1 + k * d + k * d * (d + 1) // 2
    for model in (Theirs(k, random_state=0).fit(X), boxloop.GaussianMixture(k, random_state=0).fit(X)):
        assert count_parameters(model, X) == expected


def test_parameters_from_what_an_estimator_offers() -> None:
    X = np.log(np.full((8, 1), 0.5))
    total = X.sum()

    class Number(Given):
        n_parameters = 4

    class Method(Given):
        def n_parameters(self) -> int:
            return 5

    class Bayesian(Given):
        def bic(self, X: np.ndarray) -> float:
            return -2.0 * total + 6.0 * np.log(8)

    class Effective(Given):
        def aic(self, X: np.ndarray) -> float:
            return -2.0 * total + 2.0 * 2.5

    found = [count_parameters(kind(0), X) for kind in (Number, Method, Bayesian, Effective, Given)]
    assert found[:4] == pytest.approx([4.0, 5.0, 6.0, 2.5])
    assert np.isnan(found[4])


def test_models_of_other_libraries_side_by_side() -> None:
    train, held = blobs(300), blobs(200, seed=1)
    models = {
        "one Gaussian": boxloop.GaussianMixture(1).fit(train),
        "two": boxloop.GaussianMixture(2, random_state=0).fit(train),
        "factors": TheirFactors(1).fit(train),
        "kernel": KernelDensity(bandwidth=0.5).fit(train),
    }
    found = compare(models, held)
    assert found.names[0] == found.best == "two"
    assert np.isnan(found.aic[found.names.index("kernel")])
    assert "On 200 rows: two is best." in str(found)
    assert repr(found) == str(found)


def test_differences_are_paired() -> None:
    rng = np.random.default_rng(0)
    hard = 10.0 * rng.normal(size=500)
    table = np.column_stack([hard, hard - 0.1 + 0.2 * rng.normal(size=500)])
    found = given(table)
    apart = table[:, 1] - table[:, 0]
    assert found.difference.tolist() == pytest.approx([0.0, apart.mean()])
    assert found.difference_error[1] == pytest.approx(apart.std(ddof=1) / np.sqrt(500))
    assert found.error == pytest.approx(table.std(0, ddof=1) / np.sqrt(500))
    assert found.best == "m0", "the errors of the two means are far larger than the difference"


def gap_of(errors: float) -> np.ndarray:
    """Two models whose paired difference is this many standard errors."""
    noise = np.array([1.0, -1.0] * 50)
    error = noise.std(ddof=1) / 10.0
    return np.column_stack([np.zeros(100), noise - errors * error])


@pytest.mark.parametrize(("errors", "clear"), [(1.9, False), (2.1, True)])
def test_best_only_beyond_two_errors(errors: float, clear: bool) -> None:
    found = given(gap_of(errors))
    assert (found.best == "m0") == clear
    assert found.tied == (() if clear else ("m1",))
    marks = found.table()["verdict"].tolist()
    assert marks == (["best", ""] if clear else ["tied with m1", "tied"])


def test_a_noisy_third_is_tied_even_behind_a_clear_second() -> None:
    noise = np.array([1.0, -1.0] * 50)
    found = given(np.column_stack([np.zeros(100), np.full(100, -0.1), 10.0 * noise - 0.2]))
    assert found.tied == ("m2",)
    assert found.best is None


def test_the_same_model_twice_is_tied() -> None:
    assert given(np.ones((5, 2))).verdict == "m0 is within two standard errors of m1"


def test_one_model_and_one_row() -> None:
    assert given([[1.0], [2.0]]).best == "m0"
    assert "only model" in str(given([[1.0], [2.0]]))
    single = given([[1.0, 0.0]])
    assert np.isnan(single.error).all()
    assert single.tied == ("m1",), "one row tells nothing about errors"


def test_a_density_of_zero() -> None:
    found = given([[0.0, -np.inf], [1.0, 0.0], [0.0, 2.0]])
    assert found.best == "m0"
    assert found.difference[1] == -np.inf
    both = given([[-np.inf, -np.inf], [1.0, 0.0]])
    assert both.best is None


def test_whole_weights_are_repetitions() -> None:
    train, held = blobs(200), blobs(50, seed=1)
    models = {f"K={k}": boxloop.GaussianMixture(k, random_state=0).fit(train) for k in (1, 2)}
    weight = np.random.default_rng(0).integers(0, 4, 50)
    one = compare(models, held, sample_weight=weight)
    two = compare(models, np.repeat(held, weight, axis=0))
    assert one.names == two.names
    assert one.n_rows == two.n_rows
    for field in ("log_likelihood", "error", "difference", "difference_error", "aic", "bic"):
        np.testing.assert_allclose(getattr(one, field), getattr(two, field), rtol=1e-10)


def test_a_row_without_weight_may_have_no_density() -> None:
    found = given([[0.0, -np.inf], [1.0, 0.0], [0.0, 2.0]], sample_weight=[0.0, 1.0, 1.0])
    assert np.isfinite(found.log_likelihood).all()


def test_criteria_of_ones_own() -> None:
    found = given(
        [[0.0, 1.0], [0.0, 2.0]], criteria={"column": lambda m, X: m.column, "pair": lambda m, X: (7.0, 0.5)}
    )
    assert found.names == ("m1", "m0")
    assert found.criteria["column"][0].tolist() == [1.0, 0.0]
    table = found.table()
    assert table["column"].tolist() == [1.0, 0.0]
    assert table["pair error"].tolist() == [0.5, 0.5]
    assert "column error" not in table
    assert "pair" in str(found)


def test_files_are_rows_too(tmp_path: Any) -> None:
    np.save(tmp_path / "held.npy", blobs(40, seed=1))
    models = {"K=1": boxloop.GaussianMixture().fit(blobs(100))}
    assert compare(models, tmp_path / "held.npy").aic == pytest.approx(compare(models, blobs(40, seed=1)).aic)


def test_a_list_of_models_is_named_by_class() -> None:
    rows = blobs(100)
    two = [Theirs(k, random_state=0).fit(rows) for k in (1, 2)]
    one = TheirFactors(1).fit(rows)
    assert set(compare([*two, one], rows).names) == {
        "GaussianMixture 1",
        "GaussianMixture 2",
        "FactorAnalysis",
    }


def test_a_model_of_sequences_is_refused() -> None:
    class Chain:
        def score_samples(self, X: np.ndarray) -> tuple[float, np.ndarray]:
            return 0.0, X

    with pytest.raises(
        TypeError, match="score_samples of Chain gives 2 values, not one log-density for each row"
    ):
        compare([Chain()], blobs(10))


def test_bad_input() -> None:
    model = CASES[0].quick().fit(CASES[0].rows(50))
    with pytest.raises(ValueError, match="at least one model"):
        compare({}, np.ones((3, 1)))
    with pytest.raises(TypeError, match="no score_samples"):
        compare({"x": object()}, np.ones((3, 1)))
    with pytest.raises(ValueError, match="nan at row 1"):
        given([[0.0], [np.nan]])
    with pytest.raises(ValueError, match="inf at row 0"):
        given([[np.inf]])
    with pytest.raises(ValueError, match="is a column of every comparison"):
        compare({"x": model}, CASES[0].rows(5), criteria={"aic": lambda m, X: 0.0})
    for weight in ([1.0], [-1.0, 1.0], [0.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="weight"):
            given([[0.0], [1.0]], sample_weight=weight)

    class Matrix(Given):
        def score_samples(self, X: np.ndarray) -> np.ndarray:
            return X

    class Short(Given):
        def score_samples(self, X: np.ndarray) -> np.ndarray:
            return X[1:, 0]

    with pytest.raises(ValueError, match="one number per row"):
        compare({"x": Matrix(0)}, np.ones((3, 1)))
    with pytest.raises(ValueError, match="different numbers of rows"):
        compare({"x": Given(0), "y": Short(0)}, np.ones((3, 1)))


def test_models_are_a_dictionary_a_list_or_one() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    one, two, factors = Theirs(1).fit(X), Theirs(2, random_state=0).fit(X), boxloop.FactorAnalysis(1).fit(X)
    assert set(compare([one, factors, two], X).names) == {
        "GaussianMixture 1",
        "FactorAnalysis",
        "GaussianMixture 2",
    }
    assert compare(two, X).names == ("GaussianMixture",)
    assert compare(two, X).best == "GaussianMixture"
    with pytest.raises(TypeError, match="models must be a fitted estimator with score_samples"):
        compare(3, X)


def test_a_comparison_is_an_escaped_table_in_a_notebook() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    found = compare(
        {"<b>one</b>": Theirs(1).fit(X), "two & more": Theirs(2, random_state=0).fit(X)}, X
    )._repr_html_()
    assert "<table" in found
    assert "log_likelihood" in found
    assert "<b>" not in found
    assert "&lt;b&gt;one" in found
    assert "two &amp; more" in found
