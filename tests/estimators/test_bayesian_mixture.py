"""Bayesian mixtures as estimators: scikit-learn's iterations, pruning, mini-batches, files, summaries, bad priors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn import mixture
from sklearn.mixture import BayesianGaussianMixture as Peer

import boxloop
from boxloop.data import write_table
from boxloop.distributions import (
    Dirichlet,
    MixturePrior,
    NormalInverseGamma,
    NormalInverseWishart,
    SphericalNormalInverseGamma,
    StickBreaking,
    TiedInverseWishart,
)
from boxloop.estimators import BayesianGaussianMixture, BayesianMultinomialMixture, root_gamma_moments
from boxloop.models import VariationalMixture
from estimators.cases import GAUSSIAN, assert_same, blobs, documents, fit_with_warnings
from estimators.test_checkpoint import Killed, kill_after
from models.variational_cases import bound, joints

TYPES = ("dirichlet_process", "dirichlet_distribution")
SOME = [
    "full",
    pytest.param("tied", marks=pytest.mark.slow),
    "diag",
    pytest.param("spherical", marks=pytest.mark.slow),
]


def three(n: int = 900, seed: int = 0) -> np.ndarray:
    """Three round clusters in two columns, rows in random order."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [7.0, 0.0], [0.0, 7.0]])
    return centres[rng.integers(3, size=n)] + rng.normal(size=(n, 2))


def started(X: np.ndarray, share: np.ndarray, kind: str, weights: str) -> tuple[Any, Any]:
    """scikit-learn's mixture and ours with its prior, both after one M step from the same responsibilities."""
    k = share.shape[1]
    peer = Peer(n_components=k, covariance_type=kind, weight_concentration_prior_type=weights, reg_covar=0.0)
    peer._check_parameters(X)
    peer._initialize(X, share)
    t = torch.from_numpy
    mean, one = t(peer.mean_prior_)[None], torch.ones(1, dtype=torch.float64)
    dof, spread = peer.degrees_of_freedom_prior_ * one, t(np.asarray(peer.covariance_prior_, dtype=float))
    components: Any = {
        "full": lambda: NormalInverseWishart(mean, one, dof, spread[None]),
        "tied": lambda: TiedInverseWishart(mean, one, dof[0], spread),
        "diag": lambda: NormalInverseGamma(mean, one, dof, spread[None]),
        "spherical": lambda: SphericalNormalInverseGamma(mean, one, dof, spread.reshape(1, 1)),
    }[kind]()
    level = torch.tensor(peer.weight_concentration_prior_, dtype=torch.float64)
    distribution = (
        StickBreaking.dirichlet_process(k, level)
        if weights == TYPES[0]
        else Dirichlet(level.expand(k).clone())
    )
    return peer, VariationalMixture.from_responsibilities(
        MixturePrior(distribution, components), t(X), t(share).mT.contiguous()
    )


def responsibilities(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(1).dirichlet(np.ones(k), size=n)


def test_full_covariances_are_scikit_learns() -> None:
    """Iteration by iteration, from the same responsibilities; and the bounds rise by the same amounts."""
    X = three(300)
    peer, model = started(X, responsibilities(300, 4), "full", TYPES[1])
    rows, weight = torch.from_numpy(X), torch.ones(300, dtype=torch.float64)
    theirs, ours = [], []
    for _ in range(12):
        log_norm, log_share = peer._e_step(X)
        expected = model.expect(rows, weight)
        entropy = -float((np.exp(log_share) * log_share).sum())
        peer._m_step(X, log_share)
        model = model.solve(expected.statistics)
        theirs.append(peer._compute_lower_bound(log_share, log_norm))
        ours.append(entropy + float(model.expected_log_likelihood(expected.statistics)))
    np.testing.assert_allclose(model.parameter_posterior.components.mean, peer.means_, rtol=1e-8)
    np.testing.assert_allclose(model.family.named_parameters()["covariances"], peer.covariances_, rtol=1e-8)
    np.testing.assert_allclose(
        model.parameter_posterior.weights.concentration, peer.weight_concentration_, rtol=1e-8
    )
    np.testing.assert_allclose(model.parameter_posterior.components.dof, peer.degrees_of_freedom_, rtol=1e-8)
    np.testing.assert_allclose(model.parameter_posterior.components.strength, peer.mean_precision_, rtol=1e-8)
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-6, atol=1e-8)
    share = model.posterior(rows).numpy()
    np.testing.assert_allclose(share, np.exp(peer._e_step(X)[1]), atol=1e-8)


def test_sticks_are_scikit_learns_but_for_the_last() -> None:
    X = three(300)
    peer, model = started(X, responsibilities(300, 4), "full", TYPES[0])
    first, second = peer.weight_concentration_
    np.testing.assert_allclose(model.parameter_posterior.weights.first, first[:-1], rtol=1e-10)
    np.testing.assert_allclose(model.parameter_posterior.weights.second, second[:-1], rtol=1e-10)
    theirs, ours = peer._estimate_log_weights(), model.parameter_posterior.weights.expected_log().numpy()
    np.testing.assert_allclose(ours[:-1], theirs[:-1], rtol=1e-10)
    assert theirs[-1] < ours[-1] - 1e-3, "what lies beyond the last component is lost"


@pytest.mark.parametrize("kind", ["tied", "diag", "spherical"])
def test_other_covariances_are_not_scikit_learns(kind: str) -> None:
    """Ours pass the exact evidence of one component in test_variational_mixture; its own numbers do not.

    For one component the bound at the posterior is the evidence. With scikit-learn's posterior in place of ours, or its
    expected log-density, it is not; for tied covariances it takes two components to see it.
    """
    X = three(9)
    k = 2 if kind == "tied" else 1
    share = np.eye(k)[np.arange(9) % k]
    peer, model = started(X, share, kind, TYPES[1])
    rows = torch.from_numpy(X)
    if k == 1:
        exact = float(joints(kind, model.parameter_prior, rows).logsumexp(0))
        assert bound(model, rows) == pytest.approx(exact, abs=1e-8)
        assert abs(peer._estimate_log_prob(X).sum() - float(model.divergence()) - exact) > 0.05
    ours = (
        model.plug_in_mixture.family.view(rows)
        .log_joint(model.parameter_posterior.components.plug_in()[1])
        .numpy()
        .T
    )
    assert np.abs(ours - peer._estimate_log_prob(X)).max() > 0.05
    same = kind == "diag"
    assert (
        np.allclose(model.family.named_parameters()["covariances"].numpy(), peer.covariances_, rtol=1e-8)
        == same
    )
    if kind == "tied":  # nine rows tell of the common covariance, and scikit-learn counts nine over two
        assert float(model.parameter_posterior.components.dof) == peer.degrees_of_freedom_prior_ + 9
        assert peer.degrees_of_freedom_ == pytest.approx(peer.degrees_of_freedom_prior_ + 4.5)


@pytest.mark.parametrize(("kind", "weights"), list(zip(GAUSSIAN, (*TYPES, *TYPES), strict=True)))
def test_components_empty_themselves(kind: str, weights: str) -> None:
    X = three()
    fitted = BayesianGaussianMixture(
        10, covariance_type=kind, weight_concentration_prior_type=weights, random_state=0
    ).fit(X)
    assert fitted.n_components_ == 3
    assert fitted.active_.sum() == 3
    assert fitted.weights_[~fitted.active_].max() < 0.01
    centres = fitted.means_[fitted.active_]
    assert np.abs(np.sort(centres.sum(1)) - [0.0, 7.0, 7.0]).max() < 0.5
    assert len(np.unique(fitted.predict(X))) == 3
    if weights == TYPES[0]:
        assert fitted.active_[:3].all(), "under sticks the largest come first"
    alone = BayesianGaussianMixture(1, covariance_type=kind, random_state=0).fit(X)
    assert fitted.lower_bound_ > alone.lower_bound_ + 0.1


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_criteria_count_the_parameters_of_the_components_in_use(kind: str) -> None:
    X = three()
    found = BayesianGaussianMixture(6, covariance_type=kind, random_state=0).fit(X)
    theirs = mixture.GaussianMixture(found.n_components_, covariance_type=kind, random_state=0).fit(X)
    counted = theirs.aic(X) + 2.0 * theirs.score(X) * len(X)
    assert found.aic(X) + 2.0 * found.score(X) * len(X) == pytest.approx(counted, rel=1e-9)


@pytest.mark.parametrize(("most", "seed"), [(4, 0), (7, 2)])
def test_components_that_may_stay_empty_cost_next_to_nothing(most: int, seed: int) -> None:
    """One emptied in the middle of the sticks lowers the bound until it is the last: it is not kept for that.

    On 10 of 32 such tables the ascent ends elsewhere: a cluster stays in two parts, or two clusters in one.
    """
    X = blobs(200, seed=seed, gap=12.0)
    params: dict[str, Any] = {
        "covariance_type": "tied",
        "covariance_prior": np.cov(X.T) / 3,
        "random_state": 0,
    }
    few, many = (
        BayesianGaussianMixture(k, weight_concentration_prior=0.2, tol=1e-6, max_iter=500, **params).fit(X)
        for k in (3, most)
    )
    assert few.n_components_ == many.n_components_ == 3
    assert many.lower_bound_ > few.lower_bound_ - 0.006


@pytest.mark.parametrize("kind", SOME)
def test_units_weights_and_missing_values(kind: str) -> None:
    X = three(400)
    X[::11, 1] = np.nan
    one = BayesianGaussianMixture(4, covariance_type=kind, random_state=0, tol=1e-9, max_iter=500)
    plain = fit_with_warnings(one, X)[0]
    scale = 0.01 if kind == "spherical" else np.array([1e-3, 40.0])
    moved = fit_with_warnings(BayesianGaussianMixture(**plain.get_params()), 1e3 + scale * X)[0]
    np.testing.assert_allclose(moved.transform(1e3 + scale * X), plain.transform(X), atol=1e-5)
    seen = (~np.isnan(X)).sum(0)
    shift = (seen * np.log(scale)).sum() / len(X)
    assert moved.lower_bound_ == pytest.approx(plain.lower_bound_ - shift, abs=1e-6)
    times = np.arange(len(X)) % 3
    weighted = fit_with_warnings(BayesianGaussianMixture(**plain.get_params()), X, sample_weight=times)[0]
    repeated = fit_with_warnings(BayesianGaussianMixture(**plain.get_params()), np.repeat(X, times, axis=0))[
        0
    ]
    assert_same(weighted, repeated, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", SOME)
def test_mini_batches_reach_the_bound_of_all_rows(kind: str) -> None:
    """Within a hundredth of a nat per row: a bound of p parameters and n rows wavers by about p / 2n, 0.01 here."""
    X = three(1500)
    params: dict[str, Any] = {"n_components": 6, "covariance_type": kind, "random_state": 0}
    batch = BayesianGaussianMixture(**params, tol=1e-7, max_iter=500).fit(X)
    online = BayesianGaussianMixture(**params, method="online", max_iter=15).fit(X)
    assert batch.lower_bound_ - 0.01 < online.lower_bound_ < batch.lower_bound_ + 1e-6
    stream = BayesianGaussianMixture(**params)
    for start in range(0, 1500, 125):
        stream.partial_fit(X[start : start + 125])
    assert stream.n_samples_seen_ == 1500
    assert stream.score(X) == pytest.approx(batch.score(X), abs=0.02)
    assert stream.model_.total == 1500.0
    assert float(stream.model_.component_counts.sum()) == pytest.approx(1500.0)
    before = stream.standard_errors()["means"][stream.active_].max()
    stream.partial_fit(three(1500, seed=5))
    assert stream.standard_errors()["means"][stream.active_].max() < before, (
        "the distribution narrows as rows come"
    )


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    X = three(1200)
    folder = tmp_path / "rows"
    folder.mkdir()
    for i in range(3):
        write_table(folder / f"{i}.parquet", dict(zip("ab", X[400 * i : 400 * (i + 1)].T, strict=True)))
    for method in ("em", "online"):
        params: dict[str, Any] = {"random_state": 0, "method": method, "max_iter": 30}
        there = BayesianGaussianMixture(6, **params).fit(folder)
        here = BayesianGaussianMixture(6, **params).fit(X)
        assert there.n_components_ == 3
        assert there.lower_bound_ == pytest.approx(here.lower_bound_, abs=1e-2)


CASES = [
    (BayesianGaussianMixture, {"covariance_type": kind, "weight_concentration_prior_type": weights})
    for kind, weights in zip(GAUSSIAN, (*TYPES, *TYPES), strict=True)
]


@pytest.mark.parametrize(("kind", "params"), [*CASES, (BayesianMultinomialMixture, {})])
def test_files(kind: type, params: dict[str, Any], tmp_path: Path) -> None:
    X = documents(200) if kind is BayesianMultinomialMixture else three(200)
    fitted = kind(4, random_state=0, **params).fit(X)
    fitted.save(tmp_path / "m.boxloop")
    back = boxloop.load(tmp_path / "m.boxloop")
    assert type(back) is kind
    assert_same(back, fitted, rtol=0, atol=0)
    assert back.lower_bound_ == fitted.lower_bound_
    np.testing.assert_array_equal(back.score_samples(X), fitted.score_samples(X))
    np.testing.assert_array_equal(back.active_, fitted.active_)
    for name, value in fitted.sample_posterior(2).items():
        np.testing.assert_array_equal(back.sample_posterior(2)[name], value)


@pytest.mark.parametrize("options", [{"max_iter": 20, "tol": 0.0}, {"method": "online", "max_iter": 3}])
@pytest.mark.parametrize(("kind", "params"), [*CASES, (BayesianMultinomialMixture, {})])
def test_killed_and_resumed(
    kind: type, params: dict[str, Any], options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = documents(200) if kind is BayesianMultinomialMixture else three(200)
    made = {"random_state": 0, "init_params": "kmeans", "batch_size": 40, **params, **options}
    straight, _ = fit_with_warnings(kind(4, **made), X)
    with monkeypatch.context() as patch:
        kill_after(8, patch)
        with pytest.raises(Killed):
            kind(4, checkpoint=tmp_path / "c", **made).fit(X)
    resumed, _ = fit_with_warnings(kind(4, checkpoint=tmp_path / "c", **made), X)
    assert_same(resumed, straight, rtol=0, atol=0)
    assert resumed.lower_bounds_ == straight.lower_bounds_


def test_warm_start_goes_on_and_refuses_another_shape() -> None:
    X = three(300)
    estimator = BayesianGaussianMixture(4, random_state=0, warm_start=True).fit(X)
    bound_before = estimator.lower_bound_
    estimator.fit(X)
    assert estimator.n_iter_ <= 3
    assert estimator.lower_bound_ >= bound_before - 1e-9
    for change in (
        {"n_components": 5},
        {"covariance_type": "diag"},
        {"weight_concentration_prior_type": TYPES[1]},
    ):
        with pytest.raises(ValueError, match="warm_start needs a previous fit"):
            BayesianGaussianMixture(4, random_state=0, warm_start=True).fit(X).set_params(**change).fit(X)


@pytest.mark.parametrize(("kind", "weights"), list(zip(GAUSSIAN, (*TYPES, *TYPES), strict=True)))
def test_summary_is_that_of_draws(kind: str, weights: str) -> None:
    """Quantiles of 4000 draws against the table; the standard error of a quantile is 1.5 sd / sqrt(4000)."""
    X = three(150)
    fitted = BayesianGaussianMixture(
        3, covariance_type=kind, weight_concentration_prior_type=weights, random_state=0
    ).fit(X)
    table = fitted.posterior_summary(level=0.8)
    drawn = fitted.sample_posterior(4000)
    spread = drawn["covariances"]
    if kind in ("full", "tied"):
        spread = np.diagonal(spread, axis1=-2, axis2=-1)
    spread = np.broadcast_to(
        np.sqrt(spread if spread.ndim == 3 else spread[:, None] if kind == "tied" else spread[..., None]),
        drawn["means"].shape,
    )
    parts = {
        "weight[1]": drawn["weights"][:, 1],
        "mean[2, x1]": drawn["means"][:, 2, 1],
        "sd[0, x0]": spread[:, 0, 0],
    }
    for name, values in parts.items():
        row, sd = table.loc[name], values.std()
        assert abs(values.mean() - row["mean"]) < 5 * sd / np.sqrt(4000), name
        assert abs(sd - row["sd"]) < 0.12 * sd, name
        for end, level in (("low", 0.1), ("high", 0.9)):
            assert abs(np.quantile(values, level) - row[end]) < 5 * 1.9 * sd / np.sqrt(4000), (name, end)
    errors = fitted.standard_errors()
    assert errors["means"][2, 1] == pytest.approx(table.loc["mean[2, x1]", "sd"])
    assert set(fitted.summary().columns) == {"weight", "x0 mean", "x0 sd", "x1 mean", "x1 sd"}


def test_documents() -> None:
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.1), size=3)
    X = np.array([rng.multinomial(50, topics[c]) for c in rng.integers(3, size=400)])
    dense = BayesianMultinomialMixture(9, random_state=0).fit(X)
    thin = BayesianMultinomialMixture(9, random_state=0).fit(sparse.csr_array(X))
    assert dense.n_components_ == 3
    assert_same(dense, thin, rtol=1e-8, atol=1e-10)
    assert thin.score(sparse.csr_array(X)) == pytest.approx(dense.score(X), rel=1e-10)
    found = dense.probabilities_[dense.active_]
    gap = np.abs(found[:, None] - topics).sum(2).min(0)
    assert gap.max() < 0.1
    missing = X.astype(float)
    missing[rng.random(X.shape) < 0.1] = np.nan
    assert BayesianMultinomialMixture(9, random_state=0).fit(missing).n_components_ == 3
    stream = BayesianMultinomialMixture(9, random_state=0)
    for start in range(0, 400, 100):
        stream.partial_fit(sparse.csr_array(X[start : start + 100]))
    assert stream.score(X) == pytest.approx(dense.score(X), abs=0.2)
    table = dense.posterior_summary()
    assert {"weight[0]", "probability[0, x0]"} <= set(table.index)
    assert (table["low"] <= table["mean"]).all()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mean_prior": [0.0]}, r"mean_prior should have the shape \(2,\)"),
        ({"mean_prior": [0.0, np.nan]}, "mean_prior holds a value that is not finite"),
        ({"mean_precision_prior": 0.0}, "'mean_precision_prior' parameter"),
        ({"weight_concentration_prior": -1.0}, "'weight_concentration_prior' parameter"),
        ({"weight_concentration_prior_type": "gamma"}, "'weight_concentration_prior_type' parameter"),
        ({"degrees_of_freedom_prior": 1.0}, "degrees_of_freedom_prior must be more than 1"),
        (
            {"degrees_of_freedom_prior": 1.0, "covariance_type": "tied"},
            "degrees_of_freedom_prior must be more",
        ),
        (
            {"degrees_of_freedom_prior": -1.0, "covariance_type": "diag"},
            "'degrees_of_freedom_prior' parameter",
        ),
        ({"covariance_prior": np.eye(3)}, r"covariance_prior should have the shape \(2, 2\)"),
        ({"covariance_prior": [[1.0, 2.0], [2.0, 1.0]]}, "covariance_prior must be positive definite"),
        ({"covariance_prior": [[1.0, 0.5], [0.0, 1.0]]}, "covariance_prior must be symmetric"),
        ({"covariance_prior": [1.0, -1.0], "covariance_type": "diag"}, "covariance_prior must be positive"),
        (
            {"covariance_prior": [1.0, 1.0], "covariance_type": "spherical"},
            r"covariance_prior should have the shape \(\)",
        ),
        (
            {"covariance_prior": [[np.inf, 0.0], [0.0, 1.0]]},
            "covariance_prior holds a value that is not finite",
        ),
        ({"method": "gradient"}, "'method' parameter"),
        ({"n_components": 200}, "n_samples >= n_components"),
    ],
)
def test_bad_priors_are_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianGaussianMixture(**{"n_components": 2, **params}).fit(three(50))


def test_bad_priors_of_words_are_named() -> None:
    for value, message in (
        ([1.0, 2.0], "should be a number or have the shape"),
        ([1.0] * 5 + [0.0], "positive"),
    ):
        with pytest.raises(ValueError, match=f"word_concentration_prior.*{message}"):
            BayesianMultinomialMixture(2, word_concentration_prior=value).fit(documents(50))
    with pytest.raises(ValueError, match="level must lie"):
        BayesianMultinomialMixture(2, random_state=0).fit(documents(50)).posterior_summary(level=1.0)


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_priors_that_are_given_are_used(kind: str) -> None:
    X = three(200)
    spread: Any = {"diag": [0.5, 0.7], "spherical": 0.6}.get(kind, [[0.5, 0.1], [0.1, 0.7]])
    fitted = BayesianGaussianMixture(
        4,
        covariance_type=kind,
        mean_prior=[1.0, 2.0],
        mean_precision_prior=0.5,
        degrees_of_freedom_prior=4.5,
        covariance_prior=spread,
        weight_concentration_prior=0.3,
        weight_concentration_prior_type=TYPES[1],
        random_state=0,
    ).fit(X)
    np.testing.assert_allclose(fitted.mean_prior_, [1.0, 2.0], rtol=1e-12)
    np.testing.assert_allclose(fitted.covariance_prior_, spread, rtol=1e-12)
    assert (fitted.mean_precision_prior_, fitted.degrees_of_freedom_prior_) == (0.5, 4.5)
    assert fitted.weight_concentration_prior_ == pytest.approx(0.3)
    assert np.sum(fitted.weight_concentration_) == pytest.approx(200 + 4 * 0.3)
    assert np.sum(fitted.mean_precision_) == pytest.approx(200 + 4 * 0.5)


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
def test_odd_tables() -> None:
    X = three(100)
    flat = np.column_stack([X, np.full(100, 5.0)])
    for kind in GAUSSIAN:
        fitted = BayesianGaussianMixture(3, covariance_type=kind, random_state=0).fit(flat)
        assert np.isfinite(fitted.lower_bound_)
        assert any("constant column(s) 'x2'" in event for event in fitted.events_)
        same = BayesianGaussianMixture(3, covariance_type=kind, random_state=0).fit(np.repeat(X[:1], 20, 0))
        assert np.isfinite(same.score(X))
        collinear = np.column_stack([X, X[:, 0]])
        assert np.isfinite(
            BayesianGaussianMixture(3, covariance_type=kind, random_state=0).fit(collinear).score(collinear)
        )


def test_components_of_a_sample_go_when_all_rows_have_spoken():
    """Starts race on 2,000 of 30,000 rows, each counted fifteen times: chance clusters of these must not stay."""
    rng = np.random.default_rng(100)
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    X = rng.normal(size=(30_000, 2)) + centres[rng.choice(3, size=30_000, p=[0.5, 0.3, 0.2])]
    many, three = (BayesianGaussianMixture(k, random_state=0).fit(X) for k in (10, 3))
    assert many.n_components_ == 3
    assert many.lower_bound_ > three.lower_bound_ - 50.0 / 30_000  # seven more sticks cost some 13 nats


@pytest.mark.parametrize(("total", "missing"), [(0.2, "mean sd"), (0.8, "mean sd"), (1.6, "sd"), (2.5, "")])
def test_moments_that_do_not_exist_are_infinite_and_no_others(total: float, missing: str) -> None:
    """With 1 to 2 degrees of freedom the deviation of a standard deviation was NaN."""
    rows = np.array([[-1.0], [0.0], [0.5], [1.0]])
    fit = BayesianGaussianMixture(1, covariance_type="diag", degrees_of_freedom_prior=0.1)
    table = fit.fit(rows, sample_weight=np.full(4, total / 4)).posterior_summary()
    assert not table.isna().to_numpy().any()
    spread = table.loc["sd[0, x0]"]
    assert [name for name in ("mean", "sd") if np.isinf(spread[name])] == missing.split()
    assert np.isinf(table.loc["mean[0, x0]", "sd"]) == (total < 1.9)
    assert np.isfinite(table[["low", "high"]].to_numpy()).all()


def test_moments_of_many_rows_keep_their_digits() -> None:
    """Differences of log-gammas lost them: with 1e17 rows the mean was off by a factor, its range NaN."""
    rows = np.array([[-1.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    for total, digits in ((1.9e4, 1e-7), (2.1e4, 1e-7), (1e9, 1e-7), (1e17, 1e-7)):
        fit = BayesianGaussianMixture(1, covariance_type="diag")
        table = fit.fit(rows, sample_weight=np.full(3, total / 3)).posterior_summary().iloc[-2:]
        shape = 0.5 * float(np.ravel(fit.degrees_of_freedom_)[0])
        size = rows.std(0) * np.sqrt(1.0 + 0.75 / shape)
        np.testing.assert_allclose(table["mean"], rows.std(0), rtol=10.0 / total + digits)
        np.testing.assert_allclose(table["sd"], size / (2.0 * np.sqrt(shape)), rtol=10.0 / total + 1e-4)
        reach = table["high"] - table["low"]
        np.testing.assert_allclose(reach, 2.0 * 1.959964 * table["sd"], rtol=1e-3)


def test_a_weight_beside_a_far_larger_one_has_a_range() -> None:
    distribution = Dirichlet(torch.tensor([1e20, 1.0]).double())
    fit = BayesianMultinomialMixture(2, random_state=0).fit(documents(50))
    weights = replace(fit.model_.parameter_posterior, weights=distribution)
    fit.model_ = replace(fit.model_, parameter_posterior=weights)
    fit.active_ = np.array([True, True])
    low, high = fit.posterior_summary().loc[["weight[0]", "weight[1]"], ["low", "high"]].to_numpy().T
    np.testing.assert_allclose([low[0], high[0]], 1.0)
    assert 0.0 < low[1] < high[1] < 1e-18


@pytest.mark.parametrize("shape", [1.5, 40.0, 9999.0, 10001.0, 1e7])
def test_moments_of_roots_of_inverse_gamma_variables(shape: float) -> None:
    """Against sixty digits, on both sides of where the series takes over."""
    with mpmath.workdps(60):
        ratio = mpmath.gamma(mpmath.mpf(shape) - 0.5) / mpmath.gamma(shape)
        deviation = mpmath.sqrt(1 / (mpmath.mpf(shape) - 1) - ratio**2)
    found = root_gamma_moments(np.array([[shape]]), np.array([[4.0]]))
    np.testing.assert_allclose(found[0], 2.0 * float(ratio), rtol=1e-8)
    np.testing.assert_allclose(found[1], 2.0 * float(deviation), rtol=1e-6)
