r"""Moment gaps with standard errors and p-values, for any model.

.. math:: \text{gap} = \frac1n \sum_i g(x_i) - E_z \, E[g(x) \mid z]

Beaulac (2023), sections 4 and 5, with the errors that the paper leaves out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from scipy import stats
from torch import Generator, Tensor

from boxloop.caller import warn_caller
from boxloop.criticise import norms
from boxloop.criticise.adapt import (
    DEPENDENT,
    StationaryMixture,
    as_model,
    check_independent_rows,
    open_rows_for_model,
    unwrap_search,
)
from boxloop.criticise.forward_moments import ForwardMoment, Method, forward_moments, standardise_by_model
from boxloop.criticise.null_distribution import NullDistribution, estimate_null_errors, measure_gap
from boxloop.criticise.parameter_error import (
    ParameterUncertainty,
    check_column_names,
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
    RowSample,
    RowSampler,
    SumAndRows,
    check_choice,
    check_count,
    check_list,
    fingerprint_rows,
    hash_tile,
    hash_to_text,
    make_frame,
    sample_rows,
)
from boxloop.numeric import RandomState, generator, join_words, single_threaded, spawn
from boxloop.tree import Tree
from boxloop.types import LatentModel, Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLE_ROWS, SAMPLE_VALUES = 20_000, 1 << 24
"""Most rows, and most values, that the null distribution is computed from; the moments are those of all rows."""

SIMULATED_VALUES = 4e8
"""Values (rows x columns x draws) up to which the null distribution comes from fresh rows of the model."""

Norm = Literal["frobenius", "entrywise", "schatten", "operator"]


@dataclass(frozen=True)
class Gap:
    """The gap of one test function: data minus model, and the three sources of its error.

    Args:
        statistic: the test function, prepared for these columns.
        data: mean over rows, a vector or a matrix, in the units of the data (see ``moment``).
        model: expectation under the model, in the same units.
        gap: data minus model, computed about the origin, so that it keeps digits which ``data`` and ``model`` lose.
        row_error: standard error of each distinct entry from the rows, (p,).
        node_error: from Monte Carlo nodes, zero where the moment is exact.
        parameter_error: from the estimated parameters, zero where it was left out.
        null_error: standard error if the model were true, (p,): the unit of ``z``.
        p_value: how often the model itself gives entries as large, taken together; None without draws.
        norm_p_value: the same for the norm of the gap.
        expected_norm: mean of the norm if the model were true.
    """

    statistic: Statistic
    data: Tensor
    model: Tensor
    gap: Tensor
    row_error: Tensor
    node_error: Tensor
    parameter_error: Tensor
    null_error: Tensor
    p_value: float | None = None
    norm_p_value: float | None = None
    expected_norm: float | None = None

    @property
    def name(self) -> str:
        """Name of the test function."""
        return self.statistic.name

    @property
    def moment(self) -> str:
        """What ``data`` and ``model`` are: of which quantity, in which units."""
        return self.statistic.moment

    @property
    def labels(self) -> list[str]:
        """A name for each distinct entry."""
        return self.statistic.label_entries()

    @property
    def flat_error(self) -> Tensor:
        """Standard error of each distinct entry, all sources together, (p,)."""
        return _root_sum_squares(self.row_error, self.node_error, self.parameter_error)

    @property
    def z(self) -> Tensor:
        """Distinct entries over ``null_error``, (p,); 0 where that is 0, since the fit matches the entry.

        Also 0 where the error is infinite, as it cannot be estimated; NaN where the model has no error to offer.
        """
        error = self.null_error
        return torch.where(error == 0, 0.0, self.statistic.flatten(self.gap) / error.clamp(min=1e-300))

    def norm(self, kind: Norm = "frobenius", order: float = 2.0) -> float:
        """A norm of the gap; Beaulac (2023), section 5.1.

        Args:
            kind: ``frobenius`` (1MEGA-F, 2MEGA-F), ``entrywise`` or ``schatten`` of an order, ``operator``.
            order: of the entrywise or Schatten norm.
        """
        if kind == "operator":
            return float(norms.operator(self.gap)[0])
        if kind == "schatten":
            return float(norms.schatten(self.gap, order))
        return float(norms.entrywise(self.gap, 2.0 if kind == "frobenius" else order))

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Confidence limits of each distinct entry of the gap, (p,) each."""
        reach = float(stats.norm.ppf(0.5 + 0.5 * level)) * self.flat_error
        flat = self.statistic.flatten(self.gap)
        return flat - reach, flat + reach

    def direction(self) -> tuple[float, dict[str, float]]:
        """The combination of columns along which the gap is largest, and its signed size there."""
        value, vector = norms.operator(self.gap)
        signed = float(vector @ self.gap @ vector) if self.gap.dim() == 2 else float(value)
        names = self.statistic.frame.names if self.gap.dim() == 2 else self.labels
        return signed, dict(zip(names, vector.tolist(), strict=True))

    def plot(self, ax: Axes | None = None, *, top: int = 24) -> Axes:
        """Z-scores of the entries: a heat map of pairs of columns, dots for anything else.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: most entries of a vector that are shown: those with the largest gaps, in their own order.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture, mega
            >>> rows = np.random.default_rng(0).normal(size=(200, 3))
            >>> result = mega(GaussianMixture(1).fit(rows[:100]), rows[100:], draws=0)
            >>> result["second"].plot().get_title(loc="left")
            'Data minus model: second'
        """
        from boxloop.figures import dots, heat_map

        z = self.z.cpu().numpy()
        p_value = "" if self.p_value is None else f", p = {self.p_value:.3g}"
        title = f"Data minus model: {self.name}{p_value}"
        if self.gap.dim() == 2:
            names = self.statistic.frame.names
            i, j = np.triu_indices(len(names))
            matrix = np.zeros((len(names), len(names)))
            matrix[i, j] = matrix[j, i] = z
            return heat_map(matrix, names, ax, title=title, label="gap in units of its error")
        largest = np.sort(np.argsort(-np.abs(z), kind="stable")[:top])
        title += f" ({len(largest)} of {len(z)})" if len(largest) < len(z) else ""
        return dots(z[largest], [self.labels[entry] for entry in largest], ax, title=title)


@dataclass(frozen=True, repr=False)
class Mega:
    """Gaps of all test functions, and one p-value for them together.

    Args:
        gaps: one for each test function.
        n_rows: rows that the model was compared with.
        parameter_error: whether the error of the fitted parameters is in the errors: ``included``, ``left out``, and
            of rows that the model was fitted to ``training rows`` or ``training rows, left out``.
        p_value: how often the model itself has a test function that deviates as much as the most deviant one here;
            None without draws.
        no_errors: why there are no errors, z-scores and p-values; empty where there are.
    """

    gaps: tuple[Gap, ...]
    n_rows: int
    parameter_error: str
    p_value: float | None = None
    no_errors: str = ""

    def __getitem__(self, name: str) -> Gap:
        for gap in self.gaps:
            if gap.name == name:
                return gap
        raise KeyError(f"no test function {name!r}; there are {', '.join(g.name for g in self.gaps)}")

    def summary(self) -> Any:
        """One line for each test function, as a frame."""
        return make_frame(
            {
                "entries": [len(g.labels) for g in self.gaps],
                "norm": [g.norm() for g in self.gaps],
                "expected norm": [g.expected_norm for g in self.gaps],
                "largest |z|": [float(g.z.abs().max()) for g in self.gaps],
                "p_value": [g.p_value for g in self.gaps],
            },
            [g.name for g in self.gaps],
        )

    def table(self, level: float = 0.95) -> Any:
        """One line for each entry of each test function, the largest z-score first, as a frame.

        The column ``moment`` says what ``data`` and ``model`` are: column means in the units of the column; second
        moments as covariances about the model's mean (of ``Second("zero")`` as mean products) in products of the units;
        higher powers of columns that are standardised by the model's mean and standard deviation; shares of rows.
        ``gap``, ``error``, ``low`` and ``high`` are in the same units; ``z`` is the gap over the error it would have if
        the model were true. ``p_adjusted`` is the false-discovery rate at which the entry counts as a misfit
        (Benjamini and Hochberg 1995).
        """
        z = np.concatenate([g.z.cpu().numpy() for g in self.gaps])
        order = np.argsort(-np.abs(z), kind="stable")
        p_value = 2.0 * stats.t.sf(np.abs(z), max(self.n_rows - 1, 1))
        low, high = (np.concatenate([g.interval(level)[i].cpu().numpy() for g in self.gaps]) for i in (0, 1))
        columns = {
            "function": [g.name for g in self.gaps for _ in g.labels],
            "entry": [label for g in self.gaps for label in g.labels],
            "moment": [g.moment for g in self.gaps for _ in g.labels],
            "data": np.concatenate([g.statistic.flatten(g.data).cpu().numpy() for g in self.gaps]),
            "model": np.concatenate([g.statistic.flatten(g.model).cpu().numpy() for g in self.gaps]),
            "gap": np.concatenate([g.statistic.flatten(g.gap).cpu().numpy() for g in self.gaps]),
            "error": np.concatenate([g.flat_error.cpu().numpy() for g in self.gaps]),
            "low": low,
            "high": high,
            "z": z,
            "p_value": p_value,
            "p_adjusted": stats.false_discovery_control(np.nan_to_num(p_value, nan=1.0)),
        }
        return make_frame({name: np.asarray(values)[order].tolist() for name, values in columns.items()})

    def misfits(self, rate: float = 0.05) -> Any:
        """The entries that misfit at a false-discovery rate, the largest z-score first.

        Raises:
            ValueError: the gaps have no errors (``no_errors`` says why), so that no entry can be tested.
        """
        self._require_standard_errors()
        table = self.table()
        return table[table["p_adjusted"] <= rate]

    def plot(self, ax: Axes | None = None, *, top: int = 12, rate: float = 0.05) -> Axes:
        """The moments with the largest z-scores; one test function is ``result["second"].plot()``.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: how many moments.
            rate: false-discovery rate at which a moment is marked as a misfit.

        Returns:
            The axes.

        Raises:
            ValueError: the gaps have no errors.

        Example:
            >>> import numpy as np
            >>> from boxloop import GaussianMixture, mega
            >>> rows = np.random.default_rng(0).normal(size=(200, 3))
            >>> axes = mega(GaussianMixture(1).fit(rows[:100]), rows[100:], draws=0).plot(top=4)
            >>> len(axes.get_yticks())
            4
        """
        from boxloop.figures import dots, short

        self._require_standard_errors()
        table = self.table()[:top]
        names = [
            f"{function}: {' x '.join(map(short, entry.split(' x ')))}"
            for function, entry in zip(table["function"], table["entry"], strict=True)
        ]
        marked = table["p_adjusted"].to_numpy() <= rate
        across = f"gap in units of its error\n(marked: {rate:.0%} false discovery)"
        return dots(table["z"].to_numpy(), names, ax, marked=marked, title="Worst moments", across=across)

    def _require_standard_errors(self) -> None:
        if self.no_errors:
            raise ValueError(
                f"misfits need standard errors, and there are none: {self.no_errors}; see table()"
            )

    def _format_headline(self) -> str:
        p_value = "" if self.p_value is None else f"; p = {self.p_value:.3g} for all test functions together"
        return f"Moment gaps on {self.n_rows} rows; parameter error: {self.parameter_error}{p_value}"

    def __repr__(self) -> str:
        lines = [self._format_headline()]
        for g in self.gaps:
            line = f"  {g.name}: norm {g.norm():.4g}"
            if g.p_value is not None:
                line += f", p = {g.p_value:.3g}"
            if not self.no_errors:
                worst = int(torch.nan_to_num(g.z.abs(), nan=-1.0).argmax())
                line += f"; largest z-score {float(g.z[worst]):.1f} at {g.labels[worst]}"
            lines.append(line)
        if self.no_errors:
            lines.append(f"  no errors and no p-values: {self.no_errors}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._format_headline())}</p>\n{self.summary().to_html()}"


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
    model = unwrap_search(model)
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

    case = _MomentComparison(adapted, statistics, method, nodes, streams[1], streams[2])
    digest = case.average_over_rows(source)
    fitted = None if train is None or train is X else open_rows_for_model(model, train, None, device)
    if fitted is not None:
        check_column_names(model, fitted.names, "train")
    train_digest = None if train is None else digest if fitted is None else fingerprint_rows(fitted)
    own = is_training_table(model, adapted, digest, train_digest)
    case.average_over_model(own)
    if train is not None or (own and has_parameter_error(adapted)):
        rows = (
            case.sample
            if own or fitted is None
            else sample_rows(fitted, _null_sample_size(fitted), streams[2])
        )
        if not own:
            warn_of_shared_rows(case.sample, rows)
        if getattr(model, "training_digest_", None) is None:
            warn_of_wrong_training_rows(frame.origin, rows)
        case.add_parameter_error(rows)
    from_model = null == "model" or (null == "auto" and case.can_simulate_rows(source, draws))
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


def _null_sample_size(source: Source) -> int:
    return max(1000, min(SAMPLE_ROWS, SAMPLE_VALUES // source.n_columns))


@dataclass(frozen=True)
class _SumsAndDigest(Tree):
    statistics: tuple[MomentSums, ...]
    word: Tensor


@dataclass
class _MomentComparison:
    """Rows beside a model: average over both, add the error of the fitted parameters, test the gaps."""

    model: LatentModel
    statistics: tuple[Statistic, ...]
    method: Method
    nodes: int
    node_stream: Generator
    stream: Generator
    error: ParameterUncertainty | None = None

    def average_over_rows(self, source: Source) -> str:
        """The one pass over the rows: sums over all, a sample for the null distribution; returns their digest."""
        sampler = RowSampler.draw(source.n_rows, _null_sample_size(source), self.stream)

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
        self.own = own
        self._nodes_at = self.node_stream.get_state()
        self.forward = self._compute_forward_moments(self.model)
        _warn_of_infinite_errors(self.statistics, self.forward)
        if not own:
            warn_of_matching_means(self.statistics, self.sums, self.forward, self.sample, self.n_rows)

    def _compute_forward_moments(self, model: LatentModel) -> list[ForwardMoment]:
        self.node_stream.set_state(self._nodes_at)  # the same nodes for every parameter
        return forward_moments(model, self.statistics, self.node_stream, self.method, self.nodes)

    def add_parameter_error(self, rows: RowSample) -> None:
        """The error of the fitted parameters, from the training rows or a sample of them."""

        def flat_moments(model: LatentModel) -> Tensor:
            pairs = zip(self.statistics, self._compute_forward_moments(model), strict=True)
            return torch.cat([statistic.flatten(moment.value) for statistic, moment in pairs])

        frame = self.statistics[0].frame
        model = require_free_parameters(self.model)
        self.error = estimate_parameter_error(model, rows, flat_moments, frame.origin, frame.scale)

    def can_simulate_rows(self, source: Source, draws: int) -> bool:
        """Whether fresh rows of the model may stand for these: not too many, none missing, none weighted."""
        complete = all(
            bool((s.count == s.count.max()).all()) and bool((s.squared_weight == s.count).all())
            for s in self.sums
        )
        return complete and source.n_rows * source.n_columns * max(draws, 1) <= SIMULATED_VALUES

    def test_gaps(self, from_model: bool, draws: int) -> Mega:
        """The gaps with the errors and p-values that they would have if the model were true."""
        gaps = self._measure_gaps()
        if from_model:
            own_error = self.error if self.own else None
            errors = estimate_null_errors(self.model, self.statistics, self.n_rows, own_error, self.stream)
            gaps = [
                replace(g, null_error=_root_sum_squares(e, g.node_error, g.parameter_error))
                for g, e in zip(gaps, errors, strict=True)
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
        null = NullDistribution(self.model, self.statistics, self.forward, null_error, self.error, self.own)
        if from_model:
            sizes = null.draw_from_model(self.n_rows, draws, self.stream)
        else:
            sizes = null.draw_by_random_signs(self.sample, self.sums, draws, self.stream)

        # The most deviant test function, beside the most deviant one of every draw, on a scale that all share.
        tested, scores, null_scores = [], [], []
        for gap, size in zip(gaps, sizes, strict=True):
            seen = measure_gap(gap.statistic, gap.statistic.flatten(gap.gap), gap.null_error)
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
        errors = [None] * len(lengths) if self.error is None else self.error.error.split(lengths)
        gaps = []
        for statistic, sums, forward, error in zip(
            self.statistics, self.sums, self.forward, errors, strict=True
        ):
            data, model = sums.mean, forward.value.detach()
            rows, nodes = statistic.flatten(sums.error), statistic.flatten(forward.error.detach())
            error = torch.zeros_like(rows) if error is None else error
            shown = statistic.to_data_units(data), statistic.to_data_units(model)
            null_error = _root_sum_squares(rows, nodes, error)
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
            null_error = _root_sum_squares(error, gap.node_error)
            zero = torch.zeros_like(error)
            gaps[i] = replace(gap, row_error=error, parameter_error=zero, null_error=null_error)
        return gaps


def _root_sum_squares(*errors: Tensor) -> Tensor:
    return torch.stack([error.square() for error in errors]).sum(0).sqrt()


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
