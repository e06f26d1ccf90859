"""Moment gaps: exact facts, errors from three sources, calibration, power, and what must be refused."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture as SklearnMixture

import boxloop
import boxloop.data
from boxloop.criticise import Below, Custom, First, Fourier, Power, Second, as_model, mega

SEEING = [First(), Second(), Power(3), Power(4), Fourier(20)]


def two_clusters(rng: np.random.Generator, n: int) -> np.ndarray:
    left = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
    right = rng.normal(size=(n, 2)) * [0.7, 1.2] + [3.0, 2.0]
    return np.where(rng.random((n, 1)) < 0.4, left, right)


def two_factors(rng: np.random.Generator, n: int) -> np.ndarray:
    loadings = np.array([[1, 0.8, 0.6, 0.3, 0], [0, 0.4, -0.6, 0.8, 1]])
    return 10 + rng.normal(size=(n, 2)) @ loadings + rng.normal(size=(n, 5)) * [0.5, 0.7, 0.9, 1, 0.6]


FITS = {
    "mixture": (
        two_clusters,
        lambda: boxloop.GaussianMixture(2, init_params="kmeans", random_state=0, tol=1e-9),
    ),
    "factors": (two_factors, lambda: boxloop.FactorAnalysis(2, tol=1e-10)),
    "scikit-learn": (
        two_clusters,
        lambda: SklearnMixture(2, n_init=3, tol=1e-8, reg_covar=1e-9, max_iter=500, random_state=0),
    ),
}

slow_mixture = pytest.param("mixture", marks=pytest.mark.slow)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("kind", ["full", "tied"])
def test_on_its_own_rows_an_em_fit_has_no_gap_whatever_k(kind, k):
    """REPLICATION, tables 1 and 2: the exact gaps of a full or tied fit do not distinguish one k from another."""
    rows = two_clusters(np.random.default_rng(0), 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = boxloop.GaussianMixture(k, covariance_type=kind, random_state=0, tol=1e-12, max_iter=5000).fit(
            rows
        )
    with pytest.warns(UserWarning, match="X seems to hold the rows of the fit"):
        result = mega(fit.model_, rows, draws=0)
    assert result["first"].norm() < 1e-8
    assert result["second"].norm() < 1e-8


def test_the_paper_s_second_gap_of_a_single_gaussian_is_its_bias():
    """Eq. 7 overshoots by Cov/n; ours does not."""
    from boxloop.criticise import paper_gaps
    from boxloop.numeric import generator

    rows = two_clusters(np.random.default_rng(0), 50)
    fit = boxloop.GaussianMixture(1).fit(rows)
    _, second = paper_gaps(as_model(fit), torch.from_numpy(rows), generator(0), 1000)
    np.testing.assert_allclose(second, np.cov(rows.T) / 50, rtol=1e-4)


def test_training_errors_of_one_gaussian_have_a_closed_form():
    rng = np.random.default_rng(1)
    train, test = rng.normal(size=(500, 2)) * [1, 3], rng.normal(size=(100, 2)) * [1, 3]
    fit = boxloop.GaussianMixture(1).fit(train)
    first, second = mega(fit, test, train=train, draws=0).gaps
    np.testing.assert_allclose(first.parameter_error, train.std(0) / 500**0.5, rtol=1e-4)
    centred = train - train.mean(0)
    products = np.stack([centred[:, 0] ** 2, centred[:, 0] * centred[:, 1], centred[:, 1] ** 2])
    np.testing.assert_allclose(second.parameter_error, products.std(1) / 500**0.5, rtol=1e-3)
    np.testing.assert_allclose(first.row_error, test.std(0, ddof=1) / 100**0.5, rtol=1e-10)


@pytest.mark.parametrize("name", [slow_mixture, "factors", "scikit-learn"])
def test_training_errors_are_the_spread_over_refits(name):
    """Against 60 refits: a ratio of variances outside 0.45 to 2 has chance below 1e-4 an entry, for 45 entries."""
    make, estimator = FITS[name]
    rng = np.random.default_rng(0)
    held, found, errors = make(rng, 50), [], []
    for repeat in range(60):
        train = make(rng, 400)
        given = train if repeat < 3 else None
        result = mega(
            estimator().fit(train),
            held,
            train=given,
            draws=0,
            null="signs",
            functions=[First(), Second("zero")],
        )
        first, second = result.gaps
        found.append(np.concatenate([first.model, second.statistic.flatten(second.model)]))
        if given is not None:
            errors.append(np.concatenate([first.parameter_error, second.parameter_error]))
    ratio = np.var(found, axis=0, ddof=1) / np.mean(np.square(errors), axis=0)
    assert ratio.min() > 0.45
    assert ratio.max() < 2.0


def p_values(
    name: str, repeats: int, *, rows: int = 400, train: bool = True, same: bool = False, null: str = "auto"
) -> np.ndarray:
    make, estimator = FITS[name]
    values = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        fitted_to, held = make(rng, rows), make(rng, rows)
        held = fitted_to if same else held
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", boxloop.FitWarning)  # one seed in some hundred is a Heywood case
            fit = estimator().fit(fitted_to)
        given = fitted_to if train else None
        values.append(
            mega(fit, held, functions=SEEING, train=given, draws=99, null=null, random_state=seed).p_value
        )
    return np.array(values)


def is_uniform(values: np.ndarray) -> bool:
    """Kolmogorov's test at level 1e-4."""
    return bool(stats.kstest(values, "uniform").pvalue > 1e-4)


@pytest.mark.parametrize(
    "name", [slow_mixture, "factors", pytest.param("scikit-learn", marks=pytest.mark.slow)]
)
def test_p_values_are_uniform_under_a_true_model(name):
    assert is_uniform(p_values(name, 25))


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_p_values_are_uniform_over_a_thousand_simulations(name):
    values = p_values(name, 1000)
    assert is_uniform(values)
    for level in (0.01, 0.05, 0.1):
        assert abs((values <= level).mean() - level) < 4 * (level * (1 - level) / 1000) ** 0.5 + 0.002


@pytest.mark.slow
def test_without_the_training_error_true_models_are_rejected():
    """0.25 at level 0.05 in a longer run; a right test would reach 7 of 40 with chance 3e-3."""
    assert (p_values("mixture", 40, train=False) <= 0.05).sum() >= 7


@pytest.mark.parametrize("name", ["mixture", pytest.param("factors", marks=pytest.mark.slow)])
def test_on_the_rows_of_the_fit_p_values_do_not_reject_too_often(name):
    """Kolmogorov's test, and the fourth moment, which random signs alone reject four times too often."""
    assert is_uniform(p_values(name, 20, same=True))


def test_random_signs_agree_with_fresh_rows():
    rng = np.random.default_rng(3)
    train, held = two_clusters(rng, 3000), two_clusters(rng, 3000)
    fit = boxloop.GaussianMixture(2, random_state=0).fit(train)
    by_model, by_signs = (mega(fit, held, train=train, null=null, draws=999) for null in ("model", "signs"))
    for a, b in zip(by_model.gaps, by_signs.gaps, strict=True):
        assert a.expected_norm == pytest.approx(b.expected_norm, rel=0.1)
        assert a.p_value == pytest.approx(b.p_value, abs=0.08)


@pytest.mark.parametrize("same", [False, True], ids=["held out", "rows of the fit"])
def test_some_of_many_rows_do_for_the_null_distribution(same, monkeypatch):
    """Sorted rows, of which a quarter are kept: the distribution of the gaps is that of all rows, in whatever order."""
    rng = np.random.default_rng(4)
    train, held = two_clusters(rng, 8000), two_clusters(rng, 8000)
    train, held = (rows[np.argsort(rows[:, 0])] for rows in (train, held))
    fit = boxloop.GaussianMixture(2, random_state=0, tol=1e-9).fit(train)
    judged = train if same else held
    found = {}
    for most in (2000, 8000):
        monkeypatch.setattr(sys.modules["boxloop.criticise.mega"], "SAMPLE_ROWS", most)
        found[most] = mega(fit, judged, functions=SEEING, train=train, null="signs", draws=999)
    for a, b in zip(found[2000].gaps, found[8000].gaps, strict=True):
        torch.testing.assert_close(a.gap, b.gap, rtol=0, atol=0)
        assert a.p_value == pytest.approx(b.p_value, abs=0.15)
        if bool((b.null_error > 0).any()):  # else the fit matches it, and there is no distribution to compare
            assert a.expected_norm == pytest.approx(b.expected_norm, rel=0.2)


def test_a_long_table_is_read_once():
    rows = torch.from_numpy(two_clusters(np.random.default_rng(0), 50_000))
    fit = boxloop.GaussianMixture(2, random_state=0).fit(rows[:500].numpy())
    source, passes = boxloop.data.ArraySource(rows), []

    class Counting(boxloop.data.ArraySource):
        def chunks(self, size=None):
            passes.append(size)
            return source.chunks(size)

    result = mega(fit, Counting(rows), draws=99)
    assert result.p_value is not None
    assert len(passes) == 1


ALTERNATIVES = {
    "too few components": (two_clusters, lambda: boxloop.GaussianMixture(1), [Power(3), Fourier(20)]),
    "heavy tails": (
        lambda r, n: r.standard_t(4, size=(n, 3)),
        lambda: boxloop.GaussianMixture(1),
        [Power(4)],
    ),
    "skewness": (lambda r, n: r.gamma(3.0, size=(n, 3)), lambda: boxloop.GaussianMixture(1), [Power(3)]),
    "missing correlation": (
        lambda r, n: r.normal(size=(n, 3)) @ np.array([[1, 0.3, 0], [0, 1, 0], [0, 0, 1]]),
        lambda: boxloop.GaussianMixture(1, covariance_type="diag"),
        [Second()],
    ),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_power_against_named_alternatives(name):
    make, estimator, functions = ALTERNATIVES[name]
    rng = np.random.default_rng(0)
    train, held = make(rng, 1000), make(rng, 1000)
    result = mega(estimator().fit(train), held, functions=functions, train=train, draws=199)
    assert result.p_value == 1 / 200


def test_the_missing_correlation_is_named():
    make, estimator, _ = ALTERNATIVES["missing correlation"]
    rng = np.random.default_rng(0)
    import pandas as pd

    frame = pd.DataFrame(make(rng, 2000), columns=["age", "height", "shoe"])
    train = frame.iloc[:1000]
    result = mega(estimator().fit(train), frame.iloc[1000:], train=train, draws=0)
    wrong = result.misfits(0.01)
    assert wrong["entry"].tolist() == ["age x height"]
    size, direction = result["second"].direction()
    assert size > 0.2
    assert abs(direction["shoe"]) < 0.3
    assert direction["age"] * direction["height"] > 0.2


def test_norms_and_intervals():
    rng = np.random.default_rng(0)
    fit = boxloop.GaussianMixture(1).fit(rng.normal(size=(50, 3)))
    gap = mega(fit, rng.normal(size=(40, 3)), draws=0)["second"]
    matrix = gap.gap.numpy()
    values = np.linalg.eigvalsh(matrix)
    assert gap.norm() == pytest.approx(np.linalg.norm(matrix))
    assert gap.norm("operator") == pytest.approx(np.abs(values).max(), rel=1e-6)
    assert gap.norm("schatten", 1) == pytest.approx(np.abs(values).sum())
    assert gap.norm("schatten", np.inf) == pytest.approx(np.abs(values).max())
    assert gap.norm("entrywise", 1) == pytest.approx(np.abs(matrix).sum())
    low, high = gap.interval(0.95)
    torch.testing.assert_close(high - low, 2 * 1.959963985 * gap.flat_error)


def test_a_stream_of_rows_is_the_array(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    from boxloop.data import open_source

    rows = two_clusters(np.random.default_rng(0), 30_000)
    parquet.write_table(
        pa.table({"x0": rows[:, 0], "x1": rows[:, 1]}), tmp_path / "rows.parquet", row_group_size=1000
    )
    fit = boxloop.GaussianMixture(2, random_state=0).fit(rows[:1000])
    whole = mega(fit, rows, functions=SEEING, draws=49, null="signs")
    read = mega(
        fit, open_source(tmp_path / "rows.parquet", memory=0), functions=SEEING, draws=49, null="signs"
    )
    for a, b in zip(whole.gaps, read.gaps, strict=True):
        torch.testing.assert_close(a.gap, b.gap, rtol=1e-10, atol=1e-12)
        assert a.p_value == b.p_value


def test_the_same_seed_is_the_same_result():
    rows = two_clusters(np.random.default_rng(0), 200)
    fit = boxloop.GaussianMixture(1).fit(rows[:100])
    first, again, other = (
        mega(fit, rows[100:], functions=SEEING, draws=49, random_state=seed) for seed in (5, 5, 6)
    )
    assert repr(first) == repr(again)
    assert not torch.equal(first["fourier"].gap, other["fourier"].gap)


def test_missing_values_count_pair_by_pair():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0], [0, 0, 1]])
    with_missing = rows.copy()
    with_missing[rng.random(with_missing.shape) < 0.3] = np.nan
    fit = boxloop.GaussianMixture(1).fit(rows)
    gap = mega(fit, with_missing, draws=99)["second"]
    pairs = np.ma.masked_invalid(with_missing - fit.means_[0])
    wanted = np.ma.mean(pairs[:, 0] * pairs[:, 1])
    assert float(gap.data[0, 1]) == pytest.approx(float(wanted), rel=1e-10)
    assert gap.p_value > 1e-3


def test_weights_are_repetitions():
    rng = np.random.default_rng(0)
    rows, count = rng.normal(size=(200, 2)), rng.integers(0, 3, size=200)
    fit = boxloop.GaussianMixture(1).fit(rows)
    weighted = mega(fit, rows, sample_weight=count, draws=0)
    repeated = mega(fit, np.repeat(rows, count, axis=0), draws=0)
    torch.testing.assert_close(weighted["second"].gap, repeated["second"].gap, rtol=1e-12, atol=1e-14)


def test_a_constant_column_is_no_misfit():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=400), np.full(400, 3.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = boxloop.GaussianMixture(1).fit(rows[:200])
    result = mega(fit, rows[200:], draws=99)
    assert np.isfinite(result.table()["z"]).all()
    assert result.p_value > 1e-3


def test_tables_and_words():
    rng = np.random.default_rng(0)
    fit = boxloop.GaussianMixture(1).fit(rng.normal(size=(100, 2)))
    result = mega(
        fit,
        rng.normal(size=(100, 2)),
        functions=[First(), Below((0.5,)), Custom(lambda r: r.prod(1), name="product")],
        draws=99,
    )
    assert list(result.summary().index) == ["first", "below", "product"]
    table = result.table()
    assert len(table) == 5
    assert set(table["moment"]) == {"mean", "share of rows", "mean of product"}
    assert (np.diff(table["z"].abs()) <= 0).all()
    assert "parameter error: left out" in repr(result)
    with pytest.raises(KeyError, match="no test function 'second'"):
        result["second"]


def test_the_table_shows_moments_in_the_units_of_the_data():
    """Means as means, second moments as covariances about the model's mean or as mean products; gaps follow."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2)) * [3.0, 0.01] + [1000.0, -5.0]
    fit, held = boxloop.GaussianMixture(1).fit(rows[:100]), rows[100:]
    centred, deviation = held - fit.means_[0], np.sqrt(fit.covariances_[0].diagonal())
    pairs = [(0, 0), (0, 1), (1, 1)]
    covariances = [(centred[:, i] * centred[:, j]).mean() for i, j in pairs]
    raw = fit.covariances_[0] + np.outer(fit.means_[0], fit.means_[0])
    wanted = {
        "mean": (held.mean(0), fit.means_[0]),
        "covariance about the model's mean": (covariances, [fit.covariances_[0][pair] for pair in pairs]),
        "mean product": (
            [(held[:, i] * held[:, j]).mean() for i, j in pairs],
            [raw[pair] for pair in pairs],
        ),
        "mean of ((x - model mean) / model sd)^3": (((centred / deviation) ** 3).mean(0), [0.0, 0.0]),
    }
    first = mega(fit, held, functions=[First(), Second(), Power(3)], draws=0)
    second = mega(fit, held, functions=[Second("zero")], draws=0)
    for result in (first, second):
        table = result.table().sort_index()
        np.testing.assert_allclose(table["gap"], table["data"] - table["model"], rtol=1e-6, atol=1e-9)
        for moment, part in table.groupby("moment"):
            data, model = (np.sort(value) for value in wanted.pop(moment))
            np.testing.assert_allclose(np.sort(part["data"]), data, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(np.sort(part["model"]), model, rtol=1e-9, atol=1e-12)
    assert not wanted
    gap = first["first"]
    torch.testing.assert_close(gap.data, torch.from_numpy(held.mean(0)), rtol=1e-12, atol=0)
    np.testing.assert_allclose(gap.z, gap.gap / gap.null_error, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"X": np.zeros((1, 2))}, ValueError, "1 row"),
        ({"X": np.zeros((5, 3))}, ValueError, "2 columns, the rows have 3"),
        ({"X": np.array([[0.0, np.inf]] * 3)}, ValueError, "x1"),
        ({"functions": []}, ValueError, "at least one"),
        ({"functions": [First(), First()]}, ValueError, "twice: first"),
        ({"model": "gaussian"}, TypeError, "cannot take str"),
        (
            {"model": as_model(2, lambda z: (z, torch.ones_like(z))), "train": np.zeros((5, 2))},
            TypeError,
            "parameter error",
        ),
    ],
)
def test_bad_input_says_why(change, error, says):
    rng = np.random.default_rng(0)
    given = {
        "model": boxloop.GaussianMixture(1).fit(rng.normal(size=(50, 2))),
        "X": rng.normal(size=(20, 2)),
        **change,
    }
    model, rows = given.pop("model"), given.pop("X")
    with pytest.raises(error, match=says):
        mega(model, rows, **given)


def test_mean_products_far_from_zero_keep_the_digits_of_their_errors() -> None:
    """Means of 1e7 with spread 0.1: a product is its mean times 1e7, and so are its gap and its error; z is the same.

    Squares of products about zero, near 1e28, hold no more than 1e12 of the variance of 4e12.
    """
    rng = np.random.default_rng(3)
    X = 1e7 + np.array([0.1, 1.0]) * rng.normal(size=(2000, 2))
    X[rng.random(X.shape) < 0.1] = np.nan
    fit, held = boxloop.GaussianMixture(1).fit(X[:1000]), X[1000:]
    first, second = (mega(fit, held, functions=[f], draws=0).gaps[0] for f in (First(), Second("zero")))
    for j, place in ((0, 0), (1, 2)):
        assert float(second.row_error[place]) == pytest.approx(2e7 * float(first.row_error[j]), rel=1e-4)
        assert float(second.z[place]) == pytest.approx(float(first.z[j]), rel=1e-3)
    shown = np.nanmean(held[:, 0] ** 2)
    assert float(second.data[0, 0]) == pytest.approx(shown, rel=1e-14)


def test_a_result_is_an_escaped_table_in_a_notebook():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    functions = [First(), Custom(lambda r: r.prod(1), name="a < b")]
    found = mega(
        boxloop.GaussianMixture(1).fit(rows[:30]), rows[30:], functions=functions, draws=19
    )._repr_html_()
    assert "<table" in found
    assert "expected norm" in found
    assert "a &lt; b" in found
    assert "parameter error: left out" in found
