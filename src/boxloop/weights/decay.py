r"""The weight decay that a prior asks for, and whether an optimiser has it.

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
"""How a loss is scaled: squared errors or minus log-likelihood, of a batch's mean or of the sum over all rows."""

Way = Literal["coupled", "decoupled", "none", "unknown"]

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
SAME, NEAR = 1.05, 2.0
"""Factors up to which a decay is the right one, and is near it."""


def weight_decay(
    prior_precision: float,
    n_rows: float,
    loss: Loss = "mean_squared",
    noise_precision: float | None = None,
    outputs: int = 1,
) -> float:
    r"""The weight decay whose minimum is the most probable weight vector under a Gaussian prior.

    .. math:: \lambda = \frac{2 \alpha}{\beta N q} \text{ (mean squared error)}, \quad
        \frac{\alpha}{\beta N q} \text{ (half of it)}, \quad
        \frac{\alpha}{N} \text{ (mean minus log-likelihood)}; \quad \text{sums: times } N q \text{ or } N

    A mean squared error over q outputs averages over them as well, as ``torch.nn.MSELoss`` does.

    Deviation: document 004, section 6.1, takes :math:`\alpha / \beta` and finds that it fails; the factor
    :math:`2 / N` was left out there.

    Args:
        prior_precision: alpha, of :math:`N(0, \alpha^{-1} I)`.
        n_rows: N, all rows of the training set, not of a batch; the sum of their weights where they have any.
        loss: ``mean_squared``, ``half_mean_squared``; ``mean_log`` for mean cross-entropy or mean minus log-likelihood;
            ``sum_squared``, ``half_sum_squared``, ``sum_log`` for sums over all rows (a batch's times the number of
            batches).
        noise_precision: beta, one over the variance of the noise; for squared errors.
        outputs: q, that a mean squared error averages over.

    Returns:
        lambda, as ``torch.optim.SGD(weight_decay=...)`` takes it.

    Example:
        >>> weight_decay(0.01, 100, noise_precision=1.0)
        0.0002
        >>> weight_decay(1.0, 1000, "mean_log")
        0.001
    """
    if not check_number(prior_precision, "prior_precision") >= 0.0:
        raise ValueError(f"prior_precision must not be negative, got {prior_precision}")
    return prior_precision * _factor(n_rows, loss, noise_precision, outputs)


def implied_precision(
    decay: float,
    n_rows: float,
    loss: Loss = "mean_squared",
    noise_precision: float | None = None,
    outputs: int = 1,
) -> float:
    r"""The precision of the Gaussian prior that a weight decay stands for: :func:`weight_decay` backwards.

    Args:
        decay: lambda.
        n_rows: N.
        loss: as in :func:`weight_decay`.
        noise_precision: beta.
        outputs: q.

    Returns:
        alpha.

    Example:
        >>> implied_precision(0.001, 1000, "mean_log")
        1.0
    """
    if not check_number(decay, "decay") >= 0.0:
        raise ValueError(f"decay must not be negative, got {decay}")
    return decay / _factor(n_rows, loss, noise_precision, outputs)


def _factor(n_rows: float, loss: Loss, noise_precision: float | None, outputs: int) -> float:
    """What a weight decay is for a prior of precision 1."""
    check_choice(loss, "loss", get_args(Loss))
    if not check_number(n_rows, "n_rows") > 0 or check_number(outputs, "outputs") < 1:
        raise ValueError(f"n_rows must be above 0, and outputs 1 at least, got {n_rows} and {outputs}")
    if loss.endswith("log"):
        return 1.0 / n_rows if loss == "mean_log" else 1.0
    if noise_precision is not None:
        check_number(noise_precision, "noise_precision")
    if noise_precision is None or not 0.0 < noise_precision < math.inf:
        raise ValueError(f"a squared loss needs noise_precision above zero, got {noise_precision}")
    twice = 1.0 if loss.startswith("half") else 2.0
    return twice / noise_precision / (n_rows * outputs if "mean" in loss else 1)


@dataclass(frozen=True)
class Group:
    """What an optimiser does to one group of parameters.

    Args:
        way: ``coupled``, the decay is part of the gradient; ``decoupled``, it is not; ``none``, an optimiser without;
            ``unknown``, one that is not PyTorch's.
        decay: its ``weight_decay``, of ``ASGD`` with its ``lambd``; NaN where unknown.
        parameters: numbers in it.
    """

    way: Way
    decay: float
    parameters: int


@dataclass(frozen=True)
class DecayCheck:
    """Whether an optimiser's weight decay is the prior's.

    Args:
        optimiser: its name.
        groups: of its parameters.
        right: the decay that the prior asks for.
        prior_precision: alpha.
        unit: decay of a prior of precision 1.
        same: factor up to which a decay is the right one: larger where the noise is known only so far.
        scaled: whether the decay follows from ``prior_precision``, which then is what to change.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> adam = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
        >>> check_decay(adam, 1.0, 100, "mean_log").worries[0].level
        'doubtful'
    """

    optimiser: str
    groups: tuple[Group, ...]
    right: float
    prior_precision: float
    unit: float
    same: float = SAME
    scaled: bool = False

    @property
    def worries(self) -> tuple[Concern, ...]:
        """One for each thing that is not as the prior asks, or one that says that all is well."""
        found = tuple(dict.fromkeys(filter(None, (self._check_group(group) for group in self.groups))))
        if found:
            return found
        about = "as" if self.same == SAME else "about as"
        return (Concern("good", "Weight decay", f"{self.right:.4g}, {about} the prior asks"),)

    def table(self) -> Any:
        """One line a group of parameters."""
        return make_frame(
            {
                "way": [group.way for group in self.groups],
                "parameters": [group.parameters for group in self.groups],
                "decay": [group.decay for group in self.groups],
                "right": [self.right] * len(self.groups),
                "implied precision": [self._implied(group) for group in self.groups],
            }
        )

    def __str__(self) -> str:
        return "\n".join(str(concern) for concern in self.worries)

    def _implied(self, group: Group) -> float:
        return group.decay / self.unit if group.way in ("coupled", "none") else math.nan

    def _check_group(self, group: Group) -> Concern | None:
        said, what = f"weight_decay={self.right:.4g}", "Weight decay"
        if group.way == "unknown":
            return Concern(
                "doubtful", what, f"how {self.optimiser} applies it is not known", f"compare it with {said}"
            )
        if group.way == "decoupled":
            why = (
                f"{self.optimiser} shrinks weights apart from the gradient ({group.decay:.4g}): no Gaussian prior "
                "does that, and the iterates do not settle at its most probable weights"
            )
            return Concern("doubtful", what, why, f"Adam or SGD with {said}")
        if group.decay <= 0.0 < self.right:
            stated = f"precision {self.prior_precision:.4g} was stated"
            why = f"{group.parameters} weights have none: a flat prior, where {stated}"
            return Concern("bad", what, why, said)
        ratio = group.decay / self.right if self.right > 0.0 else math.inf if group.decay > 0.0 else 1.0
        if 1.0 / self.same <= ratio <= self.same:
            return None
        if self.scaled:
            said = f"prior_precision={self.prior_precision / ratio:.3g}, which comes nearer to that prior"
        why = (
            f"{group.decay:.4g} where the prior asks for {self.right:.4g}: it stands for precision "
            f"{self._implied(group):.4g}, not {self.prior_precision:.4g}"
        )
        return Concern("doubtful" if 1.0 / NEAR <= ratio <= NEAR else "bad", what, why, said)


def check_decay(
    optimiser: Optimizer,
    prior_precision: float,
    n_rows: int,
    loss: Loss = "mean_squared",
    *,
    noise_precision: float | None = None,
    outputs: int = 1,
    parameters: Iterable[Tensor] | None = None,
) -> DecayCheck:
    r"""Read the weight decay of an optimiser and compare it with the prior's.

    SGD, Adam and their kin add :math:`\lambda \theta` to the gradient (coupled): their fixed points are those of the
    penalised loss. AdamW shrinks weights outside it (decoupled, Loshchilov and Hutter 2019), which no Gaussian prior
    describes, as the shrinkage is not divided by the same scale as the gradient.

    Args:
        optimiser: from ``torch.optim``; another one's way is called unknown.
        prior_precision: alpha.
        n_rows: N.
        loss: as in :func:`weight_decay`.
        noise_precision: beta, for squared errors.
        outputs: q.
        parameters: those that matter; groups without any are left out. All when None.

    Returns:
        :class:`DecayCheck`.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=2e-4)
        >>> print(check_decay(sgd, 0.01, 100, noise_precision=1.0))
        good: Weight decay. 0.0002, as the prior asks.
    """
    check_kind(optimiser, "optimiser", Optimizer, "give one of torch.optim")
    right = weight_decay(prior_precision, n_rows, loss, noise_precision, outputs)
    wanted = None if parameters is None else {id(value) for value in parameters}
    groups = []
    for group in optimiser.param_groups:
        here = [value for value in group["params"] if wanted is None or id(value) in wanted]
        if here:
            groups.append(Group(*_way(optimiser, group), sum(value.numel() for value in here)))
    if not groups:
        raise ValueError("the optimiser holds none of these parameters")
    unit = weight_decay(1.0, n_rows, loss, noise_precision, outputs)
    return DecayCheck(type(optimiser).__name__, tuple(groups), right, prior_precision, unit)


def _way(optimiser: Optimizer, group: dict[str, Any]) -> tuple[Way, float]:
    decay = group.get("weight_decay")
    if isinstance(optimiser, torch.optim.ASGD):  # it has a second decay, by default 1e-4, in the same step
        decay = float(decay or 0.0) + float(group["lambd"])
    if not type(optimiser).__module__.startswith("torch.optim"):
        return "unknown", math.nan if decay is None else float(decay)
    if decay is None or float(decay) == 0.0:
        return "none", 0.0
    apart = group.get("decoupled_weight_decay", isinstance(optimiser, DECOUPLED))
    if apart:
        return "decoupled", float(decay)
    return ("coupled" if isinstance(optimiser, COUPLED) else "unknown"), float(decay)
