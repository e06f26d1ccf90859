"""Predictions averaged over networks drawn from a posterior, with noise or temperature."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.optim import Optimizer

from boxloop.data import check_choice, check_weight
from boxloop.networks.distribution import Component, Posterior, warn
from boxloop.networks.draws import DrawOutputs, InputBatches, NetworkDraws
from boxloop.networks.function import Buffers, find_batch_norms
from boxloop.networks.inputs import as_inputs, count_rows, slice_rows
from boxloop.networks.prediction import (
    ClassificationPrediction,
    RegressionPrediction,
    as_logits,
    check_classes,
    check_targets,
    look_like_probabilities,
)
from boxloop.networks.tuning import (
    SCALES,
    Profile,
    Tuning,
    find_best_noise,
    find_best_temperature,
    log_scale_prior,
    tune_scale,
)
from boxloop.numeric import RandomState, SingleThreaded, join_words, seed as make_seed

if TYPE_CHECKING:
    from boxloop.networks.audit.audit import Audit
    from boxloop.networks.weight_decay import Loss

Kind = Literal["regression", "classification"]
Array = NDArray[np.float64]
Prediction = RegressionPrediction | ClassificationPrediction

MIN_TUNING_ROWS = 8  # rows below which tuning warns
KEEP: Literal["net"] = "net"  # value of refresh that keeps the BatchNorm statistics of the network


@dataclass(frozen=True, eq=False, repr=False)
class Predictor(SingleThreaded):
    r"""Predictions averaged over networks drawn from a posterior.

    .. math:: p(y \mid x) = \sum_i w_i\, p(y \mid f(x; \theta_i)), \qquad \theta_i \sim N(\mu, c\,\Sigma)

    Every call draws the same networks, from streams seeded by ``seed``. The network is evaluated in evaluation mode and
    left as it was. Construct one by :meth:`from_posterior` or ``posterior.predictor(...)``.

    Args:
        components: of the posterior.
        kind: ``"regression"``, outputs are means; or ``"classification"``, outputs are logits.
        n_draws: number of networks.
        scale: c, factor of the covariance.
        noise: standard deviation of observations around the output of a network, one or one per output.
        temperature: divides the logits.
        seed: of the draws.
        refresh: inputs for the statistics of BatchNorm; ``"net"`` keeps those of the network.
        buffers: these statistics under every draw, for each component.
        use_vmap: whether draws are evaluated by ``vmap``; None tries it, and warns if it does not work.
        memory: bytes for draws that are evaluated together; None is the default of the device.
        tuning: the result of :meth:`tune`.

    Example:
        >>> import torch
        >>> from boxloop.networks import Layout, WeightDistribution
        >>> net = torch.nn.Linear(1, 1)
        >>> weights = WeightDistribution(torch.tensor([2.0, 1.0]), torch.zeros(2, 0), torch.tensor([0.01, 0.0]))
        >>> component = Component(1.0, net, Layout.from_network(net), weights)
        >>> prediction = Predictor((component,), "regression", 2000, noise=0.3).predict([[0.0], [10.0]])
        >>> prediction.mean.round(1).ravel().tolist(), prediction.epistemic_std.round(1).ravel().tolist()
        ([1.0, 21.0], [0.0, 1.0])
        >>> prediction.std.round(2).ravel().tolist()
        [0.3, 1.04]
    """

    components: tuple[Component, ...]
    kind: Kind
    n_draws: int = 30
    scale: float = 1.0
    noise: ArrayLike | None = None
    temperature: float = 1.0
    seed: int = 0
    refresh: InputBatches | Literal["net"] | None = None
    buffers: tuple[Buffers, ...] | None = None
    use_vmap: bool | None = None
    memory: int | None = None
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_choice(self.kind, "kind", ("regression", "classification"))
        if not (np.isfinite(self.temperature) and self.temperature > 0.0):
            raise ValueError(f"temperature must be a finite number above 0, got {self.temperature}")
        if self.noise is not None:
            if self.kind == "classification":
                raise ValueError("noise applies to regression only; classification has a temperature")
            noise = np.asarray(self.noise, dtype=np.float64)
            if not (np.isfinite(noise) & (noise > 0.0)).all():
                raise ValueError(f"noise must be a standard deviation above 0, got {self.noise}")
            object.__setattr__(self, "noise", noise)
        _ = self.draws

    @classmethod
    def from_posterior(
        cls,
        posterior: Posterior,
        kind: Kind,
        draws: int = 30,
        *,
        noise: ArrayLike | None = None,
        scale: float = 1.0,
        temperature: float = 1.0,
        refresh: Any = None,
        random_state: RandomState = 0,
        use_vmap: bool | None = None,
        memory: int | None = None,
    ) -> Self:
        """A predictor from the current state of a posterior; further arguments are those of the class.

        Args:
            posterior: over network weights.
            kind: ``"regression"`` or ``"classification"``.
            draws: number of networks; a component of zero variance has one.
            noise: standard deviation of observations; :meth:`estimate_noise` and :meth:`tune` estimate it.
            scale: factor of the covariance.
            temperature: divides the logits.
            refresh: inputs for the statistics of BatchNorm, see :meth:`refresh_batch_norm`.
            random_state: seed or generator of the draws.
            use_vmap: whether draws are evaluated by ``vmap``.
            memory: bytes for draws that are evaluated together.
        """
        predictor = cls(
            tuple(posterior.components()),
            kind,
            draws,
            scale=scale,
            noise=noise,
            temperature=temperature,
            seed=make_seed(random_state),
            use_vmap=use_vmap,
            memory=memory,
        )
        return predictor if refresh is None else predictor.refresh_batch_norm(refresh)

    @property
    def draws(self) -> NetworkDraws:
        """The networks."""
        return NetworkDraws.allocate(self.components, self.n_draws, scale=self.scale, seed=self.seed)

    def predict(self, X: Any) -> Any:
        """The predictive distribution for new rows.

        Args:
            X: inputs (n, ...), an array or a tensor; or a tuple, list or dictionary of tensors of n rows, for a network
                that takes several. Integers stay integers. The output of every draw for every row is stored in
                float64: split very many rows into parts.

        Returns:
            A :class:`RegressionPrediction` or a :class:`ClassificationPrediction`.

        Raises:
            ValueError: the network cannot take the rows, or has BatchNorm and ``refresh`` was not given.
        """
        outputs = self._evaluate_networks(X)
        if self.kind == "classification":
            logits = as_logits(outputs.values)
            return ClassificationPrediction(logits, outputs.allocation, self.temperature, outputs.used_vmap)
        shape, noise = outputs.values.shape[2:], None
        if self.noise is not None:
            noise = np.asarray(self.noise, dtype=np.float64)
            if noise.size != 1 and noise.shape not in (shape, (math.prod(shape),)):
                raise ValueError(f"noise has shape {noise.shape}, but the outputs have shape {shape}")
            noise = np.broadcast_to(noise.reshape(()), shape) if noise.size == 1 else noise.reshape(shape)
        return RegressionPrediction(outputs.values, outputs.allocation, noise, outputs.used_vmap)

    def refresh_batch_norm(self, batches: Any) -> Self:
        """The predictor with BatchNorm statistics for each draw, since those of the network belong to other weights.

        Args:
            batches: inputs as in training: an array or a frame (n, ...), or batches that can be read repeatedly, such
                as a list or a loader. Of a batch that is a tuple, inputs come first; several inputs are a nested tuple:
                ((x, z), y). ``"net"`` keeps the statistics of the network, which is right if no weight before the
                BatchNorm varies.
        """
        if isinstance(batches, str):
            if batches != KEEP:
                raise ValueError(f"refresh must be inputs or 'net', got {batches!r}")
            return replace(self, refresh=KEEP, buffers=None)
        return replace(self, refresh=InputBatches(batches)).with_scale(self.scale)

    def with_scale(self, scale: float) -> Self:
        """The predictor with another scale of the covariance, and matching BatchNorm statistics."""
        predictor = replace(self, scale=float(scale), buffers=None)
        if not isinstance(self.refresh, InputBatches):
            return predictor
        statistics = predictor.draws.compute_batch_statistics(
            self.refresh, use_vmap=self.use_vmap, memory=self.memory
        )
        return replace(predictor, buffers=statistics)

    def estimate_noise(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        r"""The predictor with noise estimated from rows: the root mean square residual of each output.

        .. math:: \hat\sigma_j^2 = \tfrac1n \sum_r (y_{rj} - \bar f_j(x_r))^2

        On training rows the estimate is too small if the network overfits; on other rows it includes the epistemic
        variance. :meth:`tune` separates the two.

        Args:
            X: inputs (n, ...).
            y: (n, ...) as the outputs.
            sample_weight: non-negative weights of the rows, (n,).
        """
        if self.kind != "regression":
            raise ValueError(f"estimate_noise needs kind='regression', got kind={self.kind!r}")
        mean = replace(self, noise=None).predict(X).mean
        residual = check_targets(y, mean.shape) - mean.reshape(len(mean), -1)
        weight = _check_sample_weight(sample_weight, len(residual))
        noise = np.sqrt(np.average(residual**2, axis=0, weights=weight))
        if not (noise > 0.0).all():
            raise ValueError(
                "An output is predicted exactly on all rows, so its noise would be 0: pass noise= instead."
            )
        return replace(self, noise=noise.reshape(mean.shape[1:]))

    def tune(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        scales: Sequence[float] = SCALES,
        refine: int = 6,
    ) -> Self:
        r"""The predictor with the scale of the covariance, and noise or temperature, that are best on held-out rows.

        .. math:: \max\; \sum_{r=1}^n \log p(y_r \mid x_r; c, \sigma, T) - \tfrac12 (\log_{10} c)^2
                  - \tfrac12 (\log_2 T)^2 - \sum_j \bigl(2 \log \sigma_j + r_j^2 / \sigma_j^2\bigr)

        The last three terms are weak priors that matter for few rows: scale and temperature are near 1, and the noise
        has two further rows with residuals :math:`r_j`, the root mean square residual of the mean network. For few rows
        the noise is widened by :math:`\sqrt{(n + 2) / n}`, as in Student's distribution. A mixture of few draws is not
        smooth, for which more noise or a smaller scale compensates: use hundreds of draws where their values matter.
        The result's ``tuning`` holds all scores, with standard errors.

        Args:
            X: inputs (n, ...) of rows that were not used for training.
            y: (n, ...) as the outputs, or class numbers (n,).
            sample_weight: non-negative weights of the rows, (n,), as repetitions; n is their sum.
            scales: to try; 0 is the mean network alone.
            refine: number of further scales, between the neighbours of the best.

        Warns:
            WeightWarning: the best scale is the largest tried, or there are fewer than 8 rows.
        """
        rows = as_inputs(X)
        n, scored = count_rows(rows), self.kind == "classification" or self.noise is not None
        first = self.predict(rows if scored else slice_rows(rows, 0, 1))
        weight = _check_sample_weight(sample_weight, n)
        if n < MIN_TUNING_ROWS:
            warn(f"Tuning on {n} row(s) is unreliable: hold out at least {MIN_TUNING_ROWS}.")
        predictor = replace(self, use_vmap=first.used_vmap)  # found just now; no further trials or warnings
        before = first.log_prob(y) if scored else None

        is_regression = self.kind == "regression"

        def profile_scale(scale: float) -> Profile:
            outputs = predictor.with_scale(scale)._evaluate_networks(rows)
            draws = outputs.allocation.weight
            if is_regression:
                centres = outputs.values.reshape(*outputs.values.shape[:2], -1)
                observed = check_targets(y, outputs.values.shape[1:])
                value, score, prior = find_best_noise(centres, draws, observed, weight)
            else:
                logits = as_logits(outputs.values)
                classes = check_classes(y, logits.shape[1:])
                value, score, prior = find_best_temperature(logits, draws, classes, weight)
            return value, score, prior + log_scale_prior(scale)

        name = "noise" if is_regression else "temperature"
        tuning = tune_scale(name, profile_scale, before, scales, refine, weight)
        tuned = replace(predictor.with_scale(tuning.scale), tuning=tuning)
        if is_regression:
            return replace(tuned, noise=tuning.value.reshape(first.outputs.shape[2:]))
        return replace(tuned, temperature=float(tuning.value[0]))

    def __str__(self) -> str:
        noise = "unknown" if self.noise is None else ", ".join(f"{one:.4g}" for one in np.ravel(self.noise))
        own = f"noise {noise}" if self.kind == "regression" else f"temperature {self.temperature:.4g}"
        return (
            f"Predictor: {self.kind}, {self.draws.allocation.n_draws} networks, scale {self.scale:.4g}, {own}"
        )

    __repr__ = __str__

    def _evaluate_networks(self, X: Any) -> DrawOutputs:
        """Outputs of all draws, checked."""
        if self.refresh is None:
            kinds = {
                type(norm).__name__ for one in self.components for norm in find_batch_norms(one.net).values()
            }
            if kinds:
                raise ValueError(
                    f"The statistics of {join_words(sorted(kinds))} belong to other weights than those drawn. Pass "
                    "training inputs as refresh= (or call refresh_batch_norm()) to recompute them for each draw, or "
                    "refresh='net' to keep those of the network."
                )
        outputs = self.draws.evaluate(
            as_inputs(X), buffers=self.buffers, use_vmap=self.use_vmap, memory=self.memory
        )
        finite = np.atleast_1d(np.isfinite(outputs.values).reshape(len(outputs.values), -1).all(1))
        if not finite.all():
            warn(
                f"{int((~finite).sum())} of {len(finite)} networks have outputs that are not finite: check X for such "
                "values, or lower the scale."
            )
        elif self.kind == "classification" and (
            look_like_probabilities(outputs.values)
            or any(_ends_in_sigmoid(one.net) for one in self.components)
        ):
            warn("The outputs are probabilities, not logits: remove the softmax or sigmoid from the network.")
        return outputs


class PredictivePosterior(SingleThreaded):
    """A posterior over network weights that makes predictors and can be audited."""

    @abstractmethod
    def components(self) -> tuple[Component, ...]:
        """Its Gaussian components, each with its network."""

    def predictor(
        self,
        kind: Kind,
        draws: int = 30,
        *,
        noise: ArrayLike | None = None,
        scale: float = 1.0,
        temperature: float = 1.0,
        refresh: Any = None,
        random_state: RandomState = 0,
    ) -> Predictor:
        """A predictor that averages over networks drawn from the current distribution.

        The arguments are those of :meth:`Predictor.from_posterior`.
        """
        return Predictor.from_posterior(
            *(self, kind, draws),
            noise=noise,
            scale=scale,
            temperature=temperature,
            refresh=refresh,
            random_state=random_state,
        )

    def audit(
        self,
        X: Any,
        y: Any,
        X_test: Any,
        y_test: Any,
        *,
        kind: Kind,
        prior_precision: float | None = None,
        noise: Any = None,
        optimiser: Optimizer | None = None,
        loss: Loss | None = None,
        predictor: Predictor | None = None,
        n_draws: int = 100,
        chains: int | None = None,
        chain_draws: int = 200,
        random_state: RandomState = 0,
    ) -> Audit:
        """Compare the distribution with a posterior, and test its predictions: :func:`boxloop.networks.audit`."""
        from boxloop.networks.audit.audit import audit

        return audit(
            *(self, X, y, X_test, y_test),
            kind=kind,
            prior_precision=prior_precision,
            noise=noise,
            optimiser=optimiser,
            loss=loss,
            predictor=predictor,
            n_draws=n_draws,
            chains=chains,
            chain_draws=chain_draws,
            random_state=random_state,
        )


def _check_sample_weight(sample_weight: Any, n: int) -> Array | None:
    return None if sample_weight is None else check_weight(sample_weight, n).cpu().numpy()


def _ends_in_sigmoid(net: nn.Module) -> bool:
    """Whether the last module of a sequence is a sigmoid."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[-1]
    return isinstance(net, nn.Sigmoid)
