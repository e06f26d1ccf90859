"""The pictures of a network's page, each with words for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop import figures
from boxloop.criticise import ClassificationScores
from boxloop.estimators import Array
from boxloop.networks import RegressionPrediction
from boxloop.report.network_judge import LEVEL, NETWORK, NetworkFindings
from boxloop.report.pictures import PAGE_DPI, Picture

SHOWN = 150
"""Most rows that have bars of their own."""


def network_pictures(found: NetworkFindings) -> dict[str, Picture]:
    """All pictures by key."""
    return {picture.key: picture for picture in (*_predictions(found), *_posterior(found))}


def _predictions(found: NetworkFindings) -> Iterator[Picture]:
    rows = int(found.problem.held.sum())
    if isinstance(found.found, RegressionPrediction):
        axes = intervals(found.found, found.problem.judged[1], found.problem.target)
        caption = (
            f"Rows held out; bars hold {LEVEL:.0%} of what the network expects. Orange lies outside its bar."
        )
        said = f"Observed against predicted {found.problem.target} for {rows} rows held out, with intervals."
        calibration = "How many rows held out lie in intervals of each probability; the band is chance."
        yield Picture("predictions", _png(axes), caption, said)
    else:
        axes = answered(found)
        caption = (
            "Accuracy where only the rows are answered that the network is surest of, as a share of all."
        )
        yield Picture("predictions", _png(axes), caption, f"Accuracy by share of {rows} rows answered.")
        calibration = "How often the likeliest class was right, by the probability it was given."
    alt = "Coverage or reliability of the network and of its mean network alone."
    yield Picture("calibration", _png(found.audit.held_out.plot()), calibration, alt)


def _posterior(found: NetworkFindings) -> Iterator[Picture]:
    audit = found.audit
    if audit.trajectory is not None:
        caption = "Autocorrelation of the weights by lag; independent posterior draws would have none."
        size = f"effective sample size {audit.trajectory.median_ess:.0f}"
        alt = f"Autocorrelation of {audit.trajectory.n_vectors} vectors; {size}."
        yield Picture("iterates", _png(audit.trajectory.plot()), caption, alt)
    if audit.last_layer is not None:
        caption = "Each point is a weight of the last layer: its standard deviation relative to the exact posterior's."
        alt = f"Outputs have {audit.last_layer.output_ratio:.2g} times the variance of the exact posterior."
        yield Picture("last", _png(audit.last_layer.plot()), caption, alt)
    losses = found.network.history_["loss"]
    axes = figures.trace(losses, title="Training, then collecting", up="loss", told="the last")
    axes.set_xlabel("epoch")
    yield Picture("loss", _png(axes), "The mean loss of each epoch.", f"Loss over {len(losses)} epochs.")
    tuning = found.network.predictor_.tuning
    if tuning is not None:
        caption = "The scale of the covariance, chosen by rows that the fit held out."
        yield Picture("scale", _png(tuning.plot()), caption, f"The best scale is {found.network.scale_:.3g}.")


def intervals(found: RegressionPrediction, seen: Array, name: str) -> Any:
    """Observed against predicted, with intervals around the prediction.

    Args:
        found: predictions of n rows, one output.
        seen: observed, (n,).
        name: of what is predicted.
    """
    axes = figures.new_axes(6.6, 4.6)
    figures.dress(axes, "Predicted and observed", f"predicted {figures.short(name, 30)}", "observed")
    few = np.unique(np.linspace(0, len(seen) - 1, min(len(seen), SHOWN)).round().astype(int))
    low, high = (end.reshape(-1)[few] for end in found.interval(LEVEL))
    mean, seen = found.mean.reshape(-1)[few], seen[few]
    out = (seen < low) | (seen > high)
    axes.vlines(mean, low, high, color=figures.COLOURS[0], alpha=0.3, linewidth=1.2)
    ends = [float(mean.min()), float(mean.max())]
    axes.plot(ends, ends, color=figures.INK, linewidth=0.9)
    for mask, shade, shape, told in (
        (~out, figures.COLOURS[0], "o", "inside"),
        (out, figures.COLOURS[1], "D", "outside"),
    ):
        axes.plot(mean[mask], seen[mask], shape, color=shade, markersize=4.0, label=f"{told}: {mask.sum()}")
    figures.add_legend(axes, "upper left")
    return axes


def answered(found: NetworkFindings) -> Any:
    """Accuracy over the share of rows answered, surest first by probability, and by how much networks agree."""
    scores = found.scores[NETWORK]
    assert isinstance(scores, ClassificationScores)
    axes = figures.new_axes(6.6, 4.6)
    figures.dress(axes, "Rows it is surest of", "share of rows answered", "accuracy on these")
    orders = {
        "by probability": -found.found.probability.max(1),
        "by agreement of networks": found.found.mutual_information,
    }
    for place, (name, doubt) in enumerate(orders.items()):
        share, right = running(scores.correct, doubt)
        axes.plot(share, right, color=figures.COLOURS[place], linewidth=1.6, label=name)
    axes.axhline(scores.accuracy, color=figures.FAINT, linewidth=0.9, linestyle=(0, (4, 3)), label="all rows")
    axes.set_xlim(0.0, 1.02)
    low, high = axes.get_ylim()
    axes.set_ylim(
        max(min(low, scores.accuracy - 0.05), 0.0) - 0.005, min(max(high, scores.accuracy), 1.0) + 0.005
    )
    figures.add_legend(axes, "lower left")
    return axes


def running(right: NDArray[np.bool_], doubt: Array) -> tuple[Array, Array]:
    """Share of rows answered, and accuracy on these, as rows of more and more doubt are let in; ties together.

    Example:
        >>> running(np.array([True, False, True]), np.array([0.1, 0.3, 0.1]))
        (array([0.66666667, 1.        ]), array([1.        , 0.66666667]))
    """
    order = np.argsort(doubt, kind="stable")
    total, n = np.cumsum(right[order]), np.arange(1, len(order) + 1)
    last = np.append(np.diff(doubt[order]) > 0.0, True)
    return (n / len(order))[last], (total / n)[last]


def _png(axes: Any) -> bytes:
    return figures.png(axes, PAGE_DPI)
