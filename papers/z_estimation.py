"""Moments, equations and likelihoods: the examples of 002, appendix A, and errors that hold in wrong models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from boxloop.numeric import generator
from papers.appendix_examples import closed_forms, normal_equations, partitions, variances
from papers.estimator_figures import draw
from papers.estimator_trials import COMMON, GROWTH, PROBLEMS, Rows, Trials, bootstrap_error, run_trials
from papers.experiment import Finding, Options, Report
from papers.words import held, met, standard_error

SLOPE = len(PROBLEMS) - 1


@dataclass(frozen=True)
class Size:
    """How much to run."""

    repeats: int
    n: int
    lengths: tuple[int, ...]
    resamples: int
    samples: int


QUICK = Size(30, 400, (100, 1600), 20, 2)
FULL = Size(1000, 1000, (50, 150, 500, 1500, 5000), 200, 10)


def experiment(options: Options) -> Report:
    """Run every example."""
    size = QUICK if options.quick else FULL
    trials = []
    for i, problem in enumerate(PROBLEMS):
        options.progress(i, len(PROBLEMS) + 2, problem.name)
        trials.append(run_trials(problem, size.n, size.repeats, options.seed))
    options.progress(len(PROBLEMS), len(PROBLEMS) + 2, "error against rows")
    paths = consistency(size, options.seed)
    options.progress(len(PROBLEMS) + 1, len(PROBLEMS) + 2, "bootstrap")
    errors = error_ratios(size, options.seed)
    findings = [
        *closed_forms(options.seed),
        *variances(trials),
        normal_equations(options.seed),
        *partitions(),
        rate_of_convergence(paths, size),
        *errors_found(errors),
        *coverages(trials),
    ]
    settings = {
        "samples": size.repeats,
        "rows": size.n,
        "longest": max(size.lengths),
        "resamples": size.resamples,
        "seed": options.seed,
    }
    curves = {
        "root mean square error": {name: list(map(float, path)) for name, path in paths.items()},
        "lengths": list(size.lengths),
        "coverage": {t.problem.name: t.covered(t.error) for t in trials},
        "error ratios": {name: list(map(float, values)) for name, values in errors.items()},
    }
    title = "Moments, estimating equations and maximum likelihood"
    figure = draw(paths, size.lengths, errors, trials)
    return Report("z-estimation", title, settings, findings, curves, {"errors": figure})


def consistency(size: Size, seed: int) -> dict[str, Rows]:
    """Root mean square error of every estimator at every length."""
    repeats = max(size.repeats // 5, 20)
    found = {}
    for i, problem in enumerate(PROBLEMS):
        path = [run_trials(problem, n, repeats, seed + 10_000 * i + 77 * n) for n in size.lengths]
        found[problem.name] = np.asarray([float(np.sqrt(np.mean(t.miss**2))) for t in path])
    return found


def rate_of_convergence(paths: dict[str, Rows], size: Size) -> Finding:
    """Theorem A.6 says that estimates tend to the truth; the slope says how fast."""
    x = np.log(size.lengths)
    x = x - x.mean()
    slopes = np.asarray([float(x @ np.log(path) / (x @ x)) for path in paths.values()])
    repeats = max(size.repeats // 5, 20)
    error = float((0.5 / repeats / (x @ x)) ** 0.5)
    worst = float(np.abs(slopes + 0.5).max())
    return Finding(
        "A.6, estimates tend to the truth",
        "in probability, no rate",
        f"error falls as n to the {slopes.mean():.3f}, for each of {len(slopes)} estimators within {worst:.3f} of -1/2",
        error / len(slopes) ** 0.5,
        held(worst < 5.0 * error + 0.02),
        f"Root mean square error from n = {size.lengths[0]} to {size.lengths[-1]}; short samples are a little worse.",
    )


def error_ratios(size: Size, seed: int) -> dict[str, Rows]:
    """Errors of the slope of A.5 under noise that grows, over the closed form, one number a sample."""
    problem = PROBLEMS[SLOPE]
    truth = (GROWTH / size.n) ** 0.5
    found: dict[str, list[float]] = {"sandwich": [], "bootstrap": [], "information": []}
    for i in range(size.samples):
        rows = problem.draw(size.n, generator(seed + 555 + i))
        estimate = problem.estimate(rows, None)
        assert estimate.information is not None
        j = problem.place
        found["sandwich"].append(float(estimate.covariance[j, j].sqrt()) / truth)
        found["information"].append(float(estimate.information[j, j].sqrt()) / truth)
        resampled = bootstrap_error(problem, rows, size.resamples, generator(seed + 999 + i))
        found["bootstrap"].append(resampled / truth)
    return {name: np.asarray(values) for name, values in found.items()}


def errors_found(errors: dict[str, Rows]) -> list[Finding]:
    """Sandwich errors beside the closed form and the bootstrap."""
    lines = []
    beside = errors["sandwich"] / errors["bootstrap"]
    for name, values, target in (
        ("sandwich error over the closed form", errors["sandwich"], 1.0),
        ("sandwich error over the bootstrap's", beside, 1.0),
        ("information error over the closed form", errors["information"], (COMMON / GROWTH) ** 0.5),
    ):
        error = standard_error(values)
        lines.append(
            Finding(
                f"A.5 with noise that grows, {name}",
                f"not in the document; theory says {target:.3g}",
                f"{values.mean():.3f}",
                error,
                met(abs(float(values.mean()) - target) < 4.0 * error + 0.03),
                f"Slope of y = 1 + 2x + (1/2 + abs x) e under a model with one variance, {len(values)} samples.",
            )
        )
    return lines


def coverages(trials: list[Trials]) -> list[Finding]:
    """Shares of 95% intervals that hold the truth."""
    lines = []
    for t in trials:
        share = t.covered(t.error)
        error = (0.95 * 0.05 / len(t.value)) ** 0.5
        why = f"n = {t.n}, {len(t.value)} samples, mean error {_relative(t):.3f} of the closed form."
        if "median" in t.problem.name:
            why += " The smoothed density at the sharp peak of this law is too low, so that errors are too large."
        lines.append(
            Finding(
                f"95% intervals from the sandwich, {t.problem.name}",
                "not in the document; 0.95",
                f"{share:.3f}",
                error,
                met(abs(share - 0.95) < 4.0 * error + 0.01),
                why,
            )
        )
    t = trials[SLOPE]
    share, error = t.covered(t.information), (0.8 * 0.2 / len(t.value)) ** 0.5
    lines.append(
        Finding(
            "95% intervals from the information, A.5 with noise that grows",
            "not in the document; theory says 0.798",
            f"{share:.3f}",
            error,
            met(abs(share - 0.798) < 4.0 * error + 0.01),
            "The model has one variance and the rows do not: its information is too sure, the sandwich is not.",
        )
    )
    return lines


def _relative(t: Trials) -> float:
    return float(t.error.mean() / (t.problem.spread / t.n) ** 0.5)
