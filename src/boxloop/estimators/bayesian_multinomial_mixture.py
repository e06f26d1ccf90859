"""Bayesian mixtures of documents."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats
from sklearn.utils._param_validation import Interval

from boxloop.data import Standardisation
from boxloop.distributions import ComponentDistribution, WordDirichlet
from boxloop.estimators._base import Array, to_numpy
from boxloop.estimators.bayesian_mixture import (
    POSITIVE,
    BayesianMixtureEstimator,
    Columns,
    declare_posterior_file,
)
from boxloop.estimators.count_mixture import COUNT_LINEUP, TopicMixture
from boxloop.persist import ModelFile
from boxloop.types import Source

WORD = 0.1
"""Prior count of every word in every topic."""


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianMultinomialMixture(BayesianMixtureEstimator, TopicMixture):
    r"""Mixture of multinomial documents with a posterior over its parameters, and a number of topics selected by the
    evidence bound.

    .. math:: p(x \mid N) = \sum_k \pi_k \, N! \prod_j p_{kj}^{x_j} / x_j!, \qquad p_k \sim \mathrm{Dirichlet}(b), \quad
              \pi \sim \text{stick-breaking or Dirichlet}

    Fitted by coordinate ascent on the evidence bound, or by stochastic variational inference (Le Corff, section 3.2;
    Hoffman et al. 2013). Rows are word counts, dense or SciPy sparse; sparse rows are never made dense.
    ``n_components`` is an upper bound: topics without which the bound is higher are emptied; in a stream or a warm
    start they stay empty. A missing count (NaN) must be missing completely at random: the fit conditions on the words
    that were seen.

    Args:
        n_components: most topics k.
        total: words in a document drawn by ``sample``, and the document ``means_`` refer to.
        word_concentration_prior: b, a number or one for each word, (d,); 0.1 when ``None``.
        weight_concentration_prior_type: ``dirichlet_process`` or ``dirichlet_distribution``.
        weight_concentration_prior: concentration of the process, or of each weight; 1/k when ``None``.
        tol: stop when the evidence bound, divided by the number of rows, rises by less.
        max_iter: most iterations; passes over the rows for ``online``.
        n_init: number of repetitions of the line-up of starts.
        init_params: as in :class:`GaussianMixture`.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em`` (coordinate ascent) or ``online`` (stochastic variational inference on mini-batches).
        accelerate: extrapolate (guarded SQUAREM).
        batch_size: rows of a mini-batch.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of passes over the rows.

    Attributes:
        weights_: expected weights, (k,).
        probabilities_: expected probabilities of each word in each topic, (k, d).
        means_: expected counts of a document of ``total`` words, (k, d).
        word_concentration_: of the words in each topic, (k, d).
        weight_concentration_: of the weights, (k,); under sticks two arrays (k - 1,), the parameters of each break.
        active_: which topics are in use, (k,): those with the weight of a document, at least.
        n_components_: how many.
        lower_bound_: evidence bound divided by the number of rows.
        model_: the fitted :class:`boxloop.models.variational_mixture.VariationalMixture`.

    Example:
        >>> from scipy.sparse import csr_array
        >>> from boxloop import BayesianMultinomialMixture
        >>> X = csr_array([[5, 4, 0, 0], [0, 0, 6, 3]] * 40)
        >>> BayesianMultinomialMixture(6, random_state=0).fit(X).n_components_
        2
    """

    total: int = 100
    word_concentration_prior: Any = None

    _sparse = True
    _lineup = COUNT_LINEUP
    _component_parameter = "probabilities"
    _model_file: ClassVar[ModelFile] = declare_posterior_file(WordDirichlet)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BayesianMixtureEstimator._parameter_constraints,
        "total": [Interval(Integral, 1, None, closed="left")],
        "word_concentration_prior": ["array-like", *POSITIVE],
    }

    def _make_component_prior(self, standard: Source, frame: Standardisation) -> ComponentDistribution:
        d = standard.n_columns
        prior = WORD if self.word_concentration_prior is None else self.word_concentration_prior
        value = np.asarray(prior, dtype=np.float64)
        if value.shape not in ((), (d,)):
            raise ValueError(
                f"word_concentration_prior should be a number or have the shape {(d,)}, got {value.shape}"
            )
        if not (np.isfinite(value).all() and (value > 0.0).all()):
            raise ValueError("word_concentration_prior must be positive and finite")
        level = torch.from_numpy(np.array(value)).to(frame.origin)
        return WordDirichlet(level.expand(1, d).clone(), self.total)

    def _publish(self, model: Any) -> None:
        super()._publish(model)
        words = model.parameter_posterior.components
        self.word_concentration_: Array = to_numpy(words.concentration)
        self.probabilities_: Array = to_numpy(words.dirichlet.mean())
        self.means_: Array = to_numpy(words.mean)

    def _summarise_components(self, level: float) -> Columns:
        """Each probability has a beta distribution."""
        posterior = self.model_.parameter_posterior.components.dirichlet
        a, mean = self.word_concentration_, self.probabilities_
        rest = np.maximum(a.sum(1, keepdims=True) - a, 1e-300)
        return {
            "mean": mean,
            "sd": np.sqrt(to_numpy(posterior.variance())),
            "low": np.asarray(stats.beta.ppf(0.5 - 0.5 * level, a, rest)),
            "high": np.asarray(stats.beta.ppf(0.5 + 0.5 * level, a, rest)),
            "names": np.array([f"probability[{name}]" for name in self._column_names()]),
        }

    def _count_parameters(self) -> int:
        return int(self.n_components_ * self.n_features_in_ - 1)
