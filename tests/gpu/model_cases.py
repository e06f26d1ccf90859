"""Every model of the contract, and the engines that draw, in a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop import fit
from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian
from boxloop.loop import run
from boxloop.models import EnergyModel, GroupedRows, Perceptron, PoissonResponse, RandomEffects
from boxloop.numeric import generator
from boxloop.sample import MALA, RandomWalk, Target
from contract.models import model_cases
from gpu.engine_cases import summarise_run, tensor
from gpu.places import Case


def groups(device: str) -> tuple[GroupedRows, RandomEffects]:
    one = torch.ones(80, 1).double()
    rows = GroupedRows.from_rows((torch.arange(80) // 4 % 5).double(), one, one, torch.arange(80) // 4).to(
        device
    )
    return rows, RandomEffects(tensor([0.4], device), tensor([[1.0]], device), PoissonResponse(), shared=(0,))


def walks(density: Any, scale: Tensor, shape: Tensor) -> Any:
    return RandomWalk(scale=scale, metric=shape).kernel(Target(density))


def drawn(engine: str) -> Case:
    def case(device: str) -> dict[str, Any]:
        rows, model = groups(device)
        start = fit.MonteCarloState.start(model, rows, 4, generator(0, device))
        start = fit.warm_up(start, rows, walks, iterations=3)
        if engine == "newton_refine":
            found = run(
                fit.newton_refine(rows, walks, precision=0.9, max_draws=400),
                fit.RefinementState(start),
                max_iter=2,
            ).state.errors
        elif engine == "louis_errors":
            found = fit.louis_errors(start, rows, walks, draws=50, discard=5)
        else:
            plan = fit.MonteCarloPlan(draws=lambda k: 8, rate=fit.BurnIn(5), n_chains=4)
            step = (
                fit.monte_carlo_em(rows, walks, plan)
                if engine == "saem"
                else fit.ascent_em(rows, walks, fit.AscentPlan(tol=1.0))
            )
            return summarise_run(run(step, start, max_iter=4))
        assert found is not None
        return {"mean": found.latent_mean, "covariance": found.covariance, **found.errors}

    return case


def energetic(device: str) -> dict[str, Any]:
    base = DiagonalGaussian(tensor([[0.0]], device), tensor([[1.0]], device))
    network = Perceptron(1, (8,))
    model = EnergyModel.from_network(network, network.draw_parameters(generator(0, device)), base)
    batches = fit.Batches(ArraySource(tensor(np.ones((64, 1)), device)), 32)
    plan = fit.EnergyPlan(fit.Cooling(0.02, 10), chains=16)
    kernels = lambda f, scale: MALA(scale).kernel(Target(f))  # noqa: E731
    trainer = fit.energy_trainer(model, batches, kernels, base, plan, buffer=16, random_state=0)
    state = run(trainer, trainer.start(0), max_iter=10).state
    return {"energy": fit.take_averaged_model(model, state).potential(tensor([[1.0], [-1.0]], device))}


def round_of(name: str) -> Case:
    """E step, M step, what follows from a model, of every model of the contract."""

    def case(device: str) -> dict[str, Any]:
        made = model_cases()[name]
        model, rows, weight = made.model.to(device), made.rows.to(device), made.weight.to(device)
        found = model.expect(rows, weight)
        statistics, _ = model.repair_statistics(found.statistics)
        mean, covariance = model.moments()
        drawn, _ = model.sample(6, generator(0, device))
        return {
            "height": found.log_likelihood,
            "complete": model.expected_log_likelihood(statistics),
            "density": model.log_prob(rows),
            "mean": mean,
            "covariance": covariance.dense(),
            "drawn": drawn,
            **{f"next {key}": value for key, value in model.solve(statistics).named_parameters().items()},
        }

    return case


CASES: dict[str, Case] = {
    "monte_carlo_em-warm_up": drawn("saem"),
    "ascent_em": drawn("mcem"),
    "louis_errors": drawn("louis_errors"),
    "newton_refine": drawn("newton_refine"),
    "energy_trainer-Follower": energetic,
    **{f"models-{name}": round_of(name) for name in model_cases()},
}
