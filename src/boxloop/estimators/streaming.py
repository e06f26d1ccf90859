r"""``partial_fit``: online EM, one call after another.

Until enough rows have come to place and scale a model, they are kept and fitted whole; from then on each batch of b
rows, of N seen in all, moves the averaged statistics by :math:`\gamma = (b / N)^{0.6}`, and the model is that of the
averaged path. A stream that follows a ``fit`` goes on from the statistics of that fit.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from boxloop.average import Running
from boxloop.data import ArraySource
from boxloop.estimators.base import LatentEstimator
from boxloop.estimators.flow import Buffered, Flowing
from boxloop.estimators.warned import warn_of
from boxloop.fit import Fit, OnlinePlan, OnlineState, Plan, from_standard, level_of
from boxloop.loop import Outcome

STEP_EXPONENT = 0.6
GROWTH = 1.5
"""How much longer a buffer must be than at the last race between starts before there is another."""


class StreamingEstimator(LatentEstimator):
    """An estimator with ``partial_fit``; ``_first_rounds`` of EM are spent on the rows that start it."""

    _first_rounds: ClassVar[int] = 100

    @abstractmethod
    def _n_latent(self, n_columns: int) -> int:
        """How many components or factors a table of this width asks for."""

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Update the model with one batch of rows, which is then forgotten.

        The first calls may bring fewer rows than the model needs: they are kept, and the model appears as soon as
        it can. After ``fit`` the rows of that fit count as seen. Bad input raises before anything changes.

        Args:
            X: a batch of rows, of any length.
            y: ignored.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        self._validate_params()
        first = not hasattr(self, "_stream") and not hasattr(self, "model_")
        source = self._open(X, sample_weight, reset=first)
        tiles = [(_dense(rows), weight) for rows, weight in source.chunks()]
        rows, weight = torch.cat([tile for tile, _ in tiles]), torch.cat([w for _, w in tiles])
        stream = vars(self).get("_stream")
        if isinstance(stream, Flowing):
            self._stream = self._flow(stream, rows, weight)
        else:
            self._stream = self._gather(stream, rows, weight)
        return self

    def _gather(self, kept: Buffered | None, rows: Tensor, weight: Tensor) -> Buffered | Flowing:
        if kept is None:
            kept = Buffered(rows, weight, start=vars(self).get("model_"))
        else:
            kept = replace(kept, rows=torch.cat([kept.rows, rows]), weight=torch.cat([kept.weight, weight]))
        k, alive = self._n_latent(rows.shape[1]), int((kept.weight > 0).sum())
        enough = alive >= max(200, 20 * k)
        unseen = bool(torch.isnan(kept.rows[kept.weight > 0]).all(0).any())
        if alive < max(2, k) or ((unseen or kept.start is not None) and not enough):
            return kept
        columns = tuple(getattr(self, "feature_names_in_", ())) or None
        source = ArraySource(kept.rows, kept.weight, columns)
        if enough or alive >= GROWTH * kept.raced:
            fit = self._fit(source, Plan(max_iter=self._first_rounds, tol=1e-4, finish=False), kept.start)
            kept = replace(kept, raced=alive)
        else:
            fit = self._fit(source, Plan(max_iter=10, tol=1e-4, finish=False), self.model_)
        self._announce(fit, fit.frame.weight)
        if not enough:
            return kept
        warn_of(fit.worries)
        state: OnlineState[Any] = OnlineState(fit.standard, Running(fit.statistics, 1))
        return Flowing(fit.frame, state, fit.frame.weight)

    def _flow(self, stream: Flowing, rows: Tensor, weight: Tensor) -> Flowing:
        fresh, frame = float(weight.sum()), stream.frame
        seen, since = stream.seen + fresh, stream.since + fresh
        gamma, smoothing = (fresh / seen) ** STEP_EXPONENT, min(1.0, 2.0 * fresh / (since + fresh))
        plan = OnlinePlan(lambda t: gamma, smoothing=lambda t: smoothing)
        done = stream.state.update((rows.double() - frame.origin) / frame.scale, weight, plan)
        best = done.state.best
        outcome = Outcome(done.state, [done.objective], list(done.events), done.state.average.count, True)
        here = replace(frame, observed=(~torch.isnan(rows)).double().mT @ weight, weight=fresh)
        level = level_of(best, ArraySource(rows, weight), here)
        model = from_standard(best, frame, self._kind)
        self._announce(Fit(model, best, frame, outcome, level, done.events), seen)
        warn_of(done.events)
        return Flowing(frame, done.state, seen, since)

    def _announce(self, fit: Fit[Any], seen: float) -> None:
        self.model_ = self._reported(fit.model)
        self.n_iter_ = fit.outcome.n_iter
        self.n_samples_seen_ = seen
        self.training_digest_ = None  # batches are forgotten
        self.lower_bound_ = fit.trace[-1]
        self.lower_bounds_ = fit.trace
        self.converged_, self.interrupted_ = False, False  # more rows may come: nothing is tested
        self.events_ = list(fit.worries)
        self._publish(self.model_)


def _dense(rows: Tensor) -> Tensor:
    return rows.to_dense() if rows.layout != torch.strided else rows
