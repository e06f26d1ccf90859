"""What fitted features of two views are for: variables, expectations of one view given the other, and judgement."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import ConcatenatedRows, SwappedViews, check_choice, check_count, pair_sources
from boxloop.estimators.base import Array, check_no_overflow, to_numpy
from boxloop.estimators.relevant_refit import Refits
from boxloop.estimators.relevant_use import TwoViewEstimator, each
from boxloop.numeric import generator, spawn
from boxloop.twoview import (
    Conditional,
    Diagnosis,
    Estimated,
    Expectation,
    FiniteView,
    Function,
    RelevanceModel,
    Significance,
    cross_fitted,
    density_ratio,
    diagnose,
    significance,
    values,
)
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 3
"""Fewest rows of two views."""

Direction = Literal["y_given_x", "x_given_y"]


class InferringViews(TwoViewEstimator):
    """All that needs ``fit_``, and none of how it came to be."""

    def transform(self, X: Any, y: Any = None) -> Any:
        """The canonical variables of rows: u of X, (n, k), and v of Y beside it where y is given."""
        source = self._x(X)
        left = to_numpy(check_no_overflow(each(source, self.model_.left)))
        return left if y is None else (left, to_numpy(check_no_overflow(each(self._y(y), self.model_.right))))

    def predict(self, X: Any) -> Array:
        """E[Y | X] in the shape of Y; of a finite Y the weight of each value, which may fall below 0.

        No rows of the fit are needed. For standard errors, standard deviations, quantiles and other functions of Y, and
        for X given Y, see :meth:`expect`.
        """
        source = self._x(X)
        found: Array = self.y_edge_.shown(to_numpy(check_no_overflow(each(source, self.fit_.infer_right))))
        return found

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Total correlation of the pairs of variables on weighted rows, at most k; a ``channel`` draws a y of None."""
        first = self._x(X, sample_weight)
        if y is None and self.channel is None:
            raise ValueError("requires y to be passed, but the target y is None: give Y")
        second = (
            self._y(y) if y is not None else self._drawn(first, spawn(generator(self.random_state), 4)[2])
        )

        def at(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
            return ConcatenatedRows.of(torch.cat([*self.model_.both(rows), weight[:, None]], 1))

        with torch.no_grad():
            found = to_numpy(check_no_overflow(pair_sources(first, second).reduce(at).concatenate()))
        left, right = np.hsplit(found[:, :-1], 2)
        return float(np.trace(correlations(left, right, found[:, -1])))

    def loadings(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Correlation of each column with each variable of its own view, (d_x, k) and (d_y, k).

        Columns that are constant have correlation 0; a finite view has a row for each of its values.

        Args:
            X: rows of the first view, (n, d_x).
            y: rows of the second view, (n, d_y).
        """
        sources, views = (self._x(X), self._y(y)), (self.model_.pair.left, self.model_.pair.right)
        maps = (self.model_.left, self.model_.right)
        left, right = (
            correlations(to_numpy(each(source, partial(values, view))), to_numpy(each(source, own)))
            for source, view, own in zip(sources, views, maps, strict=True)
        )
        return left, right

    def expect(
        self,
        theta: Function | None = None,
        *,
        given: Any,
        direction: Direction = "y_given_x",
        data: tuple[Any, Any] | None = None,
        refits: int = 0,
    ) -> Expectation:
        r"""Expectation of any function of one view given rows of the other, with error bars; no other fit is needed.

        .. math:: E[\theta(y) \mid x] \approx \sum_{i \ge 0} \eta_i \, \overline{v_i \theta} \; u_i(x)

        Document 003, eq. 9 and 10.

        Args:
            theta: rows of the inferred view, a tensor (n, d) with images flattened, to values (n, p) or (n,). ``None``
                is the columns themselves, or the indicators of a finite view, whose rows hold the number of a value in
                ``x_edge_.labels`` or ``y_edge_.labels``.
            given: rows of the other view; without missing values.
            direction: ``y_given_x`` or ``x_given_y``.
            data: (X, Y), rows over which to average, and on which variables are solved anew; those of the fit when
                omitted.
            refits: halve the rows so many times and learn features anew from both halves: standard errors of means and
                deviations are then lengthened by how far the halves are apart (``inflation``). Without it they hold for
                features as they are, and are too short for networks.

        Returns:
            Means and standard deviations (m, p), each with its standard error, and a way to quantiles, tail
            probabilities, covariances and the main direction of ambiguity.

        Example:
            >>> import numpy as np
            >>> from boxloop import RelevantFeatures
            >>> rng = np.random.default_rng(0)
            >>> x = rng.integers(3, size=3000)
            >>> y = x + rng.normal(size=3000)
            >>> fit = RelevantFeatures(2, x_features="finite", y_features="linear", random_state=0)
            >>> fit = fit.set_params(n_features=1).fit(x, y)
            >>> square = fit.expect(lambda rows: rows**2, given=[2])
            >>> bool(abs(square.mean[0, 0] - 5.0) < 1.0)
            True
        """
        if not (theta is None or callable(theta)):
            raise TypeError(f"theta must be a function of rows, not {type(theta).__name__}; rows are given=")
        check_count(refits, "refits", 0)
        conditional = self._conditional(direction, data)
        known = self._x(given) if direction == "y_given_x" else self._y(given)
        rows = torch.cat([tile for tile, _ in known.chunks()])
        indicators = self._values(direction) if theta is None else None
        theta = theta if indicators is None else indicators
        found = conditional.expect(theta, rows)
        if indicators is not None:
            edge = self.y_edge_ if direction == "y_given_x" else self.x_edge_
            found = replace(found, names=tuple(edge.labels))
        if not refits:
            return found
        if not self.model_.pair.trainable():
            raise ValueError("refits are for learned features: these are fixed, and their error bars whole")
        turned = direction == "y_given_x"
        return Refits(self, self._data(data), refits).lengthened(found, theta, rows, turned)

    def density_ratio(self, X: Any, y: Any, data: tuple[Any, Any] | None = None) -> Estimated:
        """p(x, y) / (p(x) p(y)) of each pair of rows, (n,), with its standard error.

        Args:
            X: rows of the first view.
            y: as many of the second.
            data: (X, Y), rows over which to average, and on which variables are solved anew; those of the fit when
                omitted.
        """
        both = pair_sources(self._x(X), self._y(y))
        rows = torch.cat([tile for tile, _ in both.chunks()])
        return density_ratio(self._conditional("x_given_y", data), *self.model_.pair.parts(rows))

    def significance(
        self, X: Any = None, y: Any = None, *, permutations: int = 999, level: float = 0.05
    ) -> Significance:
        """Which variables hold on rows that did not find them, and whether ``n_features`` are enough.

        Fixed features are judged by cross-fitting on the rows of the fit, networks on the rows that were held out and
        did not choose the pass.

        Args:
            X: rows that took no part in the fit, to be used instead.
            y: their second view.
            permutations: random orders behind the p-values.
            level: false-discovery rate.

        Returns:
            Held-out correlations with errors, p-values, and a verdict; ``print`` and ``plot`` show it.
        """
        check_is_fitted(self)
        asked: dict[str, Any] = {"permutations": permutations, "level": level}
        if (X is None) != (y is None):
            raise ValueError("give both X and y, or neither")
        if X is not None:
            return significance(self.model_, pair_sources(self._x(X), self._y(y)), **asked)
        if not hasattr(self, "_rows"):
            raise ValueError("a file holds no rows: give X and y, that took no part in the fit")
        rows = self._data(None)
        if not self.model_.pair.trainable():
            most = len(self.correlation_)
            return cross_fitted(self.model_.pair, rows, most, self.ridge_, **asked)
        if self._held is None:
            raise ValueError("no rows were held out, or too few: give X and y, or raise validation_fraction")
        return significance(self.model_, self._held, **asked)

    def diagnose(
        self, direction: Direction = "y_given_x", n_given: int = 200, data: tuple[Any, Any] | None = None
    ) -> Diagnosis:
        """What the fit implies that no law could: negative mass and variances, and a loss that only batches show.

        Args:
            direction: of the inference that is looked at.
            n_given: rows to condition on, of the fit.
            data: (X, Y), rows to take instead, on which variables are solved anew.
        """
        check_is_fitted(self)
        batch = self.batch_size_ if self.model_.pair.trainable() else None
        conditional, theta = self._conditional(direction, data), self._values(direction)
        return diagnose(conditional, theta, n_given=n_given, batch_size=batch)

    def plot_relevance(self, ax: Axes | None = None) -> Axes:
        """Relevances on rows that did not find them, with errors, beside those of the fit: :meth:`significance`."""
        return self.significance().plot(ax)

    def _conditional(self, direction: str, data: Any) -> Conditional:
        """The law of one view given the other, over rows of the fit; or over others, on which variables are solved."""
        check_choice(direction, "direction", ("y_given_x", "x_given_y"))
        rows, model = self._data(data), self.model_
        if data is not None:
            model = RelevanceModel.solve(model.pair, rows, len(self.correlation_), self.ridge_)
        if direction == "x_given_y":
            return Conditional(model, rows, self.ridge_)
        return Conditional(model.swapped(), SwappedViews(rows, model.pair.left.n_columns), self.ridge_)

    def _values(self, direction: str) -> Function | None:
        """The indicators of a finite view that is inferred; None, its columns, of any other."""
        view = self.model_.pair.right if direction == "y_given_x" else self.model_.pair.left
        return view if isinstance(view, FiniteView) else None

    def _data(self, data: Any) -> Source:
        """Rows that hold both views: those of the fit, or a pair of tables."""
        check_is_fitted(self)
        if data is not None:
            if not (isinstance(data, tuple | list) and len(data) == 2):
                raise ValueError("data must be a pair of tables, (X, Y)")
            both = pair_sources(self._x(data[0]), self._y(data[1]))
            if both.n_rows < LEAST:
                raise ValueError(f"data has {both.n_rows} rows: at least {LEAST} are needed to average over")
            return both
        if not hasattr(self, "_rows"):
            raise ValueError("a file holds no rows: give data=(X, Y), those of the fit or others like them")
        rows: Source = self._rows
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.channel is None
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def correlations(left: Array, right: Array, weight: Array | None = None) -> Array:
    """Of every column with every column over weighted rows, (p, q); 0 for those without spread."""
    root = np.ones((len(left), 1)) if weight is None else np.sqrt(weight)[:, None]
    left, right = (root * (part - np.average(part, 0, root[:, 0] ** 2)) for part in (left, right))
    size = np.sqrt(np.outer((left**2).sum(0), (right**2).sum(0)))
    found: Array = (left.T @ right) / np.where(size > 0.0, size, 1.0)
    return found
