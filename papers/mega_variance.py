"""Forward moments are nearer the truth than moments of samples; Beaulac (2023), section 4.3, figure 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from boxloop.criticise import (
    Second,
    draw_latent_nodes,
    forward_moments,
    marginal_mixture,
    second_moment,
    standardise_by_model,
)
from boxloop.distributions import Categorical, FullGaussian
from boxloop.figures import COLOURS, INK, dress, new_figure
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator, gram, seed, spawn
from boxloop.types import Distribution, LatentModel
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target

SAMPLE, FORWARD, QUASI, EXACT = "sample (SE)", "forward (FME)", "forward, quasi-Monte Carlo", "forward, exact"

MOMENTS = ("first", "second")

SEPARATED, OVERLAPPING, FACTORS = "separated clusters", "overlapping clusters", "probabilistic PCA"


def build_problems() -> dict[str, LatentModel]:
    """Two mixtures of three Gaussians with known moments, and a model whose latent variable is continuous."""
    far = [[-4.0, 0.0], [4.0, 1.0], [0.0, 6.0]]
    close = [[-0.3, 0.0], [0.3, 0.1], [0.0, 0.4]]
    weight = _tensor([0.3, 0.3, 0.4]).log()
    covariance = _tensor([[[1.0, 0.3], [0.3, 0.6]], [[0.7, 0.0], [0.0, 0.7]], [[0.8, -0.2], [-0.2, 1.1]]])
    loadings = _tensor([[1.5, 0.0], [0.8, 1.0], [0.0, 0.7], [-0.5, 0.4]])
    return {
        SEPARATED: Mixture(weight, FullGaussian.from_covariance(_tensor(far), covariance)),
        OVERLAPPING: Mixture(weight, FullGaussian.from_covariance(_tensor(close), covariance)),
        FACTORS: FactorModel(_tensor([0.5, -0.5, 1.0, 0.0]), loadings, torch.full_like(loadings[:, 0], 0.5)),
    }


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def true_moments(model: LatentModel) -> tuple[Tensor, Tensor]:
    """First and second moment of a model by its own parameters."""
    finite = marginal_mixture(model)
    assert finite is not None
    return _moments(*finite)


def _moments(emission: Distribution, weight: Tensor) -> tuple[Tensor, Tensor]:
    return weight @ emission.mean, second_moment(emission, weight)


def draw_quasi_nodes(prior: Distribution, m: int, stream: Generator) -> Tensor:
    """Scrambled Sobol nodes; for a categorical prior they pass through the inverse of its distribution function."""
    if not isinstance(prior, Categorical):
        return torch.cat(list(draw_latent_nodes(prior, m, stream, quasi=True)))
    inside = SobolEngine(1, scramble=True, seed=seed(stream)).draw(m, dtype=torch.float64)[:, 0]
    edges = prior.log_weight[0].exp().cumsum(0)
    place = torch.searchsorted(edges, inside).clamp(max=len(edges) - 1)
    return prior.support[place]


def measure_distances(model: LatentModel, m: int, stream: Generator) -> dict[str, tuple[float, float]]:
    """Frobenius distance of both moments from the truth, of three estimators with m nodes each.

    The sample estimator draws its rows from the emissions that the forward estimator averages, so the two are paired.
    """
    prior, true = model.prior(), true_moments(model)
    weight = torch.full((m,), 1.0 / m, dtype=torch.float64)
    emission = model.emission(torch.cat(list(draw_latent_nodes(prior, m, stream, quasi=False))))
    rows = emission.draw(1, stream)[:, 0]
    results = {
        SAMPLE: (rows.mean(0), gram(rows) / m),
        FORWARD: _moments(emission, weight),
        QUASI: _moments(model.emission(draw_quasi_nodes(prior, m, stream)), weight),
    }
    return {
        name: (float((a[0] - true[0]).norm()), float((a[1] - true[1]).norm())) for name, a in results.items()
    }


def measure_exact_error(model: LatentModel, stream: Generator) -> float:
    """Distance of the library's exact second moment from a sum over components written out."""
    columns = tuple(f"x{i}" for i in range(true_moments(model)[0].shape[0]))
    function = Second(about="zero").prepare(standardise_by_model(model, columns, stream, 8))
    exact = function.to_data_units(forward_moments(model, [function], stream, "exact")[0].value)
    finite = marginal_mixture(model)
    assert finite is not None
    emission, weight = finite
    dense = emission.covariance().dense()
    summed = sum(w * (c + torch.outer(mu, mu)) for w, c, mu in zip(weight, dense, emission.mean))
    return float((exact - summed).norm())


def compute_theory_ratio(model: LatentModel) -> tuple[float, float]:
    r"""RMS ratio of forward over sample estimator by the law of total variance, for both moments.

    .. math:: \sqrt{\mathrm{Var}_z E[g \mid z] / \mathrm{Var}_x g}
    """
    prior = model.prior()
    if not isinstance(prior, Categorical):
        return float("nan"), float("nan")
    emission, weight = model.emission(prior.support), prior.log_weight[0].exp()
    mean, cov = emission.mean, emission.covariance().dense()
    first, second = true_moments(model)
    within = cov.diagonal(dim1=1, dim2=2).sum(1)
    inner = cov + mean[:, :, None] * mean[:, None]
    variance = weight @ inner.square().sum((1, 2)) - second.square().sum()
    cross = torch.einsum("ki,kij,kj->k", mean, cov, mean)
    fourth = (within + mean.square().sum(1)).square() + 2 * cov.square().sum((1, 2)) + 4 * cross
    between = weight @ mean.square().sum(1) - first.square().sum()
    one = between / (between + weight @ within)
    return float(one.sqrt()), float((variance / (weight @ fourth - second.square().sum())).sqrt())


def rms_ratio(top: NDArray[np.float64], bottom: NDArray[np.float64]) -> tuple[float, float]:
    """Ratio of root mean squares of paired distances and its standard error, by the delta method."""
    a, b = top**2, bottom**2
    value = float(np.sqrt(a.mean() / b.mean()))
    influence = a / a.mean() - b / b.mean()
    return value, value * float(influence.std()) / 2.0 / len(a) ** 0.5


def _summary(table: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {"m": list(sizes)}
    for which, moment in enumerate(MOMENTS):
        for method, columns in table.items():
            squares = np.asarray(columns[which]) ** 2
            result[f"{moment}, {method}"] = np.sqrt(squares.mean(1)).tolist()
    return result


def judge(
    name: str, model: LatentModel, table: dict[str, Any], sizes: tuple[int, ...], exact: float
) -> list[Finding]:
    """Ratios at every m, the variance proof of the appendix, and exact moments."""
    findings = []
    for which, moment in enumerate(MOMENTS):
        pairs = list(zip(np.asarray(table[FORWARD][which]), np.asarray(table[SAMPLE][which])))
        results = [rms_ratio(a, b) for a, b in pairs]
        average = float(np.mean([value for value, _ in results]))
        error = float(np.sqrt(np.sum([e**2 for _, e in results])) / len(results))
        proof = compute_theory_ratio(model)[which]
        theory = "" if np.isnan(proof) else f" The law of total variance gives {proof:.3f}."
        findings.append(
            Finding(
                f"{name}: RMS error of the {moment} moment, forward over sample",
                "below 1 at every m",
                f"{average:.3f} (largest {max(v for v, _ in results):.3f})",
                error,
                judge_claim(all(value < 1.0 for value, _ in results)),
                f"Below 1 at each of m = {', '.join(map(str, sizes))}.{theory}"
                if all(value < 1.0 for value, _ in results)
                else f"At or above 1 at some of m = {', '.join(map(str, sizes))}.{theory}",
            )
        )
    last = rms_ratio(np.asarray(table[QUASI][1][-1]), np.asarray(table[FORWARD][1][-1]))
    findings.append(
        Finding(
            f"{name}: quasi-Monte Carlo over Monte Carlo nodes, second moment, m = {sizes[-1]}",
            "not in the document",
            f"{last[0]:.4f}",
            last[1],
            judge_target(last[0] < 1.0 and exact < 1e-12),
            f"And exact moments, a finite sum or a closed form that needs no nodes at all, are off by {exact:.0e}.",
        )
    )
    return findings


def draw(curves: dict[str, Any], sizes: tuple[int, ...]) -> Figure:
    """Error of the second moment against m, one panel a model."""
    figure = new_figure(4.4 * len(curves), 4.2)
    axes: Any = figure.subplots(1, len(curves), squeeze=False)
    for axis, (name, table) in zip(axes.flat, curves.items()):
        for colour, method in zip(COLOURS, (SAMPLE, FORWARD, QUASI)):
            axis.plot(sizes, table[f"second, {method}"], "o-", color=colour, label=method, markersize=4)
        axis.set(xscale="log", yscale="log")
        low, high = axis.get_ylim()
        axis.set_ylim(low / 2, high)
        axis.axhline(low / 2, color=INK, lw=4, label=f"{EXACT} (below $10^{{-12}}$, drawn at the lower edge)")
        axis.set_xticks(sizes, labels=[f"{m}" for m in sizes])
        axis.minorticks_off()
        dress(axis, name, "m, nodes or rows drawn", "" if axis is not axes.flat[0] else "RMS Frobenius error")
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.suptitle("Distance of estimated second moments from the model's own")
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def experiment(options: Options) -> Report:
    """Repeat over nodes at every m."""
    repeats, sizes = (100, (16, 128)) if options.quick else (1000, (10, 30, 100, 300, 1000, 3000, 10_000))
    curves: dict[str, Any] = {}
    findings = []
    for done, (name, model) in enumerate(build_problems().items()):
        streams = spawn(generator(options.seed + done), len(sizes))
        table: dict[str, Any] = {method: [[], []] for method in (SAMPLE, FORWARD, QUASI)}
        for i, m in enumerate(sizes):
            options.progress(done * len(sizes) + i, 3 * len(sizes), f"{name}, m = {m}")
            results = [measure_distances(model, m, streams[i]) for _ in range(repeats)]
            for method, columns in table.items():
                for which in range(2):
                    columns[which].append([each[method][which] for each in results])
        curves[name] = _summary(table, sizes)
        findings += judge(name, model, table, sizes, measure_exact_error(model, generator(options.seed)))
    settings = {"repetitions": repeats, "m": list(sizes), "seed": options.seed, "data": "models written down"}
    figure = draw(curves, sizes)
    return Report(
        "mega-variance",
        "Forward and sample estimators of moments",
        settings,
        findings,
        curves,
        {"errors": figure},
    )
