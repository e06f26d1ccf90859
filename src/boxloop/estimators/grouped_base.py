"""What the estimators of groups share: rows in, coefficients and effects out."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import fingerprint_values, to_labels, validate_rows
from boxloop.estimators._base import DeviceEstimator, to_numpy, warn_of
from boxloop.estimators._params import pick_device
from boxloop.estimators.grouped import Units, finite, numbered, pooled, units, vector
from boxloop.estimators.grouped_fit import GroupFit, GroupPlan, Method, fit_groups
from boxloop.models import GroupedRows, RandomEffects, Response, group_log_likelihood, modes
from boxloop.numeric import generator

NODES = 15
IGNORED = ("verbose", "checkpoint", "max_iter")
"""Parameters that do not change the trajectory of a fit, only who watches and how long."""


@dataclass(eq=False, repr=False, kw_only=True)
class RandomEffectsEstimator(DeviceEstimator, BaseEstimator):
    """Base of the estimators; a subclass names its response."""

    slopes: Sequence[int | str] = ()
    method: Method = "saem"
    chains: int = 8
    max_iter: int = 200
    tol: float = 1e-2
    precision: float = 0.1
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "slopes": ["array-like"],
        "method": [StrOptions({"saem", "mcem"})],
        "chains": [Interval(Integral, 2, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "precision": [Interval(Real, 0.0, 1.0, closed="neither")],
        "random_state": ["random_state", np.random.Generator, torch.Generator],
        "verbose": ["verbose"],
        "checkpoint": [str, PathLike, None],
        "device": [str, torch.device],
    }

    _response: ClassVar[Response]

    @abstractmethod
    def _encoded(self, y: Any) -> Tensor:
        """Responses as numbers, checked; sets what later calls need to know of them."""

    @abstractmethod
    def _check(self, rows: GroupedRows) -> None:
        """Refuse responses for which the likelihood has no maximum."""

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit coefficients and the covariance of effects by maximum likelihood.

        Args:
            X: rows (n, d), complete. The intercept is added.
            y: responses (n,).
            groups: label of each row's group, (n,).
            sample_weight: one non-negative weight a row; whole numbers count as repetitions in the group.
            offset: known part of the linear predictor, (n,): for counts, the log of the exposure.

        Returns:
            The estimator itself.
        """
        X = validate_rows(self, X, dtype=np.float64, ensure_all_finite=False, copy=True)
        names = self._names()
        finite(X, names)
        n = len(X)
        response = self._encoded(y)
        if response.shape != (n,):
            raise ValueError(f"y has the shape {tuple(response.shape)}, but there are {n} rows")
        labels, index = numbered(groups, n)
        weight = vector(sample_weight, n, "sample_weight", least=0.0)
        if weight is not None and not bool((weight > 0.0).any()):
            raise ValueError("sample_weight is zero everywhere")
        frame = units(X, self._slope_numbers(names), names, weight)
        fixed, random = frame.columns(X)
        rows = GroupedRows.of(response, fixed, random, index, vector(offset, n, "offset"), weight)
        self._check(rows)
        start = pooled(rows, self._response, frame.shared)
        device = pick_device(self.device)
        plan, stream = self._plan(rows), generator(self.random_state, device)
        rows, start, frame = rows.to(device), start.to(device), frame.to(device)
        self._store(fit_groups(rows, start, plan, stream, frame.named), rows, frame, labels)
        return self

    def _plan(self, rows: GroupedRows) -> GroupPlan:
        params = {k: repr(v) for k, v in self.get_params(deep=False).items() if k not in IGNORED}
        if self.method == "saem":  # the length of the fit decides where averaging begins
            params["max_iter"] = repr(self.max_iter)
        if not isinstance(self.random_state, int | np.integer):
            del params["random_state"]
        return GroupPlan(
            method=self.method,
            chains=self.chains,
            max_iter=self.max_iter,
            tol=self.tol,
            precision=self.precision,
            show=bool(self.verbose),
            checkpoint=self.checkpoint,
            fingerprint={
                "estimator": type(self).__name__,
                **params,
                "digest": fingerprint_values(*rows.leaves()),
            },
        )

    def _names(self) -> list[str]:
        return [
            str(name)
            for name in getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        ]

    def _slope_numbers(self, names: list[str]) -> tuple[int, ...]:
        found = []
        for slope in self.slopes:
            number = names.index(slope) if slope in names else slope
            if (
                isinstance(number, bool)
                or not isinstance(number, int | np.integer)
                or not 0 <= number < len(names)
            ):
                raise ValueError(
                    f"slopes names {slope!r}, which is no column; the columns are {', '.join(names)}"
                )
            found.append(int(number))
        if len(set(found)) < len(found):
            raise ValueError("slopes names a column twice")
        return tuple(found)

    def _store(self, fitted: GroupFit, rows: GroupedRows, frame: Units, labels: NDArray[Any]) -> None:
        model, found, turn = fitted.model, fitted.found, frame.turn()
        values = {name: to_numpy(value) for name, value in frame.named(model).items()}
        self.coef_, self.intercept_ = values["coef"], float(values["intercept"])
        self.covariance_ = values["covariance"]
        self.groups_ = labels
        if found is None:
            at = modes(model, rows)
            mean, spread = at.place, at.factor @ at.factor.mT
            errors = noise = {name: np.full_like(value, np.nan) for name, value in values.items()}
        else:
            mean, spread = found.latent_mean, found.latent_covariance
            errors = {name: to_numpy(value) for name, value in found.errors.items()}
            noise = {name: to_numpy(value) for name, value in found.monte_carlo_errors.items()}
        self.standard_errors_, self.monte_carlo_errors_ = errors, noise
        self._effect_covariance = (turn @ spread @ turn.mT).cpu()
        self.effects_ = to_numpy(mean @ turn.mT)
        self.effect_errors_ = to_numpy(self._effect_covariance.diagonal(dim1=-2, dim2=-1).sqrt())
        few = len(model.factor) <= 2
        likelihood = float(group_log_likelihood(model, rows, NODES).sum()) if few else math.nan
        self.log_likelihood_ = likelihood
        self.model_ = RandomEffects(
            torch.from_numpy(np.concatenate([values["intercept"][None], values["coef"]])),
            torch.linalg.cholesky(torch.from_numpy(values["covariance"])),
            self._response,
            frame.shared,
        )
        self.n_iter_ = fitted.outcome.n_iter
        self.interrupted_ = fitted.interrupted
        ended = fitted.outcome.converged or self.method == "saem"
        self.converged_ = bool(ended and fitted.converged)
        worries = self._worries(fitted)
        self.events_ = [*fitted.outcome.events, *worries]
        warn_of(worries)
        if not self.converged_ and not self.interrupted_:
            warn_caller(
                f"{self.method} did not settle in {self.max_iter} rounds; raise max_iter", ConvergenceWarning
            )

    def _worries(self, fitted: GroupFit) -> list[str]:
        worries = []
        names = ["the intercept", *(f"the slope of {self._names()[j - 1]!r}" for j in self.model_.shared[1:])]
        known = np.diag(self.covariance_), np.diag(self.standard_errors_["covariance"])
        for name, value, error in zip(names, *known, strict=True):
            if fitted.found is not None and not value > error:
                worries.append(
                    f"the variance of {name} between groups cannot be told from zero ({value:.2g}, standard error "
                    f"{error:.2g}); standard errors mean little near that bound"
                )
        if fitted.found is not None and fitted.found.error_ratio > 2.0 * self.precision:
            worries.append(
                f"the Monte Carlo error is {fitted.found.error_ratio:.2f} of the standard error: raise chains"
            )
        if fitted.interrupted:
            worries.append(f"interrupted after iteration {fitted.outcome.n_iter}")
        return worries

    def _predictor(self, X: Any, groups: Any, offset: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of each row's linear predictor, (n,) each: over its group's effects, or all groups'."""
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False, dtype=np.float64, ensure_all_finite=False, copy=True)
        finite(X, self._names())
        table = torch.cat([torch.ones(len(X), 1, dtype=torch.float64), torch.from_numpy(X)], 1)
        random = table[:, list(self.model_.shared)]
        mean = table @ self.model_.coefficients
        known = vector(offset, len(X), "offset")
        mean = mean if known is None else mean + known
        spread = self.model_.covariance.expand(len(X), -1, -1)
        if groups is not None:
            labels = to_labels(groups, "groups")
            if labels.shape != (len(X),):
                raise ValueError(f"groups has the shape {labels.shape}, but there are {len(X)} rows")
            place = np.searchsorted(self.groups_, labels).clip(max=len(self.groups_) - 1)
            seen = torch.from_numpy(np.asarray(self.groups_[place] == labels))
            effect = torch.from_numpy(self.effects_)[torch.from_numpy(place)]
            mean = mean + torch.where(seen, (random * effect).sum(1), 0.0)
            spread = torch.where(
                seen[:, None, None], self._effect_covariance[torch.from_numpy(place)], spread
            )
        return mean, torch.einsum("ni,nij,nj->n", random, spread, random)
