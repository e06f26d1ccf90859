r"""Moment gaps with error bars, for any model.

.. math:: \text{gap} = \frac1n \sum_i g(x_i) - E_z \, E[g(x) \mid z]

Document 000, sections 4 and 5, with the errors that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.criticise.adapt import (
    DEPENDENT,
    LongRun,
    as_model,
    check_independent,
    chosen_estimator,
    open_rows,
)
from boxloop.criticise.forward import Forward, Method, forward_moments
from boxloop.criticise.functions import AnyFunction, First, Second, TestFunction
from boxloop.criticise.gaps import Gap, Mega, null_p_values
from boxloop.criticise.lagged import LaggedProbe
from boxloop.criticise.null import Null, Shift, model_errors
from boxloop.criticise.probes import Probe
from boxloop.criticise.same_rows import check_column_names, warn_of_copies, warn_of_other_rows, warn_of_shared
from boxloop.criticise.scene import model_scene
from boxloop.criticise.tally import Scene, Tally
from boxloop.criticise.training import (
    Free,
    Training,
    are_training_rows,
    has_free,
    knows_error,
    training_error,
)
from boxloop.data import (
    RowSample,
    RowSampler,
    SumAndRows,
    check_choice,
    check_count,
    check_list,
    fingerprint_rows,
    hash_tile,
    sample_rows,
    word_to_text,
)
from boxloop.numeric import RandomState, generator, join_words, single_threaded, spawn
from boxloop.tree import Tree
from boxloop.types import LatentModel, Source

KEPT_ROWS, KEPT_VALUES = 20_000, 1 << 24
"""Most rows, and most values, that the law of a gap is worked out from; moments are of all rows."""

SIMULATED = 4e8
"""Values (rows x columns x draws) up to which the null law comes from fresh rows of the model."""


@dataclass(frozen=True)
class _Tallies(Tree):
    parts: tuple[Tally, ...]
    word: Tensor


@single_threaded
def mega(
    model: object,
    X: Any,
    *,
    functions: Sequence[TestFunction] = (First(), Second()),
    train: Any = None,
    sample_weight: Any = None,
    method: Method = "auto",
    nodes: int = 8192,
    null: Literal["auto", "model", "signs"] = "auto",
    draws: int = 999,
    random_state: RandomState = 0,
) -> Mega:
    r"""Gaps between the moments of rows and of a model, their errors, and how likely they are if the model is true.

    A gap on held-out rows varies because of these rows, of Monte Carlo nodes where moments are not exact, and of the
    error of the fitted parameters. The last is known only with the training rows: without ``train`` it is left out, and
    true models are rejected too often unless there were many more training than test rows. Moments whose Monte Carlo
    error cannot be estimated, because few nodes carry all their variance, are left out of p-values with a warning.

    Args:
        model: a fitted estimator or model; whatever :func:`as_model` takes.
        X: rows to judge by: held out, or the training rows themselves (then pass the same rows as ``train``).
        functions: test functions.
        train: the rows the model was fitted to by maximum likelihood; ``X`` itself if it was fitted to X. Estimators of
            this library know their rows again (``training_digest_``), whatever table they come from.
        sample_weight: one non-negative weight a row of X.
        method: how the model's side is computed, see :func:`forward_moments`.
        nodes: latent nodes where that is not exact.
        null: where the null law comes from: fresh rows of the ``model``, or the rows of X with random ``signs`` (for
            any number of rows); ``auto`` takes the model up to some size.
        draws: from the null law; 0 for gaps and errors alone.
        random_state: seed of directions, nodes and draws.

    Returns:
        Gaps by test function, p-values, and tables of where the model fails.

    Raises:
        ValueError: ``train`` is not what the model was fitted to; columns that are not the model's; p-values of a
            hidden Markov model, whose rows depend on one another.
        TypeError: not a model, or one whose training error is not known.

    Warns:
        UserWarning: X holds the rows of the fit and ``train`` was left out (it is then taken from X where it is known);
            X seems to hold a copy of them; rows of X are among those of ``train``; the means of ``train`` are not those
            of a model that does not know the rows of its fit.

    Example:
        >>> import numpy as np
        >>> from sklearn.mixture import GaussianMixture
        >>> from boxloop.criticise.functions import Power
        >>> rows = np.random.default_rng(0).standard_t(3, size=(2000, 2))
        >>> result = mega(GaussianMixture(1).fit(rows[:1000]), rows[1000:], functions=[Power(4)], draws=199)
        >>> result.p_value < 0.05
        True
    """
    check_choice(method, "method", get_args(Method))
    check_choice(null, "null", ("auto", "model", "signs"))
    check_count(nodes, "nodes")
    check_count(draws, "draws", 0)
    check_list(functions, "functions", "test functions")
    model = chosen_estimator(model)
    adapted = as_model(model)
    if train is not None:
        _with_free(adapted)
    device = adapted.prior().mean.device
    streams = spawn(generator(random_state, device), 3)
    source = open_rows(model, X, sample_weight, device)
    check_column_names(model, source.names, "X")
    scene = model_scene(adapted, source.names, streams[0], nodes)
    if source.n_rows < 2:
        raise ValueError("moment gaps have no error bars on 1 row: at least 2 are needed")
    probes = tuple(_ready(function, scene) for function in functions)
    _check(adapted, probes, testing=draws > 0 or train is not None)
    nodes_at = streams[1].get_state()

    def moments(moved: LatentModel) -> list[Forward]:
        streams[1].set_state(nodes_at)  # the same nodes for every parameter
        return forward_moments(moved, probes, streams[1], method, nodes)

    tallies, kept, digest = _look(source, probes, streams[2])
    fitted = None if train is None or train is X else open_rows(model, train, None, device)
    if fitted is not None:
        check_column_names(model, fitted.names, "train")
    found = digest if fitted is None else fingerprint_rows(fitted)
    own = are_training_rows(model, adapted, digest, None if train is None else found)
    case = _Case(adapted, source.n_rows, kept, probes, tallies, tuple(moments(adapted)), own)
    _warn_of_tails(case)
    if not own:
        warn_of_copies(probes, tallies, case.forward, kept, source.n_rows)
    if train is not None or (own and knows_error(adapted)):
        rows = kept if own or fitted is None else _kept(fitted, streams[2])
        if not own:
            warn_of_shared(kept, rows)
        if getattr(model, "training_digest_", None) is None:
            warn_of_other_rows(scene.origin, rows)
        case = replace(case, training=_training(adapted, rows, case, moments))
    fresh = null == "model" or (null == "auto" and _simulated(source, tallies, draws))
    return _judged(case, fresh, draws, streams[2])


def _ready(function: TestFunction, scene: Scene) -> Probe:
    if isinstance(function, type) or not isinstance(function, AnyFunction):
        named = f"the class {function.__name__}" if isinstance(function, type) else repr(function)
        raise TypeError(
            f"functions must be test functions such as First(), Second() or Power(4), got {named}; Custom(f) makes one "
            "of a function of rows"
        )
    return function.ready(scene)


def _warn_of_tails(case: _Case) -> None:
    """Say which moments have Monte Carlo errors that cannot be estimated."""
    lost = [
        f"{probe.name}: {label}"
        for probe, forward in zip(case.probes, case.forward, strict=True)
        for label, error in zip(probe.labels(), probe.flat(forward.error).tolist(), strict=True)
        if math.isinf(error)
    ]
    if lost:
        warn_caller(
            f"a few nodes carry nearly all of the model's {join_words(lost, most=5)}: their Monte Carlo errors cannot "
            "be estimated, and they are left out of p-values; raise nodes=, or judge by bounded functions, Fourier() "
            "and Below()",
            UserWarning,
        )


def _look(
    source: Source, probes: Sequence[Probe], stream: torch.Generator
) -> tuple[tuple[Tally, ...], RowSample, str]:
    """The one pass over the rows: sums over all of them, some to work out the law of the gaps from, their digest."""
    lot = RowSampler.draw(source.n_rows, _most(source.n_columns), stream)

    def look(rows: Tensor, weight: Tensor, start: int) -> SumAndRows[_Tallies]:
        values = (rows.to_dense() if rows.layout != torch.strided else rows).to(torch.float64)
        tallies = _Tallies(tuple(probe.tally(values, weight) for probe in probes), hash_tile(rows, weight))
        return SumAndRows(tallies, lot.take(rows, weight, start))

    found = source.reduce_at(look)
    return found.sum.parts, RowSample.of(lot, found.rows), word_to_text(found.sum.word)


def _kept(source: Source, stream: torch.Generator) -> RowSample:
    return sample_rows(source, _most(source.n_columns), stream)


def _most(columns: int) -> int:
    return max(1000, min(KEPT_ROWS, KEPT_VALUES // columns))


@dataclass(frozen=True)
class _Case:
    """All that is known before the null law: ``own`` when the rows are those of the fit."""

    model: LatentModel
    n_rows: int
    kept: RowSample
    probes: tuple[Probe, ...]
    tallies: tuple[Tally, ...]
    forward: tuple[Forward, ...]
    own: bool
    training: Training | None = None


def _judged(case: _Case, fresh: bool, draws: int, stream: torch.Generator) -> Mega:
    training, n_rows = case.training, case.n_rows
    parts = zip(case.probes, case.tallies, case.forward, _split(training, case.probes), strict=True)
    gaps = [_gap(*part) for part in parts]
    if case.own and training is not None:
        gaps = _own_rows(gaps, case.tallies, case.kept.rows, training)
    if fresh:
        found = model_errors(case.model, case.probes, n_rows, training if case.own else None, stream)
        gaps = [
            replace(g, null_error=_together(e, g.node_error, g.training_error))
            for g, e in zip(gaps, found, strict=True)
        ]
    left = "rows of the fit, left out" if case.own else "left out"
    status = left if training is None else ("rows of the fit" if case.own else "included")
    if isinstance(case.model, LongRun):
        lost = torch.full_like(gaps[0].row_error[:1], torch.nan)
        gaps = [
            replace(g, row_error=lost.expand_as(g.row_error), null_error=lost.expand_as(g.null_error))
            for g in gaps
        ]
    if draws == 0:
        return Mega(tuple(gaps), n_rows, status, refused=DEPENDENT * isinstance(case.model, LongRun))
    shift: Shift | Training | None = training
    if training is not None and not case.own:
        shift = Shift(training.covariance_root, [g.training_error for g in gaps])
    law = Null(case.model, case.probes, case.forward, [g.null_error for g in gaps], shift)
    if fresh:
        laws = law.from_model(n_rows, draws, stream)
    else:
        laws = law.from_signs(case.kept, case.tallies, draws, stream)
    return null_p_values(gaps, laws, n_rows, status)


def _check(model: LatentModel, probes: Sequence[Probe], *, testing: bool) -> None:
    if testing:
        check_independent(model, "errors and p-values are those")
    if any(isinstance(probe, LaggedProbe) for probe in probes):
        check_independent(model, "the model's side of Lagged is that")
    names = [probe.name for probe in probes]
    if not names:
        raise ValueError("give at least one test function")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"test functions must differ in name, these occur twice: {', '.join(repeated)}")


def _training(
    model: LatentModel, kept: RowSample, case: _Case, moments: Callable[[LatentModel], list[Forward]]
) -> Training:
    def flat(moved: LatentModel) -> list[Tensor]:
        return [probe.flat(f.value) for probe, f in zip(case.probes, moments(moved), strict=True)]

    scene = case.probes[0].scene
    return training_error(_with_free(model), kept, flat, scene.origin, scene.scale)


def _with_free(model: LatentModel) -> Free:
    """The model, if its parameters can be moved."""
    if not has_free(model):
        raise TypeError(f"the training error of {type(model).__name__} is not known: leave out train=")
    return model


def _split(training: Training | None, probes: Sequence[Probe]) -> list[Tensor | None]:
    if training is None:
        return [None] * len(probes)
    return list(training.error.split([len(probe.labels()) for probe in probes]))


def _gap(probe: Probe, tally: Tally, forward: Forward, training: Tensor | None) -> Gap:
    rows, nodes = probe.flat(tally.error), probe.flat(forward.error.detach())
    training = torch.zeros_like(rows) if training is None else training
    data, model = tally.mean, forward.value.detach()
    shown = (probe.in_data_units(data), probe.in_data_units(model))
    return Gap(probe, *shown, data - model, rows, nodes, training, _together(rows, nodes, training))


def _together(*errors: Tensor) -> Tensor:
    return torch.stack([error.square() for error in errors]).sum(0).sqrt()


def _own_rows(gaps: Sequence[Gap], tallies: Sequence[Tally], rows: Tensor, training: Training) -> list[Gap]:
    """On the rows of the fit rows and training err together; what the fit matches by construction has no error."""
    pulls = training.shift.split([len(gap.labels) for gap in gaps], dim=1)
    share = training.share
    found = []
    for gap, tally, pull in zip(gaps, tallies, pulls, strict=True):
        own = torch.nan_to_num(gap.probe.entries(rows) - gap.probe.flat(tally.mean), nan=0.0)
        error = ((own - pull[: len(own)]) * share[: len(own), None]).square().sum(0).sqrt()
        error = torch.where(error > training.matched * gap.row_error, error, 0.0)
        zero = torch.zeros_like(error)
        found.append(
            replace(gap, row_error=error, training_error=zero, null_error=_together(error, gap.node_error))
        )
    return found


def _simulated(source: Source, tallies: Sequence[Tally], draws: int) -> bool:
    """Whether fresh rows of the model may stand for these: not too many, none missing, none weighted."""
    plain = all(
        bool((t.count == t.count.max()).all()) and bool((t.squared_weight == t.count).all()) for t in tallies
    )
    return plain and source.n_rows * source.n_columns * max(draws, 1) <= SIMULATED
