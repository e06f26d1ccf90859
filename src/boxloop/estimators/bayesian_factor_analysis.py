"""Bayesian factor analysis."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import stats
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import check_level, make_frame
from boxloop.estimators._base import Array, FitWarning, OnlineStream, declare_latent_file, to_numpy
from boxloop.estimators.linear_gaussian import LinearEstimator
from boxloop.fit import Fit, Plan, fit_variational_factor
from boxloop.models import RelevancePrior, VariationalFactor
from boxloop.numeric import generator, join_words
from boxloop.persist import ModelFile
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PRIOR_SHIFT = 0.1
"""Standard errors by which its prior may move a noise variance. 60 tables of each of 100, 200, 500 and 1500 rows of 8
columns: 95% intervals of the columns below cover 93, 94, 95 and 94%, of those above 82, 87, 89 and 89%."""

POSITIVE = [Interval(Real, 0.0, None, closed="neither")]
KNOWN = {name: rule for name, rule in LinearEstimator._parameter_constraints.items() if name != "noise_floor"}


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianFactorAnalysis(LinearEstimator):
    r"""Factor analysis with a posterior over its parameters, and a number of factors selected by the evidence bound.

    .. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I), \quad \epsilon_j \sim N(0, 1 / \tau_j), \qquad
              F_{jl} \sim N\big(0, (\tau_j \alpha_l)^{-1}\big), \quad \alpha_l \sim \mathrm{Gamma}(a_0, b_0)

    The variational distribution :math:`q(\alpha) \prod_j q(f_j, \tau_j) \prod_i q(z_i)` is fitted by coordinate ascent
    on the evidence bound (Le Corff, section 3.2; Bishop 1999; Ghahramani and Beal 2000). Factors that do not raise the
    bound lose their loadings, so that ``n_components`` is an upper bound. The prior is stated in units of each column's
    variance, with noise :math:`1/\tau_j \sim \mathrm{IG}(3/2, v_j/4)`: other units of the columns do not change the
    fit. Complete rows are read once, as second moments. In a stream (``partial_fit``) factors that are not needed fade
    slowly and are
    still counted: fit the rows at once to count factors.

    The variational distribution treats factors and parameters as independent, and is narrower than the posterior with
    any number of rows. So standard errors and intervals are not its own: they follow from the expected information with
    the factors integrated out, and the prior of the noise (:mod:`boxloop.models.information`), given the number of
    factors. In 300 tables each of 60, 100, 300 and 1000 rows, 5, 10 and 20 columns and 1 to 3 factors, 95% intervals
    covered the noise variances in 91 to 95% (with 5 columns and 2 factors, of which few rows show only one, in 87 to
    93%), the means in 94 to 96%, and the loadings in 93 to 96% where the signals of factors differ by several standard
    errors. Factors of nearly equal signal are hardly identified: then loadings are covered in 80 to 90%. If noise is a
    small share of its column's variance the prior, which expects a half, raises it: with 100 rows of 20 columns whose
    noise was 0.6 to 6%, coverage was 65%. ``posterior_summary`` warns of such columns.

    Args:
        n_components: most factors; when ``None``, as many as a covariance of this width identifies (Ledermann's
            bound, the largest k with :math:`(d - k)^2 \ge d + k`), and at least one.
        relevance_shape: :math:`a_0`.
        relevance_rate: :math:`b_0`.
        tol: stop when the evidence bound of all rows rises by less, in nats: the remaining error is then small
            beside the posterior standard deviations, for any number of rows.
        max_iter: most iterations; passes over the rows for ``online``.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em`` (coordinate ascent) or ``online`` (stochastic variational inference on mini-batches).
        accelerate: extrapolate, and empty factors without which the bound is higher; ``False`` is plain ascent.
        batch_size: rows of a mini-batch.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of passes over the rows.

    Attributes:
        components_: expected loadings, (k, d), the most relevant factor first; those not in use are zero, nearly.
        loading_sd_: their standard errors, (k, d).
        noise_variance_: expected noise variances, (d,).
        mean_: expected mean, (d,).
        relevance_: :math:`1 / E[\alpha_l]`, the mean squared signal-to-noise ratio of each factor's loadings, (k,).
        n_components_: factors in use: those whose loadings, in mean square and in units of the noise, are more than
            their posterior variance.
        communalities_: share of each column's predictive variance that expected loadings explain, (d,).
        lower_bound_: evidence bound divided by the number of rows.
        model_: the fitted :class:`boxloop.models.variational_factor.VariationalFactor`.
        n_iter_: iterations.

    Example:
        >>> import numpy as np
        >>> from boxloop import BayesianFactorAnalysis
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 9)) + 0.5 * rng.normal(size=(500, 9))
        >>> fitted = BayesianFactorAnalysis().fit(X)
        >>> fitted.n_components_, fitted.components_.shape
        (2, (5, 9))
    """

    tol: float = 1e-3
    relevance_shape: float = 1e-3
    relevance_rate: float = 1e-3

    # The prior keeps noise from vanishing.
    noise_floor: ClassVar[float] = 0.0  # type: ignore[misc]
    _latent_name = "factor"
    _objective_name = "evidence bound"
    _model_file: ClassVar[ModelFile] = declare_latent_file(VariationalFactor, RelevancePrior)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **KNOWN,
        "method": [StrOptions({"em", "online"})],
        "relevance_shape": POSITIVE,
        "relevance_rate": POSITIVE,
    }

    def _count_latent(self, n_columns: int) -> int:
        if self.n_components is not None:
            return int(self.n_components)
        return max(1, math.floor(n_columns + 0.5 * (1.0 - math.sqrt(8.0 * n_columns + 1.0)) + 1e-9))

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        return fit_variational_factor(
            source,
            self._check_factor_count(source, start),
            generator=generator(self.random_state),
            plan=plan,
            relevance_shape=self.relevance_shape,
            relevance_rate=self.relevance_rate,
            start=start,
        )

    def _update_stream(self, stream: OnlineStream, rows: Tensor, weight: Tensor) -> OnlineStream:
        """The averaged statistics of a stream stand for all rows so far: the posterior narrows with their number."""
        model: Any = stream.state.model
        longer = replace(model, total=stream.seen + float(weight.sum()))
        return super()._update_stream(
            replace(stream, state=replace(stream.state, model=longer)), rows, weight
        )

    def _publish(self, model: Any) -> None:
        super()._publish(model)
        self.loading_sd_: Array = to_numpy(model.standard_errors().loadings.mT)
        self.relevance_: Array = to_numpy(1.0 / model.precision)
        self.n_components_: int = int(model.is_used.sum())
        explained = (self.components_**2).sum(0)
        self.communalities_: Array = explained / (explained + to_numpy(model.psi))

    def standard_errors(self, X: Any = None, sample_weight: Any = None) -> dict[str, Array]:
        """Standard errors of the fitted parameters, by name, as in ``posterior_summary``; no rows are needed."""
        check_is_fitted(self)
        found = self.model_.standard_errors()
        return {
            "mean": to_numpy(found.mean),
            "components": to_numpy(found.loadings.mT),
            "noise_variance": self.noise_variance_ * np.sqrt(np.expm1(to_numpy(found.log_noise) ** 2)),
        }

    def summary(self) -> Any:
        """One row per column: loading on every factor in use, communality and noise variance, as a pandas frame."""
        check_is_fitted(self)
        used = self.components_[: self.n_components_]
        columns: dict[str, Any] = {f"factor {k}": row for k, row in enumerate(used)}
        columns |= {"communality": self.communalities_, "noise variance": self.noise_variance_}
        return make_frame(columns, self._column_names())

    def posterior_summary(self, level: float = 0.95) -> Any:
        """Mean, standard error and an interval of every parameter of the factors in use, as a pandas frame.

        Args:
            level: probability of the interval, equal on both sides, by Student's t; noise variances on a log scale.

        Returns:
            Rows named ``mean[column]``, ``loading[factor, column]`` and ``noise variance[column]``.

        Warns:
            FitWarning: noise variances so small that their prior moves them by more than a tenth of a standard
                error: their intervals then cover less often than they should.
        """
        check_is_fitted(self)
        check_level(level)
        self._warn_of_prior()
        used, sd, model = range(self.n_components_), self.standard_errors(), self.model_
        freedom = np.maximum(to_numpy(model.present_weight()) - self.n_components_ - 1.0, 1.0)
        freedom = np.minimum(freedom, 1e15)  # beyond, SciPy has no quantile, and the distribution is normal
        reach = np.array([-1.0, 1.0])[:, None] * stats.t.ppf(0.5 + 0.5 * level, freedom)
        centre = [self.mean_, *(self.components_[f] for f in used)]
        errors = [sd["mean"], *(sd["components"][f] for f in used)]
        bounds = [m + reach * s for m, s in zip(centre, errors, strict=True)]
        bounds.append(self.noise_variance_ * np.exp(reach * to_numpy(model.standard_errors().log_noise)))
        named = self._column_names()
        words = [f"mean[{name}]" for name in named]
        words += [f"loading[{f}, {name}]" for f in used for name in named]
        words += [f"noise variance[{name}]" for name in named]
        low, high = np.concatenate(bounds, axis=1)
        columns = {
            "mean": np.concatenate([*centre, self.noise_variance_]),
            "sd": np.concatenate([*errors, sd["noise_variance"]]),
            "low": low,
            "high": high,
        }
        return make_frame(columns, words)

    def _warn_of_prior(self) -> None:
        """Name the columns whose noise variance the prior moves by more than a tenth of its standard error."""
        prior, psi = self.model_.parameter_prior, self.model_.noise
        pull = (prior.noise_rate / psi - prior.noise_shape) * self.model_.standard_errors().log_noise
        moved = [
            name
            for name, size in zip(self._column_names(), pull.tolist(), strict=True)
            if size > MAX_PRIOR_SHIFT
        ]
        if moved:
            warn_caller(
                f"the noise of column(s) {join_words(list(map(repr, moved)), most=5)} is a small share of their "
                f"variance, and its prior, which expects a half, raises it by up to {max(pull.tolist()):.1g} standard "
                "errors: its intervals are too high and cover less often than stated (a quarter to three quarters of "
                "the time where noise is below 5% of the variance); use FactorAnalysis with its standard_errors",
                FitWarning,
            )

    def plot_relevance(self, ax: Axes | None = None) -> Axes:
        """Signal of every factor, beside what its posterior variance alone would give, and where use ends.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import BayesianFactorAnalysis
            >>> X = np.random.default_rng(0).normal(size=(200, 1)) + np.random.default_rng(1).normal(size=(200, 6))
            >>> BayesianFactorAnalysis().fit(X).plot_relevance().get_ylabel()
            'mean squared signal-to-noise ratio'
        """
        check_is_fitted(self)
        from boxloop.figures import spectrum

        doubt = to_numpy(self.model_.loading_uncertainty)[1:]
        return spectrum(
            to_numpy(self.model_.signal_to_noise),
            np.stack([np.zeros_like(doubt), doubt], axis=1),
            self.n_components_,
            ax,
            title="Which factors are in use",
            across="factor",
            up="mean squared signal-to-noise ratio",
        )

    def _count_parameters(self) -> int:
        d, k = self.n_features_in_, self.n_components_
        return d * (k + 2) - k * (k - 1) // 2
