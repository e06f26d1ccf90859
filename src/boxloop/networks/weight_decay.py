r"""The weight decay that corresponds to a Gaussian prior, and whether an optimiser uses it.

With a prior :math:`N(0, \alpha^{-1} I)` the most probable weights minimise :math:`-\log p(y \mid X, \theta) +
\tfrac{\alpha}{2} |\theta|^2`. An optimiser that adds :math:`\lambda \theta` to the gradient of a loss minimises that
loss plus :math:`\tfrac{\lambda}{2} |\theta|^2`: the two agree for one lambda, which depends on how the loss is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from boxloop.concerns import Concern
from boxloop.data import check_choice, check_kind, check_number, make_frame

Loss = Literal["mean_squared", "half_mean_squared", "mean_log", "sum_squared", "half_sum_squared", "sum_log"]
"""Scaling of a loss: squared errors or minus log-likelihood, as a mean over a batch or a sum over all rows."""

Kind = Literal["coupled", "decoupled", "none", "unknown"]

COUPLED = (
    torch.optim.SGD,
    torch.optim.ASGD,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
)
DECOUPLED = (torch.optim.AdamW, torch.optim.Adafactor, torch.optim.Muon)
EXACT, NEAR = 1.05, 2.0
"""Factors up to which a weight decay counts as equal to the prior's, and as near it."""


def weight_decay(
    prior_precision: float,
    n_rows: float,
    loss: Loss = "mean_squared",
    noise_precision: float | None = None,
    n_outputs: int = 1,
) -> float:
    r"""The weight decay whose minimum is the most probable weight vector under a Gaussian prior.

    .. math:: \lambda = \frac{2 \alpha}{\beta N q} \text{ (mean squared error)}, \quad
        \frac{\alpha}{\beta N q} \text{ (half of it)}, \quad
        \frac{\alpha}{N} \text{ (mean minus log-likelihood)}; \quad \text{sums: times } N q \text{ or } N

    Deviation: Brownlie (2021), section 6.1, uses :math:`\alpha / \beta` and finds that it fails; the factor
    :math:`2 / N` is missing there.

    Args:
        prior_precision: alpha, of :math:`N(0, \alpha^{-1} I)`.
        n_rows: N, rows of the training set, not of a batch; the sum of their weights if they are weighted.
        loss: ``mean_squared``, ``half_mean_squared``; ``mean_log`` for mean cross-entropy or mean negative
            log-likelihood; ``sum_squared``, ``half_sum_squared``, ``sum_log`` for sums over all rows (that of a batch
            times the number of batches).
        noise_precision: beta, the reciprocal of the noise variance; for squared errors.
        n_outputs: q, over which a mean squared error averages too, as in ``torch.nn.MSELoss``.

    Returns:
        lambda, for ``torch.optim.SGD(weight_decay=...)``.

    Example:
        >>> weight_decay(0.01, 100, noise_precision=1.0)
        0.0002
        >>> weight_decay(1.0, 1000, "mean_log")
        0.001
    """
    if not check_number(prior_precision, "prior_precision") >= 0.0:
        raise ValueError(f"prior_precision must be at least 0, got {prior_precision}")
    return prior_precision * _unit_decay(n_rows, loss, noise_precision, n_outputs)


def implied_precision(
    decay: float,
    n_rows: float,
    loss: Loss = "mean_squared",
    noise_precision: float | None = None,
    n_outputs: int = 1,
) -> float:
    r"""The precision of the Gaussian prior that corresponds to a weight decay: the inverse of :func:`weight_decay`.

    Args:
        decay: lambda.
        n_rows: N, like the other arguments as in :func:`weight_decay`.
        loss: scaling of the loss.
        noise_precision: beta.
        n_outputs: q.

    Example:
        >>> implied_precision(0.001, 1000, "mean_log")
        1.0
    """
    if not check_number(decay, "decay") >= 0.0:
        raise ValueError(f"decay must be at least 0, got {decay}")
    return decay / _unit_decay(n_rows, loss, noise_precision, n_outputs)


def _unit_decay(n_rows: float, loss: Loss, noise_precision: float | None, n_outputs: int) -> float:
    """The weight decay for a prior of precision 1."""
    check_choice(loss, "loss", get_args(Loss))
    if not check_number(n_rows, "n_rows") > 0 or check_number(n_outputs, "n_outputs") < 1:
        raise ValueError(
            f"n_rows must be above 0 and n_outputs at least 1, got n_rows={n_rows} and n_outputs={n_outputs}"
        )
    if loss.endswith("log"):
        return 1.0 / n_rows if loss == "mean_log" else 1.0
    if noise_precision is not None:
        check_number(noise_precision, "noise_precision")
    if noise_precision is None or not 0.0 < noise_precision < math.inf:
        raise ValueError(f"noise_precision must be above 0 for a squared loss, got {noise_precision}")
    twice = 1.0 if loss.startswith("half") else 2.0
    return twice / noise_precision / (n_rows * n_outputs if "mean" in loss else 1)


@dataclass(frozen=True)
class ParameterGroup:
    """The weight decay of one parameter group of an optimiser."""

    kind: Kind  # coupled: part of the gradient; unknown: of an optimiser that is not one of PyTorch
    decay: float  # its weight_decay, for ASGD plus its lambd; NaN if unknown
    size: int  # number of weights


@dataclass(frozen=True)
class DecayCheck:
    """The weight decay of an optimiser beside that of the prior.

    Args:
        optimiser: name of its class.
        groups: its parameter groups.
        expected: weight decay that corresponds to the prior.
        prior_precision: alpha.
        unit_decay: weight decay for a prior of precision 1.
        tolerance: factor up to which two decays count as equal; larger where the noise is uncertain.
        from_prior: whether the decay was computed from ``prior_precision``, which is then the setting to change.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> adam = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
        >>> check_weight_decay(adam, 1.0, 100, "mean_log").concerns[0].level
        'doubtful'
    """

    optimiser: str
    groups: tuple[ParameterGroup, ...]
    expected: float
    prior_precision: float
    unit_decay: float
    tolerance: float = EXACT
    from_prior: bool = False

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """One for each way in which the decay differs from the prior's, or one that says that it agrees."""
        found = tuple(dict.fromkeys(filter(None, (self._assess_group(group) for group in self.groups))))
        if found:
            return found
        about = "" if self.tolerance == EXACT else "approximately "
        return (Concern("good", "Weight decay", f"It is {self.expected:.4g}, {about}that of the prior"),)

    def table(self) -> Any:
        """A frame with one row per parameter group."""
        groups = self.groups
        columns: dict[str, Any] = {
            "kind": [one.kind for one in groups],
            "weights": [one.size for one in groups],
        }
        columns |= {"decay": [one.decay for one in groups], "expected": [self.expected] * len(groups)}
        columns["implied precision"] = [self._implied_precision(one) for one in groups]
        return make_frame(columns)

    def __str__(self) -> str:
        return "\n".join(str(concern) for concern in self.concerns)

    def _implied_precision(self, group: ParameterGroup) -> float:
        return group.decay / self.unit_decay if group.kind in ("coupled", "none") else math.nan

    def _assess_group(self, group: ParameterGroup) -> Concern | None:
        remedy, what = f"set weight_decay={self.expected:.4g}", "Weight decay"
        if group.kind == "unknown":
            why = f"{self.optimiser} is not an optimiser of PyTorch, so the meaning of its weight decay is unknown"
            return Concern("doubtful", what, why, f"compare it with weight_decay={self.expected:.4g}")
        if group.kind == "decoupled":
            why = (
                f"{self.optimiser} applies its weight decay ({group.decay:.4g}) outside the gradient, which "
                "corresponds to no Gaussian prior, so its iterates do not converge to the posterior mode"
            )
            return Concern("doubtful", what, why, f"use Adam or SGD with weight_decay={self.expected:.4g}")
        if group.decay <= 0.0 < self.expected:
            alpha = f"{self.prior_precision:.4g}"
            why = f"{group.size} weights have none (a flat prior), but the prior precision is {alpha}"
            return Concern("bad", what, why, remedy)
        ratio = group.decay / self.expected if self.expected > 0.0 else math.inf if group.decay > 0.0 else 1.0
        if 1.0 / self.tolerance <= ratio <= self.tolerance:
            return None
        if self.from_prior:
            remedy = f"set prior_precision={self.prior_precision / ratio:.3g}"
        why = (
            f"It is {group.decay:.4g}, that of a prior precision of {self._implied_precision(group):.4g}; the prior "
            f"precision {self.prior_precision:.4g} needs {self.expected:.4g}"
        )
        return Concern("doubtful" if 1.0 / NEAR <= ratio <= NEAR else "bad", what, why, remedy)


def check_weight_decay(
    optimiser: Optimizer,
    prior_precision: float,
    n_rows: int,
    loss: Loss = "mean_squared",
    *,
    noise_precision: float | None = None,
    n_outputs: int = 1,
    parameters: Iterable[Tensor] | None = None,
) -> DecayCheck:
    r"""Compare the weight decay of an optimiser with that of the prior.

    SGD, Adam and related optimisers add :math:`\lambda \theta` to the gradient (coupled): they minimise the penalised
    loss. AdamW shrinks the weights outside the gradient (decoupled, Loshchilov and Hutter 2019), which corresponds to
    no Gaussian prior, as the gradient is rescaled and the shrinkage is not.

    Args:
        optimiser: from ``torch.optim``; the decay of any other is reported as unknown.
        prior_precision: alpha.
        n_rows: N.
        loss: as in :func:`weight_decay`.
        noise_precision: beta, for squared errors.
        n_outputs: q.
        parameters: to consider; groups without any of them are left out. All if None.

    Returns:
        :class:`DecayCheck`.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=2e-4)
        >>> print(check_weight_decay(sgd, 0.01, 100, noise_precision=1.0))
        good: Weight decay. It is 0.0002, that of the prior.
    """
    check_kind(optimiser, "optimiser", Optimizer, "pass one of torch.optim")
    expected = weight_decay(prior_precision, n_rows, loss, noise_precision, n_outputs)
    selected = None if parameters is None else {id(value) for value in parameters}
    groups = []
    for group in optimiser.param_groups:
        values = [value for value in group["params"] if selected is None or id(value) in selected]
        if values:
            size = sum(value.numel() for value in values)
            groups.append(ParameterGroup(*_read_weight_decay(optimiser, group), size))
    if not groups:
        raise ValueError("optimiser holds none of these parameters")
    unit_decay = _unit_decay(n_rows, loss, noise_precision, n_outputs)
    return DecayCheck(type(optimiser).__name__, tuple(groups), expected, prior_precision, unit_decay)


def _read_weight_decay(optimiser: Optimizer, group: dict[str, Any]) -> tuple[Kind, float]:
    """How an optimiser applies its weight decay to a parameter group, and its value."""
    decay = group.get("weight_decay")
    if isinstance(optimiser, torch.optim.ASGD):  # it has a second decay, by default 1e-4, in the same step
        decay = float(decay or 0.0) + float(group["lambd"])
    if not type(optimiser).__module__.startswith("torch.optim"):
        return "unknown", math.nan if decay is None else float(decay)
    if decay is None or float(decay) == 0.0:
        return "none", 0.0
    if group.get("decoupled_weight_decay", isinstance(optimiser, DECOUPLED)):
        return "decoupled", float(decay)
    return ("coupled" if isinstance(optimiser, COUPLED) else "unknown"), float(decay)
