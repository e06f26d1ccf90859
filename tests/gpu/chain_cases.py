"""Every kernel and sampler, in a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from boxloop import sample as room
from boxloop.chain import advance
from boxloop.distributions import DiagonalGaussian, Poisson
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator
from contract.distributions import EXPORTED, distribution_case
from estimators.cases import blobs, factors
from gpu.places import Case


def tensor(rows: Any, device: str) -> Tensor:
    return torch.as_tensor(np.asarray(rows)).double().to(device)


def density(x: Tensor) -> Tensor:
    return -0.5 * (x * torch.arange(1.0, 4.0, dtype=x.dtype, device=x.device)).square().sum(1)


def wide(device: str) -> DiagonalGaussian:
    return DiagonalGaussian(tensor(np.zeros((1, 3)), device), tensor(np.full((1, 3), 3.0), device))


def moved(make: Any) -> Case:
    """Thirty moves of forty chains."""

    def case(device: str) -> dict[str, Any]:
        kernel = make(device)
        path = advance(kernel, kernel.init(tensor(np.ones((40, 3)), device)), 30, generator(0, device))
        return {"path": path.position, "density": path.log_density}

    return case


def reflected(device: str) -> Any:
    return room.MetropolisHastings(
        lambda x, stream: -x + 0.0 * torch.rand(len(x), 1, generator=stream, dtype=x.dtype, device=x.device),
        lambda x, y: density(y) - density(x),
    ).kernel()


def drawn(kernel: Any, **more: Any) -> Case:
    def case(device: str) -> dict[str, Any]:
        options = {"draws": 20, "warmup": 40, "random_state": 0, "device": device, "mode": "eager", **more}
        found = room.sample_density(density, torch.zeros(3).double(), kernel, chains=8, **options)
        diagnosis = found.diagnosis
        return {
            "draws": found["x"],
            "density": found.log_density,
            "mcse": diagnosis.mcse,
            "ess": diagnosis.ess_bulk,
        }

    return case


def constrained(device: str) -> dict[str, Any]:
    rows = tensor([2.1, 1.2, 3.3, 2.7, 1.9], device)

    def posterior(values: dict[str, Tensor]) -> Tensor:
        distribution = torch.distributions.Normal(values["mean"][:, None], values["scale"][:, None])
        return distribution.log_prob(rows).sum(1) - values["scale"]

    start = {"mean": torch.tensor(0.0).double(), "scale": torch.tensor(1.0).double()}
    found = room.sample_density(
        posterior,
        start,
        support={"scale": constraints.positive},
        chains=8,
        draws=20,
        warmup=40,
        random_state=0,
        device=device,
        mode="eager",
    )
    return {"mean": found["mean"], "scale": found["scale"], "summary": found.summary()["mean"].to_numpy()}


def blocks(device: str) -> dict[str, Any]:
    def one(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
        other = values["b"]
        fresh = torch.randn(len(other), generator=stream, dtype=other.dtype, device=other.device)
        return 0.5 * other + 0.75**0.5 * fresh

    start = {"a": tensor(np.zeros(8), device), "b": tensor(np.zeros(8), device)}
    kernel = room.Gibbs({"a": one, "b": room.RandomWalk(scale=0.5)})
    found = room.sample_density(
        lambda values: -(values["a"] ** 2 - values["a"] * values["b"] + values["b"] ** 2) / 1.5,
        start,
        kernel,
        draws=20,
        warmup=0,
        random_state=0,
        mode="eager",
    )
    return {"a": found["a"], "b": found["b"]}


def annealed(device: str) -> dict[str, Any]:
    def kernels(f: Any, scale: Any) -> Any:
        return room.RandomWalk(scale).kernel(room.Target(f))

    ladder = room.choose_temperatures(
        density, wide(device), kernels, chains=32, random_state=0, target_acceptance=0.44
    )
    found = room.annealed_importance(density, wide(device), kernels, ladder, chains=64, random_state=1)
    return {"level": found.log_partition, "error": found.error, "scales": ladder.scales}


def grouped(device: str) -> dict[str, Any]:
    found = {}
    for kind in ("full", "diag"):
        posterior = room.sample_mixture(
            blobs(60), 2, covariance=kind, chains=2, draws=6, warmup=4, random_state=0, device=device
        )
        found[f"weights {kind}"] = posterior.relabelled(posterior.weights)
        found[f"likeness {kind}"] = posterior.similarity(posterior.rows[:5])
        found[f"density {kind}"] = posterior.predictive().log_prob(posterior.rows)
        found[f"occupied {kind}"] = posterior.occupied()
    return found


def factored(device: str) -> dict[str, Any]:
    posterior = room.sample_factors(
        factors(60), 1, chains=2, draws=6, warmup=4, random_state=0, device=device
    )
    return {
        "communalities": posterior.communalities,
        "density": posterior.predictive().log_prob(tensor(factors(5), device)),
    }


def latent(device: str) -> dict[str, Any]:
    model = FactorModel(
        tensor(np.zeros(5), device), tensor(np.ones((5, 1)), device), tensor(np.ones(5), device)
    )
    rows = tensor(factors(5), device)
    target = room.latent_target(model, rows)
    options = {"draws": 10, "warmup": 20, "random_state": 0, "mode": "eager"}
    found = room.sample_latent(model, rows, chains=2, **options)
    return {"z": found["z"], "density": target.log_density(tensor(np.ones((5, 1)), device))}


def parameters(device: str) -> dict[str, Any]:
    model = Mixture(tensor([0.0], device), Poisson(tensor([[2.0]], device)))
    rows = tensor([[1.0], [4.0], [2.0]], device)

    def flat(free: Any) -> Tensor:
        return free["log_rate"].new_zeros(len(free["log_rate"]))

    value, slope = room.parameter_target(model, rows, flat).value_and_gradient(tensor([[0.0], [1.0]], device))
    options = {"draws": 10, "warmup": 20, "random_state": 0, "mode": "eager"}
    found = room.sample_parameters(model, rows, flat, chains=2, **options)
    return {"value": value, "slope": slope, "rate": found["log_rate"]}


def checked(device: str) -> dict[str, Any]:
    """The checks draw by the user's functions, from a stream of the place."""

    def prior(n: int, stream: torch.Generator) -> Tensor:
        return torch.randn(n, 1, generator=stream, dtype=torch.float64, device=device)

    def simulate(theta: Tensor, stream: torch.Generator) -> Tensor:
        return theta + torch.randn(len(theta), 2, generator=stream, dtype=torch.float64, device=device)

    def posterior(data: Tensor) -> Any:
        return room.RandomWalk(scale=1.0).kernel(
            room.Target(lambda t: -0.5 * (t**2).sum(1) - 0.5 * ((data - t) ** 2).sum(1))
        )

    joint = room.check_joint(prior, simulate, posterior, chains=100, iterations=2, device=device)
    ranks = room.check_ranks(prior, simulate, posterior, simulations=40, draws=19, bins=4, device=device)
    kernel = room.MALA(scale=1.0).kernel(room.Target(lambda x: -0.5 * (x * x).sum(1)))
    moved = room.check_reversible(kernel, prior, chains=100, device=device)
    walk = room.RandomWalk(scale=1.0).kernel(room.Target(lambda x: -x[:, 0]))
    states, swap = tensor([[0.0], [1.0]], device), tensor([[1.0], [-1.0]], device)
    matrix = room.transition(walk, states, [(swap, 0.5), (torch.zeros_like(swap), 0.5)])
    return {"z": joint.z, "ranks": ranks.ranks, "moved": moved.invariance, "matrix": matrix}


def distribution(kind: type) -> Case:
    def case(device: str) -> dict[str, Any]:
        made = distribution_case(kind)
        here = made.distribution.to(device)
        return {
            "mean": here.mean,
            "variance": here.covariance().diagonal(),
            "density": here.log_prob(made.rows.to(device)),
            "drawn": here.draw(3, generator(0, device)),
        }

    return case


CASES: dict[str, Case] = {
    "RandomWalk": moved(lambda device: room.RandomWalk(scale=0.8).kernel(room.Target(density))),
    "RandomWalk-barker": moved(
        lambda device: room.RandomWalk(0.8, rule="barker").kernel(room.Target(density))
    ),
    "MALA": moved(lambda device: room.MALA(scale=0.8).kernel(room.Target(density))),
    "HMC": moved(lambda device: room.HMC(scale=0.3, trajectory=1.0).kernel(room.Target(density))),
    "Independent": moved(lambda device: room.Independent(wide(device)).kernel(room.Target(density))),
    "MetropolisHastings": moved(reflected),
    "PseudoMarginal": moved(
        lambda device: room.PseudoMarginal(
            lambda x, v: density(x) + v[:, 0] - 0.5, 1, correlation=0.3, scale=0.8
        ).kernel()
    ),
    "sample_density-Target": drawn(None),
    "sample_density-mala": drawn("mala"),
    "sample_density-walk": drawn("random_walk"),
    "sample_density-dense": drawn(room.MALA(dense=True)),
    "sample_density-superchains": drawn(None, superchains=2),
    "sample_density-support": constrained,
    "Gibbs": blocks,
    "annealed_importance-choose_temperatures": annealed,
    "sample_mixture": grouped,
    "sample_factors": factored,
    "sample_latent-latent_target": latent,
    "sample_parameters-parameter_target": parameters,
    "check_joint-check_ranks-check_reversible-transition": checked,
    **{
        f"distributions-{kind.__name__}": distribution(kind)
        for kind in sorted(EXPORTED, key=lambda kind: kind.__name__)
    },
}
