"""The Gaussian channel (003, appendix C): exact variables and moments, and variables learned from samples."""

from __future__ import annotations

from dataclasses import asdict

from boxloop.twoview import GaussianChannel
from papers.experiment import Options, Report
from papers.gaussian_channel_figures import draw_densities, draw_learned
from papers.gaussian_channel_findings import judge_exact, judge_learned
from papers.gaussian_channel_trials import SIGMA, TAU, Size, learn

FULL = Size(rows=50_000, held=20_000, seeds=8, passes=60, hidden=(64, 64))
QUICK = Size(rows=20_000, held=10_000, seeds=1, passes=40, hidden=(32, 32))


def experiment(options: Options) -> Report:
    """Matrices, eigenvalues and moments of the appendix; relevances learned from samples beside powers of gamma."""
    size = QUICK if options.quick else FULL
    channel = GaussianChannel.noisy(TAU, SIGMA)
    runs = []
    for i in range(size.seeds):
        options.progress(i, size.seeds, f"data set {i + 1}: {size.rows} rows")
        runs.append(learn(channel, size, options.seed + i))
    settings = {"tau": TAU, "sigma": SIGMA, **asdict(size), "seed": options.seed}
    return Report(
        "gaussian-channel",
        "The Gaussian channel: Hermite variables, known and learned",
        settings,
        [*judge_exact(options.seed), *judge_learned(runs, size)],
        curves={
            "exact relevance": channel.relevance(size.variables).tolist(),
            "learned": [
                {
                    "held-out relevance": run.judged.relevance.tolist(),
                    "error": run.judged.relevance_error.tolist(),
                    "training relevance": (run.judged.training**2).tolist(),
                    "relevance under the true law": (run.under_law[0] ** 2).tolist(),
                    "correlation with the Hermite variable": run.under_law[1].tolist(),
                    "p-value": run.judged.p_value.tolist(),
                }
                for run in runs
            ],
        },
        figures={"learned": draw_learned(runs, size), "densities": draw_densities(channel)},
    )
