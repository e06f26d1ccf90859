"""Mixtures of Poisson counts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from boxloop.distributions import Family, Poisson
from boxloop.estimators._base import declare_latent_file
from boxloop.estimators.count_mixture import CountMixture
from boxloop.models import Mixture
from boxloop.persist import ModelFile


class PoissonMixture(CountMixture):
    r"""Mixture of independent Poisson counts.

    .. math:: p(x) = \sum_k \pi_k \prod_j e^{-\lambda_{kj}} \lambda_{kj}^{x_j} / x_j!

    Rows are counts, dense or SciPy sparse; sparse rows are never made dense.

    Args:
        n_components: number of components k.
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
        means_: rates, (k, d).
        model_: the fitted :class:`boxloop.models.Mixture`.

    Example:
        >>> import numpy as np
        >>> from boxloop import PoissonMixture
        >>> X = np.repeat([[1, 9], [8, 2]], 50, axis=0)
        >>> PoissonMixture(2, random_state=0).fit(X).means_[:, 0].round().astype(int).tolist() in ([1, 8], [8, 1])
        True
    """

    _model_file: ClassVar[ModelFile] = declare_latent_file(Mixture, Poisson)
    _sparse = True

    def _make_template(self, n_columns: int, device: torch.device) -> Family[Any]:
        return Poisson(torch.ones(self.n_components, n_columns, dtype=torch.float64, device=device))
