"""Everything that takes a table takes one in partitions: the same numbers as from the rows at hand.

Two sums of the same numbers in another order differ by rounding, which a fit's iterations may magnify: hence 1e-10.
"""

from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from distributed import Client, LocalCluster
from sklearn.base import clone

import boxloop
from boxloop.criticise import calibration, information_criteria, mega
from boxloop.data import ClusterError, MapReader, StreamSource, dask_source, open_source, summarise_moments
from boxloop.fit import m_estimate, match_moments, z_estimate
from boxloop.select import Fold, fit_and_score

N = 400
Fit = Callable[[Any], Any]


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def side() -> np.ndarray:
    return generator().random((N, 1)) < 0.4


def real() -> np.ndarray:
    rng = generator()
    factor = rng.normal(size=(N, 1))
    return factor @ [[1.0, 0.5, -0.8, 0.3]] + rng.normal(size=(N, 4)) * 0.7 + 3.0 * side()


def missing() -> np.ndarray:
    rows = real()
    rows[generator().random(rows.shape) < 0.1] = np.nan
    return rows


def counts() -> np.ndarray:
    return generator().poisson(np.where(side(), [8.0, 1.0, 3.0, 2.0], [1.0, 6.0, 3.0, 2.0])).astype(float)


def binary() -> np.ndarray:
    return (counts() > 2.0).astype(float)


def parts(rows: np.ndarray) -> da.Array:
    return da.from_array(rows, chunks=((130, 60, 110, 100), 2 if rows.shape[1] > 1 else 1))


def close(one: Any, two: Any, rtol: float = 1e-10) -> None:
    """Numbers, arrays and trees of them alike, beside the largest of each."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = list(one.values()), list(two.values())
    if isinstance(one, list | tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            close(a, b, rtol)
        return
    a, b = np.asarray(one, dtype=float), np.asarray(two, dtype=float)
    np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * float(np.nanmax(np.abs(a), initial=0.0)))


def model(fit: Any) -> list[np.ndarray]:
    return [value.numpy() for _, value in fit.model_.leaves()]


CASES: dict[str, tuple[Any, Callable[[], np.ndarray], tuple[str, ...]]] = {
    **{
        f"gaussian {kind}": (boxloop.GaussianMixture(2, covariance_type=kind), real, ("predict_proba", "bic"))
        for kind in ("full", "diag", "tied", "spherical")
    },
    "gaussian, missing": (boxloop.GaussianMixture(2), missing, ("score_samples", "predict", "aic")),
    "gaussian, float32": (boxloop.GaussianMixture(2, dtype="float32"), real, ()),
    "poisson": (boxloop.PoissonMixture(2), counts, ("score_samples", "predict_proba")),
    "bernoulli": (boxloop.BernoulliMixture(2), binary, ("score_samples", "predict_proba")),
    "multinomial": (boxloop.MultinomialMixture(2), counts, ("score_samples", "predict_proba")),
    "spectral": (boxloop.MultinomialMixture(2, method="spectral"), counts, ("score_samples",)),
    "factors": (
        boxloop.FactorAnalysis(1),
        real,
        ("transform", "score_samples", "posterior", "standard_errors"),
    ),
    "factors, missing": (boxloop.FactorAnalysis(1, max_iter=500), missing, ("transform", "score")),
    "ppca": (boxloop.ProbabilisticPCA(1), real, ("transform", "score")),
    "bayesian mixture": (boxloop.BayesianGaussianMixture(3), real, ("predict_proba", "score")),
    "bayesian topics": (boxloop.BayesianMultinomialMixture(3), counts, ("predict_proba", "score")),
    "bayesian factors": (boxloop.BayesianFactorAnalysis(), real, ("transform", "score")),
}


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_fits(name: str) -> None:
    estimator, data, uses = CASES[name]
    rows, rtol = data(), 1e-4 if "float32" in name else 1e-10
    one, two = (clone(estimator).set_params(random_state=0).fit(table) for table in (rows, parts(rows)))
    assert one.n_iter_ == two.n_iter_
    close(model(one), model(two), rtol)
    close(one.lower_bounds_, two.lower_bounds_, rtol)
    for use in uses:
        # Differences of passes by steps of 1e-5: rounding is magnified by so much.
        close(
            getattr(one, use)(rows),
            getattr(one, use)(parts(rows)),
            1e-6 if use == "standard_errors" else rtol,
        )


def test_frame_with_names_and_weights() -> None:
    mass = generator().random(N)
    frame = pd.DataFrame(real(), columns=list("abcd"))
    one = boxloop.GaussianMixture(2, random_state=0).fit(frame, sample_weight=mass)
    two = boxloop.GaussianMixture(2, random_state=0)
    two.fit(dask_source(dd.from_pandas(frame.assign(w=mass), npartitions=3), "w"))
    close(model(one), model(two))
    assert list(two.feature_names_in_) == list("abcd")
    three = boxloop.GaussianMixture(2, random_state=0)
    collection = dd.from_pandas(frame.assign(w=mass), npartitions=3)
    close(model(one), model(three.fit(collection[list("abcd")], sample_weight=collection["w"])))
    with pytest.raises(ValueError, match="was fitted to a, b, c, d"):
        two.score(dd.from_pandas(frame[["a", "b"]], npartitions=2))


@pytest.mark.parametrize("method", ["online", "gradient"])
def test_engines_that_read_streams(method: Any) -> None:
    """Mini-batches come in the order of the rows, as from a file; rows at hand would be shuffled."""
    stream = StreamSource(MapReader(real()), ("x0", "x1", "x2", "x3"))
    engine = boxloop.GaussianMixture(2, method=method, max_iter=2, random_state=0)
    close(*(model(clone(engine).fit(table)) for table in (stream, parts(real()))))


def views() -> tuple[np.ndarray, np.ndarray]:
    rows = real()
    return rows, rows[:, :2] + generator().normal(size=(N, 2))


def related(x: Any, y: Any) -> Any:
    fit = boxloop.RelevantFeatures(2, x_features="linear", y_features="linear", random_state=0).fit(x, y)
    mean = fit.expect(lambda rows: rows, given=real()[:5], direction="y_given_x")
    held = fit.significance(permutations=19, level=0.1)
    results = [
        held.correlation,
        held.standard_error,
        held.p_value,
        mean.mean,
        mean.standard_error,
        mean.quantile(0.5).value,
    ]
    return [fit.correlation_, fit.transform(x), fit.predict(x), fit.score(x, y), *results]


def test_two_views() -> None:
    x, y = views()
    close(related(x, y), related(parts(x), parts(y)))
    close(related(x, y), related(parts(x), y))
    fourier = boxloop.RelevantFeatures(2, x_features="fourier", y_features="linear", random_state=0)
    close(*(clone(fourier).fit(*both).correlation_ for both in ((x, y), (parts(x), parts(y)))))


def test_classifier() -> None:
    linear = boxloop.RelevantClassifier(1, features="linear", random_state=0)
    close(*(clone(linear).fit(x, side()[:, 0]).predict_proba(x) for x in (real(), parts(real()))))


@pytest.mark.parametrize("columns", [1, 2])
def test_regression(columns: int) -> None:
    def results(x: Any, y: Any) -> Any:
        fit = boxloop.BayesianLinearRegression().fit(x, y)
        return [fit.coef_, fit.intercept_, *fit.predict(x, return_std=True)]

    x, y = views()
    if columns == 2:
        close(results(x, y), results(parts(x), parts(y)))
    else:
        close(results(x, y[:, 0]), results(parts(x), y[:, 0]))
        close(results(x, y[:, 0]), results(parts(x), parts(y[:, :1])[:, 0]))


def psi(theta: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.stack([rows[:, 0] - theta[0], (rows[:, 0] - theta[0]) ** 2 - theta[1]], 1)


EQUATIONS: dict[str, Fit] = {
    "z": lambda table: z_estimate(psi, table, [0.0, 1.0]),
    "z in groups": lambda table: z_estimate(psi, table, [0.0, 1.0], groups=np.arange(N) % 20),
    "z in groups by a column": lambda table: z_estimate(psi, table, [0.0, 1.0], groups="x3"),
    "m": lambda table: m_estimate(lambda t, rows: -(rows[:, :2] - t).square().sum(1), table, [0.0, 1.0]),
    "matched": lambda table: match_moments(
        lambda rows: rows[:, :2], lambda t: t, table, torch.zeros(2, dtype=torch.float64)
    ),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_equations(name: str) -> None:
    rows = real()
    rows[:, 3] = np.arange(N) % 25
    one, two = EQUATIONS[name](rows), EQUATIONS[name](parts(rows))
    close(np.asarray(one.covariance), np.asarray(two.covariance))


def test_equation_at_fault() -> None:
    rows = real()
    rows[333, 0] = np.nan
    with pytest.raises(
        ValueError, match=r"row 333 \(counted from 0\), entry 0; column 'x0' is missing there"
    ):
        z_estimate(psi, parts(rows), [0.0, 1.0])


def test_criticism() -> None:
    fit, rows = boxloop.GaussianMixture(1).fit(real()[:150]), real()

    def results(table: Any, model: Any = fit, **more: Any) -> Any:
        found = mega(model, table, draws=19, **more)
        return [
            found.p_value,
            *(part for gap in found.gaps for part in (gap.gap, gap.row_error, gap.parameter_error)),
        ]

    close(results(rows), results(parts(rows)))
    table = parts(rows)
    whole = boxloop.GaussianMixture(1).fit(rows)
    assert boxloop.GaussianMixture(1).fit(table).training_digest_ == whole.training_digest_
    moved = rows + 0.5
    close(results(moved, whole, train=rows), results(parts(moved), whole, train=table))
    close(results(rows[150:], train=real()[:150]), results(table[150:], train=parts(rows)[:150]))
    close(calibration(fit, rows).transform, calibration(fit, parts(rows)).transform)
    close(information_criteria(fit, rows).bic, information_criteria(fit, parts(rows)).bic)
    close(
        np.asarray(summarise_moments(open_source(rows)).covariance),  # type: ignore[union-attr]
        np.asarray(summarise_moments(open_source(parts(rows))).covariance),  # type: ignore[union-attr]
    )


def test_selection() -> None:
    rows, keys = real(), ("mean_test_score", "gap", "gap_error", "aic", "log_likelihood_error")
    search = boxloop.ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1, 2]}, cv=2)
    one, two = (clone(search).fit(table) for table in (rows, parts(rows)))
    assert one.best_params_ == two.best_params_
    close([one.cv_results_[key] for key in keys], [two.cv_results_[key] for key in keys])
    models = {"one": boxloop.GaussianMixture(1).fit(rows), "two": one.best_estimator_}
    close(*(boxloop.compare(models, table).difference_error for table in (rows, parts(rows))))
    close(*(boxloop.topic_spectrum(table, max_topics=3).values for table in (counts(), parts(counts()))))


def test_outliers() -> None:
    rows = real()
    strange = boxloop.OutlierDetector(boxloop.GaussianMixture(2, random_state=0))
    one, two = (clone(strange).fit(table) for table in (rows, parts(rows)))
    close([one.offset_, one.p_values(rows)], [two.offset_, two.p_values(parts(rows))])
    close(one.reasons(rows[:9])["drop 1"], two.reasons(parts(rows)[:9])["drop 1"])


def test_a_lost_cluster_is_no_candidates_fault() -> None:
    class Lost(boxloop.GaussianMixture):
        def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
            raise ClusterError("gone")

    with pytest.raises(ClusterError, match="gone"):
        fit_and_score(Lost(), real(), Fold(), None)


def test_workers_that_are_threads() -> None:
    """Threads of one process share nothing: neither buffers nor whether gradients are on."""
    rows = real()
    more = {"processes": False, "n_workers": 1, "threads_per_worker": 4, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**more) as local, Client(local, set_as_default=False) as client, client.as_current():
        held = da.from_array(rows, chunks=(20, 4)).persist()
        for estimator in (boxloop.FactorAnalysis(1), boxloop.GaussianMixture(2, random_state=0)):
            close(*(model(clone(estimator).fit(table)) for table in (rows, held)))
        for name in ("z", "m"):
            close(*(np.asarray(EQUATIONS[name](table).covariance) for table in (rows, held)))
        with torch.no_grad():
            close(*(np.asarray(EQUATIONS["z"](table).covariance) for table in (rows, held)))
