"""Bayesian mixtures and autoencoders in a report: as candidates, and chosen."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy import stats

import boxloop
from boxloop.cli import main
from boxloop.models import Autoencoder, BernoulliHead, GaussianHead, Layers, Part, PoissonHead, StandardNormal
from boxloop.report import (
    BAYESIAN,
    DEEP,
    autoencoder_candidate,
    conditional_log_density,
    correlate_with_codes,
    examine_table,
    find_autoencoder_obstacle,
    list_candidates,
    name_columns,
    select_criticised_part,
)

STRANGE = int(np.random.default_rng(0).permutation(240)[0])
"""A held-out row, so that no component can settle on it."""


def clusters(n=240, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)) + np.array([4.0, -3.0, 0.0]) * rng.integers(2, size=(n, 1))


@pytest.fixture(scope="module", params=[pytest.param("bayesian", marks=pytest.mark.slow), "deep"])
def forced(request, tmp_path_factory):
    """A report in which one model alone is offered, so that it is chosen; made twice."""
    family = BAYESIAN if request.param == "bayesian" else DEEP
    rows, folder = clusters(), tmp_path_factory.mktemp(request.param)
    rows[STRANGE] += [0.0, 12.0, 0.0]
    real = sys.modules[examine_table.__module__].list_candidates
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys.modules[examine_table.__module__],
            "list_candidates",
            lambda *a, **k: tuple(c for c in real(*a, **k) if c.family == family),
        )
        stages = []
        made = [
            boxloop.make_report(
                rows, jobs=1, deep=family == DEEP, tell=lambda what, share: stages.append((what, share))
            )
            for _ in range(2)
        ]
    made[0].save(folder / "page.html")
    (folder / "again").mkdir()
    made[1].save(folder / "again" / "page.html")
    return family, made[0], folder, rows, stages


def test_all_that_a_page_says_of_the_chosen_model(forced):
    family, report, folder, _, stages = forced
    facts = json.loads((folder / "page.json").read_text())
    page, text = (folder / "page.html").read_text(), (folder / "page.md").read_text()
    assert report.lines[0].answer.startswith(family)
    assert facts["candidates"][0]["chosen"]
    assert facts["candidates"][0]["lower_bound"] == (family == DEEP)
    assert 0.0 < facts["finalists"][0]["p_value"] <= 1.0
    assert facts["finalists"][0]["parameter_error"] == ("included" if family == BAYESIAN else "left out")
    assert facts["outliers"]["rows"][0]["row"] == STRANGE
    assert facts["outliers"]["rows"][0]["reasons"][0][0] == "x1"
    for said in (family, *report.parts.notes):
        assert said in text
        assert said in page
    assert page.count("<img") == 7
    assert {what for what, _ in stages} >= {"fitting 1 candidates", "writing"}
    assert sorted(share for _, share in stages[: len(stages) // 2]) == [
        share for _, share in stages[: len(stages) // 2]
    ]


def test_the_same_seed_gives_the_same_page(forced):
    folder = forced[2]
    for name in ("page.html", "page.json", "page.md"):
        assert (folder / name).read_text() == (folder / "again" / name).read_text()


def test_the_snippet_loads_the_model(forced):
    family, report, folder, rows, _ = forced
    model = boxloop.load(folder / "page.boxloop")
    np.testing.assert_array_equal(model.score_samples(rows), report.estimator.score_samples(rows))
    assert "lower bound of the log-density" in (folder / "page.html").read_text() or family == BAYESIAN


def test_parts_are_the_components_in_use_with_posterior_deviations(forced):
    family, report, *_ = forced
    if family != BAYESIAN:
        pytest.skip("of mixtures")
    estimator, parts = report.estimator, report.parts
    used = estimator.active_
    assert 0 < used.sum() == report.findings.trials[0].candidate.used
    np.testing.assert_array_equal(parts.values, estimator.means_[used])
    np.testing.assert_array_equal(parts.errors, estimator.standard_errors()["means"][used])
    assert parts.weights[1] == estimator.standard_errors()["weights"][used].tolist()
    assert f"uses {used.sum()}" in report.lines[0].answer
    assert report.findings.trials[0].n_parameters == used.sum() * (1 + 3 + 6) - 1


def test_parts_are_codes(forced):
    family, report, *_ = forced
    if family != DEEP:
        pytest.skip("of autoencoders")
    parts, found = report.parts, report.findings
    rows = found.table.rows[found.fit_rows]
    codes = report.estimator.transform(name_columns(rows, found.table.names))
    active = np.isfinite(parts.values).all(1)
    assert active.any()
    expected = np.corrcoef(codes.T, rows.T)[: codes.shape[1], codes.shape[1] :]
    np.testing.assert_allclose(parts.values[active], expected[active], rtol=1e-6)
    assert ((parts.explained >= 0.0) & (parts.explained <= 1.0)).all()
    assert any(line.question == "Autoencoder?" and "lower bound" in line.answer for line in report.lines)
    assert np.isnan(found.trials[0].aic)


@pytest.fixture
def two(monkeypatch):
    """One plain candidate and the Bayesian one."""
    real = sys.modules[examine_table.__module__].list_candidates
    monkeypatch.setattr(
        sys.modules[examine_table.__module__],
        "list_candidates",
        lambda *a, **k: (real(*a, **k)[0], real(*a, **k)[-1]),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("two")
def test_deep_beside_the_others_and_off_by_default(tmp_path):
    np.save(tmp_path / "rows.npy", clusters(150))
    call = ["report", str(tmp_path / "rows.npy"), "-o", str(tmp_path / "r.html"), "--jobs", "1", "--json"]
    plain, deep = (json.loads(CliRunner().invoke(main, [*call, *more]).stdout) for more in ([], ["--deep"]))
    families = [{c["family"] for c in facts["candidates"]} for facts in (plain, deep)]
    assert BAYESIAN in families[0]
    assert families[1] - families[0] == {DEEP}
    assert deep["command"].endswith(" --deep")
    assert "--deep" not in plain["command"]
    page = (tmp_path / "r.html").read_text()
    assert "The score of an autoencoder is a lower bound of its log-likelihood" in page
    assert [c["n_parameters"] for c in plain["list_candidates"]] == [
        c["n_parameters"] for c in deep["list_candidates"][:-1]
    ]


@pytest.mark.parametrize("kind", ["missing values", "one column", "few rows"])
def test_tables_without_an_autoencoder_say_so(kind, monkeypatch):
    real = sys.modules[examine_table.__module__].list_candidates
    monkeypatch.setattr(
        sys.modules[examine_table.__module__], "list_candidates", lambda *a, **k: real(*a, **k)[:1]
    )
    rows = clusters()
    rows = {"missing values": rows, "one column": rows[:, :1], "few rows": rows[:40]}[kind]
    if kind == "missing values":
        rows[::9, 1] = np.nan
    report = boxloop.make_report(rows, jobs=1, deep=True)
    assert report.findings.autoencoder_obstacle
    assert DEEP not in {trial.candidate.family for trial in report.findings.trials}
    line = next(line for line in report.lines if line.question == "Autoencoder?")
    words = {"missing values": "missing values", "one column": "single column", "few rows": "too few"}[kind]
    assert words in line.answer
    assert not [line for line in boxloop.make_report(rows, jobs=1).lines if line.question == "Autoencoder?"]


@pytest.mark.parametrize("kind", ["counts", "yes or no"])
def test_an_autoencoder_of_counts(kind, monkeypatch):
    monkeypatch.setattr(sys.modules[examine_table.__module__], "list_candidates", lambda *a, **k: ())
    rng = np.random.default_rng(1)
    rows = rng.poisson([1.0, 4.0, 0.5, 2.0], size=(120, 4)).clip(max=1 if kind == "yes or no" else None)
    report = boxloop.make_report(rows.astype(float), jobs=1, deep=True)
    assert report.estimator.likelihood == {"counts": "poisson", "yes or no": "bernoulli"}[kind]
    assert report.findings.table.kind == kind
    assert len(report.outliers.rows[0].reasons) > 0


def test_a_bayesian_mixture_is_criticised_by_the_components_in_use():
    """The moments are those of the plain mixture, so that tails of emptied components have no part in it."""
    rows = clusters(600)
    fitted = boxloop.BayesianGaussianMixture(6, random_state=0).fit(rows)
    model = select_criticised_part(fitted)
    assert len(model.log_weight) == fitted.n_components_ == 2
    assert float(model.log_weight.exp().sum()) == pytest.approx(1.0, rel=1e-12)
    share = fitted.weights_[fitted.active_]
    np.testing.assert_allclose(
        model.moments()[0].numpy(), share / share.sum() @ fitted.means_[fitted.active_], rtol=1e-12
    )
    plain = boxloop.GaussianMixture(2)
    assert select_criticised_part(plain) is plain


@pytest.mark.usefixtures("two")
def test_a_handful_of_rows_does_not_vouch_for_itself():
    """Three rows far off get a component of their own, and are outliers all the same."""
    rows, far = clusters(400)[:, :2], [3, 250, 333]
    rows[far] = [[30.0, 30.0], [30.5, 30.0], [30.0, 29.0]]
    report = boxloop.make_report(rows, jobs=1)
    assert isinstance(report.estimator, boxloop.BayesianGaussianMixture)
    assert set(report.estimator.predict(rows[far])) == {1}
    assert {row.row for row in report.outliers.rows if row.flagged} >= set(far)
    assert "component 1 holds so few" in report.parts.notes[0]
    plain = boxloop.make_report(clusters(400), jobs=1)
    assert "so few" not in " ".join(plain.parts.notes)
    np.testing.assert_array_equal(
        plain.outliers.log_density, plain.estimator.score_samples(plain.findings.table.rows)
    )


def test_sizes_follow_the_table():
    wide = list_candidates("measurements", 500, 101, 0)[-1]
    assert (wide.family, wide.estimator.covariance_type) == (BAYESIAN, "diag")
    assert list_candidates("measurements", 500, 5, 0)[-1].estimator.covariance_type == "full"
    assert BAYESIAN not in {c.family for c in list_candidates("measurements", 9, 3, 0)}
    assert [autoencoder_candidate("measurements", 900, d, 0).size for d in (2, 3, 9, 64)] == [1, 1, 4, 8]
    assert replace(wide, used=2).name.endswith("(uses 2)")
    assert replace(wide, used=2).size_in_use == 2
    assert find_autoencoder_obstacle(np.ones((60, 2))) == ""


def gaussian_pair(head, columns=4, codes=2, seed=0):
    """A linear autoencoder whose encoder is exact, and the covariance of its rows."""
    rng = np.random.default_rng(seed)
    loadings, noise = rng.normal(size=(codes, columns)), rng.uniform(0.3, 0.8, columns)
    inner = np.linalg.inv(np.eye(codes) + loadings / noise @ loadings.T)
    turned = inner @ loadings / noise
    # One posterior covariance for all rows; the encoder gives its diagonal, so that scores remain bounds.
    spread = np.log(np.diag(inner))
    encoder = torch.tensor(np.hstack([turned.T, np.zeros((columns, codes))]))
    shift = torch.tensor(np.concatenate([np.zeros(codes), spread]))
    raw = np.hstack([loadings, np.zeros((codes, columns))])
    level = np.concatenate([np.zeros(columns), np.log(noise - head.floor)])
    to_code = Part(Layers(columns, (), 2 * codes), (encoder, shift))
    to_row = Part(Layers(codes, (), 2 * columns), (torch.tensor(raw), torch.tensor(level)))
    model = Autoencoder.from_parts(to_code, to_row, head, StandardNormal(codes), columns)
    return replace(model, score_draws=4096), loadings.T @ loadings + np.diag(noise)


def test_a_value_given_the_others_is_that_of_the_joint_normal_distribution():
    """Oracle: of a linear Gaussian autoencoder the conditional distributions are known."""
    model, covariance = gaussian_pair(GaussianHead())
    rows = np.random.default_rng(1).multivariate_normal(np.zeros(4), covariance, size=20)
    rows[0, 2] += 6.0
    found = conditional_log_density(model, rows, 0)
    for j in range(4):
        rest = [i for i in range(4) if i != j]
        pull = np.linalg.solve(covariance[np.ix_(rest, rest)], covariance[rest, j])
        distribution = stats.norm(
            rows[:, rest] @ pull, np.sqrt(covariance[j, j] - covariance[j, rest] @ pull)
        )
        # Importance weights of a diagonal guess spread over draws: 128 leave an error of about 0.1.
        np.testing.assert_allclose(found[:, j], distribution.logpdf(rows[:, j]), atol=0.35)
        assert abs(np.mean(found[:, j] - distribution.logpdf(rows[:, j]))) < 0.1
    assert found[0].argmin() == 2


@pytest.mark.parametrize("head", [PoissonHead(), BernoulliHead()], ids=["poisson", "bernoulli"])
def test_columns_without_codes_are_independent(head):
    """Identity: where the decoder ignores the code, a value given the others has its own density."""
    raw = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64)
    to_code = Part(Layers(3, (), 2), (torch.zeros(3, 2).double(), torch.zeros(2).double()))
    to_row = Part(Layers(1, (), 3), (torch.zeros(1, 3).double(), raw))
    model = Autoencoder.from_parts(to_code, to_row, head, StandardNormal(1), 3)
    rows = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    distribution = (
        stats.poisson(raw.exp().numpy())
        if isinstance(head, PoissonHead)
        else stats.bernoulli(raw.sigmoid().numpy())
    )
    np.testing.assert_allclose(conditional_log_density(model, rows, 0), distribution.logpmf(rows), rtol=1e-6)


def test_errors_of_correlations():
    """Statistical: for normal pairs the error is (1 - r^2) / sqrt(n); its own error here is below 3%."""
    rng = np.random.default_rng(0)
    n, r = 40_000, 0.6
    codes = rng.normal(size=(n, 1))
    values = r * codes + np.sqrt(1 - r**2) * rng.normal(size=(n, 2))
    found, error = correlate_with_codes(values, codes)
    np.testing.assert_allclose(found, np.corrcoef(codes.T, values.T)[:1, 1:], rtol=1e-10)
    np.testing.assert_allclose(error, (1 - r**2) / np.sqrt(n), rtol=0.05)
    assert (np.abs(found - r) < 4.0 * error).all()
