"""Bayesian models and autoencoders at the command line: what is in use, what is a bound, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from boxloop import EnergyBasedModel, load
from boxloop.data import open_table
from cli.calls import NAMES, call, clusters, counts, done, table


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, counts, and a file of each model."""
    folder = tmp_path_factory.mktemp("deep")
    rows = np.nan_to_num(clusters(400))
    table(folder / "rows.csv", rows[:200])
    table(folder / "held.csv", rows[200:])
    table(folder / "counts.csv", counts())
    done("fit", folder / "rows.csv", "--model", "bayesian-mixture", "-o", folder / "mixture")
    done("fit", folder / "counts.csv", "--model", "bayesian-multinomial-mixture", "-o", folder / "words")
    done("fit", folder / "rows.csv", "--model", "bayesian-factor-analysis", "-o", folder / "factors")
    net = ["--model", "autoencoder", "--hidden", "8", "--max-iter", 30, "--schedule", "cosine"]
    done("fit", folder / "rows.csv", *net, "-o", folder / "codes")
    done("fit", folder / "counts.csv", *net, "--likelihood", "poisson", "-o", folder / "rates")
    return folder


def shown(path: Path) -> dict:
    return json.loads(done("show", path, "--json").stdout)


@pytest.mark.parametrize("name", ["mixture", "words"])
def test_components_in_use_alone_are_reported(fitted: Path, name: str) -> None:
    estimator = load(fitted / name)
    assert estimator.n_components == 10  # where nothing is said
    found = shown(fitted / name)["components"]
    assert len(found) == estimator.n_components_ < 10
    used = estimator.active_
    np.testing.assert_allclose([part["weight"] for part in found], estimator.weights_[used])
    np.testing.assert_allclose(
        [[part["mean"][n] for n in NAMES] for part in found], estimator.means_[used], rtol=1e-12
    )
    first = estimator.standard_errors()["means" if name == "mixture" else "probabilities"][used]
    scale = 1.0 if name == "mixture" else estimator.total
    np.testing.assert_allclose(
        [[part["mean_error"][n] for n in NAMES] for part in found], first * scale, rtol=1e-9
    )
    text = done("show", fitted / name).stdout
    assert f"{len(found)} of at most 10 components in use" in text
    assert "evidence bound per row" in text


def test_factors_in_use_alone_are_reported(fitted: Path) -> None:
    estimator, found = load(fitted / "factors"), shown(fitted / "factors")
    used = estimator.n_components_
    assert [found["loadings"][n] for n in NAMES] == estimator.components_[:used].T.tolist()
    assert [found["loading_error"][n] for n in NAMES] == estimator.loading_sd_[:used].T.tolist()
    assert f"{used} of at most" in done("show", fitted / "factors").stdout


def test_codes_of_an_autoencoder(fitted: Path) -> None:
    """Statistical: correlations in 20,000 draws, against as many others; 5 standard errors are 0.05."""
    found, estimator = shown(fitted / "codes"), load(fitted / "codes").set_params(random_state=5)
    rows, codes = estimator.sample(20_000)
    expected = np.corrcoef(rows.T, codes.T)[:3, 3:]
    np.testing.assert_allclose([found["codes"][n] for n in NAMES], expected, atol=0.05)
    assert all(0.0 <= found["explained"][n] <= 1.0 for n in NAMES)
    assert shown(fitted / "codes") == found
    assert found["lower_bound"] == max(estimator.history_["validation_elbo"])


def test_a_bound_is_called_a_bound(fitted: Path) -> None:
    rows = fitted / "rows.csv"
    assert "lower bound of log-likelihood" in done("score", fitted / "codes", rows).stdout
    found = json.loads(done("compare", fitted / "codes", fitted / "factors", rows, "--json").stdout)
    criteria = {Path(one["model"]).name: one["aic"] for one in found["models"]}
    assert criteria["codes"] is None
    assert criteria["factors"] is not None
    assert "Lower bounds of log-likelihoods:" in done("compare", fitted / "codes", rows).stdout


def test_draws_of_counts_are_whole(fitted: Path) -> None:
    for name in ("words", "rates"):
        lines = done("sample", fitted / name, "-n", 5).stdout.splitlines()
        assert lines[0] == ",".join(NAMES)
        assert all(cell.isdigit() for line in lines[1:] for cell in line.split(","))


@pytest.mark.parametrize("name", ["mixture", "factors", "codes"])
def test_criticism_without_the_rows_of_the_fit(fitted: Path, name: str) -> None:
    rows, held = fitted / "rows.csv", fitted / "held.csv"
    found = json.loads(
        done("criticise", fitted / name, held, "--draws", 19, "--test", "first", "--json").stdout
    )
    assert found["parameter_error"] == "left out"
    assert np.isfinite(found["tests"][0]["norm"])
    refused = call("criticise", fitted / name, held, "--train", rows)
    assert refused.exit_code == 2
    assert "--train" in refused.stderr


def test_a_tied_mixture_is_criticised_by_the_components_in_use(fitted: Path, tmp_path: Path) -> None:
    rows = fitted / "rows.csv"
    done("fit", rows, "--model", "bayesian-mixture", "-k", 4, "--covariance", "tied", "-o", tmp_path / "m")
    estimator = load(tmp_path / "m")
    share = estimator.weights_[estimator.active_]
    mean = share / share.sum() @ estimator.means_[estimator.active_]
    held = fitted / "held.csv"
    data = np.asarray(open_table(held).rows).mean(0)
    found = json.loads(
        done("criticise", tmp_path / "m", held, "--draws", 9, "--test", "first", "--json").stdout
    )
    assert found["tests"][0]["norm"] == pytest.approx(np.linalg.norm(data - mean), rel=1e-6, abs=1e-9)


def test_what_is_refused(fitted: Path, tmp_path: Path) -> None:
    rows, out = fitted / "rows.csv", tmp_path / "m"
    table(tmp_path / "missing.csv", clusters())
    for words, code, said in (
        (["fit", rows, "--model", "autoencoder", "--tol", 1, "-o", out], 2, "no option --tol"),
        (["fit", rows, "--model", "gaussian-mixture", "--hidden", 8, "-o", out], 2, "no option --hidden"),
        (["fit", rows, "--model", "autoencoder", "--hidden", "8,x", "-o", out], 2, "64,64"),
        (["fit", tmp_path / "missing.csv", "--model", "autoencoder", "-o", out], 1, "missing value"),
        (["outliers", rows, "--model", "autoencoder"], 2, "an autoencoder does not take missing values"),
        (["outliers", rows, "--model", fitted / "codes"], 2, "an autoencoder does not take missing values"),
    ):
        result = call(*words)
        assert result.exit_code == code
        assert said in result.stderr
    assert not out.exists()


def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    EnergyBasedModel(max_iter=1, random_state=0).fit(rng.normal(size=(64, 2))).save(tmp_path / "e")
    result = call("show", tmp_path / "e")
    assert result.exit_code == 1
    assert "EnergyBasedModel" in result.stderr


def test_an_autoencoder_goes_on_from_its_checkpoint(fitted: Path, tmp_path: Path) -> None:
    words = ["fit", fitted / "rows.csv", "--model", "autoencoder", "--hidden", "8", "--schedule", "cosine"]
    words += ["--max-iter", 12, "--json", "-o", tmp_path / "m", "--checkpoint", tmp_path / "c"]
    first, again = (json.loads(done(*words).stdout) for _ in range(2))
    assert first["log_likelihood"] == again["log_likelihood"]
