"""The number of components of a mixture of digits by moment gaps: signal and noise; Beaulac (2023), table 3."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Generator, Tensor

from boxloop.criticise import draw_rows, mmd
from boxloop.data import load_dataset
from boxloop.estimators import FitWarning, GaussianMixture
from boxloop.figures import COLOURS, FAINT, INK, dress, new_figure
from boxloop.models import Mixture
from boxloop.numeric import generator, gram, spawn
from papers.experiment import Finding, Options, Report
from papers.moment_gaps import ComponentMoments, data_moments, gap_norms
from papers.verdicts import judge_claim, judge_target, percent, standard_error

PAPER = {
    2: (0.24997, 2.92841, 0.0131),
    4: (0.26690, 3.03136, 0.0111),
    6: (0.25780, 2.92541, 0.0121),
    8: (0.26220, 3.00054, 0.0108),
    10: (0.23851, 2.82369, 0.0089),
    12: (0.26363, 3.09360, 0.0104),
    14: (0.24450, 2.92585, 0.0084),
}
"""Table 3: 1MEGA-F, 2MEGA-F and MMD by K."""


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        train: rows to fit.
        test_rows: rows of a test sample.
        nodes: m.
        components: values of K.
        iterations: of EM.
        repetitions: of test samples and nodes.
        starts: of the fits with diagonal covariances, whose gap depends on the maximum that EM finds.
    """

    train: int
    test_rows: int
    nodes: int
    components: tuple[int, ...]
    iterations: int
    repetitions: int
    starts: int


def load_digits(folder: Path | None) -> tuple[Tensor, str]:
    """Pixels in [0, 1], one row an image: MNIST where it is at hand, else the small digits of scikit-learn."""
    if folder is not None and (folder / "mnist.npz").exists():
        with np.load(folder / "mnist.npz") as file:
            return torch.from_numpy(file["train_images"].reshape(-1, 784) / 255.0), "MNIST"
    return torch.from_numpy(
        load_dataset("digits").rows / 16.0
    ), "scikit-learn's digits, 8 x 8 (no MNIST given)"


def fit_with_em(rows: Tensor, k: int, kind: str, iterations: int, seed: int) -> Mixture[Any]:
    """EM from k-means, stopped after a few iterations: the identity of moments holds after any M step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # few rows for so many pixels
        warnings.simplefilter("ignore", ConvergenceWarning)  # few iterations
        estimator = GaussianMixture(
            k, covariance_type=kind, init_params="kmeans", max_iter=iterations, random_state=seed
        )
        return estimator.fit(rows.numpy()).model_


def measure_k(
    train: Tensor, fresh: list[tuple[Tensor, Tensor]], rows: Tensor, k: int, size: Size, seed: int
) -> dict[str, Any]:
    """Gaps and MMD of one K."""
    streams = spawn(generator(seed + 1000 * k), 2)
    full = fit_with_em(train, k, "full", size.iterations, seed)
    moments, train_moments = ComponentMoments.of(full), (train.mean(0), gram(train) / len(train))
    sample = draw_rows(full, len(rows), streams[0])
    distance = mmd(rows, sample, random_state=seed)
    document = [gap_norms(test, moments.estimate_forward(size.nodes, streams[1])) for test in fresh]
    exact = gap_norms(train_moments, moments.combine(moments.weight))
    del moments  # k d^2 numbers, before those of the next fits
    starts = (
        ComponentMoments.of(fit_with_em(train, k, "diag", 6 * size.iterations, seed + i))
        for i in range(size.starts)
    )
    diagonal = [gap_norms(train_moments, start.combine(start.weight)) for start in starts]
    return {
        "document": document,
        "exact": exact,
        "exact, diagonal": np.mean(diagonal, axis=0).tolist(),
        "error, diagonal": standard_error([gaps[1] for gaps in diagonal]),
        "MMD": (float(distance.value), distance.standard_error),
    }


def _floor(rows: Tensor, size: Size, stream: Generator) -> tuple[float, float]:
    """Distance between the moments of two samples of rows: no model can be nearer except by chance."""
    order = torch.randperm(len(rows), generator=stream)
    few, many = rows[order[: size.test_rows]], rows[order[size.test_rows :][: size.nodes]]
    return gap_norms(data_moments(few), (many.mean(0), gram(many) / len(many)))


def judge(
    table: dict[int, dict[str, Any]], sampling_floor: NDArray[np.float64], size: Size, real: bool
) -> list[Finding]:
    """The paper's numbers beside the sampling floor and the exact gaps."""
    estimates, components = _document(table), np.asarray(list(table))
    findings = []
    for which, name in enumerate(("1MEGA-F", "2MEGA-F")):
        printed = np.asarray([PAPER[k][which] for k in components])
        low, high = estimates[:, :, which].min(), estimates[:, :, which].max()
        level, sd = sampling_floor[:, which].mean(), sampling_floor[:, which].std()
        inside = bool((printed > low).all() and (printed < high).all())
        noise = bool(abs(estimates[:, :, which].mean() - level) < 2 * sd)
        findings.append(
            Finding(
                f"{name}, K = {components[0]} to {components[-1]}, on {size.test_rows} fresh rows with "
                f"m = {size.nodes}",
                f"{printed.min():.3f} to {printed.max():.3f} on MNIST",
                f"{estimates[:, :, which].mean():.3f}, from {low:.3f} to {high:.3f}",
                standard_error(estimates[:, :, which].mean(0)),
                judge_claim(inside) if real else judge_target(noise),
                f"Two samples of {size.test_rows} and {size.nodes} images differ by {level:.3f} ± {sd:.3f}, "
                "without "
                + (
                    "any model."
                    if real
                    else "any model; on other images the document's number is not expected."
                ),
            )
        )
    return findings + _choices(table, estimates, components) + _exact(table)


def _choices(
    table: dict[int, dict[str, Any]], estimates: NDArray[np.float64], components: NDArray[np.int64]
) -> list[Finding]:
    chosen = components[estimates[:, :, 1].argmin(0)]
    counts = ", ".join(f"{k}: {percent(float((chosen == k).mean()))}" for k in components)
    distance = np.asarray([facts["MMD"] for facts in table.values()])
    best = components[distance[:, 0].argsort()[:2]]
    near = (distance[:, 0] - distance[:, 0].min() < 2 * distance[:, 1]).sum()
    return [
        Finding(
            "2MEGA-F chooses K = 10",
            "2.82, the smallest of seven",
            f"in {percent(float((chosen == 10).mean()))} of repetitions",
            standard_error(chosen == 10),
            judge_claim(bool((chosen == 10).mean() > 0.5)),
            f"Other rows and nodes choose otherwise, for the same models ({counts}).",
        ),
        Finding(
            "MMD finds 10 and 14 components the best two",
            "0.0089 and 0.0084",
            f"K = {best[0]} and {best[1]}; squared MMD {distance[:, 0].min():.4f} to {distance[:, 0].max():.4f}",
            float(distance[:, 1].mean()),
            judge_claim(set(best.tolist()) == {10, 14}),
            f"{near} of {len(components)} values of K are within two standard errors of the best.",
        ),
    ]


def _exact(table: dict[int, dict[str, Any]]) -> list[Finding]:
    full = np.asarray([facts["exact"] for facts in table.values()])
    diagonal = np.asarray([facts["exact, diagonal"][1] for facts in table.values()])
    falls = bool((np.diff(diagonal) < 0).all())
    return [
        Finding(
            "exact second gap on the training rows depends on K, full covariance",
            "2.82 to 3.09",
            f"{full[:, 1].min():.1e} to {full[:, 1].max():.1e} (first: at most {full[:, 0].max():.0e})",
            None,
            judge_claim(bool(np.ptp(full[:, 1]) > 0.01)),
            "Zero but for the floor of variances, whatever K is: the document's spread over K is Monte Carlo noise.",
            exact=True,
        ),
        Finding(
            "exact second gap on the training rows falls with K, diagonal covariance",
            "not in the document",
            ", ".join(f"{value:.2f}" for value in diagonal),
            float(np.mean([facts["error, diagonal"] for facts in table.values()])),
            judge_target(falls),
            "Components that cannot tilt leave correlations to their means: the gap is real, and its mean over starts "
            + ("falls at every step." if falls else "falls, though not at every step."),
        ),
    ]


def _document(table: dict[int, dict[str, Any]]) -> NDArray[np.float64]:
    """(K, repetitions, 2)."""
    return np.asarray([facts["document"] for facts in table.values()])


def draw(
    table: dict[int, dict[str, Any]], sampling_floor: NDArray[np.float64], size: Size, real: bool
) -> Figure:
    """The paper's estimate, the sampling floor and exact gaps against K, both moments."""
    figure = new_figure(10.4, 4.8)
    axes: Any = figure.subplots(1, 2)
    estimates, components = _document(table), list(table)
    for which, (axis, name) in enumerate(zip(axes, ("first moment (1MEGA-F)", "second moment (2MEGA-F)"))):
        level, sd = sampling_floor[:, which].mean(), sampling_floor[:, which].std()
        axis.axhspan(
            level - 2 * sd,
            level + 2 * sd,
            color=FAINT,
            alpha=0.4,
            lw=0,
            label="two samples of images (mean ± 2 sd)",
        )
        axis.errorbar(
            components,
            estimates[:, :, which].mean(1),
            2 * estimates[:, :, which].std(1),
            color=COLOURS[0],
            fmt="o",
            capsize=3,
            label=f"document's estimate, {size.test_rows} rows, m = {size.nodes} (± 2 sd)",
        )
        if real:
            axis.plot(
                components,
                [PAPER[k][which] for k in components],
                "x",
                color=COLOURS[1],
                markersize=8,
                label="document's table 3",
            )
        for key, colour in (("exact, diagonal", COLOURS[2]), ("exact", INK)):
            label = f"exact, on the training rows, {'full' if key == 'exact' else 'diagonal'} covariance"
            values = [facts[key][which] for facts in table.values()]
            axis.plot(components, values, "s-", color=colour, markersize=4, label=label)
        axis.set(xticks=components)
        dress(axis, name, "number of components K", "norm of the gap")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def experiment(options: Options) -> Report:
    """Fit every K once, then repeat the choice of rows and nodes."""
    rows, source = load_digits(options.data)
    size = Size(5000, 1000, 5000, tuple(PAPER), 5, 40, 5)
    if options.quick or len(rows) < 10_000:
        small = options.quick
        size = Size(
            1200,
            240,
            1200,
            (2, 6, 10) if small else tuple(PAPER),
            5,
            20 if small else 200,
            2 if small else 10,
        )
    order = torch.randperm(len(rows), generator=generator(options.seed))
    train, pool = rows[order[: size.train]], rows[order[size.train :]]
    stream = generator(options.seed + 1)
    picks = [torch.randperm(len(pool), generator=stream)[: size.test_rows] for _ in range(size.repetitions)]
    fresh = [data_moments(pool[pick]) for pick in picks]
    table: dict[int, dict[str, Any]] = {}
    for i, k in enumerate(size.components):
        options.progress(i, len(size.components), f"K = {k}")
        table[k] = measure_k(train, fresh, pool[picks[0]], k, size, options.seed)
    sampling_floor = np.asarray([_floor(rows, size, stream) for _ in range(size.repetitions)])
    settings = {
        "data": source,
        "training rows": size.train,
        "test rows": size.test_rows,
        "m": size.nodes,
        "K": list(size.components),
        "EM iterations": size.iterations,
        "repetitions": size.repetitions,
        "starts, diagonal": size.starts,
        "seed": options.seed,
    }
    curves = {"K": {str(k): facts for k, facts in table.items()}, "floor": sampling_floor.tolist()}
    real = source == "MNIST"
    findings = judge(table, sampling_floor, size, real)
    figures = {"gaps": draw(table, sampling_floor, size, real)}
    return Report("mega-mnist", "Moment gaps of mixtures of digits", settings, findings, curves, figures)
