"""The pictures of a report, each with words for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from boxloop import figures
from boxloop.criticise import Gap, Mega, calibration
from boxloop.estimators import BayesianGaussianMixture, GaussianMixture
from boxloop.numeric import format_number, format_with_error, join_words
from boxloop.report.examine import Findings, name_columns, select_criticised_part
from boxloop.report.explain import Explanation
from boxloop.report.outliers import Outliers
from boxloop.report.read import Array

Tooltip = tuple[float, float, str]
"""Share of the width from the left, share of the height from the top, words."""

MOST_TOOLTIPS = 600
"""Of one picture: more would make the page heavy and could not be distinguished by pointing."""
PAGE_DPI = 110
"""Enough for a screen, and a page of all pictures stays below two megabytes."""
PAIRED = 4
"""Most columns of the pair plot."""


@dataclass(frozen=True)
class Picture:
    """A PNG, by its place on the page, with a caption, a description in words and tooltips."""

    key: str
    png: bytes
    caption: str
    alt: str
    tooltips: tuple[Tooltip, ...] = ()


def draw_pictures(found: Findings, parts: Explanation, outliers: Outliers) -> dict[str, Picture]:
    """All pictures by key."""
    drawn = [*_draw_candidates(found), *_draw_parts(found, parts), *_draw_gaps(found)]
    return {picture.key: picture for picture in [*drawn, _draw_outliers(found, outliers)]}


def draw_overview(found: Findings) -> bytes:
    """What the candidates did and where the chosen one fails, as one PNG for the terminal's user."""
    figure = figures.new_figure(12.6, 5.0)
    left, right = figure.subplots(1, 2)
    plot_candidates(found, left)
    found.model.criticism.plot(right)
    return figures.png(figure)


def _draw_candidates(found: Findings) -> Iterator[Picture]:
    chosen = found.trials[found.chosen].candidate
    description = (
        f"Held-out log-likelihood of {len(found.trials)} candidates by size; {chosen.name} is chosen."
    )
    caption = "Each point is one candidate; bars are one standard error."
    axes = plot_candidates(found)
    if found.set_aside:
        below = int((-found.behind_best[list(found.set_aside), 0] < axes.get_ylim()[0]).sum())
        caption += f" Crosses are the {len(found.set_aside)} set aside, as their components collapsed"
        caption += f"; {below} of them lie below the picture." if below else "."
    yield Picture("curve", _render_png(axes), caption, description, candidate_tooltips(found, axes))
    if len(found.finalists) > 1:
        yield Picture(
            "path",
            _render_png(found.path.plot()),
            "The finalists when each pays for its moment gaps on the held-out rows: Beaulac (2023), eq. 17.",
            f"Chosen as the penalty grows: {', then '.join(map(str, found.path.chosen))}.",
        )


def plot_candidates(found: Findings, ax: Any = None) -> Any:
    """Held-out log-likelihood of every candidate by size, less the best's."""
    by_family: dict[str, list[int]] = {}
    for place, trial in enumerate(found.trials):
        by_family.setdefault(trial.candidate.family, []).append(place)
    lines = {}
    for family, places in by_family.items():
        sizes = np.array([found.trials[p].candidate.size_in_use for p in places])
        heights = np.where(found.eligible[places], -found.behind_best[places, 0], np.nan)
        lines[family] = (sizes, heights, found.behind_best[places, 1])
    chosen = found.trials[found.chosen].candidate
    ring = (float(chosen.size_in_use), -float(found.behind_best[found.chosen, 0]))
    aside = list(found.set_aside)
    axes = figures.curves(
        lines,
        ax,
        best=ring,
        label="chosen",
        crosses=([found.trials[p].candidate.size_in_use for p in aside], -found.behind_best[aside, 0]),
        crosses_label="set aside",
        title="Held-out rows choose the size",
        across=_describe_sizes(found),
        up="log-likelihood per row, less the best's",
    )
    heights = -found.behind_best[found.eligible, 0]
    low = float(np.quantile(heights, 0.25))
    axes.set_ylim(bottom=min(1.3 * low, ring[1] - 0.1 * abs(low) - 1e-9))
    return axes


def _describe_sizes(found: Findings) -> str:
    """What the sizes of the candidates count."""
    words = dict.fromkeys(f"{trial.candidate.unit}s" for trial in found.trials)
    units = join_words(list(words), "or")
    in_use = any(trial.candidate.used for trial in found.trials)
    return f"{units} (of the Bayesian mixture: in use)" if in_use else units


def _draw_parts(found: Findings, parts: Explanation) -> Iterator[Picture]:
    estimator, rows, names = found.model.estimator, found.table.rows, found.table.names
    if parts.kind != "component" and parts.has_errors:
        axes = figures.loadings(
            parts.values,
            names,
            parts.errors,
            title=f"Which columns {'load on' if parts.kind == 'factor' else 'go with'} which {parts.kind}",
            across=f"correlation of the column with the {parts.kind}",
            word=parts.kind,
        )
        description = f"Correlations of the columns with the {parts.kind}s."
        yield Picture("parts", _render_png(axes), "Bars are two standard errors.", description)
    places = list(parts.order[:PAIRED])
    if isinstance(estimator, GaussianMixture | BayesianGaussianMixture) and len(places) > 1:
        weights, means, covariances, component = describe_gaussian_components(
            estimator, name_columns(rows, names)
        )
        grid = figures.pair_grid(
            rows[:, places],
            weights,
            means[:, places],
            covariances[:, places][:, :, places],
            [names[j] for j in places],
            component=component,
        )
        description = f"Components over the rows in {', '.join(names[j] for j in places)}."
        caption = "Colours are components; ellipses hold one and two standard deviations."
        yield Picture("pairs", _render_png(grid.flat[0]), caption, description)
    yield _draw_beside_data(found, places[:2] if len(places) > 1 else places)


def _draw_beside_data(found: Findings, places: list[int]) -> Picture:
    """Data and as many rows of the model, in the two columns that distinguish the parts most."""
    data, names = found.table.rows, [found.table.names[j] for j in places]
    drawn = found.sample_model(len(data))
    figure = figures.new_figure(9.0, 3.9)
    left, right = figure.subplots(1, 2, sharex=True, sharey=len(places) > 1)
    for axes, rows, title in ((left, data, "Data"), (right, drawn, "Drawn from the model")):
        shown: Array = rows[:, places]
        shown = shown[np.isfinite(shown).all(1)]
        if len(places) == 1:
            axes.hist(shown[:, 0], bins=40, color=figures.COLOURS[0], alpha=0.7)
        elif len(shown) > 4000:
            axes.hexbin(*shown.T, gridsize=50, mincnt=1, cmap="Greys", linewidths=0.0)
        else:
            axes.scatter(
                *shown.T, s=14, alpha=0.6, color=figures.COLOURS[0], edgecolors="white", linewidths=0.4
            )
        figures.dress(axes, title, names[0], names[1] if len(names) > 1 else "rows")
    return Picture(
        "beside",
        figures.png(figure, PAGE_DPI),
        "If the model fits, the two look alike.",
        f"Rows of the data beside rows drawn from the model, in {join_words(names)}.",
    )


def _draw_gaps(found: Findings) -> Iterator[Picture]:
    criticism = found.model.criticism
    caption = "Gaps in units of their errors: within 2 is chance."
    for place, finalist in enumerate(found.finalists):
        axes = finalist.criticism.plot()
        yield Picture(
            f"worst {place}",
            _render_png(axes),
            caption,
            f"The moments with the largest gaps between data and {finalist.trial.candidate.name}.",
            gap_tooltips(finalist.criticism, axes),
        )
    if len(found.table.names) > 1:
        axes = criticism["second"].plot()
        description = (
            "Variances and covariances: where the model has too little (purple) or too much (orange)."
        )
        alt = "Heat map of z-scores of all pairs of columns."
        yield Picture("heat", _render_png(axes), description, alt, pair_tooltips(criticism["second"], axes))
    held = name_columns(found.table.rows[found.held_out], found.table.names)
    axes = calibration(found.model.estimator, held, random_state=found.seed).plot()
    caption = "Lines of a true model stay in the band, but for the error of its fit; above, it puts too little below."
    yield Picture(
        "probability", _render_png(axes), caption, "Observed less nominal probabilities of every column."
    )


def _draw_outliers(found: Findings, outliers: Outliers) -> Picture:
    axes = figures.outlier_scores(
        outliers.log_density,
        outliers.threshold,
        places=found.table.row_numbers,
        title="Rows by log-density under the model",
        up="log-density",
    )
    return Picture(
        "outliers",
        _render_png(axes),
        "Rows at the bottom are the least likely.",
        "Log-density of every row.",
        outlier_tooltips(found, outliers, axes),
    )


def _render_png(axes: Any) -> bytes:
    return figures.png(axes, PAGE_DPI)


def draw_criticism(result: Mega) -> bytes:
    """The z-scores of second moments as a heat map, and the worst moments of all with their errors, as a PNG."""
    pairs = next((g for g in result.gaps if g.gap.dim() == 2), None)
    wide = pairs is not None
    figure = figures.new_figure(12.6 if wide else 7.0, 6.0)
    axes = figure.subplots(1, 2 if wide else 1, squeeze=False, width_ratios=[1.0, 1.15] if wide else None)
    if pairs is not None:
        pairs.plot(axes[0][0])
    result.plot(axes[0][-1])
    chance = "" if result.p_value is None else f"; all tests together: p = {result.p_value:.3g}"
    figure.suptitle(f"Data minus model on {result.n_rows} rows{chance}", color=figures.INK, fontsize=12)
    return figures.png(figure)


def describe_gaussian_components(estimator: Any, rows: Any) -> tuple[Array, Array, Array, Any]:
    """Weights (k,), means (k, d) and covariances (k, d, d) of a Gaussian mixture, and the component of each row."""
    share = estimator.predict_proba(rows)
    if isinstance(estimator, BayesianGaussianMixture):
        model, share = select_criticised_part(estimator), share[:, estimator.active_]
    else:
        model = estimator.model_
    weights, covariances = np.exp(model.log_weight.numpy()), model.family.covariance().dense().numpy()
    whole = np.broadcast_to(covariances, (len(weights), *covariances.shape[1:]))
    return weights, model.family.mean.numpy(), whole, share.argmax(1)


def place_tooltips(axes: Any, x: ArrayLike, y: ArrayLike, words: Sequence[str]) -> tuple[Tooltip, ...]:
    """Words at points of a picture that has been saved, the most important first; none outside its axes."""
    points = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
    figure = axes.get_figure(root=True)
    shares = axes.transData.transform(points) / figure.bbox.size
    inside = axes.transAxes.inverted().transform(shares * figure.bbox.size)
    kept = np.flatnonzero(((inside >= -1e-6) & (inside <= 1 + 1e-6)).all(1))[:MOST_TOOLTIPS]
    return tuple((round(float(shares[i, 0]), 4), round(1.0 - float(shares[i, 1]), 4), words[i]) for i in kept)


def candidate_tooltips(found: Findings, axes: Any) -> tuple[Tooltip, ...]:
    """Every candidate on the curve of held-out likelihoods."""
    sizes = [trial.candidate.size_in_use for trial in found.trials]
    words = [
        f"{trial.candidate.name}: {format_with_error(-behind, error)}"
        f"{', set aside' if place in found.set_aside else ''}"
        for place, (trial, (behind, error)) in enumerate(zip(found.trials, found.behind_best, strict=True))
    ]
    return place_tooltips(axes, sizes, -found.behind_best[:, 0], words)


def gap_tooltips(criticism: Mega, axes: Any) -> tuple[Tooltip, ...]:
    """The moments of the picture of the worst."""
    table = criticism.table()[: len(axes.get_yticks())]
    return place_tooltips(
        axes, table["z"], range(len(table)), [_describe_gap(row) for row in table.to_dict("records")]
    )


def pair_tooltips(gap: Gap, axes: Any) -> tuple[Tooltip, ...]:
    """Every pair of columns, on both sides of the diagonal, the worst first."""
    i, j = np.triu_indices(len(gap.statistic.frame.names))
    z, data, model = (gap.z, gap.statistic.flatten(gap.data), gap.statistic.flatten(gap.model))
    rows = zip(gap.labels, z.tolist(), data.tolist(), model.tolist(), strict=True)
    words = [_describe_gap({"entry": e, "z": s, "data": x, "model": y}) for e, s, x, y in rows]
    order = np.argsort(-np.abs(z.numpy()), kind="stable")
    twice = np.concatenate([order, order[i[order] != j[order]]])
    below = np.arange(len(twice)) >= len(order)
    x, y = np.where(below, i[twice], j[twice]), np.where(below, j[twice], i[twice])
    return place_tooltips(axes, x, y, [words[p] for p in twice.tolist()])


def outlier_tooltips(found: Findings, outliers: Outliers, axes: Any) -> tuple[Tooltip, ...]:
    """The least likely rows."""
    order = np.argsort(outliers.log_density, kind="stable")
    order = order[np.isfinite(outliers.log_density[order])]
    words = [
        f"row {found.table.row_numbers[p]}: log-density {format_number(float(outliers.log_density[p]))}"
        for p in order
    ]
    return place_tooltips(axes, found.table.row_numbers[order], outliers.log_density[order], words)


def _describe_gap(row: dict[str, Any]) -> str:
    kind = f"{row['function']}, " if "function" in row else ""
    value, model = format_number(row["data"], 3), format_number(row["model"], 3)
    return f"{kind}{row['entry']}: data {value}, model {model}, z {row['z']:.1f}"
