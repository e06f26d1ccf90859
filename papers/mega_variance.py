"""Forward moments are nearer the truth than moments of samples (000, section 4.3, figure 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from boxloop.criticise import Second, forward_moments, latent_nodes, marginal, model_scene, second_moment
from boxloop.distributions import Categorical, FullGaussian
from boxloop.figures import COLOURS, INK, dress, new_figure
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator, gram, seed, spawn
from boxloop.types import Distribution, LatentModel
from papers.experiment import Finding, Options, Report
from papers.words import held, met

SAMPLE, FORWARD, QUASI, EXACT = "sample (SE)", "forward (FME)", "forward, quasi-Monte Carlo", "forward, exact"
MOMENTS = ("first", "second")
SEPARATED, OVERLAPPING, FACTORS = "separated clusters", "overlapping clusters", "probabilistic PCA"


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def problems() -> dict[str, LatentModel]:
    """Two mixtures of three Gaussians with known moments, and a model whose latent variable is continuous."""
    apart = [[-4.0, 0.0], [4.0, 1.0], [0.0, 6.0]]
    close = [[-0.3, 0.0], [0.3, 0.1], [0.0, 0.4]]
    weight = _tensor([0.3, 0.3, 0.4]).log()
    covariance = _tensor([[[1.0, 0.3], [0.3, 0.6]], [[0.7, 0.0], [0.0, 0.7]], [[0.8, -0.2], [-0.2, 1.1]]])
    loadings = _tensor([[1.5, 0.0], [0.8, 1.0], [0.0, 0.7], [-0.5, 0.4]])
    return {
        SEPARATED: Mixture(weight, FullGaussian.of(_tensor(apart), covariance)),
        OVERLAPPING: Mixture(weight, FullGaussian.of(_tensor(close), covariance)),
        FACTORS: FactorModel(_tensor([0.5, -0.5, 1.0, 0.0]), loadings, torch.full_like(loadings[:, 0], 0.5)),
    }


def _moments(law: Distribution, weight: Tensor) -> tuple[Tensor, Tensor]:
    return weight @ law.mean, second_moment(law, weight)


def truth(model: LatentModel) -> tuple[Tensor, Tensor]:
    """First and second moment of a model by its own parameters."""
    finite = marginal(model)
    assert finite is not None
    return _moments(*finite)


def quasi_nodes(prior: Distribution, m: int, stream: Generator) -> Tensor:
    """Scrambled Sobol nodes; for a categorical prior they pass through the inverse of its distribution function."""
    if not isinstance(prior, Categorical):
        return torch.cat(list(latent_nodes(prior, m, stream, quasi=True)))
    inside = SobolEngine(1, scramble=True, seed=seed(stream)).draw(m, dtype=torch.float64)[:, 0]
    edges = prior.log_weight[0].exp().cumsum(0)
    place = torch.searchsorted(edges, inside).clamp(max=len(edges) - 1)
    return prior.support[place]


def distances(model: LatentModel, m: int, stream: Generator) -> dict[str, tuple[float, float]]:
    """Frobenius distance of both moments from the truth, of three estimators with m nodes each.

    The sample estimator takes its rows from the very laws that the forward estimator averages, so the two are paired.
    """
    prior, right = model.prior(), truth(model)
    weight = torch.full((m,), 1.0 / m, dtype=torch.float64)
    law = model.emission(torch.cat(list(latent_nodes(prior, m, stream, quasi=False))))
    rows = law.draw(1, stream)[:, 0]
    found = {
        SAMPLE: (rows.mean(0), gram(rows) / m),
        FORWARD: _moments(law, weight),
        QUASI: _moments(model.emission(quasi_nodes(prior, m, stream)), weight),
    }
    return {
        name: (float((a[0] - right[0]).norm()), float((a[1] - right[1]).norm())) for name, a in found.items()
    }


def exact_error(model: LatentModel, stream: Generator) -> float:
    """Distance of the library's exact second moment from a sum over components written out."""
    columns = tuple(f"x{i}" for i in range(truth(model)[0].shape[0]))
    probe = Second(about="zero").ready(model_scene(model, columns, stream, 8))
    found = probe.in_data_units(forward_moments(model, [probe], stream, "exact")[0].value)
    finite = marginal(model)
    assert finite is not None
    law, weight = finite
    dense = law.covariance().dense()
    written = sum(w * (c + torch.outer(mu, mu)) for w, c, mu in zip(weight, dense, law.mean))
    return float((found - written).norm())


def theory(model: LatentModel) -> tuple[float, float]:
    r"""The RMS ratio that the law of total variance gives, for both moments.

    .. math:: \sqrt{\mathrm{Var}_z E[g \mid z] / \mathrm{Var}_x g}
    """
    prior = model.prior()
    if not isinstance(prior, Categorical):
        return float("nan"), float("nan")
    law, weight = model.emission(prior.support), prior.log_weight[0].exp()
    mean, cov = law.mean, law.covariance().dense()
    first, second = truth(model)
    within = cov.diagonal(dim1=1, dim2=2).sum(1)
    inner = cov + mean[:, :, None] * mean[:, None]
    spread = weight @ inner.square().sum((1, 2)) - second.square().sum()
    bend = torch.einsum("ki,kij,kj->k", mean, cov, mean)
    fourth = (within + mean.square().sum(1)).square() + 2 * cov.square().sum((1, 2)) + 4 * bend
    between = weight @ mean.square().sum(1) - first.square().sum()
    one = between / (between + weight @ within)
    return float(one.sqrt()), float((spread / (weight @ fourth - second.square().sum())).sqrt())


def ratio(top: NDArray[np.float64], bottom: NDArray[np.float64]) -> tuple[float, float]:
    """Ratio of root mean squares of paired distances and its standard error, by the delta method."""
    a, b = top**2, bottom**2
    value = float(np.sqrt(a.mean() / b.mean()))
    influence = a / a.mean() - b / b.mean()
    return value, value * float(influence.std()) / 2.0 / len(a) ** 0.5


def experiment(options: Options) -> Report:
    """Repeat over nodes at every m."""
    repeats, sizes = (100, (16, 128)) if options.quick else (1000, (10, 30, 100, 300, 1000, 3000, 10_000))
    curves: dict[str, Any] = {}
    findings = []
    for done, (name, model) in enumerate(problems().items()):
        streams = spawn(generator(options.seed + done), len(sizes))
        table: dict[str, Any] = {method: [[], []] for method in (SAMPLE, FORWARD, QUASI)}
        for i, m in enumerate(sizes):
            options.progress(done * len(sizes) + i, 3 * len(sizes), f"{name}, m = {m}")
            found = [distances(model, m, streams[i]) for _ in range(repeats)]
            for method, columns in table.items():
                for which in range(2):
                    columns[which].append([each[method][which] for each in found])
        curves[name] = _summary(table, sizes)
        findings += judge(name, model, table, sizes, exact_error(model, generator(options.seed)))
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
    """Ratios at every m, the variance proof of the appendix, and what needs no Monte Carlo at all."""
    findings = []
    for which, moment in enumerate(MOMENTS):
        pairs = list(zip(np.asarray(table[FORWARD][which]), np.asarray(table[SAMPLE][which])))
        found = [ratio(a, b) for a, b in pairs]
        whole = float(np.mean([value for value, _ in found]))
        error = float(np.sqrt(np.sum([e**2 for _, e in found])) / len(found))
        proof = theory(model)[which]
        told = "" if np.isnan(proof) else f" The law of total variance gives {proof:.3f}."
        findings.append(
            Finding(
                f"{name}: RMS error of the {moment} moment, forward over sample",
                "below 1 at every m",
                f"{whole:.3f} (largest {max(v for v, _ in found):.3f})",
                error,
                held(all(value < 1.0 for value, _ in found)),
                f"Below 1 at each of m = {', '.join(map(str, sizes))}.{told}"
                if all(value < 1.0 for value, _ in found)
                else f"At or above 1 at some of m = {', '.join(map(str, sizes))}.{told}",
            )
        )
    last = ratio(np.asarray(table[QUASI][1][-1]), np.asarray(table[FORWARD][1][-1]))
    findings.append(
        Finding(
            f"{name}: quasi-Monte Carlo over Monte Carlo nodes, second moment, m = {sizes[-1]}",
            "not in the document",
            f"{last[0]:.4f}",
            last[1],
            met(last[0] < 1.0 and exact < 1e-12),
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
