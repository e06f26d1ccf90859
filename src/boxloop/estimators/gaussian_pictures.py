"""Pictures of Gaussian mixtures, shared by maximum-likelihood and Bayesian ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from boxloop.data import column_indices, sample_rows
from boxloop.estimators._base import Array, to_numpy
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.numeric import generator
from boxloop.persist import Check, Saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLED_ROWS = 100_000
"""Most rows of a picture; a random sample if there are more."""


def check_component_class(kinds: Mapping[str, type], path: str) -> Check:
    """Check of a file: the components at ``path`` are those of the parameter ``covariance_type``."""

    def check_class(estimator: Any, saved: Saved) -> str | None:
        expected, components = kinds[estimator.covariance_type], attrgetter(path)(saved.tree)
        if isinstance(components, expected):
            return None
        return (
            f"its components are {type(components).__name__}, not {expected.__name__} as its parameters say"
        )

    return check_class


class GaussianPictures(MixtureEstimator):
    """Pictures of ``weights_``, ``means_`` and the covariances of ``model_``; a subclass selects the components."""

    means_: Array
    weights_: Array

    @property
    @abstractmethod
    def _shown_components(self) -> NDArray[np.int64]:
        """The components that are drawn."""

    def plot(self, X: Any, ax: Axes | None = None, *, columns: Sequence[str | int] | None = None) -> Axes:
        """Two columns of rows, coloured by component, and ellipses of one and two standard deviations.

        Only the components in use of a Bayesian mixture are drawn, and numbered consecutively.

        Args:
            X: rows (n, d); more than a few thousand are shown as a density.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            columns: two, by name or index; those in which components are most separated when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(200, 3)) + 5.0 * np.arange(200)[:, None] % 2
            >>> GaussianMixture(2, random_state=0).fit(X).plot(X, columns=(0, "x2")).get_ylabel()
            'x2'
        """
        from boxloop.figures import ellipses

        indices, names = self._select_columns(columns, 2)
        if len(indices) != 2:
            raise ValueError(f"plot takes two columns, got {len(indices)}: use plot_pairs")
        rows, component = self._sample_rows(X)
        means, covariances = self._select_components(indices)
        title = f"{len(means)} component{'s' if len(means) > 1 else ''}"
        return ellipses(rows[:, indices], means, covariances, names, ax, component=component, title=title)

    def plot_pairs(self, X: Any, *, columns: Sequence[str | int] | None = None) -> NDArray[np.object_]:
        """All pairs of columns, as ``plot`` draws one, with the densities of single columns on the diagonal.

        Args:
            X: rows (n, d).
            columns: by name or index; the five in which components are most separated when omitted.

        Returns:
            The axes (c, c) of c columns, on a figure of their own.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(200, 3))
            >>> GaussianMixture(1).fit(X).plot_pairs(X).shape
            (3, 3)
        """
        from boxloop.figures import pair_grid

        indices, names = self._select_columns(columns, 5)
        rows, component = self._sample_rows(X)
        means, covariances = self._select_components(indices)
        return pair_grid(
            rows[:, indices],
            self.weights_[self._shown_components],
            means,
            covariances,
            names,
            component=component,
        )

    def _select_columns(self, columns: Sequence[str | int] | None, most: int) -> tuple[list[int], list[str]]:
        check_is_fitted(self)
        known = self._column_names()
        if columns is None:
            within = to_numpy(self.model_.family.covariance().diagonal())
            centre = self.weights_ @ self.means_
            separation = (self.weights_ @ (self.means_ - centre) ** 2) / (
                self.weights_ @ np.broadcast_to(within, self.means_.shape)
            )
            indices = sorted(np.argsort(-separation, kind="stable")[:most].tolist())
        else:
            indices = column_indices(known, columns)
        return indices, [known[j] for j in indices]

    def _sample_rows(self, X: Any) -> tuple[Array, NDArray[np.int64]]:
        rows = sample_rows(self._open(X, reset=False), SAMPLED_ROWS, generator(0)).rows
        return to_numpy(rows), to_numpy(self.model_.posterior(rows))[:, self._shown_components].argmax(1)

    def _select_components(self, indices: list[int]) -> tuple[Array, Array]:
        dense = to_numpy(self.model_.family.covariance().dense())
        covariances = np.broadcast_to(dense, (len(self.means_), *dense.shape[1:]))[self._shown_components]
        return self.means_[self._shown_components][:, indices], covariances[:, indices][:, :, indices]
