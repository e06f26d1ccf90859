"""Autoencoders with and without the moment penalty, and what rows that they have not seen say about each."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from boxloop.criticise import MomentPenalty, frechet_distance, mmd
from boxloop.estimators import FitWarning, VariationalAutoencoder
from boxloop.numeric import generator, normal
from papers.vae_data import Problem, Rows

NODES = 5000
"""m of document 000."""


@dataclass(frozen=True)
class Setting:
    """How a fit is made.

    Args:
        codes: columns of z.
        hidden: width of the one hidden layer of each network; images have two layers of convolutions.
        passes: over the rows.
        batches: mini-batches in a pass.
        nodes: m, behind the penalty.
        rate: of AdamW.
        held: share of the rows for validation.
        decay: whether the rate falls to zero.
        late: share of the passes before the penalty begins; 0 as in the document.
    """

    codes: int
    hidden: int
    passes: int
    batches: int
    nodes: int
    rate: float = 1e-3
    held: float = 0.0
    decay: bool = False
    late: float = 0.0

    @property
    def channels(self) -> tuple[int, int]:
        """Of the convolutions."""
        return max(self.hidden // 8, 4), max(self.hidden // 4, 8)


@dataclass(frozen=True)
class Task:
    """One fit: of which rows, at which weight, from which seed, how, and the table that it belongs to."""

    problem: Problem
    alpha: Any
    seed: int
    setting: Setting
    table: str

    @property
    def label(self) -> str:
        """The weight as text."""
        return self.alpha if isinstance(self.alpha, str) else f"{self.alpha:g}"


FLOOR = 0.01
"""Smallest variance, relative to that of all pixels: some pixels are blank in all images but a few."""


def fit(problem: Problem, alpha: Any, seed: int, setting: Setting) -> VariationalAutoencoder:
    """Train on the rows of a problem; images on a GPU where there is one."""
    network = VariationalAutoencoder(
        setting.codes,
        hidden=(setting.hidden,) if problem.side is None else setting.channels,
        noise_floor=FLOOR if problem.side is not None else 1e-4,
        alpha=alpha,
        alpha_from=setting.late,
        penalty_nodes=setting.nodes,
        learning_rate=setting.rate,
        schedule="cosine" if setting.decay else "constant",
        batch_size=-(-len(problem.train) // setting.batches),
        max_iter=setting.passes,
        patience=None,
        validation_fraction=setting.held,
        random_state=seed,
        device="cpu" if problem.side is None else "auto",  # few columns are quicker where they are
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # pixels at the edge are constant
        warnings.simplefilter("ignore", ConvergenceWarning)  # as many passes as the document's
        return network.fit(problem.shaped(problem.train))


def tried(task: Task, seed: int, draws: int) -> dict[str, float]:
    """Fit and judge; the same draws judge every fit."""
    network = fit(task.problem, task.alpha, task.seed, task.setting)
    return {**judged(network, task.problem, seed, draws), "alpha": network.alpha_}


def judged(network: VariationalAutoencoder, problem: Problem, seed: int, draws: int) -> dict[str, float]:
    """What rows that the fit has not seen say: the bound, moment gaps, MMD, Fréchet distances of x and of mu(z).

    Args:
        network: fitted.
        problem: its rows.
        seed: of draws, the same for every fit of a problem.
        draws: rows drawn from the model.
    """
    bound = network.elbo(problem.shaped(problem.held))
    x, mean = drawn(network, draws, seed)
    held = torch.from_numpy(problem.held)
    model = network.model_.to(device="cpu")
    with torch.no_grad():
        gap = MomentPenalty(1.0, 1 << 13).gap(model, held, generator(seed))
    return {
        "elbo": bound.elbo,
        "elbo error": bound.elbo_error,
        "gap": float(gap),
        "MMD": float(mmd(held, x, random_state=seed).value),
        "Fréchet x": float(frechet_distance(held, x, problem.features).value),
        "Fréchet mean": float(frechet_distance(held, mean, problem.features).value),
        "spread": float(x.var(0).sum() / held.var(0).sum()),
    }


def drawn(network: VariationalAutoencoder, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n rows of a fitted model and the means of their laws, from the same z."""
    stream, model = generator(seed), network.model_.to(device="cpu")
    with torch.no_grad():
        law = model.emission(model.prior().draw(n, stream)[0])
        mean = law.mean
        noise = normal(tuple(mean.shape), stream, mean.dtype)
        return mean + law.covariance().diagonal().sqrt() * noise, mean


def floor(problem: Problem, draws: int, seed: int) -> dict[str, float]:
    """What two samples of the rows themselves differ by: no model can do better for a reason."""
    order = torch.randperm(len(problem.train), generator=generator(seed))[:draws]
    rows, held = torch.from_numpy(problem.train)[order], torch.from_numpy(problem.held)
    first = torch.linalg.vector_norm(held.mean(0) - rows.mean(0))
    second = torch.linalg.matrix_norm(held.mT @ held / len(held) - rows.mT @ rows / len(rows))
    return {
        "gap": float(first + second.sqrt()),
        "MMD": float(mmd(held, rows, random_state=seed).value),
        "Fréchet x": float(frechet_distance(held, rows, problem.features).value),
    }


def penalty_seconds(
    network: VariationalAutoencoder, rows: Rows, evaluations: int, batch: int
) -> tuple[float, str]:
    """Seconds of so many penalties of m = 5000 with their gradients, and where they ran."""
    model = network.model_
    device = model.origin.device
    values = tuple(value.detach().requires_grad_() for value in model.trainable())
    tile = torch.from_numpy(rows[:batch]).to(device=device, dtype=values[0].dtype)
    penalty = MomentPenalty(1.0, NODES, "sobol" if device.type == "cpu" else "monte_carlo")
    narrow = model.to(dtype=values[0].dtype).with_trainable(values)
    stream = generator(0, device)

    def once() -> None:
        torch.autograd.grad(penalty(narrow, tile, stream), values, allow_unused=True)

    once()
    _wait(device)
    begin = time.perf_counter()
    for _ in range(evaluations):
        once()
    _wait(device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return time.perf_counter() - begin, name


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def paired_error(values: list[float]) -> tuple[float, float]:
    """Mean of paired differences over seeds and its standard error."""
    found = np.asarray(values)
    return float(found.mean()), float(found.std(ddof=1) / len(found) ** 0.5) if len(found) > 1 else float(
        "nan"
    )
