"""Mixtures of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from boxloop.distributions import Multinomial
from boxloop.estimators._base import Array, declare_latent_file, to_numpy
from boxloop.estimators.count_mixture import COUNT_LINEUP, TopicMixture
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.fit import Fit, Plan, SpectralError, estimate_topic_errors, fit_topics, start_topics
from boxloop.models import Mixture
from boxloop.numeric import generator
from boxloop.persist import ModelFile
from boxloop.types import Source


@dataclass(eq=False, repr=False, kw_only=True)
class MultinomialMixture(TopicMixture):
    r"""Mixture of multinomial documents: every document is about one topic.

    .. math:: p(x \mid N) = \sum_k \pi_k \, N! \prod_j p_{kj}^{x_j} / x_j!

    Rows are word counts, dense or SciPy sparse; sparse rows are never made dense.
    A missing count (NaN) must be missing completely at random: the fit conditions on the words that were seen.

    Args:
        n_components: number of topics k.
        total: words in a document drawn by ``sample``, and the document ``means_`` refer to.
        tol: stop when the mean log-likelihood per row rises by less.
        max_iter: most EM iterations; passes over the rows for the other methods.
        n_init: number of repetitions of the line-up of starts.
        init_params: as in :class:`GaussianMixture`, or ``spectral``: topics from moments, which no bad start can trap.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em``, ``online``, ``gradient``, or ``spectral``: topics from the moments of pairs and triples of words
            alone (method of moments; Anandkumar, Hsu and Kakade 2012), in a few passes and without a likelihood.
            Documents of fewer than three words are skipped then.
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

    total: int = 100

    _sparse = True
    _lineup = COUNT_LINEUP
    _model_file: ClassVar[ModelFile] = declare_latent_file(Mixture, Multinomial)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MixtureEstimator._parameter_constraints,
        "total": [Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions({"em", "online", "gradient", "spectral"})],
    }

    def _make_template(self, n_columns: int, device: torch.device) -> Multinomial:
        level = torch.full(
            (self.n_components, n_columns), 1.0 / n_columns, dtype=torch.float64, device=device
        )
        return Multinomial(level, self.total)

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        fresh = start is None and plan.resume is None
        if self.method != "spectral" and not (self.init_params == "spectral" and fresh):
            return super()._fit(source, plan, start)
        stream = generator(self.random_state)
        template = self._make_template(source.n_columns, next(iter(source.chunks(1)))[1].device)
        if self.method == "spectral":  # needs no start, not even a warm one
            return fit_topics(source, template, stream)
        first, notes = start_topics(source, template, stream)
        fit = super()._fit(source, plan, first)
        return replace(fit, concerns=(*notes, *fit.concerns))

    def _make_rivals(self, source: Source) -> Sequence[Mixture[Any]]:
        template = self._make_template(source.n_columns, next(iter(source.chunks(1)))[1].device)
        try:
            return (start_topics(source, template, generator(self.random_state))[0],)
        except SpectralError:  # short documents, fractions, missing values, or fewer topics
            return ()

    def standard_errors(self, X: Any, sample_weight: Any = None) -> dict[str, Array]:
        """Standard errors of weights and probabilities; see the base class.

        With ``method="spectral"``, by the delta method through the map from moments to topics, for the rows of the fit.
        """
        if self.method != "spectral":
            return dict(super().standard_errors(X, sample_weight))
        check_is_fitted(self)
        source = self._open(X, sample_weight, reset=False)
        found = estimate_topic_errors(source, self.n_components, generator(self.random_state))
        return {name: to_numpy(value) for name, value in found.items()}

    def _publish(self, model: Mixture[Any]) -> None:
        super()._publish(model)
        self.probabilities_: Array = to_numpy(model.family.named_parameters()["probabilities"])
