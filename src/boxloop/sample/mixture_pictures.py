"""Pictures of the posterior of a mixture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy.cluster.hierarchy import average, leaves_list
from scipy.spatial.distance import squareform

from boxloop.figures import chain_traces, ellipses, heat_map

if TYPE_CHECKING:
    from boxloop.sample.mixture_posterior import MixturePosterior

SHOWN = 300
"""Most rows of a picture of similarity."""


def draw_components(posterior: MixturePosterior, ax: Axes | None, columns: tuple[int, int]) -> Axes:
    """Rows in two columns, with relabelled posterior means of the components."""
    if len(posterior.names) < 2:
        raise ValueError("a picture of components needs two columns")
    i, j = columns
    pair = torch.tensor(columns, device=posterior.rows.device)
    mean = posterior.relabelled(posterior.means[..., pair])
    if posterior.diagonal:
        spread = torch.diag_embed(posterior.relabelled(posterior.covariances[..., pair]))
    else:
        spread = posterior.relabelled(posterior.covariances[..., pair, :][..., pair])
    return ellipses(
        posterior.rows[:, pair].double().cpu().numpy(),
        mean.mean((0, 1)).double().cpu().numpy(),
        spread.mean((0, 1)).double().cpu().numpy(),
        (posterior.names[i], posterior.names[j]),
        ax,
        component=posterior.responsibilities().argmax(1).cpu().numpy(),
        title="Posterior means of components (relabelled)",
    )


def draw_similarity(posterior: MixturePosterior, ax: Axes | None, columns: tuple[int, int]) -> Axes:
    """Probability that two rows are of the same component, rows that go together side by side."""
    every = max(1, -(-len(posterior.rows) // SHOWN))
    together = posterior.similarity(posterior.rows[::every]).double().cpu().numpy()
    if len(together) > 2:
        order = leaves_list(average(squareform(np.clip(1.0 - together, 0.0, None), checks=False)))
        together = together[np.ix_(order, order)]
    names = [str(i) for i in range(len(together))]
    title = "Rows that go together (free of labels)"
    axes = heat_map(together, names, ax, title=title, label="probability of the same component", least=1.0)
    axes.set_xlabel("row, sorted")
    axes.set_ylabel("row, sorted")
    return axes


def draw_trace(posterior: MixturePosterior, ax: Axes | None, columns: tuple[int, int]) -> Axes:
    """The log-density along the chains."""
    return chain_traces(
        posterior.draws.log_density.T.double().cpu().numpy(), ax, title="log-density (free of labels)"
    )


PICTURES: dict[str, Callable[[MixturePosterior, Axes | None, tuple[int, int]], Axes]] = {
    "components": draw_components,
    "similarity": draw_similarity,
    "trace": draw_trace,
}
