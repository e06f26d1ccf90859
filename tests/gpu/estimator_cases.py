"""Every estimator, fitted in a place and asked for its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

import boxloop
from estimators.cases import bits, blobs, counts, documents, factors
from gpu.places import Case

GAUSSIAN = ("full", "tied", "diag", "spherical")
SHORT = {"max_iter": 3, "patience": None, "random_state": 0, "dtype": "float64"}


def fitted(kind: type, rows: np.ndarray, params: dict[str, Any], **more: Any) -> Case:
    """An estimator of latent variables: parameters, scores, codes, iterations, and what is drawn."""

    def case(device: str) -> dict[str, Any]:
        fit = kind(**{"random_state": 0, **params, **more}, device=device).fit(rows)
        drawn, latent = fit.sample(5)
        return {
            **fit.model_.named_parameters(),
            "scores": fit.score_samples(rows),
            "codes": fit.transform(rows),
            "iterations": fit.n_iter_,
            "trace": fit.lower_bounds_,
            "drawn": drawn,
            "latent": latent,
        }

    return case


def with_errors(kind: type, rows: np.ndarray, params: dict[str, Any]) -> Case:
    """Standard errors, and a fit that goes on from a stream of rows."""

    def case(device: str) -> dict[str, Any]:
        fit = kind(**params, random_state=0, device=device).fit(rows)
        found = dict(fit.standard_errors(rows))
        fit.partial_fit(rows[:100])
        return {**found, "then": fit.score_samples(rows)}

    return case


def with_missing(rows: np.ndarray, share: float = 0.05) -> np.ndarray:
    """The rows with some values missing."""
    return np.where(np.random.default_rng(1).random(rows.shape) < share, np.nan, rows)


TWO = {"n_components": 2}
ONE = {"n_components": 1}
ENGINES = ("online", "gradient")
MIXED: dict[str, Case] = {
    **{
        f"GaussianMixture-{k}": fitted(boxloop.GaussianMixture, blobs(), {**TWO, "covariance_type": k})
        for k in GAUSSIAN
    },
    **{
        f"GaussianMixture-{k}-missing": fitted(
            boxloop.GaussianMixture, with_missing(blobs()), {**TWO, "covariance_type": k}
        )
        for k in GAUSSIAN
    },
    **{
        f"GaussianMixture-{engine}": fitted(
            boxloop.GaussianMixture, blobs(), TWO, method=engine, max_iter=3, batch_size=100
        )
        for engine in ENGINES
    },
    "GaussianMixture-plain": fitted(boxloop.GaussianMixture, blobs(), TWO, accelerate=False, max_iter=200),
    "GaussianMixture-errors": with_errors(boxloop.GaussianMixture, blobs(), TWO),
    **{
        f"BayesianGaussianMixture-{k}": fitted(
            boxloop.BayesianGaussianMixture, blobs(), {**TWO, "covariance_type": k}
        )
        for k in GAUSSIAN
    },
    "PoissonMixture": fitted(boxloop.PoissonMixture, counts(), TWO),
    "PoissonMixture-missing": fitted(boxloop.PoissonMixture, with_missing(counts()), TWO),
    "PoissonMixture-errors": with_errors(boxloop.PoissonMixture, counts(), TWO),
    "BernoulliMixture": fitted(boxloop.BernoulliMixture, bits(), TWO),
    "BernoulliMixture-missing": fitted(boxloop.BernoulliMixture, with_missing(bits()), TWO),
    "MultinomialMixture": fitted(boxloop.MultinomialMixture, documents(), TWO),
    "MultinomialMixture-missing": fitted(boxloop.MultinomialMixture, with_missing(documents()), TWO),
    "MultinomialMixture-spectral": fitted(boxloop.MultinomialMixture, documents(), TWO, method="spectral"),
    "MultinomialMixture-errors": with_errors(boxloop.MultinomialMixture, documents(), TWO),
    "BayesianMultinomialMixture": fitted(boxloop.BayesianMultinomialMixture, documents(), TWO),
    "FactorAnalysis": fitted(boxloop.FactorAnalysis, factors(), ONE),
    "FactorAnalysis-missing": fitted(boxloop.FactorAnalysis, with_missing(factors()), ONE),
    "FactorAnalysis-errors": with_errors(boxloop.FactorAnalysis, factors(), ONE),
    **{
        f"FactorAnalysis-{engine}": fitted(
            boxloop.FactorAnalysis, factors(), ONE, method=engine, max_iter=3, batch_size=100
        )
        for engine in ENGINES
    },
    "ProbabilisticPCA": fitted(boxloop.ProbabilisticPCA, factors(), ONE),
    "ProbabilisticPCA-missing": fitted(boxloop.ProbabilisticPCA, with_missing(factors()), ONE),
    "BayesianFactorAnalysis": fitted(boxloop.BayesianFactorAnalysis, factors(), ONE),
}
SPARSE: dict[str, Case] = {
    "MultinomialMixture-sparse": fitted(boxloop.MultinomialMixture, csr_array(documents()), TWO),
    "BayesianMultinomialMixture-sparse": fitted(
        boxloop.BayesianMultinomialMixture, csr_array(documents()), TWO
    ),
}
"""Apart, as a pretended device holds no sparse rows."""


def regression(device: str) -> dict[str, Any]:
    x, y = views()
    fit = boxloop.BayesianLinearRegression(device=device).fit(x, y)
    mean, deviation = fit.predict(x, return_std=True)
    return {"mean": mean, "deviation": deviation, "covariance": fit.covariance_}


def effects(kind: type, **more: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        x, groups = rng.normal(size=(240, 2)), np.repeat(np.arange(30), 8)
        level = 0.5 * x[:, 0] + rng.normal(size=30)[groups]
        y = rng.poisson(np.exp(level)) if kind is boxloop.PoissonRandomEffects else rng.logistic(level) > 0.0
        fit = kind(max_iter=12, chains=4, precision=0.9, random_state=0, device=device, **more)
        fit.fit(x, y, groups)
        given = {"coef": fit.coef_, "covariance": fit.covariance_, "effects": fit.effects_}
        errors = {f"error of {name}": value for name, value in fit.standard_errors_.items()}
        return {**given, **errors, "height": fit.log_likelihood_, "then": fit.predict(x, groups)}

    return case


def views(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, np.column_stack([np.sin(x[:, 0]), x[:, 1] ** 2]) + 0.5 * rng.normal(size=(n, 2))


def inferred(**plan: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        x, y = views()
        fit = boxloop.RelevantFeatures(2, device=device, **{**SHORT, **plan}).fit(x, y)
        expectation, ratio = fit.expect(given=x[:20]), fit.density_ratio(x[:5], y[:5])
        return {
            "correlation": fit.correlation_,
            "codes": np.abs(fit.transform(x)),
            "rows": fit.predict(x),
            "mean": expectation.mean,
            "error": expectation.standard_error,
            "deviation": expectation.deviation,
            "quantile": expectation.quantile(0.5).value,
            "tail": expectation.tail(1.0).value,
            "ambiguity": expectation.ambiguity().deviation,
            "covariance": expectation.covariance(1).noise,
            "ratio": ratio.value,
            "ratio error": ratio.standard_error,
            "significance": fit.significance(permutations=49).correlation,
            "negative": fit.diagnose(n_given=20).negative_mass,
        }

    return case


def classified(**plan: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        x, y = views()
        label = (y[:, 0] > 0).astype(int) + (y[:, 1] > 1)
        fit = boxloop.RelevantClassifier(device=device, **{**SHORT, **plan}).fit(x, label)
        return {"probability": fit.predict_proba(x), "codes": np.abs(fit.transform(x))}

    return case


def generated(device: str) -> dict[str, Any]:
    x, _ = views()
    fit = boxloop.RelevantGenerator(2, hidden=(16,), device=device, **SHORT).fit(x)
    return {"rows": fit.reconstruct(x), "codes": np.abs(fit.transform(x)), "drawn": fit.sample(5)[0]}


def encoded(**plan: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        x = factors(200)
        fit = boxloop.VariationalAutoencoder(
            2, hidden=(16,), score_draws=8, penalty_nodes=32, device=device, **{**SHORT, **plan}
        ).fit(x)
        return {
            "elbo": fit.history_["elbo"],
            "codes": fit.transform(x),
            "rows": fit.reconstruct(x),
            "scores": fit.score_samples(x),
            "drawn": fit.sample(5)[0],
        }

    return case


def energetic(device: str) -> dict[str, Any]:
    x = blobs(200)
    fit = boxloop.EnergyBasedModel(
        hidden=(8,),
        max_iter=10,
        chains=32,
        buffer=64,
        steps=2,
        partition_chains=64,
        random_state=0,
        device=device,
    ).fit(x)
    return {"energy": fit.energy_of(x), "scores": fit.score_samples(x), "drawn": fit.sample(5)}


def networked(kind: type, **plan: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        x, y = views(200)
        net = kind(hidden=(8,), epochs=8, collect=4, n_draws=6, random_state=0, device=device, **plan)
        if kind is boxloop.NetworkRegressor:
            mean, deviation = net.fit(x, y).predict(x, return_std=True)
            return {"mean": mean, "deviation": deviation, "noise": net.noise_}
        return {"probability": net.fit(x, y[:, 0] > 0.0).predict_proba(x)}

    return case


def outliers(device: str) -> dict[str, Any]:
    x = blobs()
    found = boxloop.OutlierDetector(boxloop.GaussianMixture(2, random_state=0, device=device)).fit(x)
    return {"p": found.p_values(x), "score": found.score_samples(x), "called": found.predict(x)}


def selected(device: str) -> dict[str, Any]:
    x = blobs(200)
    model = boxloop.GaussianMixture(random_state=0, device=device)
    found = boxloop.ModelSearchCV(model, {"n_components": [1, 2]}, cv=2).fit(x)
    return {"scores": found.score_samples(x), "best": found.best_params_["n_components"]}


OTHERS: dict[str, Case] = {
    "BayesianLinearRegression": regression,
    "LogisticRandomEffects": effects(boxloop.LogisticRandomEffects),
    "LogisticRandomEffects-mcem": effects(boxloop.LogisticRandomEffects, method="mcem", tol=1.0),
    "PoissonRandomEffects": effects(boxloop.PoissonRandomEffects),
    "RelevantFeatures-linear": inferred(x_features="linear", y_features="linear"),
    "RelevantFeatures-fourier": inferred(x_features="fourier", y_features="fourier", n_fourier=20),
    "RelevantFeatures-network": inferred(hidden=(16,)),
    "RelevantClassifier": classified(hidden=(16,)),
    "RelevantClassifier-linear": classified(features="linear"),
    "RelevantGenerator": generated,
    "VariationalAutoencoder": encoded(),
    "VariationalAutoencoder-penalty": encoded(prior="mixture", alpha=0.1),
    "VariationalAutoencoder-rank": encoded(variance="low_rank"),
    "EnergyBasedModel": energetic,
    **{
        f"NetworkRegressor-{method}": networked(boxloop.NetworkRegressor, method=method, rank=3)
        for method in ("swa", "swag", "factor")
    },
    "NetworkClassifier": networked(boxloop.NetworkClassifier, rank=3),
    "OutlierDetector": outliers,
    "ModelSearchCV": selected,
}
CASES = {**MIXED, **OTHERS}
