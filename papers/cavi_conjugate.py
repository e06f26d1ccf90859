"""What the general conjugate mixture says: its bound beside its evidence, on the rows of Algorithm 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxloop.estimators import BayesianGaussianMixture
from boxloop.loop import FALL
from papers.cavi_conjugate_trials import (
    CONCENTRATION,
    DOF,
    SCALE,
    STRENGTH,
    annealed_evidence,
    climb,
    labelled_evidence,
)
from papers.cavi_mixture_trials import Problem, Rows
from papers.experiment import Finding
from papers.words import met

FEW, SEVERAL = 10, 40
"""Rows whose labellings are all visited, and rows whose evidence is annealed."""


@dataclass(frozen=True)
class Conjugate:
    """Measures of the general mixture.

    Args:
        fall: largest relative fall of the bound in any sweep of any start.
        sweeps: how many.
        few: log evidence by labellings, less the best bound and less the estimator's, (problems, 2).
        annealed: log evidence of as few rows by annealing, its error, and by labellings, (problems, 3).
        several: log evidence by annealing, its error, the best bound, and the estimator's, (problems, 4).
    """

    fall: float
    sweeps: int
    few: Rows
    annealed: Rows
    several: Rows


def estimator_bound(problem: Problem, seed: int) -> float:
    """The bound that ``BayesianGaussianMixture`` reports, under the same prior."""
    found = BayesianGaussianMixture(
        problem.k,
        covariance_type="diag",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=CONCENTRATION,
        mean_precision_prior=STRENGTH,
        mean_prior=[0.0],
        degrees_of_freedom_prior=DOF,
        covariance_prior=[SCALE],
        tol=1e-12,
        max_iter=5000,
        n_init=3,
        random_state=seed,
    ).fit(problem.x[:, None].numpy())
    return float(found.lower_bound_) * len(problem.x)


def measure_conjugate(apart: tuple[float, ...], chains: int, starts: int, seed: int) -> Conjugate:
    """Two and three components of few rows, two of several, at each distance."""
    traces: list[Rows] = []
    few, annealed, several = [], [], []

    def best(problem: Problem) -> float:
        runs = climb(problem.x, problem.k, seed, starts)
        traces.extend(runs)
        return max(float(run[-1]) for run in runs)

    for value in apart:
        for k in (2, 3):
            problem = Problem.drawn(FEW, k, value, seed)
            exact = labelled_evidence(problem.x, k)
            few.append([exact - best(problem), exact - estimator_bound(problem, seed)])
            if k == 2:
                found = annealed_evidence(problem.x, seed, chains)
                annealed.append([found.log_partition, found.error, exact])
        problem = Problem.drawn(SEVERAL, 2, value, seed)
        found = annealed_evidence(problem.x, seed, chains)
        several.append([found.log_partition, found.error, best(problem), estimator_bound(problem, seed)])
    fall = max(float(np.max(-np.diff(trace) / np.abs(trace[:-1]))) for trace in traces)
    sweeps = sum(len(trace) - 1 for trace in traces)
    return Conjugate(fall, sweeps, np.asarray(few), np.asarray(annealed), np.asarray(several))


def judge_conjugate(measured: Conjugate) -> list[Finding]:
    """Findings on the general mixture: unknown weights, means and variances."""
    scores = (measured.annealed[:, 0] - measured.annealed[:, 2]) / measured.annealed[:, 1]
    gaps = measured.several[:, :1] - measured.several[:, 2:]
    errors = measured.several[:, 1]
    closest = int(np.argmin(gaps.min(1) / errors))
    apart = np.max(np.abs(measured.few[:, 0] - measured.few[:, 1]))
    return [
        Finding(
            "the general conjugate mixture: the bound rises in every sweep",
            "the same argument",
            f"largest relative fall {max(measured.fall, 0.0):.1e}",
            None,
            "reproduced" if measured.fall < FALL else "not reproduced",
            f"{measured.sweeps} sweeps; weights, means and variances are unknown, the loop is that of Algorithm 4.",
            exact=True,
        ),
        Finding(
            f"its bound is below the log evidence, {FEW} rows",
            "L(q) <= log p(x)",
            f"smallest gap {measured.few.min():.4f}",
            None,
            "reproduced" if measured.few.min() > 0.0 else "not reproduced",
            f"Every labelling of {len(measured.few)} data sets, 2 and 3 components. BayesianGaussianMixture, which "
            f"races starts of its own under the same prior, ends within {apart:.1e} of our best start.",
            exact=True,
        ),
        Finding(
            f"the same, {SEVERAL} rows, 2 components",
            "L(q) <= log p(x)",
            f"smallest gap {gaps[closest].min():.3f}",
            float(errors[closest]),
            "reproduced" if bool((gaps.min(1) > 3.0 * errors).all()) else "not reproduced",
            "Evidence by annealed importance sampling from the prior, with its error.",
        ),
        Finding(
            f"annealing beside every labelling, {FEW} rows",
            "not in the document",
            f"z-scores {', '.join(f'{z:.1f}' for z in scores)}",
            None,
            met(bool((np.abs(scores) < 4.0).all())),
            "The estimate is where its error says.",
        ),
    ]


def curves(measured: Conjugate) -> dict[str, list[list[float]]]:
    """The same numbers, for the table of facts."""
    named = {"few": measured.few, "annealed": measured.annealed, "several": measured.several}
    return {name: values.tolist() for name, values in named.items()}
