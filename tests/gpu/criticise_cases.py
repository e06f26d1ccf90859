"""Every metric and every way to choose, on a model or rows of a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import boxloop
from boxloop import criticise, select
from boxloop.criticise import standardise_by_model
from boxloop.distributions import DiagonalGaussian
from boxloop.models import FactorModel
from boxloop.numeric import generator
from estimators.cases import blobs, documents, factors
from gpu.places import Case

FUNCTIONS = (
    criticise.First(),
    criticise.Second(),
    criticise.Power(3),
    criticise.Below(),
    criticise.Fourier(5),
    criticise.Lagged(1),
    criticise.Custom(lambda rows: rows.amax(1), name="largest"),
)


def tensor(rows: Any, device: str) -> Tensor:
    return torch.as_tensor(np.asarray(rows)).double().to(device)


def mixture(device: str, **more: Any) -> Any:
    return boxloop.GaussianMixture(2, random_state=0, max_iter=5, tol=1.0, device=device, **more).fit(blobs())


def encoder(device: str) -> Any:
    plan = {"hidden": (8,), "max_iter": 1, "patience": None, "score_draws": 4, "dtype": "float64"}
    return boxloop.VariationalAutoencoder(2, random_state=0, device=device, **plan).fit(factors(100))


def gaps(found: criticise.Mega) -> dict[str, Any]:
    gaps = {}
    for i, gap in enumerate(found.gaps):
        for name in ("data", "model", "row_error", "node_error", "training_error", "null_error"):
            gaps[f"{name} {i}"] = getattr(gap, name)
        gaps[f"p {i}"] = gap.p_value
    return gaps


def moments(model: Any, **more: Any) -> Case:
    return lambda device: gaps(
        criticise.mega(
            model(device), blobs(200, 1), functions=FUNCTIONS, draws=49, nodes=256, random_state=0, **more
        )
    )


def trained(device: str) -> dict[str, Any]:
    model, x = mixture(device), blobs()
    return gaps(criticise.mega(model, x, train=x, draws=49, null="signs"))


def decoded(device: str) -> dict[str, Any]:
    fit = encoder(device)
    return gaps(criticise.mega(fit, factors(100), draws=0, nodes=64, method="monte_carlo"))


def calibrated(device: str) -> dict[str, Any]:
    return {"transform": criticise.calibration(mixture(device), blobs(100), nodes=256).transform}


def information_criteria(device: str) -> dict[str, Any]:
    found = criticise.information_criteria(mixture(device), blobs())
    return {"bic": found.bic, "aic": found.aic, "error": found.error, "icl": found.icl}


def coded(device: str) -> dict[str, Any]:
    fit, x = encoder(device), factors(100)
    units, gap = criticise.active_units(fit, x), criticise.aggregate_gap(fit, x, permutations=19)
    return {
        "variance": units.variance,
        "divergence": units.divergence,
        "error": units.error,
        "first": gap.first,
        "second": gap.second,
        "rate": gap.rate.value,
        "discrepancy": gap.discrepancy.value,
        "p": gap.p_value,
    }


def pairs(device: str) -> tuple[Tensor, Tensor]:
    return tensor(blobs(60, 1), device), tensor(blobs(50, 2), device)


def discrepancy(method: str) -> Case:
    def case(device: str) -> dict[str, Any]:
        permutations = 0 if method == "linear" else 19
        found = criticise.mmd(*pairs(device), method=method, permutations=permutations)
        return {"value": found.value, "error": found.standard_error, "p": found.p_value}

    return case


def distances(device: str) -> dict[str, Any]:
    x, y = pairs(device)
    energy = criticise.energy_distance(x, y, permutations=19)
    covariances = torch.cov(x.mT), torch.cov(y.mT)
    return {
        "energy": energy.value,
        "p": energy.p_value,
        "frechet": criticise.frechet_distance(x, y).value,
        "sliced": criticise.sliced_wasserstein(x, y, 20).value,
        "gaussian": criticise.gaussian_wasserstein(x.mean(0), covariances[0], y.mean(0), covariances[1]),
        "relative": criticise.relative_covariance_error(*covariances),
        "width": criticise.median_bandwidth(x, y),
    }


def stein(device: str) -> dict[str, Any]:
    x = tensor(blobs(60), device)
    found = criticise.kernel_stein(x, criticise.score_of(mixture(device).model_), bootstrap=19)
    return {"value": found.value, "p": found.p_value}


def norms(device: str) -> dict[str, Any]:
    gap = tensor(np.cov(factors().T), device)
    distribution = DiagonalGaussian(tensor(factors(20), device), tensor(np.ones((20, 5)), device))
    value, direction = criticise.operator(gap)
    rows = tensor(factors(3), device)
    return {
        "entries": criticise.entrywise(gap, 3.0),
        "schatten": criticise.schatten(gap, 1.0),
        "operator": value,
        "direction": direction.abs(),
        "wide": criticise.second_gap_norm(rows, distribution, tensor(np.full(20, 0.05), device)),
    }


def penalised(device: str) -> dict[str, Any]:
    loadings = tensor(np.ones((5, 2)), device).requires_grad_()
    model = FactorModel(loadings.new_zeros(5), loadings, loadings.new_ones(5))
    rows, stream = tensor(factors(50), device), generator(0, device)
    value = criticise.moment_penalty(0.1, 64, "monte_carlo")(model, rows, stream)
    first, second = criticise.paper_gaps(model, rows, stream, 64)
    (slope,) = torch.autograd.grad(value, loadings)
    return {"value": value, "slope": slope, "first": first, "second": second}


def forwards(device: str) -> dict[str, Any]:
    model = criticise.as_model(mixture(device))
    stream = generator(0, device)
    frame = standardise_by_model(model, ("a", "b", "c"), generator(1, device), 64)
    statistics = [function.prepare(frame) for function in FUNCTIONS[:3]]
    found = criticise.forward_moments(model, statistics, stream, nodes=64)
    return {f"{name} {i}": getattr(f, name) for i, f in enumerate(found) for name in ("value", "error")}


def predicted(device: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    p, y = tensor(rng.dirichlet([1.0, 1.0], size=200), device), rng.integers(2, size=200)
    scores, lines = criticise.classification_scores(p, y), criticise.reliability(p, y)
    mean, draws = tensor(rng.normal(size=(200, 1)), device), tensor(rng.normal(size=(30, 200, 1)), device)
    seen = tensor(rng.normal(size=(200, 1)), device)
    one = criticise.regression_scores(seen, mean, torch.ones_like(mean))
    two = criticise.regression_scores(seen, draws=draws)
    return {
        "log": scores.log_score,
        "brier": scores.brier,
        "error": lines.calibration_error,
        "crps": one.crps,
        "crps of draws": two.crps,
        "transform": two.transform,
    }


def compared(device: str) -> dict[str, Any]:
    found = select.compare({"two": mixture(device), "diag": mixture(device, covariance_type="diag")}, blobs())
    return {"height": found.log_likelihood, "difference": found.difference, "bic": found.bic}


def spectrum(device: str) -> dict[str, Any]:
    return {"values": select.topic_spectrum(tensor(documents(), device), 3).values}


CASES: dict[str, Case] = {
    "mega": moments(mixture),
    "mega-signs": moments(mixture, null="signs"),
    "mega-trained": trained,
    "mega-decoder": decoded,
    "calibration": calibrated,
    "information_criteria": information_criteria,
    "active_units-aggregate_gap": coded,
    "mmd": discrepancy("quadratic"),
    "mmd-linear": discrepancy("linear"),
    "mmd-features": discrepancy("features"),
    "energy_distance-frechet_distance-sliced_wasserstein-gaussian_wasserstein-relative_covariance_error"
    "-median_bandwidth": distances,
    "kernel_stein-score_of": stein,
    "entrywise-schatten-operator-second_gap_norm": norms,
    "moment_penalty-paper_gaps": penalised,
    "forward_moments-as_model": forwards,
    "classification_scores-reliability-regression_scores": predicted,
    "compare": compared,
    "topic_spectrum": spectrum,
}
