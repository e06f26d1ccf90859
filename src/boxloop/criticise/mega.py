r"""Moment gaps with standard errors and p-values, for any model.

.. math:: \text{gap} = \frac1n \sum_i g(x_i) - E_z \, E[g(x) \mid z]

Beaulac (2023), sections 4 and 5, with the errors that the paper leaves out.

If the model is true, a gap varies because of the held-out rows, the Monte Carlo nodes, and the error of the estimated
parameters. Rows are either drawn anew from the model, or held and multiplied by random signs (a multiplier bootstrap:
the null distribution of a norm of many gaps, a weighted sum of chi-squares, at one matrix product per draw). The error
of the parameters enters as a normal shift of the model's moments, or, on the rows of the fit, row by row through the
score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor

from boxloop.caller import warn_caller
from boxloop.criticise.adapt import (
    DEPENDENT,
    StationaryMixture,
    as_model,
    check_independent_rows,
    open_rows_for_model,
)
from boxloop.criticise.forward_moments import (
    ForwardMoment,
    Method,
    draw_rows,
    forward_moments,
    standardise_by_model,
)
from boxloop.criticise.gaps import Gap, Mega
from boxloop.criticise.parameter_error import (
    ParameterUncertainty,
    check_column_names,
    combine_errors,
    estimate_parameter_error,
    has_parameter_error,
    is_training_table,
    require_free_parameters,
    warn_of_matching_means,
    warn_of_shared_rows,
    warn_of_wrong_training_rows,
)
from boxloop.criticise.test_functions import (
    First,
    LaggedStatistic,
    ModelStandardisation,
    MomentSums,
    Second,
    Statistic,
    TestFunction,
)
from boxloop.data import (
    ArraySource,
    RowSample,
    RowSampler,
    SumAndRows,
    check_choice,
    check_count,
    check_list,
    fingerprint_rows,
    hash_tile,
    hash_to_text,
    sample_rows,
)
from boxloop.numeric import RandomState, generator, join_words, normal, single_threaded, spawn
from boxloop.tree import Tree
from boxloop.types import LatentModel, Source

SAMPLE_ROWS, SAMPLE_VALUES = 20_000, 1 << 24
"""Most rows, and most values, that the null distribution is computed from; the moments are those of all rows."""

BATCH_VALUES = 1 << 21
"""Values (draws x rows x columns) of the null distribution that are held at once."""

SIMULATED_VALUES = 4e8
"""Values (rows x columns x draws) up to which the null distribution comes from fresh rows of the model."""


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
    r"""Gaps between the moments of rows and of a model, their errors, and p-values under the model.

    .. math:: \frac1n \sum_i g(x_i) - E_z \, E[g(x) \mid z]

    Beaulac (2023), eq. 9 to 11. A gap on held-out rows varies because of these rows, of Monte Carlo nodes where moments
    are not exact, and of the error of the fitted parameters. The last is known only with the training rows: without
    ``train`` it is left out, and true models are rejected too often unless there were many more training than test
    rows. Moments whose Monte Carlo error cannot be estimated, because few nodes carry all their variance, are left out
    of p-values with a warning.

    Args:
        model: a fitted estimator or model; whatever :func:`as_model` takes.
        X: rows to compare with: held out, or the training rows themselves (then pass the same rows as ``train``).
        functions: test functions.
        train: the rows the model was fitted to by maximum likelihood; ``X`` itself if it was fitted to X. Estimators of
            this library recognise their training rows (``training_digest_``), whatever table they come from.
        sample_weight: one non-negative weight per row of X.
        method: how the model's side is computed, see :func:`forward_moments`.
        nodes: latent nodes where that is not exact.
        null: where the null distribution comes from: fresh rows of the ``model``, or the rows of X with random
            ``signs`` (for any number of rows); ``auto`` takes the model up to some size.
        draws: from the null distribution; 0 for gaps and errors alone.
        random_state: seed of directions, nodes and draws.

    Returns:
        Gaps by test function, p-values, and tables of where the model fails.

    Deviation: the paper gives norms of gaps without errors. Here each has a standard error and a p-value.

    Raises:
        ValueError: ``train`` is not what the model was fitted to; columns that are not the model's; p-values of a
            hidden Markov model, whose rows depend on one another.
        TypeError: not a model, or ``train`` for one whose parameter error cannot be computed.

    Warns:
        UserWarning: X holds the rows of the fit and ``train`` was left out (it is then taken from X where possible);
            X seems to hold a copy of them; rows of X are among those of ``train``; the means of ``train`` are not those
            of a model that does not know the rows of its fit.

    Example:
        >>> import numpy as np
        >>> from sklearn.mixture import GaussianMixture
        >>> from boxloop.criticise import Power, mega
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
    model = getattr(model, "best_estimator_", model)  # of a fitted search
    adapted = as_model(model)
    if train is not None:
        require_free_parameters(adapted)
    device = adapted.prior().mean.device
    streams = spawn(generator(random_state, device), 3)
    source = open_rows_for_model(model, X, sample_weight, device)
    check_column_names(model, source.names, "X")
    frame = standardise_by_model(adapted, source.names, streams[0], nodes)
    if source.n_rows < 2:
        raise ValueError("X has 1 row: moment gaps need at least 2 for their standard errors")
    statistics = _prepare_statistics(functions, frame, adapted, testing=draws > 0 or train is not None)

    size = max(1000, min(SAMPLE_ROWS, SAMPLE_VALUES // len(frame.names)))
    case = _MomentComparison(adapted, statistics, method, nodes, size, streams[1], streams[2])
    digest = case.average_over_rows(source)
    fitted = None if train is None or train is X else open_rows_for_model(model, train, None, device)
    if fitted is not None:
        check_column_names(model, fitted.names, "train")
    train_digest = None if train is None else digest if fitted is None else fingerprint_rows(fitted)
    own = is_training_table(model, adapted, digest, train_digest)
    case.average_over_model(own)
    if train is not None or (own and has_parameter_error(adapted)):
        rows = case.sample if own or fitted is None else sample_rows(fitted, size, streams[2])
        if not own:
            warn_of_shared_rows(case.sample, rows)
        if getattr(model, "training_digest_", None) is None:
            warn_of_wrong_training_rows(frame.origin, rows)
        case.add_parameter_error(rows)
    from_model = null == "model" or (null == "auto" and case.can_simulate_rows(draws))
    return case.test_gaps(from_model, draws)


def _prepare_statistics(
    functions: Sequence[TestFunction], frame: ModelStandardisation, model: LatentModel, *, testing: bool
) -> tuple[Statistic, ...]:
    for function in functions:
        if isinstance(function, type) or not isinstance(function, TestFunction):
            named = f"the class {function.__name__}" if isinstance(function, type) else repr(function)
            raise TypeError(
                f"functions must be test functions such as First(), Second() or Power(4), got {named}; Custom(f) "
                "makes one of a function of rows"
            )
    statistics = tuple(function.prepare(frame) for function in functions)
    if testing:
        check_independent_rows(model, "errors and p-values are those")
    if any(isinstance(statistic, LaggedStatistic) for statistic in statistics):
        check_independent_rows(model, "the model's side of Lagged is that")
    names = [statistic.name for statistic in statistics]
    if not names:
        raise ValueError("functions is empty: give at least one test function")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"test functions must differ in name, these occur twice: {', '.join(repeated)}")
    return statistics


@dataclass(frozen=True)
class _SumsAndDigest(Tree):
    statistics: tuple[MomentSums, ...]
    word: Tensor


@dataclass(frozen=True)
class _GapSize:
    """Two numbers for each gap: the mean squared z-score of its entries, and its norm."""

    score: Tensor
    norm: Tensor


@dataclass
class _MomentComparison:
    """Rows beside a model: average over both, add the error of the fitted parameters, test the gaps."""

    model: LatentModel
    statistics: tuple[Statistic, ...]
    method: Method
    nodes: int
    sample_size: int
    node_stream: Generator
    stream: Generator
    error: ParameterUncertainty | None = None

    def average_over_rows(self, source: Source) -> str:
        """The one pass over the rows: sums over all, a sample for the null distribution; returns their digest."""
        sampler = RowSampler.draw(source.n_rows, self.sample_size, self.stream)

        def sum_tile(rows: Tensor, weight: Tensor, start: int) -> SumAndRows[_SumsAndDigest]:
            values = (rows.to_dense() if rows.layout != torch.strided else rows).to(torch.float64)
            sums = tuple(statistic.sum_rows(values, weight) for statistic in self.statistics)
            found = _SumsAndDigest(sums, hash_tile(rows, weight))
            return SumAndRows(found, sampler.take(rows, weight, start))

        found = source.reduce_at(sum_tile)
        self.n_rows, self.sums = source.n_rows, found.sum.statistics
        self.sample = RowSample.of(sampler, found.rows)
        return hash_to_text(found.sum.word)

    def average_over_model(self, own: bool) -> None:
        """Moments under the model; ``own`` says that the rows are those of the fit."""
        self.own, self._nodes_at = own, self.node_stream.get_state()
        self.forward = forward_moments(self.model, self.statistics, self.node_stream, self.method, self.nodes)
        _warn_of_infinite_errors(self.statistics, self.forward)
        if not own:
            warn_of_matching_means(self.statistics, self.sums, self.forward, self.sample, self.n_rows)

    def add_parameter_error(self, rows: RowSample) -> None:
        """The error of the fitted parameters, from the training rows or a sample of them."""

        def flat_moments(model: LatentModel) -> Tensor:
            self.node_stream.set_state(self._nodes_at)  # the same nodes for every parameter
            moments = forward_moments(model, self.statistics, self.node_stream, self.method, self.nodes)
            return torch.cat([s.flatten(m.value) for s, m in zip(self.statistics, moments, strict=True)])

        frame = self.statistics[0].frame
        model = require_free_parameters(self.model)
        self.error = estimate_parameter_error(model, rows, flat_moments, frame.origin, frame.scale)

    def can_simulate_rows(self, draws: int) -> bool:
        """Whether fresh rows of the model may stand for these: not too many, none missing, none weighted."""
        complete = all(
            bool((s.count == s.count.max()).all()) and bool((s.squared_weight == s.count).all())
            for s in self.sums
        )
        values = self.n_rows * len(self.statistics[0].frame.names)
        return complete and values * max(draws, 1) <= SIMULATED_VALUES

    def test_gaps(self, from_model: bool, draws: int) -> Mega:
        """The gaps with the errors and p-values that they would have if the model were true."""
        gaps = self._measure_gaps()
        if from_model:
            gaps = [
                replace(g, null_error=combine_errors(e, g.node_error, g.parameter_error))
                for g, e in zip(gaps, self._estimate_null_errors(), strict=True)
            ]
        included = "left out" if self.error is None else "included"
        status = included if not self.own else f"training rows{', left out' * (self.error is None)}"
        if isinstance(self.model, StationaryMixture):
            lost = torch.full_like(gaps[0].row_error[:1], torch.nan)
            gaps = [
                replace(g, row_error=lost.expand_as(g.row_error), null_error=lost.expand_as(g.null_error))
                for g in gaps
            ]
            return Mega(tuple(gaps), self.n_rows, status, no_errors=DEPENDENT)
        if draws == 0:
            return Mega(tuple(gaps), self.n_rows, status)
        null_error = [gap.null_error for gap in gaps]
        draw = self._draw_from_model if from_model else self._draw_by_random_signs
        sizes = draw(null_error, draws)

        # The most deviant test function, beside the most deviant one of every draw, on a scale that all share.
        tested, scores, null_scores = [], [], []
        for gap, size in zip(gaps, sizes, strict=True):
            seen = _measure_gap_size(gap.statistic, gap.statistic.flatten(gap.gap), gap.null_error)
            unknown = torch.isinf(gap.null_error)
            p_value: float | None = _monte_carlo_p_value(seen.score, size.score)
            if not bool(((gap.null_error > 0) & ~unknown).any()):  # matched by the fit, or without an error
                p_value = None if bool(unknown.any()) else 1.0
            else:
                centre, scale = size.score.log().mean(), size.score.log().std().clamp(min=1e-12)
                scores.append((seen.score.log() - centre) / scale)
                null_scores.append((size.score.log() - centre) / scale)
            norm_p_value, expected_norm = _monte_carlo_p_value(seen.norm, size.norm), float(size.norm.mean())
            tested.append(
                replace(gap, p_value=p_value, norm_p_value=norm_p_value, expected_norm=expected_norm)
            )
        if scores:
            together: float | None = _monte_carlo_p_value(
                torch.stack(scores).amax(), torch.stack(null_scores).amax(0)
            )
        else:
            together = None if any(gap.p_value is None for gap in tested) else 1.0
        return Mega(tuple(tested), self.n_rows, status, together)

    def _measure_gaps(self) -> list[Gap]:
        """Data minus model by test function, with the standard errors that follow from the rows at hand."""
        lengths = [len(statistic.entry_multiplicity()) for statistic in self.statistics]
        errors: Sequence[Tensor | None] = [None] * len(lengths)
        if self.error is not None:
            total = (self.error.row_share.square() @ self.error.row_influence.square()).sqrt()
            errors = total.split(lengths)
        gaps = []
        for statistic, sums, forward, error in zip(
            self.statistics, self.sums, self.forward, errors, strict=True
        ):
            data, model = sums.mean, forward.value.detach()
            rows, nodes = statistic.flatten(sums.error), statistic.flatten(forward.error.detach())
            error = torch.zeros_like(rows) if error is None else error
            shown = statistic.to_data_units(data), statistic.to_data_units(model)
            null_error = combine_errors(rows, nodes, error)
            gaps.append(Gap(statistic, *shown, data - model, rows, nodes, error, null_error))
        if self.error is None or not self.own:
            return gaps
        # Training rows move the data and the parameters together; what the fit matches by construction has no error.
        influences = self.error.row_influence.split(lengths, dim=1)
        for i, (gap, sums, influence) in enumerate(zip(gaps, self.sums, influences, strict=True)):
            centred = gap.statistic.evaluate(self.sample.rows) - gap.statistic.flatten(sums.mean)
            net = torch.nan_to_num(centred, nan=0.0) - influence[: len(centred)]
            error = (net * self.error.row_share[: len(centred), None]).square().sum(0).sqrt()
            error = torch.where(error > self.error.match_tolerance * gap.row_error, error, 0.0)
            null_error = combine_errors(error, gap.node_error)
            zero = torch.zeros_like(error)
            gaps[i] = replace(gap, row_error=error, parameter_error=zero, null_error=null_error)
        return gaps

    def _estimate_null_errors(self) -> list[Tensor]:
        """Standard error of each entry over as many rows if the model is true, from a large sample of the model.

        Of the rows of the fit each one's influence on the parameters is removed.
        """
        fresh = draw_rows(self.model, self.sample_size, self.stream)
        if self.error is None or not self.own:
            ones = fresh.new_ones(self.sample_size)
            return [s.flatten(s.sum_rows(fresh, ones).variance / self.n_rows).sqrt() for s in self.statistics]
        lengths = [len(statistic.entry_multiplicity()) for statistic in self.statistics]
        influences = self.error.influence(fresh).split(lengths, dim=1)
        errors = []
        for statistic, influence in zip(self.statistics, influences, strict=True):
            entries = statistic.evaluate(fresh)
            alone, net = entries.std(0), (entries - influence[: len(entries)]).std(0)
            kept = torch.where(net > self.error.match_tolerance * alone, net, 0.0)
            errors.append(kept / self.n_rows**0.5)
        return errors

    def _draw_from_model(self, errors: Sequence[Tensor], draws: int) -> list[_GapSize]:
        """Sizes of gaps of as many fresh rows from the model, (draws,) for each test function."""
        root = None if self.error is None or self.own else self.error.covariance_root
        found: list[list[_GapSize]] = []
        step = max(1, BATCH_VALUES // (self.n_rows * int(self.forward[0].value.shape[-1])))
        for start in range(0, draws, step):
            batch = min(step, draws - start)
            fresh = draw_rows(self.model, batch * self.n_rows, self.stream)
            shift = None
            if root is not None:
                shift = normal((batch, root.shape[1]), self.stream).to(root) @ root.mT
            elif self.error is not None:
                shift = self.error.influence(fresh).reshape(batch, self.n_rows, -1).mean(1)
            tables = fresh.reshape(batch, self.n_rows, -1)
            ones = tables.new_ones(batch, self.n_rows)
            means = [statistic.sum_rows(tables, ones).mean for statistic in self.statistics]
            gaps = [
                s.flatten(m - f.value) for s, m, f in zip(self.statistics, means, self.forward, strict=True)
            ]
            found.append(self._measure_null_gaps(gaps, shift, errors))
        return [
            _GapSize(torch.cat([p.score for p in parts]), torch.cat([p.norm for p in parts]))
            for parts in zip(*found, strict=True)
        ]

    def _draw_by_random_signs(self, errors: Sequence[Tensor], draws: int) -> list[_GapSize]:
        """Sizes of gaps of the same rows with random signs about their means, (draws,) for each test function.

        Gaps of a sample of the rows are scaled to the errors of all rows.
        """
        totals = [s.first.new_zeros(draws, *s.first.shape) for s in self.sums]
        own = self.error if self.own else None
        shift = None if own is None else own.row_influence.new_zeros(draws, own.row_influence.shape[1])
        row = 0
        for rows, weight in ArraySource(self.sample.rows, self.sample.weight).chunks():
            step = max(1, BATCH_VALUES // max(rows.numel(), 1))
            for start in range(0, draws, step):
                part = slice(start, min(start + step, draws))
                size = (part.stop - start, len(weight))
                signs = torch.randint(2, size, generator=self.stream, device=self.stream.device)
                signs = (2 * signs - 1).to(weight)
                for total, statistic, every in zip(totals, self.statistics, self.sums, strict=True):
                    signed = statistic.sum_rows(rows, signs * weight)
                    total[part] += signed.first - every.mean * signed.count
                if own is not None and shift is not None:
                    here = slice(row, row + len(weight))
                    shift[part] += signs @ (own.row_share[here, None] * own.row_influence[here])
            row += len(weight)
        gaps = [
            statistic.flatten(total * _scale_of_signed_sum(statistic, every, self.sample, own is not None))
            for total, statistic, every in zip(totals, self.statistics, self.sums, strict=True)
        ]
        if self.error is not None and own is None:
            root = self.error.covariance_root
            shift = normal((draws, root.shape[1]), self.stream).to(root) @ root.mT
        return self._measure_null_gaps(gaps, shift, errors)

    def _measure_null_gaps(
        self, gaps: Sequence[Tensor], shift: Tensor | None, errors: Sequence[Tensor]
    ) -> list[_GapSize]:
        """Sizes of gaps (draws, p) with the errors of nodes added and the shift by the parameters subtracted."""
        shifts = None if shift is None else shift.split([len(error) for error in errors], dim=1)
        found = []
        for i, (statistic, gap) in enumerate(zip(self.statistics, gaps, strict=True)):
            node_error = statistic.flatten(self.forward[i].error)
            noisy = gap + normal(tuple(gap.shape), self.stream).to(gap) * node_error
            noisy = noisy if shifts is None else noisy - shifts[i]
            found.append(_measure_gap_size(statistic, noisy, errors[i]))
        return found


def _measure_gap_size(statistic: Statistic, gap: Tensor, error: Tensor) -> _GapSize:
    """Both numbers, from distinct entries (..., p); those of infinite error are left out."""
    gap = torch.where(torch.isinf(error), 0.0, gap)
    z = torch.where(error > 0, gap / error.clamp(min=1e-300), 0.0)
    # An off-diagonal entry of a matrix counts twice in its norm.
    return _GapSize(z.square().mean(-1), (gap.square() @ statistic.entry_multiplicity().to(gap)).sqrt())


def _scale_of_signed_sum(statistic: Statistic, every: MomentSums, sample: RowSample, own: bool) -> Tensor:
    """The factor from a signed sum over the sample to the mean over all rows."""
    if sample.is_complete:
        return 1.0 / every.count.clamp(min=1e-300)
    part = statistic.sum_rows(sample.rows, sample.weight)
    ratio = every.error / part.error.clamp(min=1e-300)
    if own:  # the same for every entry, as it is for the influence of the rows on the parameters
        ratio = torch.full_like(ratio, sample.probability**0.5)
    return torch.where(part.count > 0, ratio / part.count.clamp(min=1e-300), 0.0)


def _monte_carlo_p_value(observed: Tensor, null: Tensor) -> float:
    return (1 + int((null >= observed).sum())) / (1 + len(null))


def _warn_of_infinite_errors(statistics: Sequence[Statistic], forward: Sequence[ForwardMoment]) -> None:
    """Say which moments have Monte Carlo errors that cannot be estimated."""
    lost = []
    for statistic, moment in zip(statistics, forward, strict=True):
        infinite = torch.isinf(statistic.flatten(moment.error)).nonzero()[:, 0].tolist()
        labels = statistic.label_entries() if infinite else []
        lost += [f"{statistic.name}: {labels[entry]}" for entry in infinite]
    if lost:
        warn_caller(
            f"a few nodes carry nearly all of the model's {join_words(lost, most=5)}: their Monte Carlo errors cannot "
            "be estimated, and they are left out of p-values; raise nodes=, or use bounded test functions, Fourier() "
            "and Below()",
            UserWarning,
        )
