"""A fitted network estimator audited: its posterior in standard units, with the rows that its networks learned from."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import to_labels, to_vector, validate_rows
from boxloop.estimators.base import Array
from boxloop.estimators.network_base import NetworkEstimator
from boxloop.estimators.network_rows import held_out, mark_of
from boxloop.estimators.network_train import AGREED
from boxloop.numeric import generator, spawn
from boxloop.weights import Audit, audit


def audit_network(
    estimator: NetworkEstimator, X: Any, y: Any, X_test: Any, y_test: Any, *, chains: int | None = None
) -> Audit:
    r"""Whether the posterior of a fitted estimator is one, and whether its predictions are any good.

    The prior is the estimator's, :math:`N(0, \alpha^{-1} I)` in standard units; noise, scale and temperature are those
    that it found; N counts the rows that its networks were trained on. Where it has several members, predictions are
    judged together, and the trajectory and the last layer are the first member's.

    Args:
        estimator: a fitted ``NetworkRegressor`` or ``NetworkClassifier`` whose ``random_state`` is a whole number, as
            the rows that were held out for tuning are found again by it.
        X: rows of its fit, (n, d).
        y: numbers or labels of the fit.
        X_test: other rows.
        y_test: theirs; of labels, those that the fit has seen.
        chains: of Monte Carlo, as of :func:`boxloop.weights.audit`.

    Returns:
        :class:`boxloop.weights.Audit`; scores are in standard units.

    Raises:
        ValueError: X and y are not the rows of the fit, in their order; a label is none of its; or rows had weights.

    Example:
        >>> import numpy as np
        >>> from boxloop.estimators.network_regressor import NetworkRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 1))
        >>> y = X[:, 0] ** 2 + 0.3 * rng.normal(size=200)
        >>> fit = NetworkRegressor((10,), epochs=30, collect=30, random_state=0).fit(X[:150], y[:150])
        >>> found = audit_network(fit, X[:150], y[:150], X[150:], y[150:], chains=0)
        >>> found.title.partition(" after")[0]
        'Audit of FactorEM, rank 10, over 31 weights'
    """
    if estimator.weighted_:
        raise ValueError(
            "an audit counts every row once, and these networks were fitted to weighted rows: repeat rows by their "
            "weights, and fit to them without sample_weight"
        )
    learned = training_rows(estimator, y)
    _check(estimator, X, y)
    rows, tests = estimator._rows(X)[torch.from_numpy(learned)], estimator._rows(X_test)
    seen, held = (_outputs(estimator, given) for given in (y, y_test))
    members, predictor = estimator.posterior_.posteriors, estimator.predictor_
    optimiser = torch.optim.SGD(
        [value for part in estimator.posterior_.parts() for value in part.net.parameters()],
        lr=1.0,
        weight_decay=estimator.weight_decay_,
    )
    options: dict[str, Any] = {
        "kind": estimator._kind,
        "prior_precision": estimator.prior_precision,
        "noise": predictor.noise,
        "optimiser": optimiser,
    }
    given = (rows, seen[torch.from_numpy(learned)], tests, held)
    first = _ours(audit(members[0], *given, **options, predictor=predictor, chains=chains))
    if len(members) == 1:
        return first
    whole = _ours(audit(estimator.posterior_, *given, **options, predictor=predictor, chains=0))
    alone = f"trajectory and last layer are those of the first of {len(members)} networks"
    return replace(first, title=whole.title, decay=whole.decay, notes=(*first.notes, alone))


def _ours(found: Audit) -> Audit:
    """The decay was set by a noise that agrees with the one found up to a factor, and its knob is the prior."""
    decay = found.decay
    return found if decay is None else replace(found, decay=replace(decay, same=AGREED, scaled=True))


def training_rows(estimator: NetworkEstimator, y: Any) -> NDArray[np.bool_]:
    """Which rows of a fit trained the networks, (n,); the others chose noise or temperature, and the scale.

    Args:
        estimator: fitted, with a whole number for ``random_state``.
        y: of the fit.
    """
    if not isinstance(estimator.random_state, Integral):
        raise ValueError("random_state must be a whole number, so that the rows held out can be found again")
    codes = _outputs(estimator, y).cpu().numpy()
    splitting, *_ = spawn(generator(int(estimator.random_state)), 3)
    return ~held_out(codes, estimator.validation_fraction, splitting)


def _check(estimator: NetworkEstimator, X: Any, y: Any) -> None:
    """Other rows, or the same in another order, would give others than those that were held out."""
    table = np.ascontiguousarray(validate_rows(estimator, X, reset=False, dtype=np.float64))
    units = estimator.y_units_
    t = _codes(estimator, y) if units is None else _columns(y)
    same = len(table) == len(t) == int(estimator._mark[0])
    if same:
        found = mark_of(table, t, estimator.x_units_, units)
        same = len(found) == len(estimator._mark) and np.allclose(
            found, estimator._mark, rtol=1e-6, atol=1e-6 * len(table) ** 0.5
        )
    if not same:
        raise ValueError(
            "an audit needs the rows of the fit, all of them and in their order, as X and y: these are others; other "
            "rows go into X_test and y_test"
        )


def _outputs(estimator: NetworkEstimator, y: Any) -> Tensor:
    """Numbers in standard units, (n, q), or places of classes, (n,)."""
    law = estimator.posterior_.parts()[0].law.mean
    if estimator.y_units_ is not None:
        return estimator.y_units_.standard(_columns(y), law.dtype, law.device)
    return torch.from_numpy(_codes(estimator, y)).to(law.device)


def _columns(y: Any) -> Array:
    """Numbers as (n, q)."""
    table: Array = to_vector(y, "y")
    if not table.size:
        raise ValueError("y must be a list of numbers, one or more a row; it holds none")
    return table.reshape(len(table) if table.ndim else 1, -1)


def _codes(estimator: NetworkEstimator, y: Any) -> NDArray[np.int64]:
    """Places of labels among the classes, (n,)."""
    labels, known = to_labels(y, "y"), vars(estimator)["classes_"]
    if labels.ndim != 1 or not labels.size:
        raise ValueError(f"y must be a list of labels, one a row; it has the shape {labels.shape}")
    try:
        places = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    except TypeError as error:
        raise TypeError(f"y holds labels of another kind than {known.tolist()[0]!r}, of the fit") from error
    if not (known[places] == labels).all():
        unknown = next(iter(labels[known[places] != labels].tolist()))
        raise ValueError(f"the label {unknown!r} is none of those that the fit has seen")
    return places.astype(np.int64)
