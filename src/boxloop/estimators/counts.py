"""What the mixtures of counts share."""

from __future__ import annotations

from typing import Any

from sklearn.utils import ClassifierTags

from boxloop.data import within
from boxloop.estimate.fit import Coordinates
from boxloop.estimators.base import to_numpy
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.models import Mixture
from boxloop.types import Source


class CountMixture(MixtureEstimator):
    """Counts have no other coordinates and are never negative."""

    def __init__(
        self,
        n_components: int = 1,
        *,
        tol: float = 1e-4,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: str = "auto",
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        method: str = "em",
        accelerate: bool = True,
        batch_size: int = 256,
        checkpoint: Any = None,
        device: str = "cpu",
        dtype: str = "float64",
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.method = method
        self.accelerate = accelerate
        self.batch_size = batch_size
        self.checkpoint = checkpoint
        self.device = device
        self.dtype = dtype

    @property
    def _kind(self) -> Coordinates:
        return "none"

    def _prepare(self, source: Source) -> Source:
        return within(source, 0.0, float("inf"), type(self).__name__)

    def _publish(self, model: Mixture[Any]) -> None:
        self.weights_ = to_numpy(model.log_weight.exp())
        self.means_ = to_numpy(model.family.mean)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        if self._sparse:
            # scikit-learn's checks of sparse input look here at whatever has predict_proba.
            tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags
