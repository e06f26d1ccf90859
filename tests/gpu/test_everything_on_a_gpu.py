"""Every estimator, engine, metric, kernel, view and method on a GPU gives the numbers of the CPU, to 1e-8.

Where there is no GPU, the slow suite runs them on a pretended device: see ``pretended.py``.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import boxloop
from boxloop import criticise, distributions, fit, models, networks, sample, select, twoview
from gpu import chain_cases, criticise_cases, engine_cases, estimator_cases, model_cases, view_cases
from gpu.places import Case, assert_same_in_both

ROOMS = (criticise, distributions, fit, models, sample, select, twoview, networks)
FILES = (estimator_cases, engine_cases, model_cases, criticise_cases, chain_cases, view_cases)
CASES: dict[str, Case] = {
    f"{file.__name__.split('.')[-1].removesuffix('_cases')}-{name}": case
    for file in FILES
    for name, case in {**file.CASES, **getattr(file, "SPARSE", {})}.items()
}
DEVICE = "pretended" if "gpu.pretended" in sys.modules else "cuda"
UNPRETENDED = {*(f"estimator-{name}" for name in estimator_cases.SPARSE), "view-audit"}
"""Sparse rows, and derivatives of derivatives, that only a device of torch's own can hold."""
NUMBERS_ALONE = {
    "CCA": "scikit-learn's parameters, which name no device",
    "check_weight_decay": "numbers of an optimiser",
    "distributed": "joins processes",
    "implied_precision": "a formula",
    "make_report": "estimators on the CPU",
    "one_standard_error": "NumPy",
    "penalised_path": "NumPy",
    "use_threads": "a setting",
    "weight_decay": "a formula",
    "window_length": "a formula",
}
"""Public functions that see no tensor of a device."""
ELSEWHERE = {
    "elbo": "BayesianGaussianMixture",
    "load": "test_files_are_read_onto_the_cpu",
    "load_posterior": "test_files_are_read_onto_the_cpu",
    "save_posterior": "test_files_are_read_onto_the_cpu",
}
"""Public functions that are called by another case or test."""
PARTS = {
    "ClassificationPrediction",  # NumPy
    "FactorPrior",  # of sample_factors
    "MixturePrior",  # of sample_mixture
    "RegressionPrediction",  # NumPy
}
"""Classes with a density that come with a case."""


def works(room: ModuleType) -> set[str]:
    """The public names of a room that compute: functions, estimators, kernels, methods, distributions and models."""
    found = set()
    for name in room.__all__:
        value: Any = getattr(room, name)
        does = ("fit", "kernel", "restore", "log_prob")
        if inspect.isfunction(value) or (
            inspect.isclass(value)
            and not getattr(value, "_is_protocol", False)
            and any(callable(getattr(value, word, None)) for word in does)
        ):
            found.add(name)
    return found


def test_nothing_public_is_left_out() -> None:
    wanted = set().union(*(works(room) for room in (boxloop, *ROOMS)))
    covered = {word for name in CASES for word in name.split("-")}
    assert not wanted - covered - NUMBERS_ALONE.keys() - ELSEWHERE.keys() - PARTS
    known = {name for room in (boxloop, *ROOMS) for name in room.__all__}
    assert not (NUMBERS_ALONE.keys() | ELSEWHERE.keys() | PARTS) - known, "a name that is no more"


@pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device on this machine"
)
@pytest.mark.parametrize("name", [name for name in CASES if DEVICE == "cuda" or name not in UNPRETENDED])
def test_the_numbers_are_those_of_the_cpu(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits are cut short, and say so
        assert_same_in_both(CASES[name], DEVICE)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")
def test_the_numbers_are_those_of_a_pretended_device() -> None:
    here = Path(__file__)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "gpu.pretended",
            str(here),
            "-k",
            "numbers_are_those_of_the_cpu",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent.parent), *sys.path])},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_files_are_read_onto_the_cpu(tmp_path: Any) -> None:
    rows = estimator_cases.blobs()
    fit = boxloop.GaussianMixture(2, random_state=0, device="cuda").fit(rows)
    fit.save(tmp_path / "fit.boxloop")
    again = boxloop.load(tmp_path / "fit.boxloop")
    assert again.model_.log_weight.device.type == "cpu"
    assert abs(fit.score(rows) - again.score(rows)) < 1e-8 * abs(fit.score(rows))
    net = torch.nn.Linear(2, 1).cuda()
    posterior = boxloop.WeightPosterior(net, "swag", rank=2, random_state=0)
    for _ in range(4):
        with torch.no_grad():
            net.weight.mul_(0.9)
        posterior.observe()
    networks.save_posterior(tmp_path / "weights.boxloop", posterior)
    read = networks.load_posterior(tmp_path / "weights.boxloop", net)
    assert torch.equal(read.mean().cpu(), posterior.mean().cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("accelerate", [False, True])
def test_a_fit_goes_on_from_its_checkpoint(tmp_path: Any, accelerate: bool) -> None:
    rows, path = estimator_cases.blobs(gap=2.0), tmp_path / "fit.boxloop"
    plan = {"n_components": 3, "random_state": 0, "tol": 1e-9, "accelerate": accelerate, "device": "cuda"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boxloop.GaussianMixture(max_iter=3, checkpoint=path, **plan).fit(rows)
        then = boxloop.GaussianMixture(max_iter=8, checkpoint=path, **plan).fit(rows)
        whole = boxloop.GaussianMixture(max_iter=8, **plan).fit(rows)
    assert then.n_iter_ == 8
    assert abs(then.lower_bound_ - whole.lower_bound_) < 1e-10
