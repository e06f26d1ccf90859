"""Mixtures of zeros and ones."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from boxloop.data import MappedSource, check_range
from boxloop.distributions import Bernoulli, Family
from boxloop.estimators._base import declare_latent_file
from boxloop.estimators.count_mixture import CountMixture
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.models import Mixture
from boxloop.persist import ModelFile
from boxloop.types import Source

ZEROS_AND_ONES = (
    "set binarize to the value above which a row counts as one, or fit measurements with GaussianMixture"
)


@dataclass(eq=False, repr=False, kw_only=True)
class BernoulliMixture(CountMixture):
    r"""Mixture of independent zeros and ones (latent class analysis).

    .. math:: p(x) = \sum_k \pi_k \prod_j p_{kj}^{x_j} (1 - p_{kj})^{1 - x_j}

    Args:
        n_components: number of components k.
        binarize: values above it count as one; ``None`` takes zeros and ones alone, and refuses other values by the
            name of their column.
        tol: stop when the mean log-likelihood per row rises by less.
        max_iter: most EM iterations; passes over the rows for the other methods.
        n_init: number of repetitions of the line-up of starts.
        init_params: as in :class:`GaussianMixture`.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em``, ``online`` or ``gradient``.
        accelerate: extrapolate EM (guarded SQUAREM).
        batch_size: rows of a mini-batch.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of passes over the rows.

    Attributes:
        weights_: (k,).
        means_: probabilities of a one, (k, d).
        model_: the fitted :class:`boxloop.models.Mixture`.

    Example:
        >>> import numpy as np
        >>> from boxloop import BernoulliMixture
        >>> X = np.repeat([[1, 1, 0], [0, 0, 1]], 50, axis=0)
        >>> BernoulliMixture(2, random_state=0).fit_predict(X)[[0, 99]].tolist() in ([0, 1], [1, 0])
        True
    """

    binarize: float | None = None

    _model_file: ClassVar[ModelFile] = declare_latent_file(Mixture, Bernoulli)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MixtureEstimator._parameter_constraints,
        "binarize": [None, Interval(Real, None, None, closed="neither")],
    }

    def _prepare_rows(self, source: Source) -> Source:
        """Rows of zeros and ones, also for criticism."""
        if self.binarize is None:
            return check_range(source, 0.0, 1.0, type(self).__name__, whole=ZEROS_AND_ONES)
        level = float(self.binarize)

        def binarise(rows: Tensor) -> Tensor:
            return torch.where(torch.isnan(rows), rows, (rows > level).to(rows.dtype))

        return MappedSource(source, binarise)

    def _make_template(self, n_columns: int, device: torch.device) -> Family[Any]:
        return Bernoulli(torch.full((self.n_components, n_columns), 0.5, dtype=torch.float64, device=device))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = tags.input_tags.categorical = self.binarize is None
        return tags
