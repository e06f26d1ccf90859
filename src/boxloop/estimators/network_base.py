"""What network estimators share: rows in, a posterior over weights and a predictor out, and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from boxloop.data import validate_rows
from boxloop.estimators._base import Array, DeviceEstimator, warn_of
from boxloop.estimators._params import COMMON, pick_device, pick_dtype
from boxloop.estimators._training import COUNT, POSITIVE, RATE
from boxloop.estimators.network_phase import tuned
from boxloop.estimators.network_rows import Rows, Units, held_out, mark_of
from boxloop.estimators.network_state import NetworkState, restore_state, state_of
from boxloop.estimators.network_train import Trained, train_networks
from boxloop.numeric import generator, seed, spawn
from boxloop.persist import SaveMixin, load_model
from boxloop.weights import ACTIVATIONS, SWA, WORDS, Audit, Kind, MultiPosterior, Windowed, method_of

BLOCK = 1 << 16
"""Rows that are predicted at one time."""


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkEstimator(SaveMixin, DeviceEstimator, BaseEstimator):
    """Base of the estimators. The constructor stores, ``fit`` computes, ``posterior_`` and ``predictor_`` hold it."""

    hidden: Any = field(default=(50,), kw_only=False)
    module: Any = None
    activation: str = "relu"
    method: Any = "factor"
    rank: int = 10
    members: int = 1
    n_draws: int = 30
    learning_rate: float = 0.01
    epochs: int | None = None
    collect: int | None = None
    collect_rate: float | None = None
    momentum: float = 0.9
    batch_size: int | None = None
    prior_precision: float = 10.0
    validation_fraction: float = 0.1
    random_state: Any = None
    verbose: int = 0
    device: str = "cpu"
    dtype: str = "float64"

    _kind: ClassVar[Kind]
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden": ["array-like"],
        "module": [nn.Module, callable, None],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "method": [StrOptions(set(WORDS)), object],
        "learning_rate": [POSITIVE],
        "prior_precision": [RATE],
        "momentum": [Interval(Real, 0.0, 1.0, closed="left")],
        "collect_rate": [POSITIVE, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        **{name: [COUNT] for name in ("rank", "members", "n_draws")},
        **{
            name: [Interval(Integral, 1, None, closed="left"), None]
            for name in ("epochs", "collect", "batch_size")
        },
        **{name: COMMON[name] for name in ("random_state", "verbose", "device", "dtype")},
    }

    @abstractmethod
    def _ignorance(self, y: Tensor) -> float:
        """Loss of a network that knows nothing."""

    @abstractmethod
    def predict_distribution(self, X: Any) -> Any:
        """All that is known about new rows."""

    def _learn(
        self,
        X: Array,
        y: Array | NDArray[np.int64],
        y_units: Units | None,
        outputs: int,
        told: Sequence[str] = (),
        weight: Tensor | None = None,
    ) -> Self:
        """Standardise, hold rows out, train, tune, store.

        Args:
            X: checked.
            y: numbers, (n, q), or classes, (n,).
            y_units: of the numbers.
            outputs: of a network.
            told: what is known about y, for the events.
            weight: of the rows, (n,), all above 0.
        """
        self._check_draws()
        if len(X) < 2:
            raise ValueError(f"a network needs at least 2 rows, got n_samples = {len(X)}")
        device, dtype = pick_device(self.device), pick_dtype(self.dtype)
        splitting, training, drawing = spawn(generator(self.random_state), 3)
        self.x_units_, self.y_units_ = Units.of(X, self._names(), weight), y_units
        self._mark = mark_of(X, y, self.x_units_, y_units)
        x = self.x_units_.standard(X, dtype, device)
        t = (
            torch.from_numpy(y).to(device)
            if y_units is None
            else y_units.standard(np.asarray(y, dtype=np.float64), dtype, device)
        )
        mask = torch.from_numpy(held_out(y, self.validation_fraction, splitting)).to(device)
        some = bool(mask.any())
        held_x, held_y = (x[mask] if some else None), (t[mask] if some else None)
        w = None if weight is None else weight.to(x)
        parts = (None, None) if w is None else (w[~mask], w[mask] if some else None)
        rows = Rows(x[~mask], t[~mask], held_x, held_y, outputs, self._ignorance(t), *parts)
        self.weighted_ = weight is not None
        found = train_networks(self, rows, training)
        self._store(found)
        self.predictor_ = tuned(self, self.posterior_, rows, seed(drawing))
        met = (event for one in found for event in one.events)
        self.events_ = list(dict.fromkeys((*told, *self._worries(rows), *met)))
        warn_of(self.events_)
        return self

    def _check_draws(self) -> None:
        """Enough networks for a spread, before any is trained."""
        method = method_of(self.method, self.rank, self.rank)
        inner = method.inner if isinstance(method, Windowed) else method
        least = max(2, self.members)
        if self.n_draws < least and not isinstance(inner, SWA):
            raise ValueError(
                f"n_draws={self.n_draws} is too few to tell a spread by: give {least} at least, one for each member "
                "and two in all; only method='swa' has no spread"
            )

    def _store(self, found: tuple[Trained, ...]) -> None:
        members = [posterior for one in found for posterior in one.posteriors]
        for posterior in members:
            _own(posterior.net)
        self.posterior_ = MultiPosterior(members)
        self.history_ = {"loss": _mean([one.losses for one in found], [len(one.posteriors) for one in found])}
        self.n_iter_ = len(self.history_["loss"])
        self.interrupted_ = any(one.interrupted for one in found)
        self.collect_rate_ = min(one.rate for one in found)
        self.weight_decay_ = found[-1].decay

    def _worries(self, rows: Rows) -> list[str]:
        still = self.x_units_.still(self._names())
        found = [f"columns without spread count for nothing: {', '.join(still)}"] if still else []
        if rows.held_x is None:
            lost = "the noise is that" if self._kind == "regression" else "the probabilities are those"
            found.append(
                f"no rows are held out: the covariance of the weights is as it was found, and {lost} of rows which "
                "the networks have learned, which is too sure; raise validation_fraction"
            )
        return found

    def _rows(self, X: Any) -> Tensor:
        """New rows, checked, in standard units."""
        check_is_fitted(self)
        table = validate_rows(self, X, reset=False, dtype=np.float64)
        part = self.posterior_.parts()[0].law.mean
        return self.x_units_.standard(np.ascontiguousarray(table), part.dtype, part.device)

    def _names(self) -> list[str]:
        return [
            str(name)
            for name in getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        ]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def audit(self, X: Any, y: Any, X_test: Any, y_test: Any, *, chains: int | None = None) -> Audit:
        """Whether the posterior is one, and whether its predictions are any good: a page of what to worry about.

        Args:
            X: rows of the fit, (n, d); ``random_state`` must have been a whole number, to find those held out again.
            y: numbers or labels of the fit.
            X_test: other rows.
            y_test: theirs.
            chains: of Monte Carlo, as of :func:`boxloop.weights.audit`; 0 for none.

        Raises:
            ValueError: X and y are not the rows of the fit, in their order.
        """
        from boxloop.estimators.network_audit import audit_network

        check_is_fitted(self)
        return audit_network(self, X, y, X_test, y_test, chains=chains)

    def _to_tree(self) -> NetworkState:
        return state_of(self)

    def _from_tree(self, tree: NetworkState) -> None:
        restore_state(self, tree)

    @classmethod
    def load(cls, path: str | PathLike[str], *, module: Any = None) -> Self:
        """Read what :meth:`save` wrote, onto the CPU. Nothing in the file can run.

        Args:
            path: the file.
            module: where one was given to the fit: the module whose tensors were saved, or what makes it.
        """
        return load_model(path, cls, {"module": module})


def _own(net: nn.Module) -> None:
    """Give a network memory of its own, and not a part of that of all members."""
    net.eval()
    for value in net.parameters():
        value.data = value.data.clone()


def _mean(losses: list[tuple[float, ...]], sizes: list[int]) -> list[float]:
    """Over groups of members, an epoch; a group that was cut short counts as long as it lasted."""
    longest = max(len(one) for one in losses)
    found = []
    for epoch in range(longest):
        here = [(one[epoch], size) for one, size in zip(losses, sizes, strict=True) if epoch < len(one)]
        found.append(sum(value * size for value, size in here) / sum(size for _, size in here))
    return found
