"""Mixtures of documents."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval

from boxloop.estimators.base import to_numpy
from boxloop.estimators.counts import CountMixture
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.laws import Multinomial
from boxloop.laws.family import Family
from boxloop.models import Mixture


class MultinomialMixture(CountMixture):
    r"""Mixture of multinomial documents: every document is about one topic.

    .. math:: p(x \mid N) = \sum_k \pi_k \, N! \prod_j p_{kj}^{x_j} / x_j!

    Rows are word counts, dense or SciPy sparse; sparse rows are never made dense.

    Args:
        n_components: number of topics k.
        total: words in a document drawn by ``sample``, and the document ``means_`` refer to.
        tol: stop when the mean log-likelihood of a row rises by less.
        max_iter: most EM rounds; passes over the rows for the other methods.
        n_init: how many times the line-up of starts is repeated.
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
        probabilities_: of each word in each topic, (k, d).
        means_: expected counts of a document of ``total`` words, (k, d).
        model_: the fitted :class:`boxloop.models.Mixture`.

    Example:
        >>> from scipy.sparse import csr_array
        >>> from boxloop import MultinomialMixture
        >>> X = csr_array([[5, 4, 0, 0], [0, 0, 6, 3]] * 40)
        >>> MultinomialMixture(2, random_state=0).fit_predict(X)[:2].tolist() in ([0, 1], [1, 0])
        True
    """

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MixtureEstimator._parameter_constraints,
        "total": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        total: int = 100,
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
        super().__init__(
            n_components,
            tol=tol,
            max_iter=max_iter,
            n_init=n_init,
            init_params=init_params,
            random_state=random_state,
            warm_start=warm_start,
            verbose=verbose,
            method=method,
            accelerate=accelerate,
            batch_size=batch_size,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
        )
        self.total = total

    def _template(self, n_columns: int, device: torch.device) -> Family[Any]:
        level = torch.full(
            (self.n_components, n_columns), 1.0 / n_columns, dtype=torch.float64, device=device
        )
        return Multinomial(level, self.total)

    def _publish(self, model: Mixture[Any]) -> None:
        super()._publish(model)
        self.probabilities_ = to_numpy(model.family.named()["probabilities"])
