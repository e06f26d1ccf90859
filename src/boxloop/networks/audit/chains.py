r"""Predictions of a distribution over weights against those of short Hamiltonian Monte Carlo chains.

Weights have symmetries, so predictions are compared, not weights. The chains start around the mean network: they show
whether the distribution resembles the posterior there, not whether there are other modes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from boxloop.concerns import Concern, Level
from boxloop.data import make_frame
from boxloop.networks.distribution import Component
from boxloop.networks.function import NetworkFunction, evaluation_mode, find_batch_norms
from boxloop.networks.inputs import Inputs, as_inputs, count_rows, map_tensors, promote_to_float32, slice_rows
from boxloop.networks.prediction import check_classes, check_targets
from boxloop.numeric import generator, normal, safe_cholesky, spawn
from boxloop.sample import HMC, SampleWarning, diagnose, sample_density

Array = NDArray[np.float64]

JACOBIAN_ROWS = 256  # rows whose Jacobians are computed at once
TEST_ROWS, MONITORED = 100, 24
"""Test rows that are predicted, and predictions whose convergence is monitored."""
TUNING_LENGTH, MAX_LENGTH, LEAPFROG_STEPS = 0.5, 1.6, 32
"""Lengths of trajectories while the step is tuned and afterwards, in standard deviations of Laplace's approximation,
and most leapfrog steps."""
WARMUP, DISCARDED = 150, 50  # warm-up steps of each chain, and steps after them that are discarded too
MAX_R_HAT, MIN_ESS = 1.2, 25.0
"""Limits of R-hat and effective draws of predictions. Chains within them determine a standard deviation to some tens of
per cent, while the verdicts are about factors of two."""
GOOD_FACTOR, BAD_FACTOR = 2.0, 4.0
"""Factors between standard deviations, or variances, that are good up to the first and bad from the second."""
GOOD_DISTANCE, BAD_DISTANCE = 0.5, 1.5  # distances between means, in standard deviations, likewise


@dataclass(frozen=True)
class ChainComparison:
    """Predictions of a distribution over weights beside those of chains; standard deviations are root mean squares."""

    n_chains: int
    n_draws: int  # of each chain
    r_hat: float  # the largest among the monitored predictions
    ess: float  # the smallest effective number of draws among them
    std: float  # of predictions under the distribution
    chain_std: float  # of predictions under the chains
    mean_distance: (
        float  # of mean predictions, in units of chain_std, corrected for the finite number of draws
    )
    weight_std_ratio: float  # of the weights, relative to the chains, in which symmetries enlarge it

    @property
    def std_ratio(self) -> float:
        """Standard deviation of predictions relative to that of the chains."""
        return self.std / self.chain_std

    @property
    def converged(self) -> bool:
        """Whether the chains agree well enough for a comparison."""
        return self.r_hat <= MAX_R_HAT and self.ess >= MIN_ESS

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """One."""
        what = "Hamiltonian Monte Carlo"
        if not self.converged:
            why = (
                f"The {self.n_chains} short chains have not converged (R-hat {self.r_hat:.2f}, {self.ess:.0f} "
                "effective draws of predictions), so the comparison is not possible"
            )
            remedy = "increase chain_draws, or run sample_density() with a longer warm-up"
            return (Concern("doubtful", what, why, remedy),)
        why = (
            f"Predictions have a standard deviation of {self.std:.3g}; {self.n_chains} chains of {self.n_draws} draws "
            f"over all weights give {self.chain_std:.3g} (ratio {self.std_ratio:.2g}). The means differ by "
            f"{self.mean_distance:.2g} standard deviations"
        )
        level = grade_agreement(self.std_ratio, self.mean_distance)
        remedy = "scale the covariance on validation rows, or draw weights by sample_density()"
        return (Concern(level, what, why, "" if level == "good" else remedy),)

    def table(self) -> Any:
        """A frame with one column."""
        names = ("std_ratio", "mean_distance", "std", "chain_std", "r_hat", "ess", "weight_std_ratio")
        return make_frame({"value": [float(getattr(self, name)) for name in names]}, list(names))


def grade_agreement(ratio: float, distance: float) -> Level:
    """The level of a ratio of standard deviations and a distance between means."""
    factor = max(ratio, 1.0 / ratio) if ratio > 0.0 else np.inf
    if factor > BAD_FACTOR or distance > BAD_DISTANCE:
        return "bad"
    return "doubtful" if factor > GOOD_FACTOR or distance > GOOD_DISTANCE else "good"


def compare_chains(
    component: Component,
    outputs: Array,
    X: Any,
    y: Any,
    X_test: Any,
    *,
    kind: str,
    prior_precision: float,
    noise: Array | None,
    chains: int,
    draws: int,
    seed: int,
) -> ChainComparison:
    """Run Hamiltonian Monte Carlo over all weights of a small network, around the mean, and compare predictions."""
    if find_batch_norms(component.net):
        raise ValueError("A network with BatchNorm has no likelihood per row")
    function = NetworkFunction(component.net, component.layout)
    with evaluation_mode(component.net), warnings.catch_warnings():
        warnings.simplefilter("ignore", SampleWarning)
        density = make_log_posterior(function, X, y, kind, prior_precision, noise)
        centre = component.distribution.mean.detach().double()
        root = compute_laplace_root(function, centre, X, kind, prior_precision, noise)
        standard = _run_hmc(lambda u: density(centre + u @ root.mT), centre, chains, draws, seed)
        rows = function.move_inputs(slice_rows(as_inputs(X_test), 0, outputs.shape[1]))
        positions = centre + standard @ root.mT
        predicted = torch.cat([_evaluate(function, one, rows, kind) for one in positions])
    chain_outputs = (predicted if kind == "regression" else predicted.softmax(-1)).cpu().numpy()
    table = chain_outputs.reshape(len(positions), chains, -1)
    index = np.linspace(0, table.shape[2] - 1, min(MONITORED, table.shape[2])).astype(int)
    diagnosis = diagnose(np.ascontiguousarray(table[:, :, index].transpose(1, 0, 2)))
    failed = bool(diagnosis.constant_chains.any() or diagnosis.infinite.any())
    r_hat = np.inf if failed else float(np.max(diagnosis.r_hat))
    ess = 0.0 if failed else float(np.min(diagnosis.ess_bulk))
    return compare_predictions(outputs, chain_outputs, component, positions, r_hat, ess)


def _run_hmc(
    density: Callable[[Tensor], Tensor], centre: Tensor, chains: int, draws: int, seed: int
) -> Tensor:
    """Draws (n, c, D) where Laplace's approximation is standard normal; the step is tuned on short trajectories."""
    start_stream, tuning, sampling = spawn(generator(seed), 3)
    start = 0.5 * normal((chains, len(centre)), start_stream).to(centre)
    short = HMC(dense=False, trajectory=TUNING_LENGTH)
    tuned = sample_density(density, start, short, draws=1, warmup=WARMUP, random_state=tuning)
    scale, metric = tuned.algorithm.scale, tuned.algorithm.metric
    length = min(max(LEAPFROG_STEPS * scale, TUNING_LENGTH), MAX_LENGTH)
    kernel = HMC(scale=scale, metric=metric, trajectory=length)
    last = tuned.positions[-1]
    return sample_density(
        density, last, kernel, draws=draws, warmup=DISCARDED, random_state=sampling
    ).positions


def compute_laplace_root(
    function: NetworkFunction,
    centre: Tensor,
    X: Any,
    kind: str,
    prior_precision: float,
    noise: Array | None,
) -> Tensor:
    r"""A root of the covariance of Laplace's approximation at a weight vector, (D, D), by generalised Gauss-Newton.

    .. math:: \Sigma^{-1} = \alpha I + \sum_i J_i^\top \Lambda_i J_i
    """
    rows = function.move_inputs(as_inputs(X))
    constants, dtype = function.get_constants(), promote_to_float32(function.first_parameter.dtype)

    def evaluate(vector: Tensor, row: Inputs) -> Tensor:
        weights = {name: value.to(dtype) for name, value in function.layout.unflatten(vector).items()}
        single = map_tensors(row, lambda one: one[None])
        outputs = functional_call(function.net, {**constants, **weights}, (single,)).reshape(1, 1, -1)
        return (outputs if kind == "regression" else _to_class_logits(outputs)).reshape(-1)

    jacobian = vmap(jacrev(evaluate), in_dims=(None, 0), chunk_size=JACOBIAN_ROWS)(centre, rows).double()
    if kind == "regression":
        weighted = jacobian / torch.as_tensor(np.asarray(noise), device=jacobian.device).reshape(1, -1, 1)
    else:
        p = vmap(evaluate, in_dims=(None, 0))(centre, rows).double().softmax(1)[:, :, None]
        weighted = p.sqrt() * (jacobian - (p * jacobian).sum(1, keepdim=True))
    weighted = weighted.reshape(-1, len(centre))
    precision = weighted.mT @ weighted
    precision.diagonal().add_(prior_precision)
    lower = safe_cholesky(precision, "precision of Laplace's approximation")
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower.mT, eye, upper=True)


def make_log_posterior(
    function: NetworkFunction, X: Any, y: Any, kind: str, prior_precision: float, noise: Array | None
) -> Callable[[Tensor], Tensor]:
    """The log-posterior of weight vectors (c, D), up to a constant."""
    rows, device = function.move_inputs(as_inputs(X)), function.first_parameter.device
    n = count_rows(rows)
    with torch.no_grad():
        zeros = function.unflatten(torch.zeros(1, function.layout.size, device=device))
        first = function(zeros, {}, slice_rows(rows, 0, 1), use_vmap=True)
    if kind == "classification":
        labels = torch.as_tensor(check_classes(y, (n, max(2, first.numel()))), device=device)
    else:
        targets = torch.as_tensor(check_targets(y, (n, *first.shape[2:])), device=device)
        sigma = torch.as_tensor(np.broadcast_to(np.asarray(noise), first.numel()).copy(), device=device)

    def density(vectors: Tensor) -> Tensor:
        outputs = _evaluate(function, vectors, rows, kind)
        prior = -0.5 * prior_precision * vectors.square().sum(1)
        if kind == "regression":
            return prior - 0.5 * ((outputs - targets) / sigma).square().sum((1, 2))
        return prior + outputs.log_softmax(-1).gather(
            2, labels[None, :, None].expand(len(outputs), -1, 1)
        ).sum((1, 2))

    return density


def compare_predictions(
    outputs: Array, chain_outputs: Array, component: Component, positions: Tensor, r_hat: float, ess: float
) -> ChainComparison:
    """Standard deviations and means of predictions of a distribution (m, ...) and of chains (m', ...)."""
    own = outputs.reshape(len(outputs), -1)
    chains = chain_outputs.reshape(len(chain_outputs), -1)
    chain_std = float(np.sqrt(chains.var(0, ddof=1).mean()))
    if not chain_std > 0.0:
        raise ValueError("No chain moved, so there is nothing to compare with")
    std = float(np.sqrt(own.var(0, ddof=1).mean())) if len(own) > 1 else 0.0
    expected = (std / chain_std) ** 2 / len(own) + 1.0 / max(ess, 1.0)
    distance = float(np.mean((own.mean(0) - chains.mean(0)) ** 2)) / chain_std**2
    weight_std = float(positions.reshape(-1, positions.shape[2]).var(0).mean().sqrt())
    return ChainComparison(
        n_chains=positions.shape[1],
        n_draws=positions.shape[0],
        r_hat=r_hat,
        ess=ess,
        std=std,
        chain_std=chain_std,
        mean_distance=max(0.0, distance - expected) ** 0.5,
        weight_std_ratio=float(component.distribution.variance().double().mean().sqrt()) / weight_std,
    )


def _evaluate(function: NetworkFunction, vectors: Tensor, rows: Inputs, kind: str) -> Tensor:
    """Outputs, or logits of all classes, of the networks with weights (c, D): (c, n, q) float64."""
    outputs = function(function.unflatten(vectors), {}, rows, use_vmap=True)
    outputs = outputs.reshape(*outputs.shape[:2], -1).double()
    return outputs if kind == "regression" else _to_class_logits(outputs)


def _to_class_logits(outputs: Tensor) -> Tensor:
    """A single output is the logit of class 1 against class 0."""
    return outputs if outputs.shape[2] > 1 else torch.cat([torch.zeros_like(outputs), outputs], 2)
