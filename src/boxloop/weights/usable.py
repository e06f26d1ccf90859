"""What can be done with any law over weights, be it of one run or of several."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from torch.optim import Optimizer

from boxloop.numeric import RandomState, SingleThreaded
from boxloop.weights.method import Part
from boxloop.weights.predictor import Kind, Predictor

if TYPE_CHECKING:
    from boxloop.weights.audit import Audit
    from boxloop.weights.decay import Loss


class Usable(SingleThreaded):
    """A posterior that predicts and can be audited."""

    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """Its Gaussians, each with the network that it is of."""

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
        """Networks drawn from the law as it is now, whose answers are averaged.

        Args:
            kind: ``"regression"`` or ``"classification"``.
            draws: networks.
            noise: standard deviation of observations around what a network says, for regression; see
                :meth:`Predictor.with_noise` and :meth:`Predictor.tuned`, which find it.
            scale: of the covariance.
            temperature: by which logits are divided.
            refresh: inputs for the statistics of BatchNorm, where the network has it.
            random_state: of the draws.
        """
        return Predictor.of(
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
        """Whether the law is anything like a posterior, and its predictions any good: :func:`boxloop.weights.audit`."""
        from boxloop.weights.audit import audit

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
