"""The steps of an audit: each finds something out, or says why it could not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from boxloop.concerns import Concern, Level
from boxloop.data import to_labels
from boxloop.weights.audit_chain import ROWS, Chains, compare_chains
from boxloop.weights.audit_iterates import Iterates, iterates
from boxloop.weights.audit_last import LastLayerCheck, check_last_layer, exact_last_layer, mean_network
from boxloop.weights.batch_norm import has_batch_norm
from boxloop.weights.classes import log_probabilities
from boxloop.weights.decay import DecayCheck, Loss, check_decay, implied_precision
from boxloop.weights.inputs import Inputs, as_inputs, count, cut, tensors
from boxloop.weights.method import Part, Posterior
from boxloop.weights.posterior import WeightPosterior
from boxloop.weights.predictor import Kind, Predictor
from boxloop.weights.window import Windowed

Array = NDArray[np.float64]

MANY, WEIGHTS, WORK = 16, 500, 300_000
"""Chains, and the weights and weights times rows up to which they are run unasked."""
ONE = "a mixture of several runs: audit each of them"
Found = TypeVar("Found")


class NotRunError(ValueError):
    """A step that could not be taken: why, what to do, and whether that is a worry by itself."""

    def __init__(self, why: str, said: str = "", level: Level = "not run") -> None:
        super().__init__(why)
        self.said, self.level = said, level


class Inquiry:
    """What is asked about, and what was found on the way.

    Args:
        parts: of the posterior.
        X: training rows.
        y: their outputs or classes.
        kind: ``regression`` or ``classification``.
        prior_precision: alpha, where it is stated.
        noise: standard deviations of observations, where they are stated.

    Attributes:
        skipped: why something was not looked at.
        notes: what was taken for granted.
    """

    def __init__(
        self, parts: tuple[Part, ...], X: Any, y: Any, kind: Kind, prior_precision: float | None, noise: Any
    ) -> None:
        self.parts, self.X, self.y, self.kind = parts, *whole(X, y, "X", "y"), kind
        if prior_precision is not None and not prior_precision > 0.0:
            raise ValueError(f"prior_precision must be above 0, got {prior_precision}")
        self.stated, self.prior_precision = prior_precision is not None, prior_precision
        self.noise: Array | None = None if noise is None else np.asarray(noise, dtype=float).reshape(-1)
        self.n_rows = count(self.X)
        self.skipped: list[Concern] = []
        self.notes: list[str] = []

    def attempt(self, what: str, step: Callable[[], Found]) -> Found | None:
        """Take a step; where it cannot be taken, note why."""
        try:
            return step()
        except NotRunError as error:
            self.skipped.append(Concern(error.level, what, str(error), error.said))
        except ValueError as error:
            self.skipped.append(Concern("not run", what, str(error).rstrip(".")))
        return None

    def title(self, posterior: Posterior) -> str:
        """What is audited."""
        size = sum(part.law.size for part in self.parts)
        if isinstance(posterior, WeightPosterior):
            name, rank = type(posterior.method).__name__, self.parts[0].law.rank
            return f"Audit of {name}, rank {rank}, over {size} weights after {posterior.count} vectors"
        return f"Audit of {len(self.parts)} Gaussian(s) over {size} weights"

    def predictor(self, n_draws: int, seed: int) -> Predictor:
        """Networks from the law as it is."""
        found = Predictor(self.parts, self.kind, n_draws, seed=seed)
        if not has_batch_norm(self.parts):
            return found
        return found.fresh(self.X if isinstance(self.X, Tensor | dict) else [(self.X, self.y)])

    def iterates(self, posterior: Posterior) -> Iterates:
        """Of the trajectory that the posterior followed."""
        if not isinstance(posterior, WeightPosterior):
            raise NotRunError(ONE if len(self.parts) > 1 else "the law has no record of a trajectory")
        window = posterior.method.window if isinstance(posterior.method, Windowed) else 1
        try:
            return iterates(posterior.record, window)
        except ValueError as error:
            raise NotRunError(str(error), "observe longer", "bad") from error

    def last_layer(self, plain: Predictor) -> LastLayerCheck:
        """Against the exact posterior; what was not stated of prior and noise is found on the way."""
        part = self._one()
        still = plain.at_scale(0.0).buffers
        net = mean_network(part, None if still is None else still[0])
        exact = exact_last_layer(net, self.X, self.y, self.kind, self.prior_precision, self.noise)
        if self.prior_precision is None:
            self.prior_precision = float(exact.alpha.mean())
            self.notes.append(
                f"prior precision {self.prior_precision:.3g}, the last layer's of highest evidence"
            )
        if self.noise is None and exact.noise is not None:
            self.noise = exact.noise.double().cpu().numpy()
            self.notes.append(f"noise {_listed(self.noise)}, the last layer's of highest evidence")
        return check_last_layer(part, exact, self.X, self.kind)

    def with_noise(self, predictor: Predictor) -> Predictor:
        """The same predictor, with noise where numbers are predicted."""
        if self.kind == "classification" or predictor.noise is not None:
            return predictor
        if self.noise is None:
            found = predictor.with_noise(self.X, self.y)
            self.noise = np.ravel(np.asarray(found.noise))
            self.notes.append(f"noise {_listed(self.noise)}, what predictions of the training rows leave")
            return found
        return replace(predictor, noise=self.noise)

    def chains(self, plain: Predictor, X_test: Any, chains: int | None, draws: int, seed: int) -> Chains:
        """Against Monte Carlo over all weights."""
        part = self._one()
        size = part.law.size
        if chains == 0:
            raise NotRunError("not asked for")
        if chains is None and (size > WEIGHTS or size * self.n_rows > WORK):
            why = f"{size} weights, {self.n_rows} rows: over {WEIGHTS} weights, or {WORK} weights times rows"
            raise NotRunError(why, f"chains={MANY} runs it all the same")
        if self.prior_precision is None or (self.kind == "regression" and self.noise is None):
            raise NotRunError("prior_precision or noise is not known", "state them")
        rows = cut(as_inputs(X_test), 0, ROWS)
        found = plain.predict(rows)
        outputs = found.outputs.reshape(*found.outputs.shape[:2], -1)
        if self.kind == "classification":
            outputs = np.exp(log_probabilities(outputs, 1.0))
        try:
            return compare_chains(
                part,
                outputs,
                self.X,
                self.y,
                rows,
                kind=self.kind,
                prior_precision=self.prior_precision,
                noise=self.noise,
                chains=MANY if chains is None else chains,
                draws=draws,
                seed=seed,
            )
        except RuntimeError as error:  # a module that vmap or its derivatives cannot take
            raise NotRunError(str(error).strip().partition("\n")[0]) from error

    def decay(self, optimiser: Optimizer | None, loss: Loss | None) -> DecayCheck:
        """The optimiser's weight decay against the prior's."""
        if optimiser is None:
            raise NotRunError("no optimiser was given")
        said: Loss = loss or ("mean_squared" if self.kind == "regression" else "mean_log")
        precision = None if self.noise is None else 1.0 / float(np.mean(self.noise**2))
        shape = tuple(self.y.shape) if isinstance(self.y, Tensor) else np.shape(self.y)
        outputs = 1 if self.kind == "classification" else int(np.prod(shape[1:]))
        if not self.stated or self.prior_precision is None:
            decay = float(optimiser.param_groups[0].get("weight_decay", 0.0))
            implied = implied_precision(decay, self.n_rows, said, precision, outputs)
            why = f"no prior was stated; coupled decay of {decay:.4g} stands for precision {implied:.3g}"
            raise NotRunError(why, "give prior_precision=")
        return check_decay(
            optimiser,
            self.prior_precision,
            self.n_rows,
            said,
            noise_precision=precision,
            outputs=outputs,
            parameters=[part.net.get_parameter(name) for part in self.parts for name in part.layout.names],
        )

    def _one(self) -> Part:
        if len(self.parts) > 1:
            raise NotRunError(ONE)
        return self.parts[0]


def whole(X: Any, y: Any, *names: str) -> tuple[Inputs, Any]:
    """Rows and their outputs as tensors or arrays, whatever frames or lists they came as.

    Raises:
        ValueError: values that are not numbers, or not finite, or not one y for every row of X.
    """
    rows, seen = as_inputs(X), y.detach() if isinstance(y, Tensor) else to_labels(y, names[1])
    if not isinstance(seen, Tensor) and seen.dtype.kind not in "fiub":
        raise ValueError(
            f"{names[1]} must hold numbers, or classes 0, 1, ..., got {seen.dtype}: number the labels"
        )
    if seen.ndim == 0 or len(seen) != count(rows):
        raise ValueError(
            f"{names[0]} has {count(rows)} rows and {names[1]} has {len(seen) if seen.ndim else 1}"
        )
    if not all(bool(one.isfinite().all()) for one in tensors(rows)):
        raise ValueError(f"{names[0]} holds values that are not finite")
    return rows, seen


def _listed(values: Array) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:3]) + (", ..." if len(values) > 3 else "")
