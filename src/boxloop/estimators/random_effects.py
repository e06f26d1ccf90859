"""Logistic and Poisson regression with random effects of groups: estimators, data, fit, standard errors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, d2_tweedie_score
from sklearn.utils import column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from boxloop.average import Power, Running
from boxloop.caller import warn_caller
from boxloop.chain import Kernel
from boxloop.data import check_parameters, fingerprint_values, to_labels, to_vector, validate_rows
from boxloop.estimators._base import Array, DeviceEstimator, check_double_precision, to_numpy, warn_of
from boxloop.estimators._input import COMMON, check_score_labels, check_score_numbers, pick_device
from boxloop.fit import (
    AscentPlan,
    BurnIn,
    LogDensity,
    LouisErrors,
    MonteCarloPlan,
    MonteCarloState,
    RefinementState,
    ascent_em,
    monte_carlo_em,
    newton_refine,
    warm_up,
)
from boxloop.loop import Observer, Outcome, run
from boxloop.models import (
    CONSTRAINTS,
    BernoulliResponse,
    EffectSums,
    GroupedRows,
    PoissonResponse,
    RandomEffects,
    Response,
    find_modes,
    group_log_likelihood,
)
from boxloop.numeric import ConditionError, generator
from boxloop.persist import (
    POSITIVE_DEFINITE,
    PROGRESS,
    Array as ArrayConstraint,
    Check,
    CheckpointWriter,
    Constraints,
    Labels,
    ModelFile,
    Nested,
    Saved,
    SaveMixin,
    Table,
    Values,
    read_checkpoint,
)
from boxloop.progress import ProgressBar
from boxloop.sample import RandomWalk, Target
from boxloop.tree import Tree

Method = Literal["saem", "mcem"]

STATES: dict[str, type] = {
    kind.__name__: kind
    for kind in (MonteCarloState, Running, EffectSums, RandomEffects, BernoulliResponse, PoissonResponse)
}
"""Classes of a checkpoint, by name."""

MAX_REFINEMENTS = 6
"""Most iterations of the last stage, which measures errors."""

SEPARATED = 100.0
"""Largest coefficient of a standardised column: odds or rates that differ by more than its exp have no maximum."""

NODES = 15
"""Quadrature nodes per effect of the log-likelihood."""

IGNORED = ("verbose", "checkpoint", "max_iter")
"""Parameters that do not change the path of a fit."""


@dataclass(frozen=True)
class EffectErrors(Tree):
    """An error of each parameter: intercept (), coefficients (d,) and covariance of effects (q, q); NaN if unknown."""

    intercept: Tensor
    coef: Tensor
    covariance: Tensor


@dataclass(frozen=True)
class FittedEffects(Tree):
    """A fit in the units of the data: parameters, posterior mean and covariance of each group's effects, errors."""

    model: RandomEffects
    effects: Tensor
    effect_covariance: Tensor
    log_likelihood: Tensor
    standard_errors: EffectErrors
    monte_carlo_errors: EffectErrors


ERROR = Values("at least 0, or NaN", lambda x: bool((x.isnan() | ((x >= 0.0) & (x < math.inf))).all()))
LIKELIHOOD = Values("finite, or NaN", lambda x: not bool(x.isinf().any()))
FILE_CONSTRAINTS: Table = {
    **CONSTRAINTS,
    EffectErrors: Constraints(
        intercept=ArrayConstraint("", ERROR),
        coef=ArrayConstraint("d", ERROR),
        covariance=ArrayConstraint("q q", ERROR),
    ),
    FittedEffects: Constraints(
        model=Nested((RandomEffects,), "p=d+1 q dtype"),
        effects=ArrayConstraint("g q"),
        effect_covariance=ArrayConstraint("g q q", POSITIVE_DEFINITE),
        log_likelihood=ArrayConstraint("", LIKELIHOOD),
        standard_errors=Nested((EffectErrors,), "d q dtype"),
        monte_carlo_errors=Nested((EffectErrors,), "d q dtype"),
    ),
}


def _check_groups(estimator: Any, saved: Saved) -> str | None:
    """What is wrong with the labels of a file; sorted labels are found by bisection."""
    tree: Any = saved.tree
    groups, model = estimator.groups_, tree.model
    if len(groups) != saved.axes["g"]:
        return f"groups_ has {len(groups)} labels for the effects of {saved.axes['g']} groups"
    if not bool((groups[:-1] < groups[1:]).all()):
        return "groups_ must be in order"
    if len(model.shared) != len(model.factor):
        return f"the model has {len(model.factor)} effects and names {len(model.shared)} columns for them"
    return None


def _check_two_classes(estimator: Any, saved: Saved) -> str | None:
    classes = estimator.classes_
    return None if len(classes) == 2 and classes[0] < classes[1] else "classes_ must be two labels in order"


def declare_effects_file(response: type, *checks: Check, **facts: Any) -> ModelFile:
    """The file of a regression with random effects."""
    return ModelFile(
        FittedEffects,
        (RandomEffects, response, EffectErrors),
        FILE_CONSTRAINTS,
        {**PROGRESS, "groups_": Labels, **facts},
        attribute="_fitted",
        checks=(check_double_precision, _check_groups, *checks),
    )


@dataclass(eq=False, repr=False, kw_only=True)
class RandomEffectsEstimator(SaveMixin, DeviceEstimator, BaseEstimator):
    """Base of the estimators; a subclass defines its response."""

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
        **{name: COMMON[name] for name in ("random_state", "verbose", "checkpoint", "device")},
    }

    _response: ClassVar[Response]

    @abstractmethod
    def _encode_response(self, y: Any) -> Tensor:
        """Responses as numbers, checked; sets the attributes that describe them."""

    @abstractmethod
    def _check_has_maximum(self, rows: GroupedRows) -> None:
        """Refuse responses whose likelihood has no maximum."""

    @check_parameters
    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit coefficients and the covariance of effects by maximum likelihood.

        Args:
            X: rows (n, d), complete. The intercept is added.
            y: responses (n,).
            groups: label of each row's group, (n,).
            sample_weight: one non-negative weight per row; integers count as repetitions in the group.
            offset: known part of the linear predictor, (n,): for counts, the log of the exposure.

        Returns:
            The estimator itself.
        """
        X = validate_rows(self, X, dtype=np.float64, ensure_all_finite=False, copy=True)
        names = self._column_names()
        _check_finite(X, names)
        n = len(X)
        response = self._encode_response(y)
        if response.shape != (n,):
            raise ValueError(f"y has the shape {tuple(response.shape)}, but there are {n} rows")
        labels, index = _number_groups(groups, n)
        weight = _read_vector(sample_weight, n, "sample_weight", least=0.0)
        if weight is not None and not bool((weight > 0.0).any()):
            raise ValueError("sample_weight is zero everywhere")
        frame = _measure_units(X, self._find_slope_columns(names), names, weight)
        fixed, random = frame.standardise_columns(X)
        rows = GroupedRows.from_rows(
            response, fixed, random, index, _read_vector(offset, n, "offset"), weight
        )
        self._check_has_maximum(rows)
        start = _fit_pooled(rows, self._response, frame.shared_columns)
        device = pick_device(self.device)
        resume, observers = self._open_checkpoint(rows, device)
        stream = generator(self.random_state, device)
        rows, start, frame = rows.to(device), start.to(device), frame.to(device)
        fitted = self._maximise_likelihood(rows, start, frame, stream, resume, observers)
        self._publish(fitted, rows, frame, labels)
        return self

    def _open_checkpoint(
        self, rows: GroupedRows, device: torch.device
    ) -> tuple[Outcome[Any] | None, list[Observer[Any]]]:
        """The outcome that a checkpoint holds, if there is one, and the observers of the fit."""
        observers: list[Observer[Any]] = [ProgressBar(show=True).stage(self.method)] if self.verbose else []
        if self.checkpoint is None:
            return None, observers
        params = {k: repr(v) for k, v in self.get_params(deep=False).items() if k not in IGNORED}
        if self.method == "saem":  # The length of the fit determines when averaging begins.
            params["max_iter"] = repr(self.max_iter)
        if not isinstance(self.random_state, int | np.integer):
            del params["random_state"]
        digest = fingerprint_values(*rows.leaves())
        path, known = Path(self.checkpoint), {"estimator": type(self).__name__, **params, "digest": digest}
        resume = read_checkpoint(path, STATES, known) if path.exists() else None
        if resume is not None:  # Files are read onto the CPU, where the state of a generator stays.
            resume = replace(resume, state=replace(resume.state.to(device), stream=resume.state.stream))
        return resume, [*observers, CheckpointWriter(path, known, seconds=10.0)]

    def _maximise_likelihood(
        self,
        rows: GroupedRows,
        start: RandomEffects,
        frame: EffectUnits,
        stream: Generator,
        resume: Outcome[Any] | None,
        observers: list[Observer[Any]],
    ) -> GroupFit:
        """Fit standardised rows by Monte Carlo or stochastic-approximation EM, then measure errors."""
        state = MonteCarloState.start(start, rows, self.chains, stream)
        if resume is None:
            state = warm_up(state, rows, make_random_walk)
        if self.method == "mcem":
            ascent = AscentPlan(tol=self.tol, draws=4 * self.chains)
            step: Any = ascent_em(rows, make_random_walk, ascent)
        else:  # The first quarter of the iterations forgets the start, the second half is smoothed.
            plan = MonteCarloPlan(
                draws=lambda k: 2 * self.chains,
                rate=BurnIn(self.max_iter // 4, Power(0.7)),
                n_chains=self.chains,
                smooth_after=self.max_iter // 2,
            )
            step = monte_carlo_em(rows, make_random_walk, plan)
        outcome = run(step, state, max_iter=self.max_iter, observers=observers, resume=resume)
        reached = replace(outcome.state, model=outcome.state.best)
        if outcome.interrupted:
            return GroupFit(reached.model, outcome, None, True)
        watch: list[Observer[Any]] = [ProgressBar(show=True).stage("errors")] if self.verbose else []
        refine = newton_refine(rows, make_random_walk, precision=self.precision, named=frame.to_data_units)
        last = run(refine, RefinementState(reached), max_iter=MAX_REFINEMENTS, observers=watch)
        return GroupFit(last.state.state.model, outcome, last.state.errors, last.interrupted)

    def _find_slope_columns(self, names: list[str]) -> tuple[int, ...]:
        found = []
        for slope in self.slopes:
            index = names.index(slope) if slope in names else slope
            if (
                isinstance(index, bool)
                or not isinstance(index, int | np.integer)
                or not 0 <= index < len(names)
            ):
                raise ValueError(
                    f"slopes names {slope!r}, which is not a column; the columns are {', '.join(names)}"
                )
            found.append(int(index))
        if len(set(found)) < len(found):
            raise ValueError(f"slopes names a column twice: {list(self.slopes)}")
        return tuple(found)

    def _publish(self, fitted: GroupFit, rows: GroupedRows, frame: EffectUnits, labels: NDArray[Any]) -> None:
        self.groups_ = labels
        self._from_tree(_convert_to_data_units(fitted, rows, frame))
        self.n_iter_: int = fitted.outcome.n_iter
        self.interrupted_: bool = fitted.interrupted
        complete = fitted.outcome.converged or self.method == "saem"
        # After a short last step the score is zero within its error.
        has_short_step = fitted.errors is not None and fitted.errors.is_short
        self.converged_: bool = bool(complete and has_short_step and not fitted.interrupted)
        concerns = self._find_concerns(fitted)
        self.events_: list[str] = [*fitted.outcome.events, *concerns]
        warn_of(concerns)
        if not self.converged_ and not self.interrupted_:
            warn_caller(
                f"{self.method} did not converge in {self.max_iter} iterations; raise max_iter",
                ConvergenceWarning,
            )

    def _from_tree(self, tree: FittedEffects) -> None:
        self._fitted = tree
        self.model_: RandomEffects = tree.model
        self.coef_: Array = to_numpy(tree.model.coefficients[1:])
        self.intercept_: float = float(tree.model.coefficients[0])
        self.covariance_: Array = to_numpy(tree.model.covariance)
        self.effects_: Array = to_numpy(tree.effects)
        self.effect_errors_: Array = to_numpy(tree.effect_covariance.diagonal(dim1=-2, dim2=-1).sqrt())
        self.log_likelihood_: float = float(tree.log_likelihood)
        self.standard_errors_: dict[str, Array] = {
            name: to_numpy(value) for name, value in tree.standard_errors.leaves()
        }
        self.monte_carlo_errors_: dict[str, Array] = {
            name: to_numpy(value) for name, value in tree.monte_carlo_errors.leaves()
        }

    def _find_concerns(self, fitted: GroupFit) -> list[str]:
        concerns = []
        names = [
            "the intercept",
            *(f"the slope of {self._column_names()[j - 1]!r}" for j in self.model_.shared[1:]),
        ]
        variances = np.diag(self.covariance_), np.diag(self.standard_errors_["covariance"])
        for name, value, error in zip(names, *variances, strict=True):
            if fitted.errors is not None and not value > error:
                concerns.append(
                    f"the variance of {name} between groups is within one standard error of zero ({value:.2g}, "
                    f"standard error {error:.2g}); standard errors are unreliable near that bound"
                )
        if fitted.errors is not None and fitted.errors.error_ratio > 2.0 * self.precision:
            concerns.append(
                f"the Monte Carlo error is {fitted.errors.error_ratio:.2f} of the standard error: raise chains"
            )
        if fitted.interrupted:
            concerns.append(f"interrupted after iteration {fitted.outcome.n_iter}")
        return concerns

    def _predict_linear(self, X: Any, groups: Any, offset: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of each row's linear predictor, (n,) each: over its group's effects, or all groups'."""
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False, dtype=np.float64, ensure_all_finite=False, copy=True)
        _check_finite(X, self._column_names())
        table = torch.cat([torch.ones(len(X), 1, dtype=torch.float64), torch.from_numpy(X)], 1)
        random = table[:, list(self.model_.shared)]
        mean = table @ self.model_.coefficients
        shift = _read_vector(offset, len(X), "offset")
        mean = mean if shift is None else mean + shift
        covariance = self.model_.covariance.expand(len(X), -1, -1)
        if groups is not None:
            labels = to_labels(groups, "groups")
            if labels.shape != (len(X),):
                raise ValueError(f"groups has the shape {labels.shape}, but there are {len(X)} rows")
            nearest = np.searchsorted(self.groups_, labels).clip(max=len(self.groups_) - 1)
            known = torch.from_numpy(np.asarray(self.groups_[nearest] == labels))
            index = torch.from_numpy(nearest)
            mean = mean + torch.where(known, (random * self._fitted.effects[index]).sum(1), 0.0)
            covariance = torch.where(known[:, None, None], self._fitted.effect_covariance[index], covariance)
        return mean, torch.einsum("ni,nij,nj->n", random, covariance, random)


@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRandomEffects(ClassifierMixin, RandomEffectsEstimator):
    r"""Logistic regression with random effects: the intercept, and slopes if requested, vary between groups.

    .. math:: P(y_{ij} = 1 \mid u_i) = \frac{1}{1 + e^{-\eta_{ij}}}, \qquad
              \eta_{ij} = \beta_0 + x_{ij}^\top \beta + w_{ij}^\top u_i, \qquad u_i \sim N(0, \Sigma)

    with :math:`w_{ij}` a one and the columns of ``slopes``. Fitted by maximum likelihood: Markov chains integrate the
    effects out (:mod:`boxloop.fit.monte_carlo`).

    Args:
        slopes: columns, by number or name, whose coefficients vary between groups.
        method: ``saem`` (stochastic approximation, a fixed number of iterations) or ``mcem`` (enough draws to show
            that each step raises the likelihood).
        chains: per group.
        max_iter: iterations of ``saem``; most iterations of ``mcem``.
        tol: of ``mcem``: gain in log-likelihood below which it stops.
        precision: largest Monte Carlo error of each parameter, as a share of its standard error.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.

    Attributes:
        coef_: (d,).
        intercept_: a number.
        covariance_: of the effects, (q, q), the intercept first.
        effects_: posterior mean of each group's effects, (g, q).
        effect_errors_: posterior standard deviations, (g, q).
        groups_: labels of the groups, (g,).
        standard_errors_: of ``intercept``, ``coef`` and ``covariance``, by Louis' identity.
        monte_carlo_errors_: of the same, between seeds.
        log_likelihood_: by adaptive quadrature; NaN for more than two effects per group.
        classes_: the two labels of y.
        n_iter_: iterations.
        converged_: whether the score is zero within its error.
        interrupted_: whether Ctrl-C ended the fit.

    Example:
        >>> import numpy as np
        >>> from boxloop import LogisticRandomEffects
        >>> rng = np.random.default_rng(0)
        >>> X, groups = rng.normal(size=(600, 1)), np.repeat(np.arange(60), 10)
        >>> eta = X[:, 0] + rng.normal(size=60)[groups]
        >>> y = rng.random(600) < 1 / (1 + np.exp(-eta))
        >>> fit = LogisticRandomEffects(random_state=0).fit(X, y, groups)
        >>> bool(abs(fit.coef_[0] - 1.0) < 4 * fit.standard_errors_["coef"][0])
        True
    """

    _response: ClassVar[Response] = BernoulliResponse()
    _model_file: ClassVar[ModelFile] = declare_effects_file(
        BernoulliResponse, _check_two_classes, classes_=Labels
    )

    def _encode_response(self, y: Any) -> Tensor:
        labels = _check_response(y)
        check_classification_targets(labels)
        classes, code = np.unique(labels, return_inverse=True)
        self.classes_: NDArray[Any] = classes
        if len(self.classes_) > 2:
            kind = type_of_target(labels, input_name="y", raise_unknown=True)
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}: "
                f"y must hold two labels, got {len(self.classes_)}"
            )
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold two labels, got {len(self.classes_)} class")
        return torch.from_numpy(code.reshape(-1)).double()

    def _check_has_maximum(self, rows: GroupedRows) -> None:
        ones, count = rows.sum_by_group(rows.weight * rows.response), rows.sum_by_group(rows.weight)
        if bool((ones == 0.0).all()) or bool((ones == count).all()):
            raise ValueError("rows of positive weight hold one class: two are needed")
        if not bool((count > 1.0).any()):
            raise ValueError("every group has one row: the variance between groups is not identified")
        if bool(((ones == 0.0) | (ones == count)).all()):
            raise ValueError(
                "within every group all y are equal: the variance between groups has no finite estimate"
            )

    def predict_proba(self, X: Any, groups: Any = None, offset: Any = None) -> Array:
        """Probability of each class, (n, 2).

        Args:
            X: rows (n, d).
            groups: label of each row's group. A row of a group that is not in the fit, and every row when omitted, gets
                the average over the distribution of groups.
            offset: as in ``fit``.

        Returns:
            Means over the effects, whose posterior is approximated as Gaussian.
        """
        mean, variance = self._predict_linear(X, groups, offset)
        node, weight = np.polynomial.hermite_e.hermegauss(40)
        level = mean[:, None] + variance.sqrt()[:, None] * torch.from_numpy(node)
        probability = to_numpy(torch.sigmoid(level) @ torch.from_numpy(weight / weight.sum()))
        return np.stack([1.0 - probability, probability], 1)

    def predict(self, X: Any, groups: Any = None, offset: Any = None) -> NDArray[Any]:
        """The more probable class of each row, (n,)."""
        second = self.predict_proba(X, groups, offset)[:, 1] > 0.5
        return np.asarray(self.classes_[second.astype(int)])

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Accuracy: the share of rows whose class is predicted."""
        check_is_fitted(self)
        labels, weight = check_score_labels(y, sample_weight)
        return float(accuracy_score(labels, self.predict(X, groups), sample_weight=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PoissonRandomEffects(RegressorMixin, RandomEffectsEstimator):
    r"""Poisson regression with random effects: the log-rate, and slopes if requested, vary between groups.

    .. math:: y_{ij} \mid u_i \sim \mathrm{Poisson}(e^{\eta_{ij}}), \qquad
              \eta_{ij} = o_{ij} + \beta_0 + x_{ij}^\top \beta + w_{ij}^\top u_i, \qquad u_i \sim N(0, \Sigma)

    Parameters and attributes are those of :class:`LogisticRandomEffects`, without ``classes_``.

    Example:
        >>> import numpy as np
        >>> from boxloop import PoissonRandomEffects
        >>> rng = np.random.default_rng(0)
        >>> X, groups = rng.normal(size=(400, 1)), np.repeat(np.arange(80), 5)
        >>> y = rng.poisson(np.exp(0.5 * X[:, 0] + rng.normal(size=80)[groups]))
        >>> fit = PoissonRandomEffects(random_state=0).fit(X, y, groups)
        >>> bool(abs(fit.coef_[0] - 0.5) < 4 * fit.standard_errors_["coef"][0])
        True
    """

    _response: ClassVar[Response] = PoissonResponse()
    _model_file: ClassVar[ModelFile] = declare_effects_file(PoissonResponse)

    def _encode_response(self, y: Any) -> Tensor:
        counts = to_vector(_check_response(y), "y")
        if not np.isfinite(counts).all() or (counts < 0.0).any() or (counts != np.round(counts)).any():
            raise ValueError("y must hold counts: integers of at least 0")
        return torch.from_numpy(counts)

    def _check_has_maximum(self, rows: GroupedRows) -> None:
        if not bool((rows.weight * rows.response).any()):
            raise ValueError("y is zero everywhere: the rate has no maximum")

    def predict(self, X: Any, groups: Any = None, offset: Any = None) -> Array:
        """Expected count of each row, (n,); groups as in :meth:`LogisticRandomEffects.predict_proba`."""
        mean, variance = self._predict_linear(X, groups, offset)
        return to_numpy((mean + 0.5 * variance).exp())

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Share of the Poisson deviance that is explained (D²)."""
        check_is_fitted(self)
        counts, weight = check_score_numbers(y, sample_weight)
        return float(d2_tweedie_score(counts, self.predict(X, groups), sample_weight=weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclass(frozen=True)
class EffectUnits(Tree):
    """Means and standard deviations of the columns, (d,), and the columns with random slopes."""

    origin: Tensor
    scale: Tensor
    slopes: tuple[int, ...]

    def standardise_columns(self, X: Array) -> tuple[Tensor, Tensor]:
        """Fixed columns (n, 1 + d) and random columns (n, 1 + slopes), standardised, the constant first."""
        table = (torch.from_numpy(X) - self.origin) / self.scale
        fixed = torch.cat([torch.ones(len(X), 1, dtype=torch.float64), table], 1)
        return fixed, fixed[:, list(self.shared_columns)]

    @property
    def shared_columns(self) -> tuple[int, ...]:
        """Index of the fixed column that equals each random one."""
        return (0, *(1 + j for j in self.slopes))

    def make_effect_transform(self) -> Tensor:
        """Matrix from effects in standard coordinates to those in the units of the data, (q, q)."""
        index = list(self.slopes)
        matrix = torch.diag(torch.cat([self.scale.new_ones(1), 1.0 / self.scale[index]]))
        matrix[0, 1:] = -self.origin[index] / self.scale[index]
        return matrix

    def to_data_units(self, model: RandomEffects) -> dict[str, Tensor]:
        """Parameters in the units of the data."""
        coef = model.coefficients[1:] / self.scale
        transform = self.make_effect_transform()
        return {
            "intercept": model.coefficients[0] - coef @ self.origin,
            "coef": coef,
            "covariance": transform @ model.covariance @ transform.mT,
        }


def _check_finite(X: Array, names: list[str]) -> None:
    """Refuse missing and infinite values, naming their column."""
    bad = ~np.isfinite(X).all(0)
    if bad.any():
        column = names[int(np.flatnonzero(bad)[0])]
        what = "NaN" if np.isnan(X[:, bad]).any() else "infinity"
        raise ValueError(
            f"Input X contains {what} in column {column!r}: random effects need complete rows; impute them first"
        )


def _read_vector(value: Any, n: int, name: str, least: float = -np.inf) -> Tensor | None:
    """One finite number per row; None for None."""
    if value is None:
        return None
    array = to_vector(value, name)
    if array.shape != (n,):
        raise ValueError(f"{name} has the shape {array.shape}, but there are {n} rows")
    if not np.isfinite(array).all() or (array < least).any():
        raise ValueError(f"{name} must be finite" + (f" and at least {least:g}" if least > -np.inf else ""))
    return torch.from_numpy(array)


def _check_response(y: Any) -> NDArray[Any]:
    """Responses as one column without missing values."""
    if y is None:
        raise ValueError("random effects requires y to be passed, but the target y is None")
    values = to_labels(y, "y")
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values, warn=True)
    if values.ndim != 1:
        raise ValueError(f"y must be one column, got the shape {values.shape}")
    if values.dtype.kind == "c":
        raise ValueError("y must hold counts or labels, not complex numbers")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError("Input y contains NaN.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("y must hold counts or labels, and holds an infinite value")
    return values


def _measure_units(
    X: Array, slopes: tuple[int, ...], names: list[str], weight: Tensor | None = None
) -> EffectUnits:
    """Standard coordinates of weighted rows; a constant column is refused, as the intercept is always fitted."""
    share = None if weight is None else weight.numpy()
    origin = np.average(X, 0, share)
    scale = np.sqrt(np.average((X - origin) ** 2, 0, share))
    constant = scale <= 1e-12 * np.abs(X).max(0, initial=0.0)
    if constant.any():
        column = names[int(np.flatnonzero(constant)[0])]
        raise ValueError(f"column {column!r} is constant: leave it out, the intercept is always fitted")
    return EffectUnits(torch.from_numpy(origin), torch.from_numpy(scale), slopes)


def _number_groups(groups: Any, n: int) -> tuple[NDArray[Any], Tensor]:
    """Labels of groups, and the number of each row's group."""
    if groups is None:
        raise ValueError("groups is None: pass one label per row, equal for the rows of a group")
    labels = to_labels(groups, "groups")
    if labels.shape != (n,):
        raise ValueError(f"groups has the shape {labels.shape}, but there are {n} rows")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("groups holds a label that is not finite")
    found, index = np.unique(labels, return_inverse=True)
    if len(found) < 2:
        raise ValueError("groups has one label only: the variance between groups is not identified")
    return found, torch.from_numpy(index.reshape(-1))


def _fit_pooled(rows: GroupedRows, response: Response, shared: tuple[int, ...]) -> RandomEffects:
    """The start of a fit: the best coefficients without effects, and effects of unit variance.

    Newton's method is the model's M step at effects of zero.
    """
    p, q = rows.fixed.shape[1], rows.random.shape[1]
    eye = torch.eye(q, dtype=torch.float64)
    model = RandomEffects(torch.zeros(p, dtype=torch.float64), eye, response)
    none = torch.zeros(rows.n_groups, q, dtype=torch.float64)
    level = float(model.log_joint(rows, none).sum())
    for _ in range(100):
        try:
            proposal = model.solve(model.statistics(rows, none)).coefficients
        except ConditionError:
            raise ValueError(
                "the columns of X are collinear, or separate the responses completely: the likelihood has no maximum"
            ) from None
        move = proposal - model.coefficients
        lowest = level - 1e-9 * abs(level)
        while True:  # Halve the step until the likelihood does not fall.
            raised = replace(model, coefficients=model.coefficients + move)
            new_level = float(raised.log_joint(rows, none).sum())
            if new_level >= lowest:
                break
            move = 0.5 * move
        model, level = raised, new_level
        if float(model.coefficients.abs().max()) > SEPARATED:
            break
        if float(move.abs().max()) < 1e-6:
            return replace(model, shared=shared)
    raise ValueError("the columns of X separate the responses completely: the likelihood has no maximum")


@dataclass(frozen=True)
class GroupFit:
    """A fitted model and its errors, which are None if the fit was interrupted before."""

    model: RandomEffects
    outcome: Outcome[MonteCarloState[RandomEffects]]
    errors: LouisErrors[RandomEffects] | None
    interrupted: bool


def _convert_to_data_units(fitted: GroupFit, rows: GroupedRows, frame: EffectUnits) -> FittedEffects:
    """A fit in the units of the data, on the CPU; of an interrupted fit effects are approximate and errors NaN."""
    model, found, transform = fitted.model, fitted.errors, frame.make_effect_transform()
    values = frame.to_data_units(model)
    if found is None:
        laplace = find_modes(model, rows)
        mean, covariance = laplace.place, laplace.factor @ laplace.factor.mT
        unknown = EffectErrors(**values).map(lambda value: torch.full_like(value, math.nan))
        errors, noise = unknown, unknown
    else:
        mean, covariance = found.latent_mean, found.latent_covariance
        errors, noise = EffectErrors(**found.errors), EffectErrors(**found.monte_carlo_errors)
    has_quadrature = len(model.factor) <= 2
    likelihood = (
        group_log_likelihood(model, rows, NODES).sum() if has_quadrature else mean.new_tensor(math.nan)
    )
    in_data_units = RandomEffects(
        torch.cat([values["intercept"][None], values["coef"]]),
        torch.linalg.cholesky(values["covariance"]),
        model.response,
        frame.shared_columns,
    )
    return FittedEffects(
        in_data_units,
        mean @ transform.mT,
        transform @ covariance @ transform.mT,
        likelihood,
        errors,
        noise,
    ).to("cpu")


def make_random_walk(density: LogDensity, scale: Tensor, shape: Tensor) -> Kernel:
    """The kernel of every iteration."""
    return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
