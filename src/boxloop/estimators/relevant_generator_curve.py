"""How many latent variables there are: the error of a generator against the dimension of its code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from boxloop.estimators.base import Array
from boxloop.estimators.relevant_generator import RelevantGenerator
from boxloop.numeric import generator, seed, single_threaded, spawn
from boxloop.twoview import Knee, change_of_slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 6
"""Dimensions for a change of slope to be looked for."""


@dataclass(frozen=True)
class DimensionCurve:
    """Errors of generators by the dimension of their code.

    Args:
        dimensions: (m,).
        errors: mean squared errors, (m, s), one column a seed.
        fits: the best generator of each dimension.
    """

    dimensions: tuple[int, ...]
    errors: Array
    fits: dict[int, RelevantGenerator] = field(repr=False)

    @property
    def best(self) -> Array:
        """The smallest error of each dimension, (m,)."""
        return np.asarray(self.errors.min(1))

    def knee(self, level: float = 0.95) -> Knee:
        """The change of slope in logarithms, or that there is none; see :func:`change_of_slope`.

        Args:
            level: of its interval.
        """
        if len(self.dimensions) < FEWEST:
            raise ValueError(f"a change of slope needs {FEWEST} dimensions, got {len(self.dimensions)}")
        return change_of_slope(self.dimensions, self.errors, level=level)

    def __str__(self) -> str:
        lines = ["dimension  error (mean over seeds)  best"]
        for k, errors in zip(self.dimensions, self.errors, strict=True):
            lines.append(f"{k:9d}  {errors.mean():22.4g}  {errors.min():.4g}")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Errors of all seeds, with both lines where the slope changes: figure 4 of document 003.

        Args:
            ax: where to draw; a figure of its own when omitted.
        """
        from boxloop.figures import FAINT

        ax = self.knee().plot(ax, up="mean squared error")
        for column in self.errors.T:
            ax.plot(self.dimensions, column, ".", color=FAINT, markersize=4, zorder=1)
        ticks: list[int] = []
        for k in self.dimensions:
            if not ticks or k > 1.25 * ticks[-1]:
                ticks.append(k)
        ax.set_xticks(ticks, [str(k) for k in ticks], minor=False)
        ax.set_xticks([], minor=True)
        return ax


@single_threaded
def latent_dimension_curve(
    estimator: RelevantGenerator,
    X: Any,
    dimensions: Sequence[int],
    *,
    held_out: Any = None,
    n_seeds: int = 3,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> DimensionCurve:
    """Train a generator at each latent dimension, with several seeds.

    Document 003, figure 4: the error falls as a power of the dimension up to where all independent variables are in the
    code. The features are fitted once, with the first generator.

    Args:
        estimator: how generators are trained; ``n_components`` and ``random_state`` are replaced, and ``checkpoint``
            gets the dimension and the number of the seed at its end.
        X: rows or images.
        dimensions: of the code, at least six for a change of slope to be looked for.
        held_out: rows on which errors are measured; the validation rows of each fit when omitted, on which the best
            pass was chosen.
        n_seeds: generators of each dimension.
        progress: told (done, total, what) as the work goes on.

    Returns:
        The errors and the best generators.

    Example:
        >>> import numpy as np
        >>> from boxloop import RelevantGenerator, latent_dimension_curve
        >>> X = np.random.default_rng(0).normal(size=(300, 3)) @ np.ones((3, 4))
        >>> start = RelevantGenerator(hidden=(16,), learning_rate=0.02, max_iter=5, patience=None, random_state=0)
        >>> latent_dimension_curve(start, X, [1, 2], n_seeds=2).errors.shape
        (2, 2)
    """
    wanted = tuple(sorted(set(dimensions)))
    if not wanted or any(k < 1 or k != int(k) for k in wanted):
        raise ValueError(f"dimensions must be whole numbers, 1 or more, got {list(dimensions)}")
    if n_seeds < 1:
        raise ValueError(f"n_seeds must be at least 1, got {n_seeds}")
    wanted = tuple(int(k) for k in wanted)
    params = estimator.get_params(deep=False)
    seeds = [seed(stream) % 2**32 for stream in spawn(generator(estimator.random_state), n_seeds)]
    errors = np.empty((len(wanted), n_seeds))
    fits: dict[int, RelevantGenerator] = {}
    lowest: dict[int, float] = {}
    total = len(wanted) * n_seeds
    for number in range(total):
        place, turn = divmod(number, n_seeds)
        k = wanted[place]
        own: dict[str, Any] = {"n_components": k, "random_state": seeds[turn]}
        if estimator.checkpoint is not None:
            own["checkpoint"] = f"{estimator.checkpoint}.{k}.{turn}"
        fit = RelevantGenerator(**{**params, **own}).fit(X)
        params["features"] = fit.features_
        errors[place, turn] = fit.error_ if held_out is None else -fit.score(held_out)
        if fit.error_ < lowest.get(k, np.inf):
            lowest[k], fits[k] = fit.error_, fit
        progress(number + 1, total, f"latent dimension {k}")
    return DimensionCurve(wanted, errors, fits)
