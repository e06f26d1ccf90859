"""Energy models trained by the gradient of the log-likelihood, on targets whose normaliser is known.

Le Corff, Introduction to computational statistics, section 1.1 and example 1.1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.mixture import GaussianMixture as Peer
from torch import Generator, Tensor, nn

from boxloop.data import ArraySource
from boxloop.estimators import (
    KERNELS,
    ChainSettings,
    EnergyBasedModel,
    FitWarning,
    anneal_chains,
    reference_distribution,
)
from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, new_figure
from boxloop.fit import Batches, Cooling, EnergyPlan, energy_trainer, take_averaged_model
from boxloop.loop import run
from boxloop.models import EnergyModel, ModuleNetwork
from boxloop.numeric import generator, normal
from boxloop.sample import AnnealingPath, choose_temperatures
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_claim, judge_target, percent, standard_error

Function = Callable[[Tensor], Tensor]
Line = np.ndarray[tuple[int], np.dtype[np.float64]]


# --- Settings ---

MALA = KERNELS["mala"][0]
RING_RADIUS, RING_WIDTH = 2.0, 0.25
RUNG_STEPS = 2
MOST_COMPONENTS = 12
SHORT_STEPS = 5
"""Steps of the chains that do not persist."""


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        family: rows, iterations and seeds of the exponential families.
        rows: numbers of rows of the network energies.
        iterations: of training.
        seeds: data sets of each size.
        repeats: of annealing, with so many chains.
    """

    family: tuple[int, int, int]
    rows: tuple[int, ...]
    iterations: int
    seeds: int
    repeats: tuple[int, int]


QUICK = Size((1000, 500, 2), (250, 1000), 200, 1, (40, 128))
FULL = Size((2000, 800, 8), (250, 1000, 4000), 1000, 3, (300, 256))


# --- Targets with a known normaliser ---


@dataclass(frozen=True)
class Truth:
    """A distribution that can be drawn from and integrated on a grid.

    Args:
        name: in tables.
        columns: 1 or 2.
        draw: (n, stream) -> rows.
        log_prob: normalised, rows -> (n,).
        reach: the grid covers [-reach, reach] in every column.
    """

    name: str
    columns: int
    draw: Callable[[int, Generator], Tensor]
    log_prob: Function
    reach: float

    def grid(self) -> tuple[Tensor, float]:
        """Points and the volume of a cell; the midpoint rule is exact to many digits for smooth densities."""
        m = 2000 if self.columns == 1 else 200
        width = 2.0 * self.reach / m
        line = (torch.arange(m, dtype=torch.float64) + 0.5) * width - self.reach
        return (line[:, None] if self.columns == 1 else torch.cartesian_prod(line, line)), width**self.columns


def two_hills() -> Truth:
    """A mixture of two Gaussians, 0.3 N(-2, 0.4²) + 0.7 N(1.5, 0.8²)."""
    weight, mean, spread = torch.tensor([[0.3, 0.7], [-2.0, 1.5], [0.4, 0.8]], dtype=torch.float64)

    def draw(n: int, stream: Generator) -> Tensor:
        which = torch.multinomial(weight, n, replacement=True, generator=stream)
        return (mean[which] + spread[which] * normal((n,), stream))[:, None]

    def log_prob(rows: Tensor) -> Tensor:
        z = (rows - mean) / spread
        return (weight.log() - spread.log() - 0.5 * z.square() - 0.5 * math.log(2 * math.pi)).logsumexp(1)

    return Truth("two hills", 1, draw, log_prob, 8.0)


def ring() -> Truth:
    """A ring in the plane: an angle, and a radius N(2, 0.25²)."""

    def draw(n: int, stream: Generator) -> Tensor:
        angle = 2.0 * math.pi * torch.rand(n, generator=stream, dtype=torch.float64)
        radius = RING_RADIUS + RING_WIDTH * normal((n,), stream)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)

    def log_prob(rows: Tensor) -> Tensor:
        radius = rows.norm(dim=1)
        ends = [-0.5 * ((sign * radius - RING_RADIUS) / RING_WIDTH).square() for sign in (1.0, -1.0)]
        level = math.log(RING_WIDTH * math.sqrt(2 * math.pi)) + math.log(2 * math.pi)
        return torch.logaddexp(*ends) - level - radius.log()

    return Truth("ring", 2, draw, log_prob, 5.0)


def quartic_well() -> Truth:
    """A member of the quartic family with two shallow wells, drawn by inverting its CDF on a fine grid."""
    theta = torch.tensor([0.3, -1.0, math.log(0.5)], dtype=torch.float64)
    model = family_model(quartic=True)
    here = at(model, theta)
    fine = torch.linspace(-6.0, 6.0, 200_001, dtype=torch.float64)
    density = here.log_density(fine[:, None])
    level = density.logsumexp(0)
    mass = (density - level).exp().cumsum(0)

    def draw(n: int, stream: Generator) -> Tensor:
        chance = torch.rand(n, generator=stream, dtype=torch.float64) * mass[-1]
        return fine[torch.searchsorted(mass, chance).clamp(max=len(fine) - 1)][:, None]

    def log_prob(rows: Tensor) -> Tensor:
        return here.log_density(rows) - level - math.log(float(fine[1] - fine[0]))

    return Truth("quartic well", 1, draw, log_prob, 8.0)


def log_integral(log_density: Function, truth: Truth) -> float:
    """log of an integral over the truth's grid."""
    points, cell = truth.grid()
    with torch.no_grad():
        value = torch.cat([log_density(block) for block in points.split(50_000)])
    return float(value.logsumexp(0)) + math.log(cell)


def kl_divergence(log_density: Function, truth: Truth) -> float:
    """KL(truth || fitted) by quadrature; the fitted density need not be normalised."""
    points, cell = truth.grid()
    with torch.no_grad():
        found = torch.cat([log_density(block) for block in points.split(50_000)])
    log_p = truth.log_prob(points)
    share = log_p.exp() * cell
    level = found.logsumexp(0) + math.log(cell)
    return float((share * (log_p - found + level)).sum() / share.sum())


# --- Exponential families: maximum likelihood by quadrature and by training ---


class Polynomial(nn.Module):
    r"""An exponential family on the line: :math:`E(x) = a x + b x^2 / 2 + e^c x^4 / 4`, or without the last term.

    Args:
        quartic: with :math:`x^4`; else b is :math:`e^b`, a Gaussian.
    """

    def __init__(self, quartic: bool) -> None:
        super().__init__()
        self.quartic = quartic
        self.theta = nn.Parameter(torch.zeros(3 if quartic else 2, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 1) -> (n,)."""
        x = rows[:, 0]
        if not self.quartic:
            return self.theta[0] * x + 0.5 * self.theta[1].exp() * x.square()
        return self.theta[0] * x + 0.5 * self.theta[1] * x.square() + 0.25 * self.theta[2].exp() * x**4


def family_model(quartic: bool) -> EnergyModel:
    """An exponential family as an energy without a base density: it is normalisable by itself."""
    network, parameters = ModuleNetwork.from_module(Polynomial(quartic), torch.float64, torch.device("cpu"))
    return EnergyModel.from_network(network, parameters, columns=1)


def at(model: EnergyModel, point: Tensor) -> EnergyModel:
    """The model at other parameters, given as one vector; differentiable."""
    parts = point.split([value.numel() for value in model.parameters])
    return model.with_trainable(
        tuple(part.view_as(like) for part, like in zip(parts, model.parameters, strict=True))
    )


def maximise_likelihood(model: EnergyModel, rows: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
    """Maximum likelihood by quadrature, and the standard errors of its parameters."""
    points, cell = truth.grid()

    def loss(point: Tensor) -> Tensor:
        here = at(model, point)
        level = (-here.potential(points)).logsumexp(0) + math.log(cell)
        return here.potential(rows).mean() + level

    def both(value: Line) -> tuple[float, Line]:
        leaf = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        found = loss(leaf)
        return float(found.detach()), torch.autograd.grad(found, leaf)[0].numpy().reshape(-1)

    start = np.zeros(sum(value.numel() for value in model.parameters))
    best = torch.from_numpy(minimize(both, start, jac=True, method="BFGS", options={"gtol": 1e-10}).x)
    curvature = torch.autograd.functional.hessian(loss, best)
    return best, torch.linalg.inv(curvature * len(rows)).diagonal().sqrt()


def train_family(quartic: bool, rows: Tensor, iterations: int, seed: int) -> tuple[EnergyModel, Tensor]:
    """An exponential family trained on whole batches with persistent chains: the model and its parameters."""
    model = family_model(quartic)
    plan = EnergyPlan(Cooling(0.05, iterations), chains=1024, steps=5, restart=0.0)
    batches = Batches(ArraySource(rows), len(rows))
    base = reference_distribution(model)
    trainer = energy_trainer(model, batches, MALA, base, plan, buffer=1024, random_state=seed)
    state = run(trainer, trainer.start(seed), max_iter=iterations).state
    (average,) = take_averaged_model(model, state).parameters
    return model, average


def fit_families(size: Size, seed: int) -> dict[str, dict[str, list[float]]]:
    """Trained parameters less those of maximum likelihood, in standard errors of the latter."""
    n, iterations, repeats = size.family
    truth = quartic_well()
    found: dict[str, dict[str, list[float]]] = {}
    rows = truth.draw(n, generator(seed))
    for name, quartic in (("Gaussian", False), ("quartic", True)):
        for repeat in range(repeats):
            model, point = train_family(quartic, rows, iterations, seed + repeat)
            if repeat == 0:
                best, error = maximise_likelihood(model, rows, truth)
            for j, gap in enumerate(((point - best) / error).tolist()):
                found.setdefault(name, {}).setdefault(f"theta {j + 1}", []).append(gap)
    return found


# --- The identity of section 1.1, and log Z by annealing ---


def gradient_errors(model: EnergyModel, truth: Truth, stream: Generator) -> tuple[float, float]:
    r"""The identity :math:`\nabla \log Z = -E[\nabla E]` at a model, both sides by quadrature and by annealed draws.

    Returns:
        Largest relative difference between a central difference of log Z and the mean of the gradient, over random
        directions; and the z-score of the same mean over draws, in the first of them.
    """
    point = torch.cat([value.reshape(-1) for value in model.parameters])
    points, _ = truth.grid()
    worst, step, score = 0.0, 1e-4, 0.0
    for trial in range(5):
        way = nn.functional.normalize(normal(tuple(point.shape), stream), dim=0)
        ends = [log_integral(at(model, point + sign * step * way).log_density, truth) for sign in (1.0, -1.0)]
        slope = (ends[0] - ends[1]) / (2.0 * step)
        density = model.log_density(points)
        share = (density - density.logsumexp(0)).exp()
        mean = -float(share @ _directional_derivative(model, way, points))
        worst = max(worst, abs(slope - mean) / max(abs(mean), 1e-3))
        if trial == 0:
            drawn = -_directional_derivative(
                model,
                way,
                anneal_chains(model, ChainSettings.from_kernel("mala", truth.columns), 2000, stream)[1],
            )
            score = float((drawn.mean() - mean) / (drawn.std() / len(drawn) ** 0.5))
    return worst, score


def _directional_derivative(model: EnergyModel, way: Tensor, rows: Tensor) -> Tensor:
    """Derivative of the potential in the parameters along a direction, at each row: two backward passes."""
    point = torch.cat([value.reshape(-1) for value in model.parameters]).requires_grad_()
    found = []
    for part in rows.split(50_000):
        dual = torch.zeros(len(part), dtype=part.dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(at(model, point).potential(part) @ dual, point, create_graph=True)
        found.append(torch.autograd.grad(slope @ way, dual)[0])
    return torch.cat(found)


def partition_trials(
    model: EnergyModel, truth: Truth, repeats: int, chains: int, stream: Generator
) -> tuple[list[float], list[float], list[float]]:
    """Repeated annealing against quadrature: z-scores, ratios of Z to the truth, and reported errors."""
    exact = log_integral(model.log_density, truth)
    base = reference_distribution(model)
    ladder = choose_temperatures(model.log_density, base, MALA, random_state=stream)
    bridge = AnnealingPath(model.log_density, base, MALA, RUNG_STEPS)
    found = [bridge.anneal_chains(base.draw(chains, stream)[0], ladder, stream) for _ in range(repeats)]
    scores = [(f.log_mean - exact) / f.error for f in found]
    return scores, [math.exp(f.log_mean - exact) for f in found], [f.error for f in found]


def check_log_partition(size: Size, fits: dict[str, EnergyBasedModel], seed: int) -> dict[str, Any]:
    """The identity and annealing at the last fit of each target."""
    stream = generator(seed)
    found: dict[str, Any] = {}
    for truth in (two_hills(), ring()):
        model = fits[truth.name].model_
        zero, one = torch.zeros_like(model.origin), torch.ones_like(model.scale)
        model = replace(model, origin=zero, scale=one, draws=None)  # of the standardised rows
        identity, score = gradient_errors(model, truth, stream)
        scores, ratios, errors = partition_trials(model, truth, *size.repeats, stream)
        found[truth.name] = {
            "identity": identity,
            "identity z": score,
            "z": scores,
            "ratio": ratios,
            "error": errors,
        }
    return found


# --- Network energies against Gaussian mixtures ---


def fit_network(
    truth: Truth, n: int, iterations: int, seed: int, *, restart: float = 0.02, steps: int = 10
) -> EnergyBasedModel:
    """A network energy fitted to n rows of a target."""
    rows = truth.draw(n, generator(seed))
    return EnergyBasedModel(
        hidden=(32, 32) if truth.columns == 1 else (64, 64),
        max_iter=iterations,
        learning_rate=0.01,
        restart=restart,
        steps=steps,
        partition_chains=512,
        random_state=seed,
    ).fit(rows.numpy())


def mixture_kl(truth: Truth, n: int, seed: int) -> float:
    """KL of the Gaussian mixture with the best BIC on the same rows."""
    rows = truth.draw(n, generator(seed)).numpy()
    fits = [Peer(k, n_init=2, random_state=0).fit(rows) for k in range(1, MOST_COMPONENTS + 1)]
    best = min(fits, key=lambda fit: float(fit.bic(rows)))
    return kl_divergence(lambda x: torch.from_numpy(best.score_samples(x.numpy())), truth)


Curves = dict[str, dict[str, dict[str, list[float]]]]


def measure_divergence(
    size: Size, seed: int, report: Callable[[str], None]
) -> tuple[Curves, dict[str, EnergyBasedModel]]:
    """KL(truth || fitted) for every target, method, number of rows and seed; and the last fit of each target."""
    curves: Curves = {}
    last: dict[str, EnergyBasedModel] = {}
    for truth in (two_hills(), ring()):
        panel = curves.setdefault(truth.name, {"energy": {}, "Gaussian mixture": {}})
        for n in size.rows:
            for s in range(seed, seed + size.seeds):
                report(f"{truth.name}, {n} rows")
                fit = fit_network(truth, n, size.iterations, s)
                last[truth.name] = fit
                kl = kl_divergence(lambda x, fit=fit: -fit.model_.energy(x), truth)  # type: ignore[misc]
                panel["energy"].setdefault(str(n), []).append(kl)
                panel["Gaussian mixture"].setdefault(str(n), []).append(mixture_kl(truth, n, s))
    return curves, last


# --- Findings ---


def judge_families(family: dict[str, dict[str, list[float]]]) -> list[Finding]:
    """Maximum likelihood is found."""
    findings = []
    for name, gaps in family.items():
        whole = np.array(list(gaps.values()))
        findings.append(
            Finding(
                f"{name} exponential family, trained parameters",
                "those of maximum likelihood",
                f"{np.abs(whole.mean(1)).max():.3f} standard errors apart at most",
                float(np.max([standard_error(row) for row in whole])),
                judge_claim(bool(np.abs(whole.mean(1)).max() < 0.5)),
                f"Root mean square {np.sqrt((whole**2).mean()):.3f} over {whole.shape[1]} trainings on the same rows; "
                "maximum likelihood by quadrature.",
            )
        )
    return findings


def judge_identity(checks: dict[str, Any]) -> list[Finding]:
    """The gradient of section 1.1."""
    worst = max(check["identity"] for check in checks.values())
    scores = [check["identity z"] for check in checks.values()]
    return [
        Finding(
            "gradient of log Z against the mean of -grad E",
            "equal",
            f"largest relative difference {worst:.1e}",
            None,
            "reproduced" if worst < 1e-5 else "not reproduced",
            "Central differences of log Z by quadrature, five random directions at each fitted network; the same mean "
            f"over 2000 annealed draws has z = {', '.join(f'{z:.1f}' for z in scores)}.",
            exact=True,
        )
    ]


def judge_divergence(kl: Curves) -> list[Finding]:
    """The fitted density is the truth's, and nearer with more rows."""
    findings = []
    for name, panel in kl.items():
        few, many = (list(panel["energy"].values())[i] for i in (0, -1))
        peer = list(panel["Gaussian mixture"].values())[-1]
        n = list(panel["energy"])[-1]
        findings.append(
            Finding(
                f"{name}: KL(truth, fitted) of a network energy at {n} rows",
                "a flexible model whose density can be trained without Z",
                f"{np.mean(many):.4f}",
                standard_error(many) if len(many) > 1 else None,
                judge_claim(bool(np.mean(many) < 0.05)),
                f"{np.mean(few):.4f} at {next(iter(panel['energy']))} rows. The Gaussian mixture of best BIC has "
                f"{np.mean(peer):.4f}"
                + (
                    ": it is the truth's own family here."
                    if name == "two hills"
                    else ": it must tile the ring."
                ),
            )
        )
    return findings


def judge_partition(checks: dict[str, Any]) -> list[Finding]:
    """log Z by annealing has the error that it reports."""
    findings = []
    for name, check in checks.items():
        z, ratio = np.array(check["z"]), np.array(check["ratio"])
        covered = float((np.abs(z) < 1.96).mean())
        margin = 4.0 * (0.95 * 0.05 / len(z)) ** 0.5
        bias = float((ratio.mean() - 1.0) / standard_error(ratio))
        findings.append(
            Finding(
                f"{name}: log Z by annealing within 1.96 reported errors of quadrature",
                "not in the document; 95%",
                percent(covered),
                float((covered * (1.0 - covered) / len(z)) ** 0.5),
                judge_target(abs(covered - 0.95) < margin and abs(bias) < 4.0),
                f"Mean of Z over its true value {ratio.mean():.4f} (z = {bias:.1f}: unbiased); median reported error "
                f"{np.median(check['error']):.3f}; sd of the z-scores {z.std():.2f}.",
            )
        )
    return findings


def judge_short_chains(short: float, persistent: list[float]) -> Finding:
    """Without persistence the chains do not reach the model."""
    return Finding(
        f"two hills: chains that start anew each iteration, {SHORT_STEPS} steps",
        "draws of the model are required",
        f"KL {short:.3g}, persistent chains {np.mean(persistent):.4f}",
        None,
        judge_claim(short > 5.0 * float(np.mean(persistent))),
        "They do not reach the model's distribution: training makes the short run look like the data, and the density "
        "wrong.",
    )


# --- Figure ---


def draw_figure(
    line: Truth,
    plane: Truth,
    fits: Mapping[str, EnergyBasedModel],
    short: EnergyBasedModel,
    kl: Mapping[str, Mapping[str, Mapping[str, list[float]]]],
    checks: Mapping[str, Mapping[str, list[float]]],
) -> Figure:
    """Four panels.

    Args:
        line: the target with one column.
        plane: the target with two.
        fits: fitted with persistent chains, by target.
        short: fitted to the first with chains that start anew.
        kl: divergences by target, method and rows.
        checks: z-scores of log Z by target.
    """
    figure = new_figure(11.0, 8.0)
    axes: Any = figure.subplots(2, 2)
    _draw_densities(axes[0, 0], line, fits[line.name], short)
    _draw_plane(figure, axes[0, 1], plane, fits[plane.name])
    _draw_divergence(axes[1, 0], kl)
    _draw_scores(axes[1, 1], checks)
    return figure


def _draw_densities(axis: Any, truth: Truth, fit: EnergyBasedModel, short: EnergyBasedModel) -> None:
    x = torch.linspace(-4.5, 5.0, 600, dtype=torch.float64)[:, None]
    axis.plot(x, truth.log_prob(x).exp(), color=INK, lw=2.2, label="truth")
    lines = (("persistent chains", fit, COLOURS[0], "-"), ("chains that start anew", short, COLOURS[1], "--"))
    for name, estimator, colour, style in lines:
        level = log_integral(lambda rows, e=estimator: -e.model_.energy(rows), truth)  # type: ignore[misc]
        axis.plot(
            x, (-estimator.model_.energy(x) - level).exp(), color=colour, linestyle=style, lw=1.6, label=name
        )
    dress(axis, "Two hills: the fitted density", "x", "density")
    axis.set_ylim(0.0, 0.8)  # the narrow density goes on above
    add_legend(axis, "upper right")


def _draw_plane(figure: Figure, axis: Any, truth: Truth, fit: EnergyBasedModel) -> None:
    side = np.linspace(-3.4, 3.4, 160)
    points = torch.from_numpy(np.stack(np.meshgrid(side, side), -1).reshape(-1, 2))
    level = log_integral(lambda rows: -fit.model_.energy(rows), truth)
    density = (-fit.model_.energy(points) - level).exp().reshape(160, 160)
    mesh = axis.pcolormesh(side, side, density, cmap="viridis", shading="auto", rasterized=True)
    for radius in (1.5, 2.5):
        axis.add_patch(Circle((0.0, 0.0), radius, fill=False, color="white", linestyle="--", linewidth=1.0))
    figure.colorbar(mesh, ax=axis, label="density")
    dress(axis, "Ring: the fit (dashed: truth ± 2 sd)", "x0", "x1")
    axis.grid(visible=False)
    axis.set_aspect("equal")


def _draw_divergence(axis: Any, kl: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> None:
    for j, (target, panel) in enumerate(kl.items()):
        for method, style in (("energy", "-"), ("Gaussian mixture", "--")):
            rows = [int(n) for n in panel[method]]
            values = [np.asarray(v) for v in panel[method].values()]
            error = [v.std() / max(len(v) - 1, 1) ** 0.5 for v in values]
            axis.errorbar(
                rows,
                [v.mean() for v in values],
                yerr=error,
                color=COLOURS[j],
                linestyle=style,
                marker="o",
                markersize=4,
                label=f"{target}, {method}",
            )
    axis.set(xscale="log", yscale="log")
    dress(axis, "Divergence against rows", "rows", "KL(truth, fitted)")
    axis.set_xticks(rows, [str(n) for n in rows])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    axis.set_ylim(low, 12.0 * high)  # room for the legend above the lines
    add_legend(axis, "upper right")


def _draw_scores(axis: Any, checks: Mapping[str, Mapping[str, list[float]]]) -> None:
    x = np.linspace(-4.0, 4.0, 200)
    for colour, (name, check) in zip(COLOURS, checks.items()):
        bins = np.linspace(-4.0, 4.0, 25)
        axis.hist(np.clip(check["z"], -4, 4), bins, density=True, color=colour, alpha=0.45, label=name)
    axis.plot(x, norm.pdf(x), color=FAINT, lw=2, label="N(0, 1)")
    dress(axis, "log Z by annealing against quadrature", "(estimate - exact) / reported error", "density")
    add_legend(axis, "upper right")


def experiment(options: Options) -> Report:
    """Train, integrate, compare."""
    size = QUICK if options.quick else FULL
    total = 3 + 2 * len(size.rows) * size.seeds
    done = 0

    def report(what: str) -> None:
        nonlocal done
        options.progress(done, total, what)
        done += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # short runs on purpose
        report("exponential families")
        family = fit_families(size, options.seed)
        kl, fits = measure_divergence(size, options.seed, report)
        report("chains that do not persist")
        n = max(size.rows)
        short = fit_network(two_hills(), n, size.iterations, options.seed, restart=1.0, steps=SHORT_STEPS)
    report("annealing")
    checks = check_log_partition(size, fits, options.seed)
    short_kl = kl_divergence(lambda x: -short.model_.energy(x), two_hills())
    findings = [
        *judge_families(family),
        *judge_identity(checks),
        *judge_divergence(kl),
        *judge_partition(checks),
    ]
    findings.append(judge_short_chains(short_kl, kl["two hills"]["energy"][str(n)]))
    settings = {
        "rows of the families": size.family[0],
        "rows": list(size.rows),
        "iterations": size.iterations,
        "data sets": size.seeds,
        "annealings": size.repeats[0],
        "chains of each": size.repeats[1],
        "seed": options.seed,
    }
    curves = {"families": family, "divergence": kl, "checks": checks, "short run divergence": short_kl}
    figures = {"fits": draw_figure(two_hills(), ring(), fits, short, kl, checks)}
    return Report("energy-model", "Energy-based models", settings, findings, curves, figures)
