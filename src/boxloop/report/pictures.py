"""The pictures of a report, each with words for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from boxloop import figures
from boxloop.criticise import Gap, Mega, calibration
from boxloop.data import open_source
from boxloop.estimators import BayesianGaussianMixture, GaussianMixture
from boxloop.figures import INK, new_figure, png
from boxloop.numeric import format_number, format_with_error, join_words
from boxloop.report.examine import Findings
from boxloop.report.explain import Explanation
from boxloop.report.outliers import Outlying, components
from boxloop.report.read import Array

Spot = tuple[float, float, str]
"""Share of the width from the left, share of the height from the top, words."""

MOST = 600
"""Spots of one picture: more would make the page heavy and could not be told apart by pointing."""


def spots(axes: Any, x: ArrayLike, y: ArrayLike, words: Sequence[str]) -> tuple[Spot, ...]:
    """Where points of a picture lie on it, once it has been drawn; those outside its axes are left out.

    Args:
        axes: matplotlib axes whose figure has been saved, so that nothing moves any more.
        x: of the points, in the axes' coordinates.
        y: of the points.
        words: of the points, the most telling first.
    """
    points = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
    figure = axes.get_figure(root=True)
    shares = axes.transData.transform(points) / figure.bbox.size
    inside = axes.transAxes.inverted().transform(shares * figure.bbox.size)
    kept = np.flatnonzero(((inside >= -1e-6) & (inside <= 1 + 1e-6)).all(1))[:MOST]
    return tuple((round(float(shares[i, 0]), 4), round(1.0 - float(shares[i, 1]), 4), words[i]) for i in kept)


def curve_spots(found: Findings, axes: Any) -> tuple[Spot, ...]:
    """Every candidate on the curve of held-out likelihoods."""
    sizes = [trial.candidate.place for trial in found.trials]
    words = [
        f"{trial.candidate.name}: {format_with_error(-behind, error)}"
        f"{', set aside' if place in found.set_aside else ''}"
        for place, (trial, (behind, error)) in enumerate(zip(found.trials, found.behind, strict=True))
    ]
    return spots(axes, sizes, -found.behind[:, 0], words)


def worst_spots(criticism: Mega, axes: Any) -> tuple[Spot, ...]:
    """The moments of the picture of the worst."""
    table = criticism.table()[: len(axes.get_yticks())]
    return spots(axes, table["z"], range(len(table)), [_gap_words(row) for row in table.to_dict("records")])


def heat_spots(gap: Gap, axes: Any) -> tuple[Spot, ...]:
    """Every pair of columns, on both sides of the diagonal, the worst first."""
    i, j = np.triu_indices(len(gap.statistic.frame.names))
    z, data, model = (gap.z, gap.statistic.flat(gap.data), gap.statistic.flat(gap.model))
    rows = zip(gap.labels, z.tolist(), data.tolist(), model.tolist(), strict=True)
    words = [_gap_words({"entry": e, "z": s, "data": x, "model": y}) for e, s, x, y in rows]
    order = np.argsort(-np.abs(z.numpy()), kind="stable")
    twice = np.concatenate([order, order[i[order] != j[order]]])
    below = np.arange(len(twice)) >= len(order)
    x, y = np.where(below, i[twice], j[twice]), np.where(below, j[twice], i[twice])
    return spots(axes, x, y, [words[p] for p in twice.tolist()])


def outlier_spots(found: Findings, outlying: Outlying, axes: Any) -> tuple[Spot, ...]:
    """The least likely rows."""
    order = np.argsort(outlying.scores, kind="stable")
    order = order[np.isfinite(outlying.scores[order])]
    words = [
        f"row {found.table.places[p]}: log-density {format_number(float(outlying.scores[p]))}" for p in order
    ]
    return spots(axes, found.table.places[order], outlying.scores[order], words)


def _gap_words(row: dict[str, Any]) -> str:
    kind = f"{row['function']}, " if "function" in row else ""
    value, model = format_number(row["data"], 3), format_number(row["model"], 3)
    return f"{kind}{row['entry']}: data {value}, model {model}, z {row['z']:.1f}"


LINES = 12
"""Most candidates in a picture."""
PAGE_DPI = 110
"""Enough for a screen, and a page of all pictures stays below two megabytes."""
PAIRED = 4
"""Most columns of the pair plot."""


@dataclass(frozen=True)
class Picture:
    """A PNG with a caption and a description.

    Args:
        key: where it belongs on the page.
        png: the picture.
        caption: what to look for.
        alt: what it shows, in words.
        spots: what to say of places that a reader points at.
    """

    key: str
    png: bytes
    caption: str
    alt: str
    spots: tuple[Spot, ...] = ()


def pictures(found: Findings, parts: Explanation, outlying: Outlying) -> dict[str, Picture]:
    """All pictures by key."""
    made = [*_comparison(found), *_model(found, parts), *_fit(found), *_rows(found, outlying)]
    return {picture.key: picture for picture in made}


def overview(found: Findings) -> bytes:
    """What the candidates did and where the chosen one fails, as one PNG for the terminal's user."""
    figure = figures.new_figure(12.6, 5.0)
    left, right = figure.subplots(1, 2)
    plot_candidates(found, left)
    found.model.criticism.plot(right)
    return figures.png(figure)


def _comparison(found: Findings) -> Iterator[Picture]:
    chosen = found.trials[found.chosen].candidate
    said = f"Held-out log-likelihood of {len(found.trials)} candidates by size; {chosen.name} is chosen."
    caption = "Each point is one candidate; bars are one standard error."
    axes = plot_candidates(found)
    if found.set_aside:
        below = int((-found.behind[list(found.set_aside), 0] < axes.get_ylim()[0]).sum())
        caption += (
            f" Crosses are the {len(found.set_aside)} that were set aside, as their components collapsed"
        )
        caption += f"; {below} of them lie below the picture." if below else "."
    yield Picture("curve", _png(axes), caption, said, curve_spots(found, axes))
    if len(found.finalists) > 1:
        yield Picture(
            "path",
            _png(found.path.plot()),
            "The finalists when each pays for its moment gaps on the rows that judge (document 000, eq. 17).",
            f"Chosen as the penalty grows: {', then '.join(map(str, found.path.chosen))}.",
        )


def plot_candidates(found: Findings, ax: Any = None) -> Any:
    by_family: dict[str, list[int]] = {}
    for place, trial in enumerate(found.trials):
        by_family.setdefault(trial.candidate.family, []).append(place)
    lines = {}
    for family, places in by_family.items():
        sizes = np.array([found.trials[p].candidate.place for p in places])
        heights = np.where(found.sound[places], -found.behind[places, 0], np.nan)
        lines[family] = (sizes, heights, found.behind[places, 1])
    chosen = found.trials[found.chosen].candidate
    ring = (float(chosen.place), -float(found.behind[found.chosen, 0]))
    aside = list(found.set_aside)
    axes = figures.curves(
        lines,
        ax,
        best=ring,
        told="chosen",
        crosses=([found.trials[p].candidate.place for p in aside], -found.behind[aside, 0]),
        crossed="set aside",
        title="Rows held out choose the size",
        across=_sizes(found),
        up="log-likelihood per row, less the best's",
    )
    heights = -found.behind[found.sound, 0]
    low = float(np.quantile(heights, 0.25))
    axes.set_ylim(bottom=min(1.3 * low, ring[1] - 0.1 * abs(low) - 1e-9))
    return axes


def _sizes(found: Findings) -> str:
    """What the sizes of the candidates count."""
    words = dict.fromkeys(f"{trial.candidate.unit}s" for trial in found.trials)
    said = join_words(list(words), "or")
    return said + (
        " (of the Bayesian mixture: in use)" if any(t.candidate.used for t in found.trials) else ""
    )


def _model(found: Findings, parts: Explanation) -> Iterator[Picture]:
    estimator, rows, names = found.model.estimator, found.table.rows, found.table.names
    if parts.word != "component" and parts.certain:
        axes = figures.loadings(
            parts.values,
            names,
            parts.errors,
            title=f"Which columns {'load on' if parts.word == 'factor' else 'go with'} which {parts.word}",
            across=f"correlation of the column with the {parts.word}",
            word=parts.word,
        )
        said = f"Correlations of the columns with the {parts.word}s."
        yield Picture("parts", _png(axes), "Bars are two standard errors.", said)
    places = list(parts.order[:PAIRED])
    if isinstance(estimator, GaussianMixture | BayesianGaussianMixture) and len(places) > 1:
        weights, means, covariances, component = components(estimator, open_source(rows, columns=list(names)))
        grid = figures.pair_grid(
            rows[:, places],
            weights,
            means[:, places],
            covariances[:, places][:, :, places],
            [names[j] for j in places],
            component=component,
        )
        said = f"Components over the rows in {', '.join(names[j] for j in places)}."
        caption = "Colours are components; ellipses hold one and two standard deviations."
        yield Picture("pairs", _png(grid.flat[0]), caption, said)
    yield _beside(found, places[:2] if len(places) > 1 else places)


def _beside(found: Findings, places: list[int]) -> Picture:
    """Data and as many rows of the model, in the two columns that tell most."""
    data, names = found.table.rows, [found.table.names[j] for j in places]
    drawn = found.drawn(len(data))
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
        "If the model is good you could not tell which is which.",
        f"Rows of the data beside rows drawn from the model, in {join_words(names)}.",
    )


def _fit(found: Findings) -> Iterator[Picture]:
    criticism = found.model.criticism
    caption = "Gaps in units of their errors: within 2 is chance."
    for place, finalist in enumerate(found.finalists):
        axes = finalist.criticism.plot()
        yield Picture(
            f"worst {place}",
            _png(axes),
            caption,
            f"The moments with the largest gaps between data and {finalist.trial.candidate.name}.",
            worst_spots(finalist.criticism, axes),
        )
    if len(found.table.names) > 1:
        axes = criticism["second"].plot()
        said = "Variances and covariances: where the model has too little (purple) or too much (orange)."
        alt = "Heat map of z-scores of all pairs of columns."
        yield Picture("heat", _png(axes), said, alt, heat_spots(criticism["second"], axes))
    held = open_source(found.table.rows[found.second], columns=list(found.table.names))
    axes = calibration(found.model.estimator, held, random_state=found.seed).plot()
    caption = "Lines of a true model stay in the band, but for the error of its fit; above, it puts too little below."
    yield Picture("probability", _png(axes), caption, "Observed less nominal probabilities of every column.")


def _rows(found: Findings, outlying: Outlying) -> Iterator[Picture]:
    axes = figures.outlier_scores(
        outlying.scores,
        outlying.threshold,
        places=found.table.places,
        title="Rows by log-density under the model",
        up="log-density",
    )
    yield Picture(
        "outliers",
        _png(axes),
        "Rows at the bottom are the least likely.",
        "Log-density of every row.",
        outlier_spots(found, outlying, axes),
    )


def _png(axes: Any) -> bytes:
    return figures.png(axes, PAGE_DPI)


def gap_picture(result: Mega) -> bytes:
    """The z-scores of second moments as a heat map, and the worst moments of all with their errors, as a PNG."""
    pairs = next((g for g in result.gaps if g.gap.dim() == 2), None)
    wide = pairs is not None
    figure = new_figure(12.6 if wide else 7.0, 6.0)
    axes = figure.subplots(1, 2 if wide else 1, squeeze=False, width_ratios=[1.0, 1.15] if wide else None)
    if pairs is not None:
        pairs.plot(axes[0][0])
    result.plot(axes[0][-1])
    chance = "" if result.p_value is None else f"; all tests together: p = {result.p_value:.3g}"
    figure.suptitle(f"Data minus model on {result.n_rows} rows{chance}", color=INK, fontsize=12)
    return png(figure)
