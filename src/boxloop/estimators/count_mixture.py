"""Mixtures of counts: the base of their estimators, and the summary of topics by their words."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted

from boxloop.data import check_count, check_range, make_frame
from boxloop.estimators._base import Array, to_numpy
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.fit import Coordinates
from boxloop.models import Mixture
from boxloop.types import Source

COUNTS_ONLY = "give counts, or fit measurements with GaussianMixture"

COUNT_LINEUP = ("kmeans", "random_from_data", "random_from_data", "random_from_data")
"""Starts that race: directions of least Gaussian shape do not separate counts."""

MAX_COUNT = 1e100
"""No count is as large, and its square does not overflow."""


class CountMixture(MixtureEstimator):
    """Base of the mixtures of counts, which are not standardised and never negative."""

    @property
    def _coordinate_kind(self) -> Coordinates:
        return "none"

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        return self._prepare_rows(super()._open(X, sample_weight, reset=reset))

    def _prepare_rows(self, source: Source) -> Source:
        """Rows of counts, also for criticism."""
        return check_range(source, 0.0, MAX_COUNT, type(self).__name__, whole=COUNTS_ONLY)

    def _publish(self, model: Mixture[Any]) -> None:
        self.weights_: Array = to_numpy(model.log_weight.exp())
        self.means_: Array = to_numpy(model.family.mean)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # scikit-learn's word for columns of integers
        if self._sparse:
            # scikit-learn's checks of sparse input look here at every estimator with predict_proba.
            tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags


class TopicMixture(CountMixture):
    """Base of the mixtures of documents, whose components are topics with ``probabilities_`` of words."""

    probabilities_: Array

    def summary(self, top: int = 10) -> Any:
        """One row per topic: its weight, then its words with their probabilities, the most probable first.

        Words are the column names of the rows, or ``x0``, ``x1``, ... if these have no names.

        Args:
            top: number of words; all if there are fewer.

        Returns:
            A pandas frame.

        Example:
            >>> import pandas
            >>> from boxloop import MultinomialMixture
            >>> X = pandas.DataFrame([[5, 4, 0], [0, 1, 6]] * 40, columns=["sea", "ship", "tree"])
            >>> MultinomialMixture(2, random_state=0).fit(X).summary(top=2)["word 1"].sort_values().tolist()
            ['sea (0.556)', 'tree (0.857)']
        """
        check_is_fitted(self)
        names, probability = self._column_names(), self.probabilities_
        order = np.argsort(-probability, axis=1, kind="stable")[:, : check_count(top, "top")]
        columns: dict[str, Any] = {"weight": self.weights_}
        for rank, words in enumerate(order.T, 1):
            columns[f"word {rank}"] = [f"{names[j]} ({probability[k, j]:.3g})" for k, j in enumerate(words)]
        return make_frame(columns, [f"topic {k}" for k in range(len(probability))])
