"""Predictions by the networks of a posterior: how many, how far apart, with which noise or temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boxloop.data import check_choice, check_weight
from boxloop.numeric import RandomState, SingleThreaded, seed as seed_of
from boxloop.weights.batch_norm import Batches, refreshed
from boxloop.weights.classes import ClassificationPrediction, as_logits, classes
from boxloop.weights.functional import Buffers
from boxloop.weights.inputs import as_inputs, count, cut
from boxloop.weights.likely import Found, best_noise, likely_temperature
from boxloop.weights.method import Part, Posterior, warn
from boxloop.weights.outputs import Draws, Outputs, run_draws
from boxloop.weights.prediction import RegressionPrediction, targets
from boxloop.weights.predictor_checks import look_at, noise_for, refuse_old_statistics
from boxloop.weights.tuning import SCALES, Tuning, scale_prior, tune

Kind = Literal["regression", "classification"]
Array = NDArray[np.float64]
Prediction = RegressionPrediction | ClassificationPrediction

FEWEST = 8
"""Rows below which a tuning warns."""
NET: Literal["net"] = "net"
"""The word for statistics of BatchNorm as the network has them."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictor(SingleThreaded):
    r"""An average over networks that are drawn from a posterior.

    .. math:: p(y \mid x) = \sum_i w_i\, p(y \mid f(x; \theta_i)), \qquad \theta_i \sim N(\mu, c\,\Sigma)

    Every call draws the same networks, from streams that ``seed`` starts. The network is run as after ``eval()``, and
    left as it was. Make one by :meth:`of`, or by ``posterior.predictor(...)``.

    Args:
        parts: of the posterior.
        kind: ``"regression"``, outputs are means; or ``"classification"``, outputs are logits.
        n_draws: networks.
        scale: c, of the covariance.
        noise: standard deviation of observations around what a network says, one or one for each output, in their
            shape or in a row.
        temperature: by which logits are divided.
        seed: of the draws.
        refresh: inputs for the statistics of BatchNorm; ``"net"`` for those that the network has.
        buffers: these statistics under every draw, for each part.
        together: whether draws go by ``vmap``; None tries, and warns where it cannot be.
        memory: bytes that may be taken for draws in flight; None to choose.
        tuning: what :meth:`tuned` tried.

    Example:
        >>> import torch
        >>> from boxloop.weights.law import WeightLaw
        >>> from boxloop.weights.layout import Layout
        >>> net = torch.nn.Linear(1, 1)
        >>> law = WeightLaw(torch.tensor([2.0, 1.0]), torch.zeros(2, 0), torch.tensor([0.01, 0.0]))
        >>> part = Part(1.0, net, Layout.of(net), law)
        >>> found = Predictor((part,), "regression", 2000, noise=0.3).predict([[0.0], [10.0]])
        >>> found.mean.round(1).ravel().tolist(), found.spread.round(1).ravel().tolist()
        ([1.0, 21.0], [0.0, 1.0])
        >>> found.deviation.round(2).ravel().tolist()
        [0.3, 1.04]
    """

    parts: tuple[Part, ...]
    kind: Kind
    n_draws: int = 30
    scale: float = 1.0
    noise: ArrayLike | None = None
    temperature: float = 1.0
    seed: int = 0
    refresh: Batches | Literal["net"] | None = None
    buffers: tuple[Buffers, ...] | None = None
    together: bool | None = None
    memory: int | None = None
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_choice(self.kind, "kind", ("regression", "classification"))
        if not (np.isfinite(self.temperature) and self.temperature > 0.0):
            raise ValueError(f"temperature must be a finite number above 0, got {self.temperature}")
        if self.noise is not None:
            if self.kind == "classification":
                raise ValueError("noise is of regression; classes have a temperature")
            noise = np.asarray(self.noise, dtype=np.float64)
            if not (np.isfinite(noise) & (noise > 0.0)).all():
                raise ValueError(f"noise is a standard deviation above 0, got {self.noise}")
            object.__setattr__(self, "noise", noise)
        _ = self.draws

    @classmethod
    def of(
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
        together: bool | None = None,
        memory: int | None = None,
    ) -> Self:
        """A predictor from a posterior as it is now.

        Args:
            posterior: a law over weights.
            kind: ``"regression"`` or ``"classification"``.
            draws: networks; a part of the posterior that has no spread has one.
            noise: standard deviation of observations, one or one for each output; see :meth:`with_noise`.
            scale: of the covariance.
            temperature: of the logits.
            refresh: see :meth:`fresh`.
            random_state: seed or generator of the draws.
            together: whether draws go by ``vmap``; None tries, and warns where it cannot be.
            memory: bytes that may be taken for draws in flight; None to choose.
        """
        made = cls(
            tuple(posterior.parts()),
            kind,
            draws,
            scale=scale,
            noise=noise,
            temperature=temperature,
            seed=seed_of(random_state),
            together=together,
            memory=memory,
        )
        return made if refresh is None else made.fresh(refresh)

    @property
    def draws(self) -> Draws:
        """The networks."""
        return Draws.of(self.parts, self.n_draws, scale=self.scale, seed=self.seed)

    def predict(self, X: Any) -> Any:
        """What is known about new rows.

        Args:
            X: inputs (n, ...), an array or a tensor; or a tuple, list or dictionary of tensors of n rows, for a network
                that takes several. Whole numbers stay whole. What every draw says of every row is kept, 8 bytes a
                number: give very many rows in pieces.

        Returns:
            A :class:`RegressionPrediction` or a :class:`ClassificationPrediction`.

        Raises:
            ValueError: a network that cannot take the rows; one with BatchNorm whose statistics are of other weights.
        """
        found = self._run(X)
        if self.kind == "regression":
            noise = noise_for(self.noise, found.outputs.shape[2:])
            return RegressionPrediction(found.outputs, found.strata, noise, found.together)
        return ClassificationPrediction(
            as_logits(found.outputs), found.strata, self.temperature, found.together
        )

    def fresh(self, batches: Any) -> Self:
        """With statistics of BatchNorm under every draw, as those of the network are of other weights.

        Args:
            batches: inputs as in training: an array or a frame (n, ...), or batches that can be gone through again, a
                list or a loader; of a batch that is a tuple, inputs come first, so that several are a pair in one:
                ((x, z), y). ``"net"`` keeps the statistics of the
                network, which is right where no weight before the BatchNorm varies.
        """
        if isinstance(batches, str):
            if batches != NET:
                raise ValueError(f"refresh must be inputs or 'net', got {batches!r}")
            return replace(self, refresh=NET, buffers=None)
        return replace(self, refresh=Batches(batches)).at_scale(self.scale)

    def at_scale(self, scale: float) -> Self:
        """With another scale of the covariance, and statistics of BatchNorm to match."""
        made = replace(self, scale=float(scale), buffers=None)
        if not isinstance(self.refresh, Batches):
            return made
        found = refreshed(made.draws, self.refresh, together=self.together, memory=self.memory)
        return replace(made, buffers=found)

    def with_noise(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        r"""With noise estimated from rows: the root mean square of what the mean prediction leaves, by output.

        .. math:: \hat\sigma_j^2 = \tfrac1n \sum_r (y_{rj} - \bar f_j(x_r))^2

        On the rows of training it is too small for a network that has learned them by heart; on other rows it holds the
        spread of the weights too. :meth:`tuned` knows the difference.

        Args:
            X: inputs (n, ...).
            y: (n, ...) as the outputs.
            sample_weight: one non-negative weight a row.
        """
        self._must_be("regression", "noise")
        mean = replace(self, noise=None).predict(X).mean
        left = targets(y, mean.shape) - mean.reshape(len(mean), -1)
        noise = np.sqrt(np.average(left**2, axis=0, weights=_row_weight(sample_weight, len(left))))
        if not (noise > 0.0).all():
            raise ValueError("an output is predicted exactly on all rows: give noise= yourself")
        return replace(self, noise=noise.reshape(mean.shape[1:]))

    def tuned(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        scales: Sequence[float] = SCALES,
        refine: int = 6,
    ) -> Self:
        r"""With the scale of the covariance, and noise or temperature, that held-out rows prefer.

        .. math:: \max\; \sum_{r=1}^n \log p(y_r \mid x_r; c, \sigma, T) - \tfrac12 (\log_{10} c)^2
                  - \tfrac12 (\log_2 T)^2 - \sum_j \bigl(2 \log \sigma_j + r_j^2 / \sigma_j^2\bigr)

        The last three are weak priors, for rows that are few: of the scale and of the temperature around 1, of the
        noise two rows more that leave :math:`r_j`, what the mean network leaves of the others (root mean square). So
        many rows tell of noise no more than Student's law does, which widens it by :math:`\sqrt{(n + 2) / n}`. A
        mixture of few draws is lumpy, and more noise or a smaller scale makes up for that: where their values matter,
        use hundreds. ``tuning`` of what is given back tells all that was tried, with errors.

        Args:
            X: inputs (n, ...) that were not trained on.
            y: (n, ...) as the outputs, or classes (n,).
            sample_weight: one non-negative weight a row, as its repetitions; n is their sum.
            scales: to try; 0 is the mean network alone.
            refine: how many more, between the neighbours of the best.

        Warns:
            WeightWarning: the best scale is the largest tried, or the rows are fewer than 8.

        Raises:
            ValueError: outputs that are not finite at any scale.
        """
        rows, known = as_inputs(X), self.kind == "classification" or self.noise is not None
        first, n = self.predict(rows if known else cut(rows, 0, 1)), count(rows)
        weight = _row_weight(sample_weight, n)
        if n < FEWEST:
            warn(f"{n} row(s) tell little of noise, temperature or scale: hold out {FEWEST} at least")
        made = replace(
            self, together=first.together
        )  # whether draws go together was decided, and told, just now
        before = first.log_prob(y) if known else None
        if self.kind == "regression":
            found = tune(
                "noise", lambda c: made._noise_at(c, rows, y, weight), before, scales, refine, weight
            )
            kept = replace(made, noise=found.value.reshape(first.outputs.shape[2:]))
        else:
            found = tune(
                "temperature", lambda c: made._heat_at(c, rows, y, weight), before, scales, refine, weight
            )
            kept = replace(made, temperature=float(found.value[0]))
        return replace(kept.at_scale(found.scale), tuning=found)

    def __str__(self) -> str:
        noise = "unknown" if self.noise is None else ", ".join(f"{one:.4g}" for one in np.ravel(self.noise))
        own = f"noise {noise}" if self.kind == "regression" else f"temperature {self.temperature:.4g}"
        return f"Predictor: {self.kind}, {self.draws.strata.n_draws} networks, scale {self.scale:.4g}, {own}"

    __repr__ = __str__

    def _noise_at(self, scale: float, rows: Any, y: Any, weight: Array | None) -> Found:
        found = self.at_scale(scale)._run(rows)
        centres = found.outputs.reshape(*found.outputs.shape[:2], -1)
        seen = targets(y, found.outputs.shape[1:])
        noise, score, prior = best_noise(centres, found.strata.weight, seen, weight)
        return noise, score, prior + scale_prior(scale)

    def _heat_at(self, scale: float, rows: Any, y: Any, weight: Array | None) -> Found:
        found = self.at_scale(scale)._run(rows)
        logits = as_logits(found.outputs)
        seen = classes(y, logits.shape[1:])
        heat, score, prior = likely_temperature(logits, found.strata.weight, seen, weight)
        return heat, score, prior + scale_prior(scale)

    def _run(self, X: Any) -> Outputs:
        if self.refresh is None:
            refuse_old_statistics(self.parts)
        found = run_draws(
            self.draws, as_inputs(X), buffers=self.buffers, together=self.together, memory=self.memory
        )
        look_at(found.outputs, self.kind, self.parts)
        return found

    def _must_be(self, kind: str, what: str) -> None:
        if self.kind != kind:
            raise ValueError(f"{what} is of {kind}, and this predicts a {self.kind}")


def _row_weight(given: Any, n: int) -> Array | None:
    """Checked weights of rows, where there are any."""
    return None if given is None else check_weight(given, n).cpu().numpy()
