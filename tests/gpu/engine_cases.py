"""Every engine on rows of a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import boxloop
from boxloop import fit
from boxloop.average import Power
from boxloop.data import ArraySource, draw_topics
from boxloop.distributions import FullGaussian, Node
from boxloop.fit import Epochs
from boxloop.loop import run
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator
from estimators.cases import blobs, factors
from gpu.places import Case


def tensor(rows: Any, device: str) -> Tensor:
    return torch.as_tensor(np.asarray(rows)).double().to(device)


def mixture(device: str) -> Mixture[Any]:
    eye = torch.eye(3, dtype=torch.float64, device=device).expand(2, 3, 3).contiguous()
    distribution = FullGaussian(tensor([[0.0, 0.0, 0.0], [3.0, -1.0, 2.0]], device), eye, 1e-6)
    return Mixture(tensor([0.5, 0.5], device).log(), distribution)


def source(device: str) -> ArraySource:
    return ArraySource(tensor(blobs(), device), tensor(np.linspace(0.5, 1.5, 300), device))


def summarise_run(outcome: Any) -> dict[str, Any]:
    return {"trace": outcome.trace, "iterations": outcome.n_iter, **outcome.state.best.named_parameters()}


def climbed(engine: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        start = fit.EMState(mixture(device))
        return summarise_run(run(engine(source(device)), start, max_iter=30, tol=1e-7, monotone=True))

    return case


def streamed(device: str) -> dict[str, Any]:
    step = fit.online_em(fit.Batches(source(device), 50), fit.OnlinePlan())
    return summarise_run(run(step, fit.OnlineState(mixture(device)), max_iter=10))


def ascended(device: str) -> dict[str, Any]:
    step = fit.gradient_ascent(fit.Batches(source(device), 50), Power(0.5, scale=0.1))
    return summarise_run(run(step, fit.AscentState.start(mixture(device)), max_iter=10))


def raced(device: str) -> dict[str, Any]:
    starts = [fit.EMState(mixture(device)), fit.EMState(mixture(device))]
    found = fit.race(fit.accelerated_em(source(device)), starts, iterations=3)
    return {"trace": found[0].trace}


def started(device: str) -> dict[str, Any]:
    first = ArraySource(*next(source(device).chunks(100)))
    sample = fit.Sample.draw(first, 100, generator(1, device))
    names = [name for name in fit.STARTS if name != "spectral"]
    shares = fit.draw_responsibilities(sample, names, 2, generator(1, device))
    made = fit.start_mixtures(mixture(device).family, sample, shares)
    return {"shares": shares, **made.named_parameters()}


def erring(device: str) -> dict[str, Any]:
    return dict(fit.standard_errors(mixture(device), source(device)).errors)


def line(theta: Tensor, rows: Tensor) -> Tensor:
    x, y = rows[:, 0], rows[:, 1]
    return torch.stack([torch.ones_like(x), x], 1) * (y - theta[0] - theta[1] * x)[:, None]


def estimated(found: fit.Estimate) -> dict[str, Any]:
    low, high = found.interval()
    table = found.table()
    return {
        "vector": found.vector,
        "covariance": found.covariance,
        "errors": found.standard_errors,
        "low": low,
        "high": high,
        "table": table.to_numpy(dtype=float),
    }


def equations(device: str) -> dict[str, Any]:
    rows, groups = tensor(blobs(), device), np.repeat(np.arange(60), 5)
    clustered = boxloop.z_estimate(line, rows, [0.0, 0.0], groups=groups)
    bent = boxloop.z_estimate(fit.huber(1.5), rows, [0.0, 0.0, 0.0])
    mean = boxloop.z_estimate(fit.mean_equation, rows, [0.0, 0.0, 0.0])
    width = fit.quantile_step(0.5, 300, 3.0)
    middle = boxloop.z_estimate(fit.quantile(0.5), rows[:, :1], [0.0], smooth=width)
    straight = boxloop.z_estimate(fit.linear_regression(), rows, [0.0, 0.0, 0.0])
    own = boxloop.z_estimate(fit.residual_equation(torch.tanh), rows, [0.0, 0.0, 0.0])
    every = {
        "clustered": clustered,
        "bent": bent,
        "mean": mean,
        "middle": middle,
        "line": straight,
        "own": own,
    }
    return {
        f"{kind} {name}": value for kind, found in every.items() for name, value in estimated(found).items()
    }


def optimised(device: str) -> dict[str, Any]:
    rows = tensor(np.abs(blobs()), device)[:, :1]
    return estimated(
        boxloop.m_estimate(
            lambda theta, x: theta[0].log() - theta[0] * x[:, 0], rows, [1.0], likelihood=True, names=["rate"]
        )
    )


def matched(device: str) -> dict[str, Any]:
    def powers(x: Tensor) -> Tensor:
        return torch.cat([x, x.square(), x**3], 1)

    def expected(theta: Tensor) -> Tensor:
        mean, spread = theta
        return torch.stack([mean, mean**2 + spread**2, mean**3 + 3 * mean * spread**2])

    rows = tensor(np.random.default_rng(0).normal(1.0, 2.0, size=(400, 1)), device)
    found = boxloop.match_moments(powers, expected, rows, [0.5, 1.0])
    assert found.j_test is not None
    return {**estimated(found), "j": found.j_test.statistic}


def simulated(device: str) -> dict[str, Any]:
    def sampler(theta: Tensor, stream: torch.Generator, n: int) -> Tensor:
        return (theta[0] + torch.randn(n, 1, generator=stream, dtype=theta.dtype)).to(device)

    rows = tensor(blobs(), device)[:, :1]
    return estimated(boxloop.match_moments(lambda x: x, None, rows, [0.0], sampler=sampler, draws=500))


def words(device: str) -> dict[str, Any]:
    rows = draw_topics(2, 12, generator(0)).source(2000, 8, generator(1)).rows.to_dense().double().to(device)
    found = fit.spectral(ArraySource(rows), 2, generator(2, device))
    error = fit.spectral_errors(found)
    again, mean, spread = fit.bootstrap(ArraySource(rows), 2, generator(3, device), draws=3)
    order = fit.match_topics(found.probabilities, again.probabilities)
    return {
        "weights": found.weights,
        "probabilities": found.probabilities,
        "spectrum": found.spectrum,
        "errors": error.probabilities,
        "covariance": fit.spectral_covariance(found),
        "mean": mean,
        "spread": spread,
        "order": order,
    }


@dataclass(frozen=True)
class Place:
    """A point that is trained."""

    at: Tensor

    def trainable(self) -> tuple[Tensor, ...]:
        return (self.at,)

    def with_trainable(self, values: Any) -> Place:
        return Place(*values)


def distance(model: Place, rows: Tensor, weight: Tensor, stream: torch.Generator) -> Any:
    value = (rows - model.at).square().sum(1) @ weight / len(rows)
    return value, {"distance": value}


def trained(device: str) -> dict[str, Any]:
    start = Place(tensor(np.zeros(3), device))
    trainer = fit.Trainer(
        start, Epochs(source(device), 50, seed=0), distance, fit.TrainPlan(fit.Constant(0.1))
    )
    outcome = run(trainer, trainer.start(seed=0), max_iter=trainer.iterations(3))
    return {"at": outcome.state.fitted(start).at, "trace": outcome.trace}


def factored(device: str) -> dict[str, Any]:
    x = tensor([1.0, 2.0, 2.5, 4.0, 5.5], device)

    def log_joint(t: Any) -> Tensor:
        mu, tau = t["mu"], t["tau"]
        apart = (x**2 - 2 * x * mu.value.to(x) + mu.square.to(x)).sum().cpu()
        return 2.5 * (tau.log - 1.8379) - 0.5 * tau.value * apart - 0.005 * mu.square - tau.value

    found = boxloop.cavi({"mu": Node.normal(), "tau": Node.gamma()}, log_joint, random_state=0)
    return {"mean": found["mu"].mean, "sd": found["mu"].sd, "elbo": found.elbo}


def linear(device: str) -> dict[str, Any]:
    start = FactorModel(
        tensor(np.zeros(5), device), tensor(np.full((5, 1), 0.5), device), tensor(np.ones(5), device)
    )
    rows = ArraySource(tensor(factors(), device))
    return summarise_run(run(fit.generalised_em(rows), fit.EMState(start), max_iter=5))


CASES: dict[str, Case] = {
    "em": climbed(fit.em),
    "accelerated_em": climbed(fit.accelerated_em),
    "online_em-Batches": streamed,
    "gradient_ascent": ascended,
    "generalised_em": linear,
    "race": raced,
    "STARTS": started,
    "standard_errors": erring,
    "z_estimate-huber-mean_equation-quantile-quantile_step-linear_regression-residual_equation": equations,
    "m_estimate": optimised,
    "match_moments": matched,
    "match_moments-sampler": simulated,
    "spectral-spectral_errors-spectral_covariance-bootstrap-match_topics": words,
    "Trainer-Epochs": trained,
    "cavi": factored,
}
