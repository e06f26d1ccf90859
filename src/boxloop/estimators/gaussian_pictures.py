"""Pictures of Gaussian mixtures, whatever fitted them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from boxloop.data import column_indices, sample_rows
from boxloop.estimators.base import Array, to_numpy
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.numeric import generator
from boxloop.persist import Check, Saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = 100_000
"""Rows that a picture is made from: some of them, where there are more."""


def components_are(kinds: Mapping[str, type], place: str) -> Check:
    """A check of a file: its components are those of the parameter ``covariance_type``.

    Args:
        kinds: classes of components by covariance type.
        place: of the components in the model.
    """

    def check(estimator: Any, saved: Saved) -> str | None:
        wanted, components = kinds[estimator.covariance_type], attrgetter(place)(saved.tree)
        if isinstance(components, wanted):
            return None
        return f"its components are {type(components).__name__}, not {wanted.__name__} as its parameters say"

    return check


class GaussianPictures(MixtureEstimator):
    """Pictures of ``weights_``, ``means_`` and the covariances of ``model_``; a subclass says which to show."""

    means_: Array
    weights_: Array

    @property
    @abstractmethod
    def _shown(self) -> NDArray[np.int64]:
        """The components that are drawn."""

    def plot(self, X: Any, ax: Axes | None = None, *, columns: Sequence[str | int] | None = None) -> Axes:
        """Two columns of rows, coloured by component, and ellipses of one and two standard deviations.

        Of a Bayesian mixture the components in use are drawn, and numbered among themselves.

        Args:
            X: rows (n, d); more than a few thousand are shown as a density.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            columns: two, by name or place; those in which the components lie furthest apart when omitted.

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

        places, names = self._drawn_columns(columns, 2)
        if len(places) != 2:
            raise ValueError(f"a picture of rows has two columns, got {len(places)}: see plot_pairs")
        rows, component = self._drawn_rows(X)
        means, spread = self._drawn_components(places)
        title = f"{len(means)} component{'s' if len(means) > 1 else ''}"
        return ellipses(rows[:, places], means, spread, names, ax, component=component, title=title)

    def plot_pairs(self, X: Any, *, columns: Sequence[str | int] | None = None) -> NDArray[np.object_]:
        """All pairs of some columns, as ``plot`` draws one, with the densities of single columns on the diagonal.

        Args:
            X: rows (n, d).
            columns: by name or place; the five in which the components lie furthest apart when omitted.

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

        places, names = self._drawn_columns(columns, 5)
        rows, component = self._drawn_rows(X)
        means, spread = self._drawn_components(places)
        return pair_grid(
            rows[:, places], self.weights_[self._shown], means, spread, names, component=component
        )

    def _drawn_columns(self, columns: Sequence[str | int] | None, most: int) -> tuple[list[int], list[str]]:
        check_is_fitted(self)
        known = self._names()
        if columns is None:
            within = to_numpy(self.model_.family.covariance().diagonal())
            centre = self.weights_ @ self.means_
            apart = (self.weights_ @ (self.means_ - centre) ** 2) / (
                self.weights_ @ np.broadcast_to(within, self.means_.shape)
            )
            places = sorted(np.argsort(-apart, kind="stable")[:most].tolist())
        else:
            places = column_indices(known, columns)
        return places, [known[j] for j in places]

    def _drawn_rows(self, X: Any) -> tuple[Array, NDArray[np.int64]]:
        rows = sample_rows(self._open(X, reset=False), DRAWN, generator(0)).rows
        return to_numpy(rows), to_numpy(self.model_.posterior(rows))[:, self._shown].argmax(1)

    def _drawn_components(self, places: list[int]) -> tuple[Array, Array]:
        spread = to_numpy(self.model_.family.covariance().dense())
        whole = np.broadcast_to(spread, (len(self.means_), *spread.shape[1:]))[self._shown]
        return self.means_[self._shown][:, places], whole[:, places][:, :, places]
