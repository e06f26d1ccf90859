"""Logistic and Poisson regression whose groups differ at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, d2_tweedie_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import to_vector
from boxloop.estimators._base import Array, to_numpy
from boxloop.estimators._input import check_score_labels, check_score_numbers
from boxloop.estimators.grouped import column
from boxloop.estimators.grouped_base import RandomEffectsEstimator
from boxloop.models import BernoulliResponse, GroupedRows, PoissonResponse, Response


@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRandomEffects(ClassifierMixin, RandomEffectsEstimator):
    r"""Logistic regression whose intercept, and slopes if wanted, vary between groups.

    .. math:: P(y_{ij} = 1 \mid u_i) = \frac{1}{1 + e^{-\eta_{ij}}}, \qquad
              \eta_{ij} = \beta_0 + x_{ij}^\top \beta + w_{ij}^\top u_i, \qquad u_i \sim N(0, \Sigma)

    with :math:`w_{ij}` a one and the columns of ``slopes``. Fitted by maximum likelihood: the effects are integrated
    out by Markov chains. See :mod:`boxloop.fit.monte_carlo`.

    Args:
        slopes: columns, by number or name, whose coefficients vary between groups.
        method: ``saem`` (stochastic approximation, a fixed number of rounds) or ``mcem`` (as many draws as it takes to
            show that each step goes up).
        chains: of each group.
        max_iter: rounds of ``saem``; most rounds of ``mcem``.
        tol: of ``mcem``: gain in log-likelihood that is not worth another round.
        precision: wanted Monte Carlo error of each parameter, as a share of its standard error.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.

    Attributes:
        coef_: (d,).
        intercept_: a number.
        covariance_: of the effects, (q, q), the intercept first.
        effects_: posterior mean of each group's effects, (g, q).
        effect_errors_: posterior standard deviations, (g, q).
        groups_: labels of the groups, (g,).
        standard_errors_: of ``intercept``, ``coef`` and ``covariance``, by Louis' identity.
        monte_carlo_errors_: of the same: how far another seed would land.
        log_likelihood_: by adaptive quadrature; NaN for more than two effects a group.
        classes_: the two labels of y.
        n_iter_: rounds.
        converged_: whether the score is zero within its error.
        interrupted_: whether Ctrl-C ended the fit.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators.random_effects import LogisticRandomEffects
        >>> rng = np.random.default_rng(0)
        >>> X, groups = rng.normal(size=(600, 1)), np.repeat(np.arange(60), 10)
        >>> eta = X[:, 0] + rng.normal(size=60)[groups]
        >>> y = rng.random(600) < 1 / (1 + np.exp(-eta))
        >>> fit = LogisticRandomEffects(random_state=0).fit(X, y, groups)
        >>> bool(abs(fit.coef_[0] - 1.0) < 4 * fit.standard_errors_["coef"][0])
        True
    """

    _response: ClassVar[Response] = BernoulliResponse()

    def _encoded(self, y: Any) -> Tensor:
        labels = column(y)
        check_classification_targets(labels)
        self.classes_, code = np.unique(labels, return_inverse=True)
        if len(self.classes_) > 2:
            kind = type_of_target(labels, input_name="y", raise_unknown=True)
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}: "
                f"y must hold two labels, got {len(self.classes_)}"
            )
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold two labels, got {len(self.classes_)} class")
        return torch.from_numpy(code.reshape(-1)).double()

    def _check(self, rows: GroupedRows) -> None:
        ones, count = rows.total(rows.weight * rows.response), rows.total(rows.weight)
        if bool((ones == 0.0).all()) or bool((ones == count).all()):
            raise ValueError("rows of positive weight hold one class: two are needed")
        if not bool((count > 1.0).any()):
            raise ValueError("every group has one row: how groups differ cannot be told from chance")
        if bool(((ones == 0.0) | (ones == count)).all()):
            raise ValueError("within every group all y are equal: groups differ without bound")

    def predict_proba(self, X: Any, groups: Any = None, offset: Any = None) -> Array:
        """Chance of each class, (n, 2).

        Args:
            X: rows (n, d).
            groups: label of each row's group; a row of a group not seen in ``fit``, and every row when omitted, gets
                the average over all groups that there could be.
            offset: as in ``fit``.

        Returns:
            Means over the effects, whose posterior is taken as Gaussian.
        """
        mean, variance = self._predictor(X, groups, offset)
        point, weight = np.polynomial.hermite_e.hermegauss(40)
        level = mean[:, None] + variance.sqrt()[:, None] * torch.from_numpy(point)
        chance = to_numpy(torch.sigmoid(level) @ torch.from_numpy(weight / weight.sum()))
        return np.stack([1.0 - chance, chance], 1)

    def predict(self, X: Any, groups: Any = None, offset: Any = None) -> NDArray[Any]:
        """The more probable class of each row, (n,)."""
        likely = self.predict_proba(X, groups, offset)[:, 1] > 0.5
        return np.asarray(self.classes_[likely.astype(int)])

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Share of rows whose class is predicted."""
        check_is_fitted(self)
        labels, weight = check_score_labels(y, sample_weight)
        return float(accuracy_score(labels, self.predict(X, groups), sample_weight=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PoissonRandomEffects(RegressorMixin, RandomEffectsEstimator):
    r"""Poisson regression whose log-rate, and slopes if wanted, vary between groups.

    .. math:: y_{ij} \mid u_i \sim \mathrm{Poisson}(e^{\eta_{ij}}), \qquad
              \eta_{ij} = o_{ij} + \beta_0 + x_{ij}^\top \beta + w_{ij}^\top u_i, \qquad u_i \sim N(0, \Sigma)

    Parameters and attributes are those of :class:`LogisticRandomEffects`, less ``classes_``.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators.random_effects import PoissonRandomEffects
        >>> rng = np.random.default_rng(0)
        >>> X, groups = rng.normal(size=(400, 1)), np.repeat(np.arange(80), 5)
        >>> y = rng.poisson(np.exp(0.5 * X[:, 0] + rng.normal(size=80)[groups]))
        >>> fit = PoissonRandomEffects(random_state=0).fit(X, y, groups)
        >>> bool(abs(fit.coef_[0] - 0.5) < 4 * fit.standard_errors_["coef"][0])
        True
    """

    _response: ClassVar[Response] = PoissonResponse()

    def _encoded(self, y: Any) -> Tensor:
        counts = to_vector(column(y), "y")
        if not np.isfinite(counts).all() or (counts < 0.0).any() or (counts != np.round(counts)).any():
            raise ValueError("y must hold counts: whole numbers from zero up")
        return torch.from_numpy(counts)

    def _check(self, rows: GroupedRows) -> None:
        if not bool((rows.weight * rows.response).any()):
            raise ValueError("y is zero everywhere: the rate has no maximum")

    def predict(self, X: Any, groups: Any = None, offset: Any = None) -> Array:
        """Expected count of each row, (n,); groups as in :meth:`LogisticRandomEffects.predict_proba`."""
        mean, variance = self._predictor(X, groups, offset)
        return to_numpy((mean + 0.5 * variance).exp())

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Share of the Poisson deviance that is explained."""
        check_is_fitted(self)
        counts, weight = check_score_numbers(y, sample_weight)
        return float(d2_tweedie_score(counts, self.predict(X, groups), sample_weight=weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
