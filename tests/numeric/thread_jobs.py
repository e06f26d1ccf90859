"""CPU seconds of ordinary jobs, as a user runs them and on one thread, side by side in one process.

Run as a script in an environment without thread variables: ``python thread_jobs.py NAME ...`` prints one JSON object,
``{name: [as a user runs it, on one thread]}``, the least of three runs each.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import boxloop
from boxloop import criticise, networks, sample as sampling

Job = Callable[[], Any]


@cache
def clusters(n: int = 8000, d: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    return 4 * rng.normal(size=(6, d))[rng.integers(6, size=n)] + rng.normal(size=(n, d))


@cache
def factors(n: int = 5000, d: int = 50) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 5)) @ rng.normal(size=(5, d)) + rng.normal(size=(n, d))


@cache
def counts(n: int = 5000, d: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(d, 0.3), size=3)
    return rng.multinomial(20, topics[rng.integers(3, size=n)]).astype(float)


@cache
def mixture() -> Any:
    return boxloop.GaussianMixture(3, random_state=0, max_iter=5).fit(clusters())


@cache
def views() -> Any:
    return boxloop.RelevantFeatures(5, random_state=0).fit(factors()[:2000, :20], factors()[:2000, 20:40])


def log_density(values: Any) -> torch.Tensor:
    return -0.5 * (values["x"] @ torch.eye(20, dtype=torch.float64) * values["x"]).sum(1)


def observe_weights() -> Any:
    network = torch.nn.Linear(100, 200)
    posterior = boxloop.WeightPosterior(network, "factor", rank=5, random_state=0)
    for _ in range(50):
        with torch.no_grad():
            network.bias += 1.0
        posterior.observe(torch.ones(()))
    return posterior


@cache
def predictor() -> tuple[Any, torch.Tensor]:
    return observe_weights().predictor("regression", draws=10), torch.ones(500, 100)


def predict() -> Any:
    fitted, x = predictor()
    return fitted.predict(x)


@cache
def outputs() -> tuple[torch.nn.Sequential, torch.Tensor, torch.Tensor]:
    """A network that was not trained, inputs and outputs."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    x = torch.tensor(factors(2000, 20)).float()
    return network, x, x[:, :1].sin()


def audit() -> Any:
    network, x, y = outputs()
    posterior = boxloop.WeightPosterior(network, "factor", rank=5, random_state=0)
    for _ in range(20):
        posterior.observe(torch.ones(()))
    return networks.audit(posterior, x[:1500], y[:1500], x[1500:], y[1500:], kind="regression", chains=0)


@cache
def weight_distribution() -> Any:
    network, x, y = outputs()
    return networks.last_layer_laplace(network, x, y, kind="regression").distribution


def draw_weights() -> Any:
    return weight_distribution().draw(2000, torch.Generator().manual_seed(0))


@cache
def covariances() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A mean and two covariances."""
    covariance = np.cov(factors().T)
    return np.zeros(len(covariance)), covariance, covariance + np.eye(len(covariance))


def gaussian_wasserstein() -> float:
    mean, one, other = covariances()
    return criticise.gaussian_wasserstein(mean, one, mean, other)


JOBS: dict[str, Job] = {
    "GaussianMixture": lambda: boxloop.GaussianMixture(6, random_state=0, max_iter=20).fit(clusters()),
    "GaussianMixture.predict": lambda: mixture().predict_proba(clusters(40_000)),
    "BayesianGaussianMixture": lambda: boxloop.BayesianGaussianMixture(6, random_state=0, max_iter=20).fit(
        clusters()
    ),
    "FactorAnalysis": lambda: boxloop.FactorAnalysis(5).fit(factors()),
    "ProbabilisticPCA": lambda: boxloop.ProbabilisticPCA(5).fit(factors()),
    "BayesianFactorAnalysis": lambda: boxloop.BayesianFactorAnalysis(5, max_iter=50).fit(factors(1000, 20)),
    "BernoulliMixture": lambda: boxloop.BernoulliMixture(3, random_state=0).fit((counts() > 0).astype(float)),
    "PoissonMixture": lambda: boxloop.PoissonMixture(3, random_state=0).fit(counts()),
    "MultinomialMixture": lambda: boxloop.MultinomialMixture(3, random_state=0).fit(counts()),
    "BayesianMultinomialMixture": lambda: boxloop.BayesianMultinomialMixture(3, random_state=0).fit(counts()),
    "BayesianLinearRegression": lambda: boxloop.BayesianLinearRegression().fit(
        factors()[:, 1:], factors()[:, 0]
    ),
    "RelevantFeatures": lambda: boxloop.RelevantFeatures(5).fit(factors()[:, :25], factors()[:, 25:]),
    "RelevantFeatures.expect": lambda: views().expect(lambda y: y[:, 0] ** 2, given=factors()[:500, :20]),
    "RelevantFeatures.significance": lambda: views().significance(),
    "RelevantClassifier": lambda: boxloop.RelevantClassifier(features="linear").fit(
        clusters(), clusters()[:, 0] > 0
    ),
    "VariationalAutoencoder": lambda: boxloop.VariationalAutoencoder(2, max_iter=3, random_state=0).fit(
        clusters(2000)
    ),
    "NetworkRegressor": lambda: boxloop.NetworkRegressor(epochs=3, random_state=0).fit(
        clusters(1000)[:, 1:], clusters(1000)[:, 0]
    ),
    "WeightPosterior": observe_weights,
    "WeightPosterior.predict": predict,
    "last_layer_laplace": lambda: networks.last_layer_laplace(*outputs(), kind="regression"),
    "audit": audit,
    "WeightDistribution.draw": draw_weights,
    "mega": lambda: boxloop.mega(
        mixture(),
        clusters()[:1000],
        train=clusters(),
        functions=[criticise.Second()],
        draws=19,
        random_state=0,
    ),
    "calibration": lambda: criticise.calibration(mixture(), clusters()[:1000]),
    "energy_distance": lambda: criticise.energy_distance(
        clusters()[:1000], clusters()[1000:2000], permutations=19
    ),
    "mmd": lambda: criticise.mmd(clusters()[:1000], clusters()[1000:2000]),
    "gaussian_wasserstein": gaussian_wasserstein,
    "compare": lambda: boxloop.compare({"a": mixture(), "b": mixture()}, clusters()),
    "ModelSearchCV": lambda: boxloop.ModelSearchCV(
        boxloop.GaussianMixture(max_iter=5, random_state=0), {"n_components": [1, 2]}, cv=2
    ).fit(clusters()),
    "OutlierDetector": lambda: boxloop.OutlierDetector(boxloop.GaussianMixture(2, max_iter=5)).fit(
        clusters()
    ),
    "topic_spectrum": lambda: boxloop.topic_spectrum(counts(), max_topics=4),
    "z_estimate": lambda: boxloop.z_estimate(
        lambda theta, rows: rows - theta, torch.tensor(factors()), [0.0] * 50
    ),
    "sample": lambda: sampling.sample_density(
        log_density, {"x": torch.zeros(20).double()}, chains=4, draws=50, warmup=50, random_state=0
    ),
    "sample_mixture": lambda: sampling.sample_mixture(clusters(1000), 2, draws=20, warmup=10, random_state=0),
}


def cpu_seconds(job: Job) -> float:
    time.sleep(0.1)  # threads of whatever ran before stop waiting for more work
    began = time.process_time()
    job()
    return time.process_time() - began


def measure(name: str) -> tuple[float, float]:
    job = JOBS[name]
    job()
    alone, free = [], []
    for _ in range(3):
        free.append(cpu_seconds(job))
        torch_threads = torch.get_num_threads()
        with threadpool_limits(1):
            torch.set_num_threads(1)
            alone.append(cpu_seconds(job))
        torch.set_num_threads(torch_threads)
    return min(free), min(alone)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({name: measure(name) for name in sys.argv[1:] or JOBS}))
