"""Bayesian mixtures as estimators: prior, variational fit, posterior of weights and components."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import Standardisation, check_count, check_level, make_frame
from boxloop.distributions import ComponentDistribution, Dirichlet, Family, MixturePrior, StickBreaking
from boxloop.estimators._base import Array, OnlineStream, declare_latent_file, to_numpy
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.fit import Fit, Plan, fit_variational_mixture
from boxloop.models import VariationalMixture
from boxloop.numeric import generator
from boxloop.persist import Check, ModelFile
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSITIVE: list[Any] = [None, Interval(Real, 0.0, None, closed="neither")]

DRAWS = 20_000
"""Draws for quantiles without a closed form."""

Columns = dict[str, Array]


def declare_posterior_file(*components: type, checks: tuple[Check, ...] = ()) -> ModelFile:
    """The file of a mixture with a posterior over its parameters, whose components are of these classes."""
    return declare_latent_file(
        VariationalMixture, MixturePrior, Dirichlet, StickBreaking, *components, checks=checks
    )


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianMixtureEstimator(MixtureEstimator):
    """Base of the mixtures with a posterior over their parameters; a subclass defines the prior of components."""

    weight_concentration_prior_type: str = "dirichlet_process"
    weight_concentration_prior: float | None = None

    _objective_name = "evidence bound"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MixtureEstimator._parameter_constraints,
        "method": [StrOptions({"em", "online"})],
        "weight_concentration_prior_type": [StrOptions({"dirichlet_process", "dirichlet_distribution"})],
        "weight_concentration_prior": POSITIVE,
    }

    @abstractmethod
    def _make_component_prior(self, standard: Source, frame: Standardisation) -> ComponentDistribution:
        """The prior of components in standard coordinates, one for all."""

    @abstractmethod
    def _summarise_components(self, level: float) -> Columns:
        """Mean, sd, low and high of the parameters of components, each (k, p), with names of the p as ``names``."""

    def _make_template(self, n_columns: int, device: torch.device) -> Family[Any]:
        raise TypeError("the starts of a Bayesian mixture follow from its prior")

    @property
    def _prior_concentration(self) -> float:
        """Prior concentration of the weights."""
        value = self.weight_concentration_prior
        return 1.0 / self.n_components if value is None else float(value)

    def _make_prior(self, standard: Source, frame: Standardisation) -> MixturePrior:
        k = self.n_components
        level = frame.origin.new_tensor(self._prior_concentration)
        weights: Dirichlet | StickBreaking
        if self.weight_concentration_prior_type == "dirichlet_process":
            weights = StickBreaking.dirichlet_process(k, level)
        else:
            weights = Dirichlet(level.expand(k).clone())
        return MixturePrior(weights, self._make_component_prior(standard, frame))

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        if source.n_rows < self.n_components:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components}, "
                f"n_samples = {source.n_rows}"
            )

        def make_checked_prior(standard: Source, frame: Standardisation) -> MixturePrior:
            new = self._make_prior(standard, frame)
            if start is not None and not _has_same_form(start.parameter_posterior, new.expand_members()):
                raise ValueError(
                    "warm_start needs a previous fit with the same columns and the same kind of prior"
                )
            return new

        return fit_variational_mixture(
            source,
            make_checked_prior,
            kind=self._coordinate_kind,
            generator=generator(self.random_state),
            plan=plan,
            starts=self._starts(source.n_columns),
            start=start,
        )

    def _update_stream(self, stream: OnlineStream, rows: Tensor, weight: Tensor) -> OnlineStream:
        """The averaged statistics of a stream stand for all rows so far: the posterior narrows with their number."""
        seen = stream.seen + float(weight.sum())
        state: Any = stream.state
        model = state.model.with_total(seen)
        updated = super()._update_stream(replace(stream, state=replace(state, model=model)), rows, weight)
        self.lower_bound_ -= float(model.divergence()) / seen
        self.lower_bounds_: list[float] = [self.lower_bound_]
        return updated

    def _publish(self, model: Any) -> None:
        posterior, prior = model.parameter_posterior.weights, model.parameter_prior.weights
        self.weights_: Array = to_numpy(posterior.mean())
        if isinstance(posterior, StickBreaking):
            self.weight_concentration_: Any = (to_numpy(posterior.first), to_numpy(posterior.second))
            concentration = to_numpy(prior.second)
        else:
            self.weight_concentration_ = to_numpy(posterior.concentration)
            concentration = to_numpy(prior.concentration)
        # One component has no stick to break, and its prior no concentration but the parameter.
        self.weight_concentration_prior_: float = (
            float(concentration[0]) if len(concentration) else self._prior_concentration
        )
        count = to_numpy(model.component_counts)
        self.active_: NDArray[np.bool_] = count >= min(1.0, float(count.max()))
        self.n_components_: int = int(self.active_.sum())

    def sample_posterior(self, n_samples: int = 1) -> dict[str, Array]:
        """Draw parameters from their posterior.

        Args:
            n_samples: number of draws.

        Returns:
            Parameters by name, each with the draws along its first axis: ``weights`` (n, k), and those of components.
        """
        check_is_fitted(self)
        check_count(n_samples, "n_samples")
        device = self.model_.log_weight.device
        draws = [
            m.named_parameters() for m in self.model_.draw(n_samples, generator(self.random_state, device))
        ]
        return {name: to_numpy(torch.stack([draw[name] for draw in draws])) for name in draws[0]}

    def posterior_summary(self, level: float = 0.95) -> Any:
        """Mean, standard deviation and range under q of every parameter of the components in use, as a pandas frame.

        q treats the components of rows as independent of the parameters: if components overlap, its range is narrower
            than a credible interval. A moment that does not exist is infinite, as the standard deviation of a mean with
            two degrees of freedom.

        Args:
            level: probability of the range under q, equal on both sides.

        Returns:
            Rows named ``weight[component]`` and, for parameters of components, ``name[component, column]``.
        """
        check_is_fitted(self)
        check_level(level)
        used = np.flatnonzero(self.active_)
        posterior = self.model_.parameter_posterior.weights
        low, high = self._compute_weight_intervals(0.5 - 0.5 * level, 0.5 + 0.5 * level)
        weight = {
            "mean": self.weights_,
            "sd": np.sqrt(to_numpy(posterior.variance())),
            "low": low,
            "high": high,
        }
        parts = self._summarise_components(level)
        names = parts.pop("names")
        index = [f"weight[{k}]" for k in used]
        index += [str(name).replace("[", f"[{k}, ") for k in used for name in names]
        columns: dict[str, Any] = {
            key: np.concatenate([weight[key][used], parts[key][used].reshape(-1)]) for key in weight
        }
        return make_frame(columns, index)

    def plot_weights(self, ax: Axes | None = None) -> Axes:
        """Expected weights of the components in use, with one and two posterior standard deviations.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import BayesianGaussianMixture
            >>> X = np.random.default_rng(0).normal(size=(200, 2)) + 8.0 * (np.arange(200)[:, None] % 4 == 0)
            >>> ax = BayesianGaussianMixture(5, random_state=0).fit(X).plot_weights()
            >>> [tick.get_text() for tick in ax.get_yticklabels()]
            ['component 0', 'component 1']
        """
        check_is_fitted(self)
        from boxloop.figures import forest

        used = np.flatnonzero(self.active_)
        sd = np.sqrt(to_numpy(self.model_.parameter_posterior.weights.variance()))
        names = [f"component {k}" for k in used]
        title = f"{len(used)} of {len(sd)} components in use"
        return forest(names, self.weights_[used], sd[used], ax, title=title, across="weight")

    def _compute_weight_intervals(self, low: float, high: float) -> tuple[Array, Array]:
        """Exact for a Dirichlet distribution; for sticks, whose pieces are products, by draws."""
        posterior, k = self.model_.parameter_posterior.weights, len(self.weights_)
        if isinstance(posterior, Dirichlet):
            a = to_numpy(posterior.concentration)
            if k == 1:
                return np.ones(1), np.ones(1)
            # a.sum() - a would cancel beside a large a.
            rest = np.where(np.eye(k, dtype=bool), 0.0, a).sum(1)
            return np.asarray(stats.beta.ppf(low, a, rest)), np.asarray(stats.beta.ppf(high, a, rest))
        repeated = posterior.map(lambda leaf: leaf.expand(DRAWS, *leaf.shape))
        log_weights = repeated.draw(generator(0, posterior.first.device))
        ends = np.quantile(to_numpy(log_weights.exp()), [low, high], axis=0)
        return ends[0], ends[1]

    def standard_errors(self, X: Any = None, sample_weight: Any = None) -> dict[str, Array]:
        """Posterior standard deviations of weights and of means (or probabilities); no rows are needed."""
        check_is_fitted(self)
        posterior, parts = self.model_.parameter_posterior.weights, self._summarise_components(0.95)
        d = self.n_features_in_
        return {
            "weights": np.sqrt(to_numpy(posterior.variance())),
            self._component_parameter: parts["sd"][:, :d],
        }

    _component_parameter: ClassVar[str] = "means"


def _has_same_form(one: MixturePrior, other: MixturePrior) -> bool:
    return (
        type(one.components) is type(other.components)
        and type(one.weights) is type(other.weights)
        and one.n_components == other.n_components
        and one.components.mean.shape == other.components.mean.shape
    )
