"""The migration page: what it says is missing is missing, and nothing else; the same of tests that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA, FactorAnalysis as TheirFactorAnalysis
from sklearn.linear_model import BayesianRidge
from sklearn.mixture import BayesianGaussianMixture as TheirBayesianMixture, GaussianMixture as TheirMixture

import boxloop
from estimators.public_cases import quietly

PAGE = (Path(__file__).parents[2] / "docs" / "from_scikit_learn.md").read_text(encoding="utf-8")
PAIRS = {
    TheirMixture: boxloop.GaussianMixture,
    TheirBayesianMixture: boxloop.BayesianGaussianMixture,
    TheirFactorAnalysis: boxloop.FactorAnalysis,
    PCA: boxloop.ProbabilisticPCA,
    BayesianRidge: boxloop.BayesianLinearRegression,
}
OWN_TESTS = (
    "mixture/tests/test_gaussian_mixture.py",
    "mixture/tests/test_bayesian_mixture.py",
    "mixture/tests/test_mixture.py",
    "decomposition/tests/test_factor_analysis.py",
)


def table(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    below = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def listed(name: str) -> set[str]:
    """Names that the page says a class does not have."""
    return {
        missing
        for kind, cell, _ in table("What is not here")
        if kind == f"`{name}`"
        for missing in re.findall("`([^`]+)`", cell)
    }


def parameters(kind: type[BaseEstimator]) -> set[str]:
    return set(kind().get_params())


def attributes(kind: type[BaseEstimator]) -> set[str]:
    """Public names of a fitted estimator that end in an underscore."""
    X = np.random.default_rng(0).normal(size=(60, 4))
    params = {"n_components": 2} if "n_components" in parameters(kind) else {}
    fitted = quietly(lambda: kind(**params).fit(X, X[:, 0]))
    return {name for name in dir(fitted) if name.endswith("_") and not name.startswith("_")}


def methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and not name.endswith("_")}


@pytest.mark.parametrize(("theirs", "ours"), PAIRS.items(), ids=lambda kind: kind.__name__)
def test_what_is_not_here_is_listed(theirs: type[BaseEstimator], ours: type[BaseEstimator]) -> None:
    missing = (parameters(theirs) - parameters(ours)) | (attributes(theirs) - attributes(ours))
    assert missing == listed(theirs.__name__)
    assert methods(theirs) - methods(ours) == set()


@pytest.mark.parametrize(("theirs", "ours"), PAIRS.items(), ids=lambda kind: kind.__name__)
def test_defaults_that_differ_are_listed(theirs: type[BaseEstimator], ours: type[BaseEstimator]) -> None:
    there, here = theirs().get_params(), ours().get_params()
    different = {
        (f"`{name}`", f"`{there[name]!r}`", f"`{here[name]!r}`")
        for name in there.keys() & here.keys()
        if there[name] != here[name]
    }
    assert {
        tuple(cells) for kind, *cells in table("What differs") if kind == f"`{theirs.__name__}`"
    } == different


def test_attributes_of_principal_components_are_scikit_learns() -> None:
    X = np.random.default_rng(0).normal(size=(100, 5)) * [1.0, 2.0, 3.0, 4.0, 5.0]
    ours, theirs = boxloop.ProbabilisticPCA(2).fit(X), PCA(2).fit(X)
    for name in ("explained_variance_ratio_", "singular_values_", "n_components_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12)
    assert "those of `PCA` are divided by n - 1" in PAGE
    for name in ("explained_variance_", "noise_variance_"):
        np.testing.assert_allclose(100 / 99 * getattr(ours, name), getattr(theirs, name), rtol=1e-12)


@pytest.mark.slow
def test_scikit_learns_own_tests_fail_as_listed(tmp_path: Path) -> None:
    for name in OWN_TESTS:
        text = (Path(sklearn.__file__).parent / name).read_text(encoding="utf-8")
        ours = re.sub(r"from sklearn\.(mixture|decomposition) import", "from boxloop import", text)
        (tmp_path / Path(name).name).write_text(ours, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    # One seed, and none of the checks of array libraries that are not installed here.
    settings = {
        **os.environ,
        "SKLEARN_TESTS_GLOBAL_RANDOM_SEED": "42",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    options = [
        "-q",
        "-p",
        "sklearn.conftest",
        "--import-mode=importlib",
        "--tb=no",
        "-rA",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings, cwd=tmp_path)
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S+?::(\w+)", done.stdout, re.MULTILINE)
    assert len([name for word, name in found if word == "PASSED"]) >= 50, done.stdout[-3000:]
    failed = {name for word, name in found if word != "PASSED"}
    known = {re.sub("`", "", name) for name, _ in table("Which of its tests fail")}
    assert failed == known
