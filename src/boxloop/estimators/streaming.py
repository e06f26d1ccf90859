r"""``partial_fit``: online EM, one call after another.

Until enough rows have come to place and scale a model, they are kept and fitted whole; from then on each batch of b
rows, of N seen in all, moves the averaged statistics by :math:`\gamma = (b / N)^{0.6}`, and the model is that of the
averaged path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from boxloop.data import ArraySource, Frame
from boxloop.estimate.fit import Fit, coordinates, from_standard, to_standard
from boxloop.estimate.online import OnlinePlan, OnlineState
from boxloop.estimate.plan import Plan
from boxloop.run import Outcome
from boxloop.types import Source

STEP_EXPONENT = 0.6


@dataclass(frozen=True)
class Buffered:
    """Rows kept until there are enough for a first model."""

    rows: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Flowing:
    """A model in motion: coordinates, online state, and the weight seen before and since it began."""

    frame: Frame
    state: OnlineState[Any]
    before: float
    since: float


class Streaming:
    """Mixin that gives an estimator ``partial_fit``."""

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Update the model with one batch of rows, which is then forgotten.

        The first calls may bring fewer rows than the model needs: they are kept, and the model appears as soon as
        it can. Bad input raises before anything changes.

        Args:
            X: a batch of rows, of any length.
            y: ignored.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        self._validate_params()
        first = "_stream" not in vars(self) and "model_" not in vars(self)
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
        if kept is not None:
            rows, weight = torch.cat([kept.rows, rows]), torch.cat([kept.weight, weight])
        buffer = Buffered(rows, weight)
        k = self._n_latent(rows.shape[1])
        alive = int((weight > 0).sum())
        if alive < max(2, k):
            return buffer
        columns = tuple(getattr(self, "feature_names_in_", ())) or None
        source = ArraySource(rows, weight, columns)
        plan = Plan(max_rounds=100, tol=1e-4)
        start = vars(self).get("model_") if kept is None else None
        fit = self._fit(source, plan, start)
        self._announce(fit)
        if alive < max(200, 20 * k):
            return buffer
        return self._begin(source, fit)

    def _begin(self, source: Source, fit: Fit[Any]) -> Flowing:
        frame = coordinates(source, self._kind)
        model = to_standard(fit.model, frame, self._kind)
        state: OnlineState[Any] = OnlineState(model)
        for rows, weight in source.chunks(source.n_rows):
            state = state.update(_standard(rows, frame), weight, OnlinePlan(lambda t: 1.0, smooth_after=None)).state
        return Flowing(frame, state, frame.weight, 0.0)

    def _flow(self, stream: Flowing, rows: Tensor, weight: Tensor) -> Flowing:
        fresh = float(weight.sum())
        if fresh == 0.0:
            return stream
        seen, since = stream.before + stream.since + fresh, stream.since + fresh
        gamma, smoothing = (fresh / seen) ** STEP_EXPONENT, min(1.0, 2.0 * fresh / (since + fresh))
        plan = OnlinePlan(lambda t: gamma, smoothing=lambda t: smoothing)
        done = stream.state.update(_standard(rows, stream.frame), weight, plan)
        model = from_standard(done.state.best, stream.frame, self._kind)
        outcome = Outcome(done.state, [done.objective], list(done.events), done.state.average.count, True)
        self._announce(Fit(model, done.state.best, stream.frame, outcome, -stream.frame.log_volume / stream.before))
        return replace(stream, state=done.state, since=since)

    def _announce(self, fit: Fit[Any]) -> None:
        self.model_ = fit.model
        self.n_iter_ = fit.outcome.rounds
        self.lower_bound_ = fit.trace[-1]
        self.lower_bounds_ = fit.trace
        self.converged_, self.interrupted_ = True, False
        self.events_ = list(fit.worries) + list(fit.outcome.events)
        self._publish(fit.model)


def _standard(rows: Tensor, frame: Frame) -> Tensor:
    return (rows.double() - frame.origin) / frame.scale


def _dense(rows: Tensor) -> Tensor:
    return rows.to_dense() if rows.layout != torch.strided else rows
