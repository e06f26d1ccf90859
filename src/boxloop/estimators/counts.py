"""What the mixtures of counts share."""

from __future__ import annotations

from typing import Any

from sklearn.utils import ClassifierTags

from boxloop.data import check_range
from boxloop.estimators._base import to_numpy
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.fit import Coordinates
from boxloop.models import Mixture
from boxloop.types import Source

COUNTS_ONLY = "give counts, or fit measurements with GaussianMixture"

COUNT_LINEUP = ("kmeans", "random_from_data", "random_from_data", "random_from_data")
"""Starts that race: directions of least Gaussian shape say nothing of counts."""

MOST = 1e100
"""No count is as large, and its square is far from overflow."""


class CountMixture(MixtureEstimator):
    """Counts have no other coordinates and are never negative."""

    @property
    def _kind(self) -> Coordinates:
        return "none"

    def _prepare(self, source: Source) -> Source:
        return check_range(source, 0.0, MOST, type(self).__name__, whole=COUNTS_ONLY)

    def _publish(self, model: Mixture[Any]) -> None:
        self.weights_ = to_numpy(model.log_weight.exp())
        self.means_ = to_numpy(model.family.mean)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True  # scikit-learn's word for columns of whole numbers
        if self._sparse:
            # scikit-learn's checks of sparse input look here at whatever has predict_proba.
            tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags
